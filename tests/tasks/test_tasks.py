"""A task is the same whatever file it comes from, and what cannot be used is refused with file, row and remedy."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from study.base.errors import InputError
from study.data.hub_corpus import _why_silent
from study.tasks import loading
from study.tasks.embedded import embedded_tables
from study.tasks.example_tables import read_table, split_file, splits_there
from study.tasks.examples import SpanExample, TextExample, TokensExample, texts_among
from study.tasks.loading import load_task
from study.tasks.parsing import several
from study.tasks.task_spec import METRICS, ROLES, known_tasks, read_spec

GLUE = {"cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"}
SHARED = ("cola", "sst2", "trec", "mrpc", "rte", "stsb", "wnut17_ner", "ud_ewt_pos", "qamr_qa", "blimp")
SINGLE = {"kind": "single", "labels": ["bad", "good"], "metrics": ["accuracy"]}
TEXTS = [{"text": f"it is {word}", "label": word} for word in ("good", "bad")] * 10

SPLITS = {split: split for split in ("train", "dev", "test")}


def write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The rows in the format that the file's suffix says."""
    match file.suffix:
        case ".parquet":
            pd.DataFrame(list(rows)).to_parquet(file)
        case ".jsonl":
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case suffix:
            flat = [{key: " ".join(v) if isinstance(v, list) else v for key, v in row.items()} for row in rows]
            with file.open("w", newline="") as opened:
                writer = csv.DictWriter(opened, list(rows[0]), delimiter="\t" if suffix == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(flat)


def made(folder: Path, spec: dict[str, Any], suffix: str = ".jsonl", **splits: Sequence[dict[str, Any]]) -> str:
    """The path of a task's YAML, its splits beside it."""
    for split, rows in splits.items():
        write(folder / f"{split}{suffix}", rows)
    source = {"files": "{split}", "splits": {split: split for split in splits}} | spec.get("source", {})
    values = {key: value for key, value in spec.items() if key != "source"} | {"sources": [source]}
    (folder / "mine.yaml").write_text(yaml.safe_dump(values))
    return str(folder / "mine.yaml")


def refused(path: str) -> str:
    with pytest.raises(InputError) as refusal:
        load_task(path)
    return str(refusal.value)


def test_every_task_of_the_package_is_a_valid_file() -> None:
    assert set(SHARED) | GLUE | {"squad", "squad_v2", "conll2003"} <= set(known_tasks())
    for name in known_tasks():
        spec, folder = read_spec(name)
        assert (spec.name, folder) == (name, None)
        assert spec.about
        assert set(spec.metrics) <= set(METRICS[spec.kind])
    for name in (*GLUE, "squad", "squad_v2", "conll2003", "blimp"):
        assert any(source.hub for source in read_spec(name)[0].sources), f"{name} has no name on the hub"


@pytest.mark.parametrize("name", SHARED)
def test_shared_tasks_are_read_with_their_own_files(name: str, shared_data: Path) -> None:
    task = load_task(name, shared_data / "tasks")
    assert task.spec.kind in ROLES
    assert len(task.test) >= 277
    assert set(task.splits) == ({"test"} if name == "blimp" else {"train", "dev", "test"})


def test_held_out_examples_stay_the_same_and_equal_texts_stay_together(tmp_path: Path) -> None:
    rows = [{"text": f"text {number % 60}", "label": number % 2} for number in range(240)]
    path = made(tmp_path, SINGLE | {"source": {"splits": {"train": "train", "test": "test"}}}, train=rows, test=TEXTS)
    task, again = load_task(path), load_task(path)
    assert task.fingerprint == again.fingerprint
    learned, held = (
        {example.text for example in actual if isinstance(example, TextExample)} for actual in (task.train, task.dev)
    )
    assert learned | held == {row["text"] for row in rows}
    assert not learned & held
    assert 0 < len(held) < 20


@pytest.mark.parametrize(
    ("spec", "rows", "message"),
    [
        (SINGLE, [{"text": "x", "label": number % 2} for number in range(20)], "has 20 rows of 1 distinct text, too few"),
        (
            {"kind": "spans", "metrics": ["answer_f1"]},
            [{"context": f"a {n % 2}", "question": f"{n}?", "answer": "a", "answer_start": 0} for n in range(30)],
            "has 30 rows of 2 distinct contexts, too few to hold out a share of 0.1; name a dev split",
        ),
    ],
    ids=["texts", "contexts"],
)
def test_too_few_distinct_texts_to_hold_some_out_are_counted(
    tmp_path: Path, spec: dict[str, Any], rows: list[dict[str, Any]], message: str
) -> None:
    assert f"train.jsonl: {message}" in refused(made(tmp_path, spec | {"source": {"splits": {}}}, train=rows, test=rows))


@pytest.mark.parametrize("kind", ["single", "pair", "tokens", "spans", "minimal_pairs"])
def test_texts_of_test_that_stand_in_train_or_dev_are_counted(tmp_path: Path, kind: str) -> None:
    """Of pairs both texts count, of questions the context, whose answers train gives away."""

    def rows(*texts: str) -> list[dict[str, Any]]:
        shapes: dict[str, Callable[[str], dict[str, Any]]] = {
            "single": lambda text: {"text": text},
            "pair": lambda text: {"text_a": text, "text_b": "so"},
            "tokens": lambda text: {"tokens": text.split(), "tags": ["A", "B"]},
            "spans": lambda text: {"context": text, "question": "what?", "answer": text, "answer_start": 0},
            "minimal_pairs": lambda text: {"sentence_good": text, "sentence_bad": "so", "UID": "u"},
        }
        return [{"label": number % 2} | shapes[kind](text) for number, text in enumerate(texts)]

    spec = {"kind": kind, "metrics": ["answer_f1" if kind == "spans" else "accuracy"]}
    test = rows("the one", "the two", "the two", "the other")
    notes = load_task(made(tmp_path, spec, train=rows("the one", "a b"), dev=rows("the two", "c d"), test=test)).notes
    what = "contexts" if kind == "spans" else "texts"
    repeated = [f"mine: 3 of the 4 examples of test (75.0%) have {what} that train or dev also have"]
    assert notes == ([] if kind == "minimal_pairs" else repeated)
    assert not load_task(made(tmp_path, spec, train=rows("a b", "c d"), dev=rows("e f", "g h"), test=test)).notes


@pytest.mark.parametrize("kind", [SINGLE, {"kind": "pair", "regression": True, "metrics": ["spearman"]}], ids=["class", "pair"])
def test_of_unlabelled_text_only_the_texts_are_read(tmp_path: Path, kind: dict[str, Any]) -> None:
    pair = kind["kind"] == "pair"
    rows = [{"text_a": row["text"], "text_b": "so", "label": len(row["text"])} if pair else row for row in TEXTS]
    bare = [{name: value for name, value in row.items() if name != "label"} for row in rows]
    task = load_task(made(tmp_path, kind, train=rows, dev=rows, test=rows, unlabelled=bare))
    assert {*task.splits} == {"train", "dev", "test", "unlabelled"}
    of_test, unlabelled = (texts_among(task.splits[split]) for split in ("test", "unlabelled"))
    assert [(one.text, one.text_b) for one in unlabelled] == [(one.text, one.text_b) for one in of_test]
    assert len({one.label for one in unlabelled}) == 1, "a stand-in"


def test_words_and_questions_have_no_unlabelled_split(tmp_path: Path) -> None:
    tagged = [{"tokens": ["Ann", "is"], "tags": ["A", "B"]}]
    path = made(tmp_path, {"kind": "tokens", "metrics": ["accuracy"]}, train=tagged, dev=tagged, test=tagged, unlabelled=tagged)
    assert "unlabelled is for texts and pairs of texts, not for tokens" in refused(path)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".tsv"])
def test_a_task_is_the_same_from_every_format(tmp_path: Path, suffix: str) -> None:
    tagged = [{"tokens": ["Ann", "is", "here"], "tags": ["B-PER", "O", "O"]}, {"tokens": ["No"], "tags": ["O"]}]
    spec = {"kind": "tokens", "metrics": ["entity_f1"]}
    task = load_task(made(tmp_path, spec, suffix, train=tagged, dev=tagged, test=tagged))
    assert task.labels == ("B-PER", "O")
    assert task.test[0] == TokensExample(0, ("Ann", "is", "here"), (0, 1, 1))


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_delimited_file_may_hold_a_long_text(suffix: str, tmp_path: Path) -> None:
    csv.field_size_limit(131_072)  # as a process begins
    texts = ["word " * 30_000 + "end", "short"]
    rows = [{"text": text, "label": label} for text, label in zip(texts, ("good", "bad"), strict=True)]
    task = load_task(made(tmp_path, SINGLE, suffix, train=rows, dev=rows, test=rows))
    assert [example.text for example in task.test if isinstance(example, TextExample)] == texts


def test_conll_files_are_read_as_they_are(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O O\n\nAnn NNP I-NP B-PER\nis VBZ O O\n\nHere RB O O\n"
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.conll").write_text(text)
    path = made(tmp_path, {"kind": "tokens", "metrics": ["entity_f1"], "source": {"splits": {"dev": "dev"}}})
    assert [example.tokens for example in load_task(path).test if isinstance(example, TokensExample)] == [
        ("Ann", "is"),
        ("Here",),
    ]


def test_words_of_conll_files_may_hold_spaces_where_tabs_part_them(tmp_path: Path) -> None:
    text = "New York\t_\tB-LOC\n10\u00a0000\t_\tO\n\n  Here  RB O\n10\u00a0000 CD O\n\t\nend\t\t O\n"
    (tmp_path / "test.conll").write_text(text)
    table = read_table(tmp_path / "test.conll", ("tokens", "tags"))
    assert table.columns["tokens"] == [["New York", "10\u00a0000"], ["Here", "10\u00a0000"], ["end"]]
    assert table.columns["tags"] == [["B-LOC", "O"], ["O", "O"], ["O"]]


@pytest.mark.parametrize("labels", [["bad", "good"], [0, 1], ["0", "1"], [0.0, 1.0], [False, True]])
def test_labels_may_be_names_or_indices(tmp_path: Path, labels: list[Any]) -> None:
    rows = [{"text": f"text {number}", "label": labels[number % 2]} for number in range(6)]
    task = load_task(made(tmp_path, SINGLE, train=rows, dev=rows, test=rows))
    assert [example.label for example in task.test if isinstance(example, TextExample)] == [0, 1, 0, 1, 0, 1]
    assert task.labels == ("bad", "good")


@pytest.mark.parametrize(
    ("values", "labels"), [([False, True], ("false", "true")), ([1.0, 2.0], ("1", "2")), ([0, 1], ("0", "1"))]
)
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".tsv"])
def test_labels_are_the_same_classes_whatever_format_a_split_has(
    tmp_path: Path, values: list[Any], labels: tuple[str, ...], suffix: str
) -> None:
    """A delimited file holds text alone: `True` for true, and `1.0` where a column had gaps."""
    rows = [{"text": f"text {number}", "label": values[number % 2]} for number in range(6)]
    path = made(tmp_path, {"kind": "single", "metrics": ["accuracy"]}, train=rows, dev=rows, test=rows)
    (tmp_path / "test.jsonl").unlink()
    write(tmp_path / f"test{suffix}", rows)
    task = load_task(path)
    assert task.labels == labels
    assert [example.label for example in task.test if isinstance(example, TextExample)] == [0, 1, 0, 1, 0, 1]


def test_labels_that_differ_in_case_alone_are_refused_unless_they_are_named(tmp_path: Path) -> None:
    rows = [{"text": "x y", "label": label} for label in ("good", "Good", "bad")]
    message = "column 'label' holds 'Good' and 'good', which differ only in case; spell them the same, or, if"
    unnamed = {"kind": "single", "metrics": ["accuracy"]}
    assert message in refused(made(tmp_path, unnamed, train=rows, dev=rows, test=rows))
    named = made(tmp_path, SINGLE | {"labels": ["bad", "Good", "good"]}, train=rows, dev=rows, test=rows)
    assert [example.label for example in load_task(named).test if isinstance(example, TextExample)] == [2, 1, 0]
    truths = [{"text": "x y", "label": label} for label in ("True", "true", "false")]
    assert load_task(made(tmp_path, unnamed, train=truths, dev=truths, test=truths)).labels == ("false", "true")


def test_labels_that_yaml_reads_as_something_else_are_names_or_refused(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": f"{number % 2 + 1}.0"} for number in range(6)]
    task = load_task(made(tmp_path, SINGLE | {"labels": [2.0, 1.0]}, train=rows, dev=rows, test=rows))
    assert [example.label for example in task.test if isinstance(example, TextExample)] == [1, 0, 1, 0, 1, 0]
    assert "quote no, yes, on, off, true and false" in refused(
        made(tmp_path, SINGLE | {"labels": [False, True]}, train=rows, dev=rows, test=rows)
    )


def test_a_start_may_be_a_number_that_a_delimited_file_holds(tmp_path: Path) -> None:
    rows = [{"context": "one two", "question": "what?", "answer": "two", "answer_start": "4.0"}] * 3
    task = load_task(made(tmp_path, {"kind": "spans", "metrics": ["answer_f1"]}, ".csv", train=rows, dev=rows, test=rows))
    assert task.test[0] == SpanExample(0, "one two", "what?", ("two",), (4,))


def test_a_label_that_is_a_number_is_a_name_and_never_an_index(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "stars": number % 3 + 1} for number in range(6)]
    spec = SINGLE | {"labels": [1, 2, 3], "source": {"columns": {"label": "stars"}}}
    task = load_task(made(tmp_path, spec, train=rows, dev=rows, test=rows))
    assert [example.label for example in task.test if isinstance(example, TextExample)] == [0, 1, 2, 0, 1, 2]
    assert "label 0 is not known; labels are 1, 2, 3" in refused(
        made(tmp_path, spec, train=rows, dev=rows, test=[{"text": "x", "stars": 0}])
    )


def test_nested_answers_are_reached_by_a_dotted_name(tmp_path: Path) -> None:
    answers = {"text": ["two", "to"], "answer_start": [4, 8]}
    rows = [{"context": "one two to", "question": "what?", "answers": answers}] * 3
    spec = {"kind": "spans", "metrics": ["answer_f1"]}
    columns = {"answers": "answers.text", "starts": "answers.answer_start"}
    task = load_task(made(tmp_path, spec | {"source": {"columns": columns}}, ".parquet", train=rows, dev=rows, test=rows))
    assert task.test[0] == SpanExample(0, "one two to", "what?", ("two", "to"), (4, 8))


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_question_may_have_no_answer(suffix: str, tmp_path: Path) -> None:
    rows = [{"context": "one two", "question": "what?", "answer": ["two"], "answer_start": [4]}]
    rows.append({"context": "one two", "question": "why?", "answer": [], "answer_start": []})
    spec = {"kind": "spans", "metrics": ["answer_f1"], "unanswerable": True}
    task = load_task(made(tmp_path, spec, suffix, train=rows, dev=rows, test=rows))
    assert task.test[1] == SpanExample(1, "one two", "why?", (), ())


def test_a_task_whose_questions_may_have_no_answer_is_another(tmp_path: Path) -> None:
    """Its encoder may answer none; a task without is what it was before there was such a field."""
    rows = [{"context": "one two", "question": "what?", "answer": ["two"], "answer_start": [4]}]
    spec = {"kind": "spans", "metrics": ["answer_f1"]}
    plain, other = (
        load_task(made(tmp_path, spec | more, train=rows, dev=rows, test=rows)) for more in ({}, {"unanswerable": True})
    )
    assert plain.splits == other.splits
    assert plain.fingerprint != other.fingerprint
    splits = "".join(f'\n{split}\n[0, "one two", "what?", ["two"], [4]]' for split in ("dev", "test", "train"))
    assert plain.fingerprint == hashlib.sha256(f'["spans", false, []]{splits}'.encode()).hexdigest()[:16]


SEVERAL = {"kind": "single", "metrics": ["micro_f1"], "multi_label": True}


@pytest.mark.parametrize(
    "written",
    [
        [["art", "big news"], ["art"], []],
        ["['art', 'big news']", "['art']", "[]"],
        ['["big news", "art"]', '["art"]', "[ ]"],
        ["art, big news", "art", "[]"],
        ["big news|art|art", " art ", "[]"],
    ],
)
@pytest.mark.parametrize("named", [{}, {"labels": ["art", "big news"]}])
def test_a_text_may_have_several_labels_or_none(tmp_path: Path, written: list[Any], named: dict[str, Any]) -> None:
    rows = [{"text": "x", "label": each} for each in written]
    task = load_task(made(tmp_path, SEVERAL | named, train=rows, dev=rows, test=rows))
    assert task.labels == ("art", "big news")
    assert [example.label for example in task.test if isinstance(example, TextExample)] == [(1, 1), (1, 0), (0, 0)]


@pytest.mark.parametrize("missing", [None, ""])
def test_labels_that_are_missing_are_not_none_of_them(tmp_path: Path, missing: str | None) -> None:
    rows = [{"text": "x", "label": ["art"]}, {"text": "y", "label": ["news"]}]
    reported = refused(made(tmp_path, SEVERAL, train=rows, dev=rows, test=[*rows, {"text": "z", "label": missing}]))
    remedy = "fill them in, with [] for none, or remove the row, or skip such rows with `drop: [unlabelled]` of the source"
    assert reported.endswith(f"has no labels; {remedy}")


def test_a_dataset_of_the_hub_is_read_by_name(tmp_path: Path) -> None:
    """A folder of Parquet files is a dataset by its path, so that no network is needed."""
    for split in ("train", "validation", "test"):
        write(tmp_path / f"{split}.parquet", TEXTS)
    splits = {"train": "train", "dev": "validation", "test": "test"}
    source: dict[str, Any] = {"files": None, "hub": str(tmp_path), "splits": splits}
    task = load_task(made(tmp_path, SINGLE | {"source": source}))
    assert len(task.test) == len(TEXTS)
    source["splits"] = {"train": "train", "test": "tset"}
    assert "has no split 'tset'; did you mean 'test'?" in refused(made(tmp_path, SINGLE | {"source": source}))


@pytest.mark.parametrize(
    ("classes", "labels", "expected", "read"),
    [
        (["1", "2", "3"], None, ["1", "2", "3"], [2, 0, 1]),
        (["1", "0", "2"], None, ["1", "0", "2"], [2, 0, 1]),
        (["1", "2", "3"], [3, 2, 1], ["3", "2", "1"], [0, 2, 1]),
        (["_", "1", "2", "3"], [3, 1, 2, "_"], ["3", "1", "2", "_"], [2, 3, 1]),
        (["1", "2", "3"], ["low", "middle", "high"], ["low", "middle", "high"], [2, 0, 1]),
        (["1", "2", "3"], [1, "middle", "high"], ["1", "middle", "high"], [2, 0, 1]),
    ],
)
@pytest.mark.parametrize("kind", ["single", "tokens"])
@pytest.mark.parametrize("place", ["hub", "files"])
def test_a_class_of_a_dataset_is_an_index_whatever_its_name(
    place: str, kind: str, classes: list[str], labels: list[Any] | None, expected: list[str], read: list[int], tmp_path: Path
) -> None:
    """The classes of a dataset are in its Parquet files' metadata; other labels that a task gives name them in their order."""
    tokens = kind == "tokens"
    classes_of = datasets.ClassLabel(names=classes)
    features = {"text": datasets.Value("string"), "label": classes_of}
    if tokens:
        features = {"tokens": datasets.List(datasets.Value("string")), "tags": datasets.List(classes_of)}
    rows = [{"tokens": ["a"], "tags": [index]} if tokens else {"text": "a", "label": index} for index in (2, 0, 1)]
    for split in ("train", "validation", "test"):
        data = datasets.Dataset.from_list(rows, features=datasets.Features(features))
        data.to_parquet(str(tmp_path / f"{split}.parquet"))
    files = {"train": "train", "dev": "validation", "test": "test"}
    spec: dict[str, Any] = {"kind": kind, "metrics": ["accuracy"]} | ({} if labels is None else {"labels": labels})
    source: dict[str, Any] = {"files": None, "hub": str(tmp_path)} if place == "hub" else {"files": "{split}"}
    task = load_task(made(tmp_path, spec | {"source": source | {"splits": files}}))
    assert list(task.labels) == expected
    texts = [example.label for example in task.test if isinstance(example, TextExample)]
    tags = [label for example in task.test if isinstance(example, TokensExample) for label in example.labels]
    assert (tags if tokens else texts) == read


def test_labels_that_give_a_class_the_name_of_another_are_refused(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    for split in SPLITS:
        data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
        data.to_parquet(tmp_path / f"{split}.parquet")
    spec = SINGLE | {"labels": ["yes", "maybe"], "source": {"splits": SPLITS}}
    assert "train.parquet: 'yes' is class 0 of labels, but class 1 of 'no', 'yes'; name them" in refused(made(tmp_path, spec))


def test_a_class_and_its_name_in_another_file_are_the_same(tmp_path: Path) -> None:
    """Two stars are class 1 of the Parquet file, and a CSV file writes 2."""
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["1", "2"])})
    for split in ("train", "dev"):
        data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
        data.to_parquet(tmp_path / f"{split}.parquet")
    (tmp_path / "test.csv").write_text("text,label\nc,2\nd,1\n")
    task = load_task(made(tmp_path, {"kind": "single", "metrics": ["accuracy"], "source": {"splits": SPLITS}}))
    assert (task.labels, [example.label for example in texts_among(task.test)]) == (("1", "2"), [1, 0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "metric", "embedded", "message"),
    [
        ("single", "accuracy", "docstring-pairs", "has no column 'text'"),
        ("single", "accuracy", "docstring-order", "docstring-order has no train, which a task of kind single needs"),
    ],
)
def test_an_embedded_task_of_another_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, metric: str, embedded: str, message: str
) -> None:
    """Its columns and splits are those of any packages; these two are read soon."""
    monkeypatch.setattr(loading, "embedded_tables", partial(embedded_tables, packages=("networkx", "optuna")))
    task = {"kind": kind, "metrics": [metric], "sources": [{"embedded": embedded}]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(task))
    assert message in refused(str(tmp_path / "mine.yaml"))


@pytest.fixture
def silent_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A hub that does not answer, at its address, of a process that is not told to be offline."""
    address = "http://127.0.0.1:9"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    _why_silent.cache_clear()
    yield address
    _why_silent.cache_clear()


def test_a_hub_that_does_not_answer_is_reported_at_once(silent_hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it is asked again"))
    for task in ("qqp", "blimp"):
        with pytest.raises(InputError, match=f"cannot be loaded: {silent_hub} does not answer .*; load it once"):
            load_task(task)


def test_a_dataset_that_cannot_be_loaded_is_refused_with_a_way_out(tmp_path: Path) -> None:
    remedy = "or give the folder that holds qqp/{split} with --data, in a sweep file as downstream.data"
    unloaded = re.escape("hub:nyu-mll/glue:qqp: cannot be loaded: ") + ".*; load it once while online, "
    with pytest.raises(InputError, match=unloaded + re.escape(remedy)):
        load_task("qqp")
    with pytest.raises(InputError, match=unloaded + re.escape(f"{remedy} ({tmp_path} has none)")):
        load_task("qqp", tmp_path)
    (tmp_path / "mine.yaml").write_text("kind: single\nmetrics: [accuracy]\nsources: [{hub: nobody/nothing}]\n")
    with pytest.raises(InputError, match=r"hub:nobody/nothing: cannot be loaded: .*; load it once while online$"):
        load_task(str(tmp_path / "mine.yaml"))


BAD_SPECS: list[tuple[dict[str, Any], str]] = [
    ({"metrics": []}, "needs at least one metric and one source"),
    ({"metrics": ["entity_f1"]}, "metric 'entity_f1' does not fit the task"),
    ({"metrics": ["pearson"]}, "metric 'pearson' does not fit the task"),
    ({"kind": "tokens", "regression": True}, "regression is for texts and pairs of texts, not for tokens"),
    ({"kind": "tokens", "multi_label": True}, "multi_label is for texts and pairs of texts, not for tokens"),
    ({"regression": True, "multi_label": True}, "regression and multi_label exclude each other; leave out one"),
    ({"multi_label": True}, "metric 'accuracy' does not fit the task"),
    ({"unanswerable": True}, "unanswerable is for spans, not for single"),
    ({"kind": "spans", "metrics": ["answer_f1"]}, "labels are for classes, and this task has none"),
    ({"labels": ["bad", "bad"]}, "labels need at least two names, all different"),
    ({"labels": ["bad"]}, "labels need at least two names, all different"),
    ({"source": {"columns": {"txt": "review"}}}, "columns: 'txt' is not a role; did you mean 'text'?"),
    ({"source": {"hub": "nyu-mll/glue"}}, "needs exactly one of 'files', 'hub' and 'embedded'"),
    ({"source": {"files": "reviews"}}, "files 'reviews' has no {split} in it, so every split would be the same file"),
    ({"source": {"revision": "main"}}, "'config' and 'revision' need a hub dataset"),
    ({"source": {"splits": {"test": "train"}}}, "splits: train and test are both 'train'; give each a split of its own"),
    ({"source": {"splits": {"dev": "test"}}}, "splits: dev and test are both 'test'"),
    ({"source": {"splits": {"unlabelled": "test"}}}, "splits: test and unlabelled are both 'test'"),
    ({"source": {"splits": {"dev": "dev", "dev_share": 0.5}}}, "dev_share has no effect, since dev is 'dev'"),
    ({"source": {"splits": {"dev_share": 0}}}, "dev_share: 0 must be above 0"),
    ({"source": {"splits": {"dev_share": 1}}}, "dev_share: 1 must be below 1"),
]


@pytest.mark.parametrize(("change", "message"), BAD_SPECS)
def test_a_task_whose_parts_do_not_fit_together_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in refused(made(tmp_path, SINGLE | change, train=TEXTS, test=TEXTS))


BAD_ROWS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (SINGLE, {"text": "  ", "label": 1}, "text is empty; fill it in or remove the row"),
    (SINGLE, {"text": None, "label": 1}, "text is None, but text is needed"),
    (SINGLE, {"text": 12, "label": 1}, "text is 12, but text is needed"),
    (SINGLE, {"text": "x", "label": None}, "has no label; fill it in or remove the row"),
    (SINGLE, {"text": "x", "label": float("nan")}, "has no label; fill it in or remove the row"),
    (SINGLE, {"text": "x", "label": "godo"}, "label 'godo' is not known; labels are bad, good; did you mean 'good'?"),
    (SINGLE, {"text": "x", "label": 2}, "label 2 is not known; labels are bad, good"),
    (SINGLE, {"text": "x", "label": "--1"}, "label '--1' is not known; labels are bad, good"),
    (SINGLE, {"text": "x", "label": "9" * 5000}, "label '999999"),
    (SINGLE, {"text": "x", "label": [1]}, "label [1] holds several values; give each row, or word, one label"),
    (SINGLE, {"text": "x", "label": {"name": "good"}}, "label {'name': 'good'} holds several values"),
    (SINGLE, {"text": "x", "label": -1}, "label -1 marks rows whose labels are kept secret; report on a split that has labels"),
    (
        {"kind": "pair", "metrics": ["pearson"], "regression": True},
        {"text_a": "x", "text_b": "y", "label": float("nan")},
        "has no score; fill it in or remove the row, or skip such rows with `drop: [unlabelled]`",
    ),
    (
        {"kind": "pair", "metrics": ["pearson"], "regression": True},
        {"text_a": "x", "text_b": "y", "label": "1_000"},
        "score '1_000' is not a finite number",
    ),
    (
        {"kind": "tokens", "metrics": ["accuracy"], "labels": ["A", "B"]},
        {"tokens": ["x", "y"], "tags": ["A"]},
        "has 2 tokens and 1 tags; give each token one tag",
    ),
    ({"kind": "tokens", "metrics": ["accuracy"], "labels": ["A", "B"]}, {"tokens": [], "tags": []}, "has no tokens"),
    (
        {"kind": "spans", "metrics": ["answer_f1"]},
        {"context": "one two", "question": "what?", "answer": "two", "answer_start": 3},
        "answer 'two' is not at character 3 of the context, where ' tw' is; it begins at 4",
    ),
    (
        {"kind": "spans", "metrics": ["answer_f1"]},
        {"context": "one two", "question": "what?", "answer": "six", "answer_start": -2},
        "the context lacks it; correct the answer or remove the row",
    ),
    (
        {"kind": "spans", "metrics": ["answer_f1"]},
        {"context": "one two", "question": "what?", "answer": ["two"], "answer_start": ["4" * 5000]},
        "is not a whole number of up to 18 digits; give the character of the context where the answer begins, from 0",
    ),
    (
        {"kind": "spans", "metrics": ["answer_f1"]},
        {"context": "one two", "question": "what?", "answer": [], "answer_start": []},
        "has no answer; remove questions without an answer, or set `unanswerable: true` of the task",
    ),
]


@pytest.mark.parametrize(("spec", "row", "message"), BAD_ROWS)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, spec: dict[str, Any], row: dict[str, Any], message: str) -> None:
    good_rows: dict[str, dict[str, Any]] = {
        "single": {"text": "x", "label": 0},
        "pair": {"text_a": "x", "text_b": "y", "label": 1.5},
        "tokens": {"tokens": ["x", "y"], "tags": ["A", "B"]},
        "spans": {"context": "one two", "question": "what?", "answer": "two", "answer_start": 4},
    }
    good = good_rows[spec["kind"]]
    path = made(tmp_path, spec, train=[good] * 3, dev=[good] * 3, test=[good, good, row])
    reported = refused(path)
    assert reported.startswith(f"{tmp_path / 'test.jsonl'}:3: "), reported
    assert message in reported
    assert "\n" not in reported
    assert len(reported) < len(str(tmp_path)) + 300


def test_classes_are_listed_once_where_none_is_like_the_label(tmp_path: Path) -> None:
    good, odd = {"text": "x", "label": 0}, {"text": "x", "label": 2}
    assert refused(made(tmp_path, SINGLE, train=[good], dev=[good], test=[odd])).endswith("labels are bad, good")


@pytest.mark.parametrize("kind", ["single", "tokens"])
def test_a_list_is_no_class_of_its_own(tmp_path: Path, kind: str) -> None:
    values: list[Any] = [0, [1], 1]
    rows: dict[str, list[dict[str, Any]]] = {
        "single": [{"text": "x", "label": value} for value in values],
        "tokens": [{"tokens": ["x"], "tags": [value]} for value in values],
    }
    path = made(tmp_path, {"kind": kind, "metrics": ["accuracy"]}, train=rows[kind], dev=rows[kind][:1], test=rows[kind][:1])
    assert refused(path).startswith(f"{tmp_path / 'train.jsonl'}:2: label [1] holds several values")


def test_half_an_emoji_is_a_question_mark_and_moves_no_answer(tmp_path: Path) -> None:
    spans = {"kind": "spans", "metrics": ["answer_f1"]}
    row = {"context": "\ud83d one \ude00 two\ud83d", "question": "wh\ud83dt?", "answer": "two\ud83d", "answer_start": 8}
    (actual,) = load_task(made(tmp_path, spans, train=[row], dev=[row], test=[row])).test
    assert actual == SpanExample(0, "? one ? two?", "wh?t?", ("two?",), (8,))
    tagged = {"tokens": ["Ann\ud83d", "\ud83d\ude00"], "tags": ["A", "B"]}
    path = made(tmp_path, {"kind": "tokens", "metrics": ["accuracy"]}, train=[tagged], dev=[tagged], test=[tagged])
    assert load_task(path).test[0] == TokensExample(0, ("Ann?", "\U0001f600"), (0, 1))


def test_many_bad_rows_are_one_list_with_an_end(tmp_path: Path) -> None:
    path = made(tmp_path, SINGLE, ".parquet", train=TEXTS, dev=TEXTS, test=[{"text": "", "label": 0}] * 5000)
    reported = refused(path).splitlines()
    assert reported[0].startswith(f"{tmp_path / 'test.parquet'}: row 0 (from 0): text is empty")
    assert reported[-1].endswith("and 4,992 more rows like these")
    assert len(reported) == 9


def test_wrong_names_bring_the_nearest_one(tmp_path: Path) -> None:
    path = made(tmp_path, SINGLE, train=TEXTS, dev=TEXTS, test=TEXTS)
    source: dict[str, Any] = {"splits": {"train": "train", "dev": "dve", "test": "test"}}
    assert "has no split 'dve'; did you mean 'dev'?" in refused(made(tmp_path, SINGLE | {"source": source}))
    source = {"columns": {"text": "txet"}}
    assert "train.jsonl: has no column 'txet'; did you mean 'text'?" in refused(
        made(tmp_path, SINGLE | {"source": source}, train=TEXTS, dev=TEXTS, test=TEXTS)
    )
    with pytest.raises(InputError, match=r"task: 'colaa' is not known.* did you mean 'cola'\?"):
        load_task("colaa")
    assert "did you mean 'metrics'?" in refused(made(tmp_path, SINGLE | {"metrisc": ["accuracy"]}))
    assert "metric 'pearson' does not fit the task" in refused(made(tmp_path, SINGLE | {"metrics": ["pearson"]}))
    assert "'txt' is not a role; did you mean 'text'?" in refused(
        made(tmp_path, SINGLE | {"source": {"columns": {"txt": "a"}}})
    )
    assert load_task(made(tmp_path, SINGLE, train=TEXTS, dev=TEXTS, test=TEXTS)).spec.name == Path(path).stem


def test_an_id_that_stands_twice_is_refused_across_splits(tmp_path: Path) -> None:
    rows = [{"id": f"q{number}", "text": "x", "label": 0} for number in range(4)]
    spec = SINGLE | {"source": {"columns": {"id": "id"}}}
    path = made(tmp_path, spec, train=rows[:2], dev=rows[2:], test=[rows[0]])
    assert refused(path) == (
        f"{tmp_path / 'test.jsonl'}:1: id 'q0' already occurs at {tmp_path / 'train.jsonl'}:1; remove one of the two"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.csv", b"", "holds no rows"),
        ("test.jsonl", b"", "holds no rows"),
        ("test.csv", b"text,label\n", "holds no rows; remove it or fill it"),
        ("test.csv", b"text,label\nx\n", ":2: has 1 fields but the header has 2"),
        ("test.csv", b'text,label\n"x,1\n', "rewrite the file according to RFC 4180"),
        ("test.tsv", b"text\tlabel\n\xff\t1\n", "is not UTF-8 text (byte 11)"),
        ("test.jsonl", b"[1]\n", ":1: is [1], but an object is needed"),
        ("test.jsonl", b'{"text": "x", "label": 1}\n{"text"\n', ":2: is not JSON"),
        ("test.csv", b"text,text,label\na,b,1\n", ":1: names the column 'text' twice; rename one of them"),
        ("test.csv", b"text,label\n" + b"x,1\n" * 9000 + b"\xff,1\n", "is not UTF-8 text (byte 36011)"),
        ("test.jsonl", b'{"text": "x", "label": ' + b"1" * 5000 + b"}\n", ":1: cannot be read: Exceeds the limit"),
        ("test.jsonl", b'\n{"text": "x", "label": 1}\n{"text": "\xff"}\n', ":3: is not UTF-8 text (byte 37 of the file)"),
        ("test.parquet", b"PAR1 no", "is not a Parquet file, or is damaged"),
        ("test.conll", b"word\n", ":1: is 'word', but a word and its tag are needed"),
    ],
)
def test_a_file_that_is_not_what_its_suffix_says_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = made(tmp_path, SINGLE, train=TEXTS, dev=TEXTS)
    (tmp_path / name).write_bytes(content)
    reported = refused(path)
    assert reported.startswith(str(tmp_path / name))
    assert message in reported


def test_a_parquet_file_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path, SINGLE, ".parquet", train=TEXTS, dev=TEXTS, test=TEXTS)
    pd.DataFrame([["x", "y", "good"]], columns=["text", "other", "label"]).to_parquet(tmp_path / "test.parquet")
    table = pq.read_table(tmp_path / "test.parquet").rename_columns(["text", "text", "label"])
    pq.write_table(table, tmp_path / "test.parquet")
    assert refused(path) == f"{tmp_path / 'test.parquet'}: names the column 'text' twice; rename one of them"
    nested = pa.StructArray.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"])
    pq.write_table(pa.table({"text": nested, "label": ["good"]}), tmp_path / "test.parquet")
    assert "duplicate field names" in refused(path)


def test_files_in_the_folder_that_is_given_go_before_those_beside_the_task(tmp_path: Path) -> None:
    path = made(tmp_path, SINGLE, train=TEXTS, dev=TEXTS, test=TEXTS)
    given = tmp_path / "given"
    given.mkdir()
    assert len(load_task(path, given).test) == len(TEXTS)
    for split in ("train", "dev", "test"):
        write(given / f"{split}.jsonl", TEXTS[:4])
    assert len(load_task(path, given).test) == 4


@pytest.mark.parametrize("name", ["dev", "validation", "valid", "val"])
def test_a_dev_split_that_is_not_named_is_not_read_without_a_word(tmp_path: Path, name: str) -> None:
    rows = [{"text": f"text {number}", "label": number % 2} for number in range(60)]
    others = [{"text": f"other {number}", "label": number % 2} for number in range(60)]
    path = made(tmp_path, SINGLE | {"source": {"splits": {}}}, train=rows, test=others)
    assert load_task(path).notes == []
    write(tmp_path / f"{name}.jsonl", TEXTS)
    held_out = "is not read, since a share of train is held out to choose on"
    remedy = f"to choose on this file, add `dev: {name}` to the task's splits"
    assert load_task(path).notes == [f"{tmp_path / name}.jsonl: {held_out}; {remedy}"]
    named = {"train": "train", "test": "test", "dev": name}
    assert load_task(made(tmp_path, SINGLE | {"source": {"splits": named}})).notes == []
    on_test = SINGLE | {"source": {"splits": {"train": "train", "test": name}}}
    assert load_task(made(tmp_path, on_test)).notes == []


def test_of_two_files_of_a_split_the_one_that_is_not_read_is_named(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": number % 2} for number in range(60)]
    splits = {"train": rows[:20], "dev": rows[20:40], "test": rows[40:]}
    path = made(tmp_path, SINGLE, ".csv", **splits)
    assert load_task(path).notes == []
    write(tmp_path / "train.jsonl", TEXTS)
    note = f"{tmp_path / 'train.csv'}: is not read, since train.jsonl is; remove one of the two"
    assert load_task(path).notes == [note]
    assert load_task(made(tmp_path, SINGLE | {"source": {"files": "{split}.csv", "splits": SPLITS}})).notes == []


def test_data_that_are_not_there_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trec: it is read from local files, trec/{split}; give .*--data"):
        load_task("trec")
    with pytest.raises(InputError, match=r"no file trec/{split} in .*; give the folder that holds them with --data"):
        load_task("trec", tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        load_task("trec", tmp_path / "nothing")
    (tmp_path / "cola").mkdir()
    write(tmp_path / "cola" / "training.csv", TEXTS)
    with pytest.raises(InputError, match="has no split 'train'; did you mean 'training'"):
        load_task("cola", tmp_path)


@pytest.mark.parametrize("files", ["{split}", "{split}.json", "[1]-{split}"])
def test_a_file_of_a_kind_that_is_not_read_is_named_with_the_kinds_that_are(tmp_path: Path, files: str) -> None:
    file = tmp_path / f"{files.removesuffix('.json').format(split='train')}.json"
    file.write_text("[]")
    path = made(tmp_path, SINGLE | {"source": {"files": files}})
    assert f"; {file} is of no kind that is read: .parquet, .jsonl, .csv, .tsv, .conll" in refused(path)


def test_f1_needs_two_classes(tmp_path: Path) -> None:
    rows = [{"text": "x", "label": label} for label in "abc"]
    path = made(tmp_path, {"kind": "single", "metrics": ["f1"]}, train=rows, dev=rows, test=rows)
    assert "metric 'f1' is for two classes, but there are 3; use 'macro_f1'" in refused(path)


@pytest.mark.parametrize(
    "written",
    [
        ("['New', 'Town']", "['B-LOC', 'I-LOC']"),
        ("['New' 'Town']", "['B-LOC' 'I-LOC']"),
        ('["New", "Town"]', '["B-LOC", "I-LOC"]'),
        ("('New', 'Town')", "('B-LOC', 'I-LOC')"),
        ("New Town", "(0, 1)"),
        ("New Town", "[0, 1]"),
        ("New Town", "[0 1]"),
        ("New Town", "B-LOC I-LOC"),
    ],
)
def test_lists_are_read_however_a_delimited_file_spells_them(tmp_path: Path, written: tuple[str, str]) -> None:
    rows = [dict(zip(("tokens", "tags"), written, strict=True))] * 2
    spec = {"kind": "tokens", "metrics": ["entity_f1"], "labels": ["B-LOC", "I-LOC", "O"]}
    task = load_task(made(tmp_path, spec, ".csv", train=rows, dev=rows, test=rows))
    assert task.test[0] == TokensExample(0, ("New", "Town"), (0, 1))


@pytest.mark.parametrize("labels", [{}, {"labels": ["B-LOC", "I-LOC", "O"]}])
@pytest.mark.parametrize("column", ["tokens", "tags"])
def test_a_list_that_is_cut_off_is_refused(tmp_path: Path, labels: dict[str, Any], column: str) -> None:
    row = {"tokens": "['New', 'Town']", "tags": "['B-LOC', 'I-LOC']"}
    odd = row | {column: row[column][:-4] + "..."}
    path = made(tmp_path, {"kind": "tokens", "metrics": ["accuracy"]} | labels, ".csv", train=[row, odd], dev=[row], test=[row])
    assert f"{tmp_path / 'train.csv'}:3: " in refused(path)
    assert "is not a complete list; write lists as JSON, or the words with spaces between them" in refused(path)


@pytest.mark.parametrize("labels", [{}, {"labels": ["O", "[]", "[O,", "O]", "B-LOC"]}])
@pytest.mark.parametrize(
    ("tokens", "tags", "message"), [("[]", "[]", "has no tokens"), ("a b", "[O, O]", "is not a complete list")]
)
def test_a_list_of_nothing_is_no_word_and_brackets_are_no_label(
    tmp_path: Path, labels: dict[str, Any], tokens: str, tags: str, message: str
) -> None:
    row, odd = {"tokens": "['a', 'b']", "tags": "['B-LOC', 'O']"}, {"tokens": tokens, "tags": tags}
    path = made(tmp_path, {"kind": "tokens", "metrics": ["accuracy"]} | labels, ".csv", train=[row, odd], dev=[row], test=[row])
    assert f"{tmp_path / 'train.csv'}:3: " in refused(path)
    assert message in refused(path)


def test_the_numbers_of_words_in_conllu_are_no_words(tmp_path: Path) -> None:
    """Words that count alone are a sentence as any other."""
    path = tmp_path / "test.conll"
    path.write_text("# sent_id = 1\n1-2 New NOUN\n1 New NOUN\n2 Town NOUN\n\n1 ok INTJ\n")
    with pytest.raises(InputError, match=r"test\.conll:2: numbers its words, as CoNLL-U does; keep only"):
        read_table(path, ("tokens", "tags"))
    path.write_text("1 NUM\n2 NUM\n\nok INTJ\n")
    assert read_table(path, ("tokens", "tags")).columns["tokens"] == [["1", "2"], ["ok"]]


@pytest.mark.parametrize("comment", ["# id 1f00 domain=en", "# id 1f00\tdomain=en", "# text = Ann is here", "#"])
@pytest.mark.parametrize("named", [True, False])
def test_comments_of_conll_files_are_no_words(tmp_path: Path, comment: str, named: bool) -> None:
    text = f"{comment}\nAnn _ _ B-PER\nis _ _ O\n\n{comment}\n# _ _ O\n#here _ _ O\n"
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.conll").write_text(text)
    spec = {"kind": "tokens", "metrics": ["entity_f1"], "source": {"splits": {"dev": "dev"}}}
    task = load_task(made(tmp_path, spec | ({"labels": ["B-PER", "O"]} if named else {})))
    assert task.labels == ("B-PER", "O")
    assert [example.tokens for example in task.test if isinstance(example, TokensExample)] == [("Ann", "is"), ("#", "#here")]
    (tmp_path / "test.conll").write_text(f"Ann _ _ B-PER\n{comment} x\nis _ _ O\n")
    assert f"{tmp_path / 'test.conll'}:2: " in refused(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#id 5\nAnn B-PER\nis O\n", 1),
        ("#sent_id = 1\nAnn X X B-PER\nis X X O\n", 2),
        ("% sentence one\nAnn B-PER\nis O\n", 2),
        ("Ann B-PER\nis O\nNew York B-LOC\n", 3),
    ],
)
def test_a_line_of_a_conll_file_that_is_no_word_and_tag_is_refused(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "test.conll"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"test\.conll:{line}: .* comments with # and a space"):
        read_table(path, ("tokens", "tags"))
    path.write_text("#here #\nis O\n\nso O\n#now #\n")
    with pytest.raises(InputError, match=r"test\.conll:1: .* a tag that no other word has"):
        read_table(path, ("tokens", "tags"))


@pytest.mark.parametrize("spelled", ["array({}, dtype=object)", '"{}"', "[{}]", "Index({})"])
@pytest.mark.parametrize("labels", [{}, {"labels": ["B-LOC", "I-LOC", "O"]}])
def test_lists_in_quotes_or_in_a_call_are_refused(tmp_path: Path, labels: dict[str, Any], spelled: str) -> None:
    row = {"tokens": spelled.format("['New', 'Town']"), "tags": spelled.format("['B-LOC', 'I-LOC']")}
    path = made(tmp_path, {"kind": "tokens", "metrics": ["accuracy"]} | labels, ".tsv", train=[row], dev=[row], test=[row])
    assert f"{tmp_path / 'train.tsv'}:2: " in refused(path)
    assert "is not a complete list; write lists as JSON" in refused(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".conll"])
def test_compressed_splits_are_read(tmp_path: Path, suffix: str) -> None:
    """A task file names them with or without their suffixes."""
    content = {".jsonl": '{"tokens": ["a"], "tags": ["O"]}\n', ".csv": "tokens,tags\na,O\n", ".conll": "a O\n"}[suffix]
    path = tmp_path / f"test{suffix}.gz"
    path.write_bytes(gzip.compress(content.encode()))
    for pattern in (tmp_path / "{split}", tmp_path / ("{split}" + suffix + ".gz")):
        assert split_file(pattern, "test") == path
        assert splits_there(pattern) == ["test"]
    assert len(read_table(path, ("tokens", "tags"))) == 1


def test_rows_that_cannot_be_used_are_dropped_and_counted_where_the_source_says_so(tmp_path: Path) -> None:
    good: dict[str, Any] = {"text": "x", "label": "good"}
    empty: dict[str, Any] = {"text": " ", "label": "bad"}
    secret: dict[str, Any] = {"text": "x", "label": -1}
    rows = [good, {"text": "y", "label": "bad"}, empty, secret, {"text": None, "label": "bad"}, {"text": "z", "label": None}]
    source = {"source": {"drop": ["empty", "unlabelled"]}}
    for spec in (SINGLE, {"kind": "single", "metrics": ["accuracy"]}):
        task = load_task(made(tmp_path, spec | source, train=rows, dev=rows, test=rows[:2]))
        assert sorted(task.labels) == ["bad", "good"]
        assert [len(examples) for examples in task.splits.values()] == [2, 2, 2]
        skipped = [f"{tmp_path / split}.jsonl: 2 empty and 2 unlabelled rows are skipped" for split in ("train", "dev")]
        assert task.notes[:2] == skipped
    for odd, reason in ((empty, "empty"), (secret, "unlabelled")):
        path = made(tmp_path, SINGLE, train=rows[:2], dev=rows[:2], test=[good, odd])
        assert ":2: " in refused(path)
        assert f"skip such rows with `drop: [{reason}]` of the source" in refused(path)
    path = made(tmp_path, SINGLE | source, train=rows[:2], dev=rows[:2], test=[empty])
    assert "has no usable row left" in refused(path)


def test_rows_that_contradict_themselves_or_have_no_answer_are_dropped_where_the_source_says_so(tmp_path: Path) -> None:
    spans = {"kind": "spans", "metrics": ["answer_f1"]}
    good: dict[str, Any] = {"context": "one two", "question": "what?", "answer": ["two"], "answer_start": [4]}
    odd = [good | {"answer_start": [3]}, good | {"answer": ["two", "one"]}, good | {"answer": [], "answer_start": []}]
    message = refused(made(tmp_path, spans, train=[good], dev=[good], test=[good, *odd]))
    assert re.findall(r"drop: \[(\w+)\]", message) == ["invalid", "invalid", "unlabelled"]
    source = {"source": {"drop": ["unlabelled", "invalid"]}}
    task = load_task(made(tmp_path, spans | source, train=[good], dev=[good], test=[good, *odd]))
    assert (len(task.test), task.notes[0]) == (1, f"{tmp_path / 'test'}.jsonl: 2 invalid and 1 unlabelled rows are skipped")
    of_tokens: list[dict[str, Any]] = [{"tokens": ["a", "b"], "tags": tags} for tags in (["X", "Y"], ["X"], None)]
    tokens = {"kind": "tokens", "metrics": ["accuracy"]} | source
    assert len(load_task(made(tmp_path, tokens, train=of_tokens, dev=of_tokens, test=of_tokens)).test) == 1
    scores: list[dict[str, Any]] = [{"text": "a", "label": score} for score in (1.5, 2, None)]
    regression = {"kind": "single", "metrics": ["pearson"], "regression": True} | source
    assert len(load_task(made(tmp_path, regression, train=scores, dev=scores, test=scores)).test) == 2


def test_pairs_of_equal_sentences_are_counted(tmp_path: Path) -> None:
    """BLiMP itself has seven of them, so they are no reason to refuse a task."""
    pairs = [{"sentence_good": "a b", "sentence_bad": bad, "UID": "u"} for bad in ("b a", "a b", "b b", "a a")]
    task = load_task(made(tmp_path, {"kind": "minimal_pairs", "metrics": ["accuracy"]}, test=pairs))
    told = "mine: 1 of the 4 examples of test (25.0%) are pairs of equal sentences, which score half with any encoder"
    assert (len(task.test), task.notes) == (4, [told])


def test_numbers_that_are_not_whole_are_no_classes_unless_named(tmp_path: Path) -> None:
    rows = [{"text": f"text {number}", "label": number / 3} for number in range(30)]
    classes = {"kind": "single", "metrics": ["accuracy"]}
    path = made(tmp_path, classes, train=rows, dev=rows, test=rows)
    message = "column 'label' holds 30 different numbers, such as 0.333333; for scores set `regression: true`"
    assert refused(path) == f"{tmp_path / 'train.jsonl'}: {message}, or, if they are classes, name them under labels"
    stars = [{"text": f"text {number}", "label": number % 3 / 2} for number in range(30)]
    named = load_task(made(tmp_path, classes | {"labels": [0, 0.5, 1]}, train=stars, dev=stars, test=stars))
    assert named.labels == ("0", "0.5", "1")
    for labels in (["0", "1", "2"], ["3.11", "3.12", "older"]):
        rows = [{"text": label, "label": label} for label in labels]
        assert list(load_task(made(tmp_path, classes, train=rows, dev=rows, test=rows)).labels) == labels


def test_labels_that_say_nothing_are_refused(tmp_path: Path) -> None:
    """Scores that are all equal correlate with nothing, and the -1 of a hidden label is no class unless it is named as one."""
    scores = [{"text": "a", "label": number} for number in (1.5, 2)]
    hidden = [{"text": "a", "label": -1.0}] * 3
    path = made(tmp_path, {"kind": "single", "metrics": ["pearson"], "regression": True}, train=scores, dev=scores, test=hidden)
    assert "test.jsonl: all 3 usable rows have the score -1.0; name a split whose labels differ" in refused(path)
    rows = [{"text": "a", "label": label} for label in (0, 1, 2, -1)]
    unnamed = {"kind": "single", "metrics": ["accuracy"]}
    path = made(tmp_path, unnamed, train=rows, dev=rows, test=rows)
    assert "holds -1, which often marks missing labels; skip such rows with `drop: [unlabelled]`" in refused(path)
    named = unnamed | {"labels": [-1, 0, 1, 2]}
    assert load_task(made(tmp_path, named, train=rows, dev=rows, test=rows)).labels == ("-1", "0", "1", "2")
    dropped = unnamed | {"source": {"drop": ["empty"]}}
    path = made(tmp_path, dropped, train=[*TEXTS[:1] * 2, {"text": "", "label": "bad"}], dev=TEXTS, test=TEXTS)
    assert "train.jsonl: all 2 usable rows have the label 1 (by index)" in refused(path)


@pytest.mark.parametrize("key", ["files", "labels", "metrics", "columns", "embedded"])
def test_a_message_is_no_copy_of_a_long_value(tmp_path: Path, key: str) -> None:
    long: Any = "9" * 5000
    source: dict[str, Any] = {"files": "{split}", "splits": {"train": "train", "test": "test"}}
    spec: dict[str, Any] = SINGLE | {"sources": [source]}
    match key:
        case "files":
            source["files"] = long
        case "columns":
            source["columns"] = {long: long}
        case "embedded":
            spec["sources"] = [{"embedded": long}]
        case _:
            spec[key] = [long, f"{long}0"]
    write(tmp_path / "train.jsonl", TEXTS)
    write(tmp_path / "test.jsonl", TEXTS)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(spec))
    assert len(refused(str(tmp_path / "mine.yaml")).splitlines()[0]) < 400 + len(str(tmp_path))


def test_a_label_that_train_lacks_is_named_with_the_remedy(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b"], "tags": ["B-X", "O"]}]
    odd = [{"tokens": ["a", "b"], "tags": ["B-X", "I-X"]}]
    path = made(tmp_path, {"kind": "tokens", "metrics": ["accuracy"]}, train=rows, dev=rows, test=odd)
    assert refused(path).endswith(
        "label 'I-X' does not occur in the train split, which defines the labels; "
        "correct it, or name all labels under `labels:` of the task"
    )


def conll_train(tmp_path: Path, text: str, metrics: str = "accuracy") -> str:
    """A task of tagged words whose splits are one .conll file."""
    for split in SPLITS:
        (tmp_path / f"{split}.conll").write_text(text)
    return made(tmp_path, {"kind": "tokens", "metrics": [metrics], "source": {"splits": SPLITS}})


def test_a_comment_that_ends_like_a_tag_is_no_word(tmp_path: Path) -> None:
    task = load_task(conll_train(tmp_path, "# text = is it O\nAnn B-PER\nis O\n# O\n\n# O\nAnn B-PER\n", "entity_f1"))
    assert [example.tokens for example in task.train if isinstance(example, TokensExample)] == [
        ("Ann", "is", "#"),
        ("#", "Ann"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "Ann NNP\n#a remark\nis VBZ\n",
            "train.conll:2: is '#a remark', a comment or a word with a tag that no other word has",
        ),
        ("Ann\tNNP\tB-PER\nis\tVBZ\n", "train.conll:2: has 2 columns, but line 1 has 3; give each word all of them"),
    ],
)
def test_a_line_that_is_no_word_with_its_tag_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refused(conll_train(tmp_path, text))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("EU,B-ORG\nrejects,O\n", "each of its 2 rows is one word; give each row a sentence's words"),
        ('"c(""EU"", ""x"")","c(""B"", ""O"")"\n', "is not a complete list; write lists as JSON"),
        ('"{EU,x}","{B,O}"\n', "is not a complete list; write lists as JSON"),
    ],
)
def test_words_that_a_csv_writes_otherwise_are_refused(tmp_path: Path, rows: str, message: str) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.csv").write_text(f"tokens,tags\n{rows}")
    assert message in refused(made(tmp_path, {"kind": "tokens", "metrics": ["accuracy"], "source": {"splits": SPLITS}}))


def test_lists_as_json_keep_characters_beyond_16_bits() -> None:
    assert several(json.dumps(["\N{GRINNING FACE}", "Zürich"])) == ["\N{GRINNING FACE}", "Zürich"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["pos", "pos\u200b", "neg"], r"holds 'pos' and 'pos\u200b', which differ only in their spelling"),
        (["caf\u00e9", "cafe\u0301", "tea"], "which differ only in their spelling"),
        (["true", "1", "0"], "holds '1' and 'true', which differ only in their spelling"),
        (["nan", "pos", "neg"], "holds nan, which often marks missing labels; skip such rows with `drop: [unlabelled]`"),
        (["-", "pos", "neg"], "holds -, which often marks missing labels"),
    ],
)
def test_labels_that_are_no_classes_of_their_own_are_refused(tmp_path: Path, labels: list[str], message: str) -> None:
    rows = [{"text": f"x {label}", "label": label} for label in labels]
    assert message in refused(made(tmp_path, {"kind": "single", "metrics": ["accuracy"]}, train=rows, dev=rows, test=rows))


def test_missing_labels_as_text_are_dropped_where_that_is_asked(tmp_path: Path) -> None:
    rows = [{"text": f"x {label}", "label": label} for label in ("-", "nan", "pos", "neg")]
    spec = {"kind": "single", "metrics": ["accuracy"], "source": {"drop": ["unlabelled"], "splits": SPLITS}}
    task = load_task(made(tmp_path, spec, train=rows, dev=rows, test=rows))
    assert task.labels == ("neg", "pos")
    assert [example.row for example in task.test] == [2, 3]


@pytest.mark.parametrize(
    ("several_labels", "message"),
    [
        (["a", "b", "a b"], "holds 'a b', which joins other labels"),
        ([[0, 1, 1], [1, 0, 0]], "labels [0, 1, 1] are a 0 or 1 for each class"),
        (["0 1 1", "1 0 0"], "labels '0 1 1' are a 0 or 1 for each class"),
        (["{a,b}", "a"], "is not a complete list"),
    ],
)
def test_several_labels_that_are_written_otherwise_are_refused(tmp_path: Path, several_labels: list[Any], message: str) -> None:
    rows = [{"text": "x", "label": each} for each in several_labels]
    assert message in refused(made(tmp_path, SEVERAL, train=rows, dev=rows, test=rows))


def test_a_delimited_file_may_have_semicolons(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text('text;label\n"one; two, three";pos\n')
    assert read_table(tmp_path / "test.csv", ("text", "label")).columns == {"text": ["one; two, three"], "label": ["pos"]}


def test_fields_within_fields_are_read_and_text_has_none(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_text('{"a": {"b": {"c": "x"}}}\n')
    assert read_table(tmp_path / "test.jsonl", ("a.b.c",)).columns == {"a.b.c": ["x"]}
    (tmp_path / "test.csv").write_text("answers\n{'text': ['x']}\n")
    with pytest.raises(InputError, match=r"test.csv:2: answers is .* text without a field 'text'; save nested fields as JSON"):
        read_table(tmp_path / "test.csv", ("answers.text",))
