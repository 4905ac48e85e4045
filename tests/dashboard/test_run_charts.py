"""The runs of several sweeps in one table: each once, with why fits leave it out, its scores, and what it compares with."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from study.base.errors import InputError
from study.config.score_config import Knobs
from study.dashboard.run_charts import LOSSES, comparable, kinds, quantities, runs_in, validations
from study.evidence.downstream import downstream
from study.store.records import validation_of
from study.store.score_records import series, write_scores
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


def test_only_runs_that_differ_in_the_seed_alone_are_replicates(tmp_path: Path) -> None:
    """A cell leaves every tuned knob out, not the rate alone."""
    tuned = {knob: {"low": 0.001, "high": 0.1, "trials": 3} for knob in ("recipe.learning_rate", "recipe.weight_decay")}
    folder = sweep_folder(tmp_path / "made", SWEEP | {"tune": tuned})
    for seed, decay, rate in product((0, 1), (0.01, 0.1), (0.001, 0.01)):
        add_run(folder, run_config(1, 64, rate, seed, weight_decay=decay))
    runs, _ = runs_in({"made": folder})
    assert runs["cell"].nunique() == 1
    groups = runs.groupby("replicates")
    assert groups["seed"].apply(sorted).tolist() == [[0, 1]] * 4
    assert (groups[["recipe.weight_decay", "recipe.learning_rate"]].nunique() == 1).all(axis=None)


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


def test_scores_on_other_examples_are_distinguished_by_their_fingerprint() -> None:
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


def test_axes_are_what_runs_have_and_kinds_what_distinguishes_them(made: SweepFolder) -> None:
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
