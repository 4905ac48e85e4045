"""What a run is worth to a forecast, from the law's gradients alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from study.laws.law import Floats

Criterion = Literal["error", "v-optimal", "d-optimal"]
"""The expected squared error in the target region over basins; its variance in the likeliest basin; the parameters' volume."""

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(3)


@dataclass(frozen=True)
class Basin:
    """One optimum of the fit: a normal distribution of the law's values around it.

    `weight` is its posterior probability. Predictions at the candidates (c) and targets (t) are `at_candidates` and
    `at_targets`; their uncertain parts are `candidates`·z and `targets`·z with z standard normal of any length, and `noise` is
    the variance of one run. `bend` is what a law that may bend is expected to miss at the targets.
    """

    weight: float
    at_candidates: Floats
    at_targets: Floats
    candidates: Floats
    targets: Floats
    noise: float
    bend: Floats = field(default_factory=lambda: np.zeros(1))

    @property
    def forecast(self) -> Floats:
        """What is expected at the targets: the law, and its bend as far as the runs show it."""
        return np.asarray(self.at_targets + self.bend)

    @property
    def variance(self) -> float:
        """The mean variance of the law at the targets."""
        return float(np.mean(np.sum(self.targets**2, axis=1)))

    def after(self, row: int) -> Basin:
        """Return the basin once a candidate has been run, whatever its result, up to the predictions."""
        direction = self.candidates[row]
        length = float(direction @ direction)
        if length == 0:
            return self
        shrink = (1 - np.sqrt(self.noise / (self.noise + length))) / length
        candidates, targets = (
            part - shrink * np.outer(part @ direction, direction) for part in (self.candidates, self.targets)
        )
        return replace(self, candidates=candidates, targets=targets)


def basin_of(
    weight: float, precision: Floats, candidates: tuple[Floats, Floats], targets: tuple[Floats, Floats], noise: float
) -> Basin:
    """Make a basin from its parameters' precision (p × p), and values and gradients (n × p) at candidates and targets."""
    levels, directions = np.linalg.eigh(precision)
    root = directions / np.sqrt(np.maximum(levels, 1e-12 * levels.max()))
    return Basin(weight, candidates[0], targets[0], candidates[1] @ root, targets[1] @ root, noise)


def d_gains(basin: Basin) -> Floats:
    """By candidate: the gain in log determinant of the information, log(1 + jᵀΣj/σ²)."""
    return np.asarray(np.log1p(np.sum(basin.candidates**2, axis=1) / basin.noise))


def v_gains(basin: Basin) -> Floats:
    """By candidate: the fall of the mean variance at the targets, Σ(jₜᵀΣj)²/(σ² + jᵀΣj)/T."""
    shared = np.mean((basin.targets @ basin.candidates.T) ** 2, axis=0)
    return np.asarray(shared / (basin.noise + np.sum(basin.candidates**2, axis=1)))


def within_gains(basins: list[Basin]) -> Floats:
    """By candidate: the fall of the mean variance at the targets, over the basins by their weights."""
    return np.asarray(sum(basin.weight * v_gains(basin) for basin in basins))


def between(weights: Floats, predictions: Floats) -> Floats:
    """Return the mean variance at the targets between basins: weights K × …, predictions K × T × …."""
    mean = np.sum(weights[:, None] * predictions, axis=0)
    return np.asarray(np.mean(np.sum(weights[:, None] * (predictions - mean) ** 2, axis=0), axis=0))


def between_gains(basins: list[Basin]) -> Floats:
    """By candidate: the expected fall of the variance at the targets between the basins.

    How a result moves the weights is summed by Gauss-Hermite quadrature over the results that each basin expects. Together with
    within_gains this is the expected fall of the squared error. Source: Li et al. 2026, arXiv 2604.22753, sec. 4.
    """
    if len(basins) == 1:
        return np.zeros(len(basins[0].at_candidates))
    weights = np.array([basin.weight for basin in basins])
    expected = np.array([basin.at_candidates for basin in basins])
    spread = np.array([basin.noise + np.sum(basin.candidates**2, axis=1) for basin in basins])
    targets = np.array([basin.at_targets for basin in basins])
    moves = np.array([basin.targets @ basin.candidates.T for basin in basins]) / spread[:, None]
    later = np.zeros(expected.shape[1])
    for truth, weight in enumerate(weights):
        for node, share in zip(_NODES, _WEIGHTS / _WEIGHTS.sum(), strict=True):
            off = expected[truth] + node * np.sqrt(spread[truth]) - expected
            likelihood = np.log(weights)[:, None] - 0.5 * (off**2 / spread + np.log(spread))
            posterior = np.exp(likelihood - likelihood.max(axis=0))
            posterior /= posterior.sum(axis=0)
            later += weight * share * between(posterior, targets[:, :, None] + moves * off[:, None])
    return between(weights, targets) - later
