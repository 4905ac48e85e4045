"""How the values of tuned knobs are told apart: the seeds at which they are tried, and what their runs there count for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from statistics import fmean
from typing import Generic, NamedTuple, TypeVar

from study.base.grouping import grouped

ValuesT = TypeVar("ValuesT", bound=Hashable)

_ENOUGH = 3
"""So many values tried at a seed tell of a bracket."""

_UNLEARNED_NATS = 1000.0
"""What a run that did not learn weighs beside ones that did: more than any loss."""


class Tried(NamedTuple, Generic[ValuesT]):
    """What was tried at a seed: its tuned values and its loss, None where it did not learn; `tells` as `rank` has it."""

    seed: float
    values: ValuesT
    loss: float | None
    tells: bool


def trial_seeds(seeds: int) -> int:
    """How many of a cell's seeds its tuned values are tried at: a third, rounded up.

    The more seeds follow, the more surely a choice that missed the best is told from one that did not. Of five cells of equal
    loss at their best rate, whose curves rise by one to four deviations over seeds for a doubling of the rate, two are told
    apart in 4% to 6% of draws of three seeds, 6% to 8% of five and 7% to 11% of twelve where a third of the seeds chose; where
    one did, in 13% to 18% of draws of five and 27% to 41% of twelve.
    """
    return -(-seeds // 3)


def rank(losses: Sequence[float | None]) -> float | None:
    """What values rank by, the lowest first: the mean loss, in nats, of their runs that learned, fewest others first.

    A run that diverged has no loss; one that failed otherwise says nothing of the values and is not among them. None where no
    run learned, or none is told.
    """
    learned = [loss for loss in losses if loss is not None]
    return fmean(learned) + _UNLEARNED_NATS * (len(losses) - len(learned)) if learned else None


def comparable_seeds(tried: Iterable[Tried[ValuesT]], asked: Collection[int] = ()) -> set[float]:
    """The seeds that tell values apart, of those that were tried at each: where three were or more, or as many as at any.

    Those that a sweep has `asked` alone, where any was tried there. At the other seeds the best was repeated, and what was so
    before seeds were added or taken away.
    """
    everywhere: defaultdict[float, set[ValuesT]] = defaultdict(set)
    for one in tried:
        everywhere[one.seed].add(one.values)
    at = {seed: values for seed, values in everywhere.items() if seed in asked} or everywhere
    enough = min(_ENOUGH, max(map(len, at.values()), default=0))
    return {seed for seed, values in at.items() if len(values) >= enough}


def best_values(tried: Sequence[Tried[ValuesT]], asked: Collection[int] = ()) -> ValuesT | None:
    """The values that stand first at the seeds that tell them apart, the first of several; None where none learned there.

    Those of which any run learned come before others, those tried at more of the seeds before those tried at fewer; then the
    rank decides.
    """
    telling = comparable_seeds(tried, asked)
    trials = grouped((one for one in tried if one.seed in telling), lambda one: one.values)

    def place(values: ValuesT) -> tuple[bool, int, float]:
        found = rank([one.loss for one in trials[values] if one.tells])
        return found is None, -len({one.seed for one in trials[values]}), found or 0.0

    best = min(trials, key=place, default=None)
    return None if best is None or place(best)[0] else best
