"""Documents keep their split whatever is added; empty and repeated ones are counted; the Hub fails with a remedy."""

import math
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.base.errors import InputError
from study.config.run_config import DataConfig
from study.data.corpora import Document, Tally, corpus_identity, read_corpus, split_documents, split_of
from study.data.prepared import stream_fingerprint


def splits(texts: list[str]) -> dict[str, str]:
    return {text: split for split, text in split_documents((Document(text, "here") for text in texts), Tally())}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1)), st.lists(st.text("abc", min_size=1)))
def test_adding_documents_moves_none_and_repeats_none(texts: list[str], more: list[str]) -> None:
    before, after = splits(texts), splits([*more, *texts, *more])
    assert before.items() <= after.items()
    assert after == {text: split_of(text) for text in (*more, *texts)}


def test_splits_are_92_4_4_and_fixed_for_ever() -> None:
    counts: Counter[str] = Counter(split_of(f"document {number}") for number in range(20_000))
    for split, share in {"train": 0.92, "validation": 0.04, "test": 0.04}.items():
        assert abs(counts[split] / 20_000 - share) < 4 * math.sqrt(share / 20_000)
    assert [number for number in range(100) if split_of(str(number)) != "train"] == [2, 4, 9, 36, 52, 64, 69, 71, 87]


def test_empty_and_repeated_documents_are_counted() -> None:
    tally = Tally()
    documents = [Document(text, "here") for text in ("á", "", "b", "á", "")]
    assert [text for _, text in split_documents(documents, tally)] == ["á", "b"]
    assert tally == Tally(documents=2, text_bytes=3, empty=2, duplicates=1)


def test_documents_are_stripped_clean_and_say_their_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": " a \\ud800 "}\n{"text": null}\n')
    (tmp_path / "b.txt").write_text("b\n\nc\n")
    documents = list(read_corpus(DataConfig(corpus=str(tmp_path))))
    assert documents == [
        Document("a ?", "a.jsonl"), Document("", "a.jsonl"), Document("b", "b.txt"), Document("c", "b.txt")
    ]  # fmt: skip


def test_the_identity_is_of_the_content_and_not_of_the_path(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text('{"text": "a", "body": "b"}')
    one, two = (DataConfig(corpus=str(tmp_path / folder)) for folder in ("one", "two"))
    assert corpus_identity(one) == corpus_identity(two)
    assert corpus_identity(one) != corpus_identity(one.model_copy(update={"text_column": "body"}))
    (tmp_path / "two" / "a.jsonl").write_text('{"text": "c"}')
    assert corpus_identity(one) != corpus_identity(two)


@pytest.mark.parametrize("corpus", ["hub:", "hub:nobody/has-this-dataset", "hub:nobody/has-this:config", "hub::config:split"])
@pytest.mark.parametrize("documents", [None, 10])
def test_a_hub_dataset_out_of_reach_is_refused_with_the_local_way(
    corpus: str, documents: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"data.corpus: .*(save its text as .parquet|names no dataset)"):
        list(read_corpus(DataConfig(corpus=corpus, documents=documents)))
    with pytest.raises(InputError, match=r"data.corpus"):
        corpus_identity(DataConfig(corpus=corpus, documents=documents))


def test_a_hub_dataset_gives_the_texts_of_its_train_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "dataset"  # `datasets` takes a folder in the Hub's layout for a name
    folder.mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.table({"text": [f"{split} text", None], "number": [1, 2]}), folder / f"{split}.parquet")
    data = DataConfig(corpus=f"hub:{folder}")
    assert [document.text for document in read_corpus(data)] == ["train text", ""]
    assert corpus_identity(data) == corpus_identity(data)
    with pytest.raises(InputError, match=r"did you mean 'text'"):
        list(read_corpus(data.model_copy(update={"text_column": "texts"})))
    with pytest.raises(InputError, match=r"'number' does not hold text"):
        list(read_corpus(data.model_copy(update={"text_column": "number"})))


def texts_of(corpus: str, documents: int | None = None) -> list[str]:
    return [document.text for document in read_corpus(DataConfig(corpus=corpus, documents=documents))]


@pytest.fixture
def sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dataset in the Hub's layout: two shards of train, and a test split."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "dataset"
    folder.mkdir()
    for shard in range(2):
        numbers = range(300 * shard, 300 * (shard + 1))
        table = pa.table({"number": list(numbers), "text": [f"text {number}" if number % 7 else None for number in numbers]})
        pq.write_table(table, folder / f"train-0000{shard}-of-00002.parquet")
    pq.write_table(pa.table({"number": [1], "text": ["test text"]}), folder / "test-00000-of-00001.parquet")
    return folder


def test_streamed_text_is_the_beginning_of_the_whole_text(sharded: Path) -> None:
    whole = texts_of(f"hub:{sharded}")
    assert whole == [f"text {number}" if number % 7 else "" for number in range(600)]
    for documents in (1, 256, 301, 600, 10**12):
        assert texts_of(f"hub:{sharded}", documents) == whole[:documents]


def test_streaming_reads_no_further_than_it_must_and_keeps_nothing(sharded: Path, tmp_path: Path) -> None:
    (sharded / "train-00001-of-00002.parquet").write_bytes(b"PAR1 and nothing else")
    assert len(texts_of(f"hub:{sharded}", 200)) == 200
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    with pytest.raises(InputError, match=r"data\.corpus: .* cannot be loaded: .*; load it once"):
        texts_of(f"hub:{sharded}", 301)


def test_any_split_is_read_and_train_alone_keeps_the_identity_without_one(sharded: Path) -> None:
    for test in (f"hub:{sharded}::test", f"hub:{sharded}:default:test"):
        assert texts_of(test) == texts_of(test, 5) == ["test text"]
    corpora = [f"hub:{sharded}{which}" for which in ("", ":", "::", "::train", ":default:train")]
    (identity,) = {stream_fingerprint(DataConfig(corpus=corpus)) for corpus in corpora}
    others = {
        stream_fingerprint(DataConfig(corpus=f"hub:{sharded}::test")),
        *(stream_fingerprint(DataConfig(corpus=f"hub:{sharded}", documents=documents)) for documents in (5, 6)),
    }
    assert len(others - {identity}) == 3


@pytest.mark.parametrize("documents", [None, 5])
@pytest.mark.parametrize("split", ["tset", "train[:10%]", "test:more"])
def test_a_split_that_is_not_there_is_refused_before_anything_is_read(split: str, documents: int | None, sharded: Path) -> None:
    with pytest.raises(InputError, match=r"data\.corpus: .* has no split '.*'; did you mean '(test|train)'\?"):
        corpus_identity(DataConfig(corpus=f"hub:{sharded}::{split}", documents=documents))


def test_what_was_streamed_is_known_without_the_hub(sharded: Path) -> None:
    data = DataConfig(corpus=f"hub:{sharded}", documents=5)
    before = corpus_identity(data)
    sharded.rename(sharded.with_name("out of reach"))
    assert corpus_identity(data) == before
    with pytest.raises(InputError, match="cannot be loaded"):
        corpus_identity(data.model_copy(update={"corpus": f"hub:{sharded}::test"}))


def test_a_local_corpus_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n\nb\n\nc\n")
    corpus = str(tmp_path / "a.txt")
    assert (texts_of(corpus, 2), texts_of(corpus)) == (["a", "b"], ["a", "b", "c"])
    assert corpus_identity(DataConfig(corpus=corpus)) != corpus_identity(DataConfig(corpus=corpus, documents=2))
