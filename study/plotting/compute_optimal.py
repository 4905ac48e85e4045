"""Compute-optimal parameters against FLOPs, by approach."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from study.base.quantities import in_billions, tick
from study.base.text import status_words
from study.laws.approaches import Frontiers
from study.laws.frontiers import Frontier
from study.plotting.style import legend_below, log_ticks, panels, series_styles, theme, ticks_in_words, title_above


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
