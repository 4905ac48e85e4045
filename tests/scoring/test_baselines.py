"""Baselines find what words alone tell, and on the field's tasks they score what the field has measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.scoring.baselines import (
    BAG_OF_WORDS,
    BIGRAM,
    FEW_EXAMPLES,
    MAJORITY,
    Bag,
    Bigrams,
    _regression,
    baseline_predictions,
    baselines,
    nearest_run,
)
from study.scoring.task_metrics import measure
from study.tasks.examples import MinimalPair, SpanExample, TaskData, TextExample, TokensExample
from study.tasks.loading import load_task
from tests.made_tasks import question, tagged, task, texts

RANGES = {
    "cola": ("matthews", 0.0, (0.0, 0.2)),
    "sst2": ("accuracy", 0.499, (0.79, 0.86)),
    "trec": ("accuracy", 0.188, (0.84, 0.93)),
    "mrpc": ("accuracy", 0.665, (0.69, 0.77)),
    "rte": ("accuracy", 0.473, (0.48, 0.62)),
    "stsb": ("spearman", 0.0, (0.5, 0.72)),
    "wnut17_ner": ("entity_f1", 0.0, (0.03, 0.2)),
    "ud_ewt_pos": ("accuracy", 0.164, (0.84, 0.89)),
    "qamr_qa": ("answer_f1", 0.161, (0.25, 0.4)),
    "blimp": ("paradigm_accuracy", 0.5, (0.5, 0.62)),
}
"""The headline, what the majority gets, and where a bag of words lies: known of the literature where it has measured one."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RANGES)
def test_baselines_of_the_shared_tasks_are_in_known_ranges(name: str, shared_data: Path) -> None:
    """NB-SVMs have 0.82 on SST-2 (Wang and Manning 2012), SVMs 0.88 on TREC; the commonest tag of a word 0.86 on EWT."""
    metric, majority, (low, high) = RANGES[name]
    articles = pd.read_parquet(shared_data / "corpora" / "wiki.parquet", columns=["text"])["text"]
    scores = baselines(load_task(name, shared_data / "tasks"), lambda: articles)
    assert scores[MAJORITY][metric] == pytest.approx(majority, abs=1e-3)
    assert low < scores[BAG_OF_WORDS][metric] < high


def sentences() -> Iterable[str]:
    return ["the cat sat on the mat.", "the dogs sit on a mat.", "who did the cat see?"]


def test_a_bag_of_words_learns_what_words_tell_and_no_order() -> None:
    actual = [TextExample(row, f"{('awful', 'lovely')[row % 2]} film {row % 7}", None, row % 2) for row in range(60)]
    scores = baselines(task("single", ["accuracy"], actual, ["bad", "good"]))
    assert scores == {MAJORITY: {"accuracy": 0.5}, BAG_OF_WORDS: {"accuracy": 1.0}}


def test_a_bag_of_words_learns_all_classes_of_a_sorted_train_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("study.scoring.baselines.MOST_TRAIN", 30)
    actual = [TextExample(row, f"{('awful', 'lovely')[row // 30]} film", None, row // 30) for row in range(60)]
    scores = baselines(task("single", ["accuracy"], actual, ["bad", "good"]))
    assert scores[BAG_OF_WORDS] == {"accuracy": 1.0}


@pytest.mark.parametrize("pairs", [False, True])
def test_texts_without_a_common_word_have_baselines_at_chance(pairs: bool) -> None:
    actual = [TextExample(row, f"once{row}", f"other{row}" if pairs else None, row % 2) for row in range(2 * FEW_EXAMPLES + 2)]
    train, rest = actual[: FEW_EXAMPLES + 1], actual[FEW_EXAMPLES + 1 :]
    of = task("pair" if pairs else "single", ["accuracy"], train, ["bad", "good"])
    scores = baselines(replace(of, splits={"train": train, "dev": rest[:1], "test": rest}))
    chance = {"accuracy": pytest.approx(0.5, abs=0.01)}
    assert scores == {MAJORITY: chance, BAG_OF_WORDS: chance}


def test_words_of_one_example_tell_nothing_among_many() -> None:
    actual = [TextExample(row, f"film{row} film", None, row % 2) for row in range(FEW_EXAMPLES + 1)]
    assert list(Bag(actual).words.vocabulary_) == ["film"]


def test_the_commonest_tag_is_counted_once_a_word() -> None:
    actual = [
        TokensExample(row, ("Anna", "met", "Bob", "and", "Carl", "was", "glad"), (1, 0, 1, 0, 1, 0, 0)) for row in range(20)
    ]
    scores = baselines(task("tokens", ["accuracy"], actual, ["O", "PER"]))
    assert scores[MAJORITY]["accuracy"] == pytest.approx(4 / 7)


def test_a_bag_of_words_of_pairs_sees_what_they_share() -> None:
    words = ["red", "blue", "green", "pink", "grey", "black", "white", "brown"]
    actual = [
        TextExample(row, words[row % 8], words[(row % 8 + shift) % 8], 5.0 * (shift == 0))
        for row in range(40)
        for shift in (0, 1, 3)
    ]
    scores = baselines(task("pair", ["pearson"], actual, regression=True))
    assert scores[MAJORITY] == {"pearson": 0.0}
    assert scores[BAG_OF_WORDS]["pearson"] > 0.95


def test_the_strength_is_chosen_on_dev_and_never_on_test(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []

    def noted(made: TaskData, split: str, actual: Sequence[Any]) -> dict[str, float]:
        requested.append(split)
        return measure(made, split, actual)

    monkeypatch.setattr("study.scoring.baselines.measure", noted)
    baseline_predictions(task("single", ["accuracy"], texts([0, 1] * 20), ["bad", "good"]))
    assert set(requested) == {"dev"}


class Constant:
    """A regression that says its strength of every text."""

    def __init__(self, strength: float) -> None:
        self.strength = strength

    def fit(self, *_: object) -> Constant:
        return self

    def predict(self, features: Any) -> Any:
        return np.full(features.shape[0], self.strength)


def test_the_strength_that_dev_likes_best_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    on_dev = {0.1: 0.2, 1.0: 0.9, 10.0: 0.5, 100.0: 0.4}
    monkeypatch.setattr("study.scoring.baselines._regression", lambda _, strength: Constant(strength))
    monkeypatch.setattr("study.scoring.baselines.measure", lambda *of: {"pearson": on_dev[of[2][0]]})
    made = task("single", ["pearson"], texts([0.0, 1.0, 2.0]), regression=True)
    assert baseline_predictions(made)[BAG_OF_WORDS] == [1.0] * 3


def test_the_strengths_are_inverse_penalties_of_both_regressions() -> None:
    assert _regression(task("single", ["pearson"], [], regression=True), 100.0).alpha == 0.01
    assert _regression(task("single", ["accuracy"], [], ["bad", "good"]), 100.0).C == 100.0


def test_words_get_the_tag_that_they_have_most_often() -> None:
    train = tagged([[0, 1, 2], [0, 1, 2], [0, 0, 2]])
    predictions = baseline_predictions(task("tokens", ["accuracy"], train, ["x", "y", "z"]))
    assert predictions[BAG_OF_WORDS][0] == [0, 1, 2]
    assert predictions[MAJORITY][0] == [0, 0, 0]


def test_a_word_that_train_has_in_capitals_alone_has_its_tag_in_any_case() -> None:
    train = [TokensExample(0, ("Ann", "is", "so"), (1, 0, 0))]
    test = [TokensExample(0, ("ann", "ANN", "Is", "bob"), (0, 0, 0, 0))]
    actual = task("tokens", ["accuracy"], train, ["O", "PER"])
    actual = replace(actual, splits={**actual.splits, "test": test})
    assert baseline_predictions(actual)[BAG_OF_WORDS] == [[1, 1, 0, 0]]


def test_an_answer_is_sought_beside_the_words_of_the_question() -> None:
    context = "Ann, who was born in Oslo, met Bob in Paris last summer."
    assert nearest_run(SpanExample(0, context, "Where was Ann born?", ("Oslo",), (21,))) == "Oslo"
    assert nearest_run(SpanExample(0, "To be", "To be?", ("To",), (0,))) == "To be"


def test_a_bag_of_words_learns_each_of_several_labels() -> None:
    words = [("sun", "dry"), ("rain", "wet"), ("snow", "wet cold"), ("sun", "dry hot")] * 20
    names = ["dry", "wet", "cold", "hot"]
    rows = [
        TextExample(
            number,
            f"{text} {'ice' * ('cold' in marks)} {'fire' * ('hot' in marks)}",
            None,
            tuple(int(n in marks) for n in names),
        )
        for number, (text, marks) in enumerate(words)
    ]
    made = task("single", ["micro_f1"], rows, names, multi_label=True)
    scores = baselines(made)
    assert scores["bag_of_words"]["micro_f1"] == 1.0
    assert scores["majority"]["micro_f1"] == pytest.approx(2 * 40 / (80 + 120))


def test_no_answer_is_the_usual_one_where_some_questions_have_none() -> None:
    rows = [question([]), question(["two"])]
    assert baselines(task("spans", ["answer_f1"], rows, unanswerable=True))["majority"]["answer_f1"] == 0.5


def test_pairs_of_words_see_order_and_words_alone_do_not() -> None:
    actual = [MinimalPair(0, "the cat sat.", "cat the sat.", "order"), MinimalPair(1, "the mat", "the zebra", "word")]
    scores = baseline_predictions(task("minimal_pairs", ["paradigm_accuracy"], actual), sentences)
    assert scores == {MAJORITY: [0.5, 0.5], BAG_OF_WORDS: [0.5, 1.0], BIGRAM: [1.0, 1.0]}


def test_the_probabilities_of_what_may_follow_a_word_add_up_to_one() -> None:
    model = Bigrams(sentences())
    for first in ("the", "cat", "<s>", "never seen"):
        seen = sum(model._pair(first, word) for word in model.words)
        unseen = model._pair(first, "zebra")
        assert seen + unseen == pytest.approx(1.0)
