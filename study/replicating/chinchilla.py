"""Chinchilla's parametric law from its figure's points (Besiroglu et al. 2024, arXiv 2404.10102)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from study.base.errors import InputError
from study.base.quantities import plural
from study.laws.catalogue import LAWS
from study.laws.estimation import Fit, Settings, fit
from study.laws.observations import Observations
from study.laws.tables import read_table
from study.laws.uncertainty import percentile_interval
from study.replicating.comparison import Number, Study

TITLE = "Chinchilla, by Epoch"
SOURCE = "Besiroglu et al. 2024, arXiv 2404.10102, and its notebook (the cell whose objective is 0.00101827403)"
COLUMNS = ("Model Size", "Training FLOP", "loss")
POINTS = 245
METHOD = (
    f"{POINTS} points; tokens = FLOPs/(6·parameters); without the 5 highest losses. Huber loss of log residuals, delta 1e-3, "
    "summed over the 240 points as Σ min(r²/2, delta·(|r| − delta/2)): in this scaling, without any division, the notebook's "
    "objective is met. 4,000 resamples, percentile intervals."
)

ESTIMATES = {"A": 477.84, "B": 2143.86, "E": 1.8172, "alpha": 0.3473, "beta": 0.3672}
INTERVALS = {"A": (285, 744), "B": (1042, 5810), "E": (1.769, 1.871), "alpha": (0.317, 0.373), "beta": (0.331, 0.415)}
OBJECTIVE = 0.0010182741


def observations(path: Path) -> Observations:
    """Return the 240 points; raises InputError if the file lacks them."""
    table = read_table(path)
    if missing := [name for name in COLUMNS if name not in table]:
        raise InputError.at(str(path), f"has no column {', '.join(missing)}; give Epoch's svg_extracted_data.csv")
    numbers = table[list(COLUMNS)].apply(pd.to_numeric, errors="coerce")
    points = numbers[np.isfinite(numbers).all(axis=1) & (numbers > 0).all(axis=1)]
    if (len(table), len(points)) != (POINTS, POINTS):
        message = f"holds {len(points)} points of numbers above zero in {plural(len(table), 'row')}, not {POINTS}"
        raise InputError.at(str(path), f"{message}; give Epoch's svg_extracted_data.csv")
    points = points.sort_values("loss", kind="stable").iloc[:-5].sort_index()
    parameters, flops, loss = (points[name].to_numpy(dtype=float) for name in COLUMNS)
    return Observations.of({"parameters": parameters, "tokens": flops / (6 * parameters)}, loss)


def estimate(path: Path) -> Fit:
    """Chinchilla's law fitted to these points."""
    return fit(LAWS["chinchilla"], observations(path), Settings(bootstrap=4000))


def study(path: Path | None) -> Study:
    """Return the published numbers and ours, if the points are given."""
    if path is None:
        return Study(TITLE, SOURCE, METHOD, skipped="its points have no stated licence and are not here; give --chinchilla")
    fitted = estimate(path)
    numbers = [Number(name, value, fitted.estimates[name], 0.005) for name, value in ESTIMATES.items()]
    for name, published in INTERVALS.items():
        percentiles = percentile_interval(fitted.resampled[:, fitted.law.parameters.index(name)])
        ends = zip(("2.5%", "97.5%"), published, percentiles, strict=True)
        numbers += [Number(f"{name}, {end}", value, float(ours), 0.05) for end, value, ours in ends]
    numbers.append(Number("objective", OBJECTIVE, fitted.objective, 1e-6))
    return Study(TITLE, SOURCE, METHOD, fitted.status, tuple(numbers))
