"""From logits to what metrics compare, one for each example: a class, a number, tags, or an answer.

Letters: S places, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from study.model.heads import HeadKind
from study.scoring.scored_examples import Inputs
from study.scoring.task_inputs import TaskBatch
from study.scoring.task_metrics import interval, measure
from study.tasks.examples import SpanExample, TaskData

Logits = list[NDArray[np.float64]]
"""For each input of a split: (C,) for a whole input, (words, C) for tagged words, (S, 2) for spans."""


def head_of(task: TaskData) -> tuple[HeadKind, int]:
    """Return the head of a task and the number of its outputs."""
    match task.spec.kind:
        case "tokens":
            return "tokens", len(task.labels)
        case "spans":
            return "spans", 2
        case _:
            return "sequence", 1 if task.spec.regression else len(task.labels)


def split_logits(logits: Tensor, batch: TaskBatch, inputs: Inputs) -> Logits:
    """Return the logits of a batch, input by input."""
    values = logits.detach().double().cpu().numpy()
    if inputs.word_places is None:
        return list(values)
    counts = inputs.word_places.lengths[batch.rows.cpu().numpy()]
    return np.split(values, np.cumsum(counts)[:-1])


def predictions(task: TaskData, split: str, inputs: Inputs, logits: Logits) -> list[Any]:
    """Return the prediction for each example: a class index, a number, the classes of its words, or the text of an answer.

    Of several labels, 0 or 1 for each: those with a probability above a half.
    """
    match task.spec.kind:
        case "spans":
            examples: Sequence[Any] = task.splits[split]
            spans = [example for example in examples if isinstance(example, SpanExample)]
            return answers(spans, inputs, logits, task.spec.unanswerable)
        case "tokens":
            tags: list[list[int]] = [[] for _ in task.splits[split]]
            for example, of_input in zip(inputs.example, logits, strict=True):
                tags[example].extend(of_input.argmax(1).tolist())
            return tags
        case _:
            rows = np.stack(logits)
            if task.spec.multi_label:
                return list(map(tuple, (rows > 0).astype(int).tolist()))
            values = rows[:, 0] if task.spec.regression else rows.argmax(1)
            return list(values.tolist())


def test_facts(task: TaskData, predictions: Sequence[Any]) -> dict[str, Any]:
    """Return a record's results on test: every metric, and the bootstrap of the main one."""
    sure = interval(task, "test", predictions)
    return {
        "test_scores": measure(task, "test", predictions),
        "test_standard_error": sure.standard_error,
        "test_interval": (sure.low, sure.high),
    }


def standardised(labels: Tensor, mean: float, deviation: float) -> Tensor:
    """Return numbers as a regression learns them."""
    return (labels.float() - mean) / deviation


def masked_spans(logits_BxSx2: Tensor, attended_BxS: Tensor | None) -> Tensor:
    """Logits of starts and ends, masked on padding."""
    if attended_BxS is None:
        return logits_BxSx2
    return logits_BxSx2.masked_fill(~attended_BxS[..., None], torch.finfo(logits_BxSx2.dtype).min)


MOST_ANSWER = 30
"""The longest answer in pieces, as in the scripts of BERT and SQuAD."""


def best_span(start_S: NDArray[np.float64], end_S: NDArray[np.float64], begin: int, end: int) -> tuple[float, int, int]:
    """Return the span within [begin, end) with the highest sum of start and end logits, with that sum.

    Every span of at most MOST_ANSWER pieces is considered.
    """
    best = (-np.inf, begin, begin)
    for more in range(min(MOST_ANSWER, end - begin)):
        sums = start_S[begin : end - more] + end_S[begin + more : end]
        place = int(sums.argmax())
        if sums[place] > best[0]:
            best = (float(sums[place]), begin + place, begin + place + more)
    return best


def answers(
    examples: Sequence[SpanExample], inputs: Inputs, logits: Sequence[NDArray[np.float64]], unanswerable: bool = False
) -> list[str]:
    """Return the text of the best span over all windows for each question; `logits` are (S, 2) for each input.

    With `unanswerable` a question has none, an empty text, where the span of [CLS] alone outdoes the best in every window, as
    in BERT's and transformers' code for SQuAD 2.0 with a threshold of zero.
    """
    best: dict[int, tuple[float, int, int]] = {}
    none = np.full(len(examples), np.inf if unanswerable else -np.inf)
    for number, of_input in enumerate(logits):
        length = len(inputs.tokens[number])
        score, first, last = best_span(of_input[:, 0], of_input[:, 1], int(inputs.second[number]), length - 1)
        characters, example = inputs.characters[number], int(inputs.example[number])
        span = (score, int(characters[first, 0]), int(characters[last, 1]))
        if example not in best or score > best[example][0]:
            best[example] = span
        none[example] = min(none[example], of_input[0].sum())
    return [
        "" if none[i] > best[i][0] else example.context[max(0, best[i][1]) : max(0, best[i][2])]
        for i, example in enumerate(examples)
    ]
