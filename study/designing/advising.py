"""The next runs for a table of finished ones, with the forecast to expect after each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from study.base.errors import InputError
from study.base.quantities import count_text, plural
from study.base.text import aligned, joined
from study.designing.choosing import METHODS, Choice, Method, Prices, expected_error, half_width_of, plan
from study.designing.posterior import MOST_TARGETS, Basin, Learner, Pool, Rows, forecast_of
from study.laws.columns import find_columns
from study.laws.law import Floats, Law
from study.laws.minimising import Space
from study.laws.observations import Observations
from study.laws.predicting import beyond, read_targets
from study.laws.reading import compute, read_points
from study.laws.tables import RunTable

SHOWN = 20
"""The most runs listed."""

_SIZES = ("parameters", "tokens", "flops")


@dataclass(frozen=True)
class Advice:
    """The next runs, with the expected half-width of the 95% interval at the targets before the first and after each.

    A half-width is relative in logarithms. `cheapest` and `random` are those of the same budget spent on the cheapest
    candidates, and the mean of several random orders; where the best of these is expected to do better than the plans of the
    criterion `error`, its runs are the advice.
    """

    law: Law
    space: Space
    target: Mapping[str, Floats]
    forecast: Floats
    runs: tuple[Mapping[str, float], ...]
    costs: tuple[float, ...]
    widths: tuple[float, ...]
    cheapest: float
    random: float
    basins: int
    unit: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the advice as plain values."""
        runs = [
            {**run, "cost": cost, "half_width": width}
            for run, cost, width in zip(self.runs, self.costs, self.widths[1:], strict=True)
        ]
        return {
            "law": self.law.definition,
            "targets": [
                {**{name: float(values[row]) for name, values in self.target.items()}, "predicted": float(predicted)}
                for row, predicted in enumerate(self.forecast)
            ],
            "half_width": "relative" if self.space == "log" else "absolute",
            "before": self.widths[0],
            "after": self.widths[-1],
            "cheapest": self.cheapest,
            "random": self.random,
            "basins": self.basins,
            "runs": runs,
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """Return the next runs as a table, with what to expect."""
        header = ["run", *self.law.variables, self.unit, "expected ±"]
        rows = [
            [str(number), *(count_text(run[name]) for name in self.law.variables), f"{cost:.3g}", self._width(width)]
            for number, (run, cost, width) in enumerate(zip(self.runs, self.costs, self.widths[1:], strict=True), 1)
        ]
        more = [f"… and {plural(len(rows) - SHOWN, 'run')} more; --json lists all"] if len(rows) > SHOWN else []
        basins = f"; {plural(self.basins, 'basin')} of the law fit the rows" if self.basins > 1 else ""
        spent = f"{'a cost of ' if self.unit == 'cost' else ''}{sum(self.costs):.3g}{'' if self.unit == 'cost' else ' FLOPs'}"
        return "\n".join(
            [
                *(f"{self._point(row)}: {self.law.predicts} {value:.5g}" for row, value in enumerate(self.forecast)),
                f"95% interval of the law there: ± {self._width(self.widths[0])} now{basins}",
                f"the law reads {joined(self.law.variables)}, and {joined(self.law.parameters)} are its parameters",
                "",
                *aligned([header, *rows[:SHOWN]]),
                *more,
                "",
                f"after {plural(len(rows), 'run')} of {spent} in all: ± {self._width(self.widths[-1])} is expected; for the "
                f"same budget ± {self._width(self.cheapest)} by the cheapest runs, ± {self._width(self.random)} at random",
                *(f"note: {note}" for note in self.notes),
            ]
        )

    def _width(self, width: float) -> str:
        return f"{width:.2%}" if self.space == "log" else f"{width:.4g}"

    def _point(self, row: int) -> str:
        return "at " + joined([f"{name} {count_text(values[row])}" for name, values in self.target.items()])


def advise(
    law: Law,
    finished: Observations,
    candidates: Path,
    targets: list[str],
    budget: float,
    *,
    method: str = "error",
    cost: str | None = None,
    space: Space = "log",
    seed: int = 0,
) -> Advice:
    """Choose the next runs among the candidates of a table, within a budget.

    `targets` are points such as `parameters=7e10,tokens=1.4e12`; `cost` is an expression over the candidates' columns, their
    column `cost`, 6·N·D or FLOPs if not given. Raises InputError with every problem.
    """
    law = law.suited_to(finished.response)
    finished.check(law)
    target, table = read_targets(law, targets, finished.roles, "--target"), RunTable.read(candidates)
    if len(targets) > MOST_TARGETS:
        raise InputError.at("--target", f"{len(targets)} points are more than the {MOST_TARGETS} that a choice weighs")
    columns = read_points(table, law, finished.roles)
    for place, points in (("--target", target), (str(candidates), columns)):
        if (bad := law.undefined(points)).any():
            raise InputError.at(place, f"{law.formula} has no value in point {int(np.argmax(bad)) + 1}; leave it out")
    costs, unit, how = _costs(law, table, finished.roles, cost)
    if (least := float(costs.min())) > budget:
        raise InputError.at("--budget", f"{budget:g} is less than the cheapest candidate costs, {least:.3g}")
    many = len(finished)
    pool = Pool(
        law,
        {name: np.concatenate([finished.columns[name], columns[name]]) for name in law.variables},
        np.concatenate([np.full(many, np.inf), costs]),
        target,
        space,
    )
    response = np.concatenate([finished.response, np.zeros(len(costs))])
    learner, chosen = Learner(pool, seed, METHODS[method].bend), METHODS[method]
    rows = np.arange(many)
    basins = learner.basins(rows, response)
    planned = plan(basins, Prices.alone(pool.costs), np.arange(many, len(pool)), budget, chosen)
    cheapest = _in_order(basins, pool.costs, np.argsort(pool.costs, kind="stable"), budget)
    random = [*_at_random(basins, pool, budget, seed)]
    best = min([planned, *([cheapest, *random] if chosen.criterion == "error" else [])], key=lambda one: one.errors[-1])
    plain = "the cheapest runs" if best is cheapest else "runs at random"
    how = (*how, *([] if best is planned else [f"no plan is expected to do better than {plain}, which are listed"]))
    forecast = forecast_of(basins) if space == "linear" else np.exp(forecast_of(basins))
    return Advice(
        law=law,
        space=space,
        target=target,
        forecast=np.asarray(forecast)[np.argsort(learner.aims)],
        runs=tuple({name: float(pool.candidates[name][row]) for name in law.variables} for row in best.rows),
        costs=tuple(float(pool.costs[row]) for row in best.rows),
        widths=tuple(map(half_width_of, best.errors)),
        cheapest=half_width_of(cheapest.errors[-1]),
        random=float(np.mean([half_width_of(one.errors[-1]) for one in random])),
        basins=len(basins),
        unit=unit,
        notes=(*_notes(finished, pool, rows, len(basins), chosen), *finished.collinearity(law), *how),
    )


def _costs(law: Law, table: RunTable, roles: Mapping[str, str], cost: str | None) -> tuple[Floats, str, tuple[str, ...]]:
    """Return the candidates' costs, their unit, and notes.

    A role goes by its column in the finished table, or by its name.
    """
    names = table.frame.columns
    columns = {
        role: roles[role] if roles.get(role) in names else next(iter(find_columns(role, names)), None) for role in _SIZES
    }
    known = {role: column for role, column in columns.items() if column is not None}
    usual = "6*N*D" if {"parameters", "tokens"} <= {*known} else "F" if "flops" in known else None
    text = cost or ("cost" if "cost" in names else usual)
    if text is None:
        message = f"is needed: {table.path} has no column cost or flops, and not both parameters and tokens"
        raise InputError.at("--cost", f"{message}; give an expression over its columns, or 1 to count runs")
    values = compute(table, text, known, "--cost")
    if not (np.isfinite(values) & (values > 0)).all():
        raise InputError.at("--cost", f"{text!r} must be a number above zero for every candidate")
    if cost is not None or text == "cost":
        return values, "cost", (f"cost counted as {text}",)
    read = {"6*N*D": ("parameters", "tokens"), "F": ("flops",)}[text]
    counted = f"FLOPs counted as {text.replace('*', '·')}, with {joined([f'{role} = {known[role]}' for role in read])}"
    return values, "FLOPs", () if {*read} <= {*law.variables} else (counted,)


def _in_order(basins: list[Basin], costs: Floats, order: Rows, budget: float) -> Choice:
    """Spend a budget on candidates in order, skipping what it cannot afford."""
    rows, errors = list[int](), [expected_error(basins)]
    for row in order.tolist():
        if costs[row] <= budget:
            budget -= float(costs[row])
            basins = [basin.after(row) for basin in basins]
            rows.append(row)
            errors.append(expected_error(basins))
    return Choice(tuple(rows), tuple(costs[rows].tolist()), tuple(errors))


def _at_random(basins: list[Basin], pool: Pool, budget: float, seed: int, repeats: int = 5) -> Iterator[Choice]:
    random = np.random.default_rng(seed)
    for _ in range(repeats):
        yield _in_order(basins, pool.costs, random.permutation(len(pool)), budget)


def _notes(finished: Observations, pool: Pool, rows: Rows, basins: int, method: Method) -> tuple[str, ...]:
    notes = [*(note.removeprefix("warning: ") for note in finished.notes())]
    ends = {name: (float(values[rows].min()), float(values[rows].max())) for name, values in pool.candidates.items()}
    farthest = max(beyond(value, *ends[name]) for name, values in pool.targets.items() for value in values.tolist())
    if farthest > 1:
        notes.append(f"the target lies up to {farthest:.3g} times beyond the finished rows")
    if basins == 1:
        notes.append("one basin of the law fits the finished rows; another --seed tries other starts")
    if method.bend:
        notes.append(f"the law is taken to bend by {method.bend:.1%} at one standard deviation of the sizes")
    return tuple(notes)
