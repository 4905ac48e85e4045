"""Each table of a pack gives back, byte for byte, every file that it takes, and takes no other."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.store.packed_tables import (
    ATTEMPTS,
    CURVES,
    FILES,
    LOSSES,
    RECORDS,
    SCORE_CURVES,
    SCORES,
    TABLES,
    PackedTable,
)

RUN, OTHER = "05bb558dd9e5a570", "06fa80d417855333"

numbers = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.just(3.5e300), st.just(2**70))
metrics = st.lists(
    st.dictionaries(st.sampled_from(["trainer/step", "train/loss", "val/loss", "perf/mfu"]), numbers, min_size=1)
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
    max_leaves=10,
)


def rows_text(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def saved(vector: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, vector)
    return buffer.getvalue()


def given_back(table: PackedTable, files: dict[str, bytes]) -> dict[str, bytes]:
    """What a table takes of some files and gives back, each as it was."""
    encoded, names = table.encode_all(files, files)
    entries = table.decode(encoded) if names else None
    assert entries is None or sorted(entries.names) == sorted(names)
    actual = {} if entries is None else {name: entries.content(name) for name in names}
    assert actual == {name: files[name] for name in names}
    return actual


@given(st.lists(metrics, min_size=1, max_size=4))
def test_rows_of_metrics_come_back_whatever_they_hold(runs: list[list[dict[str, Any]]]) -> None:
    files = {f"{number:016x}/metrics.jsonl": rows_text(rows) for number, rows in enumerate(runs)}
    given_back(CURVES, files)


def test_rows_as_the_workbench_logs_them_are_taken_with_their_whole_numbers() -> None:
    rows: list[dict[str, Any]] = [
        {"trainer/step": 50, "trainer/flops": int(4.762828e21), "train/loss": 7.274603843688965, "recipe/learning_rate": 0},
        {"trainer/step": 100, "trainer/flops": int(9.525656e21), "val/loss": float("nan")},
    ]
    files = {f"{RUN}/metrics.jsonl": rows_text(rows)}
    assert given_back(CURVES, files) == files
    table = pd.read_parquet(io.BytesIO(CURVES.encode_all(files, files)[0]))
    assert table["run_id"].tolist() == [RUN, RUN]
    assert table["trainer/step"].tolist() == [50, 100]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"trainer/step": 1}\n{"trainer/st',
        b'{"trainer/step":1}\n',
        b'{"trainer/step": 1.0}\n',
        b'{"trainer/step": "1"}\n',
        b'{"trainer/step": true}\n',
        b'{"trainer/step": null}\n',
        b'{"trainer/step": 9007199254740993}\n',
        b'{"trainer/step": -0.0}\n',
        b"[1]\n",
        b"\xff\n",
    ],
)
def test_other_rows_are_left_to_the_table_of_files_as_they_stand(content: bytes) -> None:
    whole = {f"{OTHER}/metrics.jsonl": rows_text([{"trainer/step": 1}])}
    files = {f"{RUN}/metrics.jsonl": content} | whole
    assert given_back(CURVES, files) == whole
    assert given_back(FILES, files) == files


def test_rows_whose_metrics_stand_in_another_order_than_those_before_come_back_too() -> None:
    files = {f"{RUN}/metrics.jsonl": rows_text([{"a": 1, "b": 2}]), f"{OTHER}/metrics.jsonl": rows_text([{"b": 1, "a": 2}])}
    assert len(given_back(CURVES, files)) == 1
    assert given_back(FILES, files) == files


@given(st.dictionaries(st.text(), plain, min_size=1))
def test_objects_of_json_come_back_whatever_they_hold(values: dict[str, Any]) -> None:
    files = {f"{RUN}/record.json": json.dumps(values, indent=1).encode() + b"\n", f"{OTHER}/record.json": b'{"a": 1e-06}\n'}
    given_back(RECORDS, files)


def test_records_are_lines_that_other_programs_read() -> None:
    text = b'{\n "run_id": "05bb558dd9e5a570",\n "config": {\n  "rate": 1e-6,\n  "of": []\n },\n "loss": 3348268646400.0\n}\n'
    files = {f"{RUN}/record.json": text}
    assert given_back(RECORDS, files) == files
    table = pd.read_json(io.BytesIO(RECORDS.encode_all(files, files)[0]), lines=True, compression="gzip")
    assert table[["file", "run_id", "loss"]].to_numpy().tolist() == [[f"{RUN}/record.json", RUN, 3348268646400.0]]


@given(st.lists(st.lists(st.floats(width=64), max_size=5), min_size=1, max_size=3))
def test_validation_losses_come_back_bit_for_bit(vectors: list[list[float]]) -> None:
    files = {f"{n:016x}/validation_losses.npy": saved(np.array(vector, np.float64)) for n, vector in enumerate(vectors)}
    assert given_back(LOSSES, files) == files


def test_vectors_of_another_kind_are_left_to_the_table_of_files() -> None:
    vectors: list[np.ndarray[Any, Any]] = [np.zeros(3, np.float32), np.zeros((2, 2)), np.zeros(3, ">f8")]
    files = {f"{n:016x}/validation_losses.npy": saved(vector) for n, vector in enumerate(vectors)}
    files[f"{RUN}/validation_losses.npy"] = saved(np.zeros(3))[:-4]
    assert given_back(LOSSES, files) == {}
    assert given_back(FILES, files) == files


@pytest.mark.parametrize(
    ("name", "table"),
    [
        (f"{RUN}/record.json", RECORDS),
        (f"{RUN}/scores/009c1e99c46d8444/record.json", SCORES),
        (f"{RUN}/attempts/0001.json", ATTEMPTS),
        (f"{RUN}/scores/009c1e99c46d8444/metrics.jsonl", SCORE_CURVES),
        (f"{RUN}/attempts/0001.scores/009c1e99c46d8444/record.json", FILES),
        (f"{RUN}/config.yaml", FILES),
        ('a"b/record.json', FILES),
    ],
)
def test_each_file_has_one_table(name: str, table: PackedTable) -> None:
    assert next(each for each in TABLES if each.takes(name)) is table
    above = name.split("/")[:-1]
    assert all(table.may_hold_below("/".join(above[:count])) for count in range(1, len(above) + 1))
