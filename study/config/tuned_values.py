"""Comparison of tuned values: the seeds that try them, and the ranking of their losses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from statistics import fmean
from typing import Generic, NamedTuple, TypeVar

from study.base.grouping import grouped

ValuesT = TypeVar("ValuesT", bound=Hashable)

_ENOUGH = 3
"""The number of values at one seed that make a bracket."""

_UNLEARNED_NATS = 1000.0
"""The penalty of a run that did not learn: more than any loss."""


class Tried(NamedTuple, Generic[ValuesT]):
    """A trial at a seed: its tuned values, its loss if it learned, and whether `rank` counts it."""

    seed: float
    values: ValuesT
    loss: float | None
    counts: bool


def trial_seeds(seeds: int) -> int:
    """Return the number of a cell's seeds that try tuned values: a third, rounded up.

    With too few, a choice that misses the best makes cells look different. Simulated for five cells of equal loss at their best
    rate, whose curves rise by one to four deviations over seeds per doubling of the rate: two differ significantly in 4% to 6%
    of draws of three seeds, 6% to 8% of five and 7% to 11% of twelve if a third of the seeds choose; if one does, in 13% to 18%
    of five and 27% to 41% of twelve.
    """
    return -(-seeds // 3)


def rank(losses: Sequence[float | None]) -> float | None:
    """Return the rank of values, lowest first: fewest failures to learn, then the mean loss in nats of the runs that learned.

    A diverged run has no loss. None if no run learned.
    """
    learned = [loss for loss in losses if loss is not None]
    return fmean(learned) + _UNLEARNED_NATS * (len(losses) - len(learned)) if learned else None


def comparable_seeds(tried: Iterable[Tried[ValuesT]], requested: Collection[int] = ()) -> set[float]:
    """Return the seeds with enough values to compare: three, or the most at any seed if fewer.

    If the sweep named seeds (`requested`) and any was tried, only those; other seeds repeated only the best values.
    """
    everywhere: defaultdict[float, set[ValuesT]] = defaultdict(set)
    for one in tried:
        everywhere[one.seed].add(one.values)
    considered = {seed: values for seed, values in everywhere.items() if seed in requested} or everywhere
    enough = min(_ENOUGH, max(map(len, considered.values()), default=0))
    return {seed for seed, values in considered.items() if len(values) >= enough}


def best_values(tried: Sequence[Tried[ValuesT]], requested: Collection[int] = ()) -> ValuesT | None:
    """Return the best values at the comparable seeds; None if none learned there.

    Values that learned come first, then those tried at more seeds, then those of lower rank.
    """
    comparable = comparable_seeds(tried, requested)
    trials = grouped((one for one in tried if one.seed in comparable), lambda one: one.values)

    def order(values: ValuesT) -> tuple[bool, int, float]:
        ranked = rank([one.loss for one in trials[values] if one.counts])
        return ranked is None, -len({one.seed for one in trials[values]}), ranked or 0.0

    best = min(trials, key=order, default=None)
    return None if best is None or order(best)[0] else best
