"""Waiting for what processes and threads do, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class ImpatientClock:
    """A clock in place of the module `time`: who sleeps does not wait, and `meanwhile` happens once."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self._now, self._meanwhile = 0.0, [meanwhile]

    def monotonic(self) -> float:
        """The seconds that were slept through."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let seconds go by."""
        self._now += seconds
        while self._meanwhile:
            self._meanwhile.pop()()
