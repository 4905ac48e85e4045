"""The `study` command in processes of its own, as a person at a terminal starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from tests.waiting import until

STUDY = Path(sys.executable).with_name("study")
TIMINGS = ("perf/tokens_per_second",)


def until_in(launcher: subprocess.Popen[str], condition: Callable[[], bool], seconds: float) -> None:
    """Wait until something is so while a launcher runs; fails with what it said where it ends before."""
    until(lambda: launcher.poll() is not None or condition(), seconds)
    assert launcher.poll() is None, "".join(launcher.communicate())


def _heed_ctrl_c() -> None:
    """Undo what a shell does to a job in its background, whose children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Place:
    """A folder with a sweep file and its results, and what to call there; its processes carry its path in their environment."""

    def __init__(self, path: Path, **environment: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.folder = SweepFolder(path / "results" / "toy")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        self.environment = kept | {"WANDB_MODE": "offline", "HOME": str(path), "STUDY_TEST_PLACE": str(path)} | environment

    def study(self, *arguments: object, status: int | None = 0, seconds: float = 150) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; fails where it exits with another status or shows a traceback."""
        done = subprocess.run(
            [STUDY, *map(str, arguments)], cwd=self.path, env=self.environment, capture_output=True, text=True, timeout=seconds
        )
        assert status is None or done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return done

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a command as a terminal would: the leader of a process group, and Ctrl-C not ignored."""
        return subprocess.Popen(
            [STUDY, *map(str, arguments)],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_heed_ctrl_c,
        )

    def processes(self) -> list[int]:
        """The processes that were started here and still live."""
        mark, actual = f"STUDY_TEST_PLACE={self.path}\0".encode(), []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if is_alive(entry) and mark in (entry / "environ").read_bytes() + b"\0":
                    actual.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it ended while it was looked at, or is another user's
        return actual

    def is_training(self) -> bool:
        """Whether some run is between its first rows and its record."""
        return any(has_rows(run) and not run.record_file.exists() for run in self.folder.runs())

    def kill_mirror(self) -> None:
        """SIGKILL the process that mirrors the sweep."""
        (pid,) = [pid for pid in self.processes() if b"study.tracking.mirror" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(pid, signal.SIGKILL)


def is_alive(process: Path) -> bool:
    """Whether a process, given as its folder in /proc, has not ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def has_rows(run: RunFolder) -> bool:
    """Whether a run has logged something."""
    return run.metrics_file.exists() and run.metrics_file.stat().st_size > 200


def numbers(folder: SweepFolder) -> dict[str, list[dict[str, Any]]]:
    """Every row of every run without timings, and the final loss as a row more."""
    actual = {}
    for run in folder.runs():
        record = run.record()
        assert record is not None
        rows = [{key: value for key, value in row.items() if key not in TIMINGS} for row in run.metrics()]
        actual[run.run_id] = [*rows, {"loss_nats": record.loss_nats, "state": record.state}]
    return actual


def written(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The content of some files and folders below a folder."""
    files = [path for name in names for path in ([folder / name] if (folder / name).is_file() else (folder / name).rglob("*"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files) if path.is_file()}
