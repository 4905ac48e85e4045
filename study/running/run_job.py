"""A run as a job: what an executor takes along to where the run is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from study.config.run_config import RunConfig
from study.executing.job import Job
from study.store.records import Ending
from study.store.run_folder import RunFolder

if TYPE_CHECKING:
    from study.training.execution import Execution
    from study.training.stopping import StopSignal


@dataclass(frozen=True)
class RunJob(Job):
    """A run to train, for the sweep of this name."""

    folder: RunFolder
    config: RunConfig
    sweep: str

    @property
    def tokens(self) -> int:
        """The tokens of the run's budget."""
        return self.config.tokens

    def execute(self, execution: Execution, stop: StopSignal) -> Ending:
        """Train the run."""
        from study.training.run import train

        return train(self.config, self.folder, self.sweep, execution, stop)
