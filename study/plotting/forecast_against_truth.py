"""Forecasts of a law at larger budgets against measurements."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from study.base.quantities import plural
from study.base.text import status_words
from study.laws.forecasting import Forecast
from study.laws.law_fits import LawFit
from study.plotting.hover import explain
from study.plotting.law_fit import axis_of, limits_of
from study.plotting.style import MANY, legend_below, panels, theme, title_above

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
        figure, (axes,) = panels([""], f"measured {kind}", f"predicted {kind}", height=3.4)
        axes.axline((1, 1), slope=1, color="black", linewidth=1, label="predicted = measured")
        for part, colour in zip((COVERS, MISSES, NO_INTERVAL), sns.color_palette("colorblind", 3).as_hex(), strict=True):
            rows = data[data["interval"] == part]
            if rows.empty:
                continue
            away = [(rows["predicted"] - rows["low"]).clip(lower=0), (rows["high"] - rows["predicted"]).clip(lower=0)]
            axes.errorbar(rows["measured"], rows["predicted"], away, fmt="o", color=colour, markersize=5, capsize=3, label=part)
            explain(axes, rows, "measured", "predicted")
        bottom, top = limits_of(data.assign(law=data["predicted"]))
        axes.set_ylim(bottom, top)
        axes.set_xlim(data["measured"].min() - (top - bottom) / 12, data["measured"].max() + (top - bottom) / 12)
        cut = "; bars cut at the axis" if (data["low"] < bottom).any() or (data["high"] > top).any() else ""
        legend_below(figure, axes.get_legend_handles_labels()[0])
        known, covered = (data["interval"] != NO_INTERVAL).sum(), (data["interval"] == COVERS).sum()
        finding = f"{covered} of {plural(int(known), 'held-out run')} inside the 95% interval of the forecast"
        missed = (data["predicted"] - data["measured"]).abs().mean()
        unknown = f"The forecast misses {plural(len(data), 'held-out run')} by {missed:.2g} on average, and has no interval"
        title_above(figure, finding if known else unknown, f"{law}, fitted to smaller budgets; {caption}{cut}")
    return figure
