"""What people order from outside: stop a sweep, retry failed runs, exclude a run from the answer."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from study.base.durable_files import is_there, require_links, write_atomically
from study.base.errors import InputError, map_all
from study.data.prepared import files_fingerprints
from study.running.coordinator import SAVE_SECONDS
from study.store.ownership import is_held, sweep_lock
from study.store.records import RETRIED, RunRecord, timestamp
from study.store.run_folder import RunFolder
from study.store.score_records import ScoreRecord, readable_scores, score_folder
from study.store.sweep_folder import LEAST_OF_ID, SweepFolder, runs_of_id

_KEPT = ("COMPLETED", "PRUNED")
"""Records that a retry leaves alone in other sweeps: no sweep takes over a pruned run."""

POLL_SECONDS = 0.2

STOP_SECONDS = SAVE_SECONDS + 30
"""How long a coordinator may take to let its jobs save and stop."""


@dataclass(frozen=True)
class Retried:
    """A run, or its score on a task, to be tried again, with its old record."""

    run_id: str
    state: str
    reason: str | None
    kept: str
    task: str | None = None


def stop(folder: SweepFolder) -> bool:
    """Order a sweep's processes to save and stop, and wait for them; False without any.

    Raises InputError where they have not stopped in time.
    """
    requested = [*filter(is_held, (folder.launching, folder.scoring))]
    for lock in requested:
        write_atomically(lock.stop_file, json.dumps(_signed({})).encode())
    end = time.monotonic() + STOP_SECONDS
    while going_on := [*filter(is_held, requested)]:
        if time.monotonic() > end:
            raise InputError.at(str(folder.path), f"has not stopped within {STOP_SECONDS:.0f} s; see {going_on[0].holder_file}")
        time.sleep(POLL_SECONDS)
    return bool(requested)


def retry(folder: SweepFolder, run_ids: Sequence[str] = ()) -> list[Retried]:
    """Put the records of failed runs and scores aside, of all runs or the named ones, so that the next launch resumes them.

    Named runs include those that diverged or were excluded; an excluded run is trained anew and included again.

    Each record stays as that of a past attempt, with a note of who ordered the retry and when. Raises InputError where a sweep
    with the run is in use, a record is packed, or a named run has not failed.
    """
    require_links(folder.path, "copy the sweep to another folder, and retry there")
    siblings = folder.siblings()
    sharing = _sharing(siblings, _failed(folder, run_ids))
    with ExitStack() as locks:
        for sweep in sorted((folder, *sharing), key=lambda sweep: sweep.path):  # so that no two wait for one another
            locks.enter_context(sweep_lock(sweep.launching))
            locks.enter_context(sweep_lock(sweep.scoring))
        failed = _failed(folder, run_ids)  # another retry may have been first
        _refuse_packed(folder, siblings, failed)
        runs = [_put_aside(folder, siblings, run_id, record) for run_id, record in failed.items()]
        return [*runs, *(_put_score_aside(run, score) for run, score in _failed_scores(folder, run_ids))]


def _sharing(siblings: Sequence[SweepFolder], failed: Mapping[str, RunRecord]) -> list[SweepFolder]:
    """Return the sweeps that would return the record of such a run; raises InputError where one uses an excluded run."""
    sharing = {}
    for sibling, (run_id, record) in product(siblings, failed.items()):
        there = sibling.run(run_id).record()
        if there is not None and record.excluded is not None and there.excluded is None:
            raise InputError.at(run_id, f"is used by {sibling.name}, where it is not excluded; exclude it there too, by its id")
        if _gives_back(there):
            sharing[sibling.path] = sibling
    return [*sharing.values()]


def _gives_back(there: RunRecord | None) -> bool:
    return there is not None and (there.state not in _KEPT or there.excluded is not None)


def _refuse_packed(folder: SweepFolder, siblings: Sequence[SweepFolder], failed: Mapping[str, RunRecord]) -> None:
    sharing = (sibling.run(run_id) for sibling, run_id in product(siblings, failed))
    map_all(RunFolder.refuse_packed, [*map(folder.run, failed), *(run for run in sharing if _gives_back(run.record()))])


def _failed(folder: SweepFolder, run_ids: Sequence[str]) -> dict[str, RunRecord]:
    texts = _texts_of(folder)
    if not run_ids:
        failed = (record for record in folder.records() if record.state in RETRIED)
        return {record.run_id: record for record in failed if record.read_text(texts)}
    records = {}
    for run in _named(folder, run_ids):
        if (record := run.record()) is None:
            raise InputError.at(run.run_id, "has no record; the next launch resumes it anyway")
        if not record.read_text(texts):
            raise InputError.at(run.run_id, "read another text than data.corpus is now; a launch trains a run on the new text")
        if record.state != "COMPLETED" or record.excluded is not None:
            records[record.run_id] = record
        elif not _failed_scores(folder, [run.run_id]):
            message = "is completed, and so are its scores; to leave it out of the answer, use study exclude"
            raise InputError.at(run.run_id, message)
    return records


def _texts_of(folder: SweepFolder) -> Collection[str]:
    """Return the fingerprints of a sweep's text as its files are now."""
    try:
        launched = folder.launched()
    except InputError:
        return ()
    return () if launched is None else files_fingerprints(launched.texts).values()


def _failed_scores(folder: SweepFolder, run_ids: Sequence[str]) -> list[tuple[RunFolder, ScoreRecord]]:
    runs = _named(folder, run_ids) if run_ids else folder.runs()
    scores = [(run, score) for run in runs for score in readable_scores([run])]
    return [(run, score) for run, score in scores if score.state in RETRIED or (run_ids and score.state != "COMPLETED")]


def _named(folder: SweepFolder, run_ids: Sequence[str]) -> list[RunFolder]:
    runs, named = folder.runs(), {}
    for name in run_ids:
        matching = [run for run in runs if run.run_id.startswith(name)]
        if len(matching) != 1:
            which = f"{len(matching)} runs" if matching else "no run"
            raise InputError.at(name or repr(name), f"matches {which} in {folder.path}; `study status` lists them")
        named[matching[0].run_id] = matching[0]
    return [*named.values()]


def _put_aside(folder: SweepFolder, siblings: Sequence[SweepFolder], run_id: str, record: RunRecord) -> Retried:
    kept = _aside(folder.run(run_id), _signed({}))
    for sibling in siblings:
        if _gives_back(sibling.run(run_id).record()):
            _aside(sibling.run(run_id), _signed({"by_sweep": folder.name}))
    return Retried(run_id, record.state, record.reason or record.exclusion, str(kept))


def _put_score_aside(run: RunFolder, score: ScoreRecord) -> Retried:
    kept = score_folder(run, score.score_id).put_record_aside(_signed({}))
    return Retried(run.run_id, score.state, score.reason, str(kept), score.config.task)


def _aside(run: RunFolder, note: dict[str, str]) -> Path:
    """Put a run's record aside; an exclusion moves into the note."""
    excluded = run.excluded()
    if excluded is not None and is_there(run.scores):  # they are of the weights that are trained anew
        kept_scores = run.aside("scores")
        kept_scores.parent.mkdir(exist_ok=True)
        run.scores.rename(kept_scores)
    kept = run.put_record_aside(note if excluded is None else note | {"excluded": excluded})
    run.exclusion_file.unlink(missing_ok=True)
    return kept


def exclude(run: str, results: Path, reason: str) -> list[RunFolder]:
    """Exclude a run from fits and comparisons; its record stays as it is.

    An id names the run in every sweep that has it, a folder in that sweep alone. Raises InputError without a reason.
    """
    runs = _runs_named(run, results)
    if not reason.strip():
        raise InputError.at("--reason", "is empty; give the reason, which the ledger and the answer quote")
    for folder in runs:
        write_atomically(folder.exclusion_file, json.dumps(_signed({"reason": reason}), indent=1).encode() + b"\n")
    return runs


def include(run: str, results: Path) -> list[RunFolder]:
    """Undo `exclude`; raises InputError where the run is not excluded."""
    runs = [folder for folder in _runs_named(run, results) if is_there(folder.exclusion_file)]
    if not runs:
        raise InputError.at(run, "is not excluded")
    for folder in runs:
        folder.exclusion_file.unlink(missing_ok=True)
    return runs


def _runs_named(run: str, results: Path) -> list[RunFolder]:
    if RunFolder(Path(run)).is_run:
        return [RunFolder(Path(run).resolve())]
    if len(run) < LEAST_OF_ID:
        raise InputError.at(run or repr(run), f"is too short for an id; give at least {LEAST_OF_ID} characters")
    if not (runs := runs_of_id(run, results)):
        raise InputError.at(run, f"is neither a run's folder nor the id of a run in {results}; `study status` lists them")
    return runs


def _signed(values: dict[str, str]) -> dict[str, str]:
    return values | {"by": _user(), "at": timestamp()}


def _user() -> str:
    """Return the user's name or number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
