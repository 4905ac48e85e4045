"""A packed sweep: the files of its run folders in a few tables, read behind the same names.

results/<sweep>/packed/<number>/    the highest number counts; there are two only while one replaces the other
    manifest.json                   the version of the format, and the SHA-256 of each table
    records.jsonl.gz                the records of the runs, one a line
    scores.jsonl.gz                 the records of downstream scores
    attempts.jsonl.gz               who started each run, where and when; score_attempts.jsonl.gz the same of scores
    curves.parquet                  the rows of each run's metrics.jsonl; score_curves.parquet the same of scores
    validation_losses.parquet       a vector a run
    files.parquet                   every other file, as it stands: configurations, orders, trunks, past attempts

A table is read at its first use, and refused if its SHA-256 is not that of the manifest. Files of a run folder take precedence
over a pack: a half-removed folder is still whole, an exclusion can be written beside a packed run, and later runs lie beside
the pack.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path

from study.base.durable_files import content_of, names_in
from study.base.errors import InputError
from study.base.schema import Strict
from study.store.named_files import parsed
from study.store.packed_tables import FILES, RECORDS, TABLES, Entries, PackedTable

PACKED = "packed"
"""The folder of the packs of a sweep."""

MANIFEST = "manifest.json"

FORMAT = 1
"""The version of the format that is written, and the only one that is read."""

KEPT_OPEN = 32
"""So many packs stay in memory, for a dashboard that reads the same sweeps again and again."""

RESTORE = "restore it from a copy of the sweep, such as a backup or git checkout"


class Manifest(Strict):
    """What a pack consists of: the SHA-256 of each table by its file's name."""

    format: int
    sha256: dict[str, str]


class Packed:
    """One pack; a name is the path of a file below `runs/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[PackedTable, Entries | None] = {}
        self._folders: dict[PackedTable, dict[str, set[str]]] = {}

    def content(self, name: str) -> bytes | None:
        """What a file held, byte for byte, None where the pack has none of this name."""
        entries = self._holding(name)
        return None if entries is None else entries.content(name)

    def json(self, name: str) -> bytes | None:
        """The JSON value that a file held, perhaps with other white space, None where the pack has no such file."""
        entries = self._holding(name)
        return None if entries is None else entries.json(name)

    def __contains__(self, name: str) -> bool:
        return self._holding(name) is not None

    def __iter__(self) -> Iterator[str]:
        """The names of all files."""
        for table in TABLES:
            if (entries := self._read(table)) is not None:
                yield from entries.names

    def names_in(self, folder: str) -> set[str]:
        """The names of files and folders that lie in a folder below `runs/`."""
        below = (self._by_folder(table) for table in TABLES if table.may_hold_below(folder))
        return set[str]().union(*(names.get(folder, ()) for names in below))

    @cached_property
    def run_ids(self) -> frozenset[str]:
        """The ids of the runs, all of which have a record: in FILES where no version of the workbench writes it so."""
        entries = filter(None, map(self._read, (RECORDS, FILES)))
        return frozenset(name.partition("/")[0] for each in entries for name in each.names if RECORDS.takes(name))

    def _by_folder(self, table: PackedTable) -> dict[str, set[str]]:
        """The names that lie in each folder, of the files of a table."""
        if table not in self._folders:
            folders: dict[str, set[str]] = defaultdict(set)
            for name in () if (entries := self._read(table)) is None else entries.names:
                place = name
                while place:
                    place, _, last = place.rpartition("/")
                    folders[place].add(last)
            self._folders[table] = folders
        return self._folders[table]

    def _holding(self, name: str) -> Entries | None:
        """The table that holds a file."""
        for table in TABLES:
            if table.takes(name) and (entries := self._read(table)) is not None and name in entries.names:
                return entries
        return None

    def _read(self, table: PackedTable) -> Entries | None:
        """A table, None where the pack has none of its kind; raises InputError where it is gone or damaged."""
        if table not in self._entries:
            self._entries[table] = self._decoded(table)
        return self._entries[table]

    def _decoded(self, table: PackedTable) -> Entries | None:
        if (expected := self._manifest.sha256.get(table.file)) is None:
            return None
        file = self.path / table.file
        if (content := content_of(file)) is None:
            raise InputError.at(str(file), f"does not exist, and {MANIFEST} beside it names it; {RESTORE}")
        if hashlib.sha256(content).hexdigest() != expected:
            raise InputError.at(str(file), f"is damaged: its SHA-256 is not the one in {MANIFEST} beside it; {RESTORE}")
        return table.decode(content)

    @cached_property
    def _manifest(self) -> Manifest:
        file = self.path / MANIFEST
        if (manifest := parsed(content_of(file), str(file), Manifest, RESTORE)) is None:
            raise InputError.at(str(file), f"does not exist, and the pack cannot be read without it; {RESTORE}")
        if manifest.format != FORMAT:
            message = f"has format {manifest.format}, where this version of the workbench reads {FORMAT}"
            raise InputError.at(str(file), f"{message}; read it with the version that wrote it")
        return manifest


def pack_of(sweep: Path) -> Packed | None:
    """The pack of the sweep in a folder, None where it has none."""
    folder = os.path.join(sweep, PACKED)
    try:
        status = os.stat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _newest(folder, status.st_ino, status.st_mtime_ns)


@lru_cache(KEPT_OPEN)
def _newest(folder: str, *_: int) -> Packed | None:
    """The newest pack in a folder, which is looked at anew when a pack has come or gone, by its inode and its time."""
    numbers = pack_numbers(Path(folder))
    return Packed(Path(folder, str(numbers[-1]))) if numbers else None


def pack_numbers(folder: Path) -> list[int]:
    """The numbers of the packs in a folder, in order."""
    return sorted(int(name) for name in names_in(folder) if name.isdecimal())
