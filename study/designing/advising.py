"""The next runs for a table of finished ones: which, in what order, and what forecast to expect after each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.base.errors import InputError, Problem, nearest
from study.base.quantities import count_text, listed, plural, read_count
from study.base.text import aligned, joined
from study.designing.choosing import METHODS, Method, Prices, expected_error, half_width_of, plan
from study.designing.criteria import Basin
from study.designing.posterior import MOST_TARGETS, Learner, Pool, Rows
from study.laws.expressions import evaluate
from study.laws.law import Floats, Law
from study.laws.minimising import Space
from study.laws.observations import Observations
from study.laws.predicting import read_points
from study.laws.tables import RunTable

SHOWN = 20
"""The most runs listed."""

_FIRST_COST = {"parameters", "tokens"}


@dataclass(frozen=True)
class Advice:
    """The next runs, with the expected half-width of the 95% interval at the targets before the first and after each.

    A half-width is relative in logarithms. `cheapest` and `random` are those of the same budget spent on the cheapest
    candidates, and at random.
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
        """The advice as plain values."""
        runs = [
            {**run, "cost": cost, "half_width": width}
            for run, cost, width in zip(self.runs, self.costs, self.widths[1:], strict=True)
        ]
        return {
            "law": self.law.name,
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
        """The next runs as a table, with what to expect."""
        header = ["run", *self.law.variables, self.unit, "expected ±"]
        rows = [
            [str(number), *(count_text(run[name]) for name in self.law.variables), f"{cost:.3g}", self._width(width)]
            for number, (run, cost, width) in enumerate(zip(self.runs, self.costs, self.widths[1:], strict=True), 1)
        ]
        more = [f"… and {plural(len(rows) - SHOWN, 'run')} more; --json lists all"] if len(rows) > SHOWN else []
        basins = f"; {plural(self.basins, 'basin')} of the law fit the rows" if self.basins > 1 else ""
        spent = f"{sum(self.costs):.3g} {self.unit}"
        return "\n".join(
            [
                *(f"{self._point(row)}: {self.law.predicts} {value:.5g}" for row, value in enumerate(self.forecast)),
                f"95% interval of the law there: ± {self._width(self.widths[0])} now{basins}",
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

    `targets` are points such as `parameters=7e10,tokens=1.4e12`; `cost` is an expression over the candidates' columns, 6·N·D if
    not given. Raises InputError, with every problem, for unreadable input, too few finished rows, and a budget below every
    candidate's cost.
    """
    finished.check(law)
    target = _targets(law, targets)
    columns = read_points(candidates, law.variables)
    costs, unit = _costs(law, candidates, columns, cost)
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
    best = plan(basins, Prices.alone(pool.costs), np.arange(many, len(pool)), budget, chosen)
    fixed = expected_error(basins)
    forecast = basins[0].forecast if space == "linear" else np.exp(basins[0].forecast)
    return Advice(
        law=law,
        space=space,
        target=target,
        forecast=np.asarray(forecast)[np.argsort(learner.aims)],
        runs=tuple({name: float(pool.candidates[name][row]) for name in law.variables} for row in best.rows),
        costs=tuple(float(pool.costs[row]) for row in best.rows),
        widths=(half_width_of(fixed), *(half_width_of(error) for error in best.errors[1:])),
        cheapest=_spent(basins, pool.costs, np.argsort(pool.costs, kind="stable"), budget),
        random=_at_random(basins, pool, budget, seed),
        basins=len(basins),
        unit="FLOPs" if unit == "FLOPs" else "cost",
        notes=_notes(finished, pool, rows, len(basins), chosen, unit),
    )


def _targets(law: Law, texts: list[str]) -> dict[str, Floats]:
    points, problems = [], []
    for text in texts:
        point: dict[str, float] = {}
        for part in listed(text):
            name, equals, value = (one.strip() for one in part.partition("="))
            if not equals or name not in law.variables:
                told = f"{part!r} is not one of {joined(law.variables)} with a value, as in {law.variables[0]}=1e9"
                near = f"; {nearest(name, [*law.variables])}" if equals else ""
                problems.append(Problem("--target", told + near))
            else:
                point[name] = read_count("--target", value)
        problems += [Problem("--target", f"{name} is missing in {text!r}") for name in law.variables if name not in point]
        points.append(point)
    if len(texts) > MOST_TARGETS:
        problems.append(Problem("--target", f"{len(texts)} points are more than the {MOST_TARGETS} that a choice weighs"))
    if problems:
        raise InputError(problems)
    return {name: np.array([point[name] for point in points]) for name in law.variables}


def _costs(law: Law, candidates: Path, columns: Mapping[str, Floats], cost: str | None) -> tuple[Floats, str]:
    """The candidates' costs and their unit."""
    if cost is not None:
        frame = RunTable.read(candidates).frame

        def column(name: str) -> pd.Series[Any]:
            if name in frame:
                return frame[name]
            raise InputError.at("--cost", f"{candidates} has no column {name!r}; {nearest(name, [*map(str, frame.columns)])}")

        found = evaluate(cost, column, "--cost", map(str, frame.columns))
        values = np.broadcast_to(np.asarray(found, dtype=float), len(frame))
        if not (np.isfinite(values) & (values > 0)).all():
            raise InputError.at("--cost", f"{cost!r} must be a number above zero for every candidate")
        return np.array(values), cost
    if set(columns) >= _FIRST_COST:
        return 6.0 * columns["parameters"] * columns["tokens"], "FLOPs"
    if "flops" in columns:
        return columns["flops"], "FLOPs"
    raise InputError.at("--cost", f"is needed: {law.name} reads {joined(law.variables)}, which do not give a cost")


def _spent(basins: list[Basin], costs: Floats, order: Rows, budget: float) -> float:
    """The half-width after a budget is spent on candidates in order, skipping what it cannot afford."""
    for row in order.tolist():
        if costs[row] <= budget:
            budget -= float(costs[row])
            basins = [basin.after(row) for basin in basins]
    return half_width_of(expected_error(basins))


def _at_random(basins: list[Basin], pool: Pool, budget: float, seed: int, repeats: int = 5) -> float:
    random = np.random.default_rng(seed)
    return float(np.mean([_spent(basins, pool.costs, random.permutation(len(pool)), budget) for _ in range(repeats)]))


def _notes(finished: Observations, pool: Pool, rows: Rows, basins: int, method: Method, unit: str) -> tuple[str, ...]:
    notes = [*(note.removeprefix("warning: ") for note in finished.notes())]
    farthest = max(
        (max(float((pool.targets[name] / pool.candidates[name][rows].max()).max()) for name in pool.law.variables)), 1.0
    )
    if farthest > 1:
        notes.append(f"the target lies up to {farthest:.3g} times beyond the finished rows")
    if basins == 1:
        notes.append("one basin of the law fits the finished rows; another --seed tries other starts")
    if method.bend:
        notes.append(f"the law is taken to bend by {method.bend:.1%} at one standard deviation of the sizes")
    if unit != "FLOPs":
        notes.append(f"cost counted as {unit}")
    return tuple(notes)
