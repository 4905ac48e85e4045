"""The rows of a fit, and which of them belong together: seeds of one setting, checkpoints of one run.

Rows with shared errors count as one, or intervals are too narrow: with 12 runs of 8 checkpoints, 95% intervals over rows
covered 58%, over runs 98%; with 20 settings of 3 seeds, 83% and 98%.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from scipy.stats import f

from study.base.errors import InputError, Problem
from study.base.quantities import EQUAL_SPAN, plural
from study.laws.columns import SYNONYMS, find_columns, plain
from study.laws.law import Floats, Law

GROWING = ("parameters", "tokens", "flops", "unique_tokens", "depth", "width", "heads", "ffn", "vocabulary")
"""The variables that grow with a run's cost; others, such as a learning rate or a share of the data, order no runs."""

VOCABULARY = "architecture.vocabulary"
"""The vocabulary size column; losses depend on it."""

ONE_SHARE = 0.01
"""The relative spread of D/N within which tokens follow parameters."""

DEPENDENT = 5e-3
"""The relative spread within which a linear combination of columns does not vary: shares of three digits sum to 1 within it."""

BY_CHOICE = "left out by "
"""The prefix of exclusion reasons that come from a filter."""

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

_OF_ONE_RUN = frozenset(("seed", "seeds", "randomseed", "randomstate", "rngseed", *SYNONYMS["run"].split()))
"""The normalised names of columns that distinguish runs of one setting."""

_MOST_VALUES = 100
_OTHERWISE = "--cluster names the groups"


@dataclass(frozen=True)
class Observations:
    """Points of a scaling study, one per row.

    `columns` holds the variables, `response` what the law predicts. `runs` numbers runs (checkpoints share one), `clusters`
    groups with shared errors, of kind `cluster`. `labels` are the table's row names, `budget` orders rows by size, `roles`
    gives each variable's column or expression, `excluded` reasons for exclusions, `alike` what else all rows share.
    `without_order` labels rows of runs that read no word order. `sizes` numbers model sizes if the query names no clusters;
    `doubts` explain why no fit is trustworthy. `held` marks the rows to forecast from the others, `groups` names each row's
    group to leave out, if the query asks for them.
    """

    columns: Mapping[str, Floats]
    response: Floats
    runs: NDArray[np.int64]
    clusters: NDArray[np.int64]
    labels: tuple[str, ...]
    budget: Floats
    roles: Mapping[str, str] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=())
    alike: Mapping[str, int] = field(default_factory=dict)
    cluster: str = "run"
    without_order: frozenset[str] = frozenset()
    sizes: NDArray[np.int64] | None = None
    doubts: tuple[str, ...] = ()
    held: NDArray[np.bool_] | None = None
    groups: NDArray[np.str_] | None = None

    @classmethod
    def of(cls, columns: Mapping[str, Floats], response: Floats, runs: NDArray[np.int64] | None = None) -> Observations:
        """Observations from arrays; each row is a run unless `runs` is given."""
        plain = {name: np.asarray(values, dtype=float) for name, values in columns.items()}
        rows = np.arange(len(response))
        labels = tuple(f"row {row}" for row in rows)
        own = rows if runs is None else np.unique(runs, return_inverse=True)[1]
        return cls(plain, np.asarray(response, dtype=float), own, own, labels, budget_of(plain))

    def __len__(self) -> int:
        return len(self.response)

    @property
    def n_runs(self) -> int:
        """The number of runs."""
        return len(np.unique(self.runs))

    @property
    def n_clusters(self) -> int:
        """The number of clusters."""
        return len(np.unique(self.clusters))

    @property
    def counted(self) -> str:
        """The counts of rows, runs and clusters, as in: 24 rows of 12 runs and 4 shapes."""
        whole = "" if self.cluster == "run" else f" and {plural(self.n_clusters, self.cluster)}"
        return f"{plural(len(self), 'row')} of {plural(self.n_runs, 'run')}{whole}"

    @property
    def independent(self) -> tuple[int, str]:
        """The number and kind of independent units: settings, whose rows are seeds, or clusters."""
        settings = len(np.unique(np.column_stack(list(self.columns.values())), axis=0))
        return (settings, "setting") if settings < self.n_clusters else (self.n_clusters, self.cluster)

    def where(self, kept: NDArray[np.bool_]) -> Observations:
        """Return the rows for which `kept` is true."""
        return replace(
            self,
            columns={name: values[kept] for name, values in self.columns.items()},
            response=self.response[kept],
            runs=np.unique(self.runs[kept], return_inverse=True)[1],
            clusters=np.unique(self.clusters[kept], return_inverse=True)[1],
            labels=tuple(compress(self.labels, kept.tolist())),
            budget=self.budget[kept],
            sizes=None if self.sizes is None else np.unique(self.sizes[kept], return_inverse=True)[1],
            held=None if self.held is None else self.held[kept],
            groups=None if self.groups is None else self.groups[kept],
        )

    def thinned(self, most: int) -> Observations:
        """At most `most` rows, spread evenly over the budgets."""
        if len(self) <= most:
            return self
        chosen = np.lexsort((self.response, self.budget))[np.linspace(0, len(self) - 1, most).astype(int)]
        return self.where(np.isin(np.arange(len(self)), chosen))

    def settings(self, law: Law) -> int:
        """Return the number of distinct rows in the law's variables; replicates show only noise."""
        return len(np.unique(np.column_stack([self.columns[name] for name in law.variables]), axis=0))

    def excluded_by_reason(self) -> dict[str, list[str]]:
        """Return the excluded row labels by reason, without bracketed details."""
        reasons: dict[str, list[str]] = {}
        for row, message in self.excluded.items():
            reason = message if message.startswith(BY_CHOICE) else re.sub(r" \(.*\)$", "", message)
            reasons.setdefault(reason, []).append(row)
        return reasons

    def notes(self) -> tuple[str, ...]:
        """Write the notes for any result: rows excluded without request, and warnings."""
        left_out = self._left_out()
        return (*((left_out,) if left_out else ()), *(f"warning: {warning}" for warning in self.warnings))

    def _left_out(self) -> str:
        reasons = {why: rows for why, rows in self.excluded_by_reason().items() if not why.startswith(BY_CHOICE)}
        if not reasons:
            return ""
        reason, rows = max(reasons.items(), key=lambda one: len(one[1]))
        share = "" if len(reasons) == 1 else f"{len(rows)} of them: "
        return f"left out: {plural(sum(map(len, reasons.values())), 'row')} ({share}{reason})"

    def check(self, law: Law) -> None:
        """Raise InputError, with every problem, if the rows cannot determine a law's parameters."""
        problems = []
        needed, settings = len(law.parameters) + 1, self.settings(law)
        if settings < needed:
            here = f"{settings}" if settings == len(self) else f"{settings} in {plural(len(self), 'row')}"
            message = f"its {len(law.parameters)} parameters need {needed} or more different points, got {here}"
            problems.append(Problem(law.name, "; ".join(filter(None, (message, self._left_out())))))
        if problem := self.unvaried(law):
            problems.append(problem)
        for name in law.variables:
            values = np.unique(self.columns[name])
            if len(self) > 1 and len(values) == 1:
                problems.append(
                    Problem(
                        name, f"is {values[0]:.6g} in all {plural(len(self), 'row')}, so {law.name} cannot estimate its effect"
                    )
                )
            elif settings >= needed and len(values) < (fewest := law.fewest_values(name)):
                message = f"has {len(values)} values in {plural(len(self), 'row')}, and {law.name} needs {fewest}"
                problems.append(Problem(name, f"{message}: with fewer, any floor fits with some exponent"))
        if "unique_tokens" in law.variables and len(self) and (self.columns["unique_tokens"] >= self.columns["tokens"]).all():
            message = f"is no less than tokens in all {plural(len(self), 'row')}: nothing repeats"
            problems.append(
                Problem("unique_tokens", f"{message}, but {law.name} measures the value of repeats; use chinchilla")
            )
        if problems:
            raise InputError(problems)

    def unvaried(self, law: Law) -> Problem | None:
        """Return the problem of several rows that all have one response; None if they differ."""
        if len(self) < 2 or np.ptp(self.response) > 0:
            return None
        message = f"is {self.response[0]:.6g} in all {plural(len(self), 'row')}, so there is nothing for {law.name} to explain"
        return Problem(law.predicts, message)

    def beyond(self, columns: Mapping[str, Floats]) -> NDArray[np.bool_]:
        """Whether each point of `columns` is larger, by budget_of, than every row."""
        return np.asarray(budget_of(columns) > budget_of(self.columns).max() * EQUAL_SPAN)

    def confounding(self, law: Law) -> list[str]:
        """Why a law cannot separate tokens from parameters that they follow; empty if it can."""
        if len(self) < 2 or not {"parameters", "tokens"} <= set(law.variables):
            return []
        shares = self.columns["tokens"] / self.columns["parameters"]
        if np.ptp(self.columns["parameters"]) == 0 or shares.max() > shares.min() * (1 + ONE_SHARE):
            return []
        message = f"tokens are {np.median(shares):.4g} times the parameters in all {plural(len(self), 'row')}"
        return [f"{message}, so {law.name} cannot separate the two: fit power-floor or flops-floor, or vary their ratio"]

    def collinearity(self, law: Law) -> list[str]:
        """Which variables of a law follow from each other in all rows, by their values or logarithms; empty for none."""
        varying = {name: self.columns[name] for name in law.variables if np.ptp(self.columns[name]) > 0}
        logarithms = {name: np.log(values) for name, values in varying.items() if (values > 0).all()}
        for columns, what in ((varying, ""), (logarithms, "the logarithms of ")):
            if names := _dependent(columns):
                total = np.sum([columns[name] for name in names], 0)
                summed = np.ptp(total) <= DEPENDENT * abs(total.mean())
                how = f"sum to {total.mean():.4g}" if summed else "follow from each other"
                message = f"{what}{', '.join(names[:-1])} and {names[-1]} {how} in all {plural(len(self), 'row')}"
                return [
                    f"{message}, so {law.name} can hardly separate them: leave one out of the formula, or vary it by itself"
                ]
        return []


def _dependent(columns: Mapping[str, Floats]) -> list[str]:
    """Return the columns of the linear combination that varies least, if it hardly varies."""
    if not 2 <= len(columns) < len(next(iter(columns.values()))):
        return []
    scaled = np.column_stack([(values - values.mean()) / values.std() for values in columns.values()])
    _, spreads, directions = np.linalg.svd(scaled, full_matrices=False)
    weights = np.abs(directions[-1])
    taken = [name for name, weight in zip(columns, weights, strict=True) if weight > DEPENDENT * weights.max()]
    return taken if spreads[-1] <= DEPENDENT * spreads[0] else []


def budget_of(columns: Mapping[str, Floats]) -> Floats:
    """Return the run size by budget_name; for a law of the loss alone, lower losses are larger.

    1 where nothing orders the runs.
    """
    match budget_name(columns):
        case "":
            return np.ones(len(next(iter(columns.values()), ())))
        case "6·N·D":
            return 6.0 * columns["parameters"] * columns["tokens"]
        case "1/loss":
            return 1 / columns["loss"]
        case "flops" | "parameters" | "tokens" as name:
            return columns[name]
    sizes = [values for name, values in columns.items() if name in GROWING]
    return np.asarray(np.exp(sum(np.log(np.maximum(values, 1e-300)) for values in sizes)))


def budget_name(columns: Collection[str]) -> str:
    """Order runs by FLOPs, else 6·N·D, else the only size, else 1/loss, else the product of all that grow, if any do."""
    if "flops" in columns:
        return "flops"
    if {"tokens", "parameters"} <= set(columns):
        return "6·N·D"
    sizes = [name for name in ("parameters", "tokens") if name in columns]
    return (
        sizes[0] if sizes else "1/loss" if set(columns) == {"loss"} else "·".join(name for name in columns if name in GROWING)
    )


def log_or_value(values: Floats) -> Floats:
    """Return the logarithms of values, or the values themselves where some are below zero or all are shares with a zero.

    Counts from zero on are shifted by the least above it, so that they, too, are spread by their ratios.
    """
    if (values > 0).all():
        return np.asarray(np.log(values))
    if (values < 0).any() or values.max() <= 1:
        return values
    return np.asarray(np.log(values + values[values > 0].min()))


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
    """Give rows that agree in every column one number."""
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
    """Return the columns that describe model size."""
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
    """Return the columns that move the response within `settings`, as learning rates and optimizers do and seeds do not.

    Seeds and names of runs are left out: all checkpoints of a run share what its seed did to it. Method: analysis of variance
    of each column's levels, given the settings.
    """
    if len(settings) < ROWS_OF_A_SEARCH * (settings.max() + 1):
        return []
    within = response - (np.bincount(settings, response) / np.bincount(settings))[settings]
    others = table.drop(columns=[name for name in used if name in table])
    searched = {str(name): column for name, column in others.items() if plain(str(name)) not in _OF_ONE_RUN}
    return [
        name for name, column in searched.items() if any(_moves(each, settings, within) for each in _levels(column, settings))
    ]


def _levels(column: pd.Series, settings: NDArray[np.int64]) -> Iterator[Floats]:
    """Yield a column's numbers, or a number for each of its names, NaN where missing; then multiples of each setting's least.

    A rate that is half, once and twice the default of each size has levels of its own at each.
    """
    if not is_numeric_dtype(column) or is_bool_dtype(column):
        codes = pd.factorize(column.map(str, na_action="ignore"))[0].astype(float)
        yield np.where(codes < 0, np.nan, codes)
        return
    values = column.to_numpy(dtype=float, na_value=np.nan)
    yield values
    if (values > 0).all():
        yield (values / pd.Series(values).groupby(settings).transform("min").to_numpy()).round(2)


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
