"""What a person sees while jobs run: progress bars, signs of life, and a line for each job that ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median
from typing import Any, Generic

from rich.console import Console
from rich.progress import TaskID, TimeElapsedColumn, TimeRemainingColumn

from study.base.quantities import duration, plural
from study.base.terminal import WHOLE, bars, say
from study.base.text import printable
from study.config.resources import Resources
from study.executing.executors import make_executor
from study.executing.slots import Slot
from study.running.coordinator import Coordinator, JobT, Progress, Proposer, RecordT
from study.store.ownership import LEASE_SECONDS, seconds_since_beat, seconds_since_write
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import WorkFolder, newest_values

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
    """Return the signs of life of a run, given its newest rows."""
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
    """Describe a silent run: the age of its last row, the usual interval, and a missing heartbeat."""
    if signs is None or signs.seconds_since_row is None or not signs.silent:
        return None
    usual = "" if signs.seconds_per_row is None else f", usually one every {max(1.0, signs.seconds_per_row):.0f} s"
    beat = f"; no sign of its process for {duration(signs.seconds_since_beat or 0)}" if signs.lifeless else ""
    return f"no row for {duration(signs.seconds_since_row)}{usual}{beat}"


BARS = 12
"""At most so many running jobs, the oldest, have a bar of their own: drawing a thousand takes seconds."""


class Display(Generic[JobT, RecordT]):
    """One bar for all jobs and one for each running job on a terminal; a line for each job that ended."""

    def __init__(self, console: Console, proposer: Proposer[JobT, RecordT]) -> None:
        self.console, self.proposer = console, proposer
        self.bars = bars(
            console,
            "{task.percentage:>3.0f}%",
            TimeElapsedColumn(table_column=WHOLE),
            "left",
            TimeRemainingColumn(elapsed_when_finished=True, table_column=WHOLE),
        )
        self._all = self.bars.add_task(f"{proposer.noun}s", total=proposer.expected or None, note="")
        self._tasks: dict[str, TaskID] = {}
        self._shown: int | None = None
        self._held: set[str] = set()

    def refresh(self, state: Progress[JobT, RecordT]) -> None:
        """Show where the jobs are."""
        self._show_ended(state)
        self._show_held(state)
        total = max(len(state.ended) + len(state.running) + state.waiting, self.proposer.expected)
        shown = dict(islice(state.running.items(), BARS))
        done = len(state.ended) + sum(self._share(key, job) for key, job in shown.items())
        note = f"{len(state.ended):,} of {plural(total, self.proposer.noun)}"
        self.bars.update(self._all, completed=done, total=total, note=note)
        for key in [key for key in self._tasks if key not in shown]:
            self.bars.remove_task(self._tasks.pop(key))

    def _show_ended(self, state: Progress[JobT, RecordT]) -> None:
        if self._shown is None:
            self._shown = len(state.news)
            if state.ended:
                verb = "has" if len(state.ended) == 1 else "have"
                say(
                    self.console,
                    f"{plural(len(state.ended), self.proposer.noun)} {verb} ended already{self.proposer.left_failed}",
                )
        for job, record in state.news[self._shown :]:
            if (line := self.proposer.line(job, record)) is not None:
                say(self.console, printable(line))
        self._shown = len(state.news)

    def _show_held(self, state: Progress[JobT, RecordT]) -> None:
        for key, (job, holder) in state.held.items():
            if key not in self._held:
                self._held.add(key)
                say(self.console, printable(f"WAITS     {self.proposer.label(job)}: is being {job.folder.done} by {holder}"))

    def _share(self, key: str, job: JobT) -> float:
        """Update a job's bar; return the share of its tokens that is done."""
        if key not in self._tasks:
            self._tasks[key] = self.bars.add_task(self.proposer.label(job), total=job.tokens, note="starting")
        rows = job.folder.newest_rows()
        values = newest_values(rows)
        tokens, speed = values.get("trainer/tokens", 0), values.get("perf/tokens_per_second")
        steps = f"step {values['trainer/step']:,}" if "trainer/step" in values else ""
        note = silence_note(signs_of(job.folder, rows)) or (steps if speed is None else f"{speed:,.0f} tokens/s")
        self.bars.update(self._tasks[key], completed=tokens, note=note)
        return float(tokens) / job.tokens if job.tokens else 0.0


def execute_all(
    sweep: SweepFolder, proposer: Proposer[JobT, RecordT], resources: Resources, slots: list[Slot], console: Console
) -> None:
    """Execute every job that a proposer wants, with progress on the console."""
    display = Display(console, proposer)
    with display.bars:
        Coordinator(sweep, proposer).run(make_executor(resources, slots, sweep), display.refresh)
    if proposer.exhausted is not None:
        say(console, proposer.exhausted)
