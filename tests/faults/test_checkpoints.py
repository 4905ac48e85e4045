"""Whatever happens while a checkpoint is written, there is a whole one, and a damaged one is never used."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from study.data.prepared import data_fingerprint, prepare
from study.store.work_folder import checkpoints_in, step_of
from study.training.checkpoints import newest_whole_checkpoint
from tests.conftest import Figure
from tests.faults.lives import MASKS, Lives, assert_same_bits, ended, recorded, size_of, whole_step
from tests.small import config, run_folder, write_corpus

STEPS = {"recipe": {"budget": {"steps": 120}}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text.txt")


@pytest.mark.parametrize("times", [2, pytest.param(25, marks=pytest.mark.faults)])
def test_a_kill_while_checkpoints_are_written_leaves_a_whole_one(
    times: int, corpus: Path, tmp_path: Path, figure: Figure
) -> None:
    """A checkpoint a step, and the folder for temporary files on another file system."""
    wanted, lives, draw = config(corpus, recipe={"budget": {"steps": 40 * times}}), Lives(), random.Random(0)
    folder, torn, whole = run_folder(tmp_path / "killed", wanted), 0, []
    elsewhere = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for _ in range(times):
        status = lives.signalled(wanted, folder, signal.SIGKILL, draw, checkpoint_seconds=0.0, temporary=elsewhere)
        assert status == -signal.SIGKILL
        torn += len(list(folder.checkpoints.glob(".*.tmp")))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of a damaged one it warns
            whole.append(whole_step(folder))
    assert whole == sorted(whole)
    lives.undisturbed(wanted, tmp_path / "killed")
    assert_same_bits(folder, lives.undisturbed(wanted, tmp_path / "undisturbed"))
    assert not list(folder.path.rglob(".*.tmp"))
    figure(f"kill -9 while saving every step: a whole checkpoint {times} of {times} times, {torn} torn files never used")


def test_a_file_that_may_not_grow_is_a_full_disk(corpus: Path, tmp_path: Path, figure: Figure) -> None:
    wanted, lives = config(corpus, **STEPS), Lives()
    folder = run_folder(tmp_path, wanted)
    assert ended(lives.start(wanted, folder, file_bytes=20_000)) == 0
    record = recorded(folder)
    assert (record.state, (record.reason or "").split(":")[0]) == ("FAILED", "disk full")
    assert record.steps > 0
    figure(f"RLIMIT_FSIZE while saving: {record.state} ({record.reason}), the checkpoint of step {whole_step(folder)} is whole")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(place)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_on_a_full_disk_a_run_says_so_and_keeps_its_checkpoint(
    small_disk: Path, corpus: Path, tmp_path: Path, figure: Figure
) -> None:
    wanted, lives = config(corpus, **STEPS), Lives()
    folder = run_folder(small_disk, wanted)
    assert lives.signalled(wanted, folder, signal.SIGTERM, random.Random(0), checkpoint_seconds=60.0) == 75
    kept = whole_step(folder)
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        file.write(bytes(shutil.disk_usage(small_disk).free - 16_384))
    assert ended(lives.start(wanted, folder, checkpoint_seconds=0.0)) == 0
    record = recorded(folder)
    assert record.state == "FAILED"
    assert (record.reason or "").startswith("disk full: [Errno 28]")
    assert whole_step(folder) == kept
    figure(f"a tmpfs that is full: {record.state} ({record.reason}), the checkpoint of step {kept} is whole")


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def zeroed(content: bytes) -> bytes:
    return bytes(len(content))


LONG = pytest.mark.faults
DAMAGES = (truncated, flipped, zeroed)


@pytest.mark.parametrize("damage", [flipped, pytest.param(truncated, marks=LONG), pytest.param(zeroed, marks=LONG)])
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_used(
    damage: Callable[[bytes], bytes], corpus: Path, tmp_path: Path, figure: Figure
) -> None:
    wanted, lives = config(corpus, **STEPS), Lives()
    folder = run_folder(tmp_path / "damaged", wanted)
    assert lives.signalled(wanted, folder, signal.SIGKILL, random.Random(1), checkpoint_seconds=0.0) == -signal.SIGKILL
    before, newest = checkpoints_in(folder.checkpoints)[-2:]
    newest.write_bytes(damage(newest.read_bytes()))
    taken = size_of(folder.path / MASKS)
    lives.undisturbed(wanted, tmp_path / "damaged")
    log = folder.log_file.read_text()
    assert f"{newest} is damaged" in log
    first, *_ = (folder.path / MASKS).read_bytes()[taken:].split()
    assert int(first) == step_of(before)
    assert_same_bits(folder, lives.undisturbed(wanted, tmp_path / "undisturbed"))
    figure(f"a checkpoint {damage.__name__}: refused by name, the one before it used, the same bits in the end")


@LONG
def test_where_every_checkpoint_is_damaged_a_run_starts_anew(corpus: Path, tmp_path: Path) -> None:
    wanted, lives = config(corpus, **STEPS), Lives()
    folder = run_folder(tmp_path / "damaged", wanted)
    lives.signalled(wanted, folder, signal.SIGKILL, random.Random(1), checkpoint_seconds=0.0)
    for checkpoint in checkpoints_in(folder.checkpoints):
        checkpoint.write_bytes(zeroed(checkpoint.read_bytes()))
    with pytest.warns(UserWarning, match="is damaged"):
        assert newest_whole_checkpoint(folder.checkpoints) is None
    lives.undisturbed(wanted, tmp_path / "damaged")
    assert_same_bits(folder, lives.undisturbed(wanted, tmp_path / "undisturbed"))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_token_file_is_named_and_built_again(
    damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture, figure: Figure
) -> None:
    data = config(write_corpus(tmp_path / "text.txt", seed=1 + DAMAGES.index(damage))).data
    prepared = prepare(data)
    tokens = prepared.folder / "train.tokens"
    whole = tokens.read_bytes()
    tokens.chmod(0o644)
    tokens.write_bytes(damage(whole))
    again = prepare(data)
    assert tokens.read_bytes() == whole
    assert again.fingerprint == prepared.fingerprint == data_fingerprint(data)
    assert "is damaged and will be rebuilt" in caplog.text
    figure(f"a token file {damage.__name__}: named, and built again with the same bytes")
