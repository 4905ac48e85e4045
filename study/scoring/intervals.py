"""How sure a score is, from the examples that it was measured on: the bootstrap over examples.

A metric is a function of a sum over examples (study.scoring.task_metrics), so a resample is a weighted sum, and thousands of
them are one matrix product. Letters: N examples, P parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from study.scoring.task_metrics import Floats, parts_of
from study.tasks.examples import TaskData
from study.tasks.task_spec import Metric

_CHUNK = 64


@dataclass(frozen=True)
class Interval:
    """The middle 95% of a metric over resamples of the examples, and their standard deviation."""

    low: float
    high: float
    standard_error: float


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
