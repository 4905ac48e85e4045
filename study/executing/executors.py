"""The executor and the slots of requested resources, and the executor of this machine."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from study.base.errors import InputError
from study.config.resources import Resources
from study.executing.processes import Executor, Job, JobProcesses
from study.executing.slots import Slot, local_slots, rank_environments
from study.store.sweep_folder import SweepFolder


class LocalExecutor:
    """Executes batches of jobs in processes on the slots of this machine."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._free = list(slots)
        self._running: dict[Future[int], JobProcesses] = {}

    @property
    def free(self) -> int:
        """How many more batches can be submitted now."""
        return len(self._free)

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        """Start a batch on a free slot; the future resolves to the status of `JobProcesses.wait`."""
        slot = self._free.pop(0)
        processes = JobProcesses(jobs, slot.execution(), rank_environments(slot))
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        self._running[future] = processes
        threading.Thread(target=self._wait, args=(future, processes, slot), daemon=True).start()
        return future

    def interrupt(self) -> None:
        """Order every job to save and stop."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill every job; what it has saved stays."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for processes in list(self._running.values()):
            processes.signal(number)

    def _wait(self, future: Future[int], processes: JobProcesses, slot: Slot) -> None:
        status = processes.wait()
        del self._running[future]
        self._free.append(slot)
        future.set_result(status)


def make_slots(resources: Resources, jobs: int | None = None) -> list[Slot]:
    """Return the slots of the requested resources; raises InputError where they are not available.

    On this machine's CPU there are at most `jobs` slots, so that a single job has all cores.
    """
    slots = [replace(slot, kernels=resources.kernels) for slot in _find_slots(resources, jobs)]
    if resources.kernels == "graphed" and any(slot.device == "cpu" or len(slot.indices) > 1 for slot in slots):
        raise InputError.at("--kernels graphed", "runs on a single CUDA device; use compiled, eager or auto")
    if resources.kernels == "onednn" and any(slot.device != "cpu" for slot in slots):
        raise InputError.at("--kernels onednn", "runs on a CPU; add --device cpu, or use auto")
    return slots


def _find_slots(resources: Resources, jobs: int | None) -> list[Slot]:
    if resources.on == "slurm":
        from study.executing.slurm import slurm_slots

        return slurm_slots(resources)
    if resources.on == "ray":
        from study.executing.ray import ray_slots

        return ray_slots(resources)
    slots = local_slots(resources.device, resources.slots_per_device, resources.devices)
    if jobs is None or slots[0].device == "cuda" or resources.slots_per_device is not None:
        return slots
    return local_slots(resources.device, max(1, min(jobs, len(slots))), resources.devices)


def make_executor(resources: Resources, slots: list[Slot], sweep: SweepFolder) -> Executor:
    """Return the executor of a sweep's jobs; raises InputError where an extra or a command is missing."""
    if resources.on == "slurm":
        from study.executing.slurm import SlurmExecutor

        return SlurmExecutor(slots[0], resources.slurm, sweep)
    if resources.on == "ray":
        from study.executing.ray import RayExecutor

        return RayExecutor(slots, resources)
    return LocalExecutor(slots)
