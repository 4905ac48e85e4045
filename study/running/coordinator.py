"""The one process that owns a sweep: it asks what to run next, submits it, and files what became of it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import yaml

from study.base import garbage
from study.base.durable_files import is_there, patiently, write_atomically
from study.base.errors import GOES_ON, PREEMPTED_EXIT, InputError
from study.config.run_config import RunConfig
from study.config.sweep import CellSweep, SearchSweep
from study.executing.executor import Executor
from study.planning.plan import Plan
from study.planning.proposing import CellProposer
from study.planning.trunks import Trunks
from study.running.deaths import Deaths, GivenUp
from study.running.sharing import SharedRuns
from study.running.shutdown import save_and_stop, see, sigterm_interrupts
from study.store.metric_rows import newest_values
from study.store.named_records import teacher_architecture
from study.store.records import RunRecord, cell_of, counts_of, timestamp
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from study.planning.search_pruning import Pruning

LOOK_SECONDS = 1.0
"""How often it is asked whether others still train the runs that this sweep wants too."""


class Proposer(Protocol):
    """What a sweep wants to run next, given the records there are."""

    @property
    def waiting(self) -> int:
        """How many runs it already knows that it will want beyond those it has given."""

    def wanted(self, records: Mapping[str, RunRecord], running: Collection[str], free: int) -> list[RunConfig]:
        """At most `free` runs to start now, by their key neither ended nor running, those to start first first."""

    def tell(self, key: str, record: RunRecord) -> None:
        """A run has ended; by the key of what was asked for, whatever its record says."""


@dataclass
class Progress:
    """What a coordinator has done and is doing, for whoever shows it."""

    ended: dict[str, RunRecord] = field(default_factory=dict)
    running: dict[str, RunConfig] = field(default_factory=dict)
    held: dict[str, tuple[RunConfig, str]] = field(default_factory=dict)
    """Runs that other processes train, and who."""
    waiting: int = 0


class Coordinator:
    """Drives one sweep to its end; `progress` can be read at any time."""

    def __init__(self, plan: Plan, values: dict[str, Any], folder: SweepFolder, data_fingerprint: str) -> None:
        self.spec, self.folder, self.data_fingerprint = plan.spec, folder, data_fingerprint
        self.progress = Progress()
        self._deaths = Deaths()
        self._looked = -math.inf
        folder.path.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        write_atomically(folder.sweep_file, text.encode())
        self._cells: set[str] = set()
        self._name_cells(cell.config for cell in plan.cells)
        self._shared = SharedRuns(folder)
        with garbage.paused():  # each collection would walk all records read so far, and none of them is garbage
            begun = self._load(plan.holds)
        self.trunks = Trunks(plan.cells, self._home)
        self.pruning: Pruning | None = None
        self.proposer: Proposer
        match plan.spec:
            case CellSweep():
                self.proposer = CellProposer(plan.cells, self.trunks)
            case SearchSweep() as spec:
                self._name_cells([*begun, *(one.config for one in self.progress.ended.values())])
                self.proposer = self._search(spec, begun)

    def _load(self, belongs: Callable[[RunConfig], bool]) -> list[RunConfig]:
        """Read the records of the sweep's runs, and return those that were begun but have none."""
        begun = []
        for run in self.folder.runs():
            record = run.record()
            config = run.config() if record is None else record.config
            if config.fingerprint(self.data_fingerprint) != run.run_id or not belongs(config):
                continue
            if record is not None and record.state == "PRUNED" and isinstance(self.spec, CellSweep):
                run.put_record_aside({"reason": "a cell has use for whole runs only"})
                record = None
            if record is None:
                begun.append(config)
            else:
                self.progress.ended[config.key] = record
        return begun

    def _name_cells(self, configs: Iterable[RunConfig]) -> None:
        """Have the cells of these runs among those of the sweep: all at once where it has cells, of a search as it asks."""
        names = {cell_of(config, self.spec.tuned, self.data_fingerprint) for config in configs}
        if not names <= self._cells or not self._cells:
            self._cells |= names
            text = json.dumps(sorted(self._cells), indent=1).encode()
            patiently(lambda: write_atomically(self.folder.cells_file, text))

    def _search(self, spec: SearchSweep, begun: list[RunConfig]) -> Proposer:
        from study.planning.search import OptunaSearch
        from study.planning.search_pruning import Pruning, checked

        search = OptunaSearch(spec)
        if (prune := spec.search.prune) is None:
            search.restore(self.progress.ended.values(), begun)
            return search
        self.pruning = Pruning(search, prune, self._home)
        search.restore(self.progress.ended.values(), begun, lambda config: checked(self._run_folder(config), config, prune))
        return search

    def run(self, executor: Executor, refresh: Callable[[Progress], None], refresh_seconds: float = 0.5) -> None:
        """Run all that the sweep wants; on Ctrl-C, SIGTERM or `study stop` let the runs save, and raise KeyboardInterrupt."""
        futures: dict[Future[int], RunConfig] = {}
        ended: SimpleQueue[Future[int]] = SimpleQueue()
        shown = -math.inf
        with sigterm_interrupts():
            try:
                while True:
                    see(self.folder.path, self.folder.sweep_file)
                    self._submit(executor, futures, ended)
                    over = not futures and not self.progress.held
                    if over or time.monotonic() - shown > refresh_seconds:
                        if self.pruning is not None:
                            self.pruning.look(self.progress.running)
                        refresh(self.progress)
                        shown = time.monotonic()
                    if over:
                        self.trunks.tidy(self.folder)
                        return
                    for future in _taken(ended, refresh_seconds):
                        self._ended(futures.pop(future), future.result())
                    if is_there(self.folder.launching.stop_file):
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                self._stop(executor, futures)
                raise KeyboardInterrupt(GOES_ON) from None
            except InputError:
                self._stop(executor, futures)
                raise
            except OSError as error:
                self._stop(executor, futures)
                message = f"the sweep had to stop: {error}; {GOES_ON}"
                raise InputError.at(str(self.folder.path), message) from error

    def _stop(self, executor: Executor, futures: dict[Future[int], RunConfig]) -> None:
        """Let the runs save, for a while, and take up what became of them."""
        save_and_stop(executor, futures)
        if is_there(self.folder.sweep_file):
            for config in futures.values():
                self._ended(config, PREEMPTED_EXIT)

    def _submit(self, executor: Executor, futures: dict[Future[int], RunConfig], ended: SimpleQueue[Future[int]]) -> None:
        """Start what is wanted on what is free; what others have ended is taken over, what they train is waited for."""
        progress = self.progress
        self._look_at_held()
        while free := executor.free:
            wanted = self.proposer.wanted(progress.ended, {**progress.running, **progress.held}, free)
            if not wanted:
                break
            if isinstance(self.spec, SearchSweep):
                self._name_cells(wanted)
            for config in wanted:
                key, run = config.key, self._run_folder(config)
                patiently(lambda run=run, config=config: run.write_config(config))  # type: ignore[misc]
                if (record := self._shared.record(run.run_id)) is not None:
                    self._take(key, record)
                elif (who := self._shared.holder(run.run_id)) is not None:
                    progress.held[key] = (config, who)
                else:
                    self.trunks.begin(config, progress.ended)
                    if self.pruning is not None:
                        self.pruning.begin(config)
                    progress.running[key] = config
                    future = executor.submit(config, self._shared.home(run.run_id).path)
                    futures[future] = config
                    future.add_done_callback(ended.put)
        progress.waiting = self.proposer.waiting

    def _look_at_held(self) -> None:
        """Let go of the runs that others have ended or stopped training."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        for key, (config, _) in list(self.progress.held.items()):
            run_id = self._run_folder(config).run_id
            if (record := self._shared.record(run_id)) is not None:
                self._take(key, record)
            if record is not None or self._shared.holder(run_id) is None:
                del self.progress.held[key]

    def _take(self, key: str, record: RunRecord) -> None:
        self.progress.ended[key] = record
        self.proposer.tell(key, record)
        self.trunks.ended(record.config, self.progress.ended)

    def _ended(self, config: RunConfig, exit_status: int) -> None:
        """File what became of a run; one whose process died without a record is tried again, unless it keeps dying."""
        key, home = config.key, self._home(config)
        del self.progress.running[key]
        if not home.ended and exit_status != PREEMPTED_EXIT:
            given_up = self._deaths.count(home, exit_status)
            if given_up is not None:
                lost = self._lost(config, home, given_up)
                patiently(lambda: home.file_record(lost))
        if (record := self._shared.record(home.run_id)) is not None:
            self._take(key, record)

    def _lost(self, config: RunConfig, run: RunFolder, given_up: GivenUp) -> RunRecord:
        """The record of a run whose process could never file one."""
        now = timestamp()
        steps = int(newest_values(run.newest_rows()).get("trainer/step", 0))
        return RunRecord(
            run_id=run.run_id,
            sweep=self.spec.name,
            state=given_up.state,
            reason=given_up.reason,
            config=config,
            data_fingerprint=self.data_fingerprint,
            steps=steps,
            tokens=steps * config.recipe.batch_tokens,
            attempts=run.attempts(),
            started_at=now,
            finished_at=now,
            **counts_of(config, steps, teacher_architecture(config))
            | run.spent(steps * config.recipe.batch_tokens, config.recipe.batch_tokens),
        )

    def _home(self, config: RunConfig) -> RunFolder:
        """Where a run is trained, which another sweep may have begun."""
        return self._shared.home(self._run_folder(config).run_id)

    def _run_folder(self, config: RunConfig) -> RunFolder:
        return self.folder.run(config.fingerprint(self.data_fingerprint))


def _taken(ended: SimpleQueue[Future[int]], seconds: float) -> Iterator[Future[int]]:
    """The futures that are done, once one is or the seconds are over."""
    with suppress(Empty):
        yield ended.get(timeout=seconds)
        while True:
            yield ended.get_nowait()
