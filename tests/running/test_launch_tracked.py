"""Whole sweeps with W&B beside them: whatever becomes of W&B, the runs do not notice, and `study sync` makes up for it."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from study.running.launch import MIRROR_SECONDS
from study.store.sweep_folder import SweepFolder
from tests.fake_runs import FakeRun
from tests.fake_wandb_server import Listener
from tests.launching import Place
from tests.sweeps import write_sweep, write_topics
from tests.waiting import until
from tests.wandb_files import Held, assert_all_there

LAUNCH = ("launch", "toy.yaml", "--device", "cpu")
RUNS = 2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "text.txt")


def place(path: Path, corpus: Path, **environment: str) -> Place:
    made = Place(path, **environment)
    write_sweep(path / "toy.yaml", corpus, budgets={"steps": [250]})
    return made


@pytest.fixture(scope="module")
def normal_seconds(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> float:
    """How long the launch takes when W&B works, all of it mirrored."""
    made = place(tmp_path_factory.mktemp("normal"), corpus)
    begin = time.monotonic()
    printed = made.study(*LAUNCH).stdout
    seconds = time.monotonic() - begin
    assert_complete(made)
    assert "not in W&B" not in printed
    assert_mirrored(made.folder)
    assert f"0 runs mirrored now, {RUNS} already there, 0 failed" in made.study("sync", "results/toy").stdout
    return seconds


def at_most(normal_seconds: float) -> float:
    """How long a launch may take that does not wait for W&B; the machine may be busier than it was."""
    return 5 * normal_seconds + 60


def assert_complete(made: Place) -> None:
    assert [record.state for record in made.folder.records()] == ["COMPLETED"] * RUNS
    assert made.folder.answer_file.exists()


def assert_mirrored(folder: SweepFolder) -> None:
    """W&B's files hold every row of every run."""
    for run in folder.runs():
        as_fake, record = cast(FakeRun, SimpleNamespace(folder=run)), run.record()
        assert record is not None
        assert_all_there(folder, as_fake)
        assert Held(folder, as_fake).summary["loss_nats"] == record.loss_nats


def assert_synced_once(made: Place) -> None:
    """`study sync` mirrors all runs, and does nothing a second time."""
    assert f"{RUNS} runs mirrored now, 0 already there, 0 failed" in made.study("sync", "results/toy").stdout
    assert_mirrored(made.folder)
    before = _written(made.folder.wandb)
    assert f"0 runs mirrored now, {RUNS} already there, 0 failed" in made.study("sync", "results/toy").stdout
    assert _written(made.folder.wandb) == before


def _written(folder: Path) -> dict[Path, int]:
    """When each file was written, but for the log in which W&B's own process says that its mirror was killed."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "debug-core.log"}


@pytest.mark.slow
def test_the_mirror_is_killed(corpus: Path, tmp_path: Path) -> None:
    made = place(tmp_path, corpus)
    launcher = made.start(*LAUNCH)
    until(made.is_training)
    made.kill_mirror()
    output, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, errors
    assert "Traceback" not in output + errors
    assert f"{RUNS} runs and the answer are not in W&B yet: study sync results/toy" in output
    assert_complete(made)
    assert_synced_once(made)


@pytest.mark.slow
def test_the_folder_of_w_and_b_is_a_file(corpus: Path, tmp_path: Path, normal_seconds: float) -> None:
    made = place(tmp_path, corpus)
    made.folder.path.mkdir(parents=True)
    made.folder.wandb.write_text("a file where the folder should be")
    begin = time.monotonic()
    printed = made.study(*LAUNCH).stdout
    assert time.monotonic() - begin < at_most(normal_seconds)
    assert f"{RUNS} runs and the answer are not in W&B yet" in printed
    assert_complete(made)
    failed = made.study("sync", "results/toy", status=1)
    assert f"0 runs mirrored now, 0 already there, {RUNS} failed" in failed.stdout
    made.folder.wandb.unlink()
    assert_synced_once(made)


@pytest.mark.slow
def test_the_server_hangs(corpus: Path, tmp_path: Path, normal_seconds: float) -> None:
    listener, secret = Listener(), "f00d" * 10
    online = {"WANDB_BASE_URL": listener.url, "WANDB_API_KEY": secret, "WANDB_MODE": "online"}
    made = place(tmp_path, corpus, **online)
    begin = time.monotonic()
    printed = made.study(*LAUNCH).stdout
    assert time.monotonic() - begin < at_most(normal_seconds) + MIRROR_SECONDS
    assert listener.connections
    listener.close()
    assert f"{RUNS} runs and the answer are not in W&B yet" in printed
    assert_complete(made)
    offline = Place(tmp_path)
    assert_synced_once(offline)
    written = [path for path in made.folder.path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert written == []
