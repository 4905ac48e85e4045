"""What a law fitted to the smaller runs said about the largest, against what was measured."""

from __future__ import annotations

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from study.fitting.forecasting import Forecast
from study.fitting.law_fits import LawFit
from study.plotting.style import MANY, panels, theme


def frame(found: LawFit) -> pd.DataFrame:
    """One row a row held out, at most MANY, with the law and its status; empty where there is no forecast."""
    told = found.forecast
    if not isinstance(told, Forecast):
        return pd.DataFrame()
    data = pd.DataFrame(
        {
            "row": told.labels,
            "measured": told.measured,
            "predicted": told.predicted,
            "low": told.low,
            "high": told.high,
            "covered": told.covered,
            "predicts": found.fit.law.predicts,
            "law": found.fit.law.name,
            "status": told.status,
        }
    )
    return data.iloc[np.unique(np.linspace(0, len(data) - 1, MANY).astype(int))].reset_index(drop=True)


def draw(data: pd.DataFrame) -> Figure:
    """Predictions with their 95% intervals over measured values; on the diagonal they agree."""
    covered, missed = sns.color_palette("colorblind", 2).as_hex()
    kind, law, status = data.loc[0, ["predicts", "law", "status"]]
    with theme():
        figure, (axes,) = panels([""], f"measured {kind}", f"predicted {kind}", size=(8.0, 5.0))
        ends = [data[["measured", "predicted"]].min().min(), data[["measured", "predicted"]].max().max()]
        axes.plot(ends, ends, color="black", linewidth=1)
        for part, colour in ((True, covered), (False, missed)):
            rows = data[data["covered"] == part]
            away = [(rows["predicted"] - rows["low"]).clip(lower=0), (rows["high"] - rows["predicted"]).clip(lower=0)]
            label = "interval covers" if part else "interval misses"
            axes.errorbar(
                rows["measured"], rows["predicted"], away, fmt="o", color=colour, markersize=5, capsize=3, label=label
            )
        axes.legend()
        error = (data["predicted"] / data["measured"] - 1).abs().mean()
        figure.suptitle(f"{law}: forecast of the largest runs ({status}; mean |error| {error:.2%}, n = {len(data)})")
    return figure
