"""The next runs of a sweep of cells; a cell is asked again only when one of its runs has ended."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count

from study.base.machine import garbage_collection_paused
from study.config.run_config import RunConfig
from study.planning.cell import Cell, Tuning
from study.planning.plan import parents_of
from study.planning.trunks import Trunks
from study.store.records import RunRecord
from study.store.run_folder import NONE_PLANNED, PlannedRuns, expected_flops

LOOK_SECONDS = 0.5
"""How often the states that trunks leave are looked for."""


class CellProposer:
    """Proposes the runs of cells, the longest first, so that no slot waits for one long run at the end.

    The cost of a record does not grow with the number of cells or runs. A run whose beginning a longer run may train waits
    until it can branch from that run, and then comes first. A run that starts from one of `parents`, by id, or learns from it
    waits for its record.
    """

    exhausted: str | None = None
    """None: the runs of cells are known from the start."""

    def __init__(self, planned: Sequence[Cell], trunks: Trunks | None = None, parents: PlannedRuns = NONE_PLANNED) -> None:
        self.cells = planned
        self.trunks = trunks
        self._parents = {name: run.key for name, run in parents.items()}
        self._stale = dict.fromkeys(index for index, cell in enumerate(planned) if cell.neighbour is None)
        self._over: dict[str, Tuning] = {}
        self._followers = _followers(planned)
        self._askers: defaultdict[str, set[int]] = defaultdict(set)
        self._waiting: list[tuple[float, int, str, RunConfig]] = []
        self._held: dict[str, RunConfig] = {}
        self._look_again = 0.0
        self._given: dict[str, RunConfig] = {}
        self._serial = count()

    @property
    def waiting(self) -> int:
        """How many runs the cells need beyond those given."""
        return len(self._waiting) + len(self._held)

    def wanted(self, records: Mapping[str, RunRecord], running: Collection[str], free: int) -> list[RunConfig]:
        """At most `free` of the runs that any cell needs next, first those that stopped without a record."""
        with garbage_collection_paused():  # the first time all runs are made that any cell may want
            self._ask(records)
        if self._held and (not running or time.monotonic() > self._look_again):
            self._release(records)
        configs = [config for key, config in self._given.items() if key not in running][:free]
        while self._waiting and len(configs) < free:
            *_, key, config = heappop(self._waiting)
            self._given[key] = config
            configs.append(config)
        return configs

    def tell(self, key: str, record: RunRecord) -> None:
        """Note that a run has ended; the cells that wanted it are asked again."""
        self._given.pop(key, None)
        self._stale.update(dict.fromkeys(sorted(self._askers.pop(key, ()))))

    def _ask(self, records: Mapping[str, RunRecord]) -> None:
        """Ask the cells whose needs may have changed, and the followers of those that found their best.

        A search is evaluated once for each record that it waited for, however many cells precede it.
        """
        while self._stale:
            index = next(iter(self._stale))
            del self._stale[index]
            cell = self.cells[index]
            tuning = cell.tuning(records, cell.neighbour and self._over[cell.neighbour.config.key])
            for config in cell.wanted(records, tuning):
                key = config.key
                if key not in self._askers:
                    self._line_up(key, config)
                self._askers[key].add(index)
            if tuning.over and (name := cell.config.key) not in self._over:
                self._over[name] = tuning
                self._stale.update(dict.fromkeys(self._followers.get(name, ())))

    def _line_up(self, key: str, config: RunConfig) -> None:
        if self._parents_of(config) or (self.trunks is not None and self.trunks.has_longer(config)):
            self._held[key] = config
        else:
            first = math.inf if key in self._parents.values() else expected_flops(config, config.steps)
            heappush(self._waiting, (-first, next(self._serial), key, config))

    def _release(self, records: Mapping[str, RunRecord]) -> None:
        """Release the runs that no longer wait for a trunk or another run, in at most a twentieth of the time."""
        started = time.monotonic()
        for key, config in [item for item in self._held.items() if not self._is_blocked(item[1], records)]:
            del self._held[key]
            heappush(self._waiting, (-math.inf, next(self._serial), key, config))
        self._look_again = time.monotonic() + max(LOOK_SECONDS, 20 * (time.monotonic() - started))

    def _is_blocked(self, config: RunConfig, records: Mapping[str, RunRecord]) -> bool:
        if any(key not in records for key in self._parents_of(config)):
            return True
        return self.trunks is not None and self.trunks.blocked(config, self._askers.keys(), records)

    def _parents_of(self, config: RunConfig) -> list[str]:
        """The keys of the runs of this sweep that a run starts from or learns from."""
        return [self._parents[name] for name in parents_of(config) if name in self._parents] if self._parents else []


def _followers(planned: Sequence[Cell]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index, cell in enumerate(planned):
        if cell.neighbour is not None:
            found.setdefault(cell.neighbour.config.key, []).append(index)
    return found
