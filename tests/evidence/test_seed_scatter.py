"""Cells that scatter alike over seeds share a variance, others have their own, and equal cells rarely differ significantly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from study.base.statistics import chance_beyond
from study.config.recipe import Budget
from study.evidence.paired import holm, paired_difference, variances_of_sum
from study.evidence.seed_scatter import (
    PooledCells,
    SeedScatter,
    SeedVariance,
    SeedVariances,
    pooled_seed_variance,
    seed_scatter,
)

POOL = PooledCells(Budget(tokens=1e6), 20, "same")


def cell(*means: float) -> NDArray[np.float64]:
    """A cell whose seeds have these losses on both of its sequences."""
    return np.tile(np.array([means]).T, (1, 2))


def drawn(
    random: np.random.Generator, deviations: NDArray[np.float64], seeds: int, error: float
) -> dict[str, NDArray[np.float64]]:
    """Cells of equal loss whose runs scatter by these deviations; `error` is that of a difference over the sequences."""
    return {
        str(number): random.normal(4, deviation, (seeds, 1)) + random.normal(0, error * 10**0.5, (1, 20))
        for number, deviation in enumerate(deviations)
    }


def any_pair_decided(cells: dict[str, NDArray[np.float64]], variances: SeedVariances) -> bool:
    """Whether any two cells differ at 5%, corrected for all pairs."""
    pairs = combinations(cells, 2)
    adjusted = holm([p_value(cells[one], cells[other], (variances[one], variances[other])) for one, other in pairs])
    return any(adjusted_p is not None and adjusted_p < 0.05 for adjusted_p in adjusted)


def p_value(first: NDArray[np.float64], second: NDArray[np.float64], seeds: Sequence[SeedVariance]) -> float:
    """That of paired_difference, without its interval, which takes ten times as long."""
    differences = first.mean(axis=0) - second.mean(axis=0)
    noise = variances_of_sum(differences, np.array([1.0, -1.0]), (len(first), len(second)), seeds)
    return chance_beyond(abs(differences.mean()), *noise)


def test_what_was_not_trained_scatters_over_no_seeds() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(4, 1, (2, 1, 50))
    variances = seed_scatter(PooledCells(Budget(steps=0), 0, "same"), {"first": first, "second": second}).variances
    difference = paired_difference(first, second, [variances["first"], variances["second"]])
    usual = stats.ttest_rel(first[0], second[0])
    assert (difference.low_nats, difference.high_nats) == pytest.approx(tuple(usual.confidence_interval(0.95)), rel=1e-5)
    assert difference.p_value == pytest.approx(usual.pvalue, rel=1e-5)
    assert (difference.standard_error_seeds_nats, difference.degrees_of_freedom) == (0, None)


def test_seed_variance_is_pooled_over_cells() -> None:
    cells = [cell(1.0, 3.0), cell(0.0, 1.0, 2.0), cell(9.0)]
    noise = pooled_seed_variance(cells)
    assert noise is not None
    assert asdict(noise) == {"variance": (2.0 + 2.0) / 3, "degrees_of_freedom": 3, "cells": 2}
    skewed = pooled_seed_variance([cell(0.0, 0.0, 3.0)])
    assert skewed is not None
    assert skewed.variance == pytest.approx(np.var([0, 0, 3], ddof=1))


def test_cells_that_scatter_alike_share_a_variance_with_those_of_one_seed() -> None:
    scatter = seed_scatter(POOL, {"one": cell(1.0, 3.0), "other": cell(0.0, 1.0, 2.0), "single": cell(9.0)})
    assert scatter.alike
    assert scatter.variances.keys() == {"one", "other", "single"}
    (shared,) = set(scatter.variances.values())
    assert asdict(shared) == {"variance": 4 / 3, "degrees_of_freedom": 3, "cells": 2}


def test_cells_that_scatter_unevenly_have_their_own_and_those_of_one_seed_none() -> None:
    scatter = seed_scatter(POOL, {"loud": cell(3.0, 4.0, 5.0), "quiet": cell(3.0, 3.01, 3.02), "single": cell(9.0)})
    assert not scatter.alike
    assert scatter.p_alike is not None
    assert scatter.p_alike < 0.001
    assert {name: variance.variance for name, variance in scatter.variances.items()} == pytest.approx(
        {"loud": 1, "quiet": 1e-4}
    )
    assert {variance.degrees_of_freedom for variance in scatter.variances.values()} == {2}
    assert list(scatter.deviations) == ["quiet", "loud"]
    assert scatter.deviations == pytest.approx({"loud": 1, "quiet": 0.01})


@pytest.mark.parametrize(
    ("cells", "alike"),
    [
        ({"still": cell(3.0, 3.0), "other": cell(4.0, 4.0)}, True),
        ({"still": cell(3.0, 3.0), "other": cell(4.0, 4.1)}, False),
        ({"only": cell(3.0, 3.1)}, True),
        ({"single": cell(3.0)}, True),
    ],
)
def test_cells_that_do_not_scatter_and_cells_alone(cells: dict[str, NDArray[np.float64]], alike: bool) -> None:
    scatter = seed_scatter(POOL, cells)
    assert scatter.alike is alike
    assert (scatter.p_alike is None) == (len(cells) == 1)
    assert bool(scatter.variances) == (cells.keys() != {"single"})


@pytest.mark.parametrize(("wider", "alike"), [(2.0, True), (3.0, False), (4.0, False)])
def test_cells_are_alike_where_bartletts_p_value_is_above_a_quarter(wider: float, alike: bool) -> None:
    """Of variances 1 and w², two degrees each, M = 4·ln((1 + w²)/2) − 4·ln w, over 1.25, is χ² of one degree."""
    scatter = seed_scatter(POOL, {"one": cell(3.0, 4.0, 5.0), "wider": cell(3 - wider, 3.0, 3 + wider)})
    statistic = (4 * np.log((1 + wider**2) / 2) - 4 * np.log(wider)) / 1.25
    assert scatter.p_alike == pytest.approx(stats.chi2.sf(statistic, 1))
    assert scatter.p_alike is not None
    assert scatter.p_alike > 0.05
    assert scatter.alike is alike


EVEN, STEPS, ONE_LOUD = np.full(8, 0.01), np.geomspace(0.01, 0.1, 8), np.array([*np.full(7, 0.01), 0.1])


DRAWN = [(EVEN, 3, 0.06), (STEPS, 3, 0.10), (ONE_LOUD, 3, 0.12), (EVEN, 2, 0.06), (STEPS, 2, 0.14), (ONE_LOUD, 2, 0.20)]


@pytest.mark.parametrize(
    ("deviations", "seeds", "at_most", "error"),
    [
        (EVEN, 3, 0.06, 1e-4),
        pytest.param(ONE_LOUD, 2, 0.20, 0.005, marks=pytest.mark.slow),
        *(pytest.param(*drawn, error, marks=pytest.mark.slow) for drawn in DRAWN[1:-1] for error in (1e-4, 0.005)),
        pytest.param(EVEN, 3, 0.06, 0.005, marks=pytest.mark.slow),
        pytest.param(ONE_LOUD, 2, 0.20, 1e-4, marks=pytest.mark.slow),
    ],
)
def test_equal_cells_rarely_differ_significantly(
    deviations: NDArray[np.float64], seeds: int, at_most: float, error: float
) -> None:
    """5% is said; the most is what was measured over many draws, and two errors of 200 draws."""
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        cells = drawn(random, deviations, seeds, error)
        wrong += any_pair_decided(cells, seed_scatter(POOL, cells).variances)
    assert wrong / 200 <= at_most


@pytest.mark.parametrize("deviations", [pytest.param(STEPS, marks=pytest.mark.slow), ONE_LOUD])
def test_one_variance_for_cells_that_scatter_unevenly_would_decide_more_of_them(deviations: NDArray[np.float64]) -> None:
    random = np.random.default_rng(0)
    wrong = if_pooled = 0
    for _ in range(50):
        cells = drawn(random, deviations, 3, 1e-4)
        pooled = pooled_seed_variance(cells.values())
        assert pooled is not None
        wrong += any_pair_decided(cells, seed_scatter(POOL, cells).variances)
        if_pooled += any_pair_decided(cells, dict.fromkeys(cells, pooled))
    assert wrong < if_pooled


def test_the_variance_between_budgets_is_none_below_the_middle_one() -> None:
    """Own variances 0.0001, 0.01 and 1 of two degrees each, whose median is 2·ln 2 for a variance of 1."""
    uneven = seed_scatter(POOL, {name: cell(4 - away, 4, 4 + away) for name, away in (("a", 0.01), ("b", 0.1), ("c", 1.0))})
    actual = {name: variance.variance for name, variance in uneven.beside_other_budgets.items()}
    assert actual == pytest.approx({"a": 0.01 / np.log(2), "b": 0.01 / np.log(2), "c": 1.0})
    assert len(set(uneven.beside_other_budgets.values())) == 3
    alike = seed_scatter(POOL, {"one": cell(1.0, 3.0), "other": cell(0.0, 2.1)})
    assert alike.beside_other_budgets is alike.variances


@pytest.mark.slow
def test_equal_losses_at_budgets_of_unlike_scatter_rarely_differ_significantly() -> None:
    """Eight cells at a budget whose seeds scatter ten times as widely as at the other, alike within each."""
    random, wrong, by_their_own = np.random.default_rng(0), 0, 0
    for _ in range(300):
        budgets = [drawn(random, np.full(8, deviation), 3, 1e-4) for deviation in (0.01, 0.1)]
        scatters = [seed_scatter(POOL, cells) for cells in budgets]
        wrong += any_step_decided(budgets, [scatter.beside_other_budgets for scatter in scatters])
        by_their_own += any_step_decided(budgets, [scatter.variances for scatter in scatters])
    assert wrong / 300 <= 0.07
    assert by_their_own / 300 > 0.09


def any_step_decided(budgets: Sequence[dict[str, NDArray[np.float64]]], variances: Sequence[SeedVariances]) -> bool:
    """Whether any cell differs from itself at the other budget at 5%, corrected for all of them."""
    pairs = [p_value(budgets[0][name], budgets[1][name], [of_budget[name] for of_budget in variances]) for name in budgets[0]]
    return any(adjusted is not None and adjusted < 0.05 for adjusted in holm(pairs))


def test_equal_variances_of_two_cells_are_two_estimates() -> None:
    """A setting that changes nothing leaves two cells the same losses; their freedoms add up."""
    cells = {"one": cell(3.0, 3.02, 3.04), "twin": cell(3.0, 3.02, 3.04), "loud": cell(3.0, 4.0, 5.0)}
    scatter = seed_scatter(POOL, cells)
    assert not scatter.alike
    twins = paired_difference(cells["one"], cells["twin"], (scatter.variances["one"], scatter.variances["twin"]))
    assert twins.degrees_of_freedom == pytest.approx(4)


def test_cells_without_any_scatter_have_intervals_without_width() -> None:
    cells = {"one": cell(3.0, 3.0), "other": cell(4.0, 4.0), "loud": cell(3.0, 5.0)}
    variances = seed_scatter(POOL, cells).variances
    difference = paired_difference(cells["other"], cells["one"], (variances["other"], variances["one"]))
    assert (difference.low_nats, difference.high_nats, difference.p_value) == (1.0, 1.0, 0.0)


def test_a_scatter_without_a_test_is_alike() -> None:
    assert SeedScatter(POOL, None, {}).alike
