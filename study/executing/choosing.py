"""The executor that resources ask for, and the slots that it has."""

from __future__ import annotations

from dataclasses import replace

from study.base.errors import InputError
from study.config.resources import Resources
from study.executing.job import Executor
from study.executing.slots import Slot, local_slots
from study.store.sweep_folder import SweepFolder


def slots_of(resources: Resources, jobs: int | None = None) -> list[Slot]:
    """The slots that the resources make where they are; raises InputError where that has not enough.

    Of this machine's CPU there are no more than `jobs`, where that is known: one that is made alone has all cores.
    """
    slots = [replace(slot, kernels=resources.kernels) for slot in _slots_where(resources, jobs)]
    if resources.kernels == "graphed" and any(slot.device == "cpu" or len(slot.indices) > 1 for slot in slots):
        raise InputError.at("--kernels graphed", "runs on a single CUDA device; use compiled, eager or auto")
    if resources.kernels == "onednn" and any(slot.device != "cpu" for slot in slots):
        raise InputError.at("--kernels onednn", "runs on a CPU; add --device cpu, or use auto")
    return slots


def _slots_where(resources: Resources, jobs: int | None) -> list[Slot]:
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


def executor_of(resources: Resources, slots: list[Slot], sweep: SweepFolder) -> Executor:
    """What executes a sweep's jobs on these slots; raises InputError where an extra or a cluster's commands are missing."""
    if resources.on == "slurm":
        from study.executing.slurm import SlurmExecutor

        return SlurmExecutor(slots[0], resources.slurm, sweep)
    if resources.on == "ray":
        from study.executing.ray import RayExecutor

        return RayExecutor(slots, resources)
    from study.executing.local import LocalExecutor

    return LocalExecutor(slots)
