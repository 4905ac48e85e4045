"""Downstream score against the FLOPs of pre-training, task by task."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from study.fitting.evidence import Evidence
from study.plotting.score_panels import SIZE, drawn, measured
from study.plotting.style import FLOPS, axis_name, log_ticks, side_by_side


def frame(evidence: Evidence) -> pd.DataFrame:
    """The scores of encoders that were trained against `train_flops`, see study.plotting.score_panels.

    `x` is where a score stands: at its `train_flops`, or beside them where others have as many or nearly so.
    """
    data = measured(evidence, "train_flops")
    data = data if data.empty else data[data["x"] > 0]
    return data if data.empty else data.assign(train_flops=data["x"], x=side_by_side(data["x"], data["task"], SIZE[0]))


def draw(data: pd.DataFrame) -> Figure:
    """FLOPs on a logarithmic axis."""
    axis = axis_name("FLOPs of pre-training", data["x"], data["train_flops"])
    return drawn(data, axis, FLOPS, lambda panel, _: log_ticks(panel), [])
