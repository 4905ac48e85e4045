"""How much of the validation text occurs, word for word, in the training text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from study.config.run_config import OVERLAP_WINDOW

Tokens = NDArray[np.unsignedinteger]
Hashes = NDArray[np.uint64]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_SPARSE = 8
"""Cells of the table of a `WindowSet` for each of its windows: an eighth of foreign windows pass it."""

BLOCK = 2**20
"""How many training tokens are looked at in one go."""

CHUNK = 2**23
"""How many windows of the validation text are held in memory; of more, the training text is read once for each so many."""


def overlap_share(validation: Tokens, train: Tokens, vocabulary: int, separator: int) -> float:
    """The share of validation tokens that stand in a window of OVERLAP_WINDOW tokens that occurs in the training text.

    Both are streams of documents with a separator behind each, mapped from their files. Windows lie within one document, and
    separators are no tokens of the text. Memory does not depend on the size of either; 60M tokens take two seconds.

    Source: the 13-grams by which Brown et al. 2020 (Language models are few-shot learners, appendix C) look for test text
    in training text; theirs are of words, these are of tokens.
    """
    table = mixed(np.arange(vocabulary, dtype=np.uint64))
    own_table = table.copy()
    own_table[separator] += np.uint64(1)  # so that no window across the end of a document is met
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
    """The hashes of the windows that begin at `count` tokens from `start` on."""
    return window_hashes(table[tokens[start : start + count + OVERLAP_WINDOW - 1]], OVERLAP_WINDOW)


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
