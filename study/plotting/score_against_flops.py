"""Downstream score against pre-training FLOPs, in any convention, task by task."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from study.evidence.evidence import Evidence
from study.evidence.ledgers import COUNTS
from study.plotting.score_panels import WIDTH, best_score, drawn, measured
from study.plotting.style import axis_name, log_ticks, side_by_side


def frame(evidence: Evidence, count: str = "train_flops") -> pd.DataFrame:
    """Return the scores of trained encoders against FLOPs by this `count` of COUNTS (study.plotting.score_panels).

    `x` is shifted if others have nearly as many.
    """
    data = measured(evidence, count)
    data = data if data.empty else data[data["x"] > 0]
    if data.empty:
        return data
    return data.assign(**{count: data["x"]}, count=count, x=side_by_side(data["x"], data["task"], WIDTH))


def draw(data: pd.DataFrame) -> Figure:
    """FLOPs on a logarithmic axis."""
    count = data["count"].iloc[0]
    axis = axis_name("FLOPs of pre-training", data["x"], data[count])
    return drawn(data, axis, COUNTS[count], lambda panel, _: log_ticks(panel), [], best_score)
