"""A task as one encoder reads it: its splits as tokens, numbered by the pieces that the task uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from study.config.score_config import Knobs
from study.scoring.encoding import Inputs, TaskEncoder
from study.scoring.pretrained import Pretrained
from study.scoring.ragged import Ragged
from study.scoring.task_batches import Collator
from study.tasks.examples import TaskData


@dataclass(frozen=True)
class TaskInputs:
    """The splits of a task; token i of an input stands for piece `pieces[i]` of the vocabulary.

    `segments` is how many segments inputs are told apart by: 2 where the encoder has them, else [SEP] alone does it.
    `label_scale` are mean and deviation of the numbers of train.
    """

    task: TaskData
    splits: Mapping[str, Inputs]
    pieces: Tensor
    pad: int
    segments: int

    @cached_property
    def label_scale(self) -> tuple[float, float]:
        """Mean and deviation of the train labels, the deviation 1 where all are equal."""
        labels = self.splits["train"].labels
        return float(labels.mean()), float(labels.std()) or 1.0

    @property
    def truncated(self) -> int:
        """Examples that did not fit one input: texts that lost their end, others that became several windows."""
        return sum(inputs.truncated for inputs in self.splits.values())

    def collator(self, split: str) -> Collator:
        """What makes batches of a split."""
        return Collator(self.splits[split], self.pad, self.segments)


_KEPT: dict[tuple[str, str, int, int], TaskInputs] = {}
_MOST_KEPT = 4


def task_inputs(task: TaskData, run: Pretrained, knobs: Knobs) -> TaskInputs:
    """The splits of a task as tokens of a run's tokeniser, kept for the next score of this process on the same examples.

    Raises InputError where an encoder has not the positions for the inputs asked for.
    """
    segments = min(2, run.config.architecture.segments)
    key = (task.fingerprint, run.prepared.facts.tokenizer_sha256, run.max_length(knobs.max_length), segments)
    if key not in _KEPT:
        while len(_KEPT) >= _MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[key] = _encoded(task, run, knobs, segments)
    return replace(_KEPT[key], task=task)


def _encoded(task: TaskData, run: Pretrained, knobs: Knobs, segments: int) -> TaskInputs:
    """The splits of a task, numbered by the pieces in use."""
    encoder = TaskEncoder(run.tokenizer, run.special, run.max_length(knobs.max_length))
    splits = {name: encoder.encode(examples) for name, examples in task.splits.items()}
    used = np.unique(np.concatenate([[run.special.pad], *(inputs.tokens.values for inputs in splits.values())]))
    renumbered = {
        name: replace(inputs, tokens=Ragged(np.searchsorted(used, inputs.tokens.values), inputs.tokens.starts))
        for name, inputs in splits.items()
    }
    pad = int(np.searchsorted(used, run.special.pad))
    return TaskInputs(task, renumbered, torch.from_numpy(used), pad, segments)
