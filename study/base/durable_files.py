"""Files that other processes read or remove meanwhile: a write leaves the old content or the new, never a part."""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from study.base.errors import InputError

T = TypeVar("T")

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a write that waiting does not mend: no space, no quota, or a file that is too large."""

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
"""Errors of a write into a folder that is away for a while, such as on a file server that restarts."""

PATIENCE_SECONDS = 60.0
"""How long a write is retried while its folder is out of reach."""

LEFT_SECONDS = 3600.0
"""The age from which a temporary file counts as left over from a killed writer."""


def is_there(path: Path) -> bool:
    """Whether a file or folder exists; raises OSError if that cannot be determined.

    From Python 3.14 on, Path.exists returns False then.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no path holds a zero byte
        return False
    return True


def names_in(folder: Path) -> list[str]:
    """The sorted names in a folder, none if it does not exist; raises OSError if it cannot be read.

    Path.glob yields nothing then.
    """
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder; raises OSError if a folder cannot be read, which Path.rglob skips."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    for place, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(place, name) for name in names)


def content_of(path: Path) -> bytes | None:
    """The content of a file, None if it does not exist; an earlier check of existence could be outdated.

    Raises OSError if it cannot be read, as for a link that leads nowhere.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise OSError(errno.ELOOP, "is a link that leads nowhere", str(path)) from None
        return None


def json_value(content: bytes | str) -> Any:
    """Parse JSON; raises ValueError also for JSON that is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_of(path: Path, kind: type[T], remedy: str) -> T | None:
    """Read a JSON file of one kind of value, None if it does not exist; raises InputError as `json_in` does."""
    return json_in(content_of(path), str(path), kind, remedy)


def json_in(content: bytes | None, place: str, kind: type[T], remedy: str) -> T | None:
    """Parse JSON of one kind of value, None if there is no text.

    Raises InputError with place and remedy if it is damaged or holds another kind.
    """
    if content is None:
        return None
    try:
        values = json_value(content)
    except ValueError as error:
        raise InputError.at(place, f"is damaged: {error}; {remedy}") from None
    if not isinstance(values, kind):
        raise InputError.at(place, f"is damaged: it holds no {kind.__name__}; {remedy}")
    return values


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file so that readers, kills and power cuts leave the old content or the new, never a part."""
    with _durable_sibling(path, content) as temporary:
        _remove_left(path, temporary.stat().st_mtime - LEFT_SECONDS)
        os.replace(temporary, path)
    sync_folder(path.parent)


def write_once(path: Path, content: bytes) -> bool:
    """Create a whole file; False if it exists already: the first writer wins."""
    with _durable_sibling(path, content) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
    sync_folder(path.parent)
    return True


def retry_write(write: Callable[[], T], seconds: float = PATIENCE_SECONDS, check: Callable[[], object] | None = None) -> T:
    """Retry a write while its folder is out of reach, and return its result; other errors, such as a full disk, raise at once.

    `check` runs before each try, and raises if the caller may no longer write.
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
    """Name this file in an OSError inside the block that names none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its names are durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove_left(path: Path, before: float) -> None:
    """Remove temporary files that killed writers of `path` left; times are those of its file system."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < before:
                left.unlink()


@contextlib.contextmanager
def _durable_sibling(path: Path, content: bytes) -> Iterator[Path]:
    """Write a synced temporary file beside `path`, to be moved into its place; its mode follows the umask.

    If that fails, the file is removed, and the OSError names `path`.
    """
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
    """Whether a folder, or the nearest above it that exists, can hold new files."""
    try:
        with tempfile.TemporaryFile(dir=_nearest(folder)):  # to be asked does not do: /proc says that it may be written
            return True
    except OSError:
        return False


def require_links(folder: Path, remedy: str) -> None:
    """Raise InputError if a folder cannot be written, or its file system lacks hard or symbolic links.

    Results are put into place by hard links, which only one process can make, and sweeps find shared runs by symbolic links.
    File systems of memory cards, and some of servers and object stores, have neither.
    """
    try:
        with tempfile.TemporaryDirectory(dir=_nearest(folder), prefix=".links-") as place:
            file = Path(place, "file")
            file.touch()
            for what, link in (("hard", os.link), ("symbolic", os.symlink)):
                try:
                    link(file, Path(place, what))
                except OSError as error:
                    lacks = f"lies on a file system that makes no {what} links ({error.strerror})"
                    raise InputError.at(str(folder), f"{lacks}, which results need; {remedy}") from None
    except OSError:
        raise InputError.at(str(folder), f"cannot be written; {remedy}") from None


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that exists."""
    there = folder.absolute()
    return next(each for each in (there, *there.parents) if os.path.exists(each))
