"""Sweeps on a real Slurm of two nodes: nodes and launchers die, jobs are requeued or cancelled; every run is run once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from study.store.score_records import scores_of
from study.store.work_folder import checkpoints_in, newest_values, step_of
from tests.conftest import Figure
from tests.launching import Place, has_rows, until_in
from tests.scoring.test_scoring import write_tasks
from tests.slurm_cluster import SlurmCluster, why_not
from tests.sweeps import LEARNS, write_sweep, write_topics
from tests.waiting import until

NOT_HERE = why_not()
assert NOT_HERE is None or "REQUIRE_SLURM" not in os.environ, NOT_HERE
pytestmark = pytest.mark.skipif(NOT_HERE is not None, reason=NOT_HERE or "")

PATIENCE = 400.0
"""Seconds to wait for what takes ten on an idle machine: each job imports torch anew."""

LAUNCH = ("launch", "toy.yaml", "--on", "slurm", "--no-wandb", "--device", "cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "text.txt")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as folder:
        started = SlurmCluster(Path(folder))
        try:
            started.start()
            yield started
        finally:
            started.stop()


def place(path: Path, corpus: Path, cluster: SlurmCluster, **changes: object) -> Place:
    made = Place(path, **cluster.variables)
    write_sweep(path / "toy.yaml", corpus, **changes)
    return made


def finished(cluster: SlurmCluster, launcher: subprocess.Popen[str], seconds: float = PATIENCE) -> str:
    """What a launcher printed that ended well; what was put back into the queue meanwhile is not waited for."""

    def ended() -> bool:
        cluster.hurry()
        return launcher.poll() is not None

    until(ended, seconds)
    output, errors = launcher.communicate()
    assert launcher.returncode == 0, output + errors
    return output


@pytest.mark.slow
def test_two_ranks_on_two_nodes_are_one_run(cluster: SlurmCluster, corpus: Path, tmp_path: Path) -> None:
    made = place(tmp_path, corpus, cluster, shapes={"grid": {"depth": [1]}})
    made.study(*LAUNCH, "--devices", 2, "--nodes", 2, "--partition", "main", "--time", "10m", seconds=PATIENCE)
    (record,) = made.folder.records()
    assert (record.state, record.attempts) == ("COMPLETED", 1)
    assert record.environment is not None
    assert (record.environment.devices, record.environment.nodes) == (2, 2)
    assert cluster.queue() == []


@pytest.mark.slow
def test_jobs_outlive_their_launcher_are_requeued_and_found_again(cluster: SlurmCluster, corpus: Path, tmp_path: Path) -> None:
    made = place(tmp_path, corpus, cluster, budgets={"steps": [1500]}, resources={"slurm": {"time": "10m"}})
    launcher = made.start(*LAUNCH)
    until_in(launcher, lambda: sum(has_rows(run) for run in made.folder.runs()) == 2, PATIENCE)
    launcher.kill()
    launcher.communicate()
    first, second = sorted(line.split()[0] for line in cluster.queue())
    cluster.command("scancel", "--signal=USR2", first)  # what Slurm sends before the time limit
    cluster.command("scontrol", "requeue", second)  # what it does to jobs that make room for others
    finished(cluster, made.start(*LAUNCH))
    records = made.folder.records()
    assert [(record.state, record.steps, record.attempts) for record in records] == [("COMPLETED", 1500, 2)] * 2
    assert len(list((made.folder.path / "slurm").glob("*.json"))) == 1, "a run was submitted twice"


@pytest.mark.slow
def test_a_run_that_slurm_warns_of_its_time_limit_saves_and_goes_on_in_the_same_job(
    cluster: SlurmCluster, corpus: Path, tmp_path: Path, figure: Figure
) -> None:
    made = place(tmp_path, corpus, cluster, shapes={"grid": {"depth": [1]}}, budgets={"steps": [10_000_000]})
    launcher = made.start(*LAUNCH, "--time", "2m")
    until_in(launcher, made.is_training, PATIENCE)
    (run,), (line,) = made.folder.runs(), cluster.queue()
    until_in(launcher, lambda: " PENDING " in "".join(cluster.queue()), PATIENCE)
    saved = checkpoints_in(run.checkpoints)[-1]
    beat = run.attempt_file(1).with_suffix(".beat")
    assert beat.read_text() == "ended", "it was killed before it had saved"
    trained_seconds = beat.stat().st_mtime - run.attempt_file(1).stat().st_mtime
    assert "TIMEOUT" not in cluster.log()

    def goes_on() -> bool:
        cluster.hurry()
        return run.attempts() == 2 and newest_values(run.newest_rows()).get("trainer/step", 0) > step_of(saved) + 1000

    until_in(launcher, goes_on, PATIENCE)
    assert "Restarts=1" in cluster.command("scontrol", "show", "job", line.split()[0])
    steps = [row["trainer/step"] for row in run.metrics() if "train/loss" in row]
    assert steps == list(range(steps[0], steps[-1] + 1, steps[0])), "rows were lost or written twice"
    os.killpg(launcher.pid, signal.SIGINT)
    output, errors = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 130, output + errors
    figure(f"a limit of 120 s: saved after {trained_seconds:.0f} s of training, went on at step {step_of(saved)}, same job")


@pytest.mark.slow
def test_ctrl_c_saves_the_runs_and_empties_the_queue(cluster: SlurmCluster, corpus: Path, tmp_path: Path) -> None:
    made = place(tmp_path, corpus, cluster, shapes={"grid": {"depth": [1, 2, 3, 4, 5, 6]}}, budgets={"steps": [100_000]})
    launcher = made.start(*LAUNCH)
    until_in(launcher, lambda: sum(has_rows(run) for run in made.folder.runs()) >= 2, PATIENCE)
    os.killpg(launcher.pid, signal.SIGINT)
    output, errors = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 130, output + errors
    assert cluster.queue() == []
    assert made.processes() == []
    assert all(checkpoints_in(run.checkpoints) for run in made.folder.runs() if has_rows(run))
    assert made.folder.records() == []


@pytest.mark.slow
def test_a_node_that_dies_costs_no_run(cluster: SlurmCluster, corpus: Path, tmp_path: Path) -> None:
    made = place(tmp_path, corpus, cluster, shapes={"grid": {"depth": [1, 2]}}, seeds=2, budgets={"steps": [1200]})
    launcher = made.start(*LAUNCH, "--array", 4)

    def all_are_training() -> bool:
        running = [line for line in cluster.queue() if " RUNNING " in line]
        training = [run for run in made.folder.runs() if has_rows(run) and not run.record_file.exists()]
        return len(training) == len(running) > 0 and any(" RUNNING n2" in line for line in running)

    until_in(launcher, all_are_training, PATIENCE)
    cluster.kill_node("n2")
    output = finished(cluster, launcher)
    records = made.folder.records()
    assert [record.state for record in records] == ["COMPLETED"] * 4
    assert max(record.attempts for record in records) == 2
    assert output.count("COMPLETED L") == 4
    cluster.start_node("n2")


def places(made: Place) -> list[str | None]:
    """The node that each attempt at a score was on, None where no job of Slurm made it."""
    attempts = [path for path in made.folder.path.glob("runs/*/scores/*/attempts/*.json") if path.stem.isdigit()]
    details = [json.loads(path.read_text()) for path in attempts]
    return [each["slurm_node"] if each.get("slurm_job") else None for each in details]


@pytest.mark.slow
def test_a_sweep_that_asks_for_scores_is_scored_on_the_nodes_beside_jobs_of_any_name(
    cluster: SlurmCluster, corpus: Path, tmp_path: Path, figure: Figure
) -> None:
    """And so is what `study score` adds; the options of the sweep's jobs are those of its scores, but for ranks."""
    write_tasks(tmp_path / "tasks", corpus.read_text().split("\n\n"))
    knobs = {"learning_rates": [1e-3], "epochs": [1], "knobs": {"max_length": 8, "precision": "fp32"}}
    asked = {"tasks": ["tasks/first.yaml", "tasks/order.yaml"], "seeds": 2, **knobs}
    resources = {"devices": 2, "slurm": {"nodes": 2, "time": "10m", "options": {"comment": "of toy"}}}
    made = place(tmp_path, corpus, cluster, **LEARNS, downstream=asked, resources=resources)
    others = [cluster.command("sbatch", "--hold", f"--job-name={name}", "--wrap", "true") for name in ("a|b|c", "two\n|lines")]
    output = made.study(*LAUNCH, seconds=2 * PATIENCE).stdout
    (run,) = made.folder.records()
    assert run.environment is not None
    assert (run.state, run.environment.nodes) == ("COMPLETED", 2)
    scores = [score for one in made.folder.runs() for score in scores_of(one)]
    assert {score.config.task for score in scores} == {"first", "order"}
    assert {(score.state, score.attempts) for score in scores} == {("COMPLETED", 1)}
    assert {score.environment.nodes for score in scores if score.environment} == {1}
    actual = places(made)
    assert len(actual) == len(scores)
    assert set(actual) <= {"n1", "n2"}
    assert "writing an answer without scores, then scoring on tasks/first.yaml, tasks/order.yaml" in output
    assert len(list(made.folder.baselines.glob("*.json"))) == 2
    options = ("--learning-rates", "1e-3", "--epochs", 1, "--max-length", 8, "--precision", "fp32", "--seeds", 3)
    more = ("score", "results/toy", "--tasks", "tasks/first.yaml", *options, "--on", "slurm", "--device", "cpu")
    made.study(*more, seconds=PATIENCE)
    assert len(places(made)) == len(scores) + 2, "the third seed of the encoder, and of random weights"
    assert None not in places(made)
    for other in others:
        cluster.command("scancel", other.split()[-1])
    figure(f"downstream of a sweep on Slurm: {len(scores)} scores, all on nodes: {dict(Counter(actual))}")


@pytest.mark.slow
def test_scores_in_the_queue_outlive_their_launcher_and_are_found_again(
    cluster: SlurmCluster, corpus: Path, tmp_path: Path
) -> None:
    write_tasks(tmp_path / "tasks", corpus.read_text().split("\n\n"))
    made = place(tmp_path, corpus, cluster, **LEARNS)
    made.study("launch", "toy.yaml", "--no-wandb", "--device", "cpu", seconds=PATIENCE)
    options = ("--learning-rates", "1e-3", "--epochs", 300, "--max-length", 8, "--seeds", 1, "--no-random-weights")
    score = ("score", "results/toy", "--tasks", "tasks/first.yaml", *options, "--on", "slurm", "--device", "cpu")
    launcher = made.start(*score)
    logged = made.folder.path.glob
    until_in(launcher, lambda: any(path.stat().st_size for path in logged("runs/*/scores/*/metrics.jsonl")), PATIENCE)
    launcher.kill()
    launcher.communicate()
    made.study(*score, seconds=PATIENCE)
    ((ended,),) = [scores_of(run) for run in made.folder.runs()]
    assert (ended.state, ended.attempts) == ("COMPLETED", 1)
    assert places(made) in (["n1"], ["n2"])


def test_what_slurm_refuses_is_bad_input(
    cluster: SlurmCluster, corpus: Path, tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = place(tmp_path, corpus, cluster)
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    asked = ("--results", made.path / "results", *LAUNCH[2:], "--partition", "nowhere")
    status, _, refused = study("launch", made.path / "toy.yaml", *asked)
    assert status == 2
    assert "error: --on slurm: sbatch refused the jobs" in refused
    assert "invalid partition specified: nowhere" in refused
