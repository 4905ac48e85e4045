"""The stop flag of a run, set by signals; without torch, so that it can be installed first."""

from __future__ import annotations

import signal
from types import FrameType


class Preempted(Exception):
    """The run was stopped and saved at a step boundary."""


class StopSignal:
    """A flag that SIGTERM, SIGINT and SIGUSR1 set; the handler does nothing else."""

    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self) -> None:
        self.received = False

    def set(self, signum: int | None = None, frame: FrameType | None = None) -> None:
        """Request a stop at the next step boundary."""
        del signum, frame
        self.received = True

    def install(self) -> None:
        """Install the handlers, replacing Lightning's, which leave no checkpoint, and unblock the signals.

        A process inherits blocked signals: SIGINT from the forkserver of the runs.
        """
        for number in self.signals:
            signal.signal(number, self.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.signals)
