"""How far the best learning rate moves over the shapes of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.base.quantities import budget_words
from study.config.recipe import Budget
from study.evidence.cells import CellResult, by_variant_and_budget

LEAST_SHAPES = 3
"""The fewest shapes with a search of their own over which a rate is said to move or stay."""


@dataclass(frozen=True)
class RateTransfer:
    """The best learning rates of the shapes of one variant at one budget, by shape, smallest shape first.

    A best rate is the vertex of the parabola through the chosen rate and its neighbours (`RateSearch.optimum`), or the chosen
    rate if there is none. `unbracketed`: shapes whose best rate may lie beyond those tried.
    """

    setting: str
    budget: Budget
    rates: Mapping[str, float]
    unbracketed: tuple[str, ...]

    @property
    def factor(self) -> float:
        """The highest best rate over the lowest: at least this, if a shape is `unbracketed`."""
        return max(self.rates.values()) / min(self.rates.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "setting": self.setting,
            "budget": budget_words(self.budget),
            "rates": dict(self.rates),
            "factor": self.factor,
            "unbracketed": list(self.unbracketed),
        }


def rate_transfers_of(cells: Sequence[CellResult]) -> tuple[RateTransfer, ...]:
    """How far the best rate moves in each variant at its largest budget where `LEAST_SHAPES` shapes or more were tuned."""
    tuned = [cell for cell in cells if cell.usable and len(cell.rates.tried) > 1]
    last = {setting: (budget, members) for (setting, budget), members in by_variant_and_budget(tuned).items()}
    return tuple(
        RateTransfer(
            setting,
            budget,
            {cell.architecture.shape_name: best for cell in members if (best := cell.rates.optimum or cell.rates.chosen)},
            tuple(cell.architecture.shape_name for cell in members if not cell.rates.bracketed),
        )
        for setting, (budget, members) in last.items()
        if len({cell.architecture.shape_name for cell in members}) >= LEAST_SHAPES
    )
