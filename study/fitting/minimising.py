"""Robust regression of a law for many weightings of one table at a time, by damped Newton steps with exact derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from study.fitting.laws import Derivatives, Floats, Surface

Space = Literal["log", "linear"]
"""Whether residuals are differences of logarithms or of the values themselves."""

MOST_STEPS = 300
TOLERANCE = 1e-12
"""A fit has converged when the best guaranteed step would lower the objective by less than this share of it."""

_CELLS_AT_A_TIME = 30_000


@dataclass(frozen=True)
class Objective:
    """Σᵢ wᵢ·huber(rᵢ) with huber(r) = r²/2 up to |r| = delta and delta·(|r| − delta/2) beyond: summed, never averaged.

    r is log f − log y in the space `log`, f − y in `linear`; an infinite delta gives least squares. Weights are B × n, one
    row a fit, so that a bootstrap's resamples (how often each row was drawn) share one table.
    """

    surface: Surface
    response: Floats
    delta: float
    space: Space

    def residuals(self, theta: Floats) -> Floats:
        """The residuals, B × n; not a number where a logarithm does not exist."""
        value = self.surface.value(theta)
        return self._compared(value)

    def value(self, theta: Floats, weights: Floats) -> Floats:
        """The objective of each fit, infinite where it does not exist."""
        summed = np.einsum("bn,bn->b", weights, self._huber(self.residuals(theta)))
        return np.where(np.isfinite(summed), summed, np.inf)

    def expand(self, theta: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Gradient (B × p), Hessian, and a majoriser of the Hessian (both B × p × p).

        The majoriser is Σ wᵢ·min(1, delta/|rᵢ|)·∇rᵢ∇rᵢᵀ of iteratively reweighted least squares (Huber 1981, sec. 7.8): its
        steps always descend, if slowly, and need no curvature of the law.
        """
        found = self._in_space(theta)
        slopes, residuals = found.jacobian, self._compared(found.value)
        size = np.abs(residuals)
        psi = weights * np.clip(residuals, -self.delta, self.delta)
        gradient = np.matmul(psi[:, None, :], slopes)[:, 0]
        hessian = _gram(slopes, weights * (size <= self.delta) - (psi if self.space == "log" else 0.0)) + found.curvature(psi)
        steady = weights * np.minimum(1.0, self.delta / np.maximum(size, 1e-300))
        return gradient, hessian, _gram(slopes, steady)

    def scores(self, theta: Floats) -> Floats:
        """The gradient of each row's part of the objective at one θ, n × p."""
        found = self._in_space(theta[None])
        psi = np.clip(self._compared(found.value)[0], -self.delta, self.delta)
        return np.asarray(psi[:, None] * found.jacobian[0])

    def slopes(self, theta: Floats) -> Floats:
        """The gradient of each row's residual at one θ, n × p."""
        return np.asarray(self._in_space(theta[None]).jacobian[0])

    def _in_space(self, theta: Floats) -> Derivatives:
        """The law's values, with the gradients of the residuals; their curvature lacks −∇r∇rᵀ in the space `log`."""
        found = self.surface.derivatives(theta)
        if self.space == "linear":
            return found
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = 1.0 / found.value
        return Derivatives(
            found.value, found.jacobian * inverse[:, :, None], lambda weights: found.curvature(weights * inverse)
        )

    def _compared(self, value: Floats) -> Floats:
        if self.space == "linear":
            return value - self.response
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(value) - np.log(self.response)

    def _huber(self, residuals: Floats) -> Floats:
        size = np.abs(residuals)
        inner = np.minimum(size, self.delta)
        return inner * (size - 0.5 * inner)


@dataclass(frozen=True)
class Minima:
    """Where each fit ended (B × p), its objective there, and whether no step would lower it further."""

    theta: Floats
    value: Floats
    converged: NDArray[np.bool_]


def minimise(objective: Objective, theta: Floats, weights: Floats, low: Floats, high: Floats) -> Minima:
    """The minimum of each of B fits within `low` to `high` (p, or B × p to hold a parameter fixed), from its own start.

    Newton steps with the exact Hessian H, damped towards the steps of the majoriser M: (H + λM)·step = −gradient, where λ
    falls fivefold after a step that lowered the objective and rises fourfold after one that did not (the rule of Levenberg
    and Marquardt with M in place of the diagonal, so that nothing depends on how parameters are scaled). Parameters at a
    bound that the gradient pushes against rest there. Fits are run in blocks that fit the cache.
    """
    block = max(1, _CELLS_AT_A_TIME // weights.shape[1])
    low, high = np.broadcast_to(low, theta.shape), np.broadcast_to(high, theta.shape)
    parts = []
    for first in range(0, len(theta), block):
        rows = slice(first, first + block)
        parts.append(_minimise(objective, np.clip(theta[rows], low[rows], high[rows]), weights[rows], low[rows], high[rows]))
    joined = (
        np.concatenate(pieces) for pieces in zip(*((part.theta, part.value, part.converged) for part in parts), strict=True)
    )
    return Minima(*joined)


def _minimise(objective: Objective, theta: Floats, weights: Floats, low: Floats, high: Floats) -> Minima:
    theta = theta.copy()
    value = objective.value(theta, weights)
    damping = np.ones(len(theta))
    converged = np.zeros(len(theta), dtype=bool)
    left = np.flatnonzero(np.isfinite(value))
    for _ in range(MOST_STEPS):
        if not len(left):
            break
        here, weight = theta[left], weights[left]
        step, gain = _step(objective, here, weight, low[left], high[left], damping[left])
        there = np.clip(here + step, low[left], high[left])
        reached = objective.value(there, weight)
        better = reached < value[left]
        theta[left[better]], value[left[better]] = there[better], reached[better]
        damping[left] *= np.where(better, 0.2, 4.0)
        done = gain <= TOLERANCE * (value[left] + TOLERANCE * weight.sum(axis=1))
        stuck = damping[left] > 1e20
        converged[left[done]] = True
        left = left[~(done | stuck)]
    return Minima(theta, value, converged)


def _step(
    objective: Objective, theta: Floats, weights: Floats, low: Floats, high: Floats, damping: Floats
) -> tuple[Floats, Floats]:
    """The damped Newton step of each fit, and what the majoriser's step is sure to gain."""
    gradient, hessian, majoriser = objective.expand(theta, weights)
    resting = ((theta <= low) & (gradient >= 0)) | ((theta >= high) & (gradient <= 0))
    gradient = np.where(resting, 0.0, gradient)
    pairs = resting[:, :, None] | resting[:, None, :]
    unit = np.eye(theta.shape[1]) * resting[:, :, None]
    hessian, majoriser = (np.where(pairs, 0.0, matrix) + unit for matrix in (hessian, majoriser))
    diagonal = np.einsum("bpp->bp", majoriser)
    diagonal += 1e-13 * diagonal.max(axis=1, keepdims=True) + 1e-300
    sure = np.linalg.solve(majoriser, gradient[:, :, None])[:, :, 0]
    step = -np.linalg.solve(hessian + damping[:, None, None] * majoriser, gradient[:, :, None])[:, :, 0]
    return np.nan_to_num(step), 0.5 * np.einsum("bp,bp->b", gradient, sure)


def _gram(slopes: Floats, weights: Floats) -> Floats:
    """Σᵢ wᵢ·∇rᵢ∇rᵢᵀ of each fit, B × p × p."""
    return np.asarray(np.matmul((slopes * weights[:, :, None]).transpose(0, 2, 1), slopes))
