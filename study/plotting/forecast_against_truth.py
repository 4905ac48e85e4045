"""What a law fitted to the smaller runs said about larger budgets, against what was measured."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from study.base.text import status_words
from study.laws.forecasting import Forecast
from study.laws.law_fits import LawFit
from study.plotting.law_fit import axis_of
from study.plotting.style import MANY, panels, theme, title_above

COVERS, MISSES, NO_INTERVAL = "interval covers", "interval misses", "no interval"


def frame(found: LawFit) -> pd.DataFrame:
    """One row a row held out, at most MANY, with the law and its status; empty where there is no forecast."""
    told = found.forecast
    if not isinstance(told, Forecast):
        return pd.DataFrame()
    missed = ", missed" if told.missed else ""
    data = pd.DataFrame(
        {
            "row": told.labels,
            "measured": told.measured,
            "predicted": told.predicted,
            "low": told.low,
            "high": told.high,
            "interval": np.where(np.isnan(told.low), NO_INTERVAL, np.where(told.covered, COVERS, MISSES)),
            "predicts": axis_of(found.fit.law.predicts, found.fit.observations.roles),
            "law": found.name,
            "told": f"{status_words(told.status)}{missed}; mean |error| {told.mean_error}, n = {len(told.labels)}",
        }
    )
    return data.iloc[np.unique(np.linspace(0, len(data) - 1, MANY).astype(int))].reset_index(drop=True)


def draw(data: pd.DataFrame) -> Figure:
    """Predictions with their 95% intervals over measured values, on axes of one scale: on a line that says so they agree."""
    kind, law, told = data.loc[0, ["predicts", "law", "told"]]
    with theme():
        figure, (axes,) = panels([""], f"measured {kind}", f"predicted {kind}", size=(6.5, 6.5))
        drawn = data[["measured", "predicted", "low", "high"]].to_numpy(dtype=float)
        ends = (np.nanmin(drawn), np.nanmax(drawn))
        axes.plot(ends, ends, color="black", linewidth=1, label="predicted = measured")
        axes.set_aspect("equal", adjustable="box")
        for part, colour in zip((COVERS, MISSES, NO_INTERVAL), sns.color_palette("colorblind", 3).as_hex(), strict=True):
            rows = data[data["interval"] == part]
            if rows.empty:
                continue
            away = [(rows["predicted"] - rows["low"]).clip(lower=0), (rows["high"] - rows["predicted"]).clip(lower=0)]
            axes.errorbar(rows["measured"], rows["predicted"], away, fmt="o", color=colour, markersize=5, capsize=3, label=part)
        axes.legend()
        title_above(figure, f"{law}: forecast beyond the budgets fitted\n({told})")
    return figure
