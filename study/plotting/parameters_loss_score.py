"""From parameters to loss to score, in three panels."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from study.evidence.evidence import Evidence
from study.evidence.ledgers import COUNTS
from study.plotting.hover import explain
from study.plotting.lines import line_key, line_styles
from study.plotting.score_panels import best_score, measured, scored_cells
from study.plotting.style import in_unit, legend_below, log_ticks, loss_axis, style, theme, title_above, wide_figure

_COUNT = "parameters"
_POINT: dict[str, Any] = {"linestyle": "none", "markersize": 5}


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row per scored encoder: `parameters`, the mean loss and score of its scored runs, with half the 95% interval of each.

    Where losses do not compare, only those are given that the trend is of (TaskScores.compared).
    The score is the average over tasks or the only task's; empty if there is neither.
    """
    data = measured(evidence, _COUNT)
    if data.empty or evidence.downstream is None:
        return data
    shown = evidence.downstream.all[-1]
    if evidence.downstream.average is None and len(evidence.downstream.tasks) > 1:
        return pd.DataFrame()
    data = data[data["task"] == shown.task].rename(columns={"x": _COUNT})
    trend = shown.trend
    correlation = "" if trend is None else f"Rank correlation of score and falling loss: {trend.correlation:+.2f}"
    interval = "" if trend is None or trend.low is None else f" (95% interval {trend.low:+.2f} to {trend.high:+.2f})"
    scored = scored_cells(evidence, shown)
    losses = pd.DataFrame([evidence.losses(scored[str(cell)]) for cell in data["cell"]], index=data.index)
    compared = data["cell"].isin(shown.compared["cell"])
    return data.assign(
        loss_nats=losses["loss_nats"].where(compared),
        half_nats=losses["half_nats"].astype(float),
        unit=losses["unit"],
        scale="",
        finding=f"{correlation}{interval}",
    ).reset_index(drop=True)


def draw(data: pd.DataFrame) -> Figure:
    """Loss against parameters, score against falling loss, and score against parameters."""
    data = in_unit(data)
    styles = line_styles(data)
    with theme():
        across = style().columns > 1
        figure = wide_figure(3.0 if across else 6.6)
        left, middle, right = figure.subplots(1, 3) if across else figure.subplots(3, 1)
        for line, rows in data.groupby("line", sort=False):
            look = styles[str(line)] | _POINT
            _points(left, rows, _COUNT, "loss_nats", look)
            _points(middle, rows, "loss_nats", "score", look)
            _points(right, rows, _COUNT, "score", look)
        for panel in (left, right):
            panel.set_xlabel(_COUNT)
            panel.margins(x=0.08)
            log_ticks(panel)
        left.set_ylabel("validation loss\n(lower is better)")
        middle.set_xlabel("validation loss (falls to the right)")
        middle.invert_xaxis()
        for panel in (middle, right):
            panel.set_ylabel("score\n(higher is better)")
        legend_below(figure, line_key(styles, **_POINT))
        losses = loss_axis(data[data["loss_nats"].notna()])
        score = f"score: {data['metric'].iloc[0]}; {losses}; {COUNTS[_COUNT]}; bars: 95%"
        title_above(figure, data["finding"].iloc[0] or best_score(data), score)
    return figure


def _points(panel: Axes, rows: pd.DataFrame, x: str, y: str, look: dict[str, Any]) -> None:
    half = rows["half_nats" if y == "loss_nats" else "half"].astype(float).fillna(0)
    panel.errorbar(rows[x], rows[y], half, capsize=2, elinewidth=1, **look)
    explain(panel, rows, x, y)
