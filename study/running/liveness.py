"""Signs of life of a running job, read from its folder: the rows that it logs and the lease that it renews."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from study.base.quantities import duration
from study.store.ownership import LEASE_SECONDS, seconds_since_beat, seconds_since_write
from study.store.work_folder import WorkFolder

SILENT_SECONDS = 60.0
"""A run that logs nothing for longer is silent; a start, a compilation or a validation takes about as long."""

SILENT_ROWS = 10.0
"""A run whose rows are far apart is silent only after so many times its usual interval."""


@dataclass(frozen=True)
class Signs:
    """The age of the last row (or of the start), the usual time between rows, and the age of the lease, in seconds.

    Ages are those of files by this machine's clock; None where nothing can be measured yet.
    """

    seconds_since_row: float | None
    seconds_per_row: float | None
    seconds_since_beat: float | None

    @property
    def silent(self) -> bool:
        """Whether nothing was logged for unusually long; the run's own watchdog decides what that means."""
        usual = 0.0 if self.seconds_per_row is None else SILENT_ROWS * self.seconds_per_row
        return self.seconds_since_row is not None and self.seconds_since_row > max(SILENT_SECONDS, usual)

    @property
    def lifeless(self) -> bool:
        """Whether the process itself is still: it is stopped, or its machine is gone."""
        return self.silent and self.seconds_since_beat is not None and self.seconds_since_beat > LEASE_SECONDS


def signs_of(run: WorkFolder, rows: Sequence[Mapping[str, Any]]) -> Signs:
    """Return the signs of life of a run with these newest rows."""
    ages = map(seconds_since_write, (run.metrics_file, run.attempt_file(run.attempts())))
    since_row = min((age for age in ages if age is not None), default=None)
    return Signs(since_row, seconds_per_row(rows), seconds_since_beat(run))


def seconds_per_row(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the median time between rows, validation excluded: tokens between them ÷ their speed."""
    timed = [row for row in rows if row.get("perf/tokens_per_second")]
    spans = [
        (later["trainer/tokens"] - earlier["trainer/tokens"]) / later["perf/tokens_per_second"]
        for earlier, later in pairwise(timed)
    ]
    return median(spans) if spans else None


def silence_note(signs: Signs | None) -> str | None:
    """Describe a silent run, None for any other: the age of its last row, the usual interval, and a missing heartbeat."""
    if signs is None or signs.seconds_since_row is None or not signs.silent:
        return None
    usual = "" if signs.seconds_per_row is None else f", usually one every {max(1.0, signs.seconds_per_row):.0f} s"
    beat = f"; no sign of its process for {duration(signs.seconds_since_beat or 0)}" if signs.lifeless else ""
    return f"no row for {duration(signs.seconds_since_row)}{usual}{beat}"
