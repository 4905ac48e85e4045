"""What finished runs say of a law: its basins, by many cheap fits, with their uncertainty at the candidates and the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from study.base.errors import InputError
from study.laws.law import Columns, Floats, Law, Surface
from study.laws.minimising import Space
from study.laws.observations import log_or_value

Rows = NDArray[np.int64]

MOST_BASINS = 4
"""The most basins that a design weighs."""

LEAST_WEIGHT = 1e-3
"""Basins of a smaller posterior probability are left out."""

STARTS = 64
"""The starts of a learner, from which each fit takes some."""

FRESH = 12
"""The fits from fresh starts, beside those that go on from earlier optima."""

MOST_TARGETS = 24
"""The most target points that a choice weighs, spread over their sizes."""

BEND = 0.01
"""The standard deviation of the relative bend by which a law may miss, at one standard deviation of its logarithms.

A law is never exact. Its error bends over the sizes, so that rows far from the target say less of it, however many they are.
"""

_PRIOR_FREEDOM = 3.0
_PRIOR_NOISE = 0.02
_SAME = 0.1


PUBLISHED_EXPONENT = 0.34, 0.15
"""The mean and deviation of an exponent's prior: the exponents that Hoffmann et al. 2022 and Besiroglu et al. 2024 publish."""

PUBLISHED_TERM = 1.5, 1.5
"""The mean and deviation of the prior of a law's term in the middle of the pool, in nats."""

LEAST_DEVIATION = 0.03
"""The least deviation of responses, as a share of their size, from which noise and priors are guessed; few may differ less."""

STEPS = 60
"""The most steps of a fit; what starts have not settled by then lie in poor basins, and the best go on."""

ENOUGH = 1e-6
"""A fit has ended once no step gains this share of its objective."""

_STUCK = 1e12
_TOUCH = 1e-12


@dataclass(frozen=True)
class Basin:
    """One optimum of the fit: a normal distribution of the law's values around it.

    `weight` is its posterior probability. Predictions at the candidates (c) and targets (t) are `at_candidates` and
    `at_targets`; their uncertain parts are `candidates`·z and `targets`·z with z standard normal of any length, and `noise` is
    the variance of one run. These targets are those that a choice weighs; `forecast` is the law at all targets of the pool,
    with its bend as far as the runs show it.
    """

    weight: float
    at_candidates: Floats
    at_targets: Floats
    candidates: Floats
    targets: Floats
    noise: float
    forecast: Floats = field(default_factory=lambda: np.zeros(1))

    @property
    def variance(self) -> float:
        """The mean variance at the targets."""
        return float(np.mean(np.sum(self.targets**2, axis=1)))

    def after(self, row: int) -> Basin:
        """Return the basin once a candidate has been run, whatever its result, up to the predictions."""
        direction = self.candidates[row]
        length = float(direction @ direction)
        if length == 0:
            return self
        shrink = (1 - np.sqrt(self.noise / (self.noise + length))) / length
        candidates, targets = (
            part - shrink * np.outer(part @ direction, direction) for part in (self.candidates, self.targets)
        )
        return replace(self, candidates=candidates, targets=targets)


def basin_of(
    weight: float, precision: Floats, candidates: tuple[Floats, Floats], targets: tuple[Floats, Floats], noise: float
) -> Basin:
    """Make a basin from its parameters' precision (p × p), and values and gradients (n × p) at candidates and targets."""
    levels, directions = np.linalg.eigh(precision)
    root = directions / np.sqrt(np.maximum(levels, 1e-12 * levels.max()))
    return Basin(weight, candidates[0], targets[0], candidates[1] @ root, targets[1] @ root, noise)


@dataclass(frozen=True)
class Pool:
    """Candidates with their costs, the targets, and the law that forecasts them.

    With `exponent`, this parameter of the law is wanted in place of its values at the targets.
    """

    law: Law
    candidates: Columns
    costs: Floats
    targets: Columns
    space: Space = "log"
    exponent: str | None = None

    def __len__(self) -> int:
        return len(self.costs)


@dataclass(frozen=True)
class Optima:
    """The optima of one set of rows (K × p), their objectives, the noise variance of a row, and the prior."""

    theta: Floats
    value: Floats
    noise: float
    prior: Prior


class Learner:
    """Fits the law to finished candidates, again and again as they grow in number.

    A `prior` is that of every fit, and says all before there are rows; without one, the starts of the first fit give it.
    """

    def __init__(self, pool: Pool, seed: int = 0, bend: float = BEND, prior: Prior | None = None) -> None:
        self.pool, self.bend, self.prior = pool, bend, prior
        self.random = np.random.default_rng(seed)
        self.columns = {name: np.concatenate([pool.candidates[name], pool.targets[name]]) for name in pool.law.variables}
        self.surface = pool.law.at(self.columns)
        self.terms = bend_terms(self.columns)
        size = np.sum(np.column_stack([log_or_value(values) for values in pool.targets.values()]), axis=1)
        spread = np.unique(np.linspace(0, len(size) - 1, MOST_TARGETS).astype(int))
        self.aims = np.argsort(size, kind="stable")[spread]
        self.optima = self.starts = np.empty((0, len(pool.law.parameters)))

    def fit(self, rows: Rows, response: Floats, fresh: int = FRESH) -> Optima:
        """Return the optima of rows of the pool, the best first.

        `response` is the whole pool's; only that of `rows` is read. The starts are those of the first fit. Raises InputError
        where the law has no value at any of them.
        """
        surface, noise = self.surface.part(rows), self._noise(response[rows], None)
        if not len(self.starts):
            self.starts = surface.starts(response[rows], STARTS)
        prior = self.prior or self._spread_prior(response[rows])
        chosen = self.random.choice(len(self.starts), min(fresh, len(self.starts)), replace=False)
        known = self.optima if self.prior is None else np.concatenate([self.optima, prior.mean[None]])
        starts = np.concatenate([known, self.starts[chosen]])
        for _ in range(2):  # the second with the noise that the first finds
            theta, value = least_squares(surface, response[rows], self.pool.space, noise, prior, starts)
            order = np.argsort(value, kind="stable")
            order = order[np.isfinite(value[order])]
            if not len(order):
                message = "has no finite value at any start; are the columns assigned to the right roles?"
                raise InputError.at(self.pool.law.name, message)
            starts = theta[order[: 2 * MOST_BASINS]]
            noise = self._noise(response[rows], surface.value(starts[:1])[0])
        self.optima = starts[:MOST_BASINS]
        return Optima(theta[order], value[order], noise, prior)

    def _spread_prior(self, response: Floats) -> Prior:
        """Return a prior about the mean of the starts, with twice their spread.

        Each is wide enough for its parameter to move the law over the pool by as much as the responses deviate: few rows have
        starts that agree in what these rows happen to say.
        """
        slopes = self._in_space(self.starts)[1][:, : len(self.pool)]
        with np.errstate(all="ignore"):
            wide = self._deviation(response) / np.median(np.sqrt(np.mean(slopes**2, axis=1)), axis=0)
        usual = 2 * np.maximum(self.starts.std(axis=0), 1e-3)
        linear = np.isin(np.arange(len(usual)), self.pool.law.linear) & np.isfinite(wide)
        return Prior(self.starts.mean(axis=0), np.where(linear, np.maximum(usual, wide), usual))

    def _deviation(self, response: Floats) -> float:
        """Return the deviation of responses in the space of the fit, at least LEAST_DEVIATION of their size."""
        if self.pool.space == "log":
            return max(float(np.log(response).std()), LEAST_DEVIATION)
        return max(float(response.std()), LEAST_DEVIATION * float(np.abs(response).mean()))

    def _noise(self, response: Floats, fitted: Floats | None) -> float:
        """Return the variance of a run about the law, between a guess and what the residuals say."""
        expected = response if self.prior is None else self.surface.value(self.prior.mean[None])[0]
        guess = (_PRIOR_NOISE * self._deviation(expected)) ** 2
        if fitted is None:
            return guess
        residuals = np.log(fitted / response) if self.pool.space == "log" else fitted - response
        spare = max(0, len(response) - len(self.pool.law.parameters))
        return (_PRIOR_FREEDOM * guess + float(residuals @ residuals)) / (_PRIOR_FREEDOM + spare)

    def forecast(self, rows: Rows, response: Floats) -> Floats:
        """Return the law's median over the basins at each target, from many fresh starts."""
        optima = self.fit(rows, response, 2 * FRESH)
        kept, weights = self.weighed(optima, rows)
        return median(self.surface.value(optima.theta[kept])[:, len(self.pool) :], weights)

    def basins(self, rows: Rows, response: Floats, *, unsure: bool = False) -> list[Basin]:
        """Return the basins, the heaviest first; without rows the prior is one.

        With `unsure` each is as wide as the prior, as if its law were known to be here and nothing had been run.
        """
        if not len(rows) and self.prior is not None:
            mean = self.prior.mean[None]
            return [
                self._basin(Optima(mean, np.zeros(1), self._noise(response[rows], None), self.prior), 0, 1.0, rows, response)
            ]
        optima = self.fit(rows, response)
        kept, weights = self.weighed(optima, rows)
        known = rows[:0] if unsure else rows
        return [self._basin(optima, index, weight, known, response) for index, weight in zip(kept, weights, strict=True)]

    def weighed(self, optima: Optima, rows: Rows) -> tuple[list[int], Floats]:
        """Return the optima that differ in what is wanted, the heaviest first, and their posterior probabilities.

        An optimum weighs its likelihood times the volume of the normal distribution about it: a sharp one weighs little.
        Source: Laplace's method, MacKay 2003, Information Theory, Inference, and Learning Algorithms, ch. 27.
        """
        likelihood = np.exp(-(optima.value - optima.value[0]) / 2)
        value, slopes = self._in_space(optima.theta)
        values = self._wanted(optima.theta, value, slopes)[0][:, self.aims]
        kept: list[int] = []
        for index in np.flatnonzero(likelihood > LEAST_WEIGHT).tolist():
            apart = (np.abs(values[kept] - values[index]).max(axis=1, initial=0.0) > _SAME * np.sqrt(optima.noise)).all()
            if len(kept) < MOST_BASINS and apart:
                kept.append(index)
        of_rows = slopes[kept][:, rows]
        precision = np.matmul(of_rows.transpose(0, 2, 1), of_rows) / optima.noise + np.diag(optima.prior.spread**-2.0)
        mass = np.log(likelihood[kept]) - np.linalg.slogdet(precision)[1] / 2
        order = np.argsort(-mass, kind="stable")
        weights = np.exp(mass - mass.max())[order]
        return [kept[place] for place in order], weights / weights.sum()

    def _basin(self, optima: Optima, index: int, weight: float, rows: Rows, response: Floats) -> Basin:
        """Return a basin; at its optimum the residuals pull at the bends alone."""
        value, slopes = (part[0] for part in self._in_space(optima.theta[[index]]))
        size = 1.0 if self.pool.space == "log" else float(np.abs(value[rows]).mean())
        slopes = np.column_stack([slopes, self.terms])
        spread = np.concatenate([optima.prior.spread, np.full(self.terms.shape[1], max(self.bend * size, 1e-12))])
        precision = np.diag(spread**-2.0) + slopes[rows].T @ slopes[rows] / optima.noise
        many = len(self.pool)
        wanted, of_wanted = (part[0] for part in self._wanted(optima.theta[[index]], value[None], slopes[None]))
        aims = wanted[self.aims], of_wanted[self.aims]
        basin = basin_of(float(weight), precision, (value[:many], slopes[:many]), aims, optima.noise)
        log = np.log(response[rows]) if self.pool.space == "log" else response[rows]
        pull = np.zeros(slopes.shape[1])
        pull[-self.terms.shape[1] :] = self.terms[rows].T @ (log - value[rows]) / optima.noise
        return replace(basin, forecast=wanted + of_wanted @ np.linalg.solve(precision, pull))

    def _wanted(self, theta: Floats, value: Floats, slopes: Floats) -> tuple[Floats, Floats]:
        """Values and gradients of what is wanted, B × T and B × T × p: the law at the targets, or an exponent."""
        if self.pool.exponent is None:
            return value[:, len(self.pool) :], slopes[:, len(self.pool) :]
        place = self.pool.law.parameters.index(self.pool.exponent)
        alone = np.zeros((len(theta), 1, slopes.shape[2]))
        alone[:, :, place] = 1.0
        return theta[:, [place]], alone

    def _in_space(self, theta: Floats) -> tuple[Floats, Floats]:
        """Values (B × n) and gradients (B × n × p), of logarithms if the fit is in them."""
        value, slopes = self.surface.gradients(theta)
        with np.errstate(all="ignore"):
            return (value, slopes) if self.pool.space == "linear" else (np.log(value), slopes / value[:, :, None])


def median(values: Floats, weights: Floats) -> Floats:
    """Return the weighted medians of the columns of K × T values, which have the least expected absolute error."""
    return np.asarray(np.quantile(values, 0.5, axis=0, weights=weights, method="inverted_cdf"))


def forecast_of(basins: Sequence[Basin]) -> Floats:
    """Return the median over the basins at each target."""
    return median(np.array([basin.forecast for basin in basins]), np.array([basin.weight for basin in basins]))


def bend_terms(columns: Mapping[str, Floats]) -> Floats:
    """Squares and products of the standardised log variables, n × q."""
    logs = [log_or_value(values) for values in columns.values()]
    unit = [(each - each.mean()) / (each.std() or 1.0) for each in logs]
    return np.column_stack([one * other for one, other in combinations_with_replacement(unit, 2)])


def published_prior(pool: Pool) -> Prior:
    """Return published exponents with wide priors, for a law whose parameters are terms in nats and exponents.

    In a surface's coordinates a coefficient is the term's size in the middle of the pool.
    """
    is_exponent = np.isin(pool.law.parameters, pool.law.exponents)
    mean, spread = (np.where(is_exponent, *both) for both in zip(PUBLISHED_EXPONENT, PUBLISHED_TERM, strict=True))
    return Prior(mean, spread)


def fitted_prior(learner: Learner, estimates: Mapping[str, float]) -> Prior:
    """Return the estimates of another table's fit, half as wide as the published prior: its text and recipe may differ.

    A coefficient at the middle of this pool is the estimate over what a coefficient of one is as published.
    """
    law, wide = learner.pool.law, published_prior(learner.pool)
    is_exponent = np.isin(law.parameters, law.exponents)
    given = np.array([estimates[name] for name in law.parameters])
    scale = learner.surface.natural(np.where(is_exponent, given, 1.0)[None])[0]
    return Prior(np.where(is_exponent, given, given / scale), wide.spread / 2)


@dataclass(frozen=True)
class Prior:
    """A normal prior of each parameter, wide enough to decide only what no row does."""

    mean: Floats
    spread: Floats


def least_squares(
    surface: Surface, response: Floats, space: Space, noise: float, prior: Prior, theta: Floats
) -> tuple[Floats, Floats]:
    """Return the optima reached from starts θ (B × p), and their objectives Σ r²/noise + Σ((θ − mean)/spread)².

    Levenberg-Marquardt steps with the scaling of Marquardt 1963, within the law's bounds. Unlike study.laws.minimising it needs
    no second derivatives, and it follows the narrow valleys of laws with more parameters than the rows determine.
    """
    low, high = surface.bounds
    theta = np.clip(theta, low, high)
    value, damping = np.full(len(theta), np.inf), np.full(len(theta), 1e-2)
    result = _Squares(surface, response, space, noise, prior)
    value = result.value(theta)
    left = np.flatnonzero(np.isfinite(value))
    for _ in range(STEPS):
        if not len(left):
            break
        slope, bend = result.expand(theta[left])
        resting = ((theta[left] <= low + _TOUCH) & (slope > 0)) | ((theta[left] >= high - _TOUCH) & (slope < 0))
        there = np.clip(theta[left] + _step(slope, bend, damping[left], resting), low, high)
        reached = result.value(there)
        gain = value[left] - reached
        better = gain > 0
        done = better & (gain < ENOUGH * value[left]) & (damping[left] < 1)
        theta[left[better]], value[left[better]] = there[better], reached[better]
        damping[left] *= np.where(better, 0.2, 5.0)
        left = left[~done & (damping[left] < _STUCK)]
    return theta, value


def _step(slope: Floats, bend: Floats, damping: Floats, resting: np.ndarray) -> Floats:
    diagonal = np.einsum("bpp->bp", bend)
    scale = 1 / np.sqrt(np.maximum(diagonal, 1e-300))
    with np.errstate(all="ignore"):
        unit = bend * scale[:, :, None] * scale[:, None, :]
        unit = np.where(resting[:, :, None] | resting[:, None, :], 0.0, unit)
        unit += (damping[:, None] + 1e-12 + resting)[:, :, None] * np.eye(slope.shape[1])
        return np.asarray(np.linalg.solve(unit, np.where(resting, 0.0, -slope * scale)[:, :, None])[:, :, 0] * scale)


@dataclass(frozen=True)
class _Squares:
    """The objective, with half its gradient and the Gauss-Newton half of its Hessian."""

    surface: Surface
    response: Floats
    space: Space
    noise: float
    prior: Prior

    def value(self, theta: Floats) -> Floats:
        residuals = self._residuals(self.surface.value(theta))
        away = (theta - self.prior.mean) / self.prior.spread
        total = np.sum(residuals**2, axis=1) / self.noise + np.sum(away**2, axis=1)
        return np.where(np.isfinite(total), total, np.inf)

    def expand(self, theta: Floats) -> tuple[Floats, Floats]:
        value, slopes = self.surface.gradients(theta)
        residuals = self._residuals(value)
        if self.space == "log":
            slopes = slopes / value[:, :, None]
        away = (theta - self.prior.mean) / self.prior.spread**2
        gradient = np.einsum("bn,bnp->bp", residuals, slopes) / self.noise + away
        return gradient, np.matmul(slopes.transpose(0, 2, 1), slopes) / self.noise + np.diag(self.prior.spread**-2)

    def _residuals(self, value: Floats) -> Floats:
        with np.errstate(all="ignore"):
            return np.asarray(np.log(value / self.response) if self.space == "log" else value - self.response)
