"""Anybody's table from a file: csv, tsv, jsonl, json or parquet, or the ledger of a results folder."""

from __future__ import annotations

import csv
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from study.base.durable_files import is_there, json_value
from study.base.errors import InputError
from study.laws.text_numbers import as_number, read_text_numbers
from study.store.named_files import read_parquet

_READERS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_MISSING = ["-", "–", "—", "?", "."]

NOTES = "notes"
"""Where a table's `attrs` say which text was read as numbers."""


def read_table(path: Path) -> pd.DataFrame:
    """A table from a csv, tsv, jsonl or parquet file, or the ledger of a results folder.

    Raises InputError where there is none, it cannot be read, or two columns share a name.
    """
    folder = path if path.is_dir() else None
    if folder is not None:
        path = folder / "ledger.parquet"
        if not is_there(path):
            raise InputError.at(
                str(folder), "is a folder without a ledger.parquet; give a table, or a sweep that has its report"
            )
    if not is_there(path):
        raise InputError.at(str(path), "does not exist")
    kind = _READERS.get(path.suffix.lower())
    if kind is None:
        raise InputError.at(str(path), f"is none of {', '.join(_READERS)}")
    try:
        table, decimal_commas = _read(path, kind)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError.at(str(path), f"is not UTF-8 (byte {byte:#x} at {error.start}); save it as UTF-8") from None
    except (ValueError, OSError) as error:
        raise InputError.at(str(path), f"cannot be read as {kind}: {' '.join(str(error).split())[:200]}") from None
    table.columns = [str(name).strip() for name in table.columns]
    _refuse_twice(list(table.columns), path)
    if table.empty:
        raise InputError.at(str(path), f"has no rows{'' if folder is None else ': no run of the sweep has ended'}")
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


def _read(path: Path, kind: str) -> tuple[pd.DataFrame, bool]:
    """The rows of a file, and whether its numbers have decimal commas, as those of a csv whose columns semicolons part."""
    if kind == "parquet":
        return read_parquet(path, "give it whole (`study report` writes a sweep's anew)"), False
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
        records = json_value(text)
    except ValueError:
        records = [_record(line, number) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if isinstance(records, dict):
        lists = [value for value in records.values() if isinstance(value, list)]
        records = lists[0] if len(lists) == 1 else [records]
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ValueError("its records are no objects of names and values")
    return pd.json_normalize(records)


def _record(line: str, number: int) -> Any:
    try:
        return json_value(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None


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
