"""Processes of a sweep are killed at random, runs and coordinators alike: every run ends up with one record, none is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from study.store.sweep_folder import SweepFolder
from tests.conftest import Figure
from tests.faults.lives import Lives
from tests.launching import Place
from tests.small import config
from tests.sweeps import write_sweep, write_topics

LAUNCH = ("launch", "toy.yaml", "--no-wandb", "--device", "cpu")
STEPS = 20
RUN_SECONDS = 1.0
"""What a run of STEPS takes where nothing else runs; on a busier machine the pauses between the kills grow with it."""
MOST_KILLS = 3
"""Kills a run, on average and at most: however slow the machine becomes meanwhile, all runs end."""
LOOK_SECONDS = 0.05
"""Between two looks at the records: shorter than any run, so that no coordinator's turn is slept through."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "text.txt")


class Killer:
    """A launch whose processes are killed at random, and that is started again when it is its coordinator's turn."""

    def __init__(self, made: Place, seed: int) -> None:
        self.made, self.draw = made, random.Random(seed)
        self.launcher = made.start(*LAUNCH)
        self.kills: Counter[str] = Counter()

    def kill_a_run(self) -> None:
        """SIGKILL the leader of some session that the launch has started: the process of a run."""
        runs = [pid for pid in self.made.processes() if pid != self.launcher.pid and is_leader(pid)]
        if runs:
            self._kill("run", self.draw.choice(runs))

    def kill_the_coordinator(self) -> None:
        """SIGKILL the launcher and start it again."""
        self._kill("coordinator", self.launcher.pid)
        self.launcher.communicate()
        self.launcher = self.made.start(*LAUNCH)

    def _kill(self, what: str, pid: int) -> None:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # it ended by itself
        self.kills[what] += 1


def is_leader(pid: int) -> bool:
    """Whether a process leads a session; False where it has ended."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def seconds_of_a_run(corpus: Path, tmp_path: Path) -> float:
    """How long one run takes here and now."""
    lives, vocabulary = Lives(), {"architecture": {"vocabulary": 100}, "data": {"tokenizer": {"vocabulary": 100}}}
    for seed in range(2):  # the first one waits for torch to be imported
        began = time.monotonic()
        lives.undisturbed(config(corpus, seed=seed, recipe={"budget": {"steps": STEPS}}, **vocabulary), tmp_path / "alone")
    return time.monotonic() - began


def records_of(folder: SweepFolder) -> int:
    return len(list(folder.path.glob("runs/*/record.json")))


@pytest.mark.parametrize(
    ("runs", "coordinator_kills", "pause"),
    [pytest.param(4, 1, (0.15, 0.7), marks=pytest.mark.slow), pytest.param(400, 10, (0.15, 2.0), marks=pytest.mark.faults)],
)
def test_every_run_of_a_sweep_that_is_killed_at_random_has_one_record(
    runs: int, coordinator_kills: int, pause: tuple[float, float], corpus: Path, tmp_path: Path, figure: Figure, study: Any
) -> None:
    made = Place(tmp_path)
    write_sweep(
        made.path / "toy.yaml", corpus, seeds=runs // 4, budgets={"steps": [STEPS]}, shapes={"grid": {"depth": [1, 2, 3, 4]}}
    )
    slow = max(1.0, seconds_of_a_run(corpus, tmp_path) / RUN_SECONDS)
    pause = (pause[0] * slow, pause[1] * slow)
    began, killer = time.monotonic(), Killer(made, seed=runs)
    next_kill = began + killer.draw.uniform(*pause)
    due = [runs * (number + 1) // (coordinator_kills + 1) for number in range(coordinator_kills)]
    try:
        while (done := records_of(made.folder)) < runs and killer.launcher.poll() is None:
            now = time.monotonic()
            assert now - began < 300 + 10 * RUN_SECONDS * slow * runs
            if due and done >= due[0]:
                killer.kill_the_coordinator()
                due.pop(0)
            elif now >= next_kill and killer.kills["run"] < MOST_KILLS * runs:
                killer.kill_a_run()
                next_kill = now + killer.draw.uniform(*pause)
            else:
                time.sleep(LOOK_SECONDS)
        output, errors = killer.launcher.communicate(timeout=1800)
    finally:
        killer.launcher.kill()
    assert killer.launcher.returncode == 0, output + errors
    assert_all_there(made, runs, study)
    assert killer.kills["coordinator"] == coordinator_kills
    attempts, seconds = sum(record.attempts for record in made.folder.records()), time.monotonic() - began
    figure(
        f"kill -9 of {killer.kills['run']} processes of runs every {pause[0]:.2f}–{pause[1]:.1f} s, and of {coordinator_kills} "
        f"coordinators: {runs} of {runs} records, none twice, {attempts} attempts, {seconds:.0f} s"
    )


def assert_all_there(made: Place, runs: int, study: Any) -> None:
    """Each run is completed by one record, with each of its steps logged once, and no process or half a file is left."""
    records = made.folder.records()
    assert Counter(record.state for record in records) == {"COMPLETED": runs}
    assert len({record.run_id for record in records}) == len(list((made.folder.path / "runs").iterdir())) == runs
    for run in made.folder.runs():
        steps = [row["trainer/step"] for row in run.metrics() if "train/loss" in row]
        assert steps == sorted(set(steps))
        assert steps[-1] == STEPS
    counts = json.loads(study("status", made.folder.path, "--json")[1])["counts"]
    assert counts == {"COMPLETED": runs}
    assert made.processes() == []
    assert not list(made.folder.path.rglob("record.json.*"))


@pytest.mark.faults
def test_two_launchers_at_once_and_the_same_sweep_again_train_nothing_twice(
    corpus: Path, tmp_path: Path, figure: Figure
) -> None:
    made = Place(tmp_path)
    write_sweep(made.path / "toy.yaml", corpus, seeds=3, budgets={"steps": [60]})
    launchers = [made.start(*LAUNCH) for _ in range(2)]
    endings = [(launcher.communicate(timeout=900), launcher.returncode) for launcher in launchers]
    assert sorted(status for _, status in endings) == [0, 2]
    (refused,) = [errors for (_, errors), status in endings if status == 2]
    winner = next(launcher.pid for launcher, (_, status) in zip(launchers, endings, strict=True) if status == 0)
    assert f"is being run by process {winner} on" in refused
    again = made.study(*LAUNCH, seconds=900).stdout
    assert "6 runs have ended already" in again
    assert [record.attempts for record in made.folder.records()] == [1] * 6
    figure(f"two launchers at once, and again: 6 of 6 runs trained once; the second said {refused.strip()[:90]}…")


@pytest.mark.parametrize("seeds", [pytest.param(1, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.faults)])
def test_two_sweeps_that_share_runs_train_each_once(seeds: int, corpus: Path, tmp_path: Path, figure: Figure) -> None:
    made, names = Place(tmp_path), ("one", "two")
    for name, depths in zip(names, ([1, 2], [2, 3]), strict=True):
        grid = {"shapes": {"grid": {"depth": depths}}}
        write_sweep(made.path / f"{name}.yaml", corpus, name=name, seeds=seeds, budgets={"steps": [60]}, **grid)
    launchers = [made.start("launch", f"{name}.yaml", *LAUNCH[2:]) for name in names]
    printed = [said_by(launcher) for launcher in launchers]
    one, two = (SweepFolder(made.path / "results" / name) for name in names)
    records = {record.run_id: record for record in (*one.records(), *two.records())}
    assert len(records) == 3 * seeds
    assert {record.attempts for record in records.values()} == {1}
    shared = [run for run in one.runs() if two.run(run.run_id).record_file.exists()]
    assert len(shared) == seeds
    assert all(run.record_file.samefile(two.run(run.run_id).record_file) for run in shared)
    waits = sum(text.count("WAITS") for text in printed)
    figure(
        f"two sweeps with {seeds} runs in common, at once: {len(records)} runs trained once, {waits} waited for, one file each"
    )


def said_by(launcher: subprocess.Popen[str]) -> str:
    """What a launcher printed, once it has ended well."""
    output, errors = launcher.communicate(timeout=900)
    assert launcher.returncode == 0, output + errors
    return output
