"""The runs of several sweeps in one table: each once, with why fits leave it out, its scores, and what it compares with."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.config.score_config import Knobs
from study.evidence.downstream import downstream
from study.evidence.score_points import series
from study.plotting import explorer, run_curves
from study.report.exploring import LOSSES, comparable, kinds, quantities, runs_in, validations
from study.running.status import status
from study.running.status_tables import STATES, overview, runs_table
from study.store.ownership import work_lock
from study.store.records import validation_of
from study.store.score_records import write_scores
from study.store.sweep_folder import SweepFolder, sweeps_in
from tests.synthetic import SWEEP, add_run, depth_or_width, run_config, sweep_folder
from tests.synthetic_scores import TASKS, add_score, add_scores

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
    with pytest.raises(InputError, match=r"nothing: is not a folder"):
        sweeps_in(tmp_path / "nothing")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match=r"nothing: holds no sweep"):
        sweeps_in(tmp_path / "nothing")


def test_each_run_has_its_sweep_and_why_fits_leave_it_out(made: SweepFolder) -> None:
    runs, problems = runs_in({"by any name": made})
    assert problems == {}
    assert len(runs) == len(made.records())
    assert set(runs["sweep"]) == {"by any name"}
    off = runs["recipe.learning_rate"] != 4e-3
    assert off.sum() == 4
    assert set(runs.loc[off, "left_out"]) == {"not at the best learning rate of its cell"}
    assert runs.loc[~off, "left_out"].isna().all()
    assert set(runs["validation"]) == {""}


def test_a_run_that_two_sweeps_share_is_there_in_each_with_what_that_one_says_of_it(made: SweepFolder, tmp_path: Path) -> None:
    other = sweep_folder(tmp_path / "other", SWEEP | {"vary": {"recipe.dropout": [0, 0.1]}})
    shared = add_run(other, run_config(1, 128, 4e-3))
    assert shared in {record.run_id for record in made.records()}
    add_scores(other, {"sst2": TASKS["sst2"]})
    made.cells_file.write_text('["a cell that none of its runs is of"]')
    runs, _ = runs_in({"made": made, "other": other})
    assert len(runs) == len(made.records()) + 1
    of_shared = runs[runs["run_id"] == shared].set_index("sweep")
    assert of_shared["setting"].to_dict() == {"made": "", "other": "dropout=0"}
    assert of_shared["left_out"].notna().to_dict() == {"made": True, "other": False}
    assert of_shared["downstream/sst2/accuracy"].notna().to_dict() == {"made": False, "other": True}
    points = explorer.frame(runs[runs["run_id"] == shared], "parameters", "loss_nats", "sweep")
    assert explorer.draw(points, "x", "y", "sweep").to_dict()["title"].startswith("1 run of 2 sweeps; 1 hollow")


def test_losses_of_other_validation_sets_do_not_share_an_axis(made: SweepFolder, tmp_path: Path) -> None:
    other, config = sweep_folder(tmp_path / "other"), run_config(1, 64)
    longer = config.model_copy(update={"data": config.data.model_copy(update={"sequence_length": 32})})
    add_run(other, longer)
    runs, _ = runs_in({"made": made, "other": other})
    assert set(runs["validation"]) == {"sequence_length=64", "sequence_length=32"}
    for axes in product(LOSSES, ["parameters"]):
        for either in (axes, axes[::-1]):
            assert set(comparable(runs, either, "sequence_length=32")["sweep"]) == {"other"}
    assert len(comparable(runs, ("parameters", "tokens"), "sequence_length=32")) == len(runs)


def test_the_validation_set_of_most_runs_that_laws_use_comes_first(made: SweepFolder, tmp_path: Path) -> None:
    other = sweep_folder(tmp_path / "other")
    for seed in range(len(made.records()) + 1):
        config = run_config(1, 64, seed=seed)
        shorter = config.data.model_copy(update={"sequence_length": 32})
        add_run(other, config.model_copy(update={"data": shorter}), excluded="a bad disk")
    runs, _ = runs_in({"made": made, "other": other})
    assert runs["validation"].value_counts().index[0] == "sequence_length=32", "most runs, of which laws use none"
    assert validations(runs) == ["sequence_length=64", "sequence_length=32"]
    assert validations(runs[runs["sweep"] == "other"]) == ["sequence_length=32"]
    assert validations(runs.head(0)) == []


def test_where_laws_use_no_run_that_could_be_shown_it_is_said_why_and_what_shows_them(
    made: SweepFolder, tmp_path: Path
) -> None:
    folder = sweep_folder(tmp_path / "other")
    for rate in (2e-3, 4e-3, 8e-3):
        add_run(folder, run_config(1, 64, rate), excluded="a bad disk" if rate > 2e-3 else None)
    for place, told in ((made, ""), (folder, "")):
        points = explorer.frame(runs_in({"one": place})[0], "tokens", "loss_nats", "shape")
        assert explorer.why_none_used(points) == told
    left_out = points[~points["used"]]
    assert explorer.why_none_used(left_out) == "Laws use none of the 2 runs here: 2 excluded: a bad disk."
    assert explorer.why_none_used(points.head(0)) == "No run here has both quantities."


def test_the_same_text_elsewhere_is_the_same_validation_set(made: SweepFolder, tmp_path: Path) -> None:
    other, config = sweep_folder(tmp_path / "other"), run_config(1, 64)
    moved = config.model_copy(update={"data": config.data.model_copy(update={"corpus": "there/text.txt"})})
    add_run(other, moved)
    runs, _ = runs_in({"made": made, "other": other})
    assert runs["data.corpus"].nunique() == 2
    assert set(runs["validation"]) == {""}
    assert validation_of(config, "text") == validation_of(moved, "text") != validation_of(config, "other text")


def test_runs_of_sweeps_that_name_no_trained_run_say_so_beside_others_that_do(made: SweepFolder, tmp_path: Path) -> None:
    other, config = sweep_folder(tmp_path / "other"), run_config(1, 64)
    start = str(made.runs()[0].path)
    add_run(other, config.model_copy(update={"recipe": config.recipe.model_copy(update={"start": start})}))
    runs, _ = runs_in({"made": made, "other": other})
    assert set(runs.loc[runs["sweep"] == "made", "recipe.start"]) == {"fresh"}
    assert "recipe.start" in kinds(runs)


def test_scores_are_those_of_trained_weights_in_the_mean_over_seeds(made: SweepFolder) -> None:
    add_scores(made)
    runs, _ = runs_in({"made": made})
    runs = runs.set_index("run_id")
    table = pd.read_parquet(made.scores_file)
    of_one = table[(table["task"] == "cola") & (table["run_id"] == runs.index[0]) & (table["protocol"] == "fine_tune")]
    assert len(of_one) == 3
    assert runs["downstream/cola/matthews"].iloc[0] == pytest.approx(of_one["test"].mean())
    assert quantities(runs)["downstream/cola/matthews"] == "cola/matthews (downstream score)"
    assert runs["downstream/blimp/paradigm_accuracy"].notna().all()


def test_a_quick_look_is_another_score_than_the_whole_task(made: SweepFolder) -> None:
    add_scores(made)
    whole = downstream(made, made.write_ledger())
    assert whole is not None
    cola = next(task for task in whole.tasks if task.task == "cola").points.set_index("cell")
    for record in made.records():
        add_score(made, record, "cola", TASKS["cola"], "fine_tune", 0, 0.9, Knobs(max_train_examples=2000))
    write_scores(made)
    runs, _ = runs_in({"made": made})
    assert set(runs["downstream/cola (max_train_examples=2000)/matthews"]) == {0.9}
    again = downstream(made, made.write_ledger())
    assert again is not None
    points = {task.task: task.points.set_index("cell") for task in again.tasks}
    assert set(points["cola (max_train_examples=2000)"]["score"]) == {0.9}
    pd.testing.assert_series_equal(points["cola"]["score"], cola["score"])


def test_scores_on_other_examples_are_told_apart_by_their_fingerprint() -> None:
    rows = {"task": ["cola", "cola", "sst2"], "update": "all", "knobs": "", "task_fingerprint": ["a" * 16, "b" * 16, "c" * 16]}
    assert series(pd.DataFrame(rows)).tolist() == ["cola (aaaaaa)", "cola (bbbbbb)", "sst2"]


def test_a_sweep_that_cannot_be_read_keeps_nobody_from_the_others(made: SweepFolder, tmp_path: Path) -> None:
    damaged = [depth_or_width(tmp_path / str(n), budgets=(1e6,), shapes=((1, 64),), rates=(2e-3,), seeds=1) for n in range(3)]
    damaged[0].runs()[0].record_file.write_text("{")
    damaged[1].cells_file.write_text("[")
    damaged[2].sweep_file.write_text("tune: 3")
    runs, problems = runs_in({"made": made} | {folder.name: folder for folder in damaged})
    assert len(runs) == len(made.records())
    assert list(problems) == ["0", "1", "2"]
    assert "record.json" in problems["0"]
    runs, problems = runs_in({"0": damaged[0]})
    assert runs.empty
    assert list(problems) == ["0"]


def test_axes_are_what_runs_have_and_kinds_what_tells_them_apart(made: SweepFolder) -> None:
    runs, _ = runs_in({"made": made})
    assert {"loss_nats", "train_flops_6n", "architecture.depth"} <= set(quantities(runs))
    assert "tokens_per_second" not in quantities(runs), "no made-up run has a speed"
    assert kinds(runs)[:2] == ["architecture.depth", "architecture.width"]
    assert not {"sweep", "architecture.heads", "recipe.batch_tokens"} & set(kinds(runs))
    many = pd.concat([runs, runs], ignore_index=True).assign(seed=range(16), setting=[f"setting {n}" for n in range(16)])
    assert "seed" in kinds(many), "a scale shows any number of numbers"
    assert "setting" not in kinds(many), "no palette has a colour for each of so many words"


def test_a_folder_of_sweeps_whose_runs_have_not_ended_gives_no_rows(tmp_path: Path) -> None:
    runs, _ = runs_in({"empty": sweep_folder(tmp_path / "empty")})
    assert runs.empty
    assert (quantities(runs), kinds(runs)) == ({}, [])


def test_points_are_hollow_where_fits_leave_a_run_out(made: SweepFolder) -> None:
    data = explorer.frame(runs_in({"made": made})[0], "train_flops", "loss_nats", "architecture.depth")
    chart = explorer.draw(data, "FLOPs", "nats", "depth").to_dict()
    assert chart["title"] == "8 runs of 1 sweep; 4 hollow: excluded, or not at the best knobs of a cell"
    assert chart["encoding"]["x"]["title"] == "FLOPs"
    assert chart["encoding"]["x"]["scale"]["type"] == "log"
    assert "type" not in chart["encoding"]["y"]["scale"]
    assert chart["encoding"]["fill"]["condition"]["test"] == "datum.used"
    (points,) = chart["datasets"].values()
    assert sorted(point["used"] for point in points) == [False] * 4 + [True] * 4
    assert {point["colour"] for point in points} == {1, 2}
    told = [each["field"] for each in chart["encoding"]["tooltip"]]
    measured = ["loss (nats)", "order gain (nats)"]
    assert told == ["sweep", "shape", "learning rate", "seed", "tokens", *measured, "left out", "run"], "no setting is told"
    used = explorer.draw(data[data["used"]], "FLOPs", "nats", "depth").to_dict()
    assert used["title"] == "4 runs of 1 sweep"
    assert "left out" not in [each["field"] for each in used["encoding"]["tooltip"]]


def test_a_logarithmic_axis_leaves_out_what_is_not_positive(made: SweepFolder) -> None:
    add_scores(made)
    runs, _ = runs_in({"made": made})
    runs.loc[0, "downstream/cola/matthews"] = -0.02
    data = explorer.frame(runs, "parameters", "downstream/cola/matthews", "shape")
    assert "8 runs" in explorer.draw(data, "x", "y", "shape").to_dict()["title"]
    assert explorer.draw(data[data["used"]], "x", "y", "shape").to_dict()["title"] == "4 runs of 1 sweep"
    assert explorer.draw(data, "x", "y", "shape", log_y=True).to_dict()["title"].endswith("; 1 not shown, not being positive")
    assert explorer.why_none_shown(data, log_x=True, log_y=True) == "", "some are shown"
    below = data.head(1)
    assert explorer.why_none_shown(below, log_x=True, log_y=False) == ""
    assert "there are none in 1 run here" in explorer.why_none_shown(below, log_x=False, log_y=True)
    assert "Untick “log y” to see them." in explorer.why_none_shown(below, log_x=False, log_y=True)


def test_a_logarithmic_axis_has_no_more_ticks_than_labels_and_one_at_each_decade(made: SweepFolder) -> None:
    data = explorer.frame(runs_in({"made": made})[0], "train_flops", "loss_nats", "seed")

    def ticks(low: float, high: float) -> list[float] | None:
        at = data.assign(x=np.geomspace(low, high, len(data)))
        values = explorer.draw(at, "FLOPs", "nats", "seed").to_dict()["encoding"]["x"]["axis"].get("values")
        return values and [value for value in values if low <= value <= high]

    assert ticks(1.4e11, 1.3e13) == [2e11, 5e11, 1e12, 2e12, 5e12, 1e13]
    assert ticks(1e6, 1e10) == [1e6, 1e7, 1e8, 1e9, 1e10]
    assert ticks(1e6, 1.9e6) is None, "few places are round there, and Vega finds others"


def test_runs_without_one_of_the_quantities_are_no_points(made: SweepFolder) -> None:
    add_run(made, run_config(1, 128, 6e-3), state="DIVERGED", reason="a loss was NaN")
    runs, _ = runs_in({"made": made})
    assert len(runs) == 9
    assert len(explorer.frame(runs, "train_flops", "loss_nats", "state")) == 8


def test_a_step_that_was_logged_twice_is_one_point_of_a_curve(made: SweepFolder) -> None:
    points = explorer.frame(runs_in({"made": made})[0], "parameters", "loss_nats", "seed").head(2)
    file = made.run(points["run"].iloc[0]).metrics_file
    last = json.loads(file.read_text().splitlines()[-1])
    file.write_text(file.read_text() + json.dumps(last | {"val/loss": 2.5}) + "\n")
    curves, damaged = run_curves.frame(points, {"made": made})
    assert damaged == {}
    one = curves[curves["run"] == curves["run"].iloc[0]]
    assert one["tokens"].is_unique
    assert one["loss_nats"].iloc[-1] == 2.5
    assert one["train_flops"].iloc[-1] == pytest.approx(made.run(points["run"].iloc[0]).record().train_flops)  # type: ignore[union-attr]
    assert curves["run"].nunique() == 2
    cut = curves["run"].str[:8].unique().tolist()
    assert cut == [f"{run[:6]} L" for run in points["run"]], "the legend cuts long names, whose beginnings tell them apart"
    assert curves["run"].iloc[0].endswith(" L1-H128-A2-F512 lr=2e-3 seed=0")
    assert len(run_curves.frame(points, {"made": made}, "train/loss")[0]) > len(curves)
    long = "".join(json.dumps(last | {"trainer/tokens": n}) + "\n" for n in range(1, 5000))
    file.write_text(long)
    thinned, _ = run_curves.frame(points.head(1), {"made": made})
    assert len(thinned) == run_curves.MOST_POINTS
    assert thinned["tokens"].iloc[[0, -1]].tolist() == [1, 4999]
    drawn = run_curves.draw(curves, "train_flops").to_dict()
    assert drawn["encoding"]["x"]["field"] == "train_flops"
    assert "FLOPs" in drawn["encoding"]["x"]["title"]
    assert drawn["encoding"]["color"]["sort"] is None, "names that begin with ids stand as the runs do"
    assert drawn["encoding"]["color"]["legend"]["orient"] == "bottom", "names of runs are long, and leave no room beside them"
    assert drawn["encoding"]["x"]["axis"]["labelSeparation"] > 0, "labels do not touch"


def test_sweeps_stand_side_by_side_and_one_that_cannot_be_read_says_why(made: SweepFolder, tmp_path: Path) -> None:
    broken = depth_or_width(tmp_path / "broken", budgets=(1e6,), shapes=((1, 128),), rates=(2e-3,), seeds=1)
    broken.runs()[0].record_file.write_text("{")
    add_run(made, run_config(1, 128, 6e-3), state="DIVERGED", reason="a loss was NaN")
    waiting = sweep_folder(tmp_path / "waiting")
    rows = overview({"made": made, "broken": broken, "waiting": waiting}).set_index("sweep")
    assert rows.loc["made", list(STATES)].dropna().to_dict() == {"completed": 8, "diverged": 1}
    assert rows.loc["made", "question"] == "At equal parameters, does depth or width lower MLM loss more?"
    assert rows.loc["made", "spent (train_flops)"] == pytest.approx(sum(record.train_flops for record in made.records()))
    assert rows.loc["waiting", list(STATES)].dropna().to_dict() == {"completed": 0}, "none has begun"
    assert rows["problem"].ne("").tolist() == [False, True, False]
    assert "record.json" in str(rows.loc["broken", "problem"])
    assert rows["launched"].isna().all()
    for number in (*STATES, "left", "spent (train_flops)"):
        assert rows[number].map(lambda value: isinstance(value, int | float)).all(), f"{number} could not be sorted by"


def test_a_run_that_is_being_trained_is_told(made: SweepFolder) -> None:
    run = made.run("f" * 16)
    run.write_config(run_config(1, 128, 6e-3))
    with work_lock(run) as has_turn:
        assert has_turn
        assert overview({"made": made})[["completed", "running"]].to_numpy().tolist() == [[8, 1]]
        table = runs_table(status(made)).set_index("run")
    assert table.loc[[run.run_id], ["state", "done"]].to_numpy().tolist() == [["running", 0.0]]
    assert table["loss (nats)"].isna().tolist() == (table.index == run.run_id).tolist()
    assert not {"setting", "MFU", "seconds left", "note"} & set(table), "what no run has is left out"
