"""One law fitted to one table, with its forecast, as JSON or text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from study.base.errors import InputError, option_name
from study.base.quantities import DIGITS, plural, rounded, rounded_all
from study.base.text import status_words
from study.laws.catalogue import find_law
from study.laws.estimation import DEFAULT_SETTINGS, Fit, Settings, fit
from study.laws.forecasting import (
    HELD_OUT,
    Forecast,
    describe_miss,
    forecast,
    forecast_groups,
    forecast_to_dict,
    forecast_to_text,
    widen,
)
from study.laws.law import Columns, Floats
from study.laws.reading import TableQuery, read_observations
from study.laws.residual_tests import (
    LackOfFit,
    ReplicateNoise,
    bend_of_residuals,
    describe_bend,
    describe_lack_of_fit,
    measure_lack_of_fit,
    merge_by_size,
    replicate_noise,
)

EMBEDDINGS = ("parameters", "parameters_non_embedding")
"""The counts of N with and without embeddings, as ledgers name them."""

KAPLAN = {"chinchilla": "kaplan", "width-depth-tokens": "kaplan-width-depth"}
"""The law in which the terms of a sum of powers share one power, by the name of that sum."""

PROFILED_ROWS = 5000
"""Larger or clustered tables have no profiles, because the bootstrap covers them."""


@dataclass(frozen=True)
class LawFit:
    """A fit with exponent profiles, replicate noise and a forecast of the largest runs.

    `query` is how the table was read, `held_out` the share of held-out runs, `groups` the forecast of each group that was left
    out.
    """

    query: TableQuery
    held_out: float
    fit: Fit
    profiles: dict[str, tuple[float, float]]
    noise: ReplicateNoise | None
    forecast: Forecast | str
    groups: Mapping[str, Forecast | str] = field(default_factory=dict)

    @cached_property
    def lack_of_fit(self) -> LackOfFit | None:
        """The lack of fit relative to replicate noise, for fits in logarithms."""
        fitted = self.fit
        if self.noise is None or fitted.settings.space != "log":
            return None
        by_squares = fit(fitted.law, fitted.observations, replace(fitted.settings, huber_delta=np.inf, bootstrap=0))
        return measure_lack_of_fit(by_squares.residuals, len(fitted.law.parameters), self.noise)

    @cached_property
    def with_and_without_embeddings(self) -> dict[str, LawFit | str]:
        """The law with N counted either way, by column; text explains a failure.

        Empty unless the law reads N and the table has both counts.
        """
        read = "parameters" in self.fit.law.variables and {*EMBEDDINGS} <= {*self.query.table.counts.get("parameters", ())}
        return {count: _counted(self, "parameters", count) for count in EMBEDDINGS} if read else {}

    @property
    def widening(self) -> float:
        """The factor of intervals beyond the budgets fitted: the miss of the forecast, times that of the one before it."""
        return self.forecast.missed_by * self.forecast.widening if isinstance(self.forecast, Forecast) else 1.0

    def interval_at(self, columns: Columns) -> tuple[Floats, Floats]:
        """Return the law's 95% interval at points, without the scatter of runs; NaN without resamples or a usable fit.

        Beyond the budgets fitted it is `widening` times as wide.
        """
        fitted = self.fit
        predicted = fitted.predict(columns)
        if not (fitted.usable and len(fitted.resampled)):
            return np.full_like(predicted, np.nan), np.full_like(predicted, np.nan)
        factor = np.where(fitted.observations.beyond(columns), self.widening, 1.0)
        return widen(predicted, fitted.interval(fitted.predictions(columns)), fitted.settings.space, factor)

    @property
    def omissions(self) -> list[str]:
        """What shows that the law omits something: lack of fit, and residuals that bend."""
        lacking = [describe_lack_of_fit(self.lack_of_fit), describe_bend(bend_of_residuals(self.fit))]
        return [reason for reason in lacking if reason]

    @property
    def beside(self) -> str | None:
        """The law of KAPLAN to fit beside a sum of powers that omits something; None if this is none, or omits nothing."""
        name = KAPLAN.get(self.fit.law.name)
        return name if name and self.omissions else None

    def judged(self) -> LawFit:
        """Return the same, with lack of fit and a missed forecast in the status."""
        fitted = self.fit.with_reasons("lack_of_fit", self.omissions)
        return replace(self, fit=fitted.with_reasons("missed_forecast", describe_miss(self.forecast)))

    @property
    def name(self) -> str:
        """The law's name, with the row filter if there is one."""
        where = self.query.where
        return f"{self.fit.law.name} where {where}" if where else self.fit.law.name

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        outcome, noise = forecast_to_dict(self.forecast), None if self.noise is None else rounded_all(vars(self.noise), DIGITS)
        profiles = {name: [rounded(end, high - low) for end in (low, high)] for name, (low, high) in self.profiles.items()}
        missed = None if self.lack_of_fit is None else rounded_all(vars(self.lack_of_fit), DIGITS)
        more = {"profile_intervals": profiles, "replicate_noise": noise, "misfit": missed, "forecast": outcome}
        more["options"] = self._options()
        if self.groups:
            more["left_out_groups"] = {name: forecast_to_dict(each) for name, each in self.groups.items()}
        return self.fit.to_dict() | more

    def _options(self) -> dict[str, Any]:
        query, settings = self.query, self.fit.settings
        selection = {
            name: getattr(query, name) for name in ("where", "cluster", "budget", "any_units", "bracketed_only", "best_of")
        }
        selection |= {name: given for name in ("hold_out", "leave_out_group") if (given := getattr(query, name)) is not None}
        delta = settings.huber_delta if np.isfinite(settings.huber_delta) else None
        return {"roles": dict(query.roles), **selection, **asdict(settings), "huber_delta": delta, "held_out": self.held_out}

    def to_text(self) -> str:
        """Return the fit as text, status first."""
        fitted = self.fit
        lines = [fitted.law.title, f"status: {status_words(fitted.status)}"]
        lines += [f"  {reason}" for reason in fitted.reasons]
        roles = fitted.observations.roles
        used = (*fitted.law.variables, fitted.law.predicts)
        lines.append("columns: " + ", ".join(f"{role} = {roles[role]}" for role in used if role in roles))
        lines.append(f"{fitted.observations.counted}, {len(fitted.excluded)} excluded")
        lines.append(
            f"objective {fitted.objective:.6g} (Huber, delta {fitted.settings.huber_delta:g}, {fitted.settings.space}, summed)"
        )
        lines.append("")
        lines.append(f"{'':12}{'estimate':>14}   {'95% interval':28}{'profile' if self.profiles else ''}")
        lines += [self._row(name) for name in fitted.law.parameters]
        lines += self._other_count_lines()
        lines += ["", forecast_to_text(self.forecast), *map(forecast_to_text, self.groups.values())]
        lines += self._exclusion_lines()
        lines += [f"warning: {warning}" for warning in fitted.observations.warnings]
        return "\n".join(line.rstrip() for line in lines)

    def _row(self, name: str) -> str:
        interval = _span(self.fit.intervals.get(name)) or "none"
        return f"{name:12}{self.fit.estimates[name]:>14.6g}   {interval:28}{_span(self.profiles.get(name)):24}"

    def _other_count_lines(self) -> list[str]:
        """Return the exponents with the other count of N, with or without embeddings."""
        return [
            f"with {count} as N: "
            + (other if isinstance(other, str) else f"{other.exponents_in_words()}, {status_words(other.fit.status)}")
            for count, other in self.with_and_without_embeddings.items()
            if other is not self
        ]

    def exponents_in_words(self) -> str:
        """Return the exponents with their intervals."""
        fitted = self.fit
        ends = {name: fitted.intervals.get(name) for name in fitted.law.exponents}
        spans = {name: f"95% interval {low_high[0]:.3g} to {low_high[1]:.3g}" for name, low_high in ends.items() if low_high}
        return ", ".join(f"{name} {fitted.estimates[name]:.3g} ({spans.get(name, 'no interval')})" for name in ends)

    def _exclusion_lines(self) -> list[str]:
        return [
            f"excluded: {plural(len(rows), 'row')} ({reason}): {', '.join(rows[:5])}{' …' if len(rows) > 5 else ''}"
            for reason, rows in self.fit.observations.excluded_by_reason().items()
        ]


def fit_table(
    query: TableQuery, law_name: str | None, settings: Settings = DEFAULT_SETTINGS, held_out: float = HELD_OUT
) -> LawFit:
    """Fit a law to a table: one of the catalogue, or a formula whose names may be columns of the table.

    Raises InputError if the table, its columns, values or number of points do not suit the law, or for unused roles.
    """
    law = find_law(law_name, table=query.table, roles=query.roles)
    rows = read_observations(query, law, settings.space)
    law = law.suited_to(rows.response)
    observations = merge_by_size(law, rows, settings)
    if unread := [option_name(role) for role in query.roles if role not in observations.roles]:
        raise InputError.at(
            ", ".join(unread), f"is not used: {law.name} predicts the {law.predicts} from {' and '.join(law.variables)}"
        )
    fitted = fit(law, observations, settings)
    profiled = fitted.observations.n_clusters == fitted.n <= PROFILED_ROWS and bool(fitted.intervals)
    profiles = {name: fitted.profile(name).interval for name in law.exponents if profiled}
    outcome = forecast(law, observations, settings, held_out)
    groups = forecast_groups(law, observations, settings)
    return LawFit(query, held_out, fitted, profiles, replicate_noise(observations), outcome, groups).judged()


def fit_every_count(fitted: LawFit) -> dict[str, LawFit | str]:
    """Fit the law for every count of FLOPs, or else of parameters, in the table; text explains a failure.

    Keyed by column; empty if the law uses neither or there are no counts.
    """
    counts = fitted.query.table.counts
    role = next((role for role in ("flops", "parameters") if role in fitted.fit.law.variables and role in counts), None)
    return {} if role is None else {count: _counted(fitted, role, count) for count in counts[role]}


def _counted(fitted: LawFit, role: str, count: str) -> LawFit | str:
    roles = {**fitted.query.roles, role: count}
    if count in (fitted.query.roles.get(role), fitted.fit.observations.roles.get(role)):
        return fitted
    try:
        return fit_table(replace(fitted.query, roles=roles), fitted.fit.law.definition, fitted.fit.settings, fitted.held_out)
    except InputError as error:
        return str(error.problems[0])


def _span(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0]:.6g} to {interval[1]:.6g}"
