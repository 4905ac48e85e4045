"""Laws as objects: formulas over table columns, with parameters named as in the literature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]

Pairs = Mapping[tuple[int, int], Floats]
"""Second derivatives, each B × n, by parameter pair in the law's order."""

STEEPEST = 10.0
"""The largest exponent of a fit; the steepest in the literature are below 2."""


@dataclass(frozen=True)
class Derivatives:
    """Values (B × n), gradients in θ (B × n × p), and Σᵢ wᵢ·∇²fᵢ (B × p × p) for weights w (B × n)."""

    value: Floats
    jacobian: Floats
    curvature: Callable[[Floats], Floats]


class Surface(ABC):
    """A law at the rows of one table, in coordinates θ that suit the fit, for many θ (B × p).

    θ has one entry per parameter, in the law's order; exponents are unchanged.
    """

    of_rows: ClassVar[tuple[str, ...]]
    """The attributes with an entry by row in their last axis: arrays, or dictionaries of arrays."""

    def part(self, rows: NDArray[np.int64]) -> Self:
        """The surface at some rows, in the same coordinates."""
        some = copy(self)
        for name in self.of_rows:
            whole = getattr(self, name)
            values = {key: each[..., rows] for key, each in whole.items()} if isinstance(whole, dict) else whole[..., rows]
            setattr(some, name, values)
        return some

    @property
    @abstractmethod
    def bounds(self) -> tuple[Floats, Floats]:
        """The lowest and highest θ."""

    @abstractmethod
    def value(self, theta: Floats) -> Floats:
        """The law's values, B × n."""

    @abstractmethod
    def derivatives(self, theta: Floats) -> Derivatives:
        """Values, gradients and curvature."""

    def gradients(self, theta: Floats) -> tuple[Floats, Floats]:
        """Values (B × n) and gradients (B × n × p) alone."""
        result = self.derivatives(theta)
        return result.value, result.jacobian

    def natural(self, theta: Floats) -> Floats:
        """The parameters as published, B × p; by default θ."""
        return theta

    def natural_slopes(self, theta: Floats) -> Floats:
        """∂natural/∂θ at one θ, p × p."""
        return np.eye(len(theta))

    @abstractmethod
    def starts(self, response: Floats, count: int) -> Floats:
        """Starting values of θ, `count` rows or a fixed grid."""


class CurvedSurface(Surface):
    """A surface with second derivatives by row."""

    @abstractmethod
    def expand(self, theta: Floats) -> tuple[Floats, Floats, Pairs]:
        """Values (B × n), gradients (B × n × p), and nonzero second derivatives."""

    def value(self, theta: Floats) -> Floats:
        """The law's values, B × n."""
        return self.expand(theta)[0]

    def derivatives(self, theta: Floats) -> Derivatives:
        """Values, gradients and curvature."""
        value, jacobian, seconds = self.expand(theta)

        def curvature(weights: Floats) -> Floats:
            summed = np.zeros((len(theta), theta.shape[1], theta.shape[1]))
            for (one, other), second in seconds.items():
                summed[:, one, other] = summed[:, other, one] = (weights * second).sum(axis=1)
            return summed

        return Derivatives(value, jacobian, curvature)


@dataclass(frozen=True)
class Law(ABC):
    """A formula with its parameters.

    `predicts` is the output column; `conventions` say how its variables are counted; `source` cites the paper.
    """

    name: str
    formula: str
    conventions: str
    source: str
    predicts: Literal["loss", "score", "error"]

    @property
    @abstractmethod
    def variables(self) -> tuple[str, ...]:
        """The input columns."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[str, ...]:
        """The parameter names."""

    @property
    @abstractmethod
    def exponents(self) -> tuple[str, ...]:
        """The parameters that set the rate of change, which are profiled."""

    @property
    def watched(self) -> tuple[str, ...]:
        """The positive parameters that a wide interval marks as poorly determined."""
        return self.exponents

    def fewest_values(self, variable: str) -> int:
        """The fewest distinct values of a variable that show its effect."""
        return 2

    @abstractmethod
    def at(self, columns: Columns) -> Surface:
        """The law at the rows of a table."""

    @abstractmethod
    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """Evaluate parameters B × p at all rows, B × n."""

    def predict(self, estimates: Mapping[str, float], columns: Columns) -> Floats:
        """The formula at named parameters, one value per row; raises KeyError if a name is missing."""
        return np.asarray(self.values(np.array([[estimates[name] for name in self.parameters]]), columns)[0])
