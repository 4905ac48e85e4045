"""Loading tasks with their examples from local files, the hub, or the docstrings."""

from __future__ import annotations

import glob
import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from study.base.errors import InputError, Problem, cut, nearest, shown
from study.base.grouping import grouped
from study.base.quantities import plural
from study.tasks.embedded import embedded_tables
from study.tasks.example_tables import (
    KINDS,
    ExampleTable,
    path_of_split,
    pick,
    read_hub_split,
    read_table,
    split_file,
    split_files,
    splits_there,
)
from study.tasks.examples import Example, SpanExample, TagScheme, TaskData, split_key, texts_among
from study.tasks.parsing import MISSING, RowError, parse, several_labels, several_names
from study.tasks.task_spec import TaskSource, TaskSpec, is_whole, label_name, read_spec

UNLABELLED = "unlabelled"
"""The split whose labels a teacher gives."""

_DEV = ("dev", "validation", "valid", "val")
"""What a split for choices is usually called."""

_GIVEN = "with --data, in a sweep file as downstream.data"
"""How to give the folder of task files."""


def load_task(name: str, data: Path | None = None, place: str = "task") -> TaskData:
    """Read and check all splits of a built-in task or a task YAML.

    Sources are tried in the task's order; files are looked for in `data`, then beside the YAML. Raises InputError with file and
    row for unusable data, or at `place` for an unknown task.
    """
    spec, folder = read_spec(name, place)
    if data is not None and not data.is_dir():
        raise InputError.at(str(data), "is not a folder; give the one that holds the task files")
    source, pattern = _source(spec, [root for root in (data, folder) if root is not None])
    tables = _tables(spec, source, pattern, data)
    _refuse_repeated_ids(spec, source, tables)
    labels = _labels(spec, source, tables)
    if "f1" in spec.metrics and len(labels) != 2:
        raise InputError.at(spec.name, f"metric 'f1' is for two classes, but there are {len(labels)}; use 'macro_f1'")
    if "entity_f1" in spec.metrics:
        try:
            TagScheme.of(labels)
        except ValueError as error:
            raise InputError.at(spec.name, f"metric 'entity_f1': {error}") from error
    if (unlabelled := source.splits.unlabelled) is not None:
        tables[UNLABELLED] = _unlabelled(spec, source, pattern, data, unlabelled, labels)
    parsed = {role: parse(spec, source, table, labels) for role, table in tables.items()}
    splits = {role: examples for role, (examples, _) in parsed.items()}
    if empty := [role for role, examples in splits.items() if not examples]:
        raise InputError.at(tables[empty[0]].place, "has no usable row left; see `drop` of the source")
    _refuse_constant_labels(spec, splits, tables)
    if spec.kind == "tokens":
        _refuse_single_words(tables["train"], spec.columns(source)["tokens"])
    dropped = {tables[role].place: counts for role, (_, counts) in parsed.items() if counts}
    if "train" in splits and "dev" not in splits:
        train, dev = hold_out(splits["train"], source.splits.dev_share, tables["train"].place)
        splits |= {"train": train, "dev": dev}
    return TaskData(spec, labels, splits, dropped, _passed_over(spec, source, pattern))


def hold_out(examples: Sequence[Example], share: float, place: str) -> tuple[list[Example], list[Example]]:
    """Split examples into train and dev by a hash of their text, so equal texts stay together.

    Raises InputError if either part would be empty.
    """
    parts: tuple[list[Example], list[Example]] = ([], [])
    for example in examples:
        digest = hashlib.blake2b(split_key(example).encode("utf-8", "replace"), digest_size=8).digest()
        parts[int.from_bytes(digest, "big") < share * 2**64].append(example)
    if not all(parts):
        what = "context" if isinstance(examples[0], SpanExample) else "text"
        rows = f"has {len(examples)} rows of {plural(len(set(map(split_key, examples))), f'distinct {what}')}"
        raise InputError.at(place, f"{rows}, too few to hold out a share of {share}; name a dev split")
    return parts


def _refuse_constant_labels(spec: TaskSpec, splits: dict[str, list[Example]], tables: dict[str, ExampleTable]) -> None:
    """Raise InputError if train has one label, or a split has equal scores, which correlate with nothing."""
    for role in splits.keys() - {UNLABELLED} if spec.regression else {"train"}:
        labels = {example.label for example in texts_among(splits.get(role, ()))}
        if len(labels) == 1 and len(splits[role]) > 1 and not spec.multi_label:
            what = f"score {labels.pop()}" if spec.regression else f"label {labels.pop()} (by index)"
            remedy = "name a split whose labels differ and are not kept secret"
            raise InputError.at(tables[role].place, f"all {len(splits[role]):,} usable rows have the {what}; {remedy}")


def _source(spec: TaskSpec, roots: Sequence[Path]) -> tuple[TaskSource, Path | None]:
    """Return the first available source and its file pattern."""
    for source in spec.sources:
        if source.files is None:
            return source, None
        patterns = [root / source.files for root in roots]
        for pattern in patterns:
            if split_file(pattern, source.splits.test) is not None:
                return source, pattern
        for pattern in patterns:
            if splits_there(pattern):
                return source, pattern
    patterns_text = " or ".join(cut(str(source.files)) for source in spec.sources)
    searched = ", ".join(str(root) for root in roots)
    looked = f"no file {patterns_text} in {searched}" if roots else f"it is read from local files, {patterns_text}"
    files = [
        path_of_split(root / str(source.files), split)
        for source in spec.sources
        for root in roots
        for split in (source.splits.train, source.splits.test)
    ]
    raise InputError.at(spec.name, f"{looked}; give the folder that holds them {_GIVEN}{_unread(files)}")


def _passed_over(spec: TaskSpec, source: TaskSource, pattern: Path | None) -> tuple[str, ...]:
    """Return a sentence for each file beside those of the splits that seems to be of the task too, and is not read."""
    if pattern is None:
        return ()
    notes, splits = [], spec.splits(source)
    for read, *others in (split_files(pattern, split) for split in splits.values()):
        notes += [f"{other}: is not read, since {read.name} is; remove one of the two" for other in others]
    if "train" in splits and "dev" not in splits:
        unread = [(name, file) for name in _DEV if name not in splits.values() and (file := split_file(pattern, name))]
        held_out = f"is not read, since a share of {splits['train']} is held out to choose on"
        notes += [
            f"{file}: {held_out}; to choose on this file, add `dev: {name}` to the task's splits" for name, file in unread
        ]
    return tuple(notes)


def _unread(paths: Sequence[Path]) -> str:
    """Return the first file at these paths of a kind that is not read, and the kinds that are.

    Empty without one.
    """
    for path in paths:
        if file := next(filter(Path.is_file, sorted(path.parent.glob(f"{glob.escape(path.name)}*"))), None):
            return f"; {file} is of no kind that is read: {', '.join(KINDS)}"
    return ""


def _tables(spec: TaskSpec, source: TaskSource, pattern: Path | None, data: Path | None) -> dict[str, ExampleTable]:
    wanted, splits = list(spec.columns(source).values()), spec.splits(source)
    splits.pop(UNLABELLED, None)
    if source.embedded is not None:
        tables = embedded_tables(source.embedded)
        if missing := splits.keys() - tables.keys():
            lacking = ", ".join(sorted(missing))
            raise InputError.at(spec.name, f"{source.embedded} has no {lacking}, which a task of kind {spec.kind} needs")
        return {role: pick(table, wanted) for role, table in tables.items()}
    if pattern is None:
        remedy = _remedy_offline(spec, data)
        read = {role: pick(read_hub_split(source, split, remedy), wanted) for role, split in splits.items()}
    else:
        read = {role: _table(pattern, split, wanted) for role, split in splits.items()}
    return {role: _with_names(table, _label_column(spec, source), spec.labels) for role, table in read.items()}


def _unlabelled(
    spec: TaskSpec, source: TaskSource, pattern: Path | None, data: Path | None, split: str, labels: Sequence[str]
) -> ExampleTable:
    """Return a table of texts with a stand-in for labels."""
    columns = spec.columns(source)
    wanted = [column for role, column in columns.items() if role not in ("label", "id")]
    if pattern is None:
        table = pick(read_hub_split(source, split, _remedy_offline(spec, data)), wanted)
    else:
        table = _table(pattern, split, wanted)
    stand_in: Any = [] if spec.multi_label else 0.0 if spec.regression else labels[0]
    return replace(table, columns={**table.columns, columns["label"]: [stand_in] * len(table)})


def _remedy_offline(spec: TaskSpec, data: Path | None) -> str:
    """Return the remedy for a failed download, naming files that replace it."""
    files = " or ".join(source.files for source in spec.sources if source.files)
    if not files:
        return "load it once while online"
    missing = "" if data is None else f" ({data} has none)"
    return f"load it once while online, or give the folder that holds {files} {_GIVEN}{missing}"


def _label_column(spec: TaskSpec, source: TaskSource) -> str | None:
    if spec.regression or spec.kind in ("spans", "minimal_pairs"):
        return None
    return spec.columns(source)["labels" if spec.kind == "tokens" else "label"]


def _table(pattern: Path, split: str, wanted: list[str]) -> ExampleTable:
    file = split_file(pattern, split)
    if file is None:
        unread = _unread([path_of_split(pattern, split)])
        raise InputError.at(str(pattern), f"has no split {shown(split)}; {nearest(split, splits_there(pattern))}{unread}")
    return read_table(file, wanted)


def _with_names(table: ExampleTable, column: str | None, labels: Sequence[str]) -> ExampleTable:
    """Replace indices in a class column by the task's names, or by the dataset's, if all of the task's are among them.

    Raises InputError if the task gives some name of the dataset to another of its classes.
    """
    if column is None or column not in table.classes:
        return table
    classes = table.classes[column]
    names: dict[Any, str] = dict(enumerate(classes))
    if not set(labels) <= set(classes):
        if moved := [label for label, own in zip(labels, classes, strict=False) if label != own and label in classes]:
            ours, theirs = (names.index(moved[0]) for names in (labels, classes))
            message = f"{shown(moved[0])} is class {ours} of labels, but class {theirs} of {', '.join(map(shown, classes))}"
            raise InputError.at(table.place, f"{message}; name them in this order, or leave labels out")
        names |= dict(enumerate(labels))
    values = [
        [names.get(each, each) for each in value] if isinstance(value, list) else names.get(value, value)
        for value in table.columns[column]
    ]
    return replace(table, columns={**table.columns, column: values})


def _labels(spec: TaskSpec, source: TaskSource, tables: dict[str, ExampleTable]) -> tuple[str, ...]:
    """Return the class names: as specified, the dataset's, or those of the train split."""
    column = _label_column(spec, source)
    if spec.labels or column is None:
        return spec.labels
    table = tables["train"]
    if column in table.classes:
        return tuple(map(label_name, table.classes[column]))
    values: list[Any] = list(table.columns[column])
    if spec.kind == "tokens" or spec.multi_label:
        values = [label for row, several in enumerate(values) for label in _labels_of(table, row, several, spec)]
    names = {label_name(value) for value in values} - {"", *(["-1", *MISSING] if "unlabelled" in source.drop else [])}
    _refuse_secret_labels(names, table.place, column)
    if len(names) < 2:
        raise InputError.at(table.place, f"column {shown(column)} holds {len(names)} kinds of label; a task needs at least two")
    _refuse_case_variants(names, table.place, column)
    if spec.kind in ("single", "pair") and not spec.multi_label:
        _refuse_scores(names, table.place, column)
    if spec.multi_label:
        _refuse_joined_names(names, table.place, column)
    return tuple(sorted(names, key=lambda name: (len(name), name) if name.isdecimal() else (0, name)))


def _labels_of(table: ExampleTable, row: int, several: object, spec: TaskSpec) -> list[Any]:
    try:
        return several_names(several) if spec.multi_label else several_labels(several)
    except RowError as error:
        raise InputError.at(table.where(row), str(error)) from error


def _refuse_secret_labels(names: set[str], place: str, column: str) -> None:
    """Raise InputError if names include a mark for missing labels: a text, or -1 or -100 among whole numbers."""
    for secret in ("-1", "-100", *MISSING):
        if secret in names and (secret in MISSING or (len(names) > 2 and all(map(is_whole, names)))):
            remedy = (
                "save the rows without it" if secret == "-100" else "skip such rows with `drop: [unlabelled]` of the source"
            )
            message = f"column {shown(column)} holds {secret}, which often marks missing labels; {remedy}"
            raise InputError.at(place, f"{message}, or, if it is a class, name all under labels")


def _refuse_case_variants(names: set[str], place: str, column: str) -> None:
    """Raise InputError if unspecified labels differ only in case or invisibly."""
    variants = [same for same in grouped(sorted(names), _as_seen).values() if len(same) > 1]
    problems = []
    for same in variants:
        how = "case" if len(set(map(str.casefold, same))) == 1 else "their spelling"
        message = f"which differ only in {how}; spell them the same, or, if they are separate classes, name all under labels"
        problems.append(Problem(place, f"column {shown(column)} holds {' and '.join(map(shown, same))}, {message}"))
    if problems:
        raise InputError(problems)


def _refuse_scores(names: set[str], place: str, column: str) -> None:
    """Raise InputError if all names are numbers, and one is not whole."""
    try:
        fractions = sorted(number for number in map(float, names) if not number.is_integer())
    except ValueError:
        return
    if fractions:
        message = f"holds {len(names):,} different numbers, such as {fractions[0]:g}; for scores set `regression: true`"
        raise InputError.at(place, f"column {shown(column)} {message}, or, if they are classes, name them under labels")


def _as_seen(name: str) -> str:
    """Return the name without case, quotes and invisible characters; true and false as numbers."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    seen = "".join(character for character in folded if unicodedata.category(character) not in ("Cc", "Cf")).strip("\"' ")
    return {"false": "0", "true": "1"}.get(seen, seen or name)


def _refuse_joined_names(names: set[str], place: str, column: str) -> None:
    """Raise InputError if a label is several others joined."""
    for name in sorted(names):
        parts = re.split(r"[\s/+&]+", name)
        if len(parts) > 1 and names.issuperset(parts):
            message = f"holds {shown(name)}, which joins other labels; write a list, or commas between them"
            raise InputError.at(place, f"column {shown(column)} {message}, or, if it is a class, name all under labels")


def _refuse_single_words(table: ExampleTable, column: str) -> None:
    """Raise InputError if the cells of a text file are one word each."""
    cells = table.columns[column]
    if len(cells) > 1 and all(isinstance(cell, str) and len(cell.split()) < 2 and not cell.startswith("[") for cell in cells):
        remedy = "give each row a sentence's words and its labels, or write .conll with a blank line after each sentence"
        raise InputError.at(table.place, f"each of its {len(cells):,} rows is one word; {remedy}")


def _refuse_repeated_ids(spec: TaskSpec, source: TaskSource, tables: dict[str, ExampleTable]) -> None:
    column = spec.columns(source).get("id")
    if column is None:
        return
    seen: dict[str, str] = {}
    problems = []
    for table in tables.values():
        for row, value in enumerate(table.columns[column]):
            if (key := repr(value)) in seen:
                problems.append(Problem(table.where(row), f"id {key} already occurs at {seen[key]}; remove one of the two"))
            seen.setdefault(key, table.where(row))
    if problems:
        raise InputError(problems[:8])
