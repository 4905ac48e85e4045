"""Uncertainty of estimates: cluster bootstrap, sandwich covariance, profiles, and reasons for doubt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit
from scipy.stats import f

from study.base.quantities import plural
from study.base.statistics import CONFIDENCE
from study.base.text import joined
from study.laws.law import Floats, Law
from study.laws.minimising import ClusterWeights, Objective, minimise
from study.laws.observations import Observations

ROWS_TO_REFIT = 10_000
"""Larger tables draw resamples from the sandwich if clusters suffice, else refit fewer."""

CLUSTERS_FOR_SANDWICH = 100
"""The fewest clusters for the sandwich of a robust fit: with 20 of 600 rows its 95% intervals covered 0.87."""

RESAMPLES_OF_MANY_ROWS = 200
"""The maximum refits for more than ROWS_TO_REFIT rows."""

MOST_FAILED = 0.05
"""The share of failed resamples above which there is no interval."""

FEWEST_CLUSTERS = 3
"""The fewest clusters to resample."""

_STILL = 1e-5
"""The smallest change of θ; the minimiser ends within about 1e-6 of its start."""

_PROFILE_POINTS = 41
_SINGULAR = 1e20


Intervals = Mapping[str, tuple[float, float]]
"""Low and high by parameter."""

Status = Literal["converged", "on_bound", "weakly_identified", "lack_of_fit", "missed_forecast", "reads_no_order", "failed"]
"""`on_bound`: a parameter ended on its bound; `weakly_identified`: the rows hardly determine a parameter, or many resamples do
not converge; `lack_of_fit`: residuals show structure that the law omits; `missed_forecast`: the largest runs lie outside the
intervals from the others; `failed`: a restart at the estimate still gains; `reads_no_order`: some rows are from runs that read
no word order, whose losses follow another law.
"""

UNUSABLE: tuple[Status, ...] = ("on_bound", "failed")
"""The statuses of fits with meaningless constants."""

REGAIN = 1e-8
"""The relative gain of a restart above which the fit had not converged."""

WIDEST = 10.0
"""An exponent is weakly identified if its 95% interval spans a larger factor."""

FLAT_OF_INTERVAL = 0.5
"""Tied minima leave a parameter open if they spread over a larger share of its interval."""

FLAT_OF_VALUE = 0.01
"""They must also spread over this share of its value: without noise the interval is as narrow as rounding."""

FEWEST_CLUSTERS_OF_ROWS = 6
"""The fewest clusters of several rows that show their scatter: 95% intervals over 3 runs covered 0.78, over 4 0.85 to 0.89,
over 5 0.90 to 0.95, over 6 0.93 to 0.97.
"""

WORST_CONDITION = 1e8
"""The condition number of the scaled normal matrix above which parameters are weakly identified."""


@dataclass(frozen=True)
class Bootstrap:
    """The converged θ of the resamples (B × p), the method, and the number `failed`.

    `numbers` identifies each draw: fits to the same clusters with the same seed draw the same.
    """

    method: Literal["refit", "sandwich", "none"]
    theta: Floats
    numbers: NDArray[np.int64]
    failed: int = 0


def without_resamples(parameters: int) -> Bootstrap:
    """No resamples."""
    return Bootstrap("none", np.empty((0, parameters)), np.arange(0))


def bootstrap(objective: Objective, observations: Observations, theta: Floats, count: int, seed: int) -> Bootstrap:
    """Refit to `count` cluster resamples, drawn with replacement (Efron 1979).

    Refits start at the estimate; equal draws are refitted once. With more than ROWS_TO_REFIT rows and at least
    CLUSTERS_FOR_SANDWICH clusters, draws come from the normal distribution of the sandwich, which agrees to first order. There
    are none for fewer than three clusters, or if all refits stay at an estimate that misses the rows: between two seeds of a
    few shapes, Huber's loss ties many curves. If more than MOST_FAILED do not converge, none is used, because the others are a
    biased sample.
    """
    nothing = without_resamples(len(theta))
    clusters = observations.n_clusters
    if count == 0 or clusters < FEWEST_CLUSTERS:
        return nothing
    many = len(observations) > ROWS_TO_REFIT
    if many and clusters >= CLUSTERS_FOR_SANDWICH:
        spread = covariance(objective, observations, theta)
        drawn = np.random.default_rng(seed).multivariate_normal(theta, spread, size=count, method="eigh")
        return Bootstrap("sandwich", np.clip(drawn, *objective.surface.bounds), np.arange(count))
    count = min(count, RESAMPLES_OF_MANY_ROWS) if many else count
    draws = draw_counts(clusters, count, seed)
    _, first, like = np.unique(draws, axis=0, return_index=True, return_inverse=True)
    refitted, which = np.unique(first[like], return_inverse=True)
    weights = ClusterWeights(draws[refitted], observations.clusters)
    result = minimise(objective, np.tile(theta, (len(refitted), 1)), weights)
    misses = objective.residuals(theta[None])[0]
    if np.abs(result.theta - theta).max() < _STILL < np.abs(misses).max():
        return nothing
    numbers = np.flatnonzero(result.converged[which])
    if count - len(numbers) > MOST_FAILED * count:
        return replace(nothing, method="refit", failed=count)
    return Bootstrap("refit", result.theta[which][numbers], numbers, count - len(numbers))


def draw_counts(items: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return the count of each item in each resample, count × items."""
    return np.random.default_rng(seed).multinomial(items, np.full(items, 1 / items), size=count)


def percentile_interval(resampled: Floats, tail: float = (1 - CONFIDENCE) / 2) -> tuple[Floats, Floats]:
    """Return the columnwise quantiles (of B × p) that leave `tail` at either end; NaN without resamples."""
    if not len(resampled):
        nothing = np.full(resampled.shape[1:], np.nan)
        return nothing, nothing
    low, high = np.quantile(resampled, (tail, 1 - tail), axis=0)
    return low, high


def degrees_of_freedom(rows: int, parameters: int, clusters: int) -> int:
    """Return the degrees of freedom of the scatter about a law: n − p, at most clusters − 1."""
    return max(1, min(rows - parameters, clusters - 1))


def expanded_tail(rows: int, parameters: int, clusters: int) -> float:
    """Return the share of resamples beyond either end of a 95% interval: Φ(−√(G/ν)·t) for G clusters.

    Resamples of few clusters scatter too little, by about √(ν/G), and have normal percentiles, not Student's t with ν degrees
    of freedom. With many clusters the share is 2.5%. Source: expanded percentile interval of Hesterberg 2015, What teachers
    should know about the bootstrap, Am. Statistician 69, 371-386.
    """
    freedom = degrees_of_freedom(rows, parameters, clusters)
    return float(ndtr(stdtrit(freedom, (1 - CONFIDENCE) / 2) * (clusters / freedom) ** 0.5))


def covariance(objective: Objective, observations: Observations, theta: Floats) -> Floats:
    """Return the sandwich covariance of θ, p × p: B⁻¹·M·B⁻¹ with cluster sums of scores (Huber 1967; Liang and Zeger 1986).

    B is Σψ′(rᵢ)·∇rᵢ∇rᵢᵀ, M = Σ over G clusters of (Σψ(rᵢ)·∇rᵢ)(…)ᵀ·G/(G − 1)·(n − 1)/(n − p), corrected as in Cameron and
    Miller 2015 (eq. 12).
    """
    clusters, rows = observations.n_clusters, len(observations)
    scores = np.zeros((clusters, len(theta)))
    np.add.at(scores, observations.clusters, objective.scores(theta))
    inverse = np.linalg.pinv(_bread(objective, theta, clusters), hermitian=True)
    few = clusters / max(1, clusters - 1) * (rows - 1) / max(1, rows - len(theta))
    return np.asarray(inverse @ (scores.T @ scores) @ inverse * few)


def _bread(objective: Objective, theta: Floats, independent: int) -> Floats:
    """Σ E[ψ′]·∇rᵢ∇rᵢᵀ, p × p.

    ψ′ is 1 within delta and 0 beyond; few rows decide it if delta is small against the noise. Its mean is therefore estimated
    by the density of residuals within h = spread·m^(−1/5) of 0, of m `independent` residuals, times the zone's width. The p
    smallest are excluded, because a fit passes through that many rows (McKean and Schrader 1987).
    """
    slopes, residuals = objective.slopes(theta), np.abs(objective.residuals(theta[None])[0])
    residuals = np.sort(residuals)[min(len(theta), len(residuals) - 1) :]
    window = max(objective.delta, 1.4826 * float(np.median(residuals)) * independent**-0.2)
    if not np.isfinite(window):
        return np.asarray(slopes.T @ slopes)
    share = max(float(np.mean(residuals <= window)), 1 / len(residuals))
    return np.asarray(slopes.T @ slopes * (share * objective.delta / window))


def condition_number(objective: Objective, theta: Floats, resting: NDArray[np.bool_]) -> float:
    """Return the condition number of Σ∇rᵢ∇rᵢᵀ with a unit diagonal, without parameters on a bound.

    Infinite if it is due to rounding.
    """
    slopes = objective.slopes(theta)[:, ~resting]
    length = np.linalg.norm(slopes, axis=0)
    if not len(length) or not (length > 0).all():
        return float("inf")
    condition = float(np.linalg.cond(slopes / length) ** 2)
    return condition if condition < _SINGULAR else float("inf")


@dataclass(frozen=True)
class Profile:
    """The objective along one parameter, refitting all others, and the interval from it."""

    parameter: str
    values: Floats
    objective: Floats
    interval: tuple[float, float]


def profile(law: Law, objective: Objective, observations: Observations, theta: Floats, parameter: str) -> Profile:
    """Profile an exponent, with a 95% interval by the robust likelihood ratio.

    The interval holds the values whose objective exceeds the least by at most F(1, n − p)/2 · E[ψ²]/E[ψ′] · n/(n − p): the
    finite-sample ratio of Heritier and Ronchetti 1994, for least squares that of Bates and Watts 1988 (§6.1). With small delta
    and few rows it is conservative: for nine rows of chinchilla it covers 0.94 to 1. It ends at 5 standard errors or the
    bounds. Rows count as independent.
    """
    index = law.parameters.index(parameter)
    low, high = objective.surface.bounds
    error = max(float(np.sqrt(covariance(objective, observations, theta)[index, index])), 1e-3 * abs(theta[index]) + 1e-9)
    values = np.clip(theta[index] + error * np.linspace(-5, 5, _PROFILE_POINTS), low[index], high[index])
    held_low, held_high = np.tile(low, (len(values), 1)), np.tile(high, (len(values), 1))
    held_low[:, index] = held_high[:, index] = values
    weights = np.ones((len(values), len(observations)))
    result = minimise(objective, np.tile(theta, (len(values), 1)), weights, (held_low, held_high))
    least = float(objective.value(theta[None], weights[:1])[0])
    return Profile(parameter, values, result.value, _within(values, result.value, least + _allowance(objective, theta)))


def _allowance(objective: Objective, theta: Floats) -> float:
    residuals = objective.residuals(theta[None])[0]
    slopes = objective.slopes(theta)
    mean_slope = np.trace(_bread(objective, theta, len(residuals))) / max(np.trace(slopes.T @ slopes), 1e-300)
    spare = max(1, len(residuals) - len(theta))
    spread = np.sum(np.clip(residuals, -objective.delta, objective.delta) ** 2) / spare
    return float(0.5 * f.ppf(CONFIDENCE, 1, spare) * spread / max(mean_slope, 1e-300))


def _within(values: Floats, objective: Floats, level: float) -> tuple[float, float]:
    """Return the crossings of a level on both sides of a profile's minimum, by linear interpolation."""
    best = int(np.argmin(objective))
    left = np.interp(level, objective[: best + 1][::-1], values[: best + 1][::-1])
    right = np.interp(level, objective[best:], values[best:])
    return float(left), float(right)


def failures(converged: bool, regained: float) -> list[str]:
    """Why the minimiser has not converged; `regained` is the relative gain of a restart."""
    reasons = [] if converged else ["the minimiser stopped before its last step gained nothing"]
    if regained > REGAIN:
        reasons.append(f"a restart at the estimate lowered the objective by a relative {regained:.1e}")
    return reasons


def flat_parameters(law: Law, ties: Floats, intervals: Intervals) -> list[str]:
    """Return the parameters that tied minima (k × p) leave open.

    If rows determine a parameter, all starts agree to a thousandth of its interval. If few rows lie within delta of the law, as
    between two seeds of a few shapes, Huber's loss is flat and starts stay where they arrived; an interval not much wider than
    their spread only reflects the tie-break.
    """
    if not len(ties):
        return []
    low, high = ties.min(axis=0), ties.max(axis=0)
    widths = np.array([np.ptp(intervals.get(name, (0.0, 0.0))) for name in law.parameters])
    flat = high - low > np.maximum(FLAT_OF_INTERVAL * widths, FLAT_OF_VALUE * np.maximum(np.abs(low), np.abs(high)))
    return [name for name, is_flat in zip(law.parameters, flat.tolist(), strict=True) if is_flat]


def flatness(flat: Sequence[str]) -> list[str]:
    """Name the parameters along which the objective is flat; empty if none."""
    return [f"the optimum is flat: other values of {joined(flat)} fit the rows equally well"] if flat else []


def bounds_met(law: Law, resting: NDArray[np.bool_], estimates: Floats) -> list[str]:
    """Name the parameters on a bound, with values, and how a range would move one that is positive for lack of it."""
    result = zip(law.parameters, resting, estimates.tolist(), strict=True)
    lower = {name: f"; a range lets it be lower, as in '{name} in -10..10'" for name in law.positive_without_range}
    return [
        f"{name} is on its bound of {value:g}{lower.get(name, '') if value == 0 else ''}"
        for name, rests, value in result
        if rests
    ]


def unread_rows(points: Observations) -> list[str]:
    """Count the rows of runs that read no word order."""
    unread = len(points.without_order.intersection(points.labels))
    are = "is of a run that reads" if unread == 1 else "are of runs that read"
    return [f"{unread} of {plural(len(points), 'row')} {are} no word order"] if unread else []


def weaknesses(
    law: Law, points: Observations, objective: Objective, condition: float, intervals: Intervals, resamples: Bootstrap
) -> list[str]:
    """Why the rows hardly determine the parameters; `intervals` exclude those on a bound.

    Points are few if fewer than twice the parameters. Intervals then span nearly all resamples: 95% intervals of nine points of
    chinchilla covered alpha and beta in 96% to 98%, of five points of power-floor in 97% to 99%; plain percentiles 83% to 96%
    and 78% to 93%.
    """
    reasons = [*points.doubts]
    if condition > WORST_CONDITION:
        reasons.append(f"the condition number is {condition:.1e}")
    settings, parameters = points.settings(law), len(law.parameters)
    if (spare := settings - parameters) < parameters:
        degrees = f"{plural(spare, 'degree')} of freedom"
        reasons.append(f"{settings} different points leave {degrees} for {parameters} parameters")
    bounds = objective.surface.natural(np.array(objective.surface.bounds)).T
    for name, (lowest, highest) in zip(law.parameters, bounds.tolist(), strict=True):
        low, high = intervals.get(name, (np.nan, np.nan))
        if met := [f"{bound:g}" for end, bound in ((low, lowest), (high, highest)) if isclose(end, bound, rel_tol=1e-6)]:
            reasons.append(f"the interval of {name} ends on its bound of {' and of '.join(met)}")
        elif name in law.watched and lowest >= 0 and low * WIDEST < high:
            span = "reaches 0" if low < 1e-3 * high else f"spans a factor of {high / low:.0f}"
            reasons.append(f"the interval of {name} {span}")
    if points.n_clusters < FEWEST_CLUSTERS_OF_ROWS and points.n_clusters < len(points):
        few = plural(points.n_clusters, points.cluster)
        reasons.append(f"the rows are of {few}, too few to show how {points.cluster}s scatter")
    drawn = resamples.failed + len(resamples.theta)
    if resamples.failed > MOST_FAILED * drawn:
        reasons.append(f"more than {MOST_FAILED:.0%} of {drawn} resamples did not converge")
    return reasons
