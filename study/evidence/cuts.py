"""What layers cut off a trained encoder cost: encoders that begin with some of its layers, beside those with all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from study.base.grouping import grouped
from study.base.quantities import budget_words
from study.config.named_runs import parse_start
from study.config.recipe import Budget
from study.evidence.cells import Cell, difference_between, measured
from study.evidence.paired import Difference
from study.evidence.seed_scatter import SeedVariances

START = "recipe.start"
"""The column of a ledger that says which run's weights a run begins with, and which of its layers."""


@dataclass(frozen=True)
class Cut:
    """An encoder that began without so many `layers` of a trained one, minus the one that began with all of them.

    Both had the same budget since. The interval in `difference` is for this pair alone.
    """

    whole: str
    cut: str
    budget: str
    layers: int
    parameters_saved: int
    difference: Difference


def cuts_of(cells: Sequence[Cell], seeds: SeedVariances) -> tuple[Cut, ...]:
    """Every cell that begins without layers of its donor, beside the cell that begins with all of them; the least cut first."""
    told = measured(cells)
    whole = {_lineage(cell): cell for cell in told if cell.layers_cut == 0}
    cuts = [_cut(whole[_lineage(cell)], cell, seeds) for cell in told if cell.layers_cut and _lineage(cell) in whole]
    return tuple(sorted(cuts, key=lambda cut: cut.layers))


def under_every_start(shown: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[Cell]:
    """The cells that are shown, those with all layers of a donor under the name of each start from it among all `cells`."""
    begun = grouped((cell for cell in cells if cell.layers_cut is not None), _lineage)
    for cell in shown:
        if cell.layers_cut != 0 or START not in cell.settings:
            yield cell
            continue
        for start in dict.fromkeys(other.settings[START] for other in begun[_lineage(cell)]):
            yield replace(cell, settings={**cell.settings, START: start})


def _cut(whole: Cell, cell: Cell, seeds: SeedVariances) -> Cut:
    return Cut(
        whole=whole.words,
        cut=cell.words,
        budget=budget_words(cell.budget),
        layers=cell.layers_cut or 0,
        parameters_saved=whole.parameters_encoder - cell.parameters_encoder,
        difference=difference_between(cell, whole, seeds),
    )


def _lineage(cell: Cell) -> tuple[Path | None, str, Budget, str]:
    """What cells share that begin with layers of one donor and differ in nothing else."""
    donor = parse_start(str(cell.settings.get(START)))
    return None if donor is None else donor.folder, cell.setting_but_for(START), cell.budget, cell.validation
