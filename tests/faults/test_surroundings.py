"""What is around a sweep fails: its folder cannot be written for a while, a peer dies, what is derived is deleted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from study.config.sweep import SearchSweep
from study.config.sweep_files import read_sweep
from study.data.prepared import prepare
from study.executing.executors import LocalExecutor
from study.executing.slots import Slot
from study.planning.search import OptunaSearch
from study.running.run_proposer import RunJob
from study.store.sweep_folder import SweepFolder
from tests.conftest import Figure
from tests.faults.lives import obey_permissions, recorded
from tests.launching import STUDY, Place, has_rows, numbers, written
from tests.small import config, run_folder
from tests.sweeps import write_sweep, write_topics
from tests.waiting import until

LAUNCH = ("launch", "toy.yaml", "--device", "cpu")
UNWRITABLE_SECONDS = 5.0


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "text.txt")


def let_write(folder: Path, allowed: bool) -> None:
    """Allow or forbid to create files in all folders below one."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755 if allowed else 0o555)


@pytest.mark.faults
def test_a_results_folder_that_cannot_be_written_for_a_while_costs_nothing(
    corpus: Path, tmp_path: Path, figure: Figure
) -> None:
    undisturbed, made = Place(tmp_path / "undisturbed"), Place(tmp_path / "made")
    for place in (undisturbed, made):
        write_sweep(place.path / "toy.yaml", corpus, seeds=2, budgets={"steps": [150]})
    undisturbed.study(*LAUNCH, "--no-wandb", seconds=900)
    launcher = subprocess.Popen(
        [STUDY, *LAUNCH, "--no-wandb"],
        cwd=made.path,
        env=made.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=obey_permissions,
    )
    try:
        until(made.is_training, seconds=600)
        let_write(made.folder.path, False)
        time.sleep(UNWRITABLE_SECONDS)
        let_write(made.folder.path, True)
        output, _ = launcher.communicate(timeout=900)
    finally:
        launcher.kill()
    assert launcher.returncode == 0, output
    assert numbers(made.folder) == numbers(undisturbed.folder)
    attempts = sum(record.attempts for record in made.folder.records())
    assert attempts == 4
    figure(
        f"results unwritable for {UNWRITABLE_SECONDS:.0f} s: 4 of 4 runs in {attempts} attempts, every row there, equal numbers"
    )


@pytest.mark.slow
def test_a_run_whose_peer_is_killed_is_tried_again(corpus: Path, tmp_path: Path, figure: Figure) -> None:
    vocabulary = {"architecture": {"vocabulary": 100}, "data": {"tokenizer": {"vocabulary": 100}}}
    wanted = config(corpus, recipe={"budget": {"steps": 500}}, **vocabulary)
    prepare(wanted.data)
    folder, pair = run_folder(tmp_path, wanted), Slot("cpu", (0, 1), 1)
    executor = LocalExecutor([pair])
    job = RunJob(folder, wanted, "toy")
    future = executor.submit([job])
    until(lambda: has_rows(folder), seconds=600)
    leader = int(folder.attempt(1)["pid"])
    (peer,) = [pid for pid in executor._running[future].pids if pid != leader]
    os.kill(peer, signal.SIGKILL)
    status = future.result(300)
    assert status == -signal.SIGKILL
    assert folder.record() is None
    again = LocalExecutor([pair]).submit([job])
    assert again.result(600) == 0
    assert (recorded(folder).state, recorded(folder).attempts) == ("COMPLETED", 2)
    figure(f"a gloo peer killed: exit {status}, no record, completed at the second attempt")


@pytest.mark.faults
def test_what_is_derived_is_rebuilt_equal(corpus: Path, tmp_path: Path, figure: Figure) -> None:
    """The ledger, the Optuna study and W&B's folder are caches of the records."""
    made = Place(tmp_path)
    space = {"recipe.learning_rate": {"low": 0.01, "high": 0.1, "log": True}}
    fixed = {"architecture": {"depth": 1, "width": 16, "heads": 2, "ffn": 32}}
    search = {"trials": 4, "space": space}
    write_sweep(made.path / "toy.yaml", corpus, shapes=None, search=search, base=fixed, budgets={"steps": [30]})
    made.study(*LAUNCH, seconds=900)
    derived = ("ledger.parquet", "ledger.csv", "answer.md", "figures")
    before, studied = written(made.folder.path, derived), trials(made)
    shutil.rmtree(made.folder.wandb)
    for name in derived:
        path = made.folder.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    made.study("report", "results/toy", "--formats", "png", seconds=900)  # as a launch that W&B follows does
    assert written(made.folder.path, derived) == before
    synced = json.loads(made.study("sync", "results/toy", "--json", seconds=900).stdout)
    assert (synced["mirrored"], synced["failed"]) == (4, {})
    assert trials(made) == studied
    assert len(studied) == 4
    assert made.study(*LAUNCH, seconds=900).stdout.count("COMPLETED") == 0
    figure(
        f"ledger, answer and figures ({len(before)} files), {len(studied)} trials and 4 W&B runs rebuilt equal from the records"
    )


def trials(made: Place) -> list[tuple[dict[str, float], list[float] | None]]:
    """The trials of the search, rebuilt from the records as a launch does."""
    spec, _ = read_sweep(made.path / "toy.yaml", ())
    assert isinstance(spec, SearchSweep)
    search = OptunaSearch(spec)
    search.restore(SweepFolder(made.folder.path).records(), [])
    return [(trial.params, trial.values) for trial in search.study.get_trials(deepcopy=False)]
