"""The files of runs and sweeps by name; the only module that knows what a results folder looks like on disk.

results/<sweep>/
    sweep.yaml, cells.json      the sweep as launched, and the ids of its cells, or of a search's points so far
    runs/<run id>/
        config.yaml             written first
        metrics.jsonl           one line a logged step, during
        attempts/0001.json      one file a start of the run's process; the latest start owns the run (study.ownership)
        attempts/0001.record.json   the record of that start, where a person had the run tried again
        checkpoints/step-<step>-<sha256>.ckpt   kept until the run is completed
        orders.json             what its sweep asks of a run beside its configuration; nothing that moves its numbers
        prune.json              why the search that the run belongs to wants it to stop
        branch-<step>/          its state where a shorter budget leaves it, and its rows so far, until that one has them
        trunk.json              which run trained the first steps of this one, and how many, where one did
        validation_losses.npy   nats summed over the masked tokens of each validation sequence, float64
        weights.safetensors     the final weights
        log.txt                 what the run's processes printed
        rank-<rank>.json        what stopped a rank that does not lead, until the next start
        record.json             written last, once, by linking a finished file into place
        exclusion.json          why a person leaves the run out of fits, where one does
        scores/<score id>/      downstream scores of the run, see study.score_records
    ledger.parquet, ledger.csv  rebuilt from the records
    scores.parquet, scores.csv  rebuilt from the records of downstream scores
    baselines/*.json            what downstream tasks give without an encoder
    fits/*.json  figures/*.svg|png  answer.md
results/.homes/<run id>         a link to the run's folder in the sweep that trains it, for sweeps that share it
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from study.architecture import SIZES, Architecture
from study.config import RunConfig
from study.durable_files import json_of, sync_folder, write_atomically, write_once
from study.errors import InputError
from study.named_runs import Donor, Teacher
from study.records import RunRecord, ledger
from study.schema import Count, ModelT, Strict
from study.yaml_files import read_yaml

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

SHAPE = tuple(f"architecture.{size}" for size in SIZES)
"""The four sizes of a shape, as knobs and as ledger columns."""

LEAST_OF_ID = 4
"""How many characters of a run's id may name it."""


class Orders(Strict):
    """What a sweep asks of a run: after which steps to leave its state for others; how often to validate if not as usual."""

    branch_steps: tuple[Count, ...] = ()
    validations: Count | None = None


class Trunk(Strict):
    """The run that trained the first `step` steps of another one."""

    run_id: str
    step: Count


class _Inside:
    """A file or a folder by its name inside of a run's or a sweep's folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder | SweepFolder, _: type) -> Path:
        return folder.path / self.name


class RunFolder:
    """The files of one run, by name; creates nothing until asked to write."""

    config_file = _Inside("config.yaml")
    """The resolved configuration."""
    metrics_file = _Inside("metrics.jsonl")
    """The logged metrics, one JSON object a line."""
    record_file = _Inside("record.json")
    """The record, there exactly when the run has ended."""
    exclusion_file = _Inside("exclusion.json")
    """Why a person leaves the run out of fits, there where one does."""
    validation_losses_file = _Inside("validation_losses.npy")
    """Nats summed over the masked tokens of each validation sequence."""
    weights_file = _Inside("weights.safetensors")
    """The final weights of a completed run."""
    checkpoints = _Inside("checkpoints")
    """The folder of the checkpoints."""
    orders_file = _Inside("orders.json")
    """What its sweep asks of the run."""
    prune_file = _Inside("prune.json")
    """Why the run is to stop before its end, there where it is."""
    trunk_file = _Inside("trunk.json")
    """Which run trained the first steps of this one."""
    log_file = _Inside("log.txt")
    """What the run's processes printed."""
    scores = _Inside("scores")
    """The folder of the downstream scores."""
    lock_file = _Inside(".lock")
    """The lock that the process training this run holds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        """The run's id, which names the folder."""
        return self.path.name

    @property
    def is_run(self) -> bool:
        """Whether a run lies here: its configuration does, or its record, which holds one; scores have records, too."""
        return self.config_file.exists() or (self.path.resolve().parent.name == "runs" and self.record_file.exists())

    @property
    def sweep(self) -> SweepFolder:
        """The sweep under which the run lies."""
        return SweepFolder(self.path.parent.parent)

    def write_config(self, config: RunConfig) -> None:
        """Write the configuration once; a run folder never changes its configuration."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.config_file.exists():
            write_atomically(self.config_file, config.to_yaml().encode())

    def config(self) -> RunConfig:
        """The configuration that the folder holds, the record's where config.yaml is gone."""
        record = None if self.config_file.exists() else self.record()
        return RunConfig.from_yaml(self.config_file) if record is None else record.config

    def branch(self, step: int) -> Path:
        """The folder of this run's state after a step at which a shorter budget leaves it."""
        return self.path / f"branch-{step:010d}"

    def leave_rows(self, step: int) -> None:
        """Give the rows so far a second name beside the state of a step; a run that resumes before it begins a new file."""
        self.branch(step).mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(self.metrics_file, self.branch(step) / self.metrics_file.name)

    def remove_branches(self) -> None:
        """Remove the states that were left for others."""
        for branch in self.path.glob("branch-*"):
            shutil.rmtree(branch, ignore_errors=True)

    def write_orders(self, orders: Orders) -> None:
        """Say what the sweep asks of the run."""
        write_atomically(self.orders_file, orders.model_dump_json(exclude_none=True).encode())

    def orders(self) -> Orders:
        """What the sweep asks of the run."""
        return read_as(self.orders_file, Orders, "remove it; the next launch writes it anew") or Orders()

    def write_prune(self, reason: str) -> None:
        """Tell the run to stop before its end."""
        write_atomically(self.prune_file, json.dumps({"reason": reason}).encode())

    def prune(self) -> str | None:
        """Why the run is to stop before its end, None where it is not."""
        return _reason_in(self.prune_file, "remove it; the search judges the run anew")

    def write_trunk(self, trunk: Trunk | None) -> None:
        """Say which run trained the first steps, None where none did."""
        if trunk is None:
            self.trunk_file.unlink(missing_ok=True)
        else:
            write_atomically(self.trunk_file, trunk.model_dump_json().encode())

    def trunk(self) -> Trunk | None:
        """Which run trained the first steps, None where none did."""
        return read_as(self.trunk_file, Trunk, "remove the run's folder to train the run again")

    def spent(self, tokens: int, batch_tokens: int) -> dict[str, Any]:
        """What a record says of a trunk: of `tokens` those that the run trained on itself, and where it branched if it did."""
        trunk = self.trunk()
        if trunk is None:
            return {"spent_tokens": tokens}
        return {"spent_tokens": max(0, tokens - trunk.step * batch_tokens), "trunk": trunk.run_id, "trunk_step": trunk.step}

    def claim_attempt(self, details: dict[str, Any]) -> int:
        """The number of this attempt, from 1; its file is linked into place, so that no two processes get one number."""
        number = self.attempts() + 1
        while not write_once(self.attempt_file(number), json.dumps(details, indent=1).encode()):
            number += 1
        return number

    def remove_leftovers(self) -> None:
        """Remove what killed attempts had not finished writing; only the owner of the run may."""
        for file in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp"), *self.rank_files()):
            file.unlink(missing_ok=True)

    def rank_file(self, rank: int) -> Path:
        """What stopped a rank that does not lead, for the leader to file."""
        return self.path / f"rank-{rank}.json"

    def rank_files(self) -> Iterator[Path]:
        """The files of all ranks that left one."""
        return self.path.glob("rank-*.json")

    def attempt_file(self, number: int) -> Path:
        """What an attempt says of itself: its process, where it runs, and since when."""
        return self.path / "attempts" / f"{number:04d}.json"

    def attempt(self, number: int) -> dict[str, Any]:
        """What the file of an attempt says."""
        return json_of(self.attempt_file(number), dict, "remove it once nobody trains the run") or {}

    def attempts(self) -> int:
        """How many processes have started this run: the number of its latest attempt."""
        try:
            names = os.listdir(self.path / "attempts")
        except FileNotFoundError:
            return 0
        return max((int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json")), default=0)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The logged rows in order; a line torn by a kill ends them.

        Raises InputError at a whole line that is no row.
        """
        try:
            lines = self.metrics_file.open("rb")
        except FileNotFoundError:
            return
        with lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    return
                yield metrics_row(line, f"{self.metrics_file}:{number}")

    def file_record(self, record: RunRecord) -> bool:
        """Link the record into place; False where the run already had one, which then stands."""
        return file_once(self.record_file, record)

    def record(self) -> RunRecord | None:
        """The record, None while the run has not ended."""
        if (record := read_as(self.record_file, RunRecord, "move it away to train the run again")) is None:
            return None
        excluded = self.excluded()
        return record if excluded is None else record.model_copy(update={"excluded": excluded})

    def aside(self, name: str) -> Path:
        """Where something lies that is put aside with the record: beside the latest attempt that has no record there yet."""
        attempts, number = self.path / "attempts", max(1, self.attempts())
        while (attempts / f"{number:04d}.record.json").exists():
            number += 1
        return attempts / f"{number:04d}.{name}"

    def put_record_aside(self, note: dict[str, str]) -> Path:
        """Make the record that of a past attempt, with a note of why, so that the run is trained whole; where it is then."""
        kept = self.aside("record.json")
        kept.parent.mkdir(exist_ok=True)
        write_atomically(self.aside("note.json"), json.dumps(note, indent=1).encode() + b"\n")
        os.link(self.record_file, kept)
        sync_folder(kept.parent)
        self.prune_file.unlink(missing_ok=True)
        self.record_file.unlink()
        sync_folder(self.path)
        return kept

    def excluded(self) -> str | None:
        """Why a person leaves this run out, None where nobody does."""
        return _reason_in(self.exclusion_file, "`study exclude` writes it anew")

    def write_validation_losses(self, losses: NDArray[np.float64]) -> None:
        """Keep the summed nats of each validation sequence, for paired differences between runs."""
        buffer = io.BytesIO()
        np.save(buffer, losses.astype(np.float64), allow_pickle=False)
        write_atomically(self.validation_losses_file, buffer.getvalue())

    def validation_losses(self) -> NDArray[np.float64]:
        """The summed nats of each validation sequence of a completed run; raises InputError where they are gone or damaged."""
        try:
            losses: NDArray[np.float64] = np.load(self.validation_losses_file, allow_pickle=False)
        except (FileNotFoundError, ValueError, EOFError) as error:
            what = "does not exist" if isinstance(error, FileNotFoundError) else "is damaged"
            remedy = f"fetch it, or leave the run out: study exclude {self.path} --reason ..."
            raise InputError.at(str(self.validation_losses_file), f"{what}, and comparisons need it; {remedy}") from None
        return losses


class SweepFolder:
    """The files of one sweep under `results/`, by name."""

    sweep_file = _Inside("sweep.yaml")
    """The resolved sweep as it was launched."""
    cells_file = _Inside("cells.json")
    """The ids of the cells of the sweep as launched, of a search those of the points in its space that it has asked."""
    lock_file = _Inside(".coordinator.lock")
    """The lock that the sweep's coordinator holds."""
    holder_file = _Inside(".coordinator.json")
    """Who holds the lock, for the message to a second launcher."""
    stop_file = _Inside(".coordinator.stop")
    """There where a person asks whoever holds the lock to stop."""
    ledger_file = _Inside("ledger.parquet")
    """All records as a table."""
    scores_file = _Inside("scores.parquet")
    """All downstream scores at their chosen knobs as a table."""
    scoring_lock_file = _Inside(".scoring.lock")
    """The lock that whoever makes downstream scores of the sweep holds."""
    scoring_stop_file = _Inside(".scoring.stop")
    """There where a person asks whoever holds that lock to stop."""
    baselines = _Inside("baselines")
    """The folder of what downstream tasks give without an encoder."""
    fits = _Inside("fits")
    """The folder of the fits."""
    figures = _Inside("figures")
    """The folder of the figures."""
    answer_file = _Inside("answer.md")
    """What the ledger says to the sweep's question."""
    wandb = _Inside("wandb")
    """The folder of the W&B mirror."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The sweep's name, which names the folder."""
        return self.path.name

    @property
    def homes(self) -> Path:
        """The folder of links to where the runs that several sweeps share are trained."""
        return self.path.parent / ".homes"

    def run(self, run_id: str) -> RunFolder:
        """The folder of one run."""
        return RunFolder(self.path / "runs" / run_id)

    def home(self, run_id: str) -> RunFolder:
        """The folder where a run is trained: another sweep's where that one began it first (study.sweeping.sharing)."""
        link = self.homes / run_id
        if not link.is_symlink():
            return self.run(run_id)
        home = SweepFolder(self.path.parent / Path(os.readlink(link)).parts[1])
        return home.run(run_id) if home.name != self.name else self.run(run_id)

    def siblings(self) -> list[SweepFolder]:
        """The other sweeps under the same results folder."""
        return [SweepFolder(path.parent) for path in self.path.parent.glob("[!.]*/runs") if path.parent != self.path]

    def runs(self) -> list[RunFolder]:
        """The runs that were started or only planned here, by id."""
        found = [RunFolder(path) for path in sorted((self.path / "runs").glob("[!.]*"))]
        return [run for run in found if run.is_run]

    def records(self) -> list[RunRecord]:
        """The records of all ended runs, by id."""
        return [record for run in self.runs() if (record := run.record()) is not None]

    def others_records(self) -> list[RunRecord]:
        """The records of the other sweeps under the same results folder."""
        return [record for sibling in self.siblings() for record in sibling.records()]

    def ledger(self) -> pd.DataFrame:
        """The records as a table."""
        return ledger(self.records(), tuned=self.tuned(), cells=self.cells())

    def write_ledger(self) -> pd.DataFrame:
        """Rebuild `ledger.parquet` and `ledger.csv` from the records and return the table."""
        table = self.ledger()
        write_table(self.ledger_file, table)
        return table

    def tuned(self) -> tuple[str, ...]:
        """The knobs that the sweep tunes; raises InputError where there is no sweep.yaml."""
        return tuple(self.sweep().get("tune") or ())

    def varied(self) -> tuple[str, ...]:
        """The knobs that the sweep varies."""
        return tuple(self.sweep().get("vary") or ()) if self.sweep_file.exists() else ()

    def told_apart_by(self) -> tuple[str, ...]:
        """The knobs that tell runs apart beside shape, rate and seed: those that the sweep varies, tunes or searches."""
        if not self.sweep_file.exists():
            return ()
        values = self.sweep()
        searched = (values.get("search") or {}).get("space") or {}
        knobs = (*(values.get("vary") or {}), *(values.get("tune") or {}), *searched)
        return tuple(knob for knob in knobs if knob not in ("recipe.learning_rate", *SHAPE))

    def tags(self) -> tuple[str, ...]:
        """The tags that the sweep gives its runs in W&B."""
        return tuple(self.sweep().get("tags") or ()) if self.sweep_file.exists() else ()

    def cells(self) -> frozenset[str]:
        """The ids of the cells of the sweep as launched."""
        return frozenset(map(str, json_of(self.cells_file, list, "the next `study launch` writes it anew") or ()))

    def holder(self) -> dict[str, Any] | None:
        """Who has the lock, None where whoever has it has not said so yet, or does not any more."""
        return json_of(self.holder_file, dict, "remove it; it only says who runs the sweep")

    def read_ledger(self) -> pd.DataFrame:
        """The ledger as last written."""
        import pandas as pd

        if not self.ledger_file.exists():
            raise InputError.at(str(self.ledger_file), "does not exist; `study report` writes it from the records")
        return pd.read_parquet(self.ledger_file)

    def sweep(self) -> dict[str, Any]:
        """The resolved sweep as plain values."""
        return read_yaml(self.sweep_file)


def teacher_architecture(config: RunConfig) -> Architecture | None:
    """The architecture of the run that this one learns from; None where it has no teacher, or that one's record is not here."""
    return _architecture_of(config.recipe.taught_by)


def donor_depth(config: RunConfig) -> int | None:
    """The layers of the run whose weights this one begins with; None where there is none, or its record is not here."""
    architecture = _architecture_of(config.recipe.donor)
    return None if architecture is None else architecture.depth


def _architecture_of(named: Donor | Teacher | None) -> Architecture | None:
    record = None if named is None else RunFolder(named.folder).record()
    return None if record is None else record.config.architecture


def expected_flops(config: RunConfig, steps: int) -> float:
    """The `train_flops` of so many steps, with the forward passes of a teacher that is here."""
    per_token = config.flops_per_token_with(teacher_architecture(config))["train_flops"]
    return per_token * (steps * config.recipe.batch_tokens)


def read_as(file: Path, model: type[ModelT], remedy: str) -> ModelT | None:
    """The values that a file of JSON holds, None where there is none; raises InputError with the remedy where damaged."""
    values = json_of(file, dict, remedy)
    return None if values is None else model.parse(values, place=str(file))


def file_once(file: Path, record: Strict) -> bool:
    """Link a record into place; False where there was one already, which then stands."""
    return write_once(file, record.model_dump_json(indent=1, exclude_none=True).encode() + b"\n")


def _reason_in(file: Path, remedy: str) -> str | None:
    """The reason that a file gives, None where there is no file; raises InputError with the remedy where it is damaged."""
    values = json_of(file, dict, remedy)
    if values is not None and "reason" not in values:
        raise InputError.at(str(file), f"is damaged: it gives no reason; {remedy}")
    return None if values is None else str(values["reason"])


def write_table(file: Path, table: pd.DataFrame) -> None:
    """Write a table as `file`, which is Parquet, and as csv beside it; who reads meanwhile finds the whole old or new one."""
    contents = {file: table.to_parquet(None, index=False), file.with_suffix(".csv"): table.to_csv(index=False).encode()}
    for path, content in contents.items():
        write_atomically(path, content)


def metrics_row(line: bytes, place: str) -> dict[str, Any]:
    """A line of metrics.jsonl as a row; raises InputError at the place where it is none."""
    why = ""
    try:
        if isinstance(row := json.loads(line), dict):
            return row
    except ValueError as error:
        why = f" ({error})"
    raise InputError.at(place, f"is no row of metrics{why}, and nothing but that line is lost without it: take it out")


def checkpoint_name(step: int, digest: str) -> str:
    """The name of the checkpoint of a step, which tells its SHA-256."""
    return f"step-{step:010d}-{digest}.ckpt"


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted(folder.glob("step-*.ckpt"))


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint was saved after."""
    return int(checkpoint.name.split("-")[1])


def runs_of_id(run_id: str, results: Path) -> list[RunFolder]:
    """The folders, in every sweep under `results` that has it, of the run with an id, or with the one id that starts so.

    Less than LEAST_OF_ID characters name no run. Raises InputError where several ids start so.
    """
    if len(run_id) < LEAST_OF_ID or not run_id.isalnum():
        return []
    found = [run for path in sorted(results.glob(f"[!.]*/runs/{run_id}*")) if (run := RunFolder(path)).is_run]
    if len(ids := {run.run_id for run in found}) > 1:
        raise InputError.at(run_id, f"is the start of {len(ids)} runs' ids in {results}; give more of the id")
    return found


def sweeps_in(results: Path) -> dict[str, SweepFolder]:
    """The sweeps at a folder and up to two levels below it, in hidden folders none, by their paths from there.

    Raises InputError where there is none, and where there is no such folder.
    """
    if not results.is_dir():
        raise InputError.at(str(results), "is no folder; give one that `study launch` wrote to, or one of such folders")
    files = (file for pattern in (".", "[!.]*", "[!.]*/[!.]*") for file in sorted(results.glob(f"{pattern}/sweep.yaml")))
    folders = [SweepFolder(file.parent) for file in files]
    if not folders:
        raise InputError.at(str(results), "holds no sweep; give a folder that `study launch` wrote to, or one of such folders")
    return {
        folder.name if folder.path == results else folder.path.relative_to(results).as_posix(): folder for folder in folders
    }
