"""All figures of a law's fit to a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from study.base.errors import InputError
from study.laws.estimation import DEFAULT_SETTINGS, Settings
from study.laws.forecasting import HELD_OUT
from study.laws.law_fits import LawFit, fit_table
from study.laws.multiverse import explore
from study.laws.predicting import predict_fit, read_targets
from study.laws.reading import TableQuery
from study.plotting import answer_by_convention, forecast_against_truth, iso_flop_valleys, law_fit, loss_by_shape
from study.plotting.law_fit import LawTarget
from study.plotting.style import Format, drawable, save_in

FIGURES = {
    "forecast_against_truth": (forecast_against_truth.frame, forecast_against_truth.draw),
    "iso_flop_valleys": (iso_flop_valleys.frame, iso_flop_valleys.draw),
    "loss_by_shape": (loss_by_shape.frame_of_law, loss_by_shape.draw),
}
"""The other figures of a law's fit by file name; a figure without data is not drawn."""


def draw_all(
    query: TableQuery,
    law: str,
    into: Path,
    settings: Settings = DEFAULT_SETTINGS,
    held_out: float = HELD_OUT,
    formats: Sequence[Format] = (),
    at: Sequence[str] = (),
) -> list[Path]:
    """Write every figure with data and return the files; the same table gives the same bytes.

    The law is drawn up to the points `at`, written as in study.laws.predicting.read_targets.
    """
    fitted = fit_table(query, law, settings, held_out)
    frames = {"law_fit": (law_fit.frame(fitted, targets_of(fitted, at)), law_fit.draw)}
    frames |= {name: (frame(fitted), draw) for name, (frame, draw) in FIGURES.items()}
    frames["exponents_by_convention"] = (_exponents(fitted), answer_by_convention.draw)
    shown = {name: (drawable(data), draw) for name, (data, draw) in frames.items() if not data.empty}
    return [file for name, (data, draw) in shown.items() for file in save_in(draw(data), into, name, formats, data)]


def targets_of(fitted: LawFit, at: Sequence[str], place: str = "--at") -> list[LawTarget]:
    """Return what a law forecasts at points.

    Raises InputError for points that cannot be read, at `place`, and for a law that forecasts nothing.
    """
    if not at:
        return []
    points = read_targets(fitted.fit.law, at, fitted.fit.observations.roles, place)
    return [LawTarget(one.at, one.value, one.low, one.high) for one in predict_fit(fitted, points).points]


def _exponents(fitted: LawFit) -> pd.DataFrame:
    """Return the table's multiverse; empty unless the law is one of loss in N and D and can answer the question."""
    if not {"parameters", "tokens"} <= set(fitted.fit.law.variables) or fitted.fit.law.predicts != "loss":
        return pd.DataFrame()
    given = fitted.query.roles
    sizes, budgets = ([given[role]] if role in given else [] for role in ("parameters", "flops"))
    try:
        return answer_by_convention.frame(explore(fitted.query, sizes, budgets))
    except InputError:
        return pd.DataFrame()
