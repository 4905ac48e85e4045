"""Paired differences of validation loss: intervals over sequences and seeds, and verdicts adjusted for many pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from study.base.quantities import plural, signed
from study.base.statistics import CONFIDENCE, Both, chance_beyond, half_interval, satterthwaite, variance_of_mean
from study.evidence.seed_scatter import SeedVariance

Verdict = Literal["decided", "undecided", "no_seed_replicates", "reads_no_order", "order_not_measured"]

MOST_SEEDS = 64
"""Maximum number of seeds per cell that is ever recommended."""

MOST_SEQUENCES = 64
"""Maximum multiple of the present validation sequences that is ever recommended."""


@dataclass(frozen=True)
class Difference:
    """Loss of one cell minus another's, in nats per masked token, with its uncertainty.

    The estimate is the mean over validation sequences of the difference of seed-averaged losses. Variance: s²(sequences)/n,
    clustered by document if known, + s²(seeds)·(1/k₁ + 1/k₂), added as in study.base.statistics. `degrees_of_freedom` are the
    seeds', None if losses do not depend on them. No interval without seed replicates.
    """

    unit: ClassVar[str] = "nats"
    nats_per_unit: ClassVar[float] = 1.0

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
        """The number of documents, or of sequences if documents are unknown."""
        return self.n_sequences if self.n_documents is None else self.n_documents

    @property
    def in_unit(self) -> Difference:
        """The same difference with its numbers in `unit`."""
        nats = {name: getattr(self, name) for name in ("estimate_nats", "low_nats", "high_nats")}
        numbers = {name: None if value is None else value / self.nats_per_unit for name, value in nats.items()}
        return Difference(**vars(self) | numbers)

    @property
    def bounds(self) -> str | None:
        """The ends of the interval as text; None without one."""
        shown = self.in_unit
        if shown.low_nats is None or shown.high_nats is None:
            return None
        return f"{signed(shown.low_nats)} to {signed(shown.high_nats)}"

    def to_text(self) -> str:
        """Return the difference with its interval."""
        interval = "no interval" if self.bounds is None else f"95% interval {self.bounds}"
        return f"{signed(self.in_unit.estimate_nats)} {self.unit} ({interval})"

    @property
    def size_text(self) -> str:
        """The size of the difference, of either sign, with its interval."""
        shown = (self if self.estimate_nats >= 0 else self.reversed).in_unit
        size = f"{shown.estimate_nats:.3f} {self.unit}"
        return size if shown.low_nats is None else f"{size} (95% interval {shown.low_nats:.3f} to {shown.high_nats:.3f})"

    @property
    def sample_text(self) -> str:
        """What it was measured on."""
        of = "" if self.n_documents is None else f" of {plural(self.n_documents, 'document')}"
        return f"{plural(self.n_sequences, 'validation sequence')}{of}"

    @property
    def reversed(self) -> Difference:
        """The same difference with its sides swapped."""
        low, high = (None if end is None else -end for end in (self.high_nats, self.low_nats))
        estimate, seeds = -self.estimate_nats, (self.n_seeds[1], self.n_seeds[0])
        return replace(self, estimate_nats=estimate, low_nats=low, high_nats=high, n_seeds=seeds)


@dataclass(frozen=True)
class DifferencePerByte(Difference):
    """A difference in nats per byte of masked words, reported in bits per byte; its sequences are whole documents."""

    unit: ClassVar[str] = "bits per byte"
    nats_per_unit: ClassVar[float] = math.log(2)

    @property
    def sample_text(self) -> str:
        """What it was measured on."""
        return f"the masked words of {plural(self.n_sequences, 'validation document')}"


@dataclass(frozen=True, kw_only=True)
class TestedDifference:
    """A difference among others of its kind: `decided` if Holm's p-value over all of them is below 5%.

    The interval is adjusted likewise (`holm_levels`), so that it excludes zero exactly if the difference is decided. No p-value
    without seed replicates, nor if encoders do not read word order as the verdict requires; `reads_order` is None if unknown,
    which is no verdict either where `of_shapes`.
    """

    difference: Difference
    reads_order: bool | None = True
    p_value_holm: float | None = None

    @property
    def of_shapes(self) -> bool:
        """Whether shapes are compared, of which losses without word order say nothing."""
        return False

    @property
    def in_unit(self) -> Self:
        """The same with the numbers of its difference in their `unit`."""
        return replace(self, difference=self.difference.in_unit)

    @property
    def without_order(self) -> Verdict | None:
        """Why there is no verdict for want of word order, None if there may be one."""
        if self.reads_order is False:
            return "reads_no_order"
        return "order_not_measured" if self.reads_order is None and self.of_shapes else None

    @property
    def status(self) -> Verdict:
        """Whether the sign of the difference is settled."""
        if self.without_order is not None:
            return self.without_order
        if self.p_value_holm is None:
            return "no_seed_replicates"
        return "decided" if self.p_value_holm < 1 - CONFIDENCE else "undecided"

    def to_dict(self) -> dict[str, Any]:
        """Fields and status."""
        return asdict(self) | {"status": self.status}


_J = TypeVar("_J", bound=TestedDifference)


def adjust_by_holm(differences: Sequence[_J]) -> tuple[_J, ...]:
    """Adjust the p-values and intervals of all differences that may have a verdict."""
    p_values = [None if one.without_order else one.difference.p_value for one in differences]
    adjusted = zip(differences, holm(p_values), holm_levels(p_values), strict=True)
    return tuple(replace(one, p_value_holm=p, difference=_at_level(one.difference, level)) for one, p, level in adjusted)


def _at_level(difference: Difference, level: float | None) -> Difference:
    """Return the difference with its interval at confidence 1 − `level`, if any."""
    if level is None or difference.standard_error_seeds_nats is None:
        return difference
    variances = difference.standard_error_sequences_nats**2, difference.standard_error_seeds_nats**2
    freedoms = difference.n_independent - 1, difference.degrees_of_freedom or math.inf
    half = half_interval(1 - level, variances, freedoms)
    return replace(difference, low_nats=difference.estimate_nats - half, high_nats=difference.estimate_nats + half)


def paired_difference(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    seeds: Sequence[SeedVariance] | None,
    documents: NDArray[np.int64] | None = None,
    per_byte: bool = False,
) -> Difference:
    """Return the first cell's loss minus the second's; both are seeds × sequences over the same two or more sequences.

    Sequences are paired and cluster by `documents`, two or more, if known; seeds are independent. `seeds`: their variances in
    the two cells, None if either is unknown. The sequence variance includes part of their interaction with seeds, so the
    interval is conservative. Losses `per_byte` of masked words are reported in bits per byte.
    """
    differences = first.mean(axis=0) - second.mean(axis=0)
    n_seeds, kind = (len(first), len(second)), DifferencePerByte if per_byte else Difference
    if seeds is None:
        return _difference(differences, n_seeds, documents, kind=kind)
    noise = variances_of_sum(differences, np.array([1.0, -1.0]), n_seeds, seeds, documents)
    return _difference(differences, n_seeds, documents, noise, kind)


def difference_over_runs(differences: NDArray[np.float64], documents: NDArray[np.int64] | None = None) -> Difference:
    """Return the mean difference between runs and their sources, runs × sequences; seeds are paired, too.

    Variance: s²(sequences)/n, clustered by `documents` if known, + s²(runs)/k. No interval for one run.
    """
    runs, over_sequences = len(differences), differences.mean(axis=0)
    if runs < 2:
        return _difference(over_sequences, (runs, runs), documents)
    of_runs = SeedVariance(float(differences.mean(axis=1).var(ddof=1)), runs - 1, 1)
    noise = variances_of_sum(over_sequences, np.ones(1), [runs], [of_runs], documents)
    return _difference(over_sequences, (runs, runs), documents, noise)


def _difference(
    differences: NDArray[np.float64],
    n_seeds: tuple[int, int],
    documents: NDArray[np.int64] | None,
    noise: tuple[Both, Both] | None = None,
    kind: type[Difference] = Difference,
) -> Difference:
    """Return the mean over sequences, with an interval if variances are known."""
    n, estimate = len(differences), float(differences.mean())
    n_documents = None if documents is None else len(np.unique(documents))
    if noise is None:
        return kind(estimate, variance_of_mean(differences, documents) ** 0.5, n, n_seeds, n_documents)
    variances, freedoms = noise
    low, high, p_value = interval_and_p_value(estimate, variances, freedoms)
    return kind(
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
    """Half the interval of a cell's mean over `seeds` seeds, on the fixed validation set, in nats."""
    return float(stats.t.isf((1 - CONFIDENCE) / 2, of_cell.degrees_of_freedom) * np.sqrt(of_cell.variance / seeds))


def variances_of_sum(
    summed: NDArray[np.float64],
    weights: NDArray[np.float64],
    n_seeds: Sequence[int],
    seeds: Sequence[SeedVariance],
    documents: NDArray[np.int64] | None = None,
) -> tuple[Both, Both]:
    """Variances of Σ wᵢ·mean(lossᵢ) over sequences and over seeds, and their degrees of freedom.

    `summed`: the sum for each sequence, clustered by `documents` if known. Over seeds: Σ s²ᵢ·wᵢ²/kᵢ; cells of one s² share its
    degrees of freedom, several use Satterthwaite's.
    """
    over_seeds = _over_seeds(weights.tolist(), n_seeds, seeds)
    freedom = satterthwaite(list(over_seeds.values()), [of_cells.degrees_of_freedom for of_cells in over_seeds])
    independent = len(summed) if documents is None else len(np.unique(documents))
    return (variance_of_mean(summed, documents), sum(over_seeds.values())), (independent - 1, freedom)


def _over_seeds(weights: Sequence[float], n_seeds: Sequence[int], seeds: Sequence[SeedVariance]) -> dict[SeedVariance, float]:
    """Contribution of each s² to the variance of Σ wᵢ·mean(lossᵢ)."""
    contributions: dict[SeedVariance, float] = {}
    for weight, count, of_cell in zip(weights, n_seeds, seeds, strict=True):
        contributions[of_cell] = contributions.get(of_cell, 0.0) + of_cell.variance * weight**2 / count
    return contributions


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p-values of those known, in order; compare with the family-wise error rate.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6, 65-70.
    """
    known = [position for position, p_value in enumerate(p_values) if p_value is not None]
    values = np.array([p_values[position] for position in known], dtype=float)
    ordered = np.argsort(values)
    steps = values[ordered] * np.arange(len(values), 0, -1)
    adjusted: list[float | None] = [None] * len(p_values)
    for rank, p_value in zip(ordered, np.minimum(np.maximum.accumulate(steps), 1.0), strict=True):
        adjusted[known[rank]] = float(p_value)
    return adjusted


def holm_levels(p_values: Sequence[float | None]) -> list[float | None]:
    """Return the level at which Holm's procedure tests each of those known, in order: 5%·min(1/(m − r + 1), p/adjusted p).

    m is the number of p-values and r the rank of p, the smallest first. A p-value is below its level exactly if its adjusted
    one is below 1 − CONFIDENCE, so that an interval at confidence 1 − level excludes zero exactly if the test is decided.
    """
    known = sorted((p_value, position) for position, p_value in enumerate(p_values) if p_value is not None)
    adjusted, levels = holm(p_values), list[float | None]([None] * len(p_values))
    for rank, (p_value, position) in enumerate(known):
        share, of_all = 1 / (len(known) - rank), adjusted[position]
        levels[position] = (1 - CONFIDENCE) * (min(share, p_value / of_all) if of_all else share)
    return levels


def interval_and_p_value(
    estimate: float, variances: Both, freedoms: Both, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return the interval and p-value of an estimate with two sources of noise."""
    half = half_interval(confidence, variances, freedoms)
    return estimate - half, estimate + half, chance_beyond(abs(estimate), variances, freedoms)


def seeds_that_would_decide(difference: Difference, seeds: Sequence[SeedVariance], comparisons: int) -> int | None:
    """Return the fewest seeds per cell, above the present number, whose interval would exclude zero at this estimate.

    `seeds`: variances of the two cells. Level: 5%/`comparisons`, the hardest step of Holm's procedure; the power is about one
    half. None if MOST_SEEDS do not suffice, since sequences are the limit.
    """
    for count in range(max(difference.n_seeds) + 1, MOST_SEEDS + 1):
        over_seeds = _over_seeds((1.0, -1.0), (count, count), seeds)
        freedoms = [max(of_cells.degrees_of_freedom, of_cells.cells * (count - 1)) for of_cells in over_seeds]
        if _decides(difference, 1, list(over_seeds.values()), freedoms, comparisons):
            return count
    return None


def sequences_that_would_decide(difference: Difference, seeds: Sequence[SeedVariance], comparisons: int) -> int | None:
    """Return the validation sequences, doubled until the interval would exclude zero; as in `seeds_that_would_decide`.

    Documents grow in proportion.
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
    """Whether an estimate would be significant at 5%, given sequences' noise and this many seeds."""
    over_seeds = _over_seeds((1.0, -1.0), n_seeds, seeds)
    freedoms = [of_cells.degrees_of_freedom for of_cells in over_seeds]
    return _decides(replace(noise, estimate_nats=estimate_nats), 1, list(over_seeds.values()), freedoms, 1)


def _decides(
    difference: Difference, times: int, over_seeds: Sequence[float], seed_freedoms: Sequence[float], comparisons: int
) -> bool:
    """Whether the estimate is significant with `times` the documents."""
    variances = (difference.standard_error_sequences_nats**2 / times, sum(over_seeds))
    freedoms = (difference.n_independent * times - 1, satterthwaite(over_seeds, seed_freedoms))
    return chance_beyond(abs(difference.estimate_nats), variances, freedoms) < (1 - CONFIDENCE) / comparisons


@dataclass(frozen=True)
class Contrast:
    """An estimate in nats per masked token, with interval and p-value against zero if there are seed replicates."""

    estimate: float
    interval: tuple[float, float] | None = None
    p_value: float | None = None


def contrast(
    weights: NDArray[np.float64],
    cells: Sequence[NDArray[np.float64]],
    seeds: Sequence[SeedVariance] | None,
    documents: NDArray[np.int64] | None = None,
    confidence: float = CONFIDENCE,
) -> Contrast:
    """Σ wᵢ·mean(lossᵢ) over cells of seeds × sequences, on the same two or more sequences.

    Variance: s²(sequences)/n of the weighted sums, clustered by `documents` if known, + Σ s²ᵢ·wᵢ²/kᵢ with s²ᵢ from `seeds`.
    With weights 1 and −1 it equals paired_difference.
    """
    summed = weights @ np.stack([losses.mean(axis=0) for losses in cells])
    estimate = float(summed.mean())
    if seeds is None:
        return Contrast(estimate)
    noise = variances_of_sum(summed, weights, [len(losses) for losses in cells], seeds, documents)
    low, high, p_value = interval_and_p_value(estimate, *noise, confidence)
    return Contrast(estimate, (low, high), p_value)


def slope_weights(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights whose sum with values is their least-squares slope over x."""
    centred = x - x.mean()
    return np.asarray(centred / (centred @ centred))
