"""The noise of a mean score: Student's over seeds alone, normal over examples alone, and intervals that cover what they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from study.base.behrens_fisher import half_interval, satterthwaite
from study.base.pooling import pooled_variance
from study.base.score_noise import UNKNOWN, ScoreNoise, noise_of_mean, noise_of_seeds


def test_the_interval_is_students_over_seeds_and_normal_over_examples() -> None:
    assert noise_of_seeds(*pooled_variance([[0.4, 0.6]]), 2, error_over_examples=0.0).half == pytest.approx(1.2706, abs=1e-4)
    values = [0.2, 0.5, 0.6]
    theirs = stats.ttest_1samp(values, 0).confidence_interval()
    half = noise_of_seeds(*pooled_variance([values]), 3, error_over_examples=0.0).half
    assert 2 * half == pytest.approx(theirs.high - theirs.low)
    assert noise_of_seeds(9.0, 0, 1, error_over_examples=0.1).half == pytest.approx(0.196, abs=1e-4), "of examples alone"
    assert np.isnan(UNKNOWN.half)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(("of_seeds", "of_examples"), [(0.02, 0.0), (0.01, 0.02), (0.02, 0.005), (0.015, 0.01)])
def test_the_interval_covers_the_score_of_new_seeds_and_examples(seeds: int, of_seeds: float, of_examples: float) -> None:
    random, draws = np.random.default_rng(0), 1000
    scores = random.normal(0, of_examples, (draws, 1)) + random.normal(0, of_seeds, (draws, seeds))
    halves = [noise_of_seeds(*pooled_variance([found]), seeds, of_examples).half for found in scores.tolist()]
    assert 0.935 <= np.mean(np.abs(scores.mean(axis=1)) <= halves) <= 0.995


def test_a_mean_over_tasks_of_seeds_of_their_own_has_the_variances_of_independent_scores() -> None:
    parts = [ScoreNoise(0.04, 12, 0.01), ScoreNoise(0.01, 3, 0.02), ScoreNoise(0.0, np.inf, 0.03)]
    found = noise_of_mean(parts)
    assert found.error == pytest.approx((0.11 / 9) ** 0.5)
    assert found.freedom == pytest.approx(satterthwaite((0.04, 0.01), (12, 3)))
    assert found.half == pytest.approx(half_interval(0.95, (0.05 / 9, 0.06 / 9), (found.freedom, np.inf)))


def test_a_difference_has_the_noise_of_both_and_the_fewer_freedom() -> None:
    found = ScoreNoise(0.04, 12, 0.01).of_difference(ScoreNoise(0.02, 4, 0.03))
    assert found.error == pytest.approx(0.1**0.5)
    assert found.freedom == 4
    assert ScoreNoise(0.04, 4, 0.0).chance_beyond(0.3) == pytest.approx(2 * stats.t.sf(1.5, 4), rel=1e-5)
    assert ScoreNoise(0.04, 4, 0.01).over(0.5).error == pytest.approx(0.05**0.5 / 0.5)
