"""Loss against parameters at each budget, with the lowest points that approach 2 finds."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from study.errors import InputError
from study.fitting.frontiers import iso_flop, iso_flop_groups
from study.fitting.law_fits import LawFit
from study.fitting.observations import Observations
from study.plotting.style import MANY, log_ticks, panels, theme


def frame(found: LawFit) -> pd.DataFrame:
    """The valleys of the rows that a law of loss in parameters and tokens was fitted to; empty where it is another law."""
    wanted = {"parameters", "tokens"} <= set(found.fit.law.variables) and found.fit.law.predicts == "loss"
    return valleys(found.fit.observations, found.source.where or "") if wanted else pd.DataFrame()


def valleys(points: Observations, where: str = "") -> pd.DataFrame:
    """One row a run at a budget of three sizes or more, and one a minimum (`kind`); empty where there is no frontier.

    `where` says which rows of a table the points are.
    """
    points = points.thinned(MANY)
    parameters, flops, loss = points.columns["parameters"], points.budget, points.response
    try:
        found = iso_flop(parameters, flops, loss)
    except InputError:
        return pd.DataFrame()
    groups = [rows for rows in iso_flop_groups(flops) if len(np.unique(parameters[rows])) >= 3]
    runs = [
        {"kind": "run", "flops": float(np.exp(np.log(flops[rows]).mean())), "parameters": parameters[row], "loss": loss[row]}
        for rows in groups
        for row in rows
    ]
    minima = [
        {"kind": "minimum", "flops": best.flops, "parameters": best.parameters, "loss": best.loss}
        for best in found.best
        if best.inside
    ]
    return pd.DataFrame(runs + minima).assign(where=where)


def draw(data: pd.DataFrame) -> Figure:
    """A line a budget, from dark (small) to light (large), and the minima."""
    budgets = sorted(data.loc[data["kind"] == "run", "flops"].unique())
    ramp = dict(zip(budgets, sns.color_palette("viridis", len(budgets)).as_hex(), strict=True))
    with theme():
        figure, (axes,) = panels([""], "parameters", "loss", size=(8.5, 5.2))
        for budget, rows in data[data["kind"] == "run"].sort_values("parameters").groupby("flops"):
            axes.plot(
                rows["parameters"],
                rows["loss"],
                marker="o",
                markersize=4,
                linewidth=1,
                color=ramp[float(str(budget))],
            )
        minima = data[data["kind"] == "minimum"]
        axes.scatter(minima["parameters"], minima["loss"], marker="*", s=110, color="black", zorder=4)
        log_ticks(axes)
        told = f"{len(budgets)} budgets of {budgets[0]:.2g} to {budgets[-1]:.2g} FLOPs; stars: lowest points"
        figure.suptitle("\n".join(filter(None, (told, data["where"].iloc[0]))))
    return figure
