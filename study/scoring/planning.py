"""Which scores a run or a sweep still needs: the grid at a third of the seeds, and its best on dev at the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from study.folders.sweep import SweepFolder
from study.score_config import Downstream, Knobs, Protocol, ScoreConfig, Update
from study.score_records import ScoreRecord, baseline, chosen
from study.scoring.job import BaselineJob, Job
from study.scoring.pretrained import Pretrained
from study.tasks.examples import TaskData
from study.tuned_values import trial_seeds


@dataclass(frozen=True)
class Subject:
    """An encoder on a task by one protocol: what is chosen for it is chosen for it alone."""

    run: Pretrained
    sweep: str
    name: str
    task: TaskData
    data: Path | None
    random: bool
    _made: dict[tuple[Downstream, Knobs, int], Job] = field(default_factory=dict, repr=False, compare=False)

    def jobs(self, downstream: Downstream, records: Mapping[str, ScoreRecord]) -> list[Job]:
        """The scores that can be made now, given those there are; those made already are among them."""
        grid = self._grid(downstream)
        seeds = range(downstream.seeds if self._varies(downstream) else 1)
        trials = seeds[: trial_seeds(len(seeds))] if len(grid) > 1 else seeds
        first = [self._job(downstream, knobs, seed) for seed in trials for knobs in grid]
        done = [record for job in first if (record := records.get(job.score_id)) is not None]
        usable = [record for record in done if record.state == "COMPLETED"]
        if len(done) < len(first) or not usable:
            return first
        best = chosen(usable)[0].config.knobs
        return first + [self._job(downstream, best, seed) for seed in seeds[len(trials) :]]

    @property
    def task_key(self) -> tuple[str, str]:
        """The name and the fingerprint of the task, which its baselines are kept under."""
        return self.task.spec.name, self.task.fingerprint

    @property
    def counted_text(self) -> str | None:
        """The data fingerprint of the text that the task's baselines count words in, None where they do not."""
        return self.run.data_fingerprint if self.task.spec.kind == "minimal_pairs" else None

    def protocol(self, downstream: Downstream) -> Protocol:
        """How the encoder meets the task."""
        protocols: dict[Update, Protocol] = {"all": "fine_tune", "head": "frozen", "none": "zero_shot"}
        return "random_init" if self.random else protocols[self._update(downstream)]

    def _update(self, downstream: Downstream) -> Update:
        return "none" if self.task.spec.kind == "minimal_pairs" else downstream.update

    def _varies(self, downstream: Downstream) -> bool:
        """Whether seeds give different scores: not where fixed features or fixed weights meet no chance."""
        return self.random or self.trained(downstream)

    def _grid(self, downstream: Downstream) -> list[Knobs]:
        return downstream.grid() if self.trained(downstream) else [downstream.knobs]

    def trained(self, downstream: Downstream) -> bool:
        """Whether training goes step by step: not where probes are fitted, nor where nothing learns."""
        return self._update(downstream) == "all" or self.task.spec.kind == "spans"

    def _job(self, downstream: Downstream, knobs: Knobs, seed: int) -> Job:
        """One score, made once: each time that a worker is free all are asked for."""
        asked = downstream, knobs, seed
        if asked not in self._made:
            self._made[asked] = self._new(downstream, knobs, seed)
        return self._made[asked]

    def _new(self, downstream: Downstream, knobs: Knobs, seed: int) -> Job:
        config = ScoreConfig(
            encoder=self.run.random_id if self.random else self.run.run_id,
            task=self.task.spec.name,
            task_fingerprint=self.task.fingerprint,
            metric=self.task.spec.headline,
            protocol=self.protocol(downstream),
            update=self._update(downstream),
            knobs=knobs,
            seed=seed,
        )
        return Job(config, self.run.folder.path, self.sweep, self.task.spec.kind, self.name, self.data)


def missing_baselines(sweep: SweepFolder, found: list[Subject], knobs: Knobs) -> list[BaselineJob]:
    """The baselines of each task that nobody has made yet, or not by its main metric, or of text that none of its runs read."""
    texts: dict[tuple[str, str], set[str | None]] = {}
    for subject in found:
        texts.setdefault(subject.task_key, set()).add(subject.counted_text)
    jobs = {}
    for subject in found:
        known = baseline(sweep, *subject.task_key)
        if known is None or known.data_fingerprint not in texts[subject.task_key] or not known.by(subject.task.spec.headline):
            run = subject.run.folder.path
            jobs[subject.task_key] = BaselineJob(sweep.path, run, subject.name, *subject.task_key, subject.data, knobs)
    return list(jobs.values())


def subjects(
    runs: list[Pretrained], sweep: str, tasks: Mapping[str, TaskData], data: Path | None, random_weights: bool
) -> list[Subject]:
    """Every run on every task, and where asked random weights once for each architecture and data."""
    found = [Subject(run, sweep, name, task, data, False) for run in runs for name, task in tasks.items()]
    if random_weights:
        distinct = {run.random_id: run for run in reversed(runs)}.values()
        found += [Subject(run, sweep, name, task, data, True) for run in distinct for name, task in tasks.items()]
    return found


def wanted(
    found: list[Subject], downstream: Downstream, records: Mapping[str, ScoreRecord], running: Collection[str]
) -> list[Job]:
    """The scores to make next, neither there nor being made, the longest first."""
    jobs = {job.score_id: (job, subject) for subject in found for job in subject.jobs(downstream, records)}
    missing = [
        (job, subject) for score_id, (job, subject) in jobs.items() if score_id not in records and score_id not in running
    ]
    return [job for job, subject in sorted(missing, key=lambda pair: -cost(pair[1], pair[0]))]


def cost(subject: Subject, job: Job) -> float:
    """About how much work a score is, in example times layer parameters; only its order matters."""
    a = subject.run.config.architecture
    size = a.depth * a.width * (4 * a.width + 2 * a.ffn)
    examples = {name: len(split) for name, split in subject.task.splits.items()}
    if job.config.update == "none":
        return float(20 * examples["test"] * (size + a.width * a.vocabulary))
    return float((3 * job.config.knobs.epochs * examples["train"] + examples["test"]) * size)
