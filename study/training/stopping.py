"""How a run is told to stop: a flag that signals set. It needs no torch, so that it can be set up before anything else."""

from __future__ import annotations

import signal
from types import FrameType


class Preempted(Exception):
    """The run was told to stop, and its state is saved at a step boundary."""


class StopSignal:
    """A flag that SIGTERM, SIGINT and SIGUSR1 set; nothing else happens inside a handler."""

    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def __init__(self) -> None:
        self.received = False

    def set(self, signum: int | None = None, frame: FrameType | None = None) -> None:
        """Ask the run to stop at its next step boundary."""
        del signum, frame
        self.received = True

    def install(self) -> None:
        """Take over the signals, from Lightning too, whose own handlers leave no checkpoint.

        They are let through from then on: a process inherits what is blocked, SIGINT from the forkserver of the runs.
        """
        for number in self.signals:
            signal.signal(number, self.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.signals)
