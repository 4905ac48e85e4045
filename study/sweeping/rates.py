"""How fast a slot is: the median of earlier runs on slots like it, or else on others, told as such."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from study.memory import Precision
from study.quantities import plural
from study.records import RunRecord
from study.sweeping.executors.slots import Slot

ASSUMED_FLOPS_PER_SECOND = {"cpu": 4e10, "cuda": 1e14}
"""What a device is taken to achieve (train_flops per second) before any record of it is there: one CPU core, one GPU."""


@dataclass(frozen=True)
class Share:
    """What a run has of the devices: how many, with how many threads each on a CPU (1 on a GPU), how many runs share each."""

    devices: int
    threads: int
    sharing: int

    @property
    def amount(self) -> float:
        """Whole GPUs or cores."""
        return self.devices * self.threads / self.sharing


def rate_of(slot: Slot, records: Iterable[RunRecord], precision: Precision | None = None) -> tuple[float, str]:
    """FLOPs a second of a slot (train_flops), and what that rests on.

    Only runs on the same kind of device count, those in this precision before any others (None: it is not known), and of
    these the ones that had the same share of the devices first. Where none had, a GPU or core is taken to do as much in all,
    however many runs share it: rate of a slot = rate of one · those of the slot ÷ runs that share each.
    """

    def share_of(devices: int, threads: int, sharing: int) -> Share:
        return Share(devices, threads if slot.device == "cpu" else 1, sharing)

    timed = [
        (record.environment, record.train_flops * record.spent_share / record.wall_seconds)
        for record in records
        if record.wall_seconds and record.environment and (record.environment.device == "cpu") == (slot.device == "cpu")
    ]
    used = [(ran_on, rate) for ran_on, rate in timed if precision in (None, ran_on.precision)] or timed
    precisions = sorted({ran_on.precision for ran_on, _ in used})
    missed = f" for want of any in {precision}" if precision not in (None, *precisions) else ""
    told = f", in {' and '.join(precisions)}{missed}" if missed or len(precisions) > 1 else ""
    share = share_of(len(slot.indices), slot.threads, slot.sharing)
    rates = [(share_of(ran_on.devices, ran_on.threads, ran_on.sharing), rate) for ran_on, rate in used]
    if alike := [rate for had, rate in rates if had == share]:
        rate, source = median(alike), f"the median of {plural(len(alike), 'earlier run')}{told}"
    elif rates:
        rate = share.amount * median(rate / had.amount for had, rate in rates)
        source = (
            f"scaled from {plural(len(rates), 'earlier run')} that had another share of a device (now {_words(slot)}){told}"
        )
    else:
        rate, source = share.amount * ASSUMED_FLOPS_PER_SECOND[slot.device], "assumed: no earlier run of this sweep"
    return rate, f"{rate:.2g} FLOP/s a slot, {source}"


def _words(slot: Slot) -> str:
    """What a run on this slot has of the devices, in words."""
    if slot.sharing > 1:
        return f"{slot.sharing} runs to one"
    devices, threads = plural(len(slot.indices), "device"), plural(slot.threads, "thread")
    if slot.device == "cuda":
        return f"{devices} to a run"
    return f"{threads} to a run" if len(slot.indices) == 1 else f"{devices} of {threads} to a run"
