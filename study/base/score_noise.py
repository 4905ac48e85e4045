"""The noise of a mean downstream score: that between seeds, and that over the examples which all seeds share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from study.base.behrens_fisher import CONFIDENCE, chance_beyond, half_interval, satterthwaite


@dataclass(frozen=True)
class ScoreNoise:
    """The variances of a mean score: over seeds, estimated with `freedom` degrees of freedom, and over examples.

    The two are added as study.base.behrens_fisher adds them. The examples being many, their variance is taken as known.
    """

    over_seeds: float
    freedom: float
    over_examples: float

    @property
    def error(self) -> float:
        """The standard error."""
        return math.sqrt(self.over_seeds + self.over_examples)

    @property
    def half(self) -> float:
        """Half of the 95% interval; not a number where the noise is not known."""
        return math.nan if math.isnan(self.error) else half_interval(CONFIDENCE, *self._sources)

    def chance_beyond(self, size: float) -> float:
        """The chance of an error of more than `size`, either way."""
        return chance_beyond(size, *self._sources)

    def of_difference(self, other: ScoreNoise) -> ScoreNoise:
        """The noise of this score minus another of other seeds, whose variance may be the same estimate."""
        of_both = (self.over_seeds + other.over_seeds, self.over_examples + other.over_examples)
        return ScoreNoise(of_both[0], min(self.freedom, other.freedom), of_both[1])

    def over(self, width: float) -> ScoreNoise:
        """The noise of the score ÷ `width`."""
        return ScoreNoise(self.over_seeds / width**2, self.freedom, self.over_examples / width**2)

    @property
    def _sources(self) -> tuple[tuple[float, float], tuple[float, float]]:
        return (self.over_seeds, self.over_examples), (self.freedom, math.inf)


UNKNOWN = ScoreNoise(math.nan, math.nan, math.nan)
"""The noise of a score that nobody measured."""


def noise_of_seeds(variance: float, freedom: int, seeds: int, error_over_examples: float) -> ScoreNoise:
    """The noise of a mean over seeds: variance ÷ seeds, and error_over_examples².

    `variance` between seeds has `freedom` degrees of freedom, 0 where it is not known; `error_over_examples` is the standard
    error of one score over the examples.
    """
    over_examples = error_over_examples**2
    return ScoreNoise(variance / seeds, freedom, over_examples) if freedom else ScoreNoise(0.0, math.inf, over_examples)


def noise_of_mean(parts: Sequence[ScoreNoise]) -> ScoreNoise:
    """The noise of a mean of independent scores, one a task; the variances over seeds have Satterthwaite's freedom.

    Runs of pre-training are no such seeds: what one has learned is in its scores on all tasks.
    """
    over_seeds, freedoms = [part.over_seeds for part in parts], [part.freedom for part in parts]
    over_examples = sum(part.over_examples for part in parts)
    return ScoreNoise(sum(over_seeds), satterthwaite(over_seeds, freedoms), over_examples).over(len(parts))
