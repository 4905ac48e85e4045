"""Tables of runs: files in every common format, and their maker's knowledge of rows and columns."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import math
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.errors import InputError, cut
from study.laws.text_numbers import as_number, has_decimal_commas, is_one_group, read_text_numbers

NOTES = "notes"
"""The key of a table's `attrs` that lists the text read as numbers."""

UNCLEAR = "unclear"
"""The key of a table's `attrs` that gives, by column, why text was not read as numbers."""

UNITS = "units"
"""The key of a table's `attrs` that gives, by column, the unit that its cells carried."""

_DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
_REMEDIES = {
    ".zst": "decompress it first (zstd -d)",
    ".zip": "unpack it first",
    ".xls": "save it as .xlsx or .csv",
    ".ods": "save it as .xlsx or .csv",
    ".md": "save it as .csv",
    ".feather": "save it as .parquet",
    ".arrow": "save it as .parquet",
    ".pkl": "save it as .parquet",
    ".pickle": "save it as .parquet",
}
"""The remedy for each unsupported suffix."""

NAMED = 30
"""The number of columns listed in a message."""

MOST_HEADER_LINES = 20
"""The most lines of a header whose names have line breaks."""

_MISSING = ["-", "–", "—", "?", "."]
_BLANKS = r"\s+"
_WIDE_BLANKS = r"\s{2,}"


@dataclass(frozen=True)
class Selection:
    """A table maker's knowledge of rows and columns; external tables have none.

    `roles` gives each variable's column or expression, `counts` all its counts, the usual one first. `excluded` gives reasons
    by row; `unbracketed` replaces it if only bracketed learning rates count. `runs` and `clusters` number each row's run and
    group with shared errors, of kind `cluster`. Losses that differ in a `validation` column are not comparable; rows that
    differ in a `settings` column follow different laws, unless a variable of the law is computed from this column, or
    `expressed` names it with a variable as in `roles`. Rows with equal variables that differ in an `amounts` column (with a
    description) are not repeats. `without_order` holds rows of runs that read no word order, whose losses follow another law.
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
    expressed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTable:
    """A table of runs, the path that messages name, and its maker's selection."""

    path: Path
    frame: pd.DataFrame
    selection: Selection | None = None

    @classmethod
    def read(cls, path: Path, fewest: int = 1) -> RunTable:
        """Read an external table of so many rows or more; see read_table."""
        return cls(path, read_table(path, fewest))

    @property
    def roles(self) -> Mapping[str, str]:
        """The selection's columns or expressions for variables."""
        return {} if self.selection is None else self.selection.roles

    @property
    def counts(self) -> Mapping[str, Sequence[str]]:
        """The selection's counts of each variable."""
        return {} if self.selection is None else self.selection.counts

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """Each row's run number; without a selection every row is its own run."""
        return np.arange(len(self.frame)) if self.selection is None else self.selection.runs

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Row names, numbered from 1 without the header."""
        return tuple(f"row {row}" for row in range(1, len(self.frame) + 1))

    def left_out(self, bracketed_only: bool) -> NDArray[np.object_]:
        """By row, why the selection or a repetition excludes it, or None."""
        gone = dict.fromkeys(self._repeated, "repeats an earlier row")
        if self.selection is not None:
            gone |= self.selection.unbracketed if bracketed_only else self.selection.excluded
        reasons = np.full(len(self.frame), None, dtype=object)
        reasons[list(gone)] = list(gone.values())
        return reasons

    @cached_property
    def _repeated(self) -> list[int]:
        of_anything = [name for name in self.frame if self.frame[name].dtype == object]  # lists, for example, have no hash
        return np.flatnonzero(self.frame.astype(dict.fromkeys(of_anything, str)).duplicated()).tolist()


def number_runs(names: pd.Series[Any]) -> NDArray[np.int64]:
    """Give each run a number by name; an unnamed row is its own run."""
    numbers = pd.factorize(names)[0]
    alone = numbers < 0
    return np.where(alone, numbers.max(initial=-1) + 1 + np.cumsum(alone), numbers).astype(np.int64)


def read_table(path: Path, fewest: int = 1) -> pd.DataFrame:
    """Read a table file of so many rows or more.

    Raises InputError if the file does not exist or cannot be read, and as tidy_table does.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in _DECOMPRESS else None
    suffix = suffixes[-1] if suffixes else ""
    read = _READERS.get(suffix)
    try:
        if read is None:
            path.stat()
            remedy = _REMEDIES.get(path.suffix.lower())
            raise InputError.at(str(path), f"is none of {', '.join(_READERS)}{f'; {remedy}' if remedy else ''}")
        content = path.read_bytes()
        table, semicolons = read(_DECOMPRESS[packed](content) if packed else content, path)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError.at(str(path), "does not exist") from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError.at(str(path), f"is not UTF-8 (byte {byte:#x} at {error.start}); save it as UTF-8") from None
    except (ValueError, OSError, EOFError, NotImplementedError, zlib.error, lzma.LZMAError) as error:
        kind = suffix.removeprefix(".") + (packed or "")
        raise InputError.at(str(path), f"cannot be read as {kind}: {' '.join(str(error).split())[:200]}") from None
    return tidy_table(table, path, semicolons, fewest)


def tidy_table(table: pd.DataFrame, path: Path, semicolons: bool = False, fewest: int = 1) -> pd.DataFrame:
    """Make named index levels columns, strip column names and convert text to numbers; `attrs` names the converted columns.

    Dots join the levels of a column name. Raises InputError if two columns share a name, and for fewer rows than
    the `fewest` asked for.
    """
    unnamed = all(name is None for name in table.index.names)
    table = table.reset_index(drop=unnamed, allow_duplicates=True)
    table.columns = [_flat(name).strip() for name in table.columns]
    _refuse_duplicates(list(table.columns), path)
    if len(table) < fewest or not len(table.columns):
        raise InputError.at(str(path), "has no rows")
    read = read_text_numbers(_as_floats(table), semicolons)
    read.table.attrs |= {NOTES: read.notes, UNCLEAR: read.unclear, UNITS: read.units}
    return read.table


def _flat(name: object) -> str:
    return ".".join(part for each in name if (part := str(each))) if isinstance(name, tuple) else str(name)


def _as_floats(table: pd.DataFrame) -> pd.DataFrame:
    """Replace integers beyond float range by infinity, which later excludes their rows, and dates by text."""

    def as_float(value: object) -> object:
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            return math.inf if value > 0 else -math.inf
        return value

    dates = {str(name): table[name].astype(str) for name in table.select_dtypes(["datetime", "datetimetz", "timedelta"])}
    table = table.assign(**dates)
    mixed = [str(name) for name in table if table[name].dtype == object]
    return table.assign(**{name: table[name].map(as_float) for name in mixed}) if mixed else table


def _refuse_duplicates(names: list[str], path: Path) -> None:
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        more = f" and {len(repeated) - NAMED} more" if len(repeated) > NAMED else ""
        raise InputError.at(str(path), f"has more than one column named {', '.join(map(cut, repeated[:NAMED]))}{more}")


def _read_parquet(content: bytes, _path: Path) -> tuple[pd.DataFrame, bool]:
    return pd.read_parquet(io.BytesIO(content)), False


def _read_excel(content: bytes, path: Path) -> tuple[pd.DataFrame, bool]:
    try:
        sheets = pd.read_excel(io.BytesIO(content), sheet_name=None, engine="openpyxl", na_values=_MISSING)
    except ImportError:
        raise InputError.at(str(path), "is an Excel workbook; save it as .csv, or install openpyxl") from None
    except (
        BadZipFile,
        SyntaxError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:  # openpyxl raises these for damaged files
        raise ValueError(f"the workbook is damaged ({error})") from None
    filled = {name: sheet for name, sheet in sheets.items() if not sheet.empty}
    if len(filled) > 1:
        raise InputError.at(str(path), f"has {len(filled)} sheets with rows ({', '.join(map(str, filled))}); save one as .csv")
    return next(iter(filled.values()), pd.DataFrame()), False


def _read_json(content: bytes, _path: Path) -> tuple[pd.DataFrame, bool]:
    """Read records (lines, list, or object with one list) or a pandas layout; dots join nested names."""
    from study.base.durable_files import json_value  # which other tables do not need

    text = content.decode("utf-8-sig")
    try:
        value = json_value(text)
    except ValueError:
        first, *others = text.strip().splitlines() or [""]
        if not others or not (first.startswith("{") and first.endswith("}")):
            raise
        value = [_record(json_value, line, number) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if isinstance(value, dict):
        value = _records_of(value)
    if isinstance(value, pd.DataFrame):
        return value, False
    if not isinstance(value, list) or not all(isinstance(record, dict) for record in value):
        raise ValueError("its records are not objects of names and values")
    return pd.json_normalize(value), False


def _records_of(value: dict[str, Any]) -> Any:
    """Return the rows of a JSON object: a layout of pandas (`split`, `columns`, `index`, `table`), lists, or records."""
    parts = list(value.values())
    if {"columns", "data"} <= set(value) <= {"columns", "data", "index"}:
        return pd.DataFrame(value["data"], columns=value["columns"])
    if parts and all(isinstance(part, dict) and part for part in parts) and _is_grid(value):
        by_rows = all(name.isdigit() for name in value)
        return pd.DataFrame.from_dict(value, orient="index" if by_rows else "columns").reset_index(drop=True)
    lists = [part for part in parts if isinstance(part, list)]
    if lists and len(lists) == len(parts) and not any(isinstance(entry, dict) for part in lists for entry in part):
        if len({len(part) for part in lists}) > 1:
            raise ValueError("its columns differ in length")
        return pd.DataFrame(value)
    return lists[0] if len(lists) == 1 else [value]


def _is_grid(value: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether nested objects are table cells with rows numbered at either level."""
    inner = list(value.values())
    plain = not any(isinstance(cell, dict | list) for part in inner for cell in part.values())
    numbered = all(name.isdigit() for name in value) or all(name.isdigit() for part in inner for name in part)
    if plain and not numbered and len(inner) > 1 and len({tuple(part) for part in inner}) == 1:
        raise ValueError("neither its rows nor its columns are numbered; save it by to_json(orient='records')")
    return plain and numbered


def _record(parse: Callable[[str], Any], line: str, number: int) -> Any:
    try:
        return parse(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None


def _read_delimited(content: bytes, path: Path) -> tuple[pd.DataFrame, bool]:
    """Read fields separated by tabs, semicolons, commas, bars or blanks; also returns whether by semicolons."""
    text = content.decode("utf-8-sig")
    header = _find_header(text, path)
    semicolons = header.separator == ";"
    table = _parse(text, header, path)
    if has_decimal_commas(table, semicolons):
        as_text = _parse(text, header, path, dtype=str)
        grouped = {str(name): column for name, column in as_text.items() if is_one_group(column.dropna())}
        table = table.assign(**grouped)
    return table, semicolons


def _parse(text: str, header: _Header, path: Path, dtype: type | None = None) -> pd.DataFrame:
    names = [name or f"Unnamed: {index}" for index, name in enumerate(header.names)]
    _refuse_duplicates(names, path)
    below = io.StringIO(text, newline="")
    for _ in range(header.lines):
        below.readline()
    blanks = header.separator in (_BLANKS, _WIDE_BLANKS)
    options: dict[str, Any] = {"engine": "python"} if header.separator == _WIDE_BLANKS else {"low_memory": False}
    try:
        table: pd.DataFrame = pd.read_csv(
            below,
            sep=header.separator,
            header=None,
            names=names,
            index_col=False if blanks else None,
            skipinitialspace=not blanks,
            na_values=_MISSING,
            dtype=dtype,
            **options,
        )
        return table
    except pd.errors.ParserError as error:
        raise ValueError(_in_lines_of_the_file(header.lines, str(error))) from None


def _in_lines_of_the_file(above: int, error: str) -> str:
    """Convert pandas' lines below the header (`line 1`) or rows (`row 0`) to file lines."""
    error = re.sub(r"(?<=\bline )\d+", lambda line: f"{int(line[0]) + above}", error)
    return re.sub(r"\brow (\d+)", lambda row: f"line {int(row[1]) + 1 + above}", error)


@dataclass(frozen=True)
class _Header:
    """The column names, field separator, and lines above the rows of a text table."""

    names: list[str]
    separator: str
    lines: int


def _find_header(text: str, path: Path) -> _Header:
    """Find the header: the first line that is neither blank nor a # comment.

    If that is numeric, the header is the last comment with as many fields (numpy.savetxt). Raises InputError if there is none,
    ValueError for an empty file.
    """
    comments: list[str] = []
    lines = iter(io.StringIO(text, newline="").readline, "")
    for line in lines:
        if line.strip() and not line.startswith("#"):
            break
        comments.append(line)
    else:
        raise ValueError("it is empty; the first line of a table names its columns")
    if line.lstrip().startswith("|"):
        raise InputError.at(str(path), "is a Markdown table; save it as .csv")
    rest = list(lines)
    first = next((row for row in rest if row.strip()), "")
    separator = _separator(line, first)
    names, used = _fields(chain([line], rest), separator)
    if used > MOST_HEADER_LINES or 1 < used > len(rest):
        raise ValueError("its header has a quote that nothing closes")
    below = next((row for row in rest[used - 1 :] if row.strip()), "")
    if len(fields := _fields([below], separator)[0]) > len(names):
        names = _with_unnamed(names, fields, below, separator)
    if not _is_row(names):
        return _Header(names, separator, len(comments) + used)
    for comment in reversed(comments):
        above, _ = _fields([comment.lstrip("# ")], separator)
        if len(above) == len(names) and not _is_row(above):
            return _Header(above, separator, len(comments))
    raise InputError.at(str(path), "the first line after the comments holds numbers, not names")


def _with_unnamed(names: list[str], fields: list[str], row: str, separator: str) -> list[str]:
    """Return as many names as a row has fields: the row names of R and pandas have no header, nor has a last comma.

    Raises ValueError for other rows that are longer than the header.
    """
    if separator in (_BLANKS, _WIDE_BLANKS):
        return ["", *names]
    if len(fields) == len(names) + 1 and not fields[-1]:
        return [*names, ""]
    if len(fields) == len(names) + 1 and row.startswith('"'):
        return ["", *names]
    raise ValueError(f"its header has {len(names)} names, but its first row has {len(fields)} fields; name every column")


def _separator(header: str, row: str) -> str:
    most = max("\t;,|", key=header.count)
    if header.count(most):
        return most
    for unnamed in (0, 1):
        for blanks in (_BLANKS, _WIDE_BLANKS):
            fields = _split_at_blanks(header, blanks)
            if 1 < len(fields) == len(_split_at_blanks(row, blanks)) - unnamed:
                return blanks
    return ","


def _split_at_blanks(line: str, blanks: str) -> list[str]:
    """Split a line at blanks; text in quotes, as R writes names, is one field."""
    return re.findall(r'"[^"]*"|\S+', line) if blanks == _BLANKS else re.split(blanks, line.strip())


def _fields(lines: Any, separator: str) -> tuple[list[str], int]:
    if separator in (_BLANKS, _WIDE_BLANKS):
        return [name.strip('"') for name in _split_at_blanks(next(iter(lines)), separator)], 1
    reader = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    try:
        return [name.strip() for name in next(reader, [])], reader.line_num
    except csv.Error as error:
        raise ValueError(f"its header has a quote that nothing closes, or is too long: {error}") from None


def _is_row(fields: list[str]) -> bool:
    known = [field for field in fields if field not in _MISSING and field.lower() not in ("", "nan")]
    return bool(known) and all(as_number(field, decimal_commas=True) is not None for field in known)


_READERS: dict[str, Callable[[bytes, Path], tuple[pd.DataFrame, bool]]] = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".dat"), _read_delimited),
    **dict.fromkeys((".jsonl", ".json"), _read_json),
    ".parquet": _read_parquet,
    ".xlsx": _read_excel,
}
