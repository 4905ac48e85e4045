"""How well predictions meet the gold labels of a split, by the metrics of the field, each a number where higher is better.

What a prediction is follows the kind of the task: a class by index, a number, the classes of an example's words, the text of
an answer, or of a minimal pair 1 where the good sentence won, 0 where it lost, and 0.5 where nothing tells them apart.
"""

from __future__ import annotations

import string
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional import classification, pearson_corrcoef, spearman_corrcoef

from study.tasks.examples import Example, MinimalPair, SpanExample, TaskData, TextExample, TokensExample
from study.tasks.spec import Metric


def measure(task: TaskData, split: str, predictions: Sequence[Any]) -> dict[str, float]:
    """Every metric of the task on a split, by name, in the order in which the task names them.

    A metric that is undefined, such as a correlation with predictions that never vary, is 0. Raises ValueError where there
    is not one prediction for each example, or not one class for each word.
    """
    examples = task.splits[split]
    if len(predictions) != len(examples):
        raise ValueError(f"{len(predictions)} predictions for {len(examples)} examples of {split}")
    return {metric: METRICS[metric](task, examples, predictions) for metric in task.spec.metrics}


def by_paradigm(examples: Sequence[Example], predictions: Sequence[float]) -> dict[str, float]:
    """The accuracy on each paradigm of minimal pairs, sorted by name."""
    won: dict[str, list[float]] = defaultdict(list)
    for pair, prediction in zip(examples, predictions, strict=True):
        assert isinstance(pair, MinimalPair)
        won[pair.paradigm].append(float(prediction))
    return {paradigm: sum(found) / len(found) for paradigm, found in sorted(won.items())}


def classes(examples: Sequence[Example], predictions: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Predicted and gold classes of all examples, or of all their words, one after another."""
    gold: list[float] = []
    predicted: list[float] = []
    for example, prediction in zip(examples, predictions, strict=True):
        own = [prediction] if isinstance(example, TextExample) else list(prediction)
        meant = [example.label] if isinstance(example, TextExample) else list(_words(example))
        if len(own) != len(meant):
            raise ValueError(f"{len(own)} classes for the {len(meant)} words of row {example.row}")
        gold += meant
        predicted += own
    return torch.tensor(predicted), torch.tensor(gold)


def numbers(examples: Sequence[Example], predictions: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Predicted and gold numbers, float64."""
    gold = [float(example.label) for example in examples if isinstance(example, TextExample)]
    return torch.tensor(predictions, dtype=torch.float64), torch.tensor(gold, dtype=torch.float64)


def entity_spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Type, first and last word of each entity that a sequence of tags spells, as CoNLL's own script reads it."""
    from seqeval.metrics.sequence_labeling import get_entities

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about tags without a prefix, which are read as entities of one word
        return set(get_entities(list(tags)))


def answer_scores(example: SpanExample, prediction: str) -> tuple[float, float]:
    """Exact match and F1 of an answer against the best of the gold ones, after SQuAD's normalisation.

    F1 is that of the bags of words. As torchmetrics' `squad` has it, in a tenth of its time and in double precision.
    """
    own = normalised(prediction)
    gold = [normalised(answer) for answer in example.answers]
    return float(max(own == answer for answer in gold)), max(_overlap_f1(own, answer) for answer in gold)


def normalised(answer: str) -> list[str]:
    """The words of an answer in lower case, without punctuation and articles (Rajpurkar et al. 2016)."""
    kept = "".join(character for character in answer.lower() if character not in string.punctuation)
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def _overlap_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    return 2 * (Counter(predicted) & Counter(gold)).total() / (len(predicted) + len(gold))


def _accuracy(task: TaskData, examples: Sequence[Example], predictions: Sequence[Any]) -> float:
    if task.spec.kind == "minimal_pairs":
        return sum(map(float, predictions)) / len(predictions)
    predicted, gold = classes(examples, predictions)
    return float((predicted == gold).double().mean())


def _f1(_: TaskData, examples: Sequence[Example], predictions: Sequence[Any]) -> float:
    return float(classification.binary_f1_score(*classes(examples, predictions)))


def _macro_f1(task: TaskData, examples: Sequence[Example], predictions: Sequence[Any]) -> float:
    return float(classification.multiclass_f1_score(*classes(examples, predictions), len(task.labels), average="macro"))


def _matthews(task: TaskData, examples: Sequence[Example], predictions: Sequence[Any]) -> float:
    """0 where all predictions are one class: torchmetrics puts 0.07 on always saying yes to two thirds of yes."""
    predicted, gold = classes(examples, predictions)
    if not (_varies(predicted) and _varies(gold)):
        return 0.0
    return float(classification.multiclass_matthews_corrcoef(predicted, gold, len(task.labels)))


def _correlation(of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[TaskData, Sequence[Example], Sequence[Any]], float]:
    def correlation(_: TaskData, examples: Sequence[Example], predictions: Sequence[Any]) -> float:
        predicted, gold = numbers(examples, predictions)
        return float(of(predicted, gold)) if _varies(predicted) and _varies(gold) else 0.0

    return correlation


def _varies(values: Tensor) -> bool:
    return bool((values != values[0]).any())


def _entity_f1(task: TaskData, examples: Sequence[Example], predictions: Sequence[Any]) -> float:
    from seqeval.metrics import f1_score

    classes(examples, predictions)  # refuses predictions of another length, which seqeval would cut off
    gold = [[task.labels[label] for label in _words(example)] for example in examples]
    predicted = [[task.labels[label] for label in prediction] for prediction in predictions]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about tags without a prefix, which are read as entities of one word
        return float(f1_score(gold, predicted, zero_division=0))


def _answers(place: int) -> Callable[[TaskData, Sequence[Example], Sequence[Any]], float]:
    def mean(_: TaskData, examples: Sequence[Example], predictions: Sequence[Any]) -> float:
        spans = (example for example in examples if isinstance(example, SpanExample))
        return sum(answer_scores(*both)[place] for both in zip(spans, predictions, strict=True)) / len(predictions)

    return mean


def _paradigm_accuracy(_: TaskData, examples: Sequence[Example], predictions: Sequence[Any]) -> float:
    found = by_paradigm(examples, predictions).values()
    return sum(found) / len(found)


def _words(example: Example) -> tuple[int, ...]:
    assert isinstance(example, TokensExample)
    return example.labels


METRICS: dict[Metric, Callable[[TaskData, Sequence[Example], Sequence[Any]], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "macro_f1": _macro_f1,
    "matthews": _matthews,
    "pearson": _correlation(pearson_corrcoef),
    "spearman": _correlation(spearman_corrcoef),
    "entity_f1": _entity_f1,
    "exact_match": _answers(0),
    "answer_f1": _answers(1),
    "paradigm_accuracy": _paradigm_accuracy,
}
"""What each metric says of the predictions for a task's examples."""
