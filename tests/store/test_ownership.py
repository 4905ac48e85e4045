"""Who trains a run: on one machine by its lock, across machines by its lease; and nobody who has lost it writes."""

from __future__ import annotations

import errno
import fcntl
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from study.base.errors import InputError
from study.store import ownership
from study.store.ownership import Attempt, Fenced, Held, Watch, is_locked, pulse_of, work_lock
from study.store.run_folder import RunFolder
from tests.waiting import until

ELSEWHERE = "another machine"


class Clock:
    """Time that passes where a watcher sleeps, and waits there for an owner's next beat, however slow the machine is."""

    def __init__(self) -> None:
        self.now, self.beats = 0.0, 0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        before = self.beats
        until(lambda: self.beats > before or all(thread.name != "lease" for thread in threading.enumerate()))


class Quick(threading.Event):
    """An event whose waiting takes a hundredth of what is asked for."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None if timeout is None else timeout / 100)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, beat = Clock(), Attempt._beat

    def counted(self: Attempt, beats: str) -> None:
        beat(self, beats)
        clock.beats += 1

    monkeypatch.setattr(Attempt, "_beat", counted)
    monkeypatch.setattr(ownership, "time", clock)
    monkeypatch.setattr(ownership, "threading", SimpleNamespace(Event=Quick, Thread=threading.Thread))
    monkeypatch.setattr(ownership, "POLL_SECONDS", ownership.BEAT_SECONDS)
    return clock


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "0123456789abcdef")


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """The run's lock, held as another process would."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with work_lock(folder):
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(5)
    try:
        yield
    finally:
        done.set()
        thread.join()


def on_another_machine(attempt: Attempt) -> Attempt:
    file = attempt.folder.attempt_file(attempt.number)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"machine": ELSEWHERE}))
    return attempt


def test_the_later_attempt_owns_the_run(folder: RunFolder) -> None:
    first = Attempt.begin(folder)
    first.check()
    second = Attempt.begin(folder)
    second.check()
    with pytest.raises(Fenced, match="attempt 2 has taken the run over from attempt 1"):
        first.check()


def test_an_owner_that_renews_its_lease_keeps_the_run_and_is_named(folder: RunFolder, clock: Clock) -> None:
    with locked(folder), Attempt.begin(folder).renewed():
        until(lambda: clock.beats > 0)
        with pytest.raises(Held, match=r"is being trained by process \d+ on .* since 20"), work_lock(folder):
            pytest.fail("two had their turn")
        assert Watch(folder).holder() is not None
    assert Watch(folder).holder() is None
    with work_lock(folder):
        assert is_locked(folder.lock_file)
    assert not is_locked(folder.lock_file)
    assert issubclass(Held, InputError)


def test_an_owner_that_is_silent_loses_the_run_though_it_has_the_lock(folder: RunFolder, clock: Clock) -> None:
    with locked(folder):
        stopped = Attempt.begin(folder)
        with work_lock(folder) as with_lock:
            assert clock.now > ownership.LEASE_SECONDS
            assert not with_lock
            second = Attempt.begin(folder, with_lock)
        with pytest.raises(Fenced):
            stopped.check()
    with second.renewed(), pytest.raises(Held), work_lock(folder):  # the stopped one died, and its lock is free
        pytest.fail("two had their turn")


def test_where_there_are_no_locks_the_lease_decides(folder: RunFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with work_lock(folder) as locked:
        assert clock.now == 0
        with Attempt.begin(folder, locked).renewed(), pytest.raises(Held), work_lock(folder):
            pytest.fail("two had their turn")
    with work_lock(folder):
        pass
    Attempt.begin(folder, locked)
    begin = clock.now
    with work_lock(folder):
        assert clock.now - begin > ownership.LEASE_SECONDS


def test_on_one_machine_the_lock_of_a_dead_owner_is_free_at_once(folder: RunFolder, clock: Clock) -> None:
    Attempt.begin(folder)
    with work_lock(folder):
        assert clock.now == 0


def test_on_another_machine_an_owner_must_be_silent_whatever_the_lock_says(folder: RunFolder, clock: Clock) -> None:
    with on_another_machine(Attempt.begin(folder)).renewed(), pytest.raises(Held), work_lock(folder):
        pytest.fail("two had their turn")
    with work_lock(folder):
        pass
    on_another_machine(Attempt.begin(folder))
    begin = clock.now
    with work_lock(folder):
        assert clock.now - begin > ownership.LEASE_SECONDS


def test_no_clock_of_another_machine_is_believed(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall clocks that are off by an hour either way change nothing: the lease is a number that grows."""
    real = time.time
    for offset in (-3600.0, 3600.0):
        monkeypatch.setattr(time, "time", lambda offset=offset: real() + offset)
        with on_another_machine(Attempt.begin(folder)).renewed(), pytest.raises(Held), work_lock(folder):
            pytest.fail("two had their turn")


def test_a_lease_that_was_given_back_says_so(folder: RunFolder) -> None:
    assert pulse_of(folder) is None
    with Attempt.begin(folder).renewed():
        pulse = pulse_of(folder)
        assert pulse is not None
        assert (pulse.attempt, pulse.ended) == (1, False)
    pulse = pulse_of(folder)
    assert pulse is not None
    assert pulse.ended
