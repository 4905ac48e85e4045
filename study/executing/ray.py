"""The Ray executor: one task for each batch of jobs, on a running cluster or one started here."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from study.base.errors import OOM_EXIT, PREEMPTED_EXIT, InputError
from study.base.machine import WAITING
from study.config.resources import Resources
from study.executing.processes import Job, JobProcesses
from study.executing.slots import MPS_PORTION, Slot, rank_environments
from study.store.ownership import HUNG_AFTER

FORWARDED = ("STUDY_CACHE", HUNG_AFTER, "OMP_NUM_THREADS", *WAITING, MPS_PORTION, "HF_HUB_OFFLINE", "HF_HOME")
"""Environment variables that jobs need on every node."""

ANSWER_SECONDS = 10.0
"""How long a cluster may take to answer."""

POLL_SECONDS = 0.5
"""How often a worker checks whether it was cancelled."""


def connect(address: str | None) -> Any:
    """Ray, connected to the cluster at `address` or RAY_ADDRESS, else to one started here for this launch.

    Ray's servers listen on all interfaces even with a loopback address, so a cluster started here requires a token that only
    this process and its children have. Raises InputError where Ray is not installed or a cluster does not answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS")
    if not address:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
        os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by Ray's default, with which runs starve beside anything else
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError.at("--on ray", "needs Ray: pip install 'scaling-study[ray]'") from None
    if ray.is_initialized():
        return ray
    if address:
        _check_that_one_answers(address)
    options: dict[str, Any] = {"address": address} if address else {"address": "local", "include_dashboard": False}
    try:
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # ray.init raises that itself, of no narrower class, where a node does not start in time
        where = f"the cluster at {address} does not answer" if address else "no cluster could be started here"
        raise InputError.at("--on ray", f"{where}: {' '.join(str(error).split())}") from None
    return ray


def _check_that_one_answers(address: str) -> None:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return  # `auto` and the like, which Ray looks up
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        said = error.strerror or str(error)
        raise InputError.at("--on ray", f"the cluster at {address} does not answer: {said}; does it run there?") from None


def needs(resources: Resources, device: str) -> dict[str, float]:
    """Return the resources of one job by Ray's names; jobs that share a GPU take a fraction each."""
    ranks = resources.devices
    if device == "cpu":
        return {"CPU": float(ranks * resources.ray.cpus)}
    gpus = ranks / (resources.slots_per_device or 1)
    return {"CPU": float(ranks * resources.ray.cpus), "GPU": gpus}


def ray_slots(resources: Resources) -> list[Slot]:
    """As many slots as the nodes can hold, or as `runs` says; `auto` is CUDA where a node has GPUs.

    Raises InputError where no node can hold one job.
    """
    options, ray = resources.ray, connect(resources.ray.address)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    device = resources.device
    if device == "auto":
        device = "cuda" if any(node.get("GPU") for node in nodes) else "cpu"
    needed = needs(resources, device)
    room = sum(min(int(node.get(name, 0) / amount + 1e-9) for name, amount in needed.items()) for node in nodes)
    if not room and not options.runs:
        requested = " and ".join(f"{amount:g} {name}" for name, amount in needed.items())
        raise InputError.at(
            "--on ray", f"no node of the cluster has {requested}, which a run needs; if nodes join later, set ray.runs"
        )
    sharing = resources.slots_per_device or 1 if device == "cuda" else 1
    return [Slot(device, tuple(range(resources.devices)), options.cpus, sharing)] * (options.runs or room)


class RayExecutor:
    """Executes batches as Ray tasks without Ray's retries; the coordinator decides on those."""

    def __init__(self, slots: list[Slot], resources: Resources) -> None:
        self.slot, self.slots = slots[0], len(slots)
        self._ray = connect(resources.ray.address)
        needed = needs(resources, self.slot.device)
        self._task = self._ray.remote(execute_on_ray).options(
            num_cpus=needed["CPU"], num_gpus=needed.get("GPU", 0), max_retries=0
        )
        self._running: dict[Future[int], Any] = {}
        self._variables = {name: os.environ[name] for name in FORWARDED if name in os.environ}

    @property
    def free(self) -> int:
        """How many more batches can be submitted now."""
        return self.slots - len(self._running)

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        """Queue a batch; the future resolves to its exit status."""
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        task = self._task.remote(tuple(jobs), self.slot, Path.cwd(), self._variables)
        self._running[future] = task
        threading.Thread(target=self._wait, args=(future, task), daemon=True).start()
        return future

    def interrupt(self) -> None:
        """Order every job to save and stop; queued ones are withdrawn."""
        for task in list(self._running.values()):
            self._ray.cancel(task)

    def kill(self) -> None:
        """Kill the worker of every job; the orphaned jobs save and stop."""
        for task in list(self._running.values()):
            self._ray.cancel(task, force=True)

    def _wait(self, future: Future[int], task: Any) -> None:
        """Wait for a task; a withdrawn one was preempted, one whose worker died was killed."""
        errors = self._ray.exceptions
        try:
            status = int(self._ray.get(task))
        except errors.TaskCancelledError:
            status = PREEMPTED_EXIT
        except errors.RayTaskError:
            status = 1
        except errors.OutOfMemoryError:
            status = OOM_EXIT
        except errors.RayError:
            status = -signal.SIGKILL
        del self._running[future]
        future.set_result(status)


def execute_on_ray(jobs: Sequence[Job], slot: Slot, directory: Path, variables: dict[str, str]) -> int:
    """Execute a batch below a Ray worker, which forwards a cancellation; return the exit status."""
    os.chdir(directory)
    os.environ.update(variables)
    processes = JobProcesses(jobs, slot.execution(), rank_environments(slot))
    with ThreadPoolExecutor(1) as waiter:
        status = waiter.submit(processes.wait)
        while True:
            try:
                return status.result(POLL_SECONDS)
            except TimeoutError:
                continue
            except KeyboardInterrupt:  # what ray.cancel raises in the main thread, once that runs Python
                processes.signal(signal.SIGTERM)
