"""The families of a sweep's cells: those that are compared with each other, of equal parameters or of one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from study.config import Budget, setting_words
from study.fitting.cells import Cell, by_budget, by_setting_and_budget
from study.wording import budget_words, compact

ItemT = TypeVar("ItemT")

EQUAL_WITHIN = 0.05
"""Cells have equal parameters where their non-embedding parameters can all lie so near, relatively, to one size."""

EQUAL_SPAN = (1 + EQUAL_WITHIN) / (1 - EQUAL_WITHIN)
"""How many times the smallest of equal sizes the largest may be."""


@dataclass(frozen=True)
class Family:
    """Cells that are looked at together: those of equal parameters, setting and budget, or else those of one budget.

    `size` says what the parameters and the setting are, empty where they differ within the family; of a family of settings
    (families_of_settings) it is the shape.
    """

    size: str
    budget: Budget
    cells: tuple[Cell, ...]

    @property
    def equal_parameters(self) -> bool:
        """Whether the cells may be compared as shapes of one size."""
        return bool(self.size)

    @property
    def label(self) -> str:
        """Size and budget in words."""
        return f"{self.size}, {budget_words(self.budget)}" if self.size else budget_words(self.budget)


def families_of(cells: tuple[Cell, ...]) -> tuple[Family, ...]:
    """The families of a sweep: groups of equal parameters where any holds two shapes, else one family a budget."""
    equal = tuple(_equal_parameters(cells))
    if any(len(family.cells) > 1 for family in equal):
        return equal
    return tuple(Family("", budget, tuple(members)) for budget, members in by_budget(cells).items())


def families_of_settings(cells: Iterable[Cell]) -> Iterator[tuple[str, Family]]:
    """The cells of one shape, budget and validation set that differ in one setting alone, and the column of that."""
    found: dict[tuple[object, ...], tuple[str, str, dict[str, Cell]]] = {}
    for cell in cells:
        for column in cell.settings:
            name = ", ".join(filter(None, (cell.architecture.shape_name, cell.setting_but_for(column))))
            same = (column, name, cell.budget, cell.validation)
            _, _, members = found.setdefault(same, (column, name, {}))
            members.setdefault(setting_words({column: cell.settings[column]}), cell)
    for column, name, members in found.values():
        if len(members) > 1:
            alike = tuple(members.values())
            yield column, Family(name, alike[0].budget, alike)


def _equal_parameters(cells: tuple[Cell, ...]) -> Iterator[Family]:
    """Cells of one setting and budget that have equal parameters, from the smallest on."""
    for (setting, budget), members in by_setting_and_budget(cells).items():
        for family in of_equal_size(members, lambda cell: cell.parameters_non_embedding):
            yield _family(family, budget, setting)


def of_equal_size(items: Iterable[ItemT], size: Callable[[ItemT], float]) -> Iterator[list[ItemT]]:
    """The items from the smallest on, together as many as are of equal size within EQUAL_WITHIN."""
    rest = sorted(items, key=size)
    while rest:
        most = size(rest[0]) * EQUAL_SPAN
        equal = [item for item in rest if size(item) <= most]
        yield equal
        rest = rest[len(equal) :]


def _family(cells: list[Cell], budget: Budget, setting: str) -> Family:
    size = f"{compact(float(np.median([cell.parameters_non_embedding for cell in cells])))} non-embedding parameters"
    ordered = sorted(cells, key=lambda cell: cell.architecture.sizes)
    return Family(f"{size}, {setting}" if setting else size, budget, tuple(ordered))
