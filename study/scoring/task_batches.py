"""Batches of a task without padding waste; which inputs a step reads is a function of seed, epoch and step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset

from study.base.randomness import Stream, stream_seed
from study.scoring.encoding import Inputs

POOL = 64
"""How many batches are drawn together and then cut by length: enough that rows of a batch are about as long as each other."""

EVALUATION_TOKENS = 8192
"""Tokens of a batch that is only evaluated, padding included."""


class TaskBatch(NamedTuple):
    """What a model reads and should say: see study.model.task_model for the first four, `labels` as study.scoring.encoding.

    `attended` is None where nothing is padding. `rows` are the inputs by number.
    """

    tokens: Tensor
    segments: Tensor | None
    attended: Tensor | None
    places: Tensor | None
    labels: Tensor
    rows: Tensor


class Collator:
    """Makes a batch of some inputs, as wide as the longest of them; `pad` fills the rest and `segments` are those trained."""

    def __init__(self, inputs: Inputs, pad: int, segments: int) -> None:
        self.inputs, self.pad, self.segments = inputs, pad, segments

    def __call__(self, rows: NDArray[np.int64]) -> TaskBatch:
        """The batch of these inputs."""
        inputs = self.inputs
        lengths = inputs.tokens.lengths[rows]
        width = int(lengths.max())
        places = np.arange(width)
        attended = None if lengths.min() == width else torch.from_numpy(places < lengths[:, None])
        second = inputs.second[rows][:, None]
        paired = self.segments > 1 and bool((second[:, 0] < lengths).any())
        word_places, labels = self._labels(rows, width)
        return TaskBatch(
            tokens=torch.from_numpy(inputs.tokens.padded(rows, width, self.pad)),
            segments=torch.from_numpy((places >= second).astype(np.int64)) if paired else None,
            attended=attended,
            places=word_places,
            labels=labels,
            rows=torch.from_numpy(rows),
        )

    def _labels(self, rows: NDArray[np.int64], width: int) -> tuple[Tensor | None, Tensor]:
        inputs = self.inputs
        if inputs.word_places is None or inputs.word_labels is None:
            return None, torch.from_numpy(inputs.labels[rows])
        places = [inputs.word_places[row] + number * width for number, row in enumerate(rows)]
        labels = [inputs.word_labels[row] for row in rows]
        return torch.from_numpy(np.concatenate(places)), torch.from_numpy(np.concatenate(labels))


class TrainingOrder:
    """The inputs of each step: every epoch a permutation from (seed, epoch), cut by length within pools of 64 batches.

    A batch holds rows of about one length, so that little of it is padding; which batches stand where is drawn again.
    """

    def __init__(self, lengths: NDArray[np.int64], batch: int, seed: int) -> None:
        self.lengths, self.batch, self.seed = lengths, min(batch, len(lengths)), seed
        self._epoch, self._batches = -1, [np.empty(0, dtype=np.int64)]

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, a last smaller one included."""
        return -(-len(self.lengths) // self.batch)

    def at(self, step: int) -> NDArray[np.int64]:
        """The inputs of step `step`, from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._of(epoch)
        return self._batches[place]

    def _of(self, epoch: int) -> list[NDArray[np.int64]]:
        generator = np.random.Generator(np.random.PCG64(stream_seed(Stream.TASK_ORDER, self.seed, epoch)))
        order = generator.permutation(len(self.lengths))
        batches: list[NDArray[np.int64]] = []
        for begin in range(0, len(order), POOL * self.batch):
            pool = order[begin : begin + POOL * self.batch]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches += [pool[first : first + self.batch] for first in range(0, len(pool), self.batch)]
        return [batches[number] for number in generator.permutation(len(batches))]


def evaluation_batches(lengths: NDArray[np.int64], tokens: int = EVALUATION_TOKENS) -> list[NDArray[np.int64]]:
    """All inputs, those of a length together, in batches of about as many tokens each, padding included; the longest first."""
    order = np.argsort(-lengths, kind="stable")
    batches, begin = [], 0
    while begin < len(order):
        size = max(1, tokens // int(lengths[order[begin]]))
        batches.append(order[begin : begin + size])
        begin += size
    return batches


def padding_share(lengths: NDArray[np.int64], batches: list[NDArray[np.int64]]) -> float:
    """The share of the places of these batches that is padding."""
    places = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    return 1 - float(sum(lengths[batch].sum() for batch in batches)) / places


class EvaluatedSplit(IterableDataset[TaskBatch]):
    """The batches of a split that is only evaluated, made one at a time."""

    def __init__(self, collate: Collator) -> None:
        self.rows, self.collate = evaluation_batches(collate.inputs.tokens.lengths), collate

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TaskBatch]:
        return map(self.collate, self.rows)
