"""Fit times: refits against SciPy's, and a large ledger against a plain table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import huber, logsumexp

from study.evidence.learning_rates import RATE
from study.evidence.ledgers import open_ledger
from study.laws.catalogue import LAWS
from study.laws.estimation import Settings, fit
from study.laws.law import Floats
from study.laws.law_fits import fit_table
from study.laws.observations import Observations
from study.laws.reading import TableQuery
from study.replicating.studies import EPOCH_ESTIMATES

REFITS, SCIPY_REFITS = 4000, 40
DELTA = 1e-3
NAMES = ("A", "B", "E", "alpha", "beta")
CELLS, RUNS_OF_A_CELL = 20_000, 5


def objective(theta: Floats, sizes: tuple[Floats, Floats], losses: Floats) -> tuple[float, Floats]:
    """Return the Huber objective and gradient in (log A, log B, log E, alpha, beta), for SciPy."""
    n, d = np.log(sizes[0]), np.log(sizes[1])
    terms = np.stack([theta[0] - theta[3] * n, theta[1] - theta[4] * d, np.full_like(n, theta[2])])
    total = logsumexp(terms, axis=0)
    psi = np.clip(total - np.log(losses), -DELTA, DELTA)
    shares = psi * np.exp(terms - total)
    value = float(huber(DELTA, total - np.log(losses)).sum())
    return value, np.array([*shares.sum(axis=1), -(shares[0] * n).sum(), -(shares[1] * d).sum()])


def scipy_seconds(points: Observations, start: Floats) -> float:
    """Seconds per refit by SciPy's BFGS from our estimate, with a rescaled objective."""
    random = np.random.default_rng(0)
    start_time = perf_counter()
    for _ in range(SCIPY_REFITS):
        rows = random.integers(0, len(points), len(points))
        sizes = points.columns["parameters"][rows], points.columns["tokens"][rows]

        def scaled(
            theta: Floats, sizes: tuple[Floats, Floats] = sizes, losses: Floats = points.response[rows]
        ) -> tuple[float, Floats]:
            value, gradient = objective(theta, sizes, losses)
            return value / DELTA**2, gradient / DELTA**2

        minimize(scaled, start, jac=True, method="BFGS")
    return (perf_counter() - start_time) / SCIPY_REFITS


@dataclass(frozen=True)
class RefitTimes:
    """Seconds for 4,000 refits, ours and SciPy's (scaled up from SCIPY_REFITS), and our status."""

    ours_seconds: float
    scipy_seconds: float
    status: str


def drawn(points: int) -> tuple[dict[str, Floats], Floats]:
    """Sizes and tokens in the range of Epoch's points; losses from its law and noise."""
    random = np.random.default_rng(0)
    columns = {"parameters": 10 ** random.uniform(7.7, 10.2, points), "tokens": 10 ** random.uniform(8.4, 11.5, points)}
    noise = np.exp(random.normal(0, 0.007, points))
    return columns, LAWS["chinchilla"].predict(EPOCH_ESTIMATES, columns) * noise


def measure() -> RefitTimes:
    """Time both on as many points as Epoch's."""
    points = Observations.of(*drawn(240))
    start_time = perf_counter()
    fitted = fit(LAWS["chinchilla"], points, Settings(bootstrap=REFITS))
    ours = perf_counter() - start_time
    estimates = np.array([fitted.estimates[name] for name in NAMES])
    theirs = REFITS * scipy_seconds(points, np.concatenate([np.log(estimates[:3]), estimates[3:]]))
    return RefitTimes(ours, theirs, fitted.status)


def ledger_seconds() -> tuple[float, float]:
    """Seconds to fit a ledger of CELLS cells with RUNS_OF_A_CELL rates, and a table of as many rows.

    The table is fitted whole, the ledger at each cell's best rate, both from Parquet.
    """
    columns, losses = drawn(CELLS)
    flops = 6 * columns["parameters"] * columns["tokens"]
    table = pd.DataFrame({**columns, "train_flops": flops, "loss_nats": losses}).loc[
        np.repeat(np.arange(CELLS), RUNS_OF_A_CELL)
    ]
    rates = np.tile(np.geomspace(1e-4, 1e-2, RUNS_OF_A_CELL), CELLS)
    best = np.repeat(np.random.default_rng(1).lognormal(np.log(1e-3), 0.5, CELLS), RUNS_OF_A_CELL)
    table["loss_nats"] += 0.02 * np.log(rates / best) ** 2
    named = {"run_id": [f"run{row}" for row in range(len(table))], "cell": [f"cell{cell}" for cell in table.index]}
    ledger = table.assign(**named, **{RATE: rates}, seed=0, state="COMPLETED", exclusion=None)
    with TemporaryDirectory() as folder:
        return _fit_seconds(ledger, Path(folder) / "ledger.parquet"), _fit_seconds(table, Path(folder) / "table.parquet")


def _fit_seconds(table: pd.DataFrame, file: Path) -> float:
    table.to_parquet(file, index=False)
    start_time = perf_counter()
    fit_table(TableQuery(open_ledger(file), {"loss": "loss_nats", "flops": "train_flops"}), "chinchilla", Settings(bootstrap=0))
    return perf_counter() - start_time
