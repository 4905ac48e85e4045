"""Laws of repeated tokens and excess parameters (Muennighoff et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from study.laws.law import STEEPEST, Columns, CurvedSurface, Floats, Law, Pairs

LOG_WORTHS = (-3.0, 7.0)
"""The range of log R, where R is the limiting worth of repeats in copies of new text."""

_FLATTEST = 1e-3
_LOG_COEFFICIENTS = (-30.0, 30.0)
_MOST_EXCESS = 50.0


@dataclass(frozen=True)
class Saturation:
    """G = log(1 + R·(1 − exp(−r/R))), the log worth of r repeats, with derivatives in r and w = log R."""

    value: Floats
    by_repeats: Floats
    by_worth: Floats
    repeats_twice: Floats
    mixed: Floats
    worth_twice: Floats

    @classmethod
    def of(cls, repeats: Floats, log_worth: Floats) -> Saturation:
        """Evaluate at repeats (B × n or n) and log R (B × 1)."""
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
    """E + A·N^−alpha + B·D′^−beta with D′ = U·(1 + R_D·(1 − exp(−(D/U − 1)/R_D))) for U unique of D tokens.

    Repeats saturate at R_D times the unique text. Use data-constrained for models too large for their unique tokens.
    """

    variables = ("parameters", "tokens", "unique_tokens")
    parameters = ("E", "A", "B", "alpha", "beta", "R_D")
    exponents = ("alpha", "beta")
    watched = (*exponents, "R_D")

    def at(self, columns: Columns) -> CurvedSurface:
        """Return the law at the rows of a table."""
        return _RepeatedSurface(columns)

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """Evaluate parameters B × p at all rows, B × n."""
        floor, size, data, alpha, beta, worth = (column[:, None] for column in parameters.T)
        tokens = effective(*unique_and_repeats(columns), worth)
        return np.asarray(floor + size * columns["parameters"] ** -alpha + data * tokens**-beta)


class _RepeatedSurface(CurvedSurface):
    """θ = (E, A and B at the mean logarithms, alpha, beta, log R_D)."""

    of_rows = ("size", "tokens", "repeats")

    def __init__(self, columns: Columns) -> None:
        logarithm = np.log(columns["parameters"])
        unique, self.repeats = unique_and_repeats(columns)
        self.tokens = np.log(unique)
        self.centres = float(logarithm.mean()), float(self.tokens.mean())
        self.size = logarithm - self.centres[0]

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Coefficients and exponents ≥ 0; R_D in e^−3 to e^7."""
        low, high = LOG_WORTHS
        return np.array([0.0, 0.0, 0.0, 0.0, 0.0, low]), np.array([np.inf, np.inf, np.inf, STEEPEST, STEEPEST, high])

    def expand(self, theta: Floats) -> tuple[Floats, Floats, Pairs]:
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
        result = theta.copy()
        result[:, 1] *= np.exp(theta[:, 3] * self.centres[0])
        result[:, 2] *= np.exp(theta[:, 4] * self.centres[1])
        result[:, 5] = np.exp(theta[:, 5])
        return result

    def natural_slopes(self, theta: Floats) -> Floats:
        natural = self.natural(theta[None])[0]
        slopes = np.diag(np.exp([0.0, theta[3] * self.centres[0], theta[4] * self.centres[1], 0.0, 0.0, theta[5]]))
        slopes[1, 3], slopes[2, 4] = natural[1] * self.centres[0], natural[2] * self.centres[1]
        return slopes

    def starts(self, response: Floats, count: int) -> Floats:
        middle, least = float(np.median(response)), float(response.min())
        grid = np.meshgrid([0.3, 0.6, 0.9], [0.1, 0.3, 0.6], [0.1, 0.3, 0.6], [0.0, 1.5, 3.0])
        share, alpha, beta, worth = (axis.ravel() for axis in grid)
        rest = (middle - share * least) / 2
        return np.column_stack([share * least, rest, rest, alpha, beta, worth])[: max(count, 1)]


def unique_and_repeats(columns: Columns) -> tuple[Floats, Floats]:
    """Return the unique tokens, at most D, and the number of repeats D/U − 1."""
    unique = np.minimum(columns["tokens"], columns["unique_tokens"])
    return unique, columns["tokens"] / unique - 1


def effective(base: Floats, repeats: Floats, worth: Floats) -> Floats:
    """base·(1 + R·(1 − exp(−r/R)))."""
    return np.asarray(base * (1 - worth * np.expm1(-repeats / worth)))


@dataclass(frozen=True)
class DataConstrained(Law):
    """E + A·N′^−alpha + B·D′^−beta: repeated tokens and excess parameters lose value.

    D′ = U_D·(1 + R_D·(1 − exp(−(D/U_D − 1)/R_D))) with U_D the unique tokens; N′ = U_N·(1 + R_N·(1 − exp(−(N/U_N − 1)/R_N)))
    with U_N ≤ N the parameters that one epoch of U_D tokens is compute-optimal for: alpha·A·U_N^−alpha = beta·B·U_D^−beta.
    """

    variables = ("parameters", "tokens", "unique_tokens")
    parameters = ("E", "A", "B", "alpha", "beta", "R_D", "R_N")
    exponents = ("alpha", "beta")
    watched = (*exponents, "R_D", "R_N")

    def at(self, columns: Columns) -> CurvedSurface:
        """Return the law at the rows of a table."""
        return _ConstrainedSurface(columns)

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """Evaluate parameters B × p at all rows, B × n."""
        floor, size, data, alpha, beta, worth_data, worth_size = (column[:, None] for column in parameters.T)
        unique, repeats = unique_and_repeats(columns)
        balance = (np.log(alpha * size) - np.log(beta * data) + beta * np.log(unique)) / alpha
        base = np.minimum(np.exp(np.minimum(balance, 600.0)), columns["parameters"])
        models = effective(base, columns["parameters"] / base - 1, worth_size)
        return np.asarray(floor + size * models**-alpha + data * effective(unique, repeats, worth_data) ** -beta)


class _ConstrainedSurface(CurvedSurface):
    """θ = (E, log A and log B at the mean logarithms, alpha, beta, log R_D, log R_N).

    Each term is exp(ℓ), with derivatives term·ℓᵢ and term·(ℓᵢ·ℓⱼ + ℓᵢⱼ).
    """

    of_rows = ("sizes", "tokens", "repeats")

    def __init__(self, columns: Columns) -> None:
        sizes, (unique, self.repeats) = np.log(columns["parameters"]), unique_and_repeats(columns)
        tokens = np.log(unique)
        self.centres = float(sizes.mean()), float(tokens.mean())
        self.sizes, self.tokens = sizes - self.centres[0], tokens - self.centres[1]

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """E ≥ 0, log A and log B within ±30, exponents 0.001 to 10, R_D and R_N e^−3 to e^7."""
        between = [(0.0, np.inf), *[_LOG_COEFFICIENTS] * 2, *[(_FLATTEST, STEEPEST)] * 2, *[LOG_WORTHS] * 2]
        low, high = np.array(between).T
        return low, high

    def expand(self, theta: Floats) -> tuple[Floats, Floats, Pairs]:
        size, size_slopes, size_bends = self._size(theta)
        data, data_slopes, data_bends = self._data(theta)
        gradients = [np.ones_like(size)] + [np.zeros_like(size) for _ in range(6)]
        seconds: dict[tuple[int, int], Floats] = {}
        for term, slopes, bends in ((size, size_slopes, size_bends), (data, data_slopes, data_bends)):
            for one, slope in slopes.items():
                gradients[one] = gradients[one] + term * slope
                for other in (index for index in slopes if index >= one):
                    second = term * (slope * slopes[other] + bends.get((one, other), 0.0))
                    seconds[one, other] = seconds.get((one, other), 0.0) + second
        return theta[:, 0, None] + size + data, np.stack(gradients, axis=2), seconds

    def _data(self, theta: Floats) -> tuple[Floats, dict[int, Floats], Pairs]:
        """Return the token term, exp(log B − beta·log D′)."""
        log_b, beta = theta[:, 2, None], theta[:, 4, None]
        worth = Saturation.of(self.repeats, theta[:, 5, None])
        across = self.tokens + worth.value
        term = np.exp(np.clip(log_b - beta * across, -600, 600))
        slopes = {2: np.ones_like(term), 4: -across, 5: -beta * worth.by_worth}
        return term, slopes, {(4, 5): -worth.by_worth, (5, 5): -beta * worth.worth_twice}

    def _size(self, theta: Floats) -> tuple[Floats, dict[int, Floats], Pairs]:
        """Compute the parameter term, exp(log A − alpha·(log N + φ)), φ(v, log R_N) the log discount of v = log N − log U_N
        > 0.
        """
        alpha = theta[:, 3, None]
        optimum, slopes_of, bends_of = self._optimum(theta)
        excess = np.clip(self.sizes - optimum, 0.0, _MOST_EXCESS)
        beyond = excess > 0
        times = np.exp(excess)
        worth = Saturation.of(times - 1, theta[:, 6, None])
        across = self.sizes + np.where(beyond, worth.value - excess, 0.0)
        term = np.exp(np.clip(theta[:, 1, None] - alpha * across, -600, 600))
        lost = np.where(beyond, worth.by_repeats * times - 1, 0.0)
        lost_twice = np.where(beyond, worth.repeats_twice * times**2 + worth.by_repeats * times, 0.0)
        lost_mixed = np.where(beyond, worth.mixed * times, 0.0)
        moves = {index: -lost * slope for index, slope in slopes_of.items()} | {6: np.where(beyond, worth.by_worth, 0.0)}
        slopes = {index: -alpha * move for index, move in moves.items()}
        slopes[1], slopes[3] = 1 + slopes[1], slopes[3] - across
        bends: dict[tuple[int, int], Floats] = {(6, 6): -alpha * np.where(beyond, worth.worth_twice, 0.0)}
        for one, slope in slopes_of.items():
            bends[one, 6] = alpha * lost_mixed * slope
            for other in (index for index in slopes_of if index >= one):
                curved = lost_twice * slope * slopes_of[other] - lost * bends_of.get((one, other), 0.0)
                bends[one, other] = -alpha * curved
        for index, move in moves.items():
            pair = (min(3, index), max(3, index))
            bends[pair] = bends[pair] - move * (2 if index == 3 else 1)
        return term, slopes, bends

    def _optimum(self, theta: Floats) -> tuple[Floats, dict[int, Floats], Pairs]:
        """Return the mean-centred log U_N, (log(alpha·A) − log(beta·B) + beta·log U_D)/alpha, with derivatives."""
        log_a, log_b, alpha, beta = (theta[:, index, None] for index in (1, 2, 3, 4))
        sum_ = np.log(alpha) - np.log(beta) + log_a - log_b + beta * self.tokens
        flat = np.ones_like(sum_)
        by_beta = (self.tokens - 1 / beta) / alpha
        slopes = {1: flat / alpha, 2: -flat / alpha, 3: (1 - sum_) / alpha**2, 4: by_beta}
        bends = {
            (1, 3): -flat / alpha**2,
            (2, 3): flat / alpha**2,
            (3, 3): (2 * sum_ - 3) / alpha**3,
            (3, 4): -by_beta / alpha,
            (4, 4): flat / (beta**2 * alpha),
        }
        return sum_ / alpha, slopes, bends

    def natural(self, theta: Floats) -> Floats:
        result = np.exp(theta)
        result[:, [0, 3, 4]] = theta[:, [0, 3, 4]]
        result[:, 1:3] *= np.exp(theta[:, 3:5] * self.centres)
        return result

    def natural_slopes(self, theta: Floats) -> Floats:
        natural = self.natural(theta[None])[0]
        slopes = np.diag(np.where(np.isin(np.arange(7), [0, 3, 4]), 1.0, natural))
        slopes[1, 3], slopes[2, 4] = natural[1] * self.centres[0], natural[2] * self.centres[1]
        return slopes

    def starts(self, response: Floats, count: int) -> Floats:
        middle, least = float(np.median(response)), float(response.min())
        grid = np.meshgrid([0.3, 0.6, 0.9], [0.15, 0.4], [0.15, 0.4], [0.5, 2.5], [0.5, 2.5])
        share, alpha, beta, worth_data, worth_size = (axis.ravel() for axis in grid)
        rest = np.log((middle - share * least) / 2)
        return np.column_stack([share * least, rest, rest, alpha, beta, worth_data, worth_size])
