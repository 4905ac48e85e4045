"""Randomness as a function of purpose and position, so that a resumed run needs no generator state."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Stream(IntEnum):
    """The purpose of a random number; streams of one seed are independent. Numbers enter seeds, so none is ever reused."""

    INITIALISATION = 0
    DATA_ORDER = 1
    MASKS = 2
    DROPOUT = 3
    VALIDATION_MASKS = 5
    HEAD_INITIALISATION = 6
    TASK_ORDER = 7
    TASK_DROPOUT = 8
    VALIDATION_ORDER = 9
    PAIRS = 10
    VALIDATION_PAIRS = 11
    MASKED_WORDS = 12
    GROWTH = 13
    PROJECTION = 14
    VALIDATION_REPLACEMENTS = 15


def stream_seed(stream: Stream, *numbers: int) -> int:
    """Return a 63-bit seed from a stream and the numbers that locate a draw in it (seed, epoch, step, rank)."""
    return int(np.random.SeedSequence((stream, *numbers)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def fixed_permutation(count: int) -> NDArray[np.int64]:
    """Return the one permutation of `count` items, the same for every run and version of NumPy."""
    return np.random.RandomState(0).permutation(count)  # the one stream that NumPy never changes
