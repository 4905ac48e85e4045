"""Anybody's table from a file: csv, tsv, jsonl, json or parquet, or the ledger of a results folder."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from study.errors import InputError
from study.fitting.text_numbers import read_text_numbers

_READERS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_MISSING = ["-", "–", "—", "?", "."]

NOTES = "notes"
"""Where a table's `attrs` say which text was read as numbers."""


def read_table(path: Path) -> pd.DataFrame:
    """A table from a csv, tsv, jsonl or parquet file, or the ledger of a results folder.

    Raises InputError where there is none, it cannot be read, or two columns share a name.
    """
    if path.is_dir():
        path = path / "ledger.parquet"
    if not path.exists():
        raise InputError.at(str(path), "does not exist")
    kind = _READERS.get(path.suffix.lower())
    if kind is None:
        raise InputError.at(str(path), f"is none of {', '.join(_READERS)}")
    try:
        table = _read(path, kind)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError.at(str(path), f"is not UTF-8 (byte {byte:#x} at {error.start}); save it as UTF-8") from None
    except (ValueError, OSError) as error:
        raise InputError.at(str(path), f"cannot be read as {kind}: {' '.join(str(error).split())[:200]}") from None
    table.columns = [str(name).strip() for name in table.columns]
    names = _names(path) if kind == "csv" else list(table.columns)
    twice = sorted(name for name, count in Counter(names).items() if count > 1 and name)
    if twice:
        raise InputError.at(str(path), f"has more than one column named {', '.join(twice)}")
    if table.empty:
        raise InputError.at(str(path), "has no rows")
    table, notes = read_text_numbers(table, decimal_commas=kind == "csv" and _separator(_header(path)) == ";")
    table.attrs[NOTES] = notes
    return table


def _read(path: Path, kind: str) -> pd.DataFrame:
    if kind == "parquet":
        return pd.read_parquet(path)
    if kind == "jsonl":
        return _flat(path.read_text(encoding="utf-8-sig"))
    if not (header := _header(path)):
        raise ValueError("it is empty; the first line of a table names its columns")
    return pd.read_csv(
        path,
        sep=_separator(header),
        skiprows=_comments(path),
        encoding="utf-8-sig",
        skipinitialspace=True,
        na_values=_MISSING,
        low_memory=False,
    )


def _flat(text: str) -> pd.DataFrame:
    """Records from lines, a list, or an object of one list; what is nested in them gets dotted names."""
    try:
        records = json.loads(text)
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
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None


def _comments(path: Path) -> int:
    """How many lines before the header are comments, that is, begin with #."""
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines):
            if line.strip() and not line.startswith("#"):
                return number
    return 0


def _header(path: Path) -> str:
    with path.open(encoding="utf-8-sig") as lines:
        return next((line for line in lines if line.strip() and not line.startswith("#")), "")


def _names(path: Path) -> list[str]:
    """What the header of a csv file calls its columns; pandas renames one whose name another has."""
    header = _header(path)
    return [name.strip() for name in next(csv.reader([header], delimiter=_separator(header)))]


def _separator(header: str) -> str:
    return max("\t;,", key=header.count)
