"""Rows become examples, or problems that name file, row and remedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from study.base.errors import InputError, Problem
from study.base.schema import near, shown
from study.data.surrogates import without_lone_surrogates
from study.tasks.example_tables import Table
from study.tasks.examples import Example, MinimalPair, SpanExample, TextExample, TokensExample
from study.tasks.task_spec import Source, TaskSpec, is_whole, label_name

_SHOWN_PROBLEMS = 8
_TRUTH = ("false", "true")

_MOST_DIGITS = 18
"""No place has more; of numbers with thousands of them Python reads none."""


class _RowError(Exception):
    """What is wrong with a row."""


def parse(spec: TaskSpec, source: Source, table: Table, labels: tuple[str, ...]) -> list[Example]:
    """The examples of a table in its order.

    Raises InputError with the first problems of the table, each with its row, and how many more there are.
    """
    columns = spec.columns(source)
    index = ClassIndex(labels)
    make = _maker(spec, index)
    series = [table.columns[column] for role, column in columns.items() if role != "id"]
    examples: list[Example] = []
    problems: list[Problem] = []
    for row, values in enumerate(zip(*series, strict=True)):
        try:
            examples.append(make(row, *values))
        except _RowError as error:
            problems.append(Problem(table.where(row), str(error)))
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        rest = [Problem(table.place, f"and {more:,} more rows like these")] if more > 0 else []
        raise InputError(problems[:_SHOWN_PROBLEMS] + rest)
    return examples


class ClassIndex:
    """The index of a class by its name or, where no name is a number, by its index; true is 1 where there are two classes."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self._by_name = {name: place for place, name in enumerate(self.labels)}
        self._by_index = not any(is_whole(name) for name in self.labels)

    def __call__(self, value: object) -> int:
        """The index that a value of the data stands for."""
        if isinstance(value, list | tuple | dict):
            raise _RowError(f"label {shown(value)} holds values where one is needed; give each row, or word, its one label")
        name = label_name(value)
        if name in self._by_name:
            return self._by_name[name]
        if self._by_index and (place := _place(name)) is not None and 0 <= place < len(self.labels):
            return place
        if name in _TRUTH and self._by_index and len(self.labels) == 2:
            return _TRUTH.index(name)
        if name == "":
            raise _RowError("has no label; fill it in or remove the row")
        best = near(name, list(self.labels))
        more = ", …" if len(self.labels) > 20 else ""
        known = f"labels are {', '.join(self.labels[:20])}{more}{f'; did you mean {best!r}?' if best else ''}"
        if name == "-1":
            known += " (-1 marks rows whose labels are kept secret; report on a split that has labels)"
        raise _RowError(f"label {shown(value)} is not known; {known}")


def _maker(spec: TaskSpec, index: ClassIndex) -> Callable[..., Example]:
    label: Callable[[object], int | float] = _number if spec.regression else index
    match spec.kind:
        case "single":
            return lambda row, text, value: TextExample(row, _text("text", text), None, label(value))
        case "pair":
            return lambda row, a, b, value: TextExample(row, _text("text_a", a), _text("text_b", b), label(value))
        case "tokens":
            return lambda row, tokens, tags: _tagged(row, tokens, tags, index)
        case "spans":
            return _span
        case "minimal_pairs":
            return lambda row, good, bad, paradigm: MinimalPair(
                row, _text("good", good), _text("bad", bad), _text("paradigm", paradigm)
            )


def _tagged(row: int, tokens: object, tags: object, index: ClassIndex) -> TokensExample:
    words = [_text("token", word) for word in several(tokens)]
    labels = several(tags)
    if not words:
        raise _RowError("has no tokens; remove the row")
    if len(words) != len(labels):
        raise _RowError(f"has {len(words)} tokens and {len(labels)} tags; give each token one tag")
    return TokensExample(row, tuple(words), tuple(index(label) for label in labels))


def _span(row: int, context: object, question: object, answers: object, starts: object) -> SpanExample:
    text = _text("context", context)
    texts = [_text("answer", answer) for answer in ([answers] if isinstance(answers, str) else several(answers))]
    places: list[Any] = list(starts) if isinstance(starts, list | tuple) else [starts]
    if not texts:
        raise _RowError("has no answer; leave questions without an answer out")
    if len(texts) != len(places):
        raise _RowError(f"has {len(texts)} answers and {len(places)} starts; give each answer one start")
    starts_there = tuple(_checked_start(text, answer, start) for answer, start in zip(texts, places, strict=True))
    return SpanExample(row, text, _text("question", question), tuple(texts), starts_there)


def _checked_start(context: str, answer: str, start: Any) -> int:
    """The character of the context where an answer begins, which is to stand there."""
    if (place := _place(label_name(start))) is None:
        remedy = "give the character of the context where the answer begins, from 0"
        raise _RowError(f"answer_start {shown(start)} is not a whole number of up to {_MOST_DIGITS} digits; {remedy}")
    there = context[max(place, 0) : max(place, 0) + len(answer)]
    if place < 0 or there != answer:
        found = context.find(answer)
        remedy = f"it stands at {found}" if found >= 0 else "it stands nowhere in it; correct the answer or remove the row"
        raise _RowError(f"answer {shown(answer)} is not at character {place} of the context, where {shown(there)} is; {remedy}")
    return place


def _place(name: str) -> int | None:
    """The whole number that a name is, None of others and of those that are no place of anything."""
    return int(name) if is_whole(name) and len(name) <= _MOST_DIGITS else None


def several(value: object) -> list[Any]:
    """A list as it is, and text at white space, as delimited files hold lists."""
    if isinstance(value, list | tuple):
        return list(value)
    return value.split() if isinstance(value, str) else []


def _text(role: str, value: object) -> str:
    """A text that says something, with question marks for lone surrogates, as in the corpora of encoders."""
    if not isinstance(value, str):
        raise _RowError(f"{role} is {shown(value)} where text is needed; fill it in or remove the row")
    if not value.strip():
        raise _RowError(f"{role} is empty; fill it in or remove the row")
    return without_lone_surrogates(value)


def _number(value: object) -> float:
    try:
        number = math.nan if "_" in str(value) else float(str(value))  # Python would take 1_000
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise _RowError(f"score {shown(value)} is not a finite number; fill it in or remove the row")
    return number
