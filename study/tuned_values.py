"""How the values of tuned knobs are told apart: the seeds at which they are tried, and what their runs there count for."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

_UNLEARNED_NATS = 1000.0
"""What a run that did not learn weighs beside ones that did: more than any loss."""


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

    A run that diverged or stayed at the unigram entropy has no loss; one that failed otherwise says nothing of the values and
    is not among them. None where no run learned, or none is told.
    """
    learned = [loss for loss in losses if loss is not None]
    return fmean(learned) + _UNLEARNED_NATS * (len(losses) - len(learned)) if learned else None
