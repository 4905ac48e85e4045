"""Depth or width at equal size, under all defensible conventions, and in each recipe, text, budget and size of several sweeps.

`equal sizes` compares cells of one budget whose size, in the chosen convention, is equal within 5%; `law` fits the loss in that
size, depth and tokens. Both give the nats that doubling the depth adds at equal size: above zero the wider shape has the lower
loss. The first holds budgets equal, the second tokens, which are two questions if budgets are FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from study.base.durable_files import is_there
from study.base.errors import InputError, Problem, map_all
from study.base.grouping import grouped
from study.base.quantities import EQUAL_WITHIN, budget_words, compact
from study.base.schema import flatten
from study.config.run_config import RunConfig
from study.counting.architecture import NONE, SHAPE, Architecture
from study.evidence.cells import CellResult, by_variant_and_budget, common_seeds, documents_of, in_words, weighted_losses
from study.evidence.comparisons import why_left_out
from study.evidence.evidence import Evidence, gather
from study.evidence.families import Family, of_equal_size
from study.evidence.ledgers import LEDGER_FLOPS, LEDGER_PARAMETERS, table_of, validation_columns
from study.evidence.paired import Contrast, contrast, slope_weights
from study.evidence.seed_scatter import seed_scatter
from study.laws.estimation import Fit, fit
from study.laws.law import SumOfTerms, Term
from study.laws.minimising import Space
from study.laws.multiverse import LOSSES, UNIVERSE_SETTINGS, BinaryQuestion, Multiverse, Universe
from study.laws.observations import Observations
from study.laws.reading import TableQuery, read_columns
from study.laws.tables import RunTable
from study.store.sweep_folder import SweepFolder

QUESTION = BinaryQuestion(
    text="At equal size and budget, which lowers the loss: depth or width?",
    quantity="nats that doubling the depth adds",
    threshold=0.0,
    above="Width",
    below="Depth",
)
HELD_EQUAL = tuple(dict.fromkeys(("parameters_non_embedding", *LEDGER_PARAMETERS, *LEDGER_FLOPS)))
"""Sizes to hold equal; the first is what sweeps hold equal."""

_RATES = ("bracketed only", "all cells")
_SEEDS = ("all seeds", "without the seeds that chose the rate")
_BUDGETS = ("all budgets", "largest budget only")
_SPACES: tuple[Space, ...] = ("linear", "log")
_FLOORS = ("with floor", "without floor")

_FIRST_RUNS = "the runs of the first sweep at its largest budget and size"

_NO_RECIPE = (
    *SHAPE,
    *("seed", "architecture.positions", "data.validation_sequences", "data.tokenizer.path"),
    *("recipe.learning_rate", "recipe.warmup_tokens", "recipe.warmup_fraction"),
)
"""The knobs that are no choice of recipe: sizes, seeds, rates that are tuned, and how the loss is measured."""


def asks_about_shape(folder: Path) -> bool:
    """Whether a folder is a sweep that compares depths at equal parameters."""
    if not is_there(SweepFolder(folder).sweep_file):
        return False
    families = gather(SweepFolder(folder)).families
    return any(family.equal_parameters and trade_depth(family.cells) for family in families)


def why_not_shape(folder: Path) -> list[Problem]:
    """Why a sweep cannot answer the question of shape, if so."""
    if not is_there(SweepFolder(folder).sweep_file) or asks_about_shape(folder):
        return []
    why = "cannot compare depth and width: no two depths were trained at equal parameters and different width or FFN"
    variants = "; its answer compares variants" if SweepFolder(folder).varied() else ""
    return [Problem("shape", f"{why}{variants}")]


def explore_shapes(folder: Path) -> Multiverse:
    """Analyse a sweep in every universe: size held equal, approach, rates, seeds, budgets, law, loss, space, floor.

    Choices that select the same runs add no universe. Raises InputError for a folder that is not a sweep, or without a ledger.
    """
    if not is_there(SweepFolder(folder).sweep_file):
        raise InputError.at(str(folder), "is not a sweep folder, which --ask shape needs; for a table use --ask compute")
    evidence = gather(SweepFolder(folder))
    table = table_of(folder, evidence.ledger)
    tokens = table.frame["tokens"].dropna().nunique() > 1
    budgets = _BUDGETS if tokens else _BUDGETS[:1]
    universes: list[Universe] = []
    for size, (about, cells) in product(HELD_EQUAL, _by_validation(evidence)):
        universes += _compared(cells, {"size held equal": size, **about}, evidence.counted(size), budgets)
    for size in HELD_EQUAL:
        universes += _fitted(table, size, tokens)
    return Multiverse(QUESTION, tuple(universes))


def _by_validation(evidence: Evidence) -> list[tuple[dict[str, str], list[CellResult]]]:
    """Usable cells of each validation set, most cells first."""
    runs = evidence.first_runs
    words = dict(zip(runs.index, in_words(runs, validation_columns(runs)), strict=True))
    sets = grouped((cell for cell in evidence.cells if cell.usable), lambda cell: words[cell.name])
    ordered = sorted(sets.items(), key=lambda item: (-len(item[1]), item[0]))
    return [({"validation": name} if len(sets) > 1 else {}, cells) for name, cells in ordered] or [({}, [])]


def _compared(
    cells: Sequence[CellResult], about: Mapping[str, str], sizes: Mapping[str, float], budgets: Sequence[str]
) -> Iterator[Universe]:
    """Universes that compare cells of equal size; each set of runs counts once."""
    seen: set[tuple[str, ...]] = set()
    for rates, seeds, budget in product(_RATES, _SEEDS, budgets):
        kept = (cell if seeds == _SEEDS[0] else cell.at(_seeds_not_choosing(cell)) for cell in cells)
        used = [cell for cell in kept if _is_comparable(cell, rates)]
        if budget == _BUDGETS[1]:
            longest = max(used, key=lambda cell: cell.budget.amount, default=None)
            used = [cell for cell in used if longest is not None and cell.budget == longest.budget]
        families = list(_depth_families(used, lambda cell: sizes[cell.name]))
        runs = tuple(run for family in families for cell in family for run in cell.runs)
        if runs in seen:
            continue
        seen.add(runs)
        choices = {**about, "approach": "equal sizes", "rates": rates, "seeds": seeds, "budgets": budget}
        yield from (slope_over_depth(families, space, {**choices, "space": space}) for space in _SPACES)


def _seeds_not_choosing(cell: CellResult) -> list[int]:
    """All if only one rate was tried."""
    tried = cell.rates.tried
    chose = {trial.run_id for rate in tried for trial in rate.trials} if len(tried) > 1 else set()
    return [seed for seed, run in zip(cell.seeds, cell.runs, strict=True) if run not in chose]


def slope_over_depth(families: Sequence[Sequence[CellResult]], space: Space, choices: Mapping[str, str]) -> Universe:
    """Return the mean over families of the slope of the loss over log₂ depth.

    A seed is one draw at any budget, so cells of a shape and variant are summed over budgets first.
    """
    if not families:
        return Universe(choices, f"no two comparable depths are within {EQUAL_WITHIN:.0%} of one size", None)
    if (cells := _with_common_seeds([cell for family in families for cell in family])) is None:
        return Universe(choices, "some shape has no seed in common at all its budgets", None)
    parts = [slope_weights(np.log2([cell.architecture.depth for cell in family])) for family in families]
    weights, losses = np.concatenate(parts) / len(families), [cell.losses for cell in cells]
    means = np.array([each.mean() for each in losses])
    factors = weights if space == "linear" else weights * means.mean() / means
    measured = _contrast_of_shapes(cells, factors)
    value = measured.estimate if space == "linear" else float(weights @ np.log(means) * means.mean())
    shift = value - measured.estimate
    interval = None if measured.interval is None else (measured.interval[0] + shift, measured.interval[1] + shift)
    return Universe(choices, "measured", value, interval)


def _with_common_seeds(cells: Sequence[CellResult]) -> list[CellResult] | None:
    """Return the cells at the common seeds of their shape and variant, if all share some."""
    common = {shape: common_seeds(members) for shape, members in grouped(cells, _shape_and_variant).items()}
    return [cell.at(common[_shape_and_variant(cell)]) for cell in cells] if all(common.values()) else None


def _shape_and_variant(cell: CellResult) -> tuple[Architecture, str]:
    return cell.architecture, cell.setting


def _contrast_of_shapes(cells: Sequence[CellResult], factors: NDArray[np.float64]) -> Contrast:
    """Σ fᵢ·mean(lossᵢ) of cells."""
    positions = grouped(range(len(cells)), lambda position: _shape_and_variant(cells[position]))
    shapes: dict[str, NDArray[np.float64]] = {}
    weights: list[float] = []
    for members in positions.values():
        weight = float(np.abs(factors[members]).sum())
        if weight:
            of_shape = [cells[position] for position in members]
            shapes[f"{len(shapes)}"] = weighted_losses(of_shape, factors[members] / weight, common_seeds(of_shape))
            weights.append(weight)
    variances = seed_scatter(cells[0].pool, shapes).variances
    of_shapes = [variances[name] for name in shapes] if len(variances) == len(shapes) else None
    return contrast(np.array(weights), list(shapes.values()), of_shapes, documents_of(cells))


def _is_comparable(cell: CellResult, rates: str) -> bool:
    return cell.measured and cell.reads_order is True and (rates == "all cells" or cell.rates.bracketed)


def _depth_families(cells: Sequence[CellResult], size: Callable[[CellResult], float]) -> Iterator[list[CellResult]]:
    for members in by_variant_and_budget(cells).values():
        yield from filter(trade_depth, of_equal_size(members, size))


def trade_depth(cells: Sequence[CellResult]) -> bool:
    """Whether cells of equal size trade depth for width or FFN."""
    shapes = [cell.architecture for cell in cells]
    return len({shape.depth for shape in shapes}) > 1 and len({(shape.width, shape.ffn) for shape in shapes}) > 1


def _fitted(table: RunTable, size: str, tokens: bool) -> Iterator[Universe]:
    """Universes of a power law in size and depth; each set of rows counts once."""
    seen: set[tuple[str, ...]] = set()
    for rates in _RATES:
        about = {"size held equal": size, "approach": "law", "rates": rates}
        source = TableQuery(table, {"parameters": size}, bracketed_only=rates == "bracketed only")
        try:
            points = read_columns(source, ("parameters", "depth", *(["tokens"] if tokens else [])), "loss")
        except InputError as error:
            yield Universe(about, f"refused: {error.problems[0]}", None)
            continue
        if points.labels not in seen:
            seen.add(points.labels)
            yield from _laws(points, about, tokens)


def _laws(points: Observations, about: Mapping[str, str], tokens: bool) -> Iterator[Universe]:
    for floor, loss, space in product(_FLOORS, LOSSES, _SPACES):
        choices = {**about, "space": space, "floor": floor, "loss": loss}
        settings = replace(UNIVERSE_SETTINGS, huber_delta=LOSSES[loss], space=space)
        try:
            fitted = fit(_law(floor == "with floor", tokens), points, settings)
        except InputError as error:
            yield Universe(choices, f"refused: {error.problems[0]}", None)
            continue
        value, interval = _doubling(fitted)
        converged = fitted.status == "converged"
        yield Universe(choices, fitted.status, value if converged else None, interval if converged else None)


def _law(floor: bool, tokens: bool) -> SumOfTerms:
    """A·N^−alpha·L^−delta·D^−beta, perhaps with a floor E or without D; signed exponents.

    One product: two budgets are too few for a separate term of tokens.
    """
    falls = (("alpha", "parameters"), ("delta", "depth"), *((("beta", "tokens"),) if tokens else ()))
    terms = (*((Term("E"),) if floor else ()), Term("A", falls))
    formula = "E + " * floor + "A·N^−alpha·L^−delta" + "·D^−beta" * tokens
    conventions = "N: the size held equal. L: depth (layers). D: training tokens."
    return SumOfTerms("size and depth", formula, conventions, "ours", "loss", terms, signed=True)


def _doubling(fit: Fit) -> tuple[float, tuple[float, float] | None]:
    """Nats that doubling the depth adds at the middle of all sizes, with its interval."""
    middle = {name: np.full(2, np.exp(np.log(values).mean())) for name, values in fit.observations.columns.items()}
    middle["depth"] = middle["depth"] * np.sqrt([2.0, 0.5])
    deeper, shallower = fit.predict(middle)
    resampled = fit.predictions(middle)
    low, high = fit.interval(resampled[:, 0] - resampled[:, 1])
    return float(deeper - shallower), (float(low), float(high)) if len(resampled) else None


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


def explore_recipes(folders: Sequence[Path]) -> Multiverse:
    """Ask every sweep the question of shape, for each of its sizes and budgets: one universe each.

    Cells are those that the report compares, at equal parameters by its sweep's count. The choices of a universe are its size
    and budget and what differs between the sweeps' recipes and texts; knobs that always change together are one choice. Raises
    InputError with every folder that is no sweep or cannot answer.
    """
    compared = [one for of_sweep in map_all(_compared_in, folders) for one in of_sweep]
    recipes = _together([_recipe_of(one.config) for one in compared])
    sizes = {id(one): compact(group[0].size) for group in of_equal_size(compared, lambda one: one.size) for one in group}
    choices = [
        {"approach": "equal sizes", **recipe, "budget": budget_words(one.family.budget), "size": sizes[id(one)]}
        for one, recipe in zip(compared, recipes, strict=True)
    ]
    if len({tuple(each.values()) for each in choices}) < len(choices):
        choices = [{**each, "sweep": one.sweep} for one, each in zip(compared, choices, strict=True)]
    universes = tuple(_recipe_universe(one, each) for one, each in zip(compared, choices, strict=True))
    return Multiverse(QUESTION, universes, first=_FIRST_RUNS)


def _compared_in(path: Path) -> list[_ComparedShapes]:
    """Return what a sweep compares, largest budget and size first."""
    if not is_there(SweepFolder(path).sweep_file):
        raise InputError.at(str(path), "is not a sweep folder: it has no sweep.yaml; give one for each of several sweeps")
    if problems := why_not_shape(path):
        raise InputError.at(str(path), problems[0].message)
    evidence = gather(SweepFolder(path))
    shapes = [one for family in evidence.families if family.equal_parameters for one in _of_family(evidence, family)]
    return sorted(shapes, key=lambda one: (-one.config.tokens, -one.size))


def _of_family(evidence: Evidence, family: Family) -> Iterator[_ComparedShapes]:
    usable = [cell for cell in family.cells if cell.usable]
    for cells in grouped(usable, lambda cell: cell.validation).values() if trade_depth(family.cells) else ():
        included = tuple(cell for cell in cells if why_left_out(cell, evidence.include_unbracketed) is None)
        yield _ComparedShapes(evidence.folder.name, family, included, evidence.folder.run(cells[0].runs[0]).config())


def _recipe_universe(one: _ComparedShapes, choices: Mapping[str, str]) -> Universe:
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
