"""Families of a sweep's cells, compared with each other: cells of equal parameters, or variants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

import numpy as np

from study.base.grouping import grouped
from study.base.quantities import EQUAL_SPAN, budget_words, compact
from study.config.recipe import Budget
from study.config.run_config import describe_knobs
from study.counting.architecture import Architecture
from study.counting.parameters import COUNT_WORDS, SIZE_COUNTS, SizeCount
from study.evidence.cells import CellResult, by_budget, by_variant_and_budget, variant_order

ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class Family:
    """Cells of equal parameters by one `count`, variant and budget, or else all cells of one budget.

    `size` names parameters and variant; empty if they differ. In a family of variants (variant_families), differing in the
    ledger's `column`, it names the shape, or the depth and parameters.
    """

    size: str
    budget: Budget
    cells: tuple[CellResult, ...]
    column: str | None = None
    count: SizeCount = "non_embedding"

    @property
    def equal_parameters(self) -> bool:
        """Whether the cells compare as shapes of one size."""
        return bool(self.size)

    @property
    def label(self) -> str:
        """Size and budget in words."""
        return f"{self.size}, {budget_words(self.budget)}" if self.size else budget_words(self.budget)

    def side(self, cell: CellResult) -> str:
        """Return a cell's shape or variant."""
        return (
            cell.architecture.shape_name if self.column is None else describe_knobs({self.column: cell.settings[self.column]})
        )


def families_of(cells: tuple[CellResult, ...], count: SizeCount = "non_embedding") -> tuple[Family, ...]:
    """Group cells by equal parameters of this count if any group holds two shapes, else by budget."""
    equal = tuple(_equal_parameters(cells, count))
    if any(len(family.cells) > 1 for family in equal):
        return equal
    return tuple(Family("", budget, tuple(members), count=count) for budget, members in by_budget(cells).items())


def variant_families(
    cells: Sequence[CellResult], listed: Mapping[str, Sequence[object]], count: SizeCount = "non_embedding"
) -> list[Family]:
    """Group cells of one budget and validation set that differ in one knob only, in the order `listed`.

    They share a shape; variants of the architecture, which may cost parameters, share depth and parameters by `count`.
    """
    positions = {cell.name: position for position, cell in enumerate(cells)}
    columns = dict.fromkeys(column for cell in cells for column in cell.settings)
    families = [family for column in columns for family in _variant_families(cells, column, listed.get(column, ()), count)]
    return sorted(families, key=lambda family: min(positions[cell.name] for cell in family.cells))


def _variant_families(cells: Sequence[CellResult], column: str, listed: Sequence[object], count: SizeCount) -> Iterator[Family]:
    ordered = sorted(cells, key=lambda cell: variant_order(cell.settings[column], listed))
    same = grouped(ordered, lambda cell: (cell.variant_without(column), cell.budget, cell.validation))
    for (others, budget, _), members in same.items():
        for name, comparable in _comparable_variants(members, column, count):
            yield Family(", ".join(filter(None, (name, others))), budget, tuple(comparable), column, count)


def _comparable_variants(cells: Sequence[CellResult], column: str, count: SizeCount) -> Iterator[tuple[str, list[CellResult]]]:
    """Yield what cells share, and the cells: of each shape, and of each depth and size with several shapes; one a variant."""
    for shape, members in grouped(cells, lambda cell: cell.architecture.shape_name).items():
        of_shape = [cell for cell, *_ in grouped(members, lambda cell: str(cell.settings[column])).values()]
        least, most = min(cell.parameters for cell in of_shape), max(cell.parameters for cell in of_shape)
        sizes = f" ({compact(least)} to {compact(most)} parameters)" if most > least * EQUAL_SPAN else ""
        if len(of_shape) > 1:
            yield f"{shape}{sizes}", of_shape
    if not column.startswith("architecture."):
        return
    for depth, members in grouped(cells, lambda cell: cell.architecture.depth).items():
        for by_size in of_equal_size(enumerate(members), lambda member: _parameters(member[1], count)):
            equal = [cell for _, cell in sorted(by_size, key=itemgetter(0))]
            for shared, of_size in _matched(equal, column):
                yield ", ".join(filter(None, (f"depth {depth}", shared, _size(of_size, count)))), of_size


def _matched(cells: list[CellResult], column: str) -> Iterator[tuple[str, list[CellResult]]]:
    """Cells of one depth and size, one a variant, of several shapes, with what else they share.

    If a variant has several shapes, match by width (GeGLU's smaller FFN with GELU's) and by FFN ratio: a lower loss at one
    width may come from the ratio, which the other variant could share.
    """
    if _one_per_variant(cells, column):
        yield "", cells
        return
    keys: dict[str, Callable[[CellResult], float]] = {
        "width {:g}": lambda cell: cell.architecture.width,
        "FFN ratio {:.2g}": lambda cell: ffn_ratio(cell.architecture),
    }
    for words, key in keys.items():
        for value, group in grouped(cells, key).items():
            if _one_per_variant(group, column):
                yield words.format(value), group


def ffn_ratio(architecture: Architecture) -> float:
    """FFN size ÷ width, to one decimal, since solved widths are approximate."""
    return round(architecture.ffn / architecture.width, 1)


def _one_per_variant(cells: Sequence[CellResult], column: str) -> bool:
    settings, shapes = {str(cell.settings[column]) for cell in cells}, {cell.architecture.sizes for cell in cells}
    return len(settings) == len(cells) and len(shapes) > 1


def _equal_parameters(cells: tuple[CellResult, ...], count: SizeCount) -> Iterator[Family]:
    for (setting, budget), members in by_variant_and_budget(cells).items():
        for family in of_equal_size(members, lambda cell: _parameters(cell, count)):
            size = _size(family, count)
            ordered = sorted(family, key=lambda cell: cell.architecture.sizes)
            yield Family(f"{size}, {setting}" if setting else size, budget, tuple(ordered), count=count)


def of_equal_size(items: Iterable[ItemT], size: Callable[[ItemT], float]) -> Iterator[list[ItemT]]:
    """Group items within EQUAL_WITHIN, smallest first."""
    rest = sorted(items, key=size)
    while rest:
        most = size(rest[0]) * EQUAL_SPAN
        equal = [item for item in rest if size(item) <= most]
        yield equal
        rest = rest[len(equal) :]


def _parameters(cell: CellResult, count: SizeCount) -> int:
    return int(getattr(cell, SIZE_COUNTS[count]))


def _size(cells: Iterable[CellResult], count: SizeCount) -> str:
    return f"{compact(float(np.median([_parameters(cell, count) for cell in cells])))} {COUNT_WORDS[count]}"
