"""How losses scatter over seeds: one variance for the cells of a budget that scatter alike, else each cell's own."""

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
"""Cells share a variance where Bartlett's p-value is above this; preliminary tests that guard pooling need so high a level
(Bancroft 1964, Analysis and inference for incompletely specified models involving the use of preliminary test(s) of
significance, Biometrics 20, 427-442)."""


@dataclass(frozen=True, eq=False)
class SeedVariance:
    """Variance of a run's loss over seeds (nats²), pooled over `cells` cells of two seeds or more, or one cell's own.

    Cells share it by identity: equal variances of two objects are two estimates.
    """

    variance: float
    degrees_of_freedom: float
    cells: int


SeedVariances = Mapping[str, SeedVariance]
"""The variance of each cell by its name; cells without one are not in it."""


@dataclass(frozen=True)
class Pool:
    """The cells whose runs may scatter alike over seeds: of one budget, and of 2^`doublings` tokens when rounded.

    Runs scatter more while they leave the unigram plateau, and one budget of FLOPs or of tokens per parameter is many tokens to
    one shape and few to another.
    """

    budget: Budget
    doublings: int


@dataclass(frozen=True)
class SeedScatter:
    """The variances of a pool: `p_alike` is Bartlett's p-value for one variance, None where fewer than two cells have one."""

    pool: Pool
    p_alike: float | None
    variances: SeedVariances

    @property
    def alike(self) -> bool:
        """Whether the cells share one variance."""
        return self.p_alike is None or self.p_alike > ALIKE_ABOVE

    @property
    def beside_other_budgets(self) -> SeedVariances:
        """The variances for differences between budgets: where cells scatter unevenly, none below the middle one.

        Seeds of one budget may scatter ten times as widely as those of the other, so that one cell's noise dominates; and where
        Bartlett's test wrongly separates equal cells, some of their own variances are far too small. Of two to eight
        differences of nothing, one is significant by the cells' own variances in 7% to 13% of draws of three seeds, by these in
        3% to 5%; of two seeds in 12% to 24%, by these in 3% to 12%. The middle one is the median of s²ᵢ over the median of
        χ²ᵢ/νᵢ.
        """
        if self.alike:
            return self.variances
        middle = float(np.median([_at_median(of_cell) for of_cell in self.variances.values()]))
        return {name: replace(of_cell, variance=max(of_cell.variance, middle)) for name, of_cell in self.variances.items()}

    @property
    def deviations(self) -> dict[str, float]:
        """The standard deviation over seeds of each cell, in nats, the smallest first."""
        return dict(sorted(((name, of_cell.variance**0.5) for name, of_cell in self.variances.items()), key=lambda one: one[1]))


def seed_scatter(pool: Pool, cells: Mapping[str, NDArray[np.float64]]) -> SeedScatter:
    """The seed variances of a pool's cells, each an array of seeds × sequences in nats per masked token, by name.

    Cells that scatter alike by Bartlett's test share the pooled variance Σ(kᵢ − 1)s²ᵢ ÷ Σ(kᵢ − 1), those of one seed too;
    otherwise each of two seeds or more has its own s²ᵢ. Without the test a few wide cells would widen all intervals and narrow
    their own. Of eight equal cells, one or all of which scatter up to ten times as widely, two differ significantly in 4% to 8%
    of draws of three seeds (pooled: 8% to 22%) and 5% to 17% of two (pooled: 10% to 25%). Each budget may mislead the test: of
    six cells at each of three budgets, one of which scatters three or ten times as widely, two differ significantly in 8% to
    14% of draws of three seeds and 7% to 26% of two. Each cell's own variance alone would do so in 2% to 4% of three seeds, but
    lose half of the verdicts on cells that do scatter alike. Cells without training do not scatter: every seed has the same
    loss.

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
    """The variance whose estimates of this freedom lie above and below the one estimated equally often."""
    freedom = estimated.degrees_of_freedom
    return float(estimated.variance * freedom / stats.chi2.median(freedom))


def _bartlett(cells: Iterable[NDArray[np.float64]]) -> float:
    """Bartlett's p-value; 1 where no cell scatters at all."""
    means = [losses.mean(axis=1) for losses in cells]
    if all(np.ptp(cell) == 0 for cell in means):
        return 1.0
    with np.errstate(divide="ignore"):  # a cell that does not scatter among others that do is not like them
        return float(stats.bartlett(*means).pvalue)


def pooled_seed_variance(cells: Iterable[NDArray[np.float64]]) -> SeedVariance | None:
    """The variance over seeds of the mean loss, pooled over cells, as one for all; None where no cell has two seeds.

    Each cell is an array of seeds × sequences in nats per masked token.
    """
    means = [losses.mean(axis=1) for losses in cells if losses.shape[0] > 1]
    return SeedVariance(*pooled_variance(means), len(means)) if means else None
