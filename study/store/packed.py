"""A packed sweep: the files of its run folders in a few tables, read under the same names.

results/<sweep>/packed/<number>/    the highest number counts; there are two only during replacement
    manifest.json                   the version of the format, and the SHA-256 of each table
    records.jsonl.gz                run records, one a line
    scores.jsonl.gz                 downstream score records
    attempts.jsonl.gz               the process, machine and time of each start; score_attempts.jsonl.gz: the same of scores
    curves.parquet                  the rows of each metrics.jsonl; score_curves.parquet: the same of scores
    validation_losses.parquet       a vector a run
    files.parquet                   every other file verbatim: configurations, orders, trunks, past attempts

A table is read on first use; its SHA-256 must match. Files of a run folder take precedence over a pack, so half-removed folders
stay whole, packed runs can be excluded, and later runs lie beside the pack.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cached_property, lru_cache
from pathlib import Path

from study.base.durable_files import content_of, names_in
from study.base.errors import InputError
from study.base.schema import Strict
from study.store.named_files import parsed
from study.store.packed_tables import FILES, RECORDS, TABLES, Entries, PackedTable

PACKED = "packed"
"""The folder of a sweep's packs."""

MANIFEST = "manifest.json"

FORMAT = 1
"""The version of the format that is written, and the only one that is read."""

KEPT_OPEN = 32
"""The number of packs kept in memory, for dashboards that read the same sweeps repeatedly."""

RESTORE = "restore it from a copy of the sweep, such as a backup or git checkout"


class Manifest(Strict):
    """The SHA-256 of each table by its file's name."""

    format: int
    sha256: dict[str, str]


class Packed:
    """One pack; names are file paths below `runs/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[PackedTable, Entries | None] = {}
        self._folders: dict[PackedTable, dict[str, set[str]]] = {}

    def content(self, name: str) -> bytes | None:
        """Return a file's content, None if not packed."""
        entries = self._holding(name)
        return None if entries is None else entries.content(name)

    def json(self, name: str) -> bytes | None:
        """Return a file's JSON, perhaps with other white space, None if not packed."""
        entries = self._holding(name)
        return None if entries is None else entries.json(name)

    def __contains__(self, name: str) -> bool:
        return self._holding(name) is not None

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all files."""
        for table in TABLES:
            if (entries := self._read(table)) is not None:
                yield from entries.names

    def names_in(self, folder: str) -> set[str]:
        """Return the names in a folder below `runs/`."""
        below = (self._by_folder(table) for table in TABLES if table.may_hold_below(folder))
        return set[str]().union(*(names.get(folder, ()) for names in below))

    @cached_property
    def run_ids(self) -> frozenset[str]:
        """The run ids; each has a record, in FILES if not reproducible."""
        entries = filter(None, map(self._read, (RECORDS, FILES)))
        return frozenset(name.partition("/")[0] for each in entries for name in each.names if RECORDS.takes(name))

    def _by_folder(self, table: PackedTable) -> dict[str, set[str]]:
        if table not in self._folders:
            folders: dict[str, set[str]] = defaultdict(set)
            for name in () if (entries := self._read(table)) is None else entries.names:
                path = name
                while path:
                    path, _, last = path.rpartition("/")
                    folders[path].add(last)
            self._folders[table] = folders
        return self._folders[table]

    def _holding(self, name: str) -> Entries | None:
        for table in TABLES:
            if table.takes(name) and (entries := self._read(table)) is not None and name in entries.names:
                return entries
        return None

    def _read(self, table: PackedTable) -> Entries | None:
        if table not in self._entries:
            self._entries[table] = self._decoded(table)
        return self._entries[table]

    def _decoded(self, table: PackedTable) -> Entries | None:
        return None if (content := self._intact(table)) is None else table.decode(content)

    def checked(self, tables: Collection[PackedTable]) -> list[str | None]:
        """Return the SHA-256 of tables, None for one that the pack lacks; raises InputError if one is damaged."""
        for table in tables:
            if table not in self._entries:
                self._intact(table)
        return [self._manifest.sha256.get(table.file) for table in tables]

    def _intact(self, table: PackedTable) -> bytes | None:
        if (expected := self._manifest.sha256.get(table.file)) is None:
            return None
        file = self.path / table.file
        if (content := content_of(file)) is None:
            raise InputError.at(str(file), f"does not exist, but {MANIFEST} beside it lists it; {RESTORE}")
        if hashlib.sha256(content).hexdigest() != expected:
            raise InputError.at(str(file), f"is damaged: its SHA-256 is not the one in {MANIFEST} beside it; {RESTORE}")
        return content

    @cached_property
    def _manifest(self) -> Manifest:
        file = self.path / MANIFEST
        if (manifest := parsed(content_of(file), str(file), Manifest, RESTORE)) is None:
            raise InputError.at(str(file), f"does not exist, and the pack cannot be read without it; {RESTORE}")
        if manifest.format != FORMAT:
            message = f"has format {manifest.format}, but this version of the workbench reads {FORMAT}"
            raise InputError.at(str(file), f"{message}; read it with the version that wrote it")
        return manifest


def pack_of(sweep: Path) -> Packed | None:
    """Return a sweep's pack, if any."""
    folder = os.path.join(sweep, PACKED)
    try:
        status = os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _newest(folder, status.st_ino, status.st_mtime_ns)


@lru_cache(KEPT_OPEN)
def _newest(folder: str, *_: int) -> Packed | None:
    """Return the newest pack, cached until the folder's inode or time changes."""
    numbers = pack_numbers(Path(folder))
    return Packed(Path(folder, str(numbers[-1]))) if numbers else None


def pack_numbers(folder: Path) -> list[int]:
    """Return the sorted numbers of the packs in a folder."""
    return sorted(int(name) for name in names_in(folder) if name.isdecimal())
