"""Laws of a downstream score between chance and ceiling: of the loss (step two of two), or of N and D."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from study.laws.law import STEEPEST, Columns, CurvedSurface, Floats, Law, Pairs


class _LogisticSurface(CurvedSurface):
    """chance + (ceiling − chance)/(1 + exp(z)) with θ = (chance, ceiling, parameters of z)."""

    @abstractmethod
    def depth(self, theta: Floats) -> tuple[Floats, dict[int, Floats], Pairs]:
        """Return the row's z (B × n), its gradient by parameter, its second derivatives by pair."""

    def expand(self, theta: Floats) -> tuple[Floats, Floats, Pairs]:
        chance, height = theta[:, 0, None], theta[:, 1, None] - theta[:, 0, None]
        z, slopes, bends = self.depth(theta)
        share = expit(-z)
        fall = -share * (1 - share)
        curve = -fall * (1 - 2 * share)
        gradients = [1 - share, share, *(height * fall * slopes[index] for index in range(2, theta.shape[1]))]
        seconds: dict[tuple[int, int], Floats] = {}
        for one, slope in slopes.items():
            seconds[0, one], seconds[1, one] = -fall * slope, fall * slope
            for other in range(one, theta.shape[1]):
                seconds[one, other] = height * (curve * slope * slopes[other] + fall * bends.get((one, other), 0.0))
        return chance + height * share, np.stack(np.broadcast_arrays(*gradients), axis=2), seconds


@dataclass(frozen=True)
class ScoreOfLoss(Law):
    """chance + (ceiling − chance)/(1 + exp(k·(L − L0))): a task's score at a loss."""

    variables = ("loss",)
    parameters = ("chance", "ceiling", "k", "L0")
    exponents = ("k",)

    def at(self, columns: Columns) -> CurvedSurface:
        """Return the law at the rows of a table."""
        return _ScoreOfLossSurface(columns["loss"])

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """Evaluate parameters B × p at all rows, B × n."""
        return _ScoreOfLossSurface(columns["loss"]).value(parameters)


class _ScoreOfLossSurface(_LogisticSurface):
    """θ are the parameters."""

    of_rows = ("loss",)

    def __init__(self, loss: Floats) -> None:
        self.loss = loss

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Chance and ceiling in 0 to 1, k and L0 in 0 to 100."""
        return np.zeros(4), np.array([1.0, 1.0, 100.0, 100.0])

    def depth(self, theta: Floats) -> tuple[Floats, dict[int, Floats], Pairs]:
        """k·(L − L0)."""
        k, middle = theta[:, 2, None], theta[:, 3, None]
        above = self.loss - middle
        level = np.broadcast_to(-k, above.shape)
        return k * above, {2: above, 3: level}, {(2, 3): -np.ones_like(above)}

    def starts(self, response: Floats, count: int) -> Floats:
        spread = max(float(np.ptp(self.loss)), 1e-9)
        slopes, middles = np.meshgrid(np.geomspace(1, 30, 6) / spread, np.quantile(self.loss, [0.05, 0.25, 0.5, 0.75, 0.95]))
        return np.column_stack([_ends(response, slopes.size), slopes.ravel(), middles.ravel()])


@dataclass(frozen=True)
class ScoreBetween(Law):
    """chance + (1 − chance)/(1 + exp(k·(L − L0))) with known chance, for as few as three encoders."""

    chance: float = 0.0

    variables = ("loss",)
    parameters = ("k", "L0")
    exponents = ("k",)

    def at(self, columns: Columns) -> CurvedSurface:
        """Return the law at the rows of a table."""
        return _ScoreBetweenSurface(columns["loss"], (self.chance, 1.0))

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """Evaluate parameters B × p at all rows, B × n."""
        return self.at(columns).value(parameters)


class _ScoreBetweenSurface(CurvedSurface):
    """θ = (k, L0)."""

    of_rows = ()

    def part(self, rows: NDArray[np.int64]) -> Self:
        """Return the surface at some rows."""
        some = copy(self)
        some.free = self.free.part(rows)
        return some

    def __init__(self, loss: Floats, ends: tuple[float, float]) -> None:
        self.free = _ScoreOfLossSurface(loss)
        self.ends = ends

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        return np.zeros(2), np.full(2, 100.0)

    def expand(self, theta: Floats) -> tuple[Floats, Floats, Pairs]:
        whole = np.column_stack([np.tile(self.ends, (len(theta), 1)), theta])
        value, gradients, seconds = self.free.expand(whole)
        return value, gradients[..., 2:], {(one - 2, two - 2): bend for (one, two), bend in seconds.items() if one >= 2}

    def starts(self, response: Floats, count: int) -> Floats:
        return self.free.starts(response, count)[:, 2:]


@dataclass(frozen=True)
class ScoreOfSizes(Law):
    """chance + (ceiling − chance)/(1 + exp(A·N^−alpha + B·D^−beta − M)): a score in one step.

    A, B and M absorb k; M = k·(L0 − E), which scores alone cannot separate.
    """

    variables = ("parameters", "tokens")
    parameters = ("chance", "ceiling", "M", "A", "B", "alpha", "beta")
    exponents = ("alpha", "beta")

    def at(self, columns: Columns) -> CurvedSurface:
        """Return the law at the rows of a table."""
        return _ScoreOfSizesSurface(columns)

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """Evaluate parameters B × p at all rows, B × n."""
        chance, ceiling, middle, size, data, alpha, beta = (column[:, None] for column in parameters.T)
        short = size * columns["parameters"] ** -alpha + data * columns["tokens"] ** -beta
        return np.asarray(chance + (ceiling - chance) * expit(middle - short))


class _ScoreOfSizesSurface(_LogisticSurface):
    """θ = (chance, ceiling, M, A and B at the mean logarithms, alpha, beta)."""

    of_rows = ("across",)

    def __init__(self, columns: Columns) -> None:
        logarithms = np.log([columns["parameters"], columns["tokens"]])
        self.centres = logarithms.mean(axis=1)
        self.across = logarithms - self.centres[:, None]

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Chance and ceiling in 0 to 1, M in ±50; coefficients and exponents ≥ 0."""
        low = np.array([0.0, 0.0, -50.0, 0.0, 0.0, 0.0, 0.0])
        return low, np.array([1.0, 1.0, 50.0, np.inf, np.inf, STEEPEST, STEEPEST])

    def depth(self, theta: Floats) -> tuple[Floats, dict[int, Floats], Pairs]:
        """A·N^−alpha + B·D^−beta − M."""
        z = np.broadcast_to(-theta[:, 2, None], (len(theta), self.across.shape[1]))
        slopes: dict[int, Floats] = {2: -np.ones_like(z)}
        bends: dict[tuple[int, int], Floats] = {}
        for across, factor, exponent in zip(self.across, (3, 4), (5, 6), strict=True):
            shape = np.exp(np.clip(-theta[:, exponent, None] * across, -600, 600))
            term = theta[:, factor, None] * shape
            z = z + term
            slopes |= {factor: shape, exponent: -across * term}
            bends |= {(factor, exponent): -across * shape, (exponent, exponent): across**2 * term}
        return z, dict(sorted(slopes.items())), bends

    def natural(self, theta: Floats) -> Floats:
        result = theta.copy()
        result[:, 3:5] *= np.exp(theta[:, 5:7] * self.centres)
        return result

    def natural_slopes(self, theta: Floats) -> Floats:
        slopes, natural = np.eye(len(theta)), self.natural(theta[None])[0]
        for factor, exponent, centre in zip((3, 4), (5, 6), self.centres, strict=True):
            slopes[factor, factor] = np.exp(theta[exponent] * centre)
            slopes[factor, exponent] = natural[factor] * centre
        return slopes

    def starts(self, response: Floats, count: int) -> Floats:
        grid = np.meshgrid([0.1, 0.25, 0.5], [0.1, 0.25, 0.5], [-2.0, 0.0, 2.0], [2.0, 6.0])
        alpha, beta, level, terms = (axis.ravel() for axis in grid)
        half = terms / 2
        return np.column_stack([_ends(response, half.size), terms - level, half, half, alpha, beta])


def _ends(response: Floats, count: int) -> Floats:
    """Chance just below the lowest score and ceiling just above the highest, count × 2."""
    low, high = max(0.95 * float(response.min()), 0.0), min(1.05 * float(response.max()), 1.0)
    return np.tile([low, high], (count, 1))
