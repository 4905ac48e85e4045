"""Fine-tuning by Lightning's Trainer: from a task's inputs to the best epoch on dev and its predictions for test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch
from threadpoolctl import threadpool_limits
from torch.utils.data import DataLoader, IterableDataset

from study.config.score_config import ScoreConfig
from study.model.task_model import TaskModel
from study.scoring.attempt import ScoreAttempt
from study.scoring.fine_tuning import FineTuning
from study.scoring.predictions import head_of
from study.scoring.pretrained import Pretrained
from study.scoring.task_inputs import EvaluatedSplit, TaskBatch, TaskInputs
from study.store.work_folder import step_of
from study.training.callbacks import Checkpointer, Clock
from study.training.checkpoints import DurableCheckpointIO
from study.training.metrics_log import MetricsFile
from study.training.trainer import lightning_trainer, quiet


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
        collate = self.module.data.collator("train")
        for step in range(self.module.steps_done, self.module.steps):
            yield collate(self.module.order.at(step))


ROWS = 20
"""A fine-tuning logs about so many rows of metrics."""


@dataclass(frozen=True)
class FineTuned:
    """A finished fine-tuning: the module at its best epoch, its predictions for test, and the seconds it took."""

    module: FineTuning
    test_predictions: list[Any]
    seconds: float


def fine_tune(scoring: ScoreAttempt, data: TaskInputs) -> FineTuned:
    """Fine-tune from the checkpoint or the start to the last epoch or the early stop, and predict test.

    Raises Preempted on an order to stop, after saving, and FloatingPointError where a loss or a logit is not finite.
    """
    config, folder, execution, checkpoint = scoring.config, scoring.folder, scoring.execution, scoring.checkpoint
    module = FineTuning(config, data, task_model(config, scoring.run, data), in_int8=scoring.in_int8)
    module.log_every_steps = max(1, min(50, module.steps // ROWS))
    clock = Clock(config.fingerprint())
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
    return FineTuned(module, module.predict_test(scoring.precision), clock.seconds)


def task_model(config: ScoreConfig, run: Pretrained, data: TaskInputs) -> TaskModel:
    """The model of a score: the run's encoder, or one with random weights, under a new head."""
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
