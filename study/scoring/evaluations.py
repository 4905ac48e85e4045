"""The scores that a run or a sweep still needs: the grid at a third of the seeds, its best on dev at the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from study.base.grouping import grouped
from study.config.score_config import Downstream, Knobs, Protocol, ScoreConfig, Update
from study.config.tuned_values import trial_seeds
from study.counting.parameters import encoder_flops
from study.executing.processes import Job
from study.scoring.pretrained import Pretrained
from study.scoring.scored_examples import PlannedTask
from study.store.records import Ending
from study.store.run_folder import RunFolder
from study.store.score_records import BaselineFolder, ScoreFolder, ScoreRecord, baseline, chosen, score_folder, scores_of
from study.store.sweep_folder import SweepFolder
from study.tasks.examples import TaskData

if TYPE_CHECKING:
    from study.training.attempts import StopSignal
    from study.training.execution import Execution


@dataclass(frozen=True)
class ScoreJob(Job):
    """A score to make for the sweep of this name."""

    folder: ScoreFolder
    config: ScoreConfig
    task: PlannedTask
    sweep: str

    def execute(self, execution: Execution, stop: StopSignal) -> Ending:
        """Make the score."""
        from study.scoring.making import score

        return score(self.config, self.task, self.folder, self.sweep, execution, stop)


@dataclass(frozen=True)
class BaselineJob(Job):
    """The baselines of a task by a metric, to be made.

    Words of minimal pairs are counted in the text of `run`, whose data fingerprint is `text`; other kinds need none.
    """

    folder: BaselineFolder
    task: PlannedTask
    metric: str
    run: Path
    text: str | None

    @property
    def words(self) -> str:
        """The job in words."""
        return f"baselines of {self.task.name} {self.task.fingerprint}"

    def execute(self, execution: Execution, stop: StopSignal) -> Ending:
        """Make the baselines."""
        from study.scoring.making import make_baselines

        del stop
        make_baselines(self.task, RunFolder(self.run), self.folder.sweep, execution.threads)
        return "COMPLETED"


@dataclass(frozen=True)
class Evaluation:
    """An encoder on a task by one protocol; knobs are chosen for each evaluation alone.

    `name` is the task's name as requested.
    """

    run: Pretrained
    sweep: str
    name: str
    task: TaskData
    random: bool
    requested: Downstream
    _made: dict[tuple[Knobs, int], ScoreJob] = field(default_factory=dict, init=False, repr=False, compare=False)

    def jobs(self, records: Mapping[str, ScoreRecord]) -> list[ScoreJob]:
        """Return the scores that can be made given the records, with those already made."""
        grid = self.requested.grid() if self.trained else [self.requested.knobs]
        grid = [knobs.model_copy(update={"max_length": self.max_length}) for knobs in grid]
        seeds = range(self.requested.seeds if self._varies else 1)
        trials = seeds[: trial_seeds(len(seeds))] if len(grid) > 1 else seeds
        first = [self._job(knobs, seed) for seed in trials for knobs in grid]
        done = [record for job in first if (record := records.get(job.key)) is not None]
        best = chosen(done)
        if len(done) < len(first) or not best:
            return first
        return first + [self._job(best[0].config.knobs, seed) for seed in seeds[len(trials) :]]

    @property
    def task_key(self) -> tuple[str, str]:
        """The name and fingerprint of the task."""
        return self.task.spec.name, self.task.fingerprint

    @property
    def counted_text(self) -> str | None:
        """The data fingerprint of the text in which baselines count words, if they do."""
        return self.run.data_fingerprint if self.task.spec.kind == "minimal_pairs" else None

    @property
    def protocol(self) -> Protocol:
        """How the encoder is evaluated."""
        protocols: dict[Update, Protocol] = {"all": "fine_tune", "head": "frozen", "none": "zero_shot"}
        return "random_init" if self.random else protocols[self._update]

    @property
    def trained(self) -> bool:
        """Whether training takes steps; probes and zero-shot scores do not."""
        return self._update == "all" or self.task.spec.kind == "spans"

    @property
    def max_length(self) -> int | None:
        """The knob of its scores: as requested, else None for the sequence length of the run, or another usual length."""
        usual = self.run.usual_length
        return self.requested.knobs.max_length or (None if usual == self.run.config.data.sequence_length else usual)

    @property
    def _update(self) -> Update:
        return "none" if self.task.spec.kind == "minimal_pairs" else self.requested.update

    @property
    def _varies(self) -> bool:
        return self.random or self.trained

    @cached_property
    def planned_task(self) -> PlannedTask:
        """The task as its jobs carry it."""
        kind = self.task.spec.kind
        return PlannedTask(self.name, self.requested.data_folder, self.requested.knobs, kind, *self.task_key)

    def _job(self, knobs: Knobs, seed: int) -> ScoreJob:
        """One score, made once."""
        if (knobs, seed) not in self._made:
            config = ScoreConfig(
                encoder=self.run.random_id if self.random else self.run.run_id,
                task=self.task.spec.name,
                task_fingerprint=self.task.fingerprint,
                metric=self.task.spec.headline,
                protocol=self.protocol,
                update=self._update,
                knobs=knobs,
                seed=seed,
            )
            folder = score_folder(self.run.folder, config.fingerprint())
            self._made[knobs, seed] = ScoreJob(folder, config, self.planned_task, self.sweep)
        return self._made[knobs, seed]


def missing_baselines(sweep: SweepFolder, evaluations: Sequence[Evaluation]) -> list[BaselineJob]:
    """Return the missing baselines of a task, its main metric, or its runs' text."""
    texts: dict[tuple[str, str], set[str | None]] = {}
    for evaluation in evaluations:
        texts.setdefault(evaluation.task_key, set()).add(evaluation.counted_text)
    jobs = {}
    for evaluation in evaluations:
        known = baseline(sweep, *evaluation.task_key)
        if (
            known is None
            or known.data_fingerprint not in texts[evaluation.task_key]
            or not known.by(evaluation.task.spec.headline)
        ):
            folder, metric = BaselineFolder(sweep.baselines / "-".join(evaluation.task_key)), evaluation.task.spec.headline
            run = evaluation.run.folder.path
            jobs[evaluation.task_key] = BaselineJob(folder, evaluation.planned_task, metric, run, evaluation.counted_text)
    return list(jobs.values())


def all_evaluations(
    runs: Sequence[Pretrained], sweep: str, tasks: Mapping[str, TaskData], requested: Downstream
) -> list[Evaluation]:
    """Every run on every task and, if requested, random weights once for each architecture and data."""
    evaluations = [Evaluation(run, sweep, name, task, False, requested) for run in runs for name, task in tasks.items()]
    if requested.random_weights:
        distinct = {run.random_id: run for run in reversed(runs)}.values()
        evaluations += [Evaluation(run, sweep, name, task, True, requested) for run in distinct for name, task in tasks.items()]
    return evaluations


def scores_there(evaluations: Sequence[Evaluation]) -> dict[str, ScoreRecord]:
    """Return the records of all scores of the evaluated runs, by id."""
    runs = {evaluation.run.run_id: evaluation.run for evaluation in evaluations}.values()
    return {record.score_id: record for run in runs for record in scores_of(run.folder)}


def wanted(evaluations: Sequence[Evaluation], records: Mapping[str, ScoreRecord], running: Collection[str]) -> list[ScoreJob]:
    """Return the scores to make next, the most expensive first."""
    jobs = {job.key: (job, evaluation) for evaluation in evaluations for job in evaluation.jobs(records)}
    missing = [(job, evaluation) for key, (job, evaluation) in jobs.items() if key not in records and key not in running]
    return [job for job, evaluation in sorted(missing, key=lambda pair: -cost(pair[1], pair[0]))]


def batches(jobs: Sequence[ScoreJob], free: int) -> list[list[ScoreJob]]:
    """Batches of scores for one process each, in order of the first of each.

    Scores of one run on one task go together, but leave work for every free slot.
    """
    most = max(1, -(-len(jobs) // free))
    together = grouped(jobs, lambda job: (job.folder.run.path, job.task.requested)).values()
    return [group[begin : begin + most] for group in together for begin in range(0, len(group), most)]


def cost(evaluation: Evaluation, job: ScoreJob) -> float:
    """Return the approximate FLOPs of a score.

    Only its order matters.
    """
    length, zero_shot = evaluation.run.max_length(job.config.knobs.max_length), job.config.update == "none"
    per_example = encoder_flops(evaluation.run.config.architecture, [length], predictions=int(zero_shot))
    examples = {name: len(split) for name, split in evaluation.task.splits.items()}
    if zero_shot:
        return 20 * examples["test"] * per_example / 3
    return (job.config.knobs.epochs * examples["train"] + examples["test"] / 3) * per_example
