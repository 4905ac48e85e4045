"""One trunk for many budgets: of runs that differ only in their budget, the longest leaves states for the others.

A branch goes on from a hard link to its trunk's state, so that deleting the trunk's folder does no harm. A branch without a
usable state trains alone and reaches the same numbers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from study.base.durable_files import sync_folder, write_atomically
from study.base.grouping import grouped
from study.config.run_config import RunConfig
from study.planning.cell import Cell, family_of
from study.store.locks import is_held
from study.store.metric_rows import line_of
from study.store.records import RunRecord
from study.store.run_folder import Orders, RunFolder, Trunk
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import checkpoints_in, step_of

if TYPE_CHECKING:
    from study.planning.goal_design import GoalDesign


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
        """Whether a run should wait for a longer one; `pending` are the keys of all wanted or running runs."""
        longer = self._longer(config)
        if not longer or config.branch_step is None or self._state_for(config) is not None:
            return False
        undecided = (cell for cell in self._family_of(config) if cell.config.budget_tokens > config.budget_tokens)
        return any(twin.key in pending for twin in longer) or any(not cell.tuned(records) for cell in undecided)

    def has_longer(self, config: RunConfig) -> bool:
        """Whether the sweep has a longer run of the same way."""
        return bool(self._longer(config))

    def begin(self, config: RunConfig, records: Mapping[str, RunRecord]) -> None:
        """Before a run starts: order the states for shorter runs, and give it the state of a longer one."""
        if not (twins := self._twins_of(config)):
            return
        run = self._folder_of(config)
        leaving = {twin.branch_step for twin in twins if twin.steps < config.steps and twin.key not in records}
        run.write_orders(Orders(branch_steps=tuple(sorted(step for step in leaving if step is not None))))
        if run.attempts() == 0 and (found := self._state_for(config)) is not None:
            adopt(*found, run)

    def ended(self, config: RunConfig, records: Mapping[str, RunRecord]) -> None:
        """After a run has its record: remove the states that were left for it alone."""
        for trunk in self._longer(config):
            others = [twin for twin in self._twins_of(trunk) if twin.branch_step == config.branch_step]
            if all(twin.key in records for twin in others) and config.branch_step is not None:
                self._folder_of(trunk).remove_branch(config.branch_step)

    def tidy(self, folder: SweepFolder) -> None:
        """At the end: remove unused states from the sweep's ended runs."""
        if self._families:
            _remove_states(folder)

    def _state_for(self, config: RunConfig) -> tuple[RunFolder, Path] | None:
        """The state that a longer run left where this one starts to decay, and its folder."""
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
        """Before a run starts: order the states that it leaves, and give it the latest that it can go on from."""
        kin, run = self.design.kin(config), self._folder_of(config)
        if len(kin) < 2 or config.branch_step is None:
            return
        steps = {one.branch_step for one in kin if one.branch_step is not None and one.branch_step <= config.branch_step}
        run.write_orders(Orders(branch_steps=tuple(sorted(steps))))
        trunks = [self._folder_of(one) for one in kin if one.key in records]
        states = [(step, trunk) for trunk in trunks for step in trunk.branch_steps() if step <= config.branch_step]
        if run.attempts() == 0 and states:
            step, trunk = max(states, key=lambda state: state[0])
            adopt(trunk, checkpoints_in(trunk.branch(step))[-1], run)

    def ended(self, config: RunConfig, records: Mapping[str, RunRecord]) -> None:
        """After a run has its record: its states stay for longer budgets."""

    def tidy(self, folder: SweepFolder) -> None:
        """Once the goal is over: remove the states from its runs."""
        _remove_states(folder)


def _remove_states(folder: SweepFolder) -> None:
    """Remove the states that ended runs left, but of those that another active sweep shares."""
    others = [sibling for sibling in folder.siblings() if _is_being_trained(sibling)]
    for run_id in (run.run_id for run in folder.runs()):
        home = folder.home(run_id)
        if home.ended and not any(other.run(run_id).is_run for other in others):
            home.remove_branches()


def _is_being_trained(sweep: SweepFolder) -> bool:
    return is_held(sweep.launching) and any(not run.ended for run in sweep.runs())


def families(planned: Sequence[Cell]) -> list[tuple[Cell, ...]]:
    """The cells that share a trunk and differ in their budget, the longest first; families of one are left out."""
    found = grouped((cell for cell in planned if cell.config.branch_step is not None), lambda cell: cell.family)
    several = [members for members in found.values() if len(members) > 1]
    return [tuple(sorted(members, key=lambda cell: -cell.config.budget_tokens)) for members in several]


def branching(shared: Iterable[Sequence[Cell]]) -> frozenset[str]:
    """The keys of the cells that branch from a trunk: all but the longest of each family."""
    return frozenset(
        cell.config.key
        for longest, *others in shared
        for cell in others
        if cell.config.branch_step is not None and cell.config.steps < longest.config.steps
    )


def adopt(trunk: RunFolder, state: Path, run: RunFolder) -> None:
    """Let a run that never started continue from a trunk's state: its rows so far, the trunk's name, and the state last."""
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
