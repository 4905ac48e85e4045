"""The data-constrained law at its authors' coefficients (Muennighoff et al. 2023, arXiv 2305.16264)."""

from __future__ import annotations

import numpy as np

from study.laws.catalogue import LAWS
from study.replicating.comparison import Number, Study

TITLE = "Data-constrained law, Muennighoff et al."
SOURCE = "Muennighoff et al. 2023, arXiv 2305.16264, and the README of huggingface/datablations"
METHOD = (
    "The law data-constrained at the published coefficients, for the two models of its figure 1 (right): 6.34B parameters and "
    "242B tokens, 8.67B parameters and 178B tokens, both of 25B unique tokens."
)
COEFFICIENTS = {
    "E": float(np.exp(0.6254804)),
    "A": float(np.exp(6.255414)),
    "B": float(np.exp(7.3049974)),
    "alpha": 0.3526596,
    "beta": 0.3526596,
    "R_D": 15.387756,
    "R_N": 5.309743,
}
PUBLISHED = {(6.34e9, 242e9): 2.2256440889984477, (8.67e9, 178e9): 2.2269634075087867}
"""Loss by parameters and tokens."""

UNIQUE_TOKENS = 25e9


def losses() -> tuple[float, ...]:
    """Our losses for the published models."""
    parameters, tokens = np.array(list(PUBLISHED)).T
    columns = {"parameters": parameters, "tokens": tokens, "unique_tokens": np.full(len(PUBLISHED), UNIQUE_TOKENS)}
    return tuple(LAWS["data-constrained"].predict(COEFFICIENTS, columns).tolist())


def study() -> Study:
    """Compare published losses with ours."""
    numbers = tuple(
        Number(f"loss of {parameters:.3g} parameters, {tokens:.3g} tokens", value, ours, 1e-9)
        for ((parameters, tokens), value), ours in zip(PUBLISHED.items(), losses(), strict=True)
    )
    return Study(TITLE, SOURCE, METHOD, "no fit: a formula", numbers)
