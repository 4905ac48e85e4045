"""The same words are masked whatever the tokeniser, each piece once, and their loss is per byte."""

import math
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from study.config.run_config import TokenizerConfig, TokenizerKind, fingerprint_of
from study.data.corpora import Split, corpus_identity
from study.data.masked_words import WORD, MaskedWords, Passage, masked_words, passages_of
from study.data.masking import IGNORED
from study.data.prepared import prepare
from study.data.tokenizer_training import train_tokenizer
from study.data.tokenizing import SpecialTokens, as_trained_on, bert_tokenizer
from study.model.lightning import ValidationResult
from tests.small import config, write_corpus

TEXTS = ["the cost of the best menu, a camel's and some men's " * 8, "Übergrößen kosten mehr als Menüs und Kamele " * 9]
DRAW = random.Random(0)
LEARNT = [
    *TEXTS,
    *(" ".join("".join(DRAW.choices("abcdefgmnostü", k=DRAW.randint(1, 7))) for _ in range(40)) for _ in range(60)),
]
PASSAGES = [Passage(4, TEXTS[0]), Passage(9, TEXTS[1]), Passage(4, TEXTS[0].upper())]


def validated(nats: Tensor, words: MaskedWords) -> ValidationResult:
    one = torch.ones(2)
    return ValidationResult(1, one, one, 1, one, word_nats=nats, word_bytes=words.word_bytes)


def masked_by(kind: TokenizerKind, vocabulary: int, length: int = 16, rate: float = 0.15) -> MaskedWords:
    tokenizer = train_tokenizer(LEARNT, TokenizerConfig(kind=kind, vocabulary=vocabulary))
    words = masked_words(PASSAGES, as_trained_on(tokenizer), SpecialTokens.of(tokenizer), length, rate)
    assert words is not None
    return words


def test_every_tokeniser_masks_the_same_words() -> None:
    kinds: list[tuple[TokenizerKind, int]] = [("wordpiece", 100), ("bpe", 100), ("byte_bpe", 300), ("unigram", 100)]
    masks = [masked_by(kind, vocabulary, length) for kind, vocabulary in kinds for length in (16, 33)]
    assert {words.fingerprint for words in masks} == {masks[0].fingerprint}
    assert all(torch.equal(words.word_bytes, masks[0].word_bytes) for words in masks)
    assert len(masks[0].word_bytes) == 2, "documents"
    size = sum(len(passage.text.encode()) for passage in PASSAGES)
    assert 0.05 * size < masks[0].word_bytes.sum() < 0.25 * size
    assert len({int((words.masked.labels != IGNORED).sum()) for words in masks}) > 1, "of more pieces or fewer"
    assert masks[0].fingerprint != masked_by("wordpiece", 100, rate=0.3).fingerprint


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "byte_bpe", "unigram"])
def test_the_pieces_of_masked_words_are_hidden_and_predicted_once(kind: TokenizerKind) -> None:
    every = masked_by(kind, 300 if kind == "byte_bpe" else 100, rate=1.0)
    tokenizer = train_tokenizer(LEARNT, TokenizerConfig(kind=kind, vocabulary=300 if kind == "byte_bpe" else 100))
    texts = [each.text for each in PASSAGES]
    pieces = [
        text[begin:end].strip()
        for text, encoding in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True)
        for piece, (begin, end) in zip(encoding.tokens, encoding.offsets, strict=True)
        if piece != "[UNK]"
    ]
    assert int((every.masked.labels != IGNORED).sum()) == sum(bool(piece) for piece in pieces), "all but white space"
    assert float(every.word_bytes.sum()) == sum(len(word.encode()) for text in texts for word in text.split())
    assert bool(every.lost_bytes.any()) is (kind in ("wordpiece", "bpe")), "whose alphabet is an eighth of the vocabulary"
    some = masked_by(kind, 300 if kind == "byte_bpe" else 100)
    hidden = some.masked.tokens == SpecialTokens.of(tokenizer).mask
    assert int(hidden.sum()) == int((some.masked.labels != IGNORED).sum())
    assert torch.equal(hidden.gather(1, some.masked.positions), some.masked.labels != IGNORED)


def test_words_are_what_stands_between_spaces_and_long_runs_are_cut() -> None:
    assert WORD.findall("a camel's,  best\nmenu") == ["a", "camel's,", "best", "menu"]
    assert [len(word) for word in WORD.findall("字" * 60)] == [24, 24, 12]


def test_what_no_piece_stands_for_costs_eight_bits_a_byte() -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cost", "menu"]
    tokenizer = as_trained_on(bert_tokenizer({piece: number for number, piece in enumerate(pieces)}))
    special = SpecialTokens.of(tokenizer)
    words = masked_words([Passage(0, "cost कॉस्ट menu"), Passage(1, "cost menu")], tokenizer, special, 8, 1.0)
    assert words is not None
    assert words.lost_bytes.tolist() == [len("कॉस्ट".encode()), 0]
    assert (words.masked.labels != IGNORED).sum() == 4, "[UNK] is never predicted"
    nats = 4 * math.log(7) + 8 * math.log(2) * words.lost_bytes
    result = validated(nats, words)
    expected = (8 * math.log2(7) + 8 * len("कॉस्ट".encode())) / (16 + len("कॉस्ट".encode()))
    assert result.bits_per_masked_byte == pytest.approx(expected)


def test_a_guess_among_all_pieces_costs_their_logarithm() -> None:
    """The loss of a model that knows nothing, by hand: pieces · log2(V) ÷ bytes."""
    words = masked_by("wordpiece", 100)
    pieces = [int(((words.documents == number) & (words.masked.labels != IGNORED)).sum()) for number in range(2)]
    nats = torch.tensor(pieces, dtype=torch.float64) * math.log(100)
    result = validated(nats, words)
    assert result.bits_per_masked_byte == pytest.approx(sum(pieces) * math.log2(100) / float(words.word_bytes.sum()))
    assert result.bits_per_masked_byte_standard_error is not None
    assert result.byte_losses is not None
    assert result.byte_losses.mean() / math.log(2) == pytest.approx(result.bits_per_masked_byte)


def test_passages_are_read_again_once_deduplication_drops_other_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path / "cache"))
    plain = config(write_corpus(tmp_path / "text.txt")).data
    for data, kept in ((plain, ["first"]), (plain.model_copy(update={"dedupe": True}), ["first", "second"])):
        seen = []
        for version, text in ((1, "first"), (2, "second")):
            monkeypatch.setattr("study.data.masked_words.DEDUPLICATION_VERSION", version)
            documents: list[tuple[Split, str]] = [("validation", text)]
            seen.append(passages_of(data, documents.copy)[0].text)
        assert list(dict.fromkeys(seen)) == kept
    limit = 4 * plain.validation_sequences * plain.sequence_length
    names = {file.name for file in (tmp_path / "cache" / "passages").iterdir() if file.is_dir()}
    first = {fingerprint_of([1, corpus_identity(plain), dedupe, limit]) for dedupe in (False, True)}
    assert names > first, "entries of the first version keep their names"


def test_passages_depend_on_the_text_alone_and_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path / "cache"))
    data = config(write_corpus(tmp_path / "text.txt")).data
    small, large = (prepare(data.model_copy(update={"tokenizer": TokenizerConfig(vocabulary=size)})) for size in (128, 200))
    assert small.passages == large.passages
    assert small.passages
    held = sum(len(passage.text.encode()) for passage in small.passages)
    limit = 4 * data.validation_sequences * data.sequence_length
    assert limit <= held < limit + 2000

    def read_again() -> list[tuple[Split, str]]:
        raise AssertionError("the passages are known")

    assert passages_of(data, read_again) == small.passages
