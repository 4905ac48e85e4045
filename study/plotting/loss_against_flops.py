"""Final validation loss against training FLOPs, in the convention of the products that run."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from study.fitting.evidence import Evidence
from study.plotting.lines import line_key, line_styles, lines, of_cell
from study.plotting.style import FLOPS, LOSS, draw_intervals, finish_cells, legend_below, panels, theme


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row a cell that trained, with a usable run: its loss, mean over seeds, and the `train_flops` of one of its runs.

    `half_nats` is half the 95% interval of that mean (study.fitting.seed_scatter), missing where that of seeds is unknown.
    `line` names the cell's line (study.plotting.lines).
    """
    rows = [
        {"train_flops": cell.train_flops, **of_cell(cell), **evidence.losses(cell)}
        for cell in evidence.cells
        if cell.usable and cell.tokens
    ]
    data = pd.DataFrame(rows)
    return data if data.empty else data.assign(line=lines(data, among=()))


def draw(data: pd.DataFrame) -> Figure:
    """A line a shape and setting over its budgets."""
    with theme():
        figure, axes = panels([""], FLOPS, LOSS, size=(9.2, 5.0))
        styles = line_styles(data)
        for line, cells in data.sort_values("train_flops").groupby("line", sort=False):
            style = styles[str(line)]
            axes[0].plot(cells["train_flops"], cells["loss_nats"], **style)
            draw_intervals(axes[0], cells["train_flops"], cells["loss_nats"], cells["half_nats"], style["color"])
        finish_cells(figure, axes, data, "Final loss against training FLOPs")
        legend_below(figure, line_key(styles))
    return figure
