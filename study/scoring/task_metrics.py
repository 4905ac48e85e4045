"""How well predictions match the gold labels of a split: the field's metrics, higher is better, and their bootstrap.

A prediction follows the kind of the task: a class index, a number, a 0 or 1 for each of several labels, the classes of an
example's words, the text of an answer (empty for none), or for a minimal pair 1 where the good sentence won, 0 where it lost,
and 0.5 for a tie.

Every metric is a function of a sum over examples (of counts by class, of moments, of predicted and gold entities …), so a
bootstrap resample is a weighted sum, and thousands of them are one matrix product. Letters: N examples, P parts.
"""

from __future__ import annotations

import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from study.tasks.examples import Example, MinimalPair, SpanExample, TagScheme, TaskData, TextExample, TokensExample, texts_among
from study.tasks.task_spec import Metric

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """What each example adds to a metric, and the metric of the sums: (N, P), and (…, P) to (…).

    `combine` gives 0 where the metric is undefined, as a correlation with constant predictions is.
    """

    of_examples: Floats
    combine: Callable[[Floats], Floats]

    @property
    def value(self) -> float:
        """The metric of all examples."""
        return float(self.combine(self.of_examples.sum(axis=0)))


def measure(task: TaskData, split: str, predictions: Sequence[Any]) -> dict[str, float]:
    """Every metric of the task on a split, in the task's order; 0 where one is undefined.

    Raises ValueError for another number of predictions.
    """
    examples = task.splits[split]
    if len(predictions) != len(examples):
        raise ValueError(f"{len(predictions)} predictions for {len(examples)} examples of {split}")
    return {metric: parts_of(task, examples, predictions, metric).value for metric in task.spec.metrics}


def by_paradigm(examples: Sequence[Example], predictions: Sequence[float]) -> dict[str, float]:
    """Return the accuracy on each paradigm of minimal pairs, sorted by name."""
    won: dict[str, list[float]] = defaultdict(list)
    for pair, prediction in zip(examples, predictions, strict=True):
        assert isinstance(pair, MinimalPair)
        won[pair.paradigm].append(float(prediction))
    return {paradigm: sum(correct) / len(correct) for paradigm, correct in sorted(won.items())}


def answer_scores(example: SpanExample, prediction: str) -> tuple[float, float]:
    """Exact match and F1 of an answer against the best gold one, after SQuAD's normalisation.

    A question without an answer wants an empty one. F1 is that of the bags of words. Equal to torchmetrics' `squad` where both
    answers have words left, and to SQuAD 2.0's own script where not.
    """
    own = normalised(prediction)
    gold = [normalised(answer) for answer in example.answers or ("",)]
    return float(max(own == answer for answer in gold)), max(_overlap_f1(own, answer) for answer in gold)


def normalised(answer: str) -> list[str]:
    """Return an answer's words in lower case, without punctuation and articles (Rajpurkar et al. 2016)."""
    kept = "".join(character for character in answer.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def _overlap_f1(predicted: list[str], gold: list[str]) -> float:
    if not predicted or not gold:
        return float(predicted == gold)
    return 2 * (Counter(predicted) & Counter(gold)).total() / (len(predicted) + len(gold))


def parts_of(task: TaskData, examples: Sequence[Example], predictions: Sequence[Any], metric: Metric) -> Parts:
    """Return what each example adds to a metric."""
    match metric:
        case "pearson" | "spearman":
            predicted = np.array(predictions, dtype=np.float64)
            gold = np.array([example.label for example in texts_among(examples)], dtype=np.float64)
            return _moments(predicted, gold) if metric == "pearson" else _moments(rankdata(predicted), rankdata(gold))
        case "exact_match" | "answer_f1":
            spans = [example for example in examples if isinstance(example, SpanExample)]
            place = ("exact_match", "answer_f1").index(metric)
            return _mean(np.array([answer_scores(*both)[place] for both in zip(spans, predictions, strict=True)]))
        case "paradigm_accuracy":
            return _paradigms([example for example in examples if isinstance(example, MinimalPair)], predictions)
        case "entity_f1":
            return _entities(task.labels, examples, predictions)
        case "subset_accuracy":
            same = [example.label == said for example, said in zip(texts_among(examples), predictions, strict=True)]
            return _mean(np.array(same, dtype=np.float64))
        case "accuracy" if task.spec.kind == "minimal_pairs":
            return _mean(np.asarray(predictions, dtype=np.float64))
        case _:
            combine = {
                "accuracy": _accuracy,
                "f1": _f1,
                "macro_f1": _macro_f1,
                "micro_f1": _micro_f1,
                "matthews": _matthews,
            }[metric]
            if task.spec.multi_label:
                return Parts(_label_counts(examples, predictions), combine)
            return Parts(_counts(len(task.labels), examples, predictions), combine)


def _mean(values: Floats) -> Parts:
    return Parts(np.stack([values, np.ones_like(values)], axis=1), lambda sums: sums[..., 0] / sums[..., 1])


def _paradigms(pairs: Sequence[MinimalPair], predictions: Sequence[Any]) -> Parts:
    names, place = np.unique([pair.paradigm for pair in pairs], return_inverse=True)
    counts = np.eye(len(names))[place]
    won = counts * np.asarray(predictions, dtype=np.float64)[:, None]

    def combine(sums: Floats) -> Floats:
        """Return the mean over the paradigms in a resample."""
        right, drawn = sums[..., : len(names)], sums[..., len(names) :]
        mean: Floats = np.sum(right / np.maximum(drawn, 1), axis=-1) / np.count_nonzero(drawn, axis=-1)
        return mean

    return Parts(np.concatenate([won, counts], axis=1), combine)


def _entities(labels: Sequence[str], examples: Sequence[Example], predictions: Sequence[Sequence[int]]) -> Parts:
    _classes(examples, predictions)  # refuses predictions of another length
    scheme, rows = TagScheme.of(labels), []
    for example, prediction in zip(examples, predictions, strict=True):
        gold, predicted = (scheme.entities([labels[place] for place in tags]) for tags in (_words(example), prediction))
        rows.append((2 * len(gold & predicted), len(gold) + len(predicted)))
    return Parts(np.array(rows, dtype=np.float64), lambda sums: _ratio(sums[..., 0], sums[..., 1]))


def _moments(predicted: Floats, gold: Floats) -> Parts:
    a, b = predicted - predicted.mean(), gold - gold.mean()
    return Parts(np.stack([np.ones_like(a), a, b, a * a, b * b, a * b], axis=1), _correlation)


def _correlation(sums: Floats) -> Floats:
    n, a, b, aa, bb, ab = np.moveaxis(sums, -1, 0)
    return _ratio(n * ab - a * b, np.sqrt(np.maximum((n * aa - a * a) * (n * bb - b * b), 0)))


def _counts(classes: int, examples: Sequence[Example], predictions: Sequence[Any]) -> Floats:
    """Correct, gold and predicted counts of each class for each example: (N, 3·classes)."""
    predicted, gold = _classes(examples, predictions)
    words = [len(example.labels) if isinstance(example, TokensExample) else 1 for example in examples]
    owner = np.repeat(np.arange(len(words)), words)
    counts = np.zeros((len(words), 3 * classes))
    np.add.at(counts, (owner, gold), predicted == gold)
    np.add.at(counts, (owner, classes + gold), 1.0)
    np.add.at(counts, (owner, 2 * classes + predicted), 1.0)
    return counts


def _classes(examples: Sequence[Example], predictions: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Predicted and gold classes of all examples or words, end to end."""
    gold: list[int] = []
    predicted: list[int] = []
    for example, prediction in zip(examples, predictions, strict=True):
        own = [prediction] if isinstance(example, TextExample) else list(prediction)
        meant = [_class(example)] if isinstance(example, TextExample) else list(_words(example))
        if len(own) != len(meant):
            raise ValueError(f"{len(own)} classes for the {len(meant)} words of row {example.row}")
        gold += meant
        predicted += own
    return np.array(predicted, dtype=np.int64), np.array(gold, dtype=np.int64)


def _label_counts(examples: Sequence[Example], predictions: Sequence[Sequence[int]]) -> Floats:
    """Correct, gold and predicted marks of each class for each example of several labels: (N, 3·classes)."""
    gold = np.array([example.label for example in texts_among(examples)], dtype=np.float64)
    predicted = np.array(predictions, dtype=np.float64)
    return np.concatenate([gold * predicted, gold, predicted], axis=1)


def _class(example: TextExample) -> int:
    assert isinstance(example.label, int)
    return example.label


def _words(example: Example) -> tuple[int, ...]:
    assert isinstance(example, TokensExample)
    return example.labels


def _accuracy(sums: Floats) -> Floats:
    right, meant, _ = np.split(sums, 3, axis=-1)
    return _ratio(right.sum(axis=-1), meant.sum(axis=-1))


def _class_f1(sums: Floats) -> tuple[Floats, Floats]:
    right, meant, said = np.split(sums, 3, axis=-1)
    return _ratio(2 * right, meant + said), meant + said


def _f1(sums: Floats) -> Floats:
    return _class_f1(sums)[0][..., 1]


def _macro_f1(sums: Floats) -> Floats:
    """Return the mean F1 of the classes that gold labels or predictions have; scikit-learn gives others 0 if multi-label."""
    f1, there = _class_f1(sums)
    return _ratio(f1.sum(axis=-1), (there > 0).sum(axis=-1).astype(np.float64))


def _micro_f1(sums: Floats) -> Floats:
    """2 · correct ÷ (gold + predicted), over all classes together."""
    right, meant, said = np.split(sums, 3, axis=-1)
    return _ratio(2 * right.sum(axis=-1), meant.sum(axis=-1) + said.sum(axis=-1))


def _matthews(sums: Floats) -> Floats:
    """Return the multi-class correlation (Gorodkin 2004); for two classes Matthews' own."""
    right, meant, said = np.split(sums, 3, axis=-1)
    total = meant.sum(axis=-1)
    spread = (total**2 - (meant**2).sum(axis=-1)) * (total**2 - (said**2).sum(axis=-1))
    return _ratio(right.sum(axis=-1) * total - (meant * said).sum(axis=-1), np.sqrt(spread))


def _ratio(above: Floats, below: Floats) -> Floats:
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)


_CHUNK = 64


@dataclass(frozen=True)
class Interval:
    """The middle 95% of a metric over resamples of the examples, and their standard deviation."""

    low: float
    high: float
    standard_error: float


def interval(
    task: TaskData, split: str, predictions: Sequence[Any], metric: Metric | None = None, draws: int = 1000
) -> Interval:
    """Return the bootstrap interval of a metric, by default the task's headline, over the examples of a split.

    Ranks stay those of all examples. The same predictions give the same interval.
    """
    parts = parts_of(task, task.splits[split], predictions, metric or task.spec.headline)
    values = parts.combine(resampled_sums(parts.of_examples, draws, np.random.default_rng(0)))
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(low), float(high), float(values.std(ddof=1)))


def resampled_sums(parts_NxP: Floats, draws: int, generator: np.random.Generator) -> Floats:
    """Return the sums of `draws` resamples with replacement: (draws, P)."""
    count = len(parts_NxP)
    sums = []
    for begin in range(0, draws, _CHUNK):
        chosen = generator.integers(count, size=(min(_CHUNK, draws - begin), count))
        weights = np.stack([np.bincount(row, minlength=count) for row in chosen]).astype(np.float64)
        sums.append(weights @ parts_NxP)
    return np.concatenate(sums)
