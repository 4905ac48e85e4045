"""The files that a run and a downstream score of one have in common: attempts, metrics, checkpoints, a record at the end.

What a folder lacks, the pack of its sweep gives (study.store.packed): who reads by `content`, `holds`, `names` and what is
built on them need not know in which form a sweep lies.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from study.base.durable_files import content_of, is_there, json_in, names_in, sync_folder, write_atomically, write_once
from study.base.errors import InputError
from study.base.schema import ModelT
from study.base.text import pasted
from study.store.metric_rows import Rows, newest_rows, whole_rows
from study.store.named_files import Folder, Inside, parsed
from study.store.packed import Packed, pack_of


class WorkFolder(Folder):
    """The files of what is done in attempts, a run or a score, by name."""

    work: ClassVar[str]
    """What is done, as messages call it."""
    done: ClassVar[str]
    """What is being done to it, as messages say it."""

    metrics_file = Inside("metrics.jsonl")
    """The logged metrics, one JSON object a line."""
    record_file = Inside("record.json")
    """The record, there exactly when the work has ended."""
    checkpoints = Inside("checkpoints")
    """The folder of the checkpoints."""
    log_file = Inside("log.txt")
    """What its processes printed."""
    lock_file = Inside(".lock")
    """The lock that the process working on it holds."""

    depth: ClassVar[int]
    """How many folders below `runs/` it lies."""

    def __init__(self, path: Path, packed: Packed | None = None) -> None:
        super().__init__(path)
        self._given = packed

    @property
    def packed(self) -> Packed | None:
        """The pack of the sweep that the folder belongs to, as given or as there is one now; None where there is none."""
        if self._given is not None:
            return self._given
        path = self.path if len(self.path.parents) > self.depth else Path(os.path.abspath(self.path))
        runs, *sweep = path.parents[self.depth - 1 : self.depth + 1] or [path]
        return pack_of(sweep[0]) if sweep and runs.name == "runs" else None

    def content(self, file: Path) -> bytes | None:
        """What one of the files here holds, None where there is none."""
        content = content_of(file)
        return content if content is not None or (packed := self.packed) is None else packed.content(self._packed_name(file))

    def holds(self, file: Path) -> bool:
        """Whether one of the files here is there."""
        return is_there(file) or ((packed := self.packed) is not None and self._packed_name(file) in packed)

    def standing(self, file: Path) -> Path:
        """What stands on the disk for one of the files here: itself, or the pack that has it."""
        return file if is_there(file) or (packed := self.packed) is None else packed.path

    def names(self, folder: Path) -> list[str]:
        """The names in one of the folders here, in order."""
        packed = self.packed
        return sorted({*names_in(folder), *(() if packed is None else packed.names_in(self._packed_name(folder)))})

    def read_as(self, file: Path, model: type[ModelT], remedy: str) -> ModelT | None:
        """The model that a JSON file here describes, None where there is none; raises InputError as `parsed` does."""
        return parsed(*self._json(file), model, remedy)

    def read_values(self, file: Path, remedy: str) -> dict[str, Any] | None:
        """The keys and values of a JSON file here, None where there is none; raises InputError as `json_in` does."""
        return json_in(*self._json(file), dict, remedy)

    def _json(self, file: Path) -> tuple[bytes | None, str]:
        """The JSON text of one of the files here, and its place for messages."""
        if (content := content_of(file)) is not None or (packed := self.packed) is None:
            return content, str(file)
        name = self._packed_name(file)
        return packed.json(name), f"{packed.path}: {name}"

    def _packed_name(self, file: Path) -> str:
        """How a pack names one of the files or folders here."""
        return "/".join(os.path.abspath(file).split(os.sep)[-self.depth - len(file.parts) + len(self.path.parts) :])

    @property
    def ended(self) -> bool:
        """Whether the record is there."""
        return self.holds(self.record_file)

    def refuse_packed(self) -> None:
        """Raise InputError where the record lies in a pack, which is only ever replaced as a whole."""
        if not is_there(self.record_file) and self.ended and (packed := self.packed) is not None:
            sweep = packed.path.parents[1]
            raise InputError.at(str(self.path), f"is packed, and stays as it is; first: study unpack {pasted(sweep)}")

    def claim_attempt(self, details: dict[str, Any]) -> int:
        """The number of this attempt, from 1; its file is linked into place, so that no two processes get one number."""
        number = self.attempts() + 1
        while not write_once(self.attempt_file(number), json.dumps(details, indent=1).encode()):
            number += 1
        return number

    def attempt_file(self, number: int) -> Path:
        """What an attempt says of itself: its process, where it runs, and since when."""
        return self.path / "attempts" / f"{number:04d}.json"

    def attempt(self, number: int) -> dict[str, Any]:
        """What the file of an attempt says."""
        return self.read_values(self.attempt_file(number), f"remove it once nobody works on the {self.work}") or {}

    def remove_leftovers(self) -> None:
        """Remove what killed attempts had not finished writing; only the owner may."""
        half_written = [file for file in written_in(self.checkpoints) if file.suffix == ".tmp"]
        for file in (*self.path.glob(".*.tmp"), *half_written):
            file.unlink(missing_ok=True)

    def attempts(self) -> int:
        """How many processes have started it: the number of its latest attempt."""
        names = self.names(self.path / "attempts")
        return max((int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json")), default=0)

    def aside(self, name: str) -> Path:
        """Where something lies that is put aside with the record: beside the latest attempt that has no record there yet."""
        attempts, number = self.path / "attempts", max(1, self.attempts())
        while is_there(attempts / f"{number:04d}.record.json"):
            number += 1
        return attempts / f"{number:04d}.{name}"

    def put_record_aside(self, note: dict[str, str]) -> Path:
        """Make the record that of a past attempt, with a note of why, so that the work goes on; where it is then.

        Raises InputError where it is packed.
        """
        self.refuse_packed()
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
        with self._opened_metrics() as lines:
            yield from (row for _, row in whole_rows(lines, str(self.metrics_file)))

    def newest_rows(self) -> list[dict[str, Any]]:
        """The last of the logged rows, some ten."""
        with self._opened_metrics() as lines:
            return newest_rows(lines, str(self.metrics_file))

    def rows(self) -> Rows:
        """The logged rows for one who follows them."""
        return Rows(self._opened_metrics, str(self.metrics_file))

    def _opened_metrics(self) -> BinaryIO:
        """The file of the metrics, an empty one where there is none."""
        try:
            return self.metrics_file.open("rb")
        except FileNotFoundError:
            return io.BytesIO(self.content(self.metrics_file) or b"")


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
