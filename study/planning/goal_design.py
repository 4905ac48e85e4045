"""The runs of a sweep with a goal: what comes next is a function of the records and of what is under way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from study.base.errors import InputError, Problem
from study.base.quantities import count_text, flops_text, plural
from study.config.run_config import RunConfig
from study.config.sweep import GoalSweep
from study.counting.parameters import parameters
from study.planning.step_times import CORE_RATE
from study.store.records import RunRecord
from study.store.run_folder import expected_flops
from study.store.sweep_folder import ChosenRun, GoalLook, GoalPath, GoalState

Place = tuple[int, int]
"""A run of a design: its point, a shape and budget, and the number of its seed."""


class GoalDesign(ABC):
    """The points that a goal may train at, each with several seeds, and what is chosen among them.

    `rate` is the FLOPs that a second of `spend.hours` buys before any run has a time (study.planning.step_times.goal_rate).
    """

    def __init__(self, spec: GoalSweep, points: Sequence[RunConfig], rate: float = CORE_RATE) -> None:
        self.spec, self.points, self.rate = spec, points, rate
        self.flops = np.array([expected_flops(config, config.steps) for config in points])
        self.sizes = np.array([parameters(config.architecture).parameters_non_embedding for config in points])
        self.tokens = np.array([config.tokens for config in points])
        self._places = {config.identity(("seed",)): number for number, config in enumerate(points)}

    def limit(self, ended: Mapping[Place, RunRecord]) -> float:
        """Return the most FLOPs to spend: as given, or what the hours left buy at the rate of the runs so far.

        A run without a time, as one that failed, took what its FLOPs take at that rate.
        """
        flops, hours = self.spec.spend.flops, self.spec.spend.hours
        if hours is None:
            assert flops is not None
            return flops
        timed = [record for record in ended.values() if record.wall_seconds]
        so_far, seconds = spent(timed), sum(record.wall_seconds or 0.0 for record in timed)
        rate = so_far / seconds if seconds else self.rate
        bought = so_far + rate * (3600 * hours - seconds)
        return bought if flops is None else min(bought, flops)

    @property
    def limit_place(self) -> str:
        """The key of the file that limits what is spent, before any run."""
        return "spend.flops" if self.spec.spend.flops == self.limit({}) else "spend.hours"

    @property
    def _limit_text(self) -> str:
        flops, hours = self.spec.spend.flops, self.spec.spend.hours
        given = [] if flops is None else [f"{flops_text(flops)} FLOPs"]
        return " and ".join([*given, *([] if hours is None else [f"{hours:g} h of training"])])

    def run(self, place: Place) -> RunConfig:
        """Return the run at a place."""
        point, number = place
        return RunConfig.parse(self.points[point].to_dict() | {"seed": self.spec.seed_values[number]})

    def place(self, config: RunConfig) -> Place | None:
        """Return the place of a run, None if it is no run of the design."""
        point, seeds = self._places.get(config.identity(("seed",))), self.spec.seed_values
        return None if point is None or config.seed not in seeds else (point, seeds.index(config.seed))

    def ended(self, records: Iterable[RunRecord]) -> dict[Place, RunRecord]:
        """Return the records of the design's runs by place, in the order of their end."""
        ordered = sorted(records, key=lambda record: (record.finished_at, record.run_id))
        return {place: record for record in ordered if (place := self.place(record.config)) is not None}

    def check(self) -> None:
        """Raise InputError with every problem of a goal that cannot be served."""
        cheapest, limit = float(self.flops.min()), self.limit({})
        problems = self.problems(limit)
        if limit < cheapest:
            what = f"{limit:g} is less than the cheapest run costs, {cheapest:.3g}"
            others = (problem for problem in problems if problem.place != self.limit_place)
            problems = [*others, Problem(self.limit_place, what)]
        if problems:
            raise InputError(problems)

    @abstractmethod
    def problems(self, limit: float) -> list[Problem]:
        """Return what pool, seeds and so many FLOPs cannot serve."""

    @abstractmethod
    def wanted(self, ended: Mapping[Place, RunRecord], busy: Collection[Place], free: int) -> list[Place]:
        """At most `free` runs to start now."""

    @abstractmethod
    def looks(self, ended: Mapping[Place, RunRecord]) -> list[GoalLook]:
        """Return what each look at the records found."""

    @abstractmethod
    def standing(self, ended: Mapping[Place, RunRecord]) -> tuple[GoalState, str]:
        """Return where the goal stands once all under way has ended, and why."""

    @abstractmethod
    def expected(self, ended: Mapping[Place, RunRecord]) -> list[Place]:
        """Return the runs that are expected to come, in order."""

    def own_share(self, ended: Mapping[Place, RunRecord]) -> dict[Place, float]:
        """Return the share of its steps that each expected run takes itself."""
        return dict.fromkeys(self.expected(ended), 1.0)

    def of_one_trunk(self, config: RunConfig) -> list[RunConfig]:
        """Return the runs of a run's trunk, itself among them."""
        return [config]

    @abstractmethod
    def lines(self, ended: Mapping[Place, RunRecord]) -> list[str]:
        """Return the design in lines: what comes first and why, what to expect, and what a grid gives."""

    @property
    @abstractmethod
    def half_width(self) -> tuple[str, float]:
        """Half of what, in words, and how much of it meets the goal."""

    @property
    def target(self) -> tuple[float, float] | None:
        """The non-embedding parameters and tokens at which the loss is wanted, if anywhere."""
        return None

    def forecast_nats(self, ended: Mapping[Place, RunRecord]) -> float | None:
        """Return the loss at the target by ended runs, if they give one."""
        return None

    def path(self, records: Iterable[RunRecord]) -> GoalPath:
        """Return the path so far."""
        ended = self.ended(records)
        state, why = self.standing(ended)
        of, wanted = self.half_width
        grid = None if state == "open" else self.grid_flops(ended)
        return GoalPath(
            of=of,
            wanted=wanted,
            spend_flops=max(self.limit(ended), 1.0),
            first_rate=None if self.spec.spend.hours is None or self.rate == CORE_RATE else self.rate,
            state=state,
            sentence=f"{why}, after {self._cost(ended)}{self._grid_words(grid, ended)}",
            grid_flops=grid,
            looks=tuple(self.looks(ended)),
            runs=tuple(self._chosen(ended)),
            target_parameters=None if self.target is None else self.target[0],
            target_tokens=None if self.target is None else self.target[1],
            forecast_nats=self.forecast_nats(ended),
        )

    @property
    @abstractmethod
    def grid_of(self) -> str:
        """The grid that a goal's cost is compared with, in words."""

    @abstractmethod
    def grid_flops(self, ended: Mapping[Place, RunRecord]) -> float | None:
        """Return what a grid of the pool would have taken for what ended runs tell, None if none would tell it."""

    def _grid_words(self, grid: float | None, ended: Mapping[Place, RunRecord]) -> str:
        if grid is None or not ended:
            return ""
        return f" ({self.grid_of} would have taken {flops_text(grid)} FLOPs, {grid / spent(ended.values()):.3g} times as much)"

    def _cost(self, ended: Mapping[Place, RunRecord]) -> str:
        flops, limit = spent(ended.values()), max(self.limit(ended), 1.0)
        return f"{plural(len(ended), 'run')} and {flops_text(flops)} FLOPs, {flops / limit:.0%} of what may be spent"

    def _chosen(self, ended: Mapping[Place, RunRecord]) -> Iterable[ChosenRun]:
        for (point, _), record in ended.items():
            yield ChosenRun(
                run_id=record.run_id,
                shape=record.config.architecture.shape_name,
                parameters_non_embedding=int(self.sizes[point]),
                tokens=record.config.tokens,
                seed=record.config.seed,
                spent_flops=record.own_flops,
                used=usable(record),
            )

    def words(self, place: Place) -> str:
        """Return a run in words."""
        point, number = place
        shape, seed = self.points[point].architecture.shape_name, self.spec.seed_values[number]
        return f"{shape}, {count_text(self.tokens[point])} tokens, seed {seed}"


def spent(records: Iterable[RunRecord]) -> float:
    """Return the FLOPs of ended runs' own steps."""
    return float(sum(record.own_flops for record in records))


def usable(record: RunRecord) -> bool:
    """Whether a goal may rest on a run: it ended with a loss, and is no bag of words."""
    return record.usable_loss_nats is not None and record.reads_order is not False


class GoalProposer:
    """Proposes the runs of a goal's design, started ones without a record first."""

    waiting = 0
    exhausted = None
    """Never said: the answer opens with where the goal stands."""

    def __init__(self, design: GoalDesign, records: Iterable[RunRecord], started: Iterable[RunConfig]) -> None:
        self.design = design
        self._records = {record.config.key: record for record in records}
        self._given = {config.key: config for config in started}
        self._path: GoalPath | None = None

    @property
    def path(self) -> GoalPath:
        """The path to the goal so far."""
        if self._path is None:
            self._path = self.design.path(self._records.values())
        return self._path

    def wanted(self, records: Mapping[str, RunRecord], running: Collection[str], free: int) -> list[RunConfig]:
        """Return the next runs for `free` slots."""
        del records
        configs = [config for key, config in self._given.items() if key not in running][:free]
        if len(configs) < free and self.path.state == "open":
            ended = self.design.ended(self._records.values())
            busy = {place for config in self._given.values() if (place := self.design.place(config)) is not None}
            for place in self.design.wanted(ended, busy, free - len(configs)):
                config = self.design.run(place)
                self._given[config.key] = config
                configs.append(config)
        return configs

    def tell(self, key: str, record: RunRecord) -> None:
        """Note that a run has ended."""
        self._given.pop(key, None)
        if key not in self._records:
            self._records[key] = record
            self._path = None
