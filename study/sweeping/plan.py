"""From a sweep to its cells, and from a cell and its records to the runs that it needs next."""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

from study.architecture import Architecture
from study.config import Budget, RunConfig
from study.counting import parameters
from study.errors import InputError, Problem
from study.records import RunRecord
from study.schema import deep_merge, flatten, set_path
from study.sweeping.spec import Dimension, SweepSpec
from study.sweeping.tuning import AT_ONCE, Line, sought, start_near

CHEAPER = 2 / 3
"""What a run of a cell costs at most, as a share of another's, where the other waits for its best value."""

CHECKED_POINTS = 2000
"""How many points of a space are tried for validity before a search starts."""


@dataclass(frozen=True)
class Tuning:
    """Where a cell's search at the first seed is: the runs it needs next, the best so far, and whether it is over.

    `around` is the value of the one tuned knob that a neighbour begins at: the best, or where this search began.
    """

    missing: list[RunConfig]
    best: RunConfig | None
    over: bool
    around: float | None = None


@dataclass(frozen=True)
class Cell:
    """The runs of one architecture and budget: learning rates tuned at the first seed, the best repeated at the others.

    `neighbour` is the nearest cheaper cell, whose best value is where the search of this one begins.
    """

    config: RunConfig
    spec: SweepSpec
    neighbour: Cell | None = field(default=None, repr=False, compare=False)

    @property
    def family(self) -> str:
        """What the cell shares with those that differ in their budget alone."""
        return family_name(self.config, tuple(self.spec.tune))

    def variant(self, tuned: Mapping[str, float], seed: int) -> RunConfig:
        """The run of this cell with these knobs and this seed."""
        values: dict[str, Any] = self.config.to_dict() | {"seed": seed}
        for path, value in tuned.items():
            set_path(values, path, value)
        return RunConfig.parse(values)

    def wanted(self, records: Mapping[str, RunRecord]) -> list[RunConfig]:
        """The runs that the cell needs next, given the records there are (keyed by `key_of`); none left when it is done.

        First the search at the first seed, as soon as that of the neighbour is over; then the best at the other seeds. Where
        nothing is tuned, all seeds at once. A pure function of the records, so that a restarted coordinator asks the same.
        """
        if not self.spec.tune:
            return [run for run in self.trials() if key_of(run) not in records]
        tuning = self.tuning(records)
        if not tuning.over or tuning.best is None:
            return tuning.missing
        knobs = {path: flatten(tuning.best.to_dict())[path] for path in self.spec.tune}
        repeats = [self.variant(knobs, seed) for seed in self.spec.seed_values[1:]]
        return [config for config in repeats if key_of(config) not in records]

    def tuned(self, records: Mapping[str, RunRecord]) -> bool:
        """Whether the cell's search is over, so that all the runs it will ever want are known."""
        return not self.spec.tune or self.tuning(records).over

    def tuning(self, records: Mapping[str, RunRecord]) -> Tuning:
        """Where the search is: brackets around the neighbour's best for one knob, all combinations for several."""
        if len(self.spec.tune) > 1:
            return self._grid(records)
        around = None
        if self.neighbour is not None:
            before = self.neighbour.tuning(records)
            if not before.over:
                return Tuning([], None, over=False)
            around = before.around
        runs = self._line
        start = start_near([value for value, _, _ in runs[1:-1] if value is not None], around)
        line = Line(tuple(value for value, _, _ in runs), start)
        known = tuple((place, _loss(records[key])) for place, (_, _, key) in enumerate(runs) if key in records)
        search = sought(line, known)
        best = None if search.best is None else runs[search.best]
        around = line.values[search.best if search.best is not None else start]
        missing = [config for place in search.missing if (config := runs[place][1]) is not None]
        return Tuning(missing, best[1] if best else None, not missing, around)

    @cached_property
    def _line(self) -> list[tuple[float | None, RunConfig | None, str]]:
        """The values of the one tuned knob, with one beyond each end, their runs at the first seed, and the runs' keys."""
        ((path, tuned),) = self.spec.tune.items()
        values = tuned.values()
        line: list[tuple[float | None, RunConfig | None, str]] = []
        for value in (tuned.beyond(values[0]), *values, tuned.beyond(values[-1])):
            try:
                assert value is not None
                config = self.variant({path: value}, self.spec.first_seed)
            except InputError:
                line.append((None, None, ""))  # no run can have it, such as a share above 1
            else:
                line.append((value, config, key_of(config)))
        return line

    def _grid(self, records: Mapping[str, RunRecord]) -> Tuning:
        """All combinations, then the next values outwards where the best is at an end of a range."""
        trials = self.trials()
        if missing := [config for config in trials if key_of(config) not in records]:
            return Tuning(missing, None, over=False)
        best = _best(trials, records)
        if best is None:
            return Tuning([], None, over=True)
        extensions = self._extensions(best)
        if missing := [config for config in extensions if key_of(config) not in records]:
            return Tuning(missing, best, over=False)
        return Tuning([], _best([*trials, *extensions], records), over=True)

    def trials(self) -> list[RunConfig]:
        """Every tuned value at the first seed; where nothing is tuned, every seed."""
        if not self.spec.tune:
            return [self.variant({}, seed) for seed in self.spec.seed_values]
        return [self.variant(point, self.spec.first_seed) for point in self.points()]

    def planned_runs(self) -> int:
        """How many runs the cell takes at most, extensions not counted."""
        return len(self.points()) + len(self.spec.seed_values) - 1

    def points(self) -> list[dict[str, float]]:
        """Every combination of the tuned values, one of no values where nothing is tuned."""
        axes = {path: tuned.values() for path, tuned in self.spec.tune.items()}
        return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]

    def _extensions(self, best: RunConfig) -> list[RunConfig]:
        """The next values outwards of the best run, but for those that no run can have, such as a share above 1."""
        knobs = {path: flatten(best.to_dict())[path] for path in self.spec.tune}
        found = []
        for path, value in knobs.items():
            if (outward := self.spec.tune[path].beyond(value)) is not None:
                with contextlib.suppress(InputError):
                    found.append(self.variant(knobs | {path: outward}, self.spec.first_seed))
        return found


def key_of(config: RunConfig) -> str:
    """What identifies a run within a sweep, where the data is one: its configuration as canonical JSON."""
    return json.dumps(config.without_paths(), sort_keys=True)


def family_name(config: RunConfig, tuned: tuple[str, ...]) -> str:
    """What names the runs that differ only in tuned knobs, seed and budget, as canonical JSON."""
    values = flatten(config.without_paths())
    return json.dumps(
        {
            key: value
            for key, value in sorted(values.items())
            if key not in (*tuned, "seed") and not key.startswith("recipe.budget.")
        }
    )


def _best(configs: list[RunConfig], records: Mapping[str, RunRecord]) -> RunConfig | None:
    """The configuration of the lowest loss among usable records, None where there is none."""
    losses = [(loss, i) for i, config in enumerate(configs) if (loss := _loss(records[key_of(config)])) is not None]
    return configs[min(losses)[1]] if losses else None


def _loss(record: RunRecord) -> float | None:
    """The loss of a run, None where fits leave it out."""
    return None if record.exclusion is not None else record.loss_nats


def cells(spec: SweepSpec) -> list[Cell]:
    """All cells of a sweep of shapes, each budget at each shape.

    Raises InputError with every problem of every cell, each once and under its path in the sweep file.
    """
    problems: dict[str, Problem] = {}
    found: dict[str, Cell] = {}
    for shape in _shapes(spec, problems):
        configs = []
        for budget in spec.budgets.each():
            try:
                configs.append(run_config(spec, shape, budget))
                for point in Cell(configs[-1], spec).points():
                    run_config(spec, shape, budget, over=point)
            except InputError as error:
                problems |= {problem.place: problem for problem in error.problems if problem.place not in problems}
        for config in _on_one_way(configs, spec):
            found.setdefault(key_of(config), Cell(config, spec))
    if problems:
        raise InputError(problems.values())
    return with_neighbours(list(found.values()))


def with_neighbours(planned: list[Cell]) -> list[Cell]:
    """The cells, each with the nearest cheaper one where it tries more values of one knob than are asked for at once.

    Near is what has nearly as many parameters, tokens and layers, in ratios. Cells that share their way begin at one value,
    that of the cell nearest to the longest of them, so that their runs branch from common trunks.
    """
    if len(planned) < 2 or [tuned.trials > AT_ONCE for tuned in planned[0].spec.tune.values()] != [True]:
        return planned
    longest: dict[str, Cell] = {}
    for cell in planned:
        name = cell.family if cell.config.branch_step is not None else key_of(cell.config)
        if name not in longest or longest[name].config.steps < cell.config.steps:
            longest[name] = cell
    cost = {key: cell.config.flops_per_token["train_flops"] * cell.config.tokens for key, cell in longest.items()}
    found: dict[str, Cell] = {}
    for name in sorted(longest, key=lambda name: cost[name]):
        cheaper = [found[other] for other in found if cost[other] <= CHEAPER * cost[name]]
        nearest = min(cheaper, key=lambda other: _distance(other.config, longest[name].config), default=None)
        found[name] = replace(longest[name], neighbour=nearest)
    return [
        replace(cell, neighbour=found[cell.family if cell.config.branch_step is not None else key_of(cell.config)].neighbour)
        for cell in planned
    ]


def _distance(one: RunConfig, other: RunConfig) -> float:
    """How far two cells are from each other: by the logarithms of their parameters, tokens and layers."""
    sizes = [
        (parameters(config.architecture).parameters_non_embedding, config.tokens, config.architecture.depth)
        for config in (one, other)
    ]
    return math.dist(*([math.log(size) for size in three] for three in sizes))


def _on_one_way(configs: list[RunConfig], spec: SweepSpec) -> list[RunConfig]:
    """The budgets of one shape with the warmup of the smallest where the schedule is wsd, so that one trunk serves them all."""
    recipes = [config.recipe for config in configs]
    if len({config.steps for config in configs}) < 2 or "recipe.warmup_fraction" in spec.tune:
        return configs
    if any(recipe.schedule != "wsd" or recipe.warmup_tokens is not None for recipe in recipes):
        return configs
    smallest = min(configs, key=lambda config: config.steps)
    warmup = min(smallest.recipe.warmup_steps(smallest.steps), smallest.steps - smallest.recipe.decay_steps(smallest.steps))
    changed = []
    for config in configs:
        values = config.to_dict()
        del values["recipe"]["warmup_fraction"]
        values["recipe"]["warmup_tokens"] = warmup * smallest.recipe.batch_tokens
        changed.append(RunConfig.parse(values))
    return changed


def run_config(
    spec: SweepSpec, architecture: Mapping[str, Any], budget: Budget, over: Mapping[str, Any] | None = None
) -> RunConfig:
    """The configuration of a sweep's run; vocabulary and positions follow the data where the base does not give them.

    Raises InputError with paths as they stand in the sweep file.
    """
    template: dict[str, Any] = {
        "architecture": {"vocabulary": spec.data.tokenizer.vocabulary, "positions": spec.data.sequence_length}
        | dict(architecture),
        "recipe": {"budget": budget.model_dump(exclude_none=True)},
        "data": spec.data.model_dump(exclude_none=True),
        "masking": spec.masking.model_dump(),
        "seed": spec.first_seed,
    }
    values = deep_merge(template, spec.base)
    knobs = {path: tuned.low for path, tuned in spec.tune.items()} | dict(over or {})
    for path, value in knobs.items():
        set_path(values, path, value)
    try:
        return RunConfig.parse(values)
    except InputError as error:
        name = "-".join(str(value) for value in architecture.values())
        raise InputError(Problem(_place(spec, problem.place, name), problem.message) for problem in error.problems) from None


def searched_config(spec: SweepSpec, values: Mapping[str, Any]) -> RunConfig:
    """The run that a point of the search space describes; heads and ffn follow the width by the rules unless given."""
    assert spec.search is not None
    given = {f"architecture.{key}": value for key, value in spec.base.get("architecture", {}).items()} | dict(values)
    sizes = {
        name: given[f"architecture.{name}"] for name in ("depth", "width", "heads", "ffn") if f"architecture.{name}" in given
    }
    if isinstance(width := sizes.get("width"), int):
        sizes = {"heads": spec.search.rules.heads(width), "ffn": spec.search.rules.ffn(width)} | sizes
    (budget,) = spec.budgets.each()
    return run_config(spec, sizes, budget, over=values)


def check_space(spec: SweepSpec) -> None:
    """Raise InputError where points of the space are no valid runs: all of a small space, a fixed sample of a large one."""
    assert spec.search is not None
    axes = {path: _candidates(dimension) for path, dimension in spec.search.space.items()}
    points: Iterable[tuple[Any, ...]]
    if math.prod(len(values) for values in axes.values()) > CHECKED_POINTS:
        draw = random.Random(0)
        points = [tuple(draw.choice(values) for values in axes.values()) for _ in range(CHECKED_POINTS)]
    else:
        points = product(*axes.values())
    problems: dict[str, Problem] = {}
    for values in points:
        try:
            searched_config(spec, dict(zip(axes, values, strict=True)))
        except InputError as error:
            for problem in error.problems:
                problems.setdefault(problem.place, problem)
    if problems:
        raise InputError(problems.values())


def _place(spec: SweepSpec, path: str, shape: str = "") -> str:
    """Where a key of a run stands in the sweep file."""
    if spec.search is not None and path in spec.search.space:
        return f"search.space.{path}"
    if path in spec.tune:
        return f"tune.{path}"
    if path in flatten(spec.base):
        return f"base.{path}"
    if path.startswith("recipe.budget"):
        return "budgets"
    if path.startswith("architecture.") and not spec.search:
        return f"shapes ({shape}) {path.removeprefix('architecture.')}" if shape else "shapes"
    return f"base.{path}" if path.startswith(("recipe", "architecture")) else path


def _shapes(spec: SweepSpec, problems: dict[str, Problem]) -> list[dict[str, int]]:
    """The sizes of all shapes; a target that no width meets is added to the problems."""
    assert spec.shapes is not None
    if spec.shapes.iso_parameters is None:
        return spec.shapes.combinations()
    shapes = []
    for target, depth in product(spec.shapes.iso_parameters, spec.shapes.depth or ()):
        base = {"depth": 1, "width": 1, "heads": 1, "ffn": 1, "vocabulary": 1} | {
            key: value for key, value in spec.base.get("architecture", {}).items() if key == "norm"
        }
        solved = spec.shapes.rules.at_parameters(target, depth, Architecture.parse(base, "base.architecture"))
        reached = parameters(solved).parameters_non_embedding
        if abs(reached / target - 1) > spec.shapes.tolerance:
            place = f"shapes.iso_parameters {target:,.0f} at depth {depth}"
            problems[place] = Problem(
                place,
                f"the nearest width, {solved.width}, has {reached:,} parameters; allow it with tolerance, or move the target",
            )
        shapes.append({"depth": depth, "width": solved.width, "heads": solved.heads, "ffn": solved.ffn})
    return shapes


def _candidates(dimension: Dimension) -> Sequence[Any]:
    """Values of a dimension worth checking: all choices, all whole numbers, both ends of a range of reals."""
    if dimension.choices is not None:
        return dimension.choices
    assert dimension.low is not None
    assert dimension.high is not None
    if dimension.whole:
        return range(int(dimension.low), int(dimension.high) + 1, dimension.step or 1)
    return [dimension.low, dimension.high]
