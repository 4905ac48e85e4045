"""The protocols of jobs and their executors, in the shape of concurrent.futures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from study.store.records import Ending
from study.store.work_folder import WorkFolder

if TYPE_CHECKING:
    from study.training.attempts import StopSignal
    from study.training.execution import Execution


@dataclass(frozen=True)
class Job(ABC):
    """Work for a process to do in a folder, such as a run or a score; it is pickled to other machines."""

    folder: WorkFolder

    @property
    def key(self) -> str:
        """The job's name, unique in its sweep."""
        return self.folder.path.name

    @property
    def tokens(self) -> int | None:
        """The number of tokens to train on, None where unknown."""
        return None

    @abstractmethod
    def execute(self, execution: Execution, stop: StopSignal) -> Ending:
        """Do the work in this process and file its record; returns how the attempt ended."""


class Executor(Protocol):
    """Where jobs execute, in the shape of concurrent.futures."""

    @property
    def free(self) -> int:
        """How many more batches can be submitted now."""

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        """Start a batch of jobs in one process, one after another; the future resolves to its exit status."""

    def interrupt(self) -> None:
        """Order all jobs to save and stop."""

    def kill(self) -> None:
        """Kill all jobs; what they have saved stays."""
