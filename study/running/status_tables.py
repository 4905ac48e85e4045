"""Cost estimate and status of a sweep as tables, for a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from rich.table import Table

from study.base.quantities import count_text, duration, plural
from study.base.terminal import narrow_table
from study.config.resources import Resources
from study.config.run_config import describe_run
from study.config.sweep import CellSweep
from study.planning.cost_estimate import CellCost, CostEstimate
from study.running.display import silence_note
from study.running.status import RunStatus, SweepStatus
from study.store.records import FOREIGN, READS_ORDER_NATS

MOST_NAMED = 5
"""At most so many names of what is trained once are shown."""


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


def executed_lines(resources: Resources) -> list[str]:
    """Return the shell lines and sbatch options that a sweep file gives every job."""
    shown = {
        "Every Slurm job first executes these lines of the sweep file as you:": resources.executed,
        "Every Slurm job has these options of the sweep file, which may run programs, too:": resources.sbatch_options,
    }
    return [line for heading, lines in shown.items() if lines for line in (heading, *(f"  {line}" for line in lines))]


def _undecided_lines(cost: CostEstimate) -> Iterator[str]:
    spec = cost.plan.spec
    if not isinstance(spec, CellSweep) or len(cost.rows) == 1 or not cost.tokens:
        return
    if spec.seeds == 1:
        yield "One seed: the variation between seeds is unknown, so no difference in loss can be significant; use seeds: 3."
    if spec.seeds == 2:
        yield "Two seeds may hide that one cell varies more, so equal cells may differ significantly; use seeds: 3."
    if "recipe.learning_rate" not in {*spec.tune, *spec.vary}:
        yield "One learning rate for all cells may suit some better; tune: {recipe.learning_rate: …} finds the best of each."


def _left_line(cost: CostEstimate) -> Iterator[str]:
    if not cost.runs_left:
        yield "Nothing is left to do: all runs have ended."
    elif cost.runs_left < cost.runs:
        runs = f"{'at most ' if cost.at_most else ''}{plural(cost.runs_left, 'run')}"
        left = f"{cost.train_flops_left:.3g} FLOPs, about {duration(cost.expected_seconds_left)}"
        yield f"Left to do, without the runs that have ended: {runs}, {left}."


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


MOST_LISTED = 200
"""Of more runs the status lists only those that need attention and fit the screen."""


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
