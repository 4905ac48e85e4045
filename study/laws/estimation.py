"""Fit a law: estimates, intervals, covariance, conditioning, exclusions and status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from study.base.errors import InputError
from study.base.quantities import DIGITS, DIGITS_OF_ENDS, RESAMPLES, plural, rounded
from study.laws.columns import SHOWN
from study.laws.law import Columns, Floats, Law
from study.laws.minimising import Minima, Objective, Space, minimise
from study.laws.observations import Observations
from study.laws.uncertainty import (
    REGAIN,
    UNUSABLE,
    WORST_CONDITION,
    Bootstrap,
    Profile,
    Status,
    bootstrap,
    bounds_met,
    condition_number,
    covariance,
    expanded_tail,
    failures,
    flat_parameters,
    flatness,
    percentile_interval,
    profile,
    unread_rows,
    weaknesses,
    without_resamples,
)

STARTS = 128
"""The default number of starts; the best quarter is minimised."""

SQUARES = 1e-2
"""The weight of the squares that break ties of Huber's loss; see _objective."""

LEAST = 1e-6
"""The smallest scale of relative differences; smaller ones are rounding."""

_DECIMALS = 9
_NOTHING = 1e-14
_ROWS_FOR_STARTS = 2000
_BOUND = 1e-6
_LONGER = 9


@dataclass(frozen=True)
class Settings:
    """How to fit: `huber_delta` and `space` as in Objective, `bootstrap` resamples."""

    huber_delta: float = 1e-3
    space: Space = "log"
    bootstrap: int = RESAMPLES
    seed: int = 0
    starts: int = STARTS


DEFAULT_SETTINGS = Settings()
"""The default settings of a fit."""


@dataclass(frozen=True)
class Fit:
    """A law's estimates from n rows.

    Intervals are expanded percentiles of the cluster bootstrap, empty without resamples. `covariance` is in parameter order,
    NaN if undetermined. `objective` is the summed Huber loss. `reasons` explain a status other than `converged`.
    """

    law: Law
    status: Status
    reasons: tuple[str, ...]
    estimates: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    covariance: Floats
    condition_number: float
    objective: float
    observations: Observations = field(repr=False)
    residuals: Floats = field(repr=False)
    theta: Floats = field(repr=False)
    resamples: Bootstrap = field(repr=False)
    resampled: Floats = field(repr=False)
    settings: Settings

    @property
    def n(self) -> int:
        """The number of rows used."""
        return len(self.observations)

    @property
    def usable(self) -> bool:
        """Whether the fit neither failed nor ended on a bound."""
        return self.status not in UNUSABLE

    @property
    def excluded(self) -> Mapping[str, str]:
        """The excluded rows, with reasons."""
        return self.observations.excluded

    @property
    def slopes(self) -> Floats:
        """The gradient of each row's residual in θ, n × p."""
        return _objective(self.law, self.observations, self.settings).slopes(self.theta)

    def with_reasons(self, status: Status, reasons: Sequence[str]) -> Fit:
        """Add reasons, and their status if the fit had converged."""
        if not reasons:
            return self
        return replace(self, status=status if self.status == "converged" else self.status, reasons=(*self.reasons, *reasons))

    def predict(self, columns: Columns) -> Floats:
        """Return the law at its estimates, one value per row."""
        return self.law.predict(self.estimates, columns)

    def residual(self, predicted: Floats, measured: Floats) -> Floats:
        """Predicted minus measured, in logarithms if the fit is."""
        return np.asarray(np.log(predicted / measured) if self.settings.space == "log" else predicted - measured)

    def predictions(self, columns: Columns, most: int | None = None) -> Floats:
        """Return the law for every resample, or the first `most`, resamples × rows."""
        return self.law.values(self.resampled[:most], columns)

    def interval(self, resampled: Floats) -> tuple[Floats, Floats]:
        """Return the 95% interval of a quantity from its value in every resample; see study.laws.uncertainty.expanded_tail."""
        return percentile_interval(resampled, _tail(self.law, self.observations))

    def profile(self, exponent: str) -> Profile:
        """Return the profile of an exponent; see study.laws.uncertainty."""
        return profile(
            self.law, _objective(self.law, self.observations, self.settings), self.observations, self.theta, exponent
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as JSON values, rounded to meaningful digits; infinite or missing values are None."""
        noise = float(np.sqrt(np.mean(self.residuals**2)))
        errors = np.sqrt(np.diag(self.covariance))
        errors = np.where(errors <= LEAST * np.abs(self.theta), 0.0, errors)  # of one cluster they are rounding
        widths = {name: high - low for name, (low, high) in self.intervals.items()}
        far = np.argsort(-np.abs(np.round(self.residuals, _DECIMALS)), kind="stable")[:5]
        used = (*self.law.variables, self.law.predicts)
        return {
            "law": self.law.definition,
            "formula": self.law.formula,
            "conventions": self.law.conventions,
            "source": self.law.source,
            "columns": {name: text for name, text in self.observations.roles.items() if name in used},
            "alike": dict(self.observations.alike),
            "ranges": {name: [float(values.min()), float(values.max())] for name, values in self.observations.columns.items()},
            "status": self.status,
            "reasons": list(self.reasons),
            "n": self.n,
            "runs": self.observations.n_runs,
            "clusters": {"of": self.observations.cluster, "n": self.observations.n_clusters},
            "objective": rounded(self.objective),
            "huber_delta": _finite(self.settings.huber_delta),
            "space": self.settings.space,
            "estimates": {name: _finite(value, widths.get(name, 0.0)) for name, value in self.estimates.items()},
            "intervals": {
                name: [_finite(end, widths[name], DIGITS_OF_ENDS) for end in ends] for name, ends in self.intervals.items()
            },
            "covariance": [
                [
                    _finite(value, one * other, DIGITS_OF_ENDS) if one * other else 0.0
                    for value, other in zip(row, errors, strict=True)
                ]
                for row, one in zip(self.covariance, errors, strict=True)
            ],
            "condition_number": _finite(self.condition_number),
            "bootstrap": {
                "method": self.resamples.method,
                "resamples": len(self.resamples.theta),
                "failed": self.resamples.failed,
            },
            "residuals": {
                "root_mean_square": rounded(noise, max(noise, LEAST)),
                "largest": [
                    {"row": self.observations.labels[row], "residual": rounded(float(self.residuals[row]), max(noise, LEAST))}
                    for row in far.tolist()
                ],
            },
            "excluded": [{"row": row, "reason": reason} for row, reason in self.excluded.items()],
            "warnings": list(self.observations.warnings),
        }


def fit(law: Law, observations: Observations, settings: Settings = DEFAULT_SETTINGS) -> Fit:
    """Fit a law to observations.

    The minimiser follows many starts and restarts from the best until nothing is gained. Raises InputError if points are too
    few, a variable is constant, or a logarithm does not exist.
    """
    observations.check(law)
    if settings.space == "log" and (bad := observations.response <= 0).any():
        rows = ", ".join(np.array(observations.labels)[bad][:SHOWN])
        message = f"is zero or below in {plural(int(bad.sum()), 'row')} ({rows}), which has no logarithm; give --space linear"
        raise InputError.at(law.predicts, message)
    objective = _objective(law, observations, settings)
    minima, regained, ties = _best(law, objective, observations, settings)
    theta, broken = minima.theta[0], failures(bool(minima.converged[0]), regained)
    count = 0 if broken else settings.bootstrap
    resamples = bootstrap(objective, observations, theta, count, settings.seed)
    condition = condition_number(objective, theta, _resting(objective, theta))
    identified = condition <= WORST_CONDITION  # else resamples stay at the first fit
    intervals = _intervals(law, observations, _natural(objective, resamples.theta)) if identified else {}
    tied = identified and not _resamples_decide(observations, intervals)
    flat = flat_parameters(law, _natural(objective, ties), intervals) if tied else []
    if flat:
        identified, resamples, intervals = False, without_resamples(len(theta)), {}
    resting = _resting(objective, theta)
    estimates, resampled = _natural(objective, theta[None]), _natural(objective, resamples.theta)
    free = {
        name: intervals[name] for name, rests in zip(law.parameters, resting, strict=True) if name in intervals and not rests
    }
    weak = [*flatness(flat), *weaknesses(law, observations, objective, condition, free, resamples)]
    reasons: list[tuple[Status, list[str]]] = [
        ("failed", broken),
        ("weakly_identified", observations.confounding(law)),
        ("on_bound", bounds_met(law, resting, estimates[0])),
        ("weakly_identified", weak),
        ("reads_no_order", unread_rows(observations)),
    ]
    status: Status = next((name for name, given in reasons if given), "converged")
    if status in ("failed", "on_bound", "weakly_identified") and not observations.confounding(law):
        reasons.insert(1, ("weakly_identified", observations.collinearity(law)))
    return Fit(
        law=law,
        status=status,
        reasons=tuple(reason for _, given in reasons for reason in given),
        estimates=dict(zip(law.parameters, estimates[0].tolist(), strict=True)),
        intervals=intervals,
        covariance=_natural_covariance(objective, observations, theta, resamples)
        if identified
        else np.full((len(theta),) * 2, np.nan),
        condition_number=condition,
        objective=float(replace(objective, squares=0.0).value(theta[None], np.ones((1, len(observations))))[0]),
        observations=observations,
        residuals=objective.residuals(theta[None])[0],
        theta=theta,
        resamples=resamples,
        resampled=resampled,
        settings=settings,
    )


def _resamples_decide(observations: Observations, intervals: Mapping[str, tuple[float, float]]) -> bool:
    """Whether cluster resamples measure the scatter of an estimate on a flat Huber minimum.

    Over an even number of shapes with shape effects, Huber's loss ties all curves between the middle two, a wider range than
    the effects leave to squares. For tokens-floor over 4, 6 or 8 shapes of one size, 4 in 10 tables had flat minima; 95%
    intervals over shapes covered the exponent in 157 of these 159.
    """
    return bool(intervals) and observations.n_clusters < len(observations)


def _objective(law: Law, observations: Observations, settings: Settings) -> Objective:
    """Huber's loss, with squares to break ties.

    Huber's loss has no unique minimum if few rows lie within delta, like a median of an even count. SQUARES of δ·r²/2 over the
    response range break the tie; otherwise they move estimates by under a thousandth of their error.
    """
    response = np.log(observations.response) if settings.space == "log" else observations.response
    reach = float(np.ptp(response)) or 1.0
    squares = SQUARES * min(settings.huber_delta / reach, 1.0) if np.isfinite(settings.huber_delta) else 0.0
    return Objective(law.at(observations.columns), observations.response, settings.huber_delta, settings.space, squares)


def _best(law: Law, objective: Objective, observations: Observations, settings: Settings) -> tuple[Minima, float, Floats]:
    theta, ties = _followed(law, observations, settings)
    weights = np.ones((len(theta), len(observations)))
    minima = minimise(objective, theta, weights)
    lowest = int(np.argmin(_levels(minima.value, len(observations))))
    best = Minima(minima.theta[[lowest]], minima.value[[lowest]], minima.converged[[lowest]])
    for _ in range(_LONGER):
        if not best.converged[0]:
            best = minimise(objective, best.theta, weights[:1])
    again = minimise(objective, best.theta, weights[:1])
    scale = max(float(again.value[0]), _NOTHING * len(observations))
    return again, float(best.value[0] - again.value[0]) / scale, ties


def _followed(law: Law, observations: Observations, settings: Settings) -> tuple[Floats, Floats]:
    """Up to four distinct minima from the better quarter of the starts, and all tied with the best.

    Uses Huber's loss alone, over rows spread through the budgets. Earlier starts win ties, so rounding does not choose.
    """
    some = observations.thinned(_ROWS_FOR_STARTS)
    objective = replace(_objective(law, some, settings), squares=0.0)
    starts = objective.surface.starts(some.response, settings.starts)
    values = objective.value(starts, np.ones((len(starts), len(some))))
    chosen = starts[np.argsort(_levels(values, len(some)), kind="stable")[: max(8, settings.starts // 4)]]
    chosen = chosen[: int(np.isfinite(values).sum())]
    if not len(chosen):
        raise InputError.at(law.name, "has no finite value at any start; are the columns assigned to the right roles?")
    minima = minimise(objective, chosen, np.ones((len(chosen), len(some))))
    levels = _levels(minima.value, len(some))
    _, first = np.unique(levels, return_index=True)
    return minima.theta[first[:4]], minima.theta[(levels == 0) & minima.converged]


def _levels(values: Floats, rows: int) -> Floats:
    """Heights of objectives above the least, in steps of REGAIN of it; one level is a tie."""
    least = values.min()
    return np.asarray(np.round((values - least) / (REGAIN * max(float(least), _NOTHING * rows))))


def _natural(objective: Objective, theta: Floats) -> Floats:
    return objective.surface.natural(_on_bounds(objective, theta))


def _resting(objective: Objective, theta: Floats) -> NDArray[np.bool_]:
    low, high = objective.surface.bounds
    at = _on_bounds(objective, theta)
    return np.asarray((at == low) | (at == high))


def _on_bounds(objective: Objective, theta: Floats) -> Floats:
    """θ, B × p, with entries near a bound moved to it."""
    low, high = objective.surface.bounds
    return np.where(theta <= low + _BOUND, low, np.where(theta >= high - _BOUND, high, theta))


def _intervals(law: Law, observations: Observations, resampled: Floats) -> dict[str, tuple[float, float]]:
    if not len(resampled):
        return {}
    bounds = zip(law.parameters, *percentile_interval(resampled, _tail(law, observations)), strict=True)
    return {name: (float(low), float(high)) for name, low, high in bounds}


def _tail(law: Law, observations: Observations) -> float:
    return expanded_tail(len(observations), len(law.parameters), observations.n_clusters)


def _natural_covariance(objective: Objective, observations: Observations, theta: Floats, resamples: Bootstrap) -> Floats:
    """Return the parameter covariance by the delta method, from resampled θ or the sandwich."""
    inner = (
        np.cov(_on_bounds(objective, resamples.theta).T)
        if len(resamples.theta) > 1
        else covariance(objective, observations, theta)
    )
    slopes = objective.surface.natural_slopes(theta)
    return np.asarray(slopes @ np.atleast_2d(inner) @ slopes.T)


def _finite(value: float, width: float = 0.0, digits: int = DIGITS) -> float | None:
    return rounded(float(value), width, digits) if np.isfinite(value) else None
