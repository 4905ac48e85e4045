"""Entries appear whole, are checked whenever they are opened, and are built again where they are damaged."""

import errno
import json
import multiprocessing
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from study.base.errors import InputError
from study.config.run_config import DataConfig
from study.data.cache import cache_root, cached_sha256_of, open_entry, sha256_of
from study.data.prepared import check_files


def build_slowly(folder: Path) -> dict[str, Any]:
    """Leaves the builder's process id, so that a second building would show."""
    time.sleep(0.3)
    (folder / "numbers.bin").write_bytes(bytes(1000))
    return {"builder": os.getpid()}


def open_in_child(folder: Path, answers: Any) -> None:
    answers.put(open_entry(folder, build_slowly))


def refuse(folder: Path) -> dict[str, Any]:
    raise AssertionError("an intact entry was built again")


def test_an_entry_is_built_once_and_then_opened(tmp_path: Path) -> None:
    facts = open_entry(tmp_path / "kind" / "entry", build_slowly)
    assert open_entry(tmp_path / "kind" / "entry", refuse) == facts


@pytest.mark.slow
def test_two_processes_that_want_one_entry_build_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    children = [context.Process(target=open_in_child, args=(tmp_path / "entry", answers)) for _ in range(2)]
    for child in children:
        child.start()
    facts = [answers.get(timeout=30) for _ in children]
    for child in children:
        child.join()
    assert facts[0] == facts[1]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "removed", "facts", "manifest"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    entry = tmp_path / "entry"
    facts = open_entry(entry, build_slowly)
    numbers, manifest = entry / "numbers.bin", entry / "manifest.json"
    match damage:
        case "truncated":
            os.truncate(numbers, 500)
        case "flipped":
            numbers.write_bytes(bytes(999) + b"\1")
        case "removed":
            numbers.unlink()
        case "facts":
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"facts": {"builder": 0}}))
        case "manifest":
            manifest.write_bytes(manifest.read_bytes()[:20])
    assert open_entry(entry, build_slowly) == facts
    assert numbers.read_bytes() == bytes(1000)
    assert open_entry(entry, refuse) == facts


def test_a_failed_building_leaves_no_entry(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="built again"):
        open_entry(tmp_path / "entry", refuse)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    open_entry(tmp_path / "entry", build_slowly)


def test_study_cache_moves_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path))
    assert cache_root() == tmp_path


def test_a_files_hash_is_remembered_until_something_touches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was written just now is read each time, since its clock may not tell the next write from this one."""
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path / "cache"))
    read: list[Path] = []

    def reading(path: Path) -> str:
        read.append(path)
        return sha256_of(path)

    monkeypatch.setattr("study.data.cache.sha256_of", reading)
    file = tmp_path / "corpus.txt"
    file.write_text("some text")
    assert cached_sha256_of(file) == cached_sha256_of(file) == sha256_of(file)
    assert len(read) == 2
    monkeypatch.setattr("study.data.cache.SETTLED_SECONDS", -1.0)
    assert cached_sha256_of(file) == cached_sha256_of(file) == sha256_of(file)
    assert len(read) == 3
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_text("some next")
    os.utime(file, ns=times)  # as a tool does that keeps times: the time of the change itself cannot be kept
    assert cached_sha256_of(file) == sha256_of(file)
    assert len(read) == 4


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_cache_that_can_hold_no_files_is_reported_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path / name))
    with pytest.raises(InputError, match=f"STUDY_CACHE: {tmp_path / name} cannot hold files; set STUDY_CACHE to a folder"):
        check_files(
            DataConfig.parse(
                {"corpus": "docstrings", "tokenizer": {"kind": "wordpiece", "vocabulary": 512}, "sequence_length": 64}
            )
        )


@pytest.mark.parametrize("closed", ["hash", "manifest", "lock"])
def test_another_users_closed_part_of_a_cache_is_reported_with_what_opens_it_and_never_rebuilt(
    tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path / "cache"))
    text, entry = tmp_path / "text.txt", tmp_path / "cache" / "kind" / "entry"
    text.write_text("text")
    os.utime(text, (1, 1))
    time.sleep(0.01)
    monkeypatch.setattr("study.data.cache.SETTLED_SECONDS", 0)
    cached_sha256_of(text)
    open_entry(entry, lambda _: {})
    (remembered,) = (tmp_path / "cache" / "hashes").iterdir()
    file = {"hash": remembered, "manifest": entry / "manifest.json", "lock": entry.with_name("entry.lock")}[closed]
    if closed == "lock":
        (entry / "manifest.json").unlink()
    opening, path_opening = os.open, Path.open

    def checked(path: Any) -> Any:
        if str(path) == str(file):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return path

    monkeypatch.setattr(os, "open", lambda path, *rest, **options: opening(checked(path), *rest, **options))
    monkeypatch.setattr(Path, "open", lambda path, *rest, **options: path_opening(checked(path), *rest, **options))
    message = f"{file}: is another user's part of the cache: Permission denied; set STUDY_CACHE to a folder of your own"
    with pytest.raises(InputError, match=re.escape(message)):
        cached_sha256_of(text) if closed == "hash" else open_entry(entry, refuse)
