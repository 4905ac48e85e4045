"""Automatic differentiation: values with their first and second derivatives (forward mode)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from study.laws.law import Floats

LARGEST_EXPONENT = 600.0
"""Exponentials are taken of at most this, so that their squares are finite."""

_NEXT_TO_ZERO = 1e-300
"""Stands for 0 as a base: its powers and their derivatives go to zero, those with negative exponents beyond all bounds."""

Number = float | Floats

KeyT = TypeVar("KeyT")


@dataclass(frozen=True)
class Jet:
    """A value with its derivatives in the parameters that it depends on; absent ones are zero.

    `slopes` has ∂/∂θᵢ by i, `bends` has ∂²/∂θᵢ∂θⱼ by (i, j) with i ≤ j, or is None where slopes are enough. All arrays
    broadcast to B × n. Which entries exist depends on the formula alone: a missing second derivative proves a parameter linear.
    Source: second-order forward mode, Griewank and Walther 2008, Evaluating Derivatives, ch. 13.
    """

    value: Floats
    slopes: Mapping[int, Floats] = field(default_factory=dict)
    bends: Mapping[tuple[int, int], Floats] | None = field(default_factory=dict)

    __array_ufunc__ = None
    """Leaves `array * jet` and the like to the jet."""

    def of(self, value: Floats, slope: Floats, bend: Floats) -> Jet:
        """Return the jet of a function of this value, from its value, derivative and second derivative here."""
        slopes = {index: slope * first for index, first in self.slopes.items()}
        if self.bends is None:
            return Jet(value, slopes, None)
        bends = {pair: slope * second for pair, second in self.bends.items()}
        for one, first in self.slopes.items():
            for other, second in self.slopes.items():
                if one <= other:
                    bends[one, other] = bends.get((one, other), 0.0) + bend * first * second
        return Jet(value, slopes, bends)

    def __neg__(self) -> Jet:
        return self * -1.0

    def __add__(self, other: Jet | Number) -> Jet:
        if not isinstance(other, Jet):
            return Jet(self.value + other, self.slopes, self.bends)
        bends = None if self.bends is None or other.bends is None else _summed(self.bends, other.bends)
        return Jet(self.value + other.value, _summed(self.slopes, other.slopes), bends)

    def __radd__(self, other: Number) -> Jet:
        return self + other

    def __sub__(self, other: Jet | Number) -> Jet:
        return self + -other

    def __rsub__(self, other: Number) -> Jet:
        return -self + other

    def __mul__(self, other: Jet | Number) -> Jet:
        if not isinstance(other, Jet):
            bends = None if self.bends is None else _scaled(self.bends, other)
            return Jet(self.value * other, _scaled(self.slopes, other), bends)
        slopes = _summed(_scaled(self.slopes, other.value), _scaled(other.slopes, self.value))
        if self.bends is None or other.bends is None:
            return Jet(self.value * other.value, slopes, None)
        bends = _summed(_scaled(self.bends, other.value), _scaled(other.bends, self.value))
        for one, left in self.slopes.items():
            for two, right in other.slopes.items():
                pair = (min(one, two), max(one, two))
                bends[pair] = bends.get(pair, 0.0) + left * right * (2.0 if one == two else 1.0)
        return Jet(self.value * other.value, slopes, bends)

    def __rmul__(self, other: Number) -> Jet:
        return self * other

    def __truediv__(self, other: Jet | Number) -> Jet:
        return self * other**-1.0

    def __rtruediv__(self, other: Number) -> Jet:
        return self**-1.0 * other

    def __pow__(self, exponent: Jet | Number) -> Jet:
        if isinstance(exponent, Jet):
            return (exponent * self.log()).exp()
        if isinstance(exponent, float) and exponent == 2.0:
            return self * self
        slope = exponent * self.value ** (exponent - 1.0)
        return self.of(self.value**exponent, slope, exponent * (exponent - 1.0) * self.value ** (exponent - 2.0))

    def __rpow__(self, base: Number) -> Jet:
        return (self * np.log(np.where(base == 0, _NEXT_TO_ZERO, base))).exp()

    def exp(self) -> Jet:
        """Return the exponential."""
        value = exp(self.value)
        return self.of(value, value, value)

    def log(self) -> Jet:
        """Return the natural logarithm."""
        inverse = 1.0 / self.value
        return self.of(np.log(self.value), inverse, -(inverse**2))


def exp(value: Floats) -> Floats:
    """Return the exponential of at most LARGEST_EXPONENT."""
    return np.asarray(np.exp(np.clip(value, -LARGEST_EXPONENT, LARGEST_EXPONENT)))


def _scaled(parts: Mapping[KeyT, Floats], factor: Number) -> dict[KeyT, Floats]:
    return {key: part * factor for key, part in parts.items()}


def _summed(one: Mapping[KeyT, Floats], other: Mapping[KeyT, Floats]) -> dict[KeyT, Floats]:
    summed = dict(one)
    for key, part in other.items():
        summed[key] = summed[key] + part if key in summed else part
    return summed
