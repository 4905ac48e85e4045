"""Import any W&B runs, from offline folders or the server, as a ledger with whole histories.

<into>/
    ledger.parquet, ledger.csv    one row a run: its configuration under dotted keys, and its summary
    runs/<W&B run id>/history.jsonl   every logged row, in order
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wandb
from wandb.proto import wandb_internal_pb2

from study.base.durable_files import files_below, is_there, names_in, write_atomically
from study.base.errors import InputError
from study.base.schema import flatten, set_path
from study.config.run_config import RunConfig, fingerprint_of
from study.store.named_files import write_table
from study.store.records import cell_of, fill_left_out
from study.store.sweep_folder import SweepFolder
from study.tracking.mirror_state import ANSWER

if TYPE_CHECKING:
    import pandas as pd

BLOCK_BYTES = 32768
HEADER_BYTES = 7
HISTORY = "history.jsonl"
OURS = ("architecture", "recipe", "data", "masking", "seed")
"""The first key parts of this project's configurations."""
OUR_COLUMNS = ("run_id", "name", "group", "state", "history_rows", "exclusion", "cell")
"""The columns that an import adds to every run, whatever the run's own keys."""


@dataclass
class WandbHistory:
    """One W&B run with every logged row; `state` is W&B's word for its end."""

    run_id: str
    name: str = ""
    group: str = ""
    job_type: str = ""
    state: str = "crashed"
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Imported:
    """The numbers of imported runs and rows, and the ledger's path."""

    runs: int
    rows: int
    ledger: Path


def import_wandb(source: str, into: Path, group: str | None, tuned: tuple[str, ...]) -> Imported:
    """Write the runs of a source, or of one group, as a ledger with whole histories; mirrored answers are no runs.

    `source` is a folder with W&B's offline runs at any depth, or `entity/project` on the logged-in server. `tuned` keys may
    differ between runs of one cell, like the seed. Raises InputError without runs, and for the folder of a sweep.
    """
    _refuse_runs_of_ours(SweepFolder(into))
    folder = Path(source)
    if not folder.is_dir() and (folder.is_absolute() or source.startswith(".") or source.count("/") != 1):
        raise InputError.at(source, "is neither a folder here nor an entity/project on W&B's server")
    histories = offline_runs(folder) if folder.is_dir() else online_runs(source, group)
    runs = [run for run in histories if run.job_type != ANSWER and (group is None or run.group == group)]
    if not runs:
        raise InputError.at(source, "has no W&B run" + (f" of the group {group!r}" if group else ""))
    for run in runs:
        text = "".join(f"{json.dumps(_finite(row), allow_nan=False)}\n" for row in run.rows)
        write_atomically(into / "runs" / run.run_id / HISTORY, text.encode())
    file = SweepFolder(into).ledger_file
    write_table(file, of_one_kind(ledger_of(runs, tuned)))
    return Imported(len(runs), sum(len(run.rows) for run in runs), file)


def _refuse_runs_of_ours(folder: SweepFolder) -> None:
    """Raise InputError for a folder with a sweep, or with runs that no import wrote."""
    trained = (
        name
        for run in names_in(folder.runs_folder)
        for name in names_in(folder.runs_folder / run)
        if name != HISTORY and not name.startswith(".")
    )
    if is_there(folder.sweep_file) or any(trained):
        holds = "holds a sweep or runs trained here, whose ledger an import would overwrite"
        raise InputError.at(str(folder.path), f"{holds}; give another folder with --into")


def ledger_of(runs: Iterable[WandbHistory], tuned: tuple[str, ...]) -> pd.DataFrame:
    """One row a run, by id; `exclusion` is our record's, or W&B's state of an unfinished run."""
    import pandas as pd

    rows = [_row(run, tuned) for run in sorted(runs, key=lambda run: run.run_id)]
    return fill_left_out(pd.DataFrame(rows))


def _row(run: WandbHistory, tuned: tuple[str, ...]) -> dict[str, Any]:
    facts = {"run_id": run.run_id, "name": run.name, "group": run.group, "state": run.state, "history_rows": len(run.rows)}
    config = _beside_ours("config", flatten(run.config))
    last = _beside_ours("history", {key: value for row in run.rows for key, value in row.items() if not key.startswith("_")})
    summary = {key: value for key, value in flatten(run.summary).items() if not key.startswith("_")}
    ended = None if run.state == "finished" else f"W&B says {run.state}"
    if "data_fingerprint" in summary:  # a mirrored run has its own state
        row = facts | last | config | {"exclusion": None} | summary
    else:
        row = facts | last | config | _beside_ours("summary", summary) | {"exclusion": ended}
    return row | {"cell": _cell(row, config, tuned)}


def _beside_ours(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by key, with the part's name before keys of ours."""
    return {f"{part}.{key}" if key in OUR_COLUMNS else key: value for key, value in values.items()}


def _cell(row: Mapping[str, Any], config: Mapping[str, Any], tuned: tuple[str, ...]) -> str:
    """Return the cell of a run, by its configuration except knobs and seed if it is not ours."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if key.split(".")[0] in OURS:
            set_path(values, key, value)
    if isinstance(fingerprint := row.get("data_fingerprint"), str):
        try:
            return cell_of(RunConfig.parse(values), tuned, fingerprint)
        except InputError:
            pass  # another version's configuration: its keys still separate cells
    return fingerprint_of({key: value for key, value in config.items() if key not in tuned and key.split(".")[-1] != "seed"})


def of_one_kind(table: pd.DataFrame) -> pd.DataFrame:
    """Return a ledger whose columns of mixed types become text; missing values stay missing."""
    table = table.copy()
    objects = [name for name in table.columns if table[name].dtype == object]
    for name in objects:
        table[name] = table[name].map(lambda value: None if isinstance(value, float) and math.isnan(value) else value)
    for name in (name for name in objects if table[name].dropna().map(type).nunique() > 1):
        table[name] = table[name].map(lambda value: value if value is None or isinstance(value, str) else json.dumps(value))
    return table


def online_runs(project: str, group: str | None) -> Iterator[WandbHistory]:
    """Yield a project's runs on the server with whole histories (`scan_history`; `history` would sample 500 rows)."""
    try:
        for run in wandb.Api().runs(project, filters={"group": group} if group else None):
            config = {key: _numbers(value) for key, value in run.config.items() if not key.startswith("_")}
            rows, summary = [_numbers(row) for row in run.scan_history()], _numbers(dict(run.summary))
            yield WandbHistory(run.id, run.name, run.group or "", run.job_type or "", run.state, config, summary, rows)
    except (wandb.errors.CommError, wandb.errors.UsageError, ValueError) as error:
        server, why = wandb.setup().settings.base_url, " ".join(str(error).split())
        remedy = "see whether it answers, wandb login and the name entity/project, or give a folder of offline runs"
        raise InputError.at(project, f"cannot be read from the W&B server {server}: {why}; {remedy}") from None


_NO_JSON = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""W&B's spelling of numbers that JSON lacks."""


def _numbers(value: Any) -> Any:
    """Return values, also nested, with words for numbers replaced."""
    if isinstance(value, Mapping):
        return {key: _numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return _NO_JSON.get(value, value) if isinstance(value, str) else value


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def offline_runs(folder: Path) -> Iterator[WandbHistory]:
    """Yield the runs in W&B's own folders; parts of a resumed run are joined."""
    histories: dict[str, WandbHistory] = {}
    files = (file for file in files_below(folder) if fnmatch(file.name, "run-*.wandb"))
    for file in sorted(files, key=lambda file: (file.parent.name, file.name)):
        run_id = file.stem.removeprefix("run-")
        _read_file(file, histories.setdefault(run_id, WandbHistory(run_id)))
    yield from histories.values()


def _read_file(file: Path, run: WandbHistory) -> None:
    run.state = "crashed"
    for record in records_in(file.read_bytes()):
        if record.HasField("run"):
            run.name, run.group = record.run.display_name or run.name, record.run.run_group or run.group
            run.job_type = record.run.job_type or run.job_type
            run.config |= _items(record.run.config.update)
        elif record.HasField("config"):
            run.config |= _items(record.config.update)
        elif record.HasField("history"):
            run.rows.append(_items(record.history.item))
        elif record.HasField("summary"):
            run.summary |= _items(record.summary.update)
        elif record.HasField("exit"):
            run.state = "failed" if record.exit.exit_code else "finished"
    run.config.pop("_wandb", None)


def records_in(data: bytes) -> Iterator[Any]:
    """Yield the protobuf records of a .wandb file: LevelDB's log format in 32 KiB blocks after a 7-byte header.

    Reading stops at the first wrong checksum, as a kill leaves it.
    """
    position, parts = HEADER_BYTES, b""
    while position + HEADER_BYTES <= len(data):
        if (left := BLOCK_BYTES - position % BLOCK_BYTES) < HEADER_BYTES:
            position += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", data, position)
        part = data[position + HEADER_BYTES : position + HEADER_BYTES + length]
        if len(part) < length or zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
            return
        position += HEADER_BYTES + length
        parts = part if kind in (1, 2) else parts + part
        if kind in (1, 4):  # a full record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record


def _items(message: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): _numbers(json.loads(item.value_json)) for item in message}
