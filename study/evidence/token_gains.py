"""What more tokens buy a shape, and where each doubling buys more than the one before, which no power law does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log2

import numpy as np

from study.base.grouping import grouped
from study.base.quantities import budget_words
from study.base.statistics import CONFIDENCE
from study.base.text import shape_and_variant
from study.evidence.cells import Cell, difference_between, documents_of, measured, variances_over_seeds
from study.evidence.contrasts import Contrast, contrast
from study.evidence.paired import Judged, holm, judged
from study.evidence.seed_scatter import SeedVariances


@dataclass(frozen=True, kw_only=True)
class TokenGain(Judged):
    """One shape at two neighbouring budgets, `shorter` and `longer` as they were given: the longer minus the shorter in loss.

    Seeds are taken as independent, which is cautious where one trunk serves both budgets.
    """

    shape: str
    setting: str
    shorter: str
    longer: str
    fewer_tokens: int
    more_tokens: int

    @property
    def step(self) -> str:
        """Which shape goes from which budget to which, in words."""
        return f"{shape_and_variant(self.shape, self.setting)} from {self.shorter} to {self.longer}"

    @property
    def nats_lowered_per_doubling(self) -> float:
        """Loss lowered by each doubling of the tokens, in nats per masked token."""
        return -self.difference.estimate_nats / log2(self.more_tokens / self.fewer_tokens)


@dataclass(frozen=True)
class Rise:
    """Two neighbouring steps in tokens of one shape: what a doubling buys in the later one minus what it buys in the earlier.

    E + B·D^−beta falls by less with each doubling: where `nats_per_doubling` is above zero beyond chance, no such law holds, if
    each cell has its best learning rate. The interval is for these two steps alone; `p_value_holm` is corrected for all of the
    sweep.
    """

    earlier: TokenGain
    later: TokenGain
    nats_per_doubling: Contrast
    p_value_holm: float | None = None

    @property
    def decided(self) -> bool:
        """Whether a doubling buys more in the later step, beyond chance."""
        return self.nats_per_doubling.estimate > 0 and self.p_value_holm is not None and self.p_value_holm < 1 - CONFIDENCE


def token_gains_of(cells: Sequence[Cell], seeds: SeedVariances) -> tuple[TokenGain, ...]:
    """Every step of a shape to the next larger budget of tokens, all else equal, in the order of the cells."""
    return judged([_gain(fewer, more, seeds) for ladder in _ladders(cells) for fewer, more in pairwise(ladder)])


def rises_of(cells: Sequence[Cell], seeds: SeedVariances) -> tuple[Rise, ...]:
    """Every two neighbouring steps in tokens of a shape, in the order of the cells."""
    found = []
    for ladder in _ladders(cells):
        steps = pairwise([_gain(fewer, more, seeds) for fewer, more in pairwise(ladder)])
        triples = zip(ladder, ladder[1:], ladder[2:], strict=False)
        found += [Rise(*two, _rise(three, seeds)) for two, three in zip(steps, triples, strict=True)]
    adjusted = holm([rise.nats_per_doubling.p_value for rise in found])
    return tuple(replace(rise, p_value_holm=p_value) for rise, p_value in zip(found, adjusted, strict=True))


def _ladders(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """The cells of each shape and setting by their tokens, of equal tokens one."""
    for alike in grouped(measured(cells), lambda cell: (cell.setting, cell.architecture)).values():
        yield [first for _, (first, *_) in sorted(grouped(alike, lambda cell: cell.tokens).items())]


def _gain(fewer: Cell, more: Cell, seeds: SeedVariances) -> TokenGain:
    """A step, whose budgets' seeds scatter apart; without an interval where either has no seed replicates."""
    return TokenGain(
        shape=fewer.architecture.shape_name,
        setting=fewer.setting,
        shorter=budget_words(fewer.budget),
        longer=budget_words(more.budget),
        fewer_tokens=fewer.tokens,
        more_tokens=more.tokens,
        difference=difference_between(more, fewer, seeds),
    )


def _rise(ladder: tuple[Cell, Cell, Cell], seeds: SeedVariances) -> Contrast:
    """By how much more a doubling lowers the loss from the second cell to the third than from the first to the second."""
    few, more, most = (log2(cell.tokens) for cell in ladder)
    earlier, later = 1 / (more - few), 1 / (most - more)
    weights = np.array([-earlier, earlier + later, -later])
    return contrast(weights, [cell.losses for cell in ladder], variances_over_seeds(ladder, seeds), documents_of(ladder))
