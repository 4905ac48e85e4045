"""The next runs for a table of finished ones, with the forecast to expect after each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Any

import numpy as np

from study.base.errors import InputError
from study.base.quantities import count_text, plural, read_count
from study.base.text import aligned, joined
from study.designing.choosing import METHODS, ROUNDING, Choice, Method, Prices, expected_error, half_width_of, pilot, plan
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

FEW_TARGETS = 5
"""The most targets whose forecasts are printed one by one."""

WIDE = 0.5
"""The half-width in logarithms from which an interval is printed as a factor, since per cent no longer describe it."""

_RANDOM_ORDERS = 5
"""The random orders of the pool whose choices stand beside the chosen runs."""

_SIZES = ("parameters", "tokens", "flops")


@dataclass(frozen=True)
class Advice:
    """The next runs, with the expected half-width of the 95% interval at the targets before the first and after each.

    A half-width is relative in logarithms; `forecast` is the law at each target. `cheapest` and `random` are those of the same
    budget spent on the cheapest candidates, and the mean of several random orders; where the best of these is expected to do
    better than the plans of the criterion `error`, its runs are the advice.
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
        return {
            "law": self.law.definition,
            "targets": _forecasts(self.target, self.forecast.tolist()),
            "half_width": "relative" if self.space == "log" else "absolute",
            "before": self.widths[0],
            "after": self.widths[-1],
            "cheapest": self.cheapest,
            "random": self.random,
            "basins": self.basins,
            "runs": _priced(self.runs, self.costs, self.widths[1:]),
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """Return the next runs as a table, with what to expect."""
        listed = _listed(self.law, self.runs, self.costs, self.unit, ("expected", *map(self._width, self.widths[1:])))
        basins = f"; {plural(self.basins, 'basin')} of the law fit the rows" if self.basins > 1 else ""
        return "\n".join(
            [
                *self._predicted(),
                f"95% interval of the law there: {self._width(self.widths[0])} now{basins}",
                f"the law reads {joined(self.law.variables)}, and {joined(self.law.parameters)} are its parameters",
                "",
                *listed,
                "",
                f"expected after {_sum(self.costs, self.unit)}: {self._width(self.widths[-1])}; for the same budget "
                f"{self._width(self.cheapest)} by the cheapest runs, {self._width(self.random)} at random",
                *(f"note: {note}" for note in self.notes),
            ]
        )

    def _width(self, width: float) -> str:
        """Return half an interval, one of logarithms in per cent or as a factor of two digits."""
        if self.space == "linear":
            return f"± {width:.4g}"
        return f"± {width:.2%}" if width < WIDE else f"within a factor of {float(f'{np.exp(width):.2g}'):,.6g}"

    def _predicted(self) -> list[str]:
        """Return the forecast at each target, or at many their range."""
        if len(self.forecast) <= FEW_TARGETS:
            return [f"{self._point(row)}: {self.law.predicts} {value:.5g}" for row, value in enumerate(self.forecast)]
        ends = f"{self.forecast.min():.5g} to {self.forecast.max():.5g}"
        return [f"at {len(self.forecast)} targets: {self.law.predicts} {ends}; --json lists all"]

    def _point(self, row: int) -> str:
        return "at " + joined([f"{name} {count_text(values[row])}" for name, values in self.target.items()])


@dataclass(frozen=True)
class FirstRuns:
    """The runs to begin with, before a law can be fitted: spread over the candidates; see pilot."""

    law: Law
    target: Mapping[str, Floats]
    runs: tuple[Mapping[str, float], ...]
    costs: tuple[float, ...]
    unit: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the runs as plain values, under the names of an Advice; what a fit would say is None."""
        unknown = dict.fromkeys(("half_width", "before", "after", "cheapest", "random", "basins"))
        targets = _forecasts(self.target, [None] * len(next(iter(self.target.values()))))
        runs = _priced(self.runs, self.costs, [None] * len(self.runs))
        return {"law": self.law.definition, "targets": targets, **unknown, "runs": runs, "notes": list(self.notes)}

    def to_text(self) -> str:
        """Return the runs as a table."""
        return "\n".join(
            [
                *_listed(self.law, self.runs, self.costs, self.unit),
                "",
                f"{self._first}; nothing is known of the law until {'it has' if len(self.runs) == 1 else 'they have'} ended: "
                "then add the results to the table, and ask again with what is left of the budget",
                *(f"note: {note}" for note in self.notes),
            ]
        )

    @property
    def _first(self) -> str:
        if len(self.runs) == 1:
            return f"the first run costs {_amount(self.costs, self.unit)}"
        spread = "spread over the candidates as far as the budget allows"
        return f"the first {len(self.runs)} runs, {spread}, cost {_amount(self.costs, self.unit)} in all"


def _forecasts(target: Mapping[str, Floats], predicted: Sequence[float | None]) -> list[dict[str, float | None]]:
    """Return the forecast at each target as plain values."""
    points = ({name: float(values[row]) for name, values in target.items()} for row in range(len(predicted)))
    return [{**point, "predicted": value} for point, value in zip(points, predicted, strict=True)]


def _priced(
    runs: Sequence[Mapping[str, float]], costs: Sequence[float], widths: Sequence[float | None]
) -> list[dict[str, float | None]]:
    """Return runs as plain values, each with its cost and the half-width after it."""
    return [{**run, "cost": cost, "half_width": width} for run, cost, width in zip(runs, costs, widths, strict=True)]


def _listed(
    law: Law, runs: Sequence[Mapping[str, float]], costs: Sequence[float], unit: str, *more: Sequence[str]
) -> list[str]:
    """Return the lines of a table of runs; `more` are columns with their headers."""
    lines = [
        [str(number), *(count_text(run[name]) for name in law.variables), f"{cost:.3g}", *rest]
        for number, (run, cost, *rest) in enumerate(zip(runs, costs, *(column[1:] for column in more), strict=True), 1)
    ]
    header = ["run", *law.variables, unit, *(column[0] for column in more)]
    unseen = [f"… and {plural(len(lines) - SHOWN, 'run')} more; --json lists all"] if len(lines) > SHOWN else []
    return [*aligned([header, *lines[:SHOWN]]), *unseen]


def _sum(costs: Sequence[float], unit: str) -> str:
    of = "of a cost of" if unit == "cost" else "of"
    return f"{plural(len(costs), 'run')} {of} {_amount(costs, unit)}{' in all' if len(costs) > 1 else ''}"


def _amount(costs: Sequence[float], unit: str) -> str:
    return f"{sum(costs):.3g}{'' if unit == 'cost' else f' {unit}'}"


@dataclass(frozen=True)
class _Ask:
    """What may be run, and where a law is wanted: candidates with their costs, the targets, and the budget."""

    candidates: Mapping[str, Floats]
    costs: Floats
    unit: str
    target: Mapping[str, Floats]
    budget: float
    notes: tuple[str, ...]


def begin(
    law: Law,
    candidates: Path,
    targets: Sequence[str],
    budget: str,
    *,
    roles: Mapping[str, str],
    cost: str | None = None,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> FirstRuns:
    """Choose the first runs among the candidates of a table, without finished ones; see advise.

    `notes` say why rows of the finished table are not used.
    """
    ask = _read(law, roles, candidates, targets, budget, cost)
    pool = Pool(law, ask.candidates, ask.costs, ask.target)
    runs, costs = _chosen(pool, pilot(pool, ask.budget, np.random.default_rng(seed)).tolist())
    return FirstRuns(law, ask.target, runs, costs, ask.unit, (*notes, *ask.notes))


def advise(
    law: Law,
    finished: Observations,
    candidates: Path,
    targets: Sequence[str],
    budget: str,
    *,
    method: str = "error",
    cost: str | None = None,
    space: Space = "log",
    seed: int = 0,
) -> Advice:
    """Choose the next runs among the candidates of a table, within a budget.

    `targets` are points such as `parameters=7e10,tokens=1.4e12`, or tables with a row for each; `budget` is a cost or a share
    of that of all candidates, such as 5%; `cost` is an expression over the candidates' columns, their column `cost`, 6·N·D or
    FLOPs if not given. Fewer finished rows than parameters will do, where the spread of starts says the rest. Raises
    InputError with every problem, and where rows enough for a fit all have one response.
    """
    law = law.suited_to(finished.response)
    if not finished.response.any():
        raise InputError.at(
            law.predicts,
            f"is 0 in {plural(len(finished), 'finished row')}, which gives results no size; "
            "add a row with another value, or leave these out to begin without results",
        )
    if finished.settings(law) > len(law.parameters) and (problem := finished.unvaried(law)):
        raise InputError([problem])
    ask = _read(law, finished.roles, candidates, targets, budget, cost)
    many = len(finished)
    pool = Pool(
        law,
        {name: np.concatenate([finished.columns[name], ask.candidates[name]]) for name in law.variables},
        np.concatenate([np.full(many, np.inf), ask.costs]),
        ask.target,
        space,
    )
    response = np.concatenate([finished.response, np.zeros(len(ask.costs))])
    learner, chosen = Learner(pool, seed, METHODS[method].bend), METHODS[method]
    rows = np.arange(many)
    basins = learner.basins(rows, response)
    planned = plan(basins, Prices.alone(pool.costs), np.arange(many, len(pool)), ask.budget, chosen)
    cheapest = _in_order(basins, pool.costs, np.argsort(pool.costs, kind="stable"), ask.budget)
    random = [*_at_random(basins, pool, ask.budget, seed)]
    best = min([planned, *([cheapest, *random] if chosen.criterion == "error" else [])], key=lambda one: one.errors[-1])
    plain = "the cheapest runs" if best is cheapest else "runs at random"
    how = (*ask.notes, *([] if best is planned else [f"no plan is expected to do better than {plain}, which are listed"]))
    forecast = forecast_of(basins) if space == "linear" else np.exp(forecast_of(basins))
    runs, costs = _chosen(pool, best.rows)
    return Advice(
        law=law,
        space=space,
        target=ask.target,
        forecast=np.asarray(forecast),
        runs=runs,
        costs=costs,
        widths=tuple(map(half_width_of, best.errors)),
        cheapest=half_width_of(cheapest.errors[-1]),
        random=float(np.mean([half_width_of(one.errors[-1]) for one in random])),
        basins=len(basins),
        unit=ask.unit,
        notes=(
            *_notes(finished, pool, rows, len(basins), chosen),
            *_again(finished, ask),
            *finished.collinearity(law),
            *how,
        ),
    )


def _read(law: Law, roles: Mapping[str, str], candidates: Path, targets: Sequence[str], budget: str, cost: str | None) -> _Ask:
    """Read what is asked; raises InputError for points without a value, and for a budget below every candidate."""
    target, table = _targets(law, targets, roles), RunTable.read(candidates)
    columns = read_points(table, law, roles)
    for place, points in (("--target", target), (str(candidates), columns)):
        if (bad := law.undefined(points)).any():
            raise InputError.at(place, f"{law.formula} has no value in point {int(np.argmax(bad)) + 1}; leave it out")
    costs, unit, how = _costs(law, table, roles, cost, columns)
    share = budget.strip().endswith("%")
    spend = read_count("--budget", budget.strip().removesuffix("%")) * (float(costs.sum()) / 100 if share else 1.0)
    if (least := float(costs.min())) > spend * (1 + ROUNDING):
        given = f"{budget} of {costs.sum():.3g}" if share else f"{spend:g}"
        raise InputError.at("--budget", f"{given} is less than the cheapest candidate costs, {least:.3g}")
    many = len(next(iter(target.values())))
    some = [f"of {many} targets {MOST_TARGETS} are weighed, spread over their sizes"] if many > MOST_TARGETS else []
    return _Ask(columns, costs, unit, target, spend, (*some, *how))


def _targets(law: Law, texts: Sequence[str], roles: Mapping[str, str]) -> dict[str, Floats]:
    """Return the points of texts such as `N=1e9,D=2e10`, and those of tables, as which a file counts whatever its name."""
    points = [text for text in texts if "=" in text and not isfile(text)]  # a Path raises where a text is too long for a name
    parts = [read_points(RunTable.read(Path(text)), law, roles) for text in texts if text not in points]
    parts += [read_targets(law, points, roles, "--target")] if points else []
    return {name: np.concatenate([part[name] for part in parts]) for name in law.variables}


def _chosen(pool: Pool, rows: Sequence[int]) -> tuple[tuple[Mapping[str, float], ...], tuple[float, ...]]:
    """Return runs of a pool by the variables of its law, with their costs."""
    runs = tuple({name: float(pool.candidates[name][row]) for name in pool.law.variables} for row in rows)
    return runs, tuple(float(pool.costs[row]) for row in rows)


def _again(finished: Observations, ask: _Ask) -> list[str]:
    """Say how many candidates equal finished rows."""
    done = {tuple(row) for row in np.column_stack([*finished.columns.values()]).tolist()}
    points = np.column_stack([ask.candidates[name] for name in finished.columns])
    if not (same := sum(tuple(point) in done for point in points.tolist())):
        return []
    whose = (
        "is at the point of a finished row, and counts as another seed"
        if same == 1
        else "are at points of finished rows, and count as other seeds"
    )
    return [f"{plural(same, 'candidate')} {whose}; leave out of the table what has been run"]


def _costs(
    law: Law, table: RunTable, roles: Mapping[str, str], cost: str | None, points: Mapping[str, Floats]
) -> tuple[Floats, str, tuple[str, ...]]:
    """Return the candidates' costs, their unit, and notes.

    A role goes by its column in the finished table, or by its name. FLOPs of parameters and tokens are those of the law's
    points, which may be expressions over columns.
    """
    names = table.frame.columns
    columns = {
        role: roles[role] if roles.get(role) in names else next(iter(find_columns(role, names)), None) for role in _SIZES
    }
    known = {role: column for role, column in columns.items() if column is not None}
    of_points = {"parameters", "tokens"} <= {*points}
    usual = "6*N*D" if of_points or {"parameters", "tokens"} <= {*known} else "F" if "flops" in known else None
    text = cost or ("cost" if "cost" in names else usual)
    if text is None:
        message = f"is needed: {table.path} has no column cost or flops, and not both parameters and tokens"
        raise InputError.at("--cost", f"{message}; give an expression over its columns, or 1 to count runs")
    if of_points and text == "6*N*D":
        values = 6 * points["parameters"] * points["tokens"]
    else:
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
        if costs[row] <= budget * (1 + ROUNDING):
            budget -= float(costs[row])
            basins = [basin.after(row) for basin in basins]
            rows.append(row)
            errors.append(expected_error(basins))
    return Choice(tuple(rows), tuple(costs[rows].tolist()), tuple(errors))


def _at_random(basins: list[Basin], pool: Pool, budget: float, seed: int) -> Iterator[Choice]:
    random = np.random.default_rng(seed)
    for _ in range(_RANDOM_ORDERS):
        yield _in_order(basins, pool.costs, random.permutation(len(pool)), budget)


def _notes(finished: Observations, pool: Pool, rows: Rows, basins: int, method: Method) -> tuple[str, ...]:
    notes = [*finished.doubts, *(note.removeprefix("warning: ") for note in finished.notes())]
    if (settings := finished.settings(pool.law)) < (enough := 2 * len(pool.law.parameters)):
        some = f"{plural(settings, 'different point')} for {plural(len(pool.law.parameters), 'parameter')} of the law"
        often = "run" if settings == 1 else f"{settings} runs"
        notes.append(f"{some}: add results and ask again after every {often}, until there are {enough} points")
    ends = {name: (float(values[rows].min()), float(values[rows].max())) for name, values in pool.candidates.items()}
    farthest = max(beyond(value, *ends[name]) for name, values in pool.targets.items() for value in values.tolist())
    if farthest > 1:
        notes.append(f"the target lies up to {farthest:.3g} times beyond the finished rows")
    if basins == 1:
        notes.append("one basin of the law fits the finished rows; another --seed tries other starts")
    if method.bend:
        notes.append(f"the law is taken to bend by {method.bend:.1%} at one standard deviation of the sizes")
    return tuple(notes)
