"""Worker processes that make one score after another, so that imports, tasks and encoders are loaded once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from study.base.errors import PREEMPTED_EXIT
from study.executing.processes import log_into, start, start_forkserver, stop_when_orphaned
from study.executing.slots import Slot, rank_environments
from study.scoring.jobs import BaselineJob, Job


@dataclass
class Worker:
    """A process on a slot and the pipe that its jobs come through."""

    slot: Slot
    process: BaseProcess
    pipe: Connection


class Workers:
    """Scores on the slots of this machine; `submit` gives a future of an exit status, as those of study.executing do.

    A worker lives until it is closed or dies; the slot of a dead one gets a new worker with the next job.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._free: list[Worker | Slot] = list(slots)
        self._busy: dict[Future[int], Worker] = {}

    @property
    def free(self) -> int:
        """How many more scores can be submitted now."""
        return len(self._free)

    def submit(self, job: Job | BaselineJob) -> Future[int]:
        """Start a score; the future resolves to 0, to PREEMPTED_EXIT, or to how the worker died."""
        place = next((place for place in self._free if isinstance(place, Worker)), self._free[0])  # a worker costs nothing
        self._free.remove(place)  # a list that is sorted while another thread adds to it loses what that adds
        worker = self._started(place) if isinstance(place, Slot) else place
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        self._busy[future] = worker
        threading.Thread(target=self._wait, args=(future, worker, job), daemon=True).start()
        return future

    def interrupt(self) -> None:
        """Tell every score that is being made to save and stop."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End every worker at once; what they had saved stays."""
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """Let the idle workers end, and wait for them."""
        for worker in [place for place in self._free if isinstance(place, Worker)]:
            worker.pipe.close()
            worker.process.join()
            self._free.remove(worker)

    def _signal(self, number: signal.Signals) -> None:
        for worker in list(self._busy.values()):
            assert worker.process.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.process.pid, number)

    def _started(self, slot: Slot) -> Worker:
        context = start_forkserver(["study.scoring.making"])
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, slot, rank_environments(slot)[0]))
        start(process)
        theirs.close()
        return Worker(slot, process, ours)

    def _wait(self, future: Future[int], worker: Worker, job: Job | BaselineJob) -> None:
        try:
            worker.pipe.send(job)
            status = worker.pipe.recv()
            place: Worker | Slot = worker
            if status == PREEMPTED_EXIT:  # told to stop, it ends
                worker.process.join()
                place = worker.slot
        except (EOFError, OSError):
            worker.process.join()
            status, place = worker.process.exitcode or 1, worker.slot
        del self._busy[future]
        self._free.append(place)
        future.set_result(int(status))


def work(pipe: Connection, slot: Slot, environment: dict[str, str]) -> None:
    """The life of a worker: its own session, a score for each job that comes, its output in the score's log."""
    from threadpoolctl import threadpool_limits

    from study.scoring.making import make_baselines, score
    from study.training.allocation import release_models
    from study.training.stopping import StopSignal

    os.setsid()
    os.environ.update(environment)
    stop = StopSignal()
    threading.Thread(target=stop_when_orphaned, args=(stop.set,), daemon=True).start()
    threadpool_limits(slot.threads, user_api="blas")
    execution = slot.execution(kernels="eager")
    while not stop.received:
        stop.install()
        try:
            job: Job | BaselineJob = pipe.recv()
        except EOFError:
            return
        log_into(job.log_file)
        if isinstance(job, BaselineJob):
            make_baselines(job)
            pipe.send(0)
        else:
            state = score(job, execution, stop)
            pipe.send(PREEMPTED_EXIT if state == "PREEMPTED" else 0)
        release_models(slot.device)
