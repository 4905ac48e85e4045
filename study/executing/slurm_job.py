"""One rank of a batch inside a Slurm job: what srun gives it, and what it leaves for the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from study.base.durable_files import retry_write, write_atomically
from study.base.errors import PREEMPTED_EXIT
from study.base.machine import rest_at_barriers
from study.executing.job import Job
from study.executing.processes import execute_here
from study.executing.slots import ALONE, Slot

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
    """Return the variables of torchrun, from Slurm's; the leader is on the first node, at a port by the job's number."""
    if ranks == 1:
        return ALONE
    return {
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "NODE_RANK": os.environ["SLURM_NODEID"],
        "MASTER_ADDR": os.environ["SLURM_LAUNCH_NODE_IPADDR"],
        "MASTER_PORT": str(FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % PORTS),
    }
