"""Whether the runs of a sweep fit the memory of their slots, checked before anything is spent."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from study.base.durable_files import is_there
from study.base.errors import InputError, Problem
from study.base.quantities import bytes_text
from study.config.run_config import RunConfig
from study.counting.layer_losses import NO_LOSSES
from study.counting.memory import Device, Memory, Precision, TrainingStep, training_memory
from study.store.run_folder import NONE_PLANNED, PlannedRuns, teacher_architecture

if TYPE_CHECKING:
    from study.executing.slots import Slot
    from study.training.execution import Execution

PROCESS_BYTES: dict[Device, int] = {"cpu": 150_000_000, "cuda": 800_000_000}
"""What a run's process takes beside its tensors: on CPU what it does not share with the other runs of the forkserver
(50 to 110 MB measured), on a GPU the CUDA context, cuBLAS's workspaces and the allocator's rounding (an allowance)."""


CONTROL_GROUP = Path("/sys/fs/cgroup")
"""The control group of this machine or container."""


@dataclass(frozen=True)
class MemoryShare:
    """Memory that several slots share: `total` bytes, and a description."""

    total: int
    what: str
    slots: int = 1

    @property
    def bytes(self) -> int:
        """Memory for one run on one slot."""
        return self.total // self.slots

    @property
    def share(self) -> str:
        """The memory that a slot shares, in words."""
        return f"{bytes_text(self.total)} {self.what}" + (f", shared by {self.slots} slots" if self.slots > 1 else "")


def require_memory(
    runs: Iterable[RunConfig],
    memory: MemoryShare,
    execution: Execution,
    planned: PlannedRuns = NONE_PLANNED,
) -> None:
    """Raise InputError with every shape that needs more than a slot's memory, by its largest run.

    `planned` are teachers, by id, that may not have begun.
    """
    needs: dict[str, int] = {}
    for run in runs:
        name = run.architecture.shape_name
        needs[name] = max(needs.get(name, 0), needed_bytes(run, execution, planned))
    fewer = "fewer --slots-per-device, or " if memory.slots > 1 else ""
    problems = [
        Problem(
            f"shape {name}",
            f"training needs {bytes_text(needed)} of memory, but a slot has {bytes_text(memory.bytes)} ({memory.share}): "
            f"{bytes_text(needed - memory.bytes)} too much; use {fewer}a smaller recipe.batch_tokens",
        )
        for name, needed in needs.items()
        if needed > memory.bytes
    ]
    if problems:
        raise InputError(problems)


def needed_bytes(config: RunConfig, execution: Execution, planned: PlannedRuns = NONE_PLANNED) -> int:
    """Bytes that a run needs of a slot: its tensors and processes."""
    from study.training.execution import resolve_kernels, resolve_precision

    device, ranks = execution.device, execution.devices
    precision = resolve_precision(config.recipe.precision, device)
    graphed = resolve_kernels(execution, precision) == "graphed"
    memory = run_memory(config, precision, device, ranks, graphed, planned)
    return (memory.total + PROCESS_BYTES[device]) * (ranks if device == "cpu" else 1)


def run_memory(
    config: RunConfig,
    precision: Precision,
    device: Device,
    ranks: int = 1,
    graphed: bool = False,
    planned: PlannedRuns = NONE_PLANNED,
) -> Memory:
    """Return the memory of a run on each of its `ranks` devices, in its precision there."""
    from study.training.execution import resolve_precision

    step = TrainingStep(
        batch=-(-config.batch_sequences // ranks),
        sequence_length=config.data.sequence_length,
        predictions=config.predictions,
        precision=precision,
        dropout=config.recipe.dropout,
        device=device,
        ranks=ranks,
        graphed=graphed,
        teacher=teacher_architecture(config, planned),
        losses=NO_LOSSES if (teacher := config.recipe.teacher_run) is None else teacher.losses,
        validation_predictions=config.validation_predictions,
        muon=resolve_precision("auto", device) if config.recipe.optimizer == "muon" else None,
    )
    return training_memory(config.architecture, step)


def memory_for(slots: Sequence[Slot]) -> MemoryShare:
    """Return the memory of the tightest slot: free RAM over all slots, or a GPU's free memory over its slots."""
    if slots[0].device == "cpu":
        return MemoryShare(available_memory_bytes(), "of RAM available", len(slots))
    sharing = [sum(other.indices == slot.indices for other in slots) for slot in slots]
    free = free_gpu_bytes([slot.indices for slot in slots])
    tightest = min(range(len(slots)), key=lambda i: free[i] / sharing[i])
    return MemoryShare(free[tightest], f"free on GPU {slots[tightest].indices[0]}", sharing[tightest])


def free_gpu_bytes(devices: Sequence[tuple[int, ...]]) -> list[int]:
    """Free memory of the fullest GPU of each group, read in another process: the query creates a context on every GPU."""
    from study.executing.processes import start_forkserver, without_main_script

    with without_main_script(), ProcessPoolExecutor(1, start_forkserver()) as process:
        return process.submit(_free_gpu_bytes, devices).result()


def _free_gpu_bytes(devices: Sequence[tuple[int, ...]]) -> list[int]:
    import torch

    return [min(torch.cuda.mem_get_info(index)[0] for index in group) for group in devices]


def available_memory_bytes() -> int:
    """RAM that new processes can use: MemAvailable, or what a container's limit leaves."""
    meminfo = Path("/proc/meminfo")
    if is_there(meminfo):
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    else:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min([available, *_left_in_control_groups()]))


def _left_in_control_groups() -> Iterator[int]:
    """Yield each control group's limit less its use without droppable file cache (cgroup 2, then 1)."""
    for folder, limit, use in (
        (CONTROL_GROUP, "memory.max", "memory.current"),
        (CONTROL_GROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError, KeyError):
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            droppable = int(statistics["inactive_file"])
            yield int((folder / limit).read_text()) - int((folder / use).read_text()) + droppable
