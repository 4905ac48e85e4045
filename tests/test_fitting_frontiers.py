"""Every approach to the compute-optimal frontier finds the one that Chinchilla's law has."""

from __future__ import annotations

import re

import numpy as np
import pytest

from study.errors import InputError
from study.fitting.catalogue import LAWS
from study.fitting.estimation import Settings, fit
from study.fitting.frontiers import check_split, envelope, hull, iso_flop, parametric
from study.fitting.laws import Floats
from study.fitting.observations import Observations
from tests.points import TRUTHS, observed

LAW, TRUTH = LAWS["chinchilla"], TRUTHS["chinchilla"]
EXPONENT = TRUTH["beta"] / (TRUTH["alpha"] + TRUTH["beta"])


def best(flops: Floats | float) -> Floats:
    """The best number of parameters by the closed form."""
    ratio = TRUTH["alpha"] * TRUTH["A"] / (TRUTH["beta"] * TRUTH["B"])
    return np.asarray(ratio ** (1 / (TRUTH["alpha"] + TRUTH["beta"])) * (np.asarray(flops) / 6) ** EXPONENT)


def iso_flop_runs(noise: float = 0.0, sizes: int = 9) -> tuple[Floats, Floats, Floats]:
    flops = np.repeat(np.geomspace(1e18, 1e22, 7), sizes)
    parameters = best(flops) * np.tile(np.geomspace(1 / 6, 5, sizes), 7)
    loss = LAW.predict(TRUTH, {"parameters": parameters, "tokens": flops / (6 * parameters)})
    return parameters, flops, loss * np.exp(np.random.default_rng(0).normal(0, noise, len(loss)))


@pytest.mark.parametrize(("valley", "within"), [("parabola", 0.003), ("akima", 0.001)])
def test_iso_flop_minima_lie_on_the_frontier(valley: str, within: float) -> None:
    found = iso_flop(*iso_flop_runs(), valley=valley)  # type: ignore[arg-type]
    assert len(found.best) == 7
    assert all(one.inside for one in found.best)
    assert found.exponent == pytest.approx(EXPONENT, abs=within)
    assert found.parameters(1e20) == pytest.approx(float(best(1e20)), rel=0.06)


def test_interval_of_the_parabola_covers_under_noise() -> None:
    found = iso_flop(*iso_flop_runs(noise=0.001))
    assert found.interval is not None
    assert found.interval[0] < EXPONENT < found.interval[1]


def test_a_narrow_window_is_nearer_than_the_full_range_where_valleys_lean() -> None:
    parameters, flops, loss = iso_flop_runs()
    near = iso_flop(parameters, flops, loss, window=0.5)
    far = iso_flop(parameters, flops, loss, window=np.inf)
    truth = best(1e20)
    assert abs(np.log(near.parameters(1e20) / truth)) < abs(np.log(far.parameters(1e20) / truth))


def test_a_best_model_at_the_edge_is_no_minimum() -> None:
    parameters, flops, loss = iso_flop_runs()
    small = parameters < 0.9 * best(flops)
    with pytest.raises(InputError, match="two budgets"):
        iso_flop(parameters[small], flops[small], loss[small])


@pytest.mark.parametrize("approach", [envelope, hull])
def test_envelope_and_hull_find_the_frontier(approach: object) -> None:
    sizes, tokens = np.geomspace(1e7, 1e11, 60), np.geomspace(1e8, 1e13, 200)
    parameters, seen = (axis.ravel() for axis in np.meshgrid(sizes, tokens))
    loss = LAW.predict(TRUTH, {"parameters": parameters, "tokens": seen})
    flops = 6 * parameters * seen
    middle = (flops > 1e18) & (flops < 1e22)
    found = approach(parameters[middle], flops[middle], loss[middle])  # type: ignore[operator]
    assert found.exponent == pytest.approx(EXPONENT, abs=0.02)


def test_parametric_frontier_is_the_closed_form() -> None:
    exact = parametric(fit(LAW, observed(LAW, noise=0.0), Settings(bootstrap=0)))
    assert exact.exponent == pytest.approx(EXPONENT, rel=1e-6)
    assert exact.parameters(1e21) == pytest.approx(float(best(1e21)), rel=1e-4)
    noisy = parametric(fit(LAW, observed(LAW), Settings(bootstrap=200)))
    assert noisy.interval is not None
    assert noisy.interval[0] < EXPONENT < noisy.interval[1]


def test_a_law_without_closed_frontier_is_refused() -> None:
    points = observed(LAWS["power-floor"])
    with pytest.raises(InputError, match="no closed frontier"):
        parametric(fit(LAWS["power-floor"], Observations.of(points.columns, points.response), Settings(bootstrap=0)))


@pytest.mark.parametrize(
    ("parameters", "tokens", "told"),
    [
        (np.geomspace(1e6, 1e8, 30), 20 * np.geomspace(1e6, 1e8, 30), "tokens go as parameters^1.00 in all 30 rows"),
        (np.geomspace(1e6, 1e8, 30), np.geomspace(1e8, 1e9, 30), "tokens go as parameters^0.50 in all 30 rows"),
        (np.full(30, 1e6), np.geomspace(1e8, 1e9, 30), "all 30 rows have the same parameters (1e+06)"),
    ],
)
def test_runs_that_split_each_budget_in_one_way_have_no_frontier(parameters: Floats, tokens: Floats, told: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"compute: how to split it cannot be asked: {told}")):
        check_split(parameters, tokens)


def test_runs_of_one_budget_are_split_in_many_ways() -> None:
    parameters = np.geomspace(1e6, 1e8, 30)
    check_split(parameters, 1e15 / parameters)
    check_split(np.repeat(parameters, 2), np.tile([1e8, 2e8], 30))
