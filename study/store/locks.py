"""The two locks of a sweep: one process at a time launches it, and one scores it.

The kernel lets go of a lock when its process dies. On a file system without flock, as some of Lustre, filelock marks what is
held by the lock's file alone: what a dead process of this machine left is removed by the next one, that of another has to be
by hand.
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
from study.store.ownership import is_locked
from study.store.records import timestamp
from study.store.sweep_folder import LockFiles

LOCK_SECONDS = 1.0
"""How long to wait for a lock, which `is_held` takes for an instant to test it."""


@contextmanager
def held(files: LockFiles) -> Iterator[None]:
    """Hold a lock of a sweep; raises InputError naming the holder where another process has it.

    Folders that were made for it, and in which nothing was written meanwhile, are removed again.
    """
    lock, folder = FileLock(files.lock_file, timeout=LOCK_SECONDS), files.folder
    made = [path for path in (folder, *folder.parents) if not is_there(path)]
    try:
        _acquire(lock, files)
    except Timeout:
        holder = files.holder() or {}
        who = f"process {holder.get('pid', '?')} on {holder.get('hostname', '?')} since {holder.get('since', '?')}"
        remedy = f"wait for it, or stop it: study stop {pasted(folder)}"
        if isinstance(lock, SoftFileLock):
            remedy += f"; if it has died, remove {files.lock_file}"
        raise InputError.at(str(folder), f"is being {files.what} by {who}; {remedy}") from None
    except OSError as error:
        what = "locked" if error.errno == errno.ENOLCK else "written"  # as on NFS whose lock service does not run
        raise InputError.at(str(folder), f"cannot be {what}: {error.strerror}; use a folder that can be {what}") from None
    try:
        files.stop_file.unlink(missing_ok=True)  # left for a holder that was killed; who sees this one may order it to stop
        holder = {"pid": os.getpid(), "hostname": platform.node(), "since": timestamp()}
        write_atomically(files.holder_file, json.dumps(holder).encode())
        yield
    finally:
        for file in (files.holder_file, files.stop_file):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # somebody else has use for a folder, or has removed one
            if made and [*folder.iterdir()] == [files.lock_file]:
                files.lock_file.unlink()
                for path in made:
                    path.rmdir()
        lock.release()


def _acquire(lock: FileLock, files: LockFiles) -> None:
    """Acquire the lock on the file that exists: the last holder may have removed its file with the folder."""
    while True:
        files.folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        if is_there(files.lock_file):
            return
        lock.release()


def is_held(files: LockFiles) -> bool:
    """Whether a process holds a lock of a sweep now."""
    if (locked := is_locked(files.lock_file)) is not None:
        return locked
    try:
        with SoftFileLock(files.lock_file, timeout=0):
            return False
    except (Timeout, OSError):
        return True
