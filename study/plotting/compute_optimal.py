"""Compute-optimal parameters: against FLOPs by approach, and as the lowest points of the loss at each budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from study.base.errors import InputError
from study.base.quantities import compact_flops, in_billions, plural, tick
from study.base.text import status_words
from study.laws.approaches import Frontiers
from study.laws.frontiers import Frontier, iso_flop, iso_flop_groups
from study.laws.law import Floats
from study.laws.law_fits import LawFit
from study.laws.observations import Observations
from study.plotting.hover import explain
from study.plotting.style import MANY, legend_below, log_ticks, panels, series_styles, theme, ticks_in_words, title_above


def frame(frontiers: Frontiers) -> pd.DataFrame:
    """One row per best model of an approach (`kind` best), and two per line (`line`), at the smallest and largest budget.

    `inside` marks models with smaller and larger ones at the same budget; lines are fitted to those alone. `caption` gives each
    approach's exponent, 95% interval, definition of C, and weak identification.
    """
    rows: list[dict[str, object]] = []
    for name, one in frontiers.approaches.items():
        if isinstance(one, str):
            continue
        about = {"approach": name, "caption": _caption(name, one), "axis": frontiers.parameters}
        for best in one.best:
            rows.append({**about, "kind": "best", "flops": best.flops, "parameters": best.parameters, "inside": best.inside})
        for flops in frontiers.budgets:
            rows.append({**about, "kind": "line", "flops": flops, "parameters": one.parameters(flops), "inside": None})
    return pd.DataFrame(rows)


def _caption(name: str, frontier: Frontier) -> str:
    interval = "" if frontier.interval is None else f" ({frontier.interval[0]:.2f} to {frontier.interval[1]:.2f})"
    weak = "" if frontier.status in ("found", "converged") else f", {status_words(frontier.status)}"
    return f"{name}: N* ∝ C^{frontier.exponent:.2f}{interval}, C = {frontier.compute}{weak}"


def draw(data: pd.DataFrame) -> Figure:
    """One line per approach; best models not `inside` are hollow."""
    with theme():
        y = f"best parameters N* ({data['axis'].iloc[0]})"
        figure, (axes,) = panels([""], "training FLOPs C, as each approach counts them", y, height=3.4)
        styles = series_styles(data["caption"])
        for caption, (colour, marker) in styles.items():
            rows = data[data["caption"] == caption]
            best, line = (rows[rows["kind"] == kind] for kind in ("best", "line"))
            faces = np.where(best["inside"].astype(bool), colour, "white") if len(best) else colour
            axes.scatter(best["flops"], best["parameters"], c=faces, edgecolors=colour, marker=marker, s=40, zorder=3)
            axes.plot(line["flops"], line["parameters"], color=colour, linewidth=1.4, label=caption)
        axes.set_yscale("log")
        ticks_in_words(axes.yaxis, LogLocator(subs=(1, 2, 5)), lambda value: in_billions(tick(value, axes.get_ylim()[1])))
        log_ticks(axes)
        legend_below(figure, axes.get_legend_handles_labels()[0], columns=2)
        hollow = (data["kind"].eq("best") & ~data["inside"].eq(True)).any()
        note = "hollow: smaller and larger were not both tried" if hollow else ""
        title_above(figure, "Best parameters at each budget", note)
    return figure


def valleys_of_law(fitted: LawFit) -> pd.DataFrame:
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


def draw_valleys(data: pd.DataFrame) -> Figure:
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
