"""Intervals that hold at every look of a planned number, so that stopping when they decide keeps the error rate."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import stdtr, stdtrit

from study.base.statistics import CONFIDENCE
from study.laws.law import Floats

FIRST = 3
"""The seeds before the first look: two say too little of their scatter."""

SPENDING = 2.0
"""The share of the error that is spent after n of m seeds is (n/m) to this power."""

_CELLS = 160
_UPRIGHT = np.pi / 2


@lru_cache(maxsize=64)
def boundaries(most: int, error: float) -> tuple[float, ...]:
    """How large |t| may be at each look from FIRST to `most` seeds, so that a null sequence exceeds any in an `error`.

    t is that of n normal differences with any unknown variance. t/√(n − 1) is the tangent of an angle, and these angles form a
    Markov chain: sin θ' = (√n·sin θ·cos ψ + sin ψ)/√(n + 1), where √n·tan ψ has Student's distribution of n degrees of freedom
    and is independent of θ. Each look spends its share of the error on sequences that have not exceeded a boundary before.
    Sources: the recursion over looks of Armitage, McPherson and Rowe 1969 (J. R. Stat. Soc. A 132, 235-244), here for t;
    spending as a power of the share of the data, Kim and DeMets 1987 (Biometrika 74, 149-154).
    """
    spent = error * (np.arange(most + 1) / most) ** SPENDING
    found = [float(stdtrit(FIRST - 1, 1 - spent[FIRST] / 2))]
    edges = np.linspace(0, np.arctan(found[0] / (FIRST - 1) ** 0.5), _CELLS + 1)
    weight = 2 * np.diff(stdtr(FIRST - 1, (FIRST - 1) ** 0.5 * np.tan(edges)))  # of |θ| between two edges
    for n in range(FIRST, most):
        angles = (edges[1:] + edges[:-1]) / 2
        end = _end(1 - spent[n + 1], angles, weight, n)
        found.append(n**0.5 * float(np.tan(end)))
        edges = np.linspace(0, end, _CELLS + 1)
        weight = np.diff(_within(edges, angles, n), axis=0) @ weight
    return tuple(found)


def _end(share: float, angles: Floats, weight: Floats, n: int) -> float:
    """The angle that a share of all sequences has never exceeded after n + 1 seeds."""

    def beyond(end: float) -> float:
        return float(_within(np.array([end]), angles, n)[0] @ weight) - share

    return float(brentq(beyond, 0.0, _UPRIGHT))


def _within(ends: Floats, angles: Floats, n: int) -> Floats:
    """The probability that |θ'| is at most each end after n + 1 seeds, by angle θ ≥ 0 after n; E × A."""
    sine = np.sin(angles)
    lift, turn = np.sqrt((n * sine**2 + 1) / (n + 1)), np.arctan(n**0.5 * sine)
    top = np.arcsin(np.clip(np.sin(ends)[:, None] / lift, -1, 1))

    def below(psi: Floats) -> Floats:
        """The distribution of ψ, which lies between −π/2 and π/2."""
        inside = np.clip(psi, -_UPRIGHT, _UPRIGHT)
        return np.asarray(stdtr(n, n**0.5 * np.tan(inside)))

    return below(top - turn) - below(-top - turn) + 1 - below(np.pi - top - turn)


def valid_interval(differences: Floats, shared: float, most: int, level: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a mean difference after so many seeds of `most`; with `level` those of all looks hold together.

    `differences` are those of paired seeds; `shared` is the standard error that all of them have in common, as of one
    validation set. Infinite before FIRST seeds. Half of it is the boundary times √(s²/n + shared²), which is conservative: the
    boundary is that of seeds alone, whose scatter s is estimated and whose looks differ more (Mickey and Brown 1966, Ann. Math.
    Stat. 37, 639-642, for one look; for many by the simulation of study.designing.racing). Source: repeated confidence
    intervals, Jennison and Turnbull 2000, Group Sequential Methods, ch. 9.
    """
    n = len(differences)
    if n < FIRST:
        return -np.inf, np.inf
    mean, variance = float(np.mean(differences)), float(np.var(differences, ddof=1))
    half = boundaries(most, 1 - level)[n - FIRST] * (variance / n + shared**2) ** 0.5
    return mean - half, mean + half
