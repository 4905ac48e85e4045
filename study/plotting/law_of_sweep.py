"""The main law of a sweep against every variable, up to the loss that its goal asks for."""

from __future__ import annotations

import pandas as pd

from study.evidence.evidence import Evidence
from study.laws.law_fits import LawFit
from study.plotting import law_fit
from study.plotting.law_fit import LawTarget
from study.store.sweep_folder import GoalPath

COUNT = "parameters_non_embedding"
"""What a goal counts as parameters."""

draw = law_fit.draw


def frame(evidence: Evidence) -> pd.DataFrame:
    """Return the data of the law's fit (study.plotting.law_fit); empty without a law.

    Where the goal is a forecast, N is counted as the goal counts it, and the target has the goal's own forecast, which weighs
    every basin of the law beside its prior, and so has an interval where the constants of this fit have none.
    """
    shown = evidence.laws.shown
    if shown is None:
        return pd.DataFrame()
    counted = shown.with_and_without_embeddings.get(COUNT)
    targets = targets_of_goal(evidence.goal, counted) if isinstance(counted, LawFit) else []
    return law_fit.frame(counted, targets) if isinstance(counted, LawFit) and targets else law_fit.frame(shown)


def targets_of_goal(goal: GoalPath | None, fitted: LawFit) -> list[LawTarget]:
    """Return what a goal forecasts, if the law reads what the goal names, as it counts that; empty while runs are too few."""
    if goal is None or goal.forecast is None or goal.target_parameters is None or goal.target_tokens is None:
        return []
    at = {"parameters": goal.target_parameters, "tokens": goal.target_tokens}
    if {*fitted.fit.law.variables} != {*at} or fitted.fit.observations.roles.get("parameters") != COUNT:
        return []
    return [LawTarget(at, *goal.forecast, by="by the sweep's goal")]
