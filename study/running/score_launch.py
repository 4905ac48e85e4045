"""From a sweep's runs to the table of their scores, by the engine that trains runs.

Scores are jobs, which come after the baselines of their tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from rich.console import Console

from study.base.durable_files import require_links, retry_write
from study.base.errors import check_all
from study.base.terminal import say
from study.config.resources import Resources
from study.config.score_config import Downstream
from study.executing.executors import make_slots
from study.running.coordinator import Failure, Proposer, left_failed, preparing
from study.running.display import execute_all
from study.scoring.evaluations import BaselineJob, Evaluation, ScoreJob, batches, missing_baselines, scores_there, wanted
from study.scoring.scored_examples import lost_notes
from study.scoring.targets import Scored, Target, evaluations_of, label_runs, require_texts, require_weights, runs_in_answer
from study.scoring.targets import target as find_target
from study.store.ownership import sweep_lock
from study.store.records import timestamp
from study.store.score_records import BaselineRecord, ScoreRecord, baseline, scores_of, write_scores
from study.store.sweep_folder import SweepFolder

AnyScoreJob = ScoreJob | BaselineJob
AnyScoreRecord = ScoreRecord | BaselineRecord | Failure


def score_runs(target: Target, downstream: Downstream, resources: Resources, console: Console) -> Scored:
    """Make every requested score that does not exist, with progress, and write the table of all scores.

    Raises InputError before anything is trained, and KeyboardInterrupt when stopped, after saving.
    """
    sweep, resources = target.sweep, resources.for_scores
    require_links(sweep.path, "copy the sweep to another folder, and score it there")
    with sweep_lock(sweep.scoring):
        with preparing(sweep.scoring.stop_file):
            evaluations = evaluations_of(target, downstream)
            baselines = missing_baselines(sweep, evaluations)
            scores = ScoreProposer(sweep, evaluations, baselines, label_runs(target))
            missing = scores.missing()
            encoders = {job.folder.run.run_id: job.folder.run for job in missing if job.config.protocol != "random_init"}
            needed = _read_for(missing, baselines, evaluations)
            check_all(lambda: require_weights(encoders.values()), lambda: require_texts(one.run for one in needed))
            slots = make_slots(resources, len(missing))
            lost = _lost_notes(needed)
        for note in dict.fromkeys([*(note for evaluation in evaluations for note in evaluation.task.notes), *lost]):
            say(console, note)
        try:
            execute_all(sweep, scores, resources, slots, console)
        finally:
            if any(scores_of(run.folder) for run in target.runs):
                write_scores(sweep)
    return Scored(target, tuple(evaluations), scores.failed_baselines)


def score_sweep(sweep: SweepFolder, downstream: Downstream, resources: Resources, console: Console) -> Scored | None:
    """Score the runs that a sweep's answer uses; None where it uses none."""
    return score_runs(find_target(sweep.path), downstream, resources, console) if runs_in_answer(sweep) else None


def _read_for(
    missing: Iterable[ScoreJob], baselines: Iterable[BaselineJob], evaluations: Iterable[Evaluation]
) -> list[Evaluation]:
    """Return the evaluations whose runs' text is read, by a tokeniser or to count words."""
    read = {(job.folder.run.path, job.task.requested) for job in missing}
    read |= {(job.run, job.task.requested) for job in baselines if job.text is not None}
    return [one for one in evaluations if (one.run.folder.path, one.name) in read]


def _lost_notes(needed: Sequence[Evaluation]) -> list[str]:
    """Warnings about what tokenisers lose of tasks that still need scores."""
    tokenizers = {run.config.data.tokenizer.words: run for run in (one.run for one in needed)}
    tasks = {one.name: one.task for one in needed}
    return [*lost_notes({name: run.tokenizer for name, run in tokenizers.items()}, tasks.values())]


class ScoreProposer(Proposer[AnyScoreJob, AnyScoreRecord]):
    """The scores of some evaluations of a sweep and the baselines of their tasks; `names` gives labels of runs by id."""

    noun = "score"

    def __init__(
        self,
        sweep: SweepFolder,
        evaluations: Sequence[Evaluation],
        baselines: Sequence[BaselineJob],
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.sweep, self.evaluations, self.names = sweep, evaluations, names or {}
        self._records = records = scores_there(evaluations)
        run = evaluations[0].run.folder
        self.witness = run.standing(run.record_file)
        self.there = {job.key: records[job.key] for one in evaluations for job in one.jobs(records) if job.key in records}
        self.left_failed = left_failed((records[key] for key in self.there), sweep)
        self._baselines = {job.key: job for job in baselines}
        self._failed: dict[str, tuple[BaselineJob, Failure]] = {}
        self._reported: set[tuple[str, str]] = set()

    @property
    def failed_baselines(self) -> tuple[str, ...]:
        """A line for each task whose baselines failed."""
        return tuple(f"{failure.state}: {job.words}: {failure.reason}" for job, failure in self._failed.values())

    def missing(self, busy: Collection[str] = ()) -> list[ScoreJob]:
        """Return the scores that could be made now."""
        return wanted(self.evaluations, self._records, busy)

    def wanted(self, busy: Collection[AnyScoreJob], free: int) -> Sequence[Sequence[AnyScoreJob]]:
        """Return baselines, each in a batch of its own, and then scores."""
        keys = {job.key for job in busy}
        alone = [[job] for key, job in self._baselines.items() if key not in keys]
        due: list[Sequence[AnyScoreJob]] = [*alone, *batches(self.missing(keys), free)]
        self.waiting = sum(map(len, due[free:]))
        return due[:free]

    def take(self, job: AnyScoreJob) -> AnyScoreRecord | None:
        """Return the record of a score, or of baselines that have the requested metric and text."""
        if isinstance(job, ScoreJob):
            if (record := job.folder.score()) is not None:
                self._records[job.key] = record
            return record
        if job.key in self._failed:
            _, failure = self._failed[job.key]
            return failure
        known = baseline(self.sweep, job.task.name, job.task.fingerprint)
        if known is None or known.data_fingerprint != job.text or not known.by(job.metric):
            return None
        self._baselines.pop(job.key, None)
        return known

    def give_up(self, job: AnyScoreJob, failure: Failure) -> None:
        """File a failed score."""
        if isinstance(job, BaselineJob):
            self._failed[job.key] = job, failure
            self._baselines.pop(job.key, None)
            return
        now = timestamp()
        record = ScoreRecord(
            score_id=job.key,
            run_id=job.folder.run.run_id,
            sweep=job.sweep,
            config=job.config,
            kind=job.task.kind,
            state=failure.state,
            reason=failure.reason,
            reported_on="test",
            attempts=job.folder.attempts(),
            started_at=now,
            finished_at=now,
        )
        retry_write(lambda: job.folder.file_score(record))

    def label(self, job: AnyScoreJob) -> str:
        """Return the task and the run, or the baselines."""
        if isinstance(job, BaselineJob):
            return job.words
        weights = " random weights" if job.config.protocol == "random_init" else ""
        return f"{job.config.task} {self.names.get(job.folder.run.run_id, job.folder.run.run_id)}{weights}"

    def line(self, job: AnyScoreJob, record: AnyScoreRecord) -> str | None:
        """Return the result of a score, or why baselines failed, once for several jobs of a task."""
        if isinstance(record, BaselineRecord):
            return None
        if record.reason is not None:
            if (failure := (job.task.name, record.reason)) in self._reported:
                return None
            self._reported.add(failure)
        if isinstance(record, Failure):
            return f"{record.state}: {self.label(job)}: {record.reason}"
        config = record.config
        what = f"{self.label(job)}{f' lr={config.knobs.learning_rate:g}' if record.steps else ''} seed={config.seed}"
        if record.state != "COMPLETED" or record.test is None:
            return f"{record.state:<9} {what}: {record.reason}"
        dev = "" if record.dev is None else f" (dev {record.dev:.4f})"
        speed = f", {record.tokens_per_second:,.0f} tokens/s" if record.tokens_per_second else ""
        time = "" if record.seconds is None else f", {record.seconds:,.0f} s"
        spent = "" if record.spent_flops is None else f", {record.spent_flops:.3g} FLOPs spent with the teacher"
        return f"COMPLETED {what}: {config.metric} {record.test:.4f}{dev}{speed}{time}{spent}"
