"""Numbers that people write as text: 190,350,517 and 1 234 567, 125M and 2.4B, 63.2%, and 0,35 where commas are decimal."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "%": 0.01}
_SHAPE = re.compile(r"^([+-]?[\d.,' \u00a0\u202f_]*\d\.?(?:e[+-]?\d+)?)\s*([kmbgt%]?)$", re.IGNORECASE)
_GROUPED = re.compile(r"^[+-]?[1-9]\d{0,2}(?P<mark>[,' \u00a0\u202f_])\d{3}(?:(?P=mark)\d{3})*(?:\.\d+)?$")
_DECIMAL_COMMA = re.compile(r"^[+-]?\d+,\d+(?:e[+-]?\d+)?$", re.IGNORECASE)


def read_text_numbers(table: pd.DataFrame, decimal_commas: bool) -> tuple[pd.DataFrame, list[str]]:
    """The table with every column of text whose values are all such numbers as numbers, and a note for each of these.

    `decimal_commas` says that 0,35 is 0.35, as in files whose fields are parted by semicolons.
    """
    changed, notes = {}, []
    for name in table.columns:
        column = table[name]
        if column.dtype != object and not pd.api.types.is_string_dtype(column):
            continue
        texts = column.dropna()
        if texts.empty or not isinstance(texts.iloc[0], str) or as_number(texts.iloc[0].strip(), decimal_commas) is None:
            continue
        if not all(isinstance(text, str) for text in texts):
            continue
        values = [as_number(text.strip(), decimal_commas) for text in texts]
        if any(value is None for value in values):
            continue
        numbers = pd.Series(np.nan, index=column.index, dtype=float)
        numbers[texts.index] = np.array(values, dtype=float)
        changed[name] = numbers
        notes.append(f"{name}: text such as {texts.iloc[0]!r} is read as {float(numbers[texts.index[0]]):.6g}")
    return table.assign(**changed) if changed else table, notes


def as_number(text: str, decimal_commas: bool) -> float | None:
    """The number that a text is, None where it is none."""
    found = _SHAPE.match(text)
    if found is None:
        return None
    digits, suffix = found[1].strip(), found[2].lower()
    if decimal_commas and _DECIMAL_COMMA.match(digits):
        digits = digits.replace(",", ".")
    elif grouped := _GROUPED.match(digits):
        digits = digits.replace(grouped["mark"], "")
    try:
        return float(digits) * _FACTORS[suffix]
    except ValueError:
        return None
