"""What every executor is: the shape of concurrent.futures, and a way to end what it has in hand."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from study.config.run_config import RunConfig


class Stoppable(Protocol):
    """Whoever has runs, or scores, in hand."""

    def interrupt(self) -> None:
        """Tell all of them to save and stop."""

    def kill(self) -> None:
        """End all that are still there; what they had saved stays."""


class Executor(Stoppable, Protocol):
    """Where runs execute; the shape of concurrent.futures."""

    @property
    def free(self) -> int:
        """How many more runs can be submitted now."""

    def submit(self, config: RunConfig, folder: Path) -> Future[int]:
        """Start a run; the future resolves to its exit status."""
