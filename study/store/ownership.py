"""Ownership of a run or a score, by a lock on one machine, a lease across machines, and a fence; and a sweep's two locks.

An attempt owns its work until a later one exists. On one machine the kernel's lock, released when its process dies, decides who
may start the next attempt. A stopped process keeps its lock, and some network file systems have none, so every owner also
renews a lease by writing a growing number. Waiting processes watch that number by their own clocks; clocks of two machines are
never compared. After LEASE_SECONDS without change the owner counts as dead, and the next attempt starts. If the old owner
wakes, it finds that attempt before its next write and stops writing.

A sweep has two locks, so that one process at a time launches it, and one scores it. Without flock, as on some Lustre mounts,
filelock uses the file alone: the next process removes one left by a dead process of this machine; others must be removed by
hand.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from study.base.durable_files import content_of, is_there, retry_write, write_atomically
from study.base.errors import InputError
from study.base.quantities import read_seconds
from study.base.text import pasted
from study.store.records import timestamp
from study.store.sweep_folder import LockFiles
from study.store.work_folder import WorkFolder

BEAT_SECONDS = 4.0
"""How often owners renew their leases."""

LEASE_SECONDS = 30.0
"""How long a lease lasts without renewal; a few renewals may fail."""

HUNG_AFTER = "STUDY_HUNG_AFTER"
"""The environment variable for the longest time without a step, such as 10min."""

HANG_SECONDS = 600.0
"""The default longest time without a step: longer than compiling or the slowest step."""

NAMELESS_SECONDS = 60.0
"""The age from which an empty lock file is one that flock left."""

POLL_SECONDS = 0.1

ENDED = "ended"
UNLOCKED = "has no lock"


class Fenced(Exception):
    """A later attempt owns the work; this one must not write."""


class Held(InputError):
    """Another process owns the work."""


@dataclass(frozen=True)
class Pulse:
    """The latest attempt, its process and its renewals; `beats` is ENDED after release."""

    attempt: int
    beats: str
    machine: str
    who: str

    @property
    def ended(self) -> bool:
        """Whether the attempt released the work."""
        return self.beats == ENDED


class Attempt:
    """One start of a run's or score's process, and its right to write."""

    def __init__(self, folder: WorkFolder, number: int, started_at: str) -> None:
        self.folder, self.number, self.started_at = folder, number, started_at
        self._done = threading.Event()

    @classmethod
    def begin(cls, folder: WorkFolder, locked: bool = True) -> Attempt:
        """Start the next attempt, which fences all earlier ones.

        Without a lock it names no machine, so that a free lock never means a dead owner.
        """
        started_at = timestamp()
        host = {"hostname": platform.node(), "machine": machine() if locked else UNLOCKED}
        details = {"pid": os.getpid(), "started_at": started_at} | host | _scheduled()
        return cls(folder, retry_write(lambda: folder.claim_attempt(details)), started_at)

    def check(self) -> None:
        """Raise Fenced if a later attempt owns the work; call it before every write.

        Raises FileNotFoundError if the folder is gone.
        """
        if is_there(self.folder.attempt_file(self.number + 1)):
            raise Fenced(f"attempt {self.number + 1} has taken the {self.folder.work} over from attempt {self.number}")
        self.folder.attempt_file(self.number).stat()

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease in a thread during the block, then release it."""
        thread = threading.Thread(target=self._renew, daemon=True, name="lease")
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join(BEAT_SECONDS)
            self._beat(ENDED)

    def _renew(self) -> None:
        beats = 0
        while not self._done.wait(BEAT_SECONDS):
            beats += 1
            self._beat(str(beats))

    def _beat(self, beats: str) -> None:
        """Renew the lease; an OSError is a missed renewal."""
        file = _beat_file(self.folder, self.number)
        temporary = file.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            temporary.write_text(beats)
            os.replace(temporary, file)


@contextlib.contextmanager
def work_lock(folder: WorkFolder) -> Iterator[bool]:
    """Wait for the work and lock it; yields whether the file system has locks.

    Raises Held if another process keeps it.
    """
    retry_write(lambda: folder.path.mkdir(parents=True, exist_ok=True))
    lock = retry_write(lambda: os.open(folder.lock_file, os.O_RDWR | os.O_CREAT, 0o666))
    try:
        yield _await(folder, lock)
    finally:
        os.close(lock)


def _await(folder: WorkFolder, lock: int) -> bool:
    watch, started = Watch(folder), time.monotonic()
    while True:
        locked, pulse = _try_lock(lock), watch.look()
        if locked is not False and (pulse is None or pulse.ended):
            return locked is True
        if locked and pulse is not None and pulse.machine == machine():
            return True
        if watch.silent:
            return locked is True
        if time.monotonic() - started > LEASE_SECONDS:
            who = pulse.who if pulse else "another process"
            raise Held.at(str(folder.path), f"is being {folder.done} by {who}; wait for it or stop it")
        time.sleep(POLL_SECONDS)


def _try_lock(lock: int, kind: int = fcntl.LOCK_EX) -> bool | None:
    """Whether this process got the lock; None without locks."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def is_locked(path: Path) -> bool | None:
    """Whether a process holds a lock, None without locks; needs only read access."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        got = _try_lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)
    return None if got is None else not got


def remove_left_by_flock(lock_file: Path) -> None:
    """Remove an old, empty lock file where there is no flock: filelock takes it for a held lock.

    A file of filelock's own has its holder's name at once.
    """
    with contextlib.suppress(FileNotFoundError):
        state = lock_file.stat()
        if state.st_size == 0 and time.time() - state.st_mtime > NAMELESS_SECONDS and is_locked(lock_file) is None:
            lock_file.unlink()


def file_lock(path: Path, timeout: float = -1) -> FileLock:
    """Return a lock by a file; the default waits for ever."""
    remove_left_by_flock(path)
    return FileLock(path, timeout)


class Watch:
    """The owner of work, watched by the watcher's own clock."""

    def __init__(self, folder: WorkFolder) -> None:
        self.folder, self._pulse, self._changed = folder, pulse_of(folder), time.monotonic()

    def look(self) -> Pulse | None:
        """Return the current pulse."""
        if (pulse := pulse_of(self.folder)) != self._pulse:
            self._pulse, self._changed = pulse, time.monotonic()
        return pulse

    @property
    def silent(self) -> bool:
        """Whether the pulse has not changed for a lease while watched."""
        return time.monotonic() - self._changed > LEASE_SECONDS

    def holder(self) -> str | None:
        """Return the owner, None without one or if silent."""
        pulse = self.look()
        if pulse is None or pulse.ended or self.silent:
            return None
        return pulse.who if pulse.machine != machine() or is_locked(self.folder.lock_file) else None


class Watches:
    """The owners of many runs and scores; silence is remembered."""

    def __init__(self) -> None:
        self._watches: dict[Path, Watch] = {}

    def holder(self, folder: WorkFolder) -> str | None:
        """Return the owner, None if there is none."""
        watch = self._watches.get(folder.path) or Watch(folder)
        who = watch.holder()
        if who is not None or watch.silent:
            self._watches[folder.path] = watch
        else:
            self._watches.pop(folder.path, None)
        return who


def has_owner(folder: WorkFolder) -> bool:
    """Whether a process owns the work: by lock on this machine, by lease elsewhere."""
    if is_locked(folder.lock_file):
        return True
    pulse, since = pulse_of(folder), seconds_since_beat(folder)
    elsewhere = pulse is not None and not pulse.ended and pulse.machine != machine()
    return elsewhere and since is not None and since < LEASE_SECONDS


def seconds_since_beat(folder: WorkFolder) -> float | None:
    """Return the age of the latest lease by file times and this machine's clock, None without attempts.

    For display only: a Watch decides who starts next.
    """
    number = folder.attempts()
    beaten = seconds_since_write(_beat_file(folder, number))
    return seconds_since_write(folder.attempt_file(number)) if beaten is None else beaten


def seconds_since_write(file: Path) -> float | None:
    """Return a file's age by this machine's clock, None if missing."""
    try:
        return max(0.0, time.time() - file.stat().st_mtime)
    except FileNotFoundError:
        return None


def pulse_of(folder: WorkFolder) -> Pulse | None:
    """Return the latest attempt's pulse, None without attempts."""
    number = folder.attempts()
    if not number:
        return None
    details = folder.attempt(number)
    beats = (content_of(_beat_file(folder, number)) or b"").decode()
    who = f"process {details.get('pid', '?')} on {details.get('hostname', '?')} since {details.get('started_at', '?')}"
    return Pulse(number, beats, str(details.get("machine", "")), who)


def hang_seconds() -> float:
    """Return the time without a step that makes a run HUNG."""
    limit = os.environ.get(HUNG_AFTER)
    return HANG_SECONDS if limit is None else read_seconds(HUNG_AFTER, limit)


def machine() -> str:
    """Return an id of this machine, within which locks are visible: the kernel's boot id, or the host name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()


def _scheduled() -> dict[str, str]:
    names = {"slurm_job": "SLURM_JOB_ID", "slurm_node": "SLURMD_NODENAME"}
    return {name: os.environ[variable] for name, variable in names.items() if variable in os.environ}


def _beat_file(folder: WorkFolder, number: int) -> Path:
    return folder.attempt_file(number).with_suffix(".beat")


LOCK_SECONDS = 1.0
"""How long to wait for a lock, which `is_held` takes for an instant."""


@contextmanager
def sweep_lock(files: LockFiles) -> Iterator[None]:
    """Hold a lock of a sweep; raises InputError naming another holder.

    Folders created for it are removed again if otherwise empty.
    """
    lock, folder = FileLock(files.lock_file, timeout=LOCK_SECONDS), files.folder
    created = [path for path in (folder, *folder.parents) if not is_there(path)]
    try:
        _acquire(lock, files)
    except Timeout:
        holder = files.holder() or {}
        who = f"process {holder.get('pid', '?')} on {holder.get('hostname', '?')} since {holder.get('since', '?')}"
        remedy = f"wait for it, or stop it: study stop {pasted(folder)}"
        if is_locked(files.lock_file) is None:
            remedy += f"; if it has died, remove {files.lock_file}"
        raise InputError.at(str(folder), f"is being {files.what} by {who}; {remedy}") from None
    except OSError as error:
        what = "locked" if error.errno == errno.ENOLCK else "written"  # as on NFS without a lock service
        raise InputError.at(str(folder), f"cannot be {what}: {error.strerror}; use a folder that can be {what}") from None
    try:
        files.stop_file.unlink(missing_ok=True)  # left for a killed holder
        holder = {"pid": os.getpid(), "hostname": platform.node(), "since": timestamp()}
        write_atomically(files.holder_file, json.dumps(holder).encode())
        yield
    finally:
        for file in (files.holder_file, files.stop_file):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # another process uses a folder or has removed it
            if created and [*folder.iterdir()] == [files.lock_file]:
                files.lock_file.unlink()
                for path in created:
                    path.rmdir()
        lock.release()


def _acquire(lock: FileLock, files: LockFiles) -> None:
    """Acquire the lock on the existing file, which the last holder may have removed."""
    while True:
        files.folder.mkdir(parents=True, exist_ok=True)
        remove_left_by_flock(files.lock_file)
        lock.acquire()
        if is_there(files.lock_file):
            return
        lock.release()


def is_held(files: LockFiles) -> bool:
    """Whether any process holds the lock."""
    if (locked := is_locked(files.lock_file)) is not None:
        return locked
    remove_left_by_flock(files.lock_file)
    try:
        with SoftFileLock(files.lock_file, timeout=0):
            return False
    except (Timeout, OSError):
        return True
