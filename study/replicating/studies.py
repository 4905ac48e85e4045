"""Published scaling studies, fitted again from their data, and the page of the published numbers beside ours."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.base.durable_files import write_atomically
from study.base.errors import InputError
from study.base.quantities import plural, rounded, rounded_all
from study.base.text import escape, status_words, table_of
from study.laws.catalogue import LAWS
from study.laws.estimation import Fit, Settings, fit
from study.laws.forecasting import forecast_rows
from study.laws.law import Floats
from study.laws.observations import Observations
from study.laws.tables import read_table
from study.laws.uncertainty import percentile_interval

TABLES = Path(__file__).parent / "tables"
"""Published tables with licences that allow copies."""


@dataclass(frozen=True)
class Number:
    """A published number, ours, and the tolerance: relative, or a difference if `absolute`."""

    name: str
    published: float
    ours: float
    tolerance: float
    absolute: bool = False

    @property
    def difference(self) -> float:
        """Ours minus the published, relative unless `absolute`."""
        away = self.ours - self.published
        return away if self.absolute else away / abs(self.published)

    @property
    def agrees(self) -> bool:
        """Whether ours is within tolerance."""
        return bool(np.abs(self.difference) <= self.tolerance)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values, ours and the difference rounded to digits of the tolerance."""
        width = self.tolerance * (1.0 if self.absolute else abs(self.published))
        difference = rounded(self.difference, self.tolerance)
        return {**vars(self), "ours": rounded(self.ours, width), "difference": difference, "agrees": self.agrees}


@dataclass(frozen=True)
class Study:
    """A published study and, once it is reproduced, its fit's status and numbers; `skipped` explains why it was not run."""

    title: str
    source: str
    method: str
    status: str = ""
    numbers: tuple[Number, ...] = ()
    skipped: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the study as plain values."""
        return {**vars(self), "numbers": [number.to_dict() for number in self.numbers]}


EPOCH_COLUMNS = ("Model Size", "Training FLOP", "loss")
EPOCH_POINTS = 245
CHINCHILLA = Study(
    "Chinchilla, by Epoch",
    "Besiroglu et al. 2024, arXiv 2404.10102, and its notebook (the cell whose objective is 0.00101827403)",
    f"{EPOCH_POINTS} points; tokens = FLOPs/(6·parameters); without the 5 highest losses. Huber loss of log residuals, delta "
    "1e-3, summed over the 240 points as Σ min(r²/2, delta·(|r| − delta/2)): in this scaling, without any division, the "
    "notebook's objective is met. 4,000 resamples, percentile intervals.",
)
"""Chinchilla's parametric law from its figure's points."""

EPOCH_ESTIMATES = {"A": 477.84, "B": 2143.86, "E": 1.8172, "alpha": 0.3473, "beta": 0.3672}
EPOCH_INTERVALS = {"A": (285, 744), "B": (1042, 5810), "E": (1.769, 1.871), "alpha": (0.317, 0.373), "beta": (0.331, 0.415)}
EPOCH_OBJECTIVE = 0.0010182741


def epoch_points(path: Path) -> Observations:
    """Return the 240 points; raises InputError if the file lacks them."""
    table = read_table(path)
    if missing := [name for name in EPOCH_COLUMNS if name not in table]:
        raise InputError.at(str(path), f"has no column {', '.join(missing)}; give Epoch's svg_extracted_data.csv")
    numbers = table[list(EPOCH_COLUMNS)].apply(pd.to_numeric, errors="coerce")
    points = numbers[np.isfinite(numbers).all(axis=1) & (numbers > 0).all(axis=1)]
    if (len(table), len(points)) != (EPOCH_POINTS, EPOCH_POINTS):
        message = f"holds {len(points)} points of numbers above zero in {plural(len(table), 'row')}, not {EPOCH_POINTS}"
        raise InputError.at(str(path), f"{message}; give Epoch's svg_extracted_data.csv")
    points = points.sort_values("loss", kind="stable").iloc[:-5].sort_index()
    parameters, flops, loss = (points[name].to_numpy(dtype=float) for name in EPOCH_COLUMNS)
    return Observations.of({"parameters": parameters, "tokens": flops / (6 * parameters)}, loss)


def _of_epoch(path: Path) -> Fit:
    """Chinchilla's law fitted to these points."""
    return fit(LAWS["chinchilla"], epoch_points(path), Settings(bootstrap=4000))


def chinchilla(path: Path | None) -> Study:
    """Return the published numbers and ours, if the points are given."""
    if path is None:
        return replace(CHINCHILLA, skipped="its points have no stated licence and are not here; give --chinchilla")
    fitted = _of_epoch(path)
    numbers = [Number(name, value, fitted.estimates[name], 0.005) for name, value in EPOCH_ESTIMATES.items()]
    for name, published in EPOCH_INTERVALS.items():
        percentiles = percentile_interval(fitted.resampled[:, fitted.law.parameters.index(name)])
        ends = zip(("2.5%", "97.5%"), published, percentiles, strict=True)
        numbers += [Number(f"{name}, {end}", value, float(ours), 0.05) for end, value, ours in ends]
    numbers.append(Number("objective", EPOCH_OBJECTIVE, fitted.objective, 1e-6))
    return replace(CHINCHILLA, status=fitted.status, numbers=tuple(numbers))


OLMO_LADDER = Study(
    "OLMo ladder, step 1",
    "Bhagia et al. 2024, arXiv 2412.04403, and the answers in allenai/OLMo",
    "16 models at 1, 2, 5 and 10 times Chinchilla's tokens; E + A·N^−alpha + B·D^−beta, all at least 0, Huber loss of log "
    "residuals, delta 1e-3, summed. Target: the 13B model after 5T tokens. Fit error: mean |predicted − measured|/measured.",
)
"""Step 1 of OLMo's model ladder: the loss of a 13B model from 16 models of up to 1B."""

OLMO_FORECASTS = {
    "loss_c4_nats": ("C4 loss", 2.3443873053175697, -0.03834843411636423, 0.0024730743790536483),
    "hellaswag_bpb": ("HellaSwag bits per byte", 0.6531765996418648, -0.011736859704110904, 0.002564809550553303),
    "piqa_bpb": ("PIQA bits per byte", 0.8747948863685431, -0.026696073643929813, 0.003104357884309965),
}
"""By column: name, forecast, its relative error, and the fit's mean relative error."""


def _ladder(column: str) -> Observations:
    """Return the ladder, then the target."""
    table = pd.read_csv(TABLES / "olmo_ladder.csv")
    sizes = {name: table[name].to_numpy(dtype=float) for name in ("parameters", "tokens")}
    return Observations.of(sizes, table[column].to_numpy(dtype=float))


def _of_ladder(column: str) -> Fit:
    """Chinchilla's law fitted to the ladder."""
    points = _ladder(column)
    return fit(LAWS["chinchilla"], points.where(np.arange(len(points)) < len(points) - 1), Settings(bootstrap=1000))


def olmo_ladder() -> Study:
    """Compare published numbers with ours."""
    numbers, statuses = [], []
    for column, (name, value, error, fit_error) in OLMO_FORECASTS.items():
        points, fitted = _ladder(column), _of_ladder(column)
        forecast = forecast_rows(fitted, points.where(np.arange(len(points)) == len(points) - 1))
        statuses.append(f"{name}: {status_words(fitted.status)}, interval {forecast.low[0]:.3f} to {forecast.high[0]:.3f}")
        numbers.append(Number(f"{name}, forecast", value, float(forecast.predicted[0]), 1e-4 / value))
        numbers.append(Number(f"{name}, relative error", error, float(forecast.errors[0]), 1e-4, absolute=True))
        numbers.append(Number(f"{name}, fit error", fit_error, float(np.mean(np.abs(np.expm1(fitted.residuals)))), 0.01))
    return replace(OLMO_LADDER, status="; ".join(statuses), numbers=tuple(numbers))


OPEN_LM = Study(
    "Over-training, mlfoundations/scaling",
    "Gadre et al. 2024, arXiv 2403.08540, table 1 and its repository",
    "Trained on RedPajama, evaluated on C4. L = E + α·N^b + β·6^(b/2)·(M·N)^b is the law chinchilla-tied with tokens M·N; "
    "least squares of the losses of five models (d=96, 512, 576, 1024 at M = 20, d=96 at M = 320). Error = ε − k·exp(−γ·L), "
    "least squares on those five and open_lm_1b at M = 20, fed with the predicted losses.",
)
"""Loss and error of over-trained models from small ones."""
OPEN_LM_TARGETS = {
    "1.4B at M = 640": ("open_lm_1b", 32.0, 0.007103, 0.036365),
    "6.9B at M = 20": ("open_lm_7b", 1.0, 0.007320, 0.000464),
}
"""By name: model, multiple of 20 tokens per parameter, published relative error of the loss and of the 17-task error."""

LEAST_SQUARES = Settings(huber_delta=np.inf, space="linear", bootstrap=0)


def _open_lm_models() -> pd.DataFrame:
    """Return the models trained on RedPajama."""
    models = pd.read_csv(TABLES / "open_lm.csv")
    return models[models["dataset"] == "rpj"].reset_index(drop=True)


def _of_open_lm() -> tuple[Fit, Fit]:
    """Return the loss law and the error law."""
    models = _open_lm_models()
    small = models["model"].str.startswith("d=")
    five = (small & (models["multiplier"] == 1)) | ((models["model"] == "d=96_l=8_h=4") & (models["multiplier"] == 16))
    six = five | ((models["model"] == "open_lm_1b") & (models["multiplier"] == 1))
    sizes = {name: models[name].to_numpy(dtype=float) for name in ("parameters", "tokens")}
    loss, error = (models[name].to_numpy(dtype=float) for name in ("loss_c4_nats", "error_17_tasks"))
    losses = fit(LAWS["chinchilla-tied"], Observations.of(sizes, loss).where(five.to_numpy()), LEAST_SQUARES)
    errors = fit(LAWS["error-of-loss"], Observations.of({"loss": loss}, error).where(six.to_numpy()), LEAST_SQUARES)
    return losses, errors


def open_lm() -> Study:
    """Compare published numbers with ours."""
    models, (losses, errors) = _open_lm_models(), _of_open_lm()
    numbers = []
    for name, (model, multiplier, of_loss, of_error) in OPEN_LM_TARGETS.items():
        row = models[(models["model"] == model) & (models["multiplier"] == multiplier)]
        loss = losses.predict({column: row[column].to_numpy(dtype=float) for column in ("parameters", "tokens")})
        away = abs(float(loss[0] / row["loss_c4_nats"].iloc[0]) - 1)
        numbers.append(Number(f"{name}, relative error of loss", of_loss, away, 1e-5, absolute=True))
        away = abs(float(errors.predict({"loss": loss})[0] / row["error_17_tasks"].iloc[0]) - 1)
        numbers.append(Number(f"{name}, relative error of 17-task error", of_error, away, 1e-5, absolute=True))
    status = f"loss: {status_words(losses.status, losses.reasons)}; error: {status_words(errors.status, errors.reasons)}"
    return replace(OPEN_LM, status=status, numbers=tuple(numbers))


DATA_CONSTRAINED = Study(
    "Data-constrained law, Muennighoff et al.",
    "Muennighoff et al. 2023, arXiv 2305.16264, and the README of huggingface/datablations",
    "The law data-constrained at the published coefficients, for the two models of its figure 1 (right): 6.34B parameters and "
    "242B tokens, 8.67B parameters and 178B tokens, both of 25B unique tokens.",
)
"""The data-constrained law at its authors' coefficients."""
MUENNIGHOFF = {
    "E": float(np.exp(0.6254804)),
    "A": float(np.exp(6.255414)),
    "B": float(np.exp(7.3049974)),
    "alpha": 0.3526596,
    "beta": 0.3526596,
    "R_D": 15.387756,
    "R_N": 5.309743,
}
MUENNIGHOFF_LOSSES = {(6.34e9, 242e9): 2.2256440889984477, (8.67e9, 178e9): 2.2269634075087867}
"""Loss by parameters and tokens."""

UNIQUE_TOKENS = 25e9


def _muennighoff_losses() -> tuple[float, ...]:
    """Our losses for the published models."""
    parameters, tokens = np.array(list(MUENNIGHOFF_LOSSES)).T
    columns = {"parameters": parameters, "tokens": tokens, "unique_tokens": np.full(len(MUENNIGHOFF_LOSSES), UNIQUE_TOKENS)}
    return tuple(LAWS["data-constrained"].predict(MUENNIGHOFF, columns).tolist())


def data_constrained() -> Study:
    """Compare published losses with ours."""
    numbers = tuple(
        Number(f"loss of {parameters:.3g} parameters, {tokens:.3g} tokens", value, ours, 1e-9)
        for ((parameters, tokens), value), ours in zip(MUENNIGHOFF_LOSSES.items(), _muennighoff_losses(), strict=True)
    )
    return replace(DATA_CONSTRAINED, status="no fit: a formula", numbers=numbers)


RECONCILIATION = Study(
    "Kaplan and Chinchilla reconciled",
    "Pearce and Song 2024, arXiv 2406.12907, sec. 3, with Epoch's coefficients",
    "20 models of 10^2.9 to 10^9.2 parameters without embeddings, width/depth 39.2, vocabulary 32,000; losses from Epoch's law "
    "in all parameters at 1,000 token counts of 10^6 to 10^25. At each of 100 budgets, 6·N·D in one convention, the model of "
    "the lowest loss; the slope of log N over log C by least squares (approach 1). For large models, without embeddings: the "
    "slope of the exact optimum from 10^10.2 to 10^11 parameters, where embeddings hardly matter and the exponent nears "
    "beta/(alpha + beta), that with embeddings at any size.",
)
"""Why Kaplan reports N ∝ C^0.73 and Hoffmann C^0.50: one law, two counts."""
PEARCE = {"A": 482.01, "B": 2085.43, "E": 1.8172, "alpha": 0.3478, "beta": 0.3658}
VOCABULARY, ASPECT = 32_000, 39.2


def _slopes() -> tuple[float, float]:
    """Return the exponent of the best N in compute, without and with embeddings."""
    without = np.logspace(2.9, 9.2, 20)
    everything = without + VOCABULARY * (without * ASPECT / 12) ** (1 / 3)
    tokens = np.logspace(6, 25, 1000)
    return _slope(without, everything, tokens, (12.95, 20.7)), _slope(everything, everything, tokens, (13.4, 20.7))


def _slope(counted: Floats, everything: Floats, tokens: Floats, budgets: tuple[float, float]) -> float:
    flops = np.logspace(*budgets, 100)
    nearest = np.abs(6 * counted[:, None] * tokens - flops[:, None, None]).argmin(axis=2)
    columns = {"parameters": np.tile(everything, len(flops)), "tokens": tokens[nearest].ravel()}
    losses = LAWS["chinchilla"].predict(PEARCE, columns).reshape(nearest.shape)
    return float(np.polyfit(np.log(flops), np.log(counted[losses.argmin(axis=1)]), 1)[0])


def _slope_of_large_models() -> float:
    """Return the same without embeddings, for N of 10^10.2 to 10^11.

    With N_T = N + w·N^(1/3) the best N at C = 6·N·D satisfies αA·N_T^(−α−1)·dN_T/dN·N = βB·D^−β, which gives D(N).
    """
    without = np.logspace(2, 11, 100)[90:]
    embeddings = VOCABULARY * (ASPECT / 12) ** (1 / 3)
    everything = without + embeddings * without ** (1 / 3)
    growth = without + embeddings / 3 * without ** (1 / 3)
    gain = PEARCE["alpha"] * PEARCE["A"] * everything ** (-PEARCE["alpha"] - 1) * growth
    tokens = (gain / (PEARCE["beta"] * PEARCE["B"])) ** (-1 / PEARCE["beta"])
    return float(np.polyfit(np.log(6 * without * tokens), np.log(without), 1)[0])


def reconciliation() -> Study:
    """Compare published slopes with ours."""
    without, everything = _slopes()
    numbers = (
        Number("slope without embeddings, small models", 0.78, without, 0.005, absolute=True),
        Number("slope without embeddings, large models", 0.515, _slope_of_large_models(), 0.001, absolute=True),
        Number("slope with embeddings", PEARCE["beta"] / (PEARCE["alpha"] + PEARCE["beta"]), everything, 0.005, absolute=True),
    )
    return replace(RECONCILIATION, status="no fit: a simulation", numbers=numbers)


def replicate(into: Path, chinchilla_points: Path | None) -> tuple[Study, ...]:
    """Run every replication and write `replications.json` and `replications.md`."""
    studies = (chinchilla(chinchilla_points), olmo_ladder(), open_lm(), data_constrained(), reconciliation())
    text = json.dumps(rounded_all([study.to_dict() for study in studies]), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(into / "replications.json", text.encode() + b"\n")
    write_atomically(into / "replications.md", to_markdown(studies).encode())
    return studies


def to_markdown(studies: tuple[Study, ...]) -> str:
    """One table per study."""
    parts = ["# Replications", "Published numbers beside ours. `make replicate` writes this page."]
    for study in studies:
        parts += [f"## {escape(study.title)}", f"{escape(study.source)}.", escape(study.method)]
        if study.skipped:
            parts.append(f"Skipped: {escape(study.skipped)}.")
            continue
        rows = [
            {
                "number": number.name,
                "published": f"{number.published:.8g}",
                "ours": f"{number.ours:.8g}",
                "difference": _difference(number.difference, number.absolute),
                "within tolerance": "yes" if number.agrees else "no",
            }
            for number in study.numbers
        ]
        parts += [f"Status: {escape(study.status)}.", table_of(rows)]
    return "\n\n".join(parts) + "\n"


def _difference(value: float, absolute: bool) -> str:
    return f"{value:+.2e}" if absolute else f"{value:+z.4%}"
