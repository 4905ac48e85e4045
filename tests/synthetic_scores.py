"""Made-up downstream scores of a sweep's runs that follow a law of the loss, written through the same files as real ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from study.config.score_config import Knobs, Protocol, ScoreConfig
from study.store.records import RunRecord
from study.store.score_records import BaselineRecord, ScoreRecord, file_baseline, score_folder, write_scores
from study.store.sweep_folder import SweepFolder

FINGERPRINT = "synthetic-task"


@dataclass(frozen=True)
class ScoreLaw:
    """score = chance + (ceiling − chance)/(1 + exp(slope·(loss − middle))), with noise between runs and between seeds."""

    metric: str
    chance: float
    ceiling: float = 1.0
    slope: float = 3.0
    middle: float = 4.0
    between_runs: float = 0.0
    deviation: float = 0.004
    untrained_deviation: float = 0.004
    bag_of_words: float = 0.6
    zero_shot: bool = False

    def score(self, loss: float) -> float:
        """The expected score at a loss in nats."""
        return self.chance + (self.ceiling - self.chance) / (1 + float(np.exp(self.slope * (loss - self.middle))))


TASKS = {
    "sst2": ScoreLaw("accuracy", 0.5),
    "cola": ScoreLaw("matthews", 0.0, 0.6),
    "blimp": ScoreLaw("paradigm_accuracy", 0.5, 0.9, zero_shot=True),
    "rte": ScoreLaw("accuracy", 0.527, 0.527, deviation=0.01),
}
"""Three tasks that follow the loss, and one on which no encoder is above chance."""


def add_scores(folder: SweepFolder, tasks: Mapping[str, ScoreLaw] | None = None, seeds: int = 3) -> None:
    """Score every run that has a loss, and each shape untrained, on every task, and write the table."""
    random = np.random.default_rng(5)
    for task, law in (tasks or TASKS).items():
        untrained_shapes: set[str] = set()
        for record in folder.records():
            if record.loss_nats is None:
                continue
            for protocol, expected in _of(law, record).items():
                untrained = protocol == "random_init"
                if untrained and record.config.architecture.shape_name in untrained_shapes:
                    continue
                if law.between_runs and not untrained:
                    expected += random.normal(0, law.between_runs)
                for seed in range(seeds if untrained or not law.zero_shot else 1):
                    spread = law.untrained_deviation if untrained else law.deviation
                    add_score(folder, record, task, law, protocol, seed, expected + random.normal(0, spread))
            untrained_shapes.add(record.config.architecture.shape_name)
        known = {"majority": {law.metric: law.chance}, "bag_of_words": {law.metric: law.bag_of_words}}
        baselines = BaselineRecord(task=task, task_fingerprint=FINGERPRINT, metric=law.metric, reported_on="test", scores=known)
        file_baseline(folder, baselines)
    write_scores(folder)


def _of(law: ScoreLaw, record: RunRecord) -> dict[Protocol, float]:
    """The expected score of a run and of its architecture untrained, by protocol."""
    assert record.loss_nats is not None
    untrained = law.chance + 0.1 * (law.score(3.0) - law.chance)
    return {"zero_shot" if law.zero_shot else "fine_tune": law.score(record.loss_nats), "random_init": untrained}


def add_score(
    folder: SweepFolder,
    record: RunRecord,
    task: str,
    law: ScoreLaw,
    protocol: Protocol,
    seed: int,
    score: float,
    knobs: Knobs | None = None,
    truncated_examples: int | None = None,
    lost_share: float | None = None,
) -> None:
    """File one score."""
    config = ScoreConfig(
        encoder=record.run_id if protocol != "random_init" else f"random-{record.config.architecture.shape_name}",
        task=task,
        task_fingerprint=FINGERPRINT,
        metric=law.metric,
        protocol=protocol,
        update="none" if law.zero_shot else "all",
        knobs=knobs or Knobs(),
        seed=seed,
    )
    actual = ScoreRecord(
        score_id=config.fingerprint(),
        run_id=record.run_id,
        sweep=folder.name,
        config=config,
        kind="minimal_pairs" if law.zero_shot else "single",
        state="COMPLETED",
        dev_examples=None if law.zero_shot else 872,
        test_examples=2_000,
        truncated_examples=truncated_examples,
        lost_share=lost_share,
        chosen_on=None if law.zero_shot else "dev",
        reported_on="test",
        dev_scores={} if law.zero_shot else {law.metric: score},
        test_scores={law.metric: score},
        test_standard_error=law.deviation,
        started_at="2026-01-01T00:00:00+00:00",
        finished_at="2026-01-01T00:01:00+00:00",
    )
    score_folder(folder.run(record.run_id), config.fingerprint()).file_score(actual)
