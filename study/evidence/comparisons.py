"""Which of two shapes of equal parameters, or of two variants of one shape or size, has the lower loss: one verdict a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Literal

from study.base.quantities import EQUAL_WITHIN
from study.base.text import status_words
from study.config.recipe import Budget
from study.counting.architecture import Architecture
from study.evidence.cells import CellResult, both_read, difference_between, either_reads, scatter_of_cells, seed_variances
from study.evidence.families import Family, ffn_ratio
from study.evidence.paired import TestedDifference, adjust_by_holm, seeds_that_would_decide, sequences_that_would_decide
from study.evidence.seed_scatter import ALIKE_ABOVE, SeedScatter, SeedVariances

Size = Literal["depth", "width", "ffn", "heads"]

Equal = Literal["parameters", "depth and parameters", "depth, width and parameters", "depth, FFN ratio and parameters", "shape"]

WEIGHED: tuple[Size, ...] = ("depth", "width", "ffn", "heads")
"""The sizes of a shape, those first that name what a pair weighs: of a pair that differs in depth, the depth."""

EQUAL_BUDGETS_WITHIN = 0.01
"""Cells of one budget are compared where their whole steps have spent as much of it within this."""

METHOD = (
    "Loss of the deeper shape (of one depth the wider, else that of the larger FFN, else of more heads) minus that of the "
    f"other, at equal budgets and non-embedding parameters within {EQUAL_WITHIN:.0%} of one size; or of one shape, or depth "
    "and equal parameters (and width, or FFN ratio, where a variant has several shapes), that of a variant minus that of one "
    "before it in the sweep file. A budget pays for whole steps; "
    f"what they spend is equal within {EQUAL_BUDGETS_WITHIN:.0%}. Estimate: mean over the "
    "shared validation sequences of the seed-averaged difference per masked token. Variance: over paired sequences, those of "
    "one document together where runs say which it is (Cameron and Miller 2015), plus over seeds. That over seeds is one for "
    "all cells of a budget and about as many tokens, where they scatter alike (Bartlett's p "
    f"above {ALIKE_ABOVE:.0%}), else of each cell its own; seeds are taken as independent between cells. 95% intervals "
    "of the sum of two Student's variables, of the sequences and of the seeds (Behrens and Fisher), one pair at a time; a pair "
    "is decided where Holm's adjusted p, over all pairs, is below 5%. The seeds that chose the learning rate, a third of the "
    "sweep's or fewer, are among them, which makes the loss too low, by the more the wider the seeds of a cell scatter. "
    "Intervals are of the chosen rates, and say nothing of a better one that those seeds passed over. There is no verdict on "
    "shapes of which one reads no word order, nor on variants of which neither does."
)


@dataclass(frozen=True, kw_only=True)
class Pair(TestedDifference):
    """Two shapes, or two variants, and the loss of the first minus that of the second.

    `weighs` is, for shapes, the first of WEIGHED in which they differ, of which the first shape has more; for variants, the
    column in which they differ. `equal` is what both share.
    """

    weighs: str
    equal: Equal
    first: str
    second: str

    @property
    def of_shapes(self) -> bool:
        """Whether two shapes are compared, not two variants."""
        return self.weighs in WEIGHED

    @property
    def first_is_lower(self) -> bool:
        """Whether the first one's estimated loss is the lower one."""
        return self.difference.estimate_nats < 0

    @property
    def lower(self) -> str:
        """The shape or the variant whose estimated loss is lower."""
        return self.first if self.first_is_lower else self.second

    @property
    def sides(self) -> str:
        """What is subtracted from what."""
        return f"{self.first} − {self.second}"


@dataclass(frozen=True, kw_only=True)
class Comparison(Pair):
    """One pair of shapes, or of variants of a shape, in one family at one `budget`.

    `against` is the first of WEIGHED of which the second shape has more, None where there is none, and for variants. The last
    two fields say what would decide an undecided pair if its estimate were true; None where that alone would not.
    """

    family: str
    first_cell: str
    second_cell: str
    against: Size | None
    budget: Budget
    seeds_that_would_decide: int | None = None
    sequences_that_would_decide: int | None = None


@dataclass(frozen=True)
class LeftOut:
    """A cell that a comparison leaves out, and why; `shape` names its variant where variants would be compared."""

    cell: str
    shape: str
    family: str
    reason: str


@dataclass(frozen=True)
class Comparisons:
    """All pairs of a sweep; `reason` says why there are none of shapes where there are none."""

    pairs: tuple[Comparison, ...]
    left_out: tuple[LeftOut, ...]
    seed_scatter: tuple[SeedScatter, ...]
    reason: str | None

    @cached_property
    def seed_variances(self) -> SeedVariances:
        """The seed variance of each cell that has one, by the cell's name."""
        return seed_variances(self.seed_scatter)

    @cached_property
    def seed_variances_beside_other_budgets(self) -> SeedVariances:
        """Those of differences between budgets."""
        return {name: variance for pool in self.seed_scatter for name, variance in pool.beside_other_budgets.items()}

    @property
    def compared(self) -> frozenset[str]:
        """The names of the cells that are in any pair."""
        return frozenset(name for pair in self.pairs for name in (pair.first_cell, pair.second_cell))

    @property
    def weigh_depth_or_width(self) -> bool:
        """Whether any pair differs in depth or width, so that pairs say what steps in these would."""
        return any(pair.weighs in ("depth", "width") for pair in self.pairs)


def compare(families: Sequence[Family], alike: Sequence[Family] = (), include_unbracketed: bool = False) -> Comparisons:
    """Compare every two shapes of each family of equal parameters, and every two variants of each family in `alike`.

    A cell needs usable runs and a bracketed learning rate; with `include_unbracketed` any rate will do.
    """
    equal = [family for family in families if family.equal_parameters and len(family.cells) > 1]
    scatter = scatter_of_cells(cell for family in families for cell in family.cells)
    seeds = seed_variances(scatter)
    left_out: dict[tuple[str, str], LeftOut] = {}
    found: list[Comparison] = []
    for family in (*equal, *alike):
        reasons = {cell.name: why_left_out(cell, include_unbracketed) for cell in family.cells}
        entering = [cell for cell in family.cells if reasons[cell.name] is None]
        reasons |= {cell.name: _why_unequal(cell, entering) for cell in entering}
        for cell in family.cells:
            if (reason := reasons[cell.name]) is not None:
                left_out.setdefault((cell.name, reason), LeftOut(cell.name, family.side(cell), family.label, reason))
        of_several_shapes = len({_sizes(cell) for cell in family.cells}) > 1
        for one, other in combinations(entering, 2):
            if not _equal_budgets(one, other) or (of_several_shapes and _sizes(one) == _sizes(other)):
                continue  # settings of one shape have a family of their own
            first, second = (one, other) if family.column is None and _sizes(one) > _sizes(other) else (other, one)
            found.append(_comparison(family, first, second, seeds))
    why_none = None if any(pair.of_shapes for pair in found) else _why_none(equal)
    pairs = adjust_by_holm(found)
    known = sum(pair.p_value_holm is not None for pair in pairs)
    pairs = tuple(_with_remedies(pair, seeds, known) if pair.status == "undecided" else pair for pair in pairs)
    return Comparisons(pairs, tuple(left_out.values()), scatter, why_none)


def why_left_out(cell: CellResult, include_unbracketed: bool) -> str | None:
    """Why comparisons leave a cell out, None where they do not."""
    if not cell.usable:
        return "no usable run at any learning rate"
    if not cell.measured:
        return f"a single validation {'sequence' if cell.documents is None else 'document'} gives no interval"
    if cell.rates.bracketed or include_unbracketed:
        return None
    if cell.rates.status == "only_tried":
        return f"learning rate {cell.rates.chosen:.3g} is the only one tried"
    edge = status_words(cell.rates.status)
    return f"learning rate {cell.rates.chosen:.3g} is the {edge}, so a better one may lie beyond: widen the range"


def _why_unequal(cell: CellResult, others: Sequence[CellResult]) -> str | None:
    """Why a cell's spending is too far from every other's to be compared, None where it is not."""
    if len(others) < 2 or any(other is not cell and _equal_budgets(cell, other) for other in others):
        return None
    spent = f"its whole steps spend {cell.tokens:,} tokens, {cell.budget_share:.1%} of the budget"
    return f"{spent}, and those of no other cell as much within {EQUAL_BUDGETS_WITHIN:.0%}"


def _equal_budgets(one: CellResult, other: CellResult) -> bool:
    """Whether two cells of one budget have spent as much: tokens, or shares of a budget of FLOPs or tokens per parameter."""
    less, more = sorted(cell.tokens if cell.budget.unit in ("tokens", "steps") else cell.budget_share for cell in (one, other))
    return less >= (1 - EQUAL_BUDGETS_WITHIN) * more


def _sizes(cell: CellResult) -> tuple[int, ...]:
    return tuple(getattr(cell.architecture, size) for size in WEIGHED)


def _comparison(family: Family, first: CellResult, second: CellResult, seeds: SeedVariances) -> Comparison:
    of_variants = family.column is not None
    sizes = list(zip(WEIGHED, _sizes(first), _sizes(second), strict=True))
    fewer = next((size for size, one, other in sizes if one < other), None)
    return Comparison(
        family=family.label,
        first=family.side(first),
        second=family.side(second),
        first_cell=first.name,
        second_cell=second.name,
        weighs=family.column or next(size for size, one, other in sizes if one > other),
        equal=_equal(first.architecture, second.architecture) if of_variants else "parameters",
        against=None if of_variants else fewer,
        budget=first.budget,
        difference=difference_between(first, second, seeds),
        reads_order=either_reads(first, second) if of_variants else both_read(first, second),
    )


def _equal(first: Architecture, second: Architecture) -> Equal:
    """What two variants compared at equal parameters have in common."""
    if first.sizes == second.sizes:
        return "shape"
    if first.width == second.width:
        return "depth, width and parameters"
    return "depth, FFN ratio and parameters" if ffn_ratio(first) == ffn_ratio(second) else "depth and parameters"


def _with_remedies(pair: Comparison, seeds: SeedVariances, comparisons: int) -> Comparison:
    """An undecided pair, of so many comparisons, with what would decide it."""
    of_cells = [seeds[pair.first_cell], seeds[pair.second_cell]]
    return replace(
        pair,
        seeds_that_would_decide=seeds_that_would_decide(pair.difference, of_cells, comparisons),
        sequences_that_would_decide=sequences_that_would_decide(pair.difference, of_cells, comparisons),
    )


def _why_none(equal: list[Family]) -> str:
    if not equal:
        equal_size = f"equal non-embedding parameters (within {EQUAL_WITHIN:.0%} of one size)"
        return f"no two shapes that ran have {equal_size}, budgets and variants"
    return "no group of equal parameters has two cells to compare"
