"""Repeated paragraphs are dropped, documents that nearly repeat each other share a split, and no split quotes another."""

import random
from collections.abc import Callable, Iterator
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from study.data.corpora import Document, Split, Tally, split_documents, split_of
from study.data.deduplication import WINDOW, repetitions

WORDS = [a + b + c for a in "bdgklmnprst" for b in "aeiou" for c in "nrst"]


def text(draw: random.Random, words: int, paragraphs: int = 1) -> str:
    return "\n".join(" ".join(draw.choices(WORDS, k=words)) for _ in range(paragraphs))


def of_split(split: Split, make: Callable[[], str]) -> str:
    """A text whose hash puts it into a split."""
    return next(found for found in iter(make, "") if split_of(found) == split)


def deduplicated(texts: list[str]) -> tuple[list[tuple[Split, str]], Tally]:
    """What is left of texts, each with its split, and what was counted."""

    def documents(tally: Tally) -> Iterator[tuple[Split, str]]:
        return split_documents((Document(text, "here") for text in texts), tally)

    tally = Tally()
    found = repetitions(lambda: documents(Tally()))
    return list(found.without_repetitions(documents(tally), tally)), tally


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
    found = original.split(" ")
    for place in draw.sample(range(len(found)), words):
        found[place] = draw.choice(WORDS)
    return " ".join(found)


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
