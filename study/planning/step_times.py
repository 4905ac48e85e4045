"""The time of a step on a slot: as measured in earlier runs of the same model, else by its FLOPs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from study.base.grouping import grouped
from study.base.quantities import plural
from study.config.run_config import RunConfig
from study.counting.memory import Precision
from study.executing.slots import Slot
from study.store.records import Environment, RunRecord, seconds_per_step

ASSUMED_FLOPS_PER_SECOND = {"cpu": 4e10, "cuda": 1e14}
"""The assumed rate of one CPU core or one GPU before any record exists."""

CORE_RATE = ASSUMED_FLOPS_PER_SECOND["cpu"]
"""The assumed rate of one CPU core."""

ASSUMED_START_SECONDS = {"cpu": 0.0, "cuda": 10.0}
"""The assumed time to build the kernels of a run before any record exists."""

ASSUMED_SECONDS_PER_STEP = {"cpu": 0.005, "cuda": 0.004}
"""The assumed overhead of a step before any record exists: kernel launches, optimiser, small products."""

LEAST_SPREAD = 4.0
"""The FLOPs of measured steps must span this factor to separate overhead from rate."""


@dataclass(frozen=True)
class Share:
    """A run's share of the devices: how many, threads of each on a CPU (1 on a GPU), and how many runs share each."""

    devices: int
    threads: int
    sharing: int

    @property
    def amount(self) -> float:
        """Whole GPUs or cores."""
        return self.devices * self.threads / self.sharing


@dataclass(frozen=True)
class StepTimes:
    """Seconds of an optimiser step: `measured` where earlier runs did the same work, else overhead + FLOPs ÷ rate.

    `start_seconds` are what a run needs beside its steps, to build kernels. `basis` describes the source of both.
    """

    measured: Mapping[tuple[object, ...], float]
    overhead_seconds: float
    flops_per_second: float
    start_seconds: float
    basis: str

    def seconds(self, config: RunConfig, flops_per_step: float) -> float:
        """Return the seconds of a step with these `train_flops`."""
        known = self.measured.get(_work(config, flops_per_step))
        return self.overhead_seconds + _that_run(config, flops_per_step) / self.flops_per_second if known is None else known


@dataclass(frozen=True)
class _Timed:
    """A timed run: the work and time of its steps, and its share of the devices."""

    work: tuple[object, ...]
    flops: float
    seconds: float
    start_seconds: float
    share: Share
    ran_on: Environment


def step_times(
    slot: Slot, own: Iterable[RunRecord], others: Iterable[RunRecord] = (), precision: Precision | None = None
) -> StepTimes:
    """Return the time of a step on a slot by the records of a sweep, else by those of `others`.

    `others` join too where the sweep's own runs are too similar to tell what a step costs beside its FLOPs, such as its
    smallest alone, and theirs are not.

    Only runs on the same kind of device count, preferably in this precision (None: unknown), and of these the ones with the
    same share of the devices. Without any, a GPU or core is taken to do the same work however many runs share it: time on a
    slot = time then · share then ÷ share now. A step that no run took is timed by least squares of relative errors over the
    medians of those that were,

    seconds = overhead + FLOPs that run / rate,

    or, where those are too similar (LEAST_SPREAD) or no such line fits them, by the assumed overhead and rate, both slower by
    one factor: the median rate of small steps, which are mostly overhead, would make large ones take far too long.
    """
    of_own, of_others = ([timed for record in records if (timed := _timed(record, slot))] for records in (own, others))
    used, where = (of_own, "of this sweep") if of_own else (of_others, "of other sweeps here")
    share = _share(slot, len(slot.indices), slot.threads, slot.sharing)
    if not used:
        rate = assumed_rate(slot)
        overhead = ASSUMED_SECONDS_PER_STEP[slot.device]
        start = ASSUMED_START_SECONDS[slot.device]
        return StepTimes({}, overhead, rate, start, f"{_words(overhead, rate)}, assumed, without earlier runs")
    used = [timed for timed in used if precision in (None, timed.ran_on.precision)] or used
    note = _precisions(used, precision)
    joined: list[_Timed] = []
    if alike := [timed for timed in used if timed.share == share]:
        used = alike
        also = [timed for timed in of_others if timed.share == share and precision in (None, timed.ran_on.precision)]
        if of_own and not _spread(alike) and _spread([*alike, *also]):
            joined, where = also, "of this sweep and others here"
        source = f"by {plural(len(used) + len(joined), 'earlier run')} {where}{note}"
    else:
        had = f"{plural(len(used), 'earlier run')} {where} with another share of a device (now {_share_words(slot)})"
        source = f"scaled from {had}{note}"
    steps = _median_steps(used, share)
    medians = [*(_median_steps(joined, share) | steps).values()]
    fitted = _fitted(medians)
    overhead, rate = fitted or _in_proportion(slot, medians)
    measured = {work: seconds for work, (_, seconds) in steps.items()}
    start = median(timed.start_seconds for timed in used)
    proportion = "" if fitted else ", in the assumed proportion"
    return StepTimes(measured, overhead, rate, start, f"{_words(overhead, rate)}{proportion}, {source}")


def assumed_rate(slot: Slot) -> float:
    """Return the rate assumed of a slot before any record exists."""
    share = _share(slot, len(slot.indices), slot.threads, slot.sharing)
    return share.amount * ASSUMED_FLOPS_PER_SECOND[slot.device]


def goal_rate(slot: Slot) -> float:
    """Return the FLOPs that a second of a goal buys before any run has a time: a slot's on GPUs, on a CPU one core's."""
    return CORE_RATE if slot.device == "cpu" else assumed_rate(slot)


def _median_steps(used: Sequence[_Timed], share: Share) -> dict[tuple[object, ...], tuple[float, float]]:
    """FLOPs and median seconds of each kind of step."""
    of_work = grouped(used, lambda timed: timed.work)
    scaled = {work: [timed.seconds * timed.share.amount / share.amount for timed in alike] for work, alike in of_work.items()}
    return {work: (of_work[work][0].flops, median(seconds)) for work, seconds in scaled.items()}


def _spread(timed: Sequence[_Timed]) -> bool:
    """Whether FLOPs differ enough to separate overhead from rate."""
    flops = [each.flops for each in timed]
    return max(flops) >= LEAST_SPREAD * min(flops)


def _timed(record: RunRecord, slot: Slot) -> _Timed | None:
    ran_on, steps = record.environment, record.own_steps
    if ran_on is None or not record.wall_seconds or not steps or (ran_on.device == "cpu") != (slot.device == "cpu"):
        return None
    flops = record.train_flops / record.steps
    share = _share(slot, ran_on.devices, ran_on.threads, ran_on.sharing)
    seconds = seconds_per_step(record.wall_seconds, record.start_seconds, record.starts, steps)
    start = (record.start_seconds or 0.0) / (record.starts or 1)
    return _Timed(_work(record.config, flops), _that_run(record.config, flops), seconds, start, share, ran_on)


def _share(slot: Slot, devices: int, threads: int, sharing: int) -> Share:
    return Share(devices, threads if slot.device == "cpu" else 1, sharing)


def _that_run(config: RunConfig, flops_per_step: float) -> float:
    """Return the executed part of a step's `train_flops`, without a teacher."""
    return flops_per_step - config.spared_flops_per_token_with(None) * config.recipe.batch_tokens


def _work(config: RunConfig, flops_per_step: float) -> tuple[object, ...]:
    """Return what steps of equal time share."""
    recipe, length = config.recipe, config.data.sequence_length
    return config.architecture, length, recipe.batch_tokens, recipe.dropout, recipe.optimizer, f"{flops_per_step:.9g}"


def _fitted(steps: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return the overhead and rate by least squares, None where the steps do not separate them."""
    flops, seconds = np.array(steps).T
    if flops.max() < LEAST_SPREAD * flops.min():
        return None
    parts = np.column_stack([np.ones_like(flops), flops]) / seconds[:, None]
    overhead, per_flop = np.linalg.lstsq(parts, np.ones_like(flops), rcond=None)[0]
    return (float(overhead), float(1 / per_flop)) if overhead > 0 and per_flop > 0 else None


def _in_proportion(slot: Slot, steps: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the assumed overhead and rate, both slower by the median ratio of measured to assumed seconds."""
    overhead, rate = ASSUMED_SECONDS_PER_STEP[slot.device], assumed_rate(slot)
    slower = median(seconds / (overhead + flops / rate) for flops, seconds in steps)
    return overhead * slower, rate / slower


def _precisions(used: Sequence[_Timed], precision: Precision | None) -> str:
    precisions = sorted({timed.ran_on.precision for timed in used})
    missed = f", without any in {precision}" if precision not in (None, *precisions) else ""
    return f", in {' and '.join(precisions)}{missed}" if missed or len(precisions) > 1 else ""


def _words(overhead: float, rate: float) -> str:
    return f"{rate:.2g} FLOP/s a slot and {1000 * overhead:.2g} ms a step"


def _share_words(slot: Slot) -> str:
    if slot.sharing > 1:
        return f"{slot.sharing} runs per device"
    devices, threads = plural(len(slot.indices), "device"), plural(slot.threads, "thread")
    if slot.device == "cuda":
        return f"{devices} per run"
    return f"{threads} per run" if len(slot.indices) == 1 else f"{devices} of {threads} per run"
