"""Why Kaplan reports N ∝ C^0.73 and Hoffmann C^0.50: one law, two counts (Pearce and Song 2024, arXiv 2406.12907)."""

from __future__ import annotations

import numpy as np

from study.laws.catalogue import LAWS
from study.laws.law import Floats
from study.replicating.comparison import Number, Study

TITLE = "Kaplan and Chinchilla reconciled"
SOURCE = "Pearce and Song 2024, arXiv 2406.12907, sec. 3, with Epoch's coefficients"
METHOD = (
    "20 models of 10^2.9 to 10^9.2 parameters without embeddings, width/depth 39.2, vocabulary 32,000; losses from Epoch's law "
    "in all parameters at 1,000 token counts of 10^6 to 10^25. At each of 100 budgets, 6·N·D in one convention, the model of "
    "the lowest loss; the slope of log N over log C by least squares (approach 1). For large models, without embeddings: the "
    "slope of the exact optimum from 10^10.2 to 10^11 parameters, where embeddings hardly matter and the exponent nears "
    "beta/(alpha + beta), that with embeddings at any size."
)
EPOCH = {"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658}
VOCABULARY, ASPECT = 32_000, 39.2


def slopes() -> tuple[float, float]:
    """Return the exponent of the best N in compute, without embeddings and with."""
    without = np.logspace(2.9, 9.2, 20)
    everything = without + VOCABULARY * (without * ASPECT / 12) ** (1 / 3)
    tokens = np.logspace(6, 25, 1000)
    return _slope(without, everything, tokens, (12.95, 20.7)), _slope(everything, everything, tokens, (13.4, 20.7))


def _slope(counted: Floats, everything: Floats, tokens: Floats, budgets: tuple[float, float]) -> float:
    flops = np.logspace(*budgets, 100)
    nearest = np.abs(6 * counted[:, None] * tokens - flops[:, None, None]).argmin(axis=2)
    columns = {"parameters": np.tile(everything, len(flops)), "tokens": tokens[nearest].ravel()}
    losses = LAWS["chinchilla"].predict(EPOCH, columns).reshape(nearest.shape)
    return float(np.polyfit(np.log(flops), np.log(counted[losses.argmin(axis=1)]), 1)[0])


def slope_of_large_models() -> float:
    """Return the same without embeddings, for N of 10^10.2 to 10^11.

    With N_T = N + w·N^(1/3) the best N at C = 6·N·D satisfies αA·N_T^(−α−1)·dN_T/dN·N = βB·D^−β, which gives D(N).
    """
    without = np.logspace(2, 11, 100)[90:]
    embeddings = VOCABULARY * (ASPECT / 12) ** (1 / 3)
    everything = without + embeddings * without ** (1 / 3)
    growth = without + embeddings / 3 * without ** (1 / 3)
    gain = EPOCH["alpha"] * EPOCH["A"] * everything ** (-EPOCH["alpha"] - 1) * growth
    tokens = (gain / (EPOCH["beta"] * EPOCH["B"])) ** (-1 / EPOCH["beta"])
    return float(np.polyfit(np.log(6 * without * tokens), np.log(without), 1)[0])


def study() -> Study:
    """Compare published slopes with ours."""
    without, everything = slopes()
    numbers = (
        Number("slope without embeddings, small models", 0.78, without, 0.005, absolute=True),
        Number("slope without embeddings, large models", 0.515, slope_of_large_models(), 0.001, absolute=True),
        Number("slope with embeddings", EPOCH["beta"] / (EPOCH["alpha"] + EPOCH["beta"]), everything, 0.005, absolute=True),
    )
    return Study(TITLE, SOURCE, METHOD, "no fit: a simulation", numbers)
