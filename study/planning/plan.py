"""From a sweep to its cells, and from a point of a search to its run."""

from __future__ import annotations

import functools
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from study.base.errors import InputError, Problem, told_together
from study.base.schema import deep_merge, flatten, number_in, set_path
from study.config.named_runs import kept_layers
from study.config.recipe import Budget
from study.config.run_config import RunConfig, setting_words
from study.config.search_spec import Dimension
from study.config.shape_spec import LARGEST, Shapes
from study.config.sweep_spec import SweepSpec
from study.counting.architecture import NONE, SIZES, Architecture
from study.counting.parameters import parameters
from study.counting.solving import undivided
from study.planning.cell import Cell, Values
from study.planning.neighbours import with_neighbours
from study.store.named_records import donor_depth
from study.store.records import RunRecord

_OF_ARCHITECTURE = "architecture."

CHECKED_POINTS = 2000
"""How many points of a space are tried for validity before a search starts."""


@dataclass(frozen=True)
class Plan:
    """What a sweep holds, worked out once, when it is first asked for, however many ask.

    `records` are those that it has. What is worked out raises InputError with every problem of every run that it may want.
    """

    spec: SweepSpec
    records: Sequence[RunRecord] = ()

    @cached_property
    def cells(self) -> list[Cell]:
        """Its cells (see `cells`), none of a search."""
        return [] if self.spec.search is not None else cells(self.spec, self.records)

    @cached_property
    def first_runs(self) -> list[RunConfig]:
        """What it starts with, before there are records: every cell's first runs, or the largest that a search may try."""
        return (
            [run for cell in self.cells for run in cell.trials()] if self.spec.search is None else [search_example(self.spec)]
        )

    def check(self) -> None:
        """Raise what is wrong with any of its runs."""
        if self.spec.search is None:
            _ = self.cells
        else:
            told_together(lambda: check_space(self.spec), lambda: check_heads(self.spec))

    def holds(self, config: RunConfig) -> bool:
        """Whether a run is of one of its cells, whatever the text says, or in the space of a search."""
        if self.spec.search is not None:
            return point_of(self.spec, config) is not None
        return config.identity(_aside(self.spec)) in self._identities

    @cached_property
    def _identities(self) -> set[str]:
        return {cell.config.identity(_aside(self.spec)) for cell in self.cells}


def _aside(spec: SweepSpec) -> tuple[str, ...]:
    """What the runs of a cell differ in."""
    return (*spec.tune, "seed")


def cells(spec: SweepSpec, records: Iterable[RunRecord] = ()) -> list[Cell]:
    """All cells of a sweep of shapes: each budget at each shape in each setting, and searches begin at those of their setting.

    Widths that are solved for are so in each setting, so that targets are met whatever it adds to the parameters.

    Starts that keep the same layers of one donor, as each does that keeps them all, are one cell, in the setting of the first
    layers. Raises InputError with every problem of every cell, each once and under its path in the sweep file.
    """
    problems: dict[str, Problem] = {}
    given: set[str] = set()
    found: dict[str, Cell] = {}
    planned: list[Cell] = []
    tried = _tried(spec, records)
    shapes_with = functools.cache(lambda varied: _shapes(spec, dict(varied), problems))
    for setting in spec.settings:
        of_setting = []
        for shape in shapes_with(tuple(item for item in setting.items() if item[0].startswith(_OF_ARCHITECTURE))):
            for config in _on_one_way(_configs(spec, shape, setting, problems), spec):
                if config.key in given:
                    told = f"{config.setting(tuple(setting))} stands twice, under two names of one run; each stands once"
                    problems["vary"] = Problem("vary", told)
                given.add(config.key)
                begun = _by_first_layers(config)
                if begun.key not in found:
                    found[begun.key] = Cell(begun, spec, tuple(tried.get(begun.identity(_aside(spec)), ())))
                    of_setting.append(found[begun.key])
        planned += with_neighbours(of_setting)
    if problems:
        raise InputError(problems.values())
    return planned


def _tried(spec: SweepSpec, records: Iterable[RunRecord]) -> dict[str, dict[Values, None]]:
    """The combinations of tuned values that runs have by what those of a cell share; none where nothing is tuned."""
    found: dict[str, dict[Values, None]] = {}
    for config in (record.config for record in records if spec.tune):
        found.setdefault(config.identity(_aside(spec)), {})[tuple(config.values_of(spec.tune).values())] = None
    return found


def _configs(
    spec: SweepSpec, shape: Mapping[str, Any], setting: Mapping[str, Any], problems: dict[str, Problem]
) -> list[RunConfig]:
    """One shape in one setting at each budget; what is wrong with any of its runs is added to the problems."""
    configs = []
    for budget in spec.budgets.each():
        try:
            configs.append(run_config(spec, shape, budget, setting))
            highest = [{path: tuned.high} for path, tuned in spec.tune.items()]
            for point in (*highest, *Cell(configs[-1], spec).points()):
                run_config(spec, shape, budget, {**setting, **point})
        except InputError as error:
            problems |= {problem.place: problem for problem in error.problems if problem.place not in problems}
    return configs


def _by_first_layers(config: RunConfig) -> RunConfig:
    """The run as it is named where it begins with the first layers of its donor, as far as this one is here to tell."""
    donor, depth, kept = config.recipe.donor, donor_depth(config), config.architecture.depth
    if donor is None or depth is None or kept > depth:
        return config
    if kept_layers(depth, kept, donor.keep) != kept_layers(depth, kept, "first"):
        return config
    return RunConfig.parse(deep_merge(config.to_dict(), {"recipe": {"start": str(donor.folder)}}))


def _on_one_way(configs: list[RunConfig], spec: SweepSpec) -> list[RunConfig]:
    """The budgets of one shape with the warmup of the smallest where the schedule is wsd, so that one trunk serves them all.

    The warmup leaves room for the longest decay that is tried. Where schedules or warmups are compared or tuned, each keeps
    its own.
    """
    recipes = [config.recipe for config in configs]
    alone = {"recipe.warmup_fraction", "recipe.schedule"} & {*spec.tune, *spec.vary}
    if len({config.steps for config in configs}) < 2 or alone:
        return configs
    if any(recipe.schedule != "wsd" or recipe.warmup_tokens is not None for recipe in recipes):
        return configs
    smallest = min(configs, key=lambda config: config.steps)
    tuned = spec.tune.get("recipe.decay_fraction")
    longest = smallest.recipe if tuned is None else smallest.recipe.model_copy(update={"decay_fraction": tuned.high})
    warmup = min(smallest.recipe.warmup_steps(smallest.steps), smallest.steps - longest.decay_steps(smallest.steps))
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
    sizes = {name: given[f"architecture.{name}"] for name in SIZES if f"architecture.{name}" in given}
    if isinstance(sizes.get("width"), int):
        sizes = spec.search.rules.completed(sizes)
    (budget,) = spec.budgets.each()
    return run_config(spec, sizes, budget, over=values)


def point_of(spec: SweepSpec, config: RunConfig) -> dict[str, Any] | None:
    """Where a run lies in the space of a search, None where it does not."""
    assert spec.search is not None
    values = config.values_of(spec.search.space)
    point = {path: _as_searched(path, value, config, spec.search.space[path]) for path, value in values.items()}
    inside = all(dimension.holds(point[path]) for path, dimension in spec.search.space.items())
    return point if inside and searched_config(spec, point).key == config.key else None


def _as_searched(path: str, value: Any, config: RunConfig, dimension: Dimension) -> Any:
    """A knob's value as its dimension names it: of what is NONE a range holds the width of the blocks, or a group a layer."""
    if value is not None or dimension.holds(NONE):
        return NONE if value is None else value
    plain = {"embedding_width": config.architecture.table_width, "layer_groups": config.architecture.groups}
    return plain.get(path.removeprefix(_OF_ARCHITECTURE))


def search_example(spec: SweepSpec) -> RunConfig:
    """The largest run that a search may try, by which its bill is made: each dimension at its high end or largest choice."""
    assert spec.search is not None
    values = {path: dimension.top() for path, dimension in spec.search.space.items()}
    return searched_config(spec, values)


def points_of(spec: SweepSpec) -> float:
    """How many points a search has to try; infinity where a dimension holds fractions."""
    assert spec.search is not None
    dimensions = spec.search.space.values()
    if any(dimension.choices is None and not dimension.whole for dimension in dimensions):
        return math.inf
    return math.prod(len(_candidates(dimension)) for dimension in dimensions)


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


def check_heads(spec: SweepSpec) -> None:
    """Raise InputError where a search asks for a head width that does not divide all widths of its space."""
    assert spec.search is not None
    given = {f"architecture.{key}" for key in spec.base.get("architecture", {})} | spec.search.space.keys()
    searched = spec.search.space.get("architecture.width")
    if "architecture.heads" in given or "head_width" not in spec.search.model_fields_set:
        return
    widths = [number_in(spec.base.get("architecture", {}).get("width"))] if searched is None else _candidates(searched)
    if problem := undivided([spec.search.head_width], [width for width in widths if isinstance(width, int)]):
        raise InputError.at("search", problem)


def _place(spec: SweepSpec, path: str, shape: str = "") -> str:
    """Where a key of a run stands in the sweep file."""
    if spec.search is not None and path in spec.search.space:
        return f"search.space.{path}"
    if path in spec.tune:
        return f"tune.{path}"
    if path in spec.vary:
        return f"vary.{path}"
    if path in flatten(spec.base):
        return f"base.{path}"
    if path.startswith("recipe.budget"):
        return "budgets"
    if path.startswith("architecture.") and not spec.search:
        return f"shapes ({shape}) {path.removeprefix('architecture.')}" if shape else "shapes"
    return f"base.{path}" if path.startswith(("recipe", "architecture")) else path


def _shapes(spec: SweepSpec, varied: Mapping[str, Any], problems: dict[str, Problem]) -> list[dict[str, int]]:
    """The sizes of all shapes where `varied` is set in the architecture.

    A target that no width meets is added to the problems, or else a shape that comes out twice.
    """
    assert spec.shapes is not None
    given = {path.removeprefix(_OF_ARCHITECTURE): value for path, value in varied.items()}
    architecture = spec.base.get("architecture", {}) | given
    if spec.shapes.iso_parameters is None:
        shapes = spec.shapes.combinations()
    else:
        shapes = solved(spec.shapes, architecture, problems, setting_words(varied))
    sizes = Counter(tuple(shape[size] for size in LARGEST) for shape in shapes)
    if not problems:
        for shape in (shape for shape, count in sizes.items() if count > 1):
            place = f"shapes ({'-'.join(map(str, shape))})"
            problems[place] = Problem(place, "comes out twice; leave out what gives it again")
    return [dict(zip(LARGEST, shape, strict=True)) for shape in sizes]


def solved(
    asked: Shapes, architecture: Mapping[str, Any], problems: dict[str, Problem], setting: str = ""
) -> list[dict[str, int]]:
    """The shapes nearest to the parameters that are asked for; a target that no width meets is added to the problems.

    `setting` says in words what of the architecture is varied.
    """
    templates = {depth: _template(depth, architecture) for depth in asked.depth or ()}
    shapes = []
    for target, depth, rules in product(asked.iso_parameters or (), asked.depth or (), asked.rules):
        found = rules.at_parameters(target, depth, templates[depth])
        reached = parameters(found).parameters_non_embedding
        if abs(reached / target - 1) > asked.tolerance:
            ratio = f" and FFN ratio {rules.ffn_ratio:g}" if len(asked.ffn_ratio) > 1 else ""
            place = f"shapes.iso_parameters {target:,.0f} at depth {depth}{ratio}{f' with {setting}' if setting else ''}"
            problems[place] = Problem(
                place,
                f"the nearest width, {found.width}, has {reached:,} parameters; move the target, or allow it with tolerance "
                "(shapes are compared within 5% of one size) or a smaller width_multiple",
            )
        shapes.append({"depth": depth, "width": found.width, "heads": found.heads, "ffn": found.ffn})
    return shapes


def _template(depth: int, architecture: Mapping[str, Any]) -> Architecture:
    """An encoder of a depth and with all else that widths are solved for; as BERT where that is wrong, which its runs tell."""
    sizes = {"depth": depth, "width": 1, "heads": 1, "ffn": 1, "vocabulary": 1}
    others = {name: value for name, value in architecture.items() if name not in sizes}
    try:
        return Architecture.parse(sizes | others)
    except InputError:
        return Architecture.parse(sizes)


def _candidates(dimension: Dimension) -> Sequence[Any]:
    """Values of a dimension worth checking: all choices, all whole numbers, both ends of a range of reals."""
    if dimension.choices is not None:
        return dimension.choices
    low, high = dimension.ends
    return range(int(low), int(high) + 1, dimension.step or 1) if dimension.whole else [low, high]
