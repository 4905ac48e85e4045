"""Forecasts of a fitted law at any sizes: intervals, how far they reach, and what held-out rows say of such distances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from study.base.errors import InputError, Problem, option_name
from study.base.quantities import count_text, plural
from study.base.schema import Strict
from study.base.text import aligned, joined
from study.laws.catalogue import find_law
from study.laws.columns import find_columns
from study.laws.estimation import fit
from study.laws.forecasting import Noise, forecast_rows, interval_of, split_largest, widen
from study.laws.law import Floats, Law
from study.laws.law_files import doubts_of, estimates_of, read_json_fit, unusable_fit
from study.laws.law_fits import LawFit
from study.laws.minimising import Space
from study.laws.observations import budget_of
from study.laws.tables import RunTable

DRAWS = 200
"""The most resampled estimates and residuals kept for predictions."""

SHARES = (0.1, 0.25, 0.5, 0.75)
"""The shares of the largest runs that are held out to learn how forecasts fail with distance."""

STARTS = 32
"""The most starts of the fits behind forecasts at each distance."""

FEWEST_ROWS = 3
"""The fewest held-out rows at a distance that may widen an interval."""

SAME_RANGE = 1.01
"""A value beyond a fitted end by a smaller factor lies within the range."""


class Distance(Strict):
    """Held-out rows whose budget is `low` to `high` times the largest budget fitted.

    `error` is the mean |predicted − measured|, relative for a loss; `misses` the root mean square of the error in standard
    errors of prediction, about 1 if intervals are right.
    """

    low: float
    high: float
    rows: int
    error: float
    misses: float


class _Kept(Strict):
    """What `study fit --json` keeps for predictions.

    `draws` are resampled estimates, `scatter` quantiles of the residuals with `freedom` degrees of freedom.
    """

    draws: tuple[tuple[float, ...], ...]
    scatter: tuple[float, ...]
    freedom: int
    largest_budget: float
    distances: tuple[Distance, ...] = Field(default=())


def keep_for_predictions(fitted: LawFit) -> dict[str, Any]:
    """What a prediction needs of a fit beyond its estimates, as JSON values."""
    found, observations = fitted.fit, fitted.fit.observations
    noise = Noise(found.residuals, len(found.law.parameters), observations.n_clusters)
    scatter = np.quantile(noise.widened, np.linspace(0, 1, min(DRAWS, found.n)))
    return {
        "draws": found.resampled[:DRAWS].tolist() if found.intervals else [],
        "scatter": scatter.tolist(),
        "freedom": noise.freedom,
        "largest_budget": float(observations.budget.max()),
        "distances": [each.model_dump() for each in _distances(fitted)],
    }


def _distances(fitted: LawFit) -> Iterator[Distance]:
    """Forecasts of the largest shares of runs, their rows sorted by distance in powers of two."""
    found = fitted.fit
    settings = replace(
        found.settings, bootstrap=min(found.settings.bootstrap, DRAWS), starts=min(found.settings.starts, STARTS)
    )
    ratios, errors, misses = [], [], []
    for share in SHARES:
        known, unseen = split_largest(found.observations, share)
        try:
            outcome = forecast_rows(fit(found.law, known, settings), unseen)
        except InputError:
            continue
        if outcome.has_interval and len(unseen):
            ratios.append(unseen.budget / known.budget.max())
            errors.append(np.abs(outcome.errors))
            misses.append(outcome.standard_errors)
    if not ratios:
        return
    ratio, error, missed = np.concatenate(ratios), np.concatenate(errors), np.concatenate(misses)
    steps = np.floor(np.log2(ratio)).astype(int)
    for step in np.unique(steps).tolist():
        rows = steps == step
        yield Distance(
            low=2.0**step,
            high=2.0 ** (step + 1),
            rows=int(rows.sum()),
            error=float(error[rows].mean()),
            misses=float(np.sqrt(np.mean(missed[rows] ** 2))),
        )


@dataclass(frozen=True)
class Prediction:
    """A law's value at one point, with its 95% interval (NaN without resamples).

    `beyond` gives, for each variable outside the fitted range, the factor by which it lies beyond its nearer end; `budget` is
    the run's size over the largest fitted, and `widening` multiplies the interval by the misses at such distances.
    """

    at: Mapping[str, float]
    value: float
    low: float
    high: float
    beyond: Mapping[str, float]
    budget: float
    widening: float
    experience: str

    def to_dict(self) -> dict[str, Any]:
        """The prediction as plain values."""
        interval = [self.low, self.high] if np.isfinite(self.low) else None
        return {
            "at": dict(self.at),
            "predicted": self.value,
            "interval": interval,
            "beyond": dict(self.beyond),
            "budget_over_largest": self.budget,
            "widening": self.widening,
            "held_out": self.experience,
        }


@dataclass(frozen=True)
class Predictions:
    """Predictions of one fit, with the doubts about it."""

    law: Law
    points: tuple[Prediction, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The predictions as plain values."""
        return {"law": self.law.name, "predictions": [point.to_dict() for point in self.points], "notes": list(self.notes)}

    def to_text(self) -> str:
        """A table of the predictions, then what held-out rows say of their distances, and doubts."""
        header = [*self.law.variables, self.law.predicts, "95% interval", "beyond the fit"]
        table = aligned([header, *(self._row(point) for point in self.points)])
        told = dict.fromkeys(point.experience for point in self.points)
        return "\n".join([*table, "", *told, *(f"note: {note}" for note in self.notes)])

    def _row(self, point: Prediction) -> list[str]:
        interval = f"{point.low:.4g} to {point.high:.4g}" if np.isfinite(point.low) else "none"
        beyond = ", ".join(f"{name} × {factor:.3g}" for name, factor in point.beyond.items()) or "–"
        return [*(count_text(point.at[name]) for name in self.law.variables), f"{point.value:.5g}", interval, beyond]


def predict(path: Path, points: Mapping[str, Floats]) -> Predictions:
    """Predict the law of a `study fit --json` file at points.

    Each resample's prediction with a drawn residual gives the interval, as for held-out rows. It is widened by the largest
    misses of held-out rows at the point's distance or less. Raises InputError for a file without a usable fit or what
    predictions need of it, and for missing or superfluous variables.
    """
    values = read_json_fit(path)
    law = _law_of(path, values)
    estimates, missing = estimates_of(law, values, path)
    if problems := [*missing, *unusable_fit(law, values, path), *_wrong_variables(law, points)]:
        raise InputError(problems)
    if "prediction" not in values:
        raise InputError.at(str(path), "was written before fits kept what predictions need; run study fit --json again")
    kept = _Kept.parse(values["prediction"], f"{path}: prediction")
    columns = {name: points[name] for name in law.variables}
    value = law.predict(estimates, columns)
    reach = budget_of(columns) / kept.largest_budget
    widening = np.array([_widening(kept.distances, each) for each in reach])
    low, high = _interval(law, kept, columns, value, "linear" if values.get("space") == "linear" else "log", widening)
    ranges = values.get("ranges") or {}
    rows = []
    for row, reached in enumerate(reach.tolist()):
        at = {name: float(column[row]) for name, column in columns.items()}
        ends = (float(value[row]), float(low[row]), float(high[row]))
        told = _experience(law, kept.distances, reached)
        rows.append(Prediction(at, *ends, _beyond(at, ranges), reached, float(widening[row]), told))
    return Predictions(law, tuple(rows), tuple(doubts_of(law, values)))


def variables_of(path: Path) -> tuple[str, ...]:
    """The variables of the law of a `study fit --json` file."""
    return _law_of(path, read_json_fit(path)).variables


def _law_of(path: Path, values: Mapping[str, Any]) -> Law:
    name = values.get("law")
    return find_law(name if isinstance(name, str) else None, str(path))


def _wrong_variables(law: Law, points: Mapping[str, Floats]) -> list[Problem]:
    missing = [Problem(option_name(name), f"is missing; {law.name} needs it") for name in law.variables if name not in points]
    needed = joined(law.variables)
    unread = [
        Problem(option_name(name), f"is not used: {law.name} reads {needed}") for name in points if name not in law.variables
    ]
    return missing + unread


def _interval(
    law: Law, kept: _Kept, columns: Mapping[str, Floats], value: Floats, space: Space, widening: Floats
) -> tuple[Floats, Floats]:
    if not kept.draws:
        nothing = np.full(len(value), np.nan)
        return nothing, nothing
    noise = Noise(np.array(kept.scatter), 0, kept.freedom + 1)
    ends = interval_of(value, law.values(np.array(kept.draws), columns), noise, space, seed=0)
    return widen(value, ends, space, widening)


def _widening(distances: Sequence[Distance], reach: float) -> float:
    misses = [each.misses for each in distances if each.rows >= FEWEST_ROWS and each.low <= max(reach, 1.0)]
    return max(1.0, *misses, 1.0)


def _beyond(at: Mapping[str, float], ranges: Mapping[str, Sequence[float]]) -> dict[str, float]:
    factors = {name: max(ranges[name][0] / value, value / ranges[name][1]) for name, value in at.items() if name in ranges}
    return {name: factor for name, factor in factors.items() if factor > SAME_RANGE}


def _experience(law: Law, distances: Sequence[Distance], reach: float) -> str:
    """What held-out rows say of a distance, or that none lies as far."""
    if reach <= 1:
        return "within the budgets fitted"
    here = f"at {reach:.3g} times the largest budget fitted:"
    if not distances:
        return f"{here} no rows could be held out to test a forecast"
    known = next((each for each in distances if each.low <= reach < each.high), distances[-1])
    error = f"{known.error:.2%}" if law.predicts == "loss" else f"{known.error:.4f}"
    rows = f"{plural(known.rows, 'held-out row')} at {known.low:g} to {known.high:g} times were off by {error} on average"
    far = "" if reach < distances[-1].high else "; none lay farther, so the interval is unproven there"
    return f"{here} {rows}, {known.misses:.2g} standard errors{far}"


def read_points(path: Path, law_variables: Sequence[str]) -> dict[str, Floats]:
    """The points of a table, by the columns named like the law's variables; raises InputError for missing or odd ones."""
    frame = RunTable.read(path).frame
    columns, problems = {}, []
    for name in law_variables:
        found = find_columns(name, map(str, frame.columns))
        values = np.array([]) if len(found) != 1 else frame[found[0]].to_numpy(dtype=float, na_value=np.nan)
        if len(found) != 1:
            problems.append(
                Problem(str(path), f"has no column named like {name}" if not found else f"{name} may be {joined(found)}")
            )
        elif not (np.isfinite(values) & (values > 0)).all():
            problems.append(Problem(f"{path}: {found[0]}", "must be a number above zero in every row"))
        columns[name] = values
    if problems:
        raise InputError(problems)
    return columns
