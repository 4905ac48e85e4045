"""From run folders to a pack and back; each file is always whole in its run folder, the pack, or both.

A pack is written, read back, compared with the run folders and renamed into place; only then are these removed. Unpacking
writes run folders elsewhere, compares them with the pack, renames them into place, and removes the pack last. Readers look into
both, so they miss nothing after a kill, and the same command continues.

A pack leaves out weights, checkpoints, branch states, logs, locks and half-written files. Exclusions stay in run folders, where
they can be revoked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from study.base.durable_files import files_below, is_there, names_in, stays_in, sync_folder, write_atomically
from study.base.errors import InputError, Problem
from study.base.machine import garbage_collection_paused
from study.base.quantities import bytes_text, plural
from study.store.ownership import is_locked, sweep_lock
from study.store.packed import FORMAT, MANIFEST, PACKED, Manifest, Packed, pack_numbers
from study.store.packed_tables import SCORES, TABLES
from study.store.sweep_folder import SweepFolder

MOST_NAMED = 5
"""The most unfinished runs that a message names."""

_NEW, _OLD = ".new", ".old"
"""Names beside the packs for what is being written and what is being removed."""


@dataclass(frozen=True)
class Packing:
    """The content of a pack, and its own files and bytes."""

    path: Path
    runs: int
    scores: int
    files: int
    tables: int
    table_bytes: int


@garbage_collection_paused()
def pack(folder: SweepFolder, delete_weights: bool = False) -> Packing:
    """Replace the run folders of a sweep by a pack, together with an earlier pack's content.

    Raises InputError if the sweep is in use, incomplete or damaged, links out of its run folders or, without `delete_weights`,
    has weights or checkpoints.
    """
    with sweep_lock(folder.launching), sweep_lock(folder.scoring):
        _tidy(folder)
        folder.require_readable()
        _check_ended(folder)
        loose = [*_loose(folder)]
        _check_weights(folder, [name for name in loose if _is_of_weights(name)], delete_weights)
        new = [name for name in loose if _is_kept(name)]
        _check_own(folder, new)
        if new:
            _install(folder, _Files(folder, new))
        packed = folder.packed
        if packed is None:
            raise InputError.at(str(folder.path), "has no runs to pack")
        _remove(folder, (name for name in loose if not _is_exclusion(name)))
        _tidy(folder)
        return _packing(packed)


@garbage_collection_paused()
def unpack(folder: SweepFolder) -> int:
    """Write the run folders of a packed sweep, remove its pack, and return the number of runs.

    After a kill it goes on, even if only removing the pack was left. Raises InputError if the sweep is in use or not packed,
    or the pack is damaged.
    """
    with sweep_lock(folder.launching), sweep_lock(folder.scoring):
        written = is_there(folder.path / PACKED / _OLD)
        _tidy(folder)
        if (packed := folder.packed) is None:
            if written:
                return len(folder.runs())
            raise InputError.at(str(folder.path), "is not packed")
        names = [name for name in packed if not is_there(folder.runs_folder / name)]
        aside = packed.path.parent / _NEW
        for name in names:
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).write_bytes(_content(packed, name))
        os.sync()  # once: syncing each small file takes minutes
        if any((aside / name).read_bytes() != packed.content(name) for name in names):
            raise InputError.at(str(aside), f"differs from what was written; the pack was kept; {_DISK}")
        for run_id in names_in(aside):
            _move(aside / run_id, folder.runs_folder / run_id)
        os.sync()
        os.rename(packed.path, packed.path.parent / _OLD)
        _tidy(folder)
        sync_folder(folder.path)
        return len(packed.run_ids)


_DISK = "check the disk, then try again"


class _Files(Mapping[str, bytes]):
    """The files of a pack by their paths below `runs/`: loose ones, and an earlier pack's."""

    def __init__(self, folder: SweepFolder, loose: Iterable[str]) -> None:
        self._runs, self._before, self._loose = folder.runs_folder, folder.packed, frozenset(loose)
        self._names = sorted(self._loose.union(self._before or ()))

    def __getitem__(self, name: str) -> bytes:
        if name in self._loose or self._before is None:
            return (self._runs / name).read_bytes()
        return _content(self._before, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _content(packed: Packed, name: str) -> bytes:
    content = packed.content(name)
    assert content is not None
    return content


def _install(folder: SweepFolder, files: _Files) -> None:
    """Write a pack of these files, read it back, and make it the newest.

    Encoding checks that tables reproduce the files, SHA-256 what is on disk.
    """
    packs = folder.path / PACKED
    new = packs / _NEW
    try:
        _write(new, files)
        if sorted(Packed(new)) != [*files]:
            raise InputError.at(str(new), f"differs from what was written; no run folder was removed; {_DISK}")
        os.rename(new, packs / str(1 + max(pack_numbers(packs), default=0)))
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    sync_folder(packs)
    sync_folder(folder.path)


def _write(new: Path, files: _Files) -> None:
    """Write the tables, then the manifest."""
    sha256, left = {}, [*files]
    for table in TABLES:
        content, names = table.encode_all(left, files)
        if names:
            write_atomically(new / table.file, content)
            sha256[table.file] = hashlib.sha256(content).hexdigest()
            left = sorted({*left}.difference(names))
    manifest = Manifest(format=FORMAT, sha256=sha256)
    write_atomically(new / MANIFEST, manifest.model_dump_json(indent=1).encode() + b"\n")


def _move(run: Path, into: Path) -> None:
    """Move a run's folder, or its files if the folder exists."""
    if not is_there(into):
        into.parent.mkdir(exist_ok=True)
        os.rename(run, into)
        return
    for file in files_below(run):
        new = into / file.relative_to(run)
        new.parent.mkdir(parents=True, exist_ok=True)
        os.rename(file, new)


def _tidy(folder: SweepFolder) -> None:
    packs = folder.path / PACKED
    for name in (_NEW, _OLD, *map(str, pack_numbers(packs)[:-1])):
        shutil.rmtree(packs / name, ignore_errors=True)
    with suppress(OSError):
        packs.rmdir()


def _remove(folder: SweepFolder, names: Iterable[str]) -> None:
    for name in names:
        (folder.runs_folder / name).unlink()
    for parent, _, _ in os.walk(folder.runs_folder, topdown=False):
        with suppress(OSError):
            os.rmdir(parent)


def _loose(folder: SweepFolder) -> Iterator[str]:
    """Yield the files in run folders by their paths below `runs/`; raises InputError for a linked folder."""
    for run in folder.runs():
        if run.path.is_symlink():
            raise InputError.at(str(run.path), "is a link, whose files packing would remove; put the folder itself there")
        if is_there(run.path):
            yield from (file.relative_to(folder.runs_folder).as_posix() for file in files_below(run.path))


def _check_own(folder: SweepFolder, names: Iterable[str]) -> None:
    """Raise InputError with each link that leads out of the run folders."""
    files = [folder.runs_folder / name for name in names]
    problems = [
        Problem(str(file), "is a link that leads out of the run folders, and is not packed; put the file itself there")
        for file in files
        if file.is_symlink() and not stays_in(file, folder.runs_folder)
    ]
    if problems:
        raise InputError(problems)


def _is_kept(name: str) -> bool:
    last = name.rpartition("/")[2]
    left = last in ("log.txt", ".lock") or (last.startswith(".") and last.endswith(".tmp"))
    return not (_is_exclusion(name) or _is_of_weights(name) or left)


def _is_exclusion(name: str) -> bool:
    return name.split("/")[1:] == ["exclusion.json"]


def _is_of_weights(name: str) -> bool:
    _, *parts = name.split("/")
    return any(part in ("weights.safetensors", "checkpoints") or part.startswith("branch-") for part in parts)


def _check_ended(folder: SweepFolder) -> None:
    unfinished = [run.run_id for run in folder.runs() if not run.ended or is_locked(run.lock_file)]
    if unfinished:
        names = ", ".join([*unfinished[:MOST_NAMED], *(["…"] if len(unfinished) > MOST_NAMED else [])])
        remedy = "`study launch` continues those that the sweep still wants; remove the folders of others"
        raise InputError.at(str(folder.path), f"has {plural(len(unfinished), 'unfinished run')} ({names}); {remedy}")


def _check_weights(folder: SweepFolder, names: Sequence[str], delete_weights: bool) -> None:
    if names and not delete_weights:
        size = bytes_text(sum((folder.runs_folder / name).stat().st_size for name in names))
        runs = plural(len({name.partition("/")[0] for name in names}), "run")
        remedy = "move away what is still needed, and delete the rest with --delete-weights"
        raise InputError.at(
            str(folder.path), f"has weights or checkpoints of {runs}, {size}, which a pack does not keep; {remedy}"
        )


def _packing(packed: Packed) -> Packing:
    names = [*packed]
    tables = [*packed.path.iterdir()]
    return Packing(
        packed.path,
        runs=len(packed.run_ids),
        scores=sum(map(SCORES.takes, names)),
        files=len(names),
        tables=len(tables),
        table_bytes=sum(table.stat().st_size for table in tables),
    )
