"""Signs of life of a run that is being trained, read from its folder: the rows that it logs, and the lease that it renews."""

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
"""How long a run may log nothing before it is called silent: a start, a compilation or a validation takes as long."""

SILENT_ROWS = 10.0
"""To how many of its own rows' time that comes at least, for a run whose rows are far between."""


@dataclass(frozen=True)
class Signs:
    """How long ago a run last logged a row (or began, where that is later), what its rows take, and how old its lease is.

    Ages are those of files, by this machine's clock; None where there is nothing yet to measure.
    """

    seconds_since_row: float | None
    seconds_per_row: float | None
    seconds_since_beat: float | None

    @property
    def silent(self) -> bool:
        """Whether it has logged nothing for unusually long; what that means is for the run's own watchdog to say."""
        usual = 0.0 if self.seconds_per_row is None else SILENT_ROWS * self.seconds_per_row
        return self.seconds_since_row is not None and self.seconds_since_row > max(SILENT_SECONDS, usual)

    @property
    def lifeless(self) -> bool:
        """Whether nothing of its process moves: it is stopped, or its machine is gone."""
        return self.silent and self.seconds_since_beat is not None and self.seconds_since_beat > LEASE_SECONDS


def signs_of(run: WorkFolder, rows: Sequence[Mapping[str, Any]]) -> Signs:
    """The signs of life of a run whose newest rows these are."""
    ages = map(seconds_since_write, (run.metrics_file, run.attempt_file(run.attempts())))
    since_row = min((age for age in ages if age is not None), default=None)
    return Signs(since_row, seconds_per_row(rows), seconds_since_beat(run))


def seconds_per_row(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The median time from one row to the next, validation left out: tokens between them ÷ their speed."""
    timed = [row for row in rows if row.get("perf/tokens_per_second")]
    spans = [
        (later["trainer/tokens"] - earlier["trainer/tokens"]) / later["perf/tokens_per_second"]
        for earlier, later in pairwise(timed)
    ]
    return median(spans) if spans else None


def silence_note(signs: Signs | None) -> str | None:
    """What is odd about a running run, None where nothing is: no row for how long, how often one is usual, and no heartbeat."""
    if signs is None or signs.seconds_since_row is None or not signs.silent:
        return None
    usual = "" if signs.seconds_per_row is None else f", usually one every {max(1.0, signs.seconds_per_row):.0f} s"
    beat = f"; no sign of its process for {duration(signs.seconds_since_beat or 0)}" if signs.lifeless else ""
    return f"no row for {duration(signs.seconds_since_row)}{usual}{beat}"
