"""A sweep is packed and unpacked without a byte lost, whatever is killed, added beside it or damaged."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from study.base.errors import InputError
from study.store.ownership import sweep_lock
from study.store.packed import MANIFEST, RESTORE, Packed
from study.store.packed_tables import TABLES
from study.store.packing import pack, unpack
from study.store.run_folder import RunFolder
from study.store.score_records import score_folder, scores_of
from study.store.sweep_folder import SweepFolder, runs_of_id
from tests.synthetic import add_run, run_config, sweep_folder
from tests.synthetic_scores import TASKS, add_scores

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link")
"""Python's audit events before a file system is changed, beside that of a file that is opened to be written."""


def two_runs(path: Path) -> SweepFolder:
    """A finished sweep with every kind of file that a run folder may hold."""
    folder = sweep_folder(path)
    for seed in range(2):
        add_run(folder, run_config(1, 128, seed=seed))
    add_scores(folder, {"sst2": TASKS["sst2"]}, seeds=1)
    first, second = folder.runs()
    record = json.loads(second.record_file.read_bytes())
    second.record_file.write_text(json.dumps(record))  # as no version of the workbench writes it
    score = score_folder(second, scores_of(second)[0].score_id)
    score.claim_attempt({"pid": 3})
    for work in (second, score):  # of the first, FLOPs that end in .0 keep the rows from being as they are logged
        work.metrics_file.write_text('{"trainer/step": 50, "train/loss": 7.25}\n{"trainer/step": 100, "val/loss": 7}\n')
    first.claim_attempt({"pid": 1, "hostname": "héère", "machine": "m"})
    first.claim_attempt({"pid": 2, "hostname": "here", "machine": "m"})
    (first.path / "attempts" / "0002.beat").write_text("ended")
    (first.path / "attempts" / "0001.record.json").write_text('{\n "state": "FAILED"\n}\n')
    first.orders_file.write_text('{"branch_steps":[12]}')
    (first.path / "rank-1.json").write_text('{"state": "FAILED", "reason": "rank 1"}')
    (first.path / "attempts" / "0001.scores" / "abc").mkdir(parents=True)
    (first.path / "attempts" / "0001.scores" / "abc" / "metrics.jsonl").write_text('{"trainer/step": 1, "train/l')
    return folder


def current(folder: SweepFolder) -> pd.DataFrame:
    """The ledger of a sweep that has one."""
    ledger = folder.current_ledger()
    assert ledger is not None
    return ledger


def files_of(folder: SweepFolder) -> dict[str, bytes]:
    """What lies in the run folders of a sweep."""
    return {
        file.relative_to(folder.runs_folder).as_posix(): file.read_bytes()
        for file in folder.runs_folder.rglob("*")
        if file.is_file()
    }


def read(folder: SweepFolder, names: dict[str, bytes]) -> dict[str, bytes | None]:
    """What readers find of such files, in whichever form the sweep lies."""
    runs = {run.run_id: run for run in folder.runs()}
    return {name: (run := runs[name.split("/")[0]]).content(run.path.parent / name) for name in names}


def test_a_sweep_is_unpacked_as_it_was_packed(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    before = files_of(folder)
    records, ledger = folder.records(), folder.ledger()
    done = pack(folder)
    scores = sum(name.endswith("record.json") and "/scores/" in name for name in before)
    assert (done.runs, done.scores, done.files) == (2, scores, len(before))
    assert not folder.runs_folder.exists()
    assert done.tables == len([*done.path.iterdir()]) <= 9
    assert read(folder, before) == before
    assert folder.records() == records
    assert folder.ledger().equals(ledger)
    assert unpack(folder) == 2
    assert files_of(folder) == before
    assert not done.path.parent.exists()


def test_what_others_put_beside_a_pack_stays_when_it_is_unpacked(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    note = pack(folder).path.parent / "notes.txt"
    note.write_text("mine")
    assert unpack(folder) == 2
    assert [*note.parent.iterdir()] == [note]
    assert pack(folder).runs == 2


def test_a_packed_run_is_read_as_one_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = two_runs(tmp_path / "x")

    def seen(run: RunFolder) -> list[object]:
        losses = run.validation_losses()
        rows = [*run.metrics()], run.newest_rows(), [*run.rows().new()]
        facts = run.record(), run.config(), run.orders(), run.trunk(), run.attempts(), run.ended, run.is_run
        return [*facts, *rows, losses.tolist(), scores_of(run), run.names(run.scores), run.names(run.path)]

    runs = folder.runs()
    loose = [seen(run) for run in runs]
    pack(folder)
    assert [seen(RunFolder(run.path)) for run in runs] == loose
    assert [run.path for run in folder.runs()] == [run.path for run in runs]
    assert [run.path for run in runs_of_id(runs[0].run_id[:8], tmp_path)] == [runs[0].path]
    monkeypatch.chdir(tmp_path)
    assert [seen(RunFolder(Path("x", "runs", run.run_id))) for run in runs] == loose
    assert SweepFolder(tmp_path / "y").siblings()[0].path == folder.path


def test_a_ledger_is_read_from_its_file_while_the_pack_and_the_sweep_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = two_runs(tmp_path / "x")
    folder.write_ledger()
    assert folder.written_ledger() is None, "run folders may change one by one"
    loose = current(folder)
    pack(folder)
    assert folder.written_ledger() is None, "it was made from run folders"
    folder.write_ledger()
    monkeypatch.setattr(RunFolder, "record", None)
    packed = current(folder)
    monkeypatch.undo()
    pd.testing.assert_frame_equal(packed, loose)
    folder.ledger_file.write_bytes(loose.to_parquet(None, index=False))
    assert folder.written_ledger() is None, "nothing says what it was made from"
    folder.ledger_file.write_bytes(b"PAR1")
    assert len(current(folder)) == 2
    folder.write_ledger()
    folder.cells_file.write_text("[]")
    folder.write_ledger()
    for changed in (folder.sweep_file, folder.cells_file):
        before = changed.read_bytes()
        changed.write_bytes(before + b"\n")
        assert folder.written_ledger() is None
        changed.write_bytes(before)
        assert folder.written_ledger() is not None
    run = folder.runs()[0]
    run.path.mkdir(parents=True)
    run.exclusion_file.write_text('{"reason": "a bad disk"}')
    assert folder.written_ledger() is None
    assert current(folder)["excluded_by_hand"].dropna().tolist() == ["a bad disk"]


def test_a_ledger_that_lacks_an_unreadable_run_is_made_anew_each_time(tmp_path: Path) -> None:
    """So whoever reads it later is told of the run, too."""
    folder = sweep_folder(tmp_path / "x")
    for seed in range(2):
        add_run(folder, run_config(1, 128, seed=seed))
    manifest = pack(folder).path / MANIFEST
    records = manifest.with_name("records.jsonl.gz")
    damaged = gzip.compress(gzip.decompress(records.read_bytes()).replace(b'"attempts":', b'"attempts":-', 1))
    records.write_bytes(damaged)
    sums = json.loads(manifest.read_text())
    sums["sha256"][records.name] = hashlib.sha256(damaged).hexdigest()
    manifest.write_text(json.dumps(sums))
    folder = SweepFolder(folder.path.rename(tmp_path / "y"))
    assert len(folder.write_ledger()) == 1
    assert folder.written_ledger() is None


def test_the_rows_of_a_packed_run_stand_where_they_stood_for_who_follows_them(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    rows = folder.runs()[0].rows()
    seen = [*rows.new()]
    pack(folder)
    packed = folder.runs()[0].rows()
    assert [*packed.new()] == seen
    assert (packed.bytes_seen, packed.count) == (rows.bytes_seen, rows.count)
    assert not packed.rewritten()
    assert [*packed.new()] == []


@pytest.mark.parametrize(
    ("before", "every"),
    [
        ("a pack and a run beside it", 16),
        *(
            pytest.param(before, 1, marks=pytest.mark.slow)
            for before in ("run folders", "a pack and a run beside it", "a pack")
        ),
    ],
)
def test_whenever_it_is_killed_nothing_is_lost_and_the_same_call_goes_on(tmp_path: Path, before: str, every: int) -> None:
    made = two_runs(tmp_path / "made" / "x")
    if before != "run folders":
        pack(made)
    if before == "a pack and a run beside it":
        add_run(made, run_config(2, 92))
    act: Callable[[SweepFolder], object] = unpack if before == "a pack" else pack
    unpacked = tmp_path / "unpacked" / "x"
    shutil.copytree(made.path, unpacked)
    if before != "run folders":
        unpack(SweepFolder(unpacked))
    files = files_of(SweepFolder(unpacked))
    for step in itertools.count(1, every):
        folder = SweepFolder(tmp_path / str(step) / "x")
        shutil.copytree(made.path, folder.path)
        killed = is_killed_before(step, lambda folder=folder: act(folder))  # type: ignore[misc]
        assert read(folder, files) == files, f"killed before change {step}"
        if not killed:
            break
        if act is pack or folder.packed is not None or (folder.path / "packed" / ".old").exists():
            act(folder)
        assert read(folder, files) == files
        assert (folder.packed is None) == (act is unpack)
        if act is pack:
            assert not folder.runs_folder.exists()
            assert [path.name for path in (folder.path / "packed").iterdir()] == [folder.packed.path.name]  # type: ignore[union-attr]
            unpack(folder)
        assert files_of(folder) == files
    assert step > 20


def is_killed_before(step: int, act: Callable[[], object]) -> bool:
    """Do something in a process that is killed before it changes a file for the so many-th time; whether it came to that."""
    child = os.fork()
    if not child:
        left = itertools.count(1)

        def count(event: str, arguments: tuple[object, ...]) -> None:
            is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if (is_write or event in CHANGES) and next(left) == step:
                os._exit(9)

        sys.addaudithook(count)
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


def test_a_second_pack_takes_in_what_lies_beside_the_first(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    pack(folder)
    added = add_run(folder, run_config(2, 92))
    assert len(folder.runs()) == len(folder.records()) == 3
    assert [path.name for path in folder.runs_folder.iterdir()] == [added]
    before = read(folder, files_of(folder))
    done = pack(folder)
    assert (done.runs, done.path.name) == (3, "2")
    assert [path.name for path in done.path.parent.iterdir()] == ["2"]
    assert read(folder, dict.fromkeys(before, b"")) == before
    assert pack(folder) == done, "there is nothing to take in"
    assert unpack(folder) == 3


def test_why_a_run_is_excluded_stays_beside_the_pack_and_goes_before_it(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    run, other = folder.runs()
    run.exclusion_file.write_text('{"reason": "a bad disk"}')
    pack(folder)
    assert [*files_of(folder)] == [f"{run.run_id}/exclusion.json"]
    assert [record.excluded for record in folder.records()] == ["a bad disk", None]
    run.exclusion_file.unlink()
    other.path.mkdir()
    other.exclusion_file.write_text('{"reason": "another"}')
    assert [record.excluded for record in folder.records()] == [None, "another"]
    unpack(folder)
    assert [record.excluded for record in folder.records()] == [None, "another"]


def test_weights_are_given_up_by_name_alone(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    run = folder.runs()[0]
    (score,) = (run.scores / name for name in run.names(run.scores)[:1])
    lost = [run.weights_file, run.checkpoints / "step-1.ckpt", score / "checkpoints" / "step-1.ckpt", run.branch(3) / "a.ckpt"]
    before = files_of(folder)
    for file in lost:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(1000))
    for file in (run.log_file, run.lock_file, run.path / ".metrics.jsonl.x.tmp"):
        file.write_text("of no use any more")
    with pytest.raises(InputError, match=r"x: has weights or checkpoints of 1 run, 4 kB, which .* with --delete-weights"):
        pack(folder)
    assert folder.packed is None
    assert all(file.exists() for file in lost)
    pack(folder, delete_weights=True)
    assert not folder.runs_folder.exists()
    unpack(folder)
    assert files_of(folder) == before


def test_only_what_runs_wrote_is_removed_and_nothing_behind_a_link(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    run, other = folder.runs()
    (run.path / ".notes").write_text("mine")
    theirs = shutil.move(other.path, tmp_path / "theirs")
    other.path.symlink_to(theirs)
    before = files_of(folder)
    with pytest.raises(InputError, match=rf"{other.path}: is a link, whose files packing would remove"):
        pack(folder)
    assert files_of(folder) == before
    other.path.unlink()
    shutil.move(theirs, other.path)
    pack(folder)
    unpack(folder)
    assert (run.path / ".notes").read_text() == "mine"


def test_a_link_out_of_the_run_folders_is_not_packed(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    run, other = folder.runs()
    secret = tmp_path / "key"
    secret.write_text("a secret")
    links = [run.path / "notes.txt", other.path / "deep" / "key"]
    links[1].parent.mkdir()
    for link in links:
        link.symlink_to(secret)
    before = files_of(folder)
    with pytest.raises(InputError) as refused:
        pack(folder)
    assert {problem.place for problem in refused.value.problems} == {*map(str, links)}
    assert files_of(folder) == before
    for link in links:
        link.unlink()
    (run.path / "again.txt").symlink_to(run.record_file)
    pack(folder)
    unpack(folder)
    assert (run.path / "again.txt").read_bytes() == run.record_file.read_bytes()


def test_what_has_not_ended_or_is_held_or_damaged_is_not_packed(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    run = folder.runs()[0]
    before = files_of(folder)
    with sweep_lock(folder.launching), pytest.raises(InputError, match=r"x: is being run by process"):
        pack(folder)
    with sweep_lock(folder.scoring), pytest.raises(InputError, match=r"x: is being scored by process"):
        pack(folder)
    record = run.record_file.read_bytes()
    run.record_file.unlink()
    with pytest.raises(InputError, match=rf"x: has 1 unfinished run \({run.run_id}\); `study launch` continues"):
        pack(folder)
    run.record_file.write_bytes(record[:-40])
    with pytest.raises(InputError, match=r"record\.json: is damaged"):
        pack(folder)
    run.record_file.write_bytes(record)
    assert files_of(folder) == before
    with pytest.raises(InputError, match="is not packed"):
        unpack(folder)
    with pytest.raises(InputError, match="has no runs to pack"):
        pack(sweep_folder(tmp_path / "empty"))


def test_a_record_in_a_pack_cannot_be_put_aside(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    pack(folder)
    with pytest.raises(InputError, match=rf"is packed and cannot be changed; first run: study unpack {folder.path}"):
        folder.runs()[0].put_record_aside({})
    unpack(folder)
    folder.runs()[0].put_record_aside({})


@pytest.mark.parametrize("table", [table.file for table in TABLES])
@pytest.mark.parametrize("damage", ["a flipped bit", "a lost end", "no file"])
def test_a_damaged_table_is_named_and_the_others_are_read(tmp_path: Path, table: str, damage: str) -> None:
    folder = two_runs(tmp_path / "x")
    names = files_of(folder)
    file = pack(folder).path / table
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content) if damage == "a flipped bit" else file.read_bytes()[:-1])
    if damage == "no file":
        file.unlink()
    what = "does not exist" if damage == "no file" else "is damaged: its SHA-256"
    (kind,) = (each for each in TABLES if each.file == table)
    packed = Packed(file.parent)
    for name in names:
        if kind.takes(name):
            continue
        assert packed.content(name) == names[name]
    with pytest.raises(InputError) as refused:
        sorted(packed)
    (problem,) = refused.value.problems
    assert problem.place == str(file)
    assert problem.message.startswith(what)
    assert problem.message.endswith(RESTORE)
    elsewhere = SweepFolder(folder.path.rename(tmp_path / "y"))
    with pytest.raises(InputError, match=f"{table}: "):
        unpack(elsewhere)
    assert elsewhere.packed is not None, "the pack stays for who restores the table"


def test_a_damaged_manifest_or_one_of_another_format_is_named(tmp_path: Path) -> None:
    folder = two_runs(tmp_path / "x")
    manifest = pack(folder).path / MANIFEST
    whole = json.loads(manifest.read_text())
    assert whole["sha256"] == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in manifest.parent.iterdir() if path != manifest
    }
    for text, message in (
        ("{", "is damaged"),
        (json.dumps(whole | {"format": 2}), "has format 2, but this version of the workbench reads 1"),
        (None, "does not exist"),
    ):
        manifest.unlink()
        if text is not None:
            manifest.write_text(text)
        with pytest.raises(InputError, match=rf"manifest\.json: {message}"):
            Packed(manifest.parent).content("a/record.json")
        manifest.touch()
