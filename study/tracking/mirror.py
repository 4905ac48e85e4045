"""The W&B mirror: copies what a sweep's runs write, each into its own W&B run, and its answer into one more.

results/<sweep>/
    .mirror.lock                    held by the sweep's only mirror
    wandb/
        mirrored/<run id>.json      what W&B holds of a run, written when its W&B run is closed
        mirrored/answer.json        what it holds of the answer
        mirror.log                  output of the live mirror and wandb
        [offline-]run-<time>-<id>/  W&B's own

Run folders are the truth and W&B is a cache: a W&B run without a matching file under `mirrored/` is rebuilt from the first row.
Offline, old files are deleted first; online, the run is resumed without the steps that the server has. A step is a line number
of `metrics.jsonl`, so a replay repeats nothing. A run whose scores have changed since is mirrored anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from filelock import Timeout

from study.base.durable_files import is_there
from study.base.errors import InputError
from study.store.ownership import file_lock, seconds_since_write
from study.store.run_folder import RunFolder
from study.store.score_records import scores_by_run
from study.store.sweep_folder import SweepFolder
from study.tracking.mirror_state import (
    ANSWER,
    NO_SCORES,
    Mirrored,
    Scores,
    Tracked,
    answer_is_held,
    answer_sha256,
    has_written,
    read_state,
)
from study.tracking.mirror_wandb import Mode, Unreachable, WandbAnswer, WandbRun, end_session, tracking_mode

POLL_SECONDS = 2.0
"""The pause between passes; a pass takes about 30 µs for each run without new rows."""
RETRY_SECONDS = 30.0
"""How long the live mirror skips a run, or an unreachable server, after an error; the wait doubles with each further error."""
MOST_RETRY_SECONDS = 900.0
IDLE_SECONDS = 1800.0
"""The time without new rows after which a W&B run is closed; it is reopened when rows come."""
LOCK_SECONDS = 60.0
"""How long the live mirror waits for the previous one to end."""

logger = logging.getLogger(__name__)

OpenedT = TypeVar("OpenedT", WandbRun, WandbAnswer)


AnswerIs = Literal["mirrored", "already", "failed", "none"]


@dataclass(frozen=True)
class SyncReport:
    """The numbers of runs now and already mirrored, the errors of others by run id, and what became of the answer.

    `problems` are those of the answer, of the table of scores, and of runs that are mirrored in part.
    """

    mode: Mode
    mirrored: int = 0
    already: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    answer: AnswerIs = "none"
    problems: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)


def mirror_sweep(
    folder: SweepFolder,
    stop: threading.Event | None = None,
    progress: Callable[[int, int], None] | None = None,
    weights: bool = False,
) -> SyncReport:
    """Mirror a sweep's runs once, or until `stop` is set, and then its answer.

    In the last or only pass, `progress` receives the numbers of finished and of all runs. `weights` adds those of completed
    runs as artifacts. Ends this process's wandb session, including the caller's runs. Raises InputError if another mirror
    follows the sweep, for a follower after LOCK_SECONDS.
    """
    logging.getLogger("wandb").propagate = False  # its records belong in each run's debug.log
    lock = file_lock(folder.path / ".mirror.lock", timeout=0 if stop is None else LOCK_SECONDS)
    try:
        mode = tracking_mode()
        if mode == "disabled":
            return SyncReport(mode)
        with lock:
            mirror = _Mirror(folder, mode, weights)
            while stop is not None and not stop.is_set():
                mirror.pass_over(closing=False)
                stop.wait(POLL_SECONDS)
            mirror.pass_over(closing=True, progress=progress)
            return mirror.close_with_answer()
    except Timeout:
        raise InputError.at(str(folder.path), "is being mirrored by another process; wait until its launch ends") from None
    finally:
        end_session()


def retry_seconds(errors: int) -> float:
    """Return the wait after this many errors in a row."""
    return float(min(MOST_RETRY_SECONDS, RETRY_SECONDS * 2 ** min(errors - 1, 16)))


class _Mirror:
    """Mirrors a sweep's runs; only growing runs stay open between passes."""

    def __init__(self, folder: SweepFolder, mode: Tracked, weights: bool) -> None:
        self._folder = folder
        self._mode = mode
        self._weights = weights
        self._with_weights: set[str] = set()
        """The runs whose weights W&B held before they were mirrored anew."""
        self._scores: tuple[tuple[int, int] | None, dict[str, dict[str, float]]] = None, {}
        self._open: dict[str, WandbRun] = {}
        self._held: dict[str, Mirrored] = {}
        self._mirrored: set[str] = set()
        self._failed: dict[str, str] = {}
        self._problems: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        self._errors: Counter[str] = Counter()
        self._server_retry_at, self._server_errors = 0.0, 0
        self._unreachable: Unreachable | None = None

    def pass_over(self, closing: bool, progress: Callable[[int, int], None] | None = None) -> None:
        """Log new rows of every run; `closing` ends every W&B run. Errors stay within a run."""
        self._read_scores()
        runs = self._folder.runs()
        for number, run in enumerate(runs, start=1):
            if closing or time.monotonic() >= self._retry_at.get(run.run_id, 0.0):
                try:
                    self._advance(run, closing)
                except Exception as error:  # wandb's errors have no common base, and one run must not end the others
                    self._fail(run.run_id, error)
            if progress is not None:
                progress(number, len(runs))

    def close_with_answer(self) -> SyncReport:
        answer: AnswerIs = "none"
        try:
            if answer_sha256(self._folder) is not None:
                answer = "already"
                if not answer_is_held(self._folder, self._mode):
                    self._reach(lambda: WandbAnswer(self._folder, self._mode)).log()
                    answer = "mirrored"
        except Exception as error:  # as in `pass_over`
            _log("the answer", error)
            answer, self._problems[ANSWER] = "failed", _reason(error)
        already = len(self._held.keys() - self._mirrored)
        return SyncReport(self._mode, len(self._mirrored), already, dict(self._failed), answer, dict(self._problems))

    def _read_scores(self) -> None:
        """Read the table of scores if it has changed."""
        file = self._folder.scores_file
        status = file.stat() if is_there(file) else None
        stamp = None if status is None else (status.st_mtime_ns, status.st_size)
        if stamp == self._scores[0]:
            return
        try:
            self._scores = stamp, scores_by_run(self._folder)
            self._problems.pop(file.name, None)
        except InputError as error:
            self._problems[file.name] = str(error)

    def _scores_of(self, run: RunFolder) -> Scores:
        return self._scores[1].get(run.run_id, NO_SCORES)

    def _advance(self, run: RunFolder, closing: bool) -> None:
        """Update one W&B run, and end it if no more rows are expected."""
        run_id = run.run_id
        ended = run.ended  # read before the rows: no row follows a record
        if run_id in self._open and self._open[run_id].rows.rewritten():
            self._open.pop(run_id).abandon()
        if run_id not in self._open:
            if not has_written(run) or self._is_held(run):
                return
            self._open[run_id] = self._reach(lambda: WandbRun(self._folder, run, self._mode, beside=len(self._open)))
        opened = self._open[run_id]
        opened.log_new_rows()
        if ended or closing or (seconds_since_write(run.metrics_file) or 0.0) > IDLE_SECONDS:
            weights = self._weights or run_id in self._with_weights
            record = run.record() if ended else None
            if (problem := opened.why_not_whole(record)) is not None:
                self._problems[run_id] = problem
            self._held[run_id] = opened.close(record, self._scores_of(run), weights)
            del self._open[run_id]
            self._mirrored.add(run_id)
        self._failed.pop(run_id, None)
        self._errors.pop(run_id, None)

    def _is_held(self, run: RunFolder) -> bool:
        """Whether W&B holds all that a run wrote."""
        state = self._held.pop(run.run_id, None) or read_state(self._folder, run.run_id, Mirrored)
        if state is None:
            return False
        if not state.covers(run, self._mode, self._scores_of(run), self._weights):
            self._with_weights |= {run.run_id} if state.weights else set()
            return False
        self._held[run.run_id] = state
        return True

    def _reach(self, open_run: Callable[[], OpenedT]) -> OpenedT:
        """Return a W&B run; after a server failure, others wait too."""
        if self._unreachable is not None and time.monotonic() < self._server_retry_at:
            raise self._unreachable
        try:
            opened = open_run()
        except Unreachable as error:
            logger.warning("%s", error)
            self._unreachable = error
            self._server_errors += 1
            self._server_retry_at = time.monotonic() + retry_seconds(self._server_errors)
            raise
        self._server_errors = 0
        return opened

    def _fail(self, run_id: str, error: Exception) -> None:
        """Note why a run was not mirrored; it is rebuilt later."""
        _log(f"run {run_id}", error)
        self._failed[run_id] = _reason(error)
        self._errors[run_id] += 1
        self._retry_at[run_id] = time.monotonic() + retry_seconds(self._errors[run_id])
        opened = self._open.pop(run_id, None)
        if opened is not None:
            try:
                opened.abandon()
            except Exception:  # the run has already failed
                logger.exception("the W&B run %s did not end", run_id)
        if not self._open:
            end_session()  # wandb's service may have failed: it crashes on unexpected answers


def _log(what: str, error: Exception) -> None:
    """Log that something is not mirrored."""
    if not isinstance(error, Unreachable):
        expected = isinstance(error, OSError | ValueError | InputError)
        logger.warning("%s is not mirrored: %s", what, error, exc_info=None if expected else error)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, Unreachable) else f"{type(error).__name__}: {error}"
