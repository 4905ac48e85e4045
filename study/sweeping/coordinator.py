"""The one process that owns a sweep: it asks what to run next, submits it, and files what became of it."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import yaml
from filelock import FileLock, Timeout

from study.config import RunConfig
from study.errors import PREEMPTED_EXIT, InputError
from study.records import RunFolder, RunRecord, SweepFolder, cell_of, counts_of, write_atomically
from study.sweeping.plan import cells, key_of
from study.sweeping.proposing import CellProposer
from study.sweeping.spec import SweepSpec
from study.sweeping.trunks import Trunks

ATTEMPTS = 3
"""How often the process of a run may die without a record in one launch before the run is filed as FAILED."""

LOCK_SECONDS = 1.0
"""How long a launcher tries to get the sweep's lock, which `study status` holds for an instant to see whether it is free."""

SAVE_SECONDS = 60.0
"""How long a stopping sweep waits for its runs to save."""


class Executor(Protocol):
    """Where runs execute; the shape of concurrent.futures."""

    @property
    def free(self) -> int:
        """How many more runs can be submitted now."""

    def submit(self, config: RunConfig, folder: Path) -> Future[int]:
        """Start a run; the future resolves to its exit status."""

    def interrupt(self) -> None:
        """Tell every run to save and stop."""

    def kill(self) -> None:
        """End every run at once."""


class Proposer(Protocol):
    """What a sweep wants to run next, given the records there are."""

    @property
    def waiting(self) -> int:
        """How many runs it already knows that it will want beyond those it has given."""

    def wanted(self, records: Mapping[str, RunRecord], running: Collection[str], free: int) -> list[RunConfig]:
        """At most `free` runs to start now, by `key_of` neither ended nor running, those to start first first."""

    def tell(self, record: RunRecord) -> None:
        """A run has ended."""


@dataclass
class Progress:
    """What a coordinator has done and is doing, for whoever shows it."""

    ended: dict[str, RunRecord] = field(default_factory=dict)
    running: dict[str, RunConfig] = field(default_factory=dict)
    waiting: int = 0


@contextmanager
def held(folder: SweepFolder) -> Iterator[None]:
    """Hold the sweep's lock; raises InputError naming the holder where another launcher has it."""
    lock = FileLock(folder.lock_file, timeout=LOCK_SECONDS)
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        holder = json.loads(folder.holder_file.read_bytes()) if folder.holder_file.exists() else {}
        who = f"process {holder.get('pid', '?')} on {holder.get('hostname', '?')} since {holder.get('since', '?')}"
        raise InputError.at(str(folder.path), f"is being run by {who}; wait for it, or stop it with Ctrl-C there") from None
    except OSError as error:
        remedy = "give another folder with --results"
        raise InputError.at(str(folder.path), f"cannot be written: {error.strerror}; {remedy}") from None
    try:
        holder = {"pid": os.getpid(), "hostname": platform.node(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
        write_atomically(folder.holder_file, json.dumps(holder).encode())
        yield
        folder.holder_file.unlink()
    finally:
        lock.release()


class Coordinator:
    """Drives one sweep to its end; `progress` can be read at any time."""

    def __init__(self, spec: SweepSpec, values: dict[str, Any], folder: SweepFolder, data_fingerprint: str) -> None:
        self.spec, self.folder, self.data_fingerprint = spec, folder, data_fingerprint
        self.progress = Progress()
        self._deaths: Counter[str] = Counter()
        planned = [] if spec.search is not None else cells(spec)
        folder.path.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        write_atomically(folder.sweep_file, text.encode())
        names = {cell_of(cell.config, tuple(spec.tune), data_fingerprint) for cell in planned}
        write_atomically(folder.cells_file, json.dumps(sorted(names), indent=1).encode())
        begun = self._load()
        self.trunks = Trunks(planned, self._run_folder)
        self.proposer = self._search(begun) if spec.search is not None else CellProposer(planned, self.trunks)

    def _load(self) -> list[RunConfig]:
        """Read the records, and return the runs that were begun but have none."""
        begun = []
        for run in self.folder.runs():
            record = run.record()
            config = run.config() if record is None else record.config  # its YAML takes thirty times as long to read
            if config.fingerprint(self.data_fingerprint) != run.run_id:
                continue
            if record is None:
                begun.append(config)
            else:
                self.progress.ended[key_of(config)] = record
        return begun

    def _search(self, begun: list[RunConfig]) -> Proposer:
        from study.sweeping.search import OptunaSearch

        search = OptunaSearch(self.spec)
        search.restore(self.progress.ended.values(), begun)
        return search

    def run(self, executor: Executor, refresh: Callable[[Progress], None], refresh_seconds: float = 0.5) -> None:
        """Run all that the sweep wants; on Ctrl-C or SIGTERM let the runs save, and raise KeyboardInterrupt."""
        futures: dict[Future[int], RunConfig] = {}
        ended: SimpleQueue[Future[int]] = SimpleQueue()
        shown = -math.inf
        with _sigterm_interrupts():
            try:
                while True:
                    self._submit(executor, futures, ended)
                    if not futures or time.monotonic() - shown > refresh_seconds:
                        refresh(self.progress)
                        shown = time.monotonic()
                    if not futures:
                        self.trunks.tidy(self.progress.ended.values())
                        return
                    for future in _taken(ended, refresh_seconds):
                        self._ended(futures.pop(future), future.result())
            except KeyboardInterrupt:
                executor.interrupt()
                unsaved = wait(futures, SAVE_SECONDS).not_done
                executor.kill()
                wait(unsaved)
                for config in futures.values():
                    self._ended(config, PREEMPTED_EXIT)
                raise

    def _submit(self, executor: Executor, futures: dict[Future[int], RunConfig], ended: SimpleQueue[Future[int]]) -> None:
        for config in self.proposer.wanted(self.progress.ended, self.progress.running, executor.free):
            run = self._run_folder(config)
            run.write_config(config)
            self.trunks.begin(config, self.progress.ended)
            self.progress.running[key_of(config)] = config
            future = executor.submit(config, run.path)
            futures[future] = config
            future.add_done_callback(ended.put)
        self.progress.waiting = self.proposer.waiting

    def _ended(self, config: RunConfig, exit_status: int) -> None:
        """File what became of a run; one whose process died without a record is tried again, but not for ever."""
        key, run = key_of(config), self._run_folder(config)
        del self.progress.running[key]
        record = run.record()
        if record is None and exit_status != PREEMPTED_EXIT:
            self._deaths[key] += 1
            if self._deaths[key] >= ATTEMPTS:
                run.file_record(self._lost(config, run, exit_status))
                record = run.record()
        if record is not None:
            self.progress.ended[key] = record
            self.proposer.tell(record)
            self.trunks.ended(config, self.progress.ended)

    def _lost(self, config: RunConfig, run: RunFolder, exit_status: int) -> RunRecord:
        """The record of a run whose process died, as often as it was tried, before it could file one."""
        how = f"signal {signal.Signals(-exit_status).name}" if exit_status < 0 else f"exit status {exit_status}"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        steps = max((row["trainer/step"] for row in run.metrics()), default=0)
        return RunRecord(
            run_id=run.run_id,
            sweep=self.spec.name,
            state="FAILED",
            reason=f"its process ended without a record {ATTEMPTS} times, the last time with {how}; see {run.log_file.name}",
            config=config,
            data_fingerprint=self.data_fingerprint,
            steps=steps,
            tokens=steps * config.recipe.batch_tokens,
            attempts=run.attempts(),
            started_at=now,
            finished_at=now,
            **counts_of(config, steps) | run.spent(steps * config.recipe.batch_tokens, config.recipe.batch_tokens),
        )

    def _run_folder(self, config: RunConfig) -> RunFolder:
        return self.folder.run(config.fingerprint(self.data_fingerprint))


def _taken(ended: SimpleQueue[Future[int]], seconds: float) -> Iterator[Future[int]]:
    """The futures that are done, once one is or the seconds are over."""
    with suppress(Empty):
        yield ended.get(timeout=seconds)
        while True:
            yield ended.get_nowait()


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Within, SIGTERM stops a sweep as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
