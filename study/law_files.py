"""Laws of loss as files: the JSON that a fit leaves, read strictly, and the loss that it predicts for a shape."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Literal

from study.architecture import Architecture
from study.counting import parameters
from study.errors import InputError
from study.schema import NonNegative, Positive, Strict, nearest, shown

Variable = Literal["parameters", "parameters_encoder", "parameters_non_embedding"]


class PowerEstimates(Strict):
    """Estimates of E + A / x^alpha, in nats."""

    E: NonNegative
    A: Positive
    alpha: Positive


class ChinchillaEstimates(PowerEstimates):
    """Estimates of E + A / N^alpha + B / D^beta, in nats."""

    B: Positive
    beta: Positive


class PowerLaw(Strict):
    """Loss as a power of one size: {"law": "power", "variable": "parameters_non_embedding", "estimates": {E, A, alpha}}."""

    law: Literal["power"]
    variable: Variable
    estimates: PowerEstimates

    def loss_nats(self, architecture: Architecture, tokens: float | None) -> float:
        """E + A / x^alpha at the size of a shape; the tokens are those of the fit, whatever is asked."""
        size = parameters(architecture).totals()[self.variable]
        return self.estimates.E + self.estimates.A / math.pow(size, self.estimates.alpha)


class ChinchillaLaw(Strict):
    """Loss by size N and tokens D: {"law": "chinchilla", "estimates": {E, A, B, alpha, beta}}, N counted as `variable`.

    Source: Hoffmann et al. 2022 (arXiv:2203.15556), eq. 2.
    """

    law: Literal["chinchilla"]
    variable: Variable = "parameters_non_embedding"
    estimates: ChinchillaEstimates

    def loss_nats(self, architecture: Architecture, tokens: float | None) -> float:
        """E + A / N^alpha + B / D^beta; raises InputError without tokens."""
        if tokens is None:
            raise InputError.at("--tokens", "is missing; a chinchilla law gives the loss after a number of tokens, such as 1B")
        size, fit = parameters(architecture).totals()[self.variable], self.estimates
        return fit.E + fit.A / math.pow(size, fit.alpha) + fit.B / math.pow(tokens, fit.beta)


Law = PowerLaw | ChinchillaLaw

LAWS: dict[str, type[PowerLaw] | type[ChinchillaLaw]] = {"power": PowerLaw, "chinchilla": ChinchillaLaw}
"""The laws that can be read, by the name that stands under `law`."""


def read_law(path: Path) -> Law:
    """The law of a JSON file; what else a fit says (intervals, status) is not read.

    Raises InputError, with every problem, where the file holds none of LAWS.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError.at(str(path), "does not exist; give the JSON of a fit, as in results/<sweep>/fits/") from None
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError.at(str(path), f"is not JSON: {error}") from None
    name = values.get("law") if isinstance(values, dict) else None
    if not isinstance(name, str) or name not in LAWS:
        known = nearest(name, sorted(LAWS)) if isinstance(name, str) else f"known: {', '.join(sorted(LAWS))}"
        raise InputError.at(str(path), f"holds no law that is known ({shown(name)} under 'law'); {known}")
    return LAWS[name].parse({key: values[key] for key in LAWS[name].model_fields if key in values}, place=str(path))
