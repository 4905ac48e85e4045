"""Sweeps on a real Ray cluster of two nodes: a node dies, a launcher is stopped; no run is lost or run twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from study.base.errors import OOM_EXIT, PREEMPTED_EXIT, InputError
from study.config.resources import Resources
from study.executing.ray import ANSWER_SECONDS, RayExecutor, connect, ray_slots
from study.store.score_records import scores_of
from study.store.work_folder import checkpoints_in
from tests.launching import Place, has_rows, until_in
from tests.scoring.test_scoring import write_tasks
from tests.sweeps import LEARNS, write_sweep, write_topics
from tests.waiting import until

pytest.importorskip("ray", reason="needs Ray: pip install 'scaling-study[ray]'")

PATIENCE = 400.0
"""Seconds to wait for what takes ten on an idle machine."""

LAUNCH = ("launch", "toy.yaml", "--on", "ray", "--no-wandb")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "text.txt")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head with one CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        from ray.cluster_utils import Cluster

        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            yield started
        finally:
            started.shutdown()  # type: ignore[no-untyped-call]


def place(path: Path, corpus: Path, cluster: Any, **changes: object) -> Place:
    made = Place(path, RAY_ADDRESS=cluster.address)
    write_sweep(path / "toy.yaml", corpus, **changes)
    return made


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://[::1]:1"])
def test_a_cluster_that_does_not_answer_is_reported_at_once(address: str) -> None:
    began = time.monotonic()
    with pytest.raises(InputError, match=r"the cluster at .* does not answer: .*; does it run there\?"):
        connect(address)
    assert time.monotonic() - began < 2 * ANSWER_SECONDS


def test_what_no_node_has_is_refused(cluster: Any) -> None:
    resources = Resources.parse({"on": "ray", "device": "cuda", "devices": 2, "ray": {"address": cluster.address}})
    try:
        with pytest.raises(InputError, match="--on ray: no node of the cluster has 2 CPU and 2 GPU, which a run needs"):
            ray_slots(resources)
    finally:
        connect(cluster.address).shutdown()


@pytest.mark.parametrize(
    ("error", "arguments", "status"),
    [
        ("TaskCancelledError", (), PREEMPTED_EXIT),
        ("OutOfMemoryError", ("Task was killed due to the node running low on memory",), OOM_EXIT),
        ("WorkerCrashedError", (), -signal.SIGKILL),
    ],
)
def test_how_a_task_was_lost_is_its_exit_status(error: str, arguments: tuple[str, ...], status: int) -> None:
    from ray import exceptions

    def get(task: None) -> int:
        raise getattr(exceptions, error)(*arguments)

    executor, future = object.__new__(RayExecutor), Future[int]()
    executor._ray, executor._running = SimpleNamespace(exceptions=exceptions, get=get), {future: None}
    executor._wait(future, None)
    assert future.result() == status


@pytest.mark.slow
def test_ctrl_c_saves_what_runs_and_takes_back_what_waits(cluster: Any, corpus: Path, tmp_path: Path) -> None:
    resources = {"on": "ray", "ray": {"runs": 2}}
    made = place(tmp_path, corpus, cluster, budgets={"steps": [100_000]}, resources=resources)
    launcher = made.start(*[word for word in LAUNCH if word not in ("--on", "ray")])
    until_in(launcher, lambda: any(has_rows(run) for run in made.folder.runs()), PATIENCE)
    os.killpg(launcher.pid, signal.SIGINT)
    output, errors = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 130, output + errors
    saved = [run for run in made.folder.runs() if has_rows(run)]
    assert len(saved) == 1
    assert checkpoints_in(saved[0].checkpoints)
    assert made.folder.records() == []
    until(lambda: made.processes() == [])


@pytest.mark.slow
def test_a_node_that_dies_costs_no_run(cluster: Any, corpus: Path, tmp_path: Path) -> None:
    second = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    made = place(tmp_path, corpus, cluster, shapes={"grid": {"depth": [1, 2]}}, seeds=2, budgets={"steps": [800]})
    launcher = made.start(*LAUNCH)
    until_in(launcher, lambda: sum(has_rows(run) and not run.record_file.exists() for run in made.folder.runs()) == 3, PATIENCE)
    cluster.remove_node(second, allow_graceful=False)
    output, errors = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, output + errors
    records = made.folder.records()
    assert [record.state for record in records] == ["COMPLETED"] * 4
    assert sorted(record.attempts for record in records) == [1, 1, 2, 2]
    assert output.count("COMPLETED L") == 4
    until(lambda: made.processes() == [])


def workers(made: Place) -> set[bool]:
    """Of each process that makes a score now, whether it is one of a node of the cluster."""
    actual = set()
    for attempt in made.folder.path.glob("runs/*/scores/*/attempts/*.json"):
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{json.loads(attempt.read_text())['pid']}/environ").read_bytes()
            actual.add(b"RAY_RAYLET_PID=" in variables)
    return actual


@pytest.mark.slow
def test_a_sweep_that_asks_for_scores_is_scored_on_the_cluster(cluster: Any, corpus: Path, tmp_path: Path) -> None:
    """And so is what `study score` adds."""
    write_tasks(tmp_path / "tasks", corpus.read_text().split("\n\n"))
    asked = {"tasks": ["tasks/first.yaml"], "seeds": 1, "learning_rates": [1e-3], "epochs": [300], "knobs": {"max_length": 8}}
    made = place(tmp_path, corpus, cluster, **LEARNS, downstream=asked)
    launcher = made.start(*LAUNCH)
    until_in(launcher, lambda: workers(made) == {True}, PATIENCE)
    output, errors = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, output + errors
    assert "COMPLETED first" in output
    options = ("--learning-rates", "1e-3", "--epochs", 299, "--max-length", 8, "--seeds", 1, "--no-random-weights")
    scorer = made.start("score", "results/toy", "--tasks", "tasks/first.yaml", *options, "--on", "ray")
    until_in(scorer, lambda: True in workers(made), PATIENCE)
    output, errors = scorer.communicate(timeout=PATIENCE)
    assert scorer.returncode == 0, output + errors
    scores = [score for run in made.folder.runs() for score in scores_of(run)]
    assert [(score.state, score.attempts) for score in scores] == [("COMPLETED", 1)] * 3
    until(lambda: made.processes() == [])
