"""Fine-tuning speed beside transformers' Trainer: the same model, examples, batch size, optimiser and threads, in turns.

Examples are drawn: lengths log-normal with the mean and deviation of the logarithm that a task of GLUE has in BERT's word
pieces, tokens by Zipf's law over as many pieces as the task uses. Tokens/s count no padding. Trainer pads each batch to its
longest example, as its own collator does, both work in the precision that scores have here, and neither evaluates, saves or
logs while it is timed.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

from study.benching.figures import Tell, figure
from study.benching.stopwatch import STEPS, WARM_UP, Stopwatch
from study.config.score_config import Knobs, ScoreConfig
from study.counting.architecture import Architecture
from study.counting.memory import Device, Precision
from study.counting.named_models import named
from study.model.task_model import TaskModel
from study.scoring.encoding import Inputs, Ragged
from study.scoring.fine_tuning import FineTuning
from study.scoring.fine_tuning_trainer import FineTuningData, prepare_process
from study.scoring.task_inputs import TaskInputs
from study.tasks.examples import TaskData, TextExample
from study.tasks.task_spec import TaskSource, TaskSpec
from study.training.execution import resolve_precision
from study.training.trainer import lightning_trainer

TARGET = 1.5
"""How many times Trainer's tokens/s ours should be."""


@dataclass(frozen=True)
class Drawn:
    """Examples like those of a task: how many, their lengths' logarithm, and the pieces in use of the whole vocabulary."""

    name: str
    examples: int
    log_mean: float
    log_deviation: float
    pieces: int

    def tokens(self, vocabulary: int) -> Ragged:
        """The tokens of each example, ids spread over the vocabulary."""
        draw = np.random.default_rng(0)
        lengths = np.exp(draw.normal(self.log_mean, self.log_deviation, self.examples)).round().astype(int).clip(4, 128)
        ids = np.sort(draw.permutation(vocabulary)[: self.pieces])
        shares = 1 / np.arange(1, self.pieces + 1)
        values = draw.permutation(ids)[draw.choice(self.pieces, lengths.sum(), p=shares / shares.sum())]
        return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))


TASKS = (Drawn("CoLA", 8551, 2.370, 0.332, 5587), Drawn("MRPC", 3668, 3.943, 0.258, 11563))
MODELS = ("bert-tiny", "bert-mini")


def measure_fine_tuning(device: Device, threads: int, rounds: int, tell: Tell) -> None:
    """How many times Trainer's tokens/s ours are for each model and task: medians of the ratios within rounds."""
    from study.benching.fine_tuning_peer import trainer_tokens_per_second

    prepare_process(threads)
    precision = resolve_precision("auto", device)
    for model in MODELS:
        architecture = named(model)
        for task in TASKS:
            tokens, ours, theirs = task.tokens(architecture.vocabulary), [], []
            for _ in range(rounds):
                ours.append(ours_tokens_per_second(architecture, tokens, device, precision))
                theirs.append(trainer_tokens_per_second(architecture, tokens, device, precision))
            ratio = median(own / other for own, other in zip(ours, theirs, strict=True))
            what = f"fine-tuning {model} on texts as long as {task.name}'s, over Trainer"
            speeds = f"{median(ours):,.0f} tokens/s, Trainer {median(theirs):,.0f}"
            sentence = f"{model}, {task.name}, {precision}: {speeds}."
            tell(figure(what, ratio, "times", at_least=TARGET, sentence=sentence))


def ours_tokens_per_second(architecture: Architecture, tokens: Ragged, device: Device, precision: Precision) -> float:
    """The speed of our fine-tuning as scores use it: Lightning's Trainer, batches by length, the pieces in use."""
    pieces, values = np.unique(tokens.values, return_inverse=True)
    compact = Ragged(values, tokens.starts)
    labels = np.arange(len(compact)) % 2
    inputs = Inputs(compact, compact.lengths, np.arange(len(compact)), labels)
    data = TaskInputs(_task(len(compact)), {"train": inputs, "dev": inputs}, torch.from_numpy(pieces), 0, 2)
    config = ScoreConfig(
        encoder="benchmark", task="drawn", task_fingerprint="0", metric="accuracy", protocol="fine_tune", update="all"
    )
    module = FineTuning(config, data, TaskModel(architecture, len(pieces), "sequence", 2, Knobs().dropout))
    watch = Stopwatch(device)
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        trainer = lightning_trainer(
            device,
            precision,
            Path(folder),
            devices=1,
            max_steps=WARM_UP + STEPS[device],
            limit_val_batches=0,
            logger=False,
            callbacks=[_Timer(watch, module)],
        )
        trainer.fit(module, FineTuningData(module))
    return watch.tokens_per_second


class _Timer(pl.Callback):
    """Tells a stopwatch of every step and the tokens so far."""

    def __init__(self, watch: Stopwatch, module: FineTuning) -> None:
        self.watch, self.module = watch, module

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """A step is done."""
        self.watch.step(trainer.global_step, self.module.tokens_done)


def _task(count: int) -> TaskData:
    spec = TaskSpec(name="drawn", kind="single", metrics=("accuracy",), sources=(TaskSource(embedded="drawn"),))
    examples = [TextExample(number, "", None, number % 2) for number in range(count)]
    return TaskData(spec, ("no", "yes"), {"train": examples, "dev": examples, "test": examples})
