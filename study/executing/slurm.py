"""The Slurm executor, and what its jobs do on a node: one Slurm job for each batch of jobs, in arrays submitted by submitit.

The state of a Slurm job comes from squeue and from the job's own file; accounting is not needed. Slurm jobs outlive the
launcher, and the next launch finds them by name: `study-<sweep>-<array>`, where `slurm/<array>.json` in the sweep's folder,
written before the submission, lists the keys of each batch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from study.base.durable_files import is_there, json_of, retry_write, write_atomically
from study.base.errors import OOM_EXIT, PREEMPTED_EXIT, InputError
from study.base.machine import rest_at_barriers
from study.base.quantities import plural
from study.base.text import echo
from study.config.resources import Resources, SlurmOptions, minutes_of
from study.executing.processes import Job, execute_here
from study.executing.slots import ALONE, Slot
from study.store.sweep_folder import SweepFolder

FIRST_PORT, PORTS = 20_000, 30_000


def execute_in_slurm(jobs: Sequence[Job], folder: Path, slot: Slot, nodes: int) -> int:
    """Execute a batch, or its rank of one, inside a Slurm job; the first rank leaves the exit status in `folder`.

    At the time limit it saves and requeues its Slurm job; an order to stop only saves.
    """
    from study.training.attempts import StopSignal

    stop, limits = StopSignal(), []

    def at_limit(signum: int, frame: FrameType | None) -> None:
        limits.append(signum)
        stop.set(signum, frame)

    stop.install()  # before anything that takes time, such as torch: until then submitit ignores who says stop
    signal.signal(signal.SIGUSR2, at_limit)
    file = exit_file(folder, job_id())
    leads = os.environ["SLURM_PROCID"] == "0"
    if leads:
        retry_write(lambda: file.unlink(missing_ok=True))
    os.environ.update(rank_variables(len(slot.indices)))
    rest_at_barriers()
    status = execute_here(jobs, slot.execution(nodes=nodes), stop)
    if leads:
        retry_write(lambda: write_atomically(file, str(status).encode()))
        if status == PREEMPTED_EXIT and limits:  # where requeueing is not allowed, the launcher submits the batch anew
            subprocess.run(["scontrol", "requeue", job_id()], timeout=60)
    return status


def exit_file(folder: Path, job: str) -> Path:
    """Return the file in which a Slurm job leaves its exit status."""
    return folder / f"{job}.exit"


def job_id() -> str:
    """Return the id of this Slurm job, `1234_5` in an array."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]


def rank_variables(ranks: int) -> dict[str, str]:
    """Return torchrun's variables from Slurm's; the leader is on the first node."""
    if ranks == 1:
        return ALONE
    return {
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "NODE_RANK": os.environ["SLURM_NODEID"],
        "MASTER_ADDR": os.environ["SLURM_LAUNCH_NODE_IPADDR"],
        "MASTER_PORT": str(FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % PORTS),
    }


SIGNAL_SECONDS = 90
"""How long before its time limit a job is ordered to save."""

LARGEST_ARRAY = 500
"""The largest array, below the usual MaxArraySize of 1001."""

COMMAND_SECONDS = 60.0
"""How long a command of Slurm may take."""

QUEUED = re.compile(r"^(\d+)\|(N/A|\d+)\|([A-Z_]+)\|(.*)$", re.MULTILINE)
"""A line of squeue: the id of an array or a job, the index in the array, the state, and the name."""

OVERRIDING = {
    "job_name": "JOB_NAME",
    "partition": "PARTITION",
    "account": "ACCOUNT",
    "qos": "QOS",
    "constraint": "CONSTRAINT",
    "time": "TIMELIMIT",
    "mem": "MEM_PER_NODE",
    "gpus_per_node": "GPUS_PER_NODE",
    "array_parallelism": "ARRAY_INX",
    "signal_delay_s": "SIGNAL",
    "stderr_to_stdout": "OUTPUT",
}
"""What is asked of sbatch, and the variable `SBATCH_…` of a user's profile that sbatch would heed in place of it."""

ENDED = {
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"), PREEMPTED_EXIT),
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), -signal.SIGKILL),
    "OUT_OF_MEMORY": OOM_EXIT,
    "CANCELLED": -signal.SIGTERM,
    "COMPLETED": 1,
    "FAILED": 1,
}
"""Slurm's final states, each with the exit status of a job that left none; a failed node is not the job's fault."""


def slurm_slots(resources: Resources) -> list[Slot]:
    """As many slots as jobs may be queued; `auto` is CUDA where the partition has GPUs."""
    options, device = resources.slurm, resources.device
    if device == "auto":
        _submitit()
        partition = [f"--partition={options.partition}"] if options.partition else []
        device = "cuda" if "gpu" in (_output("sinfo", "--noheader", "--format=%G", *partition) or "") else "cpu"
    return [Slot(device, tuple(range(resources.devices)), options.cpus)] * options.array


@dataclass(eq=False)
class Submitted:
    """A submitted batch: its future, and the Slurm job's id once it has one."""

    jobs: Sequence[Job]
    future: Future[int]
    job_id: str | None = None


class SlurmExecutor:
    """Executes batches as Slurm jobs; those that an earlier launch left in the queue are waited for."""

    def __init__(self, slot: Slot, options: SlurmOptions, sweep: SweepFolder) -> None:
        self.slot, self.options = slot, options
        self._prefix = f"study-{re.sub(r'[^A-Za-z0-9_.-]', '_', sweep.name)}-"
        self.folder = (sweep.path / "slurm").resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._submitit = _submitit()
        asked = self._parameters("")
        for variable in (variable for name, variable in OVERRIDING.items() if asked[name] is not None):
            os.environ.pop(f"SBATCH_{variable}", None)
        self._submitted: list[Submitted] = []
        self._lock = threading.Lock()
        self._accepted, self._killed = False, False
        self._queued = self._earlier()
        threading.Thread(target=self._follow, daemon=True).start()

    @property
    def free(self) -> int:
        """How many more batches can be submitted now."""
        return self.options.array - len(self._submitted)

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        """Queue a batch; the future resolves to its exit status."""
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            queued = [self._queued.pop(job.key, None) for job in jobs]
            self._submitted.append(Submitted(jobs, future, next(filter(None, queued), None)))
        return future

    def interrupt(self) -> None:
        """Withdraw queued jobs, and order running ones to save and stop."""
        with self._lock:
            unsubmitted = [batch for batch in self._submitted if batch.job_id is None]
            self._submitted = [batch for batch in self._submitted if batch.job_id is not None]
        for batch in unsubmitted:
            batch.future.set_result(PREEMPTED_EXIT)
        if ids := self._ids():
            _output("scancel", "--state=PENDING", *ids)
            _output("scancel", "--state=RUNNING", "--signal=TERM", *ids)

    def kill(self) -> None:
        """Cancel every job."""
        self._killed = True
        if ids := self._ids():
            _output("scancel", "--signal=KILL", *ids)
            _output("scancel", *ids)

    def _ids(self) -> list[str]:
        with self._lock:
            known = (batch.job_id for batch in self._submitted if batch.job_id is not None)
            return [*dict.fromkeys((*known, *self._queued.values()))]

    def _follow(self) -> None:
        """Submit due batches and resolve ended ones, until the launcher ends or an error persists."""
        while True:
            time.sleep(max(1.0, min(10.0, len(self._submitted) / 20)))
            try:
                retry_write(self._advance)
            except Exception as error:  # of any class: nobody else would ever resolve the futures
                self._fail(error)

    def _advance(self) -> None:
        self._submit_due()
        if self._submitted:
            self._resolve()

    def _fail(self, error: Exception) -> None:
        """Fail every future; queued jobs stay for the next launch."""
        with self._lock:
            failed, self._submitted = self._submitted, []
        if isinstance(error, OSError):
            goes_on = "queued jobs go on, and the same command resumes them"
            error = InputError.at("--on slurm", f"jobs cannot be submitted or monitored: {error}; {goes_on}")
        for batch in failed:
            batch.future.set_exception(error)

    def _submit_due(self) -> None:
        """Submit waiting batches as one array; only a first refusal is bad input."""
        with self._lock:
            due = [batch for batch in self._submitted if batch.job_id is None][:LARGEST_ARRAY]
            if not due:
                return
            try:
                ids = self._submit_array(due)
            except (self._submitit.core.utils.FailedJobError, self._submitit.core.utils.FailedSubmissionError) as error:
                said = " ".join(str(error).split())
                if self._accepted:
                    echo(f"sbatch refused {plural(len(due), 'job')}, which will be submitted again: {said}", err=True)
                    return
                self._submitted = []
                for batch in due:
                    batch.future.set_exception(InputError.at("--on slurm", f"sbatch refused the jobs: {said}"))
                return
            self._accepted = True
            for batch, job_id in zip(due, ids, strict=True):
                batch.job_id = job_id

    def _submit_array(self, due: Sequence[Submitted]) -> list[str]:
        name = uuid.uuid4().hex[:8]
        keys = [[job.key for job in batch.jobs] for batch in due]
        write_atomically(self.folder / f"{name}.json", json.dumps(keys).encode())
        executor = self._submitit.SlurmExecutor(self.folder)
        executor.update_parameters(**self._parameters(name))
        arguments = [(batch.jobs, self.folder, self.slot, self.options.nodes) for batch in due]
        try:
            return [job.job_id for job in executor.map_array(execute_in_slurm, *zip(*arguments, strict=True))]
        except OSError:
            _output("scancel", f"--name={self._prefix}{name}")  # which Slurm may have, without the files that it needs
            raise

    def _parameters(self, array: str) -> dict[str, Any]:
        options, ranks = self.options, len(self.slot.indices) // self.options.nodes
        minutes = None if options.time is None else minutes_of(options.time)
        return {name: getattr(options, name) for name in ("partition", "account", "qos", "constraint", "exclude", "nodes")} | {
            "job_name": f"{self._prefix}{array}",
            "time": minutes,
            "ntasks_per_node": ranks,
            "cpus_per_task": options.cpus,
            "gpus_per_node": ranks if self.slot.device == "cuda" else None,
            "mem": options.memory,
            "array_parallelism": options.array,
            "signal_delay_s": SIGNAL_SECONDS if minutes is None else min(SIGNAL_SECONDS, 15 * minutes),
            "setup": list(options.setup),
            "stderr_to_stdout": True,
            "srun_args": ["--kill-on-bad-exit=1", f"--cpus-per-task={options.cpus}"],
            "additional_parameters": {"requeue": True} | options.options,
        }

    def _states(self) -> dict[str, tuple[str, str]] | None:
        """Name and state of every job of the user that Slurm knows, by id; None where Slurm does not answer.

        The name stands last, since it may hold separators.
        """
        requested = ("--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%F|%K|%T|%j")
        if (listed := _output("squeue", *requested)) is None:
            return None
        if listed.strip() and QUEUED.search(listed) is None:
            raise ValueError(f"squeue printed {listed[:100]!r}")
        return {
            master if index == "N/A" else f"{master}_{index}": (name, state)
            for master, index, state, name in QUEUED.findall(listed)
        }

    def _earlier(self) -> dict[str, str]:
        """Return the live Slurm jobs of earlier launches, by job key."""
        live: dict[str, str] = {}
        for job_id, (name, state) in (self._states() or {}).items():
            array = self.folder / f"{name.removeprefix(self._prefix)}.json"
            if state not in ENDED and name.startswith(self._prefix) and is_there(array):
                index = int(job_id.partition("_")[2] or 0)
                batches = json_of(array, list, f"cancel its jobs with scancel --name={name}, and remove it") or []
                live |= dict.fromkeys(batches[index] if index < len(batches) else (), job_id)
        return live

    def _resolve(self) -> None:
        with self._lock:
            requested = [batch for batch in self._submitted if batch.job_id is not None]
        states = self._states()
        if states is None:
            return
        for batch in requested:
            assert batch.job_id is not None
            _, state = states.get(batch.job_id, ("", "COMPLETED"))
            if state in ENDED or (self._killed and state == "COMPLETING"):
                status = self._exit_status(batch.job_id, state)
                with self._lock:
                    self._submitted.remove(batch)
                batch.future.set_result(status)

    def _exit_status(self, job_id: str, state: str) -> int:
        """Return the exit status in a job's file, else that of its final state."""
        file = exit_file(self.folder, job_id)
        try:
            status = int(file.read_bytes())
        except FileNotFoundError:
            return ENDED.get(state, -signal.SIGKILL)
        if status == 0:
            with contextlib.suppress(OSError):
                for left in (file, *self.folder.glob(f"{job_id}_*")):
                    left.unlink(missing_ok=True)
        return status


def _submitit() -> Any:
    """Return the library; raises InputError where it or Slurm is missing."""
    try:
        import submitit
    except ModuleNotFoundError:
        raise InputError.at("--on slurm", "needs submitit: pip install 'scaling-study[slurm]'") from None
    if missing := [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]:
        raise InputError.at("--on slurm", f"{', '.join(missing)} not found; launch where Slurm's commands are installed")
    return submitit


def _output(command: str, *arguments: str) -> str | None:
    """Return a Slurm command's output, None where it fails.

    Variables such as SQUEUE_PARTITION, with which people shorten what squeue shows them, would hide running jobs.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = subprocess.run(
            [command, *arguments], capture_output=True, env=kept, encoding="utf-8", errors="replace", timeout=COMMAND_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
