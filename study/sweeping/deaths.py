"""When to stop trying a run whose process keeps dying: one that gets on is tried for ever, one that does not is given up."""

from __future__ import annotations

import signal
from collections import Counter

from study.records import RunFolder
from study.sweeping.status import newest_values

CRASHES = 3
"""How often a run may crash in one launch without having got further before it is given up."""

KILLS = 10
"""How often it may be killed; whoever kills is mostly not the run itself, but memory can run out at one place every time."""

OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What ends processes from outside; a shell or a scheduler tells it as 128 and the number."""


class Deaths:
    """The deaths of the runs of one launch since each last got further than ever before."""

    def __init__(self) -> None:
        self._crashes: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._furthest: dict[str, int] = {}

    def count(self, run: RunFolder, exit_status: int) -> str | None:
        """Note that a process has died without a record; why the run is to be given up, None where it is to be tried again."""
        step, name = int(newest_values(run).get("trainer/step", 0)), run.run_id
        if step > self._furthest.get(name, 0):
            self._furthest[name] = step
            del self._crashes[name], self._kills[name]
        killed = exit_status in {code for number in OUTSIDE for code in (-number, 128 + number)}
        tally, limit = (self._kills, KILLS) if killed else (self._crashes, CRASHES)
        tally[name] += 1
        if tally[name] < limit:
            return None
        what = "was killed" if killed else "ended without a record"
        where = f"without getting past step {self._furthest.get(name, 0)}"
        return f"its process {what} {limit} times {where}, the last time with {_how(exit_status)}; see {run.log_file.name}"


def _how(exit_status: int) -> str:
    return f"signal {signal.Signals(-exit_status).name}" if exit_status < 0 else f"exit status {exit_status}"
