"""The runs of a sweep as jobs: which come next, which state each starts from, and its record."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from study.base.durable_files import is_there, retry_write, write_atomically
from study.base.errors import map_readable, warn_of
from study.base.machine import garbage_collection_paused
from study.base.quantities import plus_minus
from study.config.run_config import RunConfig, Texts
from study.config.sweep import CellSweep, GoalSweep, SearchSweep
from study.executing.job import Job
from study.planning.plan import Plan, parents_of, run_id
from study.planning.proposing import CellProposer, GoalTrunks, Trunks
from study.running.coordinator import Failure, Proposer, steps_of
from study.running.sharing import SharedRuns
from study.store.records import Ending, RunRecord, cell_of, counts_of, timestamp
from study.store.run_folder import RunFolder, flops_before, teacher_architecture
from study.store.sweep_folder import GoalPath, SweepFolder

if TYPE_CHECKING:
    from study.planning.goal_design import GoalProposer
    from study.planning.search import OptunaSearch, Pruning
    from study.training.attempts import StopSignal
    from study.training.execution import Execution


@dataclass(frozen=True)
class RunJob(Job):
    """A run to train for the sweep of this name."""

    folder: RunFolder
    config: RunConfig
    sweep: str

    @property
    def tokens(self) -> int:
        """The tokens of the run's budget."""
        return self.config.tokens

    def execute(self, execution: Execution, stop: StopSignal) -> Ending:
        """Train the run."""
        from study.training.run import train

        return train(self.config, self.folder, self.sweep, execution, stop)


class RunProposer(Proposer[RunJob, RunRecord]):
    """The runs of one sweep on text of these fingerprints; writes the sweep file and the ids of the cells into its folder."""

    noun = "run"

    def __init__(self, plan: Plan, values: dict[str, Any], folder: SweepFolder, texts: Texts, expected: int = 0) -> None:
        self.expected = expected
        self.spec, self.folder, self.texts = plan.spec, folder, texts
        self.witness = folder.sweep_file
        folder.path.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        write_atomically(self.witness, text.encode())
        self._varied = folder.distinguishing_knobs()
        self._cells: set[str] = set()
        self._name_cells(cell.config for cell in plan.cells)
        self._shared = SharedRuns(folder)
        self._records: dict[str, RunRecord] = {}
        with garbage_collection_paused():  # each collection would walk all records read so far, and none of them is garbage
            started = self._load(plan.holds)
        self.there = {record.run_id: record for record in self._records.values()}
        self.trunks: Trunks | GoalTrunks
        self._parents = plan.parents
        self.pruning: Pruning | None = None
        self._goal: GoalProposer | None = None
        self._written: GoalPath | None = None
        self.configs: CellProposer | OptunaSearch | GoalProposer
        match plan.spec:
            case CellSweep():
                self.trunks = trunks = Trunks(plan.cells, self._home)
                self.configs = CellProposer(plan.cells, trunks, plan.parents)
            case SearchSweep() as spec:
                self.trunks = Trunks((), self._home)
                self._name_cells([*started, *(one.config for one in self._records.values())])
                self.configs = self._search(spec, started)
            case GoalSweep():
                from study.planning.goal_design import GoalProposer

                self.trunks = GoalTrunks(plan.design, self._home)
                self._name_cells([*started, *(one.config for one in self._records.values())])
                self.configs = self._goal = GoalProposer(plan.design, self._records.values(), started)

    def wanted(self, busy: Collection[RunJob], free: int) -> Sequence[Sequence[RunJob]]:
        """Return the next runs, each in a process of its own."""
        configs = self.configs.wanted(self._records, {job.config.key for job in busy}, free)
        for config in configs:
            if (reason := self._why_in_vain(config)) is not None:
                self.give_up(self._job(config), Failure("FAILED", reason))
        if not isinstance(self.spec, CellSweep) and configs:
            self._name_cells(configs)
        self._write_path()
        self.waiting, self.exhausted = self.configs.waiting, self.configs.exhausted
        return [[self._job(config)] for config in configs]

    def begin(self, job: RunJob) -> None:
        """Prepare the state that the run starts from, and its orders."""
        self.trunks.begin(job.config, self._records)
        if self.pruning is not None:
            self.pruning.begin(job.config)

    def take(self, job: RunJob) -> RunRecord | None:
        """Return the run's record, linked from another sweep where that one has it."""
        if (record := self._shared.record(job.key)) is not None:
            self._records[job.config.key] = record
            self.configs.tell(job.config.key, record)
            self.trunks.ended(record.config, self._records)
        return record

    def give_up(self, job: RunJob, failure: Failure) -> None:
        """File a run whose process could not file a record itself."""
        config, run, steps, now = job.config, job.folder, steps_of(job), timestamp()
        tokens, counts = steps * config.recipe.batch_tokens, counts_of(config, steps, teacher_architecture(config))
        record = RunRecord(
            run_id=job.key,
            sweep=self.spec.name,
            state=failure.state,
            reason=failure.reason,
            config=config,
            data_fingerprint=self.texts[config.data.tokenizer.variant],
            steps=steps,
            tokens=tokens,
            attempts=run.attempts(),
            started_at=now,
            finished_at=now,
            **counts | run.spent(tokens, config.recipe.batch_tokens),
            spent_flops=None if (before := flops_before(config)) is None else before + counts["train_flops"],
        )
        retry_write(lambda: run.file_record(record))

    def _why_in_vain(self, config: RunConfig) -> str | None:
        """Why a run of the sweep that this one starts from or learns from cannot serve it; None if all can."""
        for name in parents_of(config):
            if (parent := self._parents.get(name)) is None or (record := self._records.get(parent.key)) is None:
                continue
            which = f"needs run {name} ({parent.words(self._varied)})"
            if record.state != "COMPLETED":
                ended = f"{record.state}{f': {record.reason}' if record.reason else ''}"
                return f"{which}, which ended {ended}; once it is trained, `study retry` trains this run"
            if not is_there((run := self.folder.run(name)).weights_file):
                return f"{which}, which has no {run.weights_file.name}; {run.weights_remedy()}"
        return None

    def label(self, job: RunJob) -> str:
        """Return the shape and what the sweep varies."""
        return job.config.words(self._varied)

    def line(self, job: RunJob, record: RunRecord) -> str:
        """Return the result of a run."""
        return run_line(record, self._varied)

    def look(self, running: Collection[RunJob]) -> None:
        """Stop the runs that the pruner of a search gives up."""
        if self.pruning is not None:
            self.pruning.look({job.config.key: job.config for job in running})

    def tidy(self) -> None:
        """Remove trunk states that no run needs."""
        self.trunks.tidy(self.folder)

    def _load(self, belongs: Callable[[RunConfig], bool]) -> list[RunConfig]:
        """Read the records of the sweep's runs; returns the configurations of started runs without a record.

        Runs that cannot be read cause a warning and count as not begun: those that the sweep wants are trained again.
        """
        started = []
        read, problems = map_readable(_with_record, self.folder.runs())
        warn_of(problems)
        for run, record, config in read:
            if not belongs(config) or run_id(config, self.texts) != run.run_id:
                continue
            if record is not None and record.state == "PRUNED" and not isinstance(self.spec, SearchSweep):
                run.put_record_aside({"reason": "a comparison or a fit has use for whole runs only"})
                record = None
            if record is None:
                started.append(config)
            else:
                self._records[config.key] = record
        return started

    def _name_cells(self, configs: Iterable[RunConfig]) -> None:
        """Write the cells of these runs to the sweep's list: all at once for cells, as they are tried for a search."""
        names = {cell_of(config, self.spec.tuned, self.texts[config.data.tokenizer.variant]) for config in configs}
        if not names <= self._cells or not self._cells:
            self._cells |= names
            text = json.dumps(sorted(self._cells), indent=1).encode()
            retry_write(lambda: write_atomically(self.folder.cells_file, text))

    def _write_path(self) -> None:
        if self._goal is not None and (path := self._goal.path) != self._written:
            text = path.model_dump_json(indent=1, exclude_none=True)
            retry_write(lambda: write_atomically(self.folder.goal_file, text.encode() + b"\n"))
            self._written = path

    def _search(self, spec: SearchSweep, started: list[RunConfig]) -> OptunaSearch:
        from study.planning.search import OptunaSearch, Pruning, checked

        search = OptunaSearch(spec)
        if (prune := spec.search.prune) is None:
            search.restore(self._records.values(), started)
            return search
        self.pruning = Pruning(search, prune, self._home)
        search.restore(self._records.values(), started, lambda config: checked(self._run_folder(config), config, prune))
        return search

    def _job(self, config: RunConfig) -> RunJob:
        run = self._run_folder(config)
        retry_write(lambda: run.write_config(config))
        return RunJob(RunFolder(self._shared.home(run.run_id).path.resolve()), config, self.spec.name)

    def _home(self, config: RunConfig) -> RunFolder:
        """Return the folder where a run is trained, which may belong to another sweep."""
        return self._shared.home(self._run_folder(config).run_id)

    def _run_folder(self, config: RunConfig) -> RunFolder:
        return self.folder.run(run_id(config, self.texts))


def _with_record(run: RunFolder) -> tuple[RunFolder, RunRecord | None, RunConfig]:
    record = run.record()
    return run, record, run.config() if record is None else record.config


def run_line(record: RunRecord, varied: Sequence[str]) -> str:
    """Return the result of a run in one line."""
    label = record.config.words(varied)
    if record.state != "COMPLETED" or record.loss_nats is None:
        return f"{record.state:<9} {label}: {record.reason}"
    time = "" if record.wall_seconds is None else f" in {record.wall_seconds:,.0f} s"
    note = "" if record.trunk is None else f" for its own {record.spent_tokens:,}"
    note += "".join(f"; {what}" for what in (record.spike_note, record.order_note) if what)
    return (
        f"COMPLETED {label}: {plus_minus(record.loss_nats, record.loss_standard_error_nats)} nats after "
        f"{record.tokens:,} tokens{time}{note}"
    )
