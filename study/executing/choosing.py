"""The executor that a sweep's resources ask for, and the slots that it has."""

from __future__ import annotations

from dataclasses import replace

from study.base.errors import InputError
from study.config.resources import Resources
from study.executing.executor import Executor
from study.executing.slots import Slot, local_slots
from study.store.sweep_folder import SweepFolder


def slots_of(resources: Resources) -> list[Slot]:
    """The slots that the resources make where they are; raises InputError where that has not enough."""
    slots = [replace(slot, kernels=resources.kernels) for slot in _slots_where(resources)]
    if resources.kernels == "graphed" and any(slot.device == "cpu" or len(slot.indices) > 1 for slot in slots):
        raise InputError.at("--kernels graphed", "runs on a single CUDA device; use compiled, eager or auto")
    if resources.kernels == "onednn" and any(slot.device != "cpu" for slot in slots):
        raise InputError.at("--kernels onednn", "runs on a CPU; add --device cpu, or use auto")
    return slots


def _slots_where(resources: Resources) -> list[Slot]:
    if resources.on == "slurm":
        from study.executing.slurm import slurm_slots

        return slurm_slots(resources)
    if resources.on == "ray":
        from study.executing.ray import ray_slots

        return ray_slots(resources)
    return local_slots(resources.device, resources.slots_per_device, resources.devices)


def executor_of(resources: Resources, slots: list[Slot], sweep: SweepFolder) -> Executor:
    """What runs a sweep on these slots; raises InputError where an extra or a cluster's commands are missing."""
    if resources.on == "slurm":
        from study.executing.slurm import SlurmExecutor

        return SlurmExecutor(slots[0], resources.slurm, sweep)
    if resources.on == "ray":
        from study.executing.ray import RayExecutor

        return RayExecutor(slots, resources, sweep.name)
    from study.executing.local import LocalExecutor

    return LocalExecutor(slots, sweep.name)
