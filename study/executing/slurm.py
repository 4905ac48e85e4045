"""The Slurm executor: a job for each run, in arrays by submitit; where a job is comes from squeue and from the job's own file.

Accounting is not needed. Jobs outlive the launcher, and the next one finds them by name: `study-<sweep>-<batch>`, where
`slurm/<batch>.json` in the sweep's folder, written before the batch is submitted, lists its runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study.base.durable_files import is_there, patiently, write_atomically
from study.base.errors import OOM_EXIT, PREEMPTED_EXIT, InputError
from study.config.resources import Resources, SlurmOptions, minutes_of
from study.config.run_config import RunConfig
from study.executing.slots import Slot
from study.executing.slurm_job import exit_file, run_job
from study.store.sweep_folder import SweepFolder

SIGNAL_SECONDS = 90
"""How long before its time limit a job is told to save."""

LARGEST_BATCH = 500
"""The most jobs of one array, below the usual MaxArraySize of 1001."""

COMMAND_SECONDS = 60.0
"""How long a command of Slurm may take; one that takes longer has not answered."""

ENDED = {
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED"), PREEMPTED_EXIT),
    **dict.fromkeys(("TIMEOUT", "DEADLINE"), -signal.SIGKILL),
    "OUT_OF_MEMORY": OOM_EXIT,
    "CANCELLED": -signal.SIGTERM,
    "COMPLETED": 1,
    "FAILED": 1,
}
"""Slurm's final states, each with the exit status of a run that left none itself: what a node does is not the run's fault."""


def slurm_slots(resources: Resources) -> list[Slot]:
    """As many slots as jobs may be in the queue; `auto` is CUDA where the partition has GPUs."""
    options, device = resources.slurm, resources.device
    if device == "auto":
        _submitit()
        partition = [f"--partition={options.partition}"] if options.partition else []
        device = "cuda" if "gpu" in (_output("sinfo", "--noheader", "--format=%G", *partition) or "") else "cpu"
    return [Slot(device, tuple(range(resources.devices)), options.cpus)] * options.array


@dataclass(eq=False)
class Job:
    """A run that was submitted: its future, and its job once Slurm has given it an id."""

    config: RunConfig
    folder: Path
    future: Future[int]
    job_id: str | None = None


class SlurmExecutor:
    """Runs as Slurm jobs; a run that is in the queue from an earlier launch is waited for, not submitted again."""

    def __init__(self, slot: Slot, options: SlurmOptions, sweep: SweepFolder) -> None:
        self.slot, self.options, self.sweep = slot, options, sweep.name
        self.folder = (sweep.path / "slurm").resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._submitit = _submitit()
        self._jobs: list[Job] = []
        self._lock = threading.Lock()
        self._accepted, self._killed = False, False
        self._queued = self._earlier()
        threading.Thread(target=self._follow, daemon=True).start()

    @property
    def free(self) -> int:
        """How many more runs can be submitted now."""
        return self.options.array - len(self._jobs)

    def submit(self, config: RunConfig, folder: Path) -> Future[int]:
        """Queue a run; the future resolves to its exit status."""
        future: Future[int] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._jobs.append(Job(config, folder.resolve(), future, self._queued.pop(folder.name, None)))
        return future

    def interrupt(self) -> None:
        """Take what waits out of the queue, and tell what runs to save and stop."""
        with self._lock:
            unsubmitted = [job for job in self._jobs if job.job_id is None]
            self._jobs = [job for job in self._jobs if job.job_id is not None]
        for job in unsubmitted:
            job.future.set_result(PREEMPTED_EXIT)
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
        """Every job that may live, those of earlier launches too that this one only waits for."""
        with self._lock:
            return [*(job.job_id for job in self._jobs if job.job_id is not None), *self._queued.values()]

    def _follow(self) -> None:
        """Submit what is due and resolve what has ended, for as long as the launcher lives; an error that lasts ends that."""
        while True:
            time.sleep(max(1.0, min(10.0, len(self._jobs) / 20)))
            try:
                patiently(self._advance)
            except Exception as error:  # of any class: nobody else would ever resolve the futures
                self._fail(error)

    def _advance(self) -> None:
        self._submit_due()
        if self._jobs:
            self._resolve()

    def _fail(self, error: Exception) -> None:
        """Give every future an error; jobs in the queue are left alone, and the next launch takes them up."""
        with self._lock:
            failed, self._jobs = self._jobs, []
        if isinstance(error, OSError):
            said = (
                f"runs cannot be submitted or followed: {error}; what is in the queue goes on, and the same command takes it up"
            )
            error = InputError.at("--on slurm", said)
        for job in failed:
            job.future.set_exception(error)

    def _submit_due(self) -> None:
        """Submit what waits as one array; refused at first it is bad input, later it is tried again."""
        with self._lock:
            due = [job for job in self._jobs if job.job_id is None][:LARGEST_BATCH]
            if not due:
                return
            try:
                ids = self._submit_batch(due)
            except (self._submitit.core.utils.FailedJobError, self._submitit.core.utils.FailedSubmissionError) as error:
                said = " ".join(str(error).split())
                if self._accepted:
                    sys.stderr.write(f"sbatch refused {len(due)} runs, which are submitted again: {said}\n")
                    return
                self._jobs = []
                for job in due:
                    job.future.set_exception(InputError.at("--on slurm", f"sbatch refused the runs: {said}"))
                return
            self._accepted = True
            for job, job_id in zip(due, ids, strict=True):
                job.job_id = job_id

    def _submit_batch(self, due: list[Job]) -> list[str]:
        """Submit runs as one array; the ids of its jobs."""
        batch = uuid.uuid4().hex[:8]
        write_atomically(self.folder / f"{batch}.json", json.dumps([job.folder.name for job in due]).encode())
        executor = self._submitit.SlurmExecutor(self.folder)
        executor.update_parameters(**self._parameters(batch))
        arguments = [(job.config, job.folder, self.sweep, self.folder, self.slot, self.options.nodes) for job in due]
        try:
            return [job.job_id for job in executor.map_array(run_job, *zip(*arguments, strict=True))]
        except OSError:
            _output("scancel", f"--name={self._prefix}{batch}")  # which Slurm may have, without the files that it needs
            raise

    def _parameters(self, batch: str) -> dict[str, Any]:
        """What sbatch is told, by submitit's names."""
        options, ranks = self.options, len(self.slot.indices) // self.options.nodes
        minutes = None if options.time is None else minutes_of(options.time)
        return {name: getattr(options, name) for name in ("partition", "account", "qos", "constraint", "exclude", "nodes")} | {
            "job_name": f"{self._prefix}{batch}",
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

    @property
    def _prefix(self) -> str:
        return f"study-{self.sweep}-"

    def _states(self) -> dict[str, tuple[str, str]] | None:
        """Name and state of every job of this sweep that Slurm remembers, by its id; None where Slurm does not answer."""
        asked = ("--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%F|%K|%j|%T")
        if (listed := _output("squeue", *asked)) is None:
            return None
        states = {}
        for line in listed.splitlines():
            master, index, name, state = line.strip().split("|")
            if name.startswith(self._prefix):
                states[master if index == "N/A" else f"{master}_{index}"] = (name, state)
        return states

    def _earlier(self) -> dict[str, str]:
        """The jobs of earlier launches that have not ended, by the id of their run."""
        found = {}
        for job_id, (name, state) in (self._states() or {}).items():
            batch = self.folder / f"{name.removeprefix(self._prefix)}.json"
            if state not in ENDED and is_there(batch):
                runs, index = json.loads(batch.read_bytes()), job_id.partition("_")[2]
                found[runs[int(index or 0)]] = job_id
        return found

    def _resolve(self) -> None:
        """Resolve the futures of the jobs that have ended."""
        with self._lock:
            asked = [job for job in self._jobs if job.job_id is not None]
        states = self._states()
        if states is None:
            return
        for job in asked:
            assert job.job_id is not None
            _, state = states.get(job.job_id, ("", "COMPLETED"))
            if state in ENDED or (self._killed and state == "COMPLETING"):
                status = self._exit_status(job.job_id, state)
                with self._lock:
                    self._jobs.remove(job)
                job.future.set_result(status)

    def _exit_status(self, job_id: str, state: str) -> int:
        """What the job says of itself, else what its final state means; what submitit left of a good one is removed."""
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
    """The library; raises InputError where it or Slurm is not here."""
    try:
        import submitit
    except ModuleNotFoundError:
        raise InputError.at("--on slurm", "needs submitit: pip install 'scaling-study[slurm]'") from None
    if missing := [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]:
        raise InputError.at("--on slurm", f"{', '.join(missing)} not found; launch where Slurm's commands are installed")
    return submitit


def _output(command: str, *arguments: str) -> str | None:
    """What a command of Slurm prints, None where it fails or cannot be started."""
    try:
        done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
