"""What a person sees while jobs are done: bars, and a line for each that ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Generic

from rich.console import Console
from rich.progress import TaskID, TimeElapsedColumn, TimeRemainingColumn

from study.base.quantities import plural
from study.base.terminal import WHOLE, bars, say
from study.base.text import printable
from study.running.coordinator import JobT, Progress, RecordT
from study.running.liveness import signs_of, silence
from study.running.retries import GivenUp
from study.running.run_proposer import RunJob
from study.running.score_proposer import AnyScoreJob, AnyScoreRecord
from study.scoring.evaluations import BaselineJob
from study.store.metric_rows import newest_values
from study.store.records import RunRecord
from study.store.sweep_folder import SweepFolder

BARS = 12
"""How many running jobs have a bar of their own, those first that began first: drawing a thousand takes seconds."""


class Display(Generic[JobT, RecordT]):
    """Bars on a terminal for all jobs and those that are running; a line a job that ended, on a terminal or in a log.

    `noun` is what a job is called, `label` names one, and `line` says what became of it, None where that need not be said.
    """

    def __init__(
        self,
        console: Console,
        noun: str,
        label: Callable[[JobT], str],
        line: Callable[[JobT, RecordT], str | None],
        expected: int = 0,
    ) -> None:
        self.console, self.noun, self.label, self.line, self.expected = console, noun, label, line, expected
        self.bars = bars(
            console,
            "{task.percentage:>3.0f}%",
            TimeElapsedColumn(table_column=WHOLE),
            "left",
            TimeRemainingColumn(elapsed_when_finished=True, table_column=WHOLE),
        )
        self._all = self.bars.add_task(f"{noun}s", total=expected or None, note="")
        self._tasks: dict[str, TaskID] = {}
        self._told: int | None = None
        self._held: set[str] = set()

    def refresh(self, state: Progress[JobT, RecordT]) -> None:
        """Show where the jobs are."""
        self._show_ended(state)
        self._show_held(state)
        total = max(len(state.ended) + len(state.running) + state.waiting, self.expected)
        shown = dict(islice(state.running.items(), BARS))
        done = len(state.ended) + sum(self._share(key, job) for key, job in shown.items())
        self.bars.update(self._all, completed=done, total=total, note=f"{len(state.ended)} of {plural(total, self.noun)}")
        for key in [key for key in self._tasks if key not in shown]:
            self.bars.remove_task(self._tasks.pop(key))

    def _show_ended(self, state: Progress[JobT, RecordT]) -> None:
        if self._told is None:
            self._told = len(state.news)
            if state.ended:
                are = "is" if len(state.ended) == 1 else "are"
                say(self.console, f"{plural(len(state.ended), self.noun)} {are} there already")
        for job, record in state.news[self._told :]:
            if (line := self.line(job, record)) is not None:
                say(self.console, printable(line))
        self._told = len(state.news)

    def _show_held(self, state: Progress[JobT, RecordT]) -> None:
        for key, (job, who) in state.held.items():
            if key not in self._held:
                self._held.add(key)
                say(self.console, printable(f"WAITS     {self.label(job)}: is being {job.folder.done} by {who}"))

    def _share(self, key: str, job: JobT) -> float:
        """Update the bar of one job; the share of its tokens that are done, 0 where it is not known how many it has."""
        if key not in self._tasks:
            self._tasks[key] = self.bars.add_task(self.label(job), total=job.tokens, note="starting")
        rows = job.folder.newest_rows()
        values = newest_values(rows)
        tokens, speed = values.get("trainer/tokens", 0), values.get("perf/tokens_per_second")
        steps = f"step {values['trainer/step']:,}" if "trainer/step" in values else ""
        note = silence(signs_of(job.folder, rows)) or (steps if speed is None else f"{speed:,.0f} tokens/s")
        self.bars.update(self._tasks[key], completed=tokens, note=note)
        return float(tokens) / job.tokens if job.tokens else 0.0


def run_display(console: Console, sweep: SweepFolder, expected: int) -> Display[RunJob, RunRecord]:
    """The display of a sweep's runs, of which so many are expected."""
    varied = sweep.distinguishing_knobs()
    return Display(console, "run", lambda job: job.config.words(varied), lambda _, record: run_line(record, varied), expected)


def run_line(record: RunRecord, varied: Sequence[str]) -> str:
    """What became of a run, in a line."""
    label = record.config.words(varied)
    if record.state != "COMPLETED" or record.loss_nats is None:
        return f"{record.state:<9} {label}: {record.reason}"
    note = "" if record.trunk is None else f" for its own {record.spent_tokens:,}"
    note += "".join(f"; {what}" for what in (record.spike_note, record.order_note) if what)
    return (
        f"COMPLETED {label}: {record.loss_nats:.4f} ± {record.loss_standard_error_nats or 0:.4f} nats after "
        f"{record.tokens:,} tokens in {record.wall_seconds or 0:.0f} s{note}"
    )


def score_display(console: Console, names: Mapping[str, str]) -> Display[AnyScoreJob, AnyScoreRecord]:
    """The display of scores, by the names that their runs have; what fails alike for all of a task is told once."""
    failures: set[tuple[str, str]] = set()

    def label(job: AnyScoreJob) -> str:
        if isinstance(job, BaselineJob):
            return job.words
        weights = " random weights" if job.config.protocol == "random_init" else ""
        return f"{job.config.task} {names.get(job.folder.run.run_id, job.folder.run.run_id)}{weights}"

    def line(job: AnyScoreJob, record: AnyScoreRecord) -> str | None:
        if record.reason is not None:
            if (failure := (job.task.name, record.reason)) in failures:
                return None
            failures.add(failure)
        if isinstance(record, GivenUp):
            return None if record.reason is None else f"{record.state}: {label(job)}: {record.reason}"
        config = record.config
        what = f"{label(job)}{f' lr={config.knobs.learning_rate:g}' if record.steps else ''} seed={config.seed}"
        if record.state != "COMPLETED" or record.test is None:
            return f"{record.state:<9} {what}: {record.reason}"
        dev = "" if record.dev is None else f" (dev {record.dev:.4f})"
        speed = f"{record.tokens_per_second:,.0f} tokens/s, " if record.tokens_per_second else ""
        return f"COMPLETED {what}: {config.metric} {record.test:.4f}{dev}, {speed}{record.seconds or 0:.0f} s"

    return Display(console, "score", label, line)
