"""Loss against every variable of a law, and its residuals: measured rows, held-out rows, and what the law says there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from study.fitting.forecasting import largest_runs, predicted
from study.fitting.law_fits import LawFit
from study.plotting.style import MANY, log_ticks, theme

BUDGET, HELD = "budget", "held out"


def frame(found: LawFit) -> pd.DataFrame:
    """One row a row of the table (at most MANY) and a variable: the size, the measured value, the law's and its 95% interval.

    `held_out` marks the rows that the forecast holds out; the law drawn here was fitted to all. `residual` is in the fit's
    space. `title` and the names of the axes stand in every row.
    """
    held = largest_runs(found.fit.observations, found.held_out)
    title = f"{found.fit.law.name}: {found.fit.law.formula} ({found.fit.status}, n = {found.fit.n})"
    roles = found.fit.observations.roles
    everything = replace(found.fit.observations, columns={**found.fit.observations.columns, HELD: held.astype(float)})
    points = everything.thinned(MANY)
    told = predicted(found.fit, points)
    axes = {name: points.columns[name] for name in found.fit.law.variables} | {BUDGET: points.budget}
    return pd.concat(
        pd.DataFrame(
            {
                "variable": name,
                "axis": _axis(name, roles),
                "size": values,
                "measured": points.response,
                "law": told.predicted,
                "low": told.low,
                "high": told.high,
                "residual": found.fit.residual(told.predicted, points.response),
                "held_out": points.columns[HELD] > 0,
                "predicts": found.fit.law.predicts,
                "space": found.fit.settings.space,
                "title": title,
            }
        )
        for name, values in axes.items()
    ).reset_index(drop=True)


def _axis(name: str, roles: Mapping[str, str]) -> str:
    """A variable with the column or expression that it was read from; the budget says what orders the runs."""
    column = roles.get("budget" if name == BUDGET else name)
    if name == BUDGET and column is None:
        column = roles.get("flops", "6·N·D")
    return name if column in (None, name) else f"{name} ({column})"


def draw(data: pd.DataFrame) -> Figure:
    """A column a variable: measured values and the law above, residuals below."""
    names = list(dict.fromkeys(data["variable"]))
    fitted, held, law = sns.color_palette("colorblind", 3).as_hex()
    parts = {False: (fitted, "measured"), True: (held, "measured, held out by the forecast")}
    with theme():
        figure = Figure(figsize=(3.9 * max(2, len(names)), 7.0), layout="constrained")
        axes = figure.subplots(2, len(names), sharex="col", sharey="row", squeeze=False)
        for (above, below), name in zip(axes.T, names, strict=True):
            rows = data[data["variable"] == name]
            above.vlines(rows["size"], rows["low"], rows["high"], color=law, linewidth=3, alpha=0.3)
            above.scatter(rows["size"], rows["law"], marker="_", s=50, color=law, label="law, with its 95% interval")
            below.axhline(0, color="black", linewidth=1)
            for part, (colour, label) in parts.items():
                some = rows[rows["held_out"] == part]
                above.scatter(some["size"], some["measured"], s=14, color=colour, zorder=3, label=label)
                below.scatter(some["size"], some["residual"], s=14, color=colour)
            below.set_xlabel(rows["axis"].iloc[0])
            log_ticks(below)
        axes[0, 0].set_ylabel(data["predicts"].iloc[0])
        axes[1, 0].set_ylabel(f"residual (law − measured, {data['space'].iloc[0]})")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        figure.suptitle(str(data["title"].iloc[0]))
    return figure
