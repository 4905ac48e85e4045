"""What a run is worth to a forecast, and the runs that a budget is spent on, one plan after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import ndtri

from study.base.statistics import CONFIDENCE
from study.designing.posterior import BEND, Basin, Learner, Pool, Prior, Rows
from study.laws.law import Floats
from study.laws.observations import log_or_value

GROWTH = 2.0
"""A design is planned anew whenever it has spent so many times as much."""

PILOT = 0.1
"""The share of the first budget for the runs before any fit."""

RUNS_A_PARAMETER = 3, 2
"""The runs before any fit for each parameter of the law: where as many are cheap, and elsewhere, to leave some that are not."""

FEWEST = 2
"""The fewest runs before any fit."""

ROUNDING = 1e-9
"""The share by which the sum of costs may exceed a budget, since a tenth of a sum rounds otherwise than its terms."""

_HALF = float(ndtri((1 + CONFIDENCE) / 2))

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(3)

Criterion = Literal["error", "v-optimal", "d-optimal"]
"""The expected squared error in the target region over basins; its variance in the likeliest basin; the parameters' volume."""


@dataclass(frozen=True)
class Method:
    """How runs are chosen: a criterion, the powers of cost that its gains are divided by, and how much the law may bend.

    Of several powers the plan with the least expected error is kept. With power 0 a plan ignores costs while it can afford a
    run; with power 1 it buys the cheapest gain.
    """

    criterion: Criterion
    powers: tuple[float, ...]
    bend: float


METHODS = {
    "error": Method("error", (0.0, 0.25), BEND),
    "v-optimal": Method("v-optimal", (0.3,), 0.0),
    "d-optimal": Method("d-optimal", (1.0,), 0.0),
}
"""The expected error over basins with a law that may bend; the classical criteria at the likeliest basin."""


@dataclass(frozen=True)
class Prices:
    """What each candidate costs now: the `whole` run, or the part of it after the steps that it takes over.

    Candidates of one number in `trunks` train alike up to their decay; `shared` is what each costs until then. A run leaves its
    state where it and every shorter one of its trunk begin to decay, so that a longer one costs what comes after.
    """

    now: Floats
    whole: Floats
    shared: Floats
    trunks: Rows

    @classmethod
    def alone(cls, costs: Floats) -> Prices:
        """Return the prices of candidates that share nothing."""
        return cls(costs, costs, np.zeros(len(costs)), np.arange(len(costs)))

    def after(self, row: int) -> Prices:
        """Return the prices once a candidate has been run."""
        rest = self.whole - np.minimum(self.shared, self.shared[row])
        return replace(self, now=np.where(self.trunks == self.trunks[row], np.minimum(self.now, rest), self.now))

    def beside(self, rows: Sequence[int] | Rows) -> Rows:
        """All candidates of the trunks of these rows."""
        return np.flatnonzero(np.isin(self.trunks, self.trunks[np.asarray(rows, dtype=np.int64)]))


@dataclass(frozen=True)
class Choice:
    """Candidates in order with their prices, and the expected squared error before the first and after each."""

    rows: tuple[int, ...]
    costs: tuple[float, ...]
    errors: tuple[float, ...]


def d_gains(basin: Basin) -> Floats:
    """By candidate: the gain in log determinant of the information, log(1 + jᵀΣj/σ²)."""
    return np.asarray(np.log1p(np.sum(basin.candidates**2, axis=1) / basin.noise))


def v_gains(basin: Basin) -> Floats:
    """By candidate: the fall of the mean variance at the targets, Σ(jₜᵀΣj)²/(σ² + jᵀΣj)/T."""
    shared = np.mean((basin.targets @ basin.candidates.T) ** 2, axis=0)
    return np.asarray(shared / (basin.noise + np.sum(basin.candidates**2, axis=1)))


def within_gains(basins: list[Basin]) -> Floats:
    """By candidate: v_gains, averaged over the basins by their weights."""
    return np.asarray(sum(basin.weight * v_gains(basin) for basin in basins))


def between(weights: Floats, predictions: Floats) -> Floats:
    """Return the mean variance at the targets between basins: weights K × …, predictions K × T × …."""
    mean = np.sum(weights[:, None] * predictions, axis=0)
    return np.asarray(np.mean(np.sum(weights[:, None] * (predictions - mean) ** 2, axis=0), axis=0))


def between_gains(basins: list[Basin]) -> Floats:
    """By candidate: the expected fall of the variance at the targets between the basins.

    How a result moves the weights is summed by Gauss-Hermite quadrature over the results that each basin expects. Together with
    within_gains this is the expected fall of the squared error. Source: Li et al. 2026, arXiv 2604.22753, sec. 4.
    """
    if len(basins) == 1:
        return np.zeros(len(basins[0].at_candidates))
    weights = np.array([basin.weight for basin in basins])
    expected = np.array([basin.at_candidates for basin in basins])
    spread = np.array([basin.noise + np.sum(basin.candidates**2, axis=1) for basin in basins])
    targets = np.array([basin.at_targets for basin in basins])
    moves = np.array([basin.targets @ basin.candidates.T for basin in basins]) / spread[:, None]
    later = np.zeros(expected.shape[1])
    for truth, weight in enumerate(weights):
        for node, share in zip(_NODES, _WEIGHTS / _WEIGHTS.sum(), strict=True):
            off = expected[truth] + node * np.sqrt(spread[truth]) - expected
            likelihood = np.log(weights)[:, None] - 0.5 * (off**2 / spread + np.log(spread))
            posterior = np.exp(likelihood - likelihood.max(axis=0))
            posterior /= posterior.sum(axis=0)
            later += weight * share * between(posterior, targets[:, :, None] + moves * off[:, None])
    return between(weights, targets) - later


def expected_error(basins: list[Basin]) -> float:
    """Return the expected mean squared error of the law at the targets, within and between basins."""
    weights = np.array([basin.weight for basin in basins])
    within = float(weights @ [basin.variance for basin in basins])
    return within + float(between(weights, np.array([basin.at_targets for basin in basins])))


def half_width_of(error: float) -> float:
    """Half the 95% interval, by an expected squared error."""
    return _HALF * float(np.sqrt(error))


def plan(basins: list[Basin], prices: Prices, open_: Rows, budget: float, method: Method) -> Choice:
    """Return the best of a method's greedy plans that spend a budget on open candidates.

    Each takes the affordable candidate with the most gain over a power of its cost.
    """
    plans = [_greedy(basins, prices, open_, budget, method.criterion, power) for power in method.powers]
    return min(plans, key=lambda one: one.errors[-1])


def _greedy(basins: list[Basin], prices: Prices, open_: Rows, budget: float, criterion: Criterion, power: float) -> Choice:
    rows, costs = list[int](), list[float]()
    errors = [expected_error(basins)]
    apart = between_gains(basins) if criterion == "error" else np.zeros(len(prices.now))
    left = np.zeros(len(prices.now), dtype=bool)
    left[open_] = True
    while True:
        affordable = left & (prices.now <= budget * (1 + ROUNDING))
        if not affordable.any():
            return Choice(tuple(rows), tuple(costs), tuple(errors))
        score = np.where(affordable, (_gains(basins, criterion) + apart) / prices.now**power, -np.inf)
        best = int(np.argmax(score))
        rows.append(best)
        costs.append(float(prices.now[best]))
        left[best] = False
        budget -= costs[-1]
        prices = prices.after(best)
        basins = [basin.after(best) for basin in basins]
        errors.append(expected_error(basins))


def _gains(basins: list[Basin], criterion: Criterion) -> Floats:
    match criterion:
        case "d-optimal":
            return d_gains(basins[0])
        case "v-optimal":
            return v_gains(basins[0])
    return within_gains(basins)


def pilot(pool: Pool, budget: float, random: np.random.Generator) -> Rows:
    """Choose RUNS_A_PARAMETER cheap runs for each parameter of the law, spread over the logarithms of the variables.

    Logarithms are measured in their deviations over the pool. Each run costs at most its share of PILOT of the budget. Where
    too few do, half of the budget goes to as many as it affords, to FEWEST even if they cost more, but never more than the
    budget; each leaves enough for the cheapest in place of those that follow.
    """
    order = np.argsort(pool.costs, kind="stable")
    total, left = np.cumsum(pool.costs[order]), np.inf
    for many in RUNS_A_PARAMETER:
        count = min(len(pool), many * len(pool.law.parameters))
        cheap = order[: int((pool.costs <= PILOT * budget / count).sum())]
        if len(cheap) >= count:
            break
    else:
        half, whole = (int((total <= share * (1 + ROUNDING)).sum()) for share in (budget / 2, budget))
        count = min(count, max(FEWEST, half), whole)
        cheap, left = order, max(budget / 2, float(pool.costs[order[:count]].sum()))
    logs = np.column_stack([log_or_value(pool.candidates[name]) for name in pool.law.variables])
    unit = (logs / np.maximum(logs.std(axis=0), 1e-12))[cheap]
    costs, chosen, nearest = pool.costs[cheap], list[int](), np.full(len(cheap), np.inf)
    while len(chosen) < count:
        open_ = np.setdiff1d(np.arange(len(cheap)), chosen)
        rest = float(np.sort(costs[open_])[: count - len(chosen) - 1].sum())
        open_ = open_[costs[open_] + rest <= left * (1 + ROUNDING)]
        chosen.append(int(open_[np.argmax(nearest[open_])] if chosen else random.choice(open_)))
        left -= float(costs[chosen[-1]])
        nearest = np.minimum(nearest, np.sum((unit - unit[chosen[-1]]) ** 2, axis=1))
    return np.asarray(cheap[chosen])


def choose(
    pool: Pool,
    budgets: list[float],
    run: Callable[[Rows], Floats],
    method: Method,
    seed: int = 0,
    prior: Prior | None = None,
) -> list[Rows]:
    """Return the rows that are run by the time each budget is spent; `run` gives the results of rows.

    After a pilot, the best plan for the next budget is followed until it has spent GROWTH times as much, then made anew. A
    `prior` is that of every fit.
    """
    learner = Learner(pool, seed, method.bend, prior)
    rows = pilot(pool, budgets[0], learner.random)
    response, prices = np.zeros(len(pool)), Prices.alone(pool.costs)
    response[rows] = run(rows)
    spent, chosen = float(pool.costs[rows].sum()), []
    for budget in budgets:
        while True:
            open_ = np.setdiff1d(np.flatnonzero(pool.costs <= (budget - spent) * (1 + ROUNDING)), rows)
            if not len(open_):
                break
            whole = plan(learner.basins(rows, response), prices, open_, budget - spent, method)
            until = max(1, int((np.cumsum(whole.costs) <= (GROWTH - 1) * spent).sum()))
            now = np.array(whole.rows[:until])
            response[now] = run(now)
            rows, spent = np.concatenate([rows, now]), spent + float(pool.costs[now].sum())
        chosen.append(rows.copy())
    return chosen


def batch(basins: list[Basin], prices: Prices, open_: Rows, budget: float, count: int, method: Method) -> list[int]:
    """Choose the next runs for `count` slots within a budget, fewer if unaffordable, no two of one trunk.

    The first is the best over all basins. Each further one is the best if one basin, in turn and the likeliest first, is the
    truth, so that a batch does not bet on one basin.
    """
    rows: list[int] = []
    while len(rows) < count:
        left = np.setdiff1d(open_[prices.now[open_] <= budget], prices.beside(rows))
        if not len(left):
            break
        believed = [basins[(len(rows) - 1) % len(basins)]] if rows else basins
        rows.append(plan(believed, prices, left, budget, method).rows[0])
        budget -= float(prices.now[rows[-1]])
        basins = [basin.after(rows[-1]) for basin in basins]
    return rows


def stage_of(spent: float, budget: float, cheapest: float) -> float:
    """How much to plan for at once: as much as is spent, at least PILOT of the budget or a run, at most what is left."""
    return min(budget - spent, max((GROWTH - 1) * spent, PILOT * budget - spent, cheapest))


@dataclass(frozen=True)
class Preview:
    """The runs that a design would choose if all went as expected, and the expected error before and after each."""

    rows: tuple[int, ...]
    spent: tuple[float, ...]
    errors: tuple[float, ...]

    def error_at(self, budget: float) -> float:
        """Return the expected error once so much is spent."""
        return self.errors[int(np.searchsorted(self.spent, budget * (1 + 1e-9), side="right")) - 1]


def preview(basins: list[Basin], prices: Prices, open_: Rows, budget: float, spent: float, method: Method) -> Preview:
    """Return the whole design, stage by stage."""
    rows, path, errors = list[int](), [spent], [expected_error(basins)]
    while len(left := np.setdiff1d(open_[prices.now[open_] <= budget - path[-1]], rows)):
        stage = stage_of(path[-1], budget, float(prices.now[left].min()))
        planned = plan(basins, prices, left, stage, method)
        rows += planned.rows
        path += (path[-1] + np.cumsum(planned.costs)).tolist()
        errors += planned.errors[1:]
        for row in planned.rows:
            basins, prices = [basin.after(row) for basin in basins], prices.after(row)
    return Preview(tuple(rows), tuple(path), tuple(errors))
