"""From logits of starts and ends to the text of an answer. Letters: S places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from study.scoring.encoding import Inputs
from study.tasks.examples import SpanExample

MOST_ANSWER = 30
"""The most pieces of an answer, as in the scripts of BERT and SQuAD."""


def best_span(start_S: NDArray[np.float64], end_S: NDArray[np.float64], begin: int, end: int) -> tuple[float, int, int]:
    """The span within [begin, end) whose start and end logits add up to most, with that sum.

    Every span of at most MOST_ANSWER pieces is looked at: the best of them all, where an n-best list of starts and ends
    can miss it.
    """
    best = (-np.inf, begin, begin)
    for more in range(min(MOST_ANSWER, end - begin)):
        sums = start_S[begin : end - more] + end_S[begin + more : end]
        place = int(sums.argmax())
        if sums[place] > best[0]:
            best = (float(sums[place]), begin + place, begin + place + more)
    return best


def answers(examples: Sequence[SpanExample], inputs: Inputs, logits: Sequence[NDArray[np.float64]]) -> list[str]:
    """The answer to each question: the best span over all windows of its context, as text; `logits` are (S, 2) an input."""
    best: dict[int, tuple[float, int, int]] = {}
    for number, of_input in enumerate(logits):
        length = len(inputs.tokens[number])
        score, first, last = best_span(of_input[:, 0], of_input[:, 1], int(inputs.second[number]), length - 1)
        characters, example = inputs.characters[number], int(inputs.example[number])
        found = (score, int(characters[first, 0]), int(characters[last, 1]))
        if example not in best or score > best[example][0]:
            best[example] = found
    return [example.context[max(0, best[i][1]) : max(0, best[i][2])] for i, example in enumerate(examples)]
