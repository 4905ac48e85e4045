"""Laws that are no sum of terms: repeated tokens, and the score that a loss gives."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from study.fitting.laws import Columns, Derivatives, Floats, Law, Surface


class CurvedSurface(Surface):
    """A law that gives its second derivatives row by row."""

    @abstractmethod
    def expand(self, theta: Floats) -> tuple[Floats, Floats, Mapping[tuple[int, int], Floats]]:
        """Values (B × n), gradients (B × n × p), and second derivatives (B × n) by pair of parameters, the first not later."""

    def value(self, theta: Floats) -> Floats:
        """The law's values, B × n."""
        return self.expand(theta)[0]

    def derivatives(self, theta: Floats) -> Derivatives:
        """Values, gradients and curvature."""
        value, jacobian, seconds = self.expand(theta)

        def curvature(weights: Floats) -> Floats:
            summed = np.zeros((len(theta), theta.shape[1], theta.shape[1]))
            for (one, other), second in seconds.items():
                summed[:, one, other] = summed[:, other, one] = (weights * second).sum(axis=1)
            return summed

        return Derivatives(value, jacobian, curvature)


@dataclass(frozen=True)
class RepeatedTokens(Law):
    """E + A·N^−alpha + B·D′^−beta with D′ = U·(1 + R·(1 − exp(−(D/U − 1)/R))): U unique tokens, D seen in all.

    A token's worth decays as it is repeated, R times being worth as much as new text in the limit. The paper's other half,
    the decay of parameters beyond the best number for U, is left out.
    """

    variables = ("parameters", "tokens", "unique_tokens")
    parameters = ("E", "A", "B", "alpha", "beta", "R")
    exponents = ("alpha", "beta")

    def at(self, columns: Columns) -> Surface:
        """The law at the rows of a table."""
        return _RepeatedSurface(columns)

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """The formula at many sets of parameters (B × p) and all rows, B × n."""
        floor, size, data, alpha, beta, worth = (column[:, None] for column in parameters.T)
        unique = columns["unique_tokens"]
        repeats = np.maximum(columns["tokens"] / unique - 1, 0.0)
        effective = np.minimum(columns["tokens"], unique) * (1 - worth * np.expm1(-repeats / worth))
        return np.asarray(floor + size * columns["parameters"] ** -alpha + data * effective**-beta)


class _RepeatedSurface(CurvedSurface):
    """θ = (E, A and B at the mean logarithms, alpha, beta, log R)."""

    def __init__(self, columns: Columns) -> None:
        logarithm = np.log(columns["parameters"])
        self.tokens = np.log(np.minimum(columns["tokens"], columns["unique_tokens"]))
        self.repeats = np.maximum(columns["tokens"] / columns["unique_tokens"] - 1, 0.0)
        self.centres = float(logarithm.mean()), float(self.tokens.mean())
        self.size = logarithm - self.centres[0]

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Coefficients and exponents are 0 or more, R between e^−3 and e^7."""
        return np.array([0.0, 0.0, 0.0, 0.0, 0.0, -3.0]), np.array([np.inf, np.inf, np.inf, 10.0, 10.0, 7.0])

    def expand(self, theta: Floats) -> tuple[Floats, Floats, Mapping[tuple[int, int], Floats]]:
        """Values, gradients and second derivatives."""
        floor, a, b, alpha, beta, log_worth = (column[:, None] for column in theta.T)
        worth = np.exp(log_worth)
        ratio = self.repeats / worth
        fall = np.exp(-ratio)
        gained = 1 + worth * (1 - fall)
        first = worth * (1 - fall * (1 + ratio)) / gained
        second = (worth * (1 - fall * (1 + ratio + ratio**2))) / gained - first**2
        across = self.tokens - self.centres[1] + np.log(gained)
        by_size, by_data = np.exp(-alpha * self.size), np.exp(np.clip(-beta * across, -600, 600))
        size, data = a * by_size, b * by_data
        slope = -beta * first
        gradients = (np.ones_like(data), by_size, by_data, -self.size * size, -across * data, slope * data)
        seconds = {
            (1, 3): -self.size * by_size,
            (2, 4): -across * by_data,
            (2, 5): slope * by_data,
            (3, 3): self.size**2 * size,
            (4, 4): across**2 * data,
            (4, 5): -(first + across * slope) * data,
            (5, 5): (slope**2 - beta * second) * data,
        }
        return floor + size + data, np.stack(np.broadcast_arrays(*gradients), axis=2), seconds

    def natural(self, theta: Floats) -> Floats:
        """The parameters of the literature, B × p."""
        found = theta.copy()
        found[:, 1] *= np.exp(theta[:, 3] * self.centres[0])
        found[:, 2] *= np.exp(theta[:, 4] * self.centres[1])
        found[:, 5] = np.exp(theta[:, 5])
        return found

    def natural_slopes(self, theta: Floats) -> Floats:
        """∂(parameters of the literature)/∂θ at one θ, p × p."""
        natural = self.natural(theta[None])[0]
        slopes = np.diag(np.exp([0.0, theta[3] * self.centres[0], theta[4] * self.centres[1], 0.0, 0.0, theta[5]]))
        slopes[1, 3], slopes[2, 4] = natural[1] * self.centres[0], natural[2] * self.centres[1]
        return slopes

    def starts(self, response: Floats, count: int) -> Floats:
        """A grid of floors, exponents and worths, its other two terms sharing the rest of the median."""
        middle, least = float(np.median(response)), float(response.min())
        grid = np.meshgrid([0.3, 0.6, 0.9], [0.1, 0.3, 0.6], [0.1, 0.3, 0.6], [0.0, 1.5, 3.0])
        share, alpha, beta, worth = (axis.ravel() for axis in grid)
        rest = (middle - share * least) / 2
        return np.column_stack([share * least, rest, rest, alpha, beta, worth])[: max(count, 1)]


@dataclass(frozen=True)
class Sigmoid(Law):
    """chance + (ceiling − chance)/(1 + exp(k·(L − L0))): the score of a task at a loss."""

    variables = ("loss",)
    parameters = ("chance", "ceiling", "k", "L0")
    exponents = ("k",)

    def at(self, columns: Columns) -> Surface:
        """The law at the rows of a table."""
        return _SigmoidSurface(columns["loss"])

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """The formula at many sets of parameters (B × p) and all rows, B × n."""
        return _SigmoidSurface(columns["loss"]).value(parameters)


class _SigmoidSurface(CurvedSurface):
    """θ are the parameters themselves."""

    def __init__(self, loss: Floats) -> None:
        self.loss = loss

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Chance and ceiling are between 0 and 1, k between 0 and 100."""
        return np.zeros(4), np.array([1.0, 1.0, 100.0, 100.0])

    def expand(self, theta: Floats) -> tuple[Floats, Floats, Mapping[tuple[int, int], Floats]]:
        """Values, gradients and second derivatives."""
        chance, ceiling, k, middle = (column[:, None] for column in theta.T)
        below = middle - self.loss
        share = expit(k * below)
        rise = share * (1 - share)
        bend, height = rise * (1 - 2 * share), ceiling - chance
        gradients = (1 - share, share, height * rise * below, height * rise * k)
        seconds = {
            (0, 2): -rise * below,
            (0, 3): -rise * k,
            (1, 2): rise * below,
            (1, 3): rise * k,
            (2, 2): height * bend * below**2,
            (2, 3): height * (bend * k * below + rise),
            (3, 3): height * bend * k**2,
        }
        return chance + height * share, np.stack(gradients, axis=2), seconds

    def natural(self, theta: Floats) -> Floats:
        """The parameters themselves, B × p."""
        return theta.copy()

    def natural_slopes(self, theta: Floats) -> Floats:
        """The unit matrix, p × p."""
        return np.eye(len(theta))

    def starts(self, response: Floats, count: int) -> Floats:
        """A grid of slopes and middles between the lowest and the highest score."""
        spread = max(float(np.ptp(self.loss)), 1e-9)
        slopes, middles = np.meshgrid(np.geomspace(1, 30, 6) / spread, np.quantile(self.loss, [0.05, 0.25, 0.5, 0.75, 0.95]))
        low, high = float(response.min()), float(response.max())
        ends = np.tile([max(0.95 * low, 0.0), min(1.05 * high, 1.0)], (slopes.size, 1))
        return np.column_stack([ends, slopes.ravel(), middles.ravel()])
