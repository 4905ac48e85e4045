"""A goal that a law meets: a forecast or an exponent, from the runs that lower its expected error most."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from study.base.errors import InputError, Problem
from study.base.grouping import grouped
from study.base.quantities import count_text, flops_text, plural, rounded
from study.config.goal_spec import ExponentGoal, ForecastGoal
from study.config.recipe import Budget
from study.config.run_config import RunConfig
from study.config.shape_spec import needs_even_heads
from study.config.sweep import GoalSweep
from study.counting.solving import ShapeRules
from study.designing.choosing import METHODS, Preview, Prices, batch, expected_error, half_width_of, preview, stage_of
from study.designing.posterior import Basin, Learner, Pool, Rows, fitted_prior, forecast_of, published_prior
from study.laws.catalogue import LAWS
from study.laws.law import Floats
from study.laws.law_files import read_law
from study.laws.observations import Observations
from study.planning.cell import run_config
from study.planning.goal_design import GoalDesign, Place, spent, usable
from study.planning.step_times import CORE_RATE
from study.store.records import RunRecord
from study.store.sweep_folder import GoalLook, GoalState

LAW = LAWS["chinchilla"]

COUNT = "parameters_non_embedding"
"""What counts as the law's parameters."""

TENTHS = 10
"""The parts of the limit after each of which a plan says what to expect."""

LOOKS = 20
"""A path has a look at each so large part of the limit, and one at the last run."""

FUTILE_FROM = 0.25
"""The share of the limit from which a goal may be given up."""

FUTILE = 1.5
"""It is given up where the rest of the limit is expected to leave so many times the half-width that meets it."""

DEARER = (2, 4, 8, 16, 32, 64)
"""The multiples of the limit that are tried to say what a goal would take."""

FAR = 10.0
"""From so many times beyond the pool on, a plan warns of the distance."""

METHOD = METHODS["error"]


@dataclass(frozen=True)
class Posterior:
    """What ended runs say: basins, the rows that they used and those that are closed, and the FLOPs spent."""

    basins: Sequence[Basin]
    used: Rows
    closed: Rows
    spent: float
    judged: bool

    @property
    def half_width(self) -> float:
        """Half the interval of what is wanted."""
        return half_width_of(expected_error([*self.basins]))


@dataclass(frozen=True)
class Priced(Posterior):
    """What ended runs say, and what rows cost now."""

    prices: Prices


class LawGoal(GoalDesign):
    """Chooses runs by the expected squared error of what is wanted, over the basins of the law that ended runs leave.

    Rows of its pool are points × seeds, so that another seed, a longer budget and another shape are all moves. A budget whose
    shape and seed have a trunk costs what comes after the state that it goes on from; `states` are the steps of those that an
    ended run has left. A stage spends as much as all before it; each batch is chosen anew from the records.
    """

    def __init__(
        self, spec: GoalSweep, states: Callable[[RunRecord], Collection[int]] = lambda _: (), rate: float = CORE_RATE
    ) -> None:
        assert isinstance(spec.goal, ForecastGoal | ExponentGoal)
        self.goal = spec.goal
        super().__init__(spec, list(_points(spec)), rate)
        self.seeds, self._states = spec.seeds, states
        each = {"parameters": self.sizes, "tokens": self.tokens}
        columns = {name: np.repeat(values.astype(float), self.seeds) for name, values in each.items()}
        aim = {name: np.array([value]) for name, value in zip(each, self._aim, strict=True)}
        exponent = self.goal.exponent if isinstance(self.goal, ExponentGoal) else None
        self.pool = Pool(LAW, columns, np.repeat(self.flops, self.seeds), aim, exponent=exponent)
        branches = np.array([config.branch_step or 0 for config in self.points])
        self.steps, self.branches = (np.repeat(one, self.seeds) for one in ([run.steps for run in self.points], branches))
        self.prices = Prices(self.pool.costs, self.pool.costs, self.pool.costs * self.branches / self.steps, self._trunks())
        learner = Learner(self.pool)
        fitted = None if spec.prior is None else _fit_at(spec.prior)
        self.prior = published_prior(self.pool) if fitted is None else fitted_prior(learner, fitted)
        self._known: dict[tuple[int, ...], Posterior] = {}

    @property
    def _aim(self) -> tuple[float, float]:
        """Where the law is wanted: a forecast's point, or the largest point of an exponent."""
        return (float(self.sizes.max()), float(self.tokens.max())) if self.target is None else self.target

    @property
    def target(self) -> tuple[float, float] | None:
        """The point of a forecast, None for an exponent."""
        if isinstance(self.goal, ExponentGoal):
            return None
        return self.goal.forecast.parameters_non_embedding, self.goal.forecast.tokens

    @property
    def half_width(self) -> tuple[str, float]:
        """Relative for a forecast, absolute for an exponent."""
        of = "the forecast, relative" if isinstance(self.goal, ForecastGoal) else self.goal.exponent
        return of, self.goal.within

    def forecast_nats(self, ended: Mapping[Place, RunRecord]) -> float | None:
        """Return the loss at the target by the basins."""
        posterior = self._posterior(ended)
        if self.target is None or not posterior.judged:
            return None
        return rounded(float(np.exp(forecast_of(posterior.basins)[0])))

    def problems(self, limit: float) -> list[Problem]:
        """Return a pool that cannot determine the law, or a limit that buys too few runs."""
        problems = list[Problem]()
        for name, values in (("width and depth", self.sizes), ("tokens", self.tokens)):
            variable = "tokens" if name == "tokens" else "parameters"
            if (given := len(np.unique(values))) < (fewest := LAW.fewest_values(variable)):
                what = f"gives {plural(given, 'value')} of {variable}, and {LAW.name} needs {fewest}"
                problems.append(Problem(f"pool.{name}", f"{what}: with fewer, any floor fits with some exponent; widen it"))
        ordered, needed = np.sort(self.flops), len(LAW.parameters) + 1
        if not problems and ordered[:needed].sum() > limit:
            message = f"{limit:g} is less than the {needed} cheapest runs cost, {ordered[:needed].sum():.3g}"
            problems.append(Problem(self.limit_place, f"{message}, which {LAW.name}'s {len(LAW.parameters)} parameters need"))
        return problems

    def wanted(self, ended: Mapping[Place, RunRecord], busy: Collection[Place], free: int) -> list[Place]:
        """Return the next batch, given the runs under way."""
        posterior = self._priced(ended)
        under_way = [self._row(place) for place in busy]
        basins = [*posterior.basins]
        for row in under_way:
            basins = [basin.after(row) for basin in basins]
        committed, limit = posterior.spent + float(posterior.prices.now[under_way].sum()), self.limit(ended)
        open_ = np.setdiff1d(self._affordable(posterior, limit - committed), self.prices.beside(under_way))
        if not len(open_):
            return []
        stage = stage_of(committed, limit, float(posterior.prices.now[open_].min()))
        places = list[Place]()
        for row in batch(basins, posterior.prices, open_, stage, free, METHOD):
            closed = {self._place(other) for other in self.prices.beside([*under_way, *map(self._row, places)]).tolist()}
            places += self._in_seed_order([row], {*ended, *closed})
        return places

    def own_share(self, ended: Mapping[Place, RunRecord]) -> dict[Place, float]:
        """Return the share of its steps that each expected run takes itself."""
        prices, shares = self._priced(ended).prices, dict[Place, float]()
        for place in self.expected(ended):
            row = self._row(place)
            shares[place] = float(prices.now[row] / prices.whole[row])
            prices = prices.after(row)
        return shares

    def looks(self, ended: Mapping[Place, RunRecord]) -> list[GoalLook]:
        """Return a look at each twentieth of the limit, and at the last run."""
        records, looks, share, limit = [*ended.items()], list[GoalLook](), 0, self.limit(ended)
        for count in range(1, len(records) + 1):
            flops = spent(record for _, record in records[:count])
            if count < len(records) and int(LOOKS * flops / limit) <= share:
                continue
            share = int(LOOKS * flops / limit)
            posterior = self._posterior(dict(records[:count]))
            looks.append(GoalLook(runs=count, spent_flops=flops, half_width=posterior.half_width if posterior.judged else None))
        return looks

    def standing(self, ended: Mapping[Place, RunRecord]) -> tuple[GoalState, str]:
        """Met where the interval is narrow enough; given up where the limit is not expected to make it so."""
        posterior, (_, wanted), limit = self._priced(ended), self.half_width, self.limit(ended)
        left = self._affordable(posterior, limit - posterior.spent)
        interval = f"{self._estimate(posterior)} is known to ± {self._shown(posterior.half_width)} (half the 95% interval)"
        if posterior.judged and posterior.half_width <= wanted:
            return "met", f"The goal is met: {interval}"
        if not len(left):
            why = interval if posterior.judged else "too few runs read word order to fit the law"
            what = "All runs of the pool are" if len(posterior.closed) == len(self.pool) else "The compute is"
            return "spent", f"{what} spent before the goal of ± {self._shown(wanted)} is met: {why}"
        if posterior.judged and posterior.spent >= FUTILE_FROM * limit:
            expected = half_width_of(self._preview(posterior, limit).errors[-1])
            if expected > FUTILE * wanted:
                rest = f"all that may be spent is expected to leave ± {self._shown(expected)}"
                return (
                    "unreachable",
                    f"The goal of ± {self._shown(wanted)} cannot be met: {rest}; {self._would_take(posterior, limit)}",
                )
        return "open", interval if posterior.judged else "The runs so far are too few to fit the law"

    def expected(self, ended: Mapping[Place, RunRecord]) -> list[Place]:
        """Return the runs to be chosen if all goes as expected."""
        return self._in_seed_order([*self._preview(self._priced(ended), self.limit(ended)).rows], {*ended})

    def lines(self, ended: Mapping[Place, RunRecord]) -> list[str]:
        """First runs with their moves, the expected interval after each tenth, a grid beside it, and warnings."""
        posterior, limit = self._priced(ended), self.limit(ended)
        ahead, (of, wanted) = self._preview(posterior, limit), self.half_width
        tenths = [limit * part / TENTHS for part in range(1, TENTHS + 1)]
        widths = [self._shown(half_width_of(ahead.error_at(flops))) for flops in tenths if flops >= posterior.spent]
        source = "the runs so far" if len(posterior.used) else self.spec.prior or "published exponents with wide priors"
        last = half_width_of(ahead.errors[-1])
        lines = [f"Goal: half the 95% interval of {of} within {self._shown(wanted)}, for at most {self._limit_text}."]
        if moves := "; ".join(self._moves(ended)):
            lines.append(f"First, by {source}: {moves}.")
            lines.append(f"Expected ± after each tenth{' still to spend' if len(posterior.used) else ''}: {', '.join(widths)}.")
        else:
            lines.append("No further run can be afforded.")
        lines.append(f"The best grid of the same cost is expected to give ± {self._shown(self._grid(posterior, limit))}.")
        first = min(self.points, key=lambda config: config.tokens)
        if first.recipe.schedule == "wsd" and first.recipe.warmup_tokens is None:
            warmup = max(1, first.recipe.warmup_steps(first.steps)) * first.recipe.batch_tokens
            lines.append(f"With recipe.warmup_tokens, such as {warmup}, the budgets of a shape would branch from one trunk.")
        if last > wanted:
            lines.append(f"The goal is not expected to be met for this much: {self._would_take(posterior, limit)}.")
        return [*lines, *self._warnings(posterior)]

    def _moves(self, ended: Mapping[Place, RunRecord]) -> Iterator[str]:
        """Yield the next few runs, and how each differs from those before it."""
        before = {*ended}
        for place, share in [*self.own_share(ended).items()][:4]:
            move = self._move(place, before)
            yield f"{self.words(place)} ({move}{f' from its trunk, for {share:.0%} of its FLOPs' if share < 1 else ''})"
            before.add(place)

    def _move(self, place: Place, before: Collection[Place]) -> str:
        point, seed = place
        if seed:
            return "another seed"
        shape = self.points[point].architecture
        tried = [other for other, _ in before if self.points[other].architecture == shape]
        if not tried:
            return "another shape" if before else "where the prior is least sure for the cost"
        return "a longer budget" if self.tokens[point] > max(self.tokens[tried]) else "a shorter budget"

    def _warnings(self, posterior: Posterior) -> Iterator[str]:
        if self.target is not None:
            beyond = max(self.target[0] / self.sizes.max(), self.target[1] / self.tokens.max())
            if beyond > FAR:
                yield f"Warning: the target lies {beyond:.3g} times beyond the pool, where no run can check the law."
            if self.target[0] < self.sizes.min() or self.target[1] < self.tokens.min():
                yield "Warning: the target is smaller than every run of the pool, where small encoders may follow no law."
        if len(posterior.basins) == 1:
            what = "the prior" if not len(posterior.used) else "the runs so far"
            yield f"Warning: the design rests on one basin of the law, that of {what}; a launch weighs all that its runs leave."

    def _priced(self, ended: Mapping[Place, RunRecord]) -> Priced:
        """Return what the records say, and what rows cost beside present states."""
        return Priced(**vars(self._posterior(ended)), prices=self._prices(ended))

    def _posterior(self, ended: Mapping[Place, RunRecord]) -> Posterior:
        """Return what the losses of usable runs say."""
        used = {self._row(place): record for place, record in ended.items() if usable(record)}
        rows = np.array(sorted(used), dtype=np.int64)
        key = (*rows.tolist(), -1, *sorted(self._row(place) for place in ended))
        if key not in self._known:
            response = np.ones(len(self.pool))
            response[rows] = [used[row].loss_nats or 1.0 for row in rows.tolist()]
            basins = self._learner(rows).basins(rows, response)
            fit_ = self._is_fit(rows, response)
            self._known[key] = Posterior(basins, rows, self._closed(ended), spent(ended.values()), fit_)
        return self._known[key]

    def _learner(self, rows: Rows) -> Learner:
        return Learner(self.pool, seed=len(rows), bend=METHOD.bend, prior=self.prior)

    @property
    def grid_of(self) -> str:
        """The best grid of the pool with the interval that was found."""
        return "for this interval a grid of the same pool"

    def grid_flops(self, ended: Mapping[Place, RunRecord]) -> float | None:
        """Return what the best grid is expected to take for the interval of ended runs, None if none of the pool gives it.

        A grid has the cheapest shapes, each at all budgets up to a longest, one seed after another. Its interval is by the law
        and the noise that the runs found, with nothing run before it.
        """
        used = {self._row(place): record.loss_nats or 1.0 for place, record in ended.items() if usable(record)}
        rows = np.array(sorted(used), dtype=np.int64)
        posterior, response = self._posterior(ended), np.ones(len(self.pool))
        if not posterior.judged:
            return None
        response[rows] = [used[row] for row in rows.tolist()]
        basins = self._learner(rows).basins(rows, response, unsure=True)
        grids = (self._grid_for(posterior.half_width, longest, basins) for longest in np.unique(self.tokens).tolist())
        return min((flops for flops in grids if flops is not None), default=None)

    def _grid_for(self, half_width: float, longest: int, basins: list[Basin]) -> float | None:
        flops = 0.0
        for seed, (cost, points) in product(range(self.seeds), self._shapes_up_to(longest)):
            flops += cost
            for point in points:
                basins = [basin.after(point * self.seeds + seed) for basin in basins]
            if half_width_of(expected_error(basins)) <= half_width:
                return flops
        return None

    def _shapes_up_to(self, longest: int) -> list[tuple[float, list[int]]]:
        """Return the cost of each shape at all budgets up to a longest, and its points, the cheapest first."""
        short = np.flatnonzero(self.tokens <= longest).tolist()
        shapes = grouped(short, lambda point: self.points[point].architecture).values()
        return sorted([(self._grid_cost(points), [*points]) for points in shapes], key=lambda one: one[0])

    def _trunks(self) -> Rows:
        """Return the number of each row's trunk, shared by the budgets of its shape and seed."""
        alone = np.arange(len(self.pool))
        if not self.branches.any():
            return alone
        shapes = [config.identity(("seed", "recipe.budget")) for config in self.points]
        first = np.array([shapes.index(shape) for shape in shapes])
        return np.repeat(first, self.seeds) * self.seeds + alone % self.seeds

    def _prices(self, ended: Mapping[Place, RunRecord]) -> Prices:
        now = self.prices.now
        for place, record in ended.items() if self.branches.any() else ():
            trunk = self.prices.trunks == self.prices.trunks[self._row(place)]
            for step in self._states(record):
                rest = self.prices.whole * (1 - step / self.steps)
                now = np.where(trunk & (self.branches >= step), np.minimum(now, rest), now)
        return replace(self.prices, now=now)

    def of_one_trunk(self, config: RunConfig) -> list[RunConfig]:
        """Return the runs of a run's trunk, itself among them."""
        if (place := self.place(config)) is None:
            return []
        return [self.run(self._place(row)) for row in self.prices.beside([self._row(place)]).tolist()]

    def _closed(self, ended: Mapping[Place, RunRecord]) -> Rows:
        """Return the rows that ended, and those of budgets at which their shape stays a bag of words."""
        closed = {self._row(place) for place in ended}
        for point in {point for (point, _), record in ended.items() if record.reads_order is False}:
            shape = self.points[point].architecture
            vain = [
                other
                for other, config in enumerate(self.points)
                if config.architecture == shape and self.tokens[other] <= self.tokens[point]
            ]
            closed |= {other * self.seeds + seed for other in vain for seed in range(self.seeds)}
        return np.array(sorted(closed), dtype=np.int64)

    def _is_fit(self, rows: Rows, response: Floats) -> bool:
        """Whether rows, not the prior, determine the law."""
        try:
            Observations.of({name: values[rows] for name, values in self.pool.candidates.items()}, response[rows]).check(LAW)
        except InputError:
            return False
        return True

    def _affordable(self, posterior: Priced, budget: float) -> Rows:
        return np.setdiff1d(np.flatnonzero(posterior.prices.now <= budget), posterior.closed)

    def _preview(self, posterior: Priced, limit: float) -> Preview:
        open_ = np.setdiff1d(np.arange(len(self.pool)), posterior.closed)
        return preview([*posterior.basins], posterior.prices, open_, limit, posterior.spent, METHOD)

    def _would_take(self, posterior: Priced, limit: float) -> str:
        """Return what the goal is expected to take, in words."""
        wanted = self.half_width[1]
        for times in DEARER:
            ahead = self._preview(posterior, times * limit)
            enough = [flops for flops, error in zip(ahead.spent, ahead.errors, strict=True) if half_width_of(error) <= wanted]
            if enough:
                return f"it is expected to take about {flops_text(enough[0])} FLOPs"
        return f"{DEARER[-1]} times as much of this pool is not expected to meet it either; give a pool nearer to the target"

    def _grid(self, posterior: Posterior, limit: float) -> float:
        """Return the expected half-width of the limit's best grid: the cheapest shapes at all budgets up to a longest."""
        return min(self._grid_up_to(longest, posterior, limit) for longest in np.unique(self.tokens).tolist())

    def _grid_up_to(self, longest: int, posterior: Posterior, limit: float) -> float:
        basins, left = [*posterior.basins], limit - posterior.spent
        for cost, points in self._shapes_up_to(longest):
            left -= cost
            for point in points if left >= 0 else ():
                basins = [basin.after(point * self.seeds) for basin in basins]
        return half_width_of(expected_error(basins))

    def _grid_cost(self, points: Sequence[int]) -> float:
        """Return the FLOPs of these budgets of one shape, branched from the longest."""
        prices, cost = self.prices, 0.0
        for point in sorted(points, key=lambda point: -self.tokens[point]):
            cost += float(prices.now[point * self.seeds])
            prices = prices.after(point * self.seeds)
        return cost

    def _row(self, place: Place) -> int:
        return place[0] * self.seeds + place[1]

    def _place(self, row: int) -> Place:
        return divmod(row, self.seeds)

    def _in_seed_order(self, rows: Sequence[int], taken: Collection[Place]) -> list[Place]:
        """Return the points of rows, each with its first free seed, if any."""
        taken, places = {*taken}, list[Place]()
        for point, _ in map(self._place, rows):
            left = [(point, seed) for seed in range(self.seeds) if (point, seed) not in taken]
            taken |= {*left[:1]}
            places += left[:1]
        return places

    def _estimate(self, posterior: Posterior) -> str:
        value = float(forecast_of(posterior.basins)[0])
        if self.target is None:
            assert isinstance(self.goal, ExponentGoal)
            return f"{self.goal.exponent}, {value:.3g},"
        where = f"{count_text(self.target[0])} non-embedding parameters and {count_text(self.target[1])} tokens"
        return f"the loss at {where}, {np.exp(value):.4g} nats,"

    def _shown(self, half: float) -> str:
        return f"{half:.2g}" if self.target is None else f"{half:.1%}"


def _points(spec: GoalSweep) -> Iterator[RunConfig]:
    """Yield the shapes of a pool at each budget; raises InputError with every problem."""
    architecture, pool = spec.shared.get("architecture", {}), spec.pool
    rules = ShapeRules(pool.head_width, pool.ffn_ratio, pool.width_multiple, needs_even_heads(architecture))
    problems: dict[str, Problem] = {}
    configs: dict[tuple[object, int], RunConfig] = {}
    for depth, width, tokens in product(pool.depths(), pool.widths(), pool.budgets()):
        try:
            config = run_config(spec, rules.completed({"depth": depth, "width": width}), Budget(tokens=tokens), {})
        except InputError as error:
            problems |= {str(problem): problem for problem in error.problems}
        else:
            configs.setdefault((config.architecture, config.steps), config)
    if problems:
        raise InputError(problems.values())
    yield from configs.values()


def _fit_at(path: str) -> Mapping[str, float]:
    """Return the estimates of a fit's JSON; raises InputError for anything else, another law, and an undetermined one."""
    place = Path(path)
    if place.is_dir() or place.suffix not in ("", ".json"):
        written = f"study fit {path} --law {LAW.name} --parameters {COUNT} --json > fit.json"
        raise InputError.at("prior", f"{path} is no fit; write one with {written}, and name that file")
    fitted = read_law(place)
    if fitted.law.name != LAW.name or fitted.convention != COUNT:
        fitted_law = f"{fitted.law.name} in {fitted.convention}"
        raise InputError.at("prior", f"{path} is a fit of {fitted_law}; give one of {LAW.name} in {COUNT}, as by study fit")
    return fitted.estimates
