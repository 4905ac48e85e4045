"""Variance of losses over seeds: pooled over a budget's cells that scatter equally, else each cell's own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from study.base.statistics import pooled_variance
from study.config.recipe import Budget

ALIKE_ABOVE = 0.25
"""Cells share a variance if Bartlett's p-value is above this; a preliminary test that guards pooling needs so high a level.

Source: Bancroft 1964, Analysis and inference for incompletely specified models involving the use of preliminary test(s) of
significance, Biometrics 20, 427-442.
"""


@dataclass(frozen=True, eq=False)
class SeedVariance:
    """Variance of a run's loss over seeds (nats²), of one cell or pooled over `cells` cells with two seeds or more.

    Shared by identity: equal variances of two objects are two estimates.
    """

    variance: float
    degrees_of_freedom: float
    cells: int


SeedVariances = Mapping[str, SeedVariance]
"""The variance of each cell by name; cells without one are absent."""


@dataclass(frozen=True)
class PooledCells:
    """Cells whose runs may scatter equally over seeds: of one budget, 2^`doublings` tokens when rounded, and one `validation`.

    Runs scatter more while leaving the unigram plateau, and a budget of FLOPs or tokens per parameter gives shapes very
    different tokens. Losses that do not compare have units of their own.
    """

    budget: Budget
    doublings: int
    validation: str


@dataclass(frozen=True)
class SeedScatter:
    """Variances of a pool; `p_alike` is Bartlett's p-value for equal ones, None if fewer than two cells have one."""

    pool: PooledCells
    p_alike: float | None
    variances: SeedVariances

    @property
    def alike(self) -> bool:
        """Whether the cells share one variance."""
        return self.p_alike is None or self.p_alike > ALIKE_ABOVE

    @property
    def beside_other_budgets(self) -> SeedVariances:
        """Variances for differences between budgets: if cells scatter unequally, none is below the middle one.

        Seeds of one budget may scatter ten times as widely as the other's, so that one cell's noise dominates; and if
        Bartlett's test wrongly separates equal cells, some of their variances are far too small. Of two to eight null
        differences, one is significant by the cells' own variances in 7% to 13% of draws of three seeds, 12% to 24% of two; by
        these in 3% to 5%, 3% to 12%. The middle one is the median of s²ᵢ over the median of χ²ᵢ/νᵢ.
        """
        if self.alike:
            return self.variances
        middle = float(np.median([_at_median(of_cell) for of_cell in self.variances.values()]))
        return {name: replace(of_cell, variance=max(of_cell.variance, middle)) for name, of_cell in self.variances.items()}

    @property
    def deviations(self) -> dict[str, float]:
        """The standard deviation over seeds of each cell, in nats."""
        return dict(sorted(((name, of_cell.variance**0.5) for name, of_cell in self.variances.items()), key=lambda one: one[1]))


def seed_scatter(pool: PooledCells, cells: Mapping[str, NDArray[np.float64]]) -> SeedScatter:
    """Seed variances of a pool's cells, each an array of seeds × sequences in nats per masked token, by name.

    Cells that scatter equally by Bartlett's test share the pooled variance Σ(kᵢ − 1)s²ᵢ ÷ Σ(kᵢ − 1), including cells of one
    seed; otherwise each cell of two seeds or more has its own s²ᵢ.

    False positives between equal cells: of eight cells, one or all of which scatter up to ten times as widely, 4% to 8% of
    draws of three seeds (pooled: 8% to 22%), 5% to 17% of two (pooled: 10% to 25%). The test may err at each budget: of six
    cells at each of three budgets, one of which scatters 3 or 10 times as widely, 8% to 14% of three seeds, 7% to 26% of two.
    Own variances alone give 2% to 4% of three seeds, but lose half the verdicts on cells that scatter equally. Untrained cells
    do not scatter: all seeds have one loss.

    Source: Bartlett 1937, Properties of sufficiency and statistical tests, Proc. R. Soc. Lond. A 160, 268-282.
    """
    if not pool.budget.amount:
        return SeedScatter(pool, None, dict.fromkeys(cells, SeedVariance(0.0, math.inf, len(cells))))
    own = {name: variance for name, losses in cells.items() if (variance := pooled_seed_variance([losses])) is not None}
    p_alike = _bartlett([cells[name] for name in own]) if len(own) > 1 else None
    scatter = SeedScatter(pool, p_alike, own)
    if not scatter.alike or (pooled := pooled_seed_variance(cells.values())) is None:
        return scatter
    return SeedScatter(pool, p_alike, dict.fromkeys(cells, pooled))


def _at_median(estimated: SeedVariance) -> float:
    freedom = estimated.degrees_of_freedom
    return float(estimated.variance * freedom / stats.chi2.median(freedom))


def _bartlett(cells: Iterable[NDArray[np.float64]]) -> float:
    """Bartlett's p-value; 1 if no cell scatters."""
    means = [losses.mean(axis=1) for losses in cells]
    if all(np.ptp(cell) == 0 for cell in means):
        return 1.0
    with np.errstate(divide="ignore"):  # one cell may have no scatter
        return float(stats.bartlett(*means).pvalue)


def pooled_seed_variance(cells: Iterable[NDArray[np.float64]]) -> SeedVariance | None:
    """Variance over seeds of the mean loss, pooled over cells; None if no cell has two seeds.

    A cell is an array of seeds × sequences in nats per masked token.
    """
    means = [losses.mean(axis=1) for losses in cells if losses.shape[0] > 1]
    return SeedVariance(*pooled_variance(means), len(means)) if means else None
