"""Pairs are two parts of the text around a sentence's end, half of them not as they stood, and a function of their place."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from study.base.errors import InputError
from study.config.recipe import Objective
from study.config.run_config import DataConfig, Masking
from study.data.masking import IGNORED, Masker, StaticMasks
from study.data.pairs import FOLLOWS, OTHERWISE, PackedPairs, Pairs, kinds_of
from study.data.prepared import prepare
from study.data.token_files import PackedDocuments
from study.data.tokenizing import SPECIAL_PIECES, SpecialTokens, bert_tokenizer, sentence_ends

SPECIAL, STOP, LENGTH, ROOM = SpecialTokens(0, 1, 2, 3, 4), 5, 16, 13
OBJECTIVES: tuple[Objective, ...] = ("mlm_nsp", "mlm_sop")


def stream(documents: int = 200) -> np.ndarray:
    """Documents of sentences of three to eight words; every word of the text occurs once."""
    random, tokens, word = np.random.default_rng(0), list[int](), 6
    for _ in range(documents):
        for _ in range(random.integers(1, 6)):
            words = int(random.integers(3, 9))
            tokens += [*range(word, word + words), STOP]
            word += words
        tokens.append(SPECIAL.sep)
    return np.array(tokens, np.uint16)


def packed(objective: Objective, text: np.ndarray | None = None, seed: int = 7) -> PackedPairs:
    text = stream() if text is None else text
    return PackedPairs(text, LENGTH, SPECIAL, kinds_of([STOP], SPECIAL, 1 + int(text.max(initial=STOP))), objective, seed)


def taken(pairs: PackedPairs, epoch: int = 0) -> np.ndarray:
    windows = np.arange(len(pairs))
    return pairs.take(windows, np.full_like(windows, epoch))


def parts(row: np.ndarray) -> tuple[list[int], list[int], int]:
    """The two segments of a pair without their brackets, and its label."""
    begins = row[-2]
    return row[1 : begins - 1].tolist(), row[begins : LENGTH - 1].tolist(), int(row[-1])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_pair_is_bracketed_full_and_of_two_segments(objective: Objective) -> None:
    rows = torch.from_numpy(taken(packed(objective)))
    tokens, segments, labels = Pairs.of(rows)
    assert tokens.shape == segments.shape == (len(rows), LENGTH)
    assert set(tokens[:, 0].tolist()) == {SPECIAL.cls}
    assert set(tokens[:, -1].tolist()) == {SPECIAL.sep}
    first_of_b = segments.argmax(1)
    assert set(tokens[torch.arange(len(rows)), first_of_b - 1].tolist()) == {SPECIAL.sep}
    assert torch.equal(segments, (torch.arange(LENGTH) >= first_of_b[:, None]).long())
    assert first_of_b.min() >= 3
    assert first_of_b.max() <= LENGTH - 2
    assert labels.float().mean().item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_follows_is_the_window_cut_after_a_sentence_within_a_document(objective: Objective) -> None:
    pairs = packed(objective)
    for window, row in enumerate(taken(pairs)):
        text = pairs.stream[window * ROOM : (window + 1) * ROOM].tolist()
        first, second, label = parts(row)
        if label == OTHERWISE:
            continue
        assert first + second == text
        assert SPECIAL.sep not in (first[-1], second[0]), "the cut parts no documents"
        if any(one == STOP and other not in (STOP, SPECIAL.sep) for one, other in itertools.pairwise(text)):
            assert first[-1] == STOP


def test_a_segment_in_the_wrong_order_is_the_window_with_its_parts_swapped() -> None:
    pairs, swapped = packed("mlm_sop"), 0
    for window, row in enumerate(taken(pairs)):
        first, second, label = parts(row)
        if label == OTHERWISE:
            assert second + first == pairs.stream[window * ROOM : (window + 1) * ROOM].tolist()
            swapped += 1
    assert swapped


def test_a_random_segment_begins_at_a_cut_elsewhere_and_fills_the_pair() -> None:
    """Each word of the text occurs once, so that where a segment is from can be read off it."""
    pairs = packed("mlm_nsp")
    text, seen = pairs.stream.tolist(), set()
    for window, row in enumerate(taken(pairs)):
        first, second, label = parts(row)
        assert first == text[window * ROOM : window * ROOM + len(first)]
        word = next(place for place, token in enumerate(second) if token > STOP)
        begins = text.index(second[word]) - word
        assert second == [*text, *text][begins : begins + ROOM - len(first)]
        assert (begins == window * ROOM + len(first)) == (label == FOLLOWS)
        if label == OTHERWISE:
            assert begins // ROOM != window
            seen.add(begins // ROOM)
    assert len(seen) > 0.25 * len(pairs), "they are from everywhere"


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_pair_is_a_function_of_seed_epoch_and_place(objective: Objective) -> None:
    pairs = packed(objective)
    rows, order = taken(pairs), np.random.default_rng(1).permutation(len(pairs))[:9]
    alone = np.concatenate([pairs.take(order[i : i + 1], np.zeros(1, np.int64)) for i in range(9)])
    assert (alone == rows[order]).all()
    both = pairs.take(np.array([3, 3]), np.array([0, 1]))
    assert (both[0] == rows[3]).all()
    assert (both[1] == taken(pairs, 1)[3]).all()
    for other in (taken(pairs, 1), taken(packed(objective, seed=8))):
        assert 0.2 < (other != rows).any(1).mean() < 1


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([3, STOP, 6, 7]), min_size=2 * ROOM, max_size=200),
    st.sampled_from(OBJECTIVES),
    st.integers(0, 2**62),
)
def test_any_text_is_read(tokens: list[int], objective: Objective, seed: int) -> None:
    """Also of empty documents, of one word, and without a sentence's end."""
    for row in taken(packed(objective, np.array(tokens, np.uint16), seed)):
        first, second, _ = parts(row)
        assert first
        assert second
        assert len(first) + len(second) == ROOM


def test_sequences_within_documents_hold_every_word_once_and_are_padded() -> None:
    text = np.array([6, 7, 3, 3, *range(8, 8 + 30), 3, *range(40, 55), 3, 3], np.uint16)
    documents = PackedDocuments.of(text, LENGTH, SPECIAL)
    rows = documents.take(np.arange(len(documents))).tolist()
    cls, pad = SPECIAL.cls, SPECIAL.pad
    assert rows == [
        [cls, 6, 7, 3, *[pad] * 12],
        [cls, *range(8, 23)],
        [cls, *range(23, 38)],  # its [SEP] would stand alone
        [cls, *range(40, 55)],
    ]
    assert documents.take(np.array([2, 0])).tolist() == [rows[2], rows[0]]
    with pytest.raises(IndexError):
        documents.take(np.array([len(documents)]))


@pytest.mark.parametrize("static", [False, True])
def test_padded_sequences_are_masked_in_proportion_to_their_text(static: bool) -> None:
    lengths = torch.tensor([40, 20, 7, 2, 40])
    tokens = torch.where(torch.arange(40) < lengths[:, None], torch.randint(5, 90, (5, 40)), SPECIAL.pad)
    tokens[:, 0] = SPECIAL.cls
    plain = Masker(Masking(), 6, SPECIAL.mask, SPECIAL.all, 100, static=StaticMasks(1, 3) if static else None)
    actual, whole = (each(tokens, torch.Generator().manual_seed(1)) for each in (replace(plain, padding=SPECIAL.pad), plain))
    predicted = actual.labels != IGNORED
    assert predicted.sum(1).tolist() == [6, 3, 1, 0, 6]
    assert torch.equal(actual.labels[predicted], tokens.gather(1, actual.positions)[predicted])
    assert (actual.tokens[:, 0] == SPECIAL.cls).all()
    assert ((actual.tokens == tokens) | torch.zeros_like(tokens, dtype=torch.bool).scatter(1, actual.positions, True)).all()
    full = lengths == 40
    assert all(torch.equal(one[full], other[full]) for one, other in zip(actual, whole, strict=True))


def test_pieces_that_end_a_sentence_are_known_by_their_text() -> None:
    pieces = [*SPECIAL_PIECES, "a", ".", "##b", "?", "!", ",", "。", "..."]
    ends = sentence_ends(bert_tokenizer({piece: number for number, piece in enumerate(pieces)}))
    assert [pieces[end] for end in ends] == [".", "?", "!", "。", "..."]


def test_a_split_of_one_pair_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDY_CACHE", str(tmp_path / "cache"))
    words = ["".join(letters) for letters in zip("abcdefghij" * 40, "klmnopqrst" * 40, strict=True)]
    texts = [" ".join(words[i : i + 30]) for i in range(300)]
    (tmp_path / "text.txt").write_text("\n\n".join(dict.fromkeys(texts)) + "".join(f"\n\nab{i} kl" for i in range(400)))
    values: dict[str, Any] = {"tokenizer": {"vocabulary": 64}, "sequence_length": 16, "validation_sequences": 1}
    prepared = prepare(DataConfig.parse({"corpus": str(tmp_path / "text.txt")} | values))
    length = 2 + prepared.facts.tokens["validation"]
    longer = prepare(DataConfig.parse({"corpus": str(tmp_path / "text.txt")} | values | {"sequence_length": length - 1}))
    with pytest.raises(InputError, match="validation split holds fewer than two pairs"):
        PackedPairs.of(longer, "validation", "mlm_nsp", 0)
