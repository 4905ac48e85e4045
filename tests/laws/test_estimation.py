"""Fits: published numbers, statuses, intervals that cover, and refits that a restart cannot improve."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from study.base.errors import InputError
from study.laws import estimation, uncertainty
from study.laws.catalogue import LAWS
from study.laws.estimation import Fit, Settings, fit
from study.laws.forecasting import Forecast, Noise, forecast, forecast_to_text, interval_of, select_largest_runs
from study.laws.law_fits import LawFit
from study.laws.minimising import Minima, Objective, Space, minimise
from study.laws.observations import Observations
from study.laws.residual_tests import LackOfFit, ReplicateNoise, measure_lack_of_fit, replicate_noise
from tests.points import TRUTHS, columns_of, observed

CHINCHILLA = LAWS["chinchilla"]
SPACES: tuple[Space, ...] = ("linear", "log")


@pytest.fixture(scope="session")
def timed_epoch(shared_data: Path) -> tuple[Fit, float]:
    """The fit to Epoch's points with four thousand refits, and its seconds of CPU."""
    table = pd.read_csv(shared_data / "published" / "chinchilla" / "svg_extracted_data.csv").sort_values("loss")[:-5]
    parameters, flops = table["Model Size"].to_numpy(), table["Training FLOP"].to_numpy()
    points = Observations.of({"parameters": parameters, "tokens": flops / (6 * parameters)}, table["loss"].to_numpy())
    began = process_time()
    return fit(CHINCHILLA, points, Settings(bootstrap=4000)), process_time() - began


@pytest.fixture(scope="session")
def epoch(timed_epoch: tuple[Fit, float]) -> Fit:
    return timed_epoch[0]


def test_epoch_estimates_are_the_published_ones(epoch: Fit) -> None:
    assert epoch.status == "converged"
    published = {"A": 477.84, "B": 2143.86, "E": 1.8172, "alpha": 0.3473, "beta": 0.3672}
    assert epoch.estimates == pytest.approx(published, rel=0.005)
    assert epoch.objective <= 0.0010182741


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("A", 285, 744), ("B", 1042, 5810), ("E", 1.769, 1.871), ("alpha", 0.317, 0.373), ("beta", 0.331, 0.415)],
)
def test_epoch_intervals_are_the_published_ones(epoch: Fit, name: str, low: float, high: float) -> None:
    """Theirs are plain percentiles, than which an expanded interval is a little wider."""
    place = CHINCHILLA.parameters.index(name)
    assert uncertainty.percentile_interval(epoch.resampled[:, place]) == pytest.approx((low, high), rel=0.05)
    assert epoch.intervals[name] == pytest.approx((low, high), rel=0.1)


def test_restarting_the_refits_gains_nothing(epoch: Fit) -> None:
    points = epoch.observations
    objective = Objective(CHINCHILLA.at(points.columns), points.response, 1e-3, "log")
    draws = np.random.default_rng(0).multinomial(240, np.full(240, 1 / 240), size=4000).astype(float)[:400]
    first = epoch.resamples.theta[:400]
    again = minimise(objective, first * 1.0001, draws)
    assert again.converged.all()
    assert (objective.value(first, draws) <= again.value * (1 + 1e-7)).all()


def test_four_thousand_refits_take_seconds(timed_epoch: tuple[Fit, float]) -> None:
    assert timed_epoch[1] < 15  # about 1.5 on two idle cores


@pytest.mark.slow
def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    columns = columns_of(CHINCHILLA, 60)
    exact = CHINCHILLA.predict(TRUTHS["chinchilla"], columns)
    covered = []
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(0, 0.003, 60)
        fitted = fit(CHINCHILLA, Observations.of(columns, exact * np.exp(noise)), Settings(bootstrap=200, starts=16))
        low, high = np.array([fitted.intervals[name] for name in CHINCHILLA.parameters]).T
        truth = [TRUTHS["chinchilla"][name] for name in CHINCHILLA.parameters]
        covered.append((low <= truth) & (truth <= high))
    assert np.mean(covered) > 0.85


def test_checkpoints_of_a_run_are_resampled_together() -> None:
    random = np.random.default_rng(0)
    sizes = np.repeat(np.geomspace(1e6, 1e9, 20), 10)
    of_run = np.repeat(random.normal(0, 0.01, 20), 10)
    response = LAWS["power-floor"].predict(TRUTHS["power-floor"], {"parameters": sizes}) * np.exp(of_run)
    runs = np.repeat(np.arange(20), 10)
    together = fit(LAWS["power-floor"], Observations.of({"parameters": sizes}, response, runs))
    apart = fit(LAWS["power-floor"], Observations.of({"parameters": sizes}, response))
    assert np.sqrt(together.covariance[2, 2]) > 1.7 * np.sqrt(apart.covariance[2, 2])


def line(rows: int, deviation: float = 0.02) -> tuple[Observations, np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Points of the law `power`, three a run, and the columns of 1 and log N over which it is a line in logarithms."""
    sizes = np.geomspace(1e6, 1e9, rows)
    noise = np.random.default_rng(2).normal(0, deviation, rows)
    points = Observations.of({"parameters": sizes}, 12 * sizes**-0.08 * np.exp(noise), np.arange(rows) // 3)
    return points, np.column_stack([np.ones(rows), np.log(sizes)])


def test_the_covariance_of_least_squares_is_that_of_clustered_regression() -> None:
    """Of a line in logarithms, with the correction of Cameron and Miller 2015 (eq. 12) for ten runs of three rows."""
    points, design = line(rows=30)
    fitted = fit(LAWS["power"], points, Settings(huber_delta=np.inf, bootstrap=0))
    coefficients = np.linalg.lstsq(design, np.log(points.response), rcond=None)[0]
    inverse = np.linalg.inv(design.T @ design)
    scores = (design * (np.log(points.response) - design @ coefficients)[:, None]).reshape(10, 3, 2).sum(axis=1)
    expected = inverse @ scores.T @ scores @ inverse * (10 / 9) * (29 / 28)
    assert fitted.estimates["alpha"] == pytest.approx(-coefficients[1])
    assert fitted.covariance[1, 1] == pytest.approx(expected[1, 1])


def test_errors_far_beyond_delta_are_those_of_least_absolute_deviations() -> None:
    """√(π/2) of those of least squares where noise is normal."""
    points, design = line(rows=6000)
    fitted = fit(LAWS["power"], replace(points, clusters=np.arange(6000)), Settings(huber_delta=1e-5, bootstrap=0))
    of_squares = 0.02 * np.linalg.inv(design.T @ design)[1, 1] ** 0.5
    assert fitted.covariance[1, 1] ** 0.5 == pytest.approx((np.pi / 2) ** 0.5 * of_squares, rel=0.05)


def test_the_condition_number_is_the_ratio_of_eigenvalues_between_correlated_parameters() -> None:
    points = observed(LAWS["power-floor"])
    fitted = fit(LAWS["power-floor"], points, Settings(bootstrap=0))
    slopes = Objective(LAWS["power-floor"].at(points.columns), points.response, 1e-3, "log").slopes(fitted.theta)
    unit = slopes / np.sqrt(np.sum(slopes**2, axis=0))
    least, *_, most = np.linalg.eigvalsh(unit.T @ unit)
    assert fitted.condition_number == pytest.approx(most / least, rel=1e-6)


def test_the_profile_of_a_line_is_student_s_interval() -> None:
    points, design = line(rows=9)
    fitted = fit(LAWS["power"], points, Settings(huber_delta=np.inf, bootstrap=0))
    error = (np.sum(fitted.residuals**2) / 7 * np.linalg.inv(design.T @ design)[1, 1]) ** 0.5
    low, high = fitted.profile("alpha").interval
    assert (low + high) / 2 == pytest.approx(fitted.estimates["alpha"], rel=1e-3)
    assert (high - low) / 2 == pytest.approx(t.ppf(0.975, 7) * error, rel=0.01)


def test_profile_of_least_squares_is_the_likelihood_interval() -> None:
    fitted = fit(CHINCHILLA, observed(CHINCHILLA), Settings(huber_delta=np.inf, bootstrap=400))
    low, high = fitted.profile("alpha").interval
    error = (fitted.resamples.theta[:, 3]).std()
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.2)
    assert low < fitted.estimates["alpha"] < high


@pytest.mark.slow
def test_profiles_of_few_rows_cover_the_truth_as_often_as_they_say() -> None:
    law, truth = LAWS["power-floor"], TRUTHS["power-floor"]
    columns = {"parameters": np.geomspace(1e6, 1e9, 10)}
    exact = law.predict(truth, columns)
    covered = []
    for seed in range(80):
        noise = np.random.default_rng(seed).normal(0, 0.002, 10)
        fitted = fit(law, Observations.of(columns, exact * np.exp(noise)), Settings(huber_delta=np.inf, bootstrap=0, starts=16))
        low, high = fitted.profile("alpha").interval
        covered.append(low <= truth["alpha"] <= high)
    assert 0.9 <= np.mean(covered) <= 0.99


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("delta", [1e-3, np.inf])
def test_a_law_that_is_zero_somewhere_is_infinitely_wrong_in_logarithms(delta: float) -> None:
    law = LAWS["power"]
    points = observed(law)
    objective = Objective(law.at(points.columns), points.response, delta, "log")
    theta = np.zeros((1, len(law.parameters)))
    assert np.isneginf(objective.residuals(theta)).all()
    assert objective.value(theta, np.ones((1, len(points)))) == [np.inf]


def test_a_floor_that_the_data_deny_is_on_its_bound() -> None:
    points = observed(LAWS["power"], noise=0.0)
    fitted = fit(LAWS["power-floor"], points, Settings(bootstrap=20))
    assert fitted.status == "on_bound"
    assert fitted.reasons == ("E is on its bound of 0",)
    assert (fitted.estimates["E"], fitted.intervals["E"]) == (0, (0, 0))
    assert fitted.condition_number == pytest.approx(
        fit(LAWS["power"], points, Settings(bootstrap=0)).condition_number, rel=1e-3
    )


def test_an_exponent_that_noise_hides_is_weakly_identified() -> None:
    sizes = np.geomspace(1e6, 2e6, 12)
    noise = np.random.default_rng(3).normal(0, 0.02, 12)
    fitted = fit(LAWS["power-floor"], Observations.of({"parameters": sizes}, 3.0 * np.exp(noise)))
    assert fitted.status in ("weakly_identified", "on_bound")


def test_terms_that_no_row_distinguishes_have_no_intervals() -> None:
    """Where tokens go as parameters, one power of both cannot be split."""
    law, sizes = LAWS["chinchilla-tied"], np.geomspace(1e6, 1e9, 40)
    columns = {"parameters": sizes, "tokens": 20 * sizes}
    fitted = fit(law, Observations.of(columns, law.predict(TRUTHS[law.name], columns)), Settings(bootstrap=20, starts=16))
    assert fitted.status == "weakly_identified"
    assert len(fitted.resampled) > 0
    assert fitted.intervals == {}


@pytest.mark.parametrize(("seeds", "identified"), [(2, False), (3, True)])
def test_curves_between_two_seeds_of_few_shapes_have_no_interval(seeds: int, identified: bool) -> None:
    """Every resample stayed at the estimate, so that the intervals were as narrow as rounding."""
    sizes = np.repeat([1e5, 1.2e5, 1.7e5, 2e5], seeds)
    off = np.tile([-0.02, 0.02, 0.005][:seeds], 4) * np.repeat([1, 1.2, 0.8, 1.1], seeds)
    points = Observations.of({"parameters": sizes}, (3 + 13 * sizes**-0.15) * np.exp(off), sizes.astype(int))
    fitted = fit(LAWS["power-floor"], points, Settings(bootstrap=100))
    assert bool(fitted.intervals) == identified
    assert fitted.status == "weakly_identified" or identified


def test_the_rows_farthest_off_are_reported_the_farthest_first() -> None:
    points = observed(LAWS["power"], rows=12)
    off = np.exp(np.where(np.arange(12) == 7, -0.3, np.where(np.arange(12) == 4, 0.2, 0)))
    fitted = fit(LAWS["power"], replace(points, response=points.response * off), Settings(bootstrap=0))
    residuals = fitted.to_dict()["residuals"]
    assert [one["row"] for one in residuals["largest"][:2]] == ["row 7", "row 4"]
    assert residuals["largest"][0]["residual"] == pytest.approx(0.3, abs=0.01)
    assert len(residuals["largest"]) == 5
    assert residuals["root_mean_square"] == pytest.approx(((0.3**2 + 0.2**2) / 12) ** 0.5, rel=0.05)


def test_the_covariance_of_one_cluster_which_is_rounding_is_saved_as_zero() -> None:
    """The gradients of all rows sum to zero at the estimate, in other last digits on other processors."""
    points = observed(LAWS["power"], rows=12)
    off = np.exp(np.random.default_rng(0).normal(0, 0.02, 12))
    alone = fit(
        LAWS["power"], replace(points, response=points.response * off, clusters=np.zeros(12, int)), Settings(bootstrap=0)
    )
    assert np.abs(alone.covariance).max() > 0
    assert not np.any(alone.to_dict()["covariance"])
    apart = fit(LAWS["power"], points, Settings(bootstrap=0))
    assert np.all(apart.to_dict()["covariance"])


def test_too_few_points_and_single_sizes_are_refused_at_once() -> None:
    points = Observations.of({"parameters": np.full(4, 1e6), "tokens": np.geomspace(1e8, 1e9, 4)}, np.full(4, 3.0))
    with pytest.raises(InputError) as refused:
        fit(CHINCHILLA, points)
    message = str(refused.value)
    assert "5 parameters need 6 or more different points, got 4" in message
    assert "parameters: is 1e+06 in all 4 rows" in message


def test_a_loss_that_is_the_same_everywhere_is_refused() -> None:
    """Its constants were reported with intervals that left out their own estimates."""
    points = observed(CHINCHILLA, rows=25)
    with pytest.raises(InputError, match="loss: is 3 in all 25 rows, so there is nothing for chinchilla to explain"):
        fit(CHINCHILLA, replace(points, response=np.full(25, 3.0)))


def test_replicates_of_few_sizes_do_not_make_a_law() -> None:
    sizes = np.repeat([1e6, 2e6, 4e6], 5)
    noise = np.random.default_rng(0).normal(0, 0.01, 15)
    points = Observations.of({"parameters": sizes}, 3 * sizes**-0.05 * np.exp(noise))
    with pytest.raises(InputError, match="3 parameters need 4 or more different points, got 3 in 15 rows"):
        fit(LAWS["power-floor"], points)


def test_forecast_holds_out_the_largest_runs_and_covers_them() -> None:
    actual = forecast(CHINCHILLA, observed(CHINCHILLA, noise=0.005), share=0.2)
    assert isinstance(actual, Forecast)
    assert 60 <= len(actual.labels) == 300 - actual.n_fitted < 70
    assert np.abs(actual.errors).mean() < 0.01
    assert 0.85 < actual.covered.mean() <= 1


def test_seeds_and_models_of_one_budget_are_held_out_together() -> None:
    sizes = np.repeat([1e6, 2e6, 4e6, 8e6, 7.8e6], 3)
    points = Observations.of({"parameters": sizes}, 3 * sizes**-0.05)
    assert select_largest_runs(points, 0.1).sum() == 6
    alike = Observations.of({"parameters": sizes * 0 + 1e6}, points.response)
    assert select_largest_runs(alike, 0.1).sum() == 15
    near = Observations.of({"parameters": np.array([9.2e5, 9.4e5, 9.6e5, 1e6])}, np.full(4, 3.0))
    assert select_largest_runs(near, 0.1).tolist() == [False, False, False, True]


def test_nothing_is_forecast_where_every_run_reaches_the_largest_budget() -> None:
    points = observed(CHINCHILLA, rows=48)
    every = np.arange(48) % 8
    budget = np.where(np.arange(48) < 8, 2.0, 1.0)
    actual = forecast(CHINCHILLA, replace(points, runs=every, budget=budget))
    assert actual == "none: every run reaches the largest budget, so no smaller one is left to forecast from"
    few = forecast(CHINCHILLA, replace(points, runs=every, budget=np.where(every < 4, budget, 1.0)).where(every != 5))
    assert isinstance(few, Forecast)


def test_runs_are_held_out_whole_and_the_forecast_is_of_what_lies_beyond_the_others() -> None:
    """Two of twenty runs go on to twice the budget of all others; their rows up to there are neither fitted nor forecast."""
    random = np.random.default_rng(0)
    runs, steps = np.repeat(np.arange(20), 4), np.tile([1, 2, 4, 8], 20)
    columns = {"parameters": 10 ** random.uniform(6, 8, 20)[runs], "tokens": 1e7 * steps * np.where(runs < 2, 2, 1)}
    loss = CHINCHILLA.predict(TRUTHS["chinchilla"], columns) * np.exp(random.normal(0, 0.005, 80))
    points = replace(Observations.of(columns, loss, runs), budget=columns["tokens"])
    actual = forecast(CHINCHILLA, points)
    assert isinstance(actual, Forecast)
    assert actual.n_fitted == 72
    assert actual.labels == ("row 3", "row 7")
    assert actual.extrapolation == 2
    assert "2 rows beyond the budgets fitted, up to 2 times the largest: mean |error|" in forecast_to_text(actual)


@pytest.mark.parametrize(
    ("clusters", "words"),
    [
        (range(18), "of 6 rows of 2 settings"),
        (np.repeat(range(6), 3), "of 6 rows of 2 runs"),
        ([*range(12), *[12] * 6], "of 6 rows of 1 run"),
    ],
)
def test_rows_that_miss_a_law_together_are_not_counted_as_drawn_apart(clusters: Sequence[int], words: str) -> None:
    """Six sizes of three seeds; the largest two are of one budget."""
    sizes = np.repeat([1e6, 2e6, 4e6, 8e6, 16e6, 17e6], 3)
    noise = np.exp(np.random.default_rng(0).normal(0, 0.003, 18))
    points = Observations.of({"parameters": sizes}, 3 * sizes**-0.05 * noise)
    actual = forecast(LAWS["power"], replace(points, clusters=np.array(clusters)), Settings(bootstrap=50, starts=4))
    assert isinstance(actual, Forecast)
    assert actual.coverage.endswith(words)
    assert forecast_to_text(actual).endswith(words)
    count, kind = words.removeprefix("of 6 rows of ").split()
    assert actual.to_dict()["apart"] == {"of": kind.rstrip("s"), "n": int(count)}


def test_residuals_of_a_forecast_are_widened_by_what_the_parameters_took() -> None:
    """Six parameters of eight rows leave a quarter of the residuals' variance; what was measured is predicted less residual."""
    np.testing.assert_allclose(Noise(np.full(8, 0.1), 6, 8).widened, 0.2)
    assert [Noise(np.full(8, 0.1), 6, clusters).freedom for clusters in (8, 2, 1)] == [2, 1, 1]
    many = Noise(np.full(10**6, 0.1), 6, 10**6)
    linear, log = (interval_of(np.full(2, 3.0), np.full((50, 2), 3.0), many, space, 0) for space in SPACES)
    np.testing.assert_allclose(linear, 3.0 - 0.1, rtol=1e-3)
    np.testing.assert_allclose(log, 3.0 * np.exp(-0.1), rtol=1e-3)


@pytest.mark.parametrize("space", SPACES)
def test_what_is_forecast_by_few_rows_has_students_interval(space: Space) -> None:
    """Residuals that are normal, whatever few degrees of freedom, and resamples that are sure."""
    random = np.random.default_rng(0)
    noise = Noise(random.normal(0, 0.1, 20_000), 0, 5)
    low, high = interval_of(np.array([3.0]), np.full((200_000, 1), 3.0), noise, space, 0)
    ends = [float(np.log(end[0] / 3) if space == "log" else end[0] - 3) for end in (low, high)]
    half = 0.1 * t.isf(0.025, 4)
    assert ends == pytest.approx([-half, half], rel=0.03)


@pytest.mark.slow
def test_forecasts_of_few_sizes_cover_as_often_as_they_say() -> None:
    """Seven sizes of a power, the largest forecast: by residuals and resamples alone 85 of 100 intervals held it."""
    law, draw, covered = LAWS["power"], np.random.default_rng(3), 0
    sizes = np.geomspace(1e5, 1e8, 7)
    for _ in range(100):
        points = Observations.of({"parameters": sizes}, 30 * sizes**-0.2 * np.exp(draw.normal(0, 0.005, 7)))
        actual = forecast(law, points, Settings(bootstrap=200, starts=2))
        assert isinstance(actual, Forecast)
        covered += int(actual.covered.sum())
    assert covered >= 91


@pytest.mark.parametrize(("relative", "errors", "mean"), [(True, [0.1, -0.2], "15.00%"), (False, [0.2, -0.8], "0.5000")])
def test_errors_of_a_forecast_are_shares_of_what_was_measured_or_differences(
    relative: bool, errors: list[float], mean: str
) -> None:
    none = np.full(2, np.nan)
    measured, predicted = np.array([2.0, 4.0]), np.array([2.2, 3.2])
    actual = Forecast("converged", 9, ("a", "b"), measured, predicted, none, none, 2.0, relative, (2, "run"))
    np.testing.assert_allclose(actual.errors, errors)
    assert actual.mean_error == mean
    assert not actual.covered.any()


def test_forecast_of_too_few_points_says_so() -> None:
    points = observed(CHINCHILLA, rows=6)
    assert "cannot be fitted" in str(forecast(CHINCHILLA, points))


def test_replicates_show_the_noise() -> None:
    sizes = np.repeat(np.geomspace(1e6, 1e9, 50), 4)
    response = 3 * sizes**-0.05 * np.exp(np.random.default_rng(0).normal(0, 0.01, 200))
    noise = replicate_noise(Observations.of({"parameters": sizes}, response))
    assert noise is not None
    assert noise.relative == pytest.approx(0.01, rel=0.15)
    assert (noise.groups, noise.degrees_of_freedom) == (50, 150)
    assert replicate_noise(observed(CHINCHILLA)) is None


def test_replicates_are_pooled_by_their_degrees_of_freedom() -> None:
    """Off their means by 0.1 twice, and by 0, 0.3 and 0.3; a size of its own says nothing."""
    sizes = np.array([1e6, 1e6, 2e6, 2e6, 2e6, 4e6])
    points = Observations.of({"parameters": sizes}, np.exp([1.1, 0.9, 2.0, 2.3, 1.7, 5.0]))
    noise = replicate_noise(points)
    assert noise is not None
    assert (noise.degrees_of_freedom, noise.groups) == (3, 2)
    assert noise.relative == pytest.approx((0.2 / 3) ** 0.5)
    assert replicate_noise(replace(points, response=points.response - points.response.min())) is None, "0 has no logarithm"


@pytest.mark.slow
def test_profiles_cover_where_delta_is_small_against_the_noise_of_few_rows() -> None:
    """The rows that a fit passes through say nothing of the noise: with them those of nine rows covered 0.3."""
    truth, draw, covered = TRUTHS["chinchilla"], np.random.default_rng(0), []
    sizes, tokens = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e7, 1e10, 3), np.geomspace(1e9, 1e12, 3)))
    columns = {"parameters": sizes, "tokens": tokens}
    for _ in range(40):
        loss = CHINCHILLA.predict(truth, columns) * np.exp(draw.normal(0, 0.02, 9))
        fitted = fit(CHINCHILLA, Observations.of(columns, loss), Settings(bootstrap=0, starts=8))
        ends = (fitted.profile(exponent).interval for exponent in ("alpha", "beta"))
        covered += [low <= truth[exponent] <= high for exponent, (low, high) in zip(("alpha", "beta"), ends, strict=True)]
    assert np.mean(covered) > 0.92


def test_two_runs_are_not_resampled_and_many_rows_of_few_runs_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(bootstrap=300, starts=8)
    fits = [fit(LAWS["power"], of_power(runs), settings) for runs in (2, 3)]
    assert [(one.resamples.method, len(one.resampled)) for one in fits] == [("none", 0), ("refit", 300)]
    assert fits[0].intervals == {}
    assert fits[1].predictions(fits[1].observations.columns, most=5).shape == (5, 12)
    monkeypatch.setattr(uncertainty, "ROWS_TO_REFIT", 11)
    assert len(fit(LAWS["power"], of_power(3), settings).resampled) == 200


def test_resamples_that_are_alike_are_refitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three clusters there are no more than C(5, 3) = 10 resamples, however many are drawn."""
    refitted = []

    def counted(*given: Any) -> Minima:
        refitted.append(len(given[1]))
        return minimise(*given)

    monkeypatch.setattr(uncertainty, "minimise", counted)
    points = of_power(3)
    fitted = fit(LAWS["power"], points, Settings(bootstrap=300, starts=8))
    assert refitted == [10]
    draws = uncertainty.draw_counts(3, 300, seed=0).astype(float)
    objective = estimation._objective(LAWS["power"], points, fitted.settings)
    each = minimise(objective, np.tile(fitted.theta, (300, 1)), draws[:, points.clusters])
    assert each.converged.all()
    np.testing.assert_allclose(fitted.resamples.theta, each.theta, rtol=1e-9)


def of_power(runs: int) -> Observations:
    """Twelve points of so many runs."""
    return replace(observed(LAWS["power"], rows=12), clusters=np.arange(12) % runs)


@pytest.mark.slow
def test_what_the_rows_of_a_cluster_miss_a_law_by_together_is_in_the_intervals() -> None:
    """Twelve shapes at three budgets, three seeds each, that scatter 0.5% about the law, and their seeds 0.1%."""
    law, covered, draw = LAWS["power"], {"run": 0, "shape": 0}, np.random.default_rng(0)
    shape = np.repeat(np.arange(12), 9)
    sizes = np.geomspace(1e5, 1e8, 12)[shape]
    for _ in range(20):
        scatter = draw.normal(0, 0.005, 12)[shape] + draw.normal(0, 0.001, len(shape))
        points = Observations.of({"parameters": sizes}, 30 * sizes**-0.2 * np.exp(scatter))
        for cluster, alone in (("run", points), ("shape", replace(points, clusters=shape))):
            low, high = fit(law, alone, Settings(bootstrap=200, starts=4)).intervals["alpha"]
            covered[cluster] += low <= 0.2 <= high
    assert covered["run"] <= 14
    assert covered["shape"] >= 17


@pytest.mark.slow
def test_intervals_of_few_clusters_cover() -> None:
    """Six shapes of six runs that scatter 0.4% about the law, and their runs as much about their shape."""
    covered, draw, shape = 0, np.random.default_rng(0), np.repeat(np.arange(6), 6)
    sizes = np.geomspace(1e5, 1e7, 6)[shape]
    for _ in range(100):
        scatter = draw.normal(0, 0.004, 6)[shape] + draw.normal(0, 0.004, 36)
        points = Observations.of({"parameters": sizes}, 20 * sizes**-0.1 * np.exp(scatter), shape)
        low, high = fit(LAWS["power"], points, Settings(bootstrap=200, starts=4)).intervals["alpha"]
        covered += low <= 0.1 <= high
    assert covered >= 93


def test_the_expanded_interval_of_a_mean_is_students() -> None:
    values = np.random.default_rng(0).normal(size=10)
    means = uncertainty.draw_counts(10, 100_000, seed=0) @ values / 10
    bounds = uncertainty.percentile_interval(means, uncertainty.expanded_tail(10, 1, 10))
    assert bounds == pytest.approx(t.interval(0.95, 9, values.mean(), values.std(ddof=1) / 10**0.5), abs=0.03)


@pytest.mark.slow
def test_a_law_that_misses_its_settings_is_distinguished_from_noise() -> None:
    """Under the law p is uniform and the ratio about 1; settings that scatter thrice as far as seeds are found out."""
    draw, sizes = np.random.default_rng(0), np.repeat(np.geomspace(1e5, 1e8, 12), 3)
    actual: dict[float, list[LackOfFit]] = {0.0: [], 0.006: []}
    for apart, one in ((apart, one) for apart, one in actual.items() for _ in range(100)):
        scatter = np.repeat(draw.normal(0, apart, 12), 3) + draw.normal(0, 0.002, 36)
        points = Observations.of({"parameters": sizes}, 30 * sizes**-0.2 * np.exp(scatter))
        fitted = fit(LAWS["power"], points, Settings(huber_delta=np.inf, bootstrap=0, starts=2))
        noise = replicate_noise(points)
        assert noise is not None
        misfit = measure_lack_of_fit(fitted.residuals, 2, noise)
        assert misfit is not None
        one.append(misfit)
    assert 1 <= sum(misfit.p_value < 0.05 for misfit in actual[0.0]) <= 11
    assert np.median([misfit.ratio for misfit in actual[0.0]]) == pytest.approx(1, rel=0.15)
    assert sum(misfit.p_value < 0.05 for misfit in actual[0.006]) >= 98
    assert np.median([misfit.ratio for misfit in actual[0.006]]) == pytest.approx(np.sqrt(1 + 3 * 3**2), rel=0.15)


def test_a_misfit_is_that_of_least_squares_whatever_loss_the_law_is_fitted_by() -> None:
    """F is of squares: those of any other fit are more, so that a law that is right would be found wrong too often."""
    draw, sizes = np.random.default_rng(0), np.repeat(np.geomspace(1e5, 1e7, 6), 3)
    points = Observations.of({"parameters": sizes}, (1.7 + 150 * sizes**-0.3) * np.exp(draw.normal(0, 0.01, 18)))
    robust, squares = (fit(LAWS["power-floor"], points, Settings(delta, bootstrap=0)) for delta in (1e-3, np.inf))
    assert np.sum(robust.residuals**2) > 1.01 * np.sum(squares.residuals**2)
    noise = replicate_noise(points)
    assert noise is not None
    actual, expected = (
        LawFit(Mock(), 0.1, robust, {}, noise, "none").lack_of_fit,
        measure_lack_of_fit(squares.residuals, 3, noise),
    )
    assert actual is not None
    assert expected is not None
    assert (actual.ratio, actual.p_value) == pytest.approx((expected.ratio, expected.p_value), rel=1e-4)


def test_no_misfit_is_reported_where_settings_are_as_many_as_parameters_or_replicates_agree() -> None:
    assert measure_lack_of_fit(np.full(4, 0.1), 2, ReplicateNoise(0.1, 2, 2)) is None
    assert measure_lack_of_fit(np.full(9, 0.1), 2, ReplicateNoise(0.0, 3, 3)) is None


def test_rows_that_are_predicted_alike_have_one_interval() -> None:
    centres = np.random.default_rng(0).normal(3, 0.1, (300, 1)).repeat(3, axis=1)
    noise = Noise(np.array([-0.1, 0.0, 0.1, 0.02]), 2, 4)
    low, high = interval_of(np.full(3, 3.0), centres, noise, "linear", 0)
    assert len({*low.tolist()}) == len({*high.tolist()}) == 1


def test_draws_from_the_sandwich_stay_within_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertainty, "ROWS_TO_REFIT", 11)
    monkeypatch.setattr(uncertainty, "CLUSTERS_FOR_SANDWICH", 12)
    sizes = np.geomspace(1e6, 2e6, 12)
    noise = np.random.default_rng(3).normal(0, 0.02, 12)
    fitted = fit(LAWS["power"], Observations.of({"parameters": sizes}, 3 * sizes**-0.01 * np.exp(noise)), Settings(starts=8))
    assert fitted.resamples.method == "sandwich"
    alphas = fitted.resamples.theta[:, 1]
    assert alphas.min() == 0
    assert 0.1 < (alphas > 0).mean() < 1


def test_resamples_that_did_not_converge_are_counted_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def but_for(each: int) -> Callable[..., Minima]:
        def minimised(*given: Any) -> Minima:
            actual = minimise(*given)
            return replace(actual, converged=np.arange(len(actual.theta)) % each != 0)

        return minimised

    monkeypatch.setattr(uncertainty, "minimise", but_for(30))
    actual = fit(LAWS["power"], observed(LAWS["power"]), Settings(bootstrap=60)).resamples
    numbers = [number for number in range(60) if number % 30]
    assert (len(actual.theta), actual.failed, actual.numbers.tolist()) == (58, 2, numbers)
    monkeypatch.setattr(uncertainty, "minimise", but_for(10))
    few = fit(LAWS["power"], observed(LAWS["power"]), Settings(bootstrap=60))
    assert (len(few.resampled), few.resamples.failed, few.intervals) == (0, 60, {}), "none is used where many are lost"
    assert few.reasons == ("more than 5% of 60 resamples did not converge",)


@pytest.mark.slow
def test_hundred_thousand_rows_are_fitted_in_seconds() -> None:
    began = perf_counter()
    fitted = fit(CHINCHILLA, observed(CHINCHILLA, rows=100_000, noise=0.01))
    assert fitted.status == "converged"
    assert fitted.resamples.method == "sandwich"
    assert perf_counter() - began < 30


@pytest.mark.slow
def test_runs_of_many_rows_tell_no_more_than_their_number() -> None:
    widths = {}
    for rows in (20, 200):
        points = of_runs(20, rows)
        fitted = fit(CHINCHILLA, points, Settings(bootstrap=100, starts=8))
        assert fitted.resamples.method == "refit"
        low, high = fitted.intervals["alpha"]
        widths[rows] = high - low
    assert widths[200] == pytest.approx(widths[20], rel=0.3)
    assert fit(CHINCHILLA, of_runs(100, 120), Settings(bootstrap=2, starts=8)).resamples.method == "sandwich"


def test_memory_of_refits_does_not_grow_with_rows_times_refits() -> None:
    points = of_runs(20, 500)
    tracemalloc.start()
    fitted = fit(CHINCHILLA, points, Settings(bootstrap=200, starts=2))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (fitted.n, fitted.resamples.method) == (10_000, "refit")
    assert peak < 200 * 10_000 * 8


def of_runs(runs: int, rows: int) -> Observations:
    """Checkpoints of runs of different sizes, each run off the law by an amount of its own."""
    random = np.random.default_rng(3)
    columns = {
        "parameters": np.repeat(np.geomspace(7e7, 1e10, runs), rows),
        "tokens": np.tile(np.geomspace(1e9, 3e11, rows), runs),
    }
    noise = np.repeat(random.normal(0, 0.005, runs), rows)
    losses = CHINCHILLA.predict(TRUTHS["chinchilla"], columns) * np.exp(noise)
    return Observations.of(columns, losses, np.repeat(np.arange(runs), rows))
