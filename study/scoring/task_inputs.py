"""What a protocol gets: the attempt at a score, and the task as the encoder reads it, in batches by seed, epoch and step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset

from study.base.randomness import Stream, stream_seed
from study.config.score_config import Knobs, ScoreConfig
from study.counting.memory import Precision
from study.scoring.pretrained import Pretrained
from study.scoring.scored_examples import Inputs, Ragged, TaskEncoder, lost_text
from study.store.score_records import ScoreFolder
from study.tasks.examples import TaskData
from study.training.attempts import StopSignal
from study.training.callbacks import Watchdog
from study.training.execution import Execution


@dataclass(frozen=True)
class ScoreAttempt:
    """The run to score, the score's folder, the execution, the checkpoint to resume from, and what may stop it.

    `check` is called before every write and raises where another process owns the score; `watchdog` requires steps.
    """

    config: ScoreConfig
    run: Pretrained
    folder: ScoreFolder
    execution: Execution
    precision: Precision
    checkpoint: Path | None
    stop: StopSignal
    check: Callable[[], None]
    watchdog: Watchdog

    @property
    def in_int8(self) -> bool:
        """Whether the encoder is evaluated in int8; random weights are not."""
        return self.run.in_int8 and self.config.protocol != "random_init"


POOL = 64
"""So many batches are drawn together and then cut by length: enough for rows of a batch to be of similar length."""

EVALUATION_TOKENS = 8192
"""Tokens of an evaluation batch, padding included."""


class TaskBatch(NamedTuple):
    """Inputs of study.model.heads and the `labels` of study.scoring.scored_examples.

    `attended` is None without padding. `rows` are the inputs by number.
    """

    tokens: Tensor
    segments: Tensor | None
    attended: Tensor | None
    places: Tensor | None
    labels: Tensor
    rows: Tensor


class Collator:
    """Makes a batch of some inputs, as wide as the longest; `pad` fills the rest, `segments` is the number in use."""

    def __init__(self, inputs: Inputs, pad: int, segments: int) -> None:
        self.inputs, self.pad, self.segments = inputs, pad, segments

    def __call__(self, rows: NDArray[np.int64]) -> TaskBatch:
        """Return the batch of these inputs."""
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

    A batch holds rows of similar length, to avoid padding; the order of batches is drawn again.
    """

    def __init__(self, lengths: NDArray[np.int64], batch: int, seed: int) -> None:
        self.lengths, self.batch, self.seed = lengths, min(batch, len(lengths)), seed
        self._epoch, self._batches = -1, [np.empty(0, dtype=np.int64)]

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch, including a last smaller one."""
        return -(-len(self.lengths) // self.batch)

    def at(self, step: int) -> NDArray[np.int64]:
        """Return the inputs of a step."""
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
    """Return all inputs by length, the longest first, in batches of about `tokens`, padding included."""
    order = np.argsort(-lengths, kind="stable")
    batches, begin = [], 0
    while begin < len(order):
        size = max(1, tokens // int(lengths[order[begin]]))
        batches.append(order[begin : begin + size])
        begin += size
    return batches


def padding_share(lengths: NDArray[np.int64], batches: list[NDArray[np.int64]]) -> float:
    """Return the share of padding in these batches."""
    places = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    return 1 - float(sum(lengths[batch].sum() for batch in batches)) / places


class EvaluatedSplit(IterableDataset[TaskBatch]):
    """The evaluation batches of a split, made one at a time."""

    def __init__(self, collate: Collator) -> None:
        self.rows, self.collate = evaluation_batches(collate.inputs.tokens.lengths), collate

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[TaskBatch]:
        return map(self.collate, self.rows)


@dataclass(frozen=True)
class TaskInputs:
    """The splits of a task; token i of an input stands for piece `pieces[i]` of the vocabulary.

    `segments` is the number of segments in use: 2 where the encoder has them, else [SEP] alone separates texts. `lost_share` is
    what the tokeniser loses of the worst split.
    """

    task: TaskData
    splits: Mapping[str, Inputs]
    pieces: Tensor
    pad: int
    segments: int
    lost_share: float | None = None

    @cached_property
    def label_scale(self) -> tuple[float, float]:
        """Mean and deviation of the train labels, the deviation 1 where all are equal."""
        labels = self.splits["train"].labels
        return float(labels.mean()), float(labels.std()) or 1.0

    @property
    def truncated(self) -> int:
        """Examples of all splits that lose pieces: of texts, of a question, or of a word longer than an input."""
        return sum(inputs.truncated for inputs in self.splits.values())

    def collator(self, split: str) -> Collator:
        """Return the collator of a split."""
        return Collator(self.splits[split], self.pad, self.segments)


_KEPT: dict[tuple[str, str, int, int], TaskInputs] = {}
_MOST_KEPT = 4


def task_inputs(task: TaskData, run: Pretrained, knobs: Knobs) -> TaskInputs:
    """Return the splits of a task as tokens of a run's tokeniser, cached.

    Raises InputError where the encoder has too few positions.
    """
    segments = min(2, run.config.architecture.segments)
    key = (task.fingerprint, run.prepared.facts.tokenizer_sha256, run.max_length(knobs.max_length), segments)
    if key not in _KEPT:
        while len(_KEPT) >= _MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[key] = _encoded(task, run, knobs, segments)
    return replace(_KEPT[key], task=task)


def _encoded(task: TaskData, run: Pretrained, knobs: Knobs, segments: int) -> TaskInputs:
    encoder = TaskEncoder(run.tokenizer, run.special, run.max_length(knobs.max_length))
    splits = {name: encoder.encode(examples) for name, examples in task.splits.items()}
    used = np.unique(np.concatenate([[run.special.pad], *(inputs.tokens.values for inputs in splits.values())]))
    renumbered = {
        name: replace(inputs, tokens=Ragged(np.searchsorted(used, inputs.tokens.values), inputs.tokens.starts))
        for name, inputs in splits.items()
    }
    pad = int(np.searchsorted(used, run.special.pad))
    lost = lost_text(run.tokenizer, task).share
    return TaskInputs(task, renumbered, torch.from_numpy(used), pad, segments, lost)
