"""Data is built once, opened fast, found again by its content, and refused where it is too small."""

import errno
import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import Whitespace

from study.base.errors import InputError
from study.config.run_config import MOST_OVERLAP, DataConfig, TokenizerConfig, fingerprint_of
from study.data import token_files
from study.data.cache import sha256_of
from study.data.corpora import Split, Tally, corpus_identity, split_of
from study.data.prepared import (
    PACKING_VERSION,
    CorpusText,
    PreparedData,
    data_fingerprint,
    known_overlap_share,
    prepare,
    unread_at_first,
)
from study.data.token_files import PackedDocuments, entropy_nats, some_documents, token_dtype
from study.data.tokenizing import SPECIAL_PIECES, SpecialTokens, bert_tokenizer
from tests.full_disk import files_of_at_most

SPECIAL = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)


@pytest.fixture(autouse=True)
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of 600 documents; the cache is beside it."""
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path / "cache"))
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 5))) for _ in range(200)]
    texts = [" ".join(draw.choices(words, k=40)) for _ in range(600)]
    rows = [*texts, None, texts[0], "  "]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    return path


def config(corpus: Path, **values: Any) -> DataConfig:
    defaults: dict[str, Any] = {"tokenizer": {"vocabulary": 128}, "sequence_length": 16, "validation_sequences": 8}
    return DataConfig.parse({"corpus": str(corpus)} | defaults | values)


def vocabulary_of(letters: str, folder: Path) -> dict[str, Any]:
    """A tokeniser's file of the special pieces and of these letters, each a piece."""
    pieces = [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters)]
    pieces += [f"unused{number}" for number in range(64 - len(pieces))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    return {"kind": "file", "vocabulary": 64, "path": str(folder / "vocab.txt")}


def share_without(letter: str, texts: list[str]) -> float:
    """The share of [UNK] where words of this letter are not known, and of all others each letter is a token."""
    words = [word for text in texts for word in text.split()]
    known = [len(word) for word in words if letter not in word]
    return (len(words) - len(known)) / (len(words) - len(known) + sum(known))


def lost_without(letter: str, texts: list[str]) -> float:
    """The share of characters in words of this letter."""
    words = [word for text in texts for word in text.split()]
    return sum(len(word) for word in words if letter in word) / sum(map(len, words))


def texts_of(corpus: Path) -> list[str]:
    texts = (json.loads(line)["text"] for line in corpus.read_text().splitlines())
    return list(dict.fromkeys(text for text in texts if text and text.strip()))


def stream_of(corpus: Path, split: Split, tokenizer: Tokenizer) -> list[int]:
    texts = [text for text in texts_of(corpus) if split_of(text) == split]
    return [token for text in texts for token in (*tokenizer.encode(text, add_special_tokens=False).ids, 3)]


@pytest.mark.parametrize("characters", [1000, 2_000_000])
def test_prepared_tokens_are_the_texts_of_each_split(characters: int, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they are encoded in many batches or in one."""
    monkeypatch.setattr(token_files, "BATCH_CHARACTERS", characters)
    prepared = prepare(config(corpus))
    for split, count in prepared.facts.tokens.items():
        stream, sequences = stream_of(corpus, split, prepared.tokenizer()), prepared.split(split)
        assert (count, len(sequences)) == (len(stream), len(stream) // 15)
        taken = sequences.take(np.arange(len(sequences)))
        assert taken[:, 1:].ravel().tolist() == stream[: len(sequences) * 15]
        assert set(taken[:, 0].tolist()) == {2}
    train = stream_of(corpus, "train", prepared.tokenizer())
    words = np.array([token for token in train if token not in prepared.special.all])
    assert prepared.unigram_entropy_nats == pytest.approx(entropy_nats(np.bincount(words)))


def test_a_tokenizer_of_another_kind_gives_whole_texts_with_separators_too(corpus: Path, tmp_path: Path) -> None:
    """One that does not encode word by word, and was saved to cut texts and to pad them."""
    tokenizer = prepare(config(corpus)).tokenizer()
    tokenizer.pre_tokenizer = Whitespace()
    plain = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=500)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    file = {"kind": "file", "vocabulary": 128, "path": str(tmp_path / "tokenizer.json")}
    sequences, stream = prepare(config(corpus, tokenizer=file)).split("train"), stream_of(corpus, "train", plain)
    assert sequences.rows.ravel().tolist() == stream[: len(stream) // 15 * 15]


def test_fewer_unique_tokens_are_the_first_of_more_and_whole_documents(corpus: Path) -> None:
    prepared = prepare(config(corpus))
    whole, few, more = (prepared.with_unique_tokens(tokens) for tokens in (None, 1_600, 8_000))
    assert whole.stream("train").size == whole.train_tokens
    assert (few.train_tokens, few.unique_tokens, more.train_tokens) == (1_500, 1_600, 7_500)
    assert more.stream("train")[:1_500].tolist() == few.stream("train").tolist()

    def documents(data: PreparedData) -> list[tuple[int, ...]]:
        stream = data.stream("train")
        parts = np.split(stream, np.flatnonzero(stream == data.special.sep) + 1)
        return [tuple(part.tolist()) for part in parts]

    known = documents(whole)
    *chosen, last = documents(more)
    assert {*chosen} < {*known}
    assert len({*chosen}) == len(chosen)
    assert any(document[: len(last)] == last for document in known)
    assert chosen != known[: len(chosen)], "not the beginning of the text"
    assert (more.validation() == whole.validation()).all()
    assert more.with_unique_tokens(1_600).train_tokens == 1_500
    assert more.with_unique_tokens(None).train_tokens == whole.train_tokens
    assert whole.with_unique_tokens(whole.unique_tokens).train_tokens == whole.train_tokens
    with pytest.raises(InputError, match=r"recipe\.unique_tokens: is 1M, but the text has .* tokens to train on; lower it"):
        prepared.with_unique_tokens(1e6)


def test_of_one_long_document_the_beginning_is_read_in_every_packing() -> None:
    """A document that is cut lacks its separator."""
    stream = np.append(np.arange(5, 405), SPECIAL.sep).astype(np.uint16)
    part = some_documents(stream, SPECIAL.sep, 120)
    assert part.tolist() == [*range(5, 125)]
    documents = PackedDocuments.of(part, 16, SPECIAL)
    assert len(documents) == 8
    assert documents.take(np.array([7]))[0].tolist() == [SPECIAL.cls, *range(110, 125)]
    assert len(PackedDocuments.of(stream, 16, SPECIAL)) == 27, "the separator stands in no sequence alone"


def test_the_validation_set_is_of_the_validation_split_in_an_order_of_its_own(corpus: Path) -> None:
    prepared = prepare(config(corpus))
    held_out = prepared.split("validation")
    order = np.random.RandomState(0).permutation(len(held_out))
    assert (prepared.validation() == held_out.take(order[:8])).all()


def test_a_validation_sequence_is_of_the_document_that_most_of_its_tokens_are_of(corpus: Path) -> None:
    """The first of equally many; a document ends with its [SEP]."""
    prepared = prepare(config(corpus, validation_sequences=24))
    stream = np.array(stream_of(corpus, "validation", prepared.tokenizer()))
    document = np.cumsum(stream == 3) - (stream == 3)
    order = np.random.RandomState(0).permutation(len(stream) // 15)[:24]
    expected = [Counter(sorted(document[15 * row : 15 * row + 15].tolist())).most_common(1)[0][0] for row in order]
    assert prepared.validation_documents().tolist() == expected
    assert len(set(expected)) < 24


def test_how_much_validation_text_trains_is_measured_once_and_known_before_the_next_use(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of entries of an earlier version, too, which are opened as they are."""
    texts = texts_of(corpus)
    held_out = [text for text in texts if split_of(text) == "validation"]
    quoting = [f"{text} {number}" for number, text in enumerate(held_out[: len(held_out) // 2])]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in (*texts, *quoting)))
    assert known_overlap_share(config(corpus)) is None
    share = prepare(config(corpus)).validation_overlap_share
    assert share is not None
    assert 0.3 < share < 0.7
    monkeypatch.setattr("study.data.prepared.overlap_share", None)
    assert prepare(config(corpus, sequence_length=32)).validation_overlap_share == known_overlap_share(config(corpus)) == share
    monkeypatch.undo()
    shutil.rmtree(prepare(config(corpus)).folder.parent.parent / "overlaps")
    assert prepare(config(corpus)).validation_overlap_share == share


def test_a_corpus_that_repeats_itself_is_clean_once_deduplicated(corpus: Path) -> None:
    draw = random.Random(1)
    texts = texts_of(corpus)
    boilerplate = ["\n".join(draw.sample(texts, 2)) for _ in range(5)]
    rows = [f"{text}\n{draw.choice(boilerplate)}" for text in texts] + [f"{text} again" for text in texts]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    plain, clean = prepare(config(corpus)), prepare(config(corpus, dedupe=True))
    assert (plain.validation_overlap_share or 0) > 0.8
    assert (clean.validation_overlap_share or 0) < 0.02
    assert clean.facts.repeated_paragraphs > 500
    assert clean.facts.near_duplicate_documents > 50
    assert (plain.facts.repeated_paragraphs, plain.facts.near_duplicate_documents) == (0, 0)
    kept = list(CorpusText(config(corpus, dedupe=True)).documents("", Tally()))
    assert (clean.facts.documents, clean.facts.text_bytes) == (len(kept), sum(len(text) for _, text in kept))
    encoded = (clean.tokenizer().encode(text, add_special_tokens=False).ids for split, text in kept if split == "train")
    stream, rows_BxS = [token for ids in encoded for token in (*ids, 3)], clean.split("train").rows
    assert rows_BxS.ravel().tolist() == stream[: rows_BxS.size]


def test_deduplication_changes_the_fingerprint_and_its_absence_none(corpus: Path) -> None:
    data = config(corpus)
    identity = [PACKING_VERSION, corpus_identity(data), {"kind": "wordpiece", "vocabulary": 128}]
    assert data_fingerprint(data) == fingerprint_of([fingerprint_of(identity), 16])
    assert data_fingerprint(config(corpus, dedupe=True)) not in (
        data_fingerprint(data),
        data_fingerprint(config(corpus, sequence_length=17)),
    )


@pytest.mark.slow
def test_the_embedded_corpus_is_clean_once_deduplicated() -> None:
    """It leaves 1,024 validation sequences of the usual length and vocabulary."""
    data = DataConfig(dedupe=True)
    for vocabulary, length in ((2048, 64), (8192, 128)):
        sizes = {"tokenizer": TokenizerConfig(vocabulary=vocabulary), "sequence_length": length}
        clean = prepare(data.model_copy(update=sizes))
        assert (clean.validation_overlap_share or 1) < MOST_OVERLAP
        assert len(clean.validation()) == 1024


def test_entropy_is_that_of_the_shares() -> None:
    assert entropy_nats(np.array([2, 4, 0, 2])) == pytest.approx(1.5 * np.log(2))
    assert entropy_nats(np.zeros(3, np.int64)) == 0


def test_tokens_are_kept_in_numbers_that_hold_every_id() -> None:
    assert [token_dtype(vocabulary).itemsize for vocabulary in (2**16, 2**16 + 1)] == [2, 4]


def test_facts_count_what_was_kept_and_left_out(corpus: Path) -> None:
    prepared = prepare(config(corpus))
    facts = prepared.facts
    assert (facts.documents, facts.empty_documents, facts.duplicate_documents) == (600, 2, 1)
    assert facts.text_bytes == sum(map(len, texts_of(corpus)))
    assert (facts.vocabulary, facts.dtype) == (128, "uint16")
    assert facts.tokenizer_sha256 == sha256_of(prepared.folder / "tokenizer.json")


def test_what_the_vocabulary_does_not_know_is_counted_and_reported_above_a_share(corpus: Path, tmp_path: Path) -> None:
    prepared = prepare(config(corpus))
    assert prepared.facts.unknown_share == 0
    data = config(corpus, tokenizer=vocabulary_of("abcdefg", tmp_path))
    share = prepare(data).facts.unknown_share
    assert share == pytest.approx(share_without("h", [text for text in texts_of(corpus) if split_of(text) == "train"]))
    lost = prepare(data).facts.lost_share
    assert lost == pytest.approx(lost_without("h", [text for text in texts_of(corpus) if split_of(text) == "train"]))
    warning = data.tokenizer.unread(lost)
    assert warning is not None
    assert warning.startswith(f"{lost:.0%} of the text's characters are [UNK] or dropped, ")
    assert warning.endswith("train a tokeniser on this text (kind: wordpiece), or use one of its language")
    assert data.tokenizer.unread(0.05) is data.tokenizer.unread(None) is None
    assert "a larger vocabulary, since up to an eighth of it is the alphabet" in str(TokenizerConfig().unread(0.06))


def test_how_a_text_begins_shows_before_anything_is_built_what_is_unknown(corpus: Path, tmp_path: Path) -> None:
    warnings = {
        letters: unread_at_first(config(corpus, tokenizer=vocabulary_of(letters, tmp_path))) for letters in ("abcdefg", "xyz")
    }
    beginning = [*texts_of(corpus), texts_of(corpus)[0]]
    assert str(warnings["abcdefg"]).startswith(
        f"At the beginning, {lost_without('h', beginning):.0%} of the text's characters are [UNK]"
    )
    assert str(warnings["xyz"]).startswith("At the beginning, 100% of the text's characters are [UNK]")
    assert unread_at_first(config(corpus, tokenizer=vocabulary_of("abcdefgh", tmp_path))) is None
    lowered, cased = tmp_path / "tokenizer.json", [*"abcdefgh", *(f"##{letter}" for letter in "abcdefgh"), *"ABCDEFGH"]
    pieces = [*SPECIAL_PIECES, *cased, *(f"unused{number}" for number in range(64 - 5 - len(cased)))]
    bert_tokenizer({piece: number for number, piece in enumerate(pieces)}).save(str(lowered))
    note = unread_at_first(config(corpus, tokenizer={"kind": "file", "vocabulary": 64, "path": str(lowered)}))
    assert str(note).startswith("8 of the tokeniser's 59 pieces have capitals, such as 'A', and it lowercases text")
    assert unread_at_first(config(corpus)) is None, "its vocabulary is yet to be made"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("how", ["word by word", "whole texts", "dropped"])
def test_lost_text_is_counted_in_characters(how: str, corpus: Path, tmp_path: Path) -> None:
    """A line of a script without spaces becomes one [UNK], so that a text which is half lost has few such tokens, or none."""
    latin, thai = "abcdefg " * 10, "กขคง" * 20
    corpus.write_text("".join(json.dumps({"text": f"{latin}{thai} {number}"}) + "\n" for number in range(400)))
    vocabulary_of("abcdefg0123456789", tmp_path)
    tokenizer = bert_tokenizer({piece: number for number, piece in enumerate((tmp_path / "vocab.txt").read_text().split())})
    if how == "whole texts":
        tokenizer.pre_tokenizer = Whitespace()
    elif how == "dropped":
        tokenizer.normalizer = Replace(Regex("[^a-z0-9 ]"), "")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    data = config(corpus, tokenizer={"kind": "file", "vocabulary": 64, "path": str(tmp_path / "tokenizer.json")})
    facts = prepare(data).facts
    assert facts.unknown_share == pytest.approx(0 if how == "dropped" else 1 / 75, rel=0.05)
    assert facts.lost_share == pytest.approx(80 / 153, rel=0.01)
    assert str(unread_at_first(data)).startswith("At the beginning, 52% of the text's characters are [UNK]")


def test_what_is_lost_is_named_before_what_is_too_small_for_it(corpus: Path, tmp_path: Path) -> None:
    corpus.write_text("".join(json.dumps({"text": f"a {'กขคง' * 50} {number}"}) + "\n" for number in range(300)))
    data = config(corpus, tokenizer=vocabulary_of("a0123456789", tmp_path), validation_sequences=40)
    with pytest.raises(InputError) as refused:
        prepare(data)
    assert [problem.place for problem in refused.value.problems] == ["data.tokenizer", "data.validation_sequences"]


def test_text_of_which_the_vocabulary_knows_nothing_is_refused_with_corpus_tokeniser_and_remedy(
    corpus: Path, tmp_path: Path
) -> None:
    data = config(corpus, tokenizer=vocabulary_of("xyz", tmp_path))
    with pytest.raises(InputError) as refused:
        prepare(data)
    (problem,) = refused.value.problems
    assert problem.place == "data.tokenizer"
    assert problem.message.startswith(f"{data.tokenizer.path} cannot read {corpus}: ")
    assert problem.message.endswith("train a tokeniser on this text (kind: wordpiece), or use one of its language")


def test_an_entry_of_an_earlier_version_opens_without_the_share_of_unknown_words(corpus: Path) -> None:
    prepared = prepare(config(corpus))
    manifest = json.loads((prepared.folder / "manifest.json").read_text())
    del manifest["facts"]["unknown_share"], manifest["facts"]["lost_share"]
    manifest["seal"] = fingerprint_of([manifest["facts"], manifest["files"]])
    (prepared.folder / "manifest.json").write_text(json.dumps(manifest))
    assert prepare(config(corpus)).facts == prepared.facts.model_copy(update={"unknown_share": None, "lost_share": None})


def test_the_second_use_opens_what_the_first_built(corpus: Path) -> None:
    first = prepare(config(corpus))
    written = (first.folder / "manifest.json").stat().st_mtime_ns
    assert prepare(config(corpus)) == first
    assert (first.folder / "manifest.json").stat().st_mtime_ns == written


def test_lengths_and_validation_sets_share_one_entry(corpus: Path) -> None:
    first, longer = prepare(config(corpus)), prepare(config(corpus, sequence_length=32))
    more = prepare(config(corpus, validation_sequences=20))
    assert first.folder == longer.folder == more.folder
    assert first.fingerprint == more.fingerprint != longer.fingerprint
    assert (more.validation()[:8] == first.validation()).all()
    assert first.validation().shape == (8, 16)


def test_the_fingerprint_is_known_before_building_and_leaves_paths_out(corpus: Path, tmp_path: Path) -> None:
    before = data_fingerprint(config(corpus))
    assert not (tmp_path / "cache").exists()
    moved = Path(shutil.copy(corpus, tmp_path / "moved.jsonl"))
    assert before == data_fingerprint(config(moved)) == prepare(config(corpus)).fingerprint
    moved.write_text(moved.read_text() + '{"text": "one more"}\n')
    others = [config(moved), config(corpus, tokenizer={"vocabulary": 129}), config(corpus, sequence_length=17)]
    assert len({before, *map(data_fingerprint, others)}) == 4
    file = config(corpus, tokenizer={"kind": "file", "vocabulary": 64, "path": str(tmp_path / "vocab.txt")})
    contents = set()
    for pieces in ("one", "another"):
        (tmp_path / "vocab.txt").write_text(pieces)
        contents.add(data_fingerprint(file))
    assert len(contents) == 2


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damaged_tokens_are_built_again_to_the_same_bytes(corpus: Path, damage: str) -> None:
    prepared = prepare(config(corpus))
    file = prepared.folder / "train.tokens"
    intact = file.read_bytes()
    if damage == "truncated":
        os.truncate(file, len(intact) // 2)
    else:
        file.write_bytes(intact[:100] + bytes([intact[100] ^ 1]) + intact[101:])
    assert prepare(config(corpus)) == prepared
    assert file.read_bytes() == intact


@pytest.mark.parametrize("file", ["tokenizer.json", "train.tokens"])
def test_a_cache_on_a_full_disk_is_reported_as_such_and_holds_nothing_of_the_entry(corpus: Path, file: str) -> None:
    entry = prepare(config(corpus)).folder
    size = (entry / file).stat().st_size
    shutil.rmtree(entry)
    with files_of_at_most(size - 1), pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as caught:
        prepare(config(corpus))
    assert caught.value.filename == str(entry)
    assert not [path for path in entry.parent.iterdir() if path.is_dir()]


def test_a_saved_tokenizer_is_a_tokenizer_file(corpus: Path) -> None:
    trained = prepare(config(corpus))
    file = {"kind": "file", "vocabulary": 128, "path": str(trained.folder / "tokenizer.json")}
    loaded = prepare(config(corpus, tokenizer=file))
    assert loaded.fingerprint != trained.fingerprint
    assert (loaded.validation() == trained.validation()).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"validation_sequences": 10_000}, r"data.validation_sequences: 10,000 are requested, but .*; set it to at most (\d+)"),
        ({"sequence_length": 4000}, r"no validation|4% of the documents validate"),
        ({"sequence_length": 500_000}, "holds no training sequence of 500000"),
        ({"tokenizer": {"vocabulary": 60_000}}, "this corpus yields only"),
        ({"text_column": "texts"}, "did you mean 'text'"),
        ({"tokenizer": {"kind": "file", "vocabulary": 64, "path": "nowhere.txt"}}, "is not a file"),
    ],
)
def test_data_that_cannot_be_used_is_refused(corpus: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(config(corpus, **values))


def test_the_remedy_for_too_few_validation_sequences_works(corpus: Path) -> None:
    with pytest.raises(InputError) as refused:
        prepare(config(corpus, validation_sequences=10_000))
    most = int(str(refused.value).rsplit(" ", 1)[1].replace(",", ""))
    assert len(prepare(config(corpus, validation_sequences=most)).validation()) == most


def test_a_corpus_without_text_is_refused(corpus: Path) -> None:
    corpus.write_text('{"text": null}\n{"text": ""}\n')
    with pytest.raises(InputError, match="holds no text"):
        prepare(config(corpus))
