"""Depth or width at equal size, in each recipe, text, budget and size of several sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from study.base.durable_files import is_there
from study.base.errors import InputError, map_all
from study.base.grouping import grouped
from study.base.quantities import budget_words, compact
from study.base.schema import flatten
from study.config.run_config import RunConfig
from study.counting.architecture import NONE, SHAPE
from study.evidence.cells import CellResult
from study.evidence.comparisons import why_left_out
from study.evidence.evidence import Evidence, gather
from study.evidence.families import Family, of_equal_size
from study.evidence.shape_multiverse import QUESTION, slope_over_depth, trade_depth, why_not_shape
from study.laws.multiverse import Multiverse, Universe
from study.store.sweep_folder import SweepFolder

_FIRST = "the runs of the first sweep at its largest budget and size"

_NO_RECIPE = (
    *SHAPE,
    *("seed", "architecture.positions", "data.validation_sequences", "data.tokenizer.path"),
    *("recipe.learning_rate", "recipe.warmup_tokens", "recipe.warmup_fraction"),
)
"""The knobs that are no choice of recipe: sizes, seeds, rates that are tuned, and how the loss is measured."""


@dataclass(frozen=True)
class _Compared:
    """The shapes of one size, budget and variant of a sweep, as its report compares them."""

    sweep: str
    family: Family
    cells: tuple[CellResult, ...]
    config: RunConfig

    @property
    def size(self) -> float:
        """The median of non-embedding parameters."""
        return median(cell.parameters_non_embedding for cell in self.family.cells)


def explore_recipes(folders: Sequence[Path]) -> Multiverse:
    """Ask every sweep the question of shape, for each of its sizes and budgets: one universe each.

    Cells are those that the report compares, at equal non-embedding parameters. The choices of a universe are its size and
    budget and what differs between the sweeps' recipes and texts; knobs that always change together are one choice. Raises
    InputError with every folder that is no sweep or cannot answer.
    """
    compared = [one for found in map_all(_compared, folders) for one in found]
    recipes = _together([_recipe(one.config) for one in compared])
    sizes = {id(one): compact(group[0].size) for group in of_equal_size(compared, lambda one: one.size) for one in group}
    choices = [
        {"approach": "equal sizes", **recipe, "budget": budget_words(one.family.budget), "size": sizes[id(one)]}
        for one, recipe in zip(compared, recipes, strict=True)
    ]
    if len({tuple(each.values()) for each in choices}) < len(choices):
        choices = [{**each, "sweep": one.sweep} for one, each in zip(compared, choices, strict=True)]
    universes = tuple(_universe(one, each) for one, each in zip(compared, choices, strict=True))
    return Multiverse(QUESTION, universes, first=_FIRST)


def _compared(path: Path) -> list[_Compared]:
    """What a sweep compares, its largest budget and size first."""
    if not is_there(SweepFolder(path).sweep_file):
        raise InputError.at(str(path), "is not a sweep folder: it has no sweep.yaml; give one for each of several sweeps")
    if problems := why_not_shape(path):
        raise InputError.at(str(path), problems[0].message)
    evidence = gather(SweepFolder(path))
    found = [one for family in evidence.families if family.equal_parameters for one in _of_family(evidence, family)]
    return sorted(found, key=lambda one: (-one.config.tokens, -one.size))


def _of_family(evidence: Evidence, family: Family) -> Iterator[_Compared]:
    usable = [cell for cell in family.cells if cell.usable]
    for cells in grouped(usable, lambda cell: cell.validation).values() if trade_depth(family.cells) else ():
        included = tuple(cell for cell in cells if why_left_out(cell, evidence.include_unbracketed) is None)
        yield _Compared(evidence.folder.name, family, included, evidence.folder.run(cells[0].runs[0]).config())


def _universe(one: _Compared, choices: Mapping[str, str]) -> Universe:
    if any(cell.reads_order is False for cell in one.cells):
        return Universe(choices, "an encoder reads no word order", None)
    if not trade_depth(one.cells):
        return Universe(choices, "fewer than two depths have a bracketed rate", None)
    return slope_over_depth([one.cells], "linear", choices)


def _recipe(config: RunConfig) -> dict[str, str]:
    """The knobs of recipe and text, in words."""
    named = {f"recipe.{knob}": run for knob, run in config.recipe.trained_runs.items()}
    values = flatten(config.model_dump(mode="json")) | named
    kept = {knob: value for knob, value in values.items() if knob not in _NO_RECIPE and "budget" not in knob}
    kept["data.corpus"] = Path(config.data.corpus).name
    return {knob: NONE if value is None else str(value) for knob, value in kept.items()}


def _together(recipes: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """The knobs in which recipes differ; those that always change together are one, under all their names."""
    knobs = dict.fromkeys(knob for recipe in recipes for knob in recipe)
    columns = {knob: [recipe.get(knob, NONE) for recipe in recipes] for knob in knobs}
    differing = [knob for knob, column in columns.items() if len({*column}) > 1]
    alike = grouped(differing, lambda knob: _numbered(columns[knob])).values()
    axes = {", ".join(map(_name, members)): [columns[knob] for knob in members] for members in alike}
    return [{name: ", ".join(column[row] for column in of) for name, of in axes.items()} for row in range(len(recipes))]


def _numbered(values: Iterable[str]) -> tuple[int, ...]:
    """Each value as the number of its first occurrence, so that columns of one partition are equal."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(value, len(numbers)) for value in values)


def _name(knob: str) -> str:
    return knob.partition(".")[2].replace("_", " ") if "." in knob else knob
