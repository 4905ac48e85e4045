"""Scores of a run or of a whole sweep, from what is asked for to the last record: one coordinator, one worker a slot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from study.base.durable_files import content_of, is_there
from study.base.errors import GOES_ON, PREEMPTED_EXIT, InputError
from study.executing.executor import Stoppable
from study.running.deaths import how_ended
from study.running.shutdown import save_and_stop, see, sigterm_interrupts
from study.scoring.jobs import BaselineJob, Job
from study.scoring.planning import Subject, wanted
from study.store.locks import is_held
from study.store.records import timestamp
from study.store.score_records import ScoreRecord, scores_of
from study.store.sweep_folder import SweepFolder

ATTEMPTS = 3
"""How often a worker may die over a score without a record in one launch before the score is filed as FAILED."""


class Executor(Stoppable, Protocol):
    """Where scores are made; the shape of concurrent.futures."""

    @property
    def free(self) -> int:
        """How many more scores can be submitted now."""

    def submit(self, job: Job | BaselineJob) -> Future[int]:
        """Start a score; the future resolves to an exit status."""

    def close(self) -> None:
        """Let the idle workers end."""


@dataclass
class Progress:
    """What has been scored and what is being scored, for whoever shows it; `failed_baselines` has a line each.

    `ended` are all scores of the runs, of which `there` are asked for and were there before.
    """

    ended: dict[str, ScoreRecord] = field(default_factory=dict)
    there: int = 0
    new: list[str] = field(default_factory=list)
    running: dict[str, Job | BaselineJob] = field(default_factory=dict)
    waiting: int = 0
    failed_baselines: list[str] = field(default_factory=list)


class Coordinator:
    """Drives the scores of some subjects to their end; `progress` can be read at any time."""

    def __init__(self, sweep: SweepFolder, subjects: list[Subject], baselines: list[BaselineJob]) -> None:
        self.sweep, self.subjects = sweep, subjects
        self._baselines = list(baselines)
        self.progress = Progress()
        self._deaths: Counter[str] = Counter()
        for run in {subject.run.run_id: subject.run for subject in subjects}.values():
            self.progress.ended |= {record.score_id: record for record in scores_of(run.folder)}
        asked = {job.score_id for subject in subjects for job in subject.jobs(self.progress.ended)}
        self.progress.there = len(asked & self.progress.ended.keys())

    def missing(self) -> list[Job]:
        """The scores that could be made now."""
        return wanted(self.subjects, self.progress.ended, self.progress.running)

    def run(self, executor: Executor, refresh: Callable[[Progress], None], refresh_seconds: float = 0.2) -> None:
        """Make all that is wanted; on Ctrl-C, SIGTERM or `study stop` let the workers save, and raise KeyboardInterrupt."""
        futures: dict[Future[int], Job | BaselineJob] = {}
        run = self.subjects[0].run.folder
        with sigterm_interrupts():
            try:
                while True:
                    if self._is_to_stop():
                        raise KeyboardInterrupt
                    see(self.sweep.path, run.standing(run.record_file))
                    self._submit(executor, futures)
                    refresh(self.progress)
                    if not futures:
                        break
                    for future in wait(futures, refresh_seconds, FIRST_COMPLETED).done:
                        self._ended(futures.pop(future), future.result())
            except BaseException as error:  # workers that were left alone would keep this process from ending
                save_and_stop(executor, futures)
                if isinstance(error, OSError):
                    message = f"scoring had to stop: {error}; {GOES_ON}"
                    raise InputError.at("study score", message) from error
                if isinstance(error, KeyboardInterrupt):
                    raise KeyboardInterrupt(GOES_ON) from None
                raise
            finally:
                executor.close()

    def _is_to_stop(self) -> bool:
        """Whether a person has asked it to stop, or has asked a launch of the sweep, which may be what scores it."""
        launch_is_to = is_there(self.sweep.launching.stop_file) and is_held(self.sweep.launching)
        return launch_is_to or is_there(self.sweep.scoring.stop_file)

    def _submit(self, executor: Executor, futures: dict[Future[int], Job | BaselineJob]) -> None:
        free = executor.free  # read once: workers end at any time
        if not free:
            return
        jobs: list[Job | BaselineJob] = [*self._baselines, *self.missing()]
        starting = jobs[:free]
        self._baselines = self._baselines[free:]
        for job in starting:
            self.progress.running[job.score_id] = job
            futures[executor.submit(job)] = job
        self.progress.waiting = len(jobs) - len(starting)

    def _ended(self, job: Job | BaselineJob, exit_status: int) -> None:
        """Take up what became of a score; one whose worker died without a record is tried again, but not for ever."""
        del self.progress.running[job.score_id]
        if isinstance(job, BaselineJob):
            if exit_status != 0:  # the next launch tries again
                why = _last_line(job.log_file) if exit_status == 1 else ""
                how = f"the worker ended with {how_ended(exit_status)}{f' ({why})' if why else ''}; see {job.log_file}"
                self.progress.failed_baselines.append(f"FAILED: {job.score_id}: {how}")
            return
        record = job.folder.score()
        if record is None and exit_status != PREEMPTED_EXIT:
            self._deaths[job.score_id] += 1
            if self._deaths[job.score_id] >= ATTEMPTS:
                job.folder.file_score(self._lost(job, exit_status))
                record = job.folder.score()
        if record is not None:
            self.progress.ended[job.score_id] = record
            self.progress.new.append(job.score_id)

    def _lost(self, job: Job, exit_status: int) -> ScoreRecord:
        """The record of a score whose worker died, as often as it was tried, before it could file one."""
        how = how_ended(exit_status)
        now = timestamp()
        return ScoreRecord(
            score_id=job.score_id,
            run_id=job.run.name,
            sweep=job.sweep,
            config=job.config,
            kind=job.kind,
            state="FAILED",
            reason=f"its worker ended without a record {ATTEMPTS} times, the last time with {how}; see log.txt",
            reported_on="test",
            attempts=job.folder.attempts(),
            started_at=now,
            finished_at=now,
        )


def _last_line(log: Path) -> str:
    """The last line of a log that says something, as that of a traceback says what was wrong; empty where there is none."""
    lines = (content_of(log) or b"").decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
