"""Whether a score rises as the loss falls: a rank correlation with its interval, and the pairs of encoders against it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np
from scipy.stats import norm, rankdata

from study.fitting.laws import Floats
from study.fitting.paired import CONFIDENCE

Verdict = Literal["monotone", "rises", "falls", "undecided"]
"""`monotone`: it rises and no pair of encoders goes the other way beyond noise; `rises`: some do."""

_EXACT = 8
_DRAWS = 2000


@dataclass(frozen=True)
class Trend:
    """Spearman's correlation of a score with the falling loss, over n encoders.

    The interval holds the middle 95% over resamples of the encoders. `p_value` is the chance of so high a correlation in
    either direction if all orders were alike. `reversals` are pairs of rows, the first with the lower loss and, beyond noise
    (Bonferroni, 5% over all pairs), with the lower score.
    """

    n: int
    correlation: float
    low: float
    high: float
    p_value: float
    reversals: tuple[tuple[int, int], ...]

    @property
    def verdict(self) -> Verdict:
        """What can be said at 95%: both the interval and the permutations must agree."""
        if self.p_value >= 1 - CONFIDENCE or self.low <= 0 <= self.high:
            return "undecided"
        if self.correlation < 0:
            return "falls"
        return "rises" if self.reversals else "monotone"


def trend(loss: Floats, score: Floats, error: Floats, seed: int = 0) -> Trend | None:
    """The trend of scores, with their standard errors, over losses; None for fewer than three encoders or scores all alike."""
    if len(score) < 3 or np.ptp(score) == 0 or np.ptp(loss) == 0:
        return None
    correlation = float(_spearman(-loss[None], score[None])[0])
    random = np.random.default_rng(seed)
    chosen = random.integers(len(score), size=(_DRAWS, len(score)))
    found = _spearman(-loss[chosen], score[chosen])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(found, [tail, 1 - tail])
    reversals = _reversals(loss, score, np.nan_to_num(error))
    return Trend(len(score), correlation, float(low), float(high), _p_value(loss, score, random), reversals)


def _spearman(first: Floats, second: Floats) -> Floats:
    """The correlation of midranks, row by row; not a number where all of a row is one value."""
    a, b = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (rankdata(first, axis=1), rankdata(second, axis=1)))
    spread = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.asarray(np.divide((a * b).sum(axis=1), spread, out=np.full(len(a), np.nan), where=spread > 0))


def _p_value(loss: Floats, score: Floats, random: np.random.Generator) -> float:
    """Two-sided, over all orders of up to 8 encoders, else over random ones."""
    count = len(score)
    orders = (
        np.array(list(permutations(range(count))))
        if count <= _EXACT
        else np.vstack([np.arange(count), random.permuted(np.tile(np.arange(count), (_DRAWS * 5, 1)), axis=1)])
    )
    found = np.abs(_spearman(np.tile(-loss, (len(orders), 1)), score[orders]))
    return float(np.mean(found >= abs(_spearman(-loss[None], score[None])[0]) - 1e-12))


def _reversals(loss: Floats, score: Floats, noise: Floats) -> tuple[tuple[int, int], ...]:
    pairs = [(one, two) for one in range(len(loss)) for two in range(len(loss)) if loss[one] < loss[two]]
    beyond = norm.ppf(1 - (1 - CONFIDENCE) / max(1, len(pairs)))
    return tuple(
        (one, two) for one, two in pairs if score[two] - score[one] > max(beyond * np.hypot(noise[one], noise[two]), 1e-12)
    )
