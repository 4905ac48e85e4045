"""A table of runs and its maker's knowledge of rows and columns."""

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
    """A table maker's knowledge of rows and columns; external tables have none.

    `roles` gives each variable's column or expression, `counts` all its counts, the usual one first. `excluded` gives reasons
    by row; `unbracketed` replaces it if only bracketed learning rates count. `runs` and `clusters` number each row's run and
    group with shared errors, of kind `cluster`. Losses that differ in a `validation` column are not comparable; rows that
    differ in a `settings` column follow different laws. Rows with equal variables that differ in an `amounts` column (with a
    description) are not repeats. `without_order` holds rows of runs that read no word order, whose losses follow another law.
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
    """A table of runs, the path that messages name, and its maker's selection."""

    path: Path
    frame: pd.DataFrame
    selection: Selection | None = None

    @classmethod
    def read(cls, path: Path) -> RunTable:
        """Read an external table; see read_table."""
        return cls(path, read_table(path))

    @property
    def roles(self) -> Mapping[str, str]:
        """The selection's columns or expressions for variables."""
        return {} if self.selection is None else self.selection.roles

    @property
    def counts(self) -> Mapping[str, Sequence[str]]:
        """The selection's counts of each variable."""
        return {} if self.selection is None else self.selection.counts

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """Each row's run number; without a selection every row is its own run."""
        return np.arange(len(self.frame)) if self.selection is None else self.selection.runs

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Row names, numbered from 1 without the header."""
        return tuple(f"row {row}" for row in range(1, len(self.frame) + 1))

    def left_out(self, bracketed_only: bool) -> NDArray[np.object_]:
        """By row, why the selection or a repetition excludes it, or None."""
        gone = dict.fromkeys(self._repeated, "repeats an earlier row")
        if self.selection is not None:
            gone |= self.selection.unbracketed if bracketed_only else self.selection.excluded
        reasons = np.full(len(self.frame), None, dtype=object)
        reasons[list(gone)] = list(gone.values())
        return reasons

    @cached_property
    def _repeated(self) -> list[int]:
        of_anything = [name for name in self.frame if self.frame[name].dtype == object]  # lists, for example, have no hash
        return np.flatnonzero(self.frame.astype(dict.fromkeys(of_anything, str)).duplicated()).tolist()


def number_runs(names: pd.Series[Any]) -> NDArray[np.int64]:
    """Number runs by name; an unnamed row is its own run."""
    numbers = pd.factorize(names)[0]
    alone = numbers < 0
    return np.where(alone, numbers.max(initial=-1) + 1 + np.cumsum(alone), numbers).astype(np.int64)
