"""Examples become inputs that fit, whose labels stand where they belong, and answers come back as they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from study.base.errors import InputError
from study.config.score_config import Knobs
from study.data.tokenizing import SPECIAL_PIECES, SpecialTokens, bert_tokenizer
from study.scoring.predictions import answers, best_span
from study.scoring.scored_examples import TaskEncoder, overlapping_windows, shorten, subset, windows_of_words
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
    assert inputs.truncated == 0


def test_only_a_word_or_a_question_that_loses_pieces_is_counted_as_cut() -> None:
    tagged_words = [
        TokensExample(0, ("a" * 6, "b"), (0, 1)),
        TokensExample(1, ("a" * 7,), (0,)),
        TokensExample(2, ("a",), (0,)),
    ]
    assert encoder(8).encode(tagged_words).truncated == 1
    questions = [SpanExample(0, CONTEXT, question, ("a",), (0,)) for question in ("a b c d", "a b c d e")]
    inputs = encoder(11).encode(questions)
    assert (np.bincount(inputs.example) > 1).all()
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


@pytest.mark.parametrize("max_length", [12, 48])
def test_a_question_without_an_answer_is_labelled_at_cls_and_answered_where_every_window_says_so(max_length: int) -> None:
    example = SpanExample(0, CONTEXT, "a ?", (), ())
    inputs = encoder(max_length).encode([example])
    assert not inputs.labels.any()
    logits = [np.zeros((len(row), 2)) for row in (inputs.tokens[number] for number in range(len(inputs)))]
    for of_row in logits:
        of_row[0] = 1.0
    assert answers([example], inputs, logits, unanswerable=True) == [""]
    assert answers([example], inputs, logits) != [""]
    logits[-1][int(inputs.second[-1])] = 1.5
    assert answers([example], inputs, logits, unanswerable=True) != [""]


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
            "made: all training examples have the label 2.5; add examples of other labels",
        ),
        (
            task("single", ["accuracy"], texts([1, 1]), ["bad", "good"]),
            None,
            "made: all training examples have the label 'good'; add examples of other labels",
        ),
        (
            task("tokens", ["accuracy"], tagged([[0, 0], [0]]), ["O", "PER"]),
            None,
            "made: all training examples have the label 'O'; add examples of other labels",
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


def byte_level(prefix_space: bool = False, splits: bool = True) -> Tokenizer:
    """A byte-level BPE trained on a few words, as GPT-2's (without a leading space), or one that does not split at spaces."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=prefix_space, use_regex=splits)
    trainer = BpeTrainer(special_tokens=[*SPECIAL_PIECES], initial_alphabet=ByteLevel.alphabet(), vocab_size=400)
    tokenizer.train_from_iterator(["New York is big", "New Yorkers are here", "the york of new"] * 50, trainer)
    return tokenizer


WORDS = ("New", "York", "is", "Ünïcode", "big", "—", "here")


@pytest.mark.parametrize("prefix_space", [False, True])
def test_tagged_words_have_the_pieces_of_running_text(prefix_space: bool) -> None:
    """Without a leading space the words of a sentence, encoded one by one, would be pieces that pre-training never saw."""
    tokenizer = byte_level(prefix_space)
    inputs = TaskEncoder(tokenizer, SpecialTokens.of(tokenizer), 64).encode([TokensExample(0, WORDS, tuple(range(7)))])
    running = tokenizer.encode(" ".join(WORDS), add_special_tokens=False)
    assert inputs.tokens[0].tolist()[1:-1] == running.ids
    assert inputs.word_places is not None
    firsts = [tokenizer.decode([int(inputs.tokens[0][place])]).strip() for place in inputs.word_places[0]]
    assert all(word.startswith(first) for word, first in zip(WORDS, firsts, strict=True) if first.isascii())
    assert len(set(inputs.word_places[0].tolist())) == len(WORDS)


def test_words_within_one_piece_are_labelled_there() -> None:
    tokenizer = byte_level(splits=False)
    encoding = tokenizer.encode("New York is big", add_special_tokens=False)
    assert len(encoding.ids) < 4
    inputs = TaskEncoder(tokenizer, SpecialTokens.of(tokenizer), 64).encode(
        [TokensExample(0, ("New", "York", "is", "big"), (0, 1, 2, 3))]
    )
    assert inputs.tokens[0].tolist()[1:-1] == encoding.ids
    assert inputs.word_places is not None
    assert inputs.word_labels is not None
    spans = [encoding.offsets[place - 1] for place in inputs.word_places[0]]
    assert all(begin <= at < end for (begin, end), at in zip(spans, (0, 4, 9, 12), strict=True))
    assert inputs.word_labels[0].tolist() == [0, 1, 2, 3]


@given(st.lists(st.sampled_from(["ab", "c", "a?b", "\u200b", "Éa", "x", "a b", "中a", "?"]), min_size=1, max_size=12))
def test_of_berts_tokeniser_running_text_has_the_pieces_of_its_words(words: list[str]) -> None:
    row = encoder(200).encode([TokensExample(0, tuple(words), tuple(range(len(words))))])
    alone = TOKENIZER.encode_batch([[word] for word in words], is_pretokenized=True, add_special_tokens=False)
    expected = [piece for encoding in alone for piece in encoding.ids or [SPECIAL.unk]]
    assert row.tokens[0].tolist()[1:-1] == expected
