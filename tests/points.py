"""Made-up points that follow a law, with noise of a known size."""

from __future__ import annotations

import numpy as np

from study.laws.law import Floats, Law
from study.laws.observations import Observations

RANGES = {
    "parameters": (1e6, 1e10),
    "tokens": (1e8, 1e12),
    "unique_tokens": (1e8, 1e10),
    "flops": (1e16, 1e23),
    "width": (64, 8192),
    "depth": (1, 64),
    "heads": (1, 64),
    "ffn": (128, 32768),
    "loss": (1.8, 4.5),
    "learning_rate": (1e-4, 1e-2),
    "batch": (1e4, 1e7),
}
"""Where made-up variables lie."""

TRUTHS = {
    "power": {"A": 12.0, "alpha": 0.08},
    "power-floor": {"E": 1.7, "A": 150.0, "alpha": 0.3},
    "tokens": {"B": 14.0, "beta": 0.09},
    "tokens-floor": {"E": 1.7, "B": 400.0, "beta": 0.28},
    "flops": {"C": 24.0, "gamma": 0.05},
    "flops-floor": {"E": 1.7, "C": 900.0, "gamma": 0.15},
    "chinchilla": {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37},
    "chinchilla-tied": {"E": 1.8, "A": 480.0, "B": 1500.0, "alpha": 0.35},
    "chinchilla-no-floor": {"A": 9.0, "B": 11.0, "alpha": 0.08, "beta": 0.12},
    "width-depth-tokens": {"E": 1.6, "A": 30.0, "B": 0.9, "C": 900.0, "alpha": 0.7, "beta": 0.8, "gamma": 0.33},
    "gemstones": {
        "E": 1.2,
        "A": 40.0,
        "B": 1.5,
        "C": 200.0,
        "D": 1500.0,
        "alpha": 1.0,
        "beta": 1.2,
        "gamma": 0.3,
        "zeta": 0.35,
    },
    "shape": {"E": 1.9, "A": 60.0, "a_depth": 0.25, "a_width": 0.5, "a_heads": -0.05, "a_ffn": 0.1},
    "repeated-tokens": {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37, "R_D": 8.0},
    "data-constrained": {"E": 1.8, "A": 480.0, "B": 2100.0, "alpha": 0.35, "beta": 0.37, "R_D": 12.0, "R_N": 5.0},
    "score-of-loss": {"chance": 0.25, "ceiling": 0.95, "k": 3.0, "L0": 2.9},
    "score-of-sizes": {"chance": 0.25, "ceiling": 0.95, "M": 3.0, "A": 300.0, "B": 900.0, "alpha": 0.3, "beta": 0.28},
    "error-of-loss": {"ceiling": 0.8, "k": 2.2, "gamma": 0.9},
    "chinchilla-power": {"E": 1.8, "A": 200.0, "alpha": 0.4, "B": 600.0, "beta": 0.45, "k": 0.7},
    "kaplan": {"A": 1.5e10, "alpha_N": 0.076, "alpha_D": 0.103, "B": 1.8e13},
    "kaplan-width-depth": {"A": 1e10, "alpha_width": 0.2, "alpha_D": 0.103, "alpha_depth": 0.06, "B": 1.8e13},
    "farseer": {
        "s": -0.06,
        "q": 0.13,
        "S": 0.13,
        "B": 230.0,
        "b": -0.17,
        "Q": -1.5,
        "A": -1.7,
        "a": 0.046,
        "E": 3.1,
    },
    "flops-shifted": {"E": 1.7, "A": 900.0, "B": 1e18, "gamma": 0.15},
    "learning-rate-batch": {
        "E": 1.8,
        "A": 480.0,
        "alpha": 0.35,
        "B": 2100.0,
        "beta": 0.37,
        "K": 0.05,
        "l": 0.58,
        "n": -0.713,
        "d": 0.307,
        "M": 0.02,
        "m": -0.54,
        "b": 0.571,
    },
}
"""Parameters of each law that give plausible values over RANGES."""


def columns_of(law: Law, rows: int, seed: int = 0) -> dict[str, Floats]:
    """Each variable of a law spread evenly in logarithm over its range."""
    random = np.random.default_rng(seed)
    return {name: low * (high / low) ** random.uniform(size=rows) for name in law.variables for low, high in [RANGES[name]]}


def observed(law: Law, rows: int = 300, noise: float = 0.002, seed: int = 0) -> Observations:
    """Points of a law with relative noise of the given standard deviation."""
    columns = columns_of(law, rows, seed)
    random = np.random.default_rng(seed + 1000)
    return Observations.of(columns, law.predict(TRUTHS[law.name], columns) * np.exp(random.normal(0, noise, rows)))
