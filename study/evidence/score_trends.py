"""Whether scores rise as the loss falls: a rank correlation with its interval, and the pairs that contradict it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import bisect
from scipy.stats import rankdata

from study.base.grouping import grouped
from study.base.statistics import CONFIDENCE, ScoreNoise
from study.laws.law import Floats

Verdict = Literal["monotone", "rises", "falls", "undecided", "untested"]
"""`monotone`: rises, and no pair contradicts it beyond noise; `rises`: some pairs do; `untested`: no p."""

Shapes = NDArray[np.int64]
"""Each encoder's shape as a number."""

_EXACT = 8
_DRAWS = 10_000
SAME = 1e-12
"""Scores that differ by at most this are equal."""


@dataclass(frozen=True)
class Trend:
    """Spearman's correlation of a score with the falling loss, over n encoders.

    The interval is `rank_interval`'s, None if two encoders share a shape. `p_value`: two-sided chance of so high a correlation
    if all `orders` were equally likely. `reversals`: pairs of rows where the first has the lower loss and, beyond noise
    (Bonferroni's 5% over all pairs), the lower score. `p_value_holm` is adjusted for other tasks, if any. Interval and p are
    None for dependent encoders.
    """

    n: int
    correlation: float
    low: float | None
    high: float | None
    p_value: float | None
    reversals: tuple[tuple[int, int], ...]
    p_value_holm: float | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict at 95%: permutations and interval, if any, must agree."""
        if self.p_value is None:
            return "untested"
        p_value = self.p_value if self.p_value_holm is None else self.p_value_holm
        spans_zero = self.low is not None and self.high is not None and self.low <= 0 <= self.high
        if p_value >= 1 - CONFIDENCE or spans_zero:
            return "undecided"
        if self.correlation < 0:
            return "falls"
        return "rises" if self.reversals else "monotone"

    @property
    def untested(self) -> Trend:
        """The same trend without p or interval."""
        return replace(self, low=None, high=None, p_value=None)


def trend(loss: Floats, score: Floats, noises: Sequence[ScoreNoise], shapes: Shapes) -> Trend | None:
    """Return the trend of scores over losses.

    None for fewer than three encoders or constant values.
    """
    if len(score) < 3 or np.ptp(score) == 0 or np.ptp(loss) == 0:
        return None
    correlation = rank_correlation(loss, score)
    all_differ = len(np.unique(shapes)) == len(shapes)
    low, high = rank_interval(correlation, len(score)) if all_differ else (None, None)
    return Trend(len(score), correlation, low, high, p_value_of(loss, score, shapes), _reversals(loss, score, noises))


@lru_cache(maxsize=256)
def rank_interval(correlation: float, n: int) -> tuple[float, float]:
    """Return the 95% interval of the population's Spearman correlation, from a sample correlation over n.

    Holds the correlations of a bivariate normal, ρ = 6/π · arcsin(r/2) for Pearson's r, under which values as high and as low
    as the sample's each have a chance of at least 2.5%, by simulation with fixed draws. The bootstrap fails for few points:
    five in perfect order stay so in every resample.

    Source: intervals that invert a test, Cox and Hinkley 1974, chapter 7; the ρ of a normal, Pearson 1907.
    """
    first, second = np.random.default_rng(n).standard_normal((2, _DRAWS, n))
    ranks = _midranks(first)
    tail = (1 - CONFIDENCE) / 2

    def low_end(observed: float) -> float:
        def excess(r: float) -> float:
            drawn = _correlation(ranks, _midranks(r * first + np.sqrt(1 - r * r) * second))
            return float(np.mean(drawn >= observed - 1e-9)) - tail

        return -1.0 if excess(-1.0) >= 0 else 6 / np.pi * float(np.arcsin(bisect(excess, -1.0, 1.0, xtol=1e-4) / 2))

    return low_end(correlation), -low_end(-correlation)


def rank_correlation(loss: Floats, score: Floats) -> float:
    """Return Spearman's correlation of a score with the falling loss; NaN if either is constant."""
    return float(_spearman(-loss[None], score[None])[0])


def _spearman(first: Floats, second: Floats) -> Floats:
    """Row-wise; NaN if a row is constant."""
    return _correlation(_midranks(first), _midranks(second))


def _midranks(values: Floats) -> Floats:
    ranks = rankdata(values, axis=1)
    return np.asarray(ranks - ranks.mean(axis=1, keepdims=True))


def _correlation(a: Floats, b: Floats) -> Floats:
    """Row-wise, of centred values; NaN if a row is constant."""
    spread = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return np.asarray(np.divide((a * b).sum(axis=1), spread, out=np.full(len(a), np.nan), where=spread > 0))


def p_value_of(loss: Floats, score: Floats, shapes: Shapes) -> float:
    """Two-sided chance of so high a correlation if all `orders` were equally likely."""
    chosen = orders(shapes)
    permuted = np.abs(_spearman(np.tile(-loss, (len(chosen), 1)), score[chosen]))
    return float(np.mean(permuted >= abs(_spearman(-loss[None], score[None])[0]) - 1e-12))


def orders(shapes: Shapes) -> NDArray[np.int64]:
    """Permutations of encoders that keep those of one shape together: all for up to 8, else fixed random ones.

    Encoders of one shape, at several budgets say, share its luck: shapes with equally many encoders swap as wholes, and
    encoders swap within their shape. For scores independent of the loss, if luck varies equally between and within shapes, free
    permutations give p < 0.05 in 13% to 19% of draws (three to six shapes at three or four budgets), up to 28% if twice as
    widely between; these 3% to 6%.

    Source: Winkler et al. 2015, Multi-level block permutation, NeuroImage 123, 253-268.
    """
    count = len(shapes)
    if count <= _EXACT:
        same_shape = np.equal.outer(shapes, shapes)
        every = np.array([*permutations(range(count))], dtype=np.int64)
        return np.compress((same_shape[every[:, :, None], every[:, None]] == same_shape).all(axis=(1, 2)), every, axis=0)
    drawn, random = np.empty((_DRAWS, count), dtype=np.int64), np.random.default_rng(0)
    of_shapes = grouped(range(count), lambda encoder: shapes[encoder]).values()
    for of_one_length in map(np.array, grouped(of_shapes, len).values()):
        shuffled = random.permuted(np.tile(np.arange(len(of_one_length)), (_DRAWS, 1)), axis=1)
        drawn[:, of_one_length.ravel()] = random.permuted(of_one_length[shuffled], axis=2).reshape(_DRAWS, -1)
    return np.vstack([np.arange(count), drawn])


def _reversals(loss: Floats, score: Floats, noises: Sequence[ScoreNoise]) -> tuple[tuple[int, int], ...]:
    pairs = [(one, two) for one in range(len(loss)) for two in range(len(loss)) if loss[one] < loss[two]]

    def beyond_noise(one: int, two: int) -> bool:
        fall = float(score[two] - score[one])
        chance = noises[one].of_difference(noises[two]).chance_beyond(fall)
        return fall > SAME and chance < (1 - CONFIDENCE) / len(pairs)

    return tuple(pair for pair in pairs if beyond_noise(*pair))
