"""Tables of examples from Parquet, JSON lines, CSV, TSV and CoNLL files, column by column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from study.base.errors import InputError, nearest, shown
from study.data.hub_corpus import loading
from study.data.text_readers import COMPRESSIONS, delimited_rows, json_rows, opened_text
from study.tasks.task_spec import TaskSource

_TEXT = (".jsonl", ".csv", ".tsv", ".conll")

KINDS = (".parquet", *_TEXT)
"""The kinds of files that are read; those of text also compressed."""

SUFFIXES = (*KINDS, *(suffix + compression for suffix in _TEXT for compression in COMPRESSIONS))

_ALL = "*"

UNLOADED = "cannot be loaded"
"""The message for a hub dataset that fails to load."""


@dataclass(frozen=True)
class ExampleTable:
    """The columns of one split as lists of plain values, with row locations for error messages.

    `lines` are line numbers from 1 in a text file; Parquet files and hub splits have none and count rows from 0. `classes` are
    the class names of the class columns, whose values are indices, of a hub dataset or a Parquet file that `datasets` wrote.
    """

    place: str
    columns: Mapping[str, Sequence[Any]]
    lines: Sequence[int] | None = None
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def where(self, row: int) -> str:
        """Return `file:line` or `file: row n (from 0)`."""
        return f"{self.place}: row {row} (from 0)" if self.lines is None else f"{self.place}:{self.lines[row]}"


def path_of_split(pattern: Path, split: str) -> Path:
    """Return the path that a pattern gives a split, perhaps without its suffix."""
    return Path(str(pattern).replace("{split}", split))


def split_files(pattern: Path, split: str) -> list[Path]:
    """Return the files of a split, by default of any known suffix; the first is read."""
    path = path_of_split(pattern, split)
    candidates = [path] if path.name.lower().endswith(SUFFIXES) else [path.with_name(path.name + suffix) for suffix in SUFFIXES]
    return [candidate for candidate in candidates if candidate.is_file()]


def split_file(pattern: Path, split: str) -> Path | None:
    """Return the file of a split that is read; None if missing."""
    return next(iter(split_files(pattern, split)), None)


def splits_there(pattern: Path) -> list[str]:
    """Return the sorted names of the splits that match a pattern."""
    before, _, after = str(pattern.name).partition("{split}")
    suffixes = ("",) if after.lower().endswith(SUFFIXES) else SUFFIXES
    names = set()
    for path in pattern.parent.glob("*") if "{split}" not in str(pattern.parent) else ():
        for suffix in suffixes:
            end = after + suffix
            if path.name.startswith(before) and path.name.endswith(end):
                names.add(path.name[len(before) : len(path.name) - len(end)])
    return sorted(names)


def read_table(path: Path, wanted: Sequence[str]) -> ExampleTable:
    """Read the wanted columns of a file; a dotted name is a nested field.

    Raises InputError for other or no content, or a missing column.
    """
    try:
        match Path(path.stem).suffix.lower() if path.suffix.lower() in COMPRESSIONS else path.suffix.lower():
            case ".parquet":
                table = _read_parquet(path)
            case ".jsonl":
                table = _read_jsonl(path)
            case ".conll":
                table = _read_conll(path)
            case _:
                table = _read_delimited(path)
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror or error}") from error
    if not len(table):
        raise InputError.at(str(path), "holds no rows; remove it or fill it")
    return pick(table, wanted)


def pick(table: ExampleTable, wanted: Sequence[str]) -> ExampleTable:
    """Select the wanted columns of a table; dotted names select nested fields.

    Raises InputError with the nearest name if a column is missing.
    """
    columns = {}
    for name in wanted:
        outer, _, inner = name.partition(".")
        if name in table.columns:
            columns[name] = table.columns[name]
        elif outer in table.columns and inner:
            for row, value in enumerate(table.columns[outer]):
                if isinstance(value, str):
                    message = f"{outer} is {shown(value)}, text without a field {shown(inner)}"
                    raise InputError.at(table.where(row), f"{message}; save nested fields as JSON lines or Parquet")
            columns[name] = [_inner(value, inner.split(".")) for value in table.columns[outer]]
        else:
            message = f"has no column {shown(name)}; {nearest(name, list(table.columns))}; or name it under the task's columns:"
            raise InputError.at(table.place, message)
    return ExampleTable(table.place, columns, table.lines, table.classes)


def _inner(value: object, names: Sequence[str]) -> object:
    if isinstance(value, list):
        return [_inner(part, names) for part in value]
    inner = value.get(names[0]) if isinstance(value, dict) else None
    return _inner(inner, names[1:]) if names[1:] else inner


def _read_parquet(path: Path) -> ExampleTable:
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(path).read()
        _refuse_twice(str(path), table.column_names)
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        return ExampleTable(str(path), columns, classes=_classes_in(table.schema))
    except ValueError as error:  # Arrow errors, invalid UTF-8, and nested values with duplicate field names
        raise InputError.at(str(path), f"is not a Parquet file, or is damaged: {error}; write it again") from error


def _classes_in(schema: Any) -> dict[str, list[str]]:
    """Return the class names in a Parquet file's metadata."""
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    from datasets import Features

    return _classes_of(Features.from_arrow_schema(schema))


def _classes_of(features: Mapping[str, Any]) -> dict[str, list[str]]:
    return {name: names for name, kind in features.items() if (names := _class_names(kind)) is not None}


def _read_jsonl(path: Path) -> ExampleTable:
    rows = dict(json_rows(path))
    names = dict.fromkeys(name for row in rows.values() for name in row)
    return ExampleTable(str(path), {name: [row.get(name) for row in rows.values()] for name in names}, list(rows))


def _read_delimited(path: Path) -> ExampleTable:
    rows = delimited_rows(path)
    _, header = next(rows)
    _refuse_twice(f"{path}:1", header)
    numbered = list(rows)
    columns = {name: [row[index] for _, row in numbered] for index, name in enumerate(header)}
    return ExampleTable(str(path), columns, [number for number, _ in numbered])


def _refuse_twice(place: str, names: Sequence[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError.at(place, f"names the column {shown(twice[0])} twice; rename one of them")


def _read_conll(path: Path) -> ExampleTable:
    """Read `tokens` and `tags`: a line is a word first and its tag last; a blank line ends a sentence.

    Tabs separate columns if the line has any, so words may hold spaces; else spaces do, never no-break spaces. A line before a
    sentence that begins with `#` and a space is a comment, unless it looks like a word with a known tag: `# O`. Raises
    InputError for other lines, or columns unlike the first word's.
    """
    with opened_text(path) as file:
        rows = [(number, line.strip(), _columns(line.strip())) for number, line in enumerate(file, 1)]
    words = [columns for _, line, columns in rows if len(columns) > 1 and not line.startswith("#")]
    known, widths = {columns[-1] for columns in words}, {len(columns) for columns in words}
    _refuse_ragged(path, rows)
    tokens: list[list[str]] = [[]]
    tags: list[list[str]] = [[]]
    lines = [1]
    for number, line, columns in rows:
        if _may_be_comment(line) and not (len(columns) in widths and columns[-1] in known):
            if tokens[-1]:
                remedy = "comments belong before a sentence; move it there, or give the word # a tag that other words have"
                raise InputError.at(f"{path}:{number}", f"is {shown(line)} within a sentence; {remedy}")
        elif columns and columns[0] != "-DOCSTART-":
            if len(columns) < 2:
                raise InputError.at(f"{path}:{number}", f"is {shown(line)}, but a word and its tag are needed")
            if line.startswith("#") and columns[-1] not in known:
                message = f"is {shown(line)}, a comment or a word with a tag that no other word has"
                raise InputError.at(f"{path}:{number}", f"{message}; begin comments with # and a space, or correct the tag")
            lines[-1] = lines[-1] if tokens[-1] else number
            tokens[-1].append(columns[0])
            tags[-1].append(columns[-1])
        elif tokens[-1]:
            tokens.append([])
            tags.append([])
            lines.append(number)
    count = len(tokens) if tokens[-1] else len(tokens) - 1
    if any(words[1:] for words in tokens) and all(_is_numbered(words) for words in tokens[:count]):
        raise InputError.at(f"{path}:{lines[0]}", "numbers its words, as CoNLL-U does; keep only the columns of words and tags")
    return ExampleTable(str(path), {"tokens": tokens[:count], "tags": tags[:count]}, lines[:count])


def _refuse_ragged(path: Path, rows: Sequence[tuple[int, str, Sequence[str]]]) -> None:
    """Raise InputError if lines with tabs, or those without, differ in their number of columns.

    A missing tag or a word with a space makes them differ.
    """
    first: dict[bool, tuple[int, int]] = {}
    for number, line, columns in rows:
        if len(columns) > 1 and not _may_be_comment(line) and columns[0] != "-DOCSTART-":
            first_line, count = first.setdefault("\t" in line, (number, len(columns)))
            if len(columns) != count:
                message = f"has {len(columns)} columns, but line {first_line} has {count}"
                remedy = "give each word all of them" if "\t" in line else "separate columns by tabs"
                raise InputError.at(f"{path}:{number}", f"{message}; {remedy}, and begin comments with # and a space")


def _is_numbered(words: Sequence[str]) -> bool:
    """Whether words count on from 0 or 1; CoNLL-U also has 1-2 before 1 and 2, and 1.1 after 1."""
    whole = [int(word) for word in words if word.isdecimal() and len(word) < 7]
    return bool(whole) and whole == list(range(whole[0], whole[0] + len(whole))) and whole[0] < 2 and words[0][0].isdecimal()


def _columns(line: str) -> list[str]:
    """Return the columns of a line, between tabs or spaces."""
    if "\t" in line:
        return [column.strip() for column in line.split("\t")]
    return [column for each in line.split(" ") if (column := each.strip())]


def _may_be_comment(line: str) -> bool:
    return line == "#" or (line.startswith("#") and line[1].isspace())


def read_hub_split(source: TaskSource, split: str, remedy: str) -> ExampleTable:
    """Load one split of a hub dataset, of all configurations if `config` is `*`; runs none of its code.

    Raises InputError with the remedy.
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
            splits = load_dataset(source.hub, config, revision=source.revision)
        if split not in splits:
            raise InputError.at(place, f"has no split {shown(split)}; {nearest(split, list(splits))}")
        parts.append(splits[split])
    dataset = concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    columns = {name: list(dataset[name]) for name in dataset.column_names}
    return ExampleTable(f"{place} ({split})", columns, classes=_classes_of(dataset.features))


def _class_names(kind: Any) -> list[str] | None:
    inner = getattr(kind, "feature", kind)
    names = getattr(inner, "names", None)
    return list(names) if names else None


def _place(source: TaskSource) -> str:
    return ":".join(filter(None, ["hub", source.hub, source.config]))
