"""Reads what wandb wrote offline."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

from study.config.run_config import fingerprint_of
from study.store.sweep_folder import SweepFolder
from study.tracking.mirror_state import left_behind
from tests.fake_runs import FakeRun


def records_in(file: Path) -> Iterator[Any]:
    """The protobuf records of a .wandb file: LevelDB's log format, in blocks of 32 KiB, after a header of 7 bytes."""
    data, position, parts = file.read_bytes(), 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def items(message: Any) -> dict[str, Any]:
    """The keys and values of a part of a record."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in message}


class Written:
    """What the one offline W&B folder under an id, by default of the answer, holds."""

    def __init__(self, folder: SweepFolder, wandb_id: str | None = None) -> None:
        wandb_id = wandb_id or fingerprint_of({"answer of": folder.name})
        folders = list(folder.wandb.glob(f"*run-*-{wandb_id}*"))
        assert len(folders) == 1, folders
        assert folders[0].name.startswith("offline-run-")
        self.files = folders[0] / "files"
        self.records = list(records_in(folders[0] / f"run-{wandb_id}.wandb"))
        self.runs = [record.run for record in self.records if record.HasField("run")]
        sent = (record.request.log_artifact.artifact for record in self.records if record.HasField("request"))
        logged = [record.artifact for record in self.records if record.HasField("artifact")]
        self.artifacts = {one.name: {entry.path for entry in one.manifest.contents} for one in (*logged, *sent) if one.name}


class Held(Written):
    """What the one offline W&B folder of a run holds."""

    def __init__(self, folder: SweepFolder, run: FakeRun) -> None:
        super().__init__(folder, run.folder.run_id)
        records = self.records
        history = [items(record.history.item) for record in records if record.HasField("history")]
        assert [row["_step"] for row in history] == list(range(len(history)))
        self.rows = [{key: value for key, value in row.items() if not key.startswith("_")} for row in history]
        self.config: dict[str, Any] = {}
        for record in records:
            self.config |= items(record.run.config.update) | items(record.config.update)
        self.summary = {key: value for record in records for key, value in items(record.summary.update).items()}
        self.exit_codes = [record.exit.exit_code for record in records if record.HasField("exit")]


def assert_all_there(folder: SweepFolder, run: FakeRun) -> None:
    """A completed run has one offline W&B run, with exactly its rows, and nothing is left behind."""
    held = Held(folder, run)
    assert held.rows == list(run.folder.metrics())
    assert held.exit_codes == [0]
    assert left_behind(folder) == []
