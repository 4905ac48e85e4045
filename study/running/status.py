"""The state of a sweep, read from its folder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, get_args

from study.base.errors import InputError, Problem, map_readable, warn_of
from study.base.machine import garbage_collection_paused
from study.config.run_config import RunConfig
from study.executing.slots import Slot
from study.planning.cost_estimate import CostEstimate, estimate_cost
from study.planning.plan import plan_of
from study.running.display import Signs, signs_of
from study.store.ownership import has_owner, is_held
from study.store.records import FOREIGN, RunRecord, State, validation_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import newest_values

ANY_SLOT = Slot("cpu", (0,), threads=1)
"""A slot for cost estimates whose seconds do not matter."""


@dataclass(frozen=True)
class RunStatus:
    """The state of one run: that of its record, else `running`, `waiting` or `stopped`.

    A run without a record is `waiting` while a launch holds the sweep. `tokens` are done so far; the run itself trained
    `spent_tokens` of them for `train_flops`, and its trunk the others. `order_gain_nats` is what word order is worth so far,
    `reads_order` whether an ended run uses it (RunRecord.reads_order). `seconds_left` follows the speed of the last row, None
    for a silent run. `validation` names the validation set and masks of an ended run. `signs` are those of a running one.
    """

    run_id: str
    shape: str
    setting: str
    learning_rate: float
    seed: int
    state: str
    tokens: int
    spent_tokens: int
    target_tokens: int
    train_flops: float
    loss_nats: float | None
    order_gain_nats: float | None
    tokens_per_second: float | None
    mfu: float | None
    seconds_left: float | None
    attempts: int
    reason: str | None
    validation: str | None = None
    reads_order: bool | None = None
    spiked: str | None = None
    signs: Signs | None = None

    @property
    def done(self) -> float:
        """The share of its tokens that is done."""
        return self.tokens / self.target_tokens if self.target_tokens else float(self.state == "COMPLETED")

    @property
    def silent(self) -> bool:
        """Whether it is running and has logged nothing for unusually long."""
        return self.signs is not None and self.signs.silent

    def to_dict(self) -> dict[str, Any]:
        """Return the status as plain values."""
        values = asdict(self)
        signs = values.pop("signs") or dict.fromkeys(Signs.__dataclass_fields__)
        return values | signs | {"silent": self.silent}


@dataclass(frozen=True)
class SweepStatus:
    """The state of a sweep: its runs, the process that coordinates it, if any, and whether it is being scored.

    `remaining_flops` bounds what the cells still need, 0 once they are done; extensions of the learning-rate range are not in
    it. It is None where the sweep file cannot be read. `at_most` says that a search may end with fewer runs. `unreadable` says
    which runs cannot be read, and why, `on_other_text` how many runs read what the corpus held before.
    """

    name: str
    coordinator: Mapping[str, Any] | None
    runs: tuple[RunStatus, ...]
    planned_runs: int | None = None
    remaining_flops: float | None = None
    at_most: bool = False
    scored: bool = False
    unreadable: tuple[Problem, ...] = ()
    on_other_text: str = ""

    @property
    def own(self) -> tuple[RunStatus, ...]:
        """The runs of the sweep as it is now."""
        return tuple(run for run in self.runs if run.reason != FOREIGN)

    def count(self, state: str) -> int:
        """Count the current runs of the sweep in a state."""
        return sum(run.state == state for run in self.own)

    @property
    def counts(self) -> dict[str, int]:
        """Current runs of the sweep by state."""
        return {state: self.count(state) for state in sorted({run.state for run in self.own})}

    @property
    def running(self) -> tuple[RunStatus, ...]:
        """The runs in training."""
        return tuple(run for run in self.runs if run.state == "running")

    @property
    def left_out(self) -> tuple[RunStatus, ...]:
        """The runs that fits exclude."""
        return tuple(run for run in self.runs if run.reason is not None)

    @property
    def unread(self) -> tuple[RunStatus, ...]:
        """The completed runs that do not use word order."""
        return tuple(run for run in self.own if run.state == "COMPLETED" and run.reads_order is False)

    @property
    def best(self) -> tuple[RunStatus, ...]:
        """The completed run of lowest loss on each validation set."""
        best: dict[str | None, RunStatus] = {}
        usable = [run for run in self.runs if run.state == "COMPLETED" and run.reason is None and run.loss_nats is not None]
        for run in sorted(usable, key=lambda run: run.loss_nats or 0.0):
            best.setdefault(run.validation, run)
        return tuple(best.values())

    @property
    def spent_flops(self) -> float:
        """FLOPs of all runs so far, convention train_flops."""
        return sum(run.train_flops for run in self.runs)

    @property
    def seconds_left(self) -> float | None:
        """The remaining time at the speed of the running runs, if any."""
        if self.remaining_flops is None:
            return None
        moving = (
            run for run in self.running if run.reason is None and run.spent_tokens and run.tokens_per_second and not run.silent
        )
        per_token = ((run, run.train_flops / run.spent_tokens) for run in moving)
        speed = sum((run.tokens_per_second or 0.0) * flops for run, flops in per_token)
        return self.remaining_flops / speed if speed else None

    def to_dict(self) -> dict[str, Any]:
        """Return the status as plain values."""
        return {
            "sweep": self.name,
            "coordinator": self.coordinator,
            "scored": self.scored,
            "counts": self.counts,
            "of_earlier_launches": len(self.runs) - len(self.own),
            "on_other_text": self.on_other_text,
            "planned_runs": self.planned_runs,
            "at_most": self.at_most,
            "best": [run.run_id for run in self.best],
            "read_no_order": [run.run_id for run in self.unread],
            "spent_flops": self.spent_flops,
            "remaining_flops": self.remaining_flops,
            "seconds_left": self.seconds_left,
            "unreadable": [str(problem) for problem in self.unreadable],
            "runs": [run.to_dict() for run in self.runs],
        }


@dataclass(frozen=True)
class _Seen:
    """A run's record, else whether a process trains it in its `home`."""

    run_id: str
    home: RunFolder
    config: RunConfig
    record: RunRecord | None
    trained: bool


@garbage_collection_paused()  # collecting would walk all runs read so far again and again, and none of them is garbage
def status(folder: SweepFolder) -> SweepStatus:
    """Read the state of a sweep and of its runs."""
    coordinator = folder.launching.holder() if is_held(folder.launching) else None
    varied = _varied(folder)
    readable, problems = map_readable(partial(_seen, folder), folder.runs())
    warn_of(problems)
    unreadable = tuple(problems)
    seen = sorted(readable, key=lambda one: _in_order(one.config, varied))
    now = _now(folder, [one.record for one in seen if one.record is not None])
    idle = "waiting" if coordinator is not None else "stopped"
    runs = tuple(
        _run_status(one, varied, idle, now is not None and not now.plan.has_run(one.run_id, one.config)) for one in seen
    )
    scored = is_held(folder.scoring)
    if now is None:
        return SweepStatus(folder.name, coordinator, runs, scored=scored, unreadable=unreadable)
    begun_flops = sum(run.train_flops for run in runs if run.state not in get_args(State) and run.reason != FOREIGN)
    left = max(0.0, now.train_flops_left - begun_flops)
    return SweepStatus(folder.name, coordinator, runs, now.runs, left, now.at_most, scored, unreadable, now.plan.on_other_text)


def _seen(folder: SweepFolder, run: RunFolder) -> _Seen:
    record, home = run.record(), folder.home(run.run_id)
    trained = record is None and has_owner(home)
    if record is None and not trained:
        record = run.record()
    return _Seen(run.run_id, home, run.config() if record is None else record.config, record, trained)


def _varied(folder: SweepFolder) -> tuple[str, ...]:
    try:
        return folder.distinguishing_knobs()
    except InputError:
        return ()


def _in_order(config: RunConfig, varied: Sequence[str]) -> tuple[tuple[int, ...], str, int, float, int]:
    return config.architecture.sizes, config.variant(varied), config.tokens, config.recipe.learning_rate, config.seed


def _run_status(seen: _Seen, varied: Sequence[str], idle: str, foreign: bool) -> RunStatus:
    record, config = seen.record, seen.config
    rows = seen.home.newest_rows() if record is None else []
    done = _done_by_rows(seen, newest_values(rows)) if record is None else _done_by_record(record)
    state: str = record.state if record else "running" if seen.trained else "stopped" if foreign else idle
    signs = signs_of(seen.home, rows) if state == "running" else None
    gets_on, speed = signs is not None and not signs.silent, done["tokens_per_second"]
    return RunStatus(
        run_id=seen.run_id,
        shape=config.architecture.shape_name,
        setting=config.variant(varied),
        learning_rate=config.recipe.learning_rate,
        seed=config.seed,
        state=state,
        target_tokens=config.tokens,
        seconds_left=(config.tokens - done["tokens"]) / speed if gets_on and speed else None,
        attempts=record.attempts if record else seen.home.attempts(),
        reason=FOREIGN if foreign else record.exclusion if record else None,
        validation=validation_of(config, record.data_fingerprint) if record else None,
        reads_order=record.reads_order if record else None,
        spiked=record.spike_note if record else None,
        signs=signs,
        **done,
    )


def _done_by_record(record: RunRecord) -> dict[str, Any]:
    return {
        "tokens": record.tokens,
        "spent_tokens": record.tokens if record.spent_tokens is None else record.spent_tokens,
        "train_flops": record.train_flops * record.spent_share,
        "loss_nats": record.loss_nats,
        "order_gain_nats": record.order_gain_nats,
        "tokens_per_second": record.tokens_per_second,
        "mfu": None,
    }


def _done_by_rows(seen: _Seen, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's progress by its newest metrics, counted from step 0."""
    tokens = values.get("trainer/tokens", 0)
    spent_tokens = seen.home.spent(tokens, seen.config.recipe.batch_tokens)["spent_tokens"]
    return {
        "tokens": tokens,
        "spent_tokens": spent_tokens,
        "train_flops": values.get("trainer/flops", 0.0) * spent_tokens / max(1, tokens),
        "loss_nats": values.get("val/loss"),
        "order_gain_nats": values.get("val/order_gain"),
        "tokens_per_second": values.get("perf/tokens_per_second"),
        "mfu": values.get("perf/mfu"),
    }


def _now(folder: SweepFolder, records: Sequence[RunRecord]) -> CostEstimate | None:
    """Return the cost estimate of the sweep, None where a launch would refuse the file."""
    try:
        return estimate_cost(plan_of(folder, records), [ANY_SLOT])
    except InputError:
        return None
