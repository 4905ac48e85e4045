"""What executors are given, jobs, and what they are: the shape of concurrent.futures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from study.store.records import Ending
from study.store.work_folder import WorkFolder

if TYPE_CHECKING:
    from study.training.execution import Execution
    from study.training.stopping import StopSignal


@dataclass(frozen=True)
class Job(ABC):
    """Something for a process to make in a folder, such as a run or a score; it travels to other machines."""

    folder: WorkFolder

    @property
    def key(self) -> str:
        """The job's name, unlike that of any other job of its sweep."""
        return self.folder.path.name

    @property
    def tokens(self) -> int | None:
        """How many tokens it will train on, None where that is not known."""
        return None

    @abstractmethod
    def execute(self, execution: Execution, stop: StopSignal) -> Ending:
        """Make it in this process and file its record; returns how the attempt ended."""


class Executor(Protocol):
    """Where jobs execute; the shape of concurrent.futures."""

    @property
    def free(self) -> int:
        """How many more batches can be submitted now."""

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        """Start a batch of jobs, which one process makes one after another; the future resolves to its exit status."""

    def interrupt(self) -> None:
        """Tell all jobs to save and stop."""

    def kill(self) -> None:
        """End all jobs that are still there; what they had saved stays."""
