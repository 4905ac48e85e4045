"""Metrics equal the field's other implementations, and intervals cover what they should."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
from scipy import stats
from torchmetrics.functional.text import squad

from study.scoring.task_metrics import (
    Interval,
    answer_scores,
    by_paradigm,
    interval,
    measure,
    normalised,
    parts_of,
    resampled_sums,
)
from study.tasks.examples import TaskData, TextExample
from study.tasks.task_spec import MULTI_LABEL, Metric
from tests.made_tasks import pairs, question, tagged, task, texts

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def classified(count: int, seed: int) -> tuple[TaskData, list[int], list[int]]:
    generator = np.random.default_rng(seed)
    gold = generator.integers(count, size=200)
    predicted = np.where(generator.random(200) < 0.6, gold, generator.integers(count, size=200)).tolist()
    metrics: list[Metric] = ["accuracy", "macro_f1", "matthews", *(["f1"] if count == 2 else [])]  # type: ignore[list-item]
    return task("single", metrics, texts(gold.tolist()), [f"c{place}" for place in range(count)]), predicted, gold.tolist()


@pytest.mark.parametrize("count", [2, 3, 6])
def test_metrics_of_classes_equal_scikit_learn(count: int) -> None:
    made, predicted, gold = classified(count, seed=count)
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(gold, predicted),
        "macro_f1": sklearn.metrics.f1_score(gold, predicted, average="macro"),
        "matthews": sklearn.metrics.matthews_corrcoef(gold, predicted),
    }
    if count == 2:
        expected["f1"] = sklearn.metrics.f1_score(gold, predicted)
    assert measure(made, "test", predicted) == pytest.approx(expected, abs=1e-12)


def test_metrics_of_several_labels_equal_scikit_learn() -> None:
    generator = np.random.default_rng(5)
    gold, said = (generator.random((200, 4)) < [0.1, 0.3, 0.5, 0.0] for _ in range(2))
    made = task("single", [*MULTI_LABEL], texts(list(map(tuple, gold.astype(int).tolist()))), [*"abcd"], multi_label=True)
    scores = measure(made, "test", list(map(tuple, said.astype(int).tolist())))
    there = (gold | said).any(0)
    assert scores["micro_f1"] == pytest.approx(sklearn.metrics.f1_score(gold, said, average="micro"))
    assert scores["macro_f1"] == pytest.approx(sklearn.metrics.f1_score(gold[:, there], said[:, there], average="macro"))
    assert scores["subset_accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(gold, said))


def test_a_class_that_is_neither_there_nor_said_has_no_part_in_macro_f1() -> None:
    """scikit-learn gives it 0 among several labels, so that right predictions, or resamples of them, would score below 1."""
    gold = [(1, 0, 0)] * 50 + [(0, 1, 0)] * 49 + [(0, 0, 1)]
    made = task("single", ["macro_f1"], texts(gold), [*"abc"], multi_label=True)
    assert interval(made, "test", gold) == Interval(1.0, 1.0, 0.0)
    assert sklearn.metrics.f1_score(gold[:-1], gold[:-1], average="macro", zero_division=0) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("answers", "prediction", "score"), [([], "", 1.0), ([], "two", 0.0), (["two"], "", 0.0), (["the"], "", 1.0)]
)
def test_a_question_without_an_answer_wants_none(answers: list[str], prediction: str, score: float) -> None:
    assert answer_scores(question(answers), prediction) == (score, score)


def test_a_classifier_that_always_says_yes_has_no_correlation() -> None:
    made = task("single", ["matthews", "f1"], texts([1] * 67 + [0] * 33), ["no", "yes"])
    assert measure(made, "test", [1] * 100) == pytest.approx({"matthews": 0.0, "f1": 2 * 67 / 167})


def test_metrics_of_numbers_equal_scipy() -> None:
    generator = np.random.default_rng(0)
    gold = np.round(generator.random(100) * 5, 1)  # with ties
    predicted = np.round(gold + generator.normal(size=100), 1)
    made = task("pair", ["spearman", "pearson"], texts(gold.tolist()), regression=True)
    scores = measure(made, "test", predicted.tolist())
    assert scores["pearson"] == pytest.approx(stats.pearsonr(gold, predicted).statistic, abs=1e-12)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(gold, predicted).statistic, abs=1e-12)
    for constant in (2.5, 0.1, 1 / 3):  # also where the rounded mean is another number
        assert measure(made, "test", [constant] * 100) == {"spearman": 0.0, "pearson": 0.0}


def test_entities_count_only_where_type_and_borders_agree() -> None:
    gold = [[1, 2, 0, 3], [0, 3, 4, 0], [0, 0]]
    predicted = [[1, 2, 0, 0], [0, 3, 0, 0], [1, 0]]  # one of three found, and three said: F1 is 1/3
    made = task("tokens", ["entity_f1", "accuracy"], tagged(gold), TAGS)
    assert measure(made, "test", predicted) == pytest.approx({"entity_f1": 1 / 3, "accuracy": 7 / 10})


@pytest.mark.parametrize(
    ("answers", "prediction", "exact", "f1"),
    [
        (["Denver Broncos"], "the Denver Broncos!", 1.0, 1.0),
        (["Denver Broncos", "Broncos"], "broncos of Denver", 0.0, 0.8),
        (["1,000"], "1000", 1.0, 1.0),
        (["Santa Clara"], "", 0.0, 0.0),
        (["the"], "a", 1.0, 1.0),
        (["one one two"], "one", 0.0, 0.5),
        (["one one two"], "one one", 0.0, 0.8),
        (["Denver Broncos", "Broncos"], "Broncos", 1.0, 1.0),
        (["apple"], "an apple a day", 0.0, 2 / 3),
        (["vitamin–A"], "vitamin–", 1.0, 1.0),
        (["“The Who”"], "“A Who”", 1.0, 1.0),
    ],
)
def test_answers_are_compared_as_squad_does(answers: list[str], prediction: str, exact: float, f1: float) -> None:
    example = question(answers)
    assert answer_scores(example, prediction) == pytest.approx((exact, f1))
    if normalised(prediction) and normalised(answers[0]):
        gold: dict[str, list[str] | list[int]] = {"text": answers, "answer_start": [0] * len(answers)}
        theirs = squad({"prediction_text": prediction, "id": "0"}, {"answers": gold, "id": "0"})
        assert (float(theirs["exact_match"]), float(theirs["f1"])) == pytest.approx((100 * exact, 100 * f1), abs=1e-4)


def test_paradigms_weigh_the_same_however_many_pairs_they_have() -> None:
    made = task("minimal_pairs", ["paradigm_accuracy", "accuracy"], pairs(["a", "a", "a", "b"]))
    assert measure(made, "test", [True, True, True, False]) == {"paradigm_accuracy": 0.5, "accuracy": 0.75}
    assert by_paradigm(made.test, [1.0, 0.5, 0.0, 0.5]) == {"a": 0.5, "b": 0.5}
    assert list(by_paradigm(pairs("cab"), [1.0, 1.0, 1.0])) == ["a", "b", "c"]


def test_what_gold_labels_leave_undefined_is_zero() -> None:
    numbers = task("pair", ["spearman", "pearson"], texts([2.5, 2.5, 2.5]), regression=True)
    assert measure(numbers, "test", [1.0, 2.0, 3.0]) == {"spearman": 0.0, "pearson": 0.0}
    assert measure(task("single", ["matthews"], texts([1, 1, 1]), "ab"), "test", [0, 1, 1]) == {"matthews": 0.0}
    assert measure(task("tokens", ["entity_f1"], tagged([[0, 0]]), TAGS), "test", [[0, 0]]) == {"entity_f1": 0.0}


def test_predictions_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="1 predictions for 2 examples"):
        measure(task("single", ["accuracy"], texts([0, 1]), "ab"), "test", [0])
    with pytest.raises(ValueError, match="3 predictions for 2 examples"):
        measure(task("single", ["accuracy"], texts([0, 1]), "ab"), "test", [0, 1, 1])
    with pytest.raises(ValueError, match="1 classes for the 2 words of row 0"):
        measure(task("tokens", ["entity_f1"], tagged([[0, 1]]), TAGS), "test", [[0]])


def every_metric() -> list[tuple[TaskData, list[Any], Metric]]:
    generator = np.random.default_rng(3)
    two, two_said, _ = classified(2, seed=7)
    four, four_said, _ = classified(4, seed=8)
    score = np.round(generator.random(150) * 5)  # with ties
    numbers = task("pair", ["pearson", "spearman"], texts(score.tolist()), regression=True)
    sentences = [generator.integers(5, size=generator.integers(3, 12)).tolist() for _ in range(80)]
    said = [[tag if generator.random() < 0.8 else 0 for tag in tags] for tags in sentences]
    tokens = task("tokens", ["entity_f1", "accuracy", "macro_f1"], tagged(sentences), TAGS)
    spans = task("spans", ["answer_f1", "exact_match"], [question(["one two", "two"]) for _ in range(90)])
    minimal = task("minimal_pairs", ["paradigm_accuracy", "accuracy"], pairs([*"aab" * 40]))
    marks, said_marks = (list(map(tuple, generator.integers(2, size=(90, 3)).tolist())) for _ in range(2))
    several = task("single", [*MULTI_LABEL], texts(marks), ["a", "b", "c"], multi_label=True)
    cases = [
        (several, said_marks),
        (two, two_said),
        (four, four_said),
        (numbers, np.round(score + generator.normal(size=150), 1).tolist()),
        (tokens, said),
        (spans, [["one", "two", "one two", "three"][place] for place in generator.integers(4, size=90)]),
        (minimal, (generator.random(120) < 0.7).tolist()),
    ]
    return [(made, predicted, metric) for made, predicted in cases for metric in made.spec.metrics]


@pytest.mark.parametrize(("made", "predicted", "metric"), every_metric())
def test_the_interval_of_a_metric_holds_it(made: TaskData, predicted: list[Any], metric: Metric) -> None:
    bounds = interval(made, "test", predicted, metric)
    assert bounds.low < measure(made, "test", predicted)[metric] < bounds.high
    assert bounds == interval(made, "test", predicted, metric), "the same predictions give the same interval"


@pytest.mark.parametrize(("made", "predicted", "metric"), every_metric())
def test_the_metric_of_a_resample_is_that_of_its_examples(made: TaskData, predicted: list[Any], metric: Metric) -> None:
    """Only ranks stay as they are in all examples."""
    parts, generator = parts_of(made, made.test, predicted, metric), np.random.default_rng(1)
    for _ in range(20):
        chosen = generator.integers(len(predicted), size=6)
        actual = float(parts.combine(parts.of_examples[chosen].sum(axis=0)))
        if metric == "spearman":
            gold = [example.label for example in made.test if isinstance(example, TextExample)]
            expected = float(stats.pearsonr(stats.rankdata(predicted)[chosen], stats.rankdata(gold)[chosen]).statistic)
        else:
            resample = replace(made, splits={"test": [made.test[one] for one in chosen]})
            expected = measure(resample, "test", [predicted[one] for one in chosen])[metric]
        assert actual == pytest.approx(expected, abs=1e-9)


def test_resamples_are_as_many_as_asked_for_and_as_large_as_the_split() -> None:
    sums = resampled_sums(np.ones((30, 2)), 100, np.random.default_rng(0))
    assert sums.shape == (100, 2)
    assert (sums == 30).all()


def test_the_interval_is_of_the_first_metric() -> None:
    made = task("single", ["f1", "accuracy"], texts([1] * 30 + [0] * 70), ["no", "yes"])
    said = [1, 0] * 50
    assert interval(made, "test", said) == interval(made, "test", said, "f1") != interval(made, "test", said, "accuracy")


@pytest.mark.parametrize("metric", ["matthews", "pearson"])
def test_what_is_undefined_in_all_resamples_or_in_some_is_zero_there(metric: Metric) -> None:
    """A third of the resamples lack the one prediction that differs; sums of the others' squares round to less than nothing."""
    gold = [row % 2 for row in range(50)]
    made = task("pair", [metric], texts(gold), () if metric == "pearson" else ["no", "yes"], regression=metric == "pearson")
    assert interval(made, "test", [1] * 50) == Interval(0.0, 0.0, 0.0)
    other = [0.1] * 49 + [1.1] if metric == "pearson" else [0] * 49 + [1]
    bounds = interval(made, "test", other)
    assert abs(bounds.low) < 1e-7
    assert 0.1 < bounds.high < 0.3


def test_a_correlation_does_not_hang_on_where_zero_lies() -> None:
    gold, generator = np.arange(60.0), np.random.default_rng(0)
    said = gold + generator.normal(0, 20, 60)
    made = task("pair", ["pearson"], texts(gold.tolist()), regression=True)
    near, far = (interval(made, "test", (said + zero).tolist()) for zero in (0, 1e8))
    assert (far.low, far.high, far.standard_error) == pytest.approx((near.low, near.high, near.standard_error), abs=1e-6)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_a_correlation_does_not_hang_on_the_unit(metric: Metric) -> None:
    gold, generator = np.arange(60.0), np.random.default_rng(0)
    said = gold + generator.normal(0, 20, 60)
    actual = [
        interval(task("pair", [metric], texts((unit * gold).tolist()), regression=True), "test", (unit * said).tolist())
        for unit in (1.0, 1e-6)
    ]
    assert (actual[0].low, actual[0].high) == pytest.approx((actual[1].low, actual[1].high))


def test_the_interval_of_an_accuracy_is_that_of_the_binomial() -> None:
    made = task("single", ["accuracy"], texts([1] * 400), ["no", "yes"])
    bounds = interval(made, "test", [1] * 320 + [0] * 80, draws=4000)
    assert bounds.standard_error == pytest.approx(math.sqrt(0.8 * 0.2 / 400), rel=0.05)
    assert (bounds.low, bounds.high) == pytest.approx((0.8 - 1.96 * 0.02, 0.8 + 1.96 * 0.02), abs=0.003)


def test_the_interval_of_a_metric_that_is_certain_is_a_point() -> None:
    made = task("single", ["matthews"], texts([0, 1] * 50), ["no", "yes"])
    assert interval(made, "test", [0, 1] * 50).low == pytest.approx(1.0)


def test_a_resample_that_misses_a_small_paradigm_does_not_count_it_as_wrong() -> None:
    made = task("minimal_pairs", ["paradigm_accuracy"], pairs([f"p{number // 3}" for number in range(30)]))
    bounds = interval(made, "test", [True] * 30)
    assert (bounds.low, bounds.high) == (1.0, 1.0)
