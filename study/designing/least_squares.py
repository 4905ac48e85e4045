"""Least squares with a weak prior, batched over starts: many cheap fits of few rows, for the choice of the next ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from study.laws.law import Floats, Surface
from study.laws.minimising import Space

STEPS = 60
"""The most steps of a fit; what starts have not settled by then lie in poor basins, and the best go on."""

ENOUGH = 1e-6
"""A fit has ended once no step gains this share of its objective."""

_STUCK = 1e12
_TOUCH = 1e-12


@dataclass(frozen=True)
class Prior:
    """A normal prior of each parameter, so wide that it decides only what no row does."""

    mean: Floats
    spread: Floats


def least_squares(
    surface: Surface, response: Floats, space: Space, noise: float, prior: Prior, theta: Floats, steps: int = STEPS
) -> tuple[Floats, Floats]:
    """The optima reached from starts θ (B × p), and their objectives Σ r²/noise + Σ((θ − mean)/spread)².

    Levenberg-Marquardt steps with the scaling of Marquardt 1963, within the law's bounds. Unlike study.laws.minimising it needs
    no second derivatives, which cost most for a formula, and its steps turn towards the gradient, so that it follows the
    narrow valleys of laws with more parameters than the rows determine.
    """
    low, high = surface.bounds
    theta = np.clip(theta, low, high)
    value, damping = np.full(len(theta), np.inf), np.full(len(theta), 1e-2)
    result = _Squares(surface, response, space, noise, prior)
    value = result.value(theta)
    left = np.flatnonzero(np.isfinite(value))
    for _ in range(steps):
        if not len(left):
            break
        slope, bend = result.expand(theta[left])
        resting = ((theta[left] <= low + _TOUCH) & (slope > 0)) | ((theta[left] >= high - _TOUCH) & (slope < 0))
        there = np.clip(theta[left] + _step(slope, bend, damping[left], resting), low, high)
        reached = result.value(there)
        gain = value[left] - reached
        better = gain > 0
        done = better & (gain < ENOUGH * value[left]) & (damping[left] < 1)
        theta[left[better]], value[left[better]] = there[better], reached[better]
        damping[left] *= np.where(better, 0.2, 5.0)
        left = left[~done & (damping[left] < _STUCK)]
    return theta, value


def _step(slope: Floats, bend: Floats, damping: Floats, resting: np.ndarray) -> Floats:
    diagonal = np.einsum("bpp->bp", bend)
    scale = 1 / np.sqrt(np.maximum(diagonal, 1e-300))
    unit = bend * scale[:, :, None] * scale[:, None, :]
    unit = np.where(resting[:, :, None] | resting[:, None, :], 0.0, unit)
    unit += (damping[:, None] + 1e-12 + resting)[:, :, None] * np.eye(slope.shape[1])
    return np.asarray(np.linalg.solve(unit, np.where(resting, 0.0, -slope * scale)[:, :, None])[:, :, 0] * scale)


@dataclass(frozen=True)
class _Squares:
    """The objective, with half its gradient and the Gauss-Newton half of its Hessian."""

    surface: Surface
    response: Floats
    space: Space
    noise: float
    prior: Prior

    def value(self, theta: Floats) -> Floats:
        residuals = self._residuals(self.surface.value(theta))
        away = (theta - self.prior.mean) / self.prior.spread
        total = np.sum(residuals**2, axis=1) / self.noise + np.sum(away**2, axis=1)
        return np.where(np.isfinite(total), total, np.inf)

    def expand(self, theta: Floats) -> tuple[Floats, Floats]:
        value, slopes = self.surface.gradients(theta)
        residuals = self._residuals(value)
        if self.space == "log":
            slopes = slopes / value[:, :, None]
        away = (theta - self.prior.mean) / self.prior.spread**2
        gradient = np.einsum("bn,bnp->bp", residuals, slopes) / self.noise + away
        return gradient, np.matmul(slopes.transpose(0, 2, 1), slopes) / self.noise + np.diag(self.prior.spread**-2)

    def _residuals(self, value: Floats) -> Floats:
        with np.errstate(all="ignore"):
            return np.asarray(np.log(value / self.response) if self.space == "log" else value - self.response)
