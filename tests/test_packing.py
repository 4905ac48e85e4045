"""Token files hold every token once; sequences are cut from them without copying the file."""

import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.data.corpora import Split
from study.data.packing import PackedSequences, entropy_nats, token_dtype, token_file, write_tokens
from study.data.tokenizing import SPECIAL_PIECES, bert_tokenizer

WORDS = [f"w{letter}" for letter in "abcdefghij"]
TOKENIZER = bert_tokenizer({piece: number for number, piece in enumerate([*SPECIAL_PIECES, *WORDS])})
SEP, CLS, FIRST_WORD = 3, 2, 5


@pytest.mark.parametrize("batch_characters", [1, 40, 2_000_000])
def test_streams_hold_each_document_and_a_separator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_characters: int
) -> None:
    monkeypatch.setattr("study.data.packing.BATCH_CHARACTERS", batch_characters)
    documents: list[tuple[Split, list[int]]] = [("train", [0, 1, 2]), ("test", [3]), ("train", [4] * 30), ("train", [9])]
    counts = write_tokens(((split, " ".join(WORDS[i] for i in words)) for split, words in documents), TOKENIZER, tmp_path)
    for split in ("train", "validation", "test"):
        expected = [token for of, words in documents if of == split for token in (*(w + FIRST_WORD for w in words), SEP)]
        assert np.fromfile(token_file(tmp_path, split), "<u2").tolist() == expected
        assert counts[split].tolist() == np.bincount(np.array(expected, int), minlength=15).tolist()


@given(st.integers(0, 100), st.integers(8, 20))
def test_sequences_are_the_stream_cut_behind_a_class_token(tokens: int, length: int) -> None:
    stream = np.arange(tokens, dtype="<u2")
    stride = length - 1
    sequences = PackedSequences(stream[: tokens // stride * stride].reshape(-1, stride), CLS)
    taken = sequences.take(np.arange(len(sequences)))
    assert taken.shape == (tokens // stride, length)
    assert taken.dtype == np.int64
    assert (taken[:, 0] == CLS).all()
    assert taken[:, 1:].ravel().tolist() == stream[: len(sequences) * stride].tolist()


@pytest.mark.parametrize("vocabulary", [2**16, 2**16 + 1])
def test_sequences_are_mapped_from_the_file(tmp_path: Path, vocabulary: int) -> None:
    stream = np.random.default_rng(0).integers(vocabulary, size=127 * 5000 + 3)
    stream.astype(token_dtype(vocabulary)).tofile(tmp_path / "tokens")
    sequences = PackedSequences.open(tmp_path / "tokens", vocabulary, 128, CLS)
    indices = np.random.default_rng(1).integers(len(sequences), size=(100, 32))
    assert len(sequences) == 5000
    assert (sequences.take(indices[0])[:, 1:] == stream[: 127 * 5000].reshape(-1, 127)[indices[0]]).all()
    seconds = []
    for batch in indices:
        start = time.perf_counter()
        sequences.take(batch)
        seconds.append(time.perf_counter() - start)
    assert np.median(seconds) < 2e-4
    with pytest.raises(IndexError):
        sequences.take(np.array([5000]))


def test_an_empty_file_holds_no_sequences(tmp_path: Path) -> None:
    (tmp_path / "tokens").touch()
    sequences = PackedSequences.open(tmp_path / "tokens", 100, 16, CLS)
    assert len(sequences) == 0
    assert sequences.take(np.empty(0, np.int64)).shape == (0, 16)


def test_entropy_is_of_the_counted_distribution() -> None:
    assert entropy_nats(np.array([5, 5, 0, 5, 5])) == pytest.approx(math.log(4))
    assert entropy_nats(np.array([0, 7])) == 0
    assert entropy_nats(np.zeros(3, np.int64)) == 0
