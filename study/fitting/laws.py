"""Laws as objects: a formula over the columns of a table, its parameters by their names in the literature, its derivatives.

A law is estimated in internal parameters, θ: the logarithm of a parameter that must be positive, itself otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]


@dataclass(frozen=True)
class Derivatives:
    """A law's values (B × n), their gradients in θ (B × n × p), and Σᵢ wᵢ·∇²fᵢ (B × p × p) for weights w (B × n)."""

    value: Floats
    jacobian: Floats
    curvature: Callable[[Floats], Floats]


class Surface(ABC):
    """A law at the rows of one table: a function of θ alone, for many θ at a time (B × p)."""

    @abstractmethod
    def value(self, theta: Floats) -> Floats:
        """The law's values, B × n."""

    @abstractmethod
    def derivatives(self, theta: Floats) -> Derivatives:
        """Values, gradients and curvature."""


@dataclass(frozen=True)
class Law(ABC):
    """A formula with its parameters.

    `predicts` is the column that the formula gives, `conventions` say what its variables count, and `source` where it is from.
    """

    name: str
    formula: str
    conventions: str
    source: str
    predicts: Literal["loss", "score", "error"]

    @property
    @abstractmethod
    def variables(self) -> tuple[str, ...]:
        """The columns that the formula needs."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in the order of θ."""

    @property
    @abstractmethod
    def exponents(self) -> tuple[str, ...]:
        """The parameters that say how fast the response changes: those whose profile is worth drawing."""

    @property
    @abstractmethod
    def logarithmic(self) -> NDArray[np.bool_]:
        """Which θ are logarithms of their parameters."""

    @property
    @abstractmethod
    def bounds(self) -> tuple[Floats, Floats]:
        """The lowest and highest θ."""

    @abstractmethod
    def at(self, columns: Columns) -> Surface:
        """The law at the rows of a table."""

    @abstractmethod
    def starts(self, columns: Columns, response: Floats, count: int) -> Floats:
        """About `count` θ to start a fit from, count × p."""

    def negligible(self, theta: Floats, columns: Columns) -> tuple[str, ...]:
        """The positive parameters that a fit has driven to zero: their terms no longer show anywhere in the table."""
        return ()

    def natural(self, theta: Floats) -> Floats:
        """The parameters of the literature from θ."""
        with np.errstate(over="ignore"):
            return np.where(self.logarithmic, np.exp(theta), theta)

    def internal(self, estimates: Mapping[str, float]) -> Floats:
        """The θ of given parameters; raises KeyError where one is missing."""
        given = np.array([estimates[name] for name in self.parameters], dtype=float)
        return np.where(self.logarithmic, np.log(np.where(self.logarithmic, given, 1.0)), given)

    def predict(self, estimates: Mapping[str, float], columns: Columns) -> Floats:
        """The formula at given parameters, one value a row."""
        return np.asarray(self.at(columns).value(self.internal(estimates)[None])[0])
