"""The commands of laws print what the library finds, for readers and for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.laws import multiverse
from study.laws.catalogue import LAWS
from tests.laws.test_frontiers import EXPONENT, iso_flop_runs
from tests.laws.test_two_steps import TRUE_SCORE
from tests.points import TRUTHS

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A table of iso-FLOP runs of Chinchilla's law, and the score that follows from their loss."""
    parameters, flops, loss = iso_flop_runs(noise=0.0005)
    score = LAWS["score-of-loss"].predict(TRUE_SCORE, {"loss": loss})
    path = tmp_path / "runs.csv"
    pd.DataFrame({"N": parameters, "C": flops, "loss": loss, "accuracy": score}).to_csv(path, index=False)
    return path


def test_frontier_reports_every_approach(study: Any, runs: Path) -> None:
    status, out, _ = study("frontier", runs, "--json")
    actual = json.loads(out)["approaches"]
    assert status == 0
    assert actual.keys() == {"envelope", "hull", "parabola", "full parabola", "akima", "parametric"}
    assert {name: one["status"] for name, one in actual.items()} == dict.fromkeys(actual, "found") | {"parametric": "converged"}
    assert actual["parametric"]["exponent"] == pytest.approx(EXPONENT, abs=0.02)
    assert len(actual["parabola"]["best"]) == 7
    status, out, _ = study("frontier", runs, "--where", "C < 2e21")
    assert status == 0
    assert [line.split("  ")[0] for line in out.splitlines()[1:]] == list(actual)


def test_a_table_without_losses_has_no_frontier(study: Any, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("parameters,tokens,loss\n1e6,1e8,\n2e6,1e8,\n")
    status, out, err = study("frontier", tmp_path / "runs.csv")
    assert (status, out) == (2, "")
    assert "no row is left that has a number in all of parameters, tokens and loss" in err


def test_reasons_for_no_frontier_are_reported_once_and_where_there_is_none_as_an_error(study: Any, tmp_path: Path) -> None:
    """A tenth of the rows has other sizes; without it every budget has nearly one split."""
    random = np.random.default_rng(0)
    sizes = {"parameters": np.geomspace(1e7, 1e10, 40)}
    sizes["tokens"] = 20 * sizes["parameters"] * np.exp(random.normal(0, 0.05, 40))
    loss = LAWS["chinchilla"].predict(TRUTHS["chinchilla"], sizes) * np.exp(random.normal(0, 0.0003, 40))
    path = tmp_path / "runs.csv"
    pd.DataFrame({**sizes, "loss": loss}).to_csv(path, index=False)
    status, out, _ = study("frontier", path)
    through_best = "envelope, hull, parabola, full parabola, akima"
    assert status == 0
    assert (out.count("nearly every budget has one split"), out.count(through_best)) == (1, 1)
    status, out, err = study("frontier", path, "--where", "parameters < 2e7")
    first, second = err.splitlines()
    assert (status, out) == (2, "")
    assert first.startswith(f"error: {through_best}: nearly every budget has one split (")
    assert second.startswith("error: parametric: chinchilla: its 5 parameters need 6 or more different points, got 4")


def test_a_frontier_by_a_sum_that_omits_something_has_kaplans_beside_it(study: Any, tmp_path: Path) -> None:
    """Kaplan et al. 2020 (section 4.1): alpha_N 0.076 and alpha_D 0.103, so that N* goes as C^0.575 at 6·N·D."""
    published = TRUTHS["kaplan"]
    alpha_n, alpha_d = published["alpha_N"], published["alpha_D"]
    sizes, tokens = (np.repeat(axis.ravel(), 2) for axis in np.meshgrid(np.geomspace(1e6, 1e9, 6), np.geomspace(1e9, 1e11, 5)))
    loss = LAWS["kaplan"].predict(published, {"parameters": sizes, "tokens": tokens})
    noisy = loss * np.exp(np.random.default_rng(1).normal(0, 0.0005, len(loss)))
    path = tmp_path / "runs.csv"
    pd.DataFrame({"N": sizes, "D": tokens, "loss": noisy}).to_csv(path, index=False)
    _, out, _ = study("frontier", path, "--json", "--at", 1e21)
    found = json.loads(out)
    by_sum, by_kaplan = (found["approaches"][name] for name in ("parametric", "kaplan"))
    assert by_sum["reasons"]
    assert by_kaplan["status"] == "converged"
    assert by_kaplan["exponent"] == pytest.approx(alpha_d / (alpha_n + alpha_d), abs=0.01)
    power = alpha_n / alpha_d
    best = (power * published["A"] / published["B"] * 1e21 / 6) ** (1 / (power + 1))
    assert found["optima"]["kaplan"]["parameters"] == pytest.approx(best, rel=0.05)


@pytest.mark.slow
def test_a_frontier_says_what_its_fit_is_worth(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve runs with noise of 1% hardly determine the exponents of the law."""
    monkeypatch.setattr(multiverse, "_TRIMS", {"all rows": lambda points: points})
    random = np.random.default_rng(4)
    sizes = {"parameters": 10 ** random.uniform(7, 9, 12), "tokens": 10 ** random.uniform(9, 10.5, 12)}
    loss = LAWS["chinchilla"].predict(TRUTHS["chinchilla"], sizes) * np.exp(random.normal(0, 0.01, 12))
    path = tmp_path / "runs.csv"
    pd.DataFrame({**sizes, "loss": loss}).to_csv(path, index=False)
    fit = json.loads(study("fit", path, "--law", "chinchilla", "--json")[1])
    assert fit["status"] == "weakly_identified"
    text = study("fit", path, "--law", "chinchilla")[1] + study("multiverse", path)[1]
    assert "status: weakly identified\n" in text
    assert "universes: weakly identified\n" in text
    assert "weakly_identified" not in text
    _, out, _ = study("frontier", path, "--json")
    actual = json.loads(out)["approaches"]
    assert (actual["parametric"]["status"], actual["parametric"]["reasons"]) == (fit["status"], fit["reasons"])
    _, out, _ = study("frontier", path)
    assert out.splitlines()[-1] == f"parametric is weakly identified ({'; '.join(fit['reasons'])})"


@pytest.mark.slow
def test_intervals_of_checkpoints_are_over_runs(study: Any, tmp_path: Path) -> None:
    """The noise of a run is in all of its checkpoints, so that rows taken as independent say too much."""
    path = checkpoints(tmp_path / "runs.csv", 10)
    pd.read_csv(path).assign(row=range(200)).to_csv(path, index=False)
    rows, runs, usual = (
        json.loads(study("frontier", path, *more, "--json")[1])["approaches"]
        for more in (("--cluster", "row"), ("--cluster", "run"), ())
    )
    assert usual.keys() == runs.keys()
    assert usual["parametric"]["interval"] == pytest.approx(runs["parametric"]["interval"], abs=0.03)
    for name in runs.keys() - {"akima"}:
        assert runs[name]["exponent"] == rows[name]["exponent"]
        (low, high), (lower, higher) = rows[name]["interval"], runs[name]["interval"]
        assert higher - lower > 1.5 * (high - low)
        assert lower < EXPONENT < higher
    assert not any(rows[name]["interval"][0] < EXPONENT < rows[name]["interval"][1] for name in ("parabola", "parametric"))


@pytest.mark.slow
def test_a_multiverse_of_checkpoints_takes_its_intervals_over_runs(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiverse, "_TRIMS", {"all rows": lambda points: points})
    monkeypatch.setattr(multiverse, "_FLOORS", {"with floor": "chinchilla"})
    path, flops = checkpoints(tmp_path / "runs.csv", 10), "6*parameters*tokens"
    pd.read_csv(path).assign(row=range(200)).to_csv(path, index=False)
    rows, runs = (
        json.loads(study("multiverse", path, "--flops", flops, "--cluster", cluster, "--json")[1])["all"]
        for cluster in ("row", "run")
    )
    assert [universe["choices"] for universe in rows] == [universe["choices"] for universe in runs]
    statuses = {universe["choices"]["approach"]: universe["status"] for universe in runs}
    assert statuses == {"parametric": "converged", "parabola": "weakly_identified"}, "resamples of ten runs may have no valley"
    for by_rows, by_runs in zip(rows, runs, strict=True):
        if by_runs["status"] == "converged":
            (low, high), (lower, higher) = by_rows["interval"], by_runs["interval"]
            assert higher - lower > 1.5 * (high - low)


@pytest.mark.slow
def test_few_runs_determine_a_frontier_weakly_and_one_gives_no_interval(study: Any, tmp_path: Path) -> None:
    path = checkpoints(tmp_path / "runs.csv", 6)
    few, one = (
        json.loads(study("frontier", path, "--cluster", column, "--json")[1])["approaches"] for column in ("run", "team")
    )
    assert few["hull"]["status"] == "weakly_identified"
    assert few["hull"]["reasons"][0].endswith("of 100 resamples have no frontier")
    assert one["hull"]["exponent"] == few["hull"]["exponent"]
    assert {one[name]["interval"] for name in ("envelope", "hull", "parabola", "parametric")} == {None}


def checkpoints(path: Path, sizes: int) -> Path:
    """A table of one run a size with twenty checkpoints each, whose noise is mostly that of the run."""
    random = np.random.default_rng(0)
    run, tokens = np.repeat(np.arange(sizes), 20), np.tile(np.geomspace(1e9, 3e11, 20), sizes)
    columns = {"parameters": np.geomspace(7e7, 1e10, sizes)[run], "tokens": tokens}
    noise = random.normal(0, 0.003, sizes)[run] + random.normal(0, 0.0003, len(run))
    loss = LAWS["chinchilla"].predict(TRUTHS["chinchilla"], columns) * np.exp(noise)
    pd.DataFrame({**columns, "loss": loss, "run": run, "team": "one"}).to_csv(path, index=False)
    return path


def test_a_frontier_says_how_compute_was_counted(study: Any, runs: Path) -> None:
    status, out, _ = study("frontier", runs, "--flops", "1.2*C", "--tokens", "C/(6*N)", "--json")
    assert status == 0
    actual = {name: one["compute"] for name, one in json.loads(out)["approaches"].items()}
    assert actual.pop("parametric") == "6·N·D"
    assert set(actual.values()) == {"1.2*C"}
    status, out, _ = study("frontier", runs, "--flops", "1.2*C", "--tokens", "C/(6*N)")
    assert [line.split()[-1] for line in out.splitlines()[1:]] == ["1.2*C"] * 5 + ["6·N·D"]


@pytest.mark.slow
def test_score_law_fits_through_the_loss_and_at_once(study: Any, runs: Path) -> None:
    options = ("--tokens", "C/(6*N)", "--score", "accuracy", "--bootstrap", 40)
    status, out, _ = study("score-law", runs, *options, "--json")
    answer = json.loads(out)
    assert status == 0
    assert answer["two_steps"]["score"]["estimates"]["k"] == pytest.approx(TRUE_SCORE["k"], rel=0.2)
    status, out, _ = study("score-law", runs, *options)
    assert status == 0
    assert out.count("forecast (") == 2


def test_resamples_are_enough_for_the_interval_that_is_reported(study: Any, runs: Path) -> None:
    status, out, err = study("fit", runs, "--law", "chinchilla", "--tokens", "C/(6*N)", "--bootstrap", 39)
    assert (status, out) == (2, "")
    assert err == "error: --bootstrap: 39 are too few for a 95% interval; give at least 40, or 0 for no interval\n"


def test_a_name_from_a_table_steers_no_terminal(study: Any, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("N,\x1b[2Jloss\n1,2\n")
    status, _, err = study("fit", tmp_path / "t.csv", "--law", "power", "--parameters", "N", "--loss", "losses")
    assert (status, "\x1b" in err, "[2Jloss" in err) == (2, False, True)


def test_multiverse_writes_its_figure_and_its_universes(
    study: Any, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiverse, "_TRIMS", {"all rows": lambda points: points})
    status, out, _ = study("multiverse", runs, "--tokens", "C/(6*N)", "--flops", "C", "--into", tmp_path / "figures", "--json")
    answer = json.loads(out)
    assert status == 0
    assert answer["universes"] == 8 + 1
    kept = {file.suffix: file for file in (tmp_path / "figures").iterdir()}
    assert kept.keys() == {".json", ".svg"}
    assert json.loads(kept[".json"].read_text()) == answer


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist; study fit --json prints such a file"),
        ("[1]", "holds no keys and values"),
        ('{"law": "chinchilla"}', "holds no law with its options; give what study fit --json prints"),
        ('{"law": "chinchilla", "options": {}}', "fit.json: options.bootstrap: is missing and has no default"),
        ('{"law": "chinchilla", "options": {"starts": "many"}}', "fit.json: options.starts: 'many' is not a whole number"),
        ('{"law": "chinchila", "options": {}}', "chinchila"),
        ("{", "is not JSON: Expecting"),
    ],
)
def test_options_that_cannot_be_read_again_are_refused(
    study: Any, runs: Path, tmp_path: Path, content: str | None, message: str
) -> None:
    options = tmp_path / "fit.json"
    if content is not None:
        options.write_text(content)
    status, out, err = study("plot", runs, "--as", options, "--into", tmp_path / "figures")
    assert (status, out) == (2, "")
    assert message in err
    assert not (tmp_path / "figures").exists()


@pytest.mark.slow
def test_a_loss_that_tokens_do_not_lower_has_no_frontier(study: Any, tmp_path: Path) -> None:
    parameters, tokens = (axis.ravel() for axis in np.meshgrid(np.geomspace(1e6, 1e8, 8), np.geomspace(1e8, 1e10, 8)))
    path = tmp_path / "runs.csv"
    pd.DataFrame({"N": parameters, "D": tokens, "loss": 2 + (parameters / 1e5) ** -0.3}).to_csv(path, index=False)
    status, out, err = study("frontier", path, "--json")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: parametric: chinchilla: its fit ends on a bound (")
    status, out, _ = study("multiverse", path, "--flops", "6*N*D", "--json")
    assert status == 0
    actual = json.loads(out)["all"]
    assert {one["status"] for one in actual if one["choices"]["approach"] == "parametric"} >= {"on_bound"}
    assert all(one["value"] is None and one["interval"] is None for one in actual if one["status"] == "on_bound")


def test_too_few_rows_are_reported_with_those_that_are_left_out(study: Any, runs: Path) -> None:
    options = ("--law", "chinchilla", "--tokens")
    few = "error: chinchilla: its 5 parameters need 6 or more different points, got"
    status, _, err = study("fit", runs, *options, "C/0")
    assert (status, err.strip()) == (2, f"{few} 0; left out: 63 rows (C/0 is infinite)")
    data = pd.read_csv(runs)
    data.loc[2:59, "loss"], data.loc[60, "C"] = np.nan, np.nan
    data.to_csv(runs, index=False)
    status, _, err = study("fit", runs, *options, "C/(6*N)")
    assert (status, err.strip()) == (2, f"{few} 4; left out: 59 rows (58 of them: loss is missing)")
    data.head(1).to_csv(runs, index=False)
    status, _, err = study("fit", runs, *options, "C/(6*N)")
    assert (status, err.strip()) == (2, f"{few} 1"), "that one row has one size is said once"


@pytest.mark.slow
def test_every_command_reports_the_rows_that_it_left_out_and_how_it_read_the_others(
    study: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiverse, "_TRIMS", {"all rows": lambda points: points})
    data = pd.read_csv(runs)
    data.loc[3:5, "loss"], data.loc[8, "C"], data["N"] = np.nan, np.nan, [f"{n / 1e6:.6f}M" for n in data["N"]]
    data.to_csv(runs, index=False)
    expected = "left out: 4 rows (3 of them: loss is missing)"
    options = ("--tokens", "C/(6*N)")
    for command in (("frontier",), ("multiverse",), ("score-law", "--score", "accuracy", "--bootstrap", 0)):
        status, out, _ = study(command[0], runs, *options, *command[1:])
        *_, left_out, warning = out.splitlines()
        assert (status, left_out) == (0, expected), command
        assert warning.startswith("warning: N: text such as '"), command
        if command != ("score-law", "--score", "accuracy", "--bootstrap", 0):
            assert json.loads(study(command[0], runs, *options, "--json")[1])["notes"] == [left_out, warning]
    assert "59 rows of 59 runs" in out


def test_a_law_refuses_columns_that_it_does_not_read(study: Any, runs: Path, tmp_path: Path) -> None:
    """FLOPs order the runs, or say what the tokens are, and so are read."""
    options = ("--law", "chinchilla", "--bootstrap", 0)
    message = "error: --depth, --unique-tokens: is not used: chinchilla predicts the loss from parameters and tokens"
    unread = ("--depth", "nosuch", "--unique-tokens", "xyz")
    status, out, err = study("fit", runs, *options, "--tokens", "C/(6*N)", *unread)
    assert (status, out, err.strip()) == (2, "", message)
    status, out, err = study("plot", runs, "--tokens", "C/(6*N)", *unread, "--into", tmp_path / "figures")
    assert (status, out, err.strip(), (tmp_path / "figures").exists()) == (2, "", message, False)
    status, _, err = study("fit", runs, *options, "--tokens", "C/(6*N)", "--flops", "C", "--budget", "N")
    assert (status, err.splitlines()[0].split(":")[1].strip()) == (2, "--flops")
    pd.read_csv(runs).rename(columns={"C": "spent"}).to_csv(runs, index=False)
    for more in ((), ("--budget", "N")):
        assert study("fit", runs, *options, "--tokens", "C/(6*N)", "--flops", "spent", *more)[0] == 0


@pytest.mark.parametrize(
    ("command", "option"),
    [("frontier", "--score"), ("frontier", "--depth"), ("score-law", "--error"), ("score-law", "--unique-tokens")],
)
def test_a_command_has_no_options_for_columns_that_it_does_not_read(study: Any, runs: Path, command: str, option: str) -> None:
    status, _, err = study(command, runs, option, "nosuch")
    assert (status, f"No such option '{option}'" in err) == (2, True)


@pytest.mark.slow
def test_a_convention_that_is_named_twice_is_asked_once(study: Any, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiverse, "_TRIMS", {"all rows": lambda points: points})
    twice = ("--parameters", "N", "--parameters", "N", "--flops", "C", "--flops", "C")
    status, out, _ = study("multiverse", runs, *twice, "--tokens", "C/(6*N)", "--json")
    assert (status, json.loads(out)["universes"]) == (0, 8 + 1)


@pytest.mark.slow
def test_plot_draws_what_there_is_where_every_budget_has_one_split(study: Any, tmp_path: Path) -> None:
    parameters = np.geomspace(1e6, 1e9, 12)
    loss = LAWS["chinchilla"].predict(TRUTHS["chinchilla"], {"parameters": parameters, "tokens": 20 * parameters})
    path = tmp_path / "runs.csv"
    pd.DataFrame({"N": parameters, "D": 20 * parameters, "loss": loss}).to_csv(path, index=False)
    status, out, _ = study("plot", path, "--law", "chinchilla", "--into", tmp_path / "figures")
    assert status == 0
    assert {Path(line).stem for line in out.splitlines()} == {"law_fit", "forecast_against_truth"}


def test_a_law_of_the_loss_holds_out_the_lowest_losses(study: Any, runs: Path) -> None:
    status, out, _ = study(
        "fit", runs, "--law", "score-of-loss", "--score", "accuracy", "--space", "linear", "--bootstrap", 0, "--json"
    )
    forecast = json.loads(out)["forecast"]
    assert status == 0
    assert forecast["extrapolation"] > 1
    assert "difference" in forecast
    assert "relative_error" not in forecast
    table = pd.read_csv(runs)
    held = [int(row["row"].removeprefix("row ")) - 1 for row in forecast["rows"]]
    assert set(held) <= set(table["loss"].nsmallest(forecast["n_forecast"]).index)


def test_a_budget_has_its_best_split_and_loss_by_every_approach(study: Any, runs: Path) -> None:
    truth, budget = TRUTHS["chinchilla"], 1e23
    status, out, _ = study("frontier", runs, "--at", "1e23", "--json")
    optima = json.loads(out)["optima"]
    a, b, alpha, beta = (truth[name] for name in ("A", "B", "alpha", "beta"))
    best = (alpha * a / (beta * b)) ** (1 / (alpha + beta)) * (budget / 6) ** EXPONENT
    least = truth["E"] + a * best**-alpha + b * (budget / 6 / best) ** -beta
    assert status == 0
    assert optima["parametric"]["parameters"] == pytest.approx(best, rel=0.1)
    assert optima["parametric"]["loss"] == pytest.approx(least, rel=1e-3)
    for one in optima.values():
        assert 6 * one["parameters"] * one["tokens"] == pytest.approx(budget, rel=1e-6)
        low, high = one["parameters_interval"]
        assert low < one["parameters"] < high
        assert one["tokens_interval"] == pytest.approx([budget / 6 / high, budget / 6 / low], rel=1e-6)
    assert optima["parametric"]["parameters_interval"][0] < best < optima["parametric"]["parameters_interval"][1]
    assert optima["parametric"]["loss_interval"][0] < least < optima["parametric"]["loss_interval"][1]
    assert optima["akima"]["loss_interval"] is None
    out = study("frontier", runs, "--at", "1e23")[1]
    assert "at 1e+23 FLOPs" in out
    assert "in brackets the 95% interval of the line or the law" in out
    assert study("frontier", runs, "--at", "much")[0] == 2


@pytest.fixture
def fitted(study: Any, runs: Path, tmp_path: Path) -> Path:
    """A fit to runs of Chinchilla's law, as printed."""
    path = tmp_path / "fit.json"
    path.write_text(study("fit", runs, "--law", "chinchilla", "--tokens", "C/(6*N)", "--bootstrap", 40, "--json")[1])
    return path


@pytest.mark.slow
def test_what_a_fit_warned_of_goes_with_its_predictions(study: Any, fitted: Path) -> None:
    warned = json.loads(fitted.read_text()) | {"warnings": ["bits_per_byte looks like bits"]}
    fitted.write_text(json.dumps(warned))
    note = "chinchilla was fitted with a warning: bits_per_byte looks like bits"
    assert study("predict", fitted, "--parameters", "1B", "--tokens", "20B")[1].splitlines()[-1] == f"note: {note}"


def test_a_fit_predicts_with_an_interval_its_reach_and_the_fate_of_held_out_rows(
    study: Any, fitted: Path, tmp_path: Path
) -> None:
    status, out, _ = study("predict", fitted, "--parameters", "70B", "--tokens", "1.4T", "--json")
    (actual,) = json.loads(out)["predictions"]
    point = {"parameters": np.array([7e10]), "tokens": np.array([1.4e12])}
    truth = float(LAWS["chinchilla"].predict(TRUTHS["chinchilla"], point)[0])
    ranges = json.loads(fitted.read_text())["ranges"]
    assert status == 0
    assert actual["interval"][0] < truth < actual["interval"][1]
    assert actual["predicted"] == pytest.approx(truth, rel=2e-3)
    assert actual["beyond"] == pytest.approx({name: actual["at"][name] / ranges[name][1] for name in actual["beyond"]})
    assert actual["budget_over_largest"] > 1
    assert "held-out row" in actual["held_out"]
    assert actual["widening"] >= 1

    points = tmp_path / "points.csv"
    pd.DataFrame({"N": [1e9, 1e12], "tokens": [2e10, 2e13]}).to_csv(points, index=False)
    near, far = json.loads(study("predict", fitted, "--points", points, "--json")[1])["predictions"]
    assert near["held_out"] == "within the budgets fitted"
    assert near["beyond"] == {}
    assert np.ptp(np.log(near["interval"])) < np.ptp(np.log(far["interval"]))
    assert "none lay farther" in far["held_out"]
    (small,) = json.loads(study("predict", fitted, "--at", "N=1e4,D=1e5", "--json")[1])["predictions"]
    assert small["held_out"].startswith("no larger than the budgets fitted, but beyond the rows in parameters and tokens")
    lines = study("predict", fitted, "--points", points)[1].splitlines()
    assert lines[0].split() == ["parameters", "tokens", "loss", "95%", "interval", "beyond", "the", "fit"]

    refused: dict[str, tuple[object, ...]] = {
        "--tokens: is missing; chinchilla needs it": ("--parameters", "1B"),
        "--width: is not used: chinchilla reads parameters and tokens": (
            *("--parameters", "1B", "--tokens", "1B"),
            "--width",
            64,
        ),
        "--parameters: 'many' is not a count": ("--parameters", "many", "--tokens", "1B"),
        "--points: gives every variable; leave out --tokens": ("--points", points, "--tokens", "1B"),
        "--at: gives parameters twice in 'N=1e9,D=1e10,N=2e9'; repeat --at for another point": ("--at", "N=1e9,D=1e10,N=2e9"),
    }
    for message, options in refused.items():
        status, out, err = study("predict", fitted, *options)
        assert (status, out) == (2, "")
        assert message in err


def test_a_condition_says_which_rows_are_held_out(study: Any, runs: Path) -> None:
    options = ("--law", "chinchilla", "--tokens", "C/(6*N)", "--bootstrap", 0)
    table = pd.read_csv(runs)
    held = int((table["N"] > 3e9).sum())
    status, out, _ = study("fit", runs, *options, "--hold-out", "N > 3e9", "--json")
    answer = json.loads(out)
    assert status == 0
    assert (answer["forecast"]["n_forecast"], answer["forecast"]["n_fitted"]) == (held, len(table) - held)
    assert answer["options"]["hold_out"] == "N > 3e9"
    assert f"{held} rows held out" in study("fit", runs, *options, "--hold-out", "N > 3e9")[1]
    for condition, message in (("N > 1e30", "holds none of"), ("N > 1", "holds all of"), ("N", "does not compare columns")):
        status, _, err = study("fit", runs, *options, "--hold-out", condition)
        assert status == 2
        assert "--hold-out" in err
        assert message in err


@pytest.mark.slow
def test_every_group_is_forecast_from_the_others(study: Any, runs: Path) -> None:
    """One corpus has losses a tenth higher, and is missed from the others."""
    table = pd.read_csv(runs)
    table["corpus"] = np.where(np.arange(len(table)) % 3 == 0, "web", "books")
    table.loc[table["corpus"] == "web", "loss"] *= 1.1
    table.to_csv(runs, index=False)
    options = ("--law", "chinchilla", "--tokens", "C/(6*N)", "--bootstrap", 40)
    groups = json.loads(study("fit", runs, *options, "--leave-out-group", "corpus", "--json")[1])["left_out_groups"]
    assert groups.keys() == {"web", "books"}
    assert groups["web"]["bias"] == pytest.approx(1 / 1.1 - 1, abs=0.02)
    assert groups["web"]["covered"] < 0.2
    status, _, err = study("fit", runs, *options, "--leave-out-group", "corpus", "--where", "corpus == 'web'")
    assert status == 2
    assert "--leave-out-group: 'corpus' is 'web' in every row; name a column of two or more groups" in err
