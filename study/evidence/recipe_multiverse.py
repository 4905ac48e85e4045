"""One question in each recipe, text, budget and size of several sweeps: what turns its answer.

Universes are cells that a report compares, and their choices the knobs of recipe and text in which the sweeps differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from study.base.durable_files import is_there
from study.base.errors import InputError, Problem, map_all
from study.base.grouping import grouped
from study.base.quantities import budget_words, compact
from study.base.schema import flatten
from study.config.run_config import RunConfig
from study.counting.architecture import NONE, SHAPE
from study.evidence.cells import CellResult
from study.evidence.comparisons import why_left_out
from study.evidence.evidence import Evidence, gather
from study.evidence.families import Family, of_equal_size
from study.evidence.shape_multiverse import QUESTION, no_shapes_to_compare, slope_over_depth, trade_depth
from study.laws.multiverse import BinaryQuestion, Multiverse, Universe
from study.store.sweep_folder import SweepFolder

_FIRST_RUNS = "the runs of the first sweep at its largest budget and size"

_NO_RECIPE = (
    *SHAPE,
    *("seed", "architecture.positions", "data.validation_sequences", "data.tokenizer.path"),
    *("recipe.learning_rate", "recipe.warmup_tokens", "recipe.warmup_fraction"),
)
"""The knobs that are no choice of recipe: sizes, seeds, rates that are tuned, and how the loss is measured."""


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
    cases = [_Case(one.sweep, _recipe_of(one.config), _shape_universe(one, sizes[id(one)])) for one in shapes]
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


def _recipe_of(config: RunConfig) -> dict[str, str]:
    """Return the knobs of recipe and text, in words."""
    named = {f"recipe.{knob}": run for knob, run in config.recipe.trained_runs.items()}
    values = flatten(config.model_dump(mode="json")) | named
    kept = {knob: value for knob, value in values.items() if knob not in _NO_RECIPE and "budget" not in knob}
    kept["data.corpus"] = Path(config.data.corpus).name
    return {knob: NONE if value is None else str(value) for knob, value in kept.items()}


def _together(recipes: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the knobs in which recipes differ; those that always change together are one."""
    knobs = dict.fromkeys(knob for recipe in recipes for knob in recipe)
    columns = {knob: [recipe.get(knob, NONE) for recipe in recipes] for knob in knobs}
    differing = [knob for knob, column in columns.items() if len({*column}) > 1]
    alike = grouped(differing, lambda knob: _numbered(columns[knob])).values()
    axes = {", ".join(map(_knob_name, members)): [columns[knob] for knob in members] for members in alike}
    return [{name: ", ".join(column[row] for column in of) for name, of in axes.items()} for row in range(len(recipes))]


def _numbered(values: Iterable[str]) -> tuple[int, ...]:
    """Each value as the number of its first occurrence."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(value, len(numbers)) for value in values)


def _knob_name(knob: str) -> str:
    return knob.partition(".")[2].replace("_", " ") if "." in knob else knob
