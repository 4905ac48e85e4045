"""Downstream score against validation loss, task by task, with fitted laws."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.evidence.downstream import TaskScores, with_comparable_losses
from study.evidence.evidence import Evidence
from study.evidence.ledgers import LOSS
from study.plotting.score_panels import drawn, measured, rising_scores

_POINTS = 60
_LAW = "black"


def frame(evidence: Evidence) -> pd.DataFrame:
    """Return the scores (study.plotting.score_panels), and rows of kind `law`: each fitted law and its 95% interval."""
    data = measured(evidence, "loss_nats")
    if data.empty or evidence.downstream is None:
        return data
    comparable = {cell for task in evidence.downstream.all for cell in with_comparable_losses(task.points)["cell"]}
    data = data[data["cell"].isin(comparable)]
    return pd.concat([data, *(_law(task) for task in evidence.downstream.all)], ignore_index=True)


def _law(task: TaskScores) -> pd.DataFrame:
    if isinstance(task.law, str) or not task.law.usable:
        return pd.DataFrame()
    loss = with_comparable_losses(task.points)["loss_nats"].astype(float)
    losses = np.linspace(loss.min(), loss.max(), _POINTS)
    low, high = task.law.interval(task.law.predictions({"loss": losses}))
    law = {"x": losses, "score": task.law.predict({"loss": losses}), "low": low, "high": high}
    return pd.DataFrame({"task": task.task, "kind": "law", **law})


def draw(data: pd.DataFrame) -> Figure:
    """Loss falls to the right."""
    laws = data[data["kind"] == "law"]
    label = "law of the loss, with the law's 95% interval" if "low" in laws and laws["low"].notna().any() else "law of the loss"
    entries = [] if laws.empty else [Line2D([], [], color=_LAW, label=label)]
    figure = drawn(data, "validation loss (falls to the right)", LOSS, _finish, entries, rising_scores)
    for panel in figure.axes[:1]:
        panel.invert_xaxis()
    return figure


def _finish(panel: Axes, rows: pd.DataFrame) -> None:
    law = rows[rows["kind"] == "law"]
    if not law.empty:
        panel.plot(law["x"], law["score"], color=_LAW, linewidth=1.4, zorder=3)
        panel.fill_between(law["x"], law["low"], law["high"], color=_LAW, alpha=0.15, linewidth=0, zorder=0)
