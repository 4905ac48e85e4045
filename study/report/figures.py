"""The figures of an answer, in order, and what each draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pandas as pd
from matplotlib.figure import Figure

from study.evidence.evidence import Evidence
from study.laws.law_fits import LawFit
from study.plotting import (
    compute_optimal,
    forecast_against_truth,
    law_figures,
    law_fit,
    learning_rate,
    loss_by_shape,
    loss_curves,
    paired_differences,
    parameters_loss_score,
    path_to_goal,
    score_against_loss,
    what_doubling_adds,
)
from study.plotting.loss_against_count import LossAgainstFlops, LossAgainstParameters
from study.plotting.loss_by_size import LossBySize
from study.plotting.score_against_count import ScoreAgainst
from study.report.verdicts import asks_about

Frame = Callable[[Evidence], pd.DataFrame]


@dataclass(frozen=True)
class FigureOfEvidence:
    """A figure whose data its plotting module does not take from the evidence by itself."""

    frame: Frame
    draw: Callable[[pd.DataFrame], Figure]


def _of_main_law(data_of: Callable[[LawFit], pd.DataFrame]) -> Frame:
    """Return what gives a figure's data of the fit of a sweep's main law, empty without a law."""

    def frame(evidence: Evidence) -> pd.DataFrame:
        shown = evidence.laws.shown
        return pd.DataFrame() if shown is None else data_of(shown)

    return frame


def _added_if_asked_for(evidence: Evidence) -> pd.DataFrame:
    """Return what doubling a size adds, which is nearly the same in every sweep, where the question asks about sizes."""
    asked = asks_about(evidence, "parameter", "depth", "width")
    return what_doubling_adds.frame(evidence) if asked else pd.DataFrame()


FigureOfAnswer = ModuleType | FigureOfEvidence | LossAgainstFlops | LossAgainstParameters | LossBySize | ScoreAgainst

FIGURES: dict[str, tuple[FigureOfAnswer, str]] = {
    "path_to_goal": (path_to_goal, "The path to the goal: half the interval against FLOPs spent, and the runs chosen"),
    "loss_by_depth": (LossBySize("depth"), "Final validation loss against depth, one line a size"),
    "loss_by_heads": (LossBySize("heads"), "Final validation loss against the number of heads, one line a shape"),
    "loss_by_ffn": (LossBySize("ffn"), "Final validation loss against the FFN ratio, one line a size"),
    "paired_differences": (
        paired_differences,
        "Paired differences between shapes of equal parameters, or variants of one shape",
    ),
    "what_doubling_adds": (
        FigureOfEvidence(_added_if_asked_for, what_doubling_adds.draw),
        "Parameters that doubling one size adds",
    ),
    "learning_rate": (learning_rate, "Loss against learning rate, and the rates chosen"),
    "loss_curves": (loss_curves, "Loss curves of the chosen runs"),
    "loss_against_flops": (LossAgainstFlops(), "Final loss against training FLOPs"),
    "loss_against_spent_flops": (
        LossAgainstFlops("spent_flops"),
        "Final loss against all FLOPs spent, those of donors and teachers included",
    ),
    "loss_against_parameters": (LossAgainstParameters(), "Final loss against all parameters, with the Pareto front"),
    "loss_by_shape": (loss_by_shape, "Loss over depth and width, with contours of equal parameters"),
    "law_fit": (
        FigureOfEvidence(law_figures.frame_of_sweep, law_fit.draw),
        "The law of the loss, its interval, what was forecast, and residuals",
    ),
    "forecast_against_truth": (
        FigureOfEvidence(_of_main_law(forecast_against_truth.frame), forecast_against_truth.draw),
        "What the law, fitted to the smaller runs, says of the largest",
    ),
    "iso_flop_valleys": (
        FigureOfEvidence(_of_main_law(compute_optimal.valleys_of_law), compute_optimal.draw_valleys),
        "Loss against parameters at each training budget, with the minima",
    ),
    "parameters_loss_score": (parameters_loss_score, "From parameters to loss to score, averaged over tasks"),
    "score_against_loss": (score_against_loss, "Downstream score against loss, with the law from one to the other"),
    "score_against_parameters": (
        ScoreAgainst("parameters"),
        "Downstream score against parameters, beside published ones",
    ),
    "score_against_flops": (ScoreAgainst("train_flops"), "Downstream score against FLOPs of pre-training"),
}
"""The figures of an answer in order: the object with `frame(evidence)` and `draw(data)`, and what it draws."""
