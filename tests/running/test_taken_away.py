"""Files that another process takes away between two looks at them: who reads them finds them there or gone, and no error."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from study.base.errors import InputError
from study.data.cache import cached_sha256_of
from study.planning.proposing import adopt
from study.running.control import include
from study.running.run_proposer import SharedRuns
from study.running.status import status
from study.store.ownership import sweep_lock
from study.store.run_folder import RunFolder, Trunk
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import checkpoint_name
from study.training.checkpoints import newest_whole_checkpoint
from tests.running.test_control import stops_at_once
from tests.running.test_coordinator import FakeExecutor, completes
from tests.running.test_sharing import coordinator, launched

ONE: dict[str, Any] = {"shapes": {"grid": {"depth": [1]}}}

Takes = Callable[..., None]


@pytest.fixture(name="takes")
def _takes(monkeypatch: pytest.MonkeyPatch) -> Takes:
    """A file is taken away as soon as anybody has seen so many times that it is there."""

    def takes(file: Path, looks: int = 1) -> None:
        exists, seen_there = Path.exists, count(1)

        def seen(path: Path, **options: Any) -> bool:
            there = exists(path, **options)
            if there and path == file and next(seen_there) == looks:
                file.unlink()
            return there

        monkeypatch.setattr(Path, "exists", seen)

    return takes


def test_a_run_is_read_whatever_is_taken_away(tmp_path: Path, takes: Takes) -> None:
    run = RunFolder(tmp_path)
    run.write_trunk(Trunk(run_id="trunk", step=3))
    run.write_prune("median")
    run.metrics_file.write_text('{"trainer/step": 1}\n')
    for file in (run.trunk_file, run.prune_file, run.metrics_file):
        takes(file)
    assert run.trunk() in (None, Trunk(run_id="trunk", step=3))
    assert run.prune() in (None, "median")
    assert list(run.metrics()) in ([], [{"trainer/step": 1}])


def test_a_hash_that_the_cache_forgets_is_found_anew(tmp_path: Path, takes: Takes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("study.data.cache.SETTLED_SECONDS", -1.0)
    (tmp_path / "text.txt").write_text("some text")
    digest = cached_sha256_of(tmp_path / "text.txt")
    (remembered,) = (tmp_path / "cache" / "hashes").iterdir()
    takes(remembered)
    assert cached_sha256_of(tmp_path / "text.txt") == digest


def test_a_sweep_that_ends_while_it_is_looked_at(tmp_path: Path, takes: Takes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("study.store.ownership.LOCK_SECONDS", 0.0)
    folder = SweepFolder(tmp_path / "toy")
    with sweep_lock(folder.launching):
        takes(folder.launching.holder_file)
        status(folder)
        with pytest.raises(InputError, match="is being run by process"), sweep_lock(folder.launching):
            pytest.fail("held twice")


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_a_record_is_put_aside_elsewhere_while_it_is_taken_over(tmp_path: Path, takes: Takes, looks: int) -> None:
    launched(tmp_path, "one", FakeExecutor(), **ONE)
    one = SweepFolder(tmp_path / "results" / "one")
    (run,) = one.runs()
    two = coordinator(tmp_path, "two", **ONE)
    two.folder.run(run.run_id).path.mkdir(parents=True)
    there = run.record()
    takes(run.record_file, looks)
    assert SharedRuns(two.folder).record(run.run_id) in (None, there)


def test_an_exclusion_that_is_taken_back_elsewhere_while_its_run_is_taken_over_is_none(tmp_path: Path, takes: Takes) -> None:
    launched(tmp_path, "one", FakeExecutor(), **ONE)
    (run,) = SweepFolder(tmp_path / "results" / "one").runs()
    run.exclusion_file.write_text(json.dumps({"reason": "a bad disk"}))
    two = coordinator(tmp_path, "two", **ONE)
    two.folder.run(run.run_id).path.mkdir(parents=True)
    takes(run.exclusion_file)
    assert SharedRuns(two.folder).record(run.run_id) is not None


def test_two_take_an_exclusion_back_at_once(tmp_path: Path, takes: Takes) -> None:
    launched(tmp_path, "one", FakeExecutor(), **ONE)
    (run,) = SweepFolder(tmp_path / "results" / "one").runs()
    run.exclusion_file.write_text(json.dumps({"reason": "a bad disk"}))
    takes(run.exclusion_file)
    assert [actual.path for actual in include(run.run_id, tmp_path / "results")] == [run.path]


def test_a_branch_has_its_trunks_rows_where_those_beside_the_state_are_taken_away(tmp_path: Path, takes: Takes) -> None:
    trunk, branch = RunFolder(tmp_path / "trunk"), RunFolder(tmp_path / "branch")
    beside = RunFolder(trunk.branch(2))
    state = beside.path / "step-0000000002-0.ckpt"
    for run in (trunk, branch, beside):
        run.path.mkdir(parents=True, exist_ok=True)
    state.write_bytes(b"state")
    for run in (trunk, beside):
        run.metrics_file.write_text("".join(f'{{"trainer/step": {step}}}\n' for step in (1, 2, 3)))
    takes(beside.metrics_file)
    adopt(trunk, state, branch)
    assert [row["trainer/step"] for row in branch.metrics()] == [1, 2]
    assert (branch.checkpoints / state.name).exists()


def test_a_run_that_ends_while_its_sweep_is_looked_at_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        launched(tmp_path, "one", FakeExecutor(stops_at_once), **ONE)
    folder = SweepFolder(tmp_path / "results" / "one")
    assert status(folder).counts == {"stopped": 1}

    def ends(run: RunFolder) -> bool:
        return completes(run.config(), run) != 0

    monkeypatch.setattr("study.running.status.has_owner", ends)
    assert status(folder).counts == {"COMPLETED": 1}


def test_a_damaged_checkpoint_that_another_rank_puts_aside_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / checkpoint_name(2, "0" * 64)
    whole = tmp_path / checkpoint_name(1, hashlib.sha256(b"state").hexdigest())
    whole.write_bytes(b"state")
    monkeypatch.setattr("study.training.checkpoints.checkpoints_in", lambda _: [whole, gone])
    assert newest_whole_checkpoint(tmp_path) == whole
