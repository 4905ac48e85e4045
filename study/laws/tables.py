"""A table of runs, and what its maker knows of its rows and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.laws.table_files import read_table


@dataclass(frozen=True)
class Selection:
    """What the maker of a table knows of its rows and columns; tables from outside have none.

    `roles` gives the column or expression of each variable, `counts` all columns that count it, the usual one first. `excluded`
    says by row why every law leaves it out, `unbracketed` why where only bracketed learning rates count. `runs` and `clusters`
    number the run of each row and what misses a law together, of the kind `cluster`. Losses of rows that differ in a column of
    `validation` are not comparable; rows that differ in a column of `settings` follow different laws. Rows that agree in all
    variables and differ in a column of `amounts` (with a description) do not repeat each other. `without_order` holds the rows
    of runs that read no word order, whose losses follow another law.
    """

    roles: Mapping[str, str]
    counts: Mapping[str, Sequence[str]]
    excluded: Mapping[int, str]
    unbracketed: Mapping[int, str]
    runs: NDArray[np.int64]
    clusters: NDArray[np.int64]
    cluster: str
    validation: Sequence[str]
    settings: Sequence[str]
    amounts: Mapping[str, str]
    without_order: frozenset[int] = frozenset()


@dataclass(frozen=True)
class RunTable:
    """A table of runs, with the file or folder that messages name, and the selection of its maker."""

    path: Path
    frame: pd.DataFrame
    selection: Selection | None = None

    @classmethod
    def read(cls, path: Path) -> RunTable:
        """Read a table from outside; see read_table."""
        return cls(path, read_table(path))

    @property
    def roles(self) -> Mapping[str, str]:
        """The columns or expressions that the selection gives for variables."""
        return {} if self.selection is None else self.selection.roles

    @property
    def counts(self) -> Mapping[str, Sequence[str]]:
        """All columns that count a variable, by the selection."""
        return {} if self.selection is None else self.selection.counts

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """The number of each row's run; without a selection every row is its own."""
        return np.arange(len(self.frame)) if self.selection is None else self.selection.runs

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of rows: numbered from 1, without the header."""
        return tuple(f"row {row}" for row in range(1, len(self.frame) + 1))

    def left_out(self, bracketed_only: bool) -> NDArray[np.object_]:
        """By row: why the selection or a repetition leaves it out, or None."""
        gone = dict.fromkeys(self._repeated, "repeats an earlier row")
        if self.selection is not None:
            gone |= self.selection.unbracketed if bracketed_only else self.selection.excluded
        reasons = np.full(len(self.frame), None, dtype=object)
        reasons[list(gone)] = list(gone.values())
        return reasons

    @cached_property
    def _repeated(self) -> list[int]:
        of_anything = [name for name in self.frame if self.frame[name].dtype == object]  # lists, say, which have no hash
        return np.flatnonzero(self.frame.astype(dict.fromkeys(of_anything, str)).duplicated()).tolist()


def number_runs(names: pd.Series[Any]) -> NDArray[np.int64]:
    """Number runs by name; a row without a name is a run of its own."""
    numbers = pd.factorize(names)[0]
    alone = numbers < 0
    return np.where(alone, numbers.max(initial=-1) + 1 + np.cumsum(alone), numbers).astype(np.int64)
