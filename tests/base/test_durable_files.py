"""What is there and what cannot be seen are two things, on every Python."""

from __future__ import annotations

import errno
import multiprocessing
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from study.base.durable_files import content_of, is_there, names_in, require_links, write_atomically, write_once
from study.base.errors import InputError
from study.executing.processes import log_into
from study.store.ownership import work_lock
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import checkpoint_name, checkpoints_in


def test_what_is_there_is_distinguished_from_what_cannot_be_seen(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "dangling").symlink_to("nothing")
    (tmp_path / "loop").symlink_to("loop")
    assert is_there(tmp_path)
    assert is_there(tmp_path / "file")
    for name in ("nothing", "dangling", "file/below", "zero\0byte"):
        assert not is_there(tmp_path / name)
    for unseen in ("x" * 300, "loop"):
        with pytest.raises(OSError, match=r"File name too long|Too many levels"):
            is_there(tmp_path / unseen)


def test_names_are_sorted_and_none_where_there_is_no_folder(tmp_path: Path) -> None:
    for name in ("b", ".a", "c"):
        (tmp_path / name).write_text(name)
    assert names_in(tmp_path) == [".a", "b", "c"]
    assert names_in(tmp_path / "nothing") == names_in(tmp_path / "b") == []
    assert content_of(tmp_path / "b" / "below") is None


def test_of_a_file_server_that_fails_no_checkpoint_and_no_run_is_taken_for_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    checkpoint = tmp_path / checkpoint_name(7, "0" * 64)
    checkpoint.touch()
    folder = SweepFolder(tmp_path / "sweep")
    run = folder.run("0123456789abcdef")
    run.path.mkdir(parents=True)
    run.config_file.touch()
    assert checkpoints_in(tmp_path) == [checkpoint]
    assert [actual.path for actual in folder.runs()] == [folder.home(run.run_id).path] == [run.path]
    for name in ("listdir", "scandir", "stat", "lstat", "readlink"):
        monkeypatch.setattr(os, name, fail)
    for ask in (lambda: checkpoints_in(tmp_path), folder.runs, lambda: folder.home(run.run_id), lambda: run.is_run):
        with pytest.raises(OSError, match="Input/output error"):
            ask()


@pytest.mark.parametrize(("call", "what"), [("link", "hard"), ("symlink", "symbolic")])
@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_links_is_reported(
    call: str, what: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise OSError(number, os.strerror(number))

    place = tmp_path / "results" / "toy"
    require_links(place, "give another")
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(InputError, match=rf"toy: is on a file system without {what} links \(.*\), .*; give another"):
        require_links(place, "give another")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_who_may_read_a_file_follows_the_umask(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "replaced", b"x")
        assert write_once(tmp_path / "created", b"x")
        with work_lock(RunFolder(tmp_path / "run")), multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(log_into, [tmp_path / "run" / "log.txt"])
    finally:
        os.umask(before)
    files = [tmp_path / "replaced", tmp_path / "created", tmp_path / "run" / "log.txt", tmp_path / "run" / ".lock"]
    assert [file.stat().st_mode & 0o777 for file in files] == [mode] * 4


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        with pytest.raises(OSError, match="is a pipe or a device"):
            content_of(tmp_path / name)


def test_a_link_to_nowhere_is_no_missing_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert content_of(tmp_path / "nowhere") is None
    with pytest.raises(OSError, match="is a broken link") as caught:
        content_of(tmp_path / "link")
    assert caught.value.filename == str(tmp_path / "link")
