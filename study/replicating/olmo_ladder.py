"""Step 1 of OLMo's model ladder: the loss of a 13B model from 16 models of up to 1B (Bhagia et al. 2024, arXiv 2412.04403)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from study.base.text import status_words
from study.laws.catalogue import LAWS
from study.laws.estimation import Fit, Settings, fit
from study.laws.forecasting import forecast_rows
from study.laws.observations import Observations
from study.replicating.comparison import TABLES, Number, Study

TITLE = "OLMo ladder, step 1"
SOURCE = "Bhagia et al. 2024, arXiv 2412.04403, and the answers in allenai/OLMo"
METHOD = (
    "16 models at 1, 2, 5 and 10 times Chinchilla's tokens; E + A·N^−alpha + B·D^−beta, all at least 0, Huber loss of log "
    "residuals, delta 1e-3, summed. Target: the 13B model after 5T tokens. Fit error: mean |predicted − measured|/measured."
)

PUBLISHED = {
    "loss_c4_nats": ("C4 loss", 2.3443873053175697, -0.03834843411636423, 0.0024730743790536483),
    "hellaswag_bpb": ("HellaSwag bits per byte", 0.6531765996418648, -0.011736859704110904, 0.002564809550553303),
    "piqa_bpb": ("PIQA bits per byte", 0.8747948863685431, -0.026696073643929813, 0.003104357884309965),
}
"""By column: name, forecast, its relative error, and the fit's mean relative error."""


def observations(column: str) -> Observations:
    """Return the ladder, then the target."""
    table = pd.read_csv(TABLES / "olmo_ladder.csv")
    sizes = {name: table[name].to_numpy(dtype=float) for name in ("parameters", "tokens")}
    return Observations.of(sizes, table[column].to_numpy(dtype=float))


def estimate(column: str) -> Fit:
    """Chinchilla's law fitted to the ladder."""
    points = observations(column)
    return fit(LAWS["chinchilla"], points.where(np.arange(len(points)) < len(points) - 1), Settings(bootstrap=1000))


def study() -> Study:
    """Compare published numbers with ours."""
    numbers, statuses = [], []
    for column, (name, value, error, fit_error) in PUBLISHED.items():
        points, fitted = observations(column), estimate(column)
        forecast = forecast_rows(fitted, points.where(np.arange(len(points)) == len(points) - 1))
        statuses.append(f"{name}: {status_words(fitted.status)}, interval {forecast.low[0]:.3f} to {forecast.high[0]:.3f}")
        numbers.append(Number(f"{name}, forecast", value, float(forecast.predicted[0]), 1e-4 / value))
        numbers.append(Number(f"{name}, relative error", error, float(forecast.errors[0]), 1e-4, absolute=True))
        numbers.append(Number(f"{name}, fit error", fit_error, float(np.mean(np.abs(np.expm1(fitted.residuals)))), 0.01))
    return Study(TITLE, SOURCE, METHOD, "; ".join(statuses), tuple(numbers))
