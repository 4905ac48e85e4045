"""The files of one sweep, its path to a goal among them, and the sweeps and runs of a results folder."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from study.base.durable_files import content_of, is_there, json_of, names_in
from study.base.errors import InputError, Problem, map_readable, warn_of
from study.base.machine import garbage_collection_paused
from study.base.schema import Count, Index, Positive, Strict
from study.base.text import pasted
from study.config.run_config import fingerprint_of
from study.config.sweep import Sweep
from study.config.sweep_files import SWEEP_FILE, read_launched
from study.store.named_files import Folder, Inside, as_read, parsed, read_parquet, write_table
from study.store.packed import PACKED, Packed, pack_of
from study.store.packed_tables import FILES, LOSSES, RECORDS
from study.store.records import REQUIRED_COLUMNS, RunRecord, ledger
from study.store.run_folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

_MEASURED = ["run_id", "validation_masked_tokens", "loss_nats", "exclusion"]
"""The columns of the ledger by which sequence losses are checked, and what is said of a run without."""

_PACKS = (RECORDS, LOSSES, FILES)
"""The tables of a pack from which the ledger is made."""

_MADE_FROM = "made_from"
"""The attribute of a written ledger that names what it was made from."""

LEAST_OF_ID = 4
"""The fewest characters of an id that name a run."""

GoalState = Literal["open", "met", "spent", "unreachable"]
"""Whether runs are still to come, the goal is met, the compute is spent, or the goal cannot be met with it."""


@dataclass(frozen=True)
class LockFiles:
    """The files of a sweep's lock; `what` is the participle of the holder's work."""

    folder: Path
    name: str
    what: str

    @property
    def lock_file(self) -> Path:
        """The lock itself."""
        return self.folder / f".{self.name}.lock"

    @property
    def holder_file(self) -> Path:
        """The holder, for messages to others."""
        return self.folder / f".{self.name}.json"

    @property
    def stop_file(self) -> Path:
        """Exists if the holder should stop."""
        return self.folder / f".{self.name}.stop"

    def holder(self) -> dict[str, Any] | None:
        """Return the holder of the lock, None if unknown."""
        return json_of(self.holder_file, dict, f"remove it; it only says by whom the sweep is {self.what}")


class SweepFolder(Folder):
    """The files of one sweep under `results/`, by name."""

    sweep_file = Inside(SWEEP_FILE)
    """The resolved sweep as launched."""
    cells_file = Inside("cells.json")
    """The cell ids of the sweep as launched; of a search, those of the points tried."""
    ledger_file = Inside("ledger.parquet")
    """All records as a table."""
    scores_file = Inside("scores.parquet")
    """All downstream scores at their chosen knobs as a table."""
    baselines = Inside("baselines")
    """The folder of baselines of downstream tasks."""
    fits = Inside("fits")
    """The folder of the fits."""
    figures = Inside("figures")
    """The folder of the figures."""
    goal_file = Inside("goal.json")
    """The path of a sweep with a goal, which a launch writes anew from the records."""
    answer_file = Inside("answer.md")
    """The answer to the sweep's question."""
    wandb = Inside("wandb")
    """The folder of the W&B mirror."""
    code_file = Inside("code.json")
    """The code of each launch, where it was started in a repository."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._read: tuple[tuple[int, ...], Sweep] | None = None

    @classmethod
    def of(cls, run: RunFolder) -> SweepFolder:
        """Return the sweep of a run's folder."""
        return cls(run.path.parent.parent)

    @property
    def name(self) -> str:
        """The sweep's name, which names the folder."""
        return self.path.name

    @property
    def launching(self) -> LockFiles:
        """The lock of the launching process."""
        return LockFiles(self.path, "coordinator", "run")

    @property
    def scoring(self) -> LockFiles:
        """The lock of the scoring process."""
        return LockFiles(self.path, "scoring", "scored")

    @property
    def packed(self) -> Packed | None:
        """The pack of the sweep, None if it has none."""
        return pack_of(self.path)

    @property
    def runs_folder(self) -> Path:
        """The folder of run folders."""
        return self.path / "runs"

    @property
    def homes(self) -> Path:
        """The folder of links to shared runs."""
        return self.path.parent / ".homes"

    def run(self, run_id: str) -> RunFolder:
        """Return the folder of one run."""
        return RunFolder(self.runs_folder / run_id)

    def home(self, run_id: str) -> RunFolder:
        """Return the folder in which a run is trained, in the sweep that started it first."""
        link = self.homes / run_id
        try:
            target = Path(os.readlink(link)).parts
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL):
                raise
            return self.run(run_id)  # there is no link
        if len(target) != 4 or (target[0], *target[2:]) != ("..", "runs", run_id) or target[1] == "..":
            raise InputError.at(str(link), "does not link to a folder of this run; the next launch creates it anew")
        return SweepFolder(self.path.parent / target[1]).run(run_id) if target[1] != self.name else self.run(run_id)

    def siblings(self) -> list[SweepFolder]:
        """Return the other sweeps of the results folder."""
        return [folder for folder in _folders_of_runs(self.path.parent) if folder.path != self.path]

    def runs(self, start: str = "") -> list[RunFolder]:
        """Return the planned, started or packed runs whose id has this start, by id."""
        return [*self._runs(start)]

    def _runs(self, start: str = "", read_at_once: bool = False) -> Iterator[RunFolder]:
        """Those runs; of one without a folder now that is `read_at_once`, only the pack is read."""
        packed, folder = self.packed, self.runs_folder
        ids = frozenset[str]() if packed is None else packed.run_ids
        listed = frozenset(names_in(folder))
        for name in sorted(name for name in listed | ids if name.startswith(start) and name[0] != "."):
            run = RunFolder(folder / name, packed, bare=read_at_once and name not in listed)
            if name in ids or _may_be_run(run):
                yield run

    @garbage_collection_paused()  # collections would walk all records
    def records(self) -> list[RunRecord]:
        """Return the records of ended runs by id; logs unreadable ones."""
        records, problems = self.read_records()
        warn_of(problems)
        return records

    def read_records(self) -> tuple[list[RunRecord], list[Problem]]:
        """Return the records of all ended runs by id, and the problems of unreadable ones.

        A record of another run than its folder's is refused.
        """
        records, problems = map_readable(_own_record, self._runs(read_at_once=True))
        return [record for record in records if record is not None], problems

    def require_readable(self) -> None:
        """Raise InputError with every unreadable record."""
        if problems := self.read_records()[1]:
            raise InputError(problems)

    def others_records(self) -> list[RunRecord]:
        """Return the records of the sibling sweeps."""
        return [record for sibling in self.siblings() for record in sibling.records()]

    @garbage_collection_paused()
    def ledger(self, records: list[RunRecord] | None = None) -> pd.DataFrame:
        """Return the records, read if not given, as a table."""
        records = self.records() if records is None else records
        return ledger(records, tuned=self.sweep().tuned, cells=self.cells())

    def write_ledger(self, records: list[RunRecord] | None = None) -> pd.DataFrame:
        """Rebuild `ledger.parquet` and `ledger.csv`; returns the table."""
        table = self._checked_ledger(records)
        write_table(self.ledger_file, table)
        return table

    def current_ledger(self) -> pd.DataFrame | None:
        """Return what `write_ledger` would write; None if not launched or without runs here."""
        if not is_there(self.sweep_file) or not any(self._runs()):
            return None
        return as_read(self._checked_ledger()) if (written := self.written_ledger()) is None else written

    def written_ledger(self) -> pd.DataFrame | None:
        """Return the ledger's file, None if not made from this pack and these files.

        So 10,000 packed runs are read in a second.
        """
        if (made_from := self._made_from()) is None or not is_there(self.ledger_file):
            return None
        with suppress(InputError):  # a damaged one is made anew
            written = read_parquet(self.ledger_file, "`study report` writes it again")
            return written if written.attrs.get(_MADE_FROM) == made_from else None
        return None

    def _made_from(self) -> str | None:
        """Return what changes whenever the ledger of a packed sweep may.

        None beside run folders, which may change file by file.
        """
        if (packed := self.packed) is None or names_in(self.runs_folder):
            return None
        files = [(content_of(file) or b"").decode(errors="replace") for file in (self.sweep_file, self.cells_file)]
        return fingerprint_of([version("scaling-study"), *packed.checked(_PACKS), *files])

    def _checked_ledger(self, records: list[RunRecord] | None = None) -> pd.DataFrame:
        """Return the ledger, with what it was made from if nothing is missing or damaged.

        Fits leave out runs whose sequence losses are missing or damaged; these are logged.
        """
        import pandas as pd

        table = self.ledger(records)
        if len(table):
            rows = table[_MEASURED].itertuples(index=False)
            damage = [self._damage(*run) if pd.isna(reason) else None for *run, reason in rows]
            table["exclusion"] = [
                damaged if pd.isna(given) else given for given, damaged in zip(table["exclusion"], damage, strict=True)
            ]
            if not any(damage) and len(table) == len(self.runs()) and (made_from := self._made_from()) is not None:
                table.attrs[_MADE_FROM] = made_from
        return table

    def _damage(self, run_id: str, tokens: float, loss: float) -> str | None:
        run = self.run(run_id)
        if math.isnan(tokens or math.nan) and not run.holds(run.validation_losses_file):
            return None  # nothing was measured
        try:
            losses, documents = run.recorded_losses(tokens, loss), run.validation_documents()
            if documents is not None and len(documents) != len(losses):
                message = f"names the documents of {len(documents):,} sequences, but the run has the losses of {len(losses):,}"
                raise InputError.at(str(run.validation_documents_file), f"{message}; fetch both anew")
        except InputError as error:
            warn_of(error.problems)
            return f"{Path(error.problems[0].place).name} is gone or damaged"
        except OSError as error:
            warn_of([Problem(str(error.filename), f"cannot be read: {error.strerror}")])
            return f"{Path(str(error.filename)).name} cannot be read"
        return None

    def sweep(self) -> Sweep:
        """Return the sweep as last launched; raises InputError if sweep.yaml cannot be read."""
        try:
            status = self.sweep_file.stat()
        except OSError:
            return read_launched(self.sweep_file)  # raises the right InputError
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._read is None or self._read[0] != version:
            self._read = version, read_launched(self.sweep_file)
        return self._read[1]

    def launched(self) -> Sweep | None:
        """Return the sweep as last launched, None without a sweep.yaml."""
        return self.sweep() if is_there(self.sweep_file) else None

    def goal_path(self) -> GoalPath | None:
        """Return the path to the goal, if any; raises InputError for a damaged file."""
        return parsed(content_of(self.goal_file), str(self.goal_file), GoalPath, "launch the sweep again")

    def tuned(self) -> tuple[str, ...]:
        """Return the knobs that the sweep tunes."""
        return () if (sweep := self.launched()) is None else sweep.tuned

    def trial_seeds(self) -> tuple[int, ...]:
        """Return the seeds at which tuned values are tried."""
        return () if (sweep := self.launched()) is None else sweep.choosing_seeds

    def varied(self) -> tuple[str, ...]:
        """Return the knobs that the sweep varies."""
        return () if (sweep := self.launched()) is None else sweep.varied

    def distinguishing_knobs(self) -> tuple[str, ...]:
        """Return the knobs that distinguish runs beside shape, rate and seed."""
        return () if (sweep := self.launched()) is None else sweep.distinguishing_knobs

    def tags(self) -> tuple[str, ...]:
        """Return the W&B tags of its runs."""
        return () if (sweep := self.launched()) is None else sweep.tags

    def cells(self) -> frozenset[str]:
        """Return the cell ids as launched."""
        return frozenset(map(str, json_of(self.cells_file, list, "the next `study launch` writes it anew") or ()))

    def read_ledger(self) -> pd.DataFrame:
        """`current_ledger` or, without runs here, the ledger as last written."""
        if (current := self.current_ledger()) is not None:
            return current
        table = read_parquet(self.ledger_file, remedy := "`study report` writes it from the records")
        if lacking := [name for name in REQUIRED_COLUMNS if len(table) and name not in table]:
            raise InputError.at(
                str(self.ledger_file), f"lacks {', '.join(lacking[:5])}, as if another version wrote it; {remedy}"
            )
        return table


def _may_be_run(run: RunFolder) -> bool:
    """Whether a folder holds a run, or cannot be looked into."""
    try:
        return run.is_run
    except OSError:
        return True


def _own_record(run: RunFolder) -> RunRecord | None:
    record = run.record()
    if record is not None and record.run_id != run.run_id:
        message = f"is of run {record.run_id}, but its folder has another name; rename {pasted(run.path)}, or move it away"
        raise InputError.at(str(run.record_file), message)
    return record


def runs_of_id(run_id: str, results: Path) -> list[RunFolder]:
    """Return the folders of the run with this id, or the only id that starts so.

    Fewer than LEAST_OF_ID characters match nothing. Raises InputError if several ids match.
    """
    if len(run_id) < LEAST_OF_ID or not run_id.isalnum():
        return []
    runs = [run for folder in _folders_of_runs(results) for run in folder.runs(run_id)]
    if len(ids := {run.run_id for run in runs}) > 1:
        raise InputError.at(run_id, f"matches {len(ids)} runs in {results}; give more of the id")
    return runs


def _folders_of_runs(results: Path) -> list[SweepFolder]:
    """Return the folders under `results` with runs, by name."""
    paths = {path.parent for kind in ("runs", PACKED) for path in results.glob(f"[!.]*/{kind}")}
    return [SweepFolder(path) for path in sorted(paths)]


def sweeps_in(results: Path) -> dict[str, SweepFolder]:
    """Return the sweeps at a folder and two levels below, by relative path.

    Raises InputError without sweeps or folder.
    """
    if not results.is_dir():
        raise InputError.at(str(results), "is not a folder; give one that `study launch` wrote to, or a folder of these")
    paths = [results, *sorted(results.glob("[!.]*")), *sorted(results.glob("[!.]*/[!.]*"))]
    folders = [
        SweepFolder(path) for path in paths if os.path.lexists(path / SWEEP_FILE)
    ]  # a broken link is named by its reader
    if not folders:
        raise InputError.at(str(results), "holds no sweep; give a folder that `study launch` wrote to, or a folder of these")
    return {
        folder.name if folder.path == results else folder.path.relative_to(results).as_posix(): folder for folder in folders
    }


class GoalLook(Strict):
    """What the first `runs` runs say: half the 95% interval, None while unknown."""

    runs: Index
    spent_flops: float
    half_width: float | None = None


class ChosenRun(Strict):
    """A chosen run in the order of its end; one that is not `used` failed, or reads no word order."""

    run_id: str
    shape: str
    parameters_non_embedding: Count
    tokens: Count
    seed: Index
    spent_flops: float
    used: bool


class GoalPath(Strict):
    """The way to a goal: its looks and runs, where it stands, and why, in a sentence.

    `wanted` is the half-width at which the goal is met, in the words `of`, of the budget `spend_flops`. `target_parameters` and
    `target_tokens` are where the loss is wanted, if anywhere, and `forecast_nats` is what it is there by the runs so far.
    `grid_flops` is what a grid of the same pool would have taken for the same, once the goal is over. `first_rate` is the FLOPs
    that a second of a limit in hours bought before any run had a time, None for those of a CPU core.
    """

    of: str
    wanted: Positive
    spend_flops: Positive
    first_rate: Positive | None = None
    state: GoalState
    sentence: str
    looks: tuple[GoalLook, ...] = ()
    runs: tuple[ChosenRun, ...] = ()
    target_parameters: float | None = None
    target_tokens: float | None = None
    forecast_nats: Positive | None = None
    grid_flops: Positive | None = None

    @property
    def forecast(self) -> tuple[float, float, float] | None:
        """The loss at the target with its 95% interval by the last look, if any."""
        half = self.looks[-1].half_width if self.looks else None
        if self.forecast_nats is None or half is None:
            return None
        return self.forecast_nats, self.forecast_nats * math.exp(-half), self.forecast_nats * math.exp(half)
