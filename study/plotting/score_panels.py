"""What the figures of downstream scores share: a panel a task, scores beside what needs no pre-training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.fitting.downstream import AVERAGE, TaskScores
from study.fitting.evidence import Evidence
from study.fitting.forecasting import Forecast
from study.plotting.style import depth_key, legend_below, panels, size_styles, theme, title_above

_LINES: dict[str, tuple[Literal[":", "--"], str, str]] = {
    "majority": (":", "black", "commonest answer"),
    "bag_of_words": ("--", "tab:brown", "words without their order"),
}
_UNTRAINED = "tab:gray"


def measured(evidence: Evidence, x: str) -> pd.DataFrame:
    """One row an encoder and task, the average last: the score against the column `x`, and what it is worth.

    `half` is half the 95% interval of the score `over` seeds and examples, over examples alone where no encoder has two seeds;
    `held_out` marks encoders that a forecast holds out.
    """
    if evidence.downstream is None:
        return pd.DataFrame()
    parts = [
        pd.DataFrame(
            {
                "task": task.task,
                "metric": task.metric,
                "kind": "measured",
                "x": task.points[x],
                "score": task.points["score"],
                "half": task.points["half"],
                "depth": task.points["depth"],
                "label": task.points["name"],
                "over": "seeds and examples" if task.points["seeds"].max() > 1 else "examples",
                "held_out": [held and _is_forecast(task) for held in task.held_out],
                **{name: task.points[name] for name in ("random", "majority", "bag_of_words")},
            }
        )
        for task in evidence.downstream.all
    ]
    return pd.concat(parts, ignore_index=True)


def _is_forecast(task: TaskScores) -> bool:
    return isinstance(task.forecast, Forecast) or isinstance(task.forecast_from_sizes, Forecast)


def drawn(
    data: pd.DataFrame, x: str, convention: str, finish: Callable[[Axes, pd.DataFrame], None], entries: list[Line2D]
) -> Figure:
    """A panel a task: points by depth with their intervals, untrained weights, and lines of the baselines.

    `x` names the axis and `convention` says in full what it counts; `finish` draws what is particular to a figure into each
    panel, from all its rows.
    """
    points = data[data["kind"] == "measured"]
    styles = size_styles(points["depth"].astype(int))
    tasks = list(dict.fromkeys(points["task"]))
    with theme():
        figure, axes = panels([_name(points, task) for task in tasks], x, "score", columns=3, size=(4.0, 3.0), one_y=False)
        for panel, task in zip(axes, tasks, strict=True):
            rows = points[points["task"] == task]
            for name, (line, colour, _) in _LINES.items():
                if rows[name].notna().any():
                    panel.axhline(rows[name].iloc[0], linestyle=line, color=colour, linewidth=1.2, zorder=1)
            panel.scatter(rows["x"], rows["random"], marker="x", color=_UNTRAINED, s=26, zorder=2)
            for depth, (colour, marker) in styles.items():
                some = rows[rows["depth"] == depth]
                for held, face in ((False, colour), (True, "white")):
                    part = some[some["held_out"] == held]
                    panel.errorbar(
                        part["x"],
                        part["score"],
                        part["half"].fillna(0),
                        color=colour,
                        fmt=marker,
                        markerfacecolor=face,
                        markersize=6,
                        capsize=3,
                        zorder=4,
                    )
            panel.margins(y=0.15)
            finish(panel, data[data["task"] == task])
        legend_below(figure, [*depth_key(styles), *_key(points), *entries])
        title_above(figure, f"Downstream score against {convention}{_bars(points)}")
    return figure


def _bars(points: pd.DataFrame) -> str:
    """What the intervals are over, for a title; the average's come from those of its tasks."""
    over = points.loc[(points["task"] != AVERAGE) & points["half"].notna()].groupby("task")["over"].first()
    if over.empty:
        return ""
    if over.nunique() == 1:
        return f"; bars: 95% over {over.iloc[0]}"
    return "; bars: 95% over examples, and seeds where a task has several"


def _name(points: pd.DataFrame, task: str) -> str:
    metric = points.loc[points["task"] == task, "metric"].iloc[0]
    return f"{task} ({metric})"


def _key(points: pd.DataFrame) -> list[Line2D]:
    lines = [
        Line2D([], [], linestyle=line, color=colour, label=label)
        for name, (line, colour, label) in _LINES.items()
        if points[name].notna().any()
    ]
    if points["random"].notna().any():
        lines.append(Line2D([], [], marker="x", color=_UNTRAINED, linestyle="", label="untrained weights"))
    if points["held_out"].any():
        label = "largest, held out by the forecast"
        lines.append(Line2D([], [], marker="o", markerfacecolor="white", color="black", linestyle="", label=label))
    return lines
