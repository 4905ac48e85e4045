"""Fine-tuning speed beside transformers' Trainer: same model, examples, batch size, optimiser, precision and threads.

Examples are random: log-normal lengths with the log mean and deviation of a GLUE task in BERT's word pieces, and Zipf tokens
over the task's number of pieces. Trainer pads each batch to its longest example, like its own collator.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from study.benching.results import Report, measurement
from study.config.score_config import Knobs, ScoreConfig
from study.counting.architecture import Architecture
from study.counting.memory import Device, Precision
from study.counting.named_models import named
from study.model.heads import TaskModel
from study.scoring.fine_tuning import FineTuning, FineTuningData, prepare_process
from study.scoring.scored_examples import Inputs, Ragged
from study.scoring.task_inputs import TaskInputs
from study.tasks.examples import TaskData, TextExample
from study.tasks.task_spec import TaskSource, TaskSpec
from study.training.execution import resolve_precision
from study.training.trainer import lightning_trainer

TARGET = 1.5
"""The target for our tokens/s over Trainer's."""

WARM_UP, STEPS = 5, {"cpu": 25, "cuda": 100}
"""Steps before the clock starts, and timed steps."""


class TokenClock:
    """Counts tokens and seconds after WARM_UP steps."""

    def __init__(self, device: Device) -> None:
        self.device, self._tokens, self._seconds = device, 0, 0.0

    def step(self, number: int, tokens: int | Tensor) -> None:
        """Record the end of step `number` (from 1) and the `tokens` so far; reads a tensor only if needed."""
        sign = {WARM_UP: -1, WARM_UP + STEPS[self.device]: 1}.get(number)
        if sign is not None:
            if self.device == "cuda":
                torch.cuda.synchronize()
            self._seconds += sign * perf_counter()
            self._tokens += sign * int(tokens)

    @property
    def tokens_per_second(self) -> float:
        """The speed, after the last step."""
        return self._tokens / self._seconds


@dataclass(frozen=True)
class DrawnTask:
    """Random examples like a task's: their number, log lengths, and distinct pieces."""

    name: str
    examples: int
    log_mean: float
    log_deviation: float
    pieces: int

    def tokens(self, vocabulary: int) -> Ragged:
        """Draw the tokens of each example, with ids spread over the vocabulary."""
        draw = np.random.default_rng(0)
        lengths = np.exp(draw.normal(self.log_mean, self.log_deviation, self.examples)).round().astype(int).clip(4, 128)
        ids = np.sort(draw.permutation(vocabulary)[: self.pieces])
        shares = 1 / np.arange(1, self.pieces + 1)
        values = draw.permutation(ids)[draw.choice(self.pieces, lengths.sum(), p=shares / shares.sum())]
        return Ragged(values, np.concatenate([[0], np.cumsum(lengths)]))


TASKS = (DrawnTask("CoLA", 8551, 2.370, 0.332, 5587), DrawnTask("MRPC", 3668, 3.943, 0.258, 11563))
MODELS = ("bert-tiny", "bert-mini")


def measure_fine_tuning(device: Device, threads: int, rounds: int, report: Report) -> None:
    """Report our tokens/s over Trainer's for each model and task, the median of per-round ratios."""
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
            report(measurement(what, ratio, "times", at_least=TARGET, sentence=sentence))


class _ClockCallback(pl.Callback):
    def __init__(self, clock: TokenClock, module: FineTuning) -> None:
        self.clock, self.module = clock, module

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.clock.step(trainer.global_step, self.module.tokens_done)


def ours_tokens_per_second(architecture: Architecture, tokens: Ragged, device: Device, precision: Precision) -> float:
    """Measure our fine-tuning as scores run it: Lightning's Trainer, batches by length, and the used pieces' table."""
    pieces, values = np.unique(tokens.values, return_inverse=True)
    compact = Ragged(values, tokens.starts)
    inputs = Inputs(compact, compact.lengths, np.arange(len(compact)), np.arange(len(compact)) % 2)
    data = TaskInputs(_task(len(compact)), {"train": inputs, "dev": inputs}, torch.from_numpy(pieces), 0, 2)
    config = ScoreConfig(
        encoder="benchmark", task="drawn", task_fingerprint="0", metric="accuracy", protocol="fine_tune", update="all"
    )
    module = FineTuning(config, data, TaskModel(architecture, len(pieces), "sequence", 2, Knobs().dropout))
    clock, steps = TokenClock(device), WARM_UP + STEPS[device]
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        options: dict[str, Any] = {"devices": 1, "max_steps": steps, "limit_val_batches": 0, "logger": False}
        trainer = lightning_trainer(device, precision, Path(folder), callbacks=[_ClockCallback(clock, module)], **options)
        trainer.fit(module, FineTuningData(module))
    return clock.tokens_per_second


def _task(count: int) -> TaskData:
    spec = TaskSpec(name="drawn", kind="single", metrics=("accuracy",), sources=(TaskSource(embedded="drawn"),))
    examples = [TextExample(number, "", None, number % 2) for number in range(count)]
    return TaskData(spec, ("no", "yes"), {"train": examples, "dev": examples, "test": examples})


def trainer_tokens_per_second(architecture: Architecture, tokens: Ragged, device: Device, precision: Precision) -> float:
    """Measure transformers' Trainer on BertForSequenceClassification."""
    from transformers import BertForSequenceClassification, PrinterCallback, Trainer, TrainerCallback
    from transformers.utils import logging

    from study.benching.peers import arguments_of, bert_config

    logging.set_verbosity_error()
    logging.disable_progress_bar()

    class Counting(BertForSequenceClassification):  # type: ignore[misc, unused-ignore]
        """The usual model with a token counter."""

        tokens_seen: Any = 0

        def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
            self.tokens_seen = self.tokens_seen + attention_mask.sum()
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels)

    class ClockCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
        """Reports every step to the clock."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            clock.step(state.global_step, model.tokens_seen)

    clock, model = TokenClock(device), Counting(bert_config(architecture))
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        knobs, steps = Knobs(), WARM_UP + STEPS[device]
        more = {"learning_rate": knobs.learning_rate, "weight_decay": knobs.weight_decay, "logging_strategy": "no"}
        arguments = arguments_of(device, precision, folder, knobs.batch_examples, steps, **more)
        examples: Any = list(_examples(tokens))
        trainer = Trainer(
            model=model, args=arguments, train_dataset=examples, data_collator=_padded, callbacks=[ClockCallback()]
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return clock.tokens_per_second


def _examples(tokens: Ragged) -> Iterator[dict[str, Any]]:
    for number in range(len(tokens)):
        yield {"input_ids": torch.from_numpy(tokens[number]), "labels": number % 2}


def _padded(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Collate as DataCollatorWithPadding, without its tokeniser."""
    rows = [example["input_ids"] for example in examples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    attended = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": attended, "labels": torch.tensor([example["labels"] for example in examples])}
