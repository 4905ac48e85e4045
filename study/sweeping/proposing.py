"""Which runs of a sweep of cells come next; a cell is asked again only when one of its runs has ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count

from study.config import RunConfig
from study.records import RunRecord
from study.sweeping.plan import Cell, key_of


class CellProposer:
    """The runs of a sweep of cells: longest first, so that no slot waits for one long run at the end.

    What it costs to take up a record does not grow with the number of cells or of runs.
    """

    def __init__(self, planned: Sequence[Cell]) -> None:
        self.cells = planned
        self._stale = dict.fromkeys(range(len(planned)))
        self._askers: defaultdict[str, set[int]] = defaultdict(set)
        self._waiting: list[tuple[float, int, str, RunConfig]] = []
        self._given: dict[str, RunConfig] = {}
        self._serial = count()

    @property
    def waiting(self) -> int:
        """How many runs the cells need next beyond those given."""
        return len(self._waiting)

    def wanted(self, records: Mapping[str, RunRecord], running: Collection[str], free: int) -> list[RunConfig]:
        """At most `free` of the runs that any cell needs next, those first that ended without a record."""
        self._ask(records)
        configs = [config for key, config in self._given.items() if key not in running][:free]
        while self._waiting and len(configs) < free:
            *_, key, config = heappop(self._waiting)
            self._given[key] = config
            configs.append(config)
        return configs

    def tell(self, record: RunRecord) -> None:
        """A run has ended: the cells that asked for it may want others now."""
        key = key_of(record.config)
        self._given.pop(key, None)
        self._stale.update(dict.fromkeys(sorted(self._askers.pop(key, ()))))

    def _ask(self, records: Mapping[str, RunRecord]) -> None:
        """Ask the cells whose answer may have changed what they need next."""
        for index in self._stale:
            for config in self.cells[index].wanted(records):
                key = key_of(config)
                if key not in self._askers:
                    cost = config.flops_per_token["train_flops"] * config.tokens
                    heappush(self._waiting, (-cost, next(self._serial), key, config))
                self._askers[key].add(index)
        self._stale.clear()
