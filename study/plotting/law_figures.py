"""All figures of a law's fit to a table, and that of the main law of a sweep, up to what its goal asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from study.base.errors import InputError
from study.evidence.evidence import Evidence
from study.laws.estimation import DEFAULT_SETTINGS, Settings
from study.laws.forecasting import HELD_OUT
from study.laws.law_fits import LawFit, fit_table
from study.laws.multiverse import explore
from study.laws.predicting import predict_fit, read_targets
from study.laws.reading import TableQuery
from study.plotting import answer_by_convention, compute_optimal, forecast_against_truth, law_fit, loss_by_shape
from study.plotting.law_fit import LawTarget
from study.plotting.style import Format, drawable, save_in
from study.store.sweep_folder import GoalPath

GOAL_COUNT = "parameters_non_embedding"
"""What a goal counts as parameters."""

FIGURES = {
    "forecast_against_truth": (forecast_against_truth.frame, forecast_against_truth.draw),
    "iso_flop_valleys": (compute_optimal.valleys_of_law, compute_optimal.draw_valleys),
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


def frame_of_sweep(evidence: Evidence) -> pd.DataFrame:
    """Return the data of the fit of a sweep's main law (study.plotting.law_fit); empty without a law.

    Where the goal is a forecast, N is counted as the goal counts it, and the target has the goal's own forecast, which weighs
    every basin of the law beside its prior, and so has an interval where the constants of this fit have none.
    """
    shown = evidence.laws.shown
    if shown is None:
        return pd.DataFrame()
    counted = shown.with_and_without_embeddings.get(GOAL_COUNT)
    targets = targets_of_goal(evidence.goal, counted) if isinstance(counted, LawFit) else []
    return law_fit.frame(counted, targets) if isinstance(counted, LawFit) and targets else law_fit.frame(shown)


def targets_of_goal(goal: GoalPath | None, fitted: LawFit) -> list[LawTarget]:
    """Return what a goal forecasts, if the law reads what the goal names, as it counts that; empty while runs are too few."""
    if goal is None or goal.forecast is None or goal.target_parameters is None or goal.target_tokens is None:
        return []
    at = {"parameters": goal.target_parameters, "tokens": goal.target_tokens}
    if {*fitted.fit.law.variables} != {*at} or fitted.fit.observations.roles.get("parameters") != GOAL_COUNT:
        return []
    return [LawTarget(at, *goal.forecast, by="by the sweep's goal")]


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
