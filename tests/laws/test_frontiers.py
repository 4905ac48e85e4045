"""Every approach to the compute-optimal frontier finds the one that Chinchilla's law has.

The best sizes at a budget are where a fitted law is lowest, and their intervals those of its resamples.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Literal

import numpy as np
import pytest
from scipy import stats

from study.base.errors import InputError
from study.laws.approaches import resample_frontier
from study.laws.catalogue import LAWS
from study.laws.estimation import Fit, Settings, fit
from study.laws.frontiers import (
    BUDGETS,
    FLOPS_RULES,
    Frontier,
    best_sizes,
    check_split,
    envelope,
    hull,
    iso_flop,
    iso_flop_groups,
    optimum,
    parametric,
)
from study.laws.law import Floats
from study.laws.observations import Observations
from tests.points import TRUTHS, observed

LAW, TRUTH = LAWS["chinchilla"], TRUTHS["chinchilla"]
EXPONENT = TRUTH["beta"] / (TRUTH["alpha"] + TRUTH["beta"])

Approach = Callable[[Floats, Floats, Floats], Frontier]


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
    fitted = iso_flop(*iso_flop_runs(), valley=valley)  # type: ignore[arg-type]
    assert len(fitted.best) == 7
    assert all(one.inside for one in fitted.best)
    assert fitted.exponent == pytest.approx(EXPONENT, abs=within)
    assert fitted.parameters(1e20) == pytest.approx(float(best(1e20)), rel=0.06)


def test_interval_of_the_parabola_covers_under_noise() -> None:
    fitted = iso_flop(*iso_flop_runs(noise=0.001))
    assert fitted.interval is not None
    assert fitted.interval[0] < EXPONENT < fitted.interval[1]


@pytest.mark.slow
@pytest.mark.parametrize("window", [1.0, np.inf])
def test_intervals_cover_where_minima_of_some_budgets_scatter_more(window: float) -> None:
    """On a grid of sizes and tokens the budgets at both ends have fewer sizes, and decide the slope."""
    parameters, tokens = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 1e10, 9), np.geomspace(2e8, 2e11, 9)))
    loss = LAW.predict(TRUTH, {"parameters": parameters, "tokens": tokens})
    covered = 0
    for draw in range(200):
        noise = np.exp(np.random.default_rng(draw).normal(0, 0.005, len(loss)))
        fitted = iso_flop(parameters, 6 * parameters * tokens, loss * noise, window=window)
        assert fitted.interval is not None
        covered += fitted.interval[0] <= EXPONENT <= fitted.interval[1]
    assert covered >= 0.89 * 200


def test_the_interval_is_that_of_lines_that_leave_out_a_best_model_each() -> None:
    """HC3 is the sum over the best models of what leaving each out would move the slope, squared, in each one's weight."""
    fitted = iso_flop(*iso_flop_runs(noise=0.002))
    x, y = np.log([[one.flops for one in fitted.best], [one.parameters for one in fitted.best]])
    away = x - x.mean()
    moved = []
    for left_out in range(len(x)):
        slope, level = np.polyfit(np.delete(x, left_out), np.delete(y, left_out), 1)
        moved.append(away[left_out] * (y[left_out] - level - slope * x[left_out]) / (away @ away))
    half = stats.t.isf(0.025, len(x) - 2) * np.linalg.norm(moved)
    assert fitted.interval == pytest.approx((fitted.exponent - half, fitted.exponent + half))


def test_a_narrow_window_is_nearer_than_the_full_range_where_valleys_lean() -> None:
    parameters, flops, loss = iso_flop_runs()
    near = iso_flop(parameters, flops, loss, window=0.5)
    far = iso_flop(parameters, flops, loss, window=np.inf)
    truth = best(1e20)
    assert abs(np.log(near.parameters(1e20) / truth)) < abs(np.log(far.parameters(1e20) / truth))


def test_a_parabola_weighs_squared_residuals_by_a_bell_of_the_window() -> None:
    x, loss = np.array([-2.0, -1.0, 0.0, 1.5, 2.5]), np.array([3.0, 2.2, 2.0, 2.4, 3.5])
    design = np.vander(x, 3)
    for window in (1.0, 2.0):
        weighted = design.T * np.exp(-((x / window) ** 2) / 2)
        square, slope, level = np.linalg.solve(weighted @ design, weighted @ loss)
        first, _ = two_budgets(x, loss, window).best
        assert np.log(first.parameters) == pytest.approx(-slope / (2 * square))
        assert first.loss == pytest.approx(level - slope**2 / (4 * square))


def test_runs_far_from_the_best_do_not_move_the_lowest_point_of_akima() -> None:
    x = np.arange(-4.0, 5.0)
    loss = np.where(x < 0, 0.3, 0.2) * x**2
    actual = [iso_flop(*at_two_budgets(x, loss + more * (abs(x) == 4)), "akima").best for more in (0.0, 5.0)]
    assert actual[0] == actual[1]
    assert actual[0][0].loss <= 1e-12
    assert abs(np.log(actual[0][0].parameters)) < 0.1


def test_a_budget_whose_parabola_opens_downwards_has_its_best_run() -> None:
    first, _ = two_budgets(np.array([-2.0, -0.5, 0.0, 0.5, 2.0]), np.array([1.1, 2.0, 1.0, 2.0, 1.3])).best
    assert (first.parameters, first.loss, first.inside) == (1.0, 1.0, True)


def test_a_budget_whose_best_run_is_the_smallest_has_no_minimum() -> None:
    """The parabola through all runs is lowest between them, but nothing smaller than the best run was tried."""
    x, loss = np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), np.array([1.0, 1.4, 1.1, 1.6, 2.6])
    with pytest.raises(InputError, match="two or more budgets, got 0 of 2"):
        two_budgets(x, loss, window=np.inf)


def test_a_parabola_that_is_lowest_at_the_last_size_has_no_minimum() -> None:
    """The best run lies between others, and the parabola through all of them falls on."""
    with pytest.raises(InputError, match="two or more budgets, got 0 of 2"):
        two_budgets(np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), np.array([3.0, 2.0, 3.0, 1.0, 2.0]), window=np.inf)


@pytest.mark.parametrize("side", [1, -1])
def test_the_best_run_of_a_budget_lies_between_ones_a_quarter_smaller_and_larger(side: int) -> None:
    """e^0.22 is 1.246."""
    for step, inside in ((np.log(1.25), True), (0.22, False)):
        x, loss = side * np.array([-step, 0.0, 0.5, 1.0]), np.array([2.5, 2.0, 3.0, 4.0])
        if inside:
            assert all(one.inside for one in two_budgets(x, loss).best)
        else:
            with pytest.raises(InputError, match="smaller and larger at two or more budgets, got 0 of 2"):
                two_budgets(x, loss)


def test_budgets_within_a_tenth_of_the_least_are_one_whose_flops_are_their_geometric_mean() -> None:
    assert [rows.tolist() for rows in iso_flop_groups(np.array([1.21, 1.0, 1.1]))] == [[1, 2], [0]]
    parameters, flops, loss = iso_flop_runs()
    fitted = iso_flop(parameters, flops * np.tile(np.geomspace(1.0, 1.09, 9), 7), loss)
    assert [one.flops for one in fitted.best] == pytest.approx(np.geomspace(1e18, 1e22, 7) * 1.09**0.5)


def two_budgets(x: Floats, loss: Floats, window: float = 1.0) -> Frontier:
    """The same losses at two budgets, over log N that is x in the first."""
    return iso_flop(*at_two_budgets(x, loss), window=window)


def at_two_budgets(x: Floats, loss: Floats) -> tuple[Floats, Floats, Floats]:
    return np.exp(np.concatenate([x, x + 1])), np.repeat([1e18, 1e20], len(x)), np.tile(loss, 2)


@pytest.mark.parametrize("valley", ["parabola", "akima"])
def test_a_size_counts_by_the_mean_of_its_runs(valley: Literal["parabola", "akima"]) -> None:
    parameters, flops, loss = iso_flop_runs(noise=0.001)
    runs = np.repeat(np.arange(63), 1 + np.arange(63) % 3)
    losses = loss[runs] + np.random.default_rng(1).normal(0, 0.01, len(runs))
    means = np.bincount(runs, losses) / np.bincount(runs)
    actual, expected = iso_flop(parameters[runs], flops[runs], losses, valley), iso_flop(parameters, flops, means, valley)
    assert [one.loss for one in actual.best] == pytest.approx([one.loss for one in expected.best])
    assert actual.exponent == pytest.approx(expected.exponent)


@pytest.mark.parametrize(("valley", "fewest"), [("parabola", 3), ("akima", 5)])
def test_a_budget_of_too_few_sizes_has_no_minimum(valley: Literal["parabola", "akima"], fewest: int) -> None:
    assert len(iso_flop(*iso_flop_runs(sizes=fewest), valley).best) == 7
    with pytest.raises(InputError, match="two or more budgets, got 0"):
        iso_flop(*iso_flop_runs(sizes=fewest - 1), valley)


def test_the_interval_of_a_line_is_student_s() -> None:
    """The residuals from slope 1 are -0.1, 0.2 and -0.1, those from the lines through the two others -0.6, 0.3 and -0.6.

    Student's 97.5% point of one degree of freedom is 12.706. The sizes beside 1, e^1.3 and e² are theirs, their tenths and
    their tenfold.
    """
    actual = envelope(*among_worse(np.exp([0.0, 1.3, 2.0]), np.exp([0.0, 1.0, 2.0]), np.array([3.0, 2.0, 1.0])))
    steps = np.array([1.3 - (2.0 - np.log(10)), 2.0 - 0.0, np.log(10) - 1.3]) / 2
    half = 12.7062 * np.sqrt((0.6**2 + 0.6**2) / 2**2 + np.mean(steps**2) / 12 / 2)
    assert actual.interval == pytest.approx((1 - half, 1 + half), rel=1e-5)


@pytest.mark.parametrize("approach", [envelope, hull])
@pytest.mark.parametrize("checkpoints", [1, 2])
@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([1e8, 2e8], "its line goes through 2 best models, and an interval needs 3 or more"),
        ([1e8, 1e8, 1.001e8], "the 3 best models that its line goes through are of one size"),
        ([1e8, 1e8, 1.1e8], None),
    ],
)
def test_a_line_through_two_best_models_or_one_size_has_no_interval(
    approach: Approach, checkpoints: int, sizes: list[float], reason: str | None
) -> None:
    """Whether the rows are runs or some of them share one."""
    flops = np.geomspace(1e18, 1e20, len(sizes))
    rows = among_worse(np.array(sizes), flops, np.array([4.0, 3.4, 3.0])[: len(sizes)])
    columns = {"parameters": rows[0], "tokens": rows[1] / rows[0] / 6}
    actual = resample_frontier(Observations.of(columns, rows[2], np.arange(len(rows[0])) // checkpoints), approach)
    assert (actual.interval is None) == (reason is not None)
    if reason is not None:
        assert (actual.status, actual.reasons) == ("weakly_identified", (reason,))


@pytest.mark.parametrize(("approach", "covered"), [(hull, 0.75), (envelope, 0.75)])
def test_a_line_of_grid_points_is_not_certain_of_its_slope(approach: Approach, covered: float) -> None:
    """Seven sizes a budget along C^0.5: the best are mostly of one line of that grid, and the truth is C^0.45."""
    hits, draw = [], np.random.default_rng(0)
    flops = np.repeat(np.geomspace(1e17, 1e19, 5), 7)
    parameters = 0.3 * np.sqrt(flops / 6) * np.tile(np.geomspace(1 / 8, 8, 7), 5)
    columns = {"parameters": parameters, "tokens": flops / 6 / parameters}
    for _ in range(60):
        loss = LAW.predict(TRUTH, columns) * np.exp(draw.normal(0, 0.003, len(flops)))
        interval = approach(parameters, flops, loss).interval
        assert interval is not None
        assert interval[1] - interval[0] > 0.05
        hits.append(interval[0] <= EXPONENT <= interval[1])
    assert np.mean(hits) > covered


@pytest.mark.slow
def test_an_interval_of_shapes_that_lie_off_the_law_covers() -> None:
    """Shapes scatter by half a percent about the law, seeds by 0.2%: with runs drawn, two in three intervals held the truth."""
    sizes, flops = np.geomspace(1e6, 3e8, 14), np.geomspace(1e17, 1e19, 5)
    near = [(c, shape) for c in flops for shape in range(14) if 1 / 8 < sizes[shape] / best(c) < 8]
    each, shapes = (np.repeat(np.array(part), 2) for part in zip(*near, strict=True))
    parameters = sizes[shapes]
    columns = {"parameters": parameters, "tokens": each / (6 * parameters)}
    law = LAW.predict(TRUTH, columns)
    truth = iso_flop(parameters, each, law).exponent
    random, covered = np.random.default_rng(0), 0
    for _ in range(12):
        loss = law * (1 + random.normal(0, 0.005, 14)[shapes]) * (1 + random.normal(0, 0.002, len(law)))
        clusters = np.unique(shapes, return_inverse=True)[1]
        points = replace(Observations.of(columns, loss), clusters=clusters, cluster="shape")
        low, high = resample_frontier(points, iso_flop).interval or (np.nan, np.nan)
        covered += low <= truth <= high
    assert covered >= 11


def test_an_interval_of_shapes_on_a_coarse_grid_holds_what_the_grid_does_not_show() -> None:
    """Four times the size by three times the tokens: the best models of every resample lie on one line, of slope 1."""
    sizes, tokens = 1e6 * 4.0 ** np.arange(6), 1e8 * 3.0 ** np.arange(5)
    columns = {"parameters": np.repeat(sizes, 5), "tokens": np.tile(tokens, 6)}
    loss = LAW.predict(TRUTH, columns) * np.exp(np.random.default_rng(0).normal(0, 0.002, 30))
    points = replace(Observations.of(columns, loss), clusters=np.repeat(np.arange(6), 5), cluster="shape")
    actual = resample_frontier(points, envelope)
    assert actual.interval is not None
    assert actual.interval[0] < EXPONENT < actual.exponent


def among_worse(parameters: Floats, flops: Floats, loss: Floats) -> tuple[Floats, Floats, Floats]:
    """These runs, and at the budget of each a worse one of a tenth and one of ten times its size."""
    sizes = np.concatenate([parameters, parameters / 10, parameters * 10])
    return sizes, np.tile(flops, 3), np.concatenate([loss, loss + 5, loss + 5])


def test_a_best_model_at_the_edge_is_no_minimum() -> None:
    parameters, flops, loss = iso_flop_runs()
    small = parameters < 0.9 * best(flops)
    with pytest.raises(InputError, match="two or more budgets"):
        iso_flop(parameters[small], flops[small], loss[small])


@pytest.mark.parametrize("approach", [envelope, hull])
def test_envelope_and_hull_find_the_frontier(approach: Approach) -> None:
    sizes, tokens = np.geomspace(1e7, 1e11, 60), np.geomspace(1e8, 1e13, 200)
    parameters, seen = (axis.ravel() for axis in np.meshgrid(sizes, tokens))
    loss = LAW.predict(TRUTH, {"parameters": parameters, "tokens": seen})
    flops = 6 * parameters * seen
    middle = (flops > 1e18) & (flops < 1e22)
    fitted = approach(parameters[middle], flops[middle], loss[middle])
    assert fitted.exponent == pytest.approx(EXPONENT, abs=0.02)


def checkpoints(sizes: Floats, tokens: Floats, noise: float = 0.0005) -> tuple[Floats, Floats, Floats]:
    """Every size after every number of tokens."""
    parameters, seen = (axis.ravel() for axis in np.meshgrid(sizes, tokens, indexing="ij"))
    loss = LAW.predict(TRUTH, {"parameters": parameters, "tokens": seen})
    return parameters, 6 * parameters * seen, loss * np.exp(np.random.default_rng(0).normal(0, noise, len(loss)))


@pytest.mark.parametrize("approach", [envelope, hull])
def test_a_front_at_an_end_of_the_sizes_says_nothing_of_the_best_size(approach: Approach) -> None:
    """Of 8 sizes within a decade the smallest or the largest is in front at most budgets of five."""
    fitted = approach(*checkpoints(np.geomspace(3e8, 3e9, 8), np.geomspace(1e8, 1e13, 40)))
    assert fitted.interval is not None
    assert fitted.interval[0] < EXPONENT < fitted.interval[1]
    used = [one for one in fitted.best if one.inside]
    budgets = [one.flops for one in used]
    ends = [one.flops for one in fitted.best if not 3.1e8 < one.parameters < 2.9e9]
    assert not any(min(budgets) < flops < max(budgets) for flops in ends)
    with pytest.raises(InputError, match=r"two or more budgets, got 0 of \d+"):
        approach(*checkpoints(np.geomspace(1e7, 1e8, 3), np.geomspace(1e11, 1e13, 20)))


@pytest.mark.parametrize("approach", [envelope, hull])
def test_a_front_at_an_end_of_the_tokens_says_nothing_of_the_best_size(approach: Approach) -> None:
    """Where a larger model would need fewer tokens than any was given, or a smaller one more, it was not tried."""
    fitted = approach(*checkpoints(np.geomspace(7e7, 1e10, 10), np.geomspace(1e9, 3e11, 30)))
    split = {round(one.flops / (6 * one.parameters)) for one in fitted.best if one.inside}
    assert split
    assert not split & {1_000_000_000, 300_000_000_000}
    assert fitted.interval is not None
    assert fitted.interval[0] < EXPONENT < fitted.interval[1]


@pytest.mark.parametrize("approach", [envelope, hull])
@pytest.mark.parametrize(("trained", "inside"), [(0.95, True), (0.85, False)])
def test_a_front_is_best_only_beside_a_smaller_model_of_as_many_flops(approach: Approach, trained: float, inside: bool) -> None:
    """Up to a tenth fewer are as many."""
    flops = np.geomspace(1e18, 1e22, 5)
    sizes, budgets, losses = among_worse(best(flops), flops, np.array([4.0, 3.4, 3.0, 2.8, 2.7]))
    budgets[9] *= trained  # that of the smaller model at the largest budget
    assert [one.inside for one in approach(sizes, budgets, losses).best] == [True] * 4 + [inside]


@pytest.mark.parametrize("approach", [envelope, hull])
@pytest.mark.parametrize(("times", "inside"), [(1.25, True), (1.2, False)])
def test_a_front_is_best_only_between_models_a_quarter_smaller_and_larger(
    approach: Approach, times: float, inside: bool
) -> None:
    flops = np.geomspace(1e18, 1e22, 5)
    sizes, budgets, losses = among_worse(best(flops), flops, np.array([4.0, 3.4, 3.0, 2.8, 2.7]))
    sizes[9] = sizes[4] / times  # the smaller model at the largest budget
    assert [one.inside for one in approach(sizes, budgets, losses).best] == [True] * 4 + [inside]
    sizes, budgets, losses = among_worse(best(flops), flops, np.array([4.0, 3.4, 3.0, 2.8, 2.7]))
    sizes[10] = sizes[0] * times  # the larger model at the smallest budget
    assert [one.inside for one in approach(sizes, budgets, losses).best] == [inside] + [True] * 4


@pytest.mark.parametrize("approach", [envelope, hull])
def test_a_run_of_more_flops_than_the_lowest_loss_is_on_no_frontier(approach: Approach) -> None:
    flops, loss = np.geomspace(1e18, 1e22, 5), np.array([4.0, 3.4, 3.0, 2.8, 2.9])
    fitted = approach(*among_worse(best(flops), flops, loss))
    assert [one.loss for one in fitted.best] == [4.0, 3.4, 3.0, 2.8]


def test_parametric_frontier_is_the_closed_form() -> None:
    exact = parametric(fit(LAW, observed(LAW, noise=0.0), Settings(bootstrap=0)))
    assert exact.exponent == pytest.approx(EXPONENT, rel=1e-6)
    assert exact.parameters(1e21) == pytest.approx(float(best(1e21)), rel=1e-4)
    assert exact.interval is None
    noisy = parametric(fit(LAW, observed(LAW), Settings(bootstrap=200)))
    assert noisy.interval is not None
    assert noisy.interval[0] < EXPONENT < noisy.interval[1]


def test_a_law_without_closed_frontier_is_refused() -> None:
    points = observed(LAWS["power-floor"])
    with pytest.raises(InputError, match="no closed frontier"):
        parametric(fit(LAWS["power-floor"], Observations.of(points.columns, points.response), Settings(bootstrap=0)))


def test_a_law_without_one_of_its_terms_has_no_best_split() -> None:
    fitted = fit(LAW, observed(LAW, noise=0.0), Settings(bootstrap=0))
    with pytest.raises(InputError, match="has no best split: B, beta is zero"):
        parametric(replace(fitted, estimates=fitted.estimates | {"B": 0.0, "beta": 0.0}))


@pytest.mark.parametrize(
    ("parameters", "tokens", "reason"),
    [
        (np.geomspace(1e6, 1e8, 30), 20 * np.geomspace(1e6, 1e8, 30), "tokens go as parameters^1.00 in all 30 rows"),
        (np.geomspace(1e6, 1e8, 30), np.geomspace(1e8, 1e9, 30), "tokens go as parameters^0.50 in all 30 rows"),
        (np.full(30, 1e6), np.geomspace(1e8, 1e9, 30), "all 30 rows have the same parameters (1e+06)"),
        (np.geomspace(1e6, 1e8, 30), np.full(30, 1e8), "all 30 rows have the same tokens (1e+08)"),
    ],
)
def test_runs_that_split_each_budget_in_one_way_have_no_frontier(parameters: Floats, tokens: Floats, reason: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"compute: the best split is undetermined: {reason}")):
        check_split(parameters, tokens)


@pytest.mark.parametrize("approach", [envelope, hull, iso_flop, partial(iso_flop, valley="akima")])
@pytest.mark.parametrize("rows", [30, 1000])
@pytest.mark.parametrize(("scale", "power"), [(20.0, 1.0), (1e9, 0.2), (1e9, 0.0)])
def test_runs_that_split_nearly_each_budget_in_one_way_have_no_frontier(
    approach: Approach, rows: int, scale: float, power: float
) -> None:
    """Through tokens that go as a power of parameters, up to 5%, a line would have the exponent of the design."""
    random = np.random.default_rng(3)
    parameters = np.geomspace(1e7, 1e10, rows)
    tokens = scale * parameters**power * np.exp(random.normal(0, 0.05, rows))
    loss = LAW.predict(TRUTH, {"parameters": parameters, "tokens": tokens}) * np.exp(random.normal(0, 0.003, rows))
    with pytest.raises(InputError, match="nearly every budget has one split"):
        approach(parameters, 6 * parameters * tokens, loss)
    check_split(parameters, tokens)


@pytest.mark.parametrize("approach", [envelope, hull, iso_flop])
def test_sizes_of_a_budget_need_to_differ_twofold(approach: Approach) -> None:
    """Of each five runs of a budget the sizes are from one on to so many times it, and the middle one is the best."""

    def actual(times: float) -> Frontier:
        flops = np.repeat(np.geomspace(1e18, 1e22, 7), 5)
        parameters = np.sqrt(flops / 120) * np.tile([1.0, 1.0, times**0.5, times, times], 7)
        return approach(parameters, flops, 1 + (flops / 1e18) ** -0.1 + np.tile([0.5, 0.5, 0.0, 0.5, 0.5], 7))

    assert actual(2.1).exponent == pytest.approx(0.5)
    with pytest.raises(InputError, match=r"within 1\.90 times, and need 2"):
        actual(1.9)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("approach", [envelope, hull, iso_flop])
def test_one_run_makes_no_frontier(approach: Approach) -> None:
    check_split(np.array([1e6]), np.array([1e8]))
    with pytest.raises(InputError, match="two or more budgets, got 0"):
        approach(np.array([1e6]), np.array([6e14]), np.array([3.0]))


@pytest.mark.parametrize("approach", [envelope, hull, iso_flop])
def test_a_few_runs_beside_the_one_split_of_all_others_make_no_frontier(approach: Approach) -> None:
    """One of 30 has ten times the size that its budget has elsewhere."""
    parameters = np.geomspace(1e7, 1e10, 30)
    tokens = 20 * parameters
    parameters[15], tokens[15] = 10 * parameters[15], tokens[15] / 10
    loss = LAW.predict(TRUTH, {"parameters": parameters, "tokens": tokens})
    with pytest.raises(InputError, match="nearly every budget has one split"):
        approach(parameters, 6 * parameters * tokens, loss)


def test_runs_of_one_budget_are_split_in_many_ways() -> None:
    parameters = np.geomspace(1e6, 1e8, 30)
    check_split(parameters, 1e15 / parameters)
    check_split(np.repeat(parameters, 2), np.tile([1e8, 2e8], 30))


def fit_of(name: str) -> Fit:
    return fit(LAWS[name], observed(LAWS[name], 60), Settings(bootstrap=60, starts=8))


@pytest.mark.parametrize("law", ["chinchilla", "kaplan"])
def test_the_best_split_of_a_law_is_that_of_its_frontier(law: str) -> None:
    fitted = fit_of(law)
    frontier = parametric(fitted)
    for one in best_sizes(fitted):
        assert one.values["parameters"] == pytest.approx(frontier.parameters(one.flops))
        assert 6 * one.values["parameters"] * one.values["tokens"] == pytest.approx(one.flops)
        low, high = one.intervals["parameters"] or (0, 0)
        assert low < one.values["parameters"] < high
        split = optimum(frontier, one.flops, one.flops, fitted)
        assert split.parameters_interval == one.intervals["parameters"]
        assert (split.parameters, split.tokens) == pytest.approx((one.values["parameters"], one.values["tokens"]))


def test_a_resample_without_one_of_its_terms_leaves_the_best_sizes_without_an_interval_and_the_exponent_with_one() -> None:
    fitted = fit_of("chinchilla")
    resampled = fitted.resampled.copy()
    resampled[0, fitted.law.parameters.index("A")] = 0.0
    fitted = replace(fitted, resampled=resampled)
    frontier = parametric(fitted)
    assert optimum(frontier, 1e20, 1e20, fitted).parameters_interval is None
    assert {one.intervals["parameters"] for one in best_sizes(fitted)} == {None}
    low, high = frontier.interval or (0, 0)
    assert low < frontier.exponent < high


@pytest.mark.parametrize("name", ["width-depth-tokens", "kaplan"])
def test_no_other_split_of_a_budget_has_a_lower_loss(name: str) -> None:
    fitted, rule = fit_of(name), FLOPS_RULES[name]
    for one in best_sizes(fitted, (1e19, 1e21)):
        assert one.values.get("depth", 2) > 1
        spent = [value ** rule.powers[size] for size, value in one.values.items()]
        assert rule.factor * np.prod(spent) == pytest.approx(one.flops)
        least = fitted.predict({size: np.array([value]) for size, value in one.values.items()})
        for more, less in combinations(one.values, 2):
            for factor in (0.9, 1.1):
                moved = dict(one.values)
                moved[more] *= factor ** (1 / rule.powers[more])
                moved[less] /= factor ** (1 / rule.powers[less])
                assert fitted.predict({size: np.array([value]) for size, value in moved.items()}) > least


def test_kaplans_best_size_grows_by_the_ratio_of_its_exponents() -> None:
    """Of A·N^−(alpha_N/alpha_D) + 6·B·N/C."""
    fitted = fit_of("kaplan")
    small, large = best_sizes(fitted, (1e19, 1e21))
    grown = np.log(large.values["parameters"] / small.values["parameters"]) / np.log(100)
    expected = fitted.estimates["alpha_D"] / (fitted.estimates["alpha_N"] + fitted.estimates["alpha_D"])
    assert grown == pytest.approx(expected)
    for one in (small, large):
        low, high = one.intervals["parameters"] or (0, 0)
        assert low < one.values["parameters"] < high


def test_no_encoder_has_less_than_a_layer_and_the_rest_of_the_budget_goes_to_width_and_tokens() -> None:
    fitted = fit_of("width-depth-tokens")
    fitted = replace(fitted, estimates=fitted.estimates | {"B": 1e-4})
    (one,) = best_sizes(fitted, (1e15,))
    assert one.values["depth"] == 1
    assert 72 * one.values["width"] ** 2 * one.values["tokens"] == pytest.approx(1e15)


def test_a_law_that_is_flat_in_a_size_or_of_other_variables_has_no_best_sizes() -> None:
    fitted = fit_of("chinchilla")
    assert [one.flops for one in best_sizes(fitted)] == list(BUDGETS)
    assert best_sizes(replace(fitted, estimates=fitted.estimates | {"A": 0.0})) == []
    assert best_sizes(replace(fitted, status="failed")) == []
    assert best_sizes(fit_of("tokens-floor")) == []
