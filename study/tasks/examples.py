"""Examples of downstream tasks, one frozen class per kind, and a task with its splits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property

from study.tasks.task_spec import TaskSpec


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text, or two for pair tasks, with its class index, its score, or a 0 or 1 for each class."""

    row: int
    text: str
    text_b: str | None
    label: int | float | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokensExample:
    """The words of a text and their label indices."""

    row: int
    tokens: tuple[str, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question, its context, and the answers with their character offsets, none if the context does not answer it."""

    row: int
    context: str
    question: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """An acceptable and an unacceptable sentence, and their paradigm."""

    row: int
    good: str
    bad: str
    paradigm: str


Example = TextExample | TokensExample | SpanExample | MinimalPair


def texts_among(examples: Sequence[Example]) -> list[TextExample]:
    """Return the examples of a task of texts, none of another kind's."""
    return [example for example in examples if isinstance(example, TextExample)]


def texts_of(example: Example) -> tuple[str, ...]:
    """Return the texts of an example that an encoder reads; words as running text."""
    match example:
        case TextExample():
            return (example.text,) if example.text_b is None else (example.text, example.text_b)
        case TokensExample():
            return (" ".join(example.tokens),)
        case SpanExample():
            return example.question, example.context
        case MinimalPair():
            return example.good, example.bad


@dataclass(frozen=True)
class TaskData:
    """A task with its examples: `train`, `dev` for choices, and `test` for reports; minimal pairs have only `test`.

    An example's `row` counts from 0 in its file or table. `dropped` counts dropped rows by location and reason.
    """

    spec: TaskSpec
    labels: tuple[str, ...]
    splits: Mapping[str, Sequence[Example]]
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def train(self) -> Sequence[Example]:
        """The training examples."""
        return self.splits["train"]

    @property
    def dev(self) -> Sequence[Example]:
        """The examples that choices are made on."""
        return self.splits["dev"]

    @property
    def test(self) -> Sequence[Example]:
        """The examples for reported scores."""
        return self.splits["test"]

    @property
    def notes(self) -> list[str]:
        """A sentence per location with dropped rows."""
        return [
            f"{place}: {' and '.join(f'{count:,} {reason}' for reason, count in counts.items())} rows are skipped"
            for place, counts in self.dropped.items()
        ]

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over kind, labels and the examples of every split."""
        digest = hashlib.sha256(json.dumps([self.spec.kind, self.spec.regression, self.labels]).encode())
        for name in sorted(self.splits):
            digest.update(f"\n{name}\n".encode())
            for example in self.splits[name]:
                digest.update(json.dumps(astuple(example)).encode())
        return digest.hexdigest()[:16]
