"""Files that others read meanwhile, or take away: whatever is written stays whole, the old content or the new, never a part."""

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
"""The errors of a write that no waiting mends: no space, no quota, or a file larger than it may be."""

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
"""The errors of a write into a folder that is not there for a while, as of a file server that restarts."""

PATIENCE_SECONDS = 60.0
"""How long a write is tried again while its folder is out of reach."""

LEFT_SECONDS = 3600.0
"""The age from which a temporary file is one that a killed writer left; none is written for so long."""


def is_there(path: Path) -> bool:
    """Whether there is a file or a folder; raises OSError where that cannot be seen.

    Path.exists says no to that from Python 3.14 on.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no path holds a zero byte
        return False
    return True


def names_in(folder: Path) -> list[str]:
    """The names in a folder, in order, none where there is no folder; raises OSError where it cannot be read.

    Path.glob finds nothing there.
    """
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def files_below(folder: Path) -> Iterator[Path]:
    """The files in a folder and in those below it; raises OSError where one of these cannot be read.

    Path.rglob leaves out those that may not be.
    """

    def refuse(error: OSError) -> NoReturn:
        raise error

    for place, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(place, name) for name in names)


def content_of(path: Path) -> bytes | None:
    """What a file holds, None where there is none; who asks first whether it is there may find it gone when it reads.

    Raises OSError where it cannot be read, as of a link that leads nowhere.
    """
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise OSError(errno.ELOOP, "is a link that leads nowhere", str(path)) from None
        return None


def json_value(content: bytes | str) -> Any:
    """The value of a JSON text; raises ValueError where it has none, or one that is nested too deeply to be read."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_of(path: Path, kind: type[T], remedy: str) -> T | None:
    """What a JSON file of lists or of keys and values holds, None where there is none; raises InputError as `json_in` does."""
    return json_in(content_of(path), str(path), kind, remedy)


def json_in(content: bytes | None, place: str, kind: type[T], remedy: str) -> T | None:
    """The list, or the keys and values, of a JSON text, None where there is no text.

    Raises InputError at the place, with the remedy, where it is damaged or holds another kind of value.
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
    """Replace a file so that a reader, a kill or a power cut meets the old content or the new, never a part."""
    with _durable_sibling(path, content) as temporary:
        _remove_left(path, temporary.stat().st_mtime - LEFT_SECONDS)
        os.replace(temporary, path)
    sync_folder(path.parent)


def write_once(path: Path, content: bytes) -> bool:
    """Create a file with this content, whole; False where it was there already (the first writer wins)."""
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
    """What a write gives, tried again while its folder is out of reach; any other error, a full disk's too, is told at once.

    `check` is asked before each try, and raises where the writing is no longer the caller's.
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
    """Within, an error of the system that names no file, as that of a write to a full disk, is given this name."""
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
    """Remove the temporary files of writers of `path` that were killed; times are those of its file system, on any machine."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < before:
                left.unlink()


@contextlib.contextmanager
def _durable_sibling(path: Path, content: bytes) -> Iterator[Path]:
    """A temporary file beside `path` with this content, on the disk, to be put in its place.

    Who may read it follows the umask. Where that fails it is gone, and the error of the system names `path`.
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
    """Whether files can be put into a folder, or it can be made where it is not there yet."""
    try:
        with tempfile.TemporaryFile(dir=_nearest(folder)):  # to be asked does not do: /proc says that it may be written
            return True
    except OSError:
        return False


def require_links(folder: Path, remedy: str) -> None:
    """Raise InputError with the remedy where a folder takes no files, or its file system has no hard or no symbolic links.

    A file of results is put into place by a hard link, which one process alone can make, and sweeps find the runs that they
    share by symbolic links. File systems of memory cards, and some that reach a server or an object store, have neither.
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
    """The folder itself, or the nearest above it that is there."""
    there = folder.absolute()
    return next(each for each in (there, *there.parents) if os.path.exists(each))
