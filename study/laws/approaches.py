"""Every approach to the compute-optimal frontier of one table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from study.base.errors import InputError, Problem
from study.base.grouping import grouped
from study.base.quantities import RESAMPLES, count_text
from study.base.text import aligned, status_said
from study.laws.catalogue import LAWS
from study.laws.columns import find_columns
from study.laws.estimation import DEFAULT_SETTINGS, Fit
from study.laws.frontiers import Ends, Frontier, Optimum, check_split, envelope, hull, iso_flop, optimum, parametric
from study.laws.law import Floats
from study.laws.law_fits import LawFit, fit_table
from study.laws.observations import Observations
from study.laws.reading import TableQuery, read_observations
from study.laws.residual_tests import merge_by_size
from study.laws.uncertainty import FEWEST_CLUSTERS, draw_counts, percentile_interval

Approaches = dict[str, Frontier | str]
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Frontiers:
    """The frontier by each approach, or the reason it has none, with notes on how the table was read.

    `budgets` are the least and the largest FLOPs; `parameters` is the column or expression that counts N; `optima` has each
    approach's split of the budget that was asked for.
    """

    approaches: Approaches
    budgets: tuple[float, float]
    parameters: str
    notes: tuple[str, ...] = ()
    optima: Mapping[str, Optimum] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the frontiers as plain values."""
        approaches = {name: {"status": one} if isinstance(one, str) else asdict(one) for name, one in self.approaches.items()}
        optima = {"optima": {name: asdict(one) for name, one in self.optima.items()}} if self.optima else {}
        return {"approaches": approaches, "notes": list(self.notes), **optima}

    def to_text(self) -> str:
        """Return the frontiers as text, each refusal once, then doubts and notes."""
        lines = [f"{'approach':16}{'exponent of N*':>14}   {'95% interval':20}{'best models':14}C counted as"]
        for name, one in self.approaches.items():
            if isinstance(one, str):
                continue
            interval = "none" if one.interval is None else f"{one.interval[0]:.4f} to {one.interval[1]:.4f}"
            inside = sum(best.inside for best in one.best)
            lines.append(f"{name:16}{one.exponent:>14.4f}   {interval:20}{inside or 'all rows'!s:14}{one.compute}")
        lines += [f"none by {who}: {reason}" for who, reason in _refused(self.approaches)]
        weak = {name: one for name, one in self.approaches.items() if isinstance(one, Frontier) and one.reasons}
        lines += [f"{name} {status_said(one.status, one.reasons)}" for name, one in weak.items()]
        return "\n".join([*lines, *self.notes, *self._optimum_lines()])

    def _optimum_lines(self) -> list[str]:
        if not self.optima:
            return []
        budget, beyond = next((one.flops, one.beyond) for one in self.optima.values())
        rows = [[f"at {budget:.4g} FLOPs", "N*", "D* = C/(6·N*)", "loss"]]
        for name, one in self.optima.items():
            loss = "–" if one.loss is None else f"{one.loss:.4f}{_between(one.loss_interval, '{:.4f}'.format)}"
            sizes = f"{count_text(one.parameters)}{_between(one.parameters_interval, count_text)}"
            rows.append([name, sizes, f"{count_text(one.tokens)}{_between(one.tokens_interval, count_text)}", loss])
        interval = "in brackets the 95% interval of the line or the law, without the scatter of a run"
        return ["", *aligned(rows), interval, f"the budget is {beyond:.3g} times the largest of the table"]


_APPROACHES: dict[str, Callable[[Floats, Floats, Floats], Frontier]] = {
    "envelope": envelope,
    "hull": hull,
    "parabola": iso_flop,
    "full parabola": partial(iso_flop, window=float("inf")),
    "akima": partial(iso_flop, valley="akima"),
}


def frontiers(query: TableQuery, flops: float | None = None) -> Frontiers:
    """Compute the frontier by every approach, and its split of a budget of `flops` if given.

    Intervals resample clusters if rows share them. Tokens are C/(6·N) if only FLOPs are known. C orders runs, except in the
    approaches by a law, whose minimum is closed only for 6·N·D: `parametric`, by Chinchilla's, and `kaplan`, where that omits
    something. Raises InputError if the table is unreadable or no approach has a frontier.
    """
    if _only_flops(query):
        query = replace(query, roles={**query.roles, "tokens": "C/(6*N)"})
    points = read_observations(query, LAWS["chinchilla"])
    if not len(points):
        raise InputError.at(str(query.table.path), "no row is left that has a number in all of parameters, tokens and loss")
    check_split(points.columns["parameters"], points.columns["tokens"])
    with suppress(InputError):
        points = merge_by_size(LAWS["chinchilla"], points, DEFAULT_SETTINGS)
    result = {name: _attempt(partial(resample_frontier, points, each)) for name, each in _APPROACHES.items()}
    laws = _laws(query)
    result |= {name: law if isinstance(law, str) else _attempt(partial(_of_law, law.fit)) for name, law in laws.items()}
    if all(isinstance(one, str) for one in result.values()):
        raise InputError(Problem(who, reason) for who, reason in _refused(result))
    budgets = float(points.budget.min()), float(points.budget.max())
    frontiers = {name: one for name, one in result.items() if isinstance(one, Frontier)}
    fits = {name: law.fit for name, law in laws.items() if isinstance(law, LawFit)}
    optima = {} if flops is None else {name: optimum(one, flops, budgets[1], fits.get(name)) for name, one in frontiers.items()}
    return Frontiers(result, budgets, points.roles["parameters"], points.notes(), optima)


def _laws(query: TableQuery) -> dict[str, LawFit | str]:
    """Fit Chinchilla's law and, where it omits something, Kaplan's; text explains a failure."""
    by_sum = _attempt(partial(fit_table, query, "chinchilla"))
    beside = by_sum.beside if isinstance(by_sum, LawFit) else None
    return {"parametric": by_sum} | ({beside: _attempt(partial(fit_table, query, beside))} if beside else {})


def _between(ends: Ends | None, words: Callable[[float], str]) -> str:
    return "" if ends is None else f" ({words(ends[0])} to {words(ends[1])})"


def _refused(result: Approaches) -> Iterator[tuple[str, str]]:
    refused = {name: one for name, one in result.items() if isinstance(one, str)}
    for reason, names in grouped(refused, refused.__getitem__).items():
        yield ", ".join(names), reason


def _only_flops(query: TableQuery) -> bool:
    names = [str(name) for name in query.table.frame.columns]
    flops, tokens = (role in query.roles or bool(find_columns(role, names)) for role in ("flops", "tokens"))
    return flops and not tokens


def resample_frontier(
    points: Observations, approach: Callable[[Floats, Floats, Floats], Frontier], resamples: int = RESAMPLES
) -> Frontier:
    """Return a frontier through best runs, with a 95% interval over clusters if rows share them.

    The bootstrap draws whole clusters with replacement (Efron 1979). The interval includes the line's own, because on a grid
    the best models of all resamples may lie on one line. It is None for fewer than three clusters or if the line has none. The
    status is weakly identified if over 5% of resamples have no frontier.
    """
    rows = np.array([points.columns["parameters"], points.budget, points.response])
    compute = points.roles.get("budget", points.roles.get("flops", "6·N·D"))
    result, clusters = replace(approach(*rows), compute=compute), points.n_clusters
    if clusters == len(points) or result.interval is None:
        return result
    if clusters < FEWEST_CLUSTERS:
        return replace(result, interval=None)
    exponents = []
    for draw in draw_counts(clusters, resamples, seed=0):
        with suppress(InputError):
            exponents.append(approach(*rows.repeat(draw[points.clusters], axis=1)).exponent)
    low, high = percentile_interval(np.array(exponents))
    of_line = result.interval
    result = replace(result, interval=(min(of_line[0], float(low)), max(of_line[1], float(high))) if exponents else None)
    if (lost := resamples - len(exponents)) <= 0.05 * resamples:
        return result
    return replace(result, status="weakly_identified", reasons=(f"{lost} of {resamples} resamples have no frontier",))


def _of_law(result: Fit) -> Frontier:
    """Return the frontier of a fitted law; raises InputError if the fit failed or ended on a bound."""
    if not result.usable:
        raise InputError.at(result.law.name, f"its fit {status_said(result.status, result.reasons)}")
    return parametric(result)


def _attempt(way: Callable[[], ResultT]) -> ResultT | str:
    try:
        return way()
    except InputError as error:
        return str(error.problems[0])
