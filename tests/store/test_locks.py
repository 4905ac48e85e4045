"""One process at a time launches a sweep, and one scores it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from study.base import durable_files
from study.base.errors import InputError
from study.cli import REMEDIES
from study.data.cache import open_entry
from study.running.control import stop
from study.running.status import status
from study.store.ownership import is_held, sweep_lock
from study.store.sweep_folder import SweepFolder
from tests.synthetic import sweep_folder

HOLDER = """
import sys
from pathlib import Path
from study.store.sweep_folder import SweepFolder
from study.store.ownership import sweep_lock
with sweep_lock(SweepFolder(Path(sys.argv[1])).launching):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_launcher_is_told_who_runs_the_sweep_until_that_one_dies(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "results" / "toy")
    command = [sys.executable, "-c", HOLDER, str(folder.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        message = f"is being run by process {holder.pid} on .* since 20.*: study stop {re.escape(str(folder.path))}$"
        with pytest.raises(InputError, match=message), sweep_lock(folder.launching):
            pytest.fail("held twice")
        assert is_held(folder.launching)
        coordinated_by = status(folder).coordinator
        assert coordinated_by is not None
        assert coordinated_by["pid"] == holder.pid
        holder.kill()
    with sweep_lock(folder.launching):
        assert is_held(folder.launching)
    assert not is_held(folder.launching)
    assert status(folder).coordinator is None


def test_a_results_folder_that_cannot_be_made_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    folder = SweepFolder(tmp_path / "results" / "toy")
    with pytest.raises(InputError, match=r"cannot be written: .*; use a folder that can"), sweep_lock(folder.launching):
        pytest.fail("held a file")


def test_who_sees_a_launch_begin_can_stop_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that was left for one that was killed is gone by then, and no other is taken for it."""
    folder = sweep_folder(tmp_path / "s")
    folder.launching.stop_file.write_text("left")
    write = durable_files.write_atomically

    def seen(path: Path, content: bytes) -> None:
        write(path, content)
        assert not folder.launching.stop_file.exists()
        folder.launching.stop_file.write_text("now")

    monkeypatch.setattr("study.store.ownership.write_atomically", seen)
    with sweep_lock(folder.launching):
        assert folder.launching.stop_file.read_text() == "now"
    assert not folder.launching.stop_file.exists()


@pytest.fixture
def without_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has no flock, as some of Lustre."""

    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)


@pytest.mark.usefixtures("without_flock")
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_where_there_is_no_flock_a_sweep_that_is_held_is_seen_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("study.running.control.STOP_SECONDS", 0.0)
    folder = sweep_folder(tmp_path / "s")
    for lock, what in ((folder.launching, "run"), (folder.scoring, "scored")):
        assert not is_held(lock)
        with sweep_lock(lock):
            assert is_held(lock)
            assert (status(folder).coordinator is not None, status(folder).scored) == (what == "run", what == "scored")
            with pytest.raises(InputError, match=rf"has not stopped within 0 s; see {re.escape(str(lock.holder_file))}"):
                stop(folder)
            assert lock.stop_file.exists()
            with pytest.raises(InputError, match=f"is being {what} by process {os.getpid()} on "):
                sweep_lock(lock).__enter__()
        assert not is_held(lock)
    assert not stop(folder)


@pytest.mark.usefixtures("without_flock")
def test_where_there_is_no_flock_a_command_gives_no_warning_of_a_library(
    tmp_path: Path, study: Any, recwarn: pytest.WarningsRecorder
) -> None:
    assert study("retry", sweep_folder(tmp_path / "s").path)[0] == 0
    assert [str(warning.message) for warning in recwarn] == []


def test_a_file_system_that_has_run_out_of_locks_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NFS without its lock service has: it can be written to."""

    def none_left(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none_left)
    with pytest.raises(InputError, match=r"cannot be locked: .*; use a folder that can be locked"):
        sweep_lock(sweep_folder(tmp_path / "s").launching).__enter__()
    with pytest.raises(OSError, match=r"entry\.lock") as caught:
        open_entry(tmp_path / "entry", lambda _: {})
    assert caught.value.errno in REMEDIES, "no traceback"


@pytest.mark.usefixtures("without_flock")
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_where_there_is_no_flock_a_holder_that_died_elsewhere_is_reported_with_the_file_to_remove(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s")
    (lock := folder.launching).lock_file.write_text("1\nelsewhere\n")
    assert is_held(lock)
    with pytest.raises(InputError, match=rf"; if it has died, remove {re.escape(str(lock.lock_file))}$"):
        sweep_lock(lock).__enter__()
    lock.lock_file.unlink()
    with sweep_lock(lock):
        assert is_held(lock)


@pytest.mark.usefixtures("without_flock")
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_where_there_is_no_flock_what_flock_left_is_no_held_lock(tmp_path: Path) -> None:
    """As in a copy of a sweep or of the cache."""
    (lock := sweep_folder(tmp_path / "s").launching).lock_file.touch()
    assert is_held(lock), "whoever made the file may be about to write its name"
    os.utime(lock.lock_file, (0, 0))
    assert not is_held(lock)
    lock.lock_file.touch()
    os.utime(lock.lock_file, (0, 0))
    with sweep_lock(lock):
        assert is_held(lock)
    (left := tmp_path / "entry.lock").touch()
    os.utime(left, (0, 0))
    assert open_entry(tmp_path / "entry", lambda _: {"built": 1}) == {"built": 1}
