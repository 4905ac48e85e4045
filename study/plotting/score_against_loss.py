"""Downstream score against validation loss, task by task, with fitted laws."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.evidence.downstream import TaskScores
from study.evidence.evidence import Evidence
from study.plotting.score_panels import best_score, drawn, measured, rising_scores
from study.plotting.style import loss_axis

_POINTS = 60
_LAW = "black"


def frame(evidence: Evidence) -> pd.DataFrame:
    """Return the scores (study.plotting.score_panels), and rows of kind `law`: each fitted law and its 95% interval.

    Losses of several tokenisers are in bits per byte; those that do not compare have panels of their own, and the law is in
    that of the encoders that it is of.
    """
    data = measured(evidence, "loss")
    if data.empty or evidence.downstream is None:
        return data
    data = data.assign(scale=data["cell"].map(evidence.scales))
    if data["scale"].nunique() > 1:
        data = data.assign(panel=data["panel"] + "\n" + data["scale"])
    panel_at = dict(zip(zip(data["task"], data["cell"], strict=True), data["panel"], strict=True))
    laws = [_law(task).assign(panel=panel_at[task.task, task.compared["cell"].iloc[0]]) for task in evidence.downstream.all]
    return pd.concat([data, *laws], ignore_index=True)


def _law(task: TaskScores) -> pd.DataFrame:
    if isinstance(task.law, str) or not task.law.usable:
        return pd.DataFrame()
    loss = task.compared["loss"].astype(float)
    losses = np.linspace(loss.min(), loss.max(), _POINTS)
    low, high = task.law.interval(task.law.predictions({"loss": losses}))
    law = {"x": losses, "score": task.law.predict({"loss": losses}), "low": low, "high": high}
    return pd.DataFrame({"task": task.task, "kind": "law", **law})


def draw(data: pd.DataFrame) -> Figure:
    """Loss falls to the right."""
    laws = data[data["kind"] == "law"]
    label = "law of the loss, with the law's 95% interval" if "low" in laws and laws["low"].notna().any() else "law of the loss"
    entries = [] if laws.empty else [Line2D([], [], color=_LAW, label=label)]
    points = data[data["kind"] == "measured"]
    finding = rising_scores if points["scale"].nunique() == 1 else best_score
    figure = drawn(data, "validation loss (falls to the right)", loss_axis(points), _finish, entries, finding)
    for panel in figure.axes[:1]:
        panel.invert_xaxis()
    return figure


def _finish(panel: Axes, rows: pd.DataFrame) -> None:
    law = rows[rows["kind"] == "law"]
    if not law.empty:
        panel.plot(law["x"], law["score"], color=_LAW, linewidth=1.4, zorder=3)
        of_points = panel.get_ylim()
        panel.fill_between(law["x"], law["low"], law["high"], color=_LAW, alpha=0.15, linewidth=0, zorder=0)
        panel.set_ylim(of_points)  # the interval of a law that is hardly determined would flatten them
