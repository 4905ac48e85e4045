"""Intervals that hold however often one looks, so that stopping when they decide keeps the error rate."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from study.base.statistics import CONFIDENCE
from study.laws.law import Floats

EFFECT = 1.0
"""The standard deviation of the effect, in standard deviations of a difference, that a sequence is quickest to find."""


def always_valid_interval(differences: Floats, shared: float = 0.0, level: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of a mean difference after so many seeds; with `level` all intervals of a sequence hold together.

    `differences` are those of paired seeds, normal with any unknown variance; `shared` is the standard error that all of them
    have in common, as of one validation set, and takes half of the error if it is not 0. Infinite until the seeds can decide.

    The interval holds the means that an e-process has not refused: t, the standardised mean of n differences, is at most
    √((n − 1)·(k − 1)/(1 − k/r)), with r = 1 + n·EFFECT² and k = (r/α²)^(1/n). Source: the t-test with a normal effect and
    Haar's prior of the scale is a test martingale (Pérez-Ortiz, Lardy, de Heide and Grünwald 2024, Ann. Statist. 52,
    1410-1432); refused at 1/α by Ville's inequality (Wang and Ramdas 2025, Sequential Analysis 44, arXiv 2310.03722).
    """
    n, error = len(differences), 1 - level
    if n < 2:
        return -np.inf, np.inf
    of_seeds = error / 2 if shared > 0 else error
    mean, scatter = float(np.mean(differences)), float(np.std(differences, ddof=1))
    ratio = 1 + n * EFFECT**2
    height = (ratio / of_seeds**2) ** (1 / n)
    if height >= ratio:
        return -np.inf, np.inf
    most = ((n - 1) * (height - 1) / (1 - height / ratio)) ** 0.5
    half = most * scatter / n**0.5 + float(-ndtri((error - of_seeds) / 2) * shared if shared > 0 else 0.0)
    return mean - half, mean + half
