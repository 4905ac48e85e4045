"""When to stop trying a run whose process keeps dying: one that gets on is tried for ever, one that does not is given up."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass

from study.base.errors import OOM_EXIT
from study.store.metric_rows import newest_values
from study.store.records import State
from study.store.run_folder import RunFolder

CRASHES = 3
"""How often a run may crash, or be killed for want of memory, in one launch without having got further."""

KILLS = 30
"""How often it may be killed by whoever else kills, which is mostly no fault of the run's."""

OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What ends processes from outside; a shell or a scheduler tells it as 128 and the number."""


@dataclass(frozen=True)
class GivenUp:
    """How a run is filed that is not tried again."""

    state: State
    reason: str


class Deaths:
    """The deaths of the runs of one launch since each last got further than ever before."""

    def __init__(self) -> None:
        self._crashes: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._furthest: dict[str, int] = {}

    def count(self, run: RunFolder, exit_status: int) -> GivenUp | None:
        """Note that a process has died without a record; None where the run is to be tried again."""
        step, name = int(newest_values(run.newest_rows()).get("trainer/step", 0)), run.run_id
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
        where = f"without getting past step {self._furthest.get(name, 0)}"
        why = "for want of memory" if starved else f"with {how_ended(exit_status)}"
        how = f"{what} {limit} times {where}, the last time {why}"
        return GivenUp("OOM" if starved else "FAILED", f"its process {how}; see {run.log_file.name}")


def how_ended(exit_status: int) -> str:
    """How a process ended, by its exit status, negative where a signal killed it; those of real time have numbers alone."""
    if exit_status >= 0:
        return f"exit status {exit_status}"
    names = {number.value: number.name for number in signal.Signals}
    return f"signal {names.get(-exit_status, -exit_status)}"
