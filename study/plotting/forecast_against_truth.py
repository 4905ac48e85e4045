"""Forecasts of a law at larger budgets against measurements."""

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


def frame(fitted: LawFit) -> pd.DataFrame:
    """One row per held-out row, at most MANY; empty without a forecast."""
    forecast = fitted.forecast
    if not isinstance(forecast, Forecast):
        return pd.DataFrame()
    missed = ", missed" if forecast.missed else ""
    data = pd.DataFrame(
        {
            "row": forecast.labels,
            "measured": forecast.measured,
            "predicted": forecast.predicted,
            "low": forecast.low,
            "high": forecast.high,
            "interval": np.where(np.isnan(forecast.low), NO_INTERVAL, np.where(forecast.covered, COVERS, MISSES)),
            "predicts": axis_of(fitted.fit.law.predicts, fitted.fit.observations.roles),
            "law": fitted.name,
            "caption": f"{status_words(forecast.status)}{missed}; "
            f"mean |error| {forecast.mean_error}, n = {len(forecast.labels)}",
        }
    )
    return data.iloc[np.unique(np.linspace(0, len(data) - 1, MANY).astype(int))].reset_index(drop=True)


def draw(data: pd.DataFrame) -> Figure:
    """Predictions with 95% intervals over measured values, on equal axes."""
    kind, law, caption = data.loc[0, ["predicts", "law", "caption"]]
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
        title_above(figure, f"{law}: forecast beyond the budgets fitted\n({caption})")
    return figure
