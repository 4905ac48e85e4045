"""How far the best learning rate moves over the shapes of a sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import studentized_range

from study.base.quantities import budget_words
from study.base.statistics import CONFIDENCE, pooled_variance
from study.config.recipe import Budget
from study.evidence.cells import CellResult, by_variant_and_budget
from study.evidence.learning_rates import RateSearch, TriedRate

LEAST_SHAPES = 3
"""The fewest shapes with a search of their own over which a rate is said to move or stay."""


@dataclass(frozen=True)
class Scatter:
    """The variance of a run's loss, pooled over a sweep, and its degrees of freedom.

    `about`: what losses scatter about, the mean over seeds at one rate, or a smooth curve over rates.
    """

    variance: float
    freedom: int
    about: Literal["seeds", "parabolas"]

    @property
    def deviation_nats(self) -> float:
        """The standard deviation, in nats per masked token."""
        return math.sqrt(self.variance)


@dataclass(frozen=True)
class RateTransfer:
    """The best learning rates of the shapes of one variant at one budget, by shape, smallest shape first.

    A best rate is the vertex of the parabola through the chosen rate and its neighbours (`RateSearch.optimum`), or the chosen
    rate if there is none. `unbracketed`: shapes whose best rate may lie beyond those tried.

    `interval` is the 95% interval of `factor` by the `scatter` of losses, over the shapes that have a vertex; None where the
    scatter is unknown, where a shape is unbracketed, or where the factor is of a shape without a vertex.
    """

    setting: str
    budget: Budget
    rates: Mapping[str, float]
    unbracketed: tuple[str, ...]
    scatter: Scatter | None = None
    interval: tuple[float, float] | None = None

    @property
    def factor(self) -> float:
        """The highest best rate over the lowest: at least this, if a shape is `unbracketed`."""
        return max(self.rates.values()) / min(self.rates.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "setting": self.setting,
            "budget": budget_words(self.budget),
            "rates": dict(self.rates),
            "factor": self.factor,
            "interval": self.interval,
            "unbracketed": list(self.unbracketed),
        }


def rate_transfers_of(cells: Sequence[CellResult]) -> tuple[RateTransfer, ...]:
    """How far the best rate moves in each variant at its largest budget where `LEAST_SHAPES` shapes or more were tuned."""
    tuned = [cell for cell in cells if cell.usable and len(cell.rates.tried) > 1]
    last = {setting: (budget, members) for (setting, budget), members in by_variant_and_budget(tuned).items()}
    scatter = scatter_of([cell.rates for cell in tuned])
    return tuple(
        _transfer(setting, budget, members, scatter)
        for setting, (budget, members) in last.items()
        if len({cell.architecture.shape_name for cell in members}) >= LEAST_SHAPES
    )


def _transfer(setting: str, budget: Budget, cells: Sequence[CellResult], scatter: Scatter | None) -> RateTransfer:
    members = sorted(cells, key=lambda cell: (cell.parameters_non_embedding, cell.parameters))
    rates = {cell.architecture.shape_name: best for cell in members if (best := cell.rates.optimum or cell.rates.chosen)}
    unbracketed = tuple(cell.architecture.shape_name for cell in members if not cell.rates.bracketed)
    vertices = [cell.rates for cell in members if cell.rates.optimum is not None]
    between_vertices = {min(rates.values()), max(rates.values())} <= {search.optimum for search in vertices}
    known = between_vertices and len(vertices) > 1 and not unbracketed
    interval = factor_interval(vertices, scatter) if known and scatter is not None else None
    return RateTransfer(setting, budget, rates, unbracketed, scatter, interval)


def factor_interval(searches: Sequence[RateSearch], scatter: Scatter) -> tuple[float, float]:
    """Return the interval of the highest best rate over the lowest, which holds for all pairs of searches together.

    The logarithms of two best rates differ by dᵢⱼ ± q·√((vᵢ + vⱼ)/2) for all pairs at once, with q of the studentized range and
    vᵢ the variance of a vertex; so their range lies between the largest lower and the largest upper end of |dᵢⱼ|.

    Sources: Kramer 1956, Biometrics 12, 307-310; Hayter 1984, Ann. Statist. 12, 61-75 (that it covers at least as often).
    """
    q = _studentized_range(len(searches), scatter.freedom)
    best = [(math.log(search.optimum or math.nan), scatter.variance * vertex_variance(search)) for search in searches]
    ends = [
        (abs(first - second) - q * half, abs(first - second) + q * half)
        for (first, one), (second, other) in combinations(best, 2)
        for half in [math.sqrt((one + other) / 2)]
    ]
    low, high = (max(side) for side in zip(*ends, strict=True))
    return math.exp(max(low, 0.0)), math.exp(high)


@lru_cache
def _studentized_range(count: int, freedom: int) -> float:
    return float(studentized_range.ppf(CONFIDENCE, count, freedom))


def vertex_variance(search: RateSearch) -> float:
    """Return the variance of the logarithm of a vertex for runs whose losses have variance 1, by the delta method."""
    around = _around_best(search)
    log_rates, losses = _points(search, around)
    by_square, by_linear, _ = np.linalg.inv(np.vander(log_rates, 3))
    square, linear = by_square @ losses, by_linear @ losses
    slopes = (linear * by_square / square - by_linear) / (2 * square)
    return float(slopes**2 @ [1 / (len(rate.trials) - rate.unlearned) for rate in around])


def scatter_of(searches: Sequence[RateSearch]) -> Scatter | None:
    """Return how far losses scatter over seeds, if rates around a vertex were tried at several, else about parabolas."""
    return _scatter_over_seeds(searches) or _scatter_about_parabolas(searches)


def _scatter_over_seeds(searches: Iterable[RateSearch]) -> Scatter | None:
    """Return how far runs of one rate scatter over seeds, at the best rates and their neighbours."""
    rates = [rate for search in searches if search.optimum is not None for rate in _around_best(search)]
    losses = ([loss for trial in rate.trials if (loss := trial.usable_loss_nats) is not None] for rate in rates)
    variance, freedom = pooled_variance(losses)
    return Scatter(variance, freedom, "seeds") if freedom else None


def _around_best(search: RateSearch) -> Sequence[TriedRate]:
    """Return the chosen rate between its neighbours."""
    best = next(place for place, rate in enumerate(search.tried) if rate.learning_rate == search.chosen)
    return search.tried[best - 1 : best + 2]


def _scatter_about_parabolas(searches: Iterable[RateSearch]) -> Scatter | None:
    """Return how far losses miss the parabola through the four rates nearest to the chosen one; None if none has four.

    Four losses leave one degree of freedom: their third divided difference, which is 0 for every parabola.
    """
    squares = []
    for search in searches:
        learned = [rate for rate in search.tried if rate.loss_nats is not None and not rate.unlearned]
        log_rates, losses = _points(search, learned)
        nearest = np.argsort(np.abs(log_rates), kind="stable")[:4]
        if len(nearest) == 4:
            log_rates, losses = log_rates[nearest], losses[nearest]
            apart = log_rates[:, None] - log_rates + np.eye(4)
            weights = 1 / apart.prod(axis=1)
            squares.append(float((weights @ losses) ** 2 / (weights @ weights)))
    return Scatter(sum(squares) / len(squares), len(squares), "parabolas") if squares else None


def _points(search: RateSearch, rates: Iterable[TriedRate]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return log(rate/chosen rate) and the loss at some rates."""
    points = [(math.log(rate.learning_rate / (search.chosen or math.nan)), rate.loss_nats) for rate in rates]
    log_rates, losses = np.array(points, dtype=float).reshape(-1, 2).T
    return log_rates, losses
