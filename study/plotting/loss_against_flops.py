"""Final validation loss against training FLOPs, in the convention of the products that run."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from study.fitting.evidence import Evidence
from study.plotting.style import (
    FLOPS,
    LOSS,
    CellLooks,
    draw_intervals,
    finish_cells,
    legend_below,
    panels,
    theme,
)


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row a cell with a usable run: its loss, mean over seeds, and the `train_flops` of one of its runs.

    `half_nats` is half the 95% interval of that mean (study.fitting.seed_scatter), missing where that of seeds is unknown.
    """
    rows = [
        {
            "series": f"{cell.architecture.shape_name} {cell.setting}",
            "width": cell.architecture.width,
            "train_flops": cell.train_flops,
        }
        | evidence.losses(cell)
        for cell in evidence.cells
        if cell.usable
    ]
    return pd.DataFrame(rows)


def draw(data: pd.DataFrame) -> Figure:
    """A line a shape and setting over its budgets, told apart as CellLooks says, with its width at the largest of them."""
    with theme():
        figure, (axes,) = panels([""], FLOPS, LOSS, size=(8.5, 5.0))
        looks = CellLooks(data["depth"], data["setting"])
        few = data["series"].nunique() <= 12
        for _, shape in data.sort_values("train_flops").groupby("series", sort=False):
            colour, marker, face = looks.of(int(shape["depth"].iloc[0]), shape["setting"].iloc[0])
            axes.plot(
                shape["train_flops"], shape["loss_nats"], color=colour, marker=marker, linewidth=1.4, markerfacecolor=face
            )
            draw_intervals(axes, shape["train_flops"], shape["loss_nats"], shape["half_nats"], colour)
            last = shape.iloc[-1]
            if few:
                spot = (last["train_flops"], last["loss_nats"])
                axes.annotate(f"H{last['width']}", spot, (7, -4), textcoords="offset points", color=colour)
        finish_cells(figure, axes, data, "Final loss against training FLOPs", x_margin=0.1)
        legend_below(figure, looks.key())
    return figure
