"""Depth or width, or one value of a knob or another, in each recipe, text, budget and size of several sweeps.

Universes are cells that a report would compare; their choices are the knobs of recipe and text in which the cells differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from study.base.durable_files import is_there
from study.base.errors import InputError, Problem, map_all, nearest, shown
from study.base.grouping import grouped
from study.base.quantities import budget_words, compact
from study.base.schema import deep_merge, flatten, set_path, whole
from study.config.knobs import KNOBS
from study.config.run_config import TRAINING_MASKS, RunConfig, describe_knobs
from study.config.sweep import Sweep
from study.counting.architecture import NONE, SHAPE
from study.evidence.cells import CellResult, listed_values
from study.evidence.comparisons import comparison_of, pairs_of, reasons_left_out, why_left_out
from study.evidence.evidence import Evidence, gather
from study.evidence.families import Family, of_equal_size, variant_families
from study.evidence.seed_scatter import SeedVariance, SeedVariances
from study.evidence.shape_multiverse import QUESTION, no_shapes_to_compare, slope_over_depth, trade_depth
from study.laws.multiverse import BinaryQuestion, Multiverse, Universe
from study.store.sweep_folder import SweepFolder

_FIRST_RUNS = "the runs of the first sweep at its largest budget and size"

_NO_RECIPE = (
    *SHAPE,
    *("seed", "architecture.vocabulary", "architecture.positions", "data.validation_sequences", "data.tokenizer.path"),
    *("recipe.learning_rate", "recipe.warmup_tokens", "recipe.warmup_fraction"),
)
"""The knobs that are no choice of recipe unless varied: sizes, seeds, rates, warmups, and how the loss is measured."""

ASKABLE = tuple(knob for knob in KNOBS if knob not in SHAPE)
"""The knobs whose values may be the question."""


@dataclass(frozen=True)
class _Case:
    """A universe, before it is known in which knobs of the `recipe` it differs from others."""

    sweep: str
    recipe: Mapping[str, str]
    universe: Universe


def explore_recipes(folders: Sequence[Path]) -> Multiverse:
    """Ask every sweep the question of shape, for each of its sizes and budgets: one universe each.

    Cells are those that the report compares, at equal parameters by its sweep's count. The choices of a universe are its size
    and budget and what differs between the sweeps' recipes and texts; knobs that always change together are one choice. A
    sweep that cannot answer is left out with a note. Raises InputError with every folder that is no sweep, or if none can
    answer.
    """
    compared = {path: _compared_in(evidence) for path, evidence in _gathered(folders).items()}
    left_out = {path: no_shapes_to_compare(SweepFolder(path)) for path, shapes in compared.items() if not shapes}
    shapes = [one for of_sweep in compared.values() for one in of_sweep]
    sizes = {id(one): compact(group[0].size) for group in of_equal_size(shapes, lambda one: one.size) for one in group}
    varied = {column for one in shapes for cell in one.cells for column in cell.settings}
    cases = [_Case(one.sweep, _recipe_of(one.config, varied), _shape_universe(one, sizes[id(one)])) for one in shapes]
    return _multiverse(QUESTION, cases, _notes(left_out, len(compared)))


def _gathered(folders: Iterable[Path]) -> dict[Path, Evidence]:
    """Return the evidence of each folder, once; raises InputError with every one that is no sweep."""

    def gathered(path: Path) -> Evidence:
        if not is_there(SweepFolder(path).sweep_file):
            raise InputError.at(str(path), "is not a sweep folder: it has no sweep.yaml; give one for each of several sweeps")
        return gather(SweepFolder(path))

    once = list(dict.fromkeys(folders))
    return dict(zip(once, map_all(gathered, once), strict=True))


def _notes(left_out: Mapping[Path, str], folders: int) -> tuple[str, ...]:
    """Return a note of each sweep that cannot answer; raises InputError if none can."""
    if len(left_out) == folders:
        raise InputError(Problem(str(path), why) for path, why in left_out.items())
    return tuple(f"left out: {path}: {why}" for path, why in left_out.items())


def _multiverse(question: BinaryQuestion, cases: Sequence[_Case], notes: tuple[str, ...]) -> Multiverse:
    """Return the universes of a question, with what differs between their recipes among the choices of each."""
    recipes = _together([case.recipe for case in cases])
    own = [case.universe.choices for case in cases]
    choices = [{"approach": each["approach"], **recipe, **each} for each, recipe in zip(own, recipes, strict=True)]
    if len({tuple(each.values()) for each in choices}) < len(choices):
        choices = [{**each, "sweep": case.sweep} for case, each in zip(cases, choices, strict=True)]
    universes = tuple(replace(case.universe, choices=each) for case, each in zip(cases, choices, strict=True))
    return Multiverse(question, universes, notes, first=_FIRST_RUNS)


@dataclass(frozen=True)
class _ComparedShapes:
    """The shapes of one size, budget and variant of a sweep."""

    sweep: str
    family: Family
    cells: tuple[CellResult, ...]
    config: RunConfig

    @property
    def size(self) -> float:
        """The median of non-embedding parameters."""
        return median(cell.parameters_non_embedding for cell in self.family.cells)


def _compared_in(evidence: Evidence) -> list[_ComparedShapes]:
    """Return what a sweep compares, largest budget and size first."""
    shapes = [one for family in evidence.families if family.equal_parameters for one in _of_family(evidence, family)]
    return sorted(shapes, key=lambda one: (-one.config.tokens, -one.size))


def _of_family(evidence: Evidence, family: Family) -> Iterator[_ComparedShapes]:
    usable = [cell for cell in family.cells if cell.usable]
    for cells in grouped(usable, lambda cell: cell.validation).values() if trade_depth(family.cells) else ():
        included = tuple(cell for cell in cells if why_left_out(cell, evidence.include_unbracketed) is None)
        config = evidence.folder.run(cells[0].runs[0]).config()
        yield _ComparedShapes(str(evidence.folder.path), family, included, config)


def _shape_universe(one: _ComparedShapes, size: str) -> Universe:
    choices = {"approach": "equal sizes", "budget": budget_words(one.family.budget), "size": size}
    if not all(cell.reads_order for cell in one.cells):
        return Universe(choices, "an encoder reads no word order, or did not measure it", None)
    if not trade_depth(one.cells):
        return Universe(choices, "fewer than two depths have a bracketed rate", None)
    return slope_over_depth([one.cells], "linear", choices)


@dataclass(frozen=True)
class _Member:
    """A usable cell of a sweep, the configuration of one of its runs, and the variance over its seeds, if known."""

    sweep: str
    cell: CellResult
    config: RunConfig
    variance: SeedVariance | None


def explore_knob(folders: Sequence[Path], knob: str) -> list[Multiverse]:
    """Ask which value of a knob has the lower loss: one universe for each two cells that differ in it alone.

    The cells, of one sweep or two, share shape, or depth and parameters, and budget and validation set, as variants in a report
    do. The choices of a universe are shape, budget and what differs between the recipes and texts. Returns a multiverse for
    each two values, which are in the order of the sweep files. A sweep without such cells is left out with a note. Raises
    InputError for an unknown knob, with every folder that is no sweep, or if no sweep has such cells.
    """
    if knob not in ASKABLE:
        remedy = "ask shape about sizes" if knob in SHAPE else nearest(knob, ["compute", "shape", *ASKABLE])
        raise InputError.at("--ask", f"{shown(knob)} is neither compute, nor shape, nor a knob of the recipe; {remedy}")
    sweeps = _gathered(folders)
    members = _members_of(sweeps.values())
    pairs = _pairs_of_values(members, [evidence.sweep for evidence in sweeps.values()], knob)
    answering = {cell.name for _, *cells in pairs for cell in cells}
    why = f"no cell differs from another in {knob} alone"
    left_out = {path: why for path, one in sweeps.items() if not answering & {cell.name for cell in one.cells}}
    notes = _notes(left_out, len(sweeps))
    homes = {one.cell.name: one.sweep for one in members}
    seeds = {one.cell.name: one.variance for one in members if one.variance is not None}

    def case_of(family: Family, first: CellResult, second: CellResult) -> _Case:
        recipe = {name: str(value) for name, value in first.settings.items() if name != knob}
        both = dict.fromkeys((homes[second.name], homes[first.name]))
        return _Case(" and ".join(both), recipe, _knob_universe(family, first, second, seeds))

    asked = grouped(pairs, lambda pair: _which_value(knob, *pair[1:]))
    return [_multiverse(question, [case_of(*pair) for pair in of_values], notes) for question, of_values in asked.items()]


def _members_of(sweeps: Iterable[Evidence]) -> list[_Member]:
    """Return the usable cells of sweeps in order, each once, largest budget and size of each sweep first."""
    members: dict[str, _Member] = {}
    for one in sweeps:
        ordered = sorted(one.cells, key=lambda cell: (-cell.tokens, -cell.parameters_non_embedding))
        for cell in (cell for cell in ordered if cell.usable and cell.name not in members):
            config, variance = one.folder.run(cell.runs[0]).config(), one.comparisons.seed_variances.get(cell.name)
            members[cell.name] = _Member(str(one.folder.path), cell, config, variance)
    return list(members.values())


def _pairs_of_values(
    members: Sequence[_Member], sweeps: Sequence[Sweep], knob: str
) -> list[tuple[Family, CellResult, CellResult]]:
    """Return the pairs of cells that differ in a knob alone, in their order, with the family of each."""
    positions = {one.cell.name: position for position, one in enumerate(members)}
    listed = [_word(value) for sweep in sweeps for value in listed_values(sweep).get(knob, ())]
    families = variant_families(_variants_of(members, knob), {knob: listed}, sweeps[0].size_count)
    of_knob = ((family, *pair) for family in families if family.column == knob for pair in pairs_of(family))
    pairs = [pair for pair in of_knob if pair[1].name != pair[2].name]  # some values change nothing beside others
    return sorted(pairs, key=lambda pair: min(positions[cell.name] for cell in pair[1:]))


def _variants_of(members: Sequence[_Member], knob: str) -> list[CellResult]:
    """Return the cells, and those that each becomes with another value of the knob; settings are what differs in recipe.

    A cell and what it becomes may differ in more than the knob: only pre-norm goes with and without a norm of the embeddings,
    and either becomes the same post-norm, which is therefore a variant beside both.
    """
    varied = {knob, *(column for one in members for column in one.cell.settings)}

    def identity(config: RunConfig, validation: str) -> tuple[object, ...]:
        return config.architecture.sizes, *_recipe_of(config, varied).items(), config.recipe.budget, validation

    recipes = [_recipe_of(one.config, varied) for one in members]
    known = {identity(one.config, one.cell.validation): one.cell for one in reversed(members)}
    values = {recipe[knob]: one.config.values_of([knob])[knob] for recipe, one in zip(recipes, members, strict=True)}
    variants: dict[tuple[str, ...], CellResult] = {}
    for one, recipe, settings in zip(members, recipes, _differing(recipes), strict=True):
        for word, value in values.items():
            config = one.config if word == recipe[knob] else _changed(one.config, knob, value)
            if config is not None and (cell := known.get(identity(config, one.cell.validation))) is not None:
                changed = {**settings, knob: word}
                variants[cell.name, *changed.values()] = replace(cell, settings=changed)
    return list(variants.values())


def _changed(config: RunConfig, knob: str, value: object) -> RunConfig | None:
    """Return a configuration with another value of a knob, None if that does not go with the others."""
    changes: dict[str, Any] = {}
    set_path(changes, knob, value)
    try:
        return RunConfig.parse(deep_merge(config.to_dict(), changes))
    except InputError:
        return None


def _which_value(knob: str, first: CellResult, second: CellResult) -> BinaryQuestion:
    one, other = (describe_knobs({knob: cell.settings[knob]}) for cell in (second, first))
    return BinaryQuestion(
        text=f"At equal size and budget, which lowers the loss: {one} or {other}?",
        quantity=f"{first.unit} by which {first.settings[knob]} exceeds {second.settings[knob]}",
        threshold=0.0,
        above=one,
        below=other,
    )


def _knob_universe(family: Family, first: CellResult, second: CellResult, seeds: SeedVariances) -> Universe:
    of_one_shape = first.architecture.sizes == second.architecture.sizes
    others = first.variant_without(family.column or "")
    choices = {
        "approach": "equal shape" if of_one_shape else "equal depth and parameters",
        "budget": budget_words(family.budget),
        "shape": first.architecture.shape_name if of_one_shape else family.size.removesuffix(others).removesuffix(", "),
    }
    reasons = reasons_left_out(family, include_unbracketed=False)
    if reasons[first.name] or reasons[second.name]:
        return Universe(choices, "one of the two has no bracketed rate", None)
    pair = comparison_of(family, first, second, seeds)
    if pair.without_order is not None:
        return Universe(choices, "neither encoder reads word order", None)
    difference = pair.difference.in_unit
    low, high = difference.low_nats, difference.high_nats
    return Universe(choices, "measured", difference.estimate_nats, None if low is None or high is None else (low, high))


def _recipe_of(config: RunConfig, varied: Collection[str]) -> dict[str, str]:
    """Return the knobs of recipe and text, in words, with all that are `varied`."""
    training = flatten(config.training_masking.model_dump(mode="json"), TRAINING_MASKS.rstrip("."))
    named = {f"recipe.{knob}": run for knob, run in config.recipe.trained_runs.items()}
    values = flatten(config.model_dump(mode="json")) | training | named
    kept = {knob: value for knob, value in values.items() if knob in varied or not (knob in _NO_RECIPE or "budget" in knob)}
    kept["data.corpus"] = Path(config.data.corpus).name
    return {knob: _word(value) for knob, value in kept.items()}


def _word(value: object) -> str:
    return NONE if value is None else str(whole(value) if isinstance(value, float) else value)


def _differing(recipes: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the recipes without the knobs in which all agree."""
    knobs = dict.fromkeys(knob for recipe in recipes for knob in recipe)
    kept = [knob for knob in knobs if len({recipe.get(knob, NONE) for recipe in recipes}) > 1]
    return [{knob: recipe.get(knob, NONE) for knob in kept} for recipe in recipes]


def _together(recipes: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the knobs in which recipes differ; those that always change together are one."""
    rows = _differing(recipes)
    alike = grouped(rows[0], lambda knob: _numbered(row[knob] for row in rows)).values()
    axes = {", ".join(map(_knob_name, members)): members for members in alike}
    return [{name: ", ".join(row[knob] for knob in members) for name, members in axes.items()} for row in rows]


def _numbered(values: Iterable[str]) -> tuple[int, ...]:
    """Each value as the number of its first occurrence."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(value, len(numbers)) for value in values)


def _knob_name(knob: str) -> str:
    return knob.partition(".")[2].replace("_", " ") if "." in knob else knob
