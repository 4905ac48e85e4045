"""Loss against parameters at each budget, with the minima of approach 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.base.errors import InputError
from study.base.quantities import compact_flops, plural
from study.laws.frontiers import iso_flop, iso_flop_groups
from study.laws.law import Floats
from study.laws.law_fits import LawFit
from study.laws.observations import Observations
from study.plotting.hover import explain
from study.plotting.style import MANY, legend_below, log_ticks, panels, theme, title_above


def frame(fitted: LawFit) -> pd.DataFrame:
    """Return the valleys behind a law of loss in parameters and tokens; empty for other laws."""
    wanted = {"parameters", "tokens"} <= set(fitted.fit.law.variables) and fitted.fit.law.predicts == "loss"
    return valleys(fitted.fit.observations, fitted.query.where or "") if wanted else pd.DataFrame()


def valleys(points: Observations, where: str = "") -> pd.DataFrame:
    """One row per run at a budget of three sizes or more, and one per minimum (`kind`); empty without a frontier.

    At a budget without a minimum, `open_at` says whether the best run lies at the smallest or the largest sizes. `where` is the
    table's row filter.
    """
    points = points.thinned(MANY)
    parameters, flops, loss = points.columns["parameters"], points.budget, points.response
    try:
        frontier = iso_flop(parameters, flops, loss)
    except InputError:
        return pd.DataFrame()
    groups = [rows for rows in iso_flop_groups(flops) if len(np.unique(parameters[rows])) >= 3]
    runs = [
        {
            "kind": "run",
            "flops": best.flops,
            "open_at": "" if best.inside else _end(parameters[rows], loss[rows]),
            "parameters": parameters[row],
            "loss": loss[row],
        }
        for rows, best in zip(groups, frontier.best, strict=True)
        for row in rows
    ]
    minima = [
        {"kind": "minimum", "flops": best.flops, "parameters": best.parameters, "loss": best.loss}
        for best in frontier.best
        if best.inside
    ]
    return pd.DataFrame(runs + minima).assign(where=where)


def _end(parameters: Floats, loss: Floats) -> str:
    sizes = np.log(parameters)
    return "smallest" if 2 * sizes[loss.argmin()] < sizes.min() + sizes.max() else "largest"


def draw(data: pd.DataFrame) -> Figure:
    """One line per budget, dark (small) to light (large), and the minima; the key says why a budget has none."""
    runs, minima = data[data["kind"] == "run"], data[data["kind"] == "minimum"]
    budgets = sorted(runs["flops"].unique())
    ramp = sns.color_palette("viridis", len(budgets)).as_hex()
    look: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1}
    star: dict[str, Any] = {"marker": "*", "color": "black", "linestyle": "none", "markersize": 10}
    with theme():
        figure, (axes,) = panels([""], "parameters", "loss (lower is better)", height=3.4)
        key = [Line2D([], [], label="lowest point", **star)]
        for colour, (budget, rows) in zip(ramp, runs.sort_values("parameters").groupby("flops"), strict=True):
            axes.plot(rows["parameters"], rows["loss"], color=colour, **look)
            explain(axes, rows, "parameters", "loss")
            open_at = rows["open_at"].iloc[0]
            why = f" (no star: best at {open_at} sizes)" if open_at else ""
            key.append(Line2D([], [], color=colour, label=f"{compact_flops(float(str(budget)))} FLOPs{why}", **look))
        axes.plot(minima["parameters"], minima["loss"], zorder=4, **star)
        log_ticks(axes)
        legend_below(figure, key, columns=3)
        finding = f"{len(minima)} of {plural(len(budgets), 'budget')} have their best size between the sizes tried"
        span = f"budgets of {compact_flops(budgets[0])} to {compact_flops(budgets[-1])} FLOPs"
        title_above(figure, finding, "; ".join(filter(None, (span, data["where"].iloc[0]))))
    return figure
