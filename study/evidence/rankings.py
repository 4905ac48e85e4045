"""What a larger size buys, and the fronts of loss against parameters and FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from math import inf

from study.base.grouping import grouped
from study.base.quantities import budget_words
from study.base.text import shape_and_variant
from study.evidence.cells import Cell, both_read, difference_between, measured
from study.evidence.paired import Judged, judged
from study.evidence.seed_scatter import SeedVariances

_HELD: dict[str, Callable[[Cell], tuple[float, ...]]] = {
    "depth": lambda cell: (cell.architecture.width, cell.architecture.heads, cell.architecture.ffn),
    "width": lambda cell: (cell.architecture.depth, cell.architecture.ffn / cell.architecture.width),
    "ffn": lambda cell: (cell.architecture.depth, cell.architecture.width, cell.architecture.heads),
}
"""What two cells share that differ in one size only; the FFN keeps its ratio to the width, and of heads see gains_of."""


@dataclass(frozen=True, kw_only=True)
class Gain(Judged):
    """Two neighbouring cells that differ in one size: the larger minus the smaller in loss and in `parameters_encoder`."""

    axis: str
    smaller: str
    larger: str
    smaller_cell: str
    larger_cell: str
    budget: str
    setting: str
    parameters_added: int

    @property
    def step(self) -> str:
        """What is made larger, from what to what, in words."""
        return f"{self.axis} from {self.smaller} to {shape_and_variant(self.larger, self.setting)} at {self.budget}"

    @property
    def nats_lowered_per_million(self) -> float:
        """Loss lowered for each million parameters added to the encoder, in nats per masked token."""
        return -self.difference.estimate_nats / (self.parameters_added / 1e6)


def gains_of(cells: Sequence[Cell], seeds: SeedVariances) -> tuple[Gain, ...]:
    """Every step to the next larger depth, width or FFN, all else equal, ranked by loss lowered per added parameter.

    With the width the FFN grows in proportion, and the heads follow it as the shapes have them; where a width was tried with
    several numbers of heads, they are a size of their own, and steps in width are between equal heads. A step that adds no
    parameters, as depth does where layers are shared, buys nothing that can be ranked so.
    """
    told = measured(cells)
    gains = [_gain(axis, *step, seeds) for axis in _HELD for step in _steps(axis, told)]
    gains = [gain for gain in gains if gain.parameters_added > 0]
    return judged(sorted(gains, key=lambda gain: -gain.nats_lowered_per_million))


def front_of(cells: Sequence[Cell], size: Callable[[Cell], float] = lambda cell: cell.parameters) -> tuple[Cell, ...]:
    """The cells that no other of the same budget and validation set beats: as small, by default in `parameters`, of lower loss.

    The budgets of fewer tokens come first; along one budget and validation set the sizes rise and the loss falls.
    """
    usable = sorted((cell for cell in cells if cell.usable), key=lambda cell: cell.tokens)
    groups = grouped(usable, lambda cell: (cell.budget, cell.validation))
    return tuple(chain.from_iterable(_falling(alike, size) for alike in groups.values()))


def flops_fronts_of(cells: Sequence[Cell]) -> tuple[tuple[Cell, ...], ...]:
    """Of each shape, of one setting but for the teacher, the cells that no other beats: for as few `train_flops` lower loss.

    Only where teachers make equal tokens cost other FLOPs; ordered by FLOPs.
    """

    def but_for_the_teacher(cell: Cell) -> tuple[object, ...]:
        return cell.architecture, cell.validation, cell.setting_but_for("recipe.teacher")

    return tuple(
        tuple(_falling(alike, lambda cell: cell.train_flops))
        for alike in grouped((cell for cell in cells if cell.usable), but_for_the_teacher).values()
        if len({cell.tokens for cell in alike}) < len({(cell.tokens, cell.train_flops) for cell in alike})
    )


def _falling(cells: Sequence[Cell], cost: Callable[[Cell], float]) -> Iterator[Cell]:
    """In the order of their costs the cells with a lower loss than all before."""
    lowest = inf
    for cell in sorted(cells, key=lambda cell: (cost(cell), cell.losses.mean())):
        if (loss := cell.losses.mean()) < lowest:
            lowest = loss
            yield cell


def _steps(axis: str, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Neighbours along one size among the cells that share the rest."""
    ladders = grouped(cells, lambda cell: (cell.setting, cell.budget, _HELD[axis](cell)))
    for ladder in [part for whole in ladders.values() for part in _by_heads(axis, whole)]:
        ladder.sort(key=lambda cell: (_size(axis, cell), cell.name))
        yield from ((one, two) for one, two in pairwise(ladder) if _size(axis, one) < _size(axis, two))


def _by_heads(axis: str, ladder: list[Cell]) -> list[list[Cell]]:
    """A ladder as it is where each size has one number of heads, else a ladder for each number."""
    rungs = {(_size(axis, cell), cell.architecture.heads) for cell in ladder}
    if len(rungs) == len({size for size, _ in rungs}):
        return [ladder]
    numbers = sorted({heads for _, heads in rungs})
    return [[cell for cell in ladder if cell.architecture.heads == heads] for heads in numbers]


def _size(axis: str, cell: Cell) -> int:
    size: int = getattr(cell.architecture, axis)
    return size


def _gain(axis: str, smaller: Cell, larger: Cell, seeds: SeedVariances) -> Gain:
    return Gain(
        axis=axis,
        smaller=smaller.architecture.shape_name,
        larger=larger.architecture.shape_name,
        smaller_cell=smaller.name,
        larger_cell=larger.name,
        budget=budget_words(smaller.budget),
        setting=smaller.setting,
        parameters_added=larger.parameters_encoder - smaller.parameters_encoder,
        difference=difference_between(larger, smaller, seeds),
        reads_order=both_read(larger, smaller),
    )
