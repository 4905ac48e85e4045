"""The worth of a run agrees with closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from study.designing.choosing import Method, Prices, between_gains, d_gains, plan, v_gains
from study.designing.posterior import Basin, Prior, basin_of, least_squares
from study.laws.catalogue import LAWS
from study.laws.law import Floats

NOISE = 0.01**2


def line(candidates: Floats, targets: Floats, precision: Floats) -> Basin:
    """A line over x, whose gradients are (1, x)."""
    parts = [(np.zeros(len(x)), np.column_stack([np.ones(len(x)), x])) for x in (candidates, targets)]
    return basin_of(1.0, precision, parts[0], parts[1], NOISE)


def covariance_after(rows: list[int], candidates: Floats, precision: Floats) -> Floats:
    """(Λ + Σ x·xᵀ/σ²)⁻¹ of a line."""
    slopes = np.column_stack([np.ones(len(candidates)), candidates])[rows]
    return np.asarray(np.linalg.inv(precision + slopes.T @ slopes / NOISE))


CANDIDATES, TARGETS = np.linspace(-1, 1, 21), np.array([1.5, 2.0])
VAGUE = np.diag([1e-4, 1e-4])


def test_d_optimal_runs_of_a_line_lie_at_its_ends() -> None:
    """Half of an exact D-optimal design for a straight line is at either end (Atkinson, Donev and Tobias 2007, sec. 11)."""
    basin = line(CANDIDATES, TARGETS, VAGUE)
    chosen = plan([basin], Prices.alone(np.ones(21)), np.arange(21), 4.0, Method("d-optimal", (0.0,), 0.0)).rows
    first, second = chosen[:2]
    assert {first, second} == {0, 20}
    gains = d_gains(basin)
    information = [np.linalg.slogdet(np.linalg.inv(covariance_after([row], CANDIDATES, VAGUE)))[1] for row in range(21)]
    np.testing.assert_allclose(gains, np.array(information) - np.linalg.slogdet(VAGUE)[1], rtol=1e-6)


def test_v_optimal_gains_are_the_fall_of_the_variance_at_the_targets() -> None:
    precision: Floats = np.asarray(np.linalg.inv(covariance_after([3, 4, 11], CANDIDATES, VAGUE)), dtype=np.float64)
    basin = line(CANDIDATES, TARGETS, precision)
    slopes = np.column_stack([np.ones(2), TARGETS])

    def variance(covariance: Floats) -> float:
        return float(np.trace(slopes @ covariance @ slopes.T)) / 2

    before = variance(np.linalg.inv(precision).astype(np.float64))
    later = [variance(covariance_after([row], CANDIDATES, precision)) for row in range(21)]
    assert basin.variance == pytest.approx(before)
    np.testing.assert_allclose(v_gains(basin), before - np.array(later), rtol=1e-9)
    assert basin.after(20).variance == pytest.approx(later[20])
    assert basin.after(20).after(0).variance == pytest.approx(variance(covariance_after([20, 0], CANDIDATES, precision)))
    best = plan([basin], Prices.alone(np.ones(21)), np.arange(21), 1.0, Method("v-optimal", (0.0,), 0.0))
    assert best.rows == (int(np.argmin(later)),)
    assert best.errors == pytest.approx((before, min(later)))


def two_basins(apart: float, noise: float) -> list[Basin]:
    """Two sure basins that differ by `apart` at the one candidate, and by 1 at the target."""
    nothing = np.zeros((1, 1))
    return [
        Basin(weight, np.array([value]), np.array([target]), nothing, nothing, noise)
        for weight, value, target in ((0.75, 0.0, 0.0), (0.25, apart, 1.0))
    ]


def test_a_run_that_distinguishes_basins_removes_the_error_between_them() -> None:
    before = 0.75 * 0.25
    assert between_gains(two_basins(100.0, 1.0)) == pytest.approx([before])
    assert between_gains(two_basins(0.0, 1.0)) == pytest.approx([0.0], abs=1e-12)
    random = np.random.default_rng(0)
    second = random.uniform(size=400_000) < 0.25
    result = random.normal(size=400_000) + 1.5 * second
    odds = 1 / 3 * np.exp(1.5 * result - 1.5**2 / 2)
    share = odds / (1 + odds)
    assert between_gains(two_basins(1.5, 1.0))[0] == pytest.approx(before - np.mean(share * (1 - share)), abs=0.02)
    assert between_gains(two_basins(1.5, 1.0)[:1]) == pytest.approx([0.0])


def test_a_plan_buys_what_it_can_afford_and_prefers_cheap_gain_with_power_one() -> None:
    basin = line(CANDIDATES, TARGETS, VAGUE)
    costs = np.where(np.arange(21) == 20, 10.0, 1.0)
    dear = plan([basin], Prices.alone(costs), np.arange(21), 10.5, Method("v-optimal", (0.0,), 0.0))
    cheap = plan([basin], Prices.alone(costs), np.arange(21), 10.5, Method("v-optimal", (1.0,), 0.0))
    assert dear.rows == (20,)
    assert len(cheap.rows) == 10
    assert 20 not in cheap.rows
    both = plan([basin], Prices.alone(costs), np.arange(21), 10.5, Method("v-optimal", (0.0, 1.0), 0.0))
    assert both.errors[-1] == min(dear.errors[-1], cheap.errors[-1])
    assert list(both.errors) == sorted(both.errors, reverse=True)
    assert plan([basin], Prices.alone(costs), np.arange(21), 0.5, Method("v-optimal", (0.0,), 0.0)).rows == ()


def test_least_squares_with_a_prior_is_ridge_regression_for_a_law_linear_in_logarithms() -> None:
    sizes = np.geomspace(1e6, 1e9, 12)
    surface = LAWS["power"].at({"parameters": sizes})
    response = 12 * sizes**-0.1 * np.exp(np.random.default_rng(0).normal(0, 0.01, 12))
    prior = Prior(np.array([2.5, 0.2]), np.array([0.1, 0.01]))
    theta, value = least_squares(surface, response, "log", NOISE, prior, np.array([[1.0, 0.5], [4.0, 0.01]]))

    def objective(point: Floats) -> float:
        away = (point - prior.mean) / prior.spread
        return float(np.sum(np.log(surface.value(point[None])[0] / response) ** 2) / NOISE + away @ away)

    assert theta[0] == pytest.approx(theta[1], rel=1e-5)
    assert value[0] == pytest.approx(objective(theta[0]))
    for step in 1e-3 * np.array([[1, 0], [-1, 0], [0, 1], [0, -1]]):
        assert objective(theta[0] + step) > value[0]
