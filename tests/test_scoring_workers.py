"""The workers that make scores: one that is there goes before a new one, and none is lost however many end at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, cast

import pytest

from study.scoring.workers import Worker, Workers
from study.sweeping.executors.slots import Slot


class Pipe:
    """The pipe of a worker whose scores take no time."""

    def send(self, job: object) -> None:
        """Take a job."""

    def recv(self) -> int:
        """The exit status of the job."""
        time.sleep(2e-4)
        return 0


class Instant(Workers):
    """Workers without processes."""

    started = 0

    def _started(self, slot: Slot) -> Worker:
        self.started += 1
        return Worker(slot, cast(Any, None), cast(Any, Pipe()))


@pytest.fixture
def threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_a_worker_that_is_there_goes_before_a_new_one() -> None:
    workers = Instant([Slot("cpu", (0,), 1)] * 3)
    for _ in range(4):
        assert workers.submit(cast(Any, "a job")).result(10) == 0
    assert (workers.started, workers.free) == (1, 3)


@pytest.mark.usefixtures("threads_take_turns_often")
def test_no_slot_is_lost_where_scores_end_while_others_begin() -> None:
    workers, futures = Instant([Slot("cpu", (0,), 1)] * 16), set[Future[int]]()
    for _ in range(6000):
        if not workers.free:
            futures -= wait(futures, 10, FIRST_COMPLETED).done
        futures.add(workers.submit(cast(Any, "a job")))
    assert not wait(futures, 10).not_done
    assert workers.free == 16
