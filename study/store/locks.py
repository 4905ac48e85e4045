"""The two locks of a sweep: one process at a time launches it, and one scores it.

The kernel releases a dead process's lock. Without flock, as on some Lustre mounts, filelock uses the file alone: the next
process removes one left by a dead process of this machine; others must be removed by hand.
"""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from filelock import FileLock, SoftFileLock, Timeout

from study.base.durable_files import is_there, write_atomically
from study.base.errors import InputError
from study.base.text import pasted
from study.store.ownership import is_locked, remove_left_by_flock
from study.store.records import timestamp
from study.store.sweep_folder import LockFiles

LOCK_SECONDS = 1.0
"""How long to wait for a lock, which `is_held` takes for an instant."""


@contextmanager
def held(files: LockFiles) -> Iterator[None]:
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
    """Acquire the lock on the existing file: the last holder may have removed its file."""
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
