"""Tests on residuals: replicate noise, lack of fit, and shared errors within a size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f

from study.base.quantities import plural
from study.base.statistics import CONFIDENCE, pooled_variance
from study.laws.estimation import Fit, Settings, fit
from study.laws.law import Floats, Law
from study.laws.observations import Observations, log_or_value

SIGNIFICANT = 0.05
"""The level at which rows of a size merge into one cluster."""

BENDS = 0.01
"""The level at which curved residuals are lack of fit."""

MOST_SIZES = 200
"""The maximum number of sizes in the test, spread evenly."""

_ROUNDING = 1e-6

_DRAWS = 5000
"""Residuals drawn to judge a drift."""

_LEAST_SPARE = 4
"""Means of clusters beyond the gradients, below which no drift shows."""


@dataclass(frozen=True)
class ReplicateNoise:
    """The relative standard deviation of the response between rows with equal variables."""

    relative: float
    degrees_of_freedom: int
    groups: int


def replicate_noise(observations: Observations) -> ReplicateNoise | None:
    """Pool the noise over groups of replicates; None without replicates."""
    table = np.column_stack(list(observations.columns.values()))
    _, groups = np.unique(table, axis=0, return_inverse=True)
    counts = np.bincount(groups.ravel())
    if (counts == 1).all() or (observations.response <= 0).any():
        return None
    ordered = np.log(observations.response)[np.argsort(groups.ravel(), kind="stable")]
    variance, freedom = pooled_variance(np.split(ordered, np.cumsum(counts)[:-1]))
    return ReplicateNoise(float(np.sqrt(variance)), freedom, int((counts > 1).sum()))


@dataclass(frozen=True)
class LackOfFit:
    """The misfit of a law in units of replicate noise, with a p-value.

    `ratio` is √F of the lack-of-fit test (Draper and Smith 1998, sec. 2.1), about 1 for a correct law.
    """

    ratio: float
    p_value: float


def measure_lack_of_fit(residuals: Floats, parameters: int, noise: ReplicateNoise) -> LackOfFit | None:
    """Test least-squares residuals in logarithms for lack of fit.

    None if settings are too few or replicates agree exactly. For a correct law with at most four to six settings per parameter,
    p < 5% in 6% to 7% of draws; Huber residuals would give 8% to 12%.
    """
    spare = len(residuals) - noise.degrees_of_freedom - parameters
    if spare < 1 or noise.relative == 0:
        return None
    beside = max(0.0, float(residuals @ residuals) - noise.degrees_of_freedom * noise.relative**2)
    ratio = beside / spare / noise.relative**2
    return LackOfFit(float(np.sqrt(ratio)), float(f.sf(ratio, spare, noise.degrees_of_freedom)))


def describe_lack_of_fit(fitted: LackOfFit | None) -> str | None:
    """Describe a significant lack of fit; None if it may be chance."""
    if fitted is None or fitted.p_value >= 1 - CONFIDENCE:
        return None
    return f"settings miss the law {fitted.ratio:.1f} times as far as replicate noise, so the law omits something"


def bend_of_residuals(fitted: Fit) -> float | None:
    """Return the p-value of curvature in residuals: squares and pairwise products of the log variables.

    Where clusters hold several rows it is looked for between clusters, within them, and as a drift of their means: the least
    p-value times the number of tests. None with too few clusters. For correct laws p < 0.01 in at most 2% of draws.
    """
    columns = fitted.observations.columns
    logs = [log_or_value(columns[name]) for name in fitted.law.variables]
    centred = [(each - each.mean()) / (each.std() or 1.0) for each in logs]
    terms = np.column_stack([one * other for one, other in combinations_with_replacement(centred, 2)])
    chances = [chance_of_terms(fitted, terms)]
    if fitted.observations.n_clusters < fitted.n:
        chances += [_chance_within(fitted, terms), _chance_of_drift(fitted)]
    known = [chance for chance in chances if chance is not None]
    return min(1.0, len(known) * min(known)) if known else None


def describe_bend(chance: float | None) -> str | None:
    """Describe significant curvature; None if it may be chance."""
    if chance is None or chance >= BENDS:
        return None
    return f"residuals bend over the sizes (p = {max(chance, 1e-6):.1g}), so the law omits something"


def merge_by_size(law: Law, points: Observations, settings: Settings) -> Observations:
    """Merge the rows of a size into one cluster if they share errors, as checkpoints of a run do.

    Applies only if the query names no clusters. The test: sizes explain residuals beyond the law.
    """
    if points.sizes is None or len(np.unique(points.sizes)) in (1, points.n_clusters):
        return points
    count = int(points.sizes.max()) + 1
    some = points.where(np.isin(points.sizes, np.linspace(0, count - 1, MOST_SIZES).astype(int)))
    if some.sizes is None or some.settings(law) <= len(law.parameters):
        return points
    chance = chance_of_terms(fit(law, some, replace(settings, bootstrap=0)), _indicators(some.sizes))
    if chance is None or chance >= SIGNIFICANT:
        return points
    note = (
        f"{plural(len(points), 'row')} are of {plural(count, 'size')} and miss the law by size, as checkpoints of one run do: "
        "rows of a size count as one, unless the law is wrong; --cluster names the groups"
    )
    return replace(points, clusters=points.sizes, cluster="size", warnings=(*points.warnings, note))


def _indicators(groups: NDArray[np.int64]) -> Floats:
    return np.asarray(groups[:, None] == np.arange(groups.max() + 1), dtype=float)


def chance_of_terms(fitted: Fit, terms: Floats) -> float | None:
    """Return the p-value of residuals along further `terms` (n × q), given the law's gradients.

    An F-test of added variables over cluster means, with residuals clipped at three robust standard deviations. None with too
    few clusters.
    """
    clusters = fitted.observations.clusters
    held, more, left = (_means(part, clusters) for part in (fitted.slopes, terms, _clipped(fitted)))
    basis, more = _directions(_unit(held)), _unit(more)
    added = _directions(more - basis @ (basis.T @ more))
    rest = left - basis @ (basis.T @ left)
    spare = len(rest) - basis.shape[1] - added.shape[1]
    explained, total = float(np.square(added.T @ rest).sum()), float(np.square(rest).sum())
    if added.shape[1] == 0 or spare < 2 or total == 0:
        return None
    return float(f.sf(explained / added.shape[1] / (max(total - explained, 1e-300) / spare), added.shape[1], spare))


def _chance_within(fitted: Fit, terms: Floats) -> float | None:
    """Return the p-value of residuals along `terms` within clusters, whose means are taken out.

    Hotelling's T² of each cluster's score: rows of a cluster may depend on each other in any way.
    """
    clusters = fitted.observations.clusters
    held, more, left = (_beside_means(part, clusters) for part in (fitted.slopes, terms, _clipped(fitted)))
    held, more = _unit(held), _unit(more)
    if held.shape[1] == 0 or more.shape[1] == 0:
        return None
    basis = _directions(held)
    added = _directions(more - basis @ (basis.T @ more))
    if added.shape[1] == 0:
        return None
    scores = _means(added * (left - basis @ (basis.T @ left)), clusters) * np.bincount(clusters)[:, None]
    count, tests = scores.shape
    if count < tests + 2 or np.linalg.matrix_rank(scores - scores.mean(axis=0)) < tests:
        return None
    mean = scores.mean(axis=0)
    squared = count * mean @ np.linalg.solve(np.atleast_2d(np.cov(scores.T)), mean)
    return float(f.sf(squared * (count - tests) / (tests * (count - 1)), tests, count - tests))


def _chance_of_drift(fitted: Fit) -> float | None:
    """Return the p-value of neighbours that miss the law alike, among the means of clusters in the order of their predictions.

    Von Neumann's ratio, against that of normal residuals beside the same gradients. None with too few clusters.
    """
    clusters = fitted.observations.clusters
    predicted = fitted.predict(fitted.observations.columns)
    order = np.argsort(_means(predicted[:, None], clusters)[:, 0], kind="stable")
    held, left = (_means(part, clusters)[order] for part in (fitted.slopes, _clipped(fitted)))
    basis = _directions(_unit(held))
    if len(left) - basis.shape[1] < _LEAST_SPARE:
        return None
    normal = np.random.default_rng(0).normal(size=(len(left), _DRAWS))
    residuals = np.column_stack([left, normal])
    residuals -= basis @ (basis.T @ residuals)
    total = np.square(residuals).sum(axis=0)
    if total[0] == 0:
        return None
    ratios = np.square(np.diff(residuals, axis=0)).sum(axis=0) / total
    return float(np.mean(ratios <= ratios[0]))


def _clipped(fitted: Fit) -> Floats:
    """Return the residuals as a column, clipped at three robust standard deviations."""
    usual = 3 * 1.4826 * float(np.median(np.abs(fitted.residuals)))
    return np.asarray(np.clip(fitted.residuals, -usual, usual)[:, None])


def _beside_means(values: Floats, clusters: NDArray[np.int64]) -> Floats:
    """Values less the means of their clusters; zero for columns that are constant within clusters."""
    beside = values - _means(values, clusters)[clusters]
    varies = np.linalg.norm(beside, axis=0) > _ROUNDING * np.linalg.norm(values, axis=0)
    return np.asarray(np.where(varies, beside, 0.0))


def _means(values: Floats, clusters: NDArray[np.int64]) -> Floats:
    counts = np.bincount(clusters)
    return np.column_stack([np.bincount(clusters, column) / counts for column in values.T])


def _unit(columns: Floats) -> Floats:
    length = np.linalg.norm(columns, axis=0)
    return np.asarray(columns[:, length > 0] / length[length > 0])


def _directions(columns: Floats) -> Floats:
    """Return an orthonormal basis of the columns, up to rounding."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, sizes > _ROUNDING])
