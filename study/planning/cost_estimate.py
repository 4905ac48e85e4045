"""The cost of a sweep before anything is spent: parameters, tokens, FLOPs and expected seconds of each cell, and in words.

Tables suit a terminal of 80 columns or more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

from rich.table import Table

from study.base.grouping import grouped
from study.base.quantities import duration, plural
from study.base.terminal import narrow_table
from study.config.run_config import RunConfig
from study.config.sweep import CellSweep, GoalSweep, SearchSweep
from study.counting.memory import Precision
from study.counting.parameters import parameters
from study.executing.slots import Slot
from study.planning.cell import Cell, tunings
from study.planning.plan import Plan, parents_of, points_of
from study.planning.proposing import branching, families
from study.planning.step_times import StepTimes, step_times
from study.planning.tuning import AT_ONCE
from study.store.records import RunRecord
from study.store.run_folder import expected_flops

PRICED = ("recipe.batch_tokens", "recipe.masking.rate")
"""The knobs of a recipe that change the cost of a run."""

MOST_NAMED = 5
"""At most so many names of what is trained once are shown."""


@dataclass(frozen=True)
class CellCost:
    """The cost of each run of a cell: FLOPs and seconds are those of its `spent_tokens`, without a trunk's, on average.

    `runs_left` of its `runs` have not ended, at most that many while its best rate is sought. `other_names` are other requests
    of the sweep that train the same runs. `first_for` runs of the sweep wait for its run, from which they start or learn.
    """

    shape: str
    setting: str
    parameters: int
    parameters_non_embedding: int
    tokens: int
    spent_tokens: int
    runs: int
    runs_left: int
    train_flops: float
    expected_seconds: float
    other_names: tuple[str, ...] = ()
    first_for: int = 0


@dataclass(frozen=True)
class Sharing:
    """The FLOPs of cells that share trunks, those without sharing, and those of the largest budgets alone."""

    train_flops: float
    train_flops_alone: float
    train_flops_largest: float


@dataclass(frozen=True)
class CostEstimate:
    """The cost of a sweep, cell by cell, without the extensions of tuning; `at_most` where it may need less.

    `sharing` says what common trunks save, if the budgets agree on their best rate. Rows are those of the plan's cells; a
    search has one, that of the largest run it may try, a goal those that it is expected to choose. `unread` warns of text that
    the tokeniser does not know, `passed_over` of files that are not read; `validation_overlap_share` is None until the text is
    prepared. `earlier_question` is what the folder answered so far.
    """

    plan: Plan
    rows: tuple[CellCost, ...]
    slots: int
    basis: str
    sharing: Sharing | None = None
    at_most: bool = False
    unread: str | None = None
    passed_over: str | None = None
    validation_overlap_share: float | None = None
    earlier_question: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as plain values."""
        of_all = ("runs", "tokens", "spent_tokens", "train_flops", "expected_seconds")
        totals = {name: getattr(self, name) for name in (*of_all, "runs_left", "train_flops_left", "expected_seconds_left")}
        sharing = {} if self.sharing is None else {"sharing": asdict(self.sharing)}
        return (
            {"cells": [asdict(row) for row in self.rows], "slots": self.slots, "basis": self.basis, "at_most": self.at_most}
            | {name: getattr(self, name) for name in ("unread", "passed_over", "validation_overlap_share", "earlier_question")}
            | {"without_effect": self.plan.idle_base}
            | totals
            | sharing
            | ({"goal": self.goal_lines} if self.goal_lines else {})
        )

    @cached_property
    def goal_lines(self) -> list[str]:
        """How the runs of a goal are chosen, and what to expect."""
        if not isinstance(self.plan.spec, GoalSweep):
            return []
        return self.plan.design.lines(self.plan.design.ended(self.plan.current_records))

    @property
    def runs(self) -> int:
        """Runs of all cells."""
        return sum(row.runs for row in self.rows)

    @property
    def tokens(self) -> int:
        """Tokens that the weights of all runs will see."""
        return sum(row.tokens * row.runs for row in self.rows)

    @property
    def spent_tokens(self) -> int:
        """Tokens to train on, those of a trunk once."""
        return sum(row.spent_tokens * row.runs for row in self.rows)

    @property
    def train_flops(self) -> float:
        """FLOPs of all runs, convention train_flops."""
        return sum(row.train_flops * row.runs for row in self.rows)

    @property
    def expected_seconds(self) -> float:
        """Wall time on all slots, at least that of the longest run."""
        return self._seconds([row.runs for row in self.rows])

    @property
    def runs_left(self) -> int:
        """Runs that have not ended."""
        return sum(row.runs_left for row in self.rows)

    @property
    def train_flops_left(self) -> float:
        """FLOPs of the runs that have not ended."""
        return sum(row.train_flops * row.runs_left for row in self.rows)

    @property
    def expected_seconds_left(self) -> float:
        """Wall time of the runs that have not ended."""
        return self._seconds([row.runs_left for row in self.rows])

    def _seconds(self, runs: Sequence[int]) -> float:
        each = [(row.expected_seconds, count) for row, count in zip(self.rows, runs, strict=True) if count]
        return max([sum(seconds * count for seconds, count in each) / self.slots, *(seconds for seconds, _ in each)])


def estimate_cost(
    plan: Plan,
    slots: Sequence[Slot],
    precision: Precision | None = None,
    others: Iterable[RunRecord] = (),
) -> CostEstimate:
    """Return the cost of a sweep on these equal slots, timed by its records, else by those of `others`.

    Runs on the text of the plan with a record are done, also those of `others`; a search takes over none. `precision` is that
    of the runs, None where unknown.

    Raises InputError with every problem of its cells; the space of a search is for `Plan.check`.
    """
    others = list(others)
    times = step_times(slots[0], plan.records, others, precision)
    match plan.spec:
        case SearchSweep() as search:
            return _estimate_search(plan, search, len(slots), times)
        case CellSweep() as spec:
            return _estimate_cells(
                plan, spec, len(slots), times, [one for one in others if one.data_fingerprint in plan.texts.values()]
            )
        case GoalSweep():
            return _estimate_goal(plan, len(slots), times)


def _estimate_goal(plan: Plan, slots: int, times: StepTimes) -> CostEstimate:
    """Return the cost of ended and expected runs, by shape and budget."""
    ended = plan.design.ended(record for record in plan.current_records if _stands(record))
    shares = {place: record.spent_share for place, record in ended.items()} | plan.design.own_share(ended)
    rows = []
    for point, places in grouped(shares, lambda place: place[0]).items():
        config, left = plan.design.points[point], sum(place not in ended for place in places)
        own = round(config.steps * sum(shares[place] for place in places) / len(places))
        rows.append(_row(plan, config, own, (len(places), left), times))
    return CostEstimate(plan, tuple(rows), slots, times.basis, at_most=True)


def _estimate_search(plan: Plan, spec: SearchSweep, slots: int, times: StepTimes) -> CostEstimate:
    (example,) = plan.first_runs
    tried = sum(_stands(record) and plan.holds(record.config) for record in plan.current_records)
    trials = int(min(spec.search.trials, points_of(spec)))
    row = _row(plan, example, example.steps, (trials, max(0, trials - tried)), times)
    return CostEstimate(plan, (row,), slots, times.basis, at_most=True)


def _estimate_cells(plan: Plan, spec: CellSweep, slots: int, times: StepTimes, shared: Iterable[RunRecord]) -> CostEstimate:
    """Return the cost of cells, without `shared` records of other sweeps."""
    trunks = families(plan.cells)
    branches = branching(trunks)
    dearest = {cell.config.key: _dearest(cell) for cell in plan.cells}
    shares = _shares_on_a_trunk(trunks)
    spent = {key: run.steps - round((run.branch_step or 0) * shares.get(key, 0.0)) for key, run in dearest.items()}
    records = (*shared, *plan.current_records)
    ended = {record.config.key: record for record in records if _stands(record) and record.state != "PRUNED"}
    rows, searches = [], tunings(plan.cells, ended)
    needed = Counter(name for cell in plan.cells for name in parents_of(cell.config) for _ in range(cell.planned_runs()))
    for cell in plan.cells:
        key = cell.config.key
        runs = (cell.planned_runs(), cell.runs_left(ended, searches[key]))
        row = _row(plan, dearest[key], spent[key], runs, times)
        rows.append(replace(row, other_names=cell.other_names, first_for=needed[plan.run_id(cell.config)]))
    searched = len(spec.tune) == 1 and any(tuned.trials > AT_ONCE for tuned in spec.tune.values())
    at_most = searched or any(dearest[cell.config.key] != cell.config for cell in plan.cells)
    sharing = _sharing(plan, trunks, dearest, spent) if branches else None
    return CostEstimate(plan, tuple(rows), slots, times.basis, sharing, at_most)


def _shares_on_a_trunk(trunks: Iterable[Sequence[Cell]]) -> dict[str, float]:
    """Return the share of each cell's seeds that a longer cell of its family has, too, so that its runs branch from a trunk."""
    shares = {}
    for longest, *others in trunks:
        for cell in others:
            longer = [longest, *others[: others.index(cell)]]
            most = max((len(one.spec.seed_values) for one in longer if one.config.steps > cell.config.steps), default=0)
            shares[cell.config.key] = min(1.0, most / len(cell.spec.seed_values))
    return shares


def _sharing(
    plan: Plan, shared: list[tuple[Cell, ...]], dearest: Mapping[str, RunConfig], spent_steps: Mapping[str, int]
) -> Sharing:
    spent = alone = largest = 0.0
    for family in shared:
        for cell in family:
            run = dearest[cell.config.key]
            flops = expected_flops(run, run.steps, plan.parents) * cell.planned_runs()
            alone += flops
            spent += flops * spent_steps[cell.config.key] / run.steps
            largest += flops if cell is family[0] else 0.0
    return Sharing(spent, alone, largest)


def _dearest(cell: Cell) -> RunConfig:
    """Return the most expensive run of a cell."""
    if not any(path in PRICED or path.startswith("architecture.") for path in cell.spec.tune):
        return cell.config
    return max(cell.trials(), key=lambda run: expected_flops(run, run.steps))


def _stands(record: RunRecord) -> bool:
    """Whether a record still belongs to its run, which no launch resumes."""
    return record.config.fingerprint(record.data_fingerprint) == record.run_id and not record.met_full_disk


def _row(plan: Plan, config: RunConfig, spent_steps: int, runs: tuple[int, int], times: StepTimes) -> CellCost:
    flops = expected_flops(config, spent_steps, plan.parents)
    count = parameters(config.architecture)
    return CellCost(
        shape=config.architecture.shape_name,
        setting=config.variant(plan.spec.varied),
        parameters=count.parameters,
        parameters_non_embedding=count.parameters_non_embedding,
        tokens=config.tokens,
        spent_tokens=spent_steps * config.recipe.batch_tokens,
        runs=runs[0],
        runs_left=runs[1],
        train_flops=flops,
        expected_seconds=times.start_seconds + spent_steps * times.seconds(config, flops / spent_steps) if spent_steps else 0.0,
    )


def cost_table(question: str, cost: CostEstimate) -> Table:
    """One row for each cell, below its variant: its size and the cost of one run."""
    numbers = ("parameters", "non-embedding", "tokens", "FLOPs", "seconds", "runs")
    return narrow_table(question, ["shape"], numbers, [(row.setting, _cost_cells(row), "") for row in cost.rows])


def _cost_cells(row: CellCost) -> tuple[str, ...]:
    sizes = (f"{row.parameters:,}", f"{row.parameters_non_embedding:,}", f"{row.tokens:,}")
    return (row.shape, *sizes, f"{row.train_flops:.3g}", f"{row.expected_seconds:,.0f}", f"{row.runs}")


def cost_summary(cost: CostEstimate) -> str:
    """Return the total cost, the basis of the seconds, and what the answer cannot decide."""
    units = "Tokens, FLOPs (train_flops: the head at masked positions) and seconds are per run."
    return "\n".join(
        [
            *cost_lines(cost),
            *_sharing_line(cost),
            units,
            *cost.goal_lines,
            *_compared_lines(cost),
            *_undecided_lines(cost),
            *_heads_line(cost),
            *_extension_line(cost),
            *_scope_lines(cost),
        ]
    )


def cost_lines(cost: CostEstimate) -> list[str]:
    """Return the total cost, the basis of the seconds, and what is left to do."""
    runs = f"{'at most ' if cost.at_most else ''}{plural(cost.runs, 'run')}"
    total = f"{runs}, {cost.spent_tokens:,} tokens, {cost.train_flops:.3g} FLOPs"
    time = f"about {duration(cost.expected_seconds)} on {plural(cost.slots, 'slot')} at {cost.basis}"
    others = (_first_lines, _left_line, _text_line, _one_name_lines, _question_line)
    return [f"{total}: {time}", *chain.from_iterable(lines(cost) for lines in others)]


def _first_lines(cost: CostEstimate) -> Iterator[str]:
    """Yield the runs that the sweep trains before those that need them."""
    waiting = {cell.config.key: row.first_for for cell, row in zip(cost.plan.cells, cost.rows, strict=False)}
    for name, run in cost.plan.parents.items():
        which = f"run {name} ({run.architecture.shape_name}, {run.tokens:,} tokens)"
        yield f"Trained first: {which}; {plural(waiting[run.key], 'run')} then start from it or learn from it."


def _one_name_lines(cost: CostEstimate) -> Iterator[str]:
    shapes: dict[str, list[str]] = {}
    for row in cost.rows:
        for name in row.other_names:
            shapes.setdefault(name, []).append(row.shape)
    for name, at in islice(shapes.items(), MOST_NAMED):
        where = "" if len({*at}) == len({row.shape for row in cost.rows}) else f" ({', '.join(dict.fromkeys(at))})"
        yield f"Trained once{where}: {name}."
    if (more := len(shapes) - MOST_NAMED) > 0:
        yield f"{more:,} more are trained once; --json lists them."
    for knob, why in cost.plan.idle_base.items():
        yield f"base.{knob} has no effect: {why}. Leave it out; the runs stay the same, under other ids."


def _question_line(cost: CostEstimate) -> Iterator[str]:
    if cost.earlier_question is not None:
        remedy = "a launch replaces its answer; set another name to keep it"
        yield f"{cost.plan.spec.name} was launched with another question, {cost.earlier_question!r}; {remedy}."


def _text_line(cost: CostEstimate) -> Iterator[str]:
    """How many runs read what the corpus held before."""
    if read := cost.plan.on_other_text:
        yield f"{read}, and count for nothing here."


def _undecided_lines(cost: CostEstimate) -> Iterator[str]:
    spec = cost.plan.spec
    if not isinstance(spec, CellSweep) or len(cost.rows) == 1 or not cost.tokens:
        return
    if spec.seeds == 1:
        yield "One seed: the variation between seeds is unknown, so no difference in loss can be significant; use seeds: 3."
    if spec.seeds == 2:
        yield "Two seeds may hide that one cell varies more, so equal cells may differ significantly; use seeds: 3."
    if "recipe.learning_rate" not in {*spec.tune, *spec.vary}:
        yield (
            "One learning rate for all cells may suit some better, so the answer compares nothing (but study report "
            "--include-unbracketed does); tune: {recipe.learning_rate: …} finds the best of each."
        )


def _left_line(cost: CostEstimate) -> Iterator[str]:
    if not cost.runs_left:
        yield "Nothing is left to do: all runs have ended."
    elif cost.runs_left < cost.runs:
        runs = f"{'at most ' if cost.at_most else ''}{plural(cost.runs_left, 'run')}"
        left = f"{cost.train_flops_left:.3g} FLOPs, about {duration(cost.expected_seconds_left)}"
        yield f"Left to do, without the runs that have ended: {runs}, {left}."


def _compared_lines(cost: CostEstimate) -> Iterator[str]:
    """Yield the knobs under vary that compare nothing."""
    vary = cost.plan.spec.vary if isinstance(cost.plan.spec, CellSweep) else {}
    for knob, (first, *others) in vary.items():
        if not others:
            yield f"vary.{knob} has one value, {first}, so nothing is compared by it."


def _heads_line(cost: CostEstimate) -> Iterator[str]:
    spec = cost.plan.spec
    if not isinstance(spec, CellSweep) or not spec.iso_parameters or not spec.shapes.says_head_width:
        return
    requested = spec.shapes
    widths = {cell.config.architecture.shape_name: cell.config.architecture.head_width for cell in cost.plan.cells}
    if others := [f"{width} in {shape}" for shape, width in widths.items() if width not in requested.head_width]:
        yield (
            f"The head width is {', '.join(others)}, the nearest possible to head_width; without width_multiple, widths "
            "become multiples of head_width."
        )


def _extension_line(cost: CostEstimate) -> Iterator[str]:
    spec = cost.plan.spec
    if not isinstance(spec, CellSweep):
        return
    tuned = len(spec.tune)
    if tuned == 1:
        runs = plural(len(spec.trial_seeds), "more run")
        yield f"Not counted: {runs} for each cell whose best tuned value is at an end of its range."
    elif tuned:
        yield "Not counted: further runs of each cell until the values on both sides of its best are tried for each knob."


def _sharing_line(cost: CostEstimate) -> Iterator[str]:
    if (sharing := cost.sharing) is not None:
        times = sharing.train_flops / sharing.train_flops_largest
        yield (
            f"All budgets of a shape branch from one trunk to decay: {sharing.train_flops:.3g} FLOPs "
            f"instead of {sharing.train_flops_alone:.3g}, {times:.2f} times the cost of the largest budgets, "
            "if the budgets agree on the best rate. FLOPs and seconds of a shorter run are those of its branch."
        )


def _scope_lines(cost: CostEstimate) -> Iterator[str]:
    """Yield what the estimate leaves out of downstream scores, and what is known of the text."""
    if (downstream := cost.plan.spec.downstream) is not None:
        yield f"Not counted: the scores on {plural(len(downstream.tasks), 'task')}, made once the runs have ended."
    if cost.unread is not None:
        yield f"{cost.unread}."
    if cost.passed_over is not None:
        yield f"{cost.passed_over}."
    overlap = cost.plan.spec.data.overlap(cost.validation_overlap_share)
    yield f"{overlap or 'The launch measures how much of the validation text occurs in the training text'}."
