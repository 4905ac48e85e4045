"""What a person sees of scores being made: a bar, what is running, and a line for each score that ended."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from study.base.terminal import WHOLE, bars, say
from study.base.text import printable
from study.scoring.jobs import BaselineJob, Job
from study.scoring.score_coordinator import Progress
from study.store.score_records import ScoreRecord

SHOWN = 4
"""How many of the running scores are named beside the bar."""


class ScoreDisplay:
    """A bar on a terminal; a line a score that ended, on a terminal or in a log."""

    def __init__(self, console: Console, names: dict[str, str]) -> None:
        self.console, self.names = console, names
        self.bars = bars(console, MofNCompleteColumn(table_column=WHOLE), TimeElapsedColumn(table_column=WHOLE))
        self._task = self.bars.add_task("scores", total=None, note="")
        self._begun = False
        self._shown, self._failed = 0, 0
        self._failures: set[tuple[str, str | None]] = set()

    def refresh(self, state: Progress) -> None:
        """Show where the scores are."""
        if state.there and not self._begun:
            say(self.console, f"{state.there} of the scores asked for are there already")
        self._begun = True
        lines = [ended_line(record, self.names) for record in self._untold(state)]
        for line in [*lines, *state.failed_baselines[self._failed :]]:
            say(self.console, printable(line))
        self._shown, self._failed = len(state.new), len(state.failed_baselines)
        names = [self._label(job) for job in state.running.values()]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        total = len(state.new) + len(state.running) + state.waiting
        self.bars.update(self._task, completed=len(state.new), total=total, note=", ".join(names[:SHOWN]) + more)

    def _untold(self, state: Progress) -> Iterator[ScoreRecord]:
        """The scores that ended since, but for those of a task that failed as others of it had."""
        for record in (state.ended[score_id] for score_id in state.new[self._shown :]):
            failure = (record.config.task, record.reason)
            if record.reason is None or failure not in self._failures:
                yield record
            self._failures.add(failure)

    def _label(self, job: Job | BaselineJob) -> str:
        return job.score_id if isinstance(job, BaselineJob) else f"{job.config.task} {self.names[job.run.name]}"


def ended_line(record: ScoreRecord, names: dict[str, str]) -> str:
    """What became of a score, in a line."""
    config = record.config
    rate = f" lr={config.knobs.learning_rate:g}" if record.steps else ""
    weights = " random weights" if config.protocol == "random_init" else ""
    label = f"{config.task} {names.get(record.run_id, record.run_id)}{weights}{rate} seed={config.seed}"
    if record.state != "COMPLETED" or record.test is None:
        return f"{record.state:<9} {label}: {record.reason}"
    dev = "" if record.dev is None else f" (dev {record.dev:.4f})"
    speed = f"{record.tokens_per_second:,.0f} tokens/s, " if record.tokens_per_second else ""
    return f"COMPLETED {label}: {config.metric} {record.test:.4f}{dev}, {speed}{record.seconds or 0:.0f} s"
