"""Slots for jobs on this machine: their devices, how many share one, and the environment of each rank."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from study.base import machine
from study.base.errors import InputError
from study.base.quantities import plural
from study.config.resources import AskedKernels
from study.counting.memory import Device

if TYPE_CHECKING:
    from study.training.execution import Execution


ALONE = {"RANK": "0", "LOCAL_RANK": "0"}
"""The rank of a job on one device, whatever its process inherits."""

MPS_PORTION = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""The variable with which CUDA's Multi-Process Service limits a process to a percentage of a GPU."""


@dataclass(frozen=True)
class Slot:
    """Room for one job at a time: its devices, the CPU threads of each process, and how many jobs share a device.

    `sharing` is the number of jobs on each device, a CPU's threads being its devices; 1 means exclusive use.
    """

    device: Device
    indices: tuple[int, ...]
    threads: int
    sharing: int = 1
    kernels: AskedKernels = "auto"

    def execution(self, **changes: Any) -> Execution:
        """How a job executes on this slot, with these fields of Execution changed."""
        from study.training.execution import Execution

        own = Execution(
            device=self.device,
            devices=len(self.indices),
            threads=self.threads,
            kernels=self.kernels,
            sharing=self.sharing,
        )
        return own.model_copy(update=changes)


def local_slots(device: Literal["auto", "cpu", "cuda"], slots_per_device: int | None, devices_per_run: int) -> list[Slot]:
    """Return the slots of this machine.

    On CUDA each group of `devices_per_run` GPUs has `slots_per_device` slots, by default one. The CPU is one device, by default
    with a slot for every `devices_per_run` cores. Raises InputError for too few devices.
    """
    cores = machine.cores()
    gpus = 0 if device == "cpu" else _gpu_count()
    if gpus < devices_per_run and (gpus or device == "cuda"):
        place = "--device cuda" if device == "cuda" else "--devices"
        raise InputError.at(place, f"each run needs {plural(devices_per_run, 'GPU')}, but torch finds {gpus} here")
    if gpus >= devices_per_run and gpus:
        groups = [
            tuple(range(first, first + devices_per_run)) for first in range(0, gpus - devices_per_run + 1, devices_per_run)
        ]
        sharing = slots_per_device or 1
        threads = max(1, cores // (sharing * len(groups) * devices_per_run))
        return [Slot("cuda", group, threads, sharing) for _ in range(sharing) for group in groups]
    count = slots_per_device or max(1, cores // devices_per_run)
    threads = max(1, cores // (count * devices_per_run))
    sharing = -(-count * devices_per_run * threads // cores)
    return [Slot("cpu", tuple(range(devices_per_run)), threads, sharing)] * count


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


def sharing_note(slots: list[Slot]) -> str | None:
    """Return a note on slots that share GPUs, and how to start MPS, if any do."""
    sharing = slots[0].sharing
    if slots[0].device == "cpu" or sharing == 1:
        return None
    note = (
        f"{sharing} runs share each GPU: records have environment.sharing {sharing}, and their tokens/s are those of one share"
    )
    if mps_is_running():
        portion = (os.environ | _gpu_environment(slots[0]))[MPS_PORTION]
        return f"{note}. MPS runs each on at most {portion}% of the multiprocessors"
    alternating = "MPS is not running, so the runs alternate on the GPU and are together no faster than one"
    return f"{note}. {alternating}; `nvidia-cuda-mps-control -d` starts it"


def mps_is_running() -> bool:
    """Whether CUDA's Multi-Process Service serves this process."""
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps")
    try:
        pid = int((folder / "nvidia-cuda-mps-control.pid").read_text())
        os.kill(pid, 0)
    except PermissionError:
        return True  # somebody else's daemon, which serves us too
    except (OSError, ValueError):
        return False
    return True


def mps_portion(sharing: int) -> int:
    """Return the percentage of a GPU's multiprocessors for each of `sharing` runs: twice an even share, so that all are in use.

    Without a limit one kernel may take all of them. Source: NVIDIA, Multi-Process Service, "Volta MPS Execution Resource
    Provisioning".
    """
    return max(1, min(100, 200 // sharing))


def rank_environments(slot: Slot) -> list[dict[str, str]]:
    """Return the environment variables of each rank, by torchrun's names."""
    gpus = _gpu_environment(slot) if slot.device == "cuda" else {}
    if len(slot.indices) == 1:
        return [gpus | ALONE]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = gpus | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(len(slot.indices))]


def _gpu_environment(slot: Slot) -> dict[str, str]:
    """Return the GPUs of a slot and, where they are shared, the MPS percentage unless one is set."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = [visible[index] if visible else str(index) for index in slot.indices]
    portion = {MPS_PORTION: str(mps_portion(slot.sharing))} if slot.sharing > 1 and MPS_PORTION not in os.environ else {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(names)} | portion
