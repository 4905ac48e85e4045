"""Which cell's best value each cell begins its search at."""

from __future__ import annotations

import math
from dataclasses import replace

from study.config import RunConfig
from study.counting import parameters
from study.sweeping.cell import Cell, key_of
from study.sweeping.tuning import AT_ONCE

CHEAPER = 2 / 3
"""What a run of a cell costs at most, as a share of another's, where the other waits for its best value."""


def with_neighbours(planned: list[Cell]) -> list[Cell]:
    """The cells, each with the nearest cheaper one where it tries more values of one knob than are asked for at once.

    Near is what has nearly as many parameters, tokens and layers, in ratios. Cells that share their way begin at one value,
    that of the cell nearest to the longest of them, so that their runs branch from common trunks.
    """
    if len(planned) < 2 or [tuned.trials > AT_ONCE for tuned in planned[0].spec.tune.values()] != [True]:
        return planned
    longest: dict[str, Cell] = {}
    for cell in planned:
        name = cell.family if cell.config.branch_step is not None else key_of(cell.config)
        if name not in longest or longest[name].config.steps < cell.config.steps:
            longest[name] = cell
    cost = {key: cell.config.flops_per_token["train_flops"] * cell.config.tokens for key, cell in longest.items()}
    found: dict[str, Cell] = {}
    for name in sorted(longest, key=lambda name: cost[name]):
        cheaper = [found[other] for other in found if cost[other] <= CHEAPER * cost[name]]
        nearest = min(cheaper, key=lambda other: _distance(other.config, longest[name].config), default=None)
        found[name] = replace(longest[name], neighbour=nearest)
    return [
        replace(cell, neighbour=found[cell.family if cell.config.branch_step is not None else key_of(cell.config)].neighbour)
        for cell in planned
    ]


def _distance(one: RunConfig, other: RunConfig) -> float:
    """How far two cells are from each other: by the logarithms of their parameters, tokens and layers."""
    sizes = [
        (parameters(config.architecture).parameters_non_embedding, config.tokens, config.architecture.depth)
        for config in (one, other)
    ]
    return math.dist(*([math.log(size) for size in three] for three in sizes))
