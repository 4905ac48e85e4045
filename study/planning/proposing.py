"""The next runs of a sweep of cells, with one trunk for many budgets.

A cell is asked again only when one of its runs has ended. Of runs that differ only in their budget, the longest leaves states
for the others. A branch goes on from a hard link to its trunk's state, so that deleting the trunk's folder does no harm. A
branch without a usable state trains alone and reaches the same numbers.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from study.base.durable_files import sync_folder, write_atomically
from study.base.grouping import grouped
from study.base.machine import garbage_collection_paused
from study.config.run_config import RunConfig
from study.planning.cell import Cell, Tuning, family_of
from study.planning.plan import parents_of
from study.store.ownership import is_held
from study.store.records import RunRecord
from study.store.run_folder import NONE_PLANNED, Orders, PlannedRuns, RunFolder, Trunk, expected_flops
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import checkpoints_in, line_of, step_of

if TYPE_CHECKING:
    from study.planning.goal_design import GoalDesign

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
        """Return at most `free` of the runs that any cell needs next, first those without a record that stopped."""
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
        """Note that a run has ended."""
        self._given.pop(key, None)
        self._stale.update(dict.fromkeys(sorted(self._askers.pop(key, ()))))

    def _ask(self, records: Mapping[str, RunRecord]) -> None:
        """Ask the cells whose needs may have changed, and their followers.

        A search is evaluated once for each record that it waited for.
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
        """Release the runs that no longer wait, in at most a twentieth of the time."""
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
        """Return the keys of this sweep's runs that a run needs."""
        return [self._parents[name] for name in parents_of(config) if name in self._parents] if self._parents else []


def _followers(planned: Sequence[Cell]) -> dict[str, list[int]]:
    followers: dict[str, list[int]] = {}
    for index, cell in enumerate(planned):
        if cell.neighbour is not None:
            followers.setdefault(cell.neighbour.config.key, []).append(index)
    return followers


class Trunks:
    """The budgets of a sweep that share a trunk: which run waits for which, and the state that a run starts from.

    Cells that differ only in their budget are a family. The longest decides first: a shorter run waits while a longer cell may
    still train the same way, and continues from its state. `folder_of` gives a run's folder.
    """

    def __init__(self, planned: Sequence[Cell], folder_of: Callable[[RunConfig], RunFolder]) -> None:
        self._folder_of = folder_of
        self._families = {family[0].family: family for family in families(planned)}
        self._twins: dict[str, tuple[RunConfig, ...]] = {}

    def blocked(self, config: RunConfig, pending: Collection[str], records: Mapping[str, RunRecord]) -> bool:
        """Whether a run should wait for a longer one, given the keys of all wanted or running runs."""
        longer = self._longer(config)
        if not longer or config.branch_step is None or self._state_for(config) is not None:
            return False
        undecided = (cell for cell in self._family_of(config) if cell.config.budget_tokens > config.budget_tokens)
        return any(twin.key in pending for twin in longer) or any(not cell.tuned(records) for cell in undecided)

    def has_longer(self, config: RunConfig) -> bool:
        """Whether the sweep has a longer run of the same way."""
        return bool(self._longer(config))

    def begin(self, config: RunConfig, records: Mapping[str, RunRecord]) -> None:
        """Order a run's states for shorter runs, and give it that of a longer one, before it starts."""
        if not (twins := self._twins_of(config)):
            return
        run = self._folder_of(config)
        leaving = {twin.branch_step for twin in twins if twin.steps < config.steps and twin.key not in records}
        run.write_orders(Orders(branch_steps=tuple(sorted(step for step in leaving if step is not None))))
        if run.attempts() == 0 and (state := self._state_for(config)) is not None:
            adopt(*state, run)

    def ended(self, config: RunConfig, records: Mapping[str, RunRecord]) -> None:
        """Remove the states that were left for an ended run alone."""
        for trunk in self._longer(config):
            others = [twin for twin in self._twins_of(trunk) if twin.branch_step == config.branch_step]
            if all(twin.key in records for twin in others) and config.branch_step is not None:
                self._folder_of(trunk).remove_branch(config.branch_step)

    def tidy(self, folder: SweepFolder) -> None:
        """Remove unused states from the sweep's ended runs."""
        if self._families:
            _remove_states(folder)

    def _state_for(self, config: RunConfig) -> tuple[RunFolder, Path] | None:
        """Return the state that a longer run left where this one's decay begins, and its folder."""
        if config.branch_step is None:
            return None
        for trunk in map(self._folder_of, self._longer(config)):
            if states := checkpoints_in(trunk.branch(config.branch_step)):
                return trunk, states[-1]
        return None

    def _longer(self, config: RunConfig) -> list[RunConfig]:
        return [twin for twin in self._twins_of(config) if twin.steps > config.steps]

    def _family_of(self, config: RunConfig) -> tuple[Cell, ...]:
        if not self._families:
            return ()
        tuned = tuple(next(iter(self._families.values()))[0].spec.tune)
        return self._families.get(family_of(config, tuned), ())

    def _twins_of(self, config: RunConfig) -> tuple[RunConfig, ...]:
        if not self._families:
            return ()
        key = config.key
        if key not in self._twins:
            self._twins[key] = tuple(_twins(config, self._family_of(config)))
        return self._twins[key]


class GoalTrunks:
    """The trunks of a goal's shapes, one a seed, each as long as the longest budget that was chosen.

    A run leaves its state where it and every shorter budget begin to decay, and starts from the latest state that its trunk
    has, so that a longer budget extends the trunk of an ended run. States are kept until the goal is over.
    """

    def __init__(self, design: GoalDesign, folder_of: Callable[[RunConfig], RunFolder]) -> None:
        self.design, self._folder_of = design, folder_of

    def begin(self, config: RunConfig, records: Mapping[str, RunRecord]) -> None:
        """Order the states that a run leaves, and give it the latest that it can go on from."""
        beside, run = self.design.of_one_trunk(config), self._folder_of(config)
        if len(beside) < 2 or config.branch_step is None:
            return
        steps = {one.branch_step for one in beside if one.branch_step is not None and one.branch_step <= config.branch_step}
        run.write_orders(Orders(branch_steps=tuple(sorted(steps))))
        trunks = [self._folder_of(one) for one in beside if one.key in records]
        states = [(step, trunk) for trunk in trunks for step in trunk.branch_steps() if step <= config.branch_step]
        if run.attempts() == 0 and states:
            step, trunk = max(states, key=lambda state: state[0])
            adopt(trunk, checkpoints_in(trunk.branch(step))[-1], run)

    def ended(self, config: RunConfig, records: Mapping[str, RunRecord]) -> None:
        """Keep an ended run's states for longer budgets."""

    def tidy(self, folder: SweepFolder) -> None:
        """Remove the states once the goal is over."""
        _remove_states(folder)


def _remove_states(folder: SweepFolder) -> None:
    """Remove the states of ended runs that no other active sweep shares."""
    others = [sibling for sibling in folder.siblings() if _is_being_trained(sibling)]
    for run_id in (run.run_id for run in folder.runs()):
        home = folder.home(run_id)
        if home.ended and not any(other.run(run_id).is_run for other in others):
            home.remove_branches()


def _is_being_trained(sweep: SweepFolder) -> bool:
    return is_held(sweep.launching) and any(not run.ended for run in sweep.runs())


def families(planned: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    """Return the cells that share a trunk, the longest first; families of one are left out."""
    by_family = grouped((cell for cell in planned if cell.config.branch_step is not None), lambda cell: cell.family)
    several = [members for members in by_family.values() if len(members) > 1]
    return [tuple(sorted(members, key=lambda cell: -cell.config.budget_tokens)) for members in several]


def branching(shared: Iterable[Sequence[Cell]]) -> frozenset[str]:
    """Return the keys of the cells that branch from a trunk."""
    return frozenset(
        cell.config.key
        for longest, *others in shared
        for cell in others
        if cell.config.branch_step is not None and cell.config.steps < longest.config.steps
    )


def adopt(trunk: RunFolder, state: Path, run: RunFolder) -> None:
    """Let a run that never started continue from a trunk's state; the state comes last."""
    step = step_of(state)
    ways = ([row for row in way.metrics() if row["trainer/step"] <= step] for way in (RunFolder(state.parent), trunk))
    write_atomically(run.metrics_file, b"".join(map(line_of, next(filter(None, ways), []))))
    run.write_trunk(Trunk(run_id=trunk.run_id, step=step))
    run.checkpoints.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError, FileNotFoundError):  # linked before, or gone: then the run trains alone
        os.link(state, run.checkpoints / state.name)
        sync_folder(run.checkpoints)


def _twins(config: RunConfig, family: Sequence[Cell]) -> Iterator[RunConfig]:
    for cell in family:
        values = config.to_dict()
        values["recipe"]["budget"] = cell.config.to_dict()["recipe"]["budget"]
        twin = RunConfig.parse(values)
        if twin.steps != config.steps:
            yield twin
