"""One question under every defensible set of conventions, here how to split a compute budget.

The usual conventions decide; the others show how many agree and which choices change the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd

from study.base.errors import InputError
from study.base.quantities import plural
from study.base.text import status_words
from study.laws.approaches import resample_frontier
from study.laws.catalogue import LAWS
from study.laws.estimation import Settings, fit
from study.laws.frontiers import check_split, iso_flop, iso_flop_groups, parametric
from study.laws.minimising import Space
from study.laws.observations import Observations
from study.laws.reading import TableQuery, read_observations

LOSSES = {"huber": 1e-3, "least squares": float("inf")}
"""The Huber delta of each loss."""

UNDECIDED = "Undecided"
"""The verdict if the usual conventions give no number, or a 95% interval that holds both answers."""

UNIVERSE_SETTINGS = Settings(starts=32)
"""The fit settings of each universe."""


@dataclass(frozen=True)
class BinaryQuestion:
    """A question about one number: `above` if it exceeds the threshold, else `below`."""

    text: str
    quantity: str
    threshold: float
    above: str
    below: str

    def answer(self, value: float) -> str:
        """Return the answer for a value."""
        return self.above if value > self.threshold else self.below


@dataclass(frozen=True)
class Universe:
    """One set of choices and its result; `value` is None without a sound estimate."""

    choices: Mapping[str, str]
    status: str
    value: float | None
    interval: tuple[float, float] | None = None

    def decided(self, threshold: float) -> bool:
        """Whether the 95% interval excludes the threshold."""
        return self.interval is not None and not self.interval[0] <= threshold <= self.interval[1]


@dataclass(frozen=True)
class Multiverse:
    """All universes of a question, the usual conventions `first`, in words; `notes` say how the table was read."""

    question: BinaryQuestion
    universes: tuple[Universe, ...]
    notes: tuple[str, ...] = ()
    first: str = "the usual conventions"

    @property
    def answered(self) -> tuple[Universe, ...]:
        """The universes with a sound estimate."""
        return tuple(universe for universe in self.universes if universe.value is not None)

    @property
    def answers(self) -> tuple[str, ...]:
        """The answer of each answered universe."""
        return tuple(self.question.answer(universe.value) for universe in self.answered if universe.value is not None)

    @property
    def verdict(self) -> str:
        """The answer of the usual conventions."""
        usual = self.universes[0]
        if usual.value is None or not usual.decided(self.question.threshold):
            return UNDECIDED
        return self.question.answer(usual.value)

    @property
    def leaning(self) -> str | None:
        """The reported answer: the usual conventions', decided or not, else the most common."""
        if (value := self.universes[0].value) is not None:
            return self.question.answer(value)
        return Counter(self.answers).most_common(1)[0][0] if self.answers else None

    @property
    def agreement(self) -> float | None:
        """The share of answers equal to the leaning."""
        return float(np.mean([answer == self.leaning for answer in self.answers])) if self.answers else None

    def decided(self, answer: str) -> int:
        """Return the number of universes with this answer and a 95% interval that excludes the other."""
        threshold = self.question.threshold
        pairs = zip(self.answered, self.answers, strict=True)
        return sum(universe.decided(threshold) for universe, given in pairs if given == answer)

    def flips(self) -> dict[str, float]:
        """By choice, the share of pairs differing only in it whose answers differ, largest first."""
        changed: dict[str, list[bool]] = {}
        answered, answers = self.answered, self.answers
        for one, other in _pairs(answered):
            first, second = answered[one].choices, answered[other].choices
            (axis,) = (name for name in first if first[name] != second[name])
            changed.setdefault(axis, []).append(answers[one] != answers[other])
        shares = {axis: float(np.mean(flipped)) for axis, flipped in changed.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def by_choice(self) -> dict[str, dict[str, float]]:
        """Return the agreement with the leaning by choice and option."""
        table = pd.DataFrame([dict(universe.choices) for universe in self.answered])
        agrees = np.array([answer == self.leaning for answer in self.answers], dtype=float)
        rows_by_option = {str(axis): table.groupby(axis, sort=False).indices for axis in table.columns}
        return {
            axis: {str(option): float(agrees[rows].mean()) for option, rows in options.items()}
            for axis, options in rows_by_option.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the multiverse as plain values."""
        values = [universe.value for universe in self.answered if universe.value is not None]
        return {
            "question": self.question.text,
            "quantity": self.question.quantity,
            "answer": self.verdict,
            "leaning": self.leaning,
            "agreement": self.agreement,
            "universes": len(self.universes),
            "answered": len(values),
            "answers": {
                answer: {"universes": count, "decided": self.decided(answer)} for answer, count in Counter(self.answers).items()
            },
            "values": [min(values), float(np.median(values)), max(values)] if values else None,
            "flips": self.flips(),
            "agreement_by_choice": self.by_choice(),
            "notes": list(self.notes),
            "statuses": dict(Counter(universe.status for universe in self.universes)),
            "all": [
                {**vars(universe), "answer": None if universe.value is None else self.question.answer(universe.value)}
                for universe in self.universes
            ],
        }

    def _usual_line(self) -> str:
        usual = self.universes[0]
        named = self.first + (f" on {usual.choices['validation']}" if "validation" in usual.choices else "")
        if usual.value is None:
            return f"{UNDECIDED}: {named} have no answer ({status_words(usual.status)})."
        given = f"{self.question.quantity} {usual.value:.3g}"
        if usual.interval is None:
            return f"{UNDECIDED}, say {named}: {given}, without an interval."
        given += f" (95% interval {usual.interval[0]:.3g} to {usual.interval[1]:.3g})"
        if self.verdict == UNDECIDED:
            return f"{UNDECIDED}, say {named}: {given}, which rules out neither answer."
        return f"{self.verdict}, say {named}: {given}."

    def _share_line(self) -> str:
        counts = Counter(self.answers)
        of = f"{plural(len(self.answered), 'universe')} with an answer (of {len(self.universes)})"
        sides = [f"{self.decided(answer)} of {count} for {answer}" for answer, count in counts.items()]
        shares = f"{self.agreement:.0%} of the {of} say {self.leaning}"
        return f"{shares}; the 95% interval rules out the other answer in {' and '.join(sides)}."

    def to_text(self) -> str:
        """Return the multiverse as text."""
        summary = self.to_dict()
        if not self.answered:
            reasons = [
                f"  {plural(count, 'universe')}: {status_words(status)}" for status, count in summary["statuses"].items()
            ]
            none = f"None of {plural(len(self.universes), 'universe')} has an answer:"
            return "\n".join([self.question.text, none, *reasons, *self.notes])
        low, middle, high = summary["values"]
        lines = [
            self.question.text,
            self._usual_line(),
            self._share_line(),
            f"{self.question.quantity}: {low:.3f} to {high:.3f}, median {middle:.3f}.",
            *self._separate_lines(summary["flips"], summary["agreement_by_choice"]),
            *self._flip_lines(summary["flips"], summary["agreement_by_choice"]),
        ]
        unanswered = Counter(universe.status for universe in self.universes if universe.value is None)
        lines += [
            f"without an answer, {plural(count, 'universe')}: {status_words(status)}"
            for status, count in unanswered.most_common(5)
        ]
        return "\n".join([*lines, *self.notes])

    def _separate_lines(self, flips: Mapping[str, float], shares: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
        """Yield the agreement by option for choices that no pair isolates, such as approaches."""
        for axis, options in shares.items():
            if len(options) > 1 and axis not in flips:
                yield f"agreement by {axis}: {', '.join(f'{option} {agree:.0%}' for option, agree in options.items())}"

    def _flip_lines(self, flips: Mapping[str, float], shares: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
        for axis, share in flips.items():
            if share > 0:
                options = ", ".join(f"{option} {agree:.0%}" for option, agree in shares[axis].items())
                yield f"{axis} flips the answer in {share:.0%} of pairs (agreement: {options})"
        if still := [axis for axis, share in flips.items() if share == 0]:
            yield f"never flips it alone: {', '.join(still)}"


def _pairs(universes: Sequence[Universe]) -> Iterator[tuple[int, int]]:
    """Pairs of universes that share the kinds of choices and differ in exactly one."""
    table = pd.DataFrame([dict(universe.choices) for universe in universes])
    for axis in table.columns:
        rest = [name for name in table.columns if name != axis]
        groups = table[table[axis].notna()].groupby(rest, dropna=False) if rest else [("", table)]
        for _, rows in groups:
            options = rows[axis]
            yield from ((one, other) for one, other in combinations(rows.index.tolist(), 2) if options[one] != options[other])


QUESTION = BinaryQuestion(
    "Should parameters grow faster than tokens with compute (exponent of N* above 0.5)?",
    "exponent of N* in C",
    0.5,
    "Yes",
    "No",
)

MOST_ROWS = 1000
"""The row limit above which tables are thinned, evenly over their budgets."""


def _without_smallest(points: Observations) -> Observations:
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


def explore(query: TableQuery, parameters: Sequence[str] = (), flops: Sequence[str] = ()) -> Multiverse:
    """Ask the question in every universe: count of N, FLOPs, law, floor, loss, space, exclusions and rates.

    N and C default to the selection's counts; an expression in N or C means the first. Choices with the same rows are one
    universe; a law that the rows do not determine is a refused one. Raises InputError if the table is unreadable under the
    usual conventions or does not suit even the law without a floor.
    """
    counts = query.table.counts
    given = tuple(dict.fromkeys(parameters)) or tuple(counts.get("parameters", ()))
    budgets = tuple(dict.fromkeys(flops))
    named = {role: ways[0] for role, ways in (("parameters", given), ("flops", budgets)) if ways}
    query = replace(query, roles={**query.roles, **named})
    points = read_observations(query, LAWS["chinchilla"])
    check_split(points.columns["parameters"], points.columns["tokens"])
    points.check(LAWS["chinchilla-no-floor"])
    sizes = given or (points.roles["parameters"],)
    budgets = budgets or tuple(counts.get("flops", ()))
    rates = ("all cells",) if query.table.selection is None else ("all cells", "bracketed only")
    universes: list[Universe] = []
    for size in sizes:
        sized = replace(query, roles={**query.roles, "parameters": size})
        universes += _universes(sized, rates, {"parameters": size, "approach": "parametric"}, _parametric)
        for budget in budgets:
            choices = {"parameters": size, "approach": "parabola", "FLOPs": budget}
            universes += _universes(replace(sized, budget=budget), rates, choices, _valley)
    return Multiverse(QUESTION, tuple(universes), points.notes())


def _universes(
    query: TableQuery, rates: Sequence[str], about: Mapping[str, str], ask: Callable[[Observations], Iterator[Universe]]
) -> Iterator[Universe]:
    """Yield the universes of one reading, by excluded rows; each set of rows counts once."""
    seen: set[tuple[str, ...]] = set()
    for rate in rates:
        choices = {**about, "rates": rate}
        try:
            narrowed = replace(query, bracketed_only=rate == "bracketed only")
            points = read_observations(narrowed, LAWS["chinchilla"]).thinned(MOST_ROWS)
        except InputError as error:
            yield Universe(choices, f"refused: {error.problems[0]}", None)
            continue
        if not len(points):
            yield Universe(choices, "refused: no row is left", None)
            continue
        for trim, trimmed in _TRIMS.items():
            kept = trimmed(points)
            if kept.labels in seen:
                continue
            seen.add(kept.labels)
            for universe in ask(kept):
                yield replace(universe, choices={**choices, "rows": trim, **universe.choices})


def _parametric(points: Observations) -> Iterator[Universe]:
    for floor, loss, space in product(_FLOORS, LOSSES, _SPACES):
        choices = {"floor": floor, "loss": loss, "space": space}
        try:
            check_split(points.columns["parameters"], points.columns["tokens"])
            result = fit(LAWS[_FLOORS[floor]], points, replace(UNIVERSE_SETTINGS, huber_delta=LOSSES[loss], space=space))
        except InputError as error:
            yield Universe(choices, f"refused: {error.problems[0]}", None)
            continue
        if result.status != "converged":
            yield Universe(choices, result.status, None)
            continue
        frontier = parametric(result)
        yield Universe(choices, result.status, frontier.exponent, frontier.interval)


def _valley(points: Observations) -> Iterator[Universe]:
    try:
        check_split(points.columns["parameters"], points.columns["tokens"])
        result = resample_frontier(points, iso_flop, UNIVERSE_SETTINGS.bootstrap)
    except InputError as error:
        yield Universe({}, f"refused: {error.problems[0]}", None)
        return
    if result.status == "weakly_identified":
        yield Universe({}, result.status, None)
    else:
        yield Universe({}, "converged", result.exponent, result.interval)
