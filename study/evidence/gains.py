"""Loss differences from larger sizes, more tokens, cut layers and other runs; Pareto fronts of loss against size and FLOPs.

Encoders that start from or learn from other runs stand beside those from scratch by their own FLOPs and by all FLOPs spent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import inf, log2
from pathlib import Path

import numpy as np

from study.base.grouping import grouped
from study.base.quantities import budget_words
from study.base.statistics import CONFIDENCE
from study.base.text import joined, shape_and_variant
from study.config.named_runs import NO_RUN, parse_start, parse_teacher
from study.config.recipe import Budget
from study.config.run_config import describe_knobs
from study.evidence.cells import (
    CellResult,
    both_read,
    difference_between,
    documents_of,
    either_reads,
    measured,
    variances_over_seeds,
)
from study.evidence.paired import Contrast, Difference, TestedDifference, adjust_by_holm, contrast, holm, holm_levels
from study.evidence.seed_scatter import SeedVariances

START = "recipe.start"
"""Ledger column: the run, and its layers, that supply a run's initial weights."""

Triple = tuple[CellResult, CellResult, CellResult]
"""Cells of one shape at three neighbouring budgets, fewest tokens first."""

_HELD: dict[str, Callable[[CellResult], tuple[float, ...]]] = {
    "depth": lambda cell: (cell.architecture.width, cell.architecture.heads, cell.architecture.ffn),
    "width": lambda cell: (cell.architecture.depth, cell.architecture.ffn / cell.architecture.width),
    "ffn": lambda cell: (cell.architecture.depth, cell.architecture.width, cell.architecture.heads),
}
"""What two cells that differ in one size share; the FFN keeps its ratio to the width. For heads see gains_of."""

OWN, SPENT = "train_flops", "spent_flops"
"""The FLOPs of a training itself, and with those of all runs that it needs."""

_KNOBS_OF_RUNS = tuple(f"recipe.{knob}" for knob in NO_RUN)


@dataclass(frozen=True, kw_only=True)
class Gain(TestedDifference):
    """Two neighbouring cells that differ in one size: larger minus smaller, in loss and in `parameters_encoder`."""

    axis: str
    smaller: str
    larger: str
    smaller_cell: str
    larger_cell: str
    budget: str
    setting: str
    parameters_added: int

    @property
    def of_shapes(self) -> bool:
        """Two shapes, always."""
        return True

    @property
    def step(self) -> str:
        """The step in words."""
        return f"{self.axis} from {self.smaller} to {shape_and_variant(self.larger, self.setting)} at {self.budget}"

    @property
    def nats_lowered_per_million(self) -> float:
        """Loss reduction per million added encoder parameters, in nats per masked token."""
        return -self.difference.estimate_nats / (self.parameters_added / 1e6)


def gains_of(cells: Sequence[CellResult], seeds: SeedVariances) -> tuple[Gain, ...]:
    """Every step to the next larger depth, width or FFN, all else equal, ranked by loss reduction per added parameter.

    The FFN grows in proportion to the width, and heads follow the shapes; if a width has several numbers of heads, steps in
    width keep the heads. Steps that add no parameters (depth with shared layers) are left out.
    """
    usable = measured(cells)
    gains = [_gain(axis, *step, seeds) for axis in _HELD for step in _neighbours(axis, usable)]
    gains = [gain for gain in gains if gain.parameters_added > 0]
    return adjust_by_holm(sorted(gains, key=lambda gain: -gain.nats_lowered_per_million))


def pareto_front(
    cells: Sequence[CellResult], size: Callable[[CellResult], float] = lambda cell: cell.parameters
) -> tuple[CellResult, ...]:
    """Return the cells of each budget and validation set that no other beats in `size` and loss.

    Fewest tokens first; within a budget, sizes rise and losses fall.
    """
    usable = sorted((cell for cell in cells if cell.usable), key=lambda cell: cell.tokens)
    groups = grouped(usable, lambda cell: (cell.budget, cell.validation))
    return tuple(chain.from_iterable(pareto(members, size) for members in groups.values()))


def flops_fronts(cells: Sequence[CellResult]) -> tuple[tuple[CellResult, ...], ...]:
    """For each shape and variant, ignoring the teacher, the Pareto front of loss against `train_flops`.

    Only if teachers give equal tokens different FLOPs.
    """

    def except_teacher(cell: CellResult) -> tuple[object, ...]:
        return cell.architecture, cell.validation, cell.variant_without("recipe.teacher")

    return tuple(
        tuple(pareto(members, lambda cell: cell.train_flops))
        for members in grouped((cell for cell in cells if cell.usable), except_teacher).values()
        if len({cell.tokens for cell in members}) < len({(cell.tokens, cell.train_flops) for cell in members})
    )


def pareto(cells: Sequence[CellResult], cost: Callable[[CellResult], float]) -> Iterator[CellResult]:
    """Yield the cells that no other beats in cost and loss; costs rise and losses fall."""
    lowest = inf
    for cell in sorted(cells, key=lambda cell: (cost(cell), cell.losses.mean())):
        if (loss := cell.losses.mean()) < lowest:
            lowest = loss
            yield cell


def _neighbours(axis: str, cells: Sequence[CellResult]) -> Iterator[tuple[CellResult, CellResult]]:
    ladders = grouped(cells, lambda cell: (cell.setting, cell.budget, _HELD[axis](cell)))
    for ladder in [part for whole in ladders.values() for part in _by_heads(axis, whole)]:
        ladder.sort(key=lambda cell: (_size(axis, cell), cell.name))
        yield from ((one, two) for one, two in pairwise(ladder) if _size(axis, one) < _size(axis, two))


def _by_heads(axis: str, ladder: list[CellResult]) -> list[list[CellResult]]:
    """One ladder if each size has one number of heads, else one per number."""
    rungs = {(_size(axis, cell), cell.architecture.heads) for cell in ladder}
    if len(rungs) == len({size for size, _ in rungs}):
        return [ladder]
    numbers = sorted({heads for _, heads in rungs})
    return [[cell for cell in ladder if cell.architecture.heads == heads] for heads in numbers]


def _size(axis: str, cell: CellResult) -> int:
    size: int = getattr(cell.architecture, axis)
    return size


def _gain(axis: str, smaller: CellResult, larger: CellResult, seeds: SeedVariances) -> Gain:
    return Gain(
        axis=axis,
        smaller=smaller.architecture.shape_name,
        larger=larger.architecture.shape_name,
        smaller_cell=smaller.name,
        larger_cell=larger.name,
        budget=budget_words(smaller.budget),
        setting=smaller.setting,
        parameters_added=larger.parameters_encoder - smaller.parameters_encoder,
        difference=difference_between(larger, smaller, seeds),
        reads_order=both_read(larger, smaller),
    )


@dataclass(frozen=True, kw_only=True)
class TokenGain(TestedDifference):
    """One shape at two neighbouring budgets, `shorter` and `longer` as given: longer minus shorter in loss.

    Seeds count as independent, which is conservative for a shared trunk.
    """

    shape: str
    setting: str
    shorter: str
    longer: str
    fewer_tokens: int
    more_tokens: int

    @property
    def step(self) -> str:
        """The step in words."""
        return f"{shape_and_variant(self.shape, self.setting)} from {self.shorter} to {self.longer}"

    @property
    def nats_lowered_per_doubling(self) -> float:
        """Loss reduction per doubling of the tokens, in nats per masked token."""
        return -self.difference.estimate_nats / log2(self.more_tokens / self.fewer_tokens)


@dataclass(frozen=True)
class Rise:
    """Two neighbouring steps in tokens of one shape: gain per doubling in the later minus the earlier.

    Under E + B·D^−beta each doubling gains less: a significantly positive `nats_per_doubling` excludes such a law, if each cell
    has its best learning rate. Interval and `p_value_holm` are adjusted over the sweep.
    """

    earlier: TokenGain
    later: TokenGain
    nats_per_doubling: Contrast
    p_value_holm: float | None = None

    @property
    def decided(self) -> bool:
        """Whether the later step gains significantly more per doubling."""
        return self.nats_per_doubling.estimate > 0 and self.p_value_holm is not None and self.p_value_holm < 1 - CONFIDENCE


def token_gains_of(cells: Sequence[CellResult], seeds: SeedVariances) -> tuple[TokenGain, ...]:
    """Every step of a shape to the next larger number of tokens, all else equal."""
    return adjust_by_holm([_token_gain(fewer, more, seeds) for ladder in _ladders(cells) for fewer, more in pairwise(ladder)])


def rises_of(cells: Sequence[CellResult], seeds: SeedVariances) -> tuple[Rise, ...]:
    """Every two neighbouring steps in tokens of a shape."""
    steps: list[tuple[TokenGain, TokenGain]] = []
    triples: list[Triple] = []
    for ladder in _ladders(cells):
        steps += pairwise([_token_gain(fewer, more, seeds) for fewer, more in pairwise(ladder)])
        triples += zip(ladder, ladder[1:], ladder[2:], strict=False)
    p_values = [_rise(three, seeds).p_value for three in triples]
    levels = (1 - CONFIDENCE if level is None else level for level in holm_levels(p_values))
    contrasts = (_rise(three, seeds, 1 - level) for three, level in zip(triples, levels, strict=True))
    tested = zip(steps, contrasts, holm(p_values), strict=True)
    return tuple(Rise(earlier, later, nats, p_value) for (earlier, later), nats, p_value in tested)


def _ladders(cells: Sequence[CellResult]) -> Iterator[list[CellResult]]:
    """Yield the cells of each shape and variant, one per number of tokens."""
    for members in grouped(measured(cells), lambda cell: (cell.setting, cell.architecture)).values():
        yield [first for _, (first, *_) in sorted(grouped(members, lambda cell: cell.tokens).items())]


def _token_gain(fewer: CellResult, more: CellResult, seeds: SeedVariances) -> TokenGain:
    return TokenGain(
        shape=fewer.architecture.shape_name,
        setting=fewer.setting,
        shorter=budget_words(fewer.budget),
        longer=budget_words(more.budget),
        fewer_tokens=fewer.tokens,
        more_tokens=more.tokens,
        difference=difference_between(more, fewer, seeds),
    )


def _rise(ladder: tuple[CellResult, CellResult, CellResult], seeds: SeedVariances, confidence: float = CONFIDENCE) -> Contrast:
    """Return the later gain per doubling minus the earlier."""
    few, more, most = (log2(cell.tokens) for cell in ladder)
    earlier, later = 1 / (more - few), 1 / (most - more)
    weights = np.array([-earlier, earlier + later, -later])
    losses = [cell.losses for cell in ladder]
    return contrast(weights, losses, variances_over_seeds(ladder, seeds), documents_of(ladder), confidence)


@dataclass(frozen=True)
class Cut:
    """An encoder initialised without `layers` of a trained one, minus the one initialised with all, at equal budgets.

    The interval is for this pair alone.
    """

    whole: str
    cut: str
    budget: str
    layers: int
    parameters_saved: int
    difference: Difference


def cuts_of(cells: Sequence[CellResult], seeds: SeedVariances) -> tuple[Cut, ...]:
    """Every cell initialised from part of a run's layers, minus that from all; fewest tokens first, then fewest cut layers."""
    usable = measured(cells)
    whole = {_lineage(cell): cell for cell in usable if cell.layers_cut == 0}
    cut = [(whole[_lineage(cell)], cell) for cell in usable if cell.layers_cut and _lineage(cell) in whole]
    return tuple(_cut(*pair, seeds) for pair in sorted(cut, key=lambda pair: (pair[0].tokens, pair[1].layers_cut)))


def under_every_start(shown: Sequence[CellResult], cells: Sequence[CellResult]) -> Iterator[CellResult]:
    """Yield the cells shown; one with all layers of a run appears under every start from it."""
    started = grouped((cell for cell in cells if cell.layers_cut is not None), _lineage)
    for cell in shown:
        if cell.layers_cut != 0 or START not in cell.settings:
            yield cell
            continue
        for start in dict.fromkeys(other.settings[START] for other in started[_lineage(cell)]):
            yield replace(cell, settings={**cell.settings, START: start})


def _cut(whole: CellResult, cell: CellResult, seeds: SeedVariances) -> Cut:
    return Cut(
        whole=whole.words,
        cut=cell.words,
        budget=budget_words(cell.budget),
        layers=cell.layers_cut or 0,
        parameters_saved=whole.parameters_encoder - cell.parameters_encoder,
        difference=difference_between(cell, whole, seeds),
    )


def _lineage(cell: CellResult) -> tuple[Path | None, str, Budget, str]:
    """Return what starts from one run share."""
    start = parse_start(str(cell.settings.get(START)))
    return None if start is None else start.folder, cell.variant_without(START), cell.budget, cell.validation


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
    """Every encoder that needs other runs minus each from scratch, all else equal.

    Budgets may differ. Only runs whose records count what they need take part.
    """
    spendings = []
    for members in _alike(measured(cells)):
        needing, scratch = ([cell for cell in members if bool(cell.flops_before) is needs] for needs in (True, False))
        spendings += [_spending(one, other, seeds) for one in needing for other in scratch]
    return adjust_by_holm(spendings)


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
    """For each shape that needs other runs, the Pareto fronts of loss against own FLOPs and all spent."""
    costs: dict[str, Callable[[CellResult], float]] = {
        OWN: lambda cell: cell.train_flops,
        SPENT: lambda cell: cell.spent_flops,
    }
    for members in _alike([cell for cell in cells if cell.usable]):
        if any(cell.flops_before for cell in members):
            yield {name: tuple(pareto(members, cost)) for name, cost in costs.items()}


def _alike(cells: Sequence[CellResult]) -> list[list[CellResult]]:
    """Cells of one shape and validation set that differ only in starts, teachers and budgets."""
    return [*grouped(cells, lambda cell: (cell.architecture, cell.validation, _others(cell))).values()]


def _others(cell: CellResult) -> str:
    return describe_knobs({name: value for name, value in cell.settings.items() if name not in _KNOBS_OF_RUNS})


def way(cell: CellResult) -> str:
    """How a cell was trained, in words, with its budget."""
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
