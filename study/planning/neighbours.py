"""The cell whose best value starts each cell's search."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import numpy as np

from study.base.grouping import grouped
from study.config.run_config import RunConfig
from study.counting.parameters import parameters
from study.planning.cell import Cell
from study.planning.tuning import AT_ONCE
from study.store.run_folder import NONE_PLANNED, PlannedRuns, expected_flops

CHEAPER = 2 / 3
"""A cell waits for another's best value only if that one's runs cost at most this share of its own."""


def link_neighbours(planned: list[Cell], first: PlannedRuns = NONE_PLANNED) -> list[Cell]:
    """The cells, each with the nearest cheaper one where it tries many values of one knob.

    Nearest means a similar number of parameters, tokens and layers, in ratios. Cells that share a trunk start at one value,
    that of the cell nearest to the longest of them. `first` are teachers, by id, that the sweep trains itself.
    """
    if len(planned) < 2 or [tuned.trials > AT_ONCE for tuned in planned[0].spec.tune.values()] != [True]:
        return planned
    names = [cell.family if cell.config.branch_step is not None else cell.config.key for cell in planned]
    longest: dict[str, Cell] = {}
    for name, cell in zip(names, planned, strict=True):
        if name not in longest or longest[name].config.steps < cell.config.steps:
            longest[name] = cell
    costs = {name: expected_flops(cell.config, cell.config.steps, first) for name, cell in longest.items()}
    ordered = sorted(longest, key=costs.__getitem__)
    sizes = np.log([_sizes(longest[name].config) for name in ordered])
    found: list[Cell] = []
    for place, name in enumerate(ordered):
        cheaper = bisect_right(ordered, CHEAPER * costs[name], hi=place, key=costs.__getitem__)
        distances = ((sizes[:cheaper] - sizes[place]) ** 2).sum(1)
        found.append(replace(longest[name], neighbour=found[int(distances.argmin())] if cheaper else None))
    begins = dict(zip(ordered, found, strict=True))
    return [
        begins[name] if cell is longest[name] else replace(cell, neighbour=begins[name].neighbour)
        for name, cell in zip(names, planned, strict=True)
    ]


def with_sources(planned: list[Cell], first: PlannedRuns = NONE_PLANNED) -> list[Cell]:
    """The cells of a setting: the cheapest of each budget is tuned, the others take its best values, the dearest checks them.

    Of cells of equal cost the one of smaller sizes comes first.
    """
    order = {
        cell.config.key: (expected_flops(cell.config, cell.config.steps, first), cell.config.architecture.sizes)
        for cell in planned
    }
    at_budgets = grouped(planned, lambda cell: cell.config.recipe.budget)
    sources = {budget: min(cells, key=lambda cell: order[cell.config.key]) for budget, cells in at_budgets.items()}
    dearest = max(planned, key=lambda cell: order[cell.config.key], default=None)

    def taking(cell: Cell) -> Cell:
        source = sources[cell.config.recipe.budget]
        return cell if cell is source else replace(cell, neighbour=source, takes=True, checks=cell is dearest)

    return [taking(cell) for cell in planned]


def _sizes(config: RunConfig) -> tuple[int, int, int]:
    architecture = config.architecture
    return parameters(architecture).parameters_non_embedding, config.tokens, architecture.depth
