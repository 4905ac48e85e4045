"""The cache outside the repository: entries are written atomically and checked at each opening.

<cache>/<kind>/<fingerprint>/
    manifest.json    facts about the entry, size and SHA-256 of each file, and a hash over both
    ...              the files
<cache>/<kind>/<fingerprint>.lock    held by the process that builds the entry
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import platformdirs

from study.base.durable_files import content_of, is_there, json_value, named, sync_folder, takes_files, write_atomically
from study.base.errors import InputError
from study.base.text import path_from
from study.config.run_config import fingerprint_of
from study.store.ownership import file_lock

logger = logging.getLogger(__name__)

SETTLED_SECONDS = 2.0
"""A file's hash is cached only if its last change is older; some file systems count whole seconds, FAT two."""

SHA256_DIGITS = 64
"""Hexadecimal digits of a SHA-256."""

_MANIFEST = "manifest.json"


class DamagedEntryError(Exception):
    """The files of a cache entry differ from those written."""


def cache_root() -> Path:
    """Return STUDY_CACHE, or the platform's cache folder for `scaling-study`."""
    override = os.environ.get("STUDY_CACHE")
    return path_from(override, "STUDY_CACHE") if override else platformdirs.user_cache_path("scaling-study")


def check_cache() -> None:
    """Raise InputError if the cache cannot hold files."""
    if not takes_files(root := cache_root()):
        name = "STUDY_CACHE" if os.environ.get("STUDY_CACHE") else "the cache"
        raise InputError.at(name, f"{root} cannot hold files; set STUDY_CACHE to a folder that can")


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256 in hex; reads about 2 GB/s in bounded memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cached_sha256_of(path: Path) -> str:
    """Return the SHA-256 of a user's file, cached until the file changes (10 GB take 5 s to 15 s).

    A file that changed within SETTLED_SECONDS is not cached.
    """
    before, hashes = _touched(path), cache_root() / "hashes"
    remembered = hashes / fingerprint_of([str(path.resolve()), *before])
    with _permitted(hashes):
        known = content_of(remembered)
    if known is not None and len(known) == SHA256_DIGITS:
        return known.decode()
    digest = sha256_of(path)
    if _touched(path) == before and time.time_ns() - max(before[-2:]) > SETTLED_SECONDS * 1e9:
        _remember(remembered, digest)
    return digest


def counted_once(kind: str, key: str, count: Callable[[], int]) -> int:
    """Return a number of a content, which `key` identifies, from the cache; else count and remember it."""
    remembered = cache_root() / kind / key
    with _permitted(remembered.parent):
        known = content_of(remembered)
    if known is not None and known.isdigit():
        return int(known)
    number = count()
    _remember(remembered, str(number))
    return number


def _remember(file: Path, text: str) -> None:
    """Write a small file; where that fails, the next call finds its text again."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text.encode())


@contextlib.contextmanager
def _permitted(kind: Path) -> Iterator[None]:
    """Raise InputError where a kind's folder, or what lies in it, is closed to this user."""
    try:
        yield
    except PermissionError as error:
        if error.filename is None or not Path(error.filename).is_relative_to(kind):
            raise
        remedy = "set STUDY_CACHE to a folder of your own, or let the owner open this one (chmod -R a+rwX)"
        raise InputError.at(str(error.filename), f"is another user's part of the cache: {error.strerror}; {remedy}") from None


def _touched(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def open_entry(folder: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Return the facts of a cache entry, building it first if it is missing or damaged.

    `build` fills an empty folder and returns the facts as plain JSON values. A lock serialises builds. Every opening checks the
    SHA-256 of all files (0.1 s for 60M tokens).
    """
    facts = facts_of(folder)
    if facts is not None:
        return facts
    with _permitted(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_name(f"{folder.name}.lock")
        with named(file):
            lock = file_lock(file).acquire()
        with lock:
            facts = facts_of(folder)  # another process may have built it while this one waited
            if facts is None:
                facts = _build(folder, build)
    return facts


def facts_of(folder: Path) -> dict[str, Any] | None:
    """Return the facts of an intact entry, if there; damage is logged."""
    try:
        with _permitted(folder.parent):
            return _checked_facts(folder) if is_there(folder) else None
    except DamagedEntryError as error:
        logger.warning("%s is damaged and will be rebuilt: %s", folder, error)
        return None


def _checked_facts(folder: Path) -> dict[str, Any]:
    try:
        manifest = json_value((folder / _MANIFEST).read_bytes())
        facts, files, seal = manifest["facts"], manifest["files"], manifest["seal"]
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedEntryError(f"{_MANIFEST}: {type(error).__name__}: {error}") from error
    if seal != fingerprint_of([facts, files]):
        raise DamagedEntryError(f"{_MANIFEST} was changed")
    for name, written in files.items():
        if (now := _identity(folder / name)) != written:
            raise DamagedEntryError(f"{name} is {now} and was written as {written}")
    entry: dict[str, Any] = facts
    return entry


def _identity(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)} if path.is_file() else {}


def _build(folder: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Build an entry in a temporary folder and rename it, under the lock."""
    new, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    for left_over in (new, old):
        shutil.rmtree(left_over, ignore_errors=True)
    new.mkdir()
    try:
        with named(folder):
            facts = build(new)
        files = {path.name: _identity(path) for path in sorted(new.iterdir())}
        manifest = {"facts": facts, "files": files, "seal": fingerprint_of([facts, files])}
        (new / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        for path in new.iterdir():
            _sync_file(path)
        sync_folder(new)
        if is_there(folder):
            folder.rename(old)
        new.rename(folder)
        sync_folder(folder.parent)
    finally:
        for left_over in (new, old):
            shutil.rmtree(left_over, ignore_errors=True)
    return facts


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
