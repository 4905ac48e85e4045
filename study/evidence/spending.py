"""Encoders that start from or learn from other runs beside those from scratch, by their own FLOPs and by all FLOPs spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from study.base.grouping import grouped
from study.base.quantities import budget_words
from study.base.text import joined
from study.config.named_runs import NO_RUN, parse_start, parse_teacher
from study.config.run_config import describe_knobs
from study.evidence.cells import CellResult, difference_between, either_reads, measured
from study.evidence.gains import pareto
from study.evidence.paired import TestedDifference, adjust_by_holm
from study.evidence.seed_scatter import SeedVariances

OWN, SPENT = "train_flops", "spent_flops"
"""The FLOPs of a training itself, and with those of all runs that it needs."""

_RUNS = tuple(f"recipe.{knob}" for knob in NO_RUN)


@dataclass(frozen=True, kw_only=True)
class Spending(TestedDifference):
    """An encoder that `needs` other runs minus one of the same shape from `scratch`, in loss; FLOPs of both."""

    needs: str
    scratch: str
    needs_cell: str
    scratch_cell: str
    own_flops: float
    spent_flops: float
    scratch_flops: float


def spendings_of(cells: Sequence[CellResult], seeds: SeedVariances) -> tuple[Spending, ...]:
    """Every encoder that starts from or learns from other runs minus each from scratch, of one shape and all else equal.

    Budgets may differ. Only runs whose records count what they need take part.
    """
    found = []
    for members in _alike(measured(cells)):
        needing, scratch = ([cell for cell in members if bool(cell.flops_before) is needs] for needs in (True, False))
        found += [_spending(one, other, seeds) for one in needing for other in scratch]
    return adjust_by_holm(found)


def _spending(needs: CellResult, scratch: CellResult, seeds: SeedVariances) -> Spending:
    return Spending(
        needs=way(needs),
        scratch=way(scratch),
        needs_cell=needs.name,
        scratch_cell=scratch.name,
        own_flops=needs.train_flops,
        spent_flops=needs.spent_flops,
        scratch_flops=scratch.train_flops,
        difference=difference_between(needs, scratch, seeds),
        reads_order=either_reads(needs, scratch),
    )


def spending_fronts(cells: Sequence[CellResult]) -> Iterator[dict[str, tuple[CellResult, ...]]]:
    """For each shape with cells that need other runs: the Pareto fronts of loss against own FLOPs and against all spent."""
    costs: dict[str, Callable[[CellResult], float]] = {
        OWN: lambda cell: cell.train_flops,
        SPENT: lambda cell: cell.spent_flops,
    }
    for members in _alike([cell for cell in cells if cell.usable]):
        if any(cell.flops_before for cell in members):
            yield {name: tuple(pareto(members, cost)) for name, cost in costs.items()}


def _alike(cells: Sequence[CellResult]) -> list[list[CellResult]]:
    """Cells of one shape and validation set that differ in their starts, teachers and budgets only."""
    return [*grouped(cells, lambda cell: (cell.architecture, cell.validation, _others(cell))).values()]


def _others(cell: CellResult) -> str:
    return describe_knobs({name: value for name, value in cell.settings.items() if name not in _RUNS})


def way(cell: CellResult) -> str:
    """How a cell was trained, in words: from scratch, cut or grown, distilled or both, and its budget."""
    start = parse_start(str(cell.settings.get("recipe.start")))
    teacher = parse_teacher(str(cell.settings.get("recipe.teacher")))
    parts = []
    if start is not None:
        cut = f"cut to its {start.kept_words}" if cell.layers_cut else "continued"
        parts.append(cut if start.grow is None else "grown")
    if teacher is not None:
        unusual = describe_knobs(teacher.unusual)
        parts.append(f"distilled ({unusual})" if unusual else "distilled")
    return f"{joined(parts) if parts else 'from scratch'} for {budget_words(cell.budget)}"
