"""Cells that scatter alike over seeds share a variance, others have their own, and equal cells are rarely told apart."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from study.config import Budget
from study.fitting.paired import holm, paired_difference
from study.fitting.seed_scatter import Pool, SeedScatter, SeedVariance, SeedVariances, pooled_seed_variance, seed_scatter

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
    assert pooled_seed_variance(cells) == SeedVariance(variance=(2.0 + 2.0) / 3, degrees_of_freedom=3, cells=2)


def test_cells_that_scatter_alike_share_a_variance_with_those_of_one_seed() -> None:
    found = seed_scatter(POOL, {"one": cell(1.0, 3.0), "other": cell(0.0, 1.0, 2.0), "single": cell(9.0)})
    shared = SeedVariance(variance=4 / 3, degrees_of_freedom=3, cells=2)
    assert found.alike
    assert found.variances == {"one": shared, "other": shared, "single": shared}


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


@pytest.mark.parametrize(("seeds", "spread"), [(3, 1.0), (3, 10.0), (5, 3.0), (3, 100.0)])
def test_equal_cells_are_told_apart_about_as_rarely_as_said(seeds: int, spread: float) -> None:
    """At most 5%, within the error of 500 draws, however much wider the runs of some cells scatter than those of others."""
    random = np.random.default_rng(0)
    wrong = sum(_wrong(drawn(random, np.geomspace(0.01, 0.01 * spread, 5), seeds)) for _ in range(500)) / 500
    assert wrong <= 0.05 + 2 * (0.05 * 0.95 / 500) ** 0.5


def _wrong(cells: dict[str, NDArray[np.float64]]) -> bool:
    return told_apart(cells, seed_scatter(POOL, cells).variances)


def test_pooling_uneven_cells_would_tell_equal_ones_apart() -> None:
    random = np.random.default_rng(0)
    wrong = 0
    for _ in range(500):
        cells = drawn(random, np.geomspace(0.01, 0.1, 5), 3)
        pooled = pooled_seed_variance(cells.values())
        assert pooled is not None
        wrong += told_apart(cells, dict.fromkeys(cells, pooled))
    assert wrong / 500 > 0.08


def test_a_scatter_without_a_test_is_alike() -> None:
    assert SeedScatter(POOL, None, {}).alike
