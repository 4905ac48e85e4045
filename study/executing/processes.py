"""The processes of a batch of jobs on this machine, one a rank, from a forkserver that has torch and Lightning loaded."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from study.base.durable_files import retry_write
from study.base.errors import OOM_EXIT, PREEMPTED_EXIT
from study.base.machine import rest_at_barriers
from study.executing.job import Job

if TYPE_CHECKING:
    from study.training.execution import Execution
    from study.training.stopping import StopSignal

RANK_SECONDS = 60.0
"""How long the ranks of a job that has lost one, or whose first has ended, may take to save and stop before they are killed."""

PRELOADED = ("__main__", "study.training.run", "study.scoring.making", "study.executing.processes")
"""What the forkserver imports once for all jobs; each would import the main script again without its name here."""

_DYING_LOOKS, _DYING_SECONDS = 100, 0.05
"""How often, and how far apart, a forkserver that answers nobody is looked at before that is told."""


class JobProcesses:
    """The ranks of a batch of jobs, started on construction, each in a session of its own."""

    def __init__(self, jobs: Sequence[Job], execution: Execution, environments: Sequence[dict[str, str]]) -> None:
        context = start_forkserver()
        self._processes = []
        self._memory_kills = memory_kills()
        for environment in environments:
            self._processes.append(context.Process(target=run_rank, args=(tuple(jobs), execution, environment)))
            start(self._processes[-1])

    @property
    def pids(self) -> list[int]:
        """The process ids of the ranks, the first one's first."""
        return [process.pid for process in self._processes if process.pid is not None]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every rank that lives."""
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self) -> int:
        """The exit status, negative where a signal killed it.

        OOM_EXIT stands for SIGKILL where the kernel has killed for want of memory since the processes were started.
        Where one rank dies the others, which wait for it, are ended; so are those that the first one leaves behind.
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
    """Start the forkserver that every job of this process comes from, unless it runs already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    _ensure_forkserver()
    return context


def _ensure_forkserver() -> None:
    """Start the forkserver in a thread, since Ctrl-C interrupts the main one: who is half started would say so."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(_run_forkserver).result()


def _run_forkserver() -> None:
    """Start the forkserver with SIGINT blocked, which lasts there until StopSignal lets it through in a job.

    While it imports it has no handler yet, and Ctrl-C would end it.
    """
    rest_at_barriers()
    resource_tracker.ensure_running()  # the forkserver starts it otherwise, and it unblocks SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    forkserver.ensure_running()


def start(process: BaseProcess) -> None:
    """Start a process of the forkserver; where somebody kills that before it has forked, of a new one.

    A killed one answers nobody, but is there until the kernel is done with it, and so long no new one is started.
    """
    for _ in range(_DYING_LOOKS):
        try:
            process.start()
            return
        except (EOFError, ConnectionError):
            time.sleep(_DYING_SECONDS)
            _ensure_forkserver()
    process.start()


def run_rank(jobs: Sequence[Job], execution: Execution, environment: dict[str, str]) -> None:
    """The life of one rank's process: its own session, stopping when told or orphaned."""
    from study.training.stopping import StopSignal

    os.setsid()
    os.environ.update(environment)
    stop = StopSignal()
    stop.install()
    threading.Thread(target=stop_when_orphaned, args=(stop.set,), daemon=True).start()
    sys.exit(execute_here(jobs, execution, stop))


def execute_here(jobs: Sequence[Job], execution: Execution, stop: StopSignal) -> int:
    """Make jobs one after another in this process, each with its output in its log; the exit status."""
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
    """Send what this process prints into a log, at its end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def stop_when_orphaned(stop: Callable[[], None]) -> None:
    """Wait for the process that started this one to end, and then call `stop`."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    stop()


def memory_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
