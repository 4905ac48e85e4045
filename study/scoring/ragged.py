"""Rows of different lengths in one array, and the rectangles that models take. Letters: B rows, S places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Ragged:
    """Rows of whole numbers, end to end: row i is `values[starts[i]:starts[i + 1]]`."""

    values: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | NDArray[np.int64]]) -> Ragged:
        """Rows as one array."""
        arrays = [np.asarray(row, dtype=np.int64) for row in rows]
        starts = np.concatenate([[0], np.cumsum([len(row) for row in arrays], dtype=np.int64)])
        return cls(np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64), starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        return self.values[self.starts[row] : self.starts[row + 1]]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The length of every row."""
        return np.diff(self.starts)

    def padded(self, rows: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """Some rows as a rectangle (B, `width`), `fill` behind their ends."""
        places = np.arange(width)
        inside = places < self.lengths[rows][:, None]
        rectangle = np.full(inside.shape, fill, dtype=np.int64)
        rectangle[inside] = self.values[(self.starts[rows][:, None] + places)[inside]]
        return rectangle
