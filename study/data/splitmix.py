"""SplitMix64, which hashes a counter, in 64-bit integers of torch or NumPy that wrap around.

Source: Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators, OOPSLA, figure 17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Integers = TypeVar("Integers", "Tensor", NDArray[np.int64])
"""Signed integers, since torch multiplies no others."""

GOLDEN, _FIRST, _SECOND = (bits - 2**64 for bits in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""The constants as int64; GOLDEN is the step of the counter."""


def mixed(numbers: Integers) -> Integers:
    """Mix the bits one to one: each input bit flips about half the output bits (the finaliser)."""
    numbers = (numbers ^ shifted(numbers, 30)) * _FIRST
    numbers = (numbers ^ shifted(numbers, 27)) * _SECOND
    return numbers ^ shifted(numbers, 31)


def shifted(numbers: Integers, bits: int) -> Integers:
    """Shift right logically, as if unsigned."""
    logical: Integers = (numbers >> bits) & (2 ** (64 - bits) - 1)
    return logical
