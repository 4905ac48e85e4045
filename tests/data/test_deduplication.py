"""Repeated paragraphs are dropped, documents that nearly repeat each other share a split, and no split quotes another.

The share of validation tokens in windows of the training text equals that of a search through all windows.
"""

import random
from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.data import deduplication
from study.data.corpora import Document, Split, Tally, split_documents, split_of
from study.data.deduplication import WINDOW, WindowSet, items_in, overlap_share, repetitions, token_hashes, window_hashes

WORDS = [a + b + c for a in "bdgklmnprst" for b in "aeiou" for c in "nrst"]

SEP, VOCABULARY = 3, 40


def text(draw: random.Random, words: int, paragraphs: int = 1) -> str:
    return "\n".join(" ".join(draw.choices(WORDS, k=words)) for _ in range(paragraphs))


def of_split(split: Split, make: Callable[[], str]) -> str:
    """A text whose hash puts it into a split."""
    return next(actual for actual in iter(make, "") if split_of(actual) == split)


def deduplicated(texts: list[str]) -> tuple[list[tuple[Split, str]], Tally]:
    """What is left of texts, each with its split, and what was counted."""

    def documents(tally: Tally) -> Iterator[tuple[Split, str]]:
        return split_documents((Document(text, "here") for text in texts), tally)

    tally = Tally()
    actual = repetitions(lambda: documents(Tally()))
    return list(actual.without_repetitions(documents(tally), tally)), tally


def test_a_paragraph_is_kept_where_it_first_occurs_whatever_its_case_and_spaces() -> None:
    draw = random.Random(0)
    first, second, other = (text(draw, WINDOW) for _ in range(3))
    kept, tally = deduplicated([f"{first}\nyes\n{second}", f"{other}\nyes\n  {first.upper().replace(' ', '  ')}"])
    assert [left for _, left in kept] == [f"{first}\nyes\n{second}", f"{other}\nyes"]
    assert tally == Tally(documents=2, text_bytes=sum(len(left) for _, left in kept), repeated_paragraphs=1)


def test_short_paragraphs_may_repeat_and_empty_documents_are_left_out() -> None:
    draw = random.Random(1)
    short, long = text(draw, WINDOW - 1), text(draw, WINDOW)
    kept, tally = deduplicated([f"{short}\n{long}", short, f"{long} ", long.title()])
    assert [left for _, left in kept] == [f"{short}\n{long}", short]
    assert (tally.documents, tally.repeated_paragraphs) == (2, 2)


def changed(draw: random.Random, original: str, words: int) -> str:
    """The text with some words replaced."""
    actual = original.split(" ")
    for place in draw.sample(range(len(actual)), words):
        actual[place] = draw.choice(WORDS)
    return " ".join(actual)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_near_duplicates_share_a_split_in_any_order(seed: int) -> None:
    """Groups of copies, each with 4 of 200 words of its first one replaced, and lone documents, which stay where they were."""
    draw = random.Random(seed)
    groups = [[text(draw, 200)] for _ in range(8)]
    for group in groups:
        group += [changed(draw, group[0], 4) for _ in range(12)]
    lone = [text(draw, 200) for _ in range(30)]
    texts = [*chain.from_iterable(groups), *lone]
    draw.shuffle(texts)
    splits = {left: split for split, left in deduplicated(texts)[0]}
    assert splits == {left: split for split, left in deduplicated(texts[::-1])[0]}
    assert {one: splits[one] for one in lone} == {one: split_of(one) for one in lone}
    for group in groups:
        own = {split_of(one) for one in group}
        (joined,) = {splits[one] for one in group}
        assert joined == next(split for split in ("train", "validation", "test") if split in own)


def test_what_nearly_repeats_a_document_that_joined_joins_too() -> None:
    """Of a chain each document holds more than half of the windows of the next one alone."""
    draw = random.Random(2)
    shared, passed_on = text(draw, 110), text(draw, 80)
    first = of_split("train", lambda: f"{shared} {text(draw, 30)}")
    second = of_split("validation", lambda: f"{shared} {text(draw, 1)} {passed_on}")
    third = of_split("test", lambda: f"{passed_on} {text(draw, 30)}")
    kept, tally = deduplicated([third, second, first])
    assert kept == [("train", third), ("train", second), ("train", first)]
    assert tally.near_duplicates == 2


def test_a_held_out_paragraph_that_training_documents_hold_is_dropped_and_the_rest_stays() -> None:
    draw = random.Random(3)
    quoted, own = text(draw, 60), text(draw, 200)
    training = of_split("train", lambda: f"{text(draw, 30)} {quoted} {text(draw, 200)}")
    held_out = of_split("validation", lambda: f"{own}\n{text(draw, 20)} {quoted}\n{text(draw, 100)} {quoted}")
    kept, tally = deduplicated([held_out, training])
    lines = held_out.split("\n")
    assert kept == [("validation", f"{lines[0]}\n{lines[2]}"), ("train", training)], (
        "of one 60 of 80 words are quoted, of one 60 of 160"
    )
    assert (tally.near_duplicates, tally.repeated_paragraphs) == (0, 1)


def test_a_quotation_across_lines_is_seen() -> None:
    draw = random.Random(4)
    lines = [text(draw, WINDOW - 2) for _ in range(5)]
    training = of_split("train", lambda: f"{text(draw, 50)} {' '.join(lines)} {text(draw, 50)}")
    held_out = of_split("test", lambda: "\n".join([text(draw, 200), *lines, text(draw, 100)]))
    kept, _ = deduplicated([training, held_out])
    assert [left.count("\n") for _, left in kept] == [0, 1]


@pytest.mark.parametrize(
    "sentence",
    ["模型读取文字并预测被遮住的词语而不看后面的内容。", "そのモデルはマスクされた単語を文脈から予測するように訓練される。"],
)
def test_words_of_languages_without_spaces_are_their_characters(sentence: str) -> None:
    draw = random.Random(5)
    training = of_split("train", lambda: f"{sentence}{draw.random()}")
    held_out = of_split("validation", lambda: f"{text(draw, 60)}\n{sentence[1:]}{draw.random()}")
    assert [left.count("\n") for _, left in deduplicated([training, held_out])[0]] == [0, 0]


def test_a_corpus_of_nothing_and_of_one_split_has_no_repetitions() -> None:
    assert deduplicated([]) == ([], Tally())
    draw = random.Random(6)
    for split in ("train", "validation", "test"):
        one = of_split(split, lambda: text(draw, 30))
        assert deduplicated([one])[0] == [(split, one)]


def stream(*documents: list[int]) -> np.ndarray:
    return np.array([token for document in documents for token in (*document, SEP)], np.uint16)


def searched(validation: np.ndarray, train: np.ndarray) -> float:
    """The same by comparing tuples of tokens."""
    there = {tuple(train[at : at + 13]) for at in range(len(train) - 12)}
    windows = (range(at, at + 13) for at in range(len(validation) - 12))
    covered = {
        place for window in windows if tuple(validation[window]) in there and SEP not in validation[window] for place in window
    }
    return len(covered) / max(1, int((validation != SEP).sum()))


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 3))
def test_the_share_is_that_of_a_search_through_all_windows(seed: int, block: int, chunk: int) -> None:
    """Of texts that quote each other at random, whatever is looked at in one go."""
    random = np.random.default_rng(seed)
    passages = [random.integers(4, VOCABULARY, random.integers(1, 40)).tolist() for _ in range(6)]

    def text(count: int) -> np.ndarray:
        return stream(*([*passages[first], *passages[second]] for first, second in random.integers(0, 6, (count, 2))))

    validation, train = text(4), text(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deduplication, "BLOCK", block)
        patch.setattr(deduplication, "CHUNK", chunk * 20)
        assert overlap_share(validation, train, VOCABULARY, SEP) == pytest.approx(searched(validation, train))


def test_a_window_begins_at_thirteen_tokens_and_ends_with_its_document() -> None:
    words = list(range(4, 40))
    train = stream(words)
    for count, share in ((12, 0.0), (13, 13 / 23), (20, 20 / 30)):
        validation = stream([*words[:count], *[7] * 10])
        assert overlap_share(validation, train, VOCABULARY, SEP) == pytest.approx(share)
    apart = stream(words[:8], words[8:16])
    assert overlap_share(apart, apart, VOCABULARY, SEP) == 0, "no window lies in one document"
    assert overlap_share(stream([]), train, VOCABULARY, SEP) == overlap_share(train, stream(), VOCABULARY, SEP) == 0


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 9))
def test_items_of_windows_are_those_that_any_chosen_window_holds(chosen: list[bool], length: int) -> None:
    count = len(chosen) + length - 1
    held = {at + offset for at, one in enumerate(chosen) if one for offset in range(length)}
    assert np.flatnonzero(items_in(np.array(chosen, np.bool_), length, count)).tolist() == sorted(held)


@given(st.lists(st.integers(0, 9), max_size=40), st.lists(st.integers(0, 9), max_size=40), st.integers(1, 4))
def test_windows_are_met_where_they_are_equal(ours: list[int], theirs: list[int], length: int) -> None:
    def windows(items: list[int]) -> list[tuple[int, ...]]:
        return [tuple(items[at : at + length]) for at in range(len(items) - length + 1)]

    table = token_hashes(10)
    known = WindowSet(window_hashes(table[np.array(ours, int)], length))
    known.meet(window_hashes(table[np.array(theirs, int)], length))
    assert known.met.tolist() == [window in windows(theirs) for window in windows(ours)]
    known.forget()
    assert not known.met.any()
