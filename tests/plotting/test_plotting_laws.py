"""What the figures of a law show, and that the same table gives the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Annotation

from study.base.errors import InputError
from study.base.quantities import EQUAL_SPAN, budget_words, compact, compact_flops, tick
from study.config.recipe import Budget
from study.evidence.evidence import gather
from study.evidence.ledgers import open_ledger
from study.evidence.sweep_laws import fit_ledger
from study.laws import multiverse
from study.laws.approaches import Frontiers, frontiers
from study.laws.estimation import Settings
from study.laws.forecasting import Forecast
from study.laws.frontiers import Best, Frontier
from study.laws.law_files import read_options
from study.laws.law_fits import LawFit, fit_table
from study.laws.observations import Observations
from study.laws.predicting import fit_to_dict, predict
from study.laws.reading import TableQuery
from study.laws.tables import RunTable
from study.plotting import compute_optimal, forecast_against_truth, law_fit, loss_by_shape
from study.plotting.law_figures import _exponents, draw_all, frame_of_sweep, targets_of
from study.plotting.style import finding_of, log_ticks, panels, save_in, theme
from tests.figures import title_of
from tests.laws.test_frontiers import best, iso_flop_runs
from tests.synthetic import SHAPES, add_run, depth_or_width, goal_path, reshaped, run_config, sweep_folder, with_facts

pytestmark = pytest.mark.usefixtures("few_resamples")

ROLES = {"parameters": "N", "flops": "C", "tokens": "C/(6*N)"}


def written_table(folder: Path) -> Path:
    parameters, flops, loss = iso_flop_runs(noise=0.001)
    pd.DataFrame({"N": parameters, "C": flops, "loss": loss}).to_csv(folder / "runs.csv", index=False)
    return folder / "runs.csv"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return written_table(tmp_path)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, few_resamples: None) -> LawFit:
    source = TableQuery(RunTable.read(written_table(tmp_path_factory.mktemp("found"))), ROLES)
    return fit_table(source, "chinchilla", Settings(bootstrap=200))


@pytest.fixture
def all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The multiverse leaves no rows out, and so takes a third of its time."""
    monkeypatch.setattr(multiverse, "_TRIMS", {"all rows": lambda points: points})


def test_law_fit_shows_every_row_at_every_variable(fitted: LawFit) -> None:
    data = law_fit.frame(fitted)
    data = data[data["kind"] == "measured"]
    assert data.groupby("variable").size().to_dict() == {"parameters": 63, "tokens": 63, "budget": 63}
    one = data[data["variable"] == "tokens"]
    assert one["forecast"].sum() == 9  # all of the largest budget
    without = law_fit.frame(replace(fitted, forecast="none: too few rows"))
    assert not without["forecast"].any()
    np.testing.assert_allclose(np.log(one["law"] / one["measured"]), one["residual"], rtol=1e-9, atol=1e-12)
    assert ((one["low"] <= one["law"]) & (one["law"] <= one["high"])).all()


def test_curves_are_the_law_at_levels_of_the_other_variable_within_its_interval(fitted: LawFit) -> None:
    data = law_fit.frame(fitted)
    curves = data[data["kind"] == "curve"]
    assert {(row.variable, row.by) for row in curves.itertuples()} == {("parameters", "tokens"), ("tokens", "parameters")}
    for (name, level), curve in curves.groupby(["variable", "level"]):
        by = curve["by"].iloc[0]
        at = {str(name): curve["size"].to_numpy(), by: np.full(len(curve), level)}
        np.testing.assert_allclose(curve["law"], fitted.fit.predict(at))
        assert curve["law"].is_monotonic_decreasing, "more of either lowers the loss"
        assert ((curve["low"] <= curve["law"]) & (curve["law"] <= curve["high"])).all()
    assert curves.groupby("variable")["level"].nunique().to_dict() == {"parameters": law_fit.CURVES, "tokens": law_fit.CURVES}
    panel = law_fit.draw(data).axes[0]
    lines = [line for line in panel.get_lines() if len(np.asarray(line.get_xdata())) > 9]
    assert [line.get_linestyle() for line in lines] == [":", "-"] * law_fit.CURVES
    assert "alpha " in data["title"].iloc[0].splitlines()[1], "the exponents stand in the title"


def test_curves_reach_beyond_the_runs_and_their_band_widens_there_by_what_held_out_runs_missed(fitted: LawFit) -> None:
    """Where all is as forecast the band is the law's own interval; after a miss it is wider beyond the budgets alone."""
    assert isinstance(fitted.forecast, Forecast)
    fitted = replace(fitted, forecast=replace(fitted.forecast, measured=fitted.forecast.predicted, widening=1.0))
    assert isinstance(fitted.forecast, Forecast)
    missed = replace(fitted.forecast, measured=1.1 * fitted.forecast.measured)
    assert missed.missed_by > 2
    calm, wary = (law_fit.frame(replace(fitted, forecast=forecast)) for forecast in (fitted.forecast, missed))
    assert (calm["widening"] == 1).all()
    assert (wary["widening"] == missed.missed_by).all()
    curves, wider = calm[calm["kind"] == "curve"], wary[wary["kind"] == "curve"]
    largest = fitted.fit.observations.budget.max()
    budget = 6 * curves["size"] * curves["level"]
    assert (curves["beyond"] == (budget > largest * EQUAL_SPAN)).all()
    for name, values in fitted.fit.observations.columns.items():
        assert curves.loc[curves["variable"] == name, "size"].max() == pytest.approx(law_fit.REACH * values.max())
    for end in ("low", "high"):
        own, wide = (np.log(one[end] / one["law"]) for one in (curves, wider))
        np.testing.assert_allclose(wide, own * np.where(curves["beyond"], missed.missed_by, 1.0), atol=1e-12)
    for data, said in ((calm, "beyond the budgets fitted"), (wary, f"its interval {missed.missed_by:.2g} times as wide")):
        drawn = law_fit.draw(data)
        assert any(said in text.get_text() for text in drawn.legends[0].get_texts())
        (band, *_) = drawn.axes[0].collections
        edge = np.asarray(band.get_paths()[0].vertices)[:, 1]
        first = data[(data["kind"] == "curve") & (data["variable"] == "parameters")]
        assert edge.max() == pytest.approx(first.loc[first["level"] == first["level"].min(), "high"].max())


AT = "N=7e10,D=1.4e13"


def test_a_target_has_the_numbers_of_study_predict_and_ends_the_dashed_curve_of_the_law(fitted: LawFit, tmp_path: Path) -> None:
    (tmp_path / "fit.json").write_text(json.dumps(fit_to_dict(fitted)))
    prediction = predict(tmp_path / "fit.json", {"parameters": np.array([7e10]), "tokens": np.array([1.4e13])}).points[0]
    data = law_fit.frame(fitted, targets_of(fitted, [AT]))
    stars, ways = (data[data["kind"] == kind] for kind in ("target", "approach"))
    sizes = dict(zip(stars["variable"], stars["size"], strict=True))
    assert sizes == {"parameters": 7e10, "tokens": 1.4e13}, "a target does not give the budget, which is a column here"
    assert {*stars[["law", "low", "high"]].itertuples(index=False, name=None)} == {
        (prediction.value, prediction.low, prediction.high)
    }
    for name, way in ways.groupby("variable"):
        measured = fitted.fit.observations.columns[str(name)]
        assert (way["size"].min(), way["size"].max()) == pytest.approx((measured.min(), sizes[str(name)]))
        assert way["law"].iloc[-1] == pytest.approx(prediction.value, rel=1e-4)
        assert way["beyond"].all(), "the other variable is beyond its range everywhere"
    drawn = law_fit.draw(data)
    said = f"loss {prediction.value:.4g} (95% {prediction.low:.4g} to {prediction.high:.4g})"
    assert title_of(drawn).startswith(f"Forecast at the target: {said}")
    key = " ".join(" ".join(text.get_text() for text in drawn.legends[0].get_texts()).split())
    assert f"{said} at 70B parameters, 14T tokens, by the law" in key
    for panel in drawn.axes[:2]:
        (star,) = [line for line in panel.get_lines() if line.get_marker() == "*"]
        low, high = panel.get_ylim()
        assert low < float(np.asarray(star.get_ydata())[0]) < high
    assert [line.get_linestyle() for line in drawn.axes[0].get_lines()].count("--") == 1


def test_a_target_within_what_was_measured_ends_a_solid_curve_and_has_the_budget_that_its_sizes_give(table: Path) -> None:
    query = TableQuery(RunTable.read(table), {"parameters": "N", "tokens": "C/(6*N)"})
    fitted = fit_table(query, "chinchilla", Settings(bootstrap=0))
    data = law_fit.frame(fitted, targets_of(fitted, ["N=1e8,D=1e10"]))
    assert not data.loc[data["kind"] == "approach", "beyond"].any()
    stars = data[data["kind"] == "target"].set_index("variable")
    assert stars["size"]["budget"] == pytest.approx(6 * 1e8 * 1e10)
    assert stars["low"].isna().all()
    drawn = law_fit.draw(data)
    assert finding_of(drawn).endswith("(no interval); the law has no band, as its rows are not resampled")
    colours = [next(line.get_color() for line in panel.get_lines() if line.get_marker() == "*") for panel in drawn.axes[:3]]
    assert colours[0] == colours[2] != colours[1]


def test_a_target_that_cannot_be_read_or_a_law_without_constants_is_refused(fitted: LawFit) -> None:
    with pytest.raises(InputError, match="Target: tokens is missing in 'N=1e9'"):
        targets_of(fitted, ["N=1e9"], "Target")
    with pytest.raises(InputError, match="ended on a bound"):
        targets_of(replace(fitted, fit=replace(fitted.fit, status="on_bound")), [AT])


def test_no_colour_of_the_law_means_two_things(fitted: LawFit) -> None:
    """Tokens have one colour in every panel that does not have them on its axis, where sizes have another scale."""
    drawn = law_fit.draw(law_fit.frame(fitted, targets_of(fitted, [AT])))
    by_size, by_tokens, by_flops = drawn.axes[:3]
    points = [{*map(tuple, np.asarray(panel.collections[-1].get_facecolor()).tolist())} for panel in drawn.axes[3:6]]
    assert points[0] == points[2] != points[1]
    assert not points[0] & points[1]
    laws = [[line for line in panel.get_lines() if len(np.asarray(line.get_xdata())) > 9] for panel in (by_size, by_tokens)]
    colours = [{to_hex(line.get_color()) for line in lines} for lines in laws]
    assert not colours[0] & colours[1]
    titles = [panel.get_legend().get_title().get_text() for panel in (by_size, by_tokens, by_flops)]  # type: ignore[union-attr]
    assert titles == ["colour: tokens", "colour: parameters,\nsince tokens lie across", "colour: tokens"]


def test_the_law_of_a_sweep_leads_to_what_its_goal_forecasts(tmp_path: Path) -> None:
    folder = depth_or_width(
        tmp_path / "s", shapes=tuple((1, width) for width in (48, 64, 92, 128, 184)), budgets=(1e6, 2e6, 4e6), seeds=1
    )
    folder.write_ledger()
    evidence = with_facts(gather(folder), goal=goal_path())
    data = frame_of_sweep(evidence)
    stars = data[data["kind"] == "target"].set_index("variable")
    assert stars["size"].to_dict() == {"parameters": 4e6, "tokens": 4e7}, "the budget is a column, which a goal does not name"
    assert stars["axis"].isna().all()
    assert "parameters (parameters_non_embedding)" in set(data["axis"]), "as the goal counts"
    assert stars["law"].eq(3.0).all()
    np.testing.assert_allclose(stars[["low", "high"]], 3 * np.exp([[-0.04, 0.04]] * 2))
    assert stars["row"].str.endswith("by the sweep's goal").all()
    for other in (None, goal_path(forecast_nats=None), goal_path(looks=())):
        plain = frame_of_sweep(with_facts(evidence, goal=other))
        assert "target" not in set(plain["kind"])
        assert "parameters" in set(plain["axis"])


def test_a_curve_without_an_interval_has_no_band_and_an_unusable_law_ends_with_its_runs(table: Path, fitted: LawFit) -> None:
    bare = law_fit.frame(fit_table(TableQuery(RunTable.read(table), ROLES), "chinchilla", Settings(bootstrap=0)))
    assert bare["low"].isna().all()
    on_bound = law_fit.frame(replace(fitted, fit=replace(fitted.fit, status="on_bound")))
    curves = on_bound[on_bound["kind"] == "curve"]
    assert curves["low"].isna().all()
    assert curves.groupby("variable")["size"].max().to_dict() == pytest.approx(
        {name: values.max() for name, values in fitted.fit.observations.columns.items()}
    )


def test_a_law_of_one_variable_has_one_curve(table: Path) -> None:
    data = law_fit.frame(fit_table(TableQuery(RunTable.read(table), {"parameters": "N"}), "power-floor", Settings(bootstrap=0)))
    curve = data[data["kind"] == "curve"]
    assert set(curve["variable"]) == {"parameters"}
    assert curve["level"].isna().all()
    assert curve["size"].is_monotonic_increasing


@pytest.mark.slow
def test_curves_over_columns_of_one_s_own_say_what_is_held_and_repeat_no_budget(table: Path) -> None:
    runs = pd.read_csv(table)
    experts = 2.0 ** (np.arange(len(runs)) % 3)
    own = pd.DataFrame({"dense": runs["N"], "experts": experts, "tokens": runs["C"] / runs["N"], "loss": runs["loss"]})
    fitted = fit_table(TableQuery(RunTable(table, own), {}), "E + A*dense^-a*experts^-g + B*tokens^-b", Settings(bootstrap=0))
    data = law_fit.frame(fitted)
    assert set(data["variable"]) == {"dense", "experts", "tokens"}, "tokens order the runs, and have a panel already"
    drawn = law_fit.draw(data)
    titles = [legend.get_title().get_text() for panel in drawn.axes[:3] if (legend := panel.get_legend()) is not None]
    assert len(titles) == 3
    assert titles[0] == f"colour: tokens\nat experts {compact(np.exp(np.log(experts).mean()))}"
    assert " ".join(titles[2].split()).startswith("colour: dense, since tokens lie across at ")
    assert all("\nat " in title for title in titles)
    assert not any("new runs" in text.get_text() for text in drawn.legends[0].get_texts())


def test_a_column_with_values_below_zero_has_a_curve_over_all_of_them() -> None:
    compute = np.linspace(-1, 3, 24)
    runs = pd.DataFrame({"log_compute": compute, "loss": 0.05 * (compute - 1) ** 2 - 0.1})
    settings = Settings(bootstrap=0, space="linear", starts=16)
    data = law_fit.frame(fit_table(TableQuery(RunTable(Path("t.csv"), runs)), "y + k*(log_compute - m)^2", settings))
    curve = data[(data["kind"] == "curve") & (data["variable"] == "log_compute")]
    assert (curve["size"].min(), curve["size"].max()) == (-1, 3)
    assert law_fit.draw(data).axes[0].get_xscale() == "linear"


@pytest.mark.slow
def test_axes_name_the_columns_of_a_ledger_that_a_law_reads_and_predicts(tmp_path: Path) -> None:
    shapes = tuple((1, width) for width in (48, 64, 92, 128, 184))
    folder = depth_or_width(tmp_path / "s", shapes=shapes, budgets=(1e6, 2e6, 4e6), seeds=1)
    folder.write_ledger()
    law = fit_ledger(open_ledger(folder.path), "chinchilla", "parameters_non_embedding", "train_flops")
    data = law_fit.frame(law)
    assert set(data["axis"].dropna()) == {"parameters (parameters_non_embedding)", "tokens", "budget (train_flops)"}
    assert set(data["predicts"]) == set(forecast_against_truth.frame(law)["predicts"]) == {"loss (loss_nats)"}


@pytest.mark.slow
def test_wide_intervals_are_cut_and_do_not_scale_the_axis(fitted: LawFit) -> None:
    data = law_fit.frame(fitted)
    wide = data.assign(high=data["high"].where(data.index > 0, 2400.0))
    for rows, cut in ((data, False), (wide, True)):
        figure = law_fit.draw(rows)
        bottom, top = figure.axes[0].get_ylim()
        values = rows.loc[(rows["kind"] == "measured") | rows["beyond"].astype(bool), ["measured", "law"]].to_numpy(dtype=float)
        least, most = np.nanmin(values), np.nanmax(values)
        assert least - 1.1 * (most - least) < bottom < least
        assert most < top < most + 1.1 * (most - least)
        assert any("cut at the axis" in text.get_text() for text in figure.legends[0].get_texts()) is cut


def test_forecast_shows_the_rows_held_out(fitted: LawFit) -> None:
    data = forecast_against_truth.frame(fitted)
    assert len(data) == 9
    inside = (data["low"] <= data["measured"]) & (data["measured"] <= data["high"])
    assert (data["interval"] == np.where(inside, "interval covers", "interval misses")).all()
    assert "mean |error| " in data["caption"].iloc[0]
    assert data["caption"].iloc[0].endswith("%, n = 9")


def test_a_forecast_without_resamples_says_that_it_has_no_interval(tmp_path: Path) -> None:
    parameters, flops, loss = iso_flop_runs(noise=0.001)
    pd.DataFrame({"N": parameters, "C": flops, "loss": loss}).to_csv(tmp_path / "runs.csv", index=False)
    source = TableQuery(RunTable.read(tmp_path / "runs.csv"), {"tokens": "C/(6*N)"})
    data = forecast_against_truth.frame(fit_table(source, "chinchilla", Settings(bootstrap=0)))
    assert set(data["interval"]) == {"no interval"}
    (legend,) = forecast_against_truth.draw(data).legends
    assert [text.get_text() for text in legend.get_texts()] == ["predicted = measured", "no interval"]


def test_best_parameters_lie_on_the_lines_of_their_approaches(table: Path) -> None:
    optimal = frontiers(TableQuery(RunTable.read(table), {"parameters": "N", "flops": "C"}))
    data = compute_optimal.frame(optimal)
    for name, one in optimal.approaches.items():
        assert isinstance(one, Frontier)
        rows = data[data["approach"] == name]
        line = rows[rows["kind"] == "line"]
        slope = np.diff(np.log(line["parameters"])) / np.diff(np.log(line["flops"]))
        assert slope == pytest.approx(one.exponent)
        assert rows.loc[rows["kind"] == "best", "inside"].tolist() == [best.inside for best in one.best]
        assert f"C^{one.exponent:.2f} (" in rows["caption"].iloc[0]
    assert (data["flops"].min(), data["flops"].max()) == pytest.approx(optimal.budgets, rel=0.1)
    figure = compute_optimal.draw(data)
    assert figure.axes[0].get_ylabel() == "best parameters N* (N)"
    assert ("hollow" in title_of(figure)) == (data["inside"] == 0).any()
    assert len(figure.legends[0].get_texts()) == len(optimal.approaches)


def test_a_line_that_hardly_anything_determines_says_so_and_what_is_refused_is_not_drawn() -> None:
    best = (Best(1e15, 1e6, 3.0, True), Best(2e15, 2e6, 2.9, False))
    weak = Frontier("envelope", 0.0, np.log(1e6), None, best, "6·N·D", "weakly_identified", ("few",))
    data = compute_optimal.frame(Frontiers({"envelope": weak, "hull": "refused"}, (1e15, 2e15), "N"))
    assert set(data["caption"]) == {"envelope: N* ∝ C^0.00, C = 6·N·D, weakly identified"}
    assert "hollow" in title_of(compute_optimal.draw(data))
    alone = compute_optimal.frame(Frontiers({"parametric": replace(weak, best=())}, (1e15, 2e15), "N"))
    assert set(alone["kind"]) == {"line"}
    assert "hollow" not in title_of(compute_optimal.draw(alone))


def test_valleys_have_their_minima_where_the_law_has_them() -> None:
    parameters, flops, loss = iso_flop_runs()
    points = Observations.of({"parameters": parameters, "flops": flops}, loss)
    data = compute_optimal.valleys(points)
    minima = data[data["kind"] == "minimum"]
    assert (data["kind"] == "run").sum() == 63
    np.testing.assert_allclose(minima["parameters"], best(minima["flops"].to_numpy()), rtol=0.1)


def test_valleys_name_their_budgets_and_say_why_one_has_no_star() -> None:
    parameters, flops, loss = iso_flop_runs()
    budgets = np.unique(flops)
    smallest, largest = flops == budgets[0], flops == budgets[-1]
    kept = ~(smallest & (parameters < 1.2 * best(flops))) & ~(largest & (parameters > 0.8 * best(flops)))
    points = Observations.of({"parameters": parameters[kept], "flops": flops[kept]}, loss[kept])
    data = compute_optimal.valleys(points)
    assert (data["kind"] == "minimum").sum() == 5
    drawn = compute_optimal.draw_valleys(data)
    key = {text.get_text(): line for text, line in zip(drawn.legends[0].get_texts(), drawn.legends[0].get_lines(), strict=True)}
    named = [name for name in key if "FLOPs" in name]
    assert [name.partition(" FLOPs")[0] for name in named] == [compact_flops(budget) for budget in budgets]
    assert [name.partition(" (")[2] for name in named] == [
        "no star: best at smallest sizes)",
        *[""] * 5,
        "no star: best at largest sizes)",
    ]
    shown = [line.get_color() for line in drawn.axes[0].get_lines() if line.get_marker() == "o"]
    assert [key[name].get_color() for name in named] == shown
    assert title_of(drawn).endswith("\nbudgets of 1.0e18 to 1.0e22 FLOPs")


@pytest.mark.slow
def test_an_axis_of_flops_has_prefixes_up_to_t_and_then_powers_of_ten(fitted: LawFit) -> None:
    drawn = law_fit.draw(law_fit.frame(fitted))
    drawn.draw_without_rendering()
    (axes,) = (axes for axes in drawn.axes if axes.get_xlabel().startswith("budget"))
    assert {"1e18", "1e20", "1e22"} <= {label.get_text() for label in axes.get_xticklabels()}
    assert [tick(value, 5e14) for value in (200e3, 3e12, 100e12)] == ["200k", "3T", "100T"]
    assert [tick(value, 3e21) for value in (5e8, 200e12, 1.2e15, 2e21)] == ["5e8", "2e14", "1.2e15", "2e21"], (
        "one axis, one form"
    )
    assert [compact(value) for value in (0, 250, 2.5, 85_054_464, 1.5e9, 1e12, 1.25e18)] == [
        "0",
        "250",
        "2.5",
        "85.1M",
        "1.5B",
        "1.0T",
        "1.2e18",
    ]


@pytest.mark.parametrize(
    ("title", "labels"),
    [
        ("parameters_non_embedding", ["500M", "1B", "2B", "5B"]),
        ("training FLOPs (train_flops: the head at masked positions)", ["500M", "1G", "2G", "5G"]),
        ("budget (6·N·D)", ["500M", "1G", "2G", "5G"]),
    ],
)
def test_parameters_and_tokens_are_counted_in_billions_and_flops_in_si(title: str, labels: list[str]) -> None:
    figure, axes = panels(["above", "below"], title, "loss", columns=1)
    for panel in axes:
        panel.plot([5e8, 5e9], [3.0, 2.0])
    log_ticks(axes[0])
    figure.draw_without_rendering()
    assert [text for label in axes[1].get_xticklabels() if (text := label.get_text()) in (*labels, "1B", "1G")] == labels


@pytest.mark.parametrize(("low", "high"), [(2e14, 6e15), (1e14, 6e14), (8e6, 3e7), (5e11, 1e13)])
def test_labels_of_ticks_stand_apart_in_narrow_panels(low: float, high: float) -> None:
    with theme():
        figure, axes = panels(["one", "two", "three"], "FLOPs of pre-training", "score", columns=3)
        for panel in axes:
            panel.plot([low, high], [0.2, 0.4])
            log_ticks(panel)
        figure.draw_without_rendering()
    for panel in axes:
        shown = [tick.label1.get_window_extent() for tick in panel.xaxis.get_major_ticks()]
        within = [box for box, at in zip(shown, panel.get_xticks(), strict=True) if np.prod(np.sign(panel.get_xlim() - at)) < 0]
        assert len(within) >= 2
        assert all(left.x1 < right.x0 for left, right in pairwise(within))


@pytest.mark.parametrize(
    ("unit", "amounts"),
    [
        ("tokens", {1e6: "1M", 1.04e6: "1.04M", 2**20: "1,048,576", 1.25e9: "1.25B", 2e9: "2B"}),
        ("steps", {0: "0", 250: "250", 1024: "1.024k", 1050: "1.05k"}),
        ("flops", {2e9: "2G", 1.25e12: "1.25T", 3e15: "3e15", 1.5e18: "1.5e18"}),
        ("tokens_per_parameter", {0.5: "0.5", 12.25: "12.25", 20: "20"}),
    ],
)
def test_a_budget_is_written_as_it_was_given(unit: str, amounts: dict[float, str]) -> None:
    budgets = [Budget.model_validate({unit: amount}) for amount in amounts]
    assert [budget_words(budget) for budget in budgets] == [f"{words} {budgets[0].unit}" for words in amounts.values()]


def test_shapes_are_mapped_with_contours_of_equal_parameters(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made_up", budgets=(1e6,), seeds=1)
    folder.write_ledger()
    data = loss_by_shape.frame(gather(folder))
    cells, lines = data[data["kind"] == "cell"], data[data["kind"] == "contour"]
    assert sorted(zip(cells["depth"], cells["width"], strict=True)) == sorted(SHAPES)
    ends = lines.groupby("parameters")["width"].agg(["min", "max"])
    np.testing.assert_allclose(ends.loc[ends.index.min()], [64, 128], rtol=0.05)
    np.testing.assert_allclose(ends.loc[ends.index.max()], [92, 184], rtol=0.05)
    axes = loss_by_shape.draw(data).axes[0]
    assert axes.get_xticks().tolist() == sorted(cells["width"].unique())
    assert {text.get_text() for text in axes.texts} >= {compact(level) for level in lines["parameters"].unique()}
    low, high = axes.get_xlim()
    assert all(low <= text.xy[0] <= high for text in axes.texts if isinstance(text, Annotation))


def test_a_single_depth_has_no_map(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made_up", shapes=((1, 128), (1, 184)), budgets=(1e6,), seeds=1)
    folder.write_ledger()
    assert loss_by_shape.frame(gather(folder)).empty


def test_the_map_of_the_loss_shows_the_best_of_heads_and_ffn(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "grid")
    for (depth, width), ffn in product(((1, 64), (2, 64), (1, 128), (2, 128)), (128, 512)):
        add_run(folder, reshaped(run_config(depth, width), ffn=ffn))
    folder.write_ledger()
    evidence = gather(folder)
    data = loss_by_shape.frame(evidence)
    cells = data[data["kind"] == "cell"]
    assert len(cells) == 4
    assert "lowest over heads and FFN" in cells["label"].iloc[0]
    fitted = [(cell.architecture.depth, cell.architecture.width, cell.loss_nats or np.nan) for cell in evidence.cells]
    lowest = pd.DataFrame(fitted, columns=["depth", "width", "loss"]).groupby(["depth", "width"])["loss"].min()
    assert cells.set_index(["depth", "width"])["loss"].to_dict() == lowest.to_dict()


@pytest.mark.slow
@pytest.mark.usefixtures("all_rows")
def test_an_earlier_fit_is_drawn_with_its_options(table: Path, tmp_path: Path, study: Any) -> None:
    options = ["--law", "chinchilla", "--parameters", "N", "--tokens", "C/(6*N)", "--where", "N < 1e10", "--bootstrap", "50"]
    _, out, _ = study("fit", table, *options, "--huber-delta", "0.01", "--held-out", "0.2", "--json")
    (tmp_path / "fit.json").write_text(out)
    old = read_options(tmp_path / "fit.json")
    assert (old.law, old.held_out, old.settings.huber_delta, old.settings.bootstrap) == ("chinchilla", 0.2, 0.01, 50)
    again = fit_table(TableQuery(RunTable.read(table), **old.source), old.law, old.settings, old.held_out)
    assert again.to_dict()["estimates"] == json.loads(out)["estimates"]
    status, files, _ = study("plot", table, "--as", tmp_path / "fit.json", "--into", tmp_path / "figures", "--at", AT)
    assert status == 0
    assert "Forecast at the target: loss " in (tmp_path / "figures" / "law_fit.svg").read_text()
    assert f"{tmp_path}/figures/law_fit.svg" in files.split()


@pytest.fixture
def earlier(table: Path, tmp_path: Path, study: Any) -> Path:
    """A file of `study fit --json`, without resamples."""
    _, out, _ = study(
        "fit", table, "--parameters", "N", "--tokens", "C/(6*N)", "--law", "chinchilla", "--bootstrap", 0, "--json"
    )
    file = tmp_path / "fit.json"
    file.write_text(str(out))
    return file


def test_what_contradicts_an_earlier_fit_is_refused(table: Path, earlier: Path, tmp_path: Path, study: Any) -> None:
    fit, into = earlier, tmp_path / "figures"
    status, out, err = study("plot", table, "--as", fit, "--into", into, "--law", "power", "--tokens", "C", "--parameters", "N")
    assert (status, out, into.exists()) == (2, "", False)
    assert err.splitlines() == [
        f"error: --law: is 'power', and {fit} says 'chinchilla'; leave out that option or --as",
        f"error: --tokens: is 'C', and {fit} says 'C/(6*N)'; leave out that option or --as",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("all_rows")
def test_what_adds_to_an_earlier_fit_is_not_refused(table: Path, earlier: Path, tmp_path: Path, study: Any) -> None:
    into = tmp_path / "figures"
    status, _, _ = study("plot", table, "--as", earlier, "--into", into, "--law", "chinchilla", "--where", "N < 1e10")
    assert (status, into.exists()) == (0, True)


@pytest.mark.usefixtures("all_rows")
@pytest.mark.slow
@pytest.mark.parametrize("column", ["C", "spent"])
def test_exponents_by_convention_are_those_of_the_multiverse(table: Path, study: Any, column: str) -> None:
    pd.read_csv(table).rename(columns={"C": column}).to_csv(table, index=False)
    roles = {"parameters": "N", "tokens": "C/(6*N)", "flops": column}
    _, out, _ = study("multiverse", table, *(word for role, text in roles.items() for word in (f"--{role}", text)), "--json")
    shown = _exponents(fit_table(TableQuery(RunTable.read(table), roles), "chinchilla", Settings(bootstrap=0)))
    universes = json.loads(out)["all"]
    values = sorted(one["value"] for one in universes if one["value"] is not None)
    assert sorted(shown["value"].dropna()) == pytest.approx(values, rel=1e-5)
    assert {one["choices"].get("FLOPs") for one in universes} == {None, column}


@pytest.mark.slow
@pytest.mark.usefixtures("all_rows")
def test_a_table_that_differs_by_rounding_gives_the_same_bytes(table: Path, tmp_path: Path) -> None:
    """As the last digits of sums and logarithms differ between processors."""
    few = Settings(bootstrap=40)
    first = draw_all(TableQuery(RunTable.read(table), ROLES), "chinchilla", tmp_path / "one", few)
    names = {file.stem for file in first}
    assert names == {"law_fit", "forecast_against_truth", "iso_flop_valleys", "exponents_by_convention"}
    data = pd.read_csv(table)
    (data * (1 + 1e-14 * np.random.default_rng(0).uniform(-1, 1, data.shape))).to_csv(table, index=False)
    second = draw_all(TableQuery(RunTable.read(table), ROLES), "chinchilla", tmp_path / "two", few)
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


@pytest.mark.slow
def test_a_name_with_dollars_is_no_formula(fitted: LawFit, tmp_path: Path) -> None:
    rows = law_fit.frame(fitted).assign(axis=r"$cost\frac$", predicts=r"$\loss$")
    assert save_in(law_fit.draw(rows), tmp_path, "law")[0].stat().st_size > 0
