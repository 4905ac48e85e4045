"""The law of repeated tokens, and what repeats are worth (Muennighoff et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from study.laws.curves import CurvedSurface, Pairs
from study.laws.law import STEEPEST, Columns, Floats, Law

LOG_WORTHS = (-3.0, 7.0)
"""The range of log R, how many repeats are in the limit worth as much as new."""


@dataclass(frozen=True)
class Saturation:
    """G = log(1 + R·(1 − exp(−r/R))), what r repeats are worth in logarithm, and its derivatives in r and in w = log R."""

    value: Floats
    by_repeats: Floats
    by_worth: Floats
    repeats_twice: Floats
    mixed: Floats
    worth_twice: Floats

    @classmethod
    def of(cls, repeats: Floats, log_worth: Floats) -> Saturation:
        """The worth of repeats (B × n or n) at log R (B × 1)."""
        worth = np.exp(log_worth)
        ratio = repeats / worth
        fall = np.exp(-ratio)
        gained = 1 + worth * (1 - fall)
        by_repeats = fall / gained
        by_worth = worth * (1 - fall * (1 + ratio)) / gained
        return cls(
            value=np.log(gained),
            by_repeats=by_repeats,
            by_worth=by_worth,
            repeats_twice=-by_repeats / worth - by_repeats**2,
            mixed=by_repeats * (ratio - by_worth),
            worth_twice=worth * (1 - fall * (1 + ratio + ratio**2)) / gained - by_worth**2,
        )


@dataclass(frozen=True)
class RepeatedTokens(Law):
    """E + A·N^−alpha + B·D′^−beta with D′ = U·(1 + R_D·(1 − exp(−(D/U − 1)/R_D))): U unique tokens, D seen in all.

    A token's worth decays as it is repeated, R_D times being worth as much as new text in the limit. For tables whose models
    are not too large for their unique tokens; data-constrained is for the others.
    """

    variables = ("parameters", "tokens", "unique_tokens")
    parameters = ("E", "A", "B", "alpha", "beta", "R_D")
    exponents = ("alpha", "beta")
    watched = (*exponents, "R_D")

    def at(self, columns: Columns) -> CurvedSurface:
        """The law at the rows of a table."""
        return _RepeatedSurface(columns)

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """The formula at many sets of parameters (B × p) and all rows, B × n."""
        floor, size, data, alpha, beta, worth = (column[:, None] for column in parameters.T)
        tokens = effective(*unique_and_repeats(columns), worth)
        return np.asarray(floor + size * columns["parameters"] ** -alpha + data * tokens**-beta)


class _RepeatedSurface(CurvedSurface):
    """θ = (E, A and B at the mean logarithms, alpha, beta, log R_D)."""

    def __init__(self, columns: Columns) -> None:
        logarithm = np.log(columns["parameters"])
        unique, self.repeats = unique_and_repeats(columns)
        self.tokens = np.log(unique)
        self.centres = float(logarithm.mean()), float(self.tokens.mean())
        self.size = logarithm - self.centres[0]

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Coefficients and exponents are 0 or more, R_D between e^−3 and e^7."""
        low, high = LOG_WORTHS
        return np.array([0.0, 0.0, 0.0, 0.0, 0.0, low]), np.array([np.inf, np.inf, np.inf, STEEPEST, STEEPEST, high])

    def expand(self, theta: Floats) -> tuple[Floats, Floats, Pairs]:
        """Values, gradients and second derivatives."""
        floor, a, b, alpha, beta, log_worth = (column[:, None] for column in theta.T)
        worth = Saturation.of(self.repeats, log_worth)
        across = self.tokens - self.centres[1] + worth.value
        by_size, by_data = np.exp(-alpha * self.size), np.exp(np.clip(-beta * across, -600, 600))
        size, data = a * by_size, b * by_data
        slope = -beta * worth.by_worth
        gradients = (np.ones_like(data), by_size, by_data, -self.size * size, -across * data, slope * data)
        seconds = {
            (1, 3): -self.size * by_size,
            (2, 4): -across * by_data,
            (2, 5): slope * by_data,
            (3, 3): self.size**2 * size,
            (4, 4): across**2 * data,
            (4, 5): -(worth.by_worth + across * slope) * data,
            (5, 5): (slope**2 - beta * worth.worth_twice) * data,
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


def unique_and_repeats(columns: Columns) -> tuple[Floats, Floats]:
    """The unique tokens seen, no more than were trained on, and how often they were seen again."""
    unique = np.minimum(columns["tokens"], columns["unique_tokens"])
    return unique, columns["tokens"] / unique - 1


def effective(base: Floats, repeats: Floats, worth: Floats) -> Floats:
    """base·(1 + R·(1 − exp(−r/R)))."""
    return np.asarray(base * (1 - worth * np.expm1(-repeats / worth)))
