"""Which word each piece of a running text belongs to, by the characters that both cover. Letters: N pieces, W words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def running_text(words: Sequence[str]) -> tuple[str, Ints]:
    """Words with a space between them, as pre-training reads text, and the character where each begins: (W,)."""
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    begins: Ints = np.cumsum(lengths + 1) - lengths - 1
    return " ".join(words), begins


def word_of_pieces(offsets: Sequence[tuple[int, int]], text: str, begins: Ints) -> Ints:
    """The word of each piece, (N,): the one that its first character other than white space belongs to, or comes before.

    So a leading space, and a piece that is nothing else, belong to the word behind them. A piece that spans several words
    is the first one's.
    """
    visible = np.append(np.flatnonzero([not character.isspace() for character in text]), len(text) - 1)
    first = np.array([begin for begin, _ in offsets], dtype=np.int64)
    characters = visible[np.minimum(np.searchsorted(visible, first), len(visible) - 1)]
    words: Ints = np.searchsorted(begins, characters, side="right") - 1
    return words


def spaced_words(offsets: Sequence[tuple[int, int]], text: str) -> Ints:
    """The word of each piece where white space parts words, (N,)."""
    return word_of_pieces(offsets, text, np.array([match.start() for match in re.finditer(r"\S+", text)], dtype=np.int64))
