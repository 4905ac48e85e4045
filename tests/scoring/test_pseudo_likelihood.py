"""Pseudo-log-likelihood from left to right within words, against its definition."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from study.model.masked_language_model import MaskedLanguageModel
from study.scoring import pseudo_likelihood
from study.scoring.pseudo_likelihood import PseudoLikelihood, masked_inputs, words_of
from study.training.attempts import Preempted, StopSignal
from tests.model.test_model import randomised, small
from tests.scoring.test_encoding import SPECIAL, TOKENIZER, byte_level

RUN: Any = SimpleNamespace(tokenizer=TOKENIZER, special=SPECIAL, max_length=lambda requested: requested or 24)
TEXTS = ["a b c", "a b d"]
SENTENCES = ["abc d efg", "a b c", "a b d", "h", "abcd ef ?", "\u200b"]


@pytest.fixture(scope="module")
def model() -> Any:
    return randomised(MaskedLanguageModel(small())).eval()


def by_definition(model: MaskedLanguageModel, sentence: str) -> float:
    """Kauf and Ivanova 2023: mask a token and the later ones of its word, add up its log probability."""
    encoding = TOKENIZER.encode(sentence, add_special_tokens=False)
    total = 0.0
    for place, (target, word) in enumerate(zip(encoding.ids, encoding.word_ids, strict=True)):
        masked = [
            SPECIAL.mask if later >= place and encoding.word_ids[later] == word else piece
            for later, piece in enumerate(encoding.ids)
        ]
        logits = model(torch.tensor([[SPECIAL.cls, *masked, SPECIAL.sep]]))[0, place + 1]
        total += logits.log_softmax(0)[target].item()
    return total


def test_scores_are_those_of_the_definition(model: Any) -> None:
    scores, cut, tokens = PseudoLikelihood(model, RUN, "fp32", None)(SENTENCES, StopSignal())
    assert scores == pytest.approx([by_definition(model, sentence) for sentence in SENTENCES], abs=1e-4)
    assert tokens > 0
    assert not cut.any()


@pytest.mark.parametrize(
    ("batch_tokens", "at_once", "cells"), [(16, 20_000, 2**24), (1, 2, 2**24), (2048, 1, 2**24), (16, 20_000, 1)]
)
def test_scores_do_not_hang_on_how_many_are_scored_at_a_time(
    model: Any, monkeypatch: pytest.MonkeyPatch, batch_tokens: int, at_once: int, cells: int
) -> None:
    monkeypatch.setitem(pseudo_likelihood.BATCH_TOKENS, "cpu", batch_tokens)
    monkeypatch.setattr(pseudo_likelihood, "SENTENCES", at_once)
    monkeypatch.setattr(pseudo_likelihood, "CELLS", cells)
    scores, _, _ = PseudoLikelihood(model, RUN, "fp32", None)(SENTENCES, StopSignal())
    assert scores == pytest.approx([by_definition(model, sentence) for sentence in SENTENCES], abs=1e-4)


@pytest.mark.parametrize("at_once", [20_000, 1])
def test_a_sentence_is_read_up_to_the_length_that_is_asked_for(
    model: Any, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(pseudo_likelihood, "SENTENCES", at_once)
    scores, cut, _ = PseudoLikelihood(model, RUN, "fp32", 5)(["a b c d", "a b c"], StopSignal())
    assert cut.tolist() == [True, False]
    assert scores[0] == pytest.approx(scores[1])
    assert scores[1] == pytest.approx(by_definition(model, "a b c"), abs=1e-4)


def test_masked_inputs_that_are_alike_are_encoded_once() -> None:
    (actual,) = masked_inputs(TEXTS, TOKENIZER.encode_batch(TEXTS, add_special_tokens=False), SPECIAL, 22)
    assert len(actual.target) == 6
    assert len(actual.unique) == 5
    shared = np.flatnonzero(np.bincount(actual.of) == 2)
    assert actual.unique[shared[0]].tolist()[3] == SPECIAL.mask


def test_memory_for_masked_inputs_does_not_grow_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pseudo_likelihood, "CELLS", 8 * 22**2)
    texts = [" ".join("abcdefgh"[(row * 7 + place * place) % 8] for place in range(22)) for row in range(400)]
    encodings = TOKENIZER.encode_batch(texts, add_special_tokens=False)
    tracemalloc.start()
    made = sum(len(inputs.target) for inputs in masked_inputs(texts, encodings, SPECIAL, 22))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert made == 400 * 22
    assert peak < 0.2 * 50 * made * 22


def test_it_stops_when_told_to(model: Any) -> None:
    stop = StopSignal()
    stop.set()
    with pytest.raises(Preempted):
        PseudoLikelihood(model, RUN, "fp32", None)(SENTENCES, stop)


def test_words_end_at_spaces_where_the_tokeniser_does_not_split_there() -> None:
    """Otherwise all that follows a piece would be masked with it, and the score be that of a left-to-right model."""
    tokenizer, text = byte_level(splits=False), "zwei kleine Katzen"
    encoding = tokenizer.encode(text, add_special_tokens=False)
    words = words_of(text, encoding)
    firsts = [next(place for place in range(begin, len(text)) if text[place] != " ") for begin, _ in encoding.offsets]
    assert set(encoding.word_ids) == {0}
    assert words.tolist() == [text[:place].count(" ") for place in firsts]
    assert set(words.tolist()) == {0, 1, 2}


def test_words_of_berts_tokeniser_are_its_own() -> None:
    for text in SENTENCES:
        encoding = TOKENIZER.encode(text, add_special_tokens=False)
        assert words_of(text, encoding).tolist() == list(encoding.word_ids)
