"""The retry policy: a job that makes progress is always tried again, one whose process keeps failing is given up."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from study.base.durable_files import content_of
from study.base.errors import OOM_EXIT
from study.executing.job import Job
from study.store.records import State
from study.store.work_folder import newest_values

CRASHES = 3
"""How often a job may crash or run out of memory in one launch without making progress."""

KILLS = 30
"""How often a job may be killed from outside, which is rarely its own fault."""

OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end processes from outside; shells and schedulers report them as 128 plus the number."""

MOST_SAID = 500
"""Characters of a log's last line that a reason quotes at most."""


@dataclass(frozen=True)
class Failure:
    """The final state of a job that could not file a record itself, and the reason."""

    state: State
    reason: str


class RetryPolicy:
    """Counts the failures of each job of one launch since the job last made progress."""

    def __init__(self) -> None:
        self._crashes: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._furthest: dict[str, int] = {}

    def failure(self, job: Job, exit_status: int) -> Failure | None:
        """Count a process that ended without a record; None while the job is to be tried again."""
        step, name = steps_of(job), job.key
        if step > self._furthest.get(name, 0):
            self._furthest[name] = step
            del self._crashes[name], self._kills[name]
        starved = exit_status == OOM_EXIT
        killed = exit_status in {code for number in OUTSIDE for code in (-number, 128 + number)}
        tally, limit = (self._kills, KILLS) if killed else (self._crashes, CRASHES)
        tally[name] += 1
        if tally[name] < limit:
            return None
        what = "was killed" if killed or starved else "ended without a record"
        past = f"without getting past step {self._furthest.get(name, 0)}"
        why = "for want of memory" if starved else f"with {how_ended(exit_status, job.folder.log_file)}"
        how = f"{what} {limit} times {past}, the last time {why}"
        log = job.folder.log_file
        where = log.name if log.parent == job.folder.path else log  # beside the record the name is enough
        return Failure("OOM" if starved else "FAILED", f"its process {how}; see {where}")


def steps_of(job: Job) -> int:
    """Return the newest step that a job has logged, 0 without one."""
    return int(newest_values(job.folder.newest_rows()).get("trainer/step", 0))


def how_ended(exit_status: int, log: Path) -> str:
    """Return a description of an exit status, which is negative where a signal ended the process.

    Python's own status for an error comes with the last line of the log, which names the error.
    """
    if exit_status == 1 and (why := _last_line(log)):
        return f"exit status 1 ({why})"
    if exit_status >= 0:
        return f"exit status {exit_status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"signal {names.get(-exit_status, -exit_status)}"


def _last_line(log: Path) -> str:
    lines = (content_of(log) or b"").decode(errors="replace").splitlines()
    return next((line.strip()[:MOST_SAID] for line in reversed(lines) if line.strip()), "")
