"""One question under all defensible conventions: which share of them agrees, and which choice turns the answer.

The question is how a compute budget should be split: do the best parameters grow faster than the best tokens, that is, is the
exponent of N* in C above 1/2?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from study.errors import InputError
from study.fitting.catalogue import LAWS
from study.fitting.estimation import Settings, fit
from study.fitting.frontiers import iso_flop, parametric
from study.fitting.ledgers import is_ledger
from study.fitting.minimising import Space
from study.fitting.observations import Observations
from study.fitting.reading import Source, read_observations
from study.fitting.table_files import read_table
from study.wording import plural

QUESTION = "Should parameters grow faster than tokens with compute (exponent of N* above 0.5)?"
LEDGER_PARAMETERS = ("parameters", "parameters_encoder", "parameters_non_embedding")
LEDGER_FLOPS = ("train_flops", "train_flops_dense_head", "train_flops_6n", "train_flops_6n_non_embedding")

MOST_ROWS = 2000
"""Larger tables are thinned to so many rows, spread evenly over their budgets."""

_SPACES: tuple[Space, ...] = ("log", "linear")
_TRIMS: dict[str, Callable[[Observations], Observations]] = {
    "all rows": lambda points: points,
    "without the highest 5% of losses": lambda points: points.where(points.response <= np.quantile(points.response, 0.95)),
    "without the smallest 10% of budgets": lambda points: points.where(points.budget >= np.quantile(points.budget, 0.1)),
}
_FLOORS = {"with floor": "chinchilla", "without floor": "chinchilla-no-floor"}
_SETTINGS = Settings(bootstrap=100, starts=32)
_LOSSES = {"huber": 1e-3, "least squares": float("inf")}


@dataclass(frozen=True)
class Universe:
    """One set of choices, by what they are about, and what it says; `exponent` is None where it could not be had."""

    choices: Mapping[str, str]
    status: str
    exponent: float | None
    interval: tuple[float, float] | None = None

    @property
    def answer(self) -> bool | None:
        """Whether parameters should grow faster; None where the universe has no sound estimate."""
        return None if self.exponent is None else self.exponent > 0.5


@dataclass(frozen=True)
class Multiverse:
    """All universes; the first that has an answer, the usual conventions, is the reference."""

    universes: tuple[Universe, ...]

    @property
    def answered(self) -> tuple[Universe, ...]:
        """Those that have an answer."""
        return tuple(universe for universe in self.universes if universe.answer is not None)

    @property
    def agreement(self) -> float | None:
        """The share of the answers that are the reference's."""
        answers = [universe.answer for universe in self.answered]
        return float(np.mean([answer == answers[0] for answer in answers])) if answers else None

    def flips(self) -> dict[str, float]:
        """By choice: in which share of the pairs of universes that differ in it alone the answer differs, most first."""
        told: dict[str, list[bool]] = {}
        for one, other in _pairs(self.answered):
            (axis,) = (name for name in one.choices if one.choices[name] != other.choices[name])
            told.setdefault(axis, []).append(one.answer != other.answer)
        shares = {axis: float(np.mean(flipped)) for axis, flipped in told.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """The multiverse as plain values."""
        exponents = [universe.exponent for universe in self.answered if universe.exponent is not None]
        return {
            "question": QUESTION,
            "answer": self.answered[0].answer if self.answered else None,
            "agreement": self.agreement,
            "universes": len(self.universes),
            "answered": len(self.answered),
            "exponents": [min(exponents), float(np.median(exponents)), max(exponents)] if exponents else None,
            "flips": self.flips(),
            "statuses": dict(Counter(universe.status for universe in self.universes)),
            "all": [{**vars(universe), "answer": universe.answer} for universe in self.universes],
        }

    def to_text(self) -> str:
        """The multiverse for readers."""
        told = self.to_dict()
        if not self.answered:
            return f"{QUESTION}\nNone of {plural(len(self.universes), 'universe')} has an answer: {told['statuses']}"
        low, middle, high = told["exponents"]
        lines = [
            QUESTION,
            f"{'Yes' if told['answer'] else 'No'}, say the usual conventions and {told['agreement']:.0%} of "
            f"{plural(told['answered'], 'universe')} that have an answer (of {told['universes']}).",
            f"Exponents: {low:.3f} to {high:.3f}, median {middle:.3f}.",
        ]
        lines += [f"{axis} turns the answer in {share:.0%} of pairs" for axis, share in told["flips"].items()]
        return "\n".join(lines)


def explore(source: Source, parameters: Sequence[str] = (), flops: Sequence[str] = ()) -> Multiverse:
    """Ask the question in every universe of a table: which N, which FLOPs, law, floor, loss, space, exclusions, rates.

    A ledger brings its own counts of N and FLOPs. Raises InputError where the table cannot be read.
    """
    table = read_table(source.path)
    own = is_ledger(table)
    sizes = tuple(parameters) or (LEDGER_PARAMETERS if own else ("parameters",))
    budgets = tuple(flops) or (LEDGER_FLOPS if own else ())
    rates = ("all cells", "bracketed only") if own else ("all cells",)
    universes: list[Universe] = []
    for size, rate in product(sizes, rates):
        narrowed = replace(source, roles={**source.roles, "parameters": size}, bracketed_only=rate == "bracketed only")
        about = {"parameters": size, "rates": rate}
        universes += _universes(narrowed, {**about, "approach": "parametric"}, _parametric)
        for budget in budgets:
            choices = {**about, "approach": "parabola", "FLOPs": budget}
            universes += _universes(replace(narrowed, budget=budget), choices, _valley)
    return Multiverse(tuple(universes))


def _universes(
    source: Source, about: Mapping[str, str], ask: Callable[[Observations], Iterator[Universe]]
) -> Iterator[Universe]:
    """The universes of one reading of the table, by the rows that are left out."""
    try:
        points = read_observations(source, LAWS["chinchilla"]).thinned(MOST_ROWS)
    except InputError as error:
        yield Universe(about, f"refused: {error.problems[0]}", None)
        return
    for trim, trimmed in _TRIMS.items():
        for universe in ask(trimmed(points)):
            yield replace(universe, choices={**about, "rows": trim, **universe.choices})


def _parametric(points: Observations) -> Iterator[Universe]:
    for floor, loss, space in product(_FLOORS, _LOSSES, _SPACES):
        choices = {"floor": floor, "loss": loss, "space": space}
        try:
            found = fit(LAWS[_FLOORS[floor]], points, replace(_SETTINGS, huber_delta=_LOSSES[loss], space=space))
        except InputError as error:
            yield Universe(choices, f"refused: {error.problems[0]}", None)
            continue
        frontier = parametric(found)
        sound = found.status == "converged"
        yield Universe(choices, found.status, frontier.exponent if sound else None, frontier.interval)


def _valley(points: Observations) -> Iterator[Universe]:
    try:
        found = iso_flop(points.columns["parameters"], points.budget, points.response)
        yield Universe({}, "converged", found.exponent, found.interval)
    except InputError as error:
        yield Universe({}, f"refused: {error.problems[0]}", None)


def _pairs(universes: Sequence[Universe]) -> Iterator[tuple[Universe, Universe]]:
    """Universes with the same kinds of choices that differ in exactly one."""
    table = pd.DataFrame([dict(universe.choices) for universe in universes])
    for axis in table.columns:
        rest = [name for name in table.columns if name != axis]
        for _, rows in table[table[axis].notna()].groupby(rest, dropna=False):
            places = rows.index.tolist()
            yield from ((universes[one], universes[other]) for k, one in enumerate(places) for other in places[k + 1 :])
