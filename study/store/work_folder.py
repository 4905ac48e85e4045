"""The files that runs and downstream scores share: attempts, metrics and their rows, checkpoints, and a final record.

A `metrics.jsonl` has one JSON object a line; a torn line is not yet a row. `content`, `holds` and `names` also read the sweep's
pack.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from pydantic_core import from_json

from study.base.durable_files import (
    check_finite,
    content_of,
    is_there,
    json_in,
    json_value,
    names_in,
    sync_folder,
    write_atomically,
    write_once,
)
from study.base.errors import InputError, shown
from study.base.schema import ModelT
from study.base.text import pasted
from study.store.named_files import Folder, Inside, parsed
from study.store.packed import Packed, pack_of

TAIL_BYTES = 4096
"""The bytes read from the end of a file for its newest rows."""

_NUMBERS = frozenset({int, float})


class WorkFolder(Folder):
    """The files of work done in attempts: a run or a score."""

    work: ClassVar[str]
    """The noun of the work in messages."""
    done: ClassVar[str]
    """The participle of the work in messages."""

    metrics_file = Inside("metrics.jsonl")
    """The logged metrics, one JSON object a line."""
    record_file = Inside("record.json")
    """The record, which exists exactly if the work has ended."""
    checkpoints = Inside("checkpoints")
    """The folder of the checkpoints."""
    log_file = Inside("log.txt")
    """The output of its processes."""
    lock_file = Inside(".lock")
    """The lock of the owning process."""

    depth: ClassVar[int]
    """The number of folders below `runs/`."""

    def __init__(self, path: Path, packed: Packed | None = None, bare: bool = False) -> None:
        """Open the work in a folder; if `bare`, the folder does not exist and the pack has all files."""
        super().__init__(path)
        self._given, self._bare = packed, bare

    @property
    def packed(self) -> Packed | None:
        """The pack of its sweep, given or current, or None."""
        if self._given is not None:
            return self._given
        path = self.path if len(self.path.parents) > self.depth else Path(os.path.abspath(self.path))
        runs, *sweep = path.parents[self.depth - 1 : self.depth + 1] or [path]
        return pack_of(sweep[0]) if sweep and runs.name == "runs" else None

    def content(self, file: Path) -> bytes | None:
        """Return the content of a file, None if missing."""
        content = self._loose(file)
        return content if content is not None or (packed := self.packed) is None else packed.content(self._packed_name(file))

    def holds(self, file: Path) -> bool:
        """Whether a file exists."""
        return self._is_loose(file) or ((packed := self.packed) is not None and self._packed_name(file) in packed)

    def standing(self, file: Path) -> Path:
        """Return the path of a file, or of the pack that holds it."""
        return file if self._is_loose(file) or (packed := self.packed) is None else packed.path

    def names(self, folder: Path) -> list[str]:
        """Return the sorted names in a folder."""
        packed, loose = self.packed, () if self._bare else names_in(folder)
        return sorted({*loose, *(() if packed is None else packed.names_in(self._packed_name(folder)))})

    def read_as(self, file: Path, model: type[ModelT], remedy: str) -> ModelT | None:
        """Parse a model from a JSON file, if there; raises InputError."""
        return parsed(*self._json(file), model, remedy)

    def read_values(self, file: Path, remedy: str) -> dict[str, Any] | None:
        """Read a JSON file as a mapping, if there; raises InputError."""
        return json_in(*self._json(file), dict, remedy)

    def _json(self, file: Path) -> tuple[bytes | None, str]:
        if (content := self._loose(file)) is not None or (packed := self.packed) is None:
            return content, str(file)
        name = self._packed_name(file)
        return packed.json(name), f"{packed.path}: {name}"

    def _loose(self, file: Path) -> bytes | None:
        """Return the content of a file outside the pack."""
        return None if self._bare else content_of(file)

    def _is_loose(self, file: Path) -> bool:
        return not self._bare and is_there(file)

    def _packed_name(self, file: Path) -> str:
        return "/".join(os.path.abspath(file).split(os.sep)[-self.depth - len(file.parts) + len(self.path.parts) :])

    @property
    def ended(self) -> bool:
        """Whether the record exists."""
        return self.holds(self.record_file)

    def refuse_packed(self) -> None:
        """Raise InputError if the record is packed."""
        if not is_there(self.record_file) and self.ended and (packed := self.packed) is not None:
            sweep = packed.path.parents[1]
            raise InputError.at(str(self.path), f"is packed and cannot be changed; first run: study unpack {pasted(sweep)}")

    def claim_attempt(self, details: dict[str, Any]) -> int:
        """Claim the next attempt's number, from 1."""
        number = self.attempts() + 1
        while not write_once(self.attempt_file(number), json.dumps(details, indent=1).encode()):
            number += 1
        return number

    def attempt_file(self, number: int) -> Path:
        """Return the file of an attempt: process, machine and start."""
        return self.path / "attempts" / f"{number:04d}.json"

    def attempt(self, number: int) -> dict[str, Any]:
        """Return the content of an attempt's file."""
        return self.read_values(self.attempt_file(number), f"remove it once nobody works on the {self.work}") or {}

    def remove_leftovers(self) -> None:
        """Remove half-written files of killed attempts; only the owner may."""
        half_written = [file for file in written_in(self.checkpoints) if file.suffix == ".tmp"]
        for file in (*self.path.glob(".*.tmp"), *half_written):
            if not file.is_dir():
                file.unlink(missing_ok=True)

    def refuse_linked_checkpoints(self) -> None:
        """Raise InputError if the folder of checkpoints is a link."""
        if self.checkpoints.is_symlink():
            remedy = f"remove the link; a {self.work} keeps its checkpoints in its own folder, and deletes them when it ends"
            raise InputError.at(str(self.checkpoints), f"is a link; {remedy}")

    def attempts(self) -> int:
        """Return the number of the latest attempt."""
        names = self.names(self.path / "attempts")
        return max((int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json")), default=0)

    def aside(self, name: str) -> Path:
        """Return the path of a file put aside with the record."""
        attempts, number = self.path / "attempts", max(1, self.attempts())
        while is_there(attempts / f"{number:04d}.record.json"):
            number += 1
        return attempts / f"{number:04d}.{name}"

    def put_record_aside(self, note: dict[str, str]) -> Path:
        """Move the record to its attempt with a note; returns its new path.

        Raises InputError if packed.
        """
        self.refuse_packed()
        kept = self.aside("record.json")
        kept.parent.mkdir(exist_ok=True)
        write_atomically(self.aside("note.json"), json.dumps(note, indent=1).encode() + b"\n")
        os.rename(self.record_file, kept)
        sync_folder(kept.parent)
        sync_folder(self.path)
        return kept

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the logged rows, up to a torn line; raises InputError for an invalid one."""
        with self._opened_metrics() as lines:
            yield from (row for _, row in whole_rows(lines, str(self.metrics_file)))

    def newest_rows(self) -> list[dict[str, Any]]:
        """About the last ten logged rows."""
        with self._opened_metrics() as lines:
            return newest_rows(lines, str(self.metrics_file))

    def rows(self) -> Rows:
        """Return the logged rows, to follow as they grow."""
        return Rows(self._opened_metrics, str(self.metrics_file))

    def _opened_metrics(self) -> BinaryIO:
        try:
            check_finite(self.metrics_file)
            return self.metrics_file.open("rb")
        except FileNotFoundError:
            return io.BytesIO(self.content(self.metrics_file) or b"")


TAUGHT = "taught.npz"
"""What the teacher of a score says of unlabelled text."""

_WRITTEN = re.compile(rf"step-\d{{10}}-[0-9a-f]+\.(ckpt|damaged)|\.step-[a-z0-9_]{{8}}\.tmp|{re.escape(TAUGHT)}")
"""The names that saving leaves: checkpoints whole or put aside, those cut short by a kill, and what a teacher said."""


def written_in(checkpoints: Path) -> list[Path]:
    """Return the files that runs wrote into a checkpoint folder, without links."""
    if checkpoints.is_symlink():
        return []
    files = (checkpoints / name for name in names_in(checkpoints) if _WRITTEN.fullmatch(name))
    return [file for file in files if _is_plain(file)]


def _is_plain(file: Path) -> bool:
    """Whether a file is no link, folder or pipe."""
    try:
        return stat.S_ISREG(file.lstat().st_mode)
    except FileNotFoundError:  # another rank may have moved it
        return False


def checkpoint_name(step: int, digest: str) -> str:
    """Return the name of a step's checkpoint, with its SHA-256."""
    return f"step-{step:010d}-{digest}.ckpt"


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first."""
    return [file for file in written_in(folder) if file.suffix == ".ckpt"]


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was saved."""
    return int(checkpoint.name.split("-")[1])


def whole_rows(lines: BinaryIO, place: str, lines_before: int = 0) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each line with its row, up to a torn line, numbered after `lines_before`.

    Raises InputError for an invalid line.
    """
    for number, line in enumerate(lines, lines_before + 1):
        if not line.endswith(b"\n"):
            return
        yield line, _row(line, f"{place}:{number}")


def line_of(row: Mapping[str, float]) -> bytes:
    """Return a row as a line of JSON, without metrics that are NaN or infinite."""
    finite = {key: value for key, value in row.items() if math.isfinite(value)}
    return json.dumps(finite, allow_nan=False).encode() + b"\n"


class Rows:
    """The rows of a growing file, each once, without a torn last line.

    `opened` opens the file, empty if missing; `place` names it.
    """

    def __init__(self, opened: Callable[[], BinaryIO], place: str) -> None:
        self._opened, self._place = opened, place
        self.count = 0
        self.bytes_seen = 0
        """The size of the file at the last call of `new`."""
        self._offset = 0
        self._last = b""

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the rows since the last call; raises InputError for an invalid one."""
        with self._opened() as lines:
            self.bytes_seen = lines.seek(0, os.SEEK_END)
            lines.seek(self._offset)
            for line, row in whole_rows(lines, self._place, self.count):
                self._offset, self._last = self._offset + len(line), line
                self.count += 1
                yield row

    def rewritten(self) -> bool:
        """Whether the last row has moved, as when a resumed run drops rows to repeat."""
        if not self._last:
            return False
        with self._opened() as lines:
            lines.seek(self._offset - len(self._last))
            return lines.read(len(self._last)) != self._last


def size_of(file: Path) -> int:
    """Return the size of a file in bytes, 0 if missing."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def newest_rows(lines: BinaryIO, place: str) -> list[dict[str, Any]]:
    """About the last ten rows."""
    start = max(0, lines.seek(0, os.SEEK_END) - TAIL_BYTES)
    lines.seek(start)
    tail = lines.read().split(b"\n")[1 if start else 0 : -1]
    return [_row(line, f"{place}, near its end") for line in tail]


def newest_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the newest value of each metric in ordered rows."""
    values: dict[str, Any] = {}
    for row in rows:
        values |= row
    return values


def _row(line: bytes, place: str) -> dict[str, Any]:
    """Parse a line; raises InputError.

    Pydantic's parser is many times as fast as the standard library's, but does not see a key that appears twice.
    """
    with suppress(ValueError):  # said by the parser below
        row = from_json(line)
        if isinstance(row, dict) and len(row) == line.count(b'":') and _NUMBERS.issuperset(map(type, row.values())):
            return row
    why = ""
    try:
        if isinstance(row := json_value(line), dict):
            odd = [key for key, value in row.items() if type(value) not in _NUMBERS]
            if not odd:
                return row
            why = f" ({odd[0]} is {shown(row[odd[0]])}, not a number)"
    except ValueError as error:
        why = f" ({error})"
    raise InputError.at(place, f"is not a row of metrics{why}; remove that line, nothing else is lost")
