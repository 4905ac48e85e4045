"""Downstream score against the FLOPs of pre-training, task by task."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from study.fitting.evidence import Evidence
from study.plotting.score_panels import drawn, measured
from study.plotting.style import FLOPS, log_ticks


def frame(evidence: Evidence) -> pd.DataFrame:
    """The scores of encoders that were trained against `train_flops`, see study.plotting.score_panels."""
    data = measured(evidence, "train_flops")
    return data if data.empty else data[data["x"] > 0]


def draw(data: pd.DataFrame) -> Figure:
    """FLOPs on a logarithmic axis."""
    return drawn(data, "FLOPs of pre-training", FLOPS, lambda panel, _: log_ticks(panel), [])
