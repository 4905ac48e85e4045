"""Shapes that have less of everything than another and a lower loss, at one budget and in one variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from study.base.grouping import grouped
from study.base.quantities import budget_words
from study.evidence.cells import CellResult, both_read, difference_between, measured
from study.evidence.paired import TestedDifference, adjust_by_holm
from study.evidence.seed_scatter import SeedVariances


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


def dominances_of(cells: Sequence[CellResult], seeds: SeedVariances) -> tuple[Dominance, ...]:
    """Every pair of shapes of which the first has less of everything and the lower estimated loss, largest difference first.

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
