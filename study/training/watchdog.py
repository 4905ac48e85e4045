"""Detection of a run that takes no steps, with its stack."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

FRAMES = 12
"""The number of innermost frames in a reason; the log has all."""

STDERR = 2


class Watchdog(pl.Callback):
    """Calls `hung` with the reason, in its own thread, if no batch ends for `seconds`.

    Time while the whole process was stopped does not count, up to twice `seconds`. If the interpreter is stuck, and with it
    every thread, the process exits with status 1 after twice `seconds`, with all stacks in its log. A process stopped for
    longer may end so too, since no outside timer distinguishes the two; it is retried from its last checkpoint.
    """

    def __init__(self, seconds: float, hung: Callable[[str], None]) -> None:
        self.seconds, self._hung = seconds, hung
        self._ticks = 0
        self._poll = min(1.0, seconds / 10)

    def on_train_batch_end(self, *_: Any) -> None:
        """Count a step."""
        self._ticks += 1

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Count a validation batch."""
        self._ticks += 1

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the calling thread inside the block."""
        over, watched = threading.Event(), threading.get_ident()
        thread = threading.Thread(target=self._watch, args=(over, watched), daemon=True, name="watchdog")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()  # before cancelling, so that the thread cannot start the timer again
            faulthandler.cancel_dump_traceback_later()

    def _watch(self, over: threading.Event, watched: int) -> None:
        seen, silent, before = -1, 0.0, time.monotonic()
        while not over.wait(self._poll):
            faulthandler.dump_traceback_later(2 * self.seconds, exit=True, file=STDERR)
            now = time.monotonic()
            silent += min(now - before, 2 * self._poll)
            before = now
            if self._ticks != seen:
                seen, silent = self._ticks, 0.0
            elif silent > self.seconds:
                faulthandler.cancel_dump_traceback_later()
                faulthandler.dump_traceback(STDERR)
                self._hung(f"no step for {self.seconds:g} s, in {_where(watched)}")
                return


def _where(thread: int) -> str:
    frames = traceback.extract_stack(sys._current_frames()[thread])[-FRAMES:]
    return " ← ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in reversed(frames))
