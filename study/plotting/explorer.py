"""Runs as points in a browser: any quantity against any other."""

from __future__ import annotations

import altair as alt
import pandas as pd
import seaborn as sns
from altair.utils.schemapi import UndefinedType

from study.base.quantities import of_flops, plural
from study.evidence.ledgers import summarise_exclusions
from study.plotting.style import log_locator

SHOWN = {
    "sweep": "sweep",
    "shape": "shape",
    "setting": "setting",
    "recipe.learning_rate": "learning rate",
    "seed": "seed",
    "tokens": "tokens",
    "loss_nats": "loss (nats)",
    "order_gain_nats": "order gain (nats)",
    "left_out": "left out",
    "run_id": "run",
}
"""The tooltip's columns in order, with their labels."""

MANY_OF = 1e4
"""Axes from this value on are `counted`."""


def frame(runs: pd.DataFrame, x: str, y: str, colour: str) -> pd.DataFrame:
    """One row per run with both quantities: `x`, `y`, `colour`, `used`, `validation` and the columns of SHOWN.

    `runs` comes from study.report.exploring.runs_in; `used` marks runs that laws use.
    """
    there = runs[runs[x].notna() & runs[y].notna()]
    shown = there.reindex(columns=[*SHOWN, "validation"]).rename(columns=SHOWN)
    axes = {"x": there[x].astype(float), "y": there[y].astype(float), "colour": there[colour], "used": there["left_out"].isna()}
    return shown.assign(**axes).reset_index(drop=True)


def why_none_used(points: pd.DataFrame) -> str:
    """Why laws use none of these points; empty if they use any."""
    if points.empty:
        return "No run here has both quantities."
    if points["used"].any():
        return ""
    return f"Laws use none of the {plural(len(points), 'run')} here: {summarise_exclusions(points['left out'])}."


def why_none_shown(points: pd.DataFrame, log_x: bool, log_y: bool) -> str:
    """Why these axes show no points, and what to untick; empty if they show any."""
    if len(_shown(points, log_x, log_y)):
        return ""
    unticked = " and ".join(words for words, is_log in (("“log x”", log_x), ("“log y”", log_y)) if is_log)
    runs = plural(len(points), "run")
    return f"Logarithmic axes need positive values; there are none in {runs} here. Untick {unticked} to see them."


def _shown(points: pd.DataFrame, log_x: bool, log_y: bool) -> pd.DataFrame:
    return points[((points["x"] > 0) | (not log_x)) & ((points["y"] > 0) | (not log_y))]


def draw(data: pd.DataFrame, x: str, y: str, colour: str, log_x: bool = True, log_y: bool = False) -> alt.Chart:
    """One point per run, hollow if laws exclude it; `x`, `y` and `colour` name the axes and the legend.

    The title counts runs, sweeps, and non-positive runs missing from a logarithmic axis.
    """
    positive = _shown(data, log_x, log_y)
    title = _title(positive, len(data) - len(positive))
    data = positive
    numeric = pd.api.types.is_numeric_dtype(data["colour"])
    palette = (
        {"scheme": "viridis"} if numeric else {"range": sns.color_palette("colorblind", data["colour"].nunique()).as_hex()}
    )
    columns = [
        alt.Tooltip(name, format=",.4~g") if pd.api.types.is_float_dtype(data[name]) else alt.Tooltip(name)
        for name in SHOWN.values()
        if data[name].dropna().astype(str).ne("").any()
    ]
    colours = alt.Color("colour:O" if numeric else "colour:N", title=colour, scale=alt.Scale(**palette))
    hollow = alt.condition("datum.used", colours, alt.value("transparent"))
    chart: alt.Chart = (
        alt.Chart(data, title=title, width="container", height=440)
        .mark_point(size=70, strokeWidth=1.6)
        .encode(
            x=_axis(data, "x", x, log_x),
            y=_axis(data, "y", y, log_y),
            stroke=colours,
            fill=hollow,
            tooltip=columns,
        )
    )
    return chart


def _title(data: pd.DataFrame, not_positive: int) -> str:
    hollow = int((~data["used"]).sum())
    parts = [f"{plural(data['run'].nunique(), 'run')} of {plural(data['sweep'].nunique(), 'sweep')}"]
    parts += [f"{hollow} hollow: excluded, or not at the best knobs of a cell"] if hollow else []
    parts += [f"{not_positive} not shown, not being positive"] if not_positive else []
    return "; ".join(parts)


def _axis(data: pd.DataFrame, name: str, title: str, is_log: bool) -> alt.X | alt.Y:
    kind = alt.X if name == "x" else alt.Y
    scale = alt.Scale(type="log", nice=False, padding=20) if is_log else alt.Scale(zero=False, padding=20)
    ticks = log_ticks(data[name]) if is_log else alt.Undefined
    axis = counted(title, ticks) if data[name].max() >= MANY_OF else alt.Axis(format=".4~g", values=ticks)
    return kind(f"{name}:Q", title=title, scale=scale, axis=axis)


def log_ticks(values: pd.Series[float]) -> list[float] | UndefinedType:
    """Ticks of a logarithmic axis; Vega's own within a factor 2.

    Over a wider range Vega drops the labels of decades.
    """
    low, high = values.min(), values.max()
    if not high >= 2 * low:
        return alt.Undefined
    return [float(tick) for tick in log_locator(low, high).tick_values(low, high)]


def counted(title: str, ticks: list[float] | UndefinedType) -> alt.Axis:
    """An axis in k, M, B (G for FLOPs) and T, then powers of ten, as in study.plotting.style."""
    short = "format(datum.value, '~s')" if of_flops(title) else "replace(format(datum.value, '~s'), 'G', 'B')"
    words = f"datum.value < 1e15 ? {short} : replace(format(datum.value, '~e'), '+', '')"
    return alt.Axis(labelExpr=words, labelSeparation=8, values=ticks)
