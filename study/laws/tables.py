"""Anybody's table: csv, tsv, jsonl, json or parquet, numbers written as text included, and what is known of it."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.errors import InputError

_READERS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_MISSING = ["-", "–", "—", "?", "."]

_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "%": 0.01}
_SHAPE = re.compile(r"^([+-]?[\d.,' \u00a0\u202f_]*\d\.?(?:e[+-]?\d+)?)\s*([kmbgt%]?)$", re.IGNORECASE)
_GROUPED = re.compile(r"^[+-]?[1-9]\d{0,2}(?P<mark>[,' \u00a0\u202f_])\d{3}(?:(?P=mark)\d{3})*(?:\.\d+)?$")
_DECIMAL_COMMA = re.compile(r"^[+-]?\d+,\d+(?:e[+-]?\d+)?$", re.IGNORECASE)

NOTES = "notes"
"""Where a table's `attrs` say which text was read as numbers."""


@dataclass(frozen=True)
class Selection:
    """What whoever made a table knows of its rows and columns; of a stranger's table there is none.

    `roles` gives the column or expression of each variable, and `counts` all columns that count a variable, the usual one
    first. `excluded` says of rows, by their places, why every law leaves them out; `unbracketed` says so where only bracketed
    learning rates count. `runs` and `clusters` number the run of each row and what misses a law together, which is of the kind
    `cluster`. Losses of rows that differ in a column of `validation` are not comparable, and rows that differ in a column of
    `settings` have laws of their own. Rows that agree in all variables of a law and differ in a column of `amounts`, which are
    given with what they are in words, do not repeat each other. The rows numbered in
    `without_order` are of runs that read no word order, whose losses follow another law.
    """

    roles: Mapping[str, str]
    counts: Mapping[str, Sequence[str]]
    excluded: Mapping[int, str]
    unbracketed: Mapping[int, str]
    runs: NDArray[np.int64]
    clusters: NDArray[np.int64]
    cluster: str
    validation: Sequence[str]
    settings: Sequence[str]
    amounts: Mapping[str, str]
    without_order: frozenset[int] = frozenset()


@dataclass(frozen=True)
class RunTable:
    """A table that laws read, with the file or folder that messages name, and the selection of whoever made it."""

    path: Path
    frame: pd.DataFrame
    selection: Selection | None = None

    @classmethod
    def read(cls, path: Path) -> RunTable:
        """A stranger's table; see read_table."""
        return cls(path, read_table(path))

    @property
    def roles(self) -> Mapping[str, str]:
        """The column or expression of each variable that the selection knows."""
        return {} if self.selection is None else self.selection.roles

    @property
    def counts(self) -> Mapping[str, Sequence[str]]:
        """All columns that count a variable, where the selection knows several."""
        return {} if self.selection is None else self.selection.counts

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """The number of each row's run: every row's own, where nothing is known of it."""
        return np.arange(len(self.frame)) if self.selection is None else self.selection.runs

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Rows as a reader finds them: numbered from 1, without the header."""
        return tuple(f"row {row}" for row in range(1, len(self.frame) + 1))

    def left_out(self, bracketed_only: bool) -> NDArray[np.object_]:
        """Why the selection or its repetition leaves a row out, None where nothing does."""
        gone = dict.fromkeys(self._repeated, "repeats an earlier row")
        if self.selection is not None:
            gone |= self.selection.unbracketed if bracketed_only else self.selection.excluded
        reasons = np.full(len(self.frame), None, dtype=object)
        reasons[list(gone)] = list(gone.values())
        return reasons

    @cached_property
    def _repeated(self) -> list[int]:
        of_anything = [name for name in self.frame if self.frame[name].dtype == object]  # lists, say, which have no hash
        return np.flatnonzero(self.frame.astype(dict.fromkeys(of_anything, str)).duplicated()).tolist()


def numbered(names: pd.Series[Any]) -> NDArray[np.int64]:
    """Names of runs as numbers; a row without one is a run of its own."""
    numbers = pd.factorize(names)[0]
    alone = numbers < 0
    return np.where(alone, numbers.max(initial=-1) + 1 + np.cumsum(alone), numbers).astype(np.int64)


def read_table(path: Path) -> pd.DataFrame:
    """A table from a csv, tsv, jsonl or parquet file.

    Raises InputError where there is none, or it cannot be read, and as tidy_table does.
    """
    kind = _READERS.get(path.suffix.lower())
    try:
        table, decimal_commas = _read(path, kind)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError.at(str(path), "does not exist") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError.at(str(path), f"is not UTF-8 (byte {byte:#x} at {error.start}); save it as UTF-8") from None
    except (ValueError, OSError, NotImplementedError) as error:  # of damaged Parquet pyarrow raises any of these
        raise InputError.at(str(path), f"cannot be read as {kind}: {' '.join(str(error).split())[:200]}") from None
    return tidy_table(table, path, decimal_commas)


def tidy_table(table: pd.DataFrame, path: Path, decimal_commas: bool = False) -> pd.DataFrame:
    """The table of a file with plain names, and as numbers what is written as text; its notes say which columns were text.

    Raises InputError where two columns share a name, or there is no row.
    """
    table.columns = [str(name).strip() for name in table.columns]
    _refuse_twice(list(table.columns), path)
    if table.empty:
        raise InputError.at(str(path), "has no rows")
    table, notes = read_text_numbers(_in_floats(table), decimal_commas)
    table.attrs[NOTES] = notes
    return table


def _in_floats(table: pd.DataFrame) -> pd.DataFrame:
    """The table with whole numbers that no float holds as infinite, of which readings say that they are left out."""

    def in_a_float(value: object) -> object:
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            return math.inf if value > 0 else -math.inf
        return value

    mixed = [str(name) for name in table if table[name].dtype == object]
    return table.assign(**{name: table[name].map(in_a_float) for name in mixed}) if mixed else table


def _refuse_twice(names: list[str], path: Path) -> None:
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InputError.at(str(path), f"has more than one column named {', '.join(twice)}")


def _read(path: Path, kind: str | None) -> tuple[pd.DataFrame, bool]:
    """The rows of a file, and whether its numbers have decimal commas, as those of a csv whose columns semicolons part."""
    if kind is None and path.stat():
        raise InputError.at(str(path), f"is none of {', '.join(_READERS)}")
    if kind == "parquet":
        return pd.read_parquet(io.BytesIO(path.read_bytes())), False
    if kind == "jsonl":
        return _flat(path.read_text(encoding="utf-8-sig")), False
    top = _top(path)
    names = [name or f"Unnamed: {place}" for place, name in enumerate(top.names)]
    _refuse_twice(names, path)
    with path.open(encoding="utf-8-sig", newline="") as file:
        for _ in range(top.lines):
            file.readline()
        try:
            table = pd.read_csv(
                file, sep=top.separator, header=None, names=names, skipinitialspace=True, na_values=_MISSING, low_memory=False
            )
        except pd.errors.ParserError as error:
            raise ValueError(_counted_from(top.lines, str(error))) from None
    return table, top.separator == ";"


def _counted_from(above: int, error: str) -> str:
    """What pandas says of the lines below the header (`line 1`) or the rows (`row 0`), in lines of the file."""
    error = re.sub(r"(?<=\bline )\d+", lambda found: f"{int(found[0]) + above}", error)
    return re.sub(r"\brow (\d+)", lambda found: f"line {int(found[1]) + 1 + above}", error)


def _flat(text: str) -> pd.DataFrame:
    """Records from lines, a list, or an object of one list; what is nested in them gets dotted names."""
    try:
        records = json.loads(text)
    except (ValueError, RecursionError):
        records = [_record(line, number) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if isinstance(records, dict):
        lists = [value for value in records.values() if isinstance(value, list)]
        records = lists[0] if len(lists) == 1 else [records]
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError("its records are no objects of names and values")
    return pd.json_normalize(records)


def _record(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
    except RecursionError:
        raise ValueError(f"line {number}: it is nested too deeply") from None


@dataclass(frozen=True)
class _Top:
    """What a csv file begins with: the names of its columns, what parts them, and how many lines there are above the rows."""

    names: list[str]
    separator: str
    lines: int


def _top(path: Path) -> _Top:
    """The header of a csv file, which is its first line that is no comment, that is, does not begin with #.

    Where that line is a row, the header is the last comment of as many fields (as numpy.savetxt writes it). Raises InputError
    where there is none, ValueError for an empty file.
    """
    comments: list[str] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = iter(file.readline, "")
        for line in lines:
            if line.strip() and not line.startswith("#"):
                break
            comments.append(line)
        else:
            raise ValueError("it is empty; the first line of a table names its columns")
        separator = max("\t;,", key=line.count)
        reader = csv.reader(chain([line], lines), delimiter=separator, skipinitialspace=True)
        names = [name.strip() for name in next(reader)]
    if not _is_row(names):
        return _Top(names, separator, len(comments) + reader.line_num)
    for comment in reversed(comments):
        told = next(csv.reader([comment.lstrip("# ")], delimiter=separator, skipinitialspace=True), [])
        if len(told) == len(names) and not _is_row(told):
            return _Top([name.strip() for name in told], separator, len(comments))
    raise InputError.at(str(path), "the first line that is no comment holds numbers, not names")


def _is_row(fields: list[str]) -> bool:
    """Whether these are the numbers of a row and not the names of columns."""
    told = [field for field in fields if field not in _MISSING and field.lower() not in ("", "nan")]
    return bool(told) and all(as_number(field, decimal_commas=True) is not None for field in told)


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
