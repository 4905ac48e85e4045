"""Forecast tests: hold out the largest runs and predict them from the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binom

from study.base.errors import InputError
from study.base.quantities import plural, rounded, rounded_ends
from study.base.statistics import CONFIDENCE
from study.base.text import status_words
from study.laws.estimation import DEFAULT_SETTINGS, LEAST, Fit, Settings, fit
from study.laws.law import Floats, Law
from study.laws.minimising import Space
from study.laws.observations import Observations, budget_name
from study.laws.uncertainty import Status, degrees_of_freedom, percentile_interval

HELD_OUT = 0.1
"""The default share of held-out runs, at least one."""

SAME_BUDGET = 0.1
"""The relative distance from the largest budget within which runs share it."""

_ROUNDING = 1e-12
_LISTED = 20
_FEWEST_RESAMPLES = 200
_CELLS = 5_000_000


@dataclass(frozen=True)
class Forecast:
    """A law's predictions for rows beyond the budgets of its fit.

    Errors are (predicted − measured)/measured for a loss above zero, else differences. Intervals of 95% combine
    resampled estimates with residuals. `independent` counts and names the settings or clusters that share errors.
    `extrapolation` is the largest budget over the largest fitted; `widening` multiplies the resampled intervals. `rows` says
    which rows were held out.
    """

    status: Status
    n_fitted: int
    labels: tuple[str, ...]
    measured: Floats
    predicted: Floats
    low: Floats
    high: Floats
    extrapolation: float
    relative: bool
    independent: tuple[int, str]
    space: Space = "log"
    widening: float = 1.0
    rows: str = "beyond the budgets fitted"

    @property
    def errors(self) -> Floats:
        """By held-out row: (predicted − measured)/measured of a loss, predicted − measured of a score."""
        differences = self.predicted - self.measured
        return differences / self.measured if self.relative else differences

    @property
    def mean_error(self) -> str:
        """The mean |error| as text, in percent for a loss."""
        mean = float(np.mean(np.abs(self.errors)))
        return f"{mean:.2%}" if self.relative else f"{mean:.4f}"

    @property
    def bias(self) -> str:
        """The mean error as text, in percent for a loss."""
        mean = float(np.mean(self.errors))
        return f"{mean:+.2%}" if self.relative else f"{mean:+.4f}"

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Whether the interval holds the measured value; False without an interval."""
        rounding = _ROUNDING * np.abs(self.measured)
        return np.asarray((self.low - rounding <= self.measured) & (self.measured <= self.high + rounding))

    @property
    def missed(self) -> bool:
        """Whether 95% intervals would cover so few rows in under 5% of draws; rows of a cluster count as one."""
        units = min(self.independent[0], len(self.labels))
        hits = round(float(np.mean(self.covered)) * units)
        return self.has_interval and bool(binom.cdf(hits, units, CONFIDENCE) <= 1 - CONFIDENCE + _ROUNDING)

    @property
    def missed_by(self) -> float:
        """The RMS error in standard errors of prediction, at least LEAST; 1 unless the forecast missed."""
        return max(1.0, float(np.sqrt(np.mean(self.standard_errors**2)))) if self.missed else 1.0

    @property
    def standard_errors(self) -> Floats:
        """By held-out row: the |error| in standard errors of prediction, from the interval's half on its side."""
        ends = np.array([self.low, self.predicted, self.high, self.measured])
        low, predicted, high, measured = np.log(ends) if self.space == "log" else ends
        half = np.where(measured < predicted, predicted - low, high - predicted)
        return np.asarray(np.abs(measured - predicted) / np.maximum(half, LEAST) * float(ndtri((1 + CONFIDENCE) / 2)))

    @property
    def has_interval(self) -> bool:
        """Whether resamples exist."""
        return bool(np.isfinite(self.low).all())

    @property
    def coverage(self) -> str:
        """The number of covered rows, and their settings or clusters if fewer, as text."""
        if not self.has_interval:
            return "no interval"
        together = f" rows of {plural(*self.independent)}" if self.independent[0] < len(self.labels) else ""
        return f"interval covered {self.covered.sum()} of {len(self.labels)}{together}"

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as plain values, with the 20 largest errors."""
        errors, widths = self.errors, self._widths
        worst = np.argsort(-np.abs(errors), kind="stable")[:_LISTED]
        return {
            "status": self.status,
            "n_fitted": self.n_fitted,
            "n_forecast": len(self.labels),
            "apart": {"of": self.independent[1], "n": self.independent[0]},
            "extrapolation": rounded(self.extrapolation),
            self._error: rounded(float(np.mean(np.abs(errors))), max(LEAST, float(np.mean(widths)))),
            "bias": rounded(float(np.mean(errors)), max(LEAST, float(np.mean(widths)))),
            "covered": float(np.mean(self.covered)) if self.has_interval else None,
            "missed_by": rounded(self.missed_by) if self.missed else None,
            "widening": rounded(self.widening),
            "rows": [self._row(row) for row in sorted(worst.tolist())],
        }

    @property
    def _error(self) -> str:
        return "relative_error" if self.relative else "difference"

    @property
    def _widths(self) -> Floats:
        """The widths of the error intervals; NaN without resamples."""
        return np.asarray((self.high - self.low) / (self.measured if self.relative else 1.0))

    def _row(self, row: int) -> dict[str, Any]:
        low, high = float(self.low[row]), float(self.high[row])
        return {
            "row": self.labels[row],
            "measured": float(self.measured[row]),
            "predicted": rounded(float(self.predicted[row]), high - low),
            self._error: rounded(float(self.errors[row]), max(LEAST, float(self._widths[row]))),
            "interval": rounded_ends(low, high) if self.has_interval else None,
            "covered": bool(self.covered[row]) if self.has_interval else None,
        }


def forecast(
    law: Law, observations: Observations, settings: Settings = DEFAULT_SETTINGS, share: float = HELD_OUT
) -> Forecast | str:
    """Hold out the rows that the query names, or else the largest runs, and predict them from the others, or explain why not.

    Intervals widen by the miss of the same test one step earlier, among the smaller runs.
    """
    if observations.held is not None:
        return _forecast_apart(law, observations, observations.held, settings, "held out")
    if len(observations) > 1 and not budget_name(law.variables) and np.ptp(observations.budget) == 0:
        return (
            "none: nothing that the law reads orders runs by size; name rows by --hold-out, or a column that does by --budget"
        )
    known, unseen = split_largest(observations, share)
    try:
        fitted = fit(law, known, settings)
    except InputError as error:
        why = f"the law cannot be fitted ({'; '.join(map(str, error.problems))})"
        return explain_no_forecast(known, why)
    return forecast_rows(fitted, unseen, _widening(law, known, settings, share))


def forecast_groups(law: Law, observations: Observations, settings: Settings) -> dict[str, Forecast | str]:
    """Return the forecast of each group from all other rows, or why there is none; empty without groups."""
    groups = observations.groups
    if groups is None:
        return {}
    return {str(name): _forecast_apart(law, observations, groups == name, settings, f"of {name}") for name in np.unique(groups)}


def _forecast_apart(
    law: Law, observations: Observations, held: NDArray[np.bool_], settings: Settings, rows: str
) -> Forecast | str:
    known = replace(observations.where(~held), excluded={}, held=None)
    try:
        fitted = fit(law, known, settings)
    except InputError as error:
        return f"none: without these rows the law cannot be fitted ({'; '.join(map(str, error.problems))})"
    return replace(forecast_rows(fitted, observations.where(held), _widening(law, known, settings, HELD_OUT)), rows=rows)


def _widening(law: Law, known: Observations, settings: Settings, share: float) -> float:
    """Return the missed_by of the smaller known runs' forecast of the larger."""
    smaller, larger = split_largest(known, share)
    try:
        return forecast_rows(fit(law, smaller, settings), larger).missed_by
    except InputError:
        return 1.0


def describe_miss(outcome: Forecast | str) -> list[str]:
    """Why the forecast missed; empty if it did not."""
    if isinstance(outcome, str) or not outcome.missed:
        return []
    return [f"the forecast of the largest runs missed them: its {outcome.coverage}, mean |error| {outcome.mean_error}"]


def explain_no_forecast(known: Observations, why: str) -> str:
    """Why there is no forecast: all runs are as large as those held out, or `why`."""
    if not len(known):
        return "none: every run reaches the largest budget, so no smaller one is left to forecast from"
    return f"none: without the runs of the largest budgets {why}"


def forecast_rows(fitted: Fit, unseen: Observations, widening: float = 1.0) -> Forecast:
    """Predict unseen rows, with intervals `widening` times as wide."""
    low, high = prediction_interval(fitted, unseen, widening)
    return Forecast(
        status=fitted.status,
        n_fitted=fitted.n,
        labels=unseen.labels,
        measured=unseen.response,
        predicted=fitted.predict(unseen.columns),
        low=low,
        high=high,
        extrapolation=float(np.max(unseen.budget) / np.max(fitted.observations.budget)),
        relative=is_relative(fitted.law, np.concatenate([fitted.observations.response, unseen.response])),
        independent=unseen.independent,
        space=fitted.settings.space,
        widening=widening,
    )


def is_relative(law: Law, response: Floats) -> bool:
    """Whether errors are given as shares of the measured value: those of a loss that is above zero in every row."""
    return law.predicts == "loss" and bool((response > 0).all())


def prediction_interval(fitted: Fit, unseen: Observations, widening: float = 1.0) -> tuple[Floats, Floats]:
    """Return the 95% interval of each unseen value: each resample's prediction plus a drawn residual.

    NaN without resamples, or if the widened interval is not finite.
    """
    most = max(_FEWEST_RESAMPLES, _CELLS // len(unseen))
    predicted, centres = fitted.predict(unseen.columns), fitted.predictions(unseen.columns, most=most)
    noise = Noise(fitted.residuals, len(fitted.law.parameters), fitted.observations.n_clusters)
    ends = interval_of(predicted, centres, noise, fitted.settings.space, fitted.settings.seed)
    return widen(predicted, ends, fitted.settings.space, widening)


def widen(predicted: Floats, ends: tuple[Floats, Floats], space: Space, widening: float | Floats) -> tuple[Floats, Floats]:
    """Return an interval `widening` times as wide about the prediction, in logarithms if `space` is; NaN if not finite."""
    if space == "linear":
        low, high = (predicted + (end - predicted) * widening for end in ends)
    else:
        with np.errstate(over="ignore"):
            low, high = (predicted * (end / predicted) ** widening for end in ends)
    finite = np.isfinite(high)
    return np.where(finite, low, np.nan), np.where(finite, high, np.nan)


@dataclass(frozen=True)
class Noise:
    """The residuals of a fit and its parameter and cluster counts."""

    residuals: Floats
    parameters: int
    clusters: int

    @property
    def widened(self) -> Floats:
        """The residuals times √(n/(n − p)), to undo what the parameters absorbed."""
        n = len(self.residuals)
        return np.asarray(self.residuals * np.sqrt(n / max(1, n - self.parameters)))

    @property
    def freedom(self) -> int:
        """The degrees of freedom of the row scatter."""
        return degrees_of_freedom(len(self.residuals), self.parameters, self.clusters)


def interval_of(predicted: Floats, centres: Floats, noise: Noise, space: Space, seed: int) -> tuple[Floats, Floats]:
    """Return the 95% interval of each prediction from resampled predictions (resamples × rows), each with a drawn residual.

    Each deviation and residual are multiplied by √(ν/χ²), drawn per resample, which turns a normal into Student's t. Equal
    predictions share an interval. NaN without resamples. For 5 to 20 sizes of a power law, with or without floor, the interval
    covers the largest in 92% to 98% of draws; residuals and resamples alone cover 87% to 94%. Sources: Stine 1985, Bootstrap
    prediction intervals for regression, J. Am. Statist. Assoc. 80, 1026-1031; for few clusters Cameron and Miller 2015, sec.
    VI.
    """
    random = np.random.default_rng(seed)
    drawn = random.choice(np.sort(noise.widened), size=(len(centres), 1))
    scale = np.sqrt(noise.freedom / random.chisquare(noise.freedom, size=(len(centres), 1)))
    if space == "log":
        return percentile_interval(predicted * np.exp(scale * (np.log(centres / predicted) - drawn)))
    return percentile_interval(predicted + scale * (centres - predicted - drawn))


def forecast_to_dict(outcome: Forecast | str) -> dict[str, Any]:
    """Return a forecast as plain values; its status explains a missing one."""
    return {"status": outcome} if isinstance(outcome, str) else outcome.to_dict()


def forecast_to_text(outcome: Forecast | str) -> str:
    """Return a forecast on one line: status, held-out rows, error, coverage."""
    if isinstance(outcome, str):
        return f"forecast: {outcome}"
    return (
        f"forecast ({status_words(outcome.status)}): {plural(len(outcome.labels), 'row')} {outcome.rows}, up to "
        f"{outcome.extrapolation:.3g} times the largest: mean |error| {outcome.mean_error}, bias {outcome.bias}, "
        f"{outcome.coverage}"
    )


def split_largest(observations: Observations, share: float) -> tuple[Observations, Observations]:
    """Return the rows to fit and the rows to forecast.

    Whole runs are held out; only their rows beyond every remaining budget are forecast.
    """
    held = select_largest_runs(observations, share)
    largest = observations.budget[~held].max(initial=0)
    return replace(observations.where(~held), excluded={}), observations.where(held & (observations.budget > largest))


def select_largest_runs(observations: Observations, share: float) -> NDArray[np.bool_]:
    """Return the rows of the `share` of runs, at least one, with the largest budgets, and of runs with about the same budget.

    This keeps seeds of a setting and models of a budget together. If it would hold out over half of the runs, only runs of
    equal budget join.
    """
    budgets = np.zeros(observations.n_runs)
    np.maximum.at(budgets, observations.runs, observations.budget)
    count = max(1, round(share * len(budgets)))
    least = np.sort(budgets)[-count]
    chosen = budgets >= least * (1 - SAME_BUDGET)
    if 2 * chosen.sum() > len(budgets):
        chosen = budgets >= least
    return np.asarray(chosen[observations.runs])
