"""Final validation loss against parameters, in any convention."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.evidence.cells import by_budget
from study.evidence.evidence import Evidence
from study.evidence.gains import pareto_front
from study.evidence.ledgers import COUNTS
from study.plotting.hover import explain
from study.plotting.lines import line_key, line_styles, lines, of_cell
from study.plotting.style import (
    axis_name,
    draw_intervals,
    finish_cells,
    in_unit,
    incomparable,
    legend_below,
    loss_axis,
    panels,
    side_by_side,
    theme,
)

_WIDTH = 3.2
"""Inches of a panel."""


def frame(evidence: Evidence, count: str = "parameters") -> pd.DataFrame:
    """One row per cell with a usable run: its mean loss over seeds, its size by this `count`, and whether it is on the front.

    `half_nats` is half the 95% interval of that mean (study.evidence.seed_scatter), missing if unknown. Each `panel` has its
    own front. `place` is the x, shifted if others are near.
    """
    counted = evidence.counted(count)
    front = {cell.name for cell in pareto_front(evidence.cells, lambda cell: counted[cell.name])}
    rows = [
        {
            "panel": evidence.panel_of(cell),
            "count": count,
            count: counted[cell.name],
            "on_front": cell.name in front,
            **of_cell(cell),
            **evidence.losses(cell),
        }
        for cells in by_budget(evidence.cells).values()
        for cell in cells
        if cell.usable
    ]
    data = pd.DataFrame(rows)
    if data.empty:
        return data
    return data.assign(line=lines(data, among=()), place=side_by_side(data[count], data["panel"], _WIDTH))


def draw(data: pd.DataFrame) -> Figure:
    """One panel per budget and group of losses that compare, one point per cell, and a stepped Pareto front."""
    data = in_unit(data)
    with theme():
        every = list(data.groupby("panel", sort=False))
        count = data["count"].iloc[0]
        axis = axis_name(COUNTS[count], data["place"], data[count])
        figure, axes = panels([str(name) for name, _ in every], axis, loss_axis(data), height=2.7, one_y=not incomparable(data))
        styles = line_styles(data)
        for panel, (_, cells) in zip(axes, every, strict=True):
            front = cells[cells["on_front"]].sort_values(count)
            panel.plot(front["place"], front["loss_nats"], color="grey", drawstyle="steps-post", linewidth=1.4, zorder=1)
            for line, cell in cells.groupby("line"):
                style = styles[str(line)]
                panel.plot(cell["place"], cell["loss_nats"], **style)
                explain(panel, cell, "place", "loss_nats")
                draw_intervals(panel, cell["place"], cell["loss_nats"], cell["half_nats"], style["color"])
        finish_cells(figure, axes, data, f"final loss against {'all parameters' if count == 'parameters' else count}")
        stepped = data[data["on_front"]].groupby("panel")[count].nunique().gt(1).any()
        joined = [Line2D([], [], color="grey", label="Pareto front at equal budget")] if stepped else []
        legend_below(figure, [*line_key(styles, linestyle="none"), *joined])
    return figure
