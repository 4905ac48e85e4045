"""How a compute budget should be split, under all defensible conventions.

Do the best parameters grow faster than the best tokens, that is, is the exponent of N* in C above 1/2?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from study.base.errors import InputError
from study.laws.approaches import over_clusters
from study.laws.catalogue import LAWS
from study.laws.estimation import fit
from study.laws.frontiers import check_split, iso_flop, iso_flop_groups, parametric
from study.laws.minimising import Space
from study.laws.observations import Observations
from study.laws.reading import Source, read_observations
from study.laws.universes import LOSSES, SETTINGS, Multiverse, Question, Universe

QUESTION = Question(
    "Should parameters grow faster than tokens with compute (exponent of N* above 0.5)?",
    "exponent of N* in C",
    0.5,
    "Yes",
    "No",
)

MOST_ROWS = 1000
"""Larger tables are thinned to so many rows, spread evenly over their budgets."""


def _without_smallest(points: Observations) -> Observations:
    """The rows without the smallest tenth of the budgets, one at the least; all rows where there is one budget."""
    budgets = list(iso_flop_groups(points.budget))
    gone = min(max(1, round(len(budgets) / 10)), len(budgets) - 1)
    return points.where(np.isin(np.arange(len(points)), np.concatenate(budgets[gone:])))


_SPACES: tuple[Space, ...] = ("log", "linear")
_TRIMS: dict[str, Callable[[Observations], Observations]] = {
    "all rows": lambda points: points,
    "without the highest 5% of losses": lambda points: points.where(points.response <= np.quantile(points.response, 0.95)),
    "without the smallest 10% of budgets": _without_smallest,
}
_FLOORS = {"with floor": "chinchilla", "without floor": "chinchilla-no-floor"}


def explore(source: Source, parameters: Sequence[str] = (), flops: Sequence[str] = ()) -> Multiverse:
    """Ask the question in every universe of a table: which N, which FLOPs, law, floor, loss, space, exclusions, rates.

    Where none are given, they are those that the table's selection counts; an expression that names N or C means the first.
    What leaves out no row, or the same rows as another choice, is no universe of its own, and a law that the rows cannot tell
    is a universe that refuses. Raises InputError where the table cannot be read in the usual ones, or its rows cannot tell
    even the law without a floor.
    """
    counts = source.table.counts
    given = tuple(dict.fromkeys(parameters)) or tuple(counts.get("parameters", ()))
    budgets = tuple(dict.fromkeys(flops))
    named = {role: ways[0] for role, ways in (("parameters", given), ("flops", budgets)) if ways}
    source = replace(source, roles={**source.roles, **named})
    points = read_observations(source, LAWS["chinchilla"])
    check_split(points.columns["parameters"], points.columns["tokens"])
    points.check(LAWS["chinchilla-no-floor"])
    sizes = given or (points.roles["parameters"],)
    budgets = budgets or tuple(counts.get("flops", ()))
    rates = ("all cells",) if source.table.selection is None else ("all cells", "bracketed only")
    universes: list[Universe] = []
    for size in sizes:
        sized = replace(source, roles={**source.roles, "parameters": size})
        universes += _universes(sized, rates, {"parameters": size, "approach": "parametric"}, _parametric)
        for budget in budgets:
            choices = {"parameters": size, "approach": "parabola", "FLOPs": budget}
            universes += _universes(replace(sized, budget=budget), rates, choices, _valley)
    return Multiverse(QUESTION, tuple(universes), points.notes())


def _universes(
    source: Source, rates: Sequence[str], about: Mapping[str, str], ask: Callable[[Observations], Iterator[Universe]]
) -> Iterator[Universe]:
    """The universes of one reading of the table, by the rows that are left out; each set of rows is asked once."""
    asked: set[tuple[str, ...]] = set()
    for rate in rates:
        choices = {**about, "rates": rate}
        try:
            narrowed = replace(source, bracketed_only=rate == "bracketed only")
            points = read_observations(narrowed, LAWS["chinchilla"]).thinned(MOST_ROWS)
        except InputError as error:
            yield Universe(choices, f"refused: {error.problems[0]}", None)
            continue
        if not len(points):
            yield Universe(choices, "refused: no row is left", None)
            continue
        for trim, trimmed in _TRIMS.items():
            kept = trimmed(points)
            if kept.labels in asked:
                continue
            asked.add(kept.labels)
            for universe in ask(kept):
                yield replace(universe, choices={**choices, "rows": trim, **universe.choices})


def _parametric(points: Observations) -> Iterator[Universe]:
    for floor, loss, space in product(_FLOORS, LOSSES, _SPACES):
        choices = {"floor": floor, "loss": loss, "space": space}
        try:
            check_split(points.columns["parameters"], points.columns["tokens"])
            found = fit(LAWS[_FLOORS[floor]], points, replace(SETTINGS, huber_delta=LOSSES[loss], space=space))
        except InputError as error:
            yield Universe(choices, f"refused: {error.problems[0]}", None)
            continue
        if found.status != "converged":
            yield Universe(choices, found.status, None)
            continue
        frontier = parametric(found)
        yield Universe(choices, found.status, frontier.exponent, frontier.interval)


def _valley(points: Observations) -> Iterator[Universe]:
    try:
        check_split(points.columns["parameters"], points.columns["tokens"])
        found = over_clusters(points, iso_flop, SETTINGS.bootstrap)
    except InputError as error:
        yield Universe({}, f"refused: {error.problems[0]}", None)
        return
    if found.status == "weakly_identified":
        yield Universe({}, found.status, None)
    else:
        yield Universe({}, "converged", found.exponent, found.interval)
