"""Tables of examples from Parquet, JSON lines, CSV, TSV and CoNLL files, column by column."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from study.base.errors import InputError, nearest, shown
from study.data.hub_corpus import loading
from study.data.text_readers import MAX_ROW_BYTES, first_bad_byte, json_rows
from study.tasks.task_spec import TaskSource

SUFFIXES = (".parquet", ".jsonl", ".csv", ".tsv", ".conll")

_ALL = "*"

UNLOADED = "cannot be loaded"
"""The message for a dataset that the hub does not give."""


@dataclass(frozen=True)
class ExampleTable:
    """Columns of one split as lists of plain values, and where each row stands for error messages.

    `lines` are line numbers from 1 of the rows of a text file; a Parquet file or hub split has none and counts rows from 0.
    `classes` are the class names of columns that the hub knows as such, where their values are indices.
    """

    place: str
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int] | None = None
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def where(self, row: int) -> str:
        """`file:line` or `file: row n (from 0)`."""
        return f"{self.place}: row {row} (from 0)" if self.lines is None else f"{self.place}:{self.lines[row]}"


def split_file(pattern: Path, split: str) -> Path | None:
    """The file of a split, `{split}` in the pattern put in and a known suffix added where it has none; None if not there."""
    path = Path(str(pattern).replace("{split}", split))
    candidates = [path] if path.suffix.lower() in SUFFIXES else [path.with_name(path.name + suffix) for suffix in SUFFIXES]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def splits_there(pattern: Path) -> list[str]:
    """The names of the splits that a pattern finds, sorted."""
    before, _, after = str(pattern.name).partition("{split}")
    suffixes = ("",) if Path(after).suffix in SUFFIXES else SUFFIXES
    names = set()
    for path in pattern.parent.glob("*") if "{split}" not in str(pattern.parent) else ():
        for suffix in suffixes:
            end = after + suffix
            if path.name.startswith(before) and path.name.endswith(end):
                names.add(path.name[len(before) : len(path.name) - len(end)])
    return sorted(names)


def read_table(path: Path, wanted: Sequence[str]) -> ExampleTable:
    """The wanted columns of a file; a dotted name is a field of nested values.

    Raises InputError where the file is not what its suffix says, is empty, or lacks a column.
    """
    try:
        match path.suffix.lower():
            case ".parquet":
                table = _read_parquet(path)
            case ".jsonl":
                table = _read_jsonl(path)
            case ".conll":
                table = _read_conll(path)
            case suffix:
                table = _read_delimited(path, "\t" if suffix == ".tsv" else ",")
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror or error}") from error
    if not len(table):
        raise InputError.at(str(path), "holds no rows; remove it or fill it")
    return pick(table, wanted)


def pick(table: ExampleTable, wanted: Sequence[str]) -> ExampleTable:
    """A table with only the wanted columns, dotted ones taken out of their nested values.

    Raises InputError with the nearest column for each that is missing.
    """
    columns = {}
    for name in wanted:
        outer, _, inner = name.partition(".")
        if name in table.columns:
            columns[name] = table.columns[name]
        elif outer in table.columns and inner:
            columns[name] = [_inner(value, inner) for value in table.columns[outer]]
        else:
            message = f"has no column {name!r}; {nearest(name, list(table.columns))}; or say which under columns: of the task"
            raise InputError.at(table.place, message)
    return ExampleTable(table.place, columns, table.lines, table.classes)


def _inner(value: object, name: str) -> object:
    """A field of a nested value, or of each in a list of them."""
    if isinstance(value, list):
        return [_inner(part, name) for part in value]
    return value.get(name) if isinstance(value, dict) else None


def _read_parquet(path: Path) -> ExampleTable:
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path).read()
        _refuse_twice(str(path), table.column_names)
        return ExampleTable(str(path), {name: table.column(name).to_pylist() for name in table.column_names})
    except ValueError as error:  # of Arrow, of bytes that are no text, and of nested values with two fields of one name
        raise InputError.at(str(path), f"is not a Parquet file, or damaged: {error}; write it again") from error


def _read_jsonl(path: Path) -> ExampleTable:
    rows = dict(json_rows(path))
    names = dict.fromkeys(name for row in rows.values() for name in row)
    return ExampleTable(str(path), {name: [row.get(name) for row in rows.values()] for name in names}, list(rows))


def _read_delimited(path: Path, delimiter: str) -> ExampleTable:
    """A file with a header; TSV knows no quotes, as the field writes it, and CSV has those of RFC 4180."""
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    rows: list[list[str]] = []
    lines: list[int] = []
    csv.field_size_limit(MAX_ROW_BYTES)  # a module's, of 131,072 characters otherwise, which a long document has
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)
            header = next(reader, [])
            _refuse_twice(f"{path}:1", header)
            for row in _filled(reader):
                if len(row) != len(header):
                    message = f"has {len(row)} fields where the header has {len(header)}; quote or escape its delimiters"
                    raise InputError.at(f"{path}:{reader.line_num}", message)
                rows.append(row)
                lines.append(reader.line_num)
    except UnicodeDecodeError as error:
        raise InputError.at(str(path), f"is not UTF-8 text (byte {first_bad_byte(path)}); convert it first") from error
    except csv.Error as error:
        raise InputError.at(f"{path}:{reader.line_num}", f"{error}; write the file again as RFC 4180 has it") from error
    return ExampleTable(str(path), {name: [row[place] for row in rows] for place, name in enumerate(header)}, lines)


def _refuse_twice(place: str, names: Sequence[str]) -> None:
    """Raise InputError where two columns have one name."""
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError.at(place, f"names the column {shown(twice[0])} twice; rename one of them")


def _read_conll(path: Path) -> ExampleTable:
    """Columns `tokens` and `tags`: a line is a word first and its tag last, and a blank line ends a sentence.

    Where a line has tabs they part its columns, and a word may hold spaces, else spaces do; a no-break space never does.
    A line before a sentence that begins with `#` and a space is a comment, unless it ends with a tag of other words: `# O` is
    a word. Raises InputError where a line is neither.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            rows = [(number, line.strip(), _columns(line.strip())) for number, line in enumerate(file, 1)]
    except UnicodeDecodeError as error:
        raise InputError.at(str(path), f"is not UTF-8 text (byte {first_bad_byte(path)}); convert it first") from error
    known = {columns[-1] for _, line, columns in rows if len(columns) > 1 and not _may_be_comment(line)}
    tokens: list[list[str]] = [[]]
    tags: list[list[str]] = [[]]
    lines = [1]
    for number, line, columns in rows:
        if _may_be_comment(line) and (len(columns) < 2 or columns[-1] not in known):
            if tokens[-1]:
                remedy = "comments stand before a sentence; move it there, or give the word # a tag that other words have"
                raise InputError.at(f"{path}:{number}", f"is {shown(line)} within a sentence; {remedy}")
        elif columns and columns[0] != "-DOCSTART-":
            if len(columns) < 2:
                raise InputError.at(f"{path}:{number}", f"is {shown(line)} where a word and its tag are needed")
            lines[-1] = lines[-1] if tokens[-1] else number
            tokens[-1].append(columns[0])
            tags[-1].append(columns[-1])
        elif tokens[-1]:
            tokens.append([])
            tags.append([])
            lines.append(number)
    there = len(tokens) if tokens[-1] else len(tokens) - 1
    return ExampleTable(str(path), {"tokens": tokens[:there], "tags": tags[:there]}, lines[:there])


def _columns(line: str) -> list[str]:
    return [column for each in line.split("\t" if "\t" in line else " ") if (column := each.strip())]


def _may_be_comment(line: str) -> bool:
    return line == "#" or (line.startswith("#") and line[1].isspace())


def _filled(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """Rows that are not blank lines."""
    return (row for row in rows if row)


def read_hub_split(source: TaskSource, split: str, remedy: str) -> ExampleTable:
    """One split of a dataset of the hub, all its configurations one after another where `config` is `*`.

    No code of the dataset is run. Raises InputError where it cannot be loaded, with the remedy, or has no such split.
    """
    from datasets import concatenate_datasets, disable_progress_bars, get_dataset_config_names, load_dataset

    disable_progress_bars()
    place = _place(source)
    configs: list[str | None] = [source.config]
    if source.config == _ALL:
        with loading(place, UNLOADED, remedy):
            configs = sorted(get_dataset_config_names(source.hub, revision=source.revision))
    parts = []
    for config in configs:
        with loading(place, UNLOADED, remedy):
            found = load_dataset(source.hub, config, revision=source.revision)
        if split not in found:
            raise InputError.at(place, f"has no split {split!r}; {nearest(split, list(found))}")
        parts.append(found[split])
    dataset = concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    classes = {name: list(names) for name, kind in dataset.features.items() if (names := _class_names(kind)) is not None}
    columns = {name: list(dataset[name]) for name in dataset.column_names}
    return ExampleTable(f"{place} ({split})", columns, classes=classes)


def _class_names(kind: Any) -> list[str] | None:
    """The names of the classes of a column of classes, or of lists of them."""
    inner = getattr(kind, "feature", kind)
    names = getattr(inner, "names", None)
    return list(names) if names else None


def _place(source: TaskSource) -> str:
    return ":".join(filter(None, ["hub", source.hub, source.config]))
