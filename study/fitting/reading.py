"""Anybody's table as observations: csv, jsonl or parquet, any names of columns, what cannot be used refused or named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.errors import InputError, Problem
from study.fitting.expressions import evaluate
from study.fitting.laws import Law
from study.fitting.ledgers import LEDGER_COLUMNS, is_ledger, unusable
from study.fitting.observations import Exclusion, Observations, budget_of
from study.fitting.table_files import read_table
from study.schema import nearest
from study.wording import plural

SYMBOLS = {
    "N": "parameters",
    "D": "tokens",
    "F": "flops",
    "C": "flops",
    "L": "loss",
}
"""What an expression may call a column of this study where the table has none of that name: C/(6*N)."""

_SHOWN = 5
_SMALLEST = {"parameters": 5e4, "tokens": 5e5, "flops": 1e12}
_LARGEST_LOSS = 13.0


@dataclass(frozen=True)
class Source:
    """A table and which of its columns mean what.

    `roles` map a variable of a law (parameters, tokens, flops, loss, …) to a column or an expression; `where` keeps rows;
    `cluster` names the run of a row; `budget` orders runs by size. `any_units` lets counts and losses of odd size through;
    `bracketed_only` leaves out a ledger's cells whose learning rate is not bracketed.
    """

    path: Path
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
    """The rows of a table that have a number in every variable and in the response.

    Rows without a value, repeated rows, and rows that `where` or a ledger leaves out are excluded with their reasons. Raises
    InputError for unknown columns, values that are no numbers, losses or sizes that are not positive, and units that look
    wrong, each with the rows named.
    """
    table = read_table(source.path)
    reading = _Reading(table, source)
    table_is_ledger = is_ledger(table)
    gone = unusable(table, source.bracketed_only) if table_is_ledger else {}
    for row in np.flatnonzero(table.astype(str).duplicated().to_numpy()).tolist():
        gone.setdefault(row, "repeats an earlier row")
    kept = reading.kept()
    for row in np.flatnonzero(~kept).tolist():
        gone.setdefault(row, _left_out(source))
    values = {name: reading.numbers(name, gone) for name in dict.fromkeys((*variables, response))}
    reading.refuse_odd_values(values, gone)
    used = np.array([row not in gone for row in range(len(table))])
    budget = reading.optional_numbers(source.budget)
    columns = {name: values[name] for name in variables}
    everything = Observations(
        columns=columns,
        response=values[response],
        clusters=reading.clusters(),
        labels=reading.labels(),
        budget=budget if budget is not None else reading.usual_budget(columns),
        roles=reading.roles,
        excluded=tuple(Exclusion(reading.labels()[row], reason) for row, reason in sorted(gone.items())),
        warnings=tuple(reading.warnings),
    )
    return everything.where(used)


def _left_out(source: Source) -> str:
    return f"left out by {source.where}"


class _Reading:
    """One table under one source: columns found, expressions computed, problems gathered."""

    def __init__(self, table: pd.DataFrame, source: Source) -> None:
        self.table = table
        self.source = source
        self.roles = (LEDGER_COLUMNS if is_ledger(table) else {}) | dict(source.roles)
        self.warnings: list[str] = []
        self._pending: list[str] = []

    def kept(self) -> NDArray[np.bool_]:
        """Which rows `where` keeps; a comparison with a missing value keeps none."""
        if not self.source.where:
            return np.ones(len(self.table), dtype=bool)
        found = evaluate(self.source.where, self.column, "--where", self.table.columns)
        if not isinstance(found, np.ndarray) or found.dtype != bool or found.shape != (len(self.table),):
            raise InputError.at("--where", f"{self.source.where!r} is no comparison of columns")
        return found

    def column(self, name: str) -> pd.Series[Any]:
        """A column by its name, or by its role or symbol where the table has none of that name."""
        if name in self.table.columns:
            return self.table[name]
        role = name if name in self.roles else SYMBOLS.get(name)
        if role is not None and self.roles.get(role, name) != name and role not in self._pending:
            return self.role(role)
        raise InputError.at(str(self.source.path), f"has no column {name!r}; {nearest(name, list(self.table.columns))}")

    def role(self, role: str) -> pd.Series[Any]:
        """The column or expression that the source gives for a role, or the column that is called like it."""
        text = self.roles.get(role)
        if text is None:
            symbols = [symbol for symbol, meant in SYMBOLS.items() if meant == role]
            named = [name for name in (role, *symbols) if name in self.table.columns]
            if not named:
                known = ", ".join(map(str, self.table.columns[:30]))
                raise InputError.at(f"--{role.replace('_', '-')}", f"is needed; the columns are {known}")
            text = named[0]
        self._pending.append(role)
        try:
            found = self.computed(text, f"--{role.replace('_', '-')}")
        finally:
            self._pending.pop()
        if not isinstance(found, pd.Series):
            raise InputError.at(f"--{role.replace('_', '-')}", f"{text!r} names no column")
        return found.rename(text)

    def computed(self, text: str, place: str) -> Any:
        """The column of this name, or else the value of the expression."""
        if text in self.table.columns:
            return self.table[text]
        if re.fullmatch(r"[\w .-]+", text) and not re.search(r"[-+*/]", text):
            return self.column(text)
        return evaluate(text, self.column, place, self.table.columns)

    def numbers(self, role: str, gone: dict[int, str]) -> NDArray[np.float64]:
        """The values of a role; rows without a finite one are added to `gone`, text that is no number is refused."""
        raw = self.role(role)
        values = pd.to_numeric(raw, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        text = np.flatnonzero((np.isnan(values) & raw.notna().to_numpy()) & self._present(gone))
        if len(text):
            rows = "; ".join(f"{self.labels()[row]}: {raw.iloc[row]!r}" for row in text[:_SHOWN].tolist())
            raise InputError.at(str(raw.name), f"holds {plural(len(text), 'value')} that are no numbers ({rows})")
        for row in np.flatnonzero(~np.isfinite(values)).tolist():
            if gone.get(row, _left_out(self.source)) == _left_out(self.source):
                gone[row] = f"{raw.name} is {'missing' if np.isnan(values[row]) else 'infinite'}"
        return values

    def optional_numbers(self, text: str | None) -> NDArray[np.float64] | None:
        """The values of a column or an expression, None where none is given."""
        if text is None:
            return None
        return np.broadcast_to(np.asarray(self.computed(text, "--budget"), dtype=float), len(self.table))

    def usual_budget(self, columns: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        """FLOPs where the source says which column they are, else what the law's own variables give."""
        flops = self.roles.get("flops")
        if flops is None or "flops" in columns:
            return budget_of(columns)
        return pd.to_numeric(self.role("flops"), errors="coerce").to_numpy(dtype=float, na_value=np.nan)

    def clusters(self) -> NDArray[np.int64]:
        """The number of each row's run; without a cluster every row is its own."""
        name = self.source.cluster or self.roles.get("cluster")
        if name is None:
            return np.arange(len(self.table))
        numbers = pd.factorize(self.column(name))[0]
        alone = numbers < 0
        return np.where(alone, numbers.max(initial=-1) + 1 + np.cumsum(alone), numbers).astype(np.int64)

    def labels(self) -> tuple[str, ...]:
        """Rows as a reader finds them: numbered from 1, without the header."""
        return tuple(f"row {row}" for row in range(1, len(self.table) + 1))

    def refuse_odd_values(self, values: Mapping[str, NDArray[np.float64]], gone: Mapping[int, str]) -> None:
        """Raise InputError for values that are not positive, and for units that look wrong."""
        present = self._present(gone)
        problems = []
        for role, found in values.items():
            bad = np.flatnonzero(present & (found <= 0))
            if len(bad):
                rows = ", ".join(f"{self.labels()[row]} ({found[row]:.6g})" for row in bad[:_SHOWN].tolist())
                more = "" if len(bad) <= _SHOWN else f" and {len(bad) - _SHOWN} more"
                problems.append(Problem(role, f"must be positive, but is not in {rows}{more}; leave them out with --where"))
            elif present.any() and not self.source.any_units and not is_ledger(self.table):
                problems += self._odd_units(role, found[present])
        if problems:
            raise InputError(problems)

    def _odd_units(self, role: str, found: NDArray[np.float64]) -> list[Problem]:
        name = str(self.roles.get(role, role))
        if role in _SMALLEST and np.median(found) < _SMALLEST[role]:
            advice = f"if it is in millions say so (--{role} '1e6*`{name}`'), else give --any-units"
            span = f"{found.min():.6g} to {found.max():.6g}"
            return [Problem(role, f"is too small to be a count ({span}); {advice}")]
        if role == "loss" and np.median(found) > _LARGEST_LOSS:
            return [
                Problem(
                    role, f"has a median of {np.median(found):.6g}: a perplexity, not nats? If it is right give --any-units"
                )
            ]
        if role == "loss" and any(word in name.lower() for word in ("bit", "bpb", "bpc")):
            self.warnings.append(f"{name} looks like bits: E, A and B are then in bits too (nats are bits · 0.6931)")
        return []

    def _present(self, gone: Mapping[int, str]) -> NDArray[np.bool_]:
        present = np.ones(len(self.table), dtype=bool)
        present[list(gone)] = False
        return present
