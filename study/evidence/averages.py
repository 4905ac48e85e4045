"""Which of two variants, or of two shapes of equal parameters, has the lower loss on average over all places of a sweep."""

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
    "Average over conditions: the mean of the differences of one pair over the families in which it was compared, with equal "
    "weights. Runs of one seed start alike at every budget and may share a trunk, so a seed is one draw in however many "
    "conditions: losses are averaged over conditions first, with one variance over seeds for both sides where they scatter "
    "alike. The average leaves out seeds that any cell of either side lacks. Holm's adjustment is over all averages."
)


@dataclass(frozen=True, kw_only=True)
class Average(Pair):
    """The mean difference of a pair over `places`, the families in which it was compared; see METHOD.

    `least_nats` and `most_nats` are the ends of the families' estimates, at the seeds of the average. `opposed`: some families
    are decided for the first side and some for the second, so that the average hides what it depends on.
    """

    places: tuple[str, ...]
    least_nats: float
    most_nats: float
    opposed: bool

    @property
    def sides(self) -> str:
        """What is subtracted from what, and of variants of several shapes what is equal."""
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
    """The averages of all pairs compared in two families or more, on one validation set and with a seed in common.

    Families without a verdict, since encoders read no word order there, are left out. Sides of equal loss differ significantly
    in 3% to 4% of draws where both scatter alike (two to four seeds); where one scatters three or ten times as widely, in 5% to
    7% with three or four seeds and 6% to 11% with two.
    """
    named = {cell.name: cell for cell in cells}
    compared = (pair for pair in pairs if pair.status != "reads_no_order")
    groups = grouped(compared, lambda pair: (pair.weighs, pair.equal, pair.first, pair.second))
    several = [group for group in groups.values() if len(group) > 1]
    return adjust_by_holm([average for group in several if (average := _average(group, named)) is not None])


def _average(pairs: Sequence[Comparison], cells: Mapping[str, CellResult]) -> Average | None:
    """The mean of pairs that compare the same, None where they have no sequences or no seed in common."""
    if len({cells[pair.first_cell].validation for pair in pairs}) > 1:
        return None
    sides = [cells[pair.first_cell] for pair in pairs], [cells[pair.second_cell] for pair in pairs]
    common, alike = common_seeds(chain(*sides)), np.full(len(pairs), 1 / len(pairs))
    if not common:
        return None
    first, second = (weighted_losses(side, alike, common) for side in sides)
    of_seeds = [[cell.at(common).losses.mean(axis=0) for cell in side] for side in sides]
    estimates = [float((one - other).mean()) for one, other in zip(*of_seeds, strict=True)]
    variances = seed_scatter(cells[pairs[0].first_cell].pool, {"first": first, "second": second}).variances
    known = [variances[side] for side in ("first", "second")] if len(variances) == 2 else None
    return Average(
        weighs=pairs[0].weighs,
        equal=pairs[0].equal,
        first=pairs[0].first,
        second=pairs[0].second,
        places=tuple(pair.family for pair in pairs),
        difference=paired_difference(first, second, known, documents_of(chain(*sides))),
        reads_order=None if any(pair.reads_order is None for pair in pairs) else True,
        least_nats=min(estimates),
        most_nats=max(estimates),
        opposed=len({pair.first_is_lower for pair in pairs if pair.status == "decided"}) > 1,
    )
