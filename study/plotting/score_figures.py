"""Downstream scores against the loss, and against parameters or FLOPs in each convention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from study.evidence.evidence import Evidence
from study.evidence.ledgers import COUNTS, LEDGER_FLOPS, LEDGER_PARAMETERS, LOSS
from study.plotting import score_against_flops, score_against_loss, score_against_parameters

AXES = {"loss_nats": LOSS, **COUNTS}
"""The x axes of scores in words, by ledger column."""

FIGURES: dict[str, tuple[Callable[[Evidence], pd.DataFrame], Callable[[pd.DataFrame], Figure]]] = {
    "loss_nats": (score_against_loss.frame, score_against_loss.draw),
    **{
        count: (partial(score_against_parameters.frame, count=count), score_against_parameters.draw)
        for count in LEDGER_PARAMETERS
    },
    **{count: (partial(score_against_flops.frame, count=count), score_against_flops.draw) for count in LEDGER_FLOPS},
}
"""The data and drawing of each; a figure without data is not drawn."""
