"""One attempt at a run or a score: the process that owns its folder, and the stop flag that signals set.

It needs no torch, so that the flag can be set up first.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType

from study.store.ownership import Attempt, Fenced, Held, work_lock
from study.store.records import Ending
from study.store.work_folder import WorkFolder


def in_attempt(folder: WorkFolder, begin: Callable[[], Ending | None], make: Callable[[Attempt], Ending]) -> Ending:
    """Own a folder and `make` its content in a new attempt; return the end state.

    `begin` writes the configuration, or returns an existing record's state, which ends it. PREEMPTED if another process owns
    the folder.
    """
    try:
        with work_lock(folder) as locked:
            if (state := begin()) is not None:
                return state
            attempt = Attempt.begin(folder, locked)
            with attempt.renewed():
                folder.remove_leftovers()
                return make(attempt)
    except (Held, Fenced) as error:
        sys.stderr.write(f"{error}\n")
        return "PREEMPTED"


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

        A process inherits blocked signals.
        """
        for number in self.signals:
            signal.signal(number, self.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.signals)
