"""Durable file writes: readers see the old content or the new, never a mixture."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import secrets
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from study.base.errors import InputError, shown

T = TypeVar("T")

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Write errors that a retry does not fix: no space, no quota, or a file that is too large."""

OUT_OF_REACH = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOENT,
        errno.EIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.EBUSY,
    }
)
"""Write errors of a folder that is unavailable for a while, such as on a file server that restarts."""

NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
"""Errors of a link on a file system that has none, such as that of a memory card."""

PATIENCE_SECONDS = 60.0
"""How long a write is retried while its folder is unavailable."""

LEFT_SECONDS = 3600.0
"""The age from which a temporary file counts as left by a killed writer."""


def is_there(path: Path) -> bool:
    """Whether a file or folder exists; raises OSError if that cannot be determined."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a path with a zero byte
        return False
    return True


def names_in(folder: Path) -> list[str]:
    """Return the sorted names in a folder, none if missing; raises OSError."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder; raises OSError."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    for parent, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(parent, name) for name in names)


def check_finite(path: Path) -> None:
    """Raise OSError if a path is missing, a pipe or a device."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "is a pipe or a device, which may have no end", str(path))


def stays_in(path: Path, folder: Path) -> bool:
    """Whether a path lies in a folder once links are followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def check_own(path: Path, folder: Path) -> None:
    """Raise OSError as `check_finite` does, and for a link out of a folder."""
    check_finite(path)
    if not stays_in(path, folder):
        raise OSError(errno.ELOOP, "is a link that leads out of its folder, and is not followed", str(path))


def own_content(path: Path, folder: Path) -> bytes | None:
    """As `content_of`; raises OSError also for a link out of a folder."""
    if is_there(path):
        check_own(path, folder)
    return content_of(path)


def content_of(path: Path) -> bytes | None:
    """Return the content of a file, None if missing.

    Raises OSError if it cannot be read, or is a broken link, a pipe or a device.
    """
    try:
        check_finite(path)
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise OSError(errno.ELOOP, "is a broken link", str(path)) from None
        return None


def json_value(content: bytes | str) -> Any:
    """Parse JSON; raises ValueError, also for repeated keys or deep nesting."""
    try:
        return json.loads(content, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {shown(repeated)} appears twice")
    return values


def json_of(path: Path, kind: type[T], remedy: str) -> T | None:
    """Read JSON of one type from a file, None if missing; raises InputError."""
    return json_in(content_of(path), str(path), kind, remedy)


def json_in(content: bytes | None, place: str, kind: type[T], remedy: str) -> T | None:
    """Parse JSON of one type, None without content; raises InputError."""
    if content is None:
        return None
    try:
        values = json_value(content)
    except ValueError as error:
        raise InputError.at(place, f"is damaged: {error}; {remedy}") from None
    if not isinstance(values, kind):
        raise InputError.at(place, f"is damaged: it is not a {kind.__name__}; {remedy}")
    return values


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably, also under kills and power cuts."""
    with _durable_sibling(path, content) as temporary:
        _remove_left(path, temporary.stat().st_mtime - LEFT_SECONDS)
        os.replace(temporary, path)
    sync_folder(path.parent)


def write_once(path: Path, content: bytes) -> bool:
    """Create a whole file; False if it exists.

    Without hard links, readers may find it empty, and for good if the writer is killed then.
    """
    with _durable_sibling(path, content) as temporary:
        try:
            _name_once(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def _name_once(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        path.open("xb").close()
        os.replace(temporary, path)


def retry_write(write: Callable[[], T], seconds: float = PATIENCE_SECONDS, check: Callable[[], object] | None = None) -> T:
    """Retry a write while its folder is unavailable; other errors raise at once.

    `check` runs before each try and raises if writing is no longer allowed.
    """
    end, pause = time.monotonic() + seconds, 0.05
    while True:
        try:
            if check is not None:
                check()
            return write()
        except OSError as error:
            if error.errno not in OUT_OF_REACH or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Add this path to an OSError without one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_left(path: Path, before: float) -> None:
    """Remove temporary files of killed writers, by the file system's time."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < before:
                left.unlink()


@contextlib.contextmanager
def _durable_sibling(path: Path, content: bytes) -> Iterator[Path]:
    """Write a synced temporary file beside `path`, removed on an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def takes_files(folder: Path) -> bool:
    """Whether a folder, or its nearest existing parent, can hold new files."""
    try:
        with tempfile.TemporaryFile(dir=_nearest(folder)):  # os.access is not enough: it calls /proc writable
            return True
    except OSError:
        return False


def require_links(folder: Path, remedy: str) -> None:
    """Raise InputError if a folder cannot be written, or its file system lacks hard or symbolic links.

    Results are published by hard links, which only one process can make; sweeps share runs by symbolic links.
    """
    try:
        with tempfile.TemporaryDirectory(dir=_nearest(folder), prefix=".links-") as scratch:
            file = Path(scratch, "file")
            file.touch()
            for what, link in (("hard", os.link), ("symbolic", os.symlink)):
                try:
                    link(file, Path(scratch, what))
                except OSError as error:
                    lacks = f"is on a file system without {what} links ({error.strerror})"
                    raise InputError.at(str(folder), f"{lacks}, which results need; {remedy}") from None
    except OSError:
        raise InputError.at(str(folder), f"cannot be written; {remedy}") from None


def _nearest(folder: Path) -> Path:
    path = folder.absolute()
    return next(each for each in (path, *path.parents) if os.path.exists(each))
