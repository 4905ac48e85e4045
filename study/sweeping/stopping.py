"""How whoever drives runs or scores stops: what they have done is saved first."""

from __future__ import annotations

import signal
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Protocol

SAVE_SECONDS = 60.0
"""How long runs, or scores, may take to save where they are stopped."""


class Stoppable(Protocol):
    """Whoever has runs, or scores, in hand."""

    def interrupt(self) -> None:
        """Tell all of them to save and stop."""

    def kill(self) -> None:
        """End all that are still there; what they had saved stays."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Within, SIGTERM stops what is done as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def save_and_stop(executor: Stoppable, futures: Collection[Future[int]]) -> None:
    """Let all that an executor has in hand save and end; end those that take too long, or all once Ctrl-C comes again."""
    unsaved = set(futures)
    if unsaved:
        waits = f"waiting up to {SAVE_SECONDS:.0f} s for {len(unsaved)} to save"
        sys.stderr.write(f"stopping: {waits}; Ctrl-C again ends them where they last saved\n")
    try:
        executor.interrupt()
        unsaved = wait(unsaved, SAVE_SECONDS).not_done
    except KeyboardInterrupt:
        pass
    executor.kill()
    wait(unsaved, SAVE_SECONDS)  # not for ever: a Slurm that does not answer tells nobody how its jobs ended
