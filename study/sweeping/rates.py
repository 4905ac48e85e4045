"""How fast a slot is: the median of earlier runs on slots like it, or else on others, told as such."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from study.quantities import plural
from study.records import RunRecord
from study.sweeping.executors.slots import Slot

ASSUMED_FLOPS_PER_SECOND = {"cpu": 4e10, "cuda": 1e14}
"""What a device is taken to achieve (train_flops per second) before any record of it is there: one CPU core, one GPU."""


def rate_of(slot: Slot, records: Iterable[RunRecord]) -> tuple[float, str]:
    """FLOPs a second of a slot (train_flops), and what that rests on.

    Only runs on the same kind of device count, and those with as many devices that as many runs shared before any others.
    Where only others are there, a device is taken to do as much in all, however many runs share it: rate of a slot =
    rate of a device · devices ÷ runs that share each.
    """
    timed = [
        (record.environment, record.train_flops * record.spent_share / record.wall_seconds)
        for record in records
        if record.wall_seconds and record.environment and (record.environment.device == "cpu") == (slot.device == "cpu")
    ]
    share = len(slot.indices) / slot.sharing
    if alike := [rate for ran_on, rate in timed if (ran_on.devices, ran_on.sharing) == (len(slot.indices), slot.sharing)]:
        rate, source = median(alike), f"the median of {plural(len(alike), 'earlier run')}"
    elif timed:
        rate = share * median(rate * ran_on.sharing / ran_on.devices for ran_on, rate in timed)
        now = f"{slot.sharing} runs to one" if slot.sharing > 1 else f"{len(slot.indices)} devices to a run"
        source = f"scaled from {plural(len(timed), 'earlier run')} that had another share of a device (now {now})"
    else:
        rate, source = share * ASSUMED_FLOPS_PER_SECOND[slot.device], "assumed: no earlier run"
    return rate, f"{rate:.2g} FLOP/s a slot, {source}"
