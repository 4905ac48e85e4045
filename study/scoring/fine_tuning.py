"""Fine-tuning by Lightning: from a task's inputs to the best epoch on dev and its predictions for test.

Dropout of step t comes from (seed, t).
"""

from __future__ import annotations

import io
import math
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from pytorch_lightning.utilities.types import OptimizerLRSchedulerConfig
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from study.base.durable_files import is_there, write_atomically
from study.base.randomness import Stream, stream_seed
from study.config.recipe import Budget, Recipe
from study.config.score_config import ScoreConfig
from study.counting.memory import Precision
from study.counting.parameters import encoder_flops
from study.model.heads import TaskModel
from study.model.layers import autocast, seed_dropout
from study.model.optimization import adamw, clip_gradients, schedule
from study.model.stored_weights import multiply_in_fp32, multiply_in_int8, rounded
from study.scoring.predictions import Logits, head_of, masked_spans, predictions, split_logits, standardised
from study.scoring.pretrained import Pretrained
from study.scoring.task_inputs import (
    EvaluatedSplit,
    ScoreAttempt,
    TaskBatch,
    TaskInputs,
    TrainingOrder,
    evaluation_batches,
    task_inputs,
)
from study.scoring.task_metrics import measure
from study.store.run_folder import RunFolder
from study.store.score_records import ScoreFolder
from study.store.work_folder import TAUGHT, step_of
from study.tasks.examples import TaskData
from study.tasks.loading import UNLABELLED
from study.training.callbacks import Checkpointer, Clock
from study.training.checkpoints import DurableCheckpointIO, newest_whole_checkpoint
from study.training.trainer import MetricsFile, lightning_trainer, quiet

ROWS = 20
"""A fine-tuning logs about so many rows of metrics."""


class FineTuning(pl.LightningModule):
    """One training on a task; with `update` head the encoder is frozen, without dropout, and only the head learns.

    Dev is scored after every epoch, and the best weights are kept; training stops after `patience` epochs without improvement.
    Losses are the mean over examples (over words, or windows of spans) of cross entropy, binary for each of several labels, or
    of squared error for numbers. With a teacher's logits (`taught_NxC`, a row for each unlabelled text) `taught_epochs` of the
    unlabelled text come first, dev is scored as often as these end, and nothing stops early. With `in_int8` the encoder learns
    in fp32, and is rounded and multiplied in int8 where it is evaluated. Logged are `train/loss` and
    `downstream/<task>/<metric>`.
    """

    def __init__(
        self,
        config: ScoreConfig,
        data: TaskInputs,
        model: TaskModel,
        log_every_steps: int = 50,
        in_int8: bool = False,
        taught_NxC: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.config, self.data, self.model, self.log_every_steps = config, data, model, log_every_steps
        self.in_int8, self._exact = in_int8, dict[str, Tensor]()
        self.taught_NxC, self.taught_order = taught_NxC, None if taught_NxC is None else self._order_of(UNLABELLED)
        self.order = self._order_of("train")
        self.steps_per_epoch = (self.taught_order or self.order).steps_per_epoch
        self.taught_steps = 0 if taught_NxC is None else config.knobs.taught_epochs * self.steps_per_epoch
        self.steps = self.taught_steps + config.knobs.epochs * self.order.steps_per_epoch
        self.tokens_done, self.seconds_training = 0, 0.0
        self.best: dict[str, Any] = {"dev": -math.inf, "epoch": 0, "scores": {}, "weights": {}}
        self.validated_step = -1
        self._loss_sum, self._loss_steps, self._row_step = torch.zeros(()), 0, 0
        self._logits: Logits = []
        if config.update == "head":
            self.model.encoder.requires_grad_(False)

    def _order_of(self, split: str) -> TrainingOrder:
        knobs = self.config.knobs
        return TrainingOrder(self.data.splits[split].tokens.lengths, knobs.batch_examples, self.config.seed)

    @property
    def steps_done(self) -> int:
        """Optimiser steps taken."""
        return self.trainer.global_step

    def rows_at(self, step: int) -> tuple[str, NDArray[np.int64]]:
        """Return the split of a step, and its inputs."""
        if self.taught_order is not None and step < self.taught_steps:
            return UNLABELLED, self.taught_order.at(step)
        return "train", self.order.at(step - self.taught_steps)

    def flops_to(self, steps: int) -> float:
        """`train_flops` of the encoder in the first steps, without padding; forward passes alone if frozen."""
        drawn = [self.rows_at(step) for step in range(steps)]
        rows = {split: [each for of, each in drawn if of == split] for split in ("train", UNLABELLED)}
        lengths = [self.data.splits[split].tokens.lengths[np.concatenate(each)] for split, each in rows.items() if each]
        flops = sum(encoder_flops(self.model.encoder.architecture, each.tolist()) for each in lengths)
        return flops / 3 if self.config.update == "head" else flops

    def forward(self, batch: TaskBatch) -> Tensor:
        """Logits of the model (see TaskModel)."""
        if self.config.update == "head":
            self.model.encoder.eval()
        logits: Tensor = self.model(batch.tokens, batch.segments, batch.attended, batch.places)
        return logits

    def training_step(self, batch: TaskBatch, batch_idx: int) -> Tensor:
        """Return the loss of one step."""
        del batch_idx
        seed_dropout(self.device, stream_seed(Stream.TASK_DROPOUT, self.config.seed, self.steps_done))
        split, rows = self.rows_at(self.steps_done)
        self.tokens_done += int(self.data.splits[split].tokens.lengths[rows].sum())
        logits = self(batch).float()
        loss = self.taught_loss(logits, batch) if split == UNLABELLED else self.loss(logits, batch)
        self._loss_sum = self._loss_sum.to(loss.device) + loss.detach()
        self._loss_steps += 1
        return loss

    def loss(self, logits: Tensor, batch: TaskBatch) -> Tensor:
        """Return the mean loss of a batch."""
        spec = self.data.task.spec
        if spec.kind == "spans":
            spans_BxSx2 = masked_spans(logits, batch.attended)
            return F.cross_entropy(spans_BxSx2.transpose(1, 2).flatten(0, 1), batch.labels.flatten())
        if spec.multi_label:
            return F.binary_cross_entropy_with_logits(logits, batch.labels.float())
        if spec.regression:
            return F.mse_loss(logits[:, 0], standardised(batch.labels, *self.data.label_scale))
        return F.cross_entropy(logits, batch.labels)

    def taught_loss(self, logits_BxC: Tensor, batch: TaskBatch) -> Tensor:
        """Return the mean loss against the teacher's outputs."""
        assert self.taught_NxC is not None
        spec, taught_BxC = self.data.task.spec, self.taught_NxC.to(logits_BxC.device)[batch.rows]
        if spec.multi_label:
            return F.binary_cross_entropy_with_logits(logits_BxC, taught_BxC.sigmoid())
        if spec.regression:
            return F.mse_loss(logits_BxC, taught_BxC)
        return F.cross_entropy(logits_BxC, taught_BxC.softmax(-1))

    def on_train_start(self) -> None:
        """Start the clock of training."""
        self._resumed = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        """Log a row where one is due."""
        self.log_due_row()

    def log_due_row(self) -> None:
        """Log the row of this step if due."""
        if self.steps_done % self.log_every_steps or self.steps_done <= self._row_step:
            return
        self._row_step = self.steps_done
        mean = float(self._loss_sum / self._loss_steps)
        self._loss_sum, self._loss_steps = torch.zeros((), device=self.device), 0
        if not math.isfinite(mean):
            raise FloatingPointError(f"the training loss is {mean} in the {self.log_every_steps} steps to {self.steps_done}")
        self._log_row({"train/loss": mean})

    def _log_row(self, row: dict[str, float]) -> None:
        for logger in self.trainer.loggers:
            logger.log_metrics({"trainer/step": self.steps_done, "trainer/tokens": self.tokens_done} | row)

    def on_validation_start(self) -> None:
        """Stop the clock of training."""
        self._resumed, started = time.perf_counter(), self._resumed
        self.seconds_training += self._resumed - started
        self._logits = []
        if self.in_int8:
            encoder = self.model.encoder
            self._exact = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
            encoder.load_state_dict(rounded(self._exact, "int8"))
            multiply_in_int8(encoder)

    def validation_step(self, batch: TaskBatch, batch_idx: int) -> None:
        """Keep the logits of some dev inputs."""
        self._logits += split_logits(self(batch), batch, self.data.splits["dev"])

    def on_validation_epoch_end(self) -> None:
        """Score dev, keep the best weights, undo their rounding, and stop once patience is exhausted."""
        scores = measure(self.data.task, "dev", self._predictions("dev", self.in_order("dev", self._logits)))
        epoch, dev = self.steps_done // self.steps_per_epoch, scores[self.config.metric]
        self.validated_step = self.steps_done
        self._log_row({f"downstream/{self.config.task}/{name}": value for name, value in scores.items()})
        if dev > self.best["dev"]:
            weights = {name: value.clone() for name, value in self.model.state_dict().items()}
            self.best = {"dev": dev, "epoch": epoch, "scores": scores, "weights": weights}
        elif self.taught_NxC is None and epoch - self.best["epoch"] >= self.config.knobs.patience:
            self.trainer.should_stop = True
        if self.in_int8:
            multiply_in_fp32(self.model.encoder)
            self.model.encoder.load_state_dict(self._exact)
        self._resumed = time.perf_counter()

    def predict_test(self, precision: Precision) -> list[Any]:
        """Return the predictions for test with the weights of the best epoch."""
        return self._predictions("test", self.logits_of("test", precision))

    @torch.inference_mode()
    def logits_of(self, split: str, precision: Precision) -> Logits:
        """Return the logits for a split with the weights of the best epoch, in order."""
        self.model.load_state_dict(self.best["weights"])
        if self.in_int8:
            multiply_in_int8(self.model.encoder)
        self.model.eval()
        device = next(self.model.parameters()).device
        logits: Logits = []
        for batch in EvaluatedSplit(self.data.collator(split)):
            moved = self.transfer_batch_to_device(batch, device, 0)
            with autocast(device.type, precision):
                logits += split_logits(self(moved), moved, self.data.splits[split])
        return self.in_order(split, logits)

    def in_order(self, split: str, collected: Logits) -> Logits:
        """Return logits in the order of the inputs; raises FloatingPointError where one is not finite."""
        order = np.concatenate(evaluation_batches(self.data.splits[split].tokens.lengths))
        logits: Logits = [np.empty(0)] * len(order)
        for place, of_input in zip(order, collected, strict=True):
            logits[place] = of_input
        if not all(np.isfinite(of_input).all() for of_input in logits):
            raise FloatingPointError(f"a logit on {split} is not finite")
        return logits

    def _predictions(self, split: str, logits: Logits) -> list[Any]:
        return predictions(self.data.task, split, self.data.splits[split], logits)

    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        """Clip the global norm at 1, as BERT's fine-tuning does."""
        clip_gradients(self.parameters(), 1.0)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a linear warmup and decay in every step."""
        recipe = recipe_of(self.config, self.steps)
        optimizer = adamw(self.model, recipe)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule(optimizer, self.steps, recipe), "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the best epoch and the counters."""
        checkpoint["task"] = {
            "best": self.best,
            "tokens": self.tokens_done,
            "seconds": self.seconds_training + time.perf_counter() - self._resumed,
            "interval": (self._loss_sum.cpu(), self._loss_steps, self._row_step),
            "validated_step": self.validated_step,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the best epoch and the counters."""
        state = checkpoint["task"]
        self.best, self.tokens_done, self.seconds_training = state["best"], state["tokens"], state["seconds"]
        self._loss_sum, self._loss_steps, self._row_step = state["interval"]
        self.validated_step = state["validated_step"]


def recipe_of(config: ScoreConfig, steps: int) -> Recipe:
    """Return the recipe of a score's knobs."""
    knobs = config.knobs
    return Recipe(
        learning_rate=knobs.learning_rate,
        warmup_fraction=knobs.warmup_fraction,
        weight_decay=knobs.weight_decay,
        beta2=0.999,
        dropout=knobs.dropout,
        budget=Budget(steps=steps),
    )


class FineTuningData(pl.LightningDataModule):
    """The data of a fine-tuning: training batches from the trainer's step on, and those of dev."""

    def __init__(self, module: FineTuning) -> None:
        super().__init__()
        self.module, self.data = module, module.data

    def train_dataloader(self) -> DataLoader[TaskBatch]:
        """Batches from the current step to the last."""
        return DataLoader(_Steps(self.module), batch_size=None)

    def val_dataloader(self) -> DataLoader[TaskBatch]:
        """All of dev."""
        return DataLoader(EvaluatedSplit(self.data.collator("dev")), batch_size=None)


class _Steps(IterableDataset[TaskBatch]):
    """The training batches from the trainer's step on."""

    def __init__(self, module: FineTuning) -> None:
        self.module = module

    def __len__(self) -> int:
        return self.module.steps

    def __iter__(self) -> Iterator[TaskBatch]:
        data = self.module.data
        for step in range(self.module.steps_done, self.module.steps):
            split, rows = self.module.rows_at(step)
            yield data.collator(split)(rows)


@dataclass(frozen=True)
class FineTuned:
    """A finished fine-tuning: the module at its best epoch, its predictions for test, and what it took.

    `seconds` are also those of its teacher, if any; `train_flops` are its own, `spent_flops` also the teacher's (ScoreRecord).
    """

    module: FineTuning
    test_predictions: list[Any]
    seconds: float
    train_flops: float
    spent_flops: float | None


def fine_tune(scoring: ScoreAttempt, data: TaskInputs) -> FineTuned:
    """Fine-tune from the checkpoint or the start to the last epoch or the early stop, and predict test.

    Raises InputError if the checkpoints are a link, Preempted after saving, and FloatingPointError for a loss or logit that is
    not finite.
    """
    scoring.folder.refuse_linked_checkpoints()
    taught = None if scoring.config.knobs.teacher is None else _taught(scoring, data.task)
    module, clock = _trained(scoring, data, None if taught is None else taught.logits)
    train_flops = module.flops_to(module.steps_done)
    spent_flops = None if taught is None else train_flops + taught.flops
    predictions = module.predict_test(scoring.precision)
    seconds = clock.seconds + (0.0 if taught is None else taught.seconds)
    return FineTuned(module, predictions, seconds, train_flops, spent_flops)


class _Taught(NamedTuple):
    """A teacher's logits, a row for each unlabelled text, and the FLOPs and seconds they needed."""

    logits: Float[Tensor, "N C"]
    flops: float
    seconds: float


def _taught(scoring: ScoreAttempt, task: TaskData) -> _Taught:
    """Return what the teacher says, kept beside the checkpoints.

    The teacher is fine-tuned on train in a folder of its own, which is then removed.
    """
    config, kept = scoring.config, scoring.folder.checkpoints / TAUGHT
    folder = ScoreFolder(scoring.folder.path / "teacher")
    if is_there(kept):
        shutil.rmtree(folder.path, ignore_errors=True)  # an earlier attempt may have ended before it removed it
        with np.load(kept) as file:
            return _Taught(torch.from_numpy(file["logits"]), float(file["flops"]), float(file.get("seconds", 0.0)))
    assert config.knobs.teacher is not None
    run = Pretrained(RunFolder(Path(config.knobs.teacher)))
    knobs = config.knobs.model_copy(update={"teacher": None})
    own = config.model_copy(update={"encoder": run.run_id, "protocol": "fine_tune", "knobs": knobs})
    checkpoint = newest_whole_checkpoint(folder.checkpoints)
    teaching = replace(scoring, config=own, run=run, folder=folder, checkpoint=checkpoint)
    folder.path.mkdir(exist_ok=True)
    inputs = task_inputs(task, run, knobs)
    module, clock = _trained(teaching, inputs, None)
    logits_NxC = np.stack(module.logits_of(UNLABELLED, scoring.precision)).astype(np.float32)
    labels = encoder_flops(run.config.architecture, inputs.splits[UNLABELLED].tokens.lengths.tolist()) / 3  # forward passes
    record = run.folder.record()
    assert record is not None, "a teacher has completed"
    needed = record.train_flops if record.spent_flops is None else record.spent_flops
    flops = needed + module.flops_to(module.steps_done) + labels
    seconds = clock.seconds
    scoring.check()
    content = io.BytesIO()
    np.savez(content, logits=logits_NxC, flops=flops, seconds=seconds)
    kept.parent.mkdir(exist_ok=True)
    write_atomically(kept, content.getvalue())
    shutil.rmtree(folder.path)
    return _Taught(torch.from_numpy(logits_NxC), flops, seconds)


def _trained(scoring: ScoreAttempt, data: TaskInputs, taught_NxC: Tensor | None) -> tuple[FineTuning, Clock]:
    """Return a module at its last step, and the clock that goes on counting its seconds."""
    config, folder, execution, checkpoint = scoring.config, scoring.folder, scoring.execution, scoring.checkpoint
    clock = Clock(config.fingerprint())
    model = task_model(config, scoring.run, data)
    module = FineTuning(config, data, model, in_int8=scoring.in_int8, taught_NxC=taught_NxC)
    module.log_every_steps = max(1, min(50, module.steps // ROWS))
    metrics = MetricsFile(folder.metrics_file, 0 if checkpoint is None else step_of(checkpoint), scoring.check)
    trainer = lightning_trainer(
        execution.device,
        scoring.precision,
        folder.path,
        plugins=[DurableCheckpointIO(scoring.check)],
        devices=1,
        max_steps=module.steps,
        val_check_interval=module.steps_per_epoch,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        logger=metrics,
        callbacks=[Checkpointer(folder.checkpoints, scoring.stop, execution.checkpoint_seconds), clock, scoring.watchdog],
    )
    batches = FineTuningData(module)
    try:
        with scoring.watchdog.watching():
            trainer.fit(module, batches, ckpt_path=checkpoint, weights_only=True)
            if module.validated_step != trainer.global_step:
                trainer.validate(module, batches, verbose=False)
    finally:
        metrics.close()
    module.to("cuda" if execution.device == "cuda" else "cpu")
    return module, clock


def task_model(config: ScoreConfig, run: Pretrained, data: TaskInputs) -> TaskModel:
    """Return the run's encoder, or one with random weights, under a new head."""
    kind, outputs = head_of(data.task)
    architecture, dropout = run.config.architecture, config.knobs.dropout
    model = TaskModel(architecture, len(data.pieces), kind, outputs, dropout, config.seed)
    if config.protocol != "random_init":
        model.load_encoder(run.state(), data.pieces)
    return model


def prepare_process(threads: int) -> None:
    """Set the threads and logging of a process that makes scores."""
    quiet()
    torch.set_num_threads(threads)
    threadpool_limits(threads, user_api="blas")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads > 1 else "false")
