"""The files that a run and a downstream score of one have in common: attempts, metrics, checkpoints, a record at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from study.base.durable_files import is_there, names_in, sync_folder, write_atomically, write_once
from study.store.metric_rows import newest_rows, whole_rows
from study.store.named_files import Folder, Inside


class WorkFolder(Folder):
    """The files of what is done in attempts, a run or a score, by name."""

    metrics_file = Inside("metrics.jsonl")
    """The logged metrics, one JSON object a line."""
    record_file = Inside("record.json")
    """The record, there exactly when the work has ended."""
    checkpoints = Inside("checkpoints")
    """The folder of the checkpoints."""
    log_file = Inside("log.txt")
    """What its processes printed."""

    def claim_attempt(self, details: dict[str, Any]) -> int:
        """The number of this attempt, from 1; its file is linked into place, so that no two processes get one number."""
        number = self.attempts() + 1
        while not write_once(self.attempt_file(number), json.dumps(details, indent=1).encode()):
            number += 1
        return number

    def attempt_file(self, number: int) -> Path:
        """What an attempt says of itself: its process, where it runs, and since when."""
        return self.path / "attempts" / f"{number:04d}.json"

    def attempts(self) -> int:
        """How many processes have started it: the number of its latest attempt."""
        names = names_in(self.path / "attempts")
        return max((int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json")), default=0)

    def aside(self, name: str) -> Path:
        """Where something lies that is put aside with the record: beside the latest attempt that has no record there yet."""
        attempts, number = self.path / "attempts", max(1, self.attempts())
        while is_there(attempts / f"{number:04d}.record.json"):
            number += 1
        return attempts / f"{number:04d}.{name}"

    def put_record_aside(self, note: dict[str, str]) -> Path:
        """Make the record that of a past attempt, with a note of why, so that the work goes on; where it is then."""
        kept = self.aside("record.json")
        kept.parent.mkdir(exist_ok=True)
        write_atomically(self.aside("note.json"), json.dumps(note, indent=1).encode() + b"\n")
        os.link(self.record_file, kept)
        sync_folder(kept.parent)
        self.record_file.unlink()
        sync_folder(self.path)
        return kept

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The logged rows in order; a line torn by a kill ends them.

        Raises InputError at a whole line that is no row.
        """
        return (row for _, row in whole_rows(self.metrics_file))

    def newest_rows(self) -> list[dict[str, Any]]:
        """The last of the logged rows, some ten."""
        return newest_rows(self.metrics_file)


_WRITTEN = ("step-*.ckpt", "step-*.damaged", ".step-*.tmp")
"""The names of what saving checkpoints leaves: whole ones, ones put aside, and what a kill has cut short."""


def written_in(checkpoints: Path) -> list[Path]:
    """The files that runs wrote into a folder of checkpoints; none where the folder is a link, and none that is a link."""
    if checkpoints.is_symlink():
        return []
    files = (checkpoints / name for name in names_in(checkpoints) if any(fnmatch(name, pattern) for pattern in _WRITTEN))
    return [file for file in files if not file.is_symlink()]


def checkpoint_name(step: int, digest: str) -> str:
    """The name of the checkpoint of a step, which tells its SHA-256."""
    return f"step-{step:010d}-{digest}.ckpt"


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints that runs wrote into a folder, oldest first."""
    return [file for file in written_in(folder) if file.suffix == ".ckpt"]


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint was saved after."""
    return int(checkpoint.name.split("-")[1])
