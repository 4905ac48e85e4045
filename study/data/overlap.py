"""How much of the validation text occurs, word for word, in the training text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from study.config.run_config import OVERLAP_WINDOW
from study.data.windows import WindowSet, items_in, mixed, window_hashes

Tokens = NDArray[np.unsignedinteger]

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
