"""How far the best rate moves has an interval, from the scatter of losses over seeds or about parabolas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from study.evidence.learning_rates import RateSearch, Trial, TriedRate
from study.evidence.rate_transfer import factor_interval, scatter_of, vertex_variance

RATES = np.array([1e-3, 2e-3, 4e-3, 8e-3])


def parabola(best: float, bend: float = 0.3) -> NDArray[np.float64]:
    """Losses at RATES with the lowest at a rate."""
    losses: NDArray[np.float64] = 4 + bend * np.log(RATES / best) ** 2
    return losses


def searched(
    losses: Sequence[float] | Sequence[NDArray[np.float64]] | NDArray[np.float64], diverged: int | None = None
) -> RateSearch:
    """The search of one cell, with the vertex through the lowest mean loss and its neighbours; a row of losses is a seed."""
    seeds = np.atleast_2d(losses)
    tried = tuple(
        TriedRate(
            float(rate), tuple(Trial(str(rate), float(loss), "DIVERGED" if position == diverged else None) for loss in of_rate)
        )
        for position, (rate, of_rate) in enumerate(zip(RATES, seeds.T, strict=True))
    )
    means = seeds.mean(axis=0)
    best = int(np.clip(np.argmin(means), 1, 2))
    around = slice(best - 1, best + 2)
    square, linear, _ = np.polyfit(np.log(RATES[around] / RATES[best]), means[around], 2)
    return RateSearch(tried, "bracketed", float(RATES[best]), float(RATES[best] * np.exp(-linear / (2 * square))))


def test_losses_on_a_parabola_scatter_by_nothing_and_those_of_noise_by_its_variance() -> None:
    """Over all cells with four rates that learned, each of which gives one degree of freedom."""
    exact = scatter_of([searched(parabola(2.3e-3)), searched(parabola(3.1e-3, 1.0)), searched(parabola(3e-3), diverged=0)])
    assert exact is not None
    assert exact.freedom == 2
    assert exact.variance == pytest.approx(0, abs=1e-20)
    noise = np.random.default_rng(0).normal(0, 0.02, (4000, 4))
    noisy = scatter_of([searched(parabola(2.5e-3) + row) for row in noise])
    assert noisy is not None
    assert noisy.deviation_nats == pytest.approx(0.02, rel=0.03)
    assert scatter_of([searched(parabola(3e-3), diverged=3)]) is None


def test_where_rates_are_tried_at_several_seeds_these_tell_the_scatter() -> None:
    """Also if losses follow no parabola; of the best rate of each cell and its neighbours alone."""
    noise = np.random.default_rng(0).normal(0, 0.02, (2000, 3, 4))
    steep = parabola(2.5e-3) + np.array([0, 0, 0, 3])
    scatter = scatter_of([searched(steep + of_cell) for of_cell in noise])
    assert scatter is not None
    assert (scatter.about, scatter.freedom) == ("seeds", 2000 * 3 * 2)
    assert scatter.deviation_nats == pytest.approx(0.02, rel=0.03)
    single = scatter_of([searched(steep + of_cell[0]) for of_cell in noise])
    assert single is not None
    assert single.about == "parabolas"
    assert single.deviation_nats > 0.5


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("best", [2e-3, 2.7e-3, 3.5e-3])
def test_the_variance_of_a_vertex_is_that_of_many_draws(best: float, seeds: int) -> None:
    search, deviation = searched([parabola(best)] * seeds), 0.002
    draws = np.random.default_rng(1).normal(0, deviation, (4000, seeds, 4)).mean(axis=1)
    place = int(np.argmin(parabola(best)))
    around = slice(place - 1, place + 2)
    coefficients = np.polyfit(np.log(RATES[around]), (parabola(best) + draws)[:, around].T, 2)
    vertices = -coefficients[1] / (2 * coefficients[0])
    assert float(vertices.std()) == pytest.approx(deviation * vertex_variance(search) ** 0.5, rel=0.05)


def test_a_vertex_rests_on_the_neighbours_of_the_best_rate_however_unevenly_they_lie() -> None:
    rates = np.array([1e-3, 1.4e-3, 2e-3, 4e-3])
    tried = [TriedRate(rate, (Trial(str(rate), 4 + 0.3 * float(np.log(rate / 2.2e-3)) ** 2, None),)) for rate in rates.tolist()]
    uneven = RateSearch(tuple(tried), "bracketed", 2e-3, 2.2e-3)
    assert vertex_variance(uneven) == pytest.approx(vertex_variance(replace(uneven, tried=tuple(tried[1:]))))


@pytest.mark.parametrize(("seeds", "least"), [(1, 0.95), (2, 0.95 - 3 * (0.95 * 0.05 / 400) ** 0.5)])
@pytest.mark.parametrize("bests", [(2.5e-3,) * 5, (2e-3, 2.5e-3, 3e-3, 3.5e-3, 3.9e-3)])
def test_the_interval_of_the_factor_covers_the_true_one(bests: Sequence[float], seeds: int, least: float) -> None:
    """Also where no rate moves and the highest over the lowest of noisy ones is always above 1.

    Of two seeds, in 95% of draws, here within three standard errors; of one more often, since few degrees of freedom widen it.
    """
    truth, generator, covered = max(bests) / min(bests), np.random.default_rng(2), 0
    draws = 400
    for _ in range(draws):
        cells = [searched(parabola(best) + generator.normal(0, 0.02, (seeds, 4))) for best in bests]
        scatter = scatter_of(cells)
        assert scatter is not None
        low, high = factor_interval(cells, scatter)
        covered += 1 <= low <= truth * (1 + 1e-12) <= high
    assert covered >= least * draws


def test_the_more_losses_scatter_the_wider_is_the_interval() -> None:
    cells: list[Any] = [
        [searched(parabola(best) + size * np.array([1, -1, 1, -1])) for best in (2.2e-3, 3.6e-3)] for size in (0.001, 0.01)
    ]
    (low, high), (lower, higher) = [factor_interval(each, scatter) for each in cells if (scatter := scatter_of(each))]
    assert lower < low < 3.6 / 2.2 < high < higher
