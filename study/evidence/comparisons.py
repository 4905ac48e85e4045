"""Paired comparisons of shapes at equal parameters and of variants at one shape or size, with averages over all conditions.

A shape dominates another if it has less of everything and a lower loss, at one budget and in one variant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations, permutations
from typing import Literal, Self

import numpy as np

from study.base.grouping import grouped
from study.base.quantities import EQUAL_WITHIN, budget_words
from study.base.text import status_words
from study.config.recipe import Budget
from study.counting.architecture import Architecture
from study.counting.parameters import COUNT_WORDS, CountWords
from study.evidence.cells import (
    CellResult,
    both_read,
    common_seeds,
    difference_between,
    documents_of,
    either_reads,
    measured,
    scatter_of_cells,
    seed_variances,
    weighted_losses,
)
from study.evidence.families import Family, ffn_ratio
from study.evidence.paired import (
    TestedDifference,
    adjust_by_holm,
    paired_difference,
    seeds_that_would_decide,
    sequences_that_would_decide,
)
from study.evidence.seed_scatter import ALIKE_ABOVE, SeedScatter, SeedVariances, seed_scatter

Size = Literal["depth", "width", "ffn", "heads"]

Equal = CountWords | Literal["depth and parameters", "depth, width and parameters", "depth, FFN ratio and parameters", "shape"]

WEIGHED: tuple[Size, ...] = ("depth", "width", "ffn", "heads")
"""Sizes by priority: the first in which two shapes differ names their pair."""

EQUAL_BUDGETS_WITHIN = 0.01
"""Cells of one budget are compared if their whole steps use equal amounts of it within this."""

METHOD = (
    "Comparison of shapes: loss of the deeper shape (at equal depth the wider, then the one with the larger FFN, then more "
    f"heads) minus the loss of the other, at equal budgets and non-embedding parameters within {EQUAL_WITHIN:.0%} of one size, "
    "or total ones where the sweep file says `count: total`. "
    "Comparison of variants: loss of a variant minus the loss of one before it in the sweep file, at one shape, or at equal "
    "depth and parameters (and equal width or FFN ratio if a variant has several shapes). A budget pays for whole steps, which "
    f"must use equal amounts of it within {EQUAL_BUDGETS_WITHIN:.0%}. Estimate: mean over the shared validation sequences of "
    "the seed-averaged difference per masked token. Variance: over paired sequences, clustered by document if runs record it "
    "(Cameron and Miller 2015), plus over seeds. All cells of a budget with about as many tokens share one variance over seeds "
    f"if they scatter equally (Bartlett's p above {ALIKE_ABOVE:.0%}), else each cell has its own; seeds count as independent "
    "between cells. Intervals are those of a sum of two Student's t variables, one for sequences and one for seeds (Behrens "
    "and Fisher), at the level at which Holm's procedure tests the pair, so that an interval excludes zero exactly if the pair "
    "is decided. A pair is decided if Holm's adjusted p, over all pairs, is below 5%. "
    "The seeds that chose the learning rate, at most a third of the sweep's, are included, which biases the loss downwards, "
    "the more so the wider a cell's seeds scatter. Intervals apply to the chosen rates and do not cover a better rate that "
    "those seeds missed. There is no verdict on two shapes unless both read word order, as measured, nor on two variants if "
    "neither does."
)


@dataclass(frozen=True, kw_only=True)
class Pair(TestedDifference):
    """Two shapes, or two variants, and the loss of the first minus the second.

    `weighs`: for shapes, the first of WEIGHED in which they differ (the first shape has more); for variants, their differing
    column. `equal`: what both share.
    """

    weighs: str
    equal: Equal
    first: str
    second: str

    @property
    def of_shapes(self) -> bool:
        """Whether the pair compares shapes, not variants."""
        return self.weighs in WEIGHED

    @property
    def first_is_lower(self) -> bool:
        """Whether the first has the lower estimated loss."""
        return self.difference.estimate_nats < 0

    @property
    def lower(self) -> str:
        """The shape or variant with the lower estimated loss."""
        return self.first if self.first_is_lower else self.second

    @property
    def sides(self) -> str:
        """The subtraction in words."""
        return f"{self.first} − {self.second}"


@dataclass(frozen=True, kw_only=True)
class Comparison(Pair):
    """One pair in one family at one `budget`.

    `against`: the first of WEIGHED of which the second shape has more; None for variants or without one. The last two fields
    say what would decide an undecided pair if its estimate were true; None if that alone would not.
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
    """A cell left out of comparisons, and why; `shape` names the variant if variants are compared."""

    cell: str
    shape: str
    family: str
    reason: str


@dataclass(frozen=True)
class Comparisons:
    """All pairs of a sweep; `reason` says why no shapes are compared."""

    pairs: tuple[Comparison, ...]
    left_out: tuple[LeftOut, ...]
    seed_scatter: tuple[SeedScatter, ...]
    reason: str | None

    @cached_property
    def seed_variances(self) -> SeedVariances:
        """Known seed variances by cell name."""
        return seed_variances(self.seed_scatter)

    @cached_property
    def seed_variances_beside_other_budgets(self) -> SeedVariances:
        """Seed variances for differences between budgets, by cell name."""
        return {name: variance for pool in self.seed_scatter for name, variance in pool.beside_other_budgets.items()}

    @property
    def compared(self) -> frozenset[str]:
        """Names of the cells in any pair."""
        return frozenset(name for pair in self.pairs for name in (pair.first_cell, pair.second_cell))

    @property
    def weigh_depth_or_width(self) -> bool:
        """Whether any pair differs in depth or width."""
        return any(pair.weighs in ("depth", "width") for pair in self.pairs)


def compare(families: Sequence[Family], variants: Sequence[Family] = (), include_unbracketed: bool = False) -> Comparisons:
    """Compare all shapes and all variants within their families.

    A cell needs usable runs and a bracketed learning rate; `include_unbracketed` accepts any rate.
    """
    equal = [family for family in families if family.equal_parameters and len(family.cells) > 1]
    scatter = scatter_of_cells(cell for family in families for cell in family.cells)
    seeds = seed_variances(scatter)
    left_out: dict[tuple[str, str], LeftOut] = {}
    compared: list[Comparison] = []
    for family in (*equal, *variants):
        reasons = reasons_left_out(family, include_unbracketed)
        for cell in family.cells:
            if (reason := reasons[cell.name]) is not None:
                left_out.setdefault((cell.name, reason), LeftOut(cell.name, family.side(cell), family.label, reason))
        pairs_in = (pair for pair in pairs_of(family) if not any(reasons[cell.name] for cell in pair))
        compared += [comparison_of(family, first, second, seeds) for first, second in pairs_in]
    why_none = None if any(pair.of_shapes for pair in compared) else _why_none(families, equal)
    pairs = adjust_by_holm(compared)
    tested = sum(pair.p_value_holm is not None for pair in pairs)
    pairs = tuple(_add_remedies(pair, seeds, tested) if pair.status == "undecided" else pair for pair in pairs)
    return Comparisons(pairs, tuple(left_out.values()), scatter, why_none)


def pairs_of(family: Family) -> Iterator[tuple[CellResult, CellResult]]:
    """Yield the first and second cell of every pair of a family at equal budgets."""
    of_several_shapes = len({_sizes(cell) for cell in family.cells}) > 1
    for one, other in combinations(family.cells, 2):
        if not _equal_budgets(one, other) or (of_several_shapes and _sizes(one) == _sizes(other)):
            continue  # variants of one shape have their own family
        yield (one, other) if family.column is None and _sizes(one) > _sizes(other) else (other, one)


def reasons_left_out(family: Family, include_unbracketed: bool) -> dict[str, str | None]:
    """Return why comparisons leave a cell of a family out, if so, by cell name."""
    reasons = {cell.name: why_left_out(cell, include_unbracketed) for cell in family.cells}
    entering = [cell for cell in family.cells if reasons[cell.name] is None]
    return reasons | {cell.name: _why_unequal(cell, entering) for cell in entering}


def why_left_out(cell: CellResult, include_unbracketed: bool) -> str | None:
    """Why comparisons leave a cell out, if so."""
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
    """None if another cell uses as much of its budget."""
    if len(others) < 2 or any(other is not cell and _equal_budgets(cell, other) for other in others):
        return None
    used = f"its whole steps use {cell.tokens:,} tokens, {cell.budget_share:.1%} of the budget"
    return f"{used}, and no other cell comes within {EQUAL_BUDGETS_WITHIN:.0%} of that"


def _equal_budgets(one: CellResult, other: CellResult) -> bool:
    """Whether two cells use equally many tokens, or equal shares of their budget."""
    less, more = sorted(cell.tokens if cell.budget.unit in ("tokens", "steps") else cell.budget_share for cell in (one, other))
    return less >= (1 - EQUAL_BUDGETS_WITHIN) * more


def _sizes(cell: CellResult) -> tuple[int, ...]:
    return tuple(getattr(cell.architecture, size) for size in WEIGHED)


def comparison_of(family: Family, first: CellResult, second: CellResult, seeds: SeedVariances) -> Comparison:
    """Return the comparison of two cells of a family, its interval and p-value not adjusted for others."""
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
        equal=_what_both_share(first.architecture, second.architecture) if of_variants else COUNT_WORDS[family.count],
        against=None if of_variants else fewer,
        budget=first.budget,
        difference=difference_between(first, second, seeds),
        reads_order=either_reads(first, second) if of_variants else both_read(first, second),
    )


def _what_both_share(first: Architecture, second: Architecture) -> Equal:
    if first.sizes == second.sizes:
        return "shape"
    if first.width == second.width:
        return "depth, width and parameters"
    return "depth, FFN ratio and parameters" if ffn_ratio(first) == ffn_ratio(second) else "depth and parameters"


def _add_remedies(pair: Comparison, seeds: SeedVariances, comparisons: int) -> Comparison:
    of_cells = [seeds[pair.first_cell], seeds[pair.second_cell]]
    return replace(
        pair,
        seeds_that_would_decide=seeds_that_would_decide(pair.difference, of_cells, comparisons),
        sequences_that_would_decide=sequences_that_would_decide(pair.difference, of_cells, comparisons),
    )


def _why_none(families: Sequence[Family], equal: Sequence[Family]) -> str:
    if not equal:
        count = families[0].count if families else "non_embedding"
        equal_size = f"equal {COUNT_WORDS[count]} (within {EQUAL_WITHIN:.0%} of one size)"
        return f"no two shapes that ran have {equal_size} at the same budget and variant"
    return "no group of equal parameters has two cells to compare"


@dataclass(frozen=True, kw_only=True)
class Dominance(TestedDifference):
    """A shape minus one with more parameters, by every count, and no fewer `train_flops`, whose estimated loss is higher.

    The first dominates the second if the difference is decided.
    """

    first: str
    second: str
    first_cell: str
    second_cell: str
    budget: str
    setting: str
    parameters: tuple[int, int]
    train_flops: tuple[float, float]

    @property
    def of_shapes(self) -> bool:
        """Two shapes, always."""
        return True


def dominances_of(cells: Sequence[CellResult], seeds: SeedVariances) -> tuple[Dominance, ...]:
    """Return the pairs whose first shape has less of everything and the lower estimated loss, largest difference first.

    Given the sign of an estimate, its two-sided p-value is uniform if the losses are equal, and larger if the second's is
    lower, so that Holm's adjustment over these pairs holds.
    """
    groups = grouped(measured(cells), lambda cell: (cell.setting, cell.budget, cell.validation))
    pairs = [pair for members in groups.values() for pair in permutations(members, 2) if _has_less(*pair)]
    lower = [(one, other) for one, other in pairs if one.losses.mean() < other.losses.mean()]
    tested = adjust_by_holm([_dominance(one, other, seeds) for one, other in lower])
    return tuple(sorted(tested, key=lambda one: one.difference.estimate_nats))


def _has_less(one: CellResult, other: CellResult) -> bool:
    """Whether a cell has fewer parameters by every count and no more FLOPs than another."""
    fewer = one.parameters < other.parameters and one.parameters_non_embedding < other.parameters_non_embedding
    return fewer and one.train_flops <= other.train_flops


def _dominance(one: CellResult, other: CellResult, seeds: SeedVariances) -> Dominance:
    return Dominance(
        first=one.architecture.shape_name,
        second=other.architecture.shape_name,
        first_cell=one.name,
        second_cell=other.name,
        budget=budget_words(one.budget),
        setting=one.setting,
        parameters=(one.parameters, other.parameters),
        train_flops=(one.train_flops, other.train_flops),
        difference=difference_between(one, other, seeds),
        reads_order=both_read(one, other),
    )


@dataclass(frozen=True, kw_only=True)
class Average(Pair):
    """The mean difference of a pair over `places`, the families that compare it; see docs/conventions.md.

    `least_nats` and `most_nats` are the extreme family estimates, at the seeds of the average. `opposed`: families decide for
    either side, so the average hides an interaction. `reads`: which sides read word order in each of these families, None if
    unknown; what one side alone reads is a gain of another kind. `apart` counts the pair's families in which it is otherwise,
    and `unreplicated` those left out because they share one seed alone.
    """

    places: tuple[str, ...]
    least_nats: float
    most_nats: float
    opposed: bool
    reads: tuple[bool | None, bool | None]
    apart: int
    unreplicated: int

    @property
    def sides(self) -> str:
        """The subtraction in words; for variants also what is equal, and where it was taken."""
        equal = f"at equal {self.equal}" if self.equal.startswith("depth") else ""
        return ", ".join(filter(None, (super().sides, equal, self.among)))

    @property
    def in_unit(self) -> Self:
        """The same with its numbers in the `unit` of its difference."""
        ends = {name: getattr(self, name) / self.difference.nats_per_unit for name in ("least_nats", "most_nats")}
        return replace(super().in_unit, **ends)

    @property
    def one_reads(self) -> bool:
        """Whether one side alone reads word order."""
        return False in self.reads

    @property
    def among(self) -> str:
        """Which families it was taken over, in words, if not all."""
        if self.one_reads:
            reading = f"only the encoder with {self.first if self.reads[0] else self.second} reads word order"
        else:
            reading = "both read word order" if None not in self.reads else "reading was not measured"
        several = ["they have several seeds"] if self.unreplicated else []
        said = [*([reading] if self.one_reads or self.apart else []), *several]
        return f"where {' and '.join(said)}" if said else ""

    @property
    def reversed(self) -> Average:
        """The second minus the first."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            difference=self.difference.reversed,
            least_nats=-self.most_nats,
            most_nats=-self.least_nats,
            reads=(self.reads[1], self.reads[0]),
        )


def averages_of(pairs: Iterable[Comparison], cells: Iterable[CellResult]) -> tuple[Average, ...]:
    """Average every pair that several families compare on one validation set with a common seed.

    Families that read no word order are left out, and so are those of one common seed if two have more; those in which one side
    alone reads it are averaged apart.
    False positives at equal loss: 3% to 4% if both sides scatter equally (two to four seeds); if one scatters 3 or 10 times as
    widely, 5% to 7% with three or four seeds, 6% to 11% with two.
    """
    named = {cell.name: cell for cell in cells}
    compared = (pair for pair in pairs if pair.without_order is None)
    averages = []

    def reading(pair: Comparison) -> tuple[bool | None, bool | None]:
        first, second = named[pair.first_cell], named[pair.second_cell]
        both = both_read(first, second)
        return (first.reads_order, second.reads_order) if both is False else (both, both)

    for group in grouped(compared, lambda pair: (pair.weighs, pair.equal, pair.first, pair.second)).values():
        kinds = grouped(group, reading)
        for reads in sorted(kinds, key=lambda reads: False in reads):
            if len(kinds[reads]) > 1:
                averages.append(_average(kinds[reads], named, reads, len(group) - len(kinds[reads])))
    return adjust_by_holm([average for average in averages if average is not None])


def _average(
    of_pair: Sequence[Comparison], cells: Mapping[str, CellResult], reads: tuple[bool | None, bool | None], apart: int
) -> Average | None:
    """Return the mean over one pair's families, if they share seeds and a validation set."""
    seeds = [set(common_seeds([cells[pair.first_cell], cells[pair.second_cell]])) for pair in of_pair]
    several = [one for one in seeds if len(one) > 1]
    alike = len(several) > 1 and len(set.intersection(*several)) > 1
    pairs = [pair for pair, one in zip(of_pair, seeds, strict=True) if len(one) > 1] if alike else of_pair
    if len({cells[pair.first_cell].validation for pair in pairs}) > 1:
        return None
    sides = [cells[pair.first_cell] for pair in pairs], [cells[pair.second_cell] for pair in pairs]
    common, equal_weights = common_seeds(chain(*sides)), np.full(len(pairs), 1 / len(pairs))
    if not common:
        return None
    first, second = (weighted_losses(side, equal_weights, common) for side in sides)
    of_seeds = [[cell.at(common).losses.mean(axis=0) for cell in side] for side in sides]
    estimates = [float((one - other).mean()) for one, other in zip(*of_seeds, strict=True)]
    variances = seed_scatter(cells[pairs[0].first_cell].pool, {"first": first, "second": second}).variances
    of_sides = [variances[side] for side in ("first", "second")] if len(variances) == 2 else None
    return Average(
        weighs=pairs[0].weighs,
        equal=pairs[0].equal,
        first=pairs[0].first,
        second=pairs[0].second,
        places=tuple(pair.family for pair in pairs),
        difference=paired_difference(first, second, of_sides, documents_of(chain(*sides)), sides[0][0].per_byte),
        reads_order=None if any(pair.reads_order is None for pair in pairs) else True,
        least_nats=min(estimates),
        most_nats=max(estimates),
        opposed=len({pair.first_is_lower for pair in pairs if pair.status == "decided"}) > 1,
        reads=reads,
        apart=apart,
        unreplicated=len(of_pair) - len(pairs),
    )
