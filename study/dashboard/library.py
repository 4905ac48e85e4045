"""The sweeps of a results folder as last read: whatever has not changed since is not read again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock, Thread
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from study.base.errors import UNREADABLE, InputError
from study.base.machine import garbage_collection_paused
from study.base.text import visible
from study.config.run_config import RunConfig
from study.config.sweep import Sweep
from study.store.ownership import has_owner, is_held
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder, sweeps_in
from study.store.work_folder import newest_values

T = TypeVar("T")

Stamp = tuple[Any, ...]
"""What changes whenever a file or folder does."""

OnOtherText = Callable[[Sweep, Sequence[RunRecord]], str]
"""Says of a sweep's records how many read another text than lies at its path now; only the half that trains can tell."""

KEPT_VALUES = 512
"""The most tables and fits that are kept, those last asked for."""


@dataclass(frozen=True)
class SeenRun:
    """A run as its folder shows it: its record, or without one whether a process trains it in its `home`.

    `state` is that of the record, else `RUNNING`, `WAITING` (a launch holds the sweep) or `STOPPED`; `newest` has the newest
    value of each metric of a run without a record.
    """

    run_id: str
    folder: RunFolder
    home: RunFolder
    config: RunConfig
    record: RunRecord | None
    state: str
    newest: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """The tokens so far."""
        return int(self.newest.get("trainer/tokens", 0)) if self.record is None else self.record.tokens

    @property
    def loss_nats(self) -> float | None:
        """The validation loss so far."""
        return self.newest.get("val/loss") if self.record is None else self.record.loss_nats

    @property
    def changed(self) -> str | None:
        """When the run ended or last logged a row, in ISO 8601."""
        if self.record is not None:
            return self.record.finished_at
        stamp = stamp_of(self.home.metrics_file)
        return None if stamp is None else datetime.fromtimestamp(stamp[0] / 1e9, UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Snapshot:
    """One sweep at one moment; `version` changes if a page of the sweep would.

    `sweep` is None if its file cannot be read. `problems` say what cannot be read; those of runs stand in `unreadable`, too.
    """

    name: str
    folder: SweepFolder
    version: str
    sweep: Sweep | None
    runs: Mapping[str, SeenRun]
    unreadable: Mapping[str, str]
    launched: bool
    problems: tuple[str, ...]

    @property
    def live(self) -> bool:
        """Whether a process works on the sweep."""
        return self.launched or any(run.state == "RUNNING" for run in self.runs.values())

    @property
    def distinguishing(self) -> tuple[str, ...]:
        """The knobs that name its runs, beside shape, rate and seed."""
        return () if self.sweep is None else self.sweep.distinguishing_knobs

    def run(self, run_id: str) -> SeenRun:
        """Return a run by its id; raises InputError for an unknown or unreadable one."""
        if run_id in self.unreadable:
            raise InputError.at(run_id, f"cannot be shown: {self.unreadable[run_id]}")
        if run_id not in self.runs:
            raise InputError.at(run_id or "run", f"is no run of {self.name}")
        return self.runs[run_id]


class Library:
    """The sweeps below a folder; every method may be called from any thread."""

    def __init__(self, root: Path, on_other_text: OnOtherText | None = None) -> None:
        self.root, self._on_other_text = root, on_other_text
        self._lock = RLock()
        self._folders: dict[Path, SweepFolder] = {}
        self._runs: dict[Path, tuple[Stamp, RunConfig, RunRecord | None]] = {}
        self._curves: dict[Path, tuple[Stamp, dict[str, NDArray[np.float64]]]] = {}
        self._values: dict[tuple[Any, ...], tuple[object, Future[Any]]] = {}
        self._ahead: Iterator[Callable[[], object]] = iter(())
        self._makes_ahead = False

    def folders(self) -> dict[str, SweepFolder]:
        """Return the sweeps by name, without characters that hide others; raises InputError without any."""
        with self._lock:  # a folder remembers its sweep file as last read
            return {
                visible(name): self._folders.setdefault(folder.path, folder) for name, folder in sweeps_in(self.root).items()
            }

    def snapshot(self, name: str) -> Snapshot:
        """Return a sweep as it is now; raises InputError for an unknown one."""
        folders = self.folders()
        if name not in folders:
            raise InputError.at(name or "sweep", f"is no sweep in {self.root}")
        return self._snapshot(name, folders[name])

    def snapshots(self) -> list[Snapshot]:
        """All sweeps as they are now."""
        return [self._snapshot(name, folder) for name, folder in self.folders().items()]

    def on_other_text(self, shot: Snapshot) -> str:
        """How many runs of a sweep read another text than its corpus is now, in words; empty for none or if unknown."""
        if shot.sweep is None or self._on_other_text is None:
            return ""
        return self._on_other_text(shot.sweep, [run.record for run in shot.runs.values() if run.record is not None])

    def where(self, run_id: str) -> list[tuple[str, SeenRun]]:
        """Return the sweeps that have a run, with the run."""
        return [(one.name, one.runs[run_id]) for one in self.snapshots() if run_id in one.runs]

    @garbage_collection_paused()
    def curves(self, run: SeenRun) -> dict[str, NDArray[np.float64]]:
        """Every logged metric of a run, one value a logged row, NaN where a row lacks it.

        Raises InputError for a damaged row.
        """
        trained = run.folder if run.folder.holds(run.folder.metrics_file) else run.home
        packed = trained.packed
        stamp = stamp_of(trained.metrics_file) or (None if packed is None else str(packed.path))
        with self._lock:
            before = self._curves.get(trained.path)
        if before is not None and before[0] == (stamp,):
            return before[1]
        rows = list(trained.metrics())
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: np.array([row.get(name, np.nan) for row in rows], dtype=float) for name in names}
        with self._lock:
            self._curves[trained.path] = (stamp,), columns
        return columns

    def kept(self, key: tuple[Any, ...], version: object, make: Callable[[], T]) -> T:
        """Return the value that was made before under this key, or a new one if the version that it stands on has changed.

        Who asks for what another thread is making waits for it.
        """
        with self._lock:
            known, new = self._values.pop(key, None), Future[T]()
            value = new if known is None or known[0] != version else known[1]
            self._values[key] = version, value
            for old in list(self._values)[:-KEPT_VALUES]:
                del self._values[old]
        if value is new:
            try:
                value.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._values.get(key) == (version, value):
                        del self._values[key]
                value.set_exception(error)
        return value.result()

    def make_ahead(self, makers: Iterable[Callable[[], object]]) -> None:
        """Make kept values in one background thread before they are asked for.

        The makers of the last call are those left; each is drawn when its turn comes.
        """
        with self._lock:
            self._ahead = iter(makers)
            if not self._makes_ahead:
                self._makes_ahead = True
                Thread(target=self._make_those_ahead, daemon=True).start()

    def _make_those_ahead(self) -> None:
        while True:
            with self._lock:
                ahead = self._ahead
            with suppress(Exception):  # who asks for it is told
                for make in ahead:
                    with suppress(Exception):
                        make()
                    if ahead is not self._ahead:
                        break
            with self._lock:
                if ahead is self._ahead:
                    self._makes_ahead = False
                    return

    @garbage_collection_paused()
    def _snapshot(self, name: str, folder: SweepFolder) -> Snapshot:
        with self._lock:
            problems: list[str] = []
            held = is_held(folder.launching)
            stamps = self._stamps(folder, problems)
            runs: dict[str, SeenRun] = {}
            unreadable: dict[str, str] = {}
            for path, stamp in stamps.items():
                try:
                    if (seen := self._seen(folder, path, stamp, held)) is not None:
                        runs[visible(seen.run_id)] = seen
                except UNREADABLE as error:
                    unreadable[visible(path.name)] = str(error)
            problems += unreadable.values()
            try:
                sweep: Sweep | None = folder.sweep()
            except UNREADABLE as error:
                sweep = None
                problems.append(str(error))
        files = (
            folder.sweep_file,
            folder.answer_file,
            folder.ledger_file,
            folder.scores_file,
            folder.cells_file,
            folder.goal_file,
        )
        moving = [(run.run_id, run.state, stamp_of(run.home.metrics_file)) for run in runs.values() if run.record is None]
        facts = (*map(stamp_of, files), held, list(stamps.items()), moving, problems)
        version = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        return Snapshot(name, folder, version, sweep, runs, unreadable, held, tuple(problems))

    def _stamps(self, folder: SweepFolder, problems: list[str]) -> dict[Path, Stamp]:
        """Return the runs of a sweep with what changes if one of them does: its folder, or the pack that holds it."""
        try:
            packed = folder.packed
            ids = frozenset[str]() if packed is None else packed.run_ids
            pack = None if packed is None else str(packed.path)
            with os.scandir(folder.runs_folder) as entries:
                stamps = {entry.name: entry.stat().st_mtime_ns for entry in entries if entry.name[0] != "."}
        except FileNotFoundError:
            stamps = {}
        except UNREADABLE as error:
            problems.append(str(error))
            return {}
        names = sorted({*stamps, *ids})
        return {folder.runs_folder / name: (stamps.get(name), pack if name in ids else None) for name in names}

    def _seen(self, folder: SweepFolder, path: Path, stamp: Stamp, held: bool) -> SeenRun | None:
        run = RunFolder(path, folder.packed if stamp[1] is not None else None, bare=stamp[0] is None)
        before = self._runs.get(path)
        if before is None or before[0] != stamp:
            if stamp[1] is None and not run.is_run:
                return None
            record = run.record()
            if record is not None and record.run_id != run.run_id:
                message = f"is of run {record.run_id}, but its folder has another name; rename it, or move it away"
                raise InputError.at(str(run.record_file), message)
            before = self._runs[path] = stamp, run.config() if record is None else record.config, record
        _, config, record = before
        if record is not None:
            return SeenRun(run.run_id, run, run, config, record, record.state, {})
        home = folder.home(run.run_id)
        state = "RUNNING" if has_owner(home) else "WAITING" if held else "STOPPED"
        return SeenRun(run.run_id, run, home, config, None, state, newest_values(home.newest_rows()))


def stamp_of(file: Path) -> tuple[int, int, int] | None:
    """Return the time, size and inode of a file, None if it is missing or out of reach, as reading it says."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
