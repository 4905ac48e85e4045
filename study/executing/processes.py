"""Jobs, the protocol of what executes them, and the processes of a batch on this machine, one for each rank."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from study.base.durable_files import retry_write
from study.base.errors import OOM_EXIT, PREEMPTED_EXIT
from study.base.machine import rest_at_barriers
from study.store.records import Ending
from study.store.work_folder import WorkFolder

if TYPE_CHECKING:
    from study.training.attempts import StopSignal
    from study.training.execution import Execution


@dataclass(frozen=True)
class Job(ABC):
    """Work for a process to do in a folder, such as a run or a score; it is pickled to other machines."""

    folder: WorkFolder

    @property
    def key(self) -> str:
        """The job's name, unique in its sweep."""
        return self.folder.path.name

    @property
    def tokens(self) -> int | None:
        """The number of tokens to train on, None where unknown."""
        return None

    @abstractmethod
    def execute(self, execution: Execution, stop: StopSignal) -> Ending:
        """Do the work in this process and file its record; returns how the attempt ended."""


class Executor(Protocol):
    """Where jobs execute, in the shape of concurrent.futures."""

    @property
    def free(self) -> int:
        """How many more batches can be submitted now."""

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        """Start a batch of jobs in one process; the future resolves to its exit status."""

    def interrupt(self) -> None:
        """Order all jobs to save and stop."""

    def kill(self) -> None:
        """Kill all jobs; what they have saved stays."""


RANK_SECONDS = 60.0
"""How long the other ranks may take to save once one has failed or the first has ended; then they are killed."""

PRELOADED = ("study.training.run", "study.scoring.making", "study.executing.processes")
"""Modules that the forkserver imports once for all jobs."""

_hiding_main = threading.Lock()

_DYING_LOOKS, _DYING_SECONDS = 100, 0.05
"""The looks at a forkserver that answers nobody before a warning, and the seconds between them."""


class JobProcesses:
    """The ranks of a batch of jobs, started on construction, each in its own session."""

    def __init__(self, jobs: Sequence[Job], execution: Execution, environments: Sequence[dict[str, str]]) -> None:
        context = start_forkserver()
        self._processes = []
        self._memory_kills = memory_kills()
        for environment in environments:
            self._processes.append(context.Process(target=run_rank, args=(tuple(jobs), execution, environment)))
            start(self._processes[-1])

    @property
    def pids(self) -> list[int]:
        """The process ids of the ranks in order."""
        return [process.pid for process in self._processes if process.pid is not None]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every living rank."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self) -> int:
        """Return the exit status, negative where a signal ended the process.

        OOM_EXIT stands for SIGKILL where the kernel's OOM killer was active since. Where one rank fails, or the first ends, the
        others are ended.
        """
        waiting, failed = list(self._processes), 0
        while waiting:
            ending = failed or not self._processes[0].is_alive()
            ended = connection.wait([process.sentinel for process in waiting], RANK_SECONDS if ending else None)
            waiting = [process for process in waiting if process.is_alive()]
            failed = failed or next((process.exitcode for process in self._processes if process.exitcode), 0)
            if failed or not ended:
                for process in waiting:
                    process.terminate() if ended else process.kill()
        return OOM_EXIT if failed == -signal.SIGKILL and memory_kills() > self._memory_kills else failed


def start_forkserver() -> multiprocessing.context.ForkServerContext:
    """Start the forkserver of this process's jobs, unless it runs already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    _ensure_forkserver()
    return context


def _ensure_forkserver() -> None:
    """Start the forkserver in a thread: Ctrl-C interrupts only the main thread."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_run_forkserver).result()


def _run_forkserver() -> None:
    """Start the forkserver with SIGINT blocked, until StopSignal unblocks it in a job, and SIGHUP for good.

    Without a handler, Ctrl-C would end it, and a lost terminal would end its jobs.
    """
    rest_at_barriers()
    resource_tracker.ensure_running()  # the forkserver starts it otherwise, and it unblocks SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    forkserver.ensure_running()


@contextlib.contextmanager
def without_main_script() -> Iterator[None]:
    """Keep the script of this process out of those that start meanwhile."""
    with _hiding_main:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def start(process: BaseProcess) -> None:
    """Start a process; where the forkserver was killed before it forked, start a new forkserver.

    Until the kernel has reaped a killed forkserver, no new one starts.
    """
    for _ in range(_DYING_LOOKS):
        try:
            with without_main_script():
                process.start()
            return
        except (EOFError, ConnectionError):
            time.sleep(_DYING_SECONDS)
            _ensure_forkserver()
    with without_main_script():
        process.start()


def run_rank(jobs: Sequence[Job], execution: Execution, environment: dict[str, str]) -> None:
    """Execute jobs as one rank, in its own session; stop when ordered or orphaned."""
    from study.training.attempts import StopSignal

    os.setsid()
    os.environ.update(environment)
    stop = StopSignal()
    stop.install()
    threading.Thread(target=stop_when_orphaned, args=(stop.set,), daemon=True).start()
    sys.exit(execute_here(jobs, execution, stop))


def execute_here(jobs: Sequence[Job], execution: Execution, stop: StopSignal) -> int:
    """Execute jobs one after another, each with its output in its log; return the exit status."""
    from study.training.trainer import rank

    for job in jobs:
        if stop.received:
            return PREEMPTED_EXIT
        retry_write(lambda job=job: log_into(job.folder.log_file))  # type: ignore[misc]
        state = job.execute(execution, stop)
        if state == "PREEMPTED":
            return PREEMPTED_EXIT
        if rank() and state not in ("COMPLETED", "PRUNED"):  # what happened stands in the leader's record
            return 1
    return 0


def log_into(file: Path) -> None:
    """Append what this process prints to a log."""
    file.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def stop_when_orphaned(stop: Callable[[], None]) -> None:
    """Call `stop` once the parent process has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    stop()


def memory_kills() -> int:
    """How many processes the kernel's OOM killer has killed; 0 where unknown."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
