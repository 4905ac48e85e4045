"""The local executor: a process per run in its own session, from a forkserver that has torch and Lightning loaded."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from study.config import RunConfig
from study.errors import PREEMPTED_EXIT, InputError
from study.records import patiently

if TYPE_CHECKING:
    from study.training.execution import Execution


RANK_SECONDS = 60.0
"""How long the ranks of a run that has lost one may take to save and stop before they are killed: they may wait for it."""


@dataclass(frozen=True)
class Slot:
    """Room for one run at a time: the devices it may use and the CPU threads of each of its processes."""

    device: Literal["cpu", "cuda"]
    indices: tuple[int, ...]
    threads: int


def local_slots(device: Literal["auto", "cpu", "cuda"], slots_per_device: int | None, devices_per_run: int) -> list[Slot]:
    """The slots of this machine.

    On CUDA each group of `devices_per_run` GPUs has `slots_per_device` slots, by default one. The CPU counts as one device,
    by default with a slot for every `devices_per_run` cores, since small encoders gain little from a second thread.
    Raises InputError where the machine has not enough of what is asked for.
    """
    cores = len(os.sched_getaffinity(0))
    gpus = 0 if device == "cpu" else _gpu_count()
    if gpus < devices_per_run and (gpus or device == "cuda"):
        place = "--device cuda" if device == "cuda" else "--devices"
        raise InputError.at(place, f"{devices_per_run} GPUs a run were asked for, torch sees {gpus} here")
    if gpus >= devices_per_run and gpus:
        groups = [
            tuple(range(first, first + devices_per_run)) for first in range(0, gpus - devices_per_run + 1, devices_per_run)
        ]
        count = (slots_per_device or 1) * len(groups)
        threads = max(1, cores // (count * devices_per_run))
        return [Slot("cuda", group, threads) for _ in range(slots_per_device or 1) for group in groups]
    count = slots_per_device or max(1, cores // devices_per_run)
    threads = max(1, cores // (count * devices_per_run))
    return [Slot("cpu", tuple(range(devices_per_run)), threads)] * count


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


class LocalExecutor:
    """Runs on the slots of this machine; `submit` gives a future of the exit status, as concurrent.futures would."""

    def __init__(self, slots: Sequence[Slot], sweep: str) -> None:
        self.sweep, self._free = sweep, list(slots)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["study.training.run"])
        self._running: dict[Future[int], list[BaseProcess]] = {}
        resource_tracker.ensure_running()  # the forkserver starts it otherwise, and it unblocks SIGINT
        with sigint_blocked():  # while it imports, the forkserver has no handler yet, and Ctrl-C would end it
            forkserver.ensure_running()

    @property
    def free(self) -> int:
        """How many more runs can be submitted now."""
        return len(self._free)

    def submit(self, config: RunConfig, folder: Path) -> Future[int]:
        """Start a run on a free slot; the future resolves to its exit status, negative where a signal killed it."""
        from study.training.execution import Execution

        slot = self._free.pop(0)
        execution = Execution(slot.device, len(slot.indices), slot.threads)
        processes = []
        for environment in rank_environments(slot):
            arguments = (config, folder, self.sweep, execution, environment)
            processes.append(self._context.Process(target=run_process, args=arguments))
            processes[-1].start()
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        self._running[future] = list(processes)
        threading.Thread(target=self._wait, args=(future, slot), daemon=True).start()
        return future

    def interrupt(self) -> None:
        """Tell every run to save and stop."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End every run at once; what they had saved stays."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for processes in list(self._running.values()):
            for process in processes:
                assert process.pid is not None
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def _wait(self, future: Future[int], slot: Slot) -> None:
        """Wait for the ranks of a run; where one dies the others, which would wait for it, are ended."""
        processes = self._running[future]
        waiting, failed = list(processes), 0
        while waiting:
            ended = connection.wait([process.sentinel for process in waiting], RANK_SECONDS if failed else None)
            waiting = [process for process in waiting if process.is_alive()]
            failed = failed or next((process.exitcode for process in processes if process.exitcode), 0)
            if failed:
                for process in waiting:
                    process.terminate() if ended else process.kill()
        del self._running[future]
        self._free.append(slot)
        future.set_result(failed)


def run_process(config: RunConfig, path: Path, sweep: str, execution: Execution, environment: dict[str, str]) -> None:
    """The life of one run's process: its own session, its output in the run's log, stopping when told or orphaned."""
    from study.records import RunFolder
    from study.training.callbacks import StopSignal
    from study.training.run import train
    from study.training.trainer import rank

    os.setsid()
    os.environ.update(environment)
    folder = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    log = patiently(lambda: os.open(folder.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
    os.dup2(log, 1)
    os.dup2(log, 2)
    stop = StopSignal()
    stop.install()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=stop_when_orphaned, args=(stop.set,), daemon=True).start()
    state = train(config, folder, sweep, execution, stop)
    if state == "PREEMPTED":
        sys.exit(PREEMPTED_EXIT)
    sys.exit(
        1 if rank() > 0 and state not in ("COMPLETED", "PRUNED") else 0
    )  # the leader's record says what happened, another rank's exit


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """Within, Ctrl-C waits, and what is started ignores it until it unblocks it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def stop_when_orphaned(stop: Callable[[], None]) -> None:
    """Wait for the process that started this one to end, and then call `stop`."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    stop()


def rank_environments(slot: Slot) -> list[dict[str, str]]:
    """The variables of each rank, torchrun's names; a run on one device needs none but its GPU."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = [visible[index] if visible else str(index) for index in slot.indices]
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(names)} if slot.device == "cuda" else {}
    if len(slot.indices) == 1:
        return [gpus]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = gpus | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [shared | {"LOCAL_RANK": str(rank)} for rank in range(len(slot.indices))]
