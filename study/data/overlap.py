"""The share of the validation text that occurs verbatim in the training text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from study.config.run_config import OVERLAP_WINDOW

Tokens = NDArray[np.unsignedinteger]
Hashes = NDArray[np.uint64]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_SPARSE = 8
"""Table cells per window of a `WindowSet`: an eighth of foreign windows pass."""

BLOCK = 2**20
"""Training tokens hashed at a time."""

CHUNK = 2**23
"""Validation windows held in memory; the training text is read once per chunk."""


def overlap_share(validation: Tokens, train: Tokens, vocabulary: int, separator: int) -> float:
    """Return the share of validation tokens in windows of OVERLAP_WINDOW tokens that occur in the training text.

    Both are memory-mapped streams with a separator after each document. Windows lie within one document; separators do not
    count. Memory is constant; 60M tokens take two seconds.

    Source: the word 13-grams of Brown et al. 2020 (Language models are few-shot learners, appendix C), here of tokens.
    """
    table = mixed(np.arange(vocabulary, dtype=np.uint64))
    own_table = table.copy()
    own_table[separator] += np.uint64(1)  # no window across a document's end matches
    count = max(0, len(validation) - OVERLAP_WINDOW + 1)
    occurring = np.zeros(count, np.bool_)
    for start in range(0, count, CHUNK):
        windows = WindowSet(_hashes(validation, start, CHUNK, own_table))
        for block in range(0, len(train), BLOCK):
            windows.meet(_hashes(train, block, BLOCK, table))
        occurring[start : start + CHUNK] = windows.met
    covered = items_in(occurring, OVERLAP_WINDOW, len(validation))
    return float(covered.sum() / max(1, np.count_nonzero(validation != separator)))


def _hashes(tokens: Tokens, start: int, count: int, table: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return window_hashes(table[tokens[start : start + count + OVERLAP_WINDOW - 1]], OVERLAP_WINDOW)


def mixed(numbers: Hashes) -> Hashes:
    """Spread numbers over 64 bits, one to one.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014, Fast splittable pseudorandom number generators, OOPSLA).
    """
    numbers = (numbers + np.uint64(1)) * _BASE
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def window_hashes(items: Hashes, length: int) -> Hashes:
    """Hash every window of `length` consecutive items (themselves hashes), Σ xⱼ·Bʲ modulo 2⁶⁴; none if there are fewer.

    Two of a billion windows collide with probability 0.03.
    """
    count = max(0, len(items) - length + 1)
    hashes = np.zeros(count, np.uint64)
    for offset in range(length):
        hashes *= _BASE
        hashes += items[offset : offset + count]
    return hashes


def items_in(chosen: NDArray[np.bool_], length: int, count: int) -> NDArray[np.bool_]:
    """Flag which of `count` items lie in a chosen window of `length` items; `chosen` has one flag per window."""
    changes = np.zeros(count + 1, np.int8)
    changes[: len(chosen)] = chosen
    changes[length : length + len(chosen)] -= chosen
    return np.cumsum(changes[:-1], dtype=np.int32) > 0


class WindowSet:
    """The windows of one text, and which of them another text has met.

    About 40 bytes per window. A table of leading hash bits rejects most foreign windows ten times faster than a search.
    """

    def __init__(self, windows: Hashes) -> None:
        self._known, self._places = np.unique(windows, return_inverse=True)
        self._met = np.zeros(len(self._known), np.bool_)
        self._shift = np.uint64(64 - max(1, int(len(self._known) * _SPARSE).bit_length()))
        self._table = np.zeros(1 << (64 - int(self._shift)), np.bool_)
        self._table[self._known >> self._shift] = True

    def meet(self, windows: Hashes) -> None:
        """Mark the windows of the set that are among these."""
        candidates = windows[self._table[windows >> self._shift]]
        indices = np.searchsorted(self._known, candidates)
        indices[indices == len(self._known)] = 0
        self._met[indices[self._known[indices] == candidates]] = True

    @property
    def met(self) -> NDArray[np.bool_]:
        """A flag per window, in text order: whether it has been met."""
        return self._met[self._places]

    def forget(self) -> None:
        """Unmark all windows."""
        self._met[:] = False
