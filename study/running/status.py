"""The state of a sweep, read from its folder alone, and as a table for a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, get_args

from rich.table import Table

from study.base.errors import InputError, Problem, map_readable, warn_of
from study.base.machine import garbage_collection_paused
from study.base.quantities import count_text, duration, plural
from study.base.terminal import narrow_table
from study.config.run_config import RunConfig, describe_run
from study.executing.slots import Slot
from study.planning.cost_estimate import CostEstimate, estimate_cost
from study.planning.plan import plan_of
from study.running.display import Signs, signs_of, silence_note
from study.store.ownership import has_owner, is_held
from study.store.records import FOREIGN, READS_ORDER_NATS, RunRecord, State, validation_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import newest_values

ANY_SLOT = Slot("cpu", (0,), threads=1)
"""A slot for cost estimates whose seconds do not matter."""

MOST_LISTED = 200
"""Of more runs the status lists only those that need attention and fit the screen."""


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


def status_table(state: SweepStatus, runs: Sequence[RunStatus] | None = None) -> Table:
    """One row for each run, below its cell: its state, and the reason where fits exclude it.

    `order` is what word order is worth to its loss, in nats.
    """
    who = f"run by process {state.coordinator['pid']}" if state.coordinator else "not running"
    scored = ", being scored" if state.scored else ""
    title = f"{state.name}: {plural(len(state.own), 'run')} started, {state.count('COMPLETED')} completed, {who}{scored}"
    several_budgets = len({run.target_tokens for run in state.runs}) > 1
    rows = [
        (_cell_words(run, several_budgets), _status_cells(run), note_on(run)) for run in (state.runs if runs is None else runs)
    ]
    return narrow_table(title, ("run", "state"), ("rate", "seed", "nats", "order", "tokens/s", "MFU", "left"), rows)


def _cell_words(run: RunStatus, with_budget: bool) -> str:
    """Return what a cell's runs share, such as `L2-H128-A2-F512 norm=pre, 10M tokens`."""
    name = " ".join(filter(None, (run.shape, run.setting)))
    return f"{name}, {count_text(run.target_tokens)} tokens" if with_budget else name


def _status_cells(run: RunStatus) -> tuple[str, ...]:
    return (
        run.run_id,
        run.state if run.state == "COMPLETED" else f"{run.state} {run.done:.0%}",
        f"{run.learning_rate:g}",
        f"{run.seed}",
        "" if run.loss_nats is None else f"{run.loss_nats:.4f}",
        "" if run.order_gain_nats is None else f"{run.order_gain_nats:.3f}",
        "" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}",
        "" if run.mfu is None else f"{run.mfu:.1%}",
        "" if run.seconds_left is None else duration(run.seconds_left),
    )


def status_summary(state: SweepStatus) -> str:
    """Summarise runs by state, the best so far, and what is spent and left."""
    silent = sum(run.silent for run in state.own)
    counts_by_state = {name: f"{count} {name}" for name, count in state.counts.items()}
    if silent:
        counts_by_state["running"] += f" ({silent} silent)"
    counts = ", ".join(counts_by_state.values()) or "no run has started"
    more = len(state.own) - (state.planned_runs or 0)
    bound = "at most " if state.at_most and more <= 0 else ""
    of = f" of {bound or 'about '}{state.planned_runs} planned" if more <= 0 else f", {more:,} more than planned"
    planned = "" if state.planned_runs is None else of
    others = len(state.runs) - len(state.own)
    earlier = f" {plural(others, 'run')} more of earlier launches, {FOREIGN}." if others else ""
    lines = [f"{counts}{planned}.{earlier}", *([f"{state.on_other_text}."] if state.on_other_text else [])]
    on = f" on one of {len(state.best)} validation sets, between which losses do not compare" if len(state.best) > 1 else ""
    for best in state.best:
        name = describe_run(best.shape, best.setting, best.learning_rate, best.seed)
        lines.append(f"Best so far{on}: {best.loss_nats:.4f} nats, {name} (run {best.run_id}).")
    if state.unread:
        read = "reads" if len(state.unread) == 1 else "read"
        of = f"{len(state.unread)} of {plural(state.count('COMPLETED'), 'completed run')}"
        lines.append(f"{of} {read} no word order (no gain above {READS_ORDER_NATS:g} nats beyond chance): only bags of words.")
    spent = f"Spent: {state.spent_flops:.3g} FLOPs (train_flops)"
    left = "" if state.remaining_flops is None else f"; left: {bound}{state.remaining_flops:.3g}"
    time = "" if state.seconds_left is None else f", about {duration(state.seconds_left)} at this speed"
    return "\n".join([*lines, f"{spent}{left}{time}."])


def watched(state: SweepStatus, rows: int) -> tuple[Table, str, str]:
    """Tabulate runs that need attention in at most so many rows, with the summary and a note on the others."""
    notable = (*state.running, *state.left_out, *(run for run in state.runs if run.spiked))
    shown = tuple({run.run_id: run for run in notable}.values())
    for count in range(min(len(shown), rows), -1, -1):
        table = status_table(state, shown[:count])
        if table.row_count <= rows:
            break
    more = len(state.runs) - count
    note = f"{plural(more, 'run')} more: study status --all" if more else ""
    return table, status_summary(state), note


def note_on(run: RunStatus) -> str:
    """Return a note on a run: why fits exclude it, that it is silent, or that its loss spiked."""
    return run.reason or silence_note(run.signs) or run.spiked or ""
