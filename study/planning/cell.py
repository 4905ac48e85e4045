"""A cell of a sweep and the runs that it needs next, a pure function of the records; and the configuration of a run.

The search of a cell starts at the best value of a cheaper one, its neighbour. Problems of a configuration are named by their
paths in the sweep file.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from study.base.errors import InputError, Problem
from study.base.grouping import grouped
from study.base.schema import deep_merge, flatten, set_path
from study.config.knobs import MAY_COINCIDE, MODEL, training_key
from study.config.presets import PRESET
from study.config.recipe import Budget
from study.config.run_config import RunConfig
from study.config.sweep import CellSweep, GoalSweep, SearchSweep, Sweep, sizes_of_text
from study.config.tuned_values import Tried, best_values, rank
from study.counting.parameters import parameters
from study.planning.tuning import AT_ONCE, Line, next_indices, start_near
from study.store.records import RunRecord
from study.store.run_folder import NONE_PLANNED, PlannedRuns, expected_flops

_OF_ARCHITECTURE = "architecture."


def run_config(spec: Sweep, architecture: Mapping[str, Any], budget: Budget, knobs: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of a sweep's run; vocabulary and positions default to those of the data.

    `knobs` override the base. Raises InputError with paths of the sweep file.
    """
    data = spec.data_with(knobs)
    template: dict[str, Any] = {
        "architecture": sizes_of_text(data) | dict(architecture),
        "recipe": {"budget": budget.model_dump(exclude_none=True)},
        "data": data,
        "masking": spec.masking.model_dump(),
        "seed": spec.first_seed,
    }
    shared = spec.shared_with(knobs)
    values = deep_merge(template, shared)
    for path, value in knobs.items():
        if path != PRESET:
            set_path(values, path, value)
    try:
        return RunConfig.parse(values)
    except InputError as error:
        name, preset = "-".join(str(value) for value in architecture.values()), str(knobs.get(PRESET, spec.preset))

        def at_its_place(problem: Problem) -> Problem:
            return Problem(_place(spec, problem.place, shared, preset, name), problem.message)

        raise InputError(map(at_its_place, error.problems)) from None


def _place(spec: Sweep, path: str, shared: Mapping[str, Any], preset: str, shape: str) -> str:
    if (place := spec.place_of(path)) is not None:
        return place
    if path in flatten(spec.base):
        return f"base.{path}"
    if path in flatten(shared):
        if path.startswith(_OF_ARCHITECTURE) and (model := spec.base.get("architecture", {}).get(MODEL)) is not None:
            return f"base.architecture.{MODEL} ({model}) {path.removeprefix(_OF_ARCHITECTURE)}"
        return f"preset ({preset}) {path}"
    if path.startswith("recipe.budget"):
        return "pool.tokens" if isinstance(spec, GoalSweep) else "budgets"
    if path.startswith(_OF_ARCHITECTURE) and not isinstance(spec, SearchSweep):
        shapes = "pool" if isinstance(spec, GoalSweep) else "shapes"
        return f"{shapes} ({shape}) {path.removeprefix(_OF_ARCHITECTURE)}" if shape else shapes
    return f"base.{path}" if path.startswith(("recipe", "architecture")) else path


Trial = tuple[RunConfig, ...]
"""The runs of one combination of tuned values, one for each trial seed."""

Values = tuple[float | None, ...]
"""A combination of tuned values; None where a run of an earlier launch lacks the knob."""

CHEAPER = 2 / 3
"""A cell waits for another's best value only if that one's runs cost at most this share of its own."""


@dataclass(frozen=True)
class Tuning:
    """The state of a cell's search: the runs it needs next, those of the best values so far, and whether it is over.

    `around` is the value at which a neighbour starts its search.
    """

    missing: list[RunConfig]
    best: Trial | None
    over: bool
    around: float | None = None


@dataclass(frozen=True)
class Cell:
    """The runs of one architecture and budget: knobs are tuned at a third of the seeds, the best is repeated at the others.

    `tried` are the combinations of tuned values that have runs, also of other launches' ranges. `other_names` are other
    requests of the sweep that train the same. `neighbour` is the nearest cheaper cell, whose best value starts this search. A
    cell that `takes` uses its neighbour's best values without a search; one that `checks` also tries the values on both sides.
    """

    config: RunConfig
    spec: CellSweep
    tried: tuple[Values, ...] = field(default=(), repr=False, compare=False)
    other_names: tuple[str, ...] = field(default=(), repr=False, compare=False)
    neighbour: Cell | None = field(default=None, repr=False, compare=False)
    takes: bool = False
    checks: bool = False

    @property
    def family(self) -> str:
        """What the cell shares with cells that differ only in their budget."""
        return family_of(self.config, self.spec.tune)

    def variant(self, tuned: Mapping[str, float | None], seed: int) -> RunConfig:
        """Return the run of this cell with these knobs and this seed."""
        changes: dict[str, Any] = {"seed": seed}
        for path, value in tuned.items():
            set_path(changes, path, value)
        return RunConfig.parse(deep_merge(self._values, changes))

    @cached_property
    def _values(self) -> dict[str, Any]:
        return self.config.to_dict()

    def wanted(self, records: Mapping[str, RunRecord], tuning: Tuning | None = None) -> list[RunConfig]:
        """Return the runs that the cell needs next, given the records by key.

        First the search at the trial seeds, once the neighbour's is over; then the best values at the other seeds. Without
        tuning, all seeds at once. A pure function of the records; `tuning` is the state of the search, if known.
        """
        tuning = tuning or self.tuning(records)
        if not tuning.over or tuning.best is None:
            return tuning.missing
        knobs = tuning.best[0].values_of(self.spec.tune)
        repeats = (self.variant(knobs, seed) for seed in self.spec.repeat_seeds)
        return _without_record((*tuning.best, *repeats), records)

    def tuned(self, records: Mapping[str, RunRecord]) -> bool:
        """Whether the search is over, so that all future runs are known."""
        return not self.spec.tune or self.tuning(records).over

    def tuning(self, records: Mapping[str, RunRecord], before: Tuning | None = None) -> Tuning:
        """Return the state of the search: brackets around the neighbour's best for one knob, all combinations for several.

        The best is that of all values tried, also by earlier launches. `before` is the neighbour's state, if known.
        """
        if not self.spec.tune:
            return Tuning(_without_record(self.trials(), records), None, over=True)
        if self.takes:
            return self._taken(records, before)
        if len(self.spec.tune) > 1:
            return self._grid(records)
        around = None
        if self.neighbour is not None:
            before = before or self.neighbour.tuning(records)
            if not before.over:
                return Tuning([], None, over=False)
            around = before.around
        values, trials = zip(*self._line, strict=True)
        line = Line(values, start_near([value for value in values[1:-1] if value is not None], around))
        ended = (index for index, trial in enumerate(trials) if trial and not _without_record(trial, records))
        needed = next_indices(line, tuple((index, _loss(trials[index], records)) for index in ended))
        missing = [run for index in needed for run in _without_record(trials[index], records)]
        best = self._best(records)
        return Tuning(missing, best, not missing, line.values[line.start] if best is None else self._values_at(best)[0])

    def _taken(self, records: Mapping[str, RunRecord], before: Tuning | None) -> Tuning:
        """Return the neighbour's best values once its search is over; a checking cell also tries values beside them.

        The best of a checking cell is that of all values tried, so that a failed check shows in its choice.
        """
        assert self.neighbour is not None
        before = before or self.neighbour.tuning(records)
        if not before.over or before.best is None:
            return Tuning([], None, before.over)
        values = self.neighbour._values_at(before.best)
        taken = self._reach.get(values) or self._trial(values)
        tried = (taken, *self._beside(taken)) if self.checks else (taken,)
        missing = [run for trial in tried for run in _without_record(trial, records)]
        best = self._best(records) if self.checks and not missing else taken
        return Tuning(missing, best, not missing, values[0])

    @cached_property
    def _line(self) -> list[tuple[float | None, Trial]]:
        """The values of the one tuned knob, with one beyond each end, and their runs."""
        (tuned,) = self.spec.tune.values()
        trials = ((value, self._reach.get((value,), ())) for value in tuned.line())
        return [(value if trial else None, trial) for value, trial in trials]

    def _grid(self, records: Mapping[str, RunRecord]) -> Tuning:
        missing, best = _without_record(self.trials(), records), self._best(records)
        if not missing and best is not None:
            missing = [run for trial in self._beside(best) for run in _without_record(trial, records)]
        return Tuning(missing, best, over=not missing)

    @cached_property
    def _reach(self) -> dict[Values, Trial]:
        """Every combination of tuned values and one beyond each end, with what was tried."""
        trials: dict[Values, Trial] = {}
        for values in dict.fromkeys((*product(*(tuned.line() for tuned in self.spec.tune.values())), *self.tried)):
            with contextlib.suppress(InputError):  # such as a share above 1
                trials[values] = self._trial(values)
        return trials if MAY_COINCIDE.isdisjoint(self.spec.tune) else self._each_once(trials)

    def _trial(self, values: Values) -> Trial:
        tuned = dict(zip(self.spec.tune, values, strict=True))
        return tuple(self.variant(tuned, seed) for seed in self.spec.trial_seeds)

    def _each_once(self, trials: dict[Values, Trial]) -> dict[Values, Trial]:
        """Return the trials without those that train the same as another value."""
        inside: set[Values] = {tuple(point.values()) for point in self.points()}
        kept = {values: trial for values, trial in trials.items() if values in inside}
        trained = {training_key(trial[0]) for trial in kept.values()}
        for values, trial in trials.items():
            if values not in kept and (key := training_key(trial[0])) not in trained:
                kept[values] = trial
                trained.add(key)
        return {values: trial for values, trial in trials.items() if values in kept}

    def trials(self) -> list[RunConfig]:
        """Return the runs of every combination of tuned values, or of every seed."""
        return [run for point in self.points() for run in self._reach[tuple(point.values())]]

    def runs_left(self, records: Mapping[str, RunRecord], tuning: Tuning | None = None) -> int:
        """Return how many more runs the cell needs at most, without extensions."""
        untried = _without_record(self.trials(), records)
        if not self.spec.tune:
            return len(untried)
        tuning = tuning or self.tuning(records)
        if tuning.over:
            return len(self.wanted(records, tuning))
        if self.takes:
            return self.planned_runs()
        return max(len(untried), len(tuning.missing)) + len(self.spec.repeat_seeds)

    def planned_runs(self) -> int:
        """Return how many runs the cell needs at most, without extensions."""
        if self.takes:
            return (1 + 2 * len(self.spec.tune) * self.checks) * len(self.spec.trial_seeds) + len(self.spec.repeat_seeds)
        return len(self.points()) * len(self.spec.trial_seeds) + len(self.spec.repeat_seeds)

    def points(self) -> list[dict[str, float]]:
        """Every combination of the tuned values."""
        axes = {path: tuned.values() for path, tuned in self.spec.tune.items()}
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]

    def _beside(self, best: Trial) -> list[Trial]:
        at = self._values_at(best)
        trials = []
        for place, tuned in enumerate(self.spec.tune.values()):
            if (own := at[place]) is None:
                continue
            below, above = [value for value in tuned.line() if value < own], [value for value in tuned.line() if value > own]
            beside = ((*at[:place], value, *at[place + 1 :]) for value in (*below[-1:], *above[:1]))
            trials += [self._reach[values] for values in beside if values in self._reach]
        return trials

    def _values_at(self, trial: Trial) -> Values:
        return tuple(trial[0].values_of(self.spec.tune).values())

    def _best(self, records: Mapping[str, RunRecord]) -> Trial | None:
        tried = [
            Tried(run.seed, values, record.usable_loss_nats, record.is_informative)
            for values, trial in self._reach.items()
            for run in trial
            if (record := records.get(run.key)) is not None
        ]
        best = best_values(tried, self.spec.trial_seeds)
        return None if best is None else self._reach[best]


def tunings(planned: Iterable[Cell], records: Mapping[str, RunRecord]) -> dict[str, Tuning]:
    """Return the state of each cell's search by the cell's key."""
    by_key: dict[str, Tuning] = {}

    def look(cell: Cell) -> Tuning:
        key = cell.config.key
        if key not in by_key:
            by_key[key] = cell.tuning(records, None if cell.neighbour is None else look(cell.neighbour))
        return by_key[key]

    for cell in planned:
        look(cell)
    return by_key


def family_of(config: RunConfig, tuned: Iterable[str]) -> str:
    """Return what runs share that differ only in tuned knobs, seed and budget."""
    return config.identity(but=(*tuned, "seed", "recipe.budget"))


def _without_record(trial: Iterable[RunConfig], records: Mapping[str, RunRecord]) -> list[RunConfig]:
    return [run for run in trial if run.key not in records]


def _loss(trial: Trial, records: Mapping[str, RunRecord]) -> float | None:
    ended = (records[run.key] for run in trial)
    return rank([record.usable_loss_nats for record in ended if record.is_informative])


def link_neighbours(planned: list[Cell], first: PlannedRuns = NONE_PLANNED) -> list[Cell]:
    """Return the cells, each with the nearest cheaper one where it tries many values of one knob.

    Nearest means similar parameters, tokens and layers, in ratios. Cells that share a trunk start at one value, that of the
    cell nearest to the longest. `first` are teachers, by id, that the sweep trains.
    """
    if len(planned) < 2 or [tuned.trials > AT_ONCE for tuned in planned[0].spec.tune.values()] != [True]:
        return planned
    names = [cell.family if cell.config.branch_step is not None else cell.config.key for cell in planned]
    longest: dict[str, Cell] = {}
    for name, cell in zip(names, planned, strict=True):
        if name not in longest or longest[name].config.steps < cell.config.steps:
            longest[name] = cell
    costs = {name: expected_flops(cell.config, cell.config.steps, first) for name, cell in longest.items()}
    ordered = sorted(longest, key=costs.__getitem__)
    sizes = np.log([_sizes(longest[name].config) for name in ordered])
    linked: list[Cell] = []
    for place, name in enumerate(ordered):
        cheaper = bisect_right(ordered, CHEAPER * costs[name], hi=place, key=costs.__getitem__)
        distances = ((sizes[:cheaper] - sizes[place]) ** 2).sum(1)
        linked.append(replace(longest[name], neighbour=linked[int(distances.argmin())] if cheaper else None))
    begins = dict(zip(ordered, linked, strict=True))
    return [
        begins[name] if cell is longest[name] else replace(cell, neighbour=begins[name].neighbour)
        for name, cell in zip(names, planned, strict=True)
    ]


def with_sources(planned: list[Cell], first: PlannedRuns = NONE_PLANNED) -> list[Cell]:
    """Return a variant's cells: the cheapest of each budget is tuned, the others take its best values, the most costly checks.

    Of cells of equal cost the one of smaller sizes comes first.
    """
    order = {
        cell.config.key: (expected_flops(cell.config, cell.config.steps, first), cell.config.architecture.sizes)
        for cell in planned
    }
    at_budgets = grouped(planned, lambda cell: cell.config.recipe.budget)
    sources = {budget: min(cells, key=lambda cell: order[cell.config.key]) for budget, cells in at_budgets.items()}
    dearest = max(planned, key=lambda cell: order[cell.config.key], default=None)

    def taking(cell: Cell) -> Cell:
        source = sources[cell.config.recipe.budget]
        return cell if cell is source else replace(cell, neighbour=source, takes=True, checks=cell is dearest)

    return [taking(cell) for cell in planned]


def _sizes(config: RunConfig) -> tuple[int, int, int]:
    architecture = config.architecture
    return parameters(architecture).parameters_non_embedding, config.tokens, architecture.depth
