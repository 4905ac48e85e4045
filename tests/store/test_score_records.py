"""Scores choose on dev and report on test, and their records are written once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from study.base.errors import InputError
from study.config.score_config import Downstream, ScoreConfig
from study.store.run_folder import RunFolder
from study.store.score_records import BaselineRecord, ScoreRecord, score_folder, scores, scores_of


def config(**changes: Any) -> ScoreConfig:
    values = {"encoder": "e" * 16, "task": "cola", "task_fingerprint": "f" * 16, "metric": "matthews"}
    return ScoreConfig.parse(values | {"protocol": "fine_tune", "update": "all"} | changes)


def record(rate: float, seed: int, dev: float, test: float, **changes: Any) -> ScoreRecord:
    of = config(knobs={"learning_rate": rate}, seed=seed, **changes)
    facts = {"state": "COMPLETED", "started_at": "2026-11-20", "finished_at": "2026-11-20", "kind": "single"}
    splits = {"chosen_on": "dev", "reported_on": "test", "dev_scores": {"matthews": dev}, "test_scores": {"matthews": test}}
    values = {"score_id": of.fingerprint(), "run_id": "r" * 16, "sweep": "toy", "config": of.model_dump()} | facts | splits
    return ScoreRecord.parse(values)


def test_knobs_are_chosen_on_dev_and_never_on_test() -> None:
    grid = [record(1e-4, 0, dev=0.5, test=0.1), record(3e-4, 0, dev=0.4, test=0.9)]
    table = scores([*grid, record(1e-4, 1, dev=0.1, test=0.2)])
    assert list(table["learning_rate"]) == [1e-4, 1e-4]
    assert list(table["test"]) == [0.1, 0.2]


def test_batches_and_epochs_compete_as_rates_do() -> None:
    grid = []
    for knob, values in (("batch_examples", (16, 32)), ("epochs", (2, 3))):
        for value, dev in zip(values, (0.4, 0.5), strict=True):
            one = record(1e-4, 0, dev, test=dev)
            knobs = one.config.knobs.model_copy(update={knob: value})
            of = one.config.model_copy(update={"knobs": knobs})
            grid.append(one.model_copy(update={"config": of, "score_id": of.fingerprint()}))
    assert list(scores(grid[:2])["test"]) == list(scores(grid[2:])["test"]) == [0.5]


def test_seeds_that_did_not_run_the_grid_do_not_choose() -> None:
    grid = [record(1e-4, 0, dev=0.5, test=0.1), record(3e-4, 0, dev=0.6, test=0.2)]
    later = [record(3e-4, 1, dev=0.0, test=0.3)]
    assert list(scores([*grid, *later])["test"]) == [0.2, 0.3]


def test_knobs_that_were_repeated_stand_where_no_seed_ran_the_whole_grid() -> None:
    """Each failed at one of two seeds; the repeats, however low, do not give the choice back."""
    grid = [record(1e-4, 1, dev=0.5, test=0.1), record(3e-4, 0, dev=0.4, test=0.2)]
    later = [record(1e-4, seed, dev=0.1, test=0.3) for seed in (2, 3)]
    assert list(scores(grid)["test"]) == [0.1]
    assert list(scores([*grid, *later])["test"]) == [0.1, 0.3, 0.3]


@pytest.mark.parametrize(("state", "rate"), [("DIVERGED", 3e-4), ("FAILED", 1e-4), ("OOM", 1e-4)])
def test_knobs_at_which_a_seed_diverged_rank_below_those_at_which_all_learned(state: str, rate: float) -> None:
    """As rates of runs do; a score that failed for another reason says nothing of its knobs."""
    learned = [record(1e-4, 0, dev=0.9, test=0.1), *(record(3e-4, seed, dev=0.5, test=0.2) for seed in (0, 1))]
    lost = record(1e-4, 1, dev=0.0, test=0.0).model_copy(update={"state": state, "dev_scores": {}, "test_scores": {}})
    repeats = [record(knobs, seed, dev=0.1, test=0.3) for knobs in (1e-4, 3e-4) for seed in (2, 3)]
    assert {*scores([*learned, lost, *repeats])["learning_rate"]} == {rate}


def test_of_knobs_that_are_as_good_the_least_stand_whichever_came_first() -> None:
    grid = [record(rate, 0, dev=0.5, test=rate) for rate in (3e-4, 1e-4, 1e-3)]
    assert list(scores(grid)["learning_rate"]) == list(scores(grid[::-1])["learning_rate"]) == [1e-4]


def test_what_failed_or_was_not_measured_competes_with_none() -> None:
    """A score below zero is better than one that nobody knows."""
    grid = [record(rate, 0, dev=0.9, test=0.9) for rate in (3e-4, 1e-3)]
    failed = grid[0].model_copy(update={"state": "FAILED"})
    untested = grid[1].model_copy(update={"test_scores": {}})
    assert list(scores([record(1e-4, 0, dev=0.5, test=0.1), failed, untested])["test"]) == [0.1]
    unknown = grid[0].model_copy(update={"dev_scores": {}})
    assert list(scores([record(1e-4, 0, dev=-0.2, test=0.1), unknown])["test"]) == [0.1]


def test_protocols_and_tasks_do_not_compete() -> None:
    others = [record(3e-4, 0, 0.9, 0.2, protocol="random_init"), record(3e-4, 0, 0.9, 0.2, update="head")]
    table = scores([record(1e-4, 0, 0.5, 0.1), *others, record(3e-4, 0, 0.1, 0.3, task="rte")])
    assert len(table) == 4


def test_a_score_that_lies_under_two_runs_is_one_score() -> None:
    """Random weights are those of every run of a shape; another run may be the first of them tomorrow."""
    once = record(1e-4, 0, 0.9, 0.2, protocol="random_init")
    twice = once.model_copy(update={"run_id": "q" * 16})
    assert once.score_id == twice.score_id
    table = scores([once, twice, record(1e-4, 1, 0.9, 0.3, protocol="random_init")])
    assert list(table["test"]) == [0.2, 0.3]
    assert set(table["run_id"]) == {once.run_id}


def test_a_row_has_the_metrics_of_both_splits_and_the_knobs_that_are_not_as_usual() -> None:
    plain = record(1e-4, 0, 0.5, 0.1)
    of = config(knobs={"learning_rate": 1e-4, "dropout": 0.0}, task="rte")
    table = scores([plain, plain.model_copy(update={"score_id": of.fingerprint(), "config": of})])
    assert dict(zip(table["task"], table["knobs"], strict=True)) == {"cola": "", "rte": "dropout=0"}
    assert set(table["dev/matthews"]) == set(table["dev"]) == {0.5}
    assert set(table["test/matthews"]) == set(table["test"]) == {0.1}


def test_scores_stand_run_by_run_and_seed_by_seed() -> None:
    of_runs = [
        record(1e-4, seed, 0.5, 0.1, encoder=run * 16).model_copy(update={"run_id": run * 16})
        for seed in (1, 0)
        for run in "ba"
    ]
    table = scores(of_runs)
    assert list(zip(table["run_id"].str[0], table["seed"], strict=True)) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_a_baseline_gives_what_was_measured_of_it() -> None:
    measured = {"majority": {"matthews": 0.0}, "bag_of_words": {"accuracy": 0.7}}
    made = BaselineRecord(task="cola", task_fingerprint="f" * 16, metric="matthews", reported_on="test", scores=measured)
    assert made.by("matthews") == {"majority": 0.0}


def test_a_record_is_written_once_and_read_back(tmp_path: Path) -> None:
    run, filed = RunFolder(tmp_path / "runs" / "r"), record(1e-4, 0, 0.5, 0.1)
    folder = score_folder(run, filed.score_id)
    assert folder.score() is None
    assert folder.file_score(filed)
    assert not folder.file_score(record(1e-4, 0, 0.9, 0.9))
    assert scores_of(run) == [filed]
    later = record(3e-4, 1, 0.5, 0.1)
    assert score_folder(run, later.score_id).file_score(later)
    assert [actual.score_id for actual in scores_of(run)] == sorted([filed.score_id, later.score_id])
    for of in (filed.config, later.config):
        folder.write_settings(of)
    assert ScoreConfig.parse(json.loads(folder.settings_file.read_bytes())) == filed.config
    folder.record_file.write_text("{")
    with pytest.raises(InputError, match=r"record\.json: is damaged: .*; move it away to score again"):
        scores_of(run)


def test_a_default_spelled_out_renames_no_score_and_a_knob_does() -> None:
    assert config(knobs={"dropout": 0.1}).fingerprint() == config().fingerprint()
    assert config(knobs={"dropout": 0.0}).fingerprint() != config().fingerprint()


def test_the_grid_leaves_no_knob_said_twice() -> None:
    grid = Downstream.parse({"tasks": ["cola"], "learning_rates": ["1e-4", 3e-4], "epochs": [2, 3]}).grid()
    assert [(knobs.learning_rate, knobs.epochs) for knobs in grid] == [(1e-4, 2), (1e-4, 3), (3e-4, 2), (3e-4, 3)]
    with pytest.raises(InputError, match="which the grid sets"):
        Downstream.parse({"tasks": ["cola"], "knobs": {"epochs": 2}})
    with pytest.raises(InputError, match="twice"):
        Downstream.parse({"tasks": ["cola", "cola"]})
