"""From run folders to a pack and back: at every moment each file lies whole in its run folder, in the pack, or in both.

A pack is written beside the run folders, read back and compared with them, and put in its place by renaming its folder; only
then are the run folders removed. Unpacking writes run folders aside, compares them with the pack, renames them into place, and
removes the pack last. Readers look into a run folder first and then into the pack, so that they miss nothing whenever either is
killed, and the same command goes on from there.

A pack leaves out weights, checkpoints and the states left for branches, logs, locks, and files that a kill left half written.
Why a person excludes a run stays in a file of its run folder, where that person can take it back.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from study.base import garbage
from study.base.durable_files import files_below, is_there, names_in, sync_folder, write_atomically
from study.base.errors import InputError
from study.base.quantities import bytes_text, plural
from study.store.locks import held
from study.store.ownership import is_locked
from study.store.packed import FORMAT, MANIFEST, PACKED, Manifest, Packed, pack_numbers
from study.store.packed_tables import SCORES, TABLES
from study.store.sweep_folder import SweepFolder

MOST_NAMED = 5
"""So many of the runs are named that keep a sweep from being packed."""

_NEW, _OLD = ".new", ".old"
"""What is being written, and what is being removed, beside the packs."""


@dataclass(frozen=True)
class Packing:
    """What a pack holds: its runs, their scores and their files; and of how many files and bytes it consists itself."""

    path: Path
    runs: int
    scores: int
    files: int
    tables: int
    table_bytes: int


@garbage.paused()
def pack(folder: SweepFolder, delete_weights: bool = False) -> Packing:
    """Replace the run folders of a sweep by a pack, together with what an earlier pack holds.

    Raises InputError where the sweep is being run or scored, where it has no runs, a run that has not ended or a record that
    cannot be read, and, without `delete_weights`, where there are weights or checkpoints.
    """
    with held(folder.launching), held(folder.scoring):
        _tidy(folder)
        folder.require_readable()
        _check_ended(folder)
        loose = [*_loose(folder)]
        _check_weights(folder, [name for name in loose if _is_of_weights(name)], delete_weights)
        new = [name for name in loose if _is_kept(name)]
        if new:
            _install(folder, _Files(folder, new))
        packed = folder.packed
        if packed is None:
            raise InputError.at(str(folder.path), "has no runs to pack")
        _remove(folder, (name for name in loose if not _is_exclusion(name)))
        _tidy(folder)
        return _packing(packed)


@garbage.paused()
def unpack(folder: SweepFolder) -> int:
    """Write the run folders of a packed sweep, remove its pack, and return how many runs it held.

    Raises InputError where the sweep is being run or scored, is not packed, or where its pack is damaged.
    """
    with held(folder.launching), held(folder.scoring):
        _tidy(folder)
        if (packed := folder.packed) is None:
            raise InputError.at(str(folder.path), "is not packed")
        names = [name for name in packed if not is_there(folder.runs_folder / name)]
        aside = packed.path.parent / _NEW
        for name in names:
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).write_bytes(_content(packed, name))
        os.sync()  # one for all: a sync of each of so many small files takes minutes
        if any((aside / name).read_bytes() != packed.content(name) for name in names):
            raise InputError.at(str(aside), f"does not read back as it was written, and the pack was left as it is; {_DISK}")
        for run_id in names_in(aside):
            _move(aside / run_id, folder.runs_folder / run_id)
        os.sync()
        os.rename(packed.path, packed.path.parent / _OLD)
        shutil.rmtree(packed.path.parent)
        sync_folder(folder.path)
        return len(packed.run_ids)


_DISK = "see whether the disk is in order, then try again"


class _Files(Mapping[str, bytes]):
    """The files that a pack is made of, by their paths below `runs/`: some that lie there, and those of the pack before."""

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
    """What a file held that a pack has."""
    content = packed.content(name)
    assert content is not None
    return content


def _install(folder: SweepFolder, files: _Files) -> None:
    """Write a pack of these files, read it back, and let it be the newest.

    That its tables give the files back was seen when they were made; that they lie on the disk so is seen by their SHA-256.
    """
    packs = folder.path / PACKED
    new = packs / _NEW
    try:
        _write(new, files)
        if sorted(Packed(new)) != [*files]:
            raise InputError.at(str(new), f"does not read back as it was written, and no run folder was removed; {_DISK}")
        os.rename(new, packs / str(1 + max(pack_numbers(packs), default=0)))
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    sync_folder(packs)
    sync_folder(folder.path)


def _write(new: Path, files: _Files) -> None:
    """Write the tables of a pack, each file into the first that gives it back byte for byte, and then the manifest."""
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
    """Move a run's folder, or the files in it where there is one already, as of a run that is excluded."""
    if not is_there(into):
        into.parent.mkdir(exist_ok=True)
        os.rename(run, into)
        return
    for file in files_below(run):
        new = into / file.relative_to(run)
        new.parent.mkdir(parents=True, exist_ok=True)
        os.rename(file, new)


def _tidy(folder: SweepFolder) -> None:
    """Remove what a kill left beside the newest pack: what was not finished, and the packs that it replaced."""
    packs = folder.path / PACKED
    for name in (_NEW, _OLD, *map(str, pack_numbers(packs)[:-1])):
        shutil.rmtree(packs / name, ignore_errors=True)
    with suppress(OSError):
        packs.rmdir()


def _remove(folder: SweepFolder, names: Iterable[str]) -> None:
    """Remove files of the run folders, and the folders that are empty then."""
    for name in names:
        (folder.runs_folder / name).unlink()
    for place, _, _ in os.walk(folder.runs_folder, topdown=False):
        with suppress(OSError):
            os.rmdir(place)


def _loose(folder: SweepFolder) -> Iterator[str]:
    """The files that lie in run folders, by their paths below `runs/`."""
    for run in folder.runs():
        if is_there(run.path):
            yield from (file.relative_to(folder.runs_folder).as_posix() for file in files_below(run.path))


def _is_kept(name: str) -> bool:
    """Whether a pack keeps a file."""
    last = name.rpartition("/")[2]
    return not (_is_exclusion(name) or _is_of_weights(name) or last == "log.txt" or last.startswith("."))


def _is_exclusion(name: str) -> bool:
    """Whether a file says why a person excludes a run."""
    return name.split("/")[1:] == ["exclusion.json"]


def _is_of_weights(name: str) -> bool:
    """Whether a file holds the state of a model, or lies beside one."""
    _, *parts = name.split("/")
    return any(part in ("weights.safetensors", "checkpoints") or part.startswith("branch-") for part in parts)


def _check_ended(folder: SweepFolder) -> None:
    """Raise InputError where a run has not ended, or its process has not."""
    begun = [run.run_id for run in folder.runs() if not run.ended or is_locked(run.lock_file)]
    if begun:
        names = ", ".join([*begun[:MOST_NAMED], *(["…"] if len(begun) > MOST_NAMED else [])])
        remedy = "`study launch` goes on with what the sweep still wants; remove the folders of other runs"
        raise InputError.at(str(folder.path), f"has {plural(len(begun), 'run')} that did not end ({names}); {remedy}")


def _check_weights(folder: SweepFolder, names: Sequence[str], delete_weights: bool) -> None:
    """Raise InputError where weights or checkpoints would be lost that nobody gave up."""
    if names and not delete_weights:
        size = bytes_text(sum((folder.runs_folder / name).stat().st_size for name in names))
        runs = plural(len({name.partition("/")[0] for name in names}), "run")
        remedy = "move away what is still needed, and give the rest up with --delete-weights"
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
