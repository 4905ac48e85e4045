"""The examples of downstream tasks, one frozen class for each kind, and a task with all its splits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property

from study.tasks.task_spec import TaskSpec


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text, or two where the task is about pairs, and its class by index or its number."""

    row: int
    text: str
    text_b: str | None
    label: int | float


@dataclass(frozen=True, slots=True)
class TokensExample:
    """The words of a text and the index of each one's label."""

    row: int
    tokens: tuple[str, ...]
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question about a context; each answer stands in the context at its start, which counts characters."""

    row: int
    context: str
    question: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """Two sentences of which the first is acceptable and the second is not, and the paradigm that they belong to."""

    row: int
    good: str
    bad: str
    paradigm: str


Example = TextExample | TokensExample | SpanExample | MinimalPair


@dataclass(frozen=True)
class TaskData:
    """A task with its examples: `train`, `dev` to choose on, and `test` to report; minimal pairs have only `test`.

    `row` of an example counts the rows of the file or table that it was read from, from 0. `dropped` counts the rows that the
    source leaves out, by place and reason.
    """

    spec: TaskSpec
    labels: tuple[str, ...]
    splits: Mapping[str, Sequence[Example]]
    dropped: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def train(self) -> Sequence[Example]:
        """The examples that are learned from."""
        return self.splits["train"]

    @property
    def dev(self) -> Sequence[Example]:
        """The examples that every choice is made on."""
        return self.splits["dev"]

    @property
    def test(self) -> Sequence[Example]:
        """The examples that scores are reported on."""
        return self.splits["test"]

    @property
    def notes(self) -> list[str]:
        """A sentence for each place of which rows are left out."""
        return [
            f"{place}: {' and '.join(f'{count:,} {reason}' for reason, count in counts.items())} rows are left out"
            for place, counts in self.dropped.items()
        ]

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that are equal exactly where kind, labels and the examples of every split are."""
        digest = hashlib.sha256(json.dumps([self.spec.kind, self.spec.regression, self.labels]).encode())
        for name in sorted(self.splits):
            digest.update(f"\n{name}\n".encode())
            for example in self.splits[name]:
                digest.update(json.dumps(astuple(example)).encode())
        return digest.hexdigest()[:16]
