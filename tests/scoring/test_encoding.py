"""Examples become inputs that fit, whose labels stand where they belong, and answers come back as they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.base.errors import InputError
from study.config.score_config import Knobs
from study.data.tokenizing import SPECIAL_PIECES, SpecialTokens, bert_tokenizer
from study.scoring.encoding import TaskEncoder, overlapping_windows, shorten, windows_of_words
from study.scoring.spans import answers, best_span
from study.scoring.subsets import subset
from study.tasks.examples import SpanExample, TaskData, TextExample, TokensExample
from tests.made_tasks import pairs, tagged, task, texts

PIECES = {piece: number for number, piece in enumerate([*SPECIAL_PIECES, *"abcdefgh", *(f"##{x}" for x in "abcdefgh"), "?"])}
TOKENIZER = bert_tokenizer(PIECES)
SPECIAL = SpecialTokens.of(TOKENIZER)


def encoder(max_length: int) -> TaskEncoder:
    return TaskEncoder(TOKENIZER, SPECIAL, max_length)


def pieces(row: np.ndarray) -> list[str]:
    names = {number: piece for piece, number in PIECES.items()}
    return [names[int(number)] for number in row]


def test_a_text_loses_its_end_and_is_counted() -> None:
    inputs = encoder(8).encode([TextExample(0, "a b c d e f g h", None, 1), TextExample(1, "[SEP] a", None, 0)])
    assert pieces(inputs.tokens[0]) == ["[CLS]", *"abcdef", "[SEP]"]
    assert inputs.truncated == 1
    assert inputs.labels.tolist() == [1, 0]


def test_a_pair_loses_the_end_of_its_longer_text() -> None:
    inputs = encoder(9).encode([TextExample(0, "a b c d e f", "g h", 1), TextExample(1, "a b c", "d e f", 1)])
    assert pieces(inputs.tokens[0]) == ["[CLS]", *"abcd", "[SEP]", "g", "h", "[SEP]"]
    assert inputs.second.tolist() == [6, 5]
    assert inputs.truncated == 1


@given(st.integers(0, 50), st.integers(0, 50), st.integers(2, 60))
def test_shortened_texts_fit_and_no_more_is_lost_than_must_be(first: int, second: int, room: int) -> None:
    kept = shorten(first, second, room)
    assert sum(kept) == min(room, first + second)
    assert kept[0] <= first
    assert kept[1] <= second
    if sum(kept) < first + second and min(kept) < min(first, second):
        assert abs(kept[0] - kept[1]) <= 1


def test_the_first_piece_of_each_word_is_labelled() -> None:
    inputs = encoder(16).encode([TokensExample(0, ("ab", "c", "defg"), (3, 1, 2))])
    assert inputs.word_places is not None
    assert inputs.word_labels is not None
    row = pieces(inputs.tokens[0])
    assert [row[place] for place in inputs.word_places[0]] == ["a", "c", "d"]
    assert inputs.word_labels[0].tolist() == [3, 1, 2]


def test_a_word_of_which_nothing_is_left_is_unknown_and_labelled() -> None:
    inputs = encoder(16).encode([TokensExample(0, ("a", "\u200b", "b"), (0, 1, 2))])
    assert pieces(inputs.tokens[0]) == ["[CLS]", "a", "[UNK]", "b", "[SEP]"]


def test_every_word_of_a_long_text_is_labelled_once() -> None:
    words = tuple("abc" if number % 3 else "d" for number in range(40))
    inputs = encoder(12).encode([TokensExample(0, ("a",), (9,)), TokensExample(1, words, tuple(range(40)))])
    assert inputs.word_labels is not None
    assert inputs.tokens.lengths.max() <= 12
    labels = [inputs.word_labels[row].tolist() for row in range(len(inputs)) if inputs.example[row] == 1]
    assert [label for row in labels for label in row] == list(range(40))
    assert inputs.truncated == 1


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.integers(5, 12))
def test_windows_of_words_cover_them_all(lengths: list[int], room: int) -> None:
    windows = windows_of_words(lengths, room)
    assert [word for begin, end in windows for word in range(begin, end)] == list(range(len(lengths)))
    assert all(sum(lengths[begin:end]) <= room for begin, end in windows)


@given(st.integers(0, 200), st.integers(2, 60))
def test_overlapping_windows_cover_and_any_short_span_is_whole_in_one(length: int, room: int) -> None:
    windows = overlapping_windows(length, room)
    assert all(end - begin <= room for begin, end in windows)
    for begin in range(length):
        end = min(length, begin + room // 2)
        assert any(first <= begin and end <= last for first, last in windows)


CONTEXT = "a bc d ef g h a b c d e f g habc d e"


@pytest.mark.parametrize("max_length", [12, 16, 48])
@pytest.mark.parametrize("answer", ["bc d", "habc", "a", "d e"])
def test_gold_places_give_the_gold_answer_back(max_length: int, answer: str) -> None:
    example = SpanExample(0, CONTEXT, "a ?", (answer,), (CONTEXT.rindex(answer),))
    inputs = encoder(max_length).encode([example])
    assert (len(inputs) > 1) == (max_length < 48)
    logits = []
    for row in range(len(inputs)):
        of_row = np.zeros((len(inputs.tokens[row]), 2))
        first, last = inputs.labels[row]
        of_row[first, 0] = of_row[last, 1] = 5.0
        logits.append(of_row)
    assert inputs.labels.max() > 0
    assert answers([example], inputs, logits) == [answer]


def test_the_best_span_is_the_best_of_all_that_are_short_enough() -> None:
    draw = np.random.default_rng(0)
    start, end = draw.normal(size=50), draw.normal(size=50)
    score, first, last = best_span(start, end, 10, 45)
    spans = [(start[i] + end[j], i, j) for i in range(10, 45) for j in range(i, min(45, i + 30))]
    assert (score, first, last) == pytest.approx(max(spans))


def test_an_answer_is_never_of_the_question() -> None:
    example = SpanExample(0, "a b c", "d e ?", ("b",), (2,))
    inputs = encoder(16).encode([example])
    logits = np.zeros((len(inputs.tokens[0]), 2))
    logits[1] = 100.0
    logits[6] = 1.0
    assert answers([example], inputs, [logits]) == ["b"]


NUMBERS = task("single", ["pearson"], texts([0.0, 1.0, 2.0]), regression=True)
TAGS = task("tokens", ["accuracy"], tagged([[1, 0], [0], [0, 0]]), ["O", "PER"])


@pytest.mark.parametrize(
    ("scored", "most", "message"),
    [
        (
            task("single", ["pearson"], texts([2.5] * 3), regression=True),
            None,
            "made: all its train examples have the label 2.5; give examples of others",
        ),
        (
            task("single", ["accuracy"], texts([1, 1]), ["bad", "good"]),
            None,
            "made: all its train examples have the label 'good'; give examples of others",
        ),
        (
            task("tokens", ["accuracy"], tagged([[0, 0], [0]]), ["O", "PER"]),
            None,
            "made: all its train examples have the label 'O'; give examples of others",
        ),
        (
            NUMBERS,
            1,
            "downstream.knobs.max_train_examples: leaves made only examples of the label 2.0 to learn from; raise it",
        ),
        (TAGS, 2, "downstream.knobs.max_train_examples: leaves made only examples of the label 'O' to learn from; raise it"),
    ],
)
def test_one_label_alone_is_refused_before_anything_is_trained(scored: TaskData, most: int | None, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        subset(scored, Knobs(max_train_examples=most))
    assert str(refusal.value) == message


@pytest.mark.parametrize("scored", [NUMBERS, TAGS, task("minimal_pairs", ["accuracy"], pairs(["one", "one"]))])
def test_what_has_several_labels_or_none_is_scored(scored: TaskData) -> None:
    assert subset(scored, Knobs()) == scored
