"""Final validation loss against all parameters of the model, with the front that no cell beats."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.fitting.evidence import Evidence
from study.plotting.style import (
    LOSS,
    CellLooks,
    draw_intervals,
    finish_cells,
    legend_below,
    panels,
    theme,
)
from study.wording import budget_words

PARAMETERS = "parameters (unique tensors of the MLM model, embeddings included)"


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row a cell with a usable run: its loss, mean over seeds, its `parameters`, and whether it is on the front.

    `half_nats` is half the 95% interval of that mean (study.fitting.seed_scatter), missing where that of seeds is unknown.
    """
    front = {cell.name for cell in evidence.front}
    rows = [
        {
            "series": f"{budget_words(cell.budget)} {cell.validation}",
            "budget": budget_words(cell.budget),
            "parameters": cell.parameters,
            "on_front": cell.name in front,
        }
        | evidence.losses(cell)
        for cell in evidence.cells
        if cell.usable
    ]
    return pd.DataFrame(rows)


def draw(data: pd.DataFrame) -> Figure:
    """A point a cell, told apart as CellLooks says; one stepped line a budget joins the front, named where there are more."""
    several = data["series"].nunique() > 1
    with theme():
        figure, (axes,) = panels([""], PARAMETERS, LOSS, size=(8.5, 5.0))
        for _, budget in data.groupby("series", sort=False):
            front = budget[budget["on_front"]].sort_values("parameters")
            axes.plot(front["parameters"], front["loss_nats"], color="grey", drawstyle="steps-post", linewidth=1.4, zorder=1)
            if several and len(front):
                end = front["parameters"].iloc[-1], front["loss_nats"].iloc[-1]
                axes.annotate(
                    f"  {front['budget'].iloc[0]}", end, (8, 0), textcoords="offset points", va="center", fontsize="small"
                )
        looks = CellLooks(data["depth"], data["setting"])
        for _, points in data.groupby(["depth", "setting"], sort=False):
            colour, marker, face = looks.of(int(points["depth"].iloc[0]), points["setting"].iloc[0])
            shown = axes.scatter(points["parameters"], points["loss_nats"], s=45, zorder=3, color=colour, marker=marker)
            shown.set_facecolor(face)
            draw_intervals(axes, points["parameters"], points["loss_nats"], points["half_nats"], colour)
        finish_cells(figure, axes, data, "Final loss against all parameters", x_margin=0.2 if several else 0.08)
        line = Line2D([], [], color="grey", label="front at equal budget: none smaller is better")
        legend_below(figure, [*looks.key(), line])
    return figure
