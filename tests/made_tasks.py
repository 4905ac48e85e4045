"""Small tasks made by hand, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from study.tasks.examples import Example, MinimalPair, SpanExample, TaskData, TextExample, TokensExample
from study.tasks.task_spec import Kind, Metric, TaskSource, TaskSpec


def task(
    kind: Kind, metrics: Sequence[Metric], test: Sequence[Example], labels: Sequence[str] = (), **kind_of_labels: bool
) -> TaskData:
    """A task whose three splits are the same examples."""
    spec = TaskSpec(
        name="made",
        kind=kind,
        metrics=tuple(metrics),
        sources=(TaskSource(files="{split}"),),
        labels=tuple(labels),
        **kind_of_labels,
    )
    return TaskData(spec, tuple(labels), {"train": test, "dev": test, "test": test})


def texts(labels: Sequence[int | float | tuple[int, ...]]) -> list[TextExample]:
    return [TextExample(row, f"text {row}", None, label) for row, label in enumerate(labels)]


def tagged(sentences: Sequence[Sequence[int]]) -> list[TokensExample]:
    return [
        TokensExample(row, tuple(f"word{place}" for place in range(len(tags))), tuple(tags))
        for row, tags in enumerate(sentences)
    ]


def question(answers: Sequence[str], context: str = "") -> SpanExample:
    return SpanExample(0, context or " ".join(answers), "what?", tuple(answers), tuple(0 for _ in answers))


def pairs(paradigms: Sequence[str]) -> list[MinimalPair]:
    return [MinimalPair(row, f"good {row}", f"bad {row}", paradigm) for row, paradigm in enumerate(paradigms)]
