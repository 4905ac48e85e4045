"""Whatever a file of a task holds, its examples are read, or every problem is reported with its file: no other end."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from study.base.shipped import shipped
from study.tasks.example_tables import SUFFIXES, read_table
from study.tasks.loading import load_task
from study.tasks.task_spec import SPECS
from tests.malice import outcome

pytestmark = pytest.mark.fuzz

SPEC: dict[str, Any] = {
    "kind": "single",
    "metrics": ["accuracy"],
    "labels": ["no", "yes"],
    "sources": [{"files": "{split}", "splits": {"train": "train", "dev": "dev", "test": "test"}, "drop": ["empty"]}],
}
SEEDS = [SPEC, *(yaml.safe_load(file.read_text()) for file in shipped(SPECS).values())]
KINDS = ("single", "pair", "tokens", "spans", "minimal_pairs")

CELLS: st.SearchStrategy[Any] = (
    st.sampled_from([None, "", " ", "no", "yes", "-1", "0", 1, -1, 0.5, True, [], ["a"], [1, [2]], {"text": ["a"]}, 10**400])
    | st.sampled_from(["['a' 'b']", "['a", '["x", "y"]', "[0 1]", "B-X", "# O", "\ud800", "\u202e", "9" * 5000, float("inf")])
    | st.text(max_size=6)
).map(deepcopy)
COLUMNS = ("text", "text_a", "text_b", "label", "tokens", "tags", "context", "question", "answer", "answer_start", "UID")
ROWS = st.lists(st.dictionaries(st.sampled_from(COLUMNS), CELLS, max_size=4), max_size=4)

PIECES = st.sampled_from(
    [
        *(
            b"text,label\n",
            b"a,yes\n",
            b"a\tb\n",
            b"\n",
            b"\r",
            b'"',
            b",",
            b"\t",
            b" ",
            b"\xff",
            b"\xef\xbb\xbf",
            b"\0",
            b"# id 1\n",
        ),
        *(b"Ann B-PER\n", b"-DOCSTART- O\n", b'{"text": "a"}\n', b"[1]\n", b"{", b"PAR1", b"[" * 5000, b"a" * 200_000),
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@given(st.sampled_from(SUFFIXES), st.lists(PIECES, max_size=8).map(b"".join) | st.binary(max_size=40))
@example(".csv", b'a,"b\n' * 3)
@example(".parquet", b"PAR1" + b"\0" * 40 + b"PAR1")
def test_a_table_of_examples_is_read_or_refused(folder: Path, suffix: str, content: bytes) -> None:
    file = folder / f"table{suffix}"
    file.write_bytes(content)
    table, problems = outcome(lambda: read_table(file, []))
    assert all(problem.place.startswith(str(file)) for problem in problems)
    assert table is None or table.where(0).startswith(str(file))


@given(st.sampled_from(KINDS), ROWS, st.booleans(), st.sampled_from(["accuracy", "macro_f1", "span_f1", "paradigm_accuracy"]))
def test_rows_become_examples_or_problems(folder: Path, kind: str, rows: list[Any], named: bool, metric: str) -> None:
    spec = SPEC | {"kind": kind, "metrics": [metric]}
    (folder / "rows.yaml").write_text(yaml.safe_dump(spec if named else {key: spec[key] for key in spec if key != "labels"}))
    for split in ("train", "dev", "test"):
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task, _ = outcome(lambda: load_task(str(folder / "rows.yaml")))
    assert task is None or all(task.splits.values())


@given(st.data())
def test_the_file_of_a_task_is_read_or_refused(folder: Path, data: st.DataObject) -> None:
    """A good one with one of its values replaced, taken away or put under another key."""
    values = deepcopy(data.draw(st.sampled_from(SEEDS)))
    values["sources"] = [source for source in values["sources"] if "files" in source] or [{"files": "{split}"}]
    holder: Any = data.draw(st.sampled_from([values, *values["sources"]]))
    key = data.draw(st.sampled_from(sorted(holder)))
    match data.draw(st.sampled_from(["replace", "remove", "rename", "list"])):
        case "replace":
            holder[key] = data.draw(CELLS)
        case "remove":
            del holder[key]
        case "rename":
            holder[data.draw(st.sampled_from([f"{key}s", "drops", "hub", "", "embedded", "a.b"]))] = holder.pop(key)
        case _:
            holder[key] = [holder[key]]
    (folder / "spec.yaml").write_text(yaml.safe_dump(values))
    outcome(lambda: load_task(str(folder / "spec.yaml")))
