"""Variances, and the sum of two Student's variables: Student's own where one is all, the paper's table, and draws of both."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from study.base.statistics import (
    UNKNOWN,
    ScoreNoise,
    chance_beyond,
    half_interval,
    noise_of_mean,
    noise_of_seeds,
    pooled_variance,
    satterthwaite,
    variance_of_mean,
)


def test_the_variance_within_is_one_for_all_groups() -> None:
    """Squares by degrees of freedom: 2 by 1, 6 by 2, and a group of one, which says nothing."""
    assert pooled_variance([[1.0, 3.0], [5.0], [2.0, 2.0, 5.0]]) == pytest.approx(((2 + 6) / 3, 3))
    assert pooled_variance([[1.0], [2.0]]) == (0.0, 0)
    alike = np.random.default_rng(0).normal(size=(5, 4))
    assert pooled_variance(list(alike)) == pytest.approx((alike.var(axis=1, ddof=1).mean(), 15))


def test_the_variance_of_a_mean_over_clusters_is_that_of_the_sandwich() -> None:
    """(X'X)⁻¹·Σ_g X_g'u_g·u_g'X_g·(X'X)⁻¹·G/(G − 1) of a regression on a constant, and s²/n where each unit is a cluster."""
    random = np.random.default_rng(0)
    values, clusters = random.normal(size=40), random.integers(100, 109, 40)
    ones, residuals = np.ones((40, 1)), values - values.mean()
    scores = [ones[clusters == cluster].T @ residuals[clusters == cluster] for cluster in np.unique(clusters)]
    bread, count = np.linalg.inv(ones.T @ ones), len(scores)
    sandwich = bread @ sum(np.outer(score, score) for score in scores) @ bread * count / (count - 1)
    assert variance_of_mean(values, clusters) == pytest.approx(float(sandwich[0, 0]))
    assert variance_of_mean(values, random.permutation(40)) == pytest.approx(variance_of_mean(values))
    assert variance_of_mean(values) == pytest.approx(stats.sem(values) ** 2)


@pytest.mark.parametrize("freedom", [1, 2, 3.7, 12, 60, 1023, np.inf])
def test_of_one_source_it_is_students(freedom: float) -> None:
    for size in (0.1, 1.0, 2.5, 4.0):
        expected = 2 * stats.t.sf(size, freedom)
        assert chance_beyond(2 * size, (4.0, 0.0), (freedom, 3)) == pytest.approx(expected, rel=1e-5)
        assert chance_beyond(2 * size, (0.0, 4.0), (3, freedom)) == pytest.approx(expected, rel=1e-5)
    assert half_interval(0.95, (4.0, 0.0), (freedom, 3)) == pytest.approx(2 * stats.t.isf(0.025, freedom), rel=1e-6)


@pytest.mark.parametrize(("freedoms", "share", "point"), [((6, 6), 0.5, 2.435), ((6, 12), 0.5, 2.301), ((8, 8), 0.5, 2.292)])
def test_it_meets_the_table_of_sukhatme(freedoms: tuple[int, int], share: float, point: float) -> None:
    """Fisher and Yates, Statistical tables, table VI: 5% points at equal errors (45 degrees), whose last digit is uncertain."""
    assert half_interval(0.95, (share, 1 - share), freedoms) == pytest.approx(point, abs=1e-3)


@pytest.mark.parametrize(("variances", "freedoms"), [((1.0, 0.2), (4, 1023)), ((0.3, 1.0), (2, 2)), ((1.0, 1.0), (1, 40))])
def test_it_is_what_draws_are(variances: tuple[float, float], freedoms: tuple[float, float]) -> None:
    random = np.random.default_rng(0)
    first, second = (
        random.standard_t(freedom, 400_000) * variance**0.5 for freedom, variance in zip(freedoms, variances, strict=True)
    )
    for size in (0.5, 2.0, 6.0):
        drawn = float(np.mean(np.abs(first + second) > size))
        assert chance_beyond(size, variances, freedoms) == pytest.approx(drawn, rel=0.05)


def test_few_seeds_that_happen_to_agree_decide_nothing_on_their_own() -> None:
    """Of three equal runs on either side one difference at p < 0.0025 is rarer than said, where Satterthwaite's is not."""
    random = np.random.default_rng(0)
    draws, over_sequences = 40_000, 0.005**2
    cells = random.normal(0, 0.015, (2, draws, 3))
    differences = cells[0].mean(-1) - cells[1].mean(-1) + random.normal(0, 0.005, draws)
    each = cells.var(-1, ddof=1) / 3
    over_seeds = each.sum(0)
    freedoms = over_seeds**2 / (each**2 / 2).sum(0)
    joint = (over_sequences + over_seeds) ** 2 / (over_sequences**2 / 1023 + over_seeds**2 / freedoms)
    welch = 2 * stats.t.sf(np.abs(differences) / np.sqrt(over_sequences + over_seeds), joint)
    near = np.flatnonzero(welch < 0.02)  # no other is nearly as rare
    ours = [
        chance_beyond(abs(differences[one]), (over_sequences, over_seeds[one]), (1023, round(float(freedoms[one]), 1)))
        for one in near
    ]
    assert (welch < 0.0025).mean() > 0.0045
    assert np.mean(np.array(ours) < 0.0025) * len(near) / draws < 0.002


def test_the_freedom_of_a_sum_lies_between_the_fewest_and_all() -> None:
    assert satterthwaite((0.0, 0.0), (5, 2)) == 2
    assert satterthwaite((0.3, 0.0), (5, 2)) == pytest.approx(5)
    assert satterthwaite((0.2, 0.2), (4, 4)) == pytest.approx(8)
    assert satterthwaite((0.3, 0.3), (4, np.inf)) == pytest.approx(16)


def test_without_noise_any_difference_is_significant_and_none_is_not() -> None:
    still = (0.0, 0.0)
    assert (chance_beyond(1e-9, still, (2, 2)), chance_beyond(0.0, still, (2, 2))) == (0.0, 1.0)
    assert half_interval(0.95, still, (2, 2)) == 0.0


def test_where_there_is_noise_no_chance_is_nothing() -> None:
    assert chance_beyond(1e3, (1.0, 1.0), (100, 100)) == 1e-12


def test_the_interval_is_students_over_seeds_and_normal_over_examples() -> None:
    assert noise_of_seeds(*pooled_variance([[0.4, 0.6]]), 2, error_over_examples=0.0).half == pytest.approx(1.2706, abs=1e-4)
    values = [0.2, 0.5, 0.6]
    theirs = stats.ttest_1samp(values, 0).confidence_interval()
    half = noise_of_seeds(*pooled_variance([values]), 3, error_over_examples=0.0).half
    assert 2 * half == pytest.approx(theirs.high - theirs.low)
    assert noise_of_seeds(9.0, 0, 1, error_over_examples=0.1).half == pytest.approx(0.196, abs=1e-4), "of examples alone"
    assert np.isnan(UNKNOWN.half)


@pytest.mark.parametrize("seeds", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("of_seeds", "of_examples"), [(0.02, 0.0), (0.01, 0.02), (0.02, 0.005), (0.015, 0.01)])
def test_the_interval_covers_the_score_of_new_seeds_and_examples(seeds: int, of_seeds: float, of_examples: float) -> None:
    random, draws = np.random.default_rng(0), 1000
    scores = random.normal(0, of_examples, (draws, 1)) + random.normal(0, of_seeds, (draws, seeds))
    halves = [noise_of_seeds(*pooled_variance([actual]), seeds, of_examples).half for actual in scores.tolist()]
    assert 0.935 <= np.mean(np.abs(scores.mean(axis=1)) <= halves) <= 0.995


def test_a_mean_over_tasks_of_seeds_of_their_own_has_the_variances_of_independent_scores() -> None:
    parts = [ScoreNoise(0.04, 12, 0.01), ScoreNoise(0.01, 3, 0.02), ScoreNoise(0.0, np.inf, 0.03)]
    noise = noise_of_mean(parts)
    assert noise.error == pytest.approx((0.11 / 9) ** 0.5)
    assert noise.freedom == pytest.approx(satterthwaite((0.04, 0.01), (12, 3)))
    assert noise.half == pytest.approx(half_interval(0.95, (0.05 / 9, 0.06 / 9), (noise.freedom, np.inf)))


def test_a_difference_has_the_noise_of_both_and_the_fewer_freedom() -> None:
    noise = ScoreNoise(0.04, 12, 0.01).of_difference(ScoreNoise(0.02, 4, 0.03))
    assert noise.error == pytest.approx(0.1**0.5)
    assert noise.freedom == 4
    assert ScoreNoise(0.04, 4, 0.0).chance_beyond(0.3) == pytest.approx(2 * stats.t.sf(1.5, 4), rel=1e-5)
    assert ScoreNoise(0.04, 4, 0.01).over(0.5).error == pytest.approx(0.05**0.5 / 0.5)
