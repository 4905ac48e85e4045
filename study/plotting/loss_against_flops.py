"""Final validation loss against training FLOPs, in any convention."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from study.evidence.evidence import Evidence
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

_WIDTH = 6.4
"""Inches of the panel."""


def frame(evidence: Evidence, count: str = "train_flops") -> pd.DataFrame:
    """One row per trained cell with a usable run: its mean loss over seeds, and its FLOPs by this `count` of COUNTS.

    `half_nats` is half the 95% interval of that mean (study.evidence.seed_scatter), missing if unknown. `place` is the x,
    shifted if others are near.
    """
    counted = evidence.counted(count)
    rows = [
        {"count": count, count: counted[cell.name], **of_cell(cell), **evidence.losses(cell)}
        for cell in evidence.cells
        if cell.usable and cell.tokens
    ]
    data = pd.DataFrame(rows)
    if data.empty:
        return data
    return data.assign(line=lines(data, among=()), panel=data["scale"], place=side_by_side(data[count], data["scale"], _WIDTH))


def draw(data: pd.DataFrame) -> Figure:
    """One line per shape and variant over its budgets, and a panel for each group of losses that compare."""
    data = in_unit(data)
    with theme():
        count, names = data["count"].iloc[0], data["panel"].unique().tolist()
        axis = axis_name(COUNTS[count], data["place"], data[count])
        figure, axes = panels(names, axis, loss_axis(data), height=3.4 if len(names) < 2 else 2.7, one_y=not incomparable(data))
        styles = line_styles(data)
        shown = dict(zip(names, axes, strict=True))
        for (name, line), cells in data.sort_values("place").groupby(["panel", "line"], sort=False):
            panel, style = shown[name], styles[str(line)]
            panel.plot(cells["place"], cells["loss_nats"], **style)
            explain(panel, cells, "place", "loss_nats")
            draw_intervals(panel, cells["place"], cells["loss_nats"], cells["half_nats"], style["color"])
        finish_cells(figure, axes, data, "final loss against training FLOPs")
        legend_below(figure, line_key(styles))
    return figure
