"""Scores end to end on a run of a second: resumed bit for bit, made once, chosen on dev; and the command that makes them."""

from __future__ import annotations

import gc
import json
import os
import shutil
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import Timeout
from rich.console import Console

from study.base import durable_files
from study.base.errors import OOM_EXIT, PREEMPTED_EXIT, InputError
from study.base.schema import deep_merge
from study.base.statistics import noise_of_seeds
from study.config.resources import Resources
from study.config.score_config import Downstream, ScoreConfig
from study.counting.architecture import Architecture
from study.counting.memory import Precision
from study.counting.named_models import named
from study.counting.parameters import flops_per_sequence
from study.dashboard.run_charts import with_reasons
from study.data.prepared import prepare
from study.evidence.cells import cells_of
from study.evidence.ledgers import open_ledger, usable
from study.executing import processes
from study.executing.executors import LocalExecutor, make_slots
from study.executing.slots import Slot
from study.model.stored_weights import Int8Products
from study.running import score_launch
from study.running.control import exclude, include, retry, stop
from study.running.coordinator import CRASHES, KILLS, Coordinator, Progress
from study.running.display import Display
from study.running.score_launch import AnyScoreJob, AnyScoreRecord, ScoreProposer
from study.running.status import status, status_table
from study.scoring import probes
from study.scoring.evaluations import Evaluation, ScoreJob, all_evaluations, batches, cost, missing_baselines, wanted
from study.scoring.features import embed
from study.scoring.fine_tuning import FineTuning, task_model
from study.scoring.making import make_baselines
from study.scoring.predictions import Logits
from study.scoring.pretrained import Pretrained, pretrained
from study.scoring.probes import STRENGTHS, _best_strength, _fitted
from study.scoring.score_table import _baselines, _failures, rows
from study.scoring.scored_examples import PlannedTask, loaded_task
from study.scoring.targets import Scored, Target, label_runs, load_tasks, require_texts, runs_in_answer, target
from study.scoring.task_inputs import TaskInputs, task_inputs
from study.store.ownership import Attempt, sweep_lock, work_lock
from study.store.packing import pack
from study.store.run_folder import RunFolder
from study.store.score_records import ScoreRecord, baseline, file_baseline, score_folder, scores_of
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import TAUGHT, checkpoints_in
from study.training.attempts import StopSignal
from study.training.compressing import CompressionMethod, compress
from study.training.execution import Execution
from tests.small import ORDERED, SHARED, config, losses, shapes_checked_at_first, trained, write_corpus
from tests.synthetic import SWEEP, Law, add_run, in_setting, run_config, sweep_folder
from tests.synthetic_scores import ScoreLaw, add_score
from tests.waiting import ImpatientClock, until

ScoreProgress = Progress[AnyScoreJob, AnyScoreRecord]

TASKS: dict[str, dict[str, Any]] = {
    "first": {"kind": "single", "metrics": ["accuracy"]},
    "several": {"kind": "single", "multi_label": True, "metrics": ["micro_f1", "macro_f1", "subset_accuracy"]},
    "alike": {"kind": "pair", "regression": True, "metrics": ["spearman"]},
    "tags": {"kind": "tokens", "metrics": ["accuracy"]},
    "found": {"kind": "spans", "metrics": ["answer_f1", "exact_match"]},
    "order": {"kind": "minimal_pairs", "metrics": ["paradigm_accuracy"]},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    place = tmp_path_factory.mktemp("scoring")
    write_tasks(place / "tasks", write_corpus(place / "text.txt").read_text().split("\n\n"))
    return trained(place / "results" / "toy", config(place / "text.txt"))


def write_tasks(folder: Path, texts: list[str]) -> None:
    """A task of every kind whose labels follow from the words of a text."""
    folder.mkdir()
    for name, task in TASKS.items():
        source = {"files": f"{name}-{{split}}", "splits": {"train": "train", "dev": "dev", "test": "test"}}
        (folder / f"{name}.yaml").write_text(json.dumps({"sources": [source]} | task))
    splits = {"train": texts[:60], "dev": texts[60:80], "test": texts[80:100]}
    for split, part in splits.items():
        for name in TASKS:
            rows = [example(name, text.split()[:6]) for text in part]
            (folder / f"{name}-{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def example(name: str, words: list[str]) -> dict[str, Any]:
    text = " ".join(words)
    match name:
        case "first":
            return {"text": text, "label": "early" if words[0] < "m" else "late"}
        case "several":
            return {"text": text, "label": [kind for kind, letter in (("an a", "a"), ("an e", "e")) if letter in text]}
        case "alike":
            return {"text_a": text, "text_b": words[0], "label": float(sum(word < "m" for word in words))}
        case "tags":
            return {"tokens": words, "tags": ["A" if word[1] in "aei" else "B" for word in words]}
        case "found":
            return {"context": text, "question": words[0], "answer": words[1], "answer_start": len(words[0]) + 1}
        case _:
            return {"sentence_good": text, "sentence_bad": " ".join(reversed(words)), "UID": words[0][0]}


def data_of(run: RunFolder) -> Path:
    return run.path.parents[3] / "tasks"


def job(run: RunFolder, task: str = "first", **changes: Any) -> ScoreJob:
    name = str(data_of(run) / f"{task}.yaml")
    loaded = loaded_task(name, None)
    update = "none" if task == "order" else "all"
    values = {"encoder": run.run_id, "task": task, "task_fingerprint": loaded.fingerprint, "metric": loaded.spec.headline}
    protocol = {"protocol": "zero_shot" if task == "order" else "fine_tune", "update": update}
    knobs = {"learning_rate": 1e-3, "batch_examples": 8, "precision": "fp32"}
    wanted = ScoreConfig.parse(values | protocol | {"knobs": knobs} | changes)
    planned = PlannedTask(name, None, wanted.knobs, loaded.spec.kind, task, wanted.task_fingerprint)
    return ScoreJob(score_folder(run, wanted.fingerprint()), wanted, planned, "toy")


def made(requested: ScoreJob, stop: StopSignal | None = None) -> ScoreRecord:
    with shapes_checked_at_first(FineTuning):
        requested.execute(Execution(checkpoint_seconds=1e9), stop or StopSignal())
    record = requested.folder.score()
    assert record is not None
    assert record.state == "COMPLETED", record.reason
    return record


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, the logits of a split at the best epoch take a thousand seconds."""
    waited, counter, original = [0.0], time.perf_counter, FineTuning.logits_of

    def logits_of(self: FineTuning, split: str, precision: Precision) -> Logits:
        waited[0] += 1000.0
        return original(self, split, precision)

    monkeypatch.setattr(FineTuning, "logits_of", logits_of)
    monkeypatch.setattr(time, "perf_counter", lambda: counter() + waited[0])


def test_the_seconds_of_a_score_count_its_test_split(run: RunFolder, late: None) -> None:
    record = made(job(run, seed=17))
    assert record.seconds is not None
    assert 1000 < record.seconds < 1900
    assert record.tokens_per_second is not None
    assert record.tokens_per_second > (record.tokens or 0) / 900, "of training alone"


@pytest.mark.slow  # that it predicts in int8 is among the fast tests of compressing
@pytest.mark.parametrize(
    ("task", "changes"), [("first", {}), ("first", {"protocol": "frozen", "update": "head"}), ("order", {})], ids=str
)
def test_a_run_of_int8_learns_in_fp32_and_is_evaluated_in_int8(
    run: RunFolder, task: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    into = SweepFolder(run.path.parents[2] / "small")
    (small,) = compress(run, prepare(run.config().data), [CompressionMethod.parse("int8")], into, Execution())
    learning: list[bool] = []
    original = Int8Products.__call__

    def multiplied(self: Int8Products, *inputs: Any) -> torch.Tensor:
        learning.append(torch.is_grad_enabled())
        return original(self, *inputs)

    monkeypatch.setattr(Int8Products, "__call__", multiplied)
    record = made(job(small, task, **changes))
    assert record.test is not None
    assert learning
    assert not any(learning)
    learning.clear()
    assert made(job(run, task, **changes)).test is not None
    assert not learning, "its source multiplies in fp32"


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[] if task in ("first", "tags", "order") else pytest.mark.slow) for task in TASKS]
)
def test_every_kind_of_task_is_scored(run: RunFolder, task: str) -> None:
    requested = job(run, task)
    record = made(requested)
    assert record.test is not None
    assert record.test_examples == 20
    assert record.test_interval is not None
    assert record.reported_on == "test"
    if task != "order":
        assert record.chosen_on == "dev"
        assert record.steps == 3 * 8
        logged = dev_logged(requested)
        assert len(logged) == 3
        assert (record.best_epoch, record.dev) == (1 + logged.index(max(logged)), max(logged))
        assert record.tokens is not None


@pytest.mark.parametrize(
    "task", ["first", *(pytest.param(task, marks=pytest.mark.slow) for task in ("several", "alike", "tags", "found"))]
)
def test_features_of_a_frozen_encoder_are_scored(run: RunFolder, task: str) -> None:
    started = time.perf_counter()
    record = made(job(run, task, protocol="frozen", update="head", seed=7))
    assert record.test is not None
    if task == "found":
        assert record.steps
    else:
        assert {probe.layer for probe in record.probes} == {0, 1, 2}
        chosen = max(record.probes, key=lambda probe: probe.dev)
        assert (record.dev, record.test) == (chosen.dev, chosen.test)
    assert record.seconds is not None
    assert 0 < record.seconds < time.perf_counter() - started


@pytest.mark.parametrize("task", ["first", "tags"])
def test_a_probe_encodes_no_more_texts_or_words_than_it_learns_from(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    requested, learnt = job(run, task, protocol="frozen", update="head", seed=8), list[tuple[int, int]]()
    whole = task_inputs(loaded_task(requested.task.requested, None), pretrained(run.path), requested.config.knobs)
    fitted = probes._fitted

    def fit(data: TaskInputs, features: Any, targets: Any, strength: float) -> Any:
        learnt.append((len(features), len(targets)))
        return fitted(data, features, targets, strength)

    monkeypatch.setattr(probes, "_fitted", fit)
    monkeypatch.setattr(probes, "MOST_ROWS", 40)
    record = made(requested)
    splits = {split: int(inputs.tokens.lengths.sum()) for split, inputs in whole.splits.items()}
    assert record.tokens is not None
    assert splits["dev"] + splits["test"] < record.tokens < sum(splits.values())
    assert {rows for rows in learnt if rows[0] != rows[1]} == set()
    assert 30 < learnt[0][0] <= 40


@pytest.mark.slow
def test_the_last_four_layers_are_probed_together(run: RunFolder) -> None:
    place = run.path.parents[3]
    deep = trained(
        place / "results" / "deep", config(place / "text.txt", architecture={"depth": 4}, recipe={"budget": {"steps": 2}})
    )
    record = made(job(deep, "first", protocol="frozen", update="head"))
    assert {probe.layer for probe in record.probes} == {0, 1, 2, 3, 4, "concat", "sum"}
    assert record.dev == max(probe.dev for probe in record.probes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [SHARED, ORDERED],
    ids=["shared layers, narrow tables", "bias, normed queries"],
)
def test_encoders_of_other_kinds_are_scored_by_each_protocol(run: RunFolder, kind: dict[str, Any]) -> None:
    place = run.path.parents[3]
    other = trained(place / "results" / "other", config(place / "text.txt", architecture=kind))
    tuned, ordered, probed = (
        made(job(other, task, **changes))
        for task, changes in (("first", {}), ("order", {}), ("first", {"protocol": "frozen", "update": "head"}))
    )
    assert tuned.steps == 3 * 8
    assert ordered.test is not None
    assert {probe.layer for probe in probed.probes} == {0, 1, 2}


def test_the_strength_of_a_probe_is_the_one_that_dev_likes_best(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = job(run, "alike", protocol="frozen", update="head")
    data = task_inputs(loaded_task(requested.task.requested, None), pretrained(run.path), requested.config.knobs)
    on_dev = dict(zip(STRENGTHS, (0.2, 0.9, 0.5), strict=True))
    monkeypatch.setattr("study.scoring.probes._fitted", lambda *of: of[3])
    monkeypatch.setattr("study.scoring.probes._predicted", lambda *of: [of[2]])
    monkeypatch.setattr("study.scoring.probes.measure", lambda *of: {"spearman": on_dev[of[2][0]]})
    features = {split: np.zeros((60, 1), np.float32) for split in ("train", "dev", "test")}
    assert _best_strength(requested.config, data, features) == (STRENGTHS[1], {"spearman": 0.9}, [STRENGTHS[1]])


def test_features_are_standardised_as_those_of_train_and_a_constant_one_says_nothing(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = job(run, "alike", protocol="frozen", update="head")
    data = task_inputs(loaded_task(requested.task.requested, None), pretrained(run.path), requested.config.knobs)
    seen: dict[str, Any] = {}
    monkeypatch.setattr("study.scoring.probes._fitted", lambda *of: seen.update(train=of[1]))
    monkeypatch.setattr("study.scoring.probes._predicted", lambda *of: [seen.update({of[1]: of[3]})])
    monkeypatch.setattr("study.scoring.probes.measure", lambda *_: {"spearman": 0.0})
    column = np.random.default_rng(0).normal(7, 3, (60, 1))
    train = np.hstack([column, np.full((60, 1), 5.0)]).astype(np.float32)
    test = train[:1] + np.array([3.0, 0.0], np.float32)
    _best_strength(requested.config, data, {"train": train, "dev": train[:2], "test": test})
    np.testing.assert_allclose(seen["train"].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(seen["train"].std(0), [1, 0], atol=1e-5)
    np.testing.assert_allclose(seen["test"], (test - train.mean(0)) / [train[:, 0].std(), 1.0], atol=1e-4)


def test_strengths_of_probes_are_inverse_penalties(run: RunFolder) -> None:
    features = np.eye(4, dtype=np.float32)
    for task, name, penalty in (("alike", "alpha", 100.0), ("first", "C", 0.01)):
        requested = job(run, task, protocol="frozen", update="head")
        data = task_inputs(loaded_task(requested.task.requested, None), pretrained(run.path), requested.config.knobs)
        assert getattr(_fitted(data, features, np.array([0, 1, 0, 1]), 0.01), name) == penalty


class StopAfter(StopSignal):
    """Received after so many queries."""

    def __init__(self, times: int) -> None:
        self.times = times

    @property
    def received(self) -> bool:
        self.times -= 1
        return self.times < 0

    @received.setter
    def received(self, value: bool) -> None:
        raise AssertionError

    def install(self) -> None:
        """Leave the signals of the tests alone."""


@pytest.mark.parametrize(("batch", "queries"), [(8, 9), (60, 2)], ids=["eight steps an epoch", "one step an epoch"])
def test_a_stopped_score_resumes_to_the_same_numbers(run: RunFolder, batch: int, queries: int) -> None:
    knobs = {"learning_rate": 1e-3, "batch_examples": batch, "precision": "fp32", "epochs": 4, "patience": 8}
    whole_job, again = job(run, "tags", seed=1, knobs=knobs), job(run, "tags", seed=1, knobs=knobs | {"patience": 9})
    whole = made(whole_job)
    assert again.execute(Execution(checkpoint_seconds=1e9), StopAfter(queries)) == "PREEMPTED"
    assert again.folder.score() is None
    resumed = made(again)
    assert resumed.attempts == 2
    assert resumed.dev_scores == whole.dev_scores
    assert resumed.test_scores == whole.test_scores
    assert (resumed.best_epoch, resumed.tokens) == (whole.best_epoch, whole.tokens)
    assert losses(again.folder) == losses(whole_job.folder)


def test_a_link_in_the_place_of_a_scores_checkpoints_is_refused(run: RunFolder, tmp_path: Path) -> None:
    refused = job(run, "tags", seed=2)
    refused.folder.path.mkdir(parents=True)
    refused.folder.checkpoints.symlink_to(tmp_path)
    assert refused.execute(Execution(), StopSignal()) == "FAILED"
    record = refused.folder.score()
    assert record is not None
    assert record.reason is not None
    assert "checkpoints: is a link; remove the link; a score keeps its checkpoints in its own folder" in record.reason
    assert [*tmp_path.iterdir()] == []


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, RunFolder]:
    """An encoder of one step and one that learned its text, of two topics without a common word; eight texts are labelled."""
    place = tmp_path_factory.mktemp("teaching")
    one, other = (write_corpus(place / f"{seed}.txt", 300, seed).read_text().split("\n\n") for seed in (0, 1))
    apart = str.maketrans("bdgklmnprst", "cfhjqvwxyzb")
    texts = [text for pair in zip(one, (text.translate(apart) for text in other), strict=True) for text in pair]
    (place / "text.txt").write_text("\n\n".join(texts))
    (place / "tasks").mkdir()
    splits = {"train": range(8), "dev": range(8, 48), "test": range(100, 200), "unlabelled": range(200, 360)}
    source = {"files": "topic-{split}", "splits": {split: split for split in splits}}
    spec = {"kind": "single", "metrics": ["accuracy"], "sources": [source]}
    (place / "tasks" / "topic.yaml").write_text(json.dumps(spec))
    for split, part in splits.items():
        labels = [{} if split == "unlabelled" else {"label": "ab"[number % 2]} for number in part]
        rows = [{"text": " ".join(texts[number].split()[:3])} | label for number, label in zip(part, labels, strict=True)]
        (place / "tasks" / f"topic-{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values: dict[str, Any] = {"architecture": {"vocabulary": 380}, "data": {"tokenizer": {"vocabulary": 380}}}
    learned = {"learning_rate": 0.01, "batch_tokens": 512, "budget": {"steps": 150}}
    small = config(place / "text.txt", **values, recipe={"budget": {"steps": 1}})
    large = config(place / "text.txt", **deep_merge(values, {"architecture": {"width": 32}}), recipe=learned)
    return trained(place / "results" / "toy", small), trained(place / "results" / "large", large)


def on_topics(run: RunFolder, **knobs: Any) -> ScoreJob:
    usual = {"learning_rate": 3e-3, "batch_examples": 4, "epochs": 20, "dropout": 0.0, "precision": "fp32"}
    return job(run, "topic", knobs=usual | knobs)


def within_lengths(flops: float | None, architecture: Architecture, tokens: float) -> bool:
    """Whether FLOPs are those of about so many tokens, alone or in the longest sequences."""
    one, longest = (flops_per_sequence(architecture, length, 0).train_flops / length for length in (1, 26))
    return flops is not None and 0.7 * tokens * one < flops < 1.3 * tokens * longest


@pytest.mark.slow
def test_a_small_encoder_learns_from_a_teacher_what_few_labels_do_not_show(topics: tuple[RunFolder, RunFolder]) -> None:
    """Pre-trained distillation, Turc et al. 2019: unlabelled text holds the words that the labelled texts lack."""
    small, large = topics
    plain, teacher = made(on_topics(small, epochs=60, patience=60)), made(on_topics(large))
    requested = on_topics(small, teacher=str(large.path))
    taught = made(requested)
    assert (plain.steps, taught.steps, taught.unlabelled_examples) == (120, 3 * 40 + 20 * 2, 160)
    assert plain.test is not None
    assert teacher.test is not None
    assert taught.test is not None
    assert plain.test < 0.65
    assert teacher.test > 0.8
    assert taught.test > teacher.test - 0.1
    assert plain.spent_flops is None
    own, pretrained, tuned = taught.train_flops, large.record(), teacher.train_flops
    assert within_lengths(own, small.config().architecture, float(taught.tokens or 0))
    labels = (taught.spent_flops or 0) - (own or 0) - (tuned or 0) - (0 if pretrained is None else pretrained.train_flops)
    assert within_lengths(3 * labels, large.config().architecture, 160 * 6)
    assert not {"teacher", TAUGHT} & {file.name for file in requested.folder.path.rglob("*")}


def test_a_teacher_is_known_by_its_run_wherever_its_folder_lies(run: RunFolder) -> None:
    here, there, none = (
        job(run, knobs={"teacher": teacher}).config for teacher in (f"a/{run.run_id}", f"/b/{run.run_id}/", None)
    )
    assert here.fingerprint() == there.fingerprint() != none.fingerprint()
    assert here.tuned_with() == there.tuned_with() != none.tuned_with()
    assert ScoreConfig.parse(json.loads(none.model_dump_json(exclude_none=True))) == none


@pytest.mark.slow
def test_the_seconds_of_a_taught_score_count_its_teacher(topics: tuple[RunFolder, RunFolder], late: None) -> None:
    """Also where an attempt after the teacher's goes on from what the teacher said."""
    small, large = topics
    record = made(on_topics(small, teacher=str(large.path), epochs=1, taught_epochs=1))
    assert record.seconds is not None
    assert 2000 < record.seconds < 2900
    stopped = on_topics(small, teacher=str(large.path), epochs=1, taught_epochs=2)
    assert stopped.execute(Execution(checkpoint_seconds=1e9), StopAfter(10)) == "PREEMPTED"
    assert (stopped.folder.checkpoints / TAUGHT).exists()
    assert 2000 < (made(stopped).seconds or 0.0) < 2900


@pytest.mark.slow
def test_a_score_that_was_stopped_while_its_teacher_or_it_learned_resumes_to_the_same_numbers(
    topics: tuple[RunFolder, RunFolder],
) -> None:
    small, large = topics
    teaching = {"taught_epochs": 1, "teacher": str(large.path)}
    whole, again = made(on_topics(small, **teaching)), on_topics(small, **teaching, max_length=16)
    assert whole.steps == 40 + 20 * 2
    for after in (3, 30, 15):
        assert again.execute(Execution(checkpoint_seconds=1e9), StopAfter(after)) == "PREEMPTED"
    left = again.folder.path / "teacher" / "checkpoints"
    left.mkdir(parents=True)  # as by a kill between the logits' file and the removal of the teacher
    resumed = made(again)
    assert not left.parent.exists()
    assert resumed.attempts == 4
    assert resumed.test_scores == whole.test_scores
    assert losses(again.folder) == losses(on_topics(small, **teaching).folder)


def test_unlike_tasks_of_one_name_are_refused_where_they_are_scored_together(tmp_path: Path) -> None:
    """Tables and JSON have a task's name alone; a task that is given twice is one."""
    task = {"kind": "minimal_pairs", "metrics": ["accuracy"], "sources": [{"files": "{split}"}]}
    files = [tmp_path / folder / "order.yaml" for folder in ("news", "reviews")]
    for file in files:
        file.parent.mkdir()
        file.write_text(json.dumps(task))
        pair = {"sentence_good": f"{file.parent.name} a b", "sentence_bad": "b a", "UID": "u"}
        file.with_name("test.jsonl").write_text(json.dumps(pair))

    def loaded(*tasks: Path) -> list[str]:
        return [*load_tasks(Downstream.parse({"tasks": [str(task) for task in tasks]}))]

    with pytest.raises(InputError) as refusal:
        loaded(*files)
    remedy = "give each file its own, as in `name: order-2`"
    assert (
        str(refusal.value) == f"downstream.tasks: {files[0]} and {files[1]} are different tasks of one name, 'order'; {remedy}"
    )
    assert len(loaded(files[0], tmp_path / "reviews" / ".." / "news" / "order.yaml")) == 2
    files[1].write_text(json.dumps({"name": "order-2"} | task))
    assert len(loaded(*files)) == 2


def test_teaching_without_a_teacher_or_text_is_refused_before_anything_is_made(run: RunFolder) -> None:
    tasks, teacher = [str(data_of(run) / "first.yaml")], str(run.path)
    with pytest.raises(InputError, match=r"first\.yaml: has no unlabelled text to teach on; name one in its YAML"):
        load_tasks(Downstream.parse({"tasks": tasks, "knobs": {"teacher": teacher}}))
    with pytest.raises(InputError, match=r"teacher: .*0123456789abcdef is not the folder of a completed run"):
        load_tasks(Downstream.parse({"tasks": tasks, "knobs": {"teacher": "runs/0123456789abcdef"}}))
    for knobs, update, problem in (
        ({"teacher": "large"}, "all", "teacher: 'large' is not the folder of a run"),
        ({"taught_epochs": 1}, "all", "taught_epochs are of what a teacher says; give a teacher, or leave them out"),
        ({"teacher": teacher}, "head", "knobs.teacher teaches the whole encoder, not a probe"),
    ):
        with pytest.raises(InputError, match=problem):
            Downstream.parse({"tasks": tasks, "update": update, "knobs": knobs})


@pytest.mark.slow
@pytest.mark.parametrize(("first", "used"), [(True, "bf16"), (False, "fp32")])
def test_a_score_resumed_on_another_processor_keeps_its_precision(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, first: bool, used: str
) -> None:
    knobs = {"learning_rate": 1e-3, "batch_examples": 8, "precision": "auto"}
    whole, stopped = (job(run, "tags", seed=2 + first, knobs=knobs | {"patience": patience}) for patience in (2, 9))

    def on(supported: bool) -> None:
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)

    on(first)
    straight = made(whole)
    assert stopped.execute(Execution(checkpoint_seconds=1e9), StopAfter(5)) == "PREEMPTED"
    on(not first)
    resumed = made(stopped)
    assert resumed.environment is not None
    assert (resumed.attempts, resumed.environment.precision) == (2, used)
    assert losses(stopped.folder) == losses(whole.folder)
    assert resumed.test_scores == straight.test_scores


def dev_logged(requested: ScoreJob) -> list[float]:
    name = f"downstream/{requested.config.task}/{requested.config.metric}"
    return [row[name] for row in requested.folder.metrics() if name in row]


def test_test_is_predicted_with_the_weights_that_dev_chose(run: RunFolder) -> None:
    requested, encoder = job(run), pretrained(run.path)
    data = task_inputs(loaded_task(requested.task.requested, None), encoder, requested.config.knobs)
    module = FineTuning(requested.config, data, task_model(requested.config, encoder, data))
    last = {name: value.clone() for name, value in module.model.state_dict().items()}
    for label, bias in enumerate(100 * torch.eye(2)):
        module.best["weights"] = last | {"head.output.bias": bias}
        assert module.predict_test("fp32") == [label] * 20


@pytest.mark.parametrize("patience", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_training_stops_once_dev_has_not_risen_for_so_many_epochs(run: RunFolder, patience: int) -> None:
    knobs = {"learning_rate": 1e-12, "epochs": 6, "batch_examples": 8, "precision": "fp32", "patience": patience}
    record = made(job(run, knobs=knobs))
    assert (record.best_epoch, record.epochs) == (1, 1 + patience)


def test_a_score_is_made_once(run: RunFolder) -> None:
    first = made(job(run))
    assert made(job(run)) == first


def test_a_score_whose_folder_is_away_when_it_ends_is_filed_once_that_is_back(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = (requested := job(run, seed=9)).folder

    def ends_elsewhere(_: object) -> tuple[str, str, dict[str, Any]]:
        folder.path.rename(tmp_path / "elsewhere")
        return "FAILED", "the disk is gone", {}

    monkeypatch.setattr("study.scoring.making._ending", ends_elsewhere)
    monkeypatch.setattr(durable_files, "time", ImpatientClock(lambda: (tmp_path / "elsewhere").rename(folder.path)))
    assert requested.execute(Execution(), StopSignal()) == "FAILED"
    record = folder.score()
    assert record is not None
    assert (record.reason, record.attempts, folder.attempts()) == ("the disk is gone", 1, 1)


def test_numbers_are_those_of_the_whole_vocabulary(run: RunFolder) -> None:
    requested, encoder = job(run, "first", knobs={"dropout": 0.0, "precision": "fp32"}), pretrained(run.path)
    data = task_inputs(loaded_task(requested.task.requested, None), encoder, requested.config.knobs)
    every = torch.arange(encoder.config.architecture.vocabulary)
    assert len(data.pieces) < len(every)
    whole = replace(data, pieces=every, splits={name: renumbered(inputs, data.pieces) for name, inputs in data.splits.items()})
    assert losses_of(requested, encoder, data) == pytest.approx(losses_of(requested, encoder, whole), abs=1e-6)


def renumbered(inputs: Any, pieces: torch.Tensor) -> Any:
    return replace(inputs, tokens=replace(inputs.tokens, values=pieces.numpy()[inputs.tokens.values]))


def losses_of(requested: ScoreJob, encoder: Pretrained, data: TaskInputs) -> list[float]:
    """The losses of five steps."""
    module = FineTuning(requested.config, data, task_model(requested.config, encoder, data))
    optimizer: Any = module.configure_optimizers()["optimizer"]
    losses = []
    for step in range(5):
        batch = data.collator("train")(module.order.at(step))
        loss = module.loss(module(batch), batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_head_leaves_the_encoder_as_it_is(run: RunFolder) -> None:
    requested, encoder = job(run, "found", protocol="frozen", update="head"), pretrained(run.path)
    data = task_inputs(loaded_task(requested.task.requested, None), encoder, requested.config.knobs)
    module = FineTuning(requested.config, data, task_model(requested.config, encoder, data))
    learned = {name for name, parameter in module.model.named_parameters() if parameter.requires_grad}
    assert learned == {"head.output.weight", "head.output.bias"}


def test_embeddings_do_not_depend_on_what_stands_beside_a_text(run: RunFolder) -> None:
    texts = ["babadab", "gila nome dabe", "kame kame kame kame"]
    encoder = pretrained(run.path)
    poolings: tuple[Literal["mean", "cls"], ...] = ("mean", "cls")
    for pooling in poolings:
        together = embed(encoder, texts, [1], "concat", pooling, "fp32", Execution()).values
        alone = np.concatenate([embed(encoder, [text], [1], "concat", pooling, "fp32", Execution()).values for text in texts])
        assert together.shape == (3, 16)
        assert together == pytest.approx(alone, abs=1e-5)


def test_runs_of_one_shape_are_distinguished_by_their_ids(run: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(tmp_path / "0123456789abcdef")
    copy.write_config(run.config())
    scored, other = Pretrained(run), Pretrained(copy)
    shape = scored.config.architecture.shape_name
    sweep = SweepFolder(tmp_path / "none")
    assert label_runs(Target(sweep, (scored,))) == {run.run_id: shape}
    assert label_runs(Target(sweep, (scored, other))) == {
        run.run_id: f"{shape} {run.run_id[:6]}",
        other.run_id: f"{shape} 012345",
    }


def test_runs_of_a_sweep_are_distinguished_by_what_it_varies_their_tokens_and_their_seeds(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"vary": {"architecture.norm": ["post", "pre"]}})
    ids = [
        add_run(folder, in_setting(run_config(1, 128, tokens=tokens, seed=seed), norm=norm))
        for norm, seed, tokens in (("post", 0, 1_024_000), ("pre", 0, 1_024_000), ("pre", 1, 2_048_000))
    ]
    names = label_runs(Target(folder, tuple(Pretrained(folder.run(run_id)) for run_id in ids)))
    shape = folder.run(ids[0]).config().architecture.shape_name
    assert [names[run_id] for run_id in ids] == [
        f"{shape} norm=post 1.02M tokens run seed 0",
        f"{shape} norm=pre 1.02M tokens run seed 0",
        f"{shape} norm=pre 2.05M tokens run seed 1",
    ]


def test_encoders_of_two_seeds_have_intervals_of_what_all_of_them_scatter(tmp_path: Path) -> None:
    """Of one encoder alone, half the interval would be 12.7 times what its two seeds differ by: here 0.13 and 0.006."""
    folder = sweep_folder(tmp_path / "s", SWEEP)
    runs = [Pretrained(folder.run(add_run(folder, run_config(depth, 64)))) for depth in (1, 2, 3, 4, 5)]
    law = ScoreLaw("accuracy", 0.5)
    for run, apart in zip(runs, (0.01, 0.02, 0.0005, 0.02, 0.01), strict=True):
        record = run.folder.record()
        assert record is not None
        for seed in (0, 1):
            add_score(folder, record, "sst2", law, "fine_tune", seed, 0.8 + seed * apart)
    scored = Scored(Target(folder, tuple(runs)), tuple(cast("Evaluation", _ScoredSubject(run)) for run in runs), ())
    actual = rows(scored)
    halves = [(row.measured.interval[1] - row.measured.interval[0]) / 2 for row in actual if row.measured.interval]
    variance, examples = (2 * 0.01**2 + 2 * 0.02**2 + 0.0005**2) / 2 / 5, law.deviation
    assert halves == pytest.approx([noise_of_seeds(variance, 5, 2, examples).half] * 5)
    assert halves[0] < 0.03


class _ScoredSubject:
    """An encoder on a task whose scores are in its run's folder."""

    random, name = False, "sst2"
    task_key, counted_text = ("sst2", "none"), None
    task = SimpleNamespace(spec=SimpleNamespace(name="sst2", headline="accuracy"))

    protocol = "fine_tune"

    def __init__(self, run: Pretrained) -> None:
        self.run = run

    def jobs(self, records: dict[str, ScoreRecord]) -> list[SimpleNamespace]:
        of_run = [record for record in records.values() if record.run_id == self.run.run_id]
        return [SimpleNamespace(key=record.score_id) for record in of_run]


def test_of_a_sweep_those_runs_are_scored_that_its_answer_uses(tmp_path: Path) -> None:
    """An excluded run is not, nor is a second seed at a rate that the first one's loss did not choose."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"seeds": 6})
    best, second = (add_run(folder, run_config(1, 128, rate=4e-3, seed=seed)) for seed in (0, 1))
    for rate in (2e-3, 8e-3):
        add_run(folder, run_config(1, 128, rate=rate))
    lower = add_run(folder, run_config(1, 128, rate=8e-3, seed=1), Law(curvature=-0.15))
    assert folder.run(lower).record().loss_nats < folder.run(second).record().loss_nats  # type: ignore[operator, union-attr]
    add_run(folder, run_config(2, 128, seed=0), state="DIVERGED")
    add_run(folder, run_config(2, 128, seed=1))
    assert {best, second} < {run.run_id for run in runs_in_answer(folder)} == set(usable(folder.write_ledger())["run_id"])
    exclude(second, tmp_path, "its machine overheated")
    assert not {second, lower} & {run.run_id for run in runs_in_answer(folder)}
    assert {run.run_id for run in runs_in_answer(folder)} == set(usable(folder.write_ledger())["run_id"])


def test_of_rates_that_several_seeds_tried_those_runs_are_scored_that_have_the_best_on_average(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"seeds": 9})
    rates, laws = (2e-3, 4e-3, 8e-3), (Law(best_rate=2.4e-3), Law(), Law())
    tried = product(rates, enumerate(laws))
    runs = {(rate, seed): add_run(folder, run_config(1, 128, rate=rate, seed=seed), law) for rate, (seed, law) in tried}
    repeated = add_run(folder, run_config(1, 128, rate=4e-3, seed=3))
    of_first = {rate: folder.run(runs[rate, 0]).record() for rate in rates}
    assert min(rates, key=lambda rate: of_first[rate].loss_nats) == 2e-3  # type: ignore[arg-type, return-value, union-attr]
    assert {run.run_id for run in runs_in_answer(folder)} == {repeated, *(runs[4e-3, seed] for seed in range(3))}
    assert {run.run_id for run in runs_in_answer(folder)} == set(usable(folder.write_ledger())["run_id"])


def test_seeds_that_a_sweep_has_no_more_choose_nothing_wherever_it_is_read_and_stay(tmp_path: Path) -> None:
    """Of nine seeds three chose; of three the first, which likes another rate best. A table that is no sweep's has all."""
    folder = sweep_folder(tmp_path / "s", SWEEP | {"seeds": 3})
    rates, laws = (2e-3, 4e-3, 8e-3), (Law(best_rate=2.4e-3), Law(), Law())
    tried = product(rates, enumerate(laws))
    runs = {(rate, seed): add_run(folder, run_config(1, 128, rate=rate, seed=seed), law) for rate, (seed, law) in tried}
    repeats = {add_run(folder, run_config(1, 128, rate=4e-3, seed=seed)) for seed in range(3, 9)}
    chosen = {runs[2e-3, seed] for seed in range(3)} | {add_run(folder, run_config(1, 128, rate=2e-3, seed=8))}
    ledger = folder.write_ledger()
    (cell,) = cells_of(folder, ledger)
    assert (cell.rates.chosen, cell.rates.seeds, {*cell.runs}) == (2e-3, 1, chosen)
    assert {run.run_id for run in runs_in_answer(folder)} == chosen
    assert {*usable(ledger, folder.trial_seeds())["run_id"]} == chosen
    explored = with_reasons(ledger, folder)
    assert {*explored["run_id"][explored["left_out"].isna()]} == chosen
    assert fitted(folder.path) == fitted(folder.ledger_file.with_suffix(".csv")) == chosen
    theirs = Path(shutil.copy(folder.ledger_file, tmp_path / "theirs.parquet"))
    assert fitted(theirs) == repeats | {runs[4e-3, seed] for seed in range(3)}


def fitted(path: Path) -> set[str]:
    """The runs of a table that a law takes."""
    table = open_ledger(path)
    return {*table.frame["run_id"][pd.isna(table.left_out(bracketed_only=False))]}


def test_an_encoder_is_not_scored_by_the_pieces_of_other_text(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt")
    run = trained(tmp_path, config(corpus, recipe={"budget": {"steps": 2}}))
    assert Pretrained(run).prepared.fingerprint == Pretrained(run).data_fingerprint
    write_corpus(corpus, seed=1)
    with pytest.raises(InputError, match=f"data.corpus: {corpus} has changed since run {run.run_id} was trained"):
        Pretrained(run).tokenizer  # noqa: B018


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("other", "has changed since it was planned; restore them, or score the new ones"),
        pytest.param("gone", "does not exist", marks=pytest.mark.slow),
        pytest.param("one label", "a task needs at least two", marks=pytest.mark.slow),
    ],
)
def test_a_score_whose_task_can_no_more_be_read_as_planned_ends_in_a_record_with_the_reason(
    change: str, reason: str, run: RunFolder, tmp_path: Path
) -> None:
    tasks = Path(shutil.copytree(data_of(run), tmp_path / "tasks"))
    planned = job(run, seed=900 + len(change))
    requested = replace(planned, task=replace(planned.task, requested=str(tasks / "first.yaml")))
    train = tasks / "first-train.jsonl"
    match change:
        case "other":
            train.write_text("".join(reversed(train.read_text().splitlines(keepends=True))))
        case "gone":
            (tasks / "first.yaml").unlink()
        case _:
            train.write_text("".join(line for line in train.read_text().splitlines(keepends=True) if "late" in line))
    assert requested.execute(Execution(), StopSignal()) == "FAILED"
    record = requested.folder.score()
    assert record is not None
    assert (record.state, record.kind, record.test) == ("FAILED", "single", None)
    assert reason in str(record.reason)


def test_baselines_are_of_the_examples_that_were_planned_or_not_made(run: RunFolder) -> None:
    requested, sweep = job(run), SweepFolder(run.path.parents[1])
    other = replace(requested.task, fingerprint="0" * 16)
    with pytest.raises(InputError, match="has changed since it was planned"):
        make_baselines(other, run, sweep, threads=1)
    assert baseline(sweep, "first", "0" * 16) is None


@pytest.mark.slow
def test_words_of_minimal_pairs_are_counted_in_the_text_that_the_run_has_read(tmp_path: Path) -> None:
    sweep, requested = SweepFolder(tmp_path / "toy"), Downstream.parse({"tasks": ["pairs"]})
    text = write_corpus(tmp_path / "text.txt")
    counts = [Counter(write_corpus(tmp_path / "text.txt", seed=seed).read_text().split()) for seed in (1, 0)]
    by_seed = sorted(counts[0] & counts[1], key=lambda word: counts[0][word] / counts[1][word])
    (tmp_path / "test.jsonl").write_text(json.dumps({"sentence_good": by_seed[0], "sentence_bad": by_seed[-1], "UID": "u"}))
    task = {"kind": "minimal_pairs", "metrics": ["paradigm_accuracy"], "sources": [{"files": "{split}"}]}
    (tmp_path / "pairs.yaml").write_text(json.dumps(task))
    actual = []
    for seed, right in ((0, 1.0), (1, 0.0)):
        run = trained(sweep.path, config(write_corpus(text, seed=seed)))
        name = str(tmp_path / "pairs.yaml")
        actual.append(Evaluation(Pretrained(run), "toy", name, loaded_task(name, None), random=False, requested=requested))
        (missing,) = missing_baselines(sweep, actual[-1:])
        missing.execute(Execution(), StopSignal())
        kept = baseline(sweep, "pairs", actual[-1].task.fingerprint)
        assert kept is not None
        assert kept.by("paradigm_accuracy")["bag_of_words"] == right
        file_baseline(sweep, kept.model_copy(update={"data_fingerprint": None}))  # as records of before are
        assert [one.key for one in missing_baselines(sweep, actual[-1:])] == [missing.key]
        file_baseline(sweep, kept)
        assert missing_baselines(sweep, actual) == []
    assert [_baselines(sweep, evaluation) != {} for evaluation in actual] == [False, True]
    (again,) = missing_baselines(sweep, actual[:1])
    pretrained.cache_clear()  # as in the process of another launch
    with pytest.raises(InputError, match="has changed since run"):
        again.execute(Execution(), StopSignal())


def test_pairs_with_a_sentence_that_is_cut_are_counted(run: RunFolder, tmp_path: Path) -> None:
    sentences = ("bab", "bab " * 20)
    pairs = [{"sentence_good": good, "sentence_bad": bad, "UID": "u"} for good in sentences for bad in sentences]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    task = {"kind": "minimal_pairs", "metrics": ["accuracy"], "sources": [{"files": "{split}"}]}
    (tmp_path / "order.yaml").write_text(json.dumps(task))
    name = str(tmp_path / "order.yaml")
    fingerprint = loaded_task(name, None).fingerprint
    requested = job(run, "order", task_fingerprint=fingerprint, metric="accuracy")
    record = made(replace(requested, task=replace(requested.task, requested=name)))
    assert record.truncated_examples == 3


def test_runs_of_an_earlier_launch_alone_are_reported_as_such(run: RunFolder) -> None:
    sweep = SweepFolder.of(run)
    sweep.cells_file.write_text('["of another launch"]')
    try:
        with pytest.raises(InputError, match=r"that its answer uses \(not part of the sweep as last launched\); "):
            target(sweep.path)
    finally:
        sweep.cells_file.unlink()


def test_an_excluded_run_is_scored_where_it_is_named(run: RunFolder) -> None:
    exclude(run.run_id, SweepFolder.of(run).path.parent, "out of curiosity")
    try:
        assert [one.run_id for one in target(run.path).runs] == [run.run_id]
        with pytest.raises(
            InputError, match=r"that its answer uses \(excluded: out of curiosity\); give the folder of another run"
        ):
            target(SweepFolder.of(run).path)
    finally:
        include(run.run_id, SweepFolder.of(run).path.parent)
    assert [one.run_id for one in target(SweepFolder.of(run).path).runs] == [run.run_id]


class Fake:
    """An executor whose scores are what a function says; a status for each batch where its process dies over the first."""

    def __init__(self, dev: Any, statuses: Iterator[int] | None = None) -> None:
        self.dev, self.statuses = dev, statuses
        self.submitted: list[Any] = []
        self.free = 2

    def submit(self, jobs: Sequence[Any]) -> Future[int]:
        future: Future[int] = Future()
        self.submitted += jobs
        status = next(self.statuses) if self.statuses else 0
        if status == 0:
            for requested in jobs:
                file_faked(requested, self.dev(requested.config))
        future.set_result(status)
        return future

    def interrupt(self) -> None: ...

    def kill(self) -> None: ...


def file_faked(requested: ScoreJob, dev: float) -> None:
    """File a score that nobody has made."""
    score_of = {requested.config.metric: dev}
    times = {"started_at": "now", "finished_at": "now", "reported_on": "test", "state": "COMPLETED"}
    names = {"score_id": requested.key, "run_id": requested.folder.run.run_id, "sweep": "toy", "kind": "single", "seconds": 1.0}
    requested.folder.file_score(
        ScoreRecord.parse({"config": requested.config, "dev_scores": score_of, "test_scores": score_of} | names | times)
    )


@pytest.fixture
def evaluation(run: RunFolder, tmp_path: Path) -> Evaluation:
    copy = RunFolder(tmp_path / "runs" / run.run_id)
    copy.write_config(run.config())
    copy.record_file.write_bytes(run.record_file.read_bytes())
    name = str(data_of(run) / "first.yaml")
    requested = Downstream.parse({"tasks": [name]})
    return Evaluation(Pretrained(copy), "toy", name, loaded_task(name, None), random=False, requested=requested)


def coordinator_of(evaluation: Evaluation, requested: Downstream) -> Coordinator[AnyScoreJob, AnyScoreRecord]:
    sweep = SweepFolder.of(evaluation.run.folder)
    return Coordinator(sweep, ScoreProposer(sweep, [replace(evaluation, requested=requested)], []))


def test_the_scores_of_a_subject_are_worked_out_once_for_what_is_asked(evaluation: Evaluation) -> None:
    """All are listed again whenever a worker is free, of many encoders and tasks thousands."""
    first = evaluation.jobs({})
    assert all(one is again for one, again in zip(first, evaluation.jobs({}), strict=True))
    other = replace(evaluation, requested=evaluation.requested.model_copy(update={"update": "head"}))
    assert other.jobs({})[0].config.protocol == "frozen"


def test_scores_that_are_being_made_are_stopped_from_outside(evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    """They save, the lock is let go of, and the order to stop is not for those who go on."""
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 3, "learning_rates": [1e-4]})
    folder, stopped, made = SweepFolder.of(evaluation.run.folder), list[bool](), list[str]()
    monkeypatch.setattr(Fake, "interrupt", lambda _: made.append("interrupt"))
    stopper = threading.Thread(target=lambda: stopped.append(stop(folder)))

    def refresh(_: ScoreProgress) -> None:
        if not stopper.is_alive():
            stopper.start()
        end = time.monotonic() + 60
        while not folder.scoring.stop_file.exists() and time.monotonic() < end:
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt), sweep_lock(folder.scoring):
        coordinator_of(evaluation, requested).run(Fake(lambda _: 0.5), refresh, 0.01)
    stopper.join()
    assert (stopped, made) == ([True], ["interrupt"])
    folder.scoring.stop_file.write_text("{}")  # left by a process that was killed
    folder.launching.stop_file.write_text("{}")  # the same of a launch
    with sweep_lock(folder.scoring):
        coordinator_of(evaluation, requested).run(Fake(lambda _: 0.5), lambda _: None, 0.01)
    assert len(scores_of(evaluation.run.folder)) == 3
    assert not stop(folder)


def test_a_lock_that_scoring_waits_for_in_vain_is_not_reported_as_another_scorer(evaluation: Evaluation) -> None:
    folder = SweepFolder.of(evaluation.run.folder)
    with pytest.raises(Timeout), sweep_lock(folder.scoring):
        raise Timeout("a lock of the cache")
    with sweep_lock(folder.scoring), pytest.raises(InputError, match=r"is being scored by process .*; wait for it, or stop it"):
        sweep_lock(folder.scoring).__enter__()


def test_scoring_stops_where_its_sweep_is_moved_and_makes_no_folder_anew(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested, folder = Downstream.parse({"tasks": [evaluation.name], "seeds": 3}), SweepFolder.of(evaluation.run.folder)
    coordinator, elsewhere = coordinator_of(evaluation, requested), folder.path.with_name(f"{folder.name} elsewhere")
    monkeypatch.setattr(durable_files, "time", ImpatientClock())
    try:
        with pytest.raises(InputError, match=r"was moved or removed .*; bring it back, and the same command continues"):
            coordinator.run(Fake(lambda _: 0.5), lambda _: os.rename(folder.path, elsewhere), 0.01)
        assert not folder.path.exists()
    finally:
        elsewhere.rename(folder.path)


def test_scores_that_are_there_are_those_asked_for(evaluation: Evaluation) -> None:
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 2, "learning_rates": [1e-4]})
    coordinator_of(evaluation, requested).run(Fake(lambda _: 0.5), lambda _: None, 0.01)
    others = requested.model_copy(update={"learning_rates": (2e-4,)})
    assert [len(coordinator_of(evaluation, one).progress.ended) for one in (requested, others)] == [2, 0]


def test_an_order_to_a_launch_is_one_to_its_scores(evaluation: Evaluation) -> None:
    requested, folder, fake = (
        Downstream.parse({"tasks": [evaluation.name]}),
        SweepFolder.of(evaluation.run.folder),
        Fake(lambda _: 0.5),
    )
    with sweep_lock(folder.launching):
        assert not status(folder).scored
        folder.launching.stop_file.write_text("{}")  # given while nothing is scored yet
        with sweep_lock(folder.scoring):
            title = str(status_table(status(folder)).title)
            assert "run by process" in title
            assert title.endswith("being scored")
            with pytest.raises(KeyboardInterrupt):
                coordinator_of(evaluation, requested).run(fake, lambda _: None, 0.01)
    assert fake.submitted == []
    assert not folder.launching.stop_file.exists()


@pytest.mark.parametrize(("seeds", "chosen"), [(3, 1e-3), (4, 3e-4)])
def test_the_grid_runs_at_a_third_of_the_seeds_and_its_best_at_the_others(
    evaluation: Evaluation, seeds: int, chosen: float
) -> None:
    rates = [1e-4, 3e-4, 1e-3]
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": seeds, "learning_rates": rates})
    dev = {(0, 1e-3): 1.0, (0, 3e-4): 0.9, (1, 3e-4): 0.9}
    fake = Fake(lambda config: dev.get((config.seed, config.knobs.learning_rate), 0.5))
    coordinator = coordinator_of(evaluation, requested)
    coordinator.run(fake, lambda _: None, 0.01)
    tried = [(one.config.seed, one.config.knobs.learning_rate) for one in fake.submitted]
    trials = range(1 if seeds == 3 else 2)
    grid = [(seed, rate) for seed in trials for rate in rates]
    assert sorted(tried) == sorted([*grid, *((seed, chosen) for seed in range(len(trials), seeds))])
    once_more = Fake(lambda _: 0.0)
    coordinator_of(evaluation, requested).run(once_more, lambda _: None, 0.01)
    assert once_more.submitted == []


def test_no_further_seed_is_spent_before_the_grid_is_done_nor_where_all_of_it_failed(evaluation: Evaluation) -> None:
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 3, "learning_rates": [1e-4, 3e-4]})
    coordinator_of(evaluation, requested.model_copy(update={"seeds": 1})).run(Fake(lambda _: 0.5), lambda _: None, 0.01)
    done = {record.score_id: record for record in scores_of(evaluation.run.folder)}
    half = dict([next(iter(done.items()))])
    failed = {name: record.model_copy(update={"state": "FAILED"}) for name, record in done.items()}
    one = replace(evaluation, requested=requested)
    seeds = [[job.config.seed for job in one.jobs(records)] for records in ({}, half, failed, failed | half, done)]
    assert seeds == [[0, 0], [0, 0], [0, 0], [0, 0, 1, 2], [0, 0, 1, 2]]


@pytest.mark.parametrize(
    ("kind", "update", "random", "protocol", "rates", "seeds"),
    [
        ("single", "all", False, "fine_tune", 2, 1),
        ("single", "all", True, "random_init", 2, 1),
        ("single", "head", False, "frozen", 1, 1),
        ("single", "head", True, "random_init", 1, 3),
        ("spans", "head", False, "frozen", 2, 1),
        ("minimal_pairs", "all", False, "zero_shot", 1, 1),
        ("minimal_pairs", "head", True, "random_init", 1, 3),
    ],
)
def test_rates_are_tried_where_training_goes_step_by_step_and_seeds_where_they_differ(
    evaluation: Evaluation, kind: Any, update: str, random: bool, protocol: str, rates: int, seeds: int
) -> None:
    """A probe on fixed features has no rate and no chance, but for weights that a seed draws."""
    spec = evaluation.task.spec.model_copy(update={"kind": kind})
    requested = Downstream.parse({"tasks": ["x"], "seeds": 3, "update": update, "learning_rates": [1e-4, 3e-4]})
    one = replace(evaluation, task=replace(evaluation.task, spec=spec), random=random, requested=requested)
    configs = [job.config for job in one.jobs({})]
    assert {config.protocol for config in configs} == {protocol}
    assert (len({config.knobs for config in configs}), len({config.seed for config in configs})) == (rates, seeds)


def test_scores_are_stopped_where_one_cannot_be_filed(evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 1, "learning_rates": [1e-4]})
    signals: list[str] = []

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Coordinator, "_ended", full)
    for order in ("interrupt", "kill"):
        monkeypatch.setattr(Fake, order, lambda _, order=order: signals.append(order))
    with pytest.raises(InputError, match=r": the sweep had to stop: .*No space left.*the same command continues"):
        coordinator_of(evaluation, requested).run(Fake(lambda _: 0.5), lambda _: None, 0.01)
    assert signals == ["interrupt", "kill"]


@pytest.mark.parametrize(
    ("status", "times", "state", "why"),
    [
        (-11, CRASHES, "FAILED", "the last time with signal SIGSEGV"),
        (-9, KILLS, "FAILED", "the last time with signal SIGKILL"),
        (OOM_EXIT, CRASHES, "OOM", "the last time for want of memory"),
    ],
)
def test_a_score_whose_process_keeps_dying_is_filed_as_a_run_is(
    evaluation: Evaluation, status: int, times: int, state: str, why: str
) -> None:
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 1, "learning_rates": [1e-4]})
    fake = Fake(None, iter([status] * times))
    coordinator_of(evaluation, requested).run(fake, lambda _: None, 0.01)
    (record,) = scores_of(evaluation.run.folder)
    assert (record.state, len(fake.submitted)) == (state, times)
    assert f"{times} times without getting past step 0, {why}; see log.txt" in str(record.reason)


def test_a_batch_goes_on_where_its_process_died_over_a_score(evaluation: Evaluation, capsys: Any) -> None:
    """What was made before is kept and reported at once, and the death is that of the score that was being made."""
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 1, "learning_rates": [1e-4, 2e-4, 3e-4, 4e-4]})
    coordinator, counts = coordinator_of(evaluation, requested), list[tuple[int, int, int]]()
    display = Display(Console(), coordinator.proposer)

    class OneProcess(Fake):
        """It makes the first score of a batch, and dies over the next one."""

        batch: tuple[Sequence[Any], Future[int]] | None = None

        @property
        def free(self) -> int:
            return int(self.batch is None)

        @free.setter
        def free(self, value: int) -> None: ...

        def submit(self, jobs: Sequence[Any]) -> Future[int]:
            self.submitted.append([one.config.knobs.learning_rate for one in jobs])
            self.batch = jobs, Future()
            return self.batch[1]

    def refresh(progress: ScoreProgress) -> None:
        display.refresh(progress)
        if fake.batch is None:
            return
        jobs, future = fake.batch
        if jobs[0].folder.score() is None:
            file_faked(jobs[0], 0.5)
        else:
            counts.append((capsys.readouterr().out.count("COMPLETED"), len(progress.running), progress.waiting))
            fake.batch = None
            future.set_result(-11)

    fake = OneProcess(None)
    coordinator.run(fake, refresh, 0.0)
    rates = [1e-4, 2e-4, 3e-4, 4e-4]
    assert fake.submitted == [rates[begin:] for begin in range(4)]
    assert counts == [(1, 1, 2), (1, 1, 1), (1, 1, 0), (0, 1, 0)]
    assert capsys.readouterr().out.count("COMPLETED") == 1
    assert {record.state for record in scores_of(evaluation.run.folder)} == {"COMPLETED"}


def test_scores_of_one_run_and_task_are_one_batch_where_no_slot_goes_without(evaluation: Evaluation) -> None:
    rates = [1e-4, 2e-4, 3e-4]
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 1, "learning_rates": rates})
    first = replace(evaluation, requested=requested)
    other = replace(first, name="other", task=replace(first.task, spec=first.task.spec.model_copy(update={"name": "other"})))
    due = wanted([first, replace(first, random=True), other], {}, ())
    sizes = {free: sorted(map(len, batches(due, free))) for free in (1, 2, 3, 100)}
    assert sizes == {1: [3, 6], 2: [1, 3, 5], 3: [3, 3, 3], 100: [1] * 9}
    for batch in batches(due, 2):
        assert len({(one.folder.run.path, one.task.requested) for one in batch}) == 1


def test_the_cost_of_a_score_counts_what_its_encoder_multiplies(evaluation: Evaluation) -> None:
    """MobileBERT's bottlenecks, stacked FFNs and gates, which the width and the ffn alone do not show."""
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 1})
    (job, *_) = replace(evaluation, requested=requested).jobs({})

    def of(name: str) -> float:
        model = evaluation.run.config.model_copy(update={"architecture": named(name)})
        run = SimpleNamespace(config=model, max_length=evaluation.run.max_length)
        return cost(replace(evaluation, run=run), job)  # type: ignore[arg-type]

    assert 0.15 < of("mobilebert") / of("bert-base") < 0.35, "4.3 times fewer FLOPs (Sun et al. 2020, table 1)"
    assert of("modernbert-base") > of("bert-base")


def test_a_task_whose_scores_fail_alike_is_reported_once_with_how_many(evaluation: Evaluation, capsys: Any) -> None:
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 1, "learning_rates": [1e-4, 2e-4, 3e-4]})
    coordinator = coordinator_of(evaluation, requested)
    coordinator.run(Fake(None, iter([-11] * 9)), Display(Console(), coordinator.proposer).refresh, 0.01)
    assert capsys.readouterr().out.count("FAILED") == 1
    failed = scores_of(evaluation.run.folder)
    line, _ = _failures(failed, SweepFolder.of(evaluation.run.folder))
    assert line == f"FAILED: {failed[0].config.task}, 3 scores: {failed[0].reason}"
    another = failed[0].model_copy(update={"reason": "the disk is gone"})
    line, _ = _failures([*failed, another], SweepFolder.of(evaluation.run.folder))
    assert line == f"FAILED: {failed[0].config.task}, 4 scores, the first: {failed[0].reason}"


def test_a_failed_score_is_tried_again_as_a_failed_run_is(evaluation: Evaluation, study: Any) -> None:
    """Also of an encoder that was imported, whose folder has no sweep.yaml; what diverged waits until its run is named."""
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 1, "learning_rates": [1e-4, 2e-4]})
    folder, run = SweepFolder.of(evaluation.run.folder), evaluation.run.folder
    coordinator_of(evaluation, requested).run(Fake(None, iter([-11] * 9)), lambda _: None, 0.01)
    (_, diverged), dead = scores_of(run), {score.score_id for score in scores_of(run)}
    score_folder(run, diverged.score_id).record_file.unlink()
    score_folder(run, diverged.score_id).file_score(diverged.model_copy(update={"state": "DIVERGED"}))
    assert _failures(scores_of(run), folder)[-1].endswith(f": study retry {folder.path}")
    with sweep_lock(folder.scoring):
        assert "is being scored by process" in study("retry", folder.path)[2]
    code, out, _ = study("retry", folder.path)
    (first, then), (again,) = out.splitlines(), dead - {diverged.score_id}
    assert code == 0
    assert first.startswith(f"first of {run.run_id} was FAILED: its process ended without a record")
    assert then == f"1 score will be tried again by the next study score, or launch that scores, of {folder.name}"
    assert [score.score_id for score in scores_of(run)] == [diverged.score_id]
    assert len([*score_folder(run, again).path.glob("attempts/*.record.json")]) == 1
    made = Fake(lambda _: 0.5)
    coordinator_of(evaluation, requested).run(made, lambda _: None, 0.01)
    assert [one.key for one in made.submitted] == [again]
    assert retry(folder) == []
    assert [(one.state, one.task) for one in retry(folder, [run.run_id])] == [("DIVERGED", "first")]
    with pytest.raises(
        InputError, match="is completed, and so are its scores; to leave it out of the answer, use study exclude"
    ):
        retry(folder, [run.run_id])


def test_random_weights_are_scored_once_for_runs_of_one_shape(run: RunFolder, evaluation: Evaluation) -> None:
    requested = Downstream.parse({"tasks": ["x"], "seeds": 2})
    actual = all_evaluations([Pretrained(run), evaluation.run], "toy", {evaluation.name: evaluation.task}, requested)
    assert [one.random for one in actual] == [False, False, True]
    (untrained,) = [one for one in actual if one.random]
    (config,) = {one.config.encoder for one in untrained.jobs({})}
    assert config == evaluation.run.random_id != run.run_id


def test_a_score_that_is_made_alone_has_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    for jobs, slots, threads in ((0, 1, 4), (1, 1, 4), (2, 2, 2), (9, 4, 1)):
        actual = make_slots(Resources(device="cpu"), jobs)
        assert (len(actual), actual[0].threads) == (slots, threads)
    assert len(make_slots(Resources(device="cpu", slots_per_device=3), 1)) == 3


@pytest.mark.slow
def test_a_process_lets_go_of_what_each_score_leaves(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Trainer and its module hold each other: what lies on the device with them is freed before the next score."""
    left: list[weakref.ref[torch.nn.Module]] = []

    def attempted(*_: object) -> str:
        assert [of_before() for of_before in left] == [None] * len(left)
        module = torch.nn.Module()
        module.trainer = SimpleNamespace(module=module)  # type: ignore[assignment]
        left.append(weakref.ref(module))
        return "COMPLETED"

    monkeypatch.setattr("study.scoring.making._attempted", attempted)
    monkeypatch.setattr(processes, "log_into", lambda _: None)
    gc.disable()
    try:
        assert processes.execute_here([job(run, seed=700 + seed) for seed in range(3)], Execution(), StopSignal()) == 0
    finally:
        gc.enable()
    assert len(left) == 3


def test_a_score_that_shares_its_device_says_so(run: RunFolder) -> None:
    requested = job(run, "order", seed=16)
    assert LocalExecutor([Slot("cpu", (0,), 1, sharing=16)]).submit([requested]).result(timeout=120) == 0
    record = requested.folder.score()
    assert record is not None
    assert record.environment is not None
    assert record.environment.sharing == 16


def test_a_batch_that_is_told_to_stop_saves_the_score_that_it_makes_and_begins_no_other(run: RunFolder) -> None:
    knobs = {"learning_rate": 1e-3, "batch_examples": 8, "precision": "fp32"}
    first, second, third = (
        job(run, "tags", seed=20 + number, knobs=knobs | {"epochs": epochs, "patience": epochs})
        for number, epochs in enumerate((1, 3000, 1))
    )
    executor = LocalExecutor([Slot("cpu", (0,), 1)])
    future = executor.submit([first, second, third])
    until(lambda: bool(second.folder.newest_rows()))
    executor.interrupt()
    assert future.result(60) == PREEMPTED_EXIT
    record = first.folder.score()
    assert record is not None
    assert (record.state, second.folder.score(), third.folder.attempts()) == ("COMPLETED", None, 0)
    assert checkpoints_in(second.folder.checkpoints)
    assert "Traceback" not in second.folder.log_file.read_text()


@pytest.mark.slow
def test_a_score_that_another_process_makes_is_not_made_twice(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a job of Slurm does that its launcher has lost sight of: its lease is waited for, and then it writes nothing more."""
    monkeypatch.setattr("study.store.ownership.LEASE_SECONDS", 0.5)
    monkeypatch.setattr("study.store.ownership.BEAT_SECONDS", 0.05)
    requested = job(run, seed=31)
    with work_lock(requested.folder), Attempt.begin(requested.folder).renewed():
        assert requested.execute(Execution(), StopSignal()) == "PREEMPTED"
    assert requested.folder.attempts() == 1

    def overtaken(*_: object) -> tuple[str, None, dict[str, Any]]:
        Attempt.begin(requested.folder)
        return "COMPLETED", None, {}

    monkeypatch.setattr("study.scoring.making._ending", overtaken)
    assert requested.execute(Execution(), StopSignal()) == "PREEMPTED"
    assert (requested.folder.attempts(), requested.folder.score()) == (3, None)


def test_a_score_that_another_process_makes_is_waited_for_and_who_makes_it_is_said(
    evaluation: Evaluation, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("study.running.coordinator.LOOK_SECONDS", 0.02)
    requested = Downstream.parse({"tasks": [evaluation.name], "seeds": 1, "learning_rates": [1e-4]})
    (theirs,) = replace(evaluation, requested=requested).jobs({})
    coordinator, fake = coordinator_of(evaluation, requested), Fake(lambda _: 0.5)
    display = Display(Console(width=300), coordinator.proposer)

    def refresh(progress: ScoreProgress) -> None:
        display.refresh(progress)
        if progress.held and theirs.folder.score() is None:
            file_faked(theirs, 0.7)

    with work_lock(theirs.folder), Attempt.begin(theirs.folder).renewed():
        coordinator.run(fake, refresh, 0.01)
    assert fake.submitted == []
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"WAITS first {evaluation.run.run_id}: is being made by process {os.getpid()} on ")
    assert second.startswith("COMPLETED first ")


def test_a_fine_tuning_that_takes_no_step_is_filed_as_hung(run: RunFolder) -> None:
    requested = job(run, "tags", seed=40)
    silent = processes.start_forkserver().Process(target=hang, args=(requested,))
    silent.start()
    silent.join(120)
    record = requested.folder.score()
    assert record is not None
    assert (record.state, silent.exitcode) == ("HUNG", 1)
    assert str(record.reason).startswith("no step for 1 s, in sleep_for_ever")


def hang(requested: ScoreJob) -> None:
    def sleep_for_ever(*_: object) -> None:
        time.sleep(600)

    FineTuning.training_step = sleep_for_ever  # type: ignore[method-assign, assignment]
    requested.execute(Execution(hang_seconds=1.0), StopSignal())


def test_weights_are_needed_for_scores_that_are_not_there(run: RunFolder, study: Any) -> None:
    """Records travel without weights, as those of results/reference do: random weights and scores that are there need none."""
    options = ("--tasks", data_of(run) / "first.yaml", "--learning-rates", "2e-3", "--epochs", 1, "--device", "cpu")
    away = run.weights_file.rename(run.path / "away")
    remedy = "fetch it, or train the run again (move its folder away and launch)"
    needed = f"error: {run.weights_file}: does not exist, but the weights are needed; {remedy}\n"
    try:
        assert study("score", run.path, *options, "--seeds", 1)[::2] == (2, needed)
        away.rename(run.weights_file)
        assert study("score", run.path, *options, "--seeds", 1, "--no-random-weights")[0] == 0
        run.weights_file.rename(away)
        assert study("score", run.path, *options, "--seeds", 1)[0] == 0
        assert study("score", run.path, *options, "--seeds", 2)[::2] == (2, needed)
    finally:
        away.rename(run.weights_file)


def test_a_packed_run_shows_its_scores_and_is_scored_with_random_weights_alone(
    run: RunFolder, study: Any, tmp_path: Path
) -> None:
    options = ("--tasks", data_of(run) / "first.yaml", "--learning-rates", "3e-3", "--epochs", 1, "--device", "cpu")
    sweep = SweepFolder(tmp_path / "results" / "toy")
    shutil.copytree(run.path.parents[1], sweep.path)
    packed = sweep.run(run.run_id)
    assert study("score", packed.path, *options, "--seeds", 1, "--no-random-weights")[0] == 0
    pack(sweep, delete_weights=True)
    trained = scores_of(packed)
    status, shown, _ = study("score", packed.path, *options, "--seeds", 1)
    assert (status, "first" in shown) == (0, True)
    made = {record.score_id: record for record in scores_of(packed)}
    untrained = made.keys() - {record.score_id for record in trained}
    assert {made[score_id].config.protocol for score_id in untrained} == {"random_init"}
    assert packed.path.is_dir(), "they lie beside the pack"
    status, _, err = study("score", packed.path, *options, "--seeds", 2)
    assert (status, "its sweep is packed, which keeps none" in err) == (2, True)
    assert pack(sweep).scores == len(made)
    assert len(scores_of(packed)) == len(made)


@pytest.mark.slow
def test_tasks_of_equal_examples_keep_their_own_metrics_and_baselines(run: RunFolder, study: Any) -> None:
    data, sweep = data_of(run), SweepFolder(run.path.parents[1])
    fingerprint = loaded_task(str(data / "first.yaml"), None).fingerprint
    source = {"files": "first-{split}", "splits": {"train": "train", "dev": "dev", "test": "test"}}
    options = ("--seeds", 1, "--learning-rates", "1e-3", "--epochs", 1, "--no-random-weights", "--slots-per-device", 1)
    for headline in ("macro_f1", "matthews", "macro_f1"):
        same = {"kind": "single", "metrics": [headline], "sources": [source]}
        (data / "same.yaml").write_text(json.dumps(same))
        tasks = f"{data / 'first.yaml'},{data / 'same.yaml'}"
        status, out, err = study("score", run.path, "--tasks", tasks, *options, "--device", "cpu", "--json")
        assert status == 0, err
        rows = {row["task"]: row for row in json.loads(out)}
        assert {task: row["metric"] for task, row in rows.items()} == {"first": "accuracy", "same": headline}
        for task, row in rows.items():
            known = baseline(sweep, task, fingerprint)
            assert known is not None
            assert row["baselines"] == {name: scores[row["metric"]] for name, scores in known.scores.items()} != {}
    kept = baseline(sweep, "same", fingerprint)
    assert kept is not None
    assert set(kept.scores["majority"]) == {"macro_f1", "matthews"}


def test_a_task_whose_baselines_fail_is_named_with_the_reason_and_their_log(
    run: RunFolder, study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of its pairs are to be counted in the text that the run has read, which changes after the launch looked."""
    toy = Path(shutil.copytree(run.path.parents[3], tmp_path / "toy")) / "results" / "toy"
    shutil.rmtree(toy / "baselines", ignore_errors=True)
    corpus = Path(run.config().data.corpus)
    before = corpus.read_bytes()
    options = ("--no-random-weights", "--slots-per-device", 1, "--device", "cpu")
    requested = ("score", toy / "runs" / run.run_id, "--tasks", data_of(run) / "order.yaml", *options)

    def changing(runs: Iterable[Pretrained]) -> None:
        require_texts(runs)
        write_corpus(corpus, seed=1)

    monkeypatch.setattr(score_launch, "require_texts", changing)
    try:
        _, shown, _ = study(*requested)
        corpus.write_bytes(before)
        _, _, while_scoring = study(*requested, "--json")
    finally:
        corpus.write_bytes(before)
    (log,) = (toy / "baselines").glob("order-*.txt")
    (why,) = {line for line in log.read_text().splitlines() if "has changed since run" in line}
    for text, times in ((shown, 2), (while_scoring, 1)):
        assert text.count("FAILED: baselines of order ") == times
        assert f"the last time with exit status 1 ({why}); see {log}" in text


@pytest.mark.parametrize("gone", [False, True])
def test_scores_of_runs_whose_text_is_gone_or_changed_are_refused_before_anything_is_made(
    run: RunFolder, study: Any, tmp_path: Path, gone: bool
) -> None:
    """All scores there already are shown all the same: they read no text."""
    toy = Path(shutil.copytree(run.path.parents[3], tmp_path / "toy")) / "results" / "toy"
    corpus, copy = Path(run.config().data.corpus), toy / "runs" / run.run_id
    options = ("--no-random-weights", "--slots-per-device", 1, "--device", "cpu", "--json")
    requested = ("score", copy, "--tasks", data_of(run) / "order.yaml", *options)
    assert study(*requested)[0] == 0
    there = {file: file.read_bytes() for file in toy.rglob("*") if file.is_file()}
    before = corpus.read_bytes()
    try:
        corpus.unlink() if gone else write_corpus(corpus, seed=1)
        status, rows, err = study(*requested)
        assert (status, [row["task"] for row in json.loads(rows)]) == (0, ["order"]), err
        (toy / "baselines").rename(tmp_path / "aside")
        for again in (requested, (*requested[:3], data_of(run) / "first.yaml", *options, "--batch", 7)):
            status, out, err = study(*again)
            assert (status, out) == (2, "")
            assert err.startswith("error: data.corpus: ")
            assert err.count("\n") == 1
            assert ("does not exist" if gone else "has changed since run") in err
    finally:
        corpus.write_bytes(before)
    (tmp_path / "aside").rename(toy / "baselines")
    assert {file: file.read_bytes() for file in toy.rglob("*") if file.is_file()} == there


def test_study_score_makes_what_is_missing_and_says_what_is_wrong(run: RunFolder, study: Any) -> None:
    data, sweep = data_of(run), run.path.parents[1]
    tasks = f"{data / 'first.yaml'},{data / 'order.yaml'}"
    options = ("--seeds", 2, "--learning-rates", "1e-3,3e-3", "--batch", 8, "--epochs", 1, "--device", "cpu", "--json")
    before = set(run.path.glob("scores/*/record.json"))
    status, out, err = study("score", sweep, "--tasks", tasks, "--precision", "bf16", *options)
    assert status == 0, err
    rows = {row["task"]: row for row in json.loads(out)}
    assert rows["first"]["measured"]["seeds"] == 2
    assert rows["first"]["random_weights"]["seeds"] == 2
    assert set(rows["first"]["baselines"]) == {"majority", "bag_of_words"}
    assert rows["order"]["protocol"] == "zero_shot"
    assert (sweep / "scores.csv").exists()
    made = set(run.path.glob("scores/*/record.json")) - before
    assert {json.loads(file.read_bytes())["environment"]["precision"] for file in made} == {"bf16"}
    status, again, err = study("score", run.path, "--tasks", tasks, "--precision", "bf16", *options)
    assert json.loads(again) == json.loads(out)
    assert "COMPLETED" not in err
    status, table, err = study("score", run.path, "--tasks", tasks, "--precision", "bf16", *options[:-1])
    beside = [
        f"{name} {rows['first']['baselines'][key]:.4f}" for name, key in (("majority", "majority"), ("words", "bag_of_words"))
    ]
    assert f"first, {rows['first']['metric']}: {', '.join(beside)} " in table, "once, above the encoders of the task"
    for arguments, words in (
        ((sweep, "--tasks", "colla"), "error: --tasks: 'colla' is not known, nor is it a .yaml file; did you mean 'cola'?\n"),
        ((sweep, "--tasks", tasks, "--max-length", 99), "99 is too long"),
        ((sweep, "--tasks", tasks, "--batch", "8,x"), "--batch: 'x' is not a whole number"),
        ((sweep, "--tasks", tasks, "--epochs", 0), "error: --epochs: '0' is below the least allowed, 1\n"),
        ((sweep, "--tasks", tasks, "--update", "head", "--epochs", 1), "--epochs: has no effect on probes"),
        ((data, "--tasks", tasks), "neither the folder of a run nor that of a sweep"),
    ):
        status, _, err = study("score", *arguments)
        assert (status, words in err) == (2, True), err
    assert PREEMPTED_EXIT == 75
