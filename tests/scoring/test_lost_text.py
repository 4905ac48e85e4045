"""What a tokeniser loses of a task's text is counted in characters, and reported before anything is fine-tuned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Encoding, Tokenizer
from tokenizers.models import BPE

from study.data.token_files import Characters, count_characters
from study.data.tokenizing import SPECIAL_PIECES, bert_tokenizer
from study.scoring import scored_examples
from study.scoring.scored_examples import lost_notes, lost_share
from study.store.run_folder import RunFolder
from study.store.score_records import scores_of
from study.tasks.examples import Example, MinimalPair, SpanExample, TextExample, TokensExample
from tests.made_tasks import task
from tests.small import config, trained, write_corpus

LETTERS = bert_tokenizer({piece: number for number, piece in enumerate([*SPECIAL_PIECES, "a", "##a", "?"])})
"""A tokeniser that knows no letter but a."""


def single(text: str, row: int = 0) -> TextExample:
    return TextExample(row, text, None, row % 2)


@pytest.mark.parametrize(
    ("example", "share"),
    [
        (single("aa a yyy"), 3 / 6),
        (TextExample(0, "aa", "yy yyyy", 0), 6 / 8),
        (TokensExample(0, ("aaa", "y"), (0, 1)), 1 / 4),
        (SpanExample(0, "a yyyyy", "a ?", (), ()), 5 / 8),
        (MinimalPair(0, "a a", "a y", "made"), 1 / 4),
        (single(" \n"), 0.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_text_of_an_example_counts_by_its_characters(example: Example, share: float) -> None:
    assert lost_share(LETTERS, [example]) == pytest.approx(share)


def test_text_that_is_dropped_without_an_unknown_piece_is_lost() -> None:
    dropping = Tokenizer(BPE({piece: number for number, piece in enumerate([*SPECIAL_PIECES, "a"])}, []))
    dropping.add_special_tokens(list(SPECIAL_PIECES))
    assert lost_share(dropping, [single("aaayyyyyy")]) == pytest.approx(6 / 9)


def test_of_many_examples_some_from_everywhere_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored_examples, "LOOKED_AT_CHARACTERS", 100)
    read: list[str] = []

    def counted(texts: Sequence[str], encodings: Sequence[Encoding], unknown: int) -> Characters:
        read.extend(texts)
        return count_characters(texts, encodings, unknown)

    monkeypatch.setattr(scored_examples, "count_characters", counted)
    pairs = [TextExample(row, "aaaaaaaaaa", "yyyyyyyyyy", 0) for row in range(400)]
    assert lost_share(LETTERS, pairs) == pytest.approx(1 / 2), "both texts of a pair, not each second text"
    assert 80 <= sum(map(len, read)) <= 100
    late = [single("a" * 10, row) for row in range(200)] + [single("y" * 10, row) for row in range(200)]
    assert lost_share(LETTERS, late) == pytest.approx(1 / 2)


def test_a_task_is_reported_by_its_worst_split_above_the_threshold_of_pre_training() -> None:
    known, half, little = single("a" * 20), single("a" * 10 + " " + "y" * 10), single("a" * 95 + " " + "y" * 5)
    lossy = task("single", ["accuracy"], [known], ["x", "y"])
    (note,) = lost_notes({"wordpiece": LETTERS}, [replace(lossy, splits={"train": [known], "test": [half]})])
    assert note.startswith(
        "made: 50% of the characters of test are [UNK] or dropped by the tokeniser, and no score reads them; "
    )
    assert not [*lost_notes({"wordpiece": LETTERS}, [task("single", ["accuracy"], [known, little])])]


def test_of_several_tokenisers_the_one_that_loses_text_is_named() -> None:
    bytes_of = bert_tokenizer({piece: number for number, piece in enumerate([*SPECIAL_PIECES, "y", "##y"])})
    lossy = task("single", ["accuracy"], [single("yyyy")])
    (note,) = lost_notes({"bpe, 8 pieces": LETTERS, "bpe, 7 pieces": bytes_of}, [lossy])
    assert "dropped by the tokeniser (bpe, 8 pieces), and" in note


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    place = tmp_path_factory.mktemp("lost")
    return trained(place / "results" / "toy", config(write_corpus(place / "text.txt")))


def write_task(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    splits = ("train", "dev", "test") if kind == "single" else ("test",)
    for split in splits:
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"files": "{split}", "splits": {split: split for split in splits}}
    (folder / "greek.yaml").write_text(json.dumps({"kind": kind, "metrics": ["accuracy"], "sources": [source]}))
    return folder / "greek.yaml"


GREEK = [{"text": f"{word} λογος", "label": label} for word, label in (("kame", "a"), ("gila", "b"), ("nome", "a"))]
PAIRS = [{"sentence_good": "kame λογος", "sentence_bad": "λογος kame", "UID": "order"}]


@pytest.mark.parametrize(("kind", "rows"), [("single", GREEK), ("minimal_pairs", PAIRS)])
def test_scoring_reports_lost_text_first_and_keeps_its_share(
    study: Any, run: RunFolder, tmp_path: Path, kind: str, rows: list[dict[str, Any]]
) -> None:
    scored = ("score", run.path, "--tasks", write_task(tmp_path, kind, rows), "--update", "head", "--no-random-weights")
    status, table, err = study(*scored, "--device", "cpu", "--json")
    assert status == 0, err
    warning = "greek: 56% of the characters of "
    assert err.count(warning) == 1
    assert err.index(warning) < err.index("COMPLETED")
    (record,) = [one for one in scores_of(run) if one.kind == kind]
    assert record.lost_share == pytest.approx(5 / 9)
    status, table, err = study(*scored, "--device", "cpu")
    assert warning not in err, "nothing is missing"
    assert "greek: 56% of the characters of a split lost by a tokeniser" in " ".join(table.split())


def test_embeddings_report_lost_text(study: Any, run: RunFolder, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("kame\nλογος\n")
    status, _, err = study("features", run.path, texts, "--device", "cpu")
    assert (status, err) == (
        0,
        "56% of the texts' characters are [UNK] or dropped by the run's tokeniser, and no embedding reads them\n",
    )
