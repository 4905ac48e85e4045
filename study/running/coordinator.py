"""The one process that owns the work on a sweep: it asks a proposer for jobs, submits them and files the results.

When it stops, the jobs save first. A job that makes progress is always tried again; one whose process keeps failing is given
up.
"""

from __future__ import annotations

import _thread
import math
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import ClassVar, Generic, TypeVar

from study.base.durable_files import content_of, is_there, retry_write
from study.base.errors import GOES_ON, OOM_EXIT, PREEMPTED_EXIT, InputError
from study.base.quantities import plural
from study.base.text import pasted
from study.executing.processes import Executor, Job
from study.store.ownership import Watches, is_held
from study.store.records import RETRIED, RunRecord, State
from study.store.score_records import ScoreRecord
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import newest_values

CRASHES = 3
"""How often a job may crash or run out of memory in one launch without making progress."""

KILLS = 30
"""How often a job may be killed from outside, which is rarely its own fault."""

OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end processes from outside; shells and schedulers report them as 128 plus the number."""

MOST_SAID = 500
"""Characters of a log's last line that a reason quotes at most."""


@dataclass(frozen=True)
class Failure:
    """The final state of a job that could not file a record itself, and the reason."""

    state: State
    reason: str


class RetryPolicy:
    """Counts the failures of each job of one launch since the job last made progress."""

    def __init__(self) -> None:
        self._crashes: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._furthest: dict[str, int] = {}

    def failure(self, job: Job, exit_status: int) -> Failure | None:
        """Count a process that ended without a record; None to try the job again."""
        step, name = steps_of(job), job.key
        if step > self._furthest.get(name, 0):
            self._furthest[name] = step
            del self._crashes[name], self._kills[name]
        starved = exit_status == OOM_EXIT
        killed = exit_status in {code for number in OUTSIDE for code in (-number, 128 + number)}
        tally, limit = (self._kills, KILLS) if killed else (self._crashes, CRASHES)
        tally[name] += 1
        if tally[name] < limit:
            return None
        what = "was killed" if killed or starved else "ended without a record"
        past = f"without getting past step {self._furthest.get(name, 0)}"
        why = "for want of memory" if starved else f"with {how_ended(exit_status, job.folder.log_file)}"
        how = f"{what} {limit} times {past}, the last time {why}"
        log = job.folder.log_file
        where = log.name if log.parent == job.folder.path else log  # beside the record the name is enough
        return Failure("OOM" if starved else "FAILED", f"its process {how}; see {where}")


def steps_of(job: Job) -> int:
    """Return the newest step that a job has logged, 0 without one."""
    return int(newest_values(job.folder.newest_rows()).get("trainer/step", 0))


def how_ended(exit_status: int, log: Path) -> str:
    """Return a description of an exit status, which is negative where a signal ended the process.

    Python's status for an error comes with the log's last line.
    """
    if exit_status == 1 and (why := _last_line(log)):
        return f"exit status 1 ({why})"
    if exit_status >= 0:
        return f"exit status {exit_status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"signal {names.get(-exit_status, -exit_status)}"


def _last_line(log: Path) -> str:
    lines = (content_of(log) or b"").decode(errors="replace").splitlines()
    return next((line.strip()[:MOST_SAID] for line in reversed(lines) if line.strip()), "")


LOOK_SECONDS = 1.0
"""How often the coordinator checks jobs that other processes hold."""

JobT = TypeVar("JobT", bound=Job)
RecordT = TypeVar("RecordT")

SAVE_SECONDS = 60.0
"""How long jobs may take to save when stopped."""

ORDER_SECONDS = 0.2
"""How often the order to stop is looked for before there are jobs."""


class Proposer(ABC, Generic[JobT, RecordT]):
    """The jobs of a sweep, its runs or its scores, and what happens when each ends."""

    noun: ClassVar[str]
    """What a job is called."""
    expected: int = 0
    """How many jobs are expected in all, 0 where that is unknown."""
    witness: Path
    """A file that exists as long as the sweep's folder does."""
    there: Mapping[str, RecordT]
    """Records of jobs that ended before, by key."""
    left_failed: str = ""
    """How many of these records failed, in words (`left_failed`)."""
    waiting: int = 0
    """How many known jobs remained beyond those last proposed."""
    exhausted: str | None = None
    """Why fewer jobs are wanted than the sweep file says, None while that is not so."""

    @abstractmethod
    def wanted(self, busy: Collection[JobT], free: int) -> Sequence[Sequence[JobT]]:
        """Return at most `free` batches of jobs to start now, the most urgent first."""

    def begin(self, job: JobT) -> None:
        """Prepare a job that is about to start."""

    @abstractmethod
    def take(self, job: JobT) -> RecordT | None:
        """Return and note the record of a job, if any."""

    @abstractmethod
    def give_up(self, job: JobT, failure: Failure) -> None:
        """File a job that is not tried again."""

    @abstractmethod
    def label(self, job: JobT) -> str:
        """Return a short name for people."""

    @abstractmethod
    def line(self, job: JobT, record: RecordT) -> str | None:
        """Return the result of a job in one line, if it is worth one."""

    def look(self, running: Collection[JobT]) -> None:
        """Look at the running jobs, about twice a second."""

    def tidy(self) -> None:
        """Clean up when nothing is left to do."""


def left_failed(records: Iterable[RunRecord | ScoreRecord], sweep: SweepFolder) -> str:
    """Return how many records wait for a retry, in words that follow the number of all."""
    failed = sum(record.state in RETRIED for record in records)
    return f", of which {failed:,} failed; to try again: study retry {pasted(sweep.path)}" if failed else ""


@dataclass
class Progress(Generic[JobT, RecordT]):
    """What a coordinator has done and is doing, for a display."""

    ended: dict[str, RecordT]
    news: list[tuple[JobT, RecordT]] = field(default_factory=list)
    """Jobs that ended since the start, in order."""
    running: dict[str, JobT] = field(default_factory=dict)
    held: dict[str, tuple[JobT, str]] = field(default_factory=dict)
    """Jobs that other processes work on, and who they are."""
    waiting: int = 0


class Coordinator(Generic[JobT, RecordT]):
    """Executes the jobs that a proposer wants; `progress` can be read at any time."""

    def __init__(self, folder: SweepFolder, proposer: Proposer[JobT, RecordT]) -> None:
        self.folder, self.proposer = folder, proposer
        self.progress = Progress[JobT, RecordT](dict(proposer.there))
        self._retries, self._watches = RetryPolicy(), Watches()
        self._batches: dict[Future[int], list[JobT]] = {}
        self._over: SimpleQueue[Future[int]] = SimpleQueue()
        self._looked = -math.inf

    def run(self, executor: Executor, refresh: Callable[[Progress[JobT, RecordT]], None], refresh_seconds: float = 0.5) -> None:
        """Do all that is wanted; when interrupted or stopped let the jobs save, and raise KeyboardInterrupt."""
        shown, over = -math.inf, False
        with interrupted():
            try:
                while not over:
                    if self._is_to_stop():
                        raise KeyboardInterrupt
                    require_folder(self.folder.path, self.proposer.witness)
                    self._submit(executor)
                    over = not self._batches and not self.progress.held
                    if over or time.monotonic() - shown > refresh_seconds:
                        self._look()
                        refresh(self.progress)
                        shown = time.monotonic()
                    for future in () if over else _taken(self._over, refresh_seconds):
                        self._ended(self._batches.pop(future), future.result())
                self.proposer.tidy()
            except BaseException as error:  # whatever it is: jobs that were left alone would keep this process from ending
                self._stop(executor)
                if isinstance(error, KeyboardInterrupt):
                    raise KeyboardInterrupt(GOES_ON) from None
                if isinstance(error, OSError):
                    message = f"the sweep had to stop: {error}; {GOES_ON}"
                    raise InputError.at(str(self.folder.path), message) from error
                raise

    def _is_to_stop(self) -> bool:
        """Whether `study stop` was called; one order stops the launch and the scoring."""
        return any(is_there(lock.stop_file) and is_held(lock) for lock in (self.folder.launching, self.folder.scoring))

    def _stop(self, executor: Executor) -> None:
        save_and_stop(executor, self._batches)
        if is_there(self.proposer.witness):
            for batch in self._batches.values():
                self._ended(batch, PREEMPTED_EXIT)
        self._batches.clear()
        self.progress.running.clear()

    def _submit(self, executor: Executor) -> None:
        """Start wanted jobs on free slots, without those that others ended or hold."""
        self._look_at_held()
        while free := executor.free:
            if not (proposed := self.proposer.wanted(self._busy(), free)):
                break
            for batch in proposed:
                if startable := [job for job in batch if self._is_to_start(job)]:
                    future = executor.submit(tuple(startable))
                    self._batches[future] = startable
                    future.add_done_callback(self._over.put)

    def _busy(self) -> list[JobT]:
        return [job for batch in self._batches.values() for job in batch] + [job for job, _ in self.progress.held.values()]

    def _is_to_start(self, job: JobT) -> bool:
        if self._take(job):
            return False
        if (who := self._holder(job)) is not None:
            self.progress.held[job.key] = job, who
            return False
        self.proposer.begin(job)
        return True

    def _holder(self, job: JobT) -> str | None:
        who = self._watches.holder(job.folder)
        if who is None or job.folder.path.is_relative_to(self.folder.path.resolve()):
            return who
        return f"the sweep {job.folder.path.parent.parent.name!r}, {who}"

    def _look_at_held(self) -> None:
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        for key, (job, _) in list(self.progress.held.items()):
            if self._take(job) or self._holder(job) is None:
                del self.progress.held[key]

    def _look(self) -> None:
        """Take the records of each batch so far: its first unfinished job is running, the others wait."""
        for batch in self._batches.values():
            while len(batch) > 1 and self._take(batch[0]):
                batch.pop(0)
        self.progress.running = {batch[0].key: batch[0] for batch in self._batches.values()}
        self.progress.waiting = self.proposer.waiting + sum(len(batch) - 1 for batch in self._batches.values())
        self.proposer.look(self.progress.running.values())

    def _ended(self, batch: Sequence[JobT], exit_status: int) -> None:
        """File a batch; the job that its process failed on may be retried."""
        rest = [job for job in batch if not self._take(job)]
        if rest and exit_status != PREEMPTED_EXIT and (failure := self._retries.failure(rest[0], exit_status)) is not None:
            self.proposer.give_up(rest[0], failure)
            self._take(rest[0])

    def _take(self, job: JobT) -> bool:
        if (record := self.proposer.take(job)) is None:
            return False
        self.progress.ended[job.key] = record
        self.progress.news.append((job, record))
        return True


def _taken(over: SimpleQueue[Future[int]], seconds: float) -> Iterator[Future[int]]:
    """Yield finished futures, once there is one or the time is over."""
    with suppress(Empty):
        yield over.get(timeout=seconds)
        while True:
            yield over.get_nowait()


@contextmanager
def interrupted() -> Iterator[None]:
    """Let SIGTERM, and a lost terminal unless under nohup, interrupt the block as Ctrl-C does."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = (signal.SIGTERM, signal.SIGHUP) if hangs_up else (signal.SIGTERM,)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def preparing(order: Path) -> Iterator[None]:
    """Let the stop file interrupt the block as Ctrl-C does, while there is nothing to save."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(ORDER_SECONDS):
            if is_there(order):
                _thread.interrupt_main()
                return

    watcher = threading.Thread(target=look, daemon=True, name="orders")
    try:
        with interrupted():
            watcher.start()
            try:
                yield
            finally:
                over.set()
                watcher.join()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(GOES_ON) from None


def require_folder(folder: Path, file: Path) -> None:
    """Raise InputError where a folder was moved or removed."""
    try:
        retry_write(file.stat)
    except OSError as error:
        message = f"was moved or removed ({file}: {error.strerror}); bring it back, and {GOES_ON}"
        raise InputError.at(str(folder), message) from None


def save_and_stop(executor: Executor, futures: Collection[Future[int]]) -> None:
    """Let all submitted jobs save and end; end those that take too long."""
    unsaved = set(futures)
    if unsaved:
        waits = f"waiting up to {SAVE_SECONDS:.0f} s for {plural(len(unsaved), 'job')} to save"
        with suppress(OSError):  # of a terminal that is gone
            sys.stderr.write(f"stopping: {waits}; press Ctrl-C again to end now, at the last checkpoint\n")
    try:
        executor.interrupt()
        unsaved = wait(unsaved, SAVE_SECONDS).not_done
    except KeyboardInterrupt:
        pass
    executor.kill()
    wait(unsaved, SAVE_SECONDS)  # not for ever: a Slurm that does not answer tells nobody how its jobs ended
