"""From a sweep to its cells, and from a point of a search to its run."""

from __future__ import annotations

import functools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.base.errors import InputError, Problem, check_all
from study.base.grouping import grouped
from study.base.quantities import plural
from study.base.schema import deep_merge, flatten, number_in, whole
from study.config.knobs import MAY_COINCIDE, TOKENIZER_KNOBS, TRAINED_RUNS, without_effect
from study.config.named_runs import NO_RUN, cell_in, kept_layers, layers_problem
from study.config.presets import PRESET
from study.config.run_config import RunConfig, Texts, describe_knobs
from study.config.search_spec import Dimension, Prune
from study.config.shape_spec import LARGEST
from study.config.sweep import CellSweep, GoalSweep, SearchSweep, Sweep, sizes_of_text
from study.config.sweep_files import read_sweep
from study.counting.architecture import NONE, SIZES
from study.counting.solving import undivided
from study.data.prepared import files_fingerprints
from study.planning.cell import Cell, Values, link_neighbours, run_config, with_sources
from study.planning.coincidences import RequestedCell, alike_when_tuned, cell_key, other_names, redundant, with_layers_listed
from study.planning.step_times import CORE_RATE
from study.store.records import RunRecord
from study.store.run_folder import RunFolder, init_from_depth
from study.store.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from study.planning.goal_design import GoalDesign

_OF_ARCHITECTURE = "architecture."

CHECKED_POINTS = 2000
"""At most so many points of a space are checked before a search starts."""


@dataclass(frozen=True)
class Plan:
    """The content of a sweep, computed once on first use.

    `records` are the sweep's own. `texts` are the data fingerprints of its text as it is now, by tokeniser, none where unknown:
    only records of runs on this text count as done. `runs` is the folder of its runs, in which starts and teachers find those
    that the sweep trains first. `rate` is that of a goal's hours (see GoalDesign). Its properties raise InputError with every
    problem of every possible run.
    """

    spec: Sweep
    records: Sequence[RunRecord] = ()
    texts: Texts = field(default_factory=dict)
    runs: Path = Path("runs")
    rate: float = CORE_RATE

    @cached_property
    def cells(self) -> list[Cell]:
        """Its cells (see `cells`), none for a search or a goal."""
        if not isinstance(self.spec, CellSweep):
            return []
        return cells(self.spec, self.current_records, NamedRuns(self.spec, self.run_id, self.runs))

    @cached_property
    def parents(self) -> dict[str, RunConfig]:
        """The runs that the sweep trains and others start from or learn from, by id."""
        named = {name for cell in self.cells for name in parents_of(cell.config)}
        runs = (run for cell in self.cells if named and not cell.spec.tune for run in cell.trials())
        return {name: run for run in runs if (name := self.run_id(run)) in named}

    @cached_property
    def first_runs(self) -> list[RunConfig]:
        """The runs to start with: every cell's first runs, the largest of a search, or a goal's pool."""
        match self.spec:
            case CellSweep():
                return [run for cell in self.cells for run in cell.trials()]
            case SearchSweep() as search:
                return [search_example(search)]
            case GoalSweep():
                return [*self.design.points]

    @cached_property
    def design(self) -> GoalDesign:
        """The runs of a goal, and how they are chosen."""
        assert isinstance(self.spec, GoalSweep)
        if self.spec.compared is not None:
            from study.planning.decision import Decision

            return Decision(self.spec, lambda record: RunFolder(self.runs / record.run_id), self.rate)
        from study.planning.law_goal import LawGoal

        return LawGoal(self.spec, lambda record: RunFolder(self.runs / record.run_id).branch_steps(), self.rate)

    def check(self) -> None:
        """Raise InputError for whatever is wrong with any of its runs."""
        match self.spec:
            case CellSweep():
                _ = self.cells
            case SearchSweep() as search:
                check_all(lambda: check_space(search), lambda: check_heads(search))
            case GoalSweep():
                self.design.check()

    def holds(self, config: RunConfig) -> bool:
        """Whether a run belongs to one of its cells, to the space of a search, or to a goal's pool."""
        match self.spec:
            case CellSweep() as spec:
                return config.identity(_aside(spec)) in self._identities
            case SearchSweep() as search:
                return point_of(search, config) is not None
            case GoalSweep():
                return self.design.place(config) is not None

    @cached_property
    def current_records(self) -> list[RunRecord]:
        """The records of runs on its present text."""
        return [record for record in self.records if record.read_text(self.texts.values())]

    @cached_property
    def on_other_text(self) -> str:
        """How many runs by the same configuration read what the corpus held before, in words."""
        current, texts = {record.run_id for record in self.current_records}, self.spec.texts
        if not (count := sum(each.run_id not in current and each.config.data in texts for each in self.records)):
            return ""
        return f"{plural(count, 'run')} of earlier launches read another text than {self.spec.data.corpus} is now"

    def has_run(self, run_id: str, config: RunConfig) -> bool:
        """Whether a run of this id is one that it may want on its present text."""
        return self.holds(config) and (not self.texts or self.run_id(config) == run_id)

    def run_id(self, config: RunConfig) -> str:
        """Return the id of a run on its present text; if that is unknown, of the run that has ended, if any."""
        return self._ended.get(config.key) or run_id(config, self.texts)

    @cached_property
    def _ended(self) -> dict[str, str]:
        """The ids of ended runs, by what identifies them on one text; empty where the present text gives them."""
        return {} if self.texts else {record.config.key: record.run_id for record in self.records}

    @cached_property
    def idle_base(self) -> dict[str, str]:
        """The knobs of `base` that have no effect in any cell, and why."""
        given = [knob for knob in flatten(self.spec.base) if knob in MAY_COINCIDE]
        idle = [without_effect(cell.config) for cell in self.cells] if given else []
        return {knob: idle[0][knob] for knob in given if idle and all(knob in here for here in idle)}

    @cached_property
    def _identities(self) -> set[str]:
        assert isinstance(self.spec, CellSweep)
        return {cell.config.identity(_aside(self.spec)) for cell in self.cells}


def plan_of(folder: SweepFolder, records: Sequence[RunRecord]) -> Plan:
    """Return the plan of a sweep by its file, on its present text, with a goal as last launched.

    Raises InputError if its file cannot be launched.
    """
    spec, _ = read_sweep(folder.sweep_file)
    path = folder.goal_path() if isinstance(spec, GoalSweep) and spec.spend.hours is not None else None
    rate = CORE_RATE if path is None or path.first_rate is None else path.first_rate
    return Plan(spec, records, files_fingerprints(spec.texts), folder.runs_folder, rate)


def _aside(spec: CellSweep) -> tuple[str, ...]:
    return (*spec.tune, "seed")


def run_id(config: RunConfig, texts: Texts) -> str:
    """Return the id of a run on its tokeniser's text, if known."""
    return config.fingerprint(texts.get(config.data.tokenizer.variant, ""))


def parents_of(config: RunConfig) -> tuple[str, ...]:
    """Return the ids of the runs that a run needs."""
    named = (config.recipe.init_from, config.recipe.teacher_run)
    return tuple(dict.fromkeys(run.folder.name for run in named if run is not None))


@dataclass(frozen=True)
class NamedRuns:
    """The named cells of a sweep at a shape and variant, with the ids of their runs and the folder of these."""

    spec: CellSweep
    run_id: Callable[[RunConfig], str]
    folder: Path

    def config(self, name: str, shape: Mapping[str, Any], variant: Mapping[str, Any]) -> RunConfig:
        """Return the run of a named cell at a shape in a variant, without start and teacher.

        Raises InputError under `cells` and the cell's name.
        """
        cell, plain = self.spec.cells[name], {f"recipe.{knob}": none for knob, none in NO_RUN.items()}
        sizes = {**shape, **cell.sizes}
        if "width" in cell.sizes:
            (rules, *_) = self.spec.shapes.rules(self.spec.shared_with(variant).get("architecture", {}))
            sizes = rules.completed({"depth": sizes["depth"], **cell.sizes})
        rate = {} if cell.learning_rate is None else {"recipe.learning_rate": cell.learning_rate}
        lowest = {knob: tuned.low for knob, tuned in self.spec.tune.items()}
        try:
            return run_config(self.spec, sizes, cell.budget, {**lowest, **variant, **plain, **rate})
        except InputError as error:
            raise InputError(Problem(f"cells.{name}", str(problem)) for problem in error.problems) from None

    def resolved(self, shape: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
        """Return a variant whose starts and teachers name run folders in place of cells."""
        return {knob: self._folder(value, shape, variant) for knob, value in variant.items()}

    def _folder(self, value: object, shape: Mapping[str, Any], variant: Mapping[str, Any]) -> object:
        if (named_cell := cell_in(value)) is None:
            return value
        name, rest = named_cell
        return f"{self.folder / self.run_id(self.config(name, shape, variant))}{rest}"

    def cells(
        self, shapes: Callable[[Mapping[str, Any]], Sequence[Mapping[str, Any]]], problems: dict[str, Problem]
    ) -> list[tuple[str, Cell]]:
        """Return the named cells at every shape in every variant, each once and with its name, needed ones first."""
        once = self.spec.model_copy(update={"tune": {}, "seeds": 1})
        named: dict[str, tuple[str, Cell]] = {}
        for name in sorted(self.spec.cells, key=lambda name: name not in self.spec.parents):
            spec = once if name in self.spec.parents else self.spec
            for variant in self.spec.variants:
                for shape in shapes(variant):
                    try:
                        config = self.config(name, shape, variant)
                    except InputError as error:
                        problems |= {str(problem): problem for problem in error.problems}
                    else:
                        named.setdefault(config.key, (name, Cell(config, spec.at_budget(config.budget_tokens))))
        return [*named.values()]


def cells(spec: CellSweep, records: Iterable[RunRecord] = (), named: NamedRuns | None = None) -> list[Cell]:
    """All cells of a sweep of shapes: each budget at each shape in each variant, after its named cells.

    Solved widths meet their targets in each variant. Cells that train the same runs are one, under the first name (see
    study.planning.coincidences). Raises InputError with every problem of every cell, once and under its path in the sweep file.
    """
    named = named or NamedRuns(spec, partial(run_id, texts={}), Path("runs"))
    problems: dict[str, Problem] = {}
    given: set[str] = set()
    requested: dict[tuple[str, ...], list[RequestedCell]] = {}
    counted = (_OF_ARCHITECTURE, PRESET, *(TOKENIZER_KNOBS if spec.size_count == "total" else ()))
    shapes_with = functools.cache(lambda varied: _shapes(spec, dict(varied), problems))

    def shapes_in(variant: Mapping[str, Any]) -> list[dict[str, int]]:
        return shapes_with(tuple(item for item in variant.items() if item[0].startswith(counted)))

    beyond = named.cells(shapes_in, problems)
    grid = [
        (variant, config)
        for variant in spec.variants
        for shape in shapes_in(variant)
        for config in _configs(named, shape, variant, problems)
    ]
    fresh = [cell.config for name, cell in beyond if name not in spec.parents]
    on_one_way = _on_one_way([*(config for _, config in grid), *fresh], spec)
    beyond = [
        (name, cell if name in spec.parents else replace(cell, config=on_one_way.get(cell.config.key, cell.config)))
        for name, cell in beyond
    ]
    first = {named.run_id(cell.config): cell.config for _, cell in beyond if not cell.spec.tune}
    for variant, config in grid:
        config = on_one_way.get(config.key, config)
        if config.key in given:
            message = f"{config.variant(tuple(variant))} occurs twice, under two names of one run; keep one"
            problems["vary"] = Problem("vary", message)
            continue
        given.add(config.key)
        depth = init_from_depth(config, first)
        begun = _by_first_layers(config, depth)
        listed = with_layers_listed(begun, depth, first)
        requested.setdefault(cell_key(listed, spec), []).append(RequestedCell(begun, variant))
    problems |= {str(problem): problem for problem in redundant(requested.values())}
    most, asked = spec.one_seed_above, [group[0].config for group in requested.values()] + [cell.config for _, cell in beyond]
    if most is not None and all(config.budget_tokens <= most for config in asked) and not problems:
        message = f"is {whole(most):,}, and no budget has more tokens; leave it out"
        problems["one_seed_above"] = Problem("one_seed_above", message)
    keys, trained, of_use = {group[0].config.key for group in requested.values()}, set(requested), {*spec.parents}
    own: list[Cell] = []
    for name, cell in beyond:
        key = cell_key(cell.config, cell.spec)
        if cell.config.key not in keys and (name in spec.parents or key not in trained):
            own.append(cell)
            of_use.add(name)
        trained.add(key)
    if not problems:
        message = "trains nothing new: shapes and budgets, or another named cell, have its runs; leave it out"
        problems |= {name: Problem(f"cells.{name}", message) for name in spec.cells if name not in of_use}
    if problems:
        raise InputError(problems.values())
    tried = _tried(spec, records)
    by_variant = grouped(requested.values(), lambda group: tuple(group[0].variant.items()))
    linked = with_sources if spec.transfers else link_neighbours
    planned = [
        cell for groups in by_variant.values() for cell in linked([_cell(group, spec, tried) for group in groups], first)
    ]
    return [*own, *planned]


def _cell(group: Sequence[RequestedCell], spec: CellSweep, tried: Mapping[str, Mapping[Values, None]]) -> Cell:
    config = group[0].config
    return Cell(
        config, spec.at_budget(config.budget_tokens), tuple(tried.get(config.identity(_aside(spec)), ())), other_names(group)
    )


def _tried(spec: CellSweep, records: Iterable[RunRecord]) -> dict[str, dict[Values, None]]:
    """Return the tuned values that runs have, by what a cell's runs share."""
    tried: dict[str, dict[Values, None]] = {}
    for config in (record.config for record in records if spec.tune):
        tried.setdefault(config.identity(_aside(spec)), {})[tuple(config.values_of(spec.tune).values())] = None
    return tried


def _configs(
    named: NamedRuns, shape: Mapping[str, Any], variant: Mapping[str, Any], problems: dict[str, Problem]
) -> list[RunConfig]:
    """One shape in one variant at each possible budget; adds to `problems`."""
    spec, configs = named.spec, []
    try:
        variant = named.resolved(shape, variant)
    except InputError as error:
        problems |= {str(problem): problem for problem in error.problems}
        return []
    lowest = {knob: tuned.low for knob, tuned in spec.tune.items()}
    highest = [{knob: tuned.high} for knob, tuned in spec.tune.items()]
    for budget in spec.budgets.each():
        try:
            config = run_config(spec, shape, budget, {**lowest, **variant})
            for point in highest:
                run_config(spec, shape, budget, {**lowest, **variant, **point})
            points = Cell(config, spec).points()
            runs = [(point, run_config(spec, shape, budget, {**lowest, **variant, **point})) for point in points]
            problems |= {problem.place: problem for problem in alike_when_tuned(spec, runs) if problem.place not in problems}
            configs.append(config)
        except InputError as error:
            problems |= {str(problem): problem for problem in error.problems}
    return configs


def _by_first_layers(config: RunConfig, depth: int | None) -> RunConfig:
    """Return the run by its usual name if it starts with another's first layers."""
    init_from, kept = config.recipe.init_from, config.architecture.depth
    if init_from is None or depth is None or layers_problem(depth, kept, init_from.keep):
        return config
    if kept_layers(depth, kept, init_from.keep) != kept_layers(depth, kept, "first"):
        return config
    return RunConfig.parse(deep_merge(config.to_dict(), {"recipe": {"start": str(init_from.folder)}}))


def _on_one_way(configs: Iterable[RunConfig], spec: CellSweep) -> dict[str, RunConfig]:
    """Return by key the budgets of each shape under wsd, with the smallest one's warmup, so that one trunk serves them all.

    Starts, teachers and rates of one shape share it. It leaves room for the longest decay that is tried. Compared or tuned
    schedules and single budgets stay as they are.
    """
    if {"recipe.warmup_fraction", "recipe.schedule"} & {*spec.tune, *spec.vary}:
        return {}
    by_fraction = [run for run in configs if run.steps and run.recipe.schedule == "wsd" and run.recipe.warmup_tokens is None]
    compared = [knob for knob in spec.vary if knob not in (*TRAINED_RUNS, "recipe.learning_rate")]
    changed: dict[str, RunConfig] = {}
    for budgets in grouped(by_fraction, lambda run: (run.architecture, *run.values_of(compared).values())).values():
        smallest = min(budgets, key=lambda config: config.steps)
        if all(config.steps == smallest.steps for config in budgets):
            continue
        tuned = spec.tune.get("recipe.decay_fraction")
        longest = smallest.recipe if tuned is None else smallest.recipe.model_copy(update={"decay_fraction": tuned.high})
        warmup = min(smallest.recipe.warmup_steps(smallest.steps), smallest.steps - longest.decay_steps(smallest.steps))
        for config in budgets:
            values = config.to_dict()
            del values["recipe"]["warmup_fraction"]
            values["recipe"]["warmup_tokens"] = warmup * smallest.recipe.batch_tokens
            changed[config.key] = RunConfig.parse(values)
    return changed


def searched_config(spec: SearchSweep, values: Mapping[str, Any]) -> RunConfig:
    """Return the run at a point of the search space; heads and ffn follow the width by the rules unless given."""
    given = {f"architecture.{key}": value for key, value in spec.shared.get("architecture", {}).items()} | dict(values)
    sizes = {name: given[f"architecture.{name}"] for name in SIZES if f"architecture.{name}" in given}
    if isinstance(sizes.get("width"), int):
        architecture = {path.removeprefix(_OF_ARCHITECTURE): value for path, value in given.items()}
        sizes = spec.search.rules(architecture).completed(sizes)
    return run_config(spec, sizes, spec.budget, values)


def point_of(spec: SearchSweep, config: RunConfig) -> dict[str, Any] | None:
    """Return the point of a run in the space of a search, None outside it."""
    values = config.values_of(spec.search.space)
    point = {path: _as_searched(path, value, config, spec.search.space[path]) for path, value in values.items()}
    inside = all(dimension.holds(point[path]) for path, dimension in spec.search.space.items())
    return point if inside and searched_config(spec, point).key == config.key else None


def _as_searched(path: str, value: Any, config: RunConfig, dimension: Dimension) -> Any:
    """Return a knob's value in its dimension's terms."""
    if value is not None or dimension.holds(NONE):
        return NONE if value is None else value
    plain = {"embedding_width": config.architecture.table_width, "layer_groups": config.architecture.groups}
    return plain.get(path.removeprefix(_OF_ARCHITECTURE))


def search_example(spec: SearchSweep) -> RunConfig:
    """Return the largest run that a search may try, which bounds the cost."""
    values = {path: dimension.top() for path, dimension in spec.search.space.items()}
    return searched_config(spec, values)


def points_of(spec: SearchSweep) -> float:
    """Return the number of points of a search space, perhaps infinite."""
    return math.prod(len(dimension.values) if dimension.finite else math.inf for dimension in spec.search.space.values())


def check_space(spec: SearchSweep) -> None:
    """Raise InputError where points of the space are no valid runs or too short for the checks, or a dimension has no effect.

    A large space is checked at a fixed sample.
    """
    axes = {path: dimension.values for path, dimension in spec.search.space.items()}
    points: Iterable[tuple[Any, ...]]
    if math.prod(len(values) for values in axes.values()) > CHECKED_POINTS:
        draw = random.Random(0)
        points = [tuple(draw.choice(values) for values in axes.values()) for _ in range(CHECKED_POINTS)]
    else:
        points = product(*axes.values())
    problems: dict[str, Problem] = {}
    idle: dict[str, str] | None = None
    steps: set[int] = set()
    for values in points:
        try:
            run = searched_config(spec, dict(zip(axes, values, strict=True)))
        except InputError as error:
            for problem in error.problems:
                problems.setdefault(problem.place or problem.message, problem)
        else:
            steps.add(run.steps)
            here = without_effect(run)
            idle = {knob: why for knob, why in (here if idle is None else idle).items() if knob in here}
    for knob in (idle or {}).keys() & axes.keys():
        place = f"search.space.{knob}"
        problems.setdefault(place, Problem(place, f"has no effect: {(idle or {})[knob]}; leave it out"))
    if spec.search.prune is not None:
        problems |= {problem.place: problem for problem in _unmade_checks(spec.search.prune, steps)}
    if problems:
        raise InputError(problems.values())


def _unmade_checks(prune: Prune, steps: Iterable[int]) -> Iterator[Problem]:
    """Yield why runs of so many steps cannot be checked as often as a search says, or never be stopped.

    So many validations fit evenly into more than (checks - 1)² steps, and into some fewer.
    """
    checks, most = prune.checks, (prune.checks - 1) / prune.checks
    if prune.first_check >= checks:
        remedy = f"give {math.floor(1000 * most) / 1000:g} or less, or more checks"
        yield Problem("search.prune.first", f"{prune.first:g} spares all of {checks} checks, the last at the end; {remedy}")
    made = {each: math.ceil(each / math.ceil(each / checks)) for each in steps}
    if made and (fewest := min(made.values())) < checks:
        few = min(each for each in made if made[each] == fewest)
        fewer = f"give {fewest}" if fewest > 1 else "leave out prune"
        remedy = f"{fewer}, or give a budget of more than {(checks - 1) ** 2:,} steps"
        yield Problem("search.prune.checks", f"{checks} do not fit evenly into a run of {plural(few, 'step')}; {remedy}")


def check_heads(spec: SearchSweep) -> None:
    """Raise InputError where the head width does not divide every width of the space."""
    given = {f"architecture.{key}" for key in spec.shared.get("architecture", {})} | spec.search.space.keys()
    searched = spec.search.space.get("architecture.width")
    if "architecture.heads" in given or "head_width" not in spec.search.model_fields_set:
        return
    widths = [number_in(spec.shared.get("architecture", {}).get("width"))] if searched is None else searched.values
    if problem := undivided([spec.search.head_width], [width for width in widths if isinstance(width, int)]):
        raise InputError.at("search", problem)


def _shapes(spec: CellSweep, varied: Mapping[str, Any], problems: dict[str, Problem]) -> list[dict[str, int]]:
    """Return the sizes of all shapes with `varied` set.

    Targets that no width meets are added to `problems`, else shapes that occur twice.
    """
    given = {path.removeprefix(_OF_ARCHITECTURE): value for path, value in varied.items() if path.startswith(_OF_ARCHITECTURE)}
    architecture = sizes_of_text(spec.data_with(varied)) | spec.shared_with(varied).get("architecture", {}) | given
    shapes, unmet = spec.shapes.sizes(architecture, describe_knobs(varied))
    problems |= {problem.place: problem for problem in unmet}
    sizes = Counter(tuple(shape[size] for size in LARGEST) for shape in shapes)
    if not problems:
        for shape in (shape for shape, count in sizes.items() if count > 1):
            place = f"shapes ({'-'.join(map(str, shape))})"
            problems[place] = Problem(place, "occurs twice; remove the duplicate")
    return [dict(zip(LARGEST, shape, strict=True)) for shape in sizes]
