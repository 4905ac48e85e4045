"""The runs of several sweeps in one table: each once, with why fits leave it out, its scores, and what it compares with."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from study.errors import InputError
from study.exploring import LOSSES, comparable, kinds, quantities, runs_in
from study.folders import SweepFolder, sweeps_in
from study.ownership import turn
from study.plotting import explorer, run_curves
from study.sweeping.overview import overview, runs_table
from study.sweeping.status import status
from tests.synthetic import add_run, depth_or_width, run_config, sweep_folder
from tests.synthetic_scores import add_scores

RATES = (2e-3, 4e-3, 8e-3)


@pytest.fixture
def made(tmp_path: Path) -> SweepFolder:
    return depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 128), (2, 92)), rates=RATES)


def test_sweeps_are_found_at_a_folder_and_two_levels_below_it(tmp_path: Path) -> None:
    for place in ("one", "group/two", "group/.hidden", "one/runs/three", ".homes/four"):
        sweep_folder(tmp_path / place)
    assert list(sweeps_in(tmp_path)) == ["one", "group/two"]
    assert list(sweeps_in(tmp_path / "group" / "two")) == ["two"]
    assert sweeps_in(tmp_path)["group/two"].path == tmp_path / "group" / "two"


def test_a_folder_without_sweeps_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing: holds no sweep"):
        sweeps_in(tmp_path / "nothing")


def test_each_run_has_its_sweep_and_why_fits_leave_it_out(made: SweepFolder) -> None:
    runs = runs_in({"by any name": made})
    assert len(runs) == len(made.records())
    assert set(runs["sweep"]) == {"by any name"}
    off = runs["recipe.learning_rate"] != 4e-3
    assert off.sum() == 4
    assert set(runs.loc[off, "left_out"]) == {"not at the best learning rate of its cell"}
    assert runs.loc[~off, "left_out"].isna().all()
    assert set(runs["validation"]) == {""}


def test_a_run_that_two_sweeps_share_is_there_once_where_it_is_used(made: SweepFolder, tmp_path: Path) -> None:
    other = sweep_folder(tmp_path / "other")
    shared = add_run(other, run_config(1, 128, 4e-3))
    assert shared in {record.run_id for record in made.records()}
    both = {"made": made, "other": other}
    runs = runs_in(both).set_index("run_id")
    assert len(runs) == len(made.records())
    assert runs.loc[shared, "sweep"] == "made"
    made.cells_file.write_text('["a cell that none of its runs is of"]')
    runs = runs_in(both).set_index("run_id")
    assert runs.loc[shared, "sweep"] == "other"
    assert runs["left_out"].isna().tolist() == (runs.index == shared).tolist()


def test_losses_of_other_validation_sets_do_not_share_an_axis(made: SweepFolder, tmp_path: Path) -> None:
    other, config = sweep_folder(tmp_path / "other"), run_config(1, 64)
    longer = config.model_copy(update={"data": config.data.model_copy(update={"sequence_length": 32})})
    add_run(other, longer)
    runs = runs_in({"made": made, "other": other})
    assert set(runs["validation"]) == {"sequence_length=64", "sequence_length=32"}
    for loss in LOSSES:
        assert set(comparable(runs, loss, "sequence_length=32")["sweep"]) == {"other"}
    assert len(comparable(runs, "parameters", "sequence_length=32")) == len(runs)


def test_scores_are_those_of_trained_weights_in_the_mean_over_seeds(made: SweepFolder) -> None:
    add_scores(made)
    runs = runs_in({"made": made}).set_index("run_id")
    table = pd.read_parquet(made.scores_file)
    of_one = table[(table["task"] == "cola") & (table["run_id"] == runs.index[0]) & (table["protocol"] == "fine_tune")]
    assert len(of_one) == 3
    assert runs["downstream/cola/matthews"].iloc[0] == pytest.approx(of_one["test"].mean())
    assert quantities(runs)["downstream/cola/matthews"] == "cola/matthews (downstream score)"
    assert runs["downstream/blimp/paradigm_accuracy"].notna().all()


def test_axes_are_what_runs_have_and_kinds_what_tells_them_apart(made: SweepFolder) -> None:
    runs = runs_in({"made": made})
    assert {"loss_nats", "train_flops_6n", "architecture.depth"} <= set(quantities(runs))
    assert "tokens_per_second" not in quantities(runs), "no made-up run has a speed"
    assert kinds(runs)[:2] == ["architecture.depth", "architecture.width"]
    assert not {"sweep", "architecture.heads", "recipe.batch_tokens"} & set(kinds(runs))


def test_a_folder_of_sweeps_whose_runs_have_not_ended_gives_no_rows(tmp_path: Path) -> None:
    runs = runs_in({"empty": sweep_folder(tmp_path / "empty")})
    assert runs.empty
    assert (quantities(runs), kinds(runs)) == ({}, [])


def test_points_are_hollow_where_fits_leave_a_run_out(made: SweepFolder) -> None:
    data = explorer.frame(runs_in({"made": made}), "train_flops", "loss_nats", "architecture.depth")
    chart = explorer.draw(data, "FLOPs", "nats", "depth").to_dict()
    assert chart["title"] == "8 runs of 1 sweep, 4 of them (hollow) used by no fit"
    assert chart["encoding"]["x"]["title"] == "FLOPs"
    assert chart["encoding"]["x"]["scale"]["type"] == "log"
    assert "type" not in chart["encoding"]["y"]["scale"]
    assert chart["encoding"]["fill"]["condition"]["test"] == "datum.used"
    (points,) = chart["datasets"].values()
    assert sorted(point["used"] for point in points) == [False] * 4 + [True] * 4
    assert {point["colour"] for point in points} == {1, 2}
    told = [each["field"] for each in chart["encoding"]["tooltip"]]
    assert told == ["sweep", "shape", "learning rate", "seed", "tokens", "loss (nats)", "left out", "run"], "no setting is told"
    used = explorer.draw(data[data["used"]], "FLOPs", "nats", "depth").to_dict()
    assert used["title"] == "4 runs of 1 sweep"
    assert "left out" not in [each["field"] for each in used["encoding"]["tooltip"]]


def test_a_logarithmic_axis_leaves_out_what_is_not_positive(made: SweepFolder) -> None:
    add_scores(made)
    runs = runs_in({"made": made})
    runs.loc[0, "downstream/cola/matthews"] = -0.02
    data = explorer.frame(runs, "parameters", "downstream/cola/matthews", "shape")
    assert "8 runs" in explorer.draw(data, "x", "y", "shape").to_dict()["title"]
    assert "7 runs" in explorer.draw(data, "x", "y", "shape", log_y=True).to_dict()["title"]


def test_runs_without_one_of_the_quantities_are_no_points(made: SweepFolder) -> None:
    add_run(made, run_config(1, 128, 6e-3), state="DIVERGED", reason="a loss was NaN")
    runs = runs_in({"made": made})
    assert len(runs) == 9
    assert len(explorer.frame(runs, "train_flops", "loss_nats", "state")) == 8


def test_a_step_that_was_logged_twice_is_one_point_of_a_curve(made: SweepFolder) -> None:
    points = explorer.frame(runs_in({"made": made}), "parameters", "loss_nats", "seed").head(2)
    file = made.run(points["run"].iloc[0]).metrics_file
    last = json.loads(file.read_text().splitlines()[-1])
    file.write_text(file.read_text() + json.dumps(last | {"val/loss": 2.5}) + "\n")
    curves = run_curves.frame(points, {"made": made})
    one = curves[curves["run"] == curves["run"].iloc[0]]
    assert one["tokens"].is_unique
    assert one["loss_nats"].iloc[-1] == 2.5
    assert one["train_flops"].iloc[-1] == pytest.approx(made.run(points["run"].iloc[0]).record().train_flops)  # type: ignore[union-attr]
    assert curves["run"].nunique() == 2
    assert curves["run"].iloc[0].startswith("L1-H128-A2-F512 lr=2e-3 seed=0 (")
    assert len(run_curves.frame(points, {"made": made}, "train/loss")) > len(curves)
    drawn = run_curves.draw(curves, "train_flops").to_dict()
    assert drawn["encoding"]["x"]["field"] == "train_flops"
    assert "FLOPs" in drawn["encoding"]["x"]["title"]


def test_sweeps_stand_side_by_side_and_one_that_cannot_be_read_says_why(made: SweepFolder, tmp_path: Path) -> None:
    broken = depth_or_width(tmp_path / "broken", budgets=(1e6,), shapes=((1, 128),), rates=(2e-3,), seeds=1)
    broken.runs()[0].record_file.write_text("{")
    add_run(made, run_config(1, 128, 6e-3), state="DIVERGED", reason="a loss was NaN")
    waiting = sweep_folder(tmp_path / "waiting")
    rows = overview({"made": made, "broken": broken, "waiting": waiting}).set_index("sweep")
    assert rows.loc["made", "runs"] == "8 completed, 1 diverged"
    assert rows.loc["made", "question"] == "At equal parameters, does depth or width lower MLM loss more?"
    assert rows.loc["made", "spent (train_flops)"] == f"{sum(record.train_flops for record in made.records()):.3g}"
    assert rows.loc["waiting", "runs"] == "none has begun"
    assert rows["problem"].ne("").tolist() == [False, True, False]
    assert "record.json" in str(rows.loc["broken", "problem"])
    assert rows["launched"].tolist() == ["", "", ""]


def test_a_run_that_is_being_trained_is_told(made: SweepFolder) -> None:
    run = made.run("f" * 16)
    run.write_config(run_config(1, 128, 6e-3))
    with turn(run) as has_turn:
        assert has_turn
        assert overview({"made": made})["runs"].item() == "8 completed, 1 running"
        table = runs_table(status(made)).set_index("run")
    assert table.loc[[run.run_id], ["state", "done", "loss (nats)"]].to_numpy().tolist() == [["running", "0%", ""]]
    assert not {"setting", "MFU", "left", "note"} & set(table), "what no run has is left out"
