"""Run records and the ledger; the only module that knows what a results folder looks like on disk.

results/<sweep>/
    sweep.yaml, cells.json      the sweep as launched, and the ids of its cells
    runs/<run id>/
        config.yaml             written first
        metrics.jsonl           one line a logged step, during
        attempts/0001.json      one file a start of the run's process; the latest start owns the run (study.ownership)
        attempts/0001.record.json   the record of that start, where a person had the run tried again
        checkpoints/            kept until the run is completed
        orders.json             what its sweep asks of a run beside its configuration; nothing that moves its numbers
        prune.json              why the search that the run belongs to wants it to stop
        branch-<step>/          its state where a shorter budget leaves it, until that one has it
        trunk.json              which run trained the first steps of this one, and how many, where one did
        validation_losses.npy   nats summed over the masked tokens of each validation sequence, float64
        weights.safetensors     the final weights
        log.txt                 what the run's processes printed
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
import errno
import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from study.config import RunConfig, fingerprint_of, read_yaml
from study.counting import parameters
from study.errors import InputError
from study.schema import Count, Strict, flatten

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

T = TypeVar("T")

State = Literal["COMPLETED", "FAILED", "DIVERGED", "HUNG", "OOM", "PRUNED"]
"""How a run ended: COMPLETED reached its target; DIVERGED met a NaN or infinite loss; HUNG took no step for too long; OOM ran
out of memory; PRUNED was stopped by its search; else FAILED."""

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The errors of a write that no waiting mends: no space, no quota, or a file larger than it may be."""

OUT_OF_REACH = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOENT,
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EBUSY,
    }
)
"""The errors of a write into a folder that is not there for a while, as of a file server that restarts."""

PATIENCE_SECONDS = 60.0
"""How long a write is tried again while its folder is out of reach."""

Kernels = Literal["eager", "onednn", "compiled", "graphed"]
"""How a step's kernels run: torch's own one by one, the same but for the fp32 products of a CPU, which go through oneDNN,
fused by torch.compile, or fused and recorded as one CUDA graph.

All but the first change the last bits of a run; validation is never fused.
"""


class Environment(Strict):
    """What a run ran on; it can change the last bits of its numbers and all of its timings.

    `devices` are those of all `nodes`. Where `sharing` is above 1, so many runs had each device at a time, and throughput is
    that of a share.
    """

    hostname: str
    device: str
    processor: str
    devices: int = 1
    nodes: int = 1
    sharing: int = 1
    threads: int
    precision: Literal["fp32", "bf16"]
    kernels: Kernels = "eager"
    python: str
    torch: str
    lightning: str
    study: str


class RunRecord(Strict):
    """The one row that a finished or failed run leaves; what was not reached is None, never zero.

    `tokens` were trained on, of `train_tokens` that the corpus has: more means that text was repeated. Losses are nats per
    masked token on the fixed validation set with its fixed masks; `loss_standard_error_nats` is the
    standard error over its sequences. `train_flops` and its namesakes are totals over the steps done, by the conventions of
    study.counting. `wall_seconds` sums the attempts' training time, validation included.

    A run that branched from a `trunk` (the id of a run of the same sweep) after its step `trunk_step` is in all its numbers
    what it would be if it had trained alone, but for what it cost: it trained on `spent_tokens` itself, in `wall_seconds`, at
    `tokens_per_second`.
    """

    schema_version: Literal[1] = 1
    run_id: str
    sweep: str
    state: State
    reason: str | None = None
    config: RunConfig
    data_fingerprint: str
    steps: int
    tokens: int
    spent_tokens: int | None = None
    trunk: str | None = None
    trunk_step: int | None = None
    train_tokens: int | None = None
    loss_nats: float | None = None
    loss_standard_error_nats: float | None = None
    accuracy: float | None = None
    validation_masked_tokens: int | None = None
    unigram_entropy_nats: float | None = None
    stuck_at_unigram: bool | None = None
    train_loss_nats: float | None = None
    parameters: int
    parameters_encoder: int
    parameters_non_embedding: int
    train_flops: float
    train_flops_dense_head: float
    train_flops_6n: float
    train_flops_6n_non_embedding: float
    wall_seconds: float | None = None
    tokens_per_second: float | None = None
    peak_memory_bytes: int | None = None
    attempts: int
    started_at: str
    finished_at: str
    environment: Environment | None = None
    excluded: str | None = Field(default=None, exclude=True)
    """Why a person leaves the run out: an annotation beside the record, and no part of it."""

    @property
    def spent_share(self) -> float:
        """The share of its tokens, and so of its FLOPs, that the run trained on itself: below 1 where it has a trunk."""
        return 1.0 if self.spent_tokens is None or not self.tokens else self.spent_tokens / self.tokens

    @property
    def exclusion(self) -> str | None:
        """Why fits and comparisons leave this run out, None where they do not."""
        if self.excluded is not None:
            return f"excluded: {self.excluded}"
        if self.state != "COMPLETED":
            return f"{self.state}: {self.reason}" if self.reason else self.state
        if self.stuck_at_unigram:
            return f"stuck at the unigram entropy ({self.loss_nats:.2f} of {self.unigram_entropy_nats:.2f} nats)"
        return None


class Orders(Strict):
    """What a sweep asks of a run: after which steps to leave its state for others; how often to validate if not as usual."""

    branch_steps: tuple[Count, ...] = ()
    validations: Count | None = None


class Trunk(Strict):
    """The run that trained the first `step` steps of another one."""

    run_id: str
    step: Count


class RunFolder:
    """The files of one run, by name; creates nothing until asked to write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_id(self) -> str:
        """The run's id, which names the folder."""
        return self.path.name

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        """The logged metrics, one JSON object a line."""
        return self.path / "metrics.jsonl"

    @property
    def record_file(self) -> Path:
        """The record, there exactly when the run has ended."""
        return self.path / "record.json"

    @property
    def exclusion_file(self) -> Path:
        """Why a person leaves the run out of fits, there where one does."""
        return self.path / "exclusion.json"

    @property
    def validation_losses_file(self) -> Path:
        """Nats summed over the masked tokens of each validation sequence."""
        return self.path / "validation_losses.npy"

    @property
    def weights_file(self) -> Path:
        """The final weights of a completed run."""
        return self.path / "weights.safetensors"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def orders_file(self) -> Path:
        """What its sweep asks of the run."""
        return self.path / "orders.json"

    @property
    def prune_file(self) -> Path:
        """Why the run is to stop before its end, there where it is."""
        return self.path / "prune.json"

    @property
    def trunk_file(self) -> Path:
        """Which run trained the first steps of this one."""
        return self.path / "trunk.json"

    @property
    def log_file(self) -> Path:
        """What the run's processes printed."""
        return self.path / "log.txt"

    @property
    def scores(self) -> Path:
        """The folder of the downstream scores."""
        return self.path / "scores"

    @property
    def lock_file(self) -> Path:
        """The lock that the process training this run holds."""
        return self.path / ".lock"

    def write_config(self, config: RunConfig) -> None:
        """Write the configuration once; a run folder never changes its configuration."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.config_file.exists():
            write_atomically(self.config_file, config.to_yaml().encode())

    def config(self) -> RunConfig:
        """The configuration that the folder holds."""
        return RunConfig.from_yaml(self.config_file)

    def branch(self, step: int) -> Path:
        """The folder of this run's state after a step at which a shorter budget leaves it."""
        return self.path / f"branch-{step:010d}"

    def remove_branches(self) -> None:
        """Remove the states that were left for others."""
        for branch in self.path.glob("branch-*"):
            shutil.rmtree(branch, ignore_errors=True)

    def write_orders(self, orders: Orders) -> None:
        """Say what the sweep asks of the run."""
        write_atomically(self.orders_file, orders.model_dump_json(exclude_none=True).encode())

    def orders(self) -> Orders:
        """What the sweep asks of the run."""
        return Orders.parse(json.loads(self.orders_file.read_bytes())) if self.orders_file.exists() else Orders()

    def write_prune(self, reason: str) -> None:
        """Tell the run to stop before its end."""
        write_atomically(self.prune_file, json.dumps({"reason": reason}).encode())

    def prune(self) -> str | None:
        """Why the run is to stop before its end, None where it is not."""
        return str(json.loads(self.prune_file.read_bytes())["reason"]) if self.prune_file.exists() else None

    def write_trunk(self, trunk: Trunk | None) -> None:
        """Say which run trained the first steps, None where none did."""
        if trunk is None:
            self.trunk_file.unlink(missing_ok=True)
        else:
            write_atomically(self.trunk_file, trunk.model_dump_json().encode())

    def trunk(self) -> Trunk | None:
        """Which run trained the first steps, None where none did."""
        return Trunk.parse(json.loads(self.trunk_file.read_bytes())) if self.trunk_file.exists() else None

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
        for file in (*self.path.glob(".*.tmp"), *self.checkpoints.glob(".*.tmp"), *self.path.glob("rank-*.json")):
            file.unlink(missing_ok=True)

    def attempt_file(self, number: int) -> Path:
        """What an attempt says of itself: its process, where it runs, and since when."""
        return self.path / "attempts" / f"{number:04d}.json"

    def attempt(self, number: int) -> dict[str, Any]:
        """What the file of an attempt says."""
        details: dict[str, Any] = json.loads(self.attempt_file(number).read_bytes())
        return details

    def attempts(self) -> int:
        """How many processes have started this run: the number of its latest attempt."""
        try:
            names = os.listdir(self.path / "attempts")
        except FileNotFoundError:
            return 0
        return max((int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json")), default=0)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The logged rows in order; a line torn by a kill ends them."""
        if not self.metrics_file.exists():
            return
        with self.metrics_file.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                yield json.loads(line)

    def file_record(self, record: RunRecord) -> bool:
        """Link the record into place; False where the run already had one, which then stands."""
        return write_once(self.record_file, record.model_dump_json(indent=1, exclude_none=True).encode() + b"\n")

    def record(self) -> RunRecord | None:
        """The record, None while the run has not ended."""
        try:
            text = self.record_file.read_bytes()
        except FileNotFoundError:
            return None
        try:
            record = RunRecord.parse(json.loads(text), place=str(self.record_file))
        except ValueError as error:
            raise InputError.at(
                str(self.record_file), f"is not a record: {error}; move it away to train the run again"
            ) from None
        excluded = self.excluded()
        return record if excluded is None else record.model_copy(update={"excluded": excluded})

    def put_record_aside(self, note: dict[str, str]) -> Path:
        """Make the record that of a past attempt, with a note of why, so that the run is trained whole; where it is then."""
        number = 1
        while (kept := self.path / "attempts" / f"{number:04d}.record.json").exists() or number < self.attempts():
            number += 1
        kept.parent.mkdir(exist_ok=True)
        write_atomically(kept.with_name(f"{number:04d}.note.json"), json.dumps(note, indent=1).encode() + b"\n")
        os.link(self.record_file, kept)
        self.prune_file.unlink(missing_ok=True)
        self.record_file.unlink()
        sync_folder(self.path)
        return kept

    def excluded(self) -> str | None:
        """Why a person leaves this run out, None where nobody does."""
        try:
            return str(json.loads(self.exclusion_file.read_bytes())["reason"])
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError):
            raise InputError.at(str(self.exclusion_file), "is damaged; `study exclude` writes it anew") from None

    def write_validation_losses(self, losses: NDArray[np.float64]) -> None:
        """Keep the summed nats of each validation sequence, for paired differences between runs."""
        buffer = io.BytesIO()
        np.save(buffer, losses.astype(np.float64), allow_pickle=False)
        write_atomically(self.validation_losses_file, buffer.getvalue())

    def validation_losses(self) -> NDArray[np.float64]:
        """The summed nats of each validation sequence of a completed run."""
        losses: NDArray[np.float64] = np.load(self.validation_losses_file, allow_pickle=False)
        return losses


class SweepFolder:
    """The files of one sweep under `results/`, by name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The sweep's name, which names the folder."""
        return self.path.name

    @property
    def sweep_file(self) -> Path:
        """The resolved sweep as it was launched."""
        return self.path / "sweep.yaml"

    @property
    def cells_file(self) -> Path:
        """The ids of the cells of the sweep as launched; empty for a search, which has none."""
        return self.path / "cells.json"

    @property
    def lock_file(self) -> Path:
        """The lock that the sweep's coordinator holds."""
        return self.path / ".coordinator.lock"

    @property
    def holder_file(self) -> Path:
        """Who holds the lock, for the message to a second launcher."""
        return self.path / ".coordinator.json"

    @property
    def stop_file(self) -> Path:
        """There where a person asks the coordinator to stop."""
        return self.path / ".coordinator.stop"

    @property
    def homes(self) -> Path:
        """The folder of links to where the runs that several sweeps share are trained."""
        return self.path.parent / ".homes"

    @property
    def ledger_file(self) -> Path:
        """All records as a table."""
        return self.path / "ledger.parquet"

    @property
    def scores_file(self) -> Path:
        """All downstream scores at their chosen knobs as a table."""
        return self.path / "scores.parquet"

    @property
    def scoring_lock_file(self) -> Path:
        """The lock that whoever makes downstream scores of the sweep holds."""
        return self.path / ".scoring.lock"

    @property
    def baselines(self) -> Path:
        """The folder of what downstream tasks give without an encoder."""
        return self.path / "baselines"

    @property
    def fits(self) -> Path:
        """The folder of the fits."""
        return self.path / "fits"

    @property
    def figures(self) -> Path:
        """The folder of the figures."""
        return self.path / "figures"

    @property
    def answer_file(self) -> Path:
        """What the ledger says to the sweep's question."""
        return self.path / "answer.md"

    @property
    def wandb(self) -> Path:
        """The folder of the W&B mirror."""
        return self.path / "wandb"

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

    def runs(self) -> list[RunFolder]:
        """The runs that were started or only planned here, by id."""
        return [RunFolder(file.parent) for file in sorted((self.path / "runs").glob("*/config.yaml"))]

    def records(self) -> list[RunRecord]:
        """The records of all ended runs, by id."""
        return [record for run in self.runs() if (record := run.record()) is not None]

    def write_ledger(self) -> pd.DataFrame:
        """Rebuild `ledger.parquet` and `ledger.csv` from the records and return the table."""
        table = ledger(self.records(), tuned=tuple(self.sweep().get("tune") or ()), cells=self.cells())
        with tempfile.TemporaryDirectory(dir=self.path) as folder:
            table.to_parquet(Path(folder) / "ledger.parquet", index=False)
            write_atomically(self.ledger_file, (Path(folder) / "ledger.parquet").read_bytes())
        write_atomically(self.ledger_file.with_suffix(".csv"), table.to_csv(index=False).encode())
        return table

    def tags(self) -> tuple[str, ...]:
        """The tags that the sweep gives its runs in W&B."""
        return tuple(self.sweep().get("tags") or ()) if self.sweep_file.exists() else ()

    def cells(self) -> frozenset[str]:
        """The ids of the cells of the sweep as launched."""
        return frozenset(json.loads(self.cells_file.read_bytes())) if self.cells_file.exists() else frozenset()

    def read_ledger(self) -> pd.DataFrame:
        """The ledger as last written."""
        import pandas as pd

        if not self.ledger_file.exists():
            raise InputError.at(str(self.ledger_file), "does not exist; `study report` writes it from the records")
        return pd.read_parquet(self.ledger_file)

    def sweep(self) -> dict[str, Any]:
        """The resolved sweep as plain values."""
        return read_yaml(self.sweep_file)


def ledger(records: list[RunRecord], tuned: tuple[str, ...] = (), cells: frozenset[str] = frozenset()) -> pd.DataFrame:
    """All records as a table: configuration keys dotted (`architecture.depth`), results by their names, missing as missing.

    `cell` is shared by the runs that differ only in the `tuned` knobs and the seed; `exclusion` says why fits leave a row
    out and is missing where they do not; a run of none of the sweep's `cells`, where it has any, is left out too. What the
    runs spent themselves is told where any of them has a trunk. Rows are ordered by size, budget, learning rate and seed, so
    that the same records give the same bytes.
    """
    import pandas as pd

    rows = []
    branched = any(record.trunk is not None for record in records)
    for record in sorted(records, key=lambda record: record.run_id):
        unshown = {"config", "environment", "schema_version"} | (set() if branched else {"spent_tokens", "trunk", "trunk_step"})
        values = record.model_dump(mode="json", exclude=unshown)
        environment = {} if record.environment is None else flatten(record.environment.model_dump(), "environment")
        cell = cell_of(record.config, tuned, record.data_fingerprint)
        foreign = "not part of the sweep as last launched" if cells and cell not in cells else None
        names = {
            "shape": record.config.architecture.shape_name,
            "cell": cell,
            "target_tokens": record.config.tokens,
            "exclusion": record.exclusion or foreign,
        }
        if record.excluded is not None:
            names["excluded_by_hand"] = record.excluded
        rows.append(values | flatten(record.config.to_dict()) | environment | names)
    columns = ["run_id", "parameters_non_embedding", "architecture.depth", "tokens", "recipe.learning_rate", "seed"]
    if not rows:
        return pd.DataFrame(columns=columns)
    return pd.DataFrame(rows).sort_values([*columns[1:], "run_id"], ignore_index=True)


def cell_of(config: RunConfig, tuned: tuple[str, ...], data_fingerprint: str) -> str:
    """The name of a run's cell: the fingerprint of its data and of its configuration without the tuned knobs and the seed."""
    shared = {key: value for key, value in flatten(config.without_paths()).items() if key not in (*tuned, "seed")}
    return fingerprint_of(shared | {"data_fingerprint": data_fingerprint})


def counts_of(config: RunConfig, steps: int) -> dict[str, Any]:
    """The parameter totals and the FLOPs of `steps` optimiser steps, as a record names them."""
    tokens = steps * config.recipe.batch_tokens
    flops = {convention: per_token * tokens for convention, per_token in config.flops_per_token.items()}
    return parameters(config.architecture).totals() | flops


def timestamp() -> str:
    """The time as records give it: UTC in ISO 8601, in whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a reader, a kill or a power cut meets the old content or the new, never a part."""
    temporary = _durable_sibling(path, content)
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_once(path: Path, content: bytes) -> bool:
    """Create a file with this content, whole; False where it was there already (the first writer wins)."""
    temporary = _durable_sibling(path, content)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)
    sync_folder(path.parent)
    return True


def patiently(write: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """What a write gives, tried again while its folder is out of reach; any other error, a full disk's too, is told at once."""
    end, pause = time.monotonic() + seconds, 0.05
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in OUT_OF_REACH or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _durable_sibling(path: Path, content: bytes) -> Path:
    """A temporary file beside `path` with this content, on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    return Path(name)
