"""When to stop trying a run whose process keeps dying: one that gets on is tried for ever, one that does not is given up."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from study.folders import RunFolder
from study.records import State
from study.sweeping.status import newest_values

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
        self._out_of_memory = memory_kills()

    def count(self, run: RunFolder, exit_status: int) -> GivenUp | None:
        """Note that a process has died without a record; None where the run is to be tried again."""
        step, name = int(newest_values(run).get("trainer/step", 0)), run.run_id
        if step > self._furthest.get(name, 0):
            self._furthest[name] = step
            del self._crashes[name], self._kills[name]
        killed = exit_status in {code for number in OUTSIDE for code in (-number, 128 + number)}
        before, self._out_of_memory = self._out_of_memory, memory_kills()
        starved = killed and self._out_of_memory > before
        tally, limit = (self._kills, KILLS) if killed and not starved else (self._crashes, CRASHES)
        tally[name] += 1
        if tally[name] < limit:
            return None
        what = "was killed" if killed else "ended without a record"
        where = f"without getting past step {self._furthest.get(name, 0)}"
        why = "; the kernel was out of memory" if starved else ""
        how = f"{what} {limit} times {where}, the last time with {how_ended(exit_status)}{why}"
        return GivenUp("OOM" if starved else "FAILED", f"its process {how}; see {run.log_file.name}")


def how_ended(exit_status: int) -> str:
    """How a process ended, by its exit status, negative where a signal killed it."""
    return f"signal {signal.Signals(-exit_status).name}" if exit_status < 0 else f"exit status {exit_status}"


def memory_kills() -> int:
    """How many processes this machine's kernel has killed for want of memory; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
