"""A goal that a race meets: which variant is best at one size and budget, by paired seeds and intervals valid at all looks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from study.base.errors import InputError, Problem, shown
from study.base.quantities import count_text, plural
from study.base.statistics import variance_of_mean
from study.base.text import joined
from study.config.goal_spec import SOLVED, ComparedPoint, DecisionGoal, OptimumGoal
from study.config.recipe import Budget
from study.config.run_config import RunConfig
from study.config.shape_spec import Shapes, needs_even_heads
from study.config.sweep import GoalSweep
from study.counting.parameters import parameters
from study.counting.solving import ShapeRules
from study.designing.racing import FIRST, Race, race, simulate_races
from study.laws.law import Floats
from study.planning.cell import run_config
from study.planning.goal_design import GoalDesign, Place, spent, usable
from study.planning.step_times import CORE_RATE
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.store.sweep_folder import GoalLook, GoalState

SIZE = "goal.at.parameters_non_embedding"

TOLERANCE = 0.05
"""The most by which a variant may miss the size at which variants are compared."""

SIMULATED = 300
"""The races simulated for the power that a plan states."""

SCATTERS = (0.25, 0.5, 1.0)
"""The deviations over seeds, in differences that matter, for which a plan states the power."""


class Decision(GoalDesign):
    """Runs one seed of every variant that stands after another, until one is best or all are equal.

    Variants are depths or widths at equal parameters, or values of a knob at one shape. `folder_of` gives the folder of a run,
    whose losses by validation sequence say how much of a difference is of these sequences: noise that all seeds share.
    """

    def __init__(self, spec: GoalSweep, folder_of: Callable[[RunRecord], RunFolder], rate: float = CORE_RATE) -> None:
        goal = spec.goal
        assert isinstance(goal, DecisionGoal | OptimumGoal)
        assert spec.compared is not None
        self.goal, self.compared = goal, spec.compared
        self.difference = goal.difference if isinstance(goal, DecisionGoal) else goal.within
        self.seeks_optimum = isinstance(goal, OptimumGoal)
        budgets = [goal.at.tokens] if goal.at.tokens is not None else spec.pool.budgets()
        for tokens in sorted(budgets, reverse=True):  # the longest of which all seeds can be afforded, or the shortest
            self.budget = tokens
            variants = _Variants(spec, self.compared, tokens)
            self.values, self._unmet = [*variants.configs], variants.unmet
            super().__init__(spec, [*variants.configs.values()], rate)
            if self.flops.sum() * spec.seeds <= self.limit({}):
                break
        self._folder_of = folder_of
        self._per_token: dict[str, Floats] = {}
        self._raced: dict[tuple[str, ...], list[Race]] = {}

    @property
    def half_width(self) -> tuple[str, float]:
        """The difference that matters, in nats."""
        return "the widest difference (nats)", self.difference

    @property
    def target(self) -> tuple[float, float]:
        """Where the variants are compared: the goal's size, or their mean."""
        at = self.goal.at
        return at.parameters_non_embedding or float(np.mean(self.sizes)), self.budget

    def problems(self, limit: float) -> list[Problem]:
        """Seeds or a limit that cannot decide anything."""
        cost, problems = float(self.flops.sum()), list[Problem]()
        if self.spec.seeds < FIRST:
            what = f"{self.spec.seeds} cannot decide among {self._kind(len(self.points))} with looks after every seed"
            problems.append(Problem("seeds", f"{what}; give {FIRST} or more, of which a launch runs what it needs"))
        if FIRST * cost > limit:
            what = f"{limit:g} is less than {FIRST} seeds of each variant cost, {FIRST * cost:.3g}"
            problems.append(Problem(self.limit_place, f"{what}, before which nothing is decided"))
        return problems

    def wanted(self, ended: Mapping[Place, RunRecord], busy: Collection[Place], free: int) -> list[Place]:
        """Return the standing variants at the next seed, and at all seeds before which nothing is decided."""
        looks, seeds = self._race(ended), self._seeds(ended)
        left, places = self._left(ended, busy), list[Place]()
        for seed in seeds[: max(FIRST, len(looks) + 1)]:
            for point in self._standing(looks):
                place = point, seed
                if place in ended or place in busy or len(places) == free or self.flops[point] > left:
                    continue
                left -= float(self.flops[point])
                places.append(place)
        return places

    def _left(self, ended: Mapping[Place, RunRecord], busy: Collection[Place]) -> float:
        """Return the FLOPs neither spent nor under way."""
        return self.limit(ended) - spent(ended.values()) - float(sum(self.flops[point] for point, _ in busy))

    def looks(self, ended: Mapping[Place, RunRecord]) -> list[GoalLook]:
        """Return a look after each seed of all standing variants, at the runs that had ended by then."""
        records, order = [*ended.values()], {place: number for number, place in enumerate(ended, 1)}
        history, standing, count = list[GoalLook](), self._standing(()), 0
        for seed, look in zip(self._seeds(ended), self._race(ended), strict=False):
            count = max(count, *(order[point, seed] for point in standing))
            half = look.half_width if np.isfinite(look.half_width) else None
            history.append(GoalLook(runs=count, spent_flops=spent(records[:count]), half_width=half))
            standing = look.standing
        return history

    def standing(self, ended: Mapping[Place, RunRecord]) -> tuple[GoalState, str]:
        """Met where one variant is best or all that stand are equal."""
        looks = self._race(ended)
        if looks and looks[-1].outcome == "best":
            best = f"{self._words(looks[-1].standing[0])} has the lowest loss at {self._where}"
            return "met", f"{best[0].upper()}{best[1:]}, {self._against(looks[-1])}"
        if looks and looks[-1].outcome == "equal":
            equal = f"{self._open(looks)} lie within {self.difference:g} nats of each other at {self._where}"
            optimum = ", so that each is the optimum to this precision" if self.seeks_optimum else ""
            return "met", f"{equal[0].upper()}{equal[1:]}{optimum}"
        if self.wanted(ended, (), 1):
            return "open", f"Nothing is decided between {self._open(looks)}"
        why = "all seeds" if len(looks) == len(self._seeds(ended)) else "the compute"
        if not looks:
            return "spent", "Nothing is decided, since no seed of every variant ended with a loss and reads word order"
        return "spent", f"Nothing is decided between {self._open(looks)} with {why} spent; {self._would_take(looks[-1])}"

    @property
    def grid_of(self) -> str:
        """All seeds of all variants."""
        return "a grid of all seeds"

    def grid_flops(self, ended: Mapping[Place, RunRecord]) -> float | None:
        """Return what all seeds of all variants take."""
        del ended
        return float(self.flops.sum()) * self.spec.seeds

    def expected(self, ended: Mapping[Place, RunRecord]) -> list[Place]:
        """Return every seed of the standing variants within the limit."""
        places, left = list[Place](), self._left(ended, ())
        standing = self._standing(self._race(ended))
        for seed in self._seeds(ended):
            for point in standing:
                if (point, seed) not in ended and self.flops[point] <= left:
                    left -= float(self.flops[point])
                    places.append((point, seed))
        return places

    def lines(self, ended: Mapping[Place, RunRecord]) -> list[str]:
        """Return the rule, and its power by simulation beside that of a grid of all seeds."""
        count, most = len(self.points), len(self.expected({})) // len(self.points)
        lines = [
            f"Goal: {'the optimum' if self.seeks_optimum else 'the best'} of {self._open(self._race(ended))} at {self._where}, "
            f"where {self.difference:g} nats matter, for at most {self._limit_text}.",
            f"A look after every seed from {FIRST} on errs in at most 5% of sweeps whose variants are equal.",
        ]
        for scatter in SCATTERS:
            odds = simulate_races(1.0, (scatter, scatter), most, variants=count, sweeps=SIMULATED)
            of, better = f"{scatter * self.difference:.2g} nats", f"{self.difference:g} nats better"
            cost = f"{odds.spent:.0%} of {plural(count * most, 'run')}"
            lines.append(
                f"If seeds scatter by {of}, a variant that is {better} is found in {odds.decided:.0%} of sweeps, after {cost}; "
                f"a grid of all finds it in {odds.fixed:.0%}."
            )
        return [*lines, *self._outside()]

    def _outside(self) -> Iterator[str]:
        """Say which sizes of an optimum's pool were left out, and warn of a decision's that lie outside the pool."""
        yield from (f"Left out, since no shape of the pool is within {TOLERANCE:.0%}: {one}." for one in self._unmet)
        for size, ends in (("depth", self.spec.pool.depth), ("width", self.spec.pool.width)):
            sizes = [getattr(config.architecture, size) for config in self.points]
            if ends is not None and (beyond := sorted({one for one in sizes if not ends[0] <= one <= ends[-1]})):
                values = joined([f"{one:,}" for one in beyond])
                span = f"{ends[0]:,} to {ends[-1]:,}"
                yield f"Warning: {size} {values} lies outside the pool's {span}; a decision solves its shapes from their size."

    def _race(self, ended: Mapping[Place, RunRecord]) -> list[Race]:
        key = tuple(sorted(record.run_id for record in ended.values()))
        if key not in self._raced:
            self._raced[key] = self._looked_at(ended)
        return self._raced[key]

    def _looked_at(self, ended: Mapping[Place, RunRecord]) -> list[Race]:
        seeds = self._seeds(ended)
        losses = np.full((len(self.points), self.spec.seeds), np.nan)
        for point in range(len(self.points)):
            for column, seed in enumerate(seeds):
                if (record := ended.get((point, seed))) is not None and record.loss_nats is not None:
                    losses[point, column] = record.loss_nats

        def shared(one: int, other: int, count: int) -> float:
            return self._shared([[ended[point, seed] for seed in seeds[:count]] for point in (one, other)])

        return race(losses, self.difference, shared)

    def _seeds(self, ended: Mapping[Place, RunRecord]) -> list[int]:
        """Return the seeds at which all variants can be paired."""
        vain = {seed for (_, seed), record in ended.items() if not usable(record)}
        return [seed for seed in range(self.spec.seeds) if seed not in vain]

    def _shared(self, records: Sequence[Sequence[RunRecord]]) -> float:
        """Return the standard error of the difference of two variants over validation sequences, clustered by document."""
        first, second = (np.mean([self._losses(record) for record in of], axis=0) for of in records)
        documents = self._folder_of(records[0][0]).validation_documents()
        return float(variance_of_mean(first - second, documents) ** 0.5)

    def _losses(self, record: RunRecord) -> Floats:
        """Return the nats per masked token of each validation sequence."""
        if (name := record.run_id) not in self._per_token:
            tokens, loss = record.validation_masked_tokens or np.nan, record.loss_nats or np.nan
            self._per_token[name] = self._folder_of(record).losses_per_token(tokens, loss)
        return self._per_token[name]

    def _standing(self, looks: Sequence[Race]) -> Sequence[int]:
        return looks[-1].standing if looks else range(len(self.points))

    def _value(self, point: int) -> str:
        return shown(self.values[point]).strip("'")

    def _words(self, point: int) -> str:
        value = self._value(point)
        return f"{self.compared} {value}" if self.compared in SOLVED else f"value {value} of {self.compared}"

    def _kind(self, count: int) -> str:
        return f"{count} {self.compared}s" if self.compared in SOLVED else f"{count} values of {self.compared}"

    def _open(self, looks: Sequence[Race]) -> str:
        values = joined([self._value(point) for point in self._standing(looks)])
        return f"{self.compared}s {values}" if self.compared in SOLVED else f"values {values} of {self.compared}"

    @property
    def _where(self) -> str:
        size, tokens = self.target
        return f"{count_text(size)} non-embedding parameters and {count_text(tokens)} tokens"

    def _against(self, look: Race) -> str:
        """By how much the best is below those that stood until then."""
        best, gaps = look.standing[0], []
        for (one, other), (low, high) in look.intervals.items():
            if best in (one, other):
                less, more = (low, high) if best == other else (-high, -low)
                gaps.append(f"{less:.3f} to {more:.3f} nats below {self._words(one if best == other else other)}")
        return f"{joined(gaps)} (95% intervals that hold at every look)"

    def _would_take(self, look: Race) -> str:
        """How many seeds would narrow the widest interval to the difference."""
        if not np.isfinite(look.half_width):
            return f"{FIRST} seeds or more would be needed"
        seeds = int(np.ceil(look.seeds * (look.half_width / self.difference) ** 2))
        return f"about {seeds} seeds would narrow the widest interval from ± {look.half_width:.2g} to {self.difference:g}"


class _Variants:
    """The variants of a decision or an optimum at its size and budget, by value.

    Depths and widths are compared at equal parameters, within TOLERANCE. A decision names its own, and one that misses raises
    InputError; of an optimum each depth or width of the pool is taken, or the nearest within half a doubling that meets the
    size by a shape of the pool, and `unmet` says why others are left out.
    """

    def __init__(self, spec: GoalSweep, compared: str, tokens: float) -> None:
        goal, pool = spec.goal, spec.pool
        assert isinstance(goal, DecisionGoal | OptimumGoal)
        self.spec, self.compared, self.at, self.budget = spec, compared, goal.at, Budget(tokens=tokens)
        self.architecture = spec.shared.get("architecture", {})
        self.rules = ShapeRules(pool.head_width, pool.ffn_ratio, pool.width_multiple, needs_even_heads(self.architecture))
        self.unmet: list[str] = []
        self.configs: dict[Any, RunConfig] = dict(self._in_pool(goal) if isinstance(goal, OptimumGoal) else self._named())

    def _named(self) -> Iterator[tuple[Any, RunConfig]]:
        """Each value of a decision; raises InputError for a size that cannot be."""
        if self.compared not in SOLVED:
            assert isinstance(self.at, ComparedPoint)
            shape = self.rules.completed({"depth": self.at.depth, "width": self.at.width})
            yield from (
                (value, run_config(self.spec, shape, self.budget, {self.compared: value})) for value in self.spec.candidates
            )
            return
        nearest = {value: self._nearest(value) for value in self.spec.candidates}
        if missed := [value for value, config in nearest.items() if not self._meets(config)]:
            message = f"; give a size or {self.compared}s that meet within {TOLERANCE:.0%}"
            raise InputError(Problem(SIZE, self._comes_nearest(value, nearest[value]) + message) for value in missed)
        yield from nearest.items()

    def _in_pool(self, goal: OptimumGoal) -> Iterator[tuple[int, RunConfig]]:
        """Each size of the pool that meets the goal's, or the nearest that does; raises InputError if fewer than two do."""
        ends = (self.spec.pool.depth if goal.optimum == "depth" else self.spec.pool.width) or ()
        step = 1 if goal.optimum == "depth" else self.rules.width_multiple
        met = dict[int, RunConfig]()
        for value in self.spec.candidates:
            near = [one for one in range(step, 2 * value, step) if ends[0] <= one <= ends[-1] and _apart(one, value) < 2**0.5]
            tried = {one: self._nearest(one) for one in sorted(near, key=lambda one: _apart(one, value))}
            if (nearest := next((one for one, config in tried.items() if self._is_of_pool(config)), None)) is not None:
                met[nearest] = tried[nearest]
            else:
                self.unmet.append(self._comes_nearest(value, self._nearest(value)))
        if len(met) < 2:
            least = f"fewer than two {goal.optimum}s of the pool have shapes in it within {TOLERANCE:.0%} of this size"
            raise InputError.at(SIZE, f"{least}; give another size, or widen the pool: {'; '.join(self.unmet)}")
        yield from met.items()

    def _nearest(self, value: int) -> RunConfig:
        """Return the shape of a depth or width that comes nearest to the size."""
        target = self.at.parameters_non_embedding
        assert target is not None
        if self.compared == "depth":
            rules = {name: getattr(self.spec.pool, name) for name in ("head_width", "ffn_ratio", "width_multiple")}
            (size,), _ = Shapes.parse({"iso_parameters": [target], "depth": [value]} | rules).sizes(self.architecture)
            return run_config(self.spec, size, self.budget, {})

        def of_depth(depth: int) -> RunConfig:
            return run_config(self.spec, self.rules.completed({"depth": depth, "width": value}), self.budget, {})

        one, two = (parameters(of_depth(depth).architecture).parameters_non_embedding for depth in (1, 2))
        return of_depth(max(1, round(1 + (target - one) / (two - one))))

    def _meets(self, config: RunConfig) -> bool:
        size, target = parameters(config.architecture).parameters_non_embedding, self.at.parameters_non_embedding
        return target is not None and abs(size / target - 1) <= TOLERANCE

    def _is_of_pool(self, config: RunConfig) -> bool:
        ranges = ((self.spec.pool.depth, config.architecture.depth), (self.spec.pool.width, config.architecture.width))
        return self._meets(config) and all(ends is None or ends[0] <= size <= ends[-1] for ends, size in ranges)

    def _comes_nearest(self, value: int, config: RunConfig) -> str:
        other = "width" if self.compared == "depth" else "depth"
        size = parameters(config.architecture).parameters_non_embedding
        return f"{self.compared} {value} comes nearest with {other} {getattr(config.architecture, other)}, {size:,} parameters"


def _apart(one: int, other: int) -> float:
    """Return the ratio of two sizes, at least 1."""
    return max(one, other) / min(one, other)
