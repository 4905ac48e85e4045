"""Windows of consecutive tokens or words, compared by their hashes: which windows of one text occur in another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_SPARSE = 8
"""Cells of the table of a `WindowSet` for each of its windows: an eighth of foreign windows pass it."""


def mixed(numbers: Hashes) -> Hashes:
    """Numbers spread over all 64 bits, each to one of its own.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators, OOPSLA).
    """
    numbers = (numbers + np.uint64(1)) * _BASE
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def window_hashes(items: Hashes, length: int) -> Hashes:
    """The hash of every window of `length` consecutive items, Σ xⱼ·Bʲ modulo 2⁶⁴; none where there are fewer items.

    Items are hashes themselves. Two different windows of a billion share one with probability 0.03.
    """
    count = max(0, len(items) - length + 1)
    hashes = np.zeros(count, np.uint64)
    for offset in range(length):
        hashes *= _BASE
        hashes += items[offset : offset + count]
    return hashes


def items_in(chosen: NDArray[np.bool_], length: int, count: int) -> NDArray[np.bool_]:
    """Which of `count` items stand in any of the chosen windows of `length` items; `chosen` has one flag a window."""
    changes = np.zeros(count + 1, np.int8)
    changes[: len(chosen)] = chosen
    changes[length : length + len(chosen)] -= chosen
    return np.cumsum(changes[:-1], dtype=np.int32) > 0


class WindowSet:
    """The windows of one text, and which of them have been met in another.

    Holds about 40 bytes a window. A table of the hashes' leading bits passes over most windows that are not in the set, in a
    tenth of the time of looking them up.
    """

    def __init__(self, windows: Hashes) -> None:
        self._known, self._places = np.unique(windows, return_inverse=True)
        self._met = np.zeros(len(self._known), np.bool_)
        self._shift = np.uint64(64 - max(1, int(len(self._known) * _SPARSE).bit_length()))
        self._table = np.zeros(1 << (64 - int(self._shift)), np.bool_)
        self._table[self._known >> self._shift] = True

    def meet(self, windows: Hashes) -> None:
        """Remember which windows of the set are among these."""
        candidates = windows[self._table[windows >> self._shift]]
        places = np.searchsorted(self._known, candidates)
        places[places == len(self._known)] = 0
        self._met[places[self._known[places] == candidates]] = True

    @property
    def met(self) -> NDArray[np.bool_]:
        """For each window of the text, in its order, whether it has been met."""
        return self._met[self._places]

    def forget(self) -> None:
        """Begin again with no window met."""
        self._met[:] = False
