"""Loss spikes: training losses far above those just before."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

DEVIATIONS = 7.0
"""How many standard deviations above the mean of the rows before it a row's loss is a spike."""

ROWS_BEFORE = 10
"""So many rows before a row say what was to be expected of it.

A run logs some fifty, each the mean of many steps. Over all rows so far, or the last fifty, the fall of the loss at the start
hides every spike; over ten, it hides those of the first rows, and 3 of the 784 reference runs have one.
"""


def loss_spikes(losses: Sequence[float]) -> int:
    """How many of the logged training losses are spikes.

    Source: the spike score of OLMo 2 (Team OLMo 2024, arXiv:2501.00656), which counts the values seven deviations or more away
    from the average of the last 1,000 steps.
    """
    return sum(_is_spike(loss, losses[row - ROWS_BEFORE : row]) for row, loss in enumerate(losses) if row >= ROWS_BEFORE)


def _is_spike(loss: float, before: Sequence[float]) -> bool:
    return loss > fmean(before) + DEVIATIONS * stdev(before)
