"""The W&B mirror: it reads what the runs of a sweep write and brings each into its own W&B run.

results/<sweep>/
    .mirror.lock                    held by the one mirror that follows the sweep
    wandb/
        mirrored/<run id>.json      what W&B holds of a run, written when its W&B run was closed
        mirror.log                  what the live mirror and wandb printed
        [offline-]run-<time>-<id>/  W&B's own

The run folders are the truth and W&B is a cache: a W&B run that has no file under `mirrored/`, or a file that no longer fits,
is made anew from the first row. Offline its remains are deleted first; online it is resumed and the steps that the server
has are left out. A step is the number of a line of `metrics.jsonl`, so that a replay repeats nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from filelock import FileLock, Timeout

from study.base.errors import InputError
from study.store.ownership import seconds_since_write
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.tracking.mirror_state import Mirrored, Tracked, has_written, read_state
from study.tracking.mirror_wandb import Mode, Unreachable, WandbRun, end_session, tracking_mode

POLL_SECONDS = 2.0
"""Between two passes; one takes about 30 µs for each run of the sweep that has nothing new."""
RETRY_SECONDS = 30.0
"""How long the live mirror leaves a run alone, or an unreachable server, after an error; twice as long after each more."""
MOST_RETRY_SECONDS = 900.0
IDLE_SECONDS = 1800.0
"""A run that wrote no row for so long has its W&B run closed; it is opened again when it goes on."""
LOCK_SECONDS = 60.0
"""How long the live mirror waits for the one before it to end."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SyncReport:
    """What a mirroring did: how many runs it mirrored, how many were there already, and why others failed, by run id."""

    mode: Mode
    mirrored: int = 0
    already: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)


def mirror_sweep(
    folder: SweepFolder, stop: threading.Event | None = None, progress: Callable[[int, int], None] | None = None
) -> SyncReport:
    """Mirror the runs of a sweep: once, or following them until `stop` is set and what they wrote by then is mirrored.

    Once that is set, or without one, `progress` hears how many runs are done, of how many. Ends this process's wandb session,
    so no W&B run of the caller's survives it. Raises InputError where another mirror follows the sweep; a follower gives that
    one a minute to end.
    """
    logging.getLogger("wandb").propagate = False  # it writes each run's debug.log, every record at INFO
    lock = FileLock(folder.path / ".mirror.lock", timeout=0 if stop is None else LOCK_SECONDS)
    try:
        mode = tracking_mode()
        if mode == "disabled":
            return SyncReport(mode)
        with lock:
            mirror = _Mirror(folder, mode)
            while stop is not None and not stop.is_set():
                mirror.pass_over(closing=False)
                stop.wait(POLL_SECONDS)
            return mirror.pass_over(closing=True, progress=progress)
    except Timeout:
        raise InputError.at(str(folder.path), "is being mirrored by another process; wait until its launch ends") from None
    finally:
        end_session()


def retry_seconds(errors: int) -> float:
    """How long to wait after so many errors in a row."""
    return float(min(MOST_RETRY_SECONDS, RETRY_SECONDS * 2 ** min(errors - 1, 16)))


class _Mirror:
    """The runs of one sweep on their way to W&B; only those that are being written stay open between passes."""

    def __init__(self, folder: SweepFolder, mode: Tracked) -> None:
        self._folder = folder
        self._mode = mode
        self._open: dict[str, WandbRun] = {}
        self._held: dict[str, Mirrored] = {}
        self._mirrored: set[str] = set()
        self._failed: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        self._errors: Counter[str] = Counter()
        self._server_retry_at, self._server_errors = 0.0, 0

    def pass_over(self, closing: bool, progress: Callable[[int, int], None] | None = None) -> SyncReport:
        """Log what is new in every run; the last pass, `closing`, ends every W&B run. One run's trouble stays its own."""
        runs = self._folder.runs()
        for number, run in enumerate(runs, start=1):
            if closing or time.monotonic() >= self._retry_at.get(run.run_id, 0.0):
                try:
                    self._advance(run, closing)
                except Exception as error:  # wandb's errors have no common base, and one run must not end the others
                    self._fail(run.run_id, error)
            if progress is not None:
                progress(number, len(runs))
        return SyncReport(self._mode, len(self._mirrored), len(self._held.keys() - self._mirrored), dict(self._failed))

    def _advance(self, run: RunFolder, closing: bool) -> None:
        """Bring one run's W&B run up to date, and end it where no more rows are expected."""
        run_id = run.run_id
        ended = run.ended  # asked before the rows are read: no row follows a record
        if run_id in self._open and self._open[run_id].rows.rewritten():
            self._open.pop(run_id).abandon()
        if run_id not in self._open:
            if not has_written(run) or self._is_held(run):
                return
            self._open[run_id] = self._opened(run)
        opened = self._open[run_id]
        opened.log_new_rows()
        if ended or closing or (seconds_since_write(run.metrics_file) or 0.0) > IDLE_SECONDS:
            self._held[run_id] = opened.close(run.record() if ended else None)
            del self._open[run_id]
            self._mirrored.add(run_id)
        self._failed.pop(run_id, None)
        self._errors.pop(run_id, None)

    def _is_held(self, run: RunFolder) -> bool:
        """Whether W&B holds all that a run wrote; a run's state file is read once."""
        state = self._held.pop(run.run_id, None) or read_state(self._folder, run)
        if state is None or not state.covers(run, self._mode):
            return False
        self._held[run.run_id] = state
        return True

    def _opened(self, run: RunFolder) -> WandbRun:
        """The run's W&B run; a server that just failed to answer is not tried again for each run."""
        if time.monotonic() < self._server_retry_at:
            raise Unreachable("the W&B server did not answer a moment ago")
        try:
            opened = WandbRun(self._folder, run, self._mode, beside=len(self._open))
        except Unreachable:
            self._server_errors += 1
            self._server_retry_at = time.monotonic() + retry_seconds(self._server_errors)
            raise
        self._server_errors = 0
        return opened

    def _fail(self, run_id: str, error: Exception) -> None:
        """Note why a run could not be mirrored; it is made anew later."""
        expected = isinstance(error, OSError | ValueError | InputError)
        logger.warning("run %s is not mirrored: %s", run_id, error, exc_info=not expected)
        self._failed[run_id] = f"{type(error).__name__}: {error}"
        self._errors[run_id] += 1
        self._retry_at[run_id] = time.monotonic() + retry_seconds(self._errors[run_id])
        opened = self._open.pop(run_id, None)
        if opened is not None:
            try:
                opened.abandon()
            except Exception:  # the run has failed already; whatever wandb says now is only worth a line
                logger.exception("the W&B run %s did not end", run_id)
        if not self._open:
            end_session()  # in case that wandb's service is what failed: it crashes on answers that it does not expect
