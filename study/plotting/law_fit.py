"""Loss against every variable of a law, and its residuals: measured rows, those that are forecast, and what the law says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from study.base.text import status_words
from study.laws.forecasting import Forecast, predicted
from study.laws.law_fits import LawFit
from study.laws.observations import budget_name
from study.plotting.style import MANY, legend_below, log_ticks, theme, title_above

BUDGET = "budget"


def frame(found: LawFit) -> pd.DataFrame:
    """One row a row of the table (at most MANY) and a variable: the size, the measured value, the law's and its 95% interval.

    `forecast` marks the rows that the forecast is of; the law drawn here was fitted to all. `residual` is in the fit's
    space. `title` and the names of the axes stand in every row.
    """
    forecast = found.forecast.labels if isinstance(found.forecast, Forecast) else ()
    title = f"{found.name}: {found.fit.law.formula} ({status_words(found.fit.status)}, n = {found.fit.n})"
    roles = found.fit.observations.roles
    points = found.fit.observations.thinned(MANY)
    predictions = predicted(found.fit, points)
    axes = {name: points.columns[name] for name in found.fit.law.variables} | {BUDGET: points.budget}
    return pd.concat(
        pd.DataFrame(
            {
                "variable": name,
                "axis": _axis(name, roles, found.fit.law.variables),
                "size": values,
                "measured": points.response,
                "law": predictions.predicted,
                "low": predictions.low,
                "high": predictions.high,
                "residual": found.fit.residual(predictions.predicted, points.response),
                "forecast": np.isin(points.labels, forecast),
                "predicts": axis_of(found.fit.law.predicts, roles),
                "space": found.fit.settings.space,
                "title": title,
            }
        )
        for name, values in axes.items()
    ).reset_index(drop=True)


def _axis(name: str, roles: Mapping[str, str], variables: Sequence[str]) -> str:
    """A variable with the column or expression that it was read from; the budget says what orders the runs."""
    if name == BUDGET and BUDGET not in roles:
        return f"{name} ({roles.get('flops', budget_name(variables))})"
    return axis_of(name, roles)


def axis_of(name: str, roles: Mapping[str, str]) -> str:
    """What a law reads or predicts, with the column or expression that it was read from where this is called otherwise."""
    column = roles.get(name, name)
    return name if column == name else f"{name} ({column})"


def draw(data: pd.DataFrame) -> Figure:
    """A column a variable: measured values and the law above, residuals below.

    The axis follows these values; an interval beyond it is cut there, as the legend then says.
    """
    names = list(dict.fromkeys(data["variable"]))
    fitted, held, law = sns.color_palette("colorblind", 3).as_hex()
    parts = {False: (fitted, "measured"), True: (held, "measured, forecast from smaller runs")}
    bottom, top = _limits(data)
    is_cut = (data["low"] < bottom).any() or (data["high"] > top).any()
    interval = ", and where 95% of runs lie by it" if data["low"].notna().any() else ""
    label = f"law{interval}{' (cut at the axis)' if is_cut else ''}"
    with theme():
        figure = Figure(figsize=(3.9 * max(2, len(names)), 7.0), layout="constrained")
        axes = figure.subplots(2, len(names), sharex="col", sharey="row", squeeze=False)
        for (above, below), name in zip(axes.T, names, strict=True):
            rows = data[data["variable"] == name]
            low, high = rows["low"].clip(lower=bottom), rows["high"].clip(upper=top)
            above.vlines(rows["size"], low, high, color=law, linewidth=3, alpha=0.3)
            above.scatter(rows["size"], rows["law"], marker="_", s=50, color=law, label=label)
            below.axhline(0, color="black", linewidth=1)
            for part, (colour, label) in parts.items():
                some = rows[rows["forecast"] == part]
                if some.empty:
                    continue
                above.scatter(some["size"], some["measured"], s=14, color=colour, zorder=3, label=label)
                below.scatter(some["size"], some["residual"], s=14, color=colour)
            below.set_xlabel(rows["axis"].iloc[0])
            log_ticks(below)
        axes[0, 0].set_ylabel(data["predicts"].iloc[0])
        axes[1, 0].set_ylabel(f"residual (law − measured, {data['space'].iloc[0]})")
        axes[0, 0].set_ylim(bottom, top)
        legend_below(figure, axes[0, 0].get_legend_handles_labels()[0], columns=3)
        title_above(figure, str(data["title"].iloc[0]))
    return figure


def _limits(data: pd.DataFrame) -> tuple[float, float]:
    """A range with all measured and fitted values, and with intervals as far as the spread of these values beyond them."""
    values = data[["measured", "law"]].to_numpy(dtype=float)
    values = values[np.isfinite(values)]
    least, most = float(values.min()), float(values.max())
    spread = max(most - least, 0.02 * abs(most), 1e-9)
    low, high = max(data["low"].min(), least - spread), min(data["high"].max(), most + spread)
    margin = 0.06 * spread
    return float(np.fmin(low, least)) - margin, float(np.fmax(high, most)) + margin
