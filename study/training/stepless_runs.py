"""Runs of no steps that a command makes in its own process: what is left of a failed one, and how it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from study.base.errors import InputError
from study.base.text import printable
from study.store.ownership import HUNG_AFTER
from study.store.records import RETRIED, State
from study.store.run_folder import RunFolder

_STDERR = 2


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
        raise _incomplete(run, record.state, record.reason)


def _incomplete(run: RunFolder, state: State, reason: str | None) -> InputError:
    again = "mend that, and give the command again" if state in RETRIED else "it would end so again"
    if state == "HUNG":
        again = f"give the command again, with {HUNG_AFTER}=30min where a step takes longer"
    return InputError.at(str(run.path), f"did not complete ({state}: {reason}); {again}")


@contextmanager
def logged(run: RunFolder) -> Iterator[Callable[[str], None]]:
    """Append standard error to the run's log inside the block, so that a failure is told once, in the command's own words.

    Yields what ends the process if the run hangs: it reports the reason on the usual standard error.
    """
    usual = os.dup(_STDERR)
    log = os.open(run.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.dup2(log, _STDERR)
    os.close(log)
    try:
        yield partial(_end_hung, run, usual)
    finally:
        os.dup2(usual, _STDERR)
        os.close(usual)


def _end_hung(run: RunFolder, stderr: int, reason: str) -> None:
    line = printable(f"error: {_incomplete(run, 'HUNG', reason)}")
    with suppress(OSError):  # nobody reads it
        os.write(stderr, f"{line}\n".encode())
    os._exit(2)
