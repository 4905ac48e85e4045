"""Laws that are sums of terms, each a power or an exponential: nearly all that the literature has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import qmc

from study.fitting.laws import Columns, Derivatives, Floats, Law, Surface

STEEPEST = 10.0
"""The largest exponent of a power that a fit may end on; the steepest in the literature are below 2."""

_ROWS_FOR_STARTS = 500
_LARGEST_LOGARITHM = 690.0


@dataclass(frozen=True)
class Term:
    """sign · coefficient · Π variable^−exponent, or sign · coefficient · Π exp(−exponent · variable)."""

    coefficient: str
    falls: tuple[tuple[str, str], ...] = ()
    """Pairs of an exponent and its variable."""
    sign: Literal[1, -1] = 1


@dataclass(frozen=True)
class SumOfTerms(Law):
    """A law that is a sum of terms, each log-linear in θ: log |term| = log coefficient − Σ exponent · feature.

    The feature is the logarithm of the variable (a power), or the variable itself (an exponential). Hence every derivative
    is closed: ∇f = Σ term·φ and ∇²f = Σ term·φφᵀ with the constant design φ = ∇ log |term|. Coefficients are positive;
    exponents are between 0 and STEEPEST, or with `signed` between −STEEPEST and STEEPEST.
    """

    terms: tuple[Term, ...] = ()
    feature: Literal["logarithm", "itself"] = "logarithm"
    signed: bool = False

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The columns that the formula needs."""
        return tuple(dict.fromkeys(variable for term in self.terms for _, variable in term.falls))

    @cached_property
    def coefficients(self) -> tuple[str, ...]:
        """The factors, in the order of the terms."""
        return tuple(term.coefficient for term in self.terms)

    @cached_property
    def exponents(self) -> tuple[str, ...]:
        """The exponents, in the order of the terms; two terms may share one."""
        return tuple(dict.fromkeys(exponent for term in self.terms for exponent, _ in term.falls))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The coefficients, then the exponents."""
        return self.coefficients + self.exponents

    @property
    def logarithmic(self) -> NDArray[np.bool_]:
        """The coefficients."""
        return np.arange(len(self.parameters)) < len(self.coefficients)

    @property
    def bounds(self) -> tuple[Floats, Floats]:
        """Coefficients from e^−60 to e^200; exponents as the class says."""
        steepest = STEEPEST if self.feature == "logarithm" else 100.0
        low = np.where(self.logarithmic, -60.0, -steepest if self.signed else 0.0)
        return low, np.where(self.logarithmic, 200.0, steepest)

    def features(self, columns: Columns) -> dict[str, Floats]:
        """What the exponents multiply, by variable."""
        if self.feature == "itself":
            return {name: columns[name] for name in self.variables}
        return {name: np.log(columns[name]) for name in self.variables}

    def at(self, columns: Columns) -> _SumSurface:
        """The law at the rows of a table."""
        features = self.features(columns)
        rows = len(next(iter(features.values())))
        design = np.zeros((len(self.terms), rows, len(self.parameters)))
        for number, term in enumerate(self.terms):
            design[number, :, number] = 1.0
            for exponent, variable in term.falls:
                design[number, :, self.parameters.index(exponent)] -= features[variable]
        return _SumSurface(design, np.array([term.sign for term in self.terms], dtype=float))

    def negligible(self, theta: Floats, columns: Columns) -> tuple[str, ...]:
        """The coefficients whose terms are below 1e-6 of the sum in every row."""
        terms = _terms(self.at(columns).design, theta[None])[:, 0]
        largest = (terms / terms.sum(axis=0)).max(axis=1)
        return tuple(name for name, share in zip(self.coefficients, largest, strict=True) if share < 1e-6)

    def starts(self, columns: Columns, response: Floats, count: int) -> Floats:
        """Exponents spread evenly (Sobol), each with the coefficients that suit it best (variable projection).

        Given the exponents the law is linear: its coefficients are the non-negative least squares of relative errors
        (Golub and Pereyra 1973), over at most 500 rows.
        """
        rows = np.unique(np.linspace(0, len(response) - 1, _ROWS_FOR_STARTS).astype(int))
        features = {name: values[rows] for name, values in self.features(columns).items()}
        steps = 1 << max(0, count - 1).bit_length()
        spread = qmc.Sobol(max(1, len(self.exponents)), seed=0).random(steps)[:count]
        exponents = np.column_stack(
            [self._range(name, features, unit) for name, unit in zip(self.exponents, spread.T, strict=False)]
        )
        return np.array([self._projected(tried, features, response[rows]) for tried in exponents])

    def _range(self, exponent: str, features: Mapping[str, Floats], unit: Floats) -> Floats:
        """Exponents under which a term changes e^0.05 to e^5 times over a standard deviation of its variable."""
        variable = next(variable for term in self.terms for name, variable in term.falls if name == exponent)
        spread = float(np.std(features[variable])) or 1.0
        high = self.bounds[1][-1]
        if self.signed:
            return np.clip((2 * unit - 1) * 2 / spread, -high, high)
        return np.clip(0.05 * 100**unit / spread, 1e-3, 0.9 * high)

    def _projected(self, exponents: Floats, features: Mapping[str, Floats], response: Floats) -> Floats:
        falls = dict(zip(self.exponents, exponents, strict=True))
        basis, shifts = [], []
        for term in self.terms:
            drop = sum((falls[name] * features[variable] for name, variable in term.falls), np.zeros_like(response))
            shifts.append(drop.mean())
            basis.append(term.sign * np.exp(np.clip(drop.mean() - drop, -_LARGEST_LOGARITHM, _LARGEST_LOGARITHM)))
        coefficients, _ = nnls(np.column_stack(basis) / response[:, None], np.ones_like(response))
        floor = 1e-3 * float(np.median(np.abs(response)))
        low, high = self.bounds
        theta = np.concatenate([np.log(np.maximum(coefficients, floor)) + shifts, exponents])
        return np.asarray(np.clip(theta, low, high))


class _SumSurface(Surface):
    """A sum of terms by its design, terms × n × p."""

    def __init__(self, design: Floats, signs: Floats) -> None:
        self.design = design
        self.signs = signs

    @cached_property
    def _squares(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64], Floats]]:
        """φφᵀ of every term where it is not zero: the places (p, q) and their values, n × places."""
        found = []
        for rows in self.design:
            used = np.flatnonzero(rows.any(axis=0))
            one, other = (index.ravel() for index in np.meshgrid(used, used))
            found.append((one, other, rows[:, one] * rows[:, other]))
        return found

    def value(self, theta: Floats) -> Floats:
        """The law's values, B × n."""
        return np.asarray(np.einsum("k,kbn->bn", self.signs, _terms(self.design, theta)))

    def derivatives(self, theta: Floats) -> Derivatives:
        """Values, gradients and curvature."""
        terms = _terms(self.design, theta) * self.signs[:, None, None]
        size = theta.shape[1]

        def curvature(weights: Floats) -> Floats:
            summed = np.zeros((len(weights), size, size))
            for term, (one, other, squares) in zip(terms, self._squares, strict=True):
                summed[:, one, other] += (weights * term) @ squares
            return summed

        jacobian = np.zeros((*terms.shape[1:], size))
        for term, design in zip(terms, self.design, strict=True):
            for column in np.flatnonzero(design.any(axis=0)):
                jacobian[:, :, column] += term * design[:, column]
        return Derivatives(terms.sum(axis=0), jacobian, curvature)


def _terms(design: Floats, theta: Floats) -> Floats:
    """The absolute terms, terms × B × n."""
    logarithms = np.stack([theta @ rows.T for rows in design])
    np.clip(logarithms, -_LARGEST_LOGARITHM, _LARGEST_LOGARITHM, out=logarithms)
    return np.asarray(np.exp(logarithms, out=logarithms))
