"""A law's figure as one of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from study.evidence.evidence import Evidence
from study.laws.law_fits import LawFit


@dataclass(frozen=True)
class OfLaw:
    """Shows of a sweep what `of` shows of the law that its figures show; nothing where there is none."""

    of: Callable[[LawFit], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure]

    def frame(self, evidence: Evidence) -> pd.DataFrame:
        """The data of the figure, empty where there is no law."""
        shown = evidence.laws.shown
        return pd.DataFrame() if shown is None else self.of(shown)
