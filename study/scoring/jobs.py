"""Scores and baselines as jobs: what an executor takes along to where they are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from study.config.score_config import ScoreConfig
from study.executing.job import Job
from study.scoring.subsets import PlannedTask
from study.store.records import Ending
from study.store.run_folder import RunFolder
from study.store.score_records import BaselineFolder, ScoreFolder

if TYPE_CHECKING:
    from study.training.execution import Execution
    from study.training.stopping import StopSignal


@dataclass(frozen=True)
class ScoreJob(Job):
    """A score to make, for the sweep of this name."""

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
    """What a task gives without an encoder by a metric, to be made.

    Words of minimal pairs are counted in the text that the run has read, which has this fingerprint; other kinds need none.
    """

    folder: BaselineFolder
    task: PlannedTask
    metric: str
    run: Path
    text: str | None

    @property
    def words(self) -> str:
        """What is made, in words."""
        return f"baselines of {self.task.name} {self.task.fingerprint}"

    def execute(self, execution: Execution, stop: StopSignal) -> Ending:
        """Make the baselines."""
        from study.scoring.making import make_baselines

        del stop
        make_baselines(self.task, RunFolder(self.run), self.folder.sweep, execution.threads)
        return "COMPLETED"
