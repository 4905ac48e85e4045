"""Runs of no steps that a command makes in its own process: what is left of a failed one, and whether one completed."""

from __future__ import annotations

from study.base.errors import InputError
from study.store.records import RETRIED
from study.store.run_folder import RunFolder


def is_made(run: RunFolder) -> bool:
    """Whether a run has a record, other than of a failure that may pass."""
    record = run.record()
    return record is not None and record.state not in RETRIED


def put_failure_aside(run: RunFolder) -> None:
    """Put aside the record of a failure that may pass, so that the run is made again; only the owner may."""
    if (record := run.record()) is not None and record.state in RETRIED:
        run.put_record_aside({"reason": "the command was given again"})


def require_completed(run: RunFolder) -> None:
    """Raise InputError with the state and the reason if a run has not completed."""
    if (record := run.record()) is None:
        raise InputError.at(str(run.path), "is not made: another process works on it; wait for it")
    if record.state != "COMPLETED":
        again = "mend that, and give the command again" if record.state in RETRIED else "it would end so again"
        raise InputError.at(str(run.path), f"did not complete ({record.state}: {record.reason}); {again}")
