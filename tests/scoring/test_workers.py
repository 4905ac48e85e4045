"""The workers that make scores: one that is there goes before a new one, and none is lost where one ends meanwhile."""

from __future__ import annotations

from typing import Any, cast

from study.executing.slots import Slot
from study.scoring.workers import Worker, Workers


class Pipe:
    """The pipe of a worker whose scores take no time."""

    def send(self, job: object) -> None:
        """Take a job."""

    def recv(self) -> int:
        """The exit status of the job."""
        return 0


class Instant(Workers):
    """Workers without processes."""

    started = 0

    def _started(self, slot: Slot) -> Worker:
        self.started += 1
        return Worker(slot, cast(Any, None), cast(Any, Pipe()))


def test_a_worker_that_is_there_goes_before_a_new_one() -> None:
    workers = Instant([Slot("cpu", (0,), 1)] * 3)
    for _ in range(4):
        assert workers.submit(cast(Any, "a job")).result(10) == 0
    assert (workers.started, workers.free) == (1, 3)


class Ending:
    """A slot that whoever looks at it sees just as another score ends, whose thread frees its worker."""

    def __init__(self, workers: Workers, freed: list[Worker]) -> None:
        self._workers, self._freed = workers, freed

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What isinstance asks for."""
        if self._freed:
            self._workers._free.append(self._freed.pop())
        return Slot


def test_no_worker_is_lost_where_a_score_ends_while_another_begins() -> None:
    workers = Instant([Slot("cpu", (0,), 1)])
    freed = Worker(Slot("cpu", (1,), 1), cast(Any, None), cast(Any, Pipe()))
    workers._free.append(cast(Any, Ending(workers, [freed])))
    assert workers.submit(cast(Any, "a job")).result(10) == 0
    assert freed in workers._free
    assert workers.free == 3
