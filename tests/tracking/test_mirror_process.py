"""The mirror in its own process: no fault of it or of W&B touches who writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from study.base.errors import InputError
from study.store.sweep_folder import SweepFolder
from study.tracking.mirror import SyncReport, mirror_sweep
from study.tracking.mirror_process import MirrorProcess
from study.tracking.mirror_state import left_behind
from tests.fake_runs import FakeRun, Steady, empty_sweep
from tests.fake_wandb_server import SECRET, Listener
from tests.launching import is_alive
from tests.waiting import until
from tests.wandb_files import Held, assert_all_there


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    return empty_sweep(tmp_path, monkeypatch)


@pytest.fixture
def listener() -> Iterator[Listener]:
    server = Listener()
    yield server
    server.close()


@pytest.mark.slow
def test_a_torn_line_waits_for_its_end_and_a_rewritten_file_is_mirrored_anew(folder: SweepFolder) -> None:
    run = FakeRun(folder)
    run.write(4)
    with run.folder.metrics_file.open("a") as file:
        file.write('{"train/loss": 1')
    mirror = MirrorProcess(folder)
    mirror.start()
    until(lambda: any(folder.wandb.glob("offline-run-*/*.wandb")))
    time.sleep(1.5)
    kept = run.folder.metrics_file.read_bytes().splitlines(keepends=True)[:2]
    run.folder.metrics_file.write_bytes(b"".join(kept))  # the run resumes from an earlier checkpoint
    run.steps = 20
    run.write(5)
    run.end()
    assert mirror.stop(20) == []
    assert [row["trainer/step"] for row in Held(folder, run).rows] == [1, 2, 21, 22, 23, 24, 25]
    assert_all_there(folder, run)


@pytest.mark.slow
def test_a_mirror_that_is_killed_leaves_the_writer_alone_and_sync_repairs(folder: SweepFolder) -> None:
    writers = [Steady(FakeRun(folder, seed)) for seed in range(2)]
    mirror = MirrorProcess(folder)
    mirror.start()
    until(lambda: len(list(folder.wandb.glob("offline-run-*/*.wandb"))) == 2)
    with pytest.raises(InputError, match="is being mirrored"):
        mirror_sweep(folder)
    assert mirror._process is not None
    os.kill(mirror._process.pid, signal.SIGKILL)
    until(lambda: not mirror.alive)
    time.sleep(0.5)
    for writer in writers:
        writer.end()
    assert max(writer.slowest for writer in writers) < 1
    assert len(mirror.stop(5)) == 2
    assert mirror_sweep(folder).mirrored == 2
    for writer in writers:
        assert_all_there(folder, writer.run)


@pytest.mark.slow
def test_a_live_mirror_has_everything_when_it_is_stopped(folder: SweepFolder) -> None:
    mirror = MirrorProcess(folder)
    mirror.start()
    writer = Steady(FakeRun(folder))
    until(lambda: any(folder.wandb.glob("offline-run-*/*.wandb")))
    writer.end()
    assert mirror.stop(20) == []
    assert not mirror.alive
    assert_all_there(folder, writer.run)
    assert mirror_sweep(folder).already == 1


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_only_delays_the_mirror(folder: SweepFolder) -> None:
    folder.wandb.write_text("a file where the folder should be")
    mirror = MirrorProcess(folder)
    mirror.start()
    writer = Steady(FakeRun(folder))
    time.sleep(4)
    assert mirror.alive
    writer.end()
    assert len(mirror.stop(10)) == 1
    report = mirror_sweep(folder)
    assert (report.mirrored, len(report.failed)) == (0, 1)
    folder.wandb.unlink()
    assert mirror_sweep(folder).mirrored == 1
    assert_all_there(folder, writer.run)


@pytest.mark.slow
def test_a_server_that_hangs_costs_nothing_and_offline_has_everything(
    folder: SweepFolder, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", listener.url)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    mirror = MirrorProcess(folder)
    mirror.start()
    writer = Steady(FakeRun(folder))
    until(lambda: bool(listener.connections))
    writer.end()
    assert writer.slowest < 1
    begin = time.monotonic()
    assert len(mirror.stop(2)) == 1
    assert time.monotonic() - begin < 10
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert mirror_sweep(folder) == SyncReport("offline", mirrored=1)
    assert_all_there(folder, writer.run)
    assert not [path for path in folder.path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_switched_off_it_writes_nothing(folder: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run = FakeRun(folder)
    run.write(3)
    run.end()
    mirror = MirrorProcess(folder)
    mirror.start()
    assert not mirror.alive
    assert mirror.stop(1) == []
    assert mirror_sweep(folder) == SyncReport("disabled", mirrored=0)
    assert sorted(path.name for path in folder.path.iterdir()) == ["runs"]


def test_the_mirror_ends_when_its_parent_dies(folder: SweepFolder) -> None:
    run = FakeRun(folder)
    run.write(3)
    code = (
        "import sys, time; from pathlib import Path; from study.store.sweep_folder import SweepFolder;"
        "from study.tracking.mirror_process import MirrorProcess; mirror = MirrorProcess(SweepFolder(Path(sys.argv[1])));"
        "mirror.start(); print(mirror._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        mirror = Path("/proc") / parent.stdout.readline().decode().strip()
        until(lambda: any(folder.wandb.glob("offline-run-*/*.wandb")))
        parent.kill()
    until(lambda: not is_alive(mirror))
    assert left_behind(folder) == []
    assert Held(folder, run).exit_codes == [1]
