"""Which rows belong together: seeds of one setting, checkpoints of one run.

Rows with shared errors count as one, or intervals are too narrow: with 12 runs of 8 checkpoints, 95% intervals over rows
covered 58%, over runs 98%; with 20 settings of 3 seeds, 83% and 98%.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import f

from study.base.quantities import plural
from study.laws.columns import find_columns
from study.laws.law import Floats

ALONG_A_RUN = ("tokens", "flops", "unique_tokens", "loss")
"""The variables that change during a run; all others describe its model."""

SEARCHED = 1e-3
"""The p-value below which a column moves the loss within a setting."""

ROWS_OF_A_SEARCH = 3
"""The mean number of rows per setting that may indicate a search."""

EVENLY = 0.02
"""The relative range of distances within which checkpoints are evenly spaced."""

FEWEST_CHECKPOINTS = 4
"""The fewest rows per size that can show even spacing."""

_MOST_VALUES = 100
_OTHERWISE = "--cluster names the groups"


@dataclass(frozen=True)
class RowGroups:
    """The run number and cluster number of each row, and its size number if clusters may be merged by size.

    `kind` names a cluster; `note` says how the groups were inferred.
    """

    runs: NDArray[np.int64]
    clusters: NDArray[np.int64]
    kind: str = "run"
    sizes: NDArray[np.int64] | None = None
    note: str = ""


def group_rows(table: pd.DataFrame, variables: Mapping[str, Floats], response: Floats) -> RowGroups:
    """Infer the groups of rows; `table` holds the columns that the law does not use.

    Checkpoints of a run count as one, as do seeds of a setting. If settings scatter about a law 1.5 times as widely as seeds,
    95% intervals over rows covered 67% to 82%, over settings 96% to 98%; else 94% to 96% and 96% to 97%.
    """
    content = [*variables.values(), response]
    rows = number_by_content(np.arange(len(response)), content)
    sizes = number_groups(sizes_of(variables)) if sizes_of(variables) else None
    if (name := find_run_column(table, variables)) is not None:
        runs = number_by_content(pd.factorize(table[name].astype(str))[0], content)
        return RowGroups(runs, runs, sizes=sizes, note=_checkpoints(runs, f"by {name!r}"))
    if sizes is not None and "tokens" in variables and are_evenly_spaced(sizes, variables["tokens"]):
        runs = number_by_content(sizes, content)
        return RowGroups(runs, runs, note=_checkpoints(runs, "by their evenly spaced tokens"))
    settings = number_by_content(number_groups(list(variables.values())), content)
    if (count := int(settings.max()) + 1) == len(rows):
        return RowGroups(rows, rows, sizes=sizes)
    note = f"{plural(len(rows), 'row')} are of {plural(count, 'setting')}, and rows of a setting count as one; {_OTHERWISE}"
    return RowGroups(rows, settings, "setting", sizes, note)


def _checkpoints(runs: NDArray[np.int64], how: str) -> str:
    counts = f"{plural(len(runs), 'row')} are taken as checkpoints of {plural(int(runs.max()) + 1, 'run')} {how}"
    return f"{counts}, and those of a run count as one; {_OTHERWISE}"


def number_groups(columns: Sequence[Floats]) -> NDArray[np.int64]:
    """Number groups of rows that agree in every column."""
    return np.unique(np.column_stack(columns), axis=0, return_inverse=True)[1].ravel().astype(np.int64)


def number_by_content(groups: NDArray[np.int64], columns: Sequence[Floats]) -> NDArray[np.int64]:
    """Renumber groups by content, so row order does not affect resamples."""
    contents = number_groups(columns)
    order = np.lexsort((contents, groups))
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    keys = [tuple(part.tolist()) for part in np.split(contents[order], starts[1:])]
    names = groups[order][starts]
    ranks = np.empty(int(groups.max()) + 1, dtype=np.int64)
    ranks[names[sorted(range(len(keys)), key=keys.__getitem__)]] = np.arange(len(keys))
    return ranks[groups]


def sizes_of(variables: Mapping[str, Floats]) -> list[Floats]:
    """The columns that describe model size."""
    return [values for name, values in variables.items() if name not in ALONG_A_RUN]


def find_run_column(table: pd.DataFrame, variables: Mapping[str, Floats]) -> str | None:
    """Find the column that identifies each checkpoint's run.

    Rows of a run have one size and different tokens. A column not named like runs must also separate runs of one size.
    """
    if "tokens" not in variables:
        return None
    sizes = sizes_of(variables)
    of_size = number_groups(sizes) if sizes else np.zeros(len(table), dtype=np.int64)
    named = find_columns("run", map(str, table.columns))
    for name in (*named, *(str(column) for column in table.columns if str(column) not in named)):
        runs = _run_numbers(table[name], name in named)
        if runs is None or not _are_checkpoints(runs, of_size, variables["tokens"]):
            continue
        if name in named or (len(np.unique(of_size)) > 1 and runs.max() > of_size.max()):
            return name
    return None


def _run_numbers(column: pd.Series, called_run: bool) -> NDArray[np.int64] | None:
    """Each row's run number; None for measurements and columns with gaps."""
    if column.isna().any() or (pd.api.types.is_float_dtype(column) and not called_run):
        return None
    return pd.factorize(column.astype(str))[0].astype(np.int64)


def _are_checkpoints(runs: NDArray[np.int64], of_size: NDArray[np.int64], tokens: Floats) -> bool:
    """Whether every group has one size and different tokens, and most have several rows."""
    rows = pd.DataFrame({"size": of_size, "tokens": tokens}).groupby(runs)
    count, distinct = rows.size(), rows.nunique()
    return bool((count > 1).mean() > 0.5 and (distinct["size"] == 1).all() and (distinct["tokens"] == count).all())


def are_evenly_spaced(of_size: NDArray[np.int64], tokens: Floats) -> bool:
    """Whether the tokens of every size are evenly spaced, like checkpoints of one run."""
    groups = [np.sort(group.to_numpy()) for _, group in pd.Series(tokens).groupby(of_size)]
    if not groups or min(map(len, groups)) < FEWEST_CHECKPOINTS:
        return False
    steps = [np.diff(group) for group in groups]
    return all(step.min() > 0 and np.ptp(step) <= EVENLY * step.mean() for step in steps)


def searched_columns(table: pd.DataFrame, settings: NDArray[np.int64], response: Floats, used: Iterable[str]) -> list[str]:
    """The columns that move the response within `settings`, as learning rates do and seeds do not.

    Method: analysis of variance of each column's levels, given the settings.
    """
    if len(settings) < ROWS_OF_A_SEARCH * (settings.max() + 1):
        return []
    within = response - (np.bincount(settings, response) / np.bincount(settings))[settings]
    numbers = table.drop(columns=[name for name in used if name in table]).select_dtypes("number")
    return [str(name) for name, column in numbers.items() if _moves(column.to_numpy(dtype=float), settings, within)]


def _moves(values: Floats, settings: NDArray[np.int64], within: Floats) -> bool:
    if not np.isfinite(values).all():
        return False
    levels = number_groups([values])
    count = int(levels.max()) + 1
    spare = len(values) - int(settings.max()) - count
    varying = pd.Series(levels).groupby(settings).nunique().to_numpy() >= ROWS_OF_A_SEARCH
    if not 2 < count <= min(_MOST_VALUES, len(values) // 2) or spare < 1 or varying.mean() < 0.5:
        return False
    means = np.bincount(levels, within) / np.bincount(levels)
    explained, total = float(np.square(means[levels]).sum()), float(np.square(within).sum())
    left = max(total - explained, 1e-12 * total)
    return bool(total > 0 and f.sf(explained / (count - 1) / (left / spare), count - 1, spare) < SEARCHED)
