"""Cells that scatter alike over seeds share a variance, others have their own, and equal cells are rarely told apart."""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from study.config import Budget
from study.fitting.paired import holm, paired_difference
from study.fitting.seed_scatter import Pool, SeedScatter, SeedVariances, pooled_seed_variance, seed_scatter

POOL = Pool(Budget(tokens=1e6), 20)


def cell(*means: float) -> NDArray[np.float64]:
    """A cell whose seeds have these losses on both of its sequences."""
    return np.tile(np.array([means]).T, (1, 2))


def drawn(random: np.random.Generator, deviations: NDArray[np.float64], seeds: int) -> dict[str, NDArray[np.float64]]:
    """Cells of equal loss whose runs scatter by these deviations, over sequences that hardly differ."""
    return {
        str(number): random.normal(4, deviation, (seeds, 1)) + random.normal(0, 1e-4, (seeds, 20))
        for number, deviation in enumerate(deviations)
    }


def told_apart(cells: dict[str, NDArray[np.float64]], variances: SeedVariances) -> bool:
    """Whether any two cells are told apart at 5%, corrected for all pairs."""
    pairs = combinations(cells, 2)
    found = [paired_difference(cells[one], cells[other], (variances[one], variances[other])) for one, other in pairs]
    adjusted = holm([difference.p_value for difference in found])
    return any(p_value is not None and p_value < 0.05 for p_value in adjusted)


def test_seed_variance_is_pooled_over_cells() -> None:
    cells = [cell(1.0, 3.0), cell(0.0, 1.0, 2.0), cell(9.0)]
    found = pooled_seed_variance(cells)
    assert found is not None
    assert asdict(found) == {"variance": (2.0 + 2.0) / 3, "degrees_of_freedom": 3, "cells": 2}


def test_cells_that_scatter_alike_share_a_variance_with_those_of_one_seed() -> None:
    found = seed_scatter(POOL, {"one": cell(1.0, 3.0), "other": cell(0.0, 1.0, 2.0), "single": cell(9.0)})
    assert found.alike
    assert found.variances.keys() == {"one", "other", "single"}
    (shared,) = set(found.variances.values())
    assert asdict(shared) == {"variance": 4 / 3, "degrees_of_freedom": 3, "cells": 2}


def test_cells_that_scatter_unevenly_have_their_own_and_those_of_one_seed_none() -> None:
    found = seed_scatter(POOL, {"loud": cell(3.0, 4.0, 5.0), "quiet": cell(3.0, 3.01, 3.02), "single": cell(9.0)})
    assert not found.alike
    assert found.p_alike is not None
    assert found.p_alike < 0.001
    assert {name: variance.variance for name, variance in found.variances.items()} == pytest.approx({"loud": 1, "quiet": 1e-4})
    assert {variance.degrees_of_freedom for variance in found.variances.values()} == {2}
    assert list(found.deviations) == ["quiet", "loud"]


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
    found = seed_scatter(POOL, cells)
    assert found.alike is alike
    assert (found.p_alike is None) == (len(cells) == 1)
    assert bool(found.variances) == (cells.keys() != {"single"})


EVEN, STEPS, ONE_LOUD = np.full(8, 0.01), np.geomspace(0.01, 0.1, 8), np.array([*np.full(7, 0.01), 0.1])


@pytest.mark.parametrize(
    ("deviations", "seeds", "at_most"),
    [(EVEN, 3, 0.06), (STEPS, 3, 0.10), (ONE_LOUD, 3, 0.12), (EVEN, 2, 0.06), (STEPS, 2, 0.14), (ONE_LOUD, 2, 0.18)],
)
def test_equal_cells_are_told_apart_more_rarely_than_if_they_were_pooled(
    deviations: NDArray[np.float64], seeds: int, at_most: float
) -> None:
    """5% is said; the most is what was measured over many draws, and two errors of 400 draws."""
    random = np.random.default_rng(0)
    wrong = if_pooled = 0
    for _ in range(400):
        cells = drawn(random, deviations, seeds)
        pooled = pooled_seed_variance(cells.values())
        assert pooled is not None
        wrong += told_apart(cells, seed_scatter(POOL, cells).variances)
        if_pooled += told_apart(cells, dict.fromkeys(cells, pooled))
    assert wrong / 400 <= at_most
    assert deviations is EVEN or wrong < if_pooled


def test_equal_variances_of_two_cells_are_two_estimates() -> None:
    """A setting that changes nothing leaves two cells the same losses; their freedoms add up."""
    cells = {"one": cell(3.0, 3.02, 3.04), "twin": cell(3.0, 3.02, 3.04), "loud": cell(3.0, 4.0, 5.0)}
    found = seed_scatter(POOL, cells)
    assert not found.alike
    twins = paired_difference(cells["one"], cells["twin"], (found.variances["one"], found.variances["twin"]))
    assert twins.degrees_of_freedom == pytest.approx(4)


def test_cells_without_any_scatter_have_intervals_without_width() -> None:
    cells = {"one": cell(3.0, 3.0), "other": cell(4.0, 4.0), "loud": cell(3.0, 5.0)}
    variances = seed_scatter(POOL, cells).variances
    found = paired_difference(cells["other"], cells["one"], (variances["other"], variances["one"]))
    assert (found.low_nats, found.high_nats, found.p_value) == (1.0, 1.0, 0.0)


def test_a_scatter_without_a_test_is_alike() -> None:
    assert SeedScatter(POOL, None, {}).alike
