"""The local executor: every batch of jobs on a slot of this machine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from study.executing.job import Job
from study.executing.processes import JobProcesses
from study.executing.slots import Slot, rank_environments


class LocalExecutor:
    """Jobs on the slots of this machine; `submit` gives a future of the exit status, as concurrent.futures would."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._free = list(slots)
        self._running: dict[Future[int], JobProcesses] = {}

    @property
    def free(self) -> int:
        """How many more batches can be submitted now."""
        return len(self._free)

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        """Start a batch on a free slot; the future resolves to what `JobProcesses.wait` gives."""
        slot = self._free.pop(0)
        processes = JobProcesses(jobs, slot.execution(), rank_environments(slot))
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        self._running[future] = processes
        threading.Thread(target=self._wait, args=(future, processes, slot), daemon=True).start()
        return future

    def interrupt(self) -> None:
        """Tell every job to save and stop."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End every job at once; what they had saved stays."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for processes in list(self._running.values()):
            processes.signal(number)

    def _wait(self, future: Future[int], processes: JobProcesses, slot: Slot) -> None:
        status = processes.wait()
        del self._running[future]
        self._free.append(slot)
        future.set_result(status)
