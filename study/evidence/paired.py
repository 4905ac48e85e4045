"""Paired differences of validation loss: the noise of sequences and seeds in one interval, and verdicts over many of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from study.base.quantities import signed
from study.base.statistics import CONFIDENCE, Both, chance_beyond, half_interval, satterthwaite, variance_of_mean
from study.evidence.seed_scatter import SeedVariance

Verdict = Literal["decided", "undecided", "no_seed_replicates", "reads_no_order"]

MOST_SEEDS = 64
"""Beyond so many seeds a cell, more of them are no plan."""

MOST_SEQUENCES = 64
"""Beyond so many times the present validation sequences, more of them are no plan."""


@dataclass(frozen=True)
class Difference:
    """Loss of one cell minus that of another, in nats per masked token, with its uncertainty.

    The estimate is the mean over validation sequences of the difference of seed-averaged losses. Its variance is
    s²(sequences)/n, clustered by document where known, + s²(seeds)·(1/k₁ + 1/k₂), added as study.base.statistics does.
    `degrees_of_freedom` are those of the seeds, None where losses do not depend on them. Without seed replicates there is no
    interval.
    """

    estimate_nats: float
    standard_error_sequences_nats: float
    n_sequences: int
    n_seeds: tuple[int, int]
    n_documents: int | None = None
    standard_error_seeds_nats: float | None = None
    standard_error_nats: float | None = None
    degrees_of_freedom: float | None = None
    low_nats: float | None = None
    high_nats: float | None = None
    p_value: float | None = None

    @property
    def n_independent(self) -> int:
        """The documents of the sequences, or the sequences where their documents are not known."""
        return self.n_sequences if self.n_documents is None else self.n_documents

    @property
    def bounds(self) -> str | None:
        """The ends of the interval in words, None where there is none."""
        if self.low_nats is None or self.high_nats is None:
            return None
        return f"{signed(self.low_nats)} to {signed(self.high_nats)}"

    def to_text(self) -> str:
        """The difference with its interval."""
        interval = "no interval" if self.bounds is None else f"95% interval {self.bounds}"
        return f"{signed(self.estimate_nats)} nats ({interval})"

    @property
    def reversed(self) -> Difference:
        """Loss of the other cell minus that of the one."""
        low, high = (None if end is None else -end for end in (self.high_nats, self.low_nats))
        estimate, seeds = -self.estimate_nats, (self.n_seeds[1], self.n_seeds[0])
        return replace(self, estimate_nats=estimate, low_nats=low, high_nats=high, n_seeds=seeds)


@dataclass(frozen=True, kw_only=True)
class TestedDifference:
    """A difference among others of its kind: `decided` where Holm's p-value, adjusted for all of them, is below 5%.

    A single interval that excludes zero may still be undecided. There is no p-value without seed replicates, nor where encoders
    do not read word order as a verdict needs; `reads_order` is None where that is not known.
    """

    difference: Difference
    reads_order: bool | None = True
    p_value_holm: float | None = None

    @property
    def status(self) -> Verdict:
        """Whether the sign of the difference is settled."""
        if self.reads_order is False:
            return "reads_no_order"
        if self.p_value_holm is None:
            return "no_seed_replicates"
        return "decided" if self.p_value_holm < 1 - CONFIDENCE else "undecided"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self) | {"status": self.status}


_J = TypeVar("_J", bound=TestedDifference)


def adjust_by_holm(differences: Sequence[_J]) -> tuple[_J, ...]:
    """These, which are all of their kind, the p-values of those on which there may be a verdict adjusted for each other."""
    adjusted = holm([None if one.reads_order is False else one.difference.p_value for one in differences])
    return tuple(replace(one, p_value_holm=p_value) for one, p_value in zip(differences, adjusted, strict=True))


def paired_difference(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    seeds: Sequence[SeedVariance] | None,
    documents: NDArray[np.int64] | None = None,
) -> Difference:
    """The first cell's loss minus the second's; both are seeds × sequences over the same two or more sequences.

    Sequences are paired and cluster by `documents`, two or more, where known; seeds are independent. `seeds` are their
    variances in the two cells, None where either is unknown. The variance over sequences holds some of the seeds' interaction
    with them, so the interval errs on the wide side.
    """
    differences = first.mean(axis=0) - second.mean(axis=0)
    n, n_seeds = len(differences), (len(first), len(second))
    n_documents = None if documents is None else len(np.unique(documents))
    estimate = float(differences.mean())
    if seeds is None:
        return Difference(estimate, variance_of_mean(differences, documents) ** 0.5, n, n_seeds, n_documents)
    variances, freedoms = variances_of_sum(differences, np.array([1.0, -1.0]), n_seeds, seeds, documents)
    low, high, p_value = interval_and_p_value(estimate, variances, freedoms)
    return Difference(
        estimate_nats=estimate,
        standard_error_sequences_nats=variances[0] ** 0.5,
        n_sequences=n,
        n_seeds=n_seeds,
        n_documents=n_documents,
        standard_error_seeds_nats=variances[1] ** 0.5,
        standard_error_nats=sum(variances) ** 0.5,
        degrees_of_freedom=freedoms[1] if freedoms[1] < math.inf else None,
        low_nats=low,
        high_nats=high,
        p_value=p_value,
    )


def half_width(of_cell: SeedVariance, seeds: int) -> float:
    """Half of the interval of a cell's mean over `seeds` seeds, on the fixed validation set, in nats."""
    return float(stats.t.isf((1 - CONFIDENCE) / 2, of_cell.degrees_of_freedom) * np.sqrt(of_cell.variance / seeds))


def variances_of_sum(
    summed: NDArray[np.float64],
    weights: NDArray[np.float64],
    n_seeds: Sequence[int],
    seeds: Sequence[SeedVariance],
    documents: NDArray[np.int64] | None = None,
) -> tuple[Both, Both]:
    """The variances of Σ wᵢ·mean(lossᵢ) over sequences and over seeds, and their degrees of freedom.

    `summed` holds the sum for each sequence, clustered by `documents` where known. Over seeds the variance is Σ s²ᵢ·wᵢ²/kᵢ:
    cells of one s² share its freedom, several have Satterthwaite's.
    """
    over_seeds = _over_seeds(weights.tolist(), n_seeds, seeds)
    freedom = satterthwaite(list(over_seeds.values()), [of_cells.degrees_of_freedom for of_cells in over_seeds])
    independent = len(summed) if documents is None else len(np.unique(documents))
    return (variance_of_mean(summed, documents), sum(over_seeds.values())), (independent - 1, freedom)


def _over_seeds(weights: Sequence[float], n_seeds: Sequence[int], seeds: Sequence[SeedVariance]) -> dict[SeedVariance, float]:
    """What each s² adds to the variance of Σ wᵢ·mean(lossᵢ)."""
    found: dict[SeedVariance, float] = {}
    for weight, count, of_cell in zip(weights, n_seeds, seeds, strict=True):
        found[of_cell] = found.get(of_cell, 0.0) + of_cell.variance * weight**2 / count
    return found


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p-values, in the given order, of those that are known: reject where one is below the family-wise error.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 65-70.
    """
    known = [place for place, p_value in enumerate(p_values) if p_value is not None]
    values = np.array([p_values[place] for place in known], dtype=float)
    ordered = np.argsort(values)
    steps = values[ordered] * np.arange(len(values), 0, -1)
    adjusted: list[float | None] = [None] * len(p_values)
    for rank, p_value in zip(ordered, np.minimum(np.maximum.accumulate(steps), 1.0), strict=True):
        adjusted[known[rank]] = float(p_value)
    return adjusted


def interval_and_p_value(estimate: float, variances: Both, freedoms: Both) -> tuple[float, float, float]:
    """The ends of the interval of CONFIDENCE around an estimate with two sources of noise, and its p-value against zero."""
    half = half_interval(CONFIDENCE, variances, freedoms)
    return estimate - half, estimate + half, chance_beyond(abs(estimate), variances, freedoms)


def seeds_that_would_decide(difference: Difference, seeds: Sequence[SeedVariance], comparisons: int) -> int | None:
    """The fewest seeds a cell, more than now, whose interval would exclude zero if the estimate were true.

    `seeds` are the variances of the two cells. The level is 5%/`comparisons`, the hardest step of Holm's procedure; at this
    many seeds a verdict has a chance of about one half. None where MOST_SEEDS would not do, since sequences are the limit.
    """
    for count in range(max(difference.n_seeds) + 1, MOST_SEEDS + 1):
        over_seeds = _over_seeds((1.0, -1.0), (count, count), seeds)
        freedoms = [max(of_cells.degrees_of_freedom, of_cells.cells * (count - 1)) for of_cells in over_seeds]
        if _decides(difference, 1, list(over_seeds.values()), freedoms, comparisons):
            return count
    return None


def sequences_that_would_decide(difference: Difference, seeds: Sequence[SeedVariance], comparisons: int) -> int | None:
    """The validation sequences, doubled until the interval would leave out zero; as `seeds_that_would_decide`.

    The further sequences are of as many further documents.
    """
    over_seeds = _over_seeds((1.0, -1.0), difference.n_seeds, seeds)
    freedoms = [of_cells.degrees_of_freedom for of_cells in over_seeds]
    for times in 2 ** np.arange(1, int(np.log2(MOST_SEQUENCES)) + 1):
        if _decides(difference, int(times), list(over_seeds.values()), freedoms, comparisons):
            return int(times) * difference.n_sequences
    return None


def would_be_significant(
    estimate_nats: float, noise: Difference, seeds: Sequence[SeedVariance], n_seeds: Sequence[int]
) -> bool:
    """Whether an estimate would differ from zero at 5%, with the sequences of another difference and so many seeds."""
    over_seeds = _over_seeds((1.0, -1.0), n_seeds, seeds)
    freedoms = [of_cells.degrees_of_freedom for of_cells in over_seeds]
    return _decides(replace(noise, estimate_nats=estimate_nats), 1, list(over_seeds.values()), freedoms, 1)


def _decides(
    difference: Difference, times: int, over_seeds: Sequence[float], seed_freedoms: Sequence[float], comparisons: int
) -> bool:
    """Whether the estimate would differ significantly from zero with `times` the documents and these seed variances."""
    variances = (difference.standard_error_sequences_nats**2 / times, sum(over_seeds))
    freedoms = (difference.n_independent * times - 1, satterthwaite(over_seeds, seed_freedoms))
    return chance_beyond(abs(difference.estimate_nats), variances, freedoms) < (1 - CONFIDENCE) / comparisons


@dataclass(frozen=True)
class Contrast:
    """An estimate in nats per masked token, its 95% interval and p-value against zero; None without seed replicates."""

    estimate: float
    interval: tuple[float, float] | None = None
    p_value: float | None = None


def contrast(
    weights: NDArray[np.float64],
    cells: Sequence[NDArray[np.float64]],
    seeds: Sequence[SeedVariance] | None,
    documents: NDArray[np.int64] | None = None,
) -> Contrast:
    """Σ wᵢ·mean(lossᵢ) of cells that are seeds × sequences each, over the same two or more sequences.

    Its variance is s²(sequences)/n of the weighted sums, clustered by `documents` where known, plus Σ s²ᵢ·wᵢ²/kᵢ, where `seeds`
    are the s²ᵢ. With weights 1 and −1 it equals paired_difference.
    """
    summed = weights @ np.stack([losses.mean(axis=0) for losses in cells])
    estimate = float(summed.mean())
    if seeds is None:
        return Contrast(estimate)
    n_seeds = [len(losses) for losses in cells]
    low, high, p_value = interval_and_p_value(estimate, *variances_of_sum(summed, weights, n_seeds, seeds, documents))
    return Contrast(estimate, (low, high), p_value)


def slope_weights(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights whose sum with values is the slope of their least-squares line over x."""
    away = x - x.mean()
    return np.asarray(away / (away @ away))
