"""The mean loss difference of two variants, or of two shapes of equal parameters, over all conditions of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from study.base.grouping import grouped
from study.evidence.cells import CellResult, common_seeds, documents_of, weighted_losses
from study.evidence.comparisons import Comparison, Pair
from study.evidence.paired import adjust_by_holm, paired_difference
from study.evidence.seed_scatter import seed_scatter

METHOD = (
    "Average over conditions: the equally weighted mean of one pair's differences over the families that compare it. Runs of "
    "one seed have the same initial weights at every budget and may share a trunk, so a seed counts as one draw over all "
    "conditions: losses are averaged over conditions first, with one variance over seeds for both sides if they scatter "
    "equally. The average leaves out seeds that any cell of either side lacks. Holm's adjustment covers all averages."
)


@dataclass(frozen=True, kw_only=True)
class Average(Pair):
    """The mean difference of a pair over `places`, the families that compare it; see METHOD.

    `least_nats` and `most_nats` are the extreme family estimates, at the seeds of the average. `opposed`: families decide for
    either side, so the average hides an interaction.
    """

    places: tuple[str, ...]
    least_nats: float
    most_nats: float
    opposed: bool

    @property
    def sides(self) -> str:
        """The subtraction in words; for variants of several shapes also what is equal."""
        return f"{super().sides}{f', at equal {self.equal}' if self.equal.startswith('depth') else ''}"

    @property
    def reversed(self) -> Average:
        """The second minus the first."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            difference=self.difference.reversed,
            least_nats=-self.most_nats,
            most_nats=-self.least_nats,
        )


def averages_of(pairs: Iterable[Comparison], cells: Iterable[CellResult]) -> tuple[Average, ...]:
    """Average every pair that two or more families compare on one validation set with a common seed.

    Families that read no word order are left out. False positives at equal loss: 3% to 4% if both sides scatter equally (two to
    four seeds); if one scatters 3 or 10 times as widely, 5% to 7% with three or four seeds, 6% to 11% with two.
    """
    named = {cell.name: cell for cell in cells}
    compared = (pair for pair in pairs if pair.status != "reads_no_order")
    groups = grouped(compared, lambda pair: (pair.weighs, pair.equal, pair.first, pair.second))
    several = [group for group in groups.values() if len(group) > 1]
    return adjust_by_holm([average for group in several if (average := _average(group, named)) is not None])


def _average(pairs: Sequence[Comparison], cells: Mapping[str, CellResult]) -> Average | None:
    """The mean over one pair's families; None without a common seed or a common validation set."""
    if len({cells[pair.first_cell].validation for pair in pairs}) > 1:
        return None
    sides = [cells[pair.first_cell] for pair in pairs], [cells[pair.second_cell] for pair in pairs]
    common, equal_weights = common_seeds(chain(*sides)), np.full(len(pairs), 1 / len(pairs))
    if not common:
        return None
    first, second = (weighted_losses(side, equal_weights, common) for side in sides)
    of_seeds = [[cell.at(common).losses.mean(axis=0) for cell in side] for side in sides]
    estimates = [float((one - other).mean()) for one, other in zip(*of_seeds, strict=True)]
    variances = seed_scatter(cells[pairs[0].first_cell].pool, {"first": first, "second": second}).variances
    of_sides = [variances[side] for side in ("first", "second")] if len(variances) == 2 else None
    return Average(
        weighs=pairs[0].weighs,
        equal=pairs[0].equal,
        first=pairs[0].first,
        second=pairs[0].second,
        places=tuple(pair.family for pair in pairs),
        difference=paired_difference(first, second, of_sides, documents_of(chain(*sides)), sides[0][0].per_byte),
        reads_order=None if any(pair.reads_order is None for pair in pairs) else True,
        least_nats=min(estimates),
        most_nats=max(estimates),
        opposed=len({pair.first_is_lower for pair in pairs if pair.status == "decided"}) > 1,
    )
