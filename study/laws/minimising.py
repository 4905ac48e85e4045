"""Robust regression of a law, batched over weightings of one table, by damped Newton steps with exact derivatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import huber

from study.laws.law import Derivatives, Floats, Surface

Space = Literal["log", "linear"]
"""Whether residuals are differences of logarithms or of values."""

MOST_STEPS = 300
TOLERANCE = 1e-14
"""A fit has converged if the best guaranteed step gains less than this share of the objective."""

_CELLS_AT_A_TIME = 30_000
_ROUNDING = 1e-16
_STUCK = 1e20
_POLISHES = 8
_NOTHING = 1e-27
_RIDGE = 1e-9
_TOUCH = 1e-12
_IDLE = 1e-9


@dataclass(frozen=True)
class Objective:
    """Σᵢ wᵢ·huber(rᵢ), summed, not averaged: huber(r) = r²/2 up to |r| = delta, delta·(|r| − delta/2) beyond.

    r is log f − log y in space `log`, f − y in `linear`; infinite delta gives least squares. Weights are B × n, one row per
    fit, such as bootstrap counts. `squares` adds that share of r²/2 per row.
    """

    surface: Surface
    response: Floats
    delta: float
    space: Space
    squares: float = 0.0

    def residuals(self, theta: Floats) -> Floats:
        """Return the residuals, B × n; NaN without a logarithm."""
        value = self.surface.value(theta)
        return self._compared(value)

    def value(self, theta: Floats, weights: Floats) -> Floats:
        """Return the objective of each fit; infinite if undefined."""
        residuals = self.residuals(theta)
        with np.errstate(invalid="ignore", over="ignore"):
            parts = huber(self.delta, residuals) + self.squares / 2 * residuals**2
        summed = np.einsum("bn,bn->b", weights, parts)
        return np.where(np.isfinite(summed), summed, np.inf)

    def expand(self, theta: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Gradient (B × p), Hessian and a majoriser of it (both B × p × p).

        The majoriser is Σ wᵢ·min(1, delta/|rᵢ|)·∇rᵢ∇rᵢᵀ of iteratively reweighted least squares (Huber 1981, sec. 7.8): its
        steps always descend, if slowly, and need no curvature of the law.
        """
        result = self._in_space(theta)
        slopes, residuals = result.jacobian, self._compared(result.value)
        size = np.abs(residuals)
        psi = weights * self._psi(residuals)
        gradient = np.matmul(psi[:, None, :], slopes)[:, 0]
        bend = weights * ((size <= self.delta) + self.squares)
        hessian = _gram(slopes, bend - (psi if self.space == "log" else 0.0)) + result.curvature(psi)
        steady = weights * (np.minimum(1.0, self.delta / np.maximum(size, 1e-300)) + self.squares)
        return gradient, hessian, _gram(slopes, steady)

    def scores(self, theta: Floats) -> Floats:
        """Return the gradient of each row's objective at one θ, n × p."""
        result = self._in_space(theta[None])
        return np.asarray(self._psi(self._compared(result.value)[0])[:, None] * result.jacobian[0])

    def slopes(self, theta: Floats) -> Floats:
        """Return the gradient of each row's residual at one θ, n × p."""
        return np.asarray(self._in_space(theta[None]).jacobian[0])

    def _psi(self, residuals: Floats) -> Floats:
        """Return the derivative of a row's objective in its residual."""
        return np.clip(residuals, -self.delta, self.delta) + self.squares * residuals

    def _in_space(self, theta: Floats) -> Derivatives:
        """Return the law's values with the residuals' gradients; in space `log` the curvature lacks −∇r∇rᵀ."""
        result = self.surface.derivatives(theta)
        if self.space == "linear":
            return result
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = 1.0 / result.value
        return Derivatives(
            result.value, result.jacobian * inverse[:, :, None], lambda weights: result.curvature(weights * inverse)
        )

    def _compared(self, value: Floats) -> Floats:
        if self.space == "linear":
            return value - self.response
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(value) - np.log(self.response)


@dataclass(frozen=True)
class ClusterWeights:
    """Weights B × n by clusters: how often each of B fits counts each cluster, and the cluster of each of n rows.

    Only those of the fits at hand are made.
    """

    counts: NDArray[np.int64]
    clusters: NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of fits and rows."""
        return len(self.counts), len(self.clusters)

    def __getitem__(self, fits: slice) -> Floats:
        return self.counts[fits].astype(float)[:, self.clusters]


@dataclass(frozen=True)
class Minima:
    """The end point of each fit (B × p), its objective, and whether it converged."""

    theta: Floats
    value: Floats
    converged: NDArray[np.bool_]


def minimise(
    objective: Objective, theta: Floats, weights: Floats | ClusterWeights, within: tuple[Floats, Floats] | None = None
) -> Minima:
    """Minimise B fits from their own starts, within the law's bounds or `within` (B × p, equal to fix a parameter).

    Newton steps with the exact Hessian H are damped towards those of the majoriser M: (H + λM)·step = −gradient. λ falls
    fivefold after a gain, else rises fourfold (Levenberg-Marquardt with M for the diagonal, so it is scale-free). Parameters
    pushed against a bound stay, and steps to where the law overflows are not taken. Fits run in cache-sized blocks.
    """
    block = max(1, _CELLS_AT_A_TIME // weights.shape[1])
    low, high = (np.broadcast_to(bound, theta.shape) for bound in within or objective.surface.bounds)
    parts = []
    for first in range(0, len(theta), block):
        rows = slice(first, first + block)
        start = np.clip(theta[rows], low[rows], high[rows])
        with np.errstate(invalid="ignore", over="ignore"):
            parts.append(_minimise(objective, start, weights[rows], low[rows], high[rows]))
    joined = (
        np.concatenate(pieces) for pieces in zip(*((part.theta, part.value, part.converged) for part in parts), strict=True)
    )
    return Minima(*joined)


def _minimise(objective: Objective, start: Floats, weights: Floats, low: Floats, high: Floats) -> Minima:
    theta = start.copy()
    value = objective.value(theta, weights)
    damping = np.ones(len(theta))
    converged = np.zeros(len(theta), dtype=bool)
    left = np.flatnonzero(np.isfinite(value))
    for _ in range(MOST_STEPS):
        if not len(left):
            break
        step, gain = _step(objective, theta[left], weights[left], low[left], high[left], damping[left])
        done = gain <= _slack(value[left], weights[left])
        converged[left[done]] = True
        left, step = left[~done], step[~done]
        there = np.clip(theta[left] + step, low[left], high[left])
        reached = objective.value(there, weights[left])
        better = reached < value[left]
        theta[left[better]], value[left[better]] = there[better], reached[better]
        damping[left] *= np.where(better, 0.2, 4.0)
        left = left[damping[left] <= _STUCK]
    theta[converged] = _polished(objective, theta[converged], weights[converged], low[converged], high[converged])
    theta = np.where(_idle(objective, theta, weights), start, theta)
    return Minima(theta, objective.value(theta, weights), converged)


def _idle(objective: Objective, theta: Floats, weights: Floats) -> NDArray[np.bool_]:
    """Whether each parameter moves no residual, such as the exponent of a term whose coefficient is 0.

    Only rounding would tell such a parameter from its start.
    """
    _, _, majoriser = objective.expand(theta, weights)
    moves = np.sqrt(np.nan_to_num(np.einsum("bpp->bp", majoriser)))
    return np.asarray(moves <= _IDLE * moves.max(axis=1, keepdims=True))


def _slack(value: Floats, weights: Floats) -> Floats:
    """Return the smallest significant gain: TOLERANCE of the objective plus rounding of residuals of about √(value/n)."""
    rows = weights.sum(axis=1)
    return np.asarray(TOLERANCE * (value + TOLERANCE * rows) + _ROUNDING * np.sqrt(value * rows))


def _polished(objective: Objective, theta: Floats, weights: Floats, low: Floats, high: Floats) -> Floats:
    """Refine minima to the last digits that gradients determine.

    Rounding ε of the objective leaves θ unknown to √ε of its error, different between processors. Of some Newton steps the end
    of each counts that divides the least gain so far by at least four. The first may raise it, along a curved valley.
    """
    theta, there = theta.copy(), theta
    value = objective.value(theta, weights)
    highest = value + _slack(value, weights)
    left, still = np.arange(len(theta)), np.zeros(len(theta))
    step, least = _step(objective, theta, weights, low, high, still)
    for _ in range(_POLISHES):
        unfinished = least[left] > _NOTHING * value[left]
        left, step = left[unfinished], step[unfinished]
        if not len(left):
            break
        there = np.clip(there[unfinished] + step, low[left], high[left])
        step, gain = _step(objective, there, weights[left], low[left], high[left], still[left])
        better = (gain < least[left] / 4) & (objective.value(there, weights[left]) <= highest[left])
        theta[left[better]], least[left[better]] = there[better], gain[better]
    return theta


def _step(
    objective: Objective, theta: Floats, weights: Floats, low: Floats, high: Floats, damping: Floats
) -> tuple[Floats, Floats]:
    """Return the bounded damped Newton step of each fit, and its gain by the majoriser or Newton.

    A step across a bound ends there, and the other parameters adjust.
    """
    gradient, hessian, majoriser = objective.expand(theta, weights)
    resting = ((theta <= low + _TOUCH) & (gradient >= 0)) | ((theta >= high - _TOUCH) & (gradient <= 0))
    still = np.zeros_like(theta)
    sure = _solve(majoriser, gradient, resting, still)
    gain = _sure_gain(gradient, majoriser, sure, resting, low - theta, high - theta)
    damped = hessian + damping[:, None, None] * majoriser
    step = _solve(damped, gradient, resting, still)
    by_newton = -0.5 * np.einsum("bp,bp->b", np.where(resting, 0.0, gradient), step)
    crossing = resting | (theta + step < low) | (theta + step > high)
    again = np.flatnonzero((crossing != resting).any(axis=1))
    if len(again):
        held = np.where(crossing, np.clip(theta + step, low, high) - theta, 0.0)[again]
        step[again] = _solve(damped[again], gradient[again], crossing[again], held)
    return step, np.where(_is_newton(hessian, resting, damping), np.minimum(gain, by_newton), gain)


def _sure_gain(
    gradient: Floats, majoriser: Floats, step: Floats, resting: NDArray[np.bool_], low: Floats, high: Floats
) -> Floats:
    """Return what the majoriser's step is sure to gain within the bounds, `low` and `high` from here.

    If the step leaves them: the more of the step cut at the bounds and of the best step of one parameter. The uncut step would
    promise the same gain however close to its bound a parameter is.
    """
    free = np.where(resting, 0.0, gradient)
    cut = np.clip(step, low, high)
    slope, bend = -np.einsum("bp,bp->b", free, cut), np.einsum("bp,bpq,bq->b", cut, majoriser, cut)
    part = np.clip(slope / np.maximum(bend, 1e-300), 0.0, 1.0)
    diagonal = np.einsum("bpp->bp", majoriser)
    alone = np.clip(-free / np.maximum(diagonal, 1e-300), low, high)
    best_alone = np.max(-free * alone - diagonal * alone**2 / 2, axis=1)
    limited = np.maximum(part * slope - part**2 / 2 * bend, best_alone)
    return np.asarray(np.where((cut == step).all(axis=1), -0.5 * np.einsum("bp,bp->b", free, step), limited))


def _is_newton(hessian: Floats, resting: NDArray[np.bool_], damping: Floats) -> NDArray[np.bool_]:
    """Whether steps are Newton's to a minimum: light damping and a positive definite Hessian.

    Their gain then replaces the majoriser's, which has too little curvature for fewer rows than parameters.
    """
    free = np.where(resting[:, :, None] | resting[:, None, :], np.eye(resting.shape[1]), hessian)
    return (damping <= 1) & (np.linalg.eigvalsh(np.nan_to_num(free))[:, 0] > 0)


def _solve(matrix: Floats, gradient: Floats, held: NDArray[np.bool_], moves: Floats) -> Floats:
    """Solve matrix·step = −gradient for the free parameters; `held` ones take their `moves`.

    The diagonal is first scaled to one; parameters that no row determines stay.
    """
    diagonal = np.abs(np.einsum("bpp->bp", matrix))
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    matrix = matrix * scale[:, :, None] * scale[:, None, :]
    moves = moves / scale
    sides = np.where(held, moves, -gradient * scale - np.einsum("bpq,bq->bp", matrix, moves))
    unit = np.eye(held.shape[1])
    matrix = np.where(held[:, :, None] | held[:, None, :], 0.0, matrix) + (held + _RIDGE)[:, :, None] * unit
    try:
        result = np.linalg.solve(matrix, sides[:, :, None])
    except np.linalg.LinAlgError:  # exactly singular ones step along the gradient
        singular = np.linalg.slogdet(matrix).sign == 0
        result = np.linalg.solve(np.where(singular[:, None, None], unit, matrix), sides[:, :, None])
    return np.asarray(np.nan_to_num(result[:, :, 0] * scale))


def _gram(slopes: Floats, weights: Floats) -> Floats:
    """Σᵢ wᵢ·∇rᵢ∇rᵢᵀ, B × p × p."""
    return np.asarray(np.matmul((slopes * weights[:, :, None]).transpose(0, 2, 1), slopes))
