"""Letters that arithmetic turns into a formula, so that one expression both counts and is printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Symbol:
    """A letter or an expression of letters, as text; arithmetic on it writes the formula, and neither 1· nor + 0."""

    text: str
    is_sum: bool = False

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: Quantity) -> Quantity:
        return self if other == 0 else Symbol(f"{self} + {other}", is_sum=True)

    def __radd__(self, other: int) -> Quantity:
        return self if other == 0 else Symbol(f"{other} + {self}", is_sum=True)

    def __sub__(self, other: Quantity) -> Quantity:
        return self if other == 0 else Symbol(f"{self} − {other}", is_sum=True)

    def __rsub__(self, other: int) -> Quantity:
        return Symbol(f"{other} − {self}", is_sum=True)

    def __mul__(self, other: Quantity) -> Quantity:
        if isinstance(other, int):
            return other * self
        if self == other:
            return self**2
        return Symbol(f"{self._factor()}·{other._factor()}")

    def __rmul__(self, other: int) -> Quantity:
        if other == 0:
            return 0
        return self if other == 1 else Symbol(f"{other}·{self._factor()}")

    def __pow__(self, power: Literal[2]) -> Symbol:
        return Symbol(f"{self._factor()}²")

    def _factor(self) -> str:
        return f"({self})" if self.is_sum else self.text


Quantity = int | Symbol
"""A number, or the formula of one."""
