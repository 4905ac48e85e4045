"""Laws as objects, with parameters named as in the literature, and those that are sums of power or exponential terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import qmc

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]

Pairs = Mapping[tuple[int, int], Floats]
"""Second derivatives, each B × n, by parameter pair in the law's order."""

STEEPEST = 10.0
"""The largest exponent of a fit; the steepest in the literature are below 2."""

_LARGEST_LOGARITHM = 600.0


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
        """Return the surface at some rows, in the same coordinates."""
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
        """Return the law's values, B × n."""

    @abstractmethod
    def derivatives(self, theta: Floats) -> Derivatives:
        """Values, gradients and curvature."""

    def gradients(self, theta: Floats) -> tuple[Floats, Floats]:
        """Values (B × n) and gradients (B × n × p) alone."""
        result = self.derivatives(theta)
        return result.value, result.jacobian

    def natural(self, theta: Floats) -> Floats:
        """Return the parameters as published, B × p; by default θ."""
        return theta

    def natural_slopes(self, theta: Floats) -> Floats:
        """∂natural/∂θ at one θ, p × p."""
        return np.eye(len(theta))

    @abstractmethod
    def starts(self, response: Floats, count: int) -> Floats:
        """Return starting values of θ, `count` rows or a fixed grid."""


class CurvedSurface(Surface):
    """A surface with second derivatives by row."""

    @abstractmethod
    def expand(self, theta: Floats) -> tuple[Floats, Floats, Pairs]:
        """Values (B × n), gradients (B × n × p), and nonzero second derivatives."""

    def value(self, theta: Floats) -> Floats:
        """Return the law's values, B × n."""
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
    def definition(self) -> str:
        """The text by which the law is found or read again."""
        return self.name

    @property
    def title(self) -> str:
        """The name and the formula."""
        return f"{self.name}: {self.formula}"

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
        """Return the fewest distinct values of a variable that show its effect."""
        return 2

    @property
    def any_sign(self) -> tuple[str, ...]:
        """The variables that may be zero or below, where `undefined` says whether the law has a value."""
        return ()

    @property
    def positive_without_range(self) -> tuple[str, ...]:
        """The parameters that are positive only because the law's author gave no range."""
        return ()

    @property
    def linear(self) -> tuple[int, ...]:
        """Indices of parameters in which the law is linear together, which each start sets by least squares on the rows."""
        return ()

    def suited_to(self, response: Floats) -> Law:
        """Return the law for a response of these values."""
        del response
        return self

    def undefined(self, columns: Columns) -> NDArray[np.bool_]:
        """Return the rows in which the law has no value, whatever its parameters; none where all variables are positive."""
        return np.zeros(len(next(iter(columns.values()))), dtype=bool)

    def notes_on(self, columns: Collection[str]) -> tuple[str, ...]:
        """How the law was read for a table of these columns, where that may be meant otherwise."""
        del columns
        return ()

    @abstractmethod
    def at(self, columns: Columns) -> Surface:
        """Return the law at the rows of a table."""

    @abstractmethod
    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """Evaluate parameters B × p at all rows, B × n."""

    def predict(self, estimates: Mapping[str, float], columns: Columns) -> Floats:
        """Return the formula at named parameters, one value per row; raises KeyError if a name is missing."""
        return np.asarray(self.values(np.array([[estimates[name] for name in self.parameters]]), columns)[0])


def scale_of(response: Floats) -> Floats:
    """Return what the errors of a start are relative to: the size of each response, or their mean where signs differ."""
    size = np.abs(response)
    return size if (response > 0).all() or (response < 0).all() else np.full_like(size, size.mean())


@dataclass(frozen=True)
class Term:
    """sign · coefficient · Π variable^−exponent, or sign · coefficient · Π exp(−exponent · variable)."""

    coefficient: str
    falls: tuple[tuple[str, str], ...] = ()
    """Pairs of an exponent and its variable."""
    sign: Literal[1, -1] = 1


@dataclass(frozen=True)
class SumOfTerms(Law):
    """A sum of terms, sign · coefficient · exp(−Σ exponent · feature).

    The feature is the log variable (a power) or the variable (an exponential). Coefficients are ≥ 0; exponents lie between 0
    and STEEPEST, or if `signed` within ±STEEPEST.
    """

    terms: tuple[Term, ...] = ()
    feature: Literal["logarithm", "itself"] = "logarithm"
    signed: bool = False

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The input columns."""
        return tuple(dict.fromkeys(variable for term in self.terms for _, variable in term.falls))

    @cached_property
    def coefficients(self) -> tuple[str, ...]:
        """The coefficients in term order."""
        return tuple(term.coefficient for term in self.terms)

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """The exponents in term order; terms may share one."""
        return tuple(dict.fromkeys(exponent for term in self.terms for exponent, _ in term.falls))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The coefficients, then the exponents."""
        return self.coefficients + self.exponents

    @property
    def linear(self) -> tuple[int, ...]:
        """Indices of the coefficients."""
        return tuple(range(len(self.terms)))

    def fewest_values(self, variable: str) -> int:
        """Three for a variable alone in a term beside a floor, because any floor fits two; else two."""
        floor = any(not term.falls for term in self.terms)
        users = [exponent for term in self.terms for exponent, _ in term.falls]
        alone = any(users.count(term.falls[0][0]) == 1 for term in self.terms if [name for _, name in term.falls] == [variable])
        return 3 if floor and alone else 2

    def features(self, columns: Columns) -> dict[str, Floats]:
        """Return the factor of each variable's exponents."""
        if self.feature == "itself":
            return {name: columns[name] for name in self.variables}
        return {name: np.log(columns[name]) for name in self.variables}

    def at(self, columns: Columns) -> Surface:
        """Return the law at the rows of a table."""
        return _SumSurface(self, self.features(columns))

    def values(self, parameters: Floats, columns: Columns) -> Floats:
        """Evaluate parameters B × p at all rows, B × n."""
        features, index = self.features(columns), self.parameters.index
        total = np.zeros((len(parameters), len(next(iter(features.values())))))
        for number, term in enumerate(self.terms):
            fall = sum(parameters[:, index(name), None] * features[variable] for name, variable in term.falls)
            with np.errstate(divide="ignore"):
                logarithm = np.log(parameters[:, number, None]) - fall
            total += term.sign * np.exp(np.minimum(logarithm, _LARGEST_LOGARITHM))
        return total


class _SumSurface(Surface):
    """A sum of terms in its least curved coordinates: each coefficient at the feature means.

    With centred x, term = c·exp(−Σ αⱼ·xⱼ) is linear in c = coefficient·exp(−Σ αⱼ·mean(featureⱼ)), c and α are nearly
    independent, and a coefficient reaches its bound, 0, along a straight line.
    """

    of_rows = ("features", "across")

    def __init__(self, law: SumOfTerms, features: Mapping[str, Floats]) -> None:
        self.law = law
        self.features = {name: values - values.mean() for name, values in features.items()}
        self.means = {name: float(values.mean()) for name, values in features.items()}
        self.size = len(law.parameters)
        self.falls = [[law.parameters.index(exponent) for exponent, _ in term.falls] for term in law.terms]
        none = np.zeros((0, len(next(iter(features.values())))))
        self.across = {
            k: np.vstack([none, *(self.features[variable] for _, variable in term.falls)]) for k, term in enumerate(law.terms)
        }
        self.centres = [np.array([self.means[variable] for _, variable in term.falls]) for term in law.terms]

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        steepest = STEEPEST if self.law.feature == "logarithm" else 100.0
        coefficient = np.arange(self.size) < len(self.law.terms)
        low = np.where(coefficient | (not self.law.signed), 0.0, -steepest)
        return low, np.where(coefficient, np.inf, steepest)

    def value(self, theta: Floats) -> Floats:
        signs = (term.sign for term in self.law.terms)
        parts = (sign * theta[:, k, None] * self._shape(k, theta) for k, sign in enumerate(signs))
        return np.asarray(sum(parts, start=np.zeros(())))

    def derivatives(self, theta: Floats) -> Derivatives:
        shapes = [term.sign * self._shape(k, theta) for k, term in enumerate(self.law.terms)]
        jacobian = np.zeros((len(theta), shapes[0].shape[1], self.size))
        value = np.zeros(jacobian.shape[:2])
        for k, shape in enumerate(shapes):
            term = theta[:, k, None] * shape
            value += term
            jacobian[:, :, k] = shape
            for index, feature in zip(self.falls[k], self.across[k], strict=True):
                jacobian[:, :, index] -= term * feature

        def curvature(weights: Floats) -> Floats:
            summed = np.zeros((len(theta), self.size, self.size))
            for k, shape in enumerate(shapes):
                weighted, falls, across = weights * shape, self.falls[k], self.across[k].T
                mixed = -(weighted @ across)
                summed[:, k, falls] += mixed
                summed[:, falls, k] += mixed
                for index, feature in zip(falls, across.T, strict=True):
                    summed[:, index, falls] += theta[:, k, None] * (weighted @ (feature[:, None] * across))
            return summed

        return Derivatives(value, jacobian, curvature)

    def natural(self, theta: Floats) -> Floats:
        result = theta.copy()
        for k, (falls, centres) in enumerate(zip(self.falls, self.centres, strict=True)):
            result[:, k] *= np.exp(np.clip(theta[:, falls] @ centres, -_LARGEST_LOGARITHM, _LARGEST_LOGARITHM))
        return result

    def natural_slopes(self, theta: Floats) -> Floats:
        slopes = np.eye(self.size)
        for k, (falls, centres) in enumerate(zip(self.falls, self.centres, strict=True)):
            slopes[k, k] = np.exp(min(theta[falls] @ centres, _LARGEST_LOGARITHM))
            slopes[k, falls] = theta[k] * slopes[k, k] * centres
        return slopes

    def starts(self, response: Floats, count: int) -> Floats:
        """Sobol exponents, each with its best coefficients (variable projection).

        Given exponents the law is linear: coefficients are the non-negative least squares of relative errors (Golub and Pereyra
        1973).
        """
        exponents = self.law.exponents
        steps = 1 << max(0, count - 1).bit_length()
        spread = qmc.Sobol(len(exponents), seed=0).random(steps)[:count]
        tried = np.column_stack([self._range(name, unit) for name, unit in zip(exponents, spread.T, strict=True)])
        theta = np.column_stack([np.ones((len(tried), len(self.law.terms))), tried])
        return np.array([self._projected(one, response) for one in theta])

    def _range(self, exponent: str, unit: Floats) -> Floats:
        """Exponents that change a term e^0.05 to e^5 times over a standard deviation of its variable."""
        variable = next(variable for term in self.law.terms for name, variable in term.falls if name == exponent)
        spread = float(np.std(self.features[variable])) or 1.0
        high = self.bounds[1][-1]
        if self.law.signed:
            return np.asarray(np.clip((2 * unit - 1) * 2 / spread, -high, high))
        return np.asarray(np.clip(0.05 * 100**unit / spread, 1e-3, 0.9 * high))

    def _projected(self, theta: Floats, response: Floats) -> Floats:
        basis = np.column_stack([term.sign * self._shape(k, theta[None])[0] for k, term in enumerate(self.law.terms)])
        scale = scale_of(response)
        coefficients, _ = nnls(basis / scale[:, None], response / scale)
        least = 1e-3 * float(np.median(np.abs(response)))
        return np.concatenate([np.maximum(coefficients, least), theta[len(coefficients) :]])

    def _shape(self, k: int, theta: Floats) -> Floats:
        """Return a term without sign and coefficient, B × n."""
        fall = theta[:, self.falls[k]] @ self.across[k]
        return np.asarray(np.exp(np.clip(-fall, -_LARGEST_LOGARITHM, _LARGEST_LOGARITHM)))
