"""Runs as points to hover over and to select: any quantity against any other, in a browser."""

from __future__ import annotations

import altair as alt
import pandas as pd
import seaborn as sns

from study.quantities import plural

SHOWN = {
    "sweep": "sweep",
    "shape": "shape",
    "setting": "setting",
    "recipe.learning_rate": "learning rate",
    "seed": "seed",
    "tokens": "tokens",
    "loss_nats": "loss (nats)",
    "left_out": "left out",
    "run_id": "run",
}
"""What a point tells of its run, in order, and what that is called."""


def frame(runs: pd.DataFrame, x: str, y: str, colour: str) -> pd.DataFrame:
    """One row a run that has both quantities: `x`, `y`, `colour` and `used`, and what SHOWN names, under those names.

    `runs` is of study.exploring.runs_in; `used` says whether laws and comparisons use the run.
    """
    there = runs[runs[x].notna() & runs[y].notna()]
    told = there[[*SHOWN]].rename(columns=SHOWN)
    axes = {"x": there[x].astype(float), "y": there[y].astype(float), "colour": there[colour], "used": there["left_out"].isna()}
    return told.assign(**axes).reset_index(drop=True)


def draw(data: pd.DataFrame, x: str, y: str, colour: str, log_x: bool = True, log_y: bool = False) -> alt.Chart:
    """A point a run, hollow where laws and comparisons leave it out; `x`, `y` and `colour` name the axes and the legend.

    A logarithmic axis leaves out what is not positive, and the title says of how many runs and sweeps the rest are.
    """
    for axis, is_log in (("x", log_x), ("y", log_y)):
        data = data[data[axis] > 0] if is_log else data
    numeric = pd.api.types.is_numeric_dtype(data["colour"])
    palette = {"scheme": "viridis"} if numeric else {"range": sns.color_palette("colorblind").as_hex()}
    told = [
        alt.Tooltip(name, format=",.4~g") if pd.api.types.is_float_dtype(data[name]) else alt.Tooltip(name)
        for name in SHOWN.values()
        if data[name].dropna().astype(str).ne("").any()
    ]
    colours = alt.Color("colour:O" if numeric else "colour:N", title=colour, scale=alt.Scale(**palette))
    hollow = alt.condition("datum.used", colours, alt.value("transparent"))
    hollow_ones = int((~data["used"]).sum())
    title = f"{plural(len(data), 'run')} of {plural(data['sweep'].nunique(), 'sweep')}"
    title += f", {hollow_ones} of them (hollow) used by no fit" if hollow_ones else ""
    chart: alt.Chart = (
        alt.Chart(data, title=title, width="container", height=440)
        .mark_point(size=70, strokeWidth=1.6)
        .encode(
            x=_axis("x", x, log_x),
            y=_axis("y", y, log_y),
            stroke=colours,
            fill=hollow,
            tooltip=told,
        )
    )
    return chart


def _axis(name: str, title: str, is_log: bool) -> alt.X | alt.Y:
    kind = alt.X if name == "x" else alt.Y
    scale = alt.Scale(type="log", nice=False, padding=20) if is_log else alt.Scale(zero=False, padding=20)
    return kind(f"{name}:Q", title=title, scale=scale, axis=alt.Axis(format="~s" if name == "x" else ".4~g"))
