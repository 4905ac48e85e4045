"""How sure an estimate is: a bootstrap over clusters, the covariance of M-estimators, profiles, noise between replicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit
from scipy.stats import f

from study.base.behrens_fisher import CONFIDENCE
from study.base.pooling import pooled_variance
from study.laws.law import Floats, Law
from study.laws.minimising import Objective, minimise
from study.laws.observations import Observations

ROWS_TO_REFIT = 10_000
"""Beyond so many rows resamples are drawn from the sandwich where clusters suffice, else fewer are refitted."""

CLUSTERS_FOR_SANDWICH = 100
"""With fewer clusters the sandwich of a robust fit is too narrow: with 20 of 600 rows its intervals of 95% covered 0.87."""

RESAMPLES_OF_MANY_ROWS = 200
"""So many refits at most of a table of more than ROWS_TO_REFIT rows."""

FEWEST_CLUSTERS = 3
"""Fewer clusters are not resampled."""

_STILL = 1e-5
"""A θ that moves by less stays: the minimiser ends within about 1e-6 of where it began."""

_PROFILE_POINTS = 41


@dataclass(frozen=True)
class Bootstrap:
    """The θ of every resample (B × p) and how it was found; `failed` resamples did not converge and are left out.

    `numbers` says which draws the rows of θ are: fits to the same clusters with the same seed draw alike.
    """

    method: Literal["refit", "sandwich", "none"]
    theta: Floats
    numbers: NDArray[np.int64]
    failed: int = 0


def bootstrap(objective: Objective, observations: Observations, theta: Floats, count: int, seed: int) -> Bootstrap:
    """Refits to `count` resamples of the clusters, drawn with replacement, all rows of one together (Efron 1979).

    Each starts at the estimate, and of those that are alike, as most are of few clusters, one is refitted. Tables of more than
    ROWS_TO_REFIT rows and CLUSTERS_FOR_SANDWICH clusters draw from the normal distribution of the sandwich covariance, with
    which refits agree to first order. Fewer than three clusters give none, nor do those whose refits all stay at the estimate
    though it misses the rows: between two seeds of each of a few shapes many curves lie, and any is as good to the Huber loss.
    """
    nothing = Bootstrap("none", np.empty((0, len(theta))), np.arange(0))
    clusters = observations.n_clusters
    if count == 0 or clusters < FEWEST_CLUSTERS:
        return nothing
    many = len(observations) > ROWS_TO_REFIT
    if many and clusters >= CLUSTERS_FOR_SANDWICH:
        spread = covariance(objective, observations, theta)
        drawn = np.random.default_rng(seed).multivariate_normal(theta, spread, size=count, method="eigh")
        return Bootstrap("sandwich", np.clip(drawn, *objective.surface.bounds), np.arange(count))
    count = min(count, RESAMPLES_OF_MANY_ROWS) if many else count
    draws = times_drawn(clusters, count, seed)
    _, first, like = np.unique(draws, axis=0, return_index=True, return_inverse=True)
    refitted, which = np.unique(first[like], return_inverse=True)
    weights = draws[refitted].astype(float)[:, observations.clusters]
    found = minimise(objective, np.tile(theta, (len(refitted), 1)), weights)
    misses = objective.residuals(theta[None])[0]
    if np.abs(found.theta - theta).max() < _STILL < np.abs(misses).max():
        return nothing
    numbers = np.flatnonzero(found.converged[which])
    return Bootstrap("refit", found.theta[which][numbers], numbers, count - len(numbers))


def times_drawn(items: int, count: int, seed: int) -> NDArray[np.int64]:
    """How often each item is in each resample, count × items: as many as there are are drawn with replacement."""
    return np.random.default_rng(seed).multinomial(items, np.full(items, 1 / items), size=count)


def percentile_interval(resampled: Floats, tail: float = (1 - CONFIDENCE) / 2) -> tuple[Floats, Floats]:
    """Between which values of each column over resamples (B × p) all but a `tail` at either end lie; no numbers without any."""
    if not len(resampled):
        nothing = np.full(resampled.shape[1:], np.nan)
        return nothing, nothing
    low, high = np.quantile(resampled, (tail, 1 - tail), axis=0)
    return low, high


def degrees_of_freedom(rows: int, parameters: int, clusters: int) -> int:
    """Those by which rows tell how widely they scatter about a law: n − p, or one less than the clusters."""
    return max(1, min(rows - parameters, clusters - 1))


def expanded_tail(rows: int, parameters: int, clusters: int) -> float:
    """The share of resamples that a 95% interval of a fit leaves out at either end: Φ(−√(G/ν)·t) of G clusters.

    Resamples of few clusters scatter too little, by about √(ν/G), and their percentiles are those of a normal variable, where
    the scatter that ν degrees of freedom tell makes Student's t. Many clusters leave out 2.5%. Source: the expanded percentile
    interval of Hesterberg 2015, What teachers should know about the bootstrap, Am. Statistician 69, 371-386.
    """
    freedom = degrees_of_freedom(rows, parameters, clusters)
    return float(ndtr(stdtrit(freedom, (1 - CONFIDENCE) / 2) * (clusters / freedom) ** 0.5))


def covariance(objective: Objective, observations: Observations, theta: Floats) -> Floats:
    """The covariance of θ, p × p: the sandwich B⁻¹·M·B⁻¹ with a cluster's scores summed (Huber 1967; Liang and Zeger 1986).

    B is Σψ′(rᵢ)·∇rᵢ∇rᵢᵀ and M = Σ over G clusters of (Σψ(rᵢ)·∇rᵢ)(…)ᵀ·G/(G − 1)·(n − 1)/(n − p), the correction for few of
    them of Cameron and Miller 2015 (eq. 12).
    """
    clusters, rows = observations.n_clusters, len(observations)
    scores = np.zeros((clusters, len(theta)))
    np.add.at(scores, observations.clusters, objective.scores(theta))
    inverse = np.linalg.pinv(_bread(objective, theta, clusters), hermitian=True)
    few = clusters / max(1, clusters - 1) * (rows - 1) / max(1, rows - len(theta))
    return np.asarray(inverse @ (scores.T @ scores) @ inverse * few)


def _bread(objective: Objective, theta: Floats, independent: int) -> Floats:
    """Σ E[ψ′]·∇rᵢ∇rᵢᵀ, p × p.

    ψ′ is 1 within delta and 0 beyond, which few rows decide where delta is small against the noise; so its mean is the density
    of residuals near 0, within h = spread·m^(−1/5), times the width of the zone, where m residuals are `independent`. The p
    least are left out, since a fit of p parameters passes through as many rows whatever the density (McKean and Schrader 1987).
    """
    slopes, residuals = objective.slopes(theta), np.abs(objective.residuals(theta[None])[0])
    residuals = np.sort(residuals)[min(len(theta), len(residuals) - 1) :]
    window = max(objective.delta, 1.4826 * float(np.median(residuals)) * independent**-0.2)
    if not np.isfinite(window):
        return np.asarray(slopes.T @ slopes)
    share = max(float(np.mean(residuals <= window)), 1 / len(residuals))
    return np.asarray(slopes.T @ slopes * (share * objective.delta / window))


def condition_number(objective: Objective, theta: Floats, resting: NDArray[np.bool_]) -> float:
    """The condition number of Σ∇rᵢ∇rᵢᵀ scaled to a unit diagonal, without the parameters that rest on a bound."""
    slopes = objective.slopes(theta)[:, ~resting]
    length = np.linalg.norm(slopes, axis=0)
    if not len(length) or not (length > 0).all():
        return float("inf")
    return float(np.linalg.cond(slopes / length) ** 2)


@dataclass(frozen=True)
class Profile:
    """The objective over values of one parameter, all others fitted at each, and the interval that it gives."""

    parameter: str
    values: Floats
    objective: Floats
    interval: tuple[float, float]


def profile(law: Law, objective: Objective, observations: Observations, theta: Floats, parameter: str) -> Profile:
    """The profile of an exponent and its 95% interval, by the robust likelihood ratio.

    The interval holds the values whose objective exceeds the least by at most F(1, n − p)/2 · E[ψ²]/E[ψ′] · n/(n − p): the
    ratio of Heritier and Ronchetti 1994 at the size of the sample, for least squares that of Bates and Watts 1988 (§6.1).
    Where delta is small against the noise and rows are few, E[ψ′] is hardly known, and the interval errs on the wide side: of
    nine rows of chinchilla it covers 0.94 to 1. One that leaves the range tried, 5 standard errors either way and within the
    bounds, ends at its edge. Rows count as independent.
    """
    place = law.parameters.index(parameter)
    low, high = objective.surface.bounds
    error = max(float(np.sqrt(covariance(objective, observations, theta)[place, place])), 1e-3 * abs(theta[place]) + 1e-9)
    values = np.clip(theta[place] + error * np.linspace(-5, 5, _PROFILE_POINTS), low[place], high[place])
    held_low, held_high = np.tile(low, (len(values), 1)), np.tile(high, (len(values), 1))
    held_low[:, place] = held_high[:, place] = values
    weights = np.ones((len(values), len(observations)))
    found = minimise(objective, np.tile(theta, (len(values), 1)), weights, (held_low, held_high))
    least = float(objective.value(theta[None], weights[:1])[0])
    return Profile(parameter, values, found.value, _within(values, found.value, least + _allowance(objective, theta)))


def _allowance(objective: Objective, theta: Floats) -> float:
    residuals = objective.residuals(theta[None])[0]
    slopes = objective.slopes(theta)
    mean_slope = np.trace(_bread(objective, theta, len(residuals))) / max(np.trace(slopes.T @ slopes), 1e-300)
    spare = max(1, len(residuals) - len(theta))
    spread = np.sum(np.clip(residuals, -objective.delta, objective.delta) ** 2) / spare
    return float(0.5 * f.ppf(CONFIDENCE, 1, spare) * spread / max(mean_slope, 1e-300))


def _within(values: Floats, objective: Floats, level: float) -> tuple[float, float]:
    """Where a profile crosses a level on either side of its least point, between its points linearly."""
    best = int(np.argmin(objective))
    left = np.interp(level, objective[: best + 1][::-1], values[: best + 1][::-1])
    right = np.interp(level, objective[best:], values[best:])
    return float(left), float(right)


@dataclass(frozen=True)
class ReplicateNoise:
    """The standard deviation of the response, relative to it, between rows alike in every variable of the law."""

    relative: float
    degrees_of_freedom: int
    groups: int


def replicate_noise(observations: Observations) -> ReplicateNoise | None:
    """The noise between replicates (seeds), pooled over groups of rows that share all variables; None where none do."""
    table = np.column_stack(list(observations.columns.values()))
    _, groups = np.unique(table, axis=0, return_inverse=True)
    counts = np.bincount(groups.ravel())
    if (counts == 1).all() or (observations.response <= 0).any():
        return None
    ordered = np.log(observations.response)[np.argsort(groups.ravel(), kind="stable")]
    variance, freedom = pooled_variance(np.split(ordered, np.cumsum(counts)[:-1]))
    return ReplicateNoise(float(np.sqrt(variance)), freedom, int((counts > 1).sum()))


@dataclass(frozen=True)
class Misfit:
    """How far a law misses the settings that it was fitted to, in what replicates of one scatter, and p if it were right.

    √F of the lack of fit, the mean square of what residuals hold beside the scatter of replicates, over the square of that
    scatter (Draper and Smith 1998, sec. 2.1); `ratio` is about 1 where the law is right.
    """

    ratio: float
    p_value: float


def misfit(residuals: Floats, parameters: int, noise: ReplicateNoise) -> Misfit | None:
    """The misfit of residuals of least squares in logarithms; None where these are few, or replicates agree exactly.

    Few are settings no more than parameters. Of a right law of four to six settings a parameter or fewer p is below 5% in 6% to
    7% of draws; by the residuals of Huber's loss, which are no least squares, it would be in 8% to 12%.
    """
    spare = len(residuals) - noise.degrees_of_freedom - parameters
    if spare < 1 or noise.relative == 0:
        return None
    beside = max(0.0, float(residuals @ residuals) - noise.degrees_of_freedom * noise.relative**2)
    ratio = beside / spare / noise.relative**2
    return Misfit(float(np.sqrt(ratio)), float(f.sf(ratio, spare, noise.degrees_of_freedom)))
