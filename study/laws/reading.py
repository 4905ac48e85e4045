"""Read any table as observations, whatever its column names; unusable values are refused or named."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.errors import InputError, Problem, cut, nearest, option_name
from study.base.quantities import EQUAL_SPAN, plural
from study.base.text import joined
from study.laws.columns import (
    SHOWN,
    SYMBOLS,
    SYNONYMS,
    Values,
    beyond_arithmetic,
    find_columns,
    loss_warnings,
    not_positive,
    odd_counts,
    odd_losses,
    odd_shares,
    odd_units,
    perplexities,
    rising_response,
    swapped_names,
    swapped_sizes,
)
from study.laws.expressions import evaluate
from study.laws.formulas import FormulaLaw
from study.laws.law import Floats, Law
from study.laws.minimising import Space
from study.laws.observations import (
    BY_CHOICE,
    VOCABULARY,
    Observations,
    RowGroups,
    budget_of,
    find_run_column,
    group_rows,
    number_groups,
    searched_columns,
)
from study.laws.tables import NAMED, NOTES, UNCLEAR, UNITS, RunTable, number_runs

MOST_GROUPS = 50
"""The most groups that are left out one after another."""

KEEP = "keep those of one with"
"""The remedy for rows that must not be pooled; a condition follows."""


@dataclass(frozen=True)
class TableQuery:
    """A table, the roles of its columns and the selection of its rows.

    `roles` map a variable (parameters, tokens, flops, loss, …) to a column or expression; `where` filters rows; `best_of` keeps
    the best row per combination of columns; `cluster` names runs; `budget` orders runs by size. `any_units` accepts odd counts,
    losses and scores; `bracketed_only` keeps rows with a bracketed learning rate. `hold_out` is a condition on the rows to
    forecast from the others, `leave_out_group` a column whose values are forecast one after another from all others.
    """

    table: RunTable
    roles: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    cluster: str | None = None
    budget: str | None = None
    any_units: bool = False
    bracketed_only: bool = False
    best_of: str | None = None
    hold_out: str | None = None
    leave_out_group: str | None = None


def read_observations(query: TableQuery, law: Law, space: Space | None = None) -> Observations:
    """Read the rows for a law; see read_columns.

    Where `space` is linear, the response may have any sign; None is for callers that take logarithms whatever is asked. Also
    raises InputError for rows in which the law has no value, as where a power with a negative exponent has the base 0.
    """
    named: dict[str, str] = {law.predicts: law.response} if isinstance(law, FormulaLaw) and law.response else {}
    signed = (*law.any_sign, *([law.predicts] if space == "linear" else []))
    remedy = "give --space linear" if space == "log" else ""
    try:
        rows = read_columns(replace(query, roles={**named, **query.roles}), law.variables, law.predicts, signed, remedy)
    except InputError as error:
        raise InputError([*_symbols_missing(law, error), *error.problems]) from None
    if (bad := law.undefined(rows.columns)).any():
        raise InputError(_undefined(law, rows, bad))
    notes = law.notes_on([*map(str, query.table.frame.columns)])
    return replace(rows, warnings=(*rows.warnings, *notes))


def _symbols_missing(law: Law, error: InputError) -> list[Problem]:
    """Say of each letter of a formula whose column is missing what it stands for, since a constant may have been meant."""
    places = {problem.place for problem in error.problems if problem.message.startswith("is needed")}
    reads = law.reads if isinstance(law, FormulaLaw) and law.written else {}
    names = [name for name, role in reads.items() if name in SYMBOLS and option_name(role) in places]
    meant = joined([f"{name} for {SYMBOLS[name]}" for name in names])
    remedy = f"a range makes a constant to fit of it, as in '{names[0]} in 0..10'" if names else ""
    return [Problem("--law", f"in a formula {meant.replace(' for ', ' stands for ', 1)}; {remedy}")] if names else []


def _undefined(law: Law, rows: Observations, bad: NDArray[np.bool_]) -> list[Problem]:
    """Report that a law has no value in some rows, with the variables that are zero or below there."""
    low = [f"{name} is {values[bad].min():g}" for name, values in rows.columns.items() if (values[bad] <= 0).any()]
    where = f"{_listed([*compress(rows.labels, bad.tolist())], SHOWN)}{f', where {joined(low)}' if low else ''}"
    remedy = "leave these rows out with --where, or change the law, as by (x + 1) in place of x"
    return [Problem(law.name, f"has no value in {where}; {remedy}")]


def read_points(table: RunTable, law: Law, roles: Mapping[str, str]) -> dict[str, Floats]:
    """Return the points of a table: each variable by the column or expression in `roles` if the table has it, else by name.

    Raises InputError, with every problem, for missing columns, and for rows without a number or without one above zero, which
    every known role needs unless the law says otherwise.
    """
    points: dict[str, Floats] = {}
    problems: list[Problem] = []
    for name in law.variables:
        try:
            values = _point_column(table, name, roles)
        except InputError as error:
            problems += error.problems
            continue
        positive = name in SYNONYMS and name not in law.any_sign
        if len(bad := np.flatnonzero(~np.isfinite(values) | (positive & (values <= 0)))):
            kind = "number above zero" if positive else "number"
            problems.append(Problem(str(table.path), f"{name} must be a {kind}, but is {values[bad[0]]:g} in row {bad[0] + 1}"))
        points[name] = values
    if problems:
        raise InputError(problems)
    return points


def _point_column(table: RunTable, name: str, roles: Mapping[str, str]) -> Floats:
    if name in roles:
        try:
            return compute(table, roles[name], {}, str(table.path))
        except InputError:
            if not find_columns(name, table.frame.columns):
                raise
    named = find_columns(name, table.frame.columns)
    if len(named) != 1:
        message = f"has no column named like {name}" if not named else f"{name} may be {joined(named)}"
        raise InputError.at(str(table.path), message)
    return compute(table, named[0], {}, str(table.path))


def compute(table: RunTable, text: str, roles: Mapping[str, str], place: str) -> Floats:
    """Return a column or expression in all rows of a table, as numbers; raises InputError for text that is neither."""
    computed = _Reading(TableQuery(table, roles)).computed(text, place)
    values = pd.to_numeric(pd.Series(computed, index=table.frame.index), errors="coerce")
    return values.to_numpy(dtype=float, na_value=np.nan)


def read_columns(
    query: TableQuery,
    variables: Sequence[str],
    response: str,
    signed: Collection[str] = (),
    remedy: str = "",
) -> Observations:
    """Read the rows with a number in every variable, the response and the budget.

    Missing values, repeated rows, and rows that the query or selection leaves out are excluded with reasons. Raises InputError,
    with every problem and its rows, for unknown columns, non-numeric values, losses and sizes that are not positive unless
    `signed` names them, odd units and signs, and losses that must not be pooled. `remedy` is one more way out for a response.
    """
    reading = _Reading(query)
    order = reading.order(variables)
    wanted = tuple(dict.fromkeys((*variables, response, *order)))
    values = reading.all_numbers(wanted)
    reading.keep_best(response, values[response])
    reading.refuse_odd_values(values, lambda each: not_positive(each, signed, remedy if each.role == response else ""))
    columns = {name: values[name] for name in variables}
    if "loss" in wanted:
        reading.refuse_incomparable_losses(columns)
    reading.refuse_wrong_direction(columns, response, values[response])
    reading.warn_of_repeats(values)
    groups = reading.group(columns, values[response])
    used = reading.present
    labels = query.table.labels
    everything = Observations(
        columns=columns,
        response=values[response],
        runs=groups.runs,
        clusters=groups.clusters,
        labels=labels,
        budget=values[order[0]] if order else budget_of(columns),
        roles=reading.sources,
        excluded=dict(zip(compress(labels, (~used).tolist()), reading.gone[~used], strict=True)),
        warnings=tuple(reading.warnings),
        alike=reading.alike(),
        cluster=groups.kind,
        without_order=reading.without_order(),
        sizes=groups.sizes,
        doubts=reading.doubts(columns, values[response]),
        held=reading.held(),
        groups=reading.left_out_groups(),
    )
    return everything.where(used)


def differing_columns(rows: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return the `columns` in which rows differ."""
    return [column for column in columns if column in rows and rows[column].nunique(dropna=False) > 1]


def explain_incomparable_losses(rows: pd.DataFrame, validation: Sequence[str], remedy: str) -> str:
    """Why losses that differ in `validation` must not be pooled, with a remedy; empty if they may."""
    if not (differing := differing_columns(rows, validation)):
        return ""
    differ = f"the losses of runs that differ in {', '.join(differing)} are not comparable"
    return f'{differ}; {remedy} --where "{differing[0]} == …"'


def explain_separate_laws(rows: pd.DataFrame, settings: Sequence[str], remedy: str) -> str:
    """Why rows that differ in `settings` must not be pooled, with a remedy; empty if they may."""
    if not (differing := differing_columns(rows, settings)):
        return ""
    some = " and ".join(f"{column} == {rows[column].tolist()[0]!r}" for column in differing)
    return f'runs that differ in {", ".join(differing)} have laws of their own; {remedy} --where "{some}"'


def explain_false_repeats(
    rows: pd.DataFrame, amounts: Mapping[str, str], variables: Mapping[str, NDArray[np.float64]], where: str | None
) -> str:
    """Why rows that only appear to be repeats must not be pooled, with a remedy; empty if there are none.

    They differ in a column of `amounts`. FLOPs and losses cover all amounts.
    """
    if not variables or {"flops", "loss"} & set(variables):
        return ""
    for column, words in amounts.items():
        if column not in rows:
            continue
        agreeing = pd.to_numeric(rows[column], errors="coerce").groupby(list(variables.values()))
        if (agreeing.max() > agreeing.min() * EQUAL_SPAN).any():
            condition = " and ".join([*([where] if where else []), f"{column} == {rows[column].max()}"])
            known = f"a law in {' and '.join(variables)} alone takes runs that differ in {words} for repeats of each other"
            return f'{known}; {KEEP} --where "{condition}", or fit a law in both'
    return ""


def _listed(names: Sequence[Any], most: int = NAMED) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(cut(str(name)) for name in names[:most]) + more


class _Reading:
    """One query on its table: resolved columns, computed expressions, collected problems.

    `present` marks the rows in use, `gone` holds the reasons for the others.
    """

    def __init__(self, query: TableQuery) -> None:
        self.table = query.table.frame
        self.query = query
        self.selection = query.table.selection
        self.roles = {**query.table.roles, **query.roles}
        if query.budget is not None:
            self.roles["budget"] = query.budget
        self.sources: dict[str, str] = {}
        self.warnings: list[str] = []
        self._pending: list[str] = []
        self.gone = query.table.left_out(query.bracketed_only)
        self.present = pd.isna(self.gone)
        kept = self._kept()
        if not kept.any():
            raise InputError.at("--where", f"{query.where!r} keeps none of {len(self.table)} rows")
        self._leave_out(~kept, self._by_condition)

    def _leave_out(self, rows: NDArray[np.bool_] | NDArray[np.int64], why: str) -> None:
        self.gone[rows] = why
        self.present[rows] = False

    @property
    def _by_condition(self) -> str:
        return f"{BY_CHOICE}{self.query.where}"

    def _kept(self) -> NDArray[np.bool_]:
        if not self.query.where:
            return np.ones(len(self.table), dtype=bool)
        return self._condition(self.query.where, "--where")

    def _condition(self, text: str, option: str) -> NDArray[np.bool_]:
        kept = evaluate(text, self.column, option, self.table.columns)
        if not isinstance(kept, pd.Series) or not pd.api.types.is_bool_dtype(kept):
            raise InputError.at(option, f"{text!r} does not compare columns")
        return np.asarray(kept.fillna(False), dtype=bool)

    def held(self) -> NDArray[np.bool_] | None:
        """Return the rows that the query holds out; raises InputError for none or all of those in use."""
        if self.query.hold_out is None:
            return None
        held = self._condition(self.query.hold_out, "--hold-out")
        if (count := int((held & self.present).sum())) in (0, int(self.present.sum())):
            some = "none" if count == 0 else "all"
            rows = plural(int(self.present.sum()), "row")
            raise InputError.at("--hold-out", f"{self.query.hold_out!r} holds {some} of {rows}; hold out some of them")
        return held

    def left_out_groups(self) -> NDArray[np.str_] | None:
        """Each row's group; raises InputError unless the rows in use have at least two."""
        if self.query.leave_out_group is None:
            return None
        column = self.column(self.query.leave_out_group)
        groups = np.asarray(column.astype(str), dtype=np.str_)
        if len(values := np.unique(groups[self.present])) < 2:
            only = f"is {str(values[0])!r} in every row" if len(values) else "has no row"
            raise InputError.at(
                "--leave-out-group", f"{self.query.leave_out_group!r} {only}; name a column of two or more groups"
            )
        if len(values) > MOST_GROUPS:
            message = f"{self.query.leave_out_group!r} has {len(values)} groups, and each takes a fit; at most {MOST_GROUPS}"
            raise InputError.at("--leave-out-group", message)
        return groups

    def column(self, name: str) -> pd.Series[Any]:
        if name in self.table.columns:
            return self.table[name]
        role = name if name in self.roles else SYMBOLS.get(name)
        if role is not None and role not in self._pending and (role in self.roles or find_columns(role, self.table.columns)):
            return self.role(role)
        raise InputError.at(str(self.query.table.path), f"has no column {name!r}; {self._nearest(name)}")

    def _nearest(self, name: str) -> str:
        return nearest(name, list(self.table.columns))

    def role(self, role: str) -> pd.Series[Any]:
        """Return the column or expression of a role: from the query, else by name."""
        text, option = self.roles.get(role), option_name(role)
        if text is None:
            named = find_columns(role, self.table.columns)
            if role not in SYNONYMS and not named:
                raise InputError.at(str(self.query.table.path), f"has no column {role!r}; {self._nearest(role)}")
            if len(named) != 1:
                ways = "; from FLOPs it is --tokens 'C/(6*N)'" if role == "tokens" and self._has("flops") else ""
                if named:
                    raise InputError.at(option, f"is needed; it may be {_listed(named)}{ways}")
                known = Problem(str(self.query.table.path), f"has the columns {_listed(list(self.table.columns))}")
                raise InputError([Problem(option, f"is needed{ways}"), known])
            text = named[0]
        self._pending.append(role)
        try:
            column = self.computed(text, option)
        finally:
            self._pending.pop()
        if not isinstance(column, pd.Series):
            raise InputError.at(option, f"{text!r} names no column")
        self.sources[role] = text
        return column.rename(text)

    def _has(self, role: str) -> bool:
        return role in self.roles or len(find_columns(role, self.table.columns)) == 1

    def computed(self, text: str, place: str) -> Any:
        if text in self.table.columns:
            return self.table[text]
        if re.fullmatch(r"[\w .-]*[A-Za-z_][\w .-]*", text) and not re.search(r"[-+*/]", text):
            return self.column(text)
        return evaluate(text, self.column, place, self.table.columns)

    def all_numbers(self, roles: Sequence[str]) -> dict[str, NDArray[np.float64]]:
        values: dict[str, NDArray[np.float64]] = {}
        problems: list[Problem] = []
        for role in roles:
            try:
                values[role] = self.numbers(role)
            except InputError as error:
                problems += error.problems
        given = {role: text for role, text in self.sources.items() if role in SYNONYMS}
        if given and any(problem.message.startswith("is needed") for problem in problems):
            options = ", ".join(f"{option_name(role)} {shlex.quote(text)}" for role, text in given.items())
            problems.append(Problem(str(self.query.table.path), f"is read with {options}"))
        if problems:
            raise InputError([*dict.fromkeys(reversed(problems))][::-1])  # raise a problem shared by several roles once, last
        used = " ".join(self.sources[role] for role in roles)
        self.warnings += [note for note in self.table.attrs.get(NOTES, ()) if note.split(":")[0] in used]
        return values

    def numbers(self, role: str) -> NDArray[np.float64]:
        """Return a role's values; non-finite ones exclude their rows, text raises InputError."""
        raw = self.role(role)
        if reason := self.table.attrs.get(UNCLEAR, {}).get(str(raw.name)):
            raise InputError.at(str(raw.name), reason)
        values = pd.to_numeric(raw, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
        text = np.flatnonzero((np.isnan(values) & raw.notna().to_numpy()) & self.present)
        if len(text):
            rows = "; ".join(f"row {row + 1}: {raw.iloc[row]!r}" for row in text[:SHOWN].tolist())
            count = "a non-numeric value" if len(text) == 1 else f"{len(text)} non-numeric values"
            raise InputError.at(str(raw.name), f"holds {count} ({rows}); correct these rows or leave them out with --where")
        readable = self.present | ((self.gone == self._by_condition) & raw.isna().to_numpy())
        self._leave_out(readable & np.isnan(values), f"{raw.name} is missing")
        self._leave_out(readable & np.isinf(values), f"{raw.name} is infinite")
        return values

    def order(self, variables: Sequence[str]) -> tuple[str, ...]:
        """Return the role that orders runs: the query's, else given FLOPs; empty if the variables do."""
        if "budget" in self.roles:
            return ("budget",)
        return ("flops",) if "flops" in self.roles and "flops" not in variables else ()

    def group(self, variables: Mapping[str, Floats], response: Floats) -> RowGroups:
        """Group rows by run and cluster: from the query or selection, else inferred."""
        if self.query.cluster is not None:
            runs = self._named_runs(self.query.cluster)
            return RowGroups(runs, runs)
        if self.selection is not None:
            return RowGroups(self.query.table.runs, self.selection.clusters, self.selection.cluster)
        rows = self.present
        if not rows.any():
            return RowGroups(np.arange(len(rows)), np.arange(len(rows)))
        unused = [name for name in self.table.columns if name not in self.sources.values()]
        inside = {name: values[rows] for name, values in variables.items()}
        groups = group_rows(self.table.loc[rows, unused], inside, response[rows])
        self.warnings += [groups.note] if groups.note else []
        sizes = None if groups.sizes is None else self._everywhere(groups.sizes)
        return replace(groups, runs=self._everywhere(groups.runs), clusters=self._everywhere(groups.clusters), sizes=sizes)

    def _named_runs(self, column: str) -> NDArray[np.int64]:
        named = self.column(column)
        if named[self.present].isna().all():
            empty = f"{column!r} is empty in all {plural(int(self.present.sum()), 'row')}, and names no run"
            raise InputError.at("--cluster", f"{empty}; name another column, or leave it out")
        return number_runs(named)

    def _everywhere(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Extend group numbers to all rows; each unused row is its own group."""
        everywhere = len(self.table) + np.arange(len(self.table), dtype=np.int64)
        everywhere[self.present] = numbers
        return everywhere

    def keep_best(self, response: str, values: Floats) -> None:
        if self.query.best_of is None:
            return
        named = [name.strip() for name in self.query.best_of.split(",")]
        columns = [self.computed(name, "--best-of") for name in named]
        if bad := [name for name, column in zip(named, columns, strict=True) if not isinstance(column, pd.Series)]:
            raise InputError.at("--best-of", f"{bad[0]!r} names no column")
        rows = np.flatnonzero(self.present)
        table = pd.DataFrame({index: column.to_numpy()[rows] for index, column in enumerate(columns)})
        order = np.argsort(-values[rows] if response == "score" else values[rows], kind="stable")
        best = rows[table.iloc[order].drop_duplicates().index]
        self._leave_out(np.setdiff1d(rows, best), f"{BY_CHOICE}--best-of {self.query.best_of}")

    def doubts(self, variables: Mapping[str, Floats], response: Floats) -> tuple[str, ...]:
        if self.selection is not None or not self.present.any():
            return ()
        inside = {name: values[self.present] for name, values in variables.items()}
        reasons = [] if self.query.any_units else swapped_sizes(inside)
        if self.query.best_of is None and self.query.cluster is None:
            settings = number_groups(list(inside.values()))
            table = self.table[self.present]
            used = {*self.sources.values(), find_run_column(table, inside) or ""}
            if searched := searched_columns(table, settings, response[self.present], used):
                named = ",".join(symbol for symbol, role in SYMBOLS.items() if role in inside and symbol != "F")
                message = f"rows of one setting differ in {_listed(searched, SHOWN)}, which moves the response"
                reasons.append(f"{message}: if that is a search, --best-of {named or ','.join(inside)} keeps the best of each")
        return tuple(reasons)

    def refuse_odd_values(self, values: Mapping[str, NDArray[np.float64]], signs: Callable[[Values], list[Problem]]) -> None:
        """Raise InputError for odd units and values without logarithm or product."""
        present = self.present
        rows = np.flatnonzero(present) + 1
        read = [Values(role, self.sources[role], each[present], rows) for role, each in values.items()]
        checks: list[Callable[[Values], list[Problem]]] = [signs, beyond_arithmetic]
        if not self.query.any_units:
            units = self.table.attrs.get(UNITS, {})
            checks = [
                perplexities,
                lambda each: odd_units(each, units.get(each.name)),
                lambda each: odd_shares(each, self.table),
                *checks,
            ]
        if not self.query.any_units and self.selection is None:
            checks += [odd_counts, lambda each: odd_losses(each, self.table[present])]
        problems = [next((some for check in checks if (some := check(each))), []) for each in read if len(rows)]
        if any(problems):
            raise InputError(problem for some in problems for problem in some)
        self.warnings += [warning for each in read if len(rows) for warning in loss_warnings(each)]

    def refuse_wrong_direction(self, variables: Mapping[str, Floats], response: str, values: Floats) -> None:
        if self.selection is not None or self.query.any_units:
            return
        inside = {name: column[self.present] for name, column in variables.items()}
        name = self.sources[response]
        problems = [*swapped_names(self.sources), *rising_response(response, name, values[self.present], inside)]
        if problems:
            raise InputError(problems)

    def refuse_incomparable_losses(self, variables: Mapping[str, NDArray[np.float64]]) -> None:
        if (known := self.selection) is None:
            return
        rows = self.table[self.present]
        values = {name: column[self.present] for name, column in variables.items()}
        settings = [column for column in known.settings if not self._is_in_law(column, variables)]
        reasons = (
            explain_incomparable_losses(rows, known.validation, KEEP),
            explain_separate_laws(rows, settings, KEEP),
            explain_false_repeats(rows, known.amounts, values, self.query.where),
        )
        if reason := next(filter(None, reasons), None):
            raise InputError.at("loss", reason)

    def _is_in_law(self, column: str, variables: Iterable[str]) -> bool:
        """Whether a variable is computed from a column of the selection, or expresses it in the maker's own column."""
        known = self.selection
        assert known is not None
        named = re.compile(rf"(?<![\w.]){re.escape(column)}(?![\w.])")
        of_maker = {name for name in variables if self.sources[name] == known.roles.get(name)}
        return any(named.search(self.sources[name]) for name in variables) or known.expressed.get(column) in of_maker

    def warn_of_repeats(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        """Warn of rows that repeat an earlier one in all values read but differ elsewhere."""
        if self.selection is not None:
            return
        read = pd.DataFrame(dict(values))[self.present]
        if len(again := read.index[read.duplicated()]):
            rows = f"{plural(len(again), 'row')} ({_listed([f'row {row + 1}' for row in again], SHOWN)})"
            named = ", ".join(self.sources[role] for role in values)
            message = f"{rows} equal an earlier row in {named} but differ elsewhere"
            self.warnings.append(f"{message}: if they are the same run, intervals are too narrow; --where leaves rows out")

    def without_order(self) -> frozenset[str]:
        labels, known = self.query.table.labels, self.selection
        return frozenset() if known is None else frozenset(labels[row] for row in known.without_order)

    def alike(self) -> dict[str, int]:
        """Return the vocabulary size if all rows in use share one."""
        if VOCABULARY not in self.table:
            return {}
        sizes = pd.to_numeric(self.table.loc[self.present, VOCABULARY], errors="coerce")
        return {VOCABULARY: int(sizes.iloc[0])} if np.isfinite(sizes).all() and sizes.nunique() == 1 else {}
