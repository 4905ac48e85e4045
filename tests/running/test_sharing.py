"""Runs that two sweeps want: each is trained once, and both have its record; runs here are faked, and end at once."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from study.base.errors import InputError
from study.config.resources import Resources
from study.config.run_config import RunConfig
from study.running.control import _failed, exclude, retry
from study.running.coordinator import Coordinator
from study.running.launch import plan
from study.running.run_proposer import RunJob, SharedRuns
from study.running.status import status
from study.store.ownership import Attempt, work_lock
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from tests.running.test_coordinator import CORPUS, FakeExecutor, RunProgress, completes
from tests.sweeps import coordinator_of, record, run_in, sweep, write_topics

THREE: dict[str, Any] = {"shapes": {"grid": {"depth": [1, 2, 3]}}}
FOUR: dict[str, Any] = {"shapes": {"grid": {"depth": [2, 3, 4, 5]}}}


def coordinator(tmp_path: Path, name: str, **changes: Any) -> Coordinator[RunJob, RunRecord]:
    return coordinator_of(SweepFolder(tmp_path / "results" / name), CORPUS, name=name, **changes)


def launched(tmp_path: Path, name: str, executor: FakeExecutor, **changes: Any) -> RunProgress:
    started = coordinator(tmp_path, name, **changes)
    started.run(executor, lambda _: None, refresh_seconds=0.01)
    return started.progress


def left_by(run: RunFolder) -> list[Path]:
    losses = [run.validation_losses_file, run.validation_documents_file]
    return [run.record_file, run.metrics_file, *losses, run.weights_file, run.exclusion_file]


def test_what_another_sweep_has_trained_is_taken_over_as_the_same_file(tmp_path: Path) -> None:
    def life(config: RunConfig, run: RunFolder) -> int:
        for file in left_by(run):
            if file != run.record_file:
                file.write_text('{"reason": "a bad disk"}\n')
        return completes(config, run)

    first, second = FakeExecutor(life), FakeExecutor()
    launched(tmp_path, "one", first, **THREE)
    launched(tmp_path, "two", second, **FOUR)
    assert (len(first.submitted), len(second.submitted)) == (3, 2)
    one, two = SweepFolder(tmp_path / "results" / "one"), SweepFolder(tmp_path / "results" / "two")
    shared = {record.run_id for record in one.records()} & {record.run_id for record in two.records()}
    assert len(shared) == 2
    for run_id in shared:
        for ours, theirs in zip(left_by(one.run(run_id)), left_by(two.run(run_id)), strict=True):
            assert ours.samefile(theirs)
    shutil.rmtree(one.path)
    assert len(two.records()) == 4
    again = FakeExecutor()
    launched(tmp_path, "one", again, **THREE)
    assert len(again.submitted) == 1


def test_sweeps_that_name_other_columns_of_a_text_without_any_share_its_runs(tmp_path: Path) -> None:
    launched(tmp_path, "one", FakeExecutor(), **THREE)
    again = FakeExecutor()
    progress = launched(tmp_path, "two", again, **THREE, data={"text_column": "body"})
    assert (len(progress.ended), again.submitted) == (3, [])
    assert SweepFolder(tmp_path / "results" / "two").write_ledger()["exclusion"].isna().all()


def test_a_run_that_another_sweep_trains_is_waited_for_and_who_trains_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("study.running.coordinator.LOOK_SECONDS", 0.02)
    planned = coordinator(tmp_path, "one", shapes={"grid": {"depth": [3]}})
    job = run_in(planned.proposer.wanted((), 1)[0])
    config, held = job.config, job.folder
    training, go_on = threading.Event(), threading.Event()

    def train_slowly() -> None:
        with work_lock(held), Attempt.begin(held).renewed():
            training.set()
            assert go_on.wait(20)
            completes(config, held)

    other = threading.Thread(target=train_slowly)
    other.start()
    assert training.wait(20)
    said: list[str] = []

    def refresh(progress: RunProgress) -> None:
        said.extend(who for _, who in progress.held.values())
        if len(progress.ended) == 3:
            go_on.set()

    started, quick = coordinator(tmp_path, "two", **FOUR), FakeExecutor()
    started.run(quick, refresh, refresh_seconds=0.01)
    other.join()
    assert said[0].startswith("the sweep 'one', process ")
    assert len(started.progress.ended) == 4
    assert held.run_id not in quick.submitted


def test_a_run_that_another_sweep_left_half_done_goes_on_where_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        coordinator(tmp_path, "one", **THREE).run(FakeExecutor(lambda *_: 75, lingering=True), _press)
    places = []

    def life(config: RunConfig, run: RunFolder) -> int:
        places.append(run.path.parent.parent.name)
        return completes(config, run)

    progress = launched(tmp_path, "two", FakeExecutor(life), **FOUR)
    assert sorted(places) == ["one", "one", "two", "two"]
    assert {record.state for record in progress.ended.values()} == {"COMPLETED"}
    assert {run.state for run in status(SweepFolder(tmp_path / "results" / "two")).runs} == {"COMPLETED"}


def _press(progress: RunProgress) -> None:
    if len(progress.running) == 3:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_home_that_was_deleted_is_made_anew_by_one_of_many(tmp_path: Path) -> None:
    config = RunConfig.parse(
        {
            "architecture": {"depth": 1, "width": 16, "heads": 2, "ffn": 32, "vocabulary": 8192},
            "recipe": {"budget": {"steps": 1}},
        }
    )
    sweeps = [SweepFolder(tmp_path / f"sweep{number}") for number in range(8)]
    gone = SweepFolder(tmp_path / "gone")
    often, together = sys.getswitchinterval(), threading.Barrier(len(sweeps))
    sys.setswitchinterval(1e-5)
    try:
        for name in (f"run{number}" for number in range(30)):
            for folder in (*sweeps, gone):
                folder.run(name).write_config(config)
            assert SharedRuns(gone).home(name).path == gone.run(name).path
            shutil.rmtree(gone.path)
            actual: list[Path] = []

            def ask(folder: SweepFolder, name: str = name, actual: list[Path] = actual) -> None:
                shared = SharedRuns(folder)
                together.wait()
                actual.append(shared.home(name).path)

            threads = [threading.Thread(target=ask, args=(folder,)) for folder in sweeps]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(actual) == len(sweeps)
            assert len(set(actual)) == 1
    finally:
        sys.setswitchinterval(often)


def test_a_record_that_was_there_before_it_was_shared_is_found(tmp_path: Path) -> None:
    launched(tmp_path, "one", FakeExecutor(), **THREE)
    shutil.rmtree(tmp_path / "results" / ".homes")
    second = FakeExecutor()
    records = launched(tmp_path, "two", second, **FOUR).ended.values()
    assert len(second.submitted) == 2
    assert all(isinstance(record, RunRecord) for record in records)


ONLY: dict[str, Any] = {"shapes": {"grid": {"depth": [1]}}}


@pytest.mark.parametrize("damage", [b"", b"{", b'{"run_id": 3}', None])
def test_a_run_whose_record_is_damaged_in_another_sweep_is_trained_anew(
    tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The other sweep keeps what it has, and says so to whoever reads it."""
    launched(tmp_path, "one", FakeExecutor(), **ONLY)
    (run,) = SweepFolder(tmp_path / "results" / "one").runs()
    run.record_file.unlink()
    if damage is None:
        run.record_file.symlink_to(run.record_file.name)
    else:
        run.record_file.write_bytes(damage)
    second = FakeExecutor()
    (ended,) = launched(tmp_path, "two", second, **ONLY).ended.values()
    assert (second.submitted, ended.state) == ([run.run_id], "COMPLETED")
    assert str(run.record_file) in caplog.text
    with pytest.raises((InputError, OSError)):
        run.record()


@pytest.mark.parametrize("name", ["one", "two"])
def test_no_run_is_trained_again_whose_record_a_newer_version_wrote(name: str, tmp_path: Path) -> None:
    """In the same sweep the plan refuses, which comes before anything is spent; in another, who takes the run over."""
    launched(tmp_path, "one", FakeExecutor(), **ONLY)
    (run,) = SweepFolder(tmp_path / "results" / "one").runs()
    content = json.dumps(json.loads(run.record_file.read_bytes()) | {"schema_version": 2})
    run.record_file.write_text(content)
    executor = FakeExecutor()
    message = "is of schema version 2, and this version of the workbench reads up to 1; install the newer one"
    with pytest.raises(InputError, match=f"{run.record_file}: {message}"):
        plan(
            sweep(write_topics(tmp_path / "text.txt"), **ONLY, name=name), tmp_path / "results", Resources()
        ) if name == "one" else launched(tmp_path, name, executor, **ONLY)
    assert (executor.submitted, run.record_file.read_text()) == ([], content)


def failed_in(tmp_path: Path, *names: str) -> list[SweepFolder]:
    """Sweeps that share one run, which failed."""

    def fails(config: RunConfig, folder: RunFolder) -> int:
        Attempt.begin(folder)
        assert folder.file_record(record(config, None, "FAILED", run_id=folder.run_id, reason="it failed"))
        return 0

    for name in names:
        launched(tmp_path, name, FakeExecutor(fails), **ONLY)
    return [SweepFolder(tmp_path / "results" / name) for name in names]


@pytest.mark.parametrize("asked", ["one", "two"])
def test_a_failed_run_that_is_retried_in_one_sweep_is_not_taken_over_again_from_another(tmp_path: Path, asked: str) -> None:
    failed_in(tmp_path, "one", "two", "three")
    (retried,) = retry(SweepFolder(tmp_path / "results" / asked))
    again = FakeExecutor()
    launched(tmp_path, asked, again, **ONLY)
    assert again.submitted == [retried.run_id]
    for name in ("one", "two", "three"):
        (ended,) = launched(tmp_path, name, FakeExecutor(), **ONLY).ended.values()
        assert ended.state == "COMPLETED"


def test_a_record_that_another_retry_took_meanwhile_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = failed_in(tmp_path, "one", "two")
    meanwhile = [two]

    def failed_and_taken(*arguments: Any) -> dict[str, RunRecord]:
        actual = _failed(*arguments)
        if meanwhile:
            assert len(retry(meanwhile.pop())) == 1
        return actual

    monkeypatch.setattr("study.running.control._failed", failed_and_taken)
    assert retry(one) == []


def test_of_sweeps_that_retry_one_run_at_one_moment_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = failed_in(tmp_path, "one", "two", "three")
    together, looked = threading.Barrier(len(folders)), threading.local()

    def failed_together(*arguments: Any) -> dict[str, RunRecord]:
        actual = _failed(*arguments)
        if not hasattr(looked, "once"):
            looked.once = together.wait()
        return actual

    monkeypatch.setattr("study.running.control._failed", failed_together)
    monkeypatch.setattr("study.store.ownership.LOCK_SECONDS", 30)
    with ThreadPoolExecutor(len(folders)) as threads:
        retried = [*threads.map(retry, folders)]
    assert sorted(map(len, retried)) == [0, 0, 1]
    for folder in folders:
        assert not folder.records()
        assert len([*folder.path.glob("runs/*/attempts/*.record.json")]) == 1


@pytest.mark.parametrize(
    ("lock", "message"),
    [("launching", r"two: is being run by process"), ("scoring", r"two: is being scored by process")],
)
def test_a_retry_takes_no_record_from_another_sweep_that_is_busy(tmp_path: Path, lock: str, message: str) -> None:
    one, two = failed_in(tmp_path, "one", "two")
    (failed,) = one.records()
    with FileLock(getattr(two, lock).lock_file), pytest.raises(InputError, match=message):
        retry(one)
    assert (one.records(), two.records()) == ([failed], [failed])
    two.run(failed.run_id).record_file.unlink()
    with FileLock(getattr(two, lock).lock_file):
        assert len(retry(one)) == 1, "of another that has no such record it takes nothing"


def test_an_excluded_run_that_another_sweep_uses_is_not_trained_anew(tmp_path: Path) -> None:
    for name in ("one", "two"):
        launched(tmp_path, name, FakeExecutor(), **ONLY)
    one, two = (SweepFolder(tmp_path / "results" / name) for name in ("one", "two"))
    (run,) = one.runs()
    exclude(str(run.path), tmp_path / "results", "broken GPU")
    with pytest.raises(InputError, match="is used by two, where it is not excluded; exclude it there too"):
        retry(one, [run.run_id])
    exclude(str(two.run(run.run_id).path), tmp_path / "results", "broken GPU")
    assert [retried.run_id for retried in retry(one, [run.run_id])] == [run.run_id]
    assert not two.records()


def test_a_shared_run_is_excluded_and_trained_anew_as_often_as_it_takes(tmp_path: Path) -> None:
    for number in (1, 2):
        for name in ("one", "two"):
            launched(tmp_path, name, FakeExecutor(), **ONLY)
        two = SweepFolder(tmp_path / "results" / "two")
        (run,) = two.runs()
        (run.scores / "abc").mkdir(parents=True)
        (run.scores / "abc" / "record.json").write_text(f"score {number}")
        exclude(run.run_id, tmp_path / "results", "broken GPU")
        (retried,) = retry(two, [run.run_id])
        kept = Path(retried.kept)
        assert kept.name == f"{number:04d}.record.json"
        assert (kept.parent / f"{number:04d}.scores" / "abc" / "record.json").read_text() == f"score {number}"


def test_a_run_that_died_on_another_machine_is_taken_up_once_its_lease_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("study.running.coordinator.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("study.store.ownership.LEASE_SECONDS", 0.5)
    planned = coordinator(tmp_path, "one", **THREE)
    run = run_in(planned.proposer.wanted((), 1)[0]).folder
    run.claim_attempt({"pid": 1, "hostname": "elsewhere", "machine": "another", "started_at": "2026-01-01"})
    said: list[str] = []
    executor = FakeExecutor()
    planned = coordinator(tmp_path, "one", **THREE)
    planned.run(executor, lambda progress: said.extend(who for _, who in progress.held.values()), refresh_seconds=0.01)
    assert set(said) == {"process 1 on elsewhere since 2026-01-01"}
    assert executor.submitted[-1] == run.run_id
    assert len(planned.progress.ended) == 3
