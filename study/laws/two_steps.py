"""A downstream score from sizes: in two steps through the loss and in one, each with a forecast."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from study.base.errors import InputError
from study.base.text import status_words
from study.laws.catalogue import LAWS
from study.laws.estimation import DEFAULT_SETTINGS, Fit, Settings, fit
from study.laws.forecasting import (
    HELD_OUT,
    Forecast,
    Noise,
    describe_miss,
    explain_no_forecast,
    forecast,
    forecast_to_dict,
    forecast_to_text,
    interval_of,
    split_largest,
)
from study.laws.law import Columns, Floats, Law
from study.laws.observations import Observations
from study.laws.reading import TableQuery, read_columns
from study.laws.residual_tests import merge_by_size

SCALE = ("parameters", "tokens")
"""The variables that set the cost."""


@dataclass(frozen=True)
class TwoSteps:
    """A law of the loss and a law of the score at a loss (Bhagia et al. 2024)."""

    loss: Fit
    score: Fit

    def predict(self, columns: Columns) -> Floats:
        """Return the score at the predicted loss, one value per row."""
        return self.score.predict({"loss": self.loss.predict(columns)})

    def predictions(self, columns: Columns) -> Floats:
        """Return the score in every resample with both steps converged, resamples × rows."""
        _, first, second = np.intersect1d(self.loss.resamples.numbers, self.score.resamples.numbers, return_indices=True)
        losses = self.loss.law.values(self.loss.resampled[first], columns)
        pairs = zip(self.score.resampled[second], losses, strict=True)
        result = [self.score.law.values(parameters[None], {"loss": row})[0] for parameters, row in pairs]
        return np.array(result).reshape(len(result), *np.shape(next(iter(columns.values()))))


@dataclass(frozen=True)
class ScoreFit:
    """A score fitted in two steps and in one, with forecasts."""

    two_steps: TwoSteps
    single_step: Fit
    two_step_forecast: Forecast | str
    single_step_forecast: Forecast | str

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return {
            "two_steps": {
                "loss": self.two_steps.loss.to_dict(),
                "score": self.two_steps.score.to_dict(),
                "forecast": forecast_to_dict(self.two_step_forecast),
            },
            "single_step": self.single_step.to_dict() | {"forecast": forecast_to_dict(self.single_step_forecast)},
        }

    def to_text(self) -> str:
        """Return the laws, statuses and estimates, then the forecasts."""
        steps = {"step 1": self.two_steps.loss, "step 2": self.two_steps.score, "single step": self.single_step}
        points = self.two_steps.score.observations
        roles = points.roles
        lines = ["columns: " + ", ".join(f"{role} = {roles[role]}" for role in (*SCALE, "loss", "score"))]
        lines += [points.counted, ""]
        for name, result in steps.items():
            status = status_words(result.status, result.reasons)
            estimates = ", ".join(f"{parameter} {value:.5g}" for parameter, value in result.estimates.items())
            lines += [f"{name}: {result.law.name}, {result.law.formula}", f"  {status}; {estimates}", ""]
        lines += [f"two steps, {forecast_to_text(self.two_step_forecast)}"]
        lines += [f"single step, {forecast_to_text(self.single_step_forecast)}", *points.notes()]
        return "\n".join(lines)


def fit_score(query: TableQuery, settings: Settings = DEFAULT_SETTINGS, held_out: float = HELD_OUT) -> ScoreFit:
    """Fit a score in two steps (chinchilla, score-of-loss) and in one (score-of-sizes) to the same rows.

    `settings` set the space of the loss; scores use space linear. Raises InputError for an unsuitable table or too few rows.
    """
    points = read_columns(query, (*SCALE, "loss"), "score")
    of_loss = replace(_only(points, SCALE), response=points.columns["loss"])
    merged = merge_by_size(LAWS["chinchilla"], of_loss, settings)
    points = replace(points, clusters=merged.clusters, cluster=merged.cluster, warnings=merged.warnings)
    by_sizes = _only(points, SCALE)
    steps, single = two_steps(points, settings), fit(LAWS["score-of-sizes"], by_sizes, replace(settings, space="linear"))
    of_steps = forecast_two_steps(points, held_out, settings)
    of_single = forecast(LAWS["score-of-sizes"], by_sizes, replace(settings, space="linear"), held_out)
    return ScoreFit(
        two_steps=replace(steps, score=steps.score.with_reasons("missed_forecast", describe_miss(of_steps))),
        single_step=single.with_reasons("missed_forecast", describe_miss(of_single)),
        two_step_forecast=of_steps,
        single_step_forecast=of_single,
    )


def two_steps(points: Observations, settings: Settings, laws: tuple[Law, Law] | None = None) -> TwoSteps:
    """Fit a law of the loss and one of the score at a loss, by default chinchilla and score-of-loss.

    Raises InputError for too few points.
    """
    of_loss, of_score = laws or (LAWS["chinchilla"], LAWS["score-of-loss"])
    by_sizes = replace(_only(points, of_loss.variables), response=points.columns["loss"])
    return TwoSteps(
        fit(of_loss, by_sizes, settings),
        fit(of_score, _only(points, of_score.variables), replace(settings, space="linear")),
    )


def forecast_two_steps(
    points: Observations, held_out: float, settings: Settings, laws: tuple[Law, Law] | None = None
) -> Forecast | str:
    """Forecast the largest runs' scores from the smaller ones in two steps; returns text if impossible."""
    known, unseen = split_largest(points, held_out)
    try:
        result = two_steps(known, settings, laws)
    except InputError as error:
        return explain_no_forecast(known, f"a step cannot be fitted ({error.problems[0]})")
    parameters = len(result.loss.law.parameters) + len(result.score.law.parameters)
    noise = Noise(result.predict(known.columns) - known.response, parameters, known.n_clusters)
    predicted = result.predict(unseen.columns)
    low, high = interval_of(predicted, result.predictions(unseen.columns), noise, "linear", settings.seed)
    statuses = [result.loss.status, result.score.status]
    return Forecast(
        status=next((status for status in statuses if status != "converged"), "converged"),
        n_fitted=len(known),
        labels=unseen.labels,
        measured=unseen.response,
        predicted=predicted,
        low=low,
        high=high,
        extrapolation=float(np.max(unseen.budget) / np.max(known.budget)),
        relative=False,
        independent=unseen.independent,
        space="linear",
    )


def _only(points: Observations, names: tuple[str, ...]) -> Observations:
    return replace(points, columns={name: points.columns[name] for name in names})
