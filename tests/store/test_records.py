"""The run folder is the truth: files are whole or absent, the first record stands, and the ledger follows from the records."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.base.durable_files import LEFT_SECONDS, write_atomically, write_once
from study.base.errors import InputError
from study.base.schema import set_path
from study.config.presets import PRESETS
from study.config.run_config import RunConfig
from study.store.ownership import pulse_of
from study.store.records import RunRecord, cell_of, counts_of, ledger
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import TAIL_BYTES
from tests.small import config
from tests.synthetic import add_run, depth_or_width, environment, run_config, sweep_folder

CORPUS = Path("corpus.txt")
WRITERS = 8


def record(**changes: Any) -> RunRecord:
    run = changes.pop("config", config(CORPUS))
    values = {
        "run_id": run.fingerprint("data"),
        "sweep": "test",
        "state": "COMPLETED",
        "config": run.to_dict(),
        "data_fingerprint": "data",
        "steps": run.steps,
        "tokens": run.tokens,
        "loss_nats": 3.0,
        "unigram_entropy_nats": 5.0,
        **counts_of(run, run.steps),
        "attempts": 1,
        "started_at": "2026-01-01T00:00:00+00:00",
        "finished_at": "2026-01-01T00:01:00+00:00",
    }
    return RunRecord.parse(values | changes)


def test_a_ledger_has_the_training_masks_of_every_run_where_any_has_its_own() -> None:
    """A run that has none trains on those of validation, whatever their rate."""
    plain, rarer = config(CORPUS), config(CORPUS, masking={"rate": 0.1})
    own = config(CORPUS, recipe={"masking": {"rate": 0.4, "whole_words": True}})
    assert not [name for name in ledger([record(config=plain)]) if str(name).startswith("recipe.masking.")]
    table = ledger([record(config=each) for each in (plain, rarer, own)]).set_index("run_id")
    table = table.loc[[each.fingerprint("data") for each in (plain, rarer, own)]]
    assert table["recipe.masking.rate"].tolist() == [0.15, 0.1, 0.4]
    assert table["masking.rate"].tolist() == [0.15, 0.1, 0.15]
    assert table["recipe.masking.whole_words"].tolist() == [False, False, True]


def test_a_ledger_names_the_preset_of_each_run_that_has_one() -> None:
    runs = [record(config=config(CORPUS, **changes)) for changes in ({}, PRESETS["modern"], {"architecture": {"norm": "pre"}})]
    table = ledger(runs).set_index("run_id")
    assert list(table.loc[[run.run_id for run in runs], "preset"].fillna("none")) == ["bert", "modern", "none"]
    assert "preset" not in ledger(runs[2:])


@pytest.mark.parametrize(
    ("objective", "packing", "read"),
    [
        ("mlm_nsp", "full_sentences", "segment_pairs"),
        ("mlm_sop", "doc_sentences", "segment_pairs"),
        ("mlm", "doc_sentences", None),
    ],
)
def test_objectives_that_judge_pairs_stand_in_the_ledger_with_the_packing_that_they_read(
    objective: str, packing: str, read: str | None
) -> None:
    table = ledger([record(config=config(CORPUS, recipe={"objective": objective, "packing": packing}))])
    assert table["recipe.packing"].tolist() == [read or packing]


def test_a_run_of_no_steps_has_no_speed_in_records_of_earlier_versions_either() -> None:
    assert record(tokens_per_second=0.0).tokens_per_second is None
    assert record(tokens_per_second=12.5).tokens_per_second == 12.5


def at_once(write: Callable[[int], Any]) -> list[Any]:
    """What many threads get that call `write` at the same moment."""
    barrier = Barrier(WRITERS)

    def wait_and_write(number: int) -> Any:
        barrier.wait()
        return write(number)

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(wait_and_write, range(WRITERS)))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that make a file durable and visible, in their order."""
    seen: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(*arguments: Any) -> Any:
            is_folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{arguments[0]}")
            seen.append("fsync folder" if is_folder else name)
            return original(*arguments)

        return call

    for name in ("fsync", "replace", "link"):
        monkeypatch.setattr(os, name, watched(name))
    return seen


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="tells folders from files by /proc")
@pytest.mark.parametrize(("write", "visible"), [(write_atomically, "replace"), (write_once, "link")])
def test_a_file_is_on_the_disk_before_its_name_is(
    tmp_path: Path, calls: list[str], write: Callable[[Path, bytes], Any], visible: str
) -> None:
    write(tmp_path / "file", b"content")
    assert calls == ["fsync", visible, "fsync folder"]
    assert (tmp_path / "file").read_bytes() == b"content"


@pytest.mark.parametrize("write", [write_atomically, write_once])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], Any]
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "file", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_what_a_killed_writer_left_is_removed_by_a_later_one_and_what_another_writes_stays(tmp_path: Path) -> None:
    now = time.time()
    ages = {
        ".table [1].csv.left.tmp": LEFT_SECONDS + 60,
        ".table [1].csv.young.tmp": 1,
        ".other.csv.left.tmp": 2 * LEFT_SECONDS,
    }
    for name, age in ages.items():
        (tmp_path / name).write_bytes(b"part")
        os.utime(tmp_path / name, (now - age, now - age))
    write_atomically(tmp_path / "table [1].csv", b"whole")
    assert {file.name for file in tmp_path.iterdir()} == {"table [1].csv", *list(ages)[1:]}


def test_a_write_that_fails_leaves_nothing_and_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(tmp_path / "file", b"new")
    assert (caught.value.filename, caught.value.filename2) == (str(tmp_path / "file"), None)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder here refuses files of whoever runs the tests")
@pytest.mark.parametrize("write", [write_atomically, write_once])
def test_a_folder_that_takes_no_files_is_reported_with_the_file_that_was_asked_for(write: Callable[[Path, bytes], Any]) -> None:
    with pytest.raises(OSError, match=r"/proc/self/fdinfo/file'$"):
        write(Path("/proc/self/fdinfo/file"), b"new")


@pytest.mark.parametrize("links", [True, False])
def test_the_first_of_many_writers_wins(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", lacks)
    for attempt in range(20):
        file = tmp_path / f"{attempt}"

        def write(number: int, file: Path = file) -> bool:
            return write_once(file, b"%d" % number * 10_000)

        outcomes = at_once(write)
        assert outcomes.count(True) == 1
        assert file.read_bytes() == b"%d" % outcomes.index(True) * 10_000
    assert len(list(tmp_path.iterdir())) == 20


def test_a_reader_never_meets_part_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_atomically(file, b"0" * 100_000)

    def write_or_read(number: int) -> None:
        for _ in range(20):
            if number % 2:
                write_atomically(file, b"%d" % number * 100_000)
            else:
                content = file.read_bytes()
                assert len(content) == 100_000
                assert len(set(content)) == 1

    at_once(write_or_read)


def test_attempts_of_many_processes_get_numbers_of_their_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert sorted(at_once(lambda number: folder.claim_attempt({"pid": number}))) == list(range(1, WRITERS + 1))
    assert folder.attempts() == WRITERS


def test_a_record_reads_back_and_stands(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.record() is None
    original = record(environment=environment().model_dump())
    assert folder.file_record(original)
    assert not folder.file_record(record(loss_nats=1.0))
    assert folder.record() == original


@pytest.mark.parametrize("content", [b"", b'{"run_id": ', b"\xff\xfe", b"[]", b"[" * 100_000, b'{"run_id": "x", "lost": 1}'])
def test_a_damaged_record_is_named_and_not_trusted(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder(tmp_path / "run")
    write_atomically(folder.record_file, content)
    with pytest.raises(InputError, match=r"record\.json"):
        folder.record()


def test_a_configuration_is_written_once(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_config(config(CORPUS))
    folder.write_config(config(CORPUS, seed=1))
    assert folder.config() == config(CORPUS)


@pytest.mark.parametrize("yaml", [b"", b"architecture: [", None])
def test_a_run_that_has_ended_keeps_its_configuration_whatever_became_of_its_yaml(tmp_path: Path, yaml: bytes | None) -> None:
    folder = SweepFolder(tmp_path)
    run = folder.run(add_run(folder, run_config(1, 64)))
    run.config_file.unlink()
    if yaml is not None:
        run.config_file.write_bytes(yaml)
    assert run.config() == run_config(1, 64)


def test_metrics_end_where_a_kill_tore_them(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert list(folder.metrics()) == []
    folder.metrics_file.write_bytes(b'{"trainer/step": 1}\n{"trainer/step": 2}\n{"trainer/st')
    assert [row["trainer/step"] for row in folder.metrics()] == [1, 2]


@pytest.mark.parametrize("line", [b"\x00\xff", b"{", b"[1, 2]", b"[" * 100_000, b"3", b""])
def test_a_whole_line_that_is_no_row_of_metrics_is_named(tmp_path: Path, line: bytes) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics_file.write_bytes(b'{"trainer/step": 1}\n' + line + b'\n{"trainer/step": 2}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: is not a row of metrics.*remove that line"):
        list(folder.metrics())
    if len(line) < TAIL_BYTES:
        with pytest.raises(InputError, match=r"metrics\.jsonl, near its end: is not a row of metrics"):
            folder.newest_rows()


def test_validation_losses_read_back(tmp_path: Path) -> None:
    losses = np.linspace(1, 2, 7)
    RunFolder(tmp_path).write_validation_losses(losses)
    np.testing.assert_array_equal(RunFolder(tmp_path).validation_losses(), losses)
    RunFolder(tmp_path).write_byte_losses(losses)
    np.testing.assert_array_equal(RunFolder(tmp_path).byte_losses(1.5 / np.log(2)), losses.astype(np.float32))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"state": "FAILED", "reason": "OSError: gone"}, "FAILED: OSError: gone"),
        ({"state": "OOM"}, "OOM"),
        ({"state": "DIVERGED", "loss_nats": None}, "DIVERGED"),
        ({"order_gain_nats": 0.0, "order_gain_standard_error_nats": 0.001}, None),
        ({"loss_nats": 4.95, "stuck_at_unigram": True}, None),
    ],
)
def test_a_run_that_went_wrong_is_left_out_with_its_reason(changes: dict[str, Any], reason: str | None) -> None:
    assert record(**changes).exclusion == reason


@pytest.mark.parametrize(
    ("gain", "error", "reads"),
    [(0.2, 0.01, True), (0.0701, 0.01, True), (0.07, 0.01, False), (0.0003, 0.0005, False), (-0.4, 0.01, False)],
)
def test_a_run_reads_order_where_its_gain_is_above_a_twentieth_of_a_nat_by_two_standard_errors(
    gain: float, error: float, reads: bool
) -> None:
    assert record(order_gain_nats=gain, order_gain_standard_error_nats=error).reads_order is reads


def test_whether_a_run_reads_order_is_not_known_where_it_was_not_measured() -> None:
    """Records of earlier versions, but for those of runs that had learned nothing of their context."""
    assert record().reads_order is None
    assert record(order_gain_nats=0.2).reads_order is None, "one sequence says nothing of chance"
    assert record(stuck_at_unigram=False).reads_order is None
    assert record(stuck_at_unigram=True).reads_order is False


def test_the_ledger_says_what_order_is_worth_where_any_record_does() -> None:
    columns = ["order_gain_nats", "order_gain_standard_error_nats", "reads_order"]
    earlier, later = record(), record(config=config(CORPUS, seed=1), order_gain_nats=0.2, order_gain_standard_error_nats=0.01)
    assert not {*columns, "stuck_at_unigram"} & {*ledger([earlier])}
    assert ledger([earlier, later])[columns].dropna().to_numpy().tolist() == [[0.2, 0.01, True]]


def test_the_ledger_has_the_same_bytes_whatever_came_first(tmp_path: Path) -> None:
    records = [
        record(config=config(CORPUS, seed=1)),
        record(environment=environment().model_dump()),
        record(config=config(CORPUS, recipe={"budget": {"steps": None, "tokens": 5000}}), state="FAILED", loss_nats=None),
    ]
    tables = []
    for number, order in enumerate((records, records[::-1], records[1:] + records[:1])):
        folder = sweep_folder(tmp_path / str(number) / "sweep")
        for one in order:
            folder.run(one.run_id).write_config(one.config)
            folder.run(one.run_id).file_record(one)
        folder.write_ledger()
        tables.append((folder.ledger_file.read_bytes(), folder.ledger_file.with_suffix(".csv").read_bytes()))
        assert ledger(order).equals(ledger(records))
    assert tables[0] == tables[1] == tables[2]


def test_a_copy_of_a_run_is_named_and_not_counted_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = depth_or_width(tmp_path / "sweep", seeds=1, shapes=[(1, 64)], rates=[1e-3], budgets=[1e6])
    (run,) = folder.runs()
    shutil.copytree(run.path, copy := run.path.with_name(f"{run.run_id}-copy"))
    assert list(folder.write_ledger()["run_id"]) == [run.run_id]
    assert re.search(rf"-copy/record\.json: is of run {run.run_id}, .*rename .*-copy, or move it away", caplog.text)
    with pytest.raises(InputError, match=r"-copy/record\.json"):
        folder.require_readable()
    shutil.rmtree(copy)
    folder.require_readable()


def test_what_was_not_reached_is_missing_and_never_zero(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "sweep")
    add_run(folder, run_config(1, 64), state="DIVERGED", reason="loss became NaN")
    add_run(folder, run_config(2, 64))
    table = folder.write_ledger()
    assert table["loss_nats"].isna().tolist() == [True, False]
    assert table["exclusion"].tolist()[0] == "DIVERGED: loss became NaN"
    assert folder.read_ledger().equals(table)


def test_the_share_of_unknown_words_is_a_column_where_any_record_has_it(tmp_path: Path) -> None:
    earlier, later = record(), record(unknown_share=0.25)
    assert "unknown_share" not in ledger([earlier])
    assert ledger([earlier, later])["unknown_share"].dropna().tolist() == [0.25]


def test_an_empty_sweep_has_an_empty_ledger(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "sweep")
    with pytest.raises(InputError, match="does not exist"):
        folder.read_ledger()
    assert folder.write_ledger().empty
    assert "run_id" in folder.read_ledger().columns


@pytest.mark.parametrize("writes", [0, 1])
def test_a_kill_while_the_ledger_is_written_leaves_tables_that_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    folder = sweep_folder(tmp_path / "sweep")
    add_run(folder, run_config(1, 64))
    folder.write_ledger()
    add_run(folder, run_config(1, 128))
    written: list[Path] = []

    def killed(file: Path, content: bytes) -> None:
        if len(written) == writes:
            raise KeyboardInterrupt
        written.append(file)
        write_atomically(file, content)

    monkeypatch.setattr("study.store.named_files.write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.write_ledger()
    assert len(pd.read_parquet(folder.ledger_file)) == 1 + writes
    assert len(pd.read_csv(folder.ledger_file.with_suffix(".csv"))) == 1


def test_the_ledger_names_its_axes_by_their_convention(tmp_path: Path) -> None:
    table = depth_or_width(tmp_path / "sweep", shapes=((1, 64),), budgets=(1e6,)).write_ledger()
    run = run_config(1, 64)
    row = table.iloc[0]
    assert row["architecture.depth"] == 1
    assert row["shape"] == "L1-H64-A2-F256"
    assert {name: row[name] for name in counts_of(run, run.steps)} == counts_of(run, run.steps)
    assert len(table) == 5


def test_a_cell_holds_the_runs_that_differ_in_tuned_knobs_and_seeds() -> None:
    tuned = ("recipe.learning_rate",)

    def cell(path: str = "seed", value: object = 0, data: str = "data") -> str:
        values = config(CORPUS).to_dict()
        set_path(values, path, value)
        return cell_of(RunConfig.parse(values), tuned, data)

    assert cell("recipe.learning_rate", 0.1) == cell("seed", 7) == cell()
    others = [
        cell("recipe.weight_decay", 0.1),
        cell("architecture.depth", 3),
        cell("recipe.budget.steps", 31),
        cell(data="other"),
    ]
    assert len({cell(), *others}) == 5


def test_a_run_of_no_cell_of_the_sweep_is_left_out(tmp_path: Path) -> None:
    runs = [record(), record(config=config(CORPUS, architecture={"depth": 1}))]
    table = ledger(runs, cells=frozenset([cell_of(runs[0].config, (), "data")]))
    assert dict(zip(table["architecture.depth"], table["exclusion"].notna(), strict=True)) == {1: True, 2: False}


def test_a_folder_that_only_began_counts_as_a_run_without_a_record(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    assert folder.runs() == []
    folder.run("abc").write_config(config(CORPUS))
    assert [run.run_id for run in folder.runs()] == ["abc"]
    assert folder.records() == []


def test_a_cell_stays_the_same_where_its_corpus_moves() -> None:
    here, moved = (config(Path(path)) for path in ("corpus.txt", "/elsewhere/corpus.txt"))
    assert cell_of(here, ("recipe.learning_rate",), "data") == cell_of(moved, ("recipe.learning_rate",), "data")
    assert cell_of(here, (), "data") != cell_of(here, (), "other data")


@pytest.mark.parametrize("content", [b"", b"{", b"7", b"\xff", b'"text"'])
@pytest.mark.parametrize(
    ("name", "read", "remedy"),
    [
        ("runs/r/orders.json", lambda sweep: sweep.run("r").orders(), "the next launch writes it anew"),
        ("runs/r/prune.json", lambda sweep: sweep.run("r").prune(), "the search judges the run anew"),
        ("runs/r/trunk.json", lambda sweep: sweep.run("r").trunk(), "to train the run again"),
        ("runs/r/record.json", lambda sweep: sweep.run("r").record(), "study launch puts it aside and trains the run again"),
        ("runs/r/attempts/0001.json", lambda sweep: pulse_of(sweep.run("r")), "once nobody works on the run"),
        ("cells.json", lambda sweep: sweep.cells(), "`study launch` writes it anew"),
        (".coordinator.json", lambda sweep: sweep.launching.holder(), "it only says by whom the sweep is run"),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(
    name: str, read: Callable[[SweepFolder], object], remedy: str, content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "results" / "toy" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(SweepFolder(tmp_path / "results" / "toy"))
    (problem,) = caught.value.problems
    assert problem.place == str(file)
    assert problem.message.startswith("is damaged: ")
    assert problem.message.endswith(remedy)


def test_a_record_of_a_newer_version_is_named_with_what_to_do(tmp_path: Path) -> None:
    sweep = sweep_folder(tmp_path / "toy")
    file = sweep.run(add_run(sweep, run_config(1, 64))).record_file
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema_version": 99, "later": 1}))
    with pytest.raises(InputError) as caught:
        sweep.require_readable()
    assert sweep.records() == []
    (problem,) = caught.value.problems
    assert problem.place == str(file)
    assert problem.message == "is of schema version 99, and this version of the workbench reads up to 1; install the newer one"
