"""Anybody's table as observations: csv, jsonl or parquet, any names of columns, what cannot be used refused or named."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.durable_files import is_there
from study.base.errors import InputError, Problem, option_name
from study.base.quantities import plural
from study.base.schema import nearest
from study.evidence.learning_rates import CellSearch, searches
from study.evidence.ledgers import (
    KEEP,
    LEDGER_COLUMNS,
    check_ledger,
    is_ledger,
    runs_of,
    settings_of,
    shapes_of,
    unusable,
    why_apart,
    why_incomparable,
    why_no_repeats,
)
from study.laws.column_names import SYMBOLS, named_like
from study.laws.expressions import evaluate
from study.laws.law import Law
from study.laws.observations import BY_CHOICE, VOCABULARY, Observations, budget_of
from study.laws.table_files import NOTES, read_table
from study.laws.units import (
    SHOWN,
    Values,
    beyond_arithmetic,
    loss_warnings,
    not_positive,
    odd_counts,
    odd_losses,
    odd_shares,
)
from study.store.sweep_folder import SweepFolder

NAMED = 30
"""So many columns are named where a role has none."""


class Table:
    """Anybody's table, read from its file when it is first asked for and held for all readings; see read_table."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._left_out: dict[bool, NDArray[np.object_]] = {}

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The rows and columns."""
        table = read_table(self.path)
        if is_ledger(table):
            check_ledger(table, str(self.path))
        return table

    @cached_property
    def is_ledger(self) -> bool:
        """Whether it is the ledger of a sweep."""
        return is_ledger(self.frame)

    def left_out(self, bracketed_only: bool) -> NDArray[np.object_]:
        """Why a ledger (see study.evidence.ledgers.unusable) or its repetition leaves a row out, None where nothing does."""
        if bracketed_only not in self._left_out:
            gone = dict.fromkeys(self._repeated, "repeats an earlier row")
            if self.is_ledger:
                gone |= unusable(self.frame, self._cells, bracketed_only)
            reasons = np.full(len(self.frame), None, dtype=object)
            reasons[list(gone)] = list(gone.values())
            self._left_out[bracketed_only] = reasons
        return self._left_out[bracketed_only].copy()

    @cached_property
    def settings(self) -> Sequence[str]:
        """What the sweep beside a ledger varies; where there is none, what the ledger says of it."""
        return self._sweep.varied() if is_there(self._sweep.sweep_file) else settings_of(self.frame)

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """The number of each row's run where no column tells it: every row's own, or in a ledger that of its trunk."""
        return _numbered(runs_of(self.frame)) if self.is_ledger else np.arange(len(self.frame))

    @cached_property
    def shapes(self) -> NDArray[np.int64]:
        """The number of each row's shape in a ledger."""
        return _numbered(shapes_of(self.frame))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Rows as a reader finds them: numbered from 1, without the header."""
        return tuple(f"row {row}" for row in range(1, len(self.frame) + 1))

    @cached_property
    def _cells(self) -> list[CellSearch]:
        return list(searches(self.frame, self._sweep.trial_seeds()).values())

    @property
    def _sweep(self) -> SweepFolder:
        """The folder beside the table, which may be that of a sweep."""
        return SweepFolder(self.path if self.path.is_dir() else self.path.parent)

    @cached_property
    def _repeated(self) -> list[int]:
        of_anything = [name for name in self.frame if self.frame[name].dtype == object]  # lists, say, which have no hash
        return np.flatnonzero(self.frame.astype(dict.fromkeys(of_anything, str)).duplicated()).tolist()


@dataclass(frozen=True)
class Source:
    """A table and which of its columns mean what.

    `roles` map a variable of a law (parameters, tokens, flops, loss, …) to a column or an expression; `where` keeps rows;
    `cluster` names the run of a row; `budget` orders runs by size. `any_units` lets counts, losses and scores of odd size
    through; `bracketed_only` leaves out a ledger's cells whose learning rate is not bracketed.
    """

    table: Table
    roles: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    cluster: str | None = None
    budget: str | None = None
    any_units: bool = False
    bracketed_only: bool = False


def read_observations(source: Source, law: Law) -> Observations:
    """The rows of a table that a law can be fitted to; see read_columns."""
    return read_columns(source, law.variables, law.predicts)


def read_columns(source: Source, variables: Sequence[str], response: str) -> Observations:
    """The rows of a table that have a number in every variable, in the response and in what orders the runs.

    Rows without a value, repeated rows, and rows that `where` or a ledger leaves out are excluded with their reasons. Raises
    InputError, with every problem, for unknown columns, values that are no numbers, losses or sizes that are not positive, and
    units that look wrong, each with the rows named; and for a ledger's losses of different validation sets or masks.
    """
    reading = _Reading(source)
    order = reading.order(variables)
    wanted = tuple(dict.fromkeys((*variables, response, *order)))
    values = reading.all_numbers(wanted)
    reading.refuse_odd_values(values)
    columns = {name: values[name] for name in variables}
    if "loss" in wanted:
        reading.refuse_incomparable_losses(columns)
    reading.warn_of_repeats(values)
    reading.warn_of_seeds(columns, values[response])
    reading.warn_of_checkpoints(columns)
    used = reading.present
    labels, runs = source.table.labels, reading.runs()
    of_shapes = reading.is_ledger and source.cluster is None
    everything = Observations(
        columns=columns,
        response=values[response],
        runs=runs,
        clusters=source.table.shapes if of_shapes else runs,
        labels=labels,
        budget=values[order[0]] if order else budget_of(columns),
        roles=reading.found,
        excluded=dict(zip(compress(labels, (~used).tolist()), reading.gone[~used], strict=True)),
        warnings=tuple(reading.warnings),
        alike=reading.alike(),
        cluster="shape" if of_shapes else "run",
    )
    return everything.where(used)


def _numbered(runs: pd.Series[Any]) -> NDArray[np.int64]:
    """Runs as numbers; a row without one is a run of its own."""
    numbers = pd.factorize(runs)[0]
    alone = numbers < 0
    return np.where(alone, numbers.max(initial=-1) + 1 + np.cumsum(alone), numbers).astype(np.int64)


def _listed(names: Sequence[Any], most: int = NAMED) -> str:
    """The first names of columns or rows, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


class _Reading:
    """One table under one source: columns found, expressions computed, problems gathered.

    `present` says which rows are used, `gone` why a row is not.
    """

    def __init__(self, source: Source) -> None:
        self.table = source.table.frame
        self.source = source
        self.is_ledger = source.table.is_ledger
        self.roles = (LEDGER_COLUMNS if self.is_ledger else {}) | dict(source.roles)
        if source.budget is not None:
            self.roles["budget"] = source.budget
        self.found: dict[str, str] = {}
        self.warnings: list[str] = []
        self._pending: list[str] = []
        self.gone = source.table.left_out(source.bracketed_only)
        self.present = pd.isna(self.gone)
        kept = self._kept()
        if not kept.any():
            raise InputError.at("--where", f"{source.where!r} keeps none of {len(self.table)} rows")
        self._leave_out(~kept, self._by_condition)

    def _leave_out(self, rows: NDArray[np.bool_], why: str) -> None:
        self.gone[rows] = why
        self.present &= ~rows

    @property
    def _by_condition(self) -> str:
        return f"{BY_CHOICE}{self.source.where}"

    def _kept(self) -> NDArray[np.bool_]:
        """Which rows `where` keeps; a comparison with a missing value keeps none."""
        if not self.source.where:
            return np.ones(len(self.table), dtype=bool)
        found = evaluate(self.source.where, self.column, "--where", self.table.columns)
        if not isinstance(found, pd.Series) or not pd.api.types.is_bool_dtype(found):
            raise InputError.at("--where", f"{self.source.where!r} is no comparison of columns")
        return np.asarray(found.fillna(False), dtype=bool)

    def column(self, name: str) -> pd.Series[Any]:
        """A column by its name, or by its role or symbol where the table has none of that name."""
        if name in self.table.columns:
            return self.table[name]
        role = name if name in self.roles else SYMBOLS.get(name)
        if role is not None and role not in self._pending and (role in self.roles or named_like(role, self.table.columns)):
            return self.role(role)
        raise InputError.at(str(self.source.table.path), f"has no column {name!r}; {nearest(name, list(self.table.columns))}")

    def role(self, role: str) -> pd.Series[Any]:
        """The column or expression that the source gives for a role, or the column that is called like it."""
        text, option = self.roles.get(role), option_name(role)
        if text is None:
            named = named_like(role, self.table.columns)
            if len(named) != 1:
                ways = "; from FLOPs it is --tokens 'C/(6*N)'" if role == "tokens" and self._has("flops") else ""
                if named:
                    raise InputError.at(option, f"is needed; it may be {_listed(named)}{ways}")
                known = Problem(str(self.source.table.path), f"has the columns {_listed(list(self.table.columns))}")
                raise InputError([Problem(option, f"is needed{ways}"), known])
            text = named[0]
        self._pending.append(role)
        try:
            found = self.computed(text, option)
        finally:
            self._pending.pop()
        if not isinstance(found, pd.Series):
            raise InputError.at(option, f"{text!r} names no column")
        self.found[role] = text
        return found.rename(text)

    def _has(self, role: str) -> bool:
        return role in self.roles or len(named_like(role, self.table.columns)) == 1

    def computed(self, text: str, place: str) -> Any:
        """The column of this name, or else the value of the expression."""
        if text in self.table.columns:
            return self.table[text]
        if re.fullmatch(r"[\w .-]+", text) and not re.search(r"[-+*/]", text):
            return self.column(text)
        return evaluate(text, self.column, place, self.table.columns)

    def all_numbers(self, roles: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        """The values of several roles; what is wrong with any is told together."""
        values: dict[str, NDArray[np.float64]] = {}
        problems: list[Problem] = []
        for role in roles:
            try:
                values[role] = self.numbers(role)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError([*dict.fromkeys(reversed(problems))][::-1])  # what several roles say is told once, after them
        used = " ".join(self.found[role] for role in roles)
        self.warnings += [note for note in self.table.attrs.get(NOTES, ()) if note.split(":")[0] in used]
        return values

    def numbers(self, role: str) -> NDArray[np.float64]:
        """The values of a role; rows without a finite one are gone, too, text that is no number is refused."""
        raw = self.role(role)
        values = pd.to_numeric(raw, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        text = np.flatnonzero((np.isnan(values) & raw.notna().to_numpy()) & self.present)
        if len(text):
            rows = "; ".join(f"row {row + 1}: {raw.iloc[row]!r}" for row in text[:SHOWN].tolist())
            count = "a value that is no number" if len(text) == 1 else f"{len(text)} values that are no numbers"
            raise InputError.at(str(raw.name), f"holds {count} ({rows}); mend these rows or leave them out with --where")
        told = self.present | ((self.gone == self._by_condition) & raw.isna().to_numpy())
        self._leave_out(told & np.isnan(values), f"{raw.name} is missing")
        self._leave_out(told & np.isinf(values), f"{raw.name} is infinite")
        return values

    def order(self, variables: Sequence[str]) -> tuple[str, ...]:
        """The role that orders the runs: what the source says, else FLOPs where it names them; none where the variables do."""
        if "budget" in self.roles:
            return ("budget",)
        return ("flops",) if "flops" in self.roles and "flops" not in variables else ()

    def runs(self) -> NDArray[np.int64]:
        """The number of each row's run, by the column of the source where it names one."""
        if self.source.cluster is None:
            return self.source.table.runs
        named = self.column(self.source.cluster)
        if named[self.present].isna().all():
            told = f"{self.source.cluster!r} is empty in all {plural(int(self.present.sum()), 'row')}, and names no run"
            raise InputError.at("--cluster", f"{told}; name another column, or leave it out, and every row is a run of its own")
        return _numbered(named)

    def refuse_odd_values(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Raise InputError for values that no logarithm or product has, and for units that look wrong; a ledger's are known."""
        present = self.present
        rows = np.flatnonzero(present) + 1
        found = [Values(role, self.found[role], each[present], rows) for role, each in values.items()]
        checks: list[Callable[[Values], list[Problem]]] = [not_positive, beyond_arithmetic]
        if not self.source.any_units:
            checks.insert(0, lambda each: odd_shares(each, self.table))
        if not self.source.any_units and not self.is_ledger:
            checks += [odd_counts, lambda each: odd_losses(each, self.table[present])]
        problems = [next((told for check in checks if (told := check(each))), []) for each in found if len(rows)]
        if any(problems):
            raise InputError(problem for told in problems for problem in told)
        self.warnings += [warning for each in found if len(rows) for warning in loss_warnings(each)]

    def refuse_incomparable_losses(self, variables: Mapping[str, NDArray[np.float64]]) -> None:
        """Raise InputError for a ledger's losses that are not comparable or are of settings with laws of their own.

        Also where runs that agree in all `variables` are of different tokens or sizes.
        """
        if not self.is_ledger:
            return
        present = self.present
        runs = self.table[present]
        known = {name: values[present] for name, values in variables.items()}
        reasons = (
            why_incomparable(runs, KEEP),
            why_apart(runs, self.source.table.settings, KEEP),
            why_no_repeats(runs, known, self.source.where),
        )
        if reason := next(filter(None, reasons), None):
            raise InputError.at("loss", reason)

    def warn_of_repeats(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Warn of rows that have all that is read from an earlier one, and differ elsewhere, as a running number does."""
        if self.is_ledger:
            return
        read = pd.DataFrame(dict(values))[self.present]
        if len(again := read.index[read.duplicated()]):
            rows = f"{plural(len(again), 'row')} ({_listed([f'row {row + 1}' for row in again], SHOWN)})"
            named = ", ".join(self.found[role] for role in values)
            told = f"{rows} agree with an earlier one in {named}, though not elsewhere"
            self.warnings.append(f"{told}: where that is one run twice, intervals are too narrow; --where leaves rows out")

    def warn_of_seeds(self, variables: Mapping[str, NDArray[np.float64]], response: NDArray[np.float64]) -> None:
        """Warn of rows of one setting that nobody said belong together.

        Where settings scatter about a law 1.5 times as widely as three to five seeds of one, intervals over rows hold the truth
        in 67% to 82% of draws, over settings in 96% to 98%; where they do not, in 94% to 96% and 96% to 97%.
        """
        if self.is_ledger or self.source.cluster is not None:
            return
        of_setting = pd.DataFrame(dict(variables))[self.present]
        distinct = of_setting.assign(response=response[self.present]).drop_duplicates()
        if (settings := len(of_setting.drop_duplicates())) < len(distinct):
            counts = f"{plural(len(distinct), 'row')} are of {plural(settings, 'setting')}"
            named = ", ".join(self.found[role] for role in variables)
            told = f"{counts} of {named}: where settings miss the law by more than their rows scatter, intervals are too narrow"
            self.warnings.append(f"{told}; --cluster with a column that names the setting keeps its rows together")

    def warn_of_checkpoints(self, variables: Mapping[str, NDArray[np.float64]]) -> None:
        """Warn of a column that is called like a run and names the checkpoints of several, which nobody said belong together.

        Where eight runs of ten checkpoints each lie 0.3% off a law by luck of their own, intervals of alpha over rows hold the
        truth in 40% of draws, over runs in 99%.
        """
        if self.is_ledger or self.source.cluster is not None or "tokens" not in variables:
            return
        read = pd.DataFrame(dict(variables))[self.present]
        for name in named_like("run", map(str, self.table.columns)):
            runs = read.groupby(self.table.loc[self.present, name].to_numpy()).nunique()
            sizes = runs.drop(columns=["tokens", "flops"], errors="ignore")
            if (runs["tokens"] > 1).any() and bool((sizes == 1).all(axis=None)):
                counts = f"{plural(len(read), 'row')} are of {plural(len(runs), 'value')} of {name!r}"
                told = f"{counts}: where those are checkpoints of one run, intervals are too narrow"
                self.warnings.append(f"{told}; --cluster {name!r} keeps them together")

    def alike(self) -> dict[str, int]:
        """What all rows of a ledger that are used have in common of what their losses hang on."""
        if not self.is_ledger or VOCABULARY not in self.table:
            return {}
        sizes = pd.to_numeric(self.table.loc[self.present, VOCABULARY], errors="coerce")
        return {VOCABULARY: int(sizes.iloc[0])} if np.isfinite(sizes).all() and sizes.nunique() == 1 else {}
