"""Anybody's table from a file: csv, tsv, jsonl, json or parquet, or the ledger of a results folder."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from study.errors import InputError

_READERS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_MISSING = ["-", "–", "—", "?", "."]


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
    except (ValueError, OSError, UnicodeDecodeError) as error:
        raise InputError.at(str(path), f"cannot be read as {kind}: {' '.join(str(error).split())[:200]}") from None
    table.columns = [str(name).strip() for name in table.columns]
    twice = sorted({name for name in table.columns if list(table.columns).count(name) > 1})
    if twice:
        raise InputError.at(str(path), f"has more than one column named {', '.join(twice)}")
    if table.empty:
        raise InputError.at(str(path), "has no rows")
    return table


def _read(path: Path, kind: str) -> pd.DataFrame:
    if kind == "parquet":
        return pd.read_parquet(path)
    if kind == "jsonl":
        text = path.read_text(encoding="utf-8-sig")
        return pd.read_json(path, lines=not text.lstrip().startswith("["), encoding="utf-8-sig")
    with path.open(encoding="utf-8-sig") as lines:
        header = lines.readline()
    separator = max("\t;,", key=header.count)
    return pd.read_csv(path, sep=separator, encoding="utf-8-sig", skipinitialspace=True, na_values=_MISSING, low_memory=False)
