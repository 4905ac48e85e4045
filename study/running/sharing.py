"""Runs that several sweeps of one results folder need: each is trained once, and the others link its files.

The sweep that starts a run first is its home: results/.homes/<run id> links to the run's folder there, and the kernel lets only
one sweep create that link. Other sweeps wait while the run is trained, resume it there where it was left, and link its files
once it has ended, or copy them from a packed sweep. The record is one file under two names and survives the sweep that wrote
it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from functools import partial
from pathlib import Path

from study.base.durable_files import is_there, retry_write, write_once
from study.base.errors import InputError, Problem, map_readable, warn_of
from study.store.named_files import refuse_newer
from study.store.ownership import file_lock
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder


class SharedRuns:
    """The runs of one sweep and those of its sibling sweeps under the same results folder."""

    def __init__(self, folder: SweepFolder) -> None:
        self.folder = folder
        folder.homes.mkdir(exist_ok=True)
        self._siblings = folder.siblings()

    def home(self, run_id: str) -> RunFolder:
        """Return the folder where a run is trained: this sweep's, unless another sweep started it first."""
        link = self.folder.homes / run_id
        with contextlib.suppress(FileExistsError):
            retry_write(lambda: os.symlink(self._target(run_id), link))
        if (home := self._known_home(run_id)) is not None:
            return home
        with file_lock(self.folder.homes / ".lock"):  # the first takes over what is gone, and the others see it
            if (home := self._known_home(run_id)) is None:
                anew = link.with_name(f".{run_id}.tmp")
                anew.unlink(missing_ok=True)
                os.symlink(self._target(run_id), anew)
                os.replace(anew, link)  # so that there is a link at every moment
                home = self.folder.run(run_id)
        return home

    def _known_home(self, run_id: str) -> RunFolder | None:
        """Where the link of a run leads, if the run is still trained there; a link to no run causes a warning."""
        try:
            home = self.folder.home(run_id)
        except InputError as error:
            warn_of(error.problems)
            return None
        return home if self._is_home(home) else None

    def _target(self, run_id: str) -> str:
        return os.path.join("..", self.folder.name, "runs", run_id)

    def _is_home(self, home: RunFolder) -> bool:
        """Whether a run is still trained there: in no deleted sweep, nor where it was pruned or its record is unreadable."""
        mine = home.path == self.folder.run(home.run_id).path
        return (is_there(home.path) or home.is_run) and (mine or _is_of_use(home))

    def record(self, run_id: str) -> RunRecord | None:
        """Return the record of a run, taken from another sweep where that one has it; None without any."""
        own, home = self.folder.run(run_id), self.home(run_id)
        others = [sibling.run(run_id) for sibling in self._siblings if sibling.name != SweepFolder.of(home).name]
        for other in (home, *others):
            if other.path != own.path and _is_of_use(other) and other.ended:
                _link_files(other, own)
                break
        return _record_or_aside(own)


def _record_or_aside(run: RunFolder) -> RunRecord | None:
    """Return the record of a run; a damaged one is put aside, so that the run is trained again and nothing is lost."""
    try:
        return run.record()
    except (InputError, OSError) as error:
        if isinstance(error, InputError):
            refuse_newer(error.problems)
        damaged = isinstance(error, InputError) or error.errno in (errno.EISDIR, errno.ELOOP)
        if not damaged or not os.path.lexists(run.record_file):  # out of reach, or packed
            raise
        kept = run.put_record_aside({"reason": str(error)})
        warn_of([Problem(str(run.record_file), f"is damaged, and now {kept}; the run is trained again")])
        return None


def _is_of_use(run: RunFolder) -> bool:
    """Whether another sweep can use a run: it was not pruned, and its record, if there is one, can be read."""
    records, problems = map_readable(RunFolder.record, [run])
    refuse_newer(problems)
    warn_of(problems)
    return not problems and all(record is None or record.state != "PRUNED" for record in records)


def _link_files(ended: RunFolder, into: RunFolder) -> None:
    for existing, new in zip(_beside_record(ended), _beside_record(into), strict=True):
        retry_write(partial(_link, existing, new) if is_there(existing) else partial(_copy, ended, existing, new))
    if is_there(ended.record_file):
        with contextlib.suppress(FileExistsError):
            retry_write(partial(_link_once, ended.record_file, into.record_file))
    else:
        retry_write(partial(_copy, ended, ended.record_file, into.record_file))


def _copy(ended: RunFolder, packed: Path, new: Path) -> None:
    if (content := ended.content(packed)) is not None:
        write_once(new, content)


def _beside_record(run: RunFolder) -> tuple[Path, ...]:
    """Return the files beside a record; each is only ever replaced, never changed, so a second name is safe."""
    losses = (run.validation_losses_file, run.validation_documents_file, run.byte_losses_file)
    return run.metrics_file, *losses, run.weights_file, run.exclusion_file


def _link(existing: Path, new: Path) -> None:
    temporary = new.with_name(f".{new.name}.tmp")
    temporary.unlink(missing_ok=True)
    _link_once(existing, temporary)
    if is_there(temporary):
        os.replace(temporary, new)
        temporary.unlink(missing_ok=True)  # renaming does nothing where both names are of one file already


def _link_once(existing: Path, new: Path) -> None:
    """Link a file, unless it is gone: waiting for an unreachable folder is for other errors."""
    try:
        os.link(existing, new)
    except FileNotFoundError:
        if is_there(existing):
            raise
