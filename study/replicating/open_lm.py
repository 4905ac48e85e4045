"""Loss and error of over-trained models from small ones (Gadre et al. 2024, arXiv 2403.08540)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from study.base.text import status_words
from study.laws.catalogue import LAWS
from study.laws.estimation import Fit, Settings, fit
from study.laws.observations import Observations
from study.replicating.comparison import TABLES, Number, Study

TITLE = "Over-training, mlfoundations/scaling"
SOURCE = "Gadre et al. 2024, arXiv 2403.08540, table 1 and its repository"
METHOD = (
    "Trained on RedPajama, evaluated on C4. L = E + α·N^b + β·6^(b/2)·(M·N)^b is the law chinchilla-tied with tokens M·N; "
    "least squares of the losses of five models (d=96, 512, 576, 1024 at M = 20, d=96 at M = 320). Error = ε − k·exp(−γ·L), "
    "least squares on those five and open_lm_1b at M = 20, fed with the predicted losses."
)
TARGETS = {
    "1.4B at M = 640": ("open_lm_1b", 32.0, 0.007103, 0.036365),
    "6.9B at M = 20": ("open_lm_7b", 1.0, 0.007320, 0.000464),
}
"""By name: model, multiple of 20 tokens per parameter, published relative error of the loss and of the 17-task error."""

LEAST_SQUARES = Settings(huber_delta=np.inf, space="linear", bootstrap=0)


def table() -> pd.DataFrame:
    """Return the models trained on RedPajama."""
    models = pd.read_csv(TABLES / "open_lm.csv")
    return models[models["dataset"] == "rpj"].reset_index(drop=True)


def fits() -> tuple[Fit, Fit]:
    """Return the loss law and the error law."""
    models = table()
    small = models["model"].str.startswith("d=")
    five = (small & (models["multiplier"] == 1)) | ((models["model"] == "d=96_l=8_h=4") & (models["multiplier"] == 16))
    six = five | ((models["model"] == "open_lm_1b") & (models["multiplier"] == 1))
    sizes = {name: models[name].to_numpy(dtype=float) for name in ("parameters", "tokens")}
    loss, error = (models[name].to_numpy(dtype=float) for name in ("loss_c4_nats", "error_17_tasks"))
    losses = fit(LAWS["chinchilla-tied"], Observations.of(sizes, loss).where(five.to_numpy()), LEAST_SQUARES)
    errors = fit(LAWS["error-of-loss"], Observations.of({"loss": loss}, error).where(six.to_numpy()), LEAST_SQUARES)
    return losses, errors


def study() -> Study:
    """Compare published numbers with ours."""
    models, (losses, errors) = table(), fits()
    numbers = []
    for name, (model, multiplier, of_loss, of_error) in TARGETS.items():
        row = models[(models["model"] == model) & (models["multiplier"] == multiplier)]
        loss = losses.predict({column: row[column].to_numpy(dtype=float) for column in ("parameters", "tokens")})
        away = abs(float(loss[0] / row["loss_c4_nats"].iloc[0]) - 1)
        numbers.append(Number(f"{name}, relative error of loss", of_loss, away, 1e-5, absolute=True))
        away = abs(float(errors.predict({"loss": loss})[0] / row["error_17_tasks"].iloc[0]) - 1)
        numbers.append(Number(f"{name}, relative error of 17-task error", of_error, away, 1e-5, absolute=True))
    status = f"loss: {status_words(losses.status, losses.reasons)}; error: {status_words(errors.status, errors.reasons)}"
    return Study(TITLE, SOURCE, METHOD, status, tuple(numbers))
