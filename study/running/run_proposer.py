"""The runs of a sweep as jobs: which come next, which state each starts from, and its record."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from study.base.durable_files import is_there, retry_write, write_atomically, write_once
from study.base.errors import InputError, Problem, map_readable, warn_of
from study.base.machine import garbage_collection_paused
from study.base.quantities import plus_minus
from study.config.run_config import RunConfig, Texts
from study.config.sweep import CellSweep, GoalSweep, SearchSweep
from study.executing.processes import Job
from study.planning.plan import Plan, parents_of, run_id
from study.planning.proposing import CellProposer, GoalTrunks, Trunks
from study.running.coordinator import Failure, Proposer, left_failed, steps_of
from study.store.named_files import refuse_newer
from study.store.ownership import file_lock
from study.store.records import Ending, RunRecord, cell_of, counts_of, timestamp
from study.store.run_folder import RunFolder, flops_before, teacher_architecture
from study.store.sweep_folder import GoalPath, SweepFolder

if TYPE_CHECKING:
    from study.planning.goal_design import GoalProposer
    from study.planning.search import OptunaSearch, Pruning
    from study.training.attempts import StopSignal
    from study.training.execution import Execution


class SharedRuns:
    """The runs that a sweep has in common with others of one results folder: each is trained once, the others link its files.

    The sweep that starts a run first is its home: results/.homes/<run id> links to the run's folder there, and the kernel lets
    only one sweep create that link. Other sweeps wait while the run is trained, resume it where it was left, and link its files
    once it has ended, or copy them from a packed sweep. The record is one file under two names and survives its writer.
    """

    def __init__(self, folder: SweepFolder) -> None:
        self.folder = folder
        folder.homes.mkdir(exist_ok=True)
        self._siblings = folder.siblings()

    def home(self, run_id: str) -> RunFolder:
        """Return the folder where a run is trained: this sweep's, unless another sweep started it first."""
        link = self.folder.homes / run_id
        with contextlib.suppress(FileExistsError):
            retry_write(lambda: os.symlink(self._target(run_id), link))
        if (home := self._known_home(run_id)) is not None:
            return home
        with file_lock(self.folder.homes / ".lock"):  # the first takes over what is gone, and the others see it
            if (home := self._known_home(run_id)) is None:
                anew = link.with_name(f".{run_id}.tmp")
                anew.unlink(missing_ok=True)
                os.symlink(self._target(run_id), anew)
                os.replace(anew, link)  # so that there is a link at every moment
                home = self.folder.run(run_id)
        return home

    def _known_home(self, run_id: str) -> RunFolder | None:
        """Return the home of a run, if it is still trained there."""
        try:
            home = self.folder.home(run_id)
        except InputError as error:
            warn_of(error.problems)
            return None
        return home if self._is_home(home) else None

    def _target(self, run_id: str) -> str:
        return os.path.join("..", self.folder.name, "runs", run_id)

    def _is_home(self, home: RunFolder) -> bool:
        """Whether a run is still trained there: not in a deleted sweep, not pruned, not damaged."""
        mine = home.path == self.folder.run(home.run_id).path
        return (is_there(home.path) or home.is_run) and (mine or _is_of_use(home))

    def record(self, run_id: str) -> RunRecord | None:
        """Return the record of a run, if any, perhaps taken from another sweep."""
        own, home = self.folder.run(run_id), self.home(run_id)
        others = [sibling.run(run_id) for sibling in self._siblings if sibling.name != SweepFolder.of(home).name]
        for other in (home, *others):
            if other.path != own.path and _is_of_use(other) and other.ended:
                _link_files(other, own)
                break
        return _record_or_aside(own)


def _record_or_aside(run: RunFolder) -> RunRecord | None:
    """Return the record of a run; a damaged one is put aside, so that the run is trained again."""
    try:
        return run.record()
    except (InputError, OSError) as error:
        if isinstance(error, InputError):
            refuse_newer(error.problems)
        damaged = isinstance(error, InputError) or error.errno in (errno.EISDIR, errno.ELOOP)
        if not damaged or not os.path.lexists(run.record_file):  # out of reach, or packed
            raise
        kept = run.put_record_aside({"reason": str(error)})
        warn_of([Problem(str(run.record_file), f"is damaged, and now {kept}; the run is trained again")])
        return None


def _is_of_use(run: RunFolder) -> bool:
    """Whether another sweep can use a run: not pruned, not failed on a full disk, no damaged record."""
    records, problems = map_readable(RunFolder.record, [run])
    refuse_newer(problems)
    warn_of(problems)
    return not problems and not any(each is not None and (each.state == "PRUNED" or each.met_full_disk) for each in records)


def _link_files(ended: RunFolder, into: RunFolder) -> None:
    for existing, new in zip(_beside_record(ended), _beside_record(into), strict=True):
        retry_write(partial(_link, existing, new) if is_there(existing) else partial(_copy, ended, existing, new))
    if is_there(ended.record_file):
        with contextlib.suppress(FileExistsError):
            retry_write(partial(_link_once, ended.record_file, into.record_file))
    else:
        retry_write(partial(_copy, ended, ended.record_file, into.record_file))


def _copy(ended: RunFolder, packed: Path, new: Path) -> None:
    if (content := ended.content(packed)) is not None:
        write_once(new, content)


def _beside_record(run: RunFolder) -> tuple[Path, ...]:
    """Return the files beside a record; each is only ever replaced, so a second name is safe."""
    losses = (run.validation_losses_file, run.validation_documents_file, run.byte_losses_file)
    return run.metrics_file, *losses, run.weights_file, run.exclusion_file


def _link(existing: Path, new: Path) -> None:
    temporary = new.with_name(f".{new.name}.tmp")
    temporary.unlink(missing_ok=True)
    _link_once(existing, temporary)
    if is_there(temporary):
        os.replace(temporary, new)
        temporary.unlink(missing_ok=True)  # renaming does nothing where both names are of one file already


def _link_once(existing: Path, new: Path) -> None:
    """Link a file, unless it is gone."""
    try:
        os.link(existing, new)
    except FileNotFoundError:
        if is_there(existing):
            raise


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
    """The runs of one sweep on text of these fingerprints; writes the sweep file and the cell ids."""

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
        self.left_failed = left_failed(self.there.values(), folder)
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
        """Return the run's record, perhaps linked from another sweep."""
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
        """Why a run that this one needs cannot serve it, if so."""
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
        """Read the records; return the configurations of started runs without one.

        A damaged record is put aside; runs that cannot be read otherwise cause a warning and count as not begun.
        """

        def wanted(run: RunFolder, config: RunConfig) -> bool:
            return belongs(config) and run_id(config, self.texts) == run.run_id

        started = []
        read, problems = map_readable(partial(_with_record, wanted), self.folder.runs())
        warn_of(problems)
        for run, record, config in read:
            if not wanted(run, config):
                continue
            if record is not None and (why := self._why_again(record)) is not None:
                run.put_record_aside({"reason": why})
                record = None
            if record is None:
                started.append(config)
            else:
                self._records[config.key] = record
        return started

    def _why_again(self, record: RunRecord) -> str | None:
        """Why a run that has ended goes on, if so."""
        if record.state == "PRUNED" and not isinstance(self.spec, SearchSweep):
            return "a comparison or a fit has use for whole runs only"
        return "its disk was full" if record.met_full_disk else None

    def _name_cells(self, configs: Iterable[RunConfig]) -> None:
        """Write the cells of these runs to the sweep's list."""
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
        """Return the folder where a run is trained, perhaps in another sweep."""
        return self._shared.home(self._run_folder(config).run_id)

    def _run_folder(self, config: RunConfig) -> RunFolder:
        return self.folder.run(run_id(config, self.texts))


def _with_record(
    wanted: Callable[[RunFolder, RunConfig], bool], run: RunFolder
) -> tuple[RunFolder, RunRecord | None, RunConfig]:
    """Return a run with its record, which is put aside if it is damaged and the run is wanted."""
    try:
        record = run.record()
    except (InputError, OSError):
        if not wanted(run, RunConfig.from_yaml(run.config_file)):
            raise
        record = _record_or_aside(run)
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
