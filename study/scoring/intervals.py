"""How sure a score is, from the examples that it was measured on: the bootstrap over examples.

Every metric is a function of a sum over examples (of their confusion counts, of the moments of two numbers, of entities found
and meant …), so a resample is a weighted sum and thousands of them are one matrix product. Letters: N examples, P parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from study.scoring.metrics import answer_scores, classes, entity_spans, numbers
from study.tasks.examples import Example, MinimalPair, SpanExample, TaskData, TokensExample
from study.tasks.spec import Metric

Floats = NDArray[np.float64]

_CHUNK = 64


@dataclass(frozen=True)
class Interval:
    """The middle 95% of a metric over resamples of the examples, and their standard deviation."""

    low: float
    high: float
    standard_error: float


@dataclass(frozen=True)
class Parts:
    """What each example adds to a metric, and the metric of the sums: (N, P), and (…, P) to (…)."""

    of_examples: Floats
    combine: Callable[[Floats], Floats]

    @property
    def value(self) -> float:
        """The metric of all examples."""
        return float(self.combine(self.of_examples.sum(axis=0)))


def interval(
    task: TaskData, split: str, predictions: Sequence[Any], metric: Metric | None = None, draws: int = 1000
) -> Interval:
    """The bootstrap interval of a metric, the task's headline by default, over the examples of a split.

    Ranks stay as they are in all examples. The same predictions give the same interval.
    """
    parts = parts_of(task, task.splits[split], predictions, metric or task.spec.headline)
    values = parts.combine(resampled_sums(parts.of_examples, draws, np.random.default_rng(0)))
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(low), float(high), float(values.std(ddof=1)))


def resampled_sums(parts_NxP: Floats, draws: int, generator: np.random.Generator) -> Floats:
    """The sums of `draws` resamples of as many examples, drawn with replacement: (draws, P)."""
    count = len(parts_NxP)
    sums = []
    for begin in range(0, draws, _CHUNK):
        chosen = generator.integers(count, size=(min(_CHUNK, draws - begin), count))
        weights = np.stack([np.bincount(row, minlength=count) for row in chosen]).astype(np.float64)
        sums.append(weights @ parts_NxP)
    return np.concatenate(sums)


def parts_of(task: TaskData, examples: Sequence[Example], predictions: Sequence[Any], metric: Metric) -> Parts:
    """What each example adds to a metric."""
    match metric:
        case "pearson" | "spearman":
            predicted, gold = (tensor.numpy() for tensor in numbers(examples, predictions))
            return _moments(predicted, gold) if metric == "pearson" else _moments(rankdata(predicted), rankdata(gold))
        case "exact_match" | "answer_f1":
            spans = [example for example in examples if isinstance(example, SpanExample)]
            place = ("exact_match", "answer_f1").index(metric)
            return _mean(np.array([answer_scores(*both)[place] for both in zip(spans, predictions, strict=True)]))
        case "paradigm_accuracy":
            return _paradigms([example for example in examples if isinstance(example, MinimalPair)], predictions)
        case "entity_f1":
            return _entities(task.labels, examples, predictions)
        case "accuracy" if task.spec.kind == "minimal_pairs":
            return _mean(np.asarray(predictions, dtype=np.float64))
        case _:
            combine = {"accuracy": _accuracy, "f1": _f1, "macro_f1": _macro_f1, "matthews": _matthews}[metric]
            return Parts(_confusions(len(task.labels), examples, predictions), combine)


def _mean(values: Floats) -> Parts:
    return Parts(np.stack([values, np.ones_like(values)], axis=1), lambda sums: sums[..., 0] / sums[..., 1])


def _paradigms(pairs: Sequence[MinimalPair], predictions: Sequence[Any]) -> Parts:
    names = sorted({pair.paradigm for pair in pairs})
    place = np.array([names.index(pair.paradigm) for pair in pairs])
    counts = np.eye(len(names))[place]
    won = counts * np.asarray(predictions, dtype=np.float64)[:, None]

    def combine(sums: Floats) -> Floats:
        """The mean over the paradigms that are there; a resample may miss a small one."""
        right, drawn = sums[..., : len(names)], sums[..., len(names) :]
        found: Floats = np.sum(right / np.maximum(drawn, 1), axis=-1) / np.count_nonzero(drawn, axis=-1)
        return found

    return Parts(np.concatenate([won, counts], axis=1), combine)


def _entities(labels: Sequence[str], examples: Sequence[Example], predictions: Sequence[Sequence[int]]) -> Parts:
    rows = []
    for example, prediction in zip(examples, predictions, strict=True):
        assert isinstance(example, TokensExample)
        meant, found = (entity_spans([labels[place] for place in tags]) for tags in (example.labels, prediction))
        rows.append((2 * len(meant & found), len(meant) + len(found)))
    return Parts(np.array(rows, dtype=np.float64), lambda sums: _ratio(sums[..., 0], sums[..., 1]))


def _moments(predicted: Floats, gold: Floats) -> Parts:
    a, b = predicted - predicted.mean(), gold - gold.mean()
    return Parts(np.stack([np.ones_like(a), a, b, a * a, b * b, a * b], axis=1), _correlation)


def _correlation(sums: Floats) -> Floats:
    n, a, b, aa, bb, ab = np.moveaxis(sums, -1, 0)
    return _ratio(n * ab - a * b, np.sqrt(np.maximum((n * aa - a * a) * (n * bb - b * b), 0)))


def _confusions(count: int, examples: Sequence[Example], predictions: Sequence[Any]) -> Floats:
    """How often each example's words, or it itself, were of one class and said to be of another: (N, classes²), gold first."""
    predicted, gold = (tensor.numpy() for tensor in classes(examples, predictions))
    words = [len(example.labels) if isinstance(example, TokensExample) else 1 for example in examples]
    owner = np.repeat(np.arange(len(words)), words)
    counts = np.zeros((len(words), count * count))
    np.add.at(counts, (owner, gold.astype(int) * count + predicted.astype(int)), 1.0)
    return counts


def _square(sums: Floats) -> Floats:
    count = round(sums.shape[-1] ** 0.5)
    return sums.reshape(*sums.shape[:-1], count, count)


def _accuracy(sums: Floats) -> Floats:
    return _ratio(np.trace(_square(sums), axis1=-2, axis2=-1), sums.sum(axis=-1))


def _class_f1(sums: Floats) -> tuple[Floats, Floats]:
    """F1 of each class, and how often it was meant or said."""
    square = _square(sums)
    there = square.sum(axis=-1) + square.sum(axis=-2)
    return _ratio(2 * np.diagonal(square, axis1=-2, axis2=-1), there), there


def _f1(sums: Floats) -> Floats:
    return _class_f1(sums)[0][..., 1]


def _macro_f1(sums: Floats) -> Floats:
    found, there = _class_f1(sums)
    return _ratio(found.sum(axis=-1), (there > 0).sum(axis=-1).astype(np.float64))


def _matthews(sums: Floats) -> Floats:
    """The correlation of several classes (Gorodkin 2004); of two it is Matthews' own."""
    square = _square(sums)
    total, right = sums.sum(axis=-1), np.trace(square, axis1=-2, axis2=-1)
    meant, said = square.sum(axis=-1), square.sum(axis=-2)
    spread = (total**2 - (meant**2).sum(axis=-1)) * (total**2 - (said**2).sum(axis=-1))
    return _ratio(right * total - (meant * said).sum(axis=-1), np.sqrt(spread))


def _ratio(above: Floats, below: Floats) -> Floats:
    """A quotient that is 0 where it is undefined."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)
