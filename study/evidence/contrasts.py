"""A weighted sum of the losses of cells, with the noise of the validation sequences and of the seeds in one interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from study.evidence.paired import told, variances_of_sum
from study.evidence.seed_scatter import SeedVariance


@dataclass(frozen=True)
class Contrast:
    """An estimate in nats per masked token, its 95% interval and p-value against zero; None without seed replicates."""

    estimate: float
    interval: tuple[float, float] | None = None
    p_value: float | None = None


def contrast(
    weights: NDArray[np.float64],
    cells: Sequence[NDArray[np.float64]],
    seeds: Sequence[SeedVariance] | None,
    documents: NDArray[np.int64] | None = None,
) -> Contrast:
    """Σ wᵢ·mean(lossᵢ) of cells that are seeds × sequences each, over the same two or more sequences.

    Its variance is s²(sequences)/n of the weighted sums, clustered by the sequences' `documents` where these are known, plus Σ
    s²ᵢ·wᵢ²/kᵢ, where `seeds` are the s²ᵢ of the cells. With the weights 1 and −1 this is
    study.evidence.paired.paired_difference.
    """
    summed = weights @ np.stack([losses.mean(axis=0) for losses in cells])
    estimate = float(summed.mean())
    if seeds is None:
        return Contrast(estimate)
    n_seeds = [len(losses) for losses in cells]
    low, high, p_value = told(estimate, *variances_of_sum(summed, weights, n_seeds, seeds, documents))
    return Contrast(estimate, (low, high), p_value)


def slope_weights(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weights whose sum with values is the slope of their least-squares line over x."""
    away = x - x.mean()
    return np.asarray(away / (away @ away))
