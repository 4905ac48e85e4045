"""The cache outside the repository: entries that appear whole or not at all, and are checked whenever they are opened.

<cache>/<kind>/<fingerprint>/
    manifest.json    facts about the entry, and the size and SHA-256 of each of its files, sealed by a hash of its own
    ...              the files
<cache>/<kind>/<fingerprint>.lock    held by the process that builds the entry
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from study.config import fingerprint_of
from study.durable_files import sync_folder

logger = logging.getLogger(__name__)

_MANIFEST = "manifest.json"


class DamagedEntryError(Exception):
    """A cache entry whose files are not the ones that were written."""


def cache_root() -> Path:
    """The folder of the cache: STUDY_CACHE where it is set, else the platform's cache folder for `scaling-study`."""
    override = os.environ.get("STUDY_CACHE")
    return Path(override).expanduser() if override else platformdirs.user_cache_path("scaling-study")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex; reads about 2 GB a second, in bounded memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_entry(folder: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The facts of a cache entry, built first where it is missing or damaged.

    `build` fills an empty folder with files and returns the facts, plain JSON values. Processes that want the same entry at
    once wait for the one that builds it. Every opening reads all files and compares their SHA-256 (0.1 s for 60M tokens),
    since a memory map would open a half-length or flipped file silently.
    """
    facts = _intact(folder)
    if facts is not None:
        return facts
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        facts = _intact(folder)  # another process may have built it while this one waited
        if facts is None:
            facts = _build(folder, build)
    return facts


def _intact(folder: Path) -> dict[str, Any] | None:
    """The facts of an entry, None where it is missing or damaged; damage is logged."""
    if not folder.exists():
        return None
    try:
        return _checked_facts(folder)
    except DamagedEntryError as error:
        logger.warning("%s is damaged and will be built again: %s", folder, error)
        return None


def _checked_facts(folder: Path) -> dict[str, Any]:
    """The facts of an entry, after every byte of it was checked; raises DamagedEntryError."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        facts, files, seal = manifest["facts"], manifest["files"], manifest["seal"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedEntryError(f"{_MANIFEST}: {type(error).__name__}: {error}") from error
    if seal != fingerprint_of([facts, files]):
        raise DamagedEntryError(f"{_MANIFEST} was changed")
    for name, written in files.items():
        if (found := _identity(folder / name)) != written:
            raise DamagedEntryError(f"{name} is {found} and was written as {written}")
    entry: dict[str, Any] = facts
    return entry


def _identity(path: Path) -> dict[str, Any]:
    """What tells one file from another, empty where there is none."""
    return {"bytes": path.stat().st_size, "sha256": sha256_of(path)} if path.is_file() else {}


def _build(folder: Path, build: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Build an entry beside its place and rename it there; call with its lock held."""
    new, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    for left_over in (new, old):
        shutil.rmtree(left_over, ignore_errors=True)
    new.mkdir()
    try:
        facts = build(new)
        files = {path.name: _identity(path) for path in sorted(new.iterdir())}
        manifest = {"facts": facts, "files": files, "seal": fingerprint_of([facts, files])}
        (new / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        for path in new.iterdir():
            _sync_file(path)
        sync_folder(new)
        if folder.exists():
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
