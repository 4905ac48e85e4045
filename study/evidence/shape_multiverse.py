"""Depth or width at equal size, under all defensible conventions.

`equal sizes` compares cells of one budget whose size, in the chosen convention, is equal within 5%; `law` fits the loss in that
size, depth and tokens. Both give the nats that doubling the depth adds at equal size: above zero the wider shape has the lower
loss. The first holds budgets equal, the second tokens, which are two questions if budgets are FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from study.base.durable_files import is_there
from study.base.errors import InputError, Problem
from study.base.grouping import grouped
from study.base.quantities import EQUAL_WITHIN
from study.counting.architecture import Architecture
from study.evidence.cells import CellResult, by_variant_and_budget, common_seeds, documents_of, in_words, weighted_losses
from study.evidence.evidence import Evidence, gather
from study.evidence.families import of_equal_size
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
    return [Problem("shape", no_shapes_to_compare(SweepFolder(folder)))]


def no_shapes_to_compare(folder: SweepFolder) -> str:
    """Say that a sweep has no shapes that could answer the question."""
    why = "cannot compare depth and width: no two depths were trained at equal parameters and different width or FFN"
    return why + (f"; --ask {varied[0]} compares variants" if (varied := folder.varied()) else "")


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
            longest = max(used, key=lambda cell: cell.tokens, default=None)
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
