"""Numbers as text: grouped thousands, decimal commas, suffixes such as 125M, percentages, units such as 3.65 nats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

Commas = Literal["decimal", "grouping", "unclear"]
"""The meaning of a comma between digits; `unclear` if 3,656 may be 3.656 or 3656."""

_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "%": 0.01}
_SHAPE = re.compile(r"^([+-]?[\d.,'’ \u00a0\u202f_]*\d\.?(?:e[+-]?\d+)?)\s*([kmbgt%]?)$", re.IGNORECASE)
_UNITS = {
    r"nats?(?:\s*(?:/|per)\s*token)?": "nats",
    r"bits?(?:\s*(?:/|per)\s*token)?": "bits",
    r"bpb|bits?\s*(?:/|per)\s*byte": "bits per byte",
    r"bpc|bits?\s*(?:/|per)\s*char(?:acter)?": "bits per character",
    r"ppl|perplexity": "perplexity",
    r"params?|parameters?": "parameters",
    r"tokens?": "tokens",
    r"flops?": "flops",
}
"""The unit of each pattern that may end a cell."""

_UNIT = re.compile(rf"[(\[]?({'|'.join(_UNITS)})[)\]]?$", re.IGNORECASE)
_GROUPED = re.compile(r"^[+-]?[1-9]\d{0,2}(?P<mark>[,'’ \u00a0\u202f_])\d{3}(?:(?P=mark)\d{3})*(?:\.\d+)?$")
_GROUPED_BY_POINTS = re.compile(r"^[+-]?[1-9]\d{0,2}(?:(?:\.\d{3}){2,}(?:,\d+)?|\.\d{3},\d+)$")
_DECIMAL_COMMA = re.compile(r"^[+-]?\d+,\d+(?:e[+-]?\d+)?$", re.IGNORECASE)
_SURELY_DECIMAL = re.compile(r"^[+-]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,})|[1-9]\d{3,},\d+|\d+,\d+e[+-]?\d+)$", re.IGNORECASE)
_SURELY_GROUPED = re.compile(r"^[+-]?[1-9]\d{0,2}(?:(?:,\d{3}){2,}(?:\.\d+)?|,\d{3}\.\d+)$")
_ONE_GROUP_BY_POINT = re.compile(r"^[+-]?[1-9]\d{0,2}\.\d{3}$")


@dataclass(frozen=True)
class TextNumbers:
    """A table whose text columns of numbers are converted.

    `notes` has a line per converted column, `unclear` by column why a numeric-looking one was not converted, `units` the unit
    that the cells of a column carried.
    """

    table: pd.DataFrame
    notes: list[str]
    unclear: dict[str, str]
    units: dict[str, str]


def read_text_numbers(table: pd.DataFrame, semicolons: bool = False) -> TextNumbers:
    """Convert text columns whose values are all numbers, with a unit or without.

    `semicolons` says that semicolons separate the file's fields, as with decimal commas.
    """
    texts = {str(name): column for name in table.columns if (column := _numbers_in(table[name])) is not None}
    commas = _commas_by_column(texts, semicolons, _has_decimal_points(table, texts.values()))
    by_points = "decimal" in commas.values()
    changed, notes, unclear, units = {}, list[str](), dict[str, str](), dict[str, str]()
    for name, column in texts.items():
        carried = _units_in(table[name])
        if reason := _why_unclear(column, commas.get(name), by_points) or _why_mixed(carried):
            unclear[name] = reason
            continue
        grouping_points = by_points and any(map(_GROUPED_BY_POINTS.match, column))
        values = [as_number(text, commas.get(name) == "decimal", grouping_points) for text in column]
        if any(value is None for value in values):
            continue
        numbers = pd.Series(np.nan, index=table.index, dtype=float)
        numbers[column.index] = np.array(values, dtype=float)
        changed[name] = numbers
        units[name], *_ = carried
        notes.append(f"{name}: text such as {table[name][column.index[0]]!r} is read as {float(numbers[column.index[0]]):.6g}")
    units = {name: unit for name, unit in units.items() if unit}
    return TextNumbers(table.assign(**changed) if changed else table, notes, unclear, units)


def as_number(text: str, decimal_commas: bool, grouping_points: bool = False) -> float | None:
    """Convert text to a number, or None."""
    match = _SHAPE.match(text)
    if match is None:
        return None
    digits, suffix = match[1].strip(), match[2].lower()
    if grouping_points and (_GROUPED_BY_POINTS.match(digits) or _ONE_GROUP_BY_POINT.match(digits)):
        digits = digits.replace(".", "").replace(",", ".")
    elif decimal_commas and _DECIMAL_COMMA.match(digits):
        digits = digits.replace(",", ".")
    elif grouped := _GROUPED.match(digits):
        digits = digits.replace(grouped["mark"], "")
    try:
        return float(digits) * _FACTORS[suffix]
    except ValueError:
        return None


def has_decimal_commas(table: pd.DataFrame, semicolons: bool) -> bool:
    """Whether some text column holds numbers with decimal commas."""
    texts = {str(name): column for name in table.columns if (column := _numbers_in(table[name])) is not None}
    return "decimal" in _commas_by_column(texts, semicolons, False).values()


def is_one_group(texts: Iterable[object]) -> bool:
    """Whether every text is like 125.000, which means 125 or 125,000."""
    known = [text for text in texts if isinstance(text, str)]
    return bool(known) and all(_ONE_GROUP_BY_POINT.match(text) for text in known)


def _numbers_in(column: pd.Series) -> pd.Series | None:
    """Return the non-missing texts of a column, stripped of blanks and units; None unless all look like numbers."""
    if column.dtype != object and not pd.api.types.is_string_dtype(column):
        return None
    known = column.dropna()
    if known.empty or not all(isinstance(text, str) for text in known):
        return None
    numbers = []
    for text in known:
        number, _ = _parts(text)
        if not _SHAPE.match(number):
            return None
        numbers.append(number)
    return pd.Series(numbers, index=known.index)


def _parts(cell: str) -> tuple[str, str]:
    """Return the number of a cell and its unit, empty without one."""
    text = cell.strip()
    match = None if _SHAPE.match(text) else _UNIT.search(text)
    if match is None:
        return text, ""
    unit = next(unit for pattern, unit in _UNITS.items() if re.fullmatch(pattern, match[1], re.IGNORECASE))
    return text[: match.start()].strip(), unit


def _units_in(cells: Iterable[object]) -> dict[str, str]:
    """Return the units of the text cells of a column, empty where there is none, each with its first row."""
    units: dict[str, str] = {}
    for row, cell in enumerate(cells, 1):
        if isinstance(cell, str):
            units.setdefault(_parts(cell)[1], f"row {row}: {cell!r}")
    return units


def _has_decimal_points(table: pd.DataFrame, texts: Iterable[Iterable[str]]) -> bool:
    floats = table.select_dtypes("number").to_numpy(dtype=float, na_value=np.nan)
    floats = floats[np.isfinite(floats)]
    if bool((floats != np.round(floats)).any()):
        return True
    return any(re.fullmatch(r"[+-]?\d+\.\d+\D*", text) for column in texts for text in column)


def _commas_by_column(texts: dict[str, pd.Series[str]], semicolons: bool, points: bool) -> dict[str, Commas]:
    """Return the meaning of commas in each column, by its own values or else the other columns."""
    known: dict[str, Commas | None] = {}
    for name, column in texts.items():
        parts = [shape[1].strip() for text in column if "," in text and (shape := _SHAPE.match(text)) is not None]
        if parts:
            known[name] = _commas_of(parts)
    others = set(known.values())
    if semicolons or ("decimal" in others and "grouping" not in others):
        usual: Commas = "decimal"
    elif points or ("grouping" in others and "decimal" not in others):
        usual = "grouping"
    else:
        usual = "unclear"
    return {name: commas or usual for name, commas in known.items()}


def _commas_of(digits: Sequence[str]) -> Commas | None:
    """Return the meaning of commas by the numbers themselves; None if ambiguous."""
    decimal, grouped = any(map(_SURELY_DECIMAL.match, digits)), any(map(_SURELY_GROUPED.match, digits))
    if decimal and grouped:
        return "unclear"
    return "decimal" if decimal else "grouping" if grouped else None


def _why_unclear(texts: pd.Series[str], commas: Commas | None, grouping_points: bool) -> str:
    if commas == "unclear":
        example = next(text for text in texts if "," in text)
        return f"{example!r} may mean {example.replace(',', '.')} or {example.replace(',', '')}; write it in one of these ways"
    if grouping_points and is_one_group(texts):
        example = texts.iloc[0]
        return f"{example!r} may mean {float(example):g} or {example.replace('.', '')}, as other columns have decimal commas"
    return ""


def _why_mixed(units: dict[str, str]) -> str:
    return "" if len(units) < 2 else f"holds cells in different units ({', '.join(units.values())}); convert them to one"
