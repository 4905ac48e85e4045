"""Forecasts of a fitted law at any sizes: intervals, how far they reach, and what held-out rows say of such distances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from study.base.errors import InputError, Problem, nearest, option_name
from study.base.quantities import RESAMPLES, count_text, listed, plural, read_count, rounded_all
from study.base.schema import Strict
from study.base.text import aligned, joined
from study.laws.catalogue import find_law
from study.laws.columns import SYMBOLS, SYNONYMS
from study.laws.estimation import Fit, fit
from study.laws.forecasting import Noise, forecast_rows, interval_of, is_relative, split_largest, widen
from study.laws.formulas import role_of
from study.laws.law import Floats, Law
from study.laws.law_files import doubts_of, estimates_of, read_json_fit, unusable_fit
from study.laws.law_fits import LawFit
from study.laws.minimising import Space
from study.laws.observations import budget_name, budget_of
from study.laws.reading import read_points
from study.laws.tables import RunTable

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

    `error` is the mean |predicted − measured|, relative for a loss above zero; `misses` the root mean square of the error in
    standard errors of prediction, about 1 if intervals are right.
    """

    low: float
    high: float
    rows: int
    error: float
    misses: float


class _Kept(Strict):
    """What `study fit --json` keeps for predictions.

    `draws` are resampled estimates, at most RESAMPLES, `scatter` as many quantiles of the residuals with `freedom` degrees of
    freedom.
    """

    draws: tuple[tuple[float, ...], ...]
    scatter: tuple[float, ...]
    freedom: int
    largest_budget: float
    relative: bool | None = None
    """Whether errors at each distance are relative; in files that do not say, those of a loss are."""
    distances: tuple[Distance, ...] = Field(default=())


def fit_to_dict(fitted: LawFit) -> dict[str, Any]:
    """Return a fit with all that a prediction needs of it, as JSON values: what `study fit --json` prints."""
    return dict(rounded_all({**fitted.to_dict(), "prediction": _kept_of(fitted)}))


def _kept_of(fitted: LawFit) -> dict[str, Any]:
    observations = replace(fitted.fit.observations, budget=budget_of(fitted.fit.observations.columns))
    law_fit = replace(fitted.fit, observations=observations)
    noise = Noise(law_fit.residuals, len(law_fit.law.parameters), observations.n_clusters)
    scatter = np.quantile(noise.widened, np.linspace(0, 1, min(RESAMPLES, law_fit.n)))
    return {
        "draws": law_fit.resampled[:RESAMPLES].tolist() if law_fit.intervals else [],
        "scatter": scatter.tolist(),
        "freedom": noise.freedom,
        "largest_budget": float(observations.budget.max()),
        "relative": is_relative(law_fit.law, observations.response),
        "distances": [each.model_dump() for each in _distances(law_fit)],
    }


def _distances(law_fit: Fit) -> Iterator[Distance]:
    """Forecasts of the largest shares of runs, their rows sorted by distance in powers of two."""
    settings = replace(
        law_fit.settings, bootstrap=min(law_fit.settings.bootstrap, RESAMPLES), starts=min(law_fit.settings.starts, STARTS)
    )
    ratios, errors, misses = [], [], []
    for share in SHARES:
        known, unseen = split_largest(law_fit.observations, share)
        try:
            outcome = forecast_rows(fit(law_fit.law, known, settings), unseen)
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
        """Return the prediction as plain values."""
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
        """Return the predictions as plain values."""
        return {
            "law": self.law.definition,
            "predictions": [point.to_dict() for point in self.points],
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """Return a table of the predictions, then what held-out rows say of their distances, and doubts."""
        header = [*self.law.variables, self.law.predicts, "95% interval", "beyond the fit"]
        table = aligned([header, *(self._row(point) for point in self.points)])
        experiences = dict.fromkeys(point.experience for point in self.points)
        return "\n".join([*table, "", *experiences, *(f"note: {note}" for note in self.notes)])

    def _row(self, point: Prediction) -> list[str]:
        interval = f"{point.low:.4g} to {point.high:.4g}" if np.isfinite(point.low) else "none"
        beyond = ", ".join(f"{name} × {factor:.3g}" for name, factor in point.beyond.items()) or "–"
        return [*(count_text(point.at[name]) for name in self.law.variables), f"{point.value:.5g}", interval, beyond]


def predict(path: Path, points: Mapping[str, Floats]) -> Predictions:
    """Predict the law of a `study fit --json` file at points; see predict_fit."""
    return _predict(read_json_fit(path), path, points)


def predict_fit(fitted: LawFit, points: Mapping[str, Floats]) -> Predictions:
    """Predict a law at points, with the numbers of its `study fit --json` file.

    Each resample's prediction with a drawn residual gives the interval, as for held-out rows. It is widened by the largest
    misses of held-out rows at the point's distance or less. Raises InputError for an unusable fit, for a file without what
    predictions need, and for missing or superfluous variables.
    """
    return _predict(fit_to_dict(fitted), fitted.query.table.path, points)


def _predict(values: Mapping[str, Any], path: Path, points: Mapping[str, Floats]) -> Predictions:
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
        outside = _beyond(at, ranges)
        experience = _experience(law, kept, reached, [*outside])
        rows.append(Prediction(at, *ends, outside, reached, float(widening[row]), experience))
    return Predictions(law, tuple(rows), tuple(doubts_of(law, values)))


def points_of(path: Path, points: Path | None, texts: Sequence[str]) -> dict[str, Floats]:
    """Return the points at which a `study fit --json` file is to predict, from a table or from texts such as `N=1e9,D=2e10`."""
    values = read_json_fit(path)
    law, roles = _law_of(path, values), values.get("columns") or {}
    if points is None:
        return read_targets(law, texts, roles, "--at")
    return read_points(RunTable.read(points), law, roles)


def read_targets(law: Law, texts: Sequence[str], roles: Mapping[str, str], place: str) -> dict[str, Floats]:
    """Points written as `parameters=7e10,tokens=1.4e12`; raises InputError at `place` with every problem.

    A variable goes by its name, its symbol, or by its column in the fitted table, which `roles` give.
    """
    points, problems = [], []
    names = {
        **{symbol: role for symbol, role in SYMBOLS.items() if role in law.variables},
        **{name: name for name in law.variables},
    }
    names |= {column: name for name, column in roles.items() if name in law.variables and column not in names}
    for text in texts:
        point: dict[str, float] = {}
        for part in listed(text):
            name, equals, value = (one.strip() for one in part.partition("="))
            variable = names.get(name, role_of(name)) if equals else None
            if variable not in law.variables:
                message = f"{part!r} is not one of {joined(law.variables)} with a value, as in {law.variables[0]}=1e9"
                problems.append(Problem(place, message + (f"; {nearest(name, [*names])}" if equals else "")))
            elif variable in point:
                problems.append(Problem(place, f"gives {variable} twice in {text!r}; repeat {place} for another point"))
            else:
                positive = variable in SYNONYMS and variable not in law.any_sign
                point[variable] = read_count(place, value) if positive else _number(place, value)
        problems += [Problem(place, f"{name} is missing in {text!r}") for name in law.variables if name not in point]
        points.append(point)
    if problems:
        raise InputError(problems)
    return {name: np.array([point[name] for point in points]) for name in law.variables}


def _number(place: str, text: str) -> float:
    """Return a number of any sign, or a count such as 10M."""
    try:
        number = float(text)
    except ValueError:
        return read_count(place, text)
    if not np.isfinite(number):
        raise InputError.at(place, f"{text!r} is not a finite number")
    return number


def _law_of(path: Path, values: Mapping[str, Any]) -> Law:
    name = values.get("law")
    return find_law(name if isinstance(name, str) else None, str(path))


def _wrong_variables(law: Law, points: Mapping[str, Floats]) -> list[Problem]:
    missing = [
        Problem(
            option_name(name) if name in SYNONYMS else "--at",
            f"{'is' if name in SYNONYMS else name + ' is'} missing; {law.name} needs it",
        )
        for name in law.variables
        if name not in points
    ]
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
    factors = {name: beyond(value, *ranges[name]) for name, value in at.items() if name in ranges}
    return {name: factor for name, factor in factors.items() if factor > SAME_RANGE}


def beyond(value: float, low: float, high: float) -> float:
    """Return the factor by which a value lies beyond the nearer end of a range, at most 1 inside it.

    Where one is zero or below, it is 1 and the distance to that end in widths of the range, or in units if all rows are at one
    value.
    """
    if min(value, low) > 0:
        return max(low / value, value / high)
    return 1.0 + max(low - value, value - high, 0.0) / ((high - low) or 1.0)


def _experience(law: Law, kept: _Kept, reach: float, outside: Sequence[str]) -> str:
    """Return what held-out rows say of a distance, or that none lies as far; `outside` names variables beyond the rows."""
    if not budget_name(law.variables):
        return "nothing that the law reads orders runs by size, so no row was held out to test a forecast"
    if reach <= 1 and outside:
        return f"no larger than the budgets fitted, but beyond the rows in {joined(outside)}, where none was held out"
    if reach <= 1:
        return "within the budgets fitted"
    here = f"at {reach:.3g} times the largest budget fitted:"
    if not (distances := kept.distances):
        return f"{here} no rows could be held out to test a forecast"
    known = next((each for each in distances if each.low <= reach < each.high), distances[-1])
    relative = law.predicts == "loss" if kept.relative is None else kept.relative
    error = f"{known.error:.2%}" if relative else f"{known.error:.4f}"
    rows = f"{plural(known.rows, 'held-out row')} at {known.low:g} to {known.high:g} times were off by {error} on average"
    far = "" if reach < distances[-1].high else "; none lay farther, so the interval is unproven there"
    return f"{here} {rows}, {known.misses:.2g} standard errors{far}"
