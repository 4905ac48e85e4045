"""The downstream scores of runs as jobs, with the baselines of their tasks first, and the record that each leaves."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from study.base.durable_files import retry_write
from study.running.coordinator import Proposer
from study.running.retries import GivenUp
from study.scoring.evaluations import BaselineJob, Evaluation, ScoreJob, batches, scores_there, wanted
from study.store.records import timestamp
from study.store.score_records import ScoreRecord, baseline
from study.store.sweep_folder import SweepFolder

AnyScoreJob = ScoreJob | BaselineJob
AnyScoreRecord = ScoreRecord | GivenUp


class ScoreProposer(Proposer[AnyScoreJob, AnyScoreRecord]):
    """The scores of some evaluations of a sweep, and baselines of their tasks."""

    def __init__(self, sweep: SweepFolder, evaluations: Sequence[Evaluation], baselines: Sequence[BaselineJob]) -> None:
        self.sweep, self.evaluations = sweep, evaluations
        self._records = records = scores_there(evaluations)
        run = evaluations[0].run.folder
        self.witness = run.standing(run.record_file)
        self.there = {job.key: records[job.key] for one in evaluations for job in one.jobs(records) if job.key in records}
        self._baselines = {job.key: job for job in baselines}
        self._failed: dict[str, tuple[BaselineJob, GivenUp]] = {}

    @property
    def failed_baselines(self) -> tuple[str, ...]:
        """A line for each task whose baselines failed."""
        return tuple(f"{ended.state}: {job.words}: {ended.reason}" for job, ended in self._failed.values())

    def missing(self, busy: Collection[str] = ()) -> list[ScoreJob]:
        """The scores that could be made now."""
        return wanted(self.evaluations, self._records, busy)

    def wanted(self, busy: Collection[AnyScoreJob], free: int) -> Sequence[Sequence[AnyScoreJob]]:
        """Baselines, each alone, and then scores."""
        keys = {job.key for job in busy}
        alone = [[job] for key, job in self._baselines.items() if key not in keys]
        due: list[Sequence[AnyScoreJob]] = [*alone, *batches(self.missing(keys), free)]
        self.waiting = sum(map(len, due[free:]))
        return due[:free]

    def take(self, job: AnyScoreJob) -> AnyScoreRecord | None:
        """The record of a score; that of a baseline where it has the metric, of the text, that are asked for."""
        if isinstance(job, ScoreJob):
            if (record := job.folder.score()) is not None:
                self._records[job.key] = record
            return record
        ended, known = None, baseline(self.sweep, job.task.name, job.task.fingerprint)
        if job.key in self._failed:
            _, ended = self._failed[job.key]
        elif known is not None and known.data_fingerprint == job.text and known.by(job.metric):
            ended = GivenUp("COMPLETED")
        if ended is not None:
            self._baselines.pop(job.key, None)
        return ended

    def give_up(self, job: AnyScoreJob, ended: GivenUp) -> None:
        """File a score whose process could never file a record itself; baselines that failed the next launch tries again."""
        if isinstance(job, BaselineJob):
            self._failed[job.key] = job, ended
            return
        now = timestamp()
        record = ScoreRecord(
            score_id=job.key,
            run_id=job.folder.run.run_id,
            sweep=job.sweep,
            config=job.config,
            kind=job.task.kind,
            state=ended.state,
            reason=ended.reason,
            reported_on="test",
            attempts=job.folder.attempts(),
            started_at=now,
            finished_at=now,
        )
        retry_write(lambda: job.folder.file_score(record))
