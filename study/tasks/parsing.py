"""Parsing of rows into examples, or into problems with file, row and remedy."""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from study.base.errors import InputError, Problem, cut, near, shown
from study.base.text import without_lone_surrogates
from study.tasks.example_tables import ExampleTable
from study.tasks.examples import Example, MinimalPair, SpanExample, TextExample, TokensExample
from study.tasks.task_spec import TaskSource, TaskSpec, Unusable, is_whole, label_name

_SHOWN_PROBLEMS = 8
_TRUTH = ("false", "true")

MISSING = ("NaN", "nan", "NA", "<NA>", "N/A", "#N/A", "None", "NULL", "null", "-", "?")
"""What pandas, R, spreadsheets, databases and SNLI write where a label is missing, as text."""

_ITEM = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_ITEMS = rf"(?:(?:{_ITEM.pattern})(?:(?:\s*,\s*|\s+)(?:{_ITEM.pattern}))*\s*,?)?"
_BEGINS_A_LIST = re.compile(r"""\"*((\w+\()?[\[(]+|c\()["']""")
_BEGINS_LABELS = re.compile(r"""\"*((\w+\()?\[|c?\(|\{)""")
_LIST = re.compile(rf"\[\s*{_ITEMS}\s*\]|\(\s*{_ITEMS}\s*\)")
"""A list or tuple of quoted items with commas or white space between them, or of none."""

_WHOLE_NUMBERS = re.compile(r"[\[(]\s*-?\d+(?:(?:\s*,\s*|\s+)-?\d+)*\s*,?\s*[\])]")

_MOST_DIGITS = 18
"""No index has more; Python refuses to parse numbers of thousands of digits."""


class RowError(Exception):
    """A problem with a row, and the `drop` reason of a source that would skip it."""

    def __init__(self, message: str, reason: Unusable | None = None) -> None:
        super().__init__(message if reason is None else f"{message}, or skip such rows with `drop: [{reason}]` of the source")
        self.reason = reason


def parse(
    spec: TaskSpec, source: TaskSource, table: ExampleTable, labels: tuple[str, ...]
) -> tuple[list[Example], Counter[str]]:
    """Return a table's examples in order, and counts of dropped rows by reason.

    Raises InputError with the first bad rows and the number of further ones.
    """
    columns = spec.columns(source)
    index = ClassIndex(labels, named=bool(spec.labels))
    make = _maker(spec, index)
    series = [table.columns[column] for role, column in columns.items() if role != "id"]
    examples: list[Example] = []
    dropped: Counter[str] = Counter()
    problems: list[Problem] = []
    for row, values in enumerate(zip(*series, strict=True)):
        try:
            examples.append(make(row, *values))
        except RowError as error:
            if error.reason in source.drop:
                dropped[error.reason] += 1
                continue
            problems.append(Problem(table.where(row), str(error)))
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        rest = [Problem(table.place, f"and {more:,} more rows like these")] if more > 0 else []
        raise InputError(problems[:_SHOWN_PROBLEMS] + rest)
    return examples, dropped


class ClassIndex:
    """Maps labels to class indices, by name or, if no name is a number, by index; with two classes, true is 1.

    `named` says whether the task names its labels; else they come from the train split.
    """

    def __init__(self, labels: Sequence[str], named: bool) -> None:
        self.labels, self.named = tuple(labels), named
        self._by_name = {name: index for index, name in enumerate(self.labels)}
        self._by_index = not any(is_whole(name) for name in self.labels)

    def __call__(self, value: object) -> int:
        """Return a value's class index; raises RowError."""
        _refuse_several(value)
        name = label_name(value)
        if name in self._by_name:
            return self._by_name[name]
        if self._by_index and (index := _whole_number(name)) is not None and 0 <= index < len(self.labels):
            return index
        if name in _TRUTH and self._by_index and len(self.labels) == 2:
            return _TRUTH.index(name)
        if name == "":
            raise RowError("has no label; fill it in or remove the row", "unlabelled")
        if name in MISSING:
            raise RowError(f"label {shown(value)} marks rows without a label; correct it or remove the row", "unlabelled")
        if name == "-1":
            remedy = "report on a split that has labels"
            raise RowError(f"label {shown(value)} marks rows whose labels are kept secret; {remedy}", "unlabelled")
        if not self.named:
            remedy = "correct it, or name all labels under `labels:` of the task"
            raise RowError(f"label {shown(value)} does not occur in the train split, which defines the labels; {remedy}")
        best = near(name, list(self.labels))
        more = ", …" if len(self.labels) > 20 else ""
        known = f"labels are {', '.join(map(cut, self.labels[:20]))}{more}{f'; did you mean {cut(best)!r}?' if best else ''}"
        raise RowError(f"label {shown(value)} is not known; {known}")


def _maker(spec: TaskSpec, index: ClassIndex) -> Callable[..., Example]:
    label: Callable[[object], int | float | tuple[int, ...]] = _number if spec.regression else index
    if spec.multi_label:
        label = partial(_classes, index)
    match spec.kind:
        case "single":
            return lambda row, text, value: TextExample(row, _text("text", text), None, label(value))
        case "pair":
            return lambda row, a, b, value: TextExample(row, _text("text_a", a), _text("text_b", b), label(value))
        case "tokens":
            return lambda row, tokens, tags: _tagged(row, tokens, tags, index)
        case "spans":
            return partial(_span, spec.unanswerable)
        case "minimal_pairs":
            return lambda row, good, bad, paradigm: MinimalPair(
                row, _text("good", good), _text("bad", bad), _text("paradigm", paradigm)
            )


def _tagged(row: int, tokens: object, tags: object, index: ClassIndex) -> TokensExample:
    words = [_text("token", word) for word in several(tokens)]
    labels = several_labels(tags)
    if not words:
        raise RowError("has no tokens; remove the row", "empty")
    if not labels:
        raise RowError("has no tags; give each token one, or remove the row", "unlabelled")
    if len(words) != len(labels):
        raise RowError(f"has {len(words)} tokens and {len(labels)} tags; give each token one tag", "invalid")
    return TokensExample(row, tuple(words), tuple(index(label) for label in labels))


def _classes(index: ClassIndex, value: object) -> tuple[int, ...]:
    if value is None or value != value or value == "":
        raise RowError("has no labels; fill them in, with [] for none, or remove the row", "unlabelled")
    names = [label_name(name) for name in several_names(value)]
    if len(names) > len({*names}) and {*names} <= {"0", "1"}:
        remedy = "list the classes of the text, by name or by index"
        raise RowError(f"labels {shown(value)} are a 0 or 1 for each class; {remedy}")
    marked = set(map(index, names))
    return tuple(int(number in marked) for number in range(len(index.labels)))


def _span(unanswerable: bool, row: int, context: object, question: object, answers: object, starts: object) -> SpanExample:
    text = _text("context", context)
    texts = [answers] if isinstance(answers, str) else several(answers)
    if unanswerable and "" in texts:
        raise RowError("answer is empty; a question without an answer has an empty list of answers, []", "invalid")
    texts = [_text("answer", answer) for answer in texts]
    offsets: list[Any] = list(starts) if isinstance(starts, list | tuple) else [starts]
    if not texts and not unanswerable:
        remedy = "remove questions without an answer, or set `unanswerable: true` of the task"
        raise RowError(f"has no answer; {remedy}", "unlabelled")
    if len(texts) != len(offsets):
        raise RowError(f"has {len(texts)} answers and {len(offsets)} starts; give each answer one start", "invalid")
    checked = tuple(_checked_start(text, answer, start) for answer, start in zip(texts, offsets, strict=True))
    return SpanExample(row, text, _text("question", question), tuple(texts), checked)


def _checked_start(context: str, answer: str, start: Any) -> int:
    """Return an answer's offset after checking that it is there."""
    if (offset := _whole_number(label_name(start))) is None:
        remedy = "give the character of the context where the answer begins, from 0"
        raise RowError(f"answer_start {shown(start)} is not a whole number of up to {_MOST_DIGITS} digits; {remedy}", "invalid")
    there = context[max(offset, 0) : max(offset, 0) + len(answer)]
    if offset < 0 or there != answer:
        actual = context.find(answer)
        remedy = f"it begins at {actual}" if actual >= 0 else "the context lacks it; correct the answer or remove the row"
        message = f"answer {shown(answer)} is not at character {offset} of the context, where {shown(there)} is"
        raise RowError(f"{message}; {remedy}", "invalid")
    return offset


def _whole_number(name: str) -> int | None:
    """Return the whole number that a name spells, if any."""
    return int(name) if is_whole(name) and len(name) <= _MOST_DIGITS else None


def several(value: object) -> list[Any]:
    """Return a list as is; of text, the list it spells, or its words.

    pandas writes a list into a delimited file as `['New', 'Town']`, a tuple as `('New', 'Town')` and an array as `['New'
    'Town']`; JSON is `["New", "Town"]`. Raises RowError for text that begins as such a list only, and for lists in quotes or in
    a call, such as `c("New")`.
    """
    if isinstance(value, list | tuple):
        return list(value)
    if not isinstance(value, str):
        return []
    text = value.strip()
    if _LIST.fullmatch(text):
        try:
            return list(json.loads(text))  # which spells characters beyond 16 bits as two escapes
        except ValueError:
            return [ast.literal_eval(item) for item in _ITEM.findall(text)]
    if _BEGINS_A_LIST.match(text):
        raise _not_a_list(value)
    return text.split()


def _not_a_list(value: str) -> RowError:
    return RowError(f"{shown(value)} is not a complete list; write lists as JSON, or the words with spaces between them")


def several_labels(value: object) -> list[Any]:
    """Read the labels of words like `several`, and also text such as `[0, 3]` or `[0 3]`.

    Raises RowError for other text in brackets, such as `[B-LOC, I-LOC]`.
    """
    if isinstance(value, str) and _WHOLE_NUMBERS.fullmatch(value.strip()):
        return re.findall(r"-?\d+", value)
    labels = several(value)
    if isinstance(value, str) and labels and _BEGINS_LABELS.match(str(labels[0])):
        raise _not_a_list(value)
    for label in labels:
        _refuse_several(label)
    return labels


def _refuse_several(label: object) -> None:
    if isinstance(label, list | tuple | dict):
        raise RowError(f"label {shown(label)} holds several values; give each row, or word, one label")


def several_names(value: object) -> list[Any]:
    """Read the labels of a text: a list, or names with a comma, semicolon or bar between them."""
    if not isinstance(value, str):
        return list(value) if isinstance(value, list | tuple) else [value]
    text = value.strip()
    if _BEGINS_LABELS.match(text):
        return several_labels(text)
    if re.fullmatch(r"-?\d+(\s+-?\d+)+", text):
        return text.split()
    return [name.strip() for name in re.split(r"[,;|]", text)]


def _text(role: str, value: object) -> str:
    """Return a non-empty text, with question marks for lone surrogates as in corpora."""
    if value is None or value != value:
        raise RowError(f"{role} is {shown(value)}, but text is needed; fill it in or remove the row", "empty")
    if not isinstance(value, str):
        raise RowError(f"{role} is {shown(value)}, but text is needed; fill it in or remove the row")
    if not value.strip():
        raise RowError(f"{role} is empty; fill it in or remove the row", "empty")
    return without_lone_surrogates(value)


def _number(value: object) -> float:
    if label_name(value) == "":
        raise RowError("has no score; fill it in or remove the row", "unlabelled")
    try:
        number = math.nan if "_" in str(value) else float(str(value))  # Python would take 1_000
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise RowError(f"score {shown(value)} is not a finite number; fill it in or remove the row")
    return number
