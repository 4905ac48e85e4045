"""Fine-tuning by Lightning's Trainer: from a task's inputs to the best epoch on dev and its predictions for test."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import Float
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from study.base.durable_files import is_there, write_atomically
from study.config.score_config import ScoreConfig
from study.counting.parameters import encoder_flops
from study.model.heads import TaskModel
from study.scoring.fine_tuning import FineTuning
from study.scoring.predictions import head_of
from study.scoring.pretrained import Pretrained
from study.scoring.task_inputs import EvaluatedSplit, ScoreAttempt, TaskBatch, TaskInputs, task_inputs
from study.store.run_folder import RunFolder
from study.store.score_records import ScoreFolder
from study.store.work_folder import TAUGHT, step_of
from study.tasks.examples import TaskData
from study.tasks.loading import UNLABELLED
from study.training.callbacks import Checkpointer, Clock
from study.training.checkpoints import DurableCheckpointIO, newest_whole_checkpoint
from study.training.trainer import MetricsFile, lightning_trainer, quiet


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


ROWS = 20
"""A fine-tuning logs about so many rows of metrics."""


@dataclass(frozen=True)
class FineTuned:
    """A finished fine-tuning: the module at its best epoch, its predictions for test, and the seconds it took.

    `train_flops` are its own, `spent_flops` also those of its teacher, if any (ScoreRecord).
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
    module, seconds = _trained(scoring, data, None if taught is None else taught.logits)
    train_flops = module.flops_to(module.steps_done)
    spent_flops = None if taught is None else train_flops + taught.flops
    return FineTuned(module, module.predict_test(scoring.precision), seconds, train_flops, spent_flops)


class _Taught(NamedTuple):
    """A teacher's logits, a row for each unlabelled text, and the FLOPs they needed."""

    logits: Float[Tensor, "N C"]
    flops: float


def _taught(scoring: ScoreAttempt, task: TaskData) -> _Taught:
    """Return what the teacher says, kept beside the checkpoints.

    The teacher is fine-tuned on train in a folder of its own, which is then removed.
    """
    config, kept = scoring.config, scoring.folder.checkpoints / TAUGHT
    if is_there(kept):
        with np.load(kept) as file:
            return _Taught(torch.from_numpy(file["logits"]), float(file["flops"]))
    folder = ScoreFolder(scoring.folder.path / "teacher")
    assert config.knobs.teacher is not None
    run = Pretrained(RunFolder(Path(config.knobs.teacher)))
    knobs = config.knobs.model_copy(update={"teacher": None})
    own = config.model_copy(update={"encoder": run.run_id, "protocol": "fine_tune", "knobs": knobs})
    checkpoint = newest_whole_checkpoint(folder.checkpoints)
    teaching = replace(scoring, config=own, run=run, folder=folder, checkpoint=checkpoint)
    folder.path.mkdir(exist_ok=True)
    inputs = task_inputs(task, run, knobs)
    module, _ = _trained(teaching, inputs, None)
    logits_NxC = np.stack(module.logits_of(UNLABELLED, scoring.precision)).astype(np.float32)
    labels = encoder_flops(run.config.architecture, inputs.splits[UNLABELLED].tokens.lengths.tolist()) / 3  # forward passes
    record = run.folder.record()
    assert record is not None, "a teacher has completed"
    needed = record.train_flops if record.spent_flops is None else record.spent_flops
    flops = needed + module.flops_to(module.steps_done) + labels
    scoring.check()
    content = io.BytesIO()
    np.savez(content, logits=logits_NxC, flops=flops)
    kept.parent.mkdir(exist_ok=True)
    write_atomically(kept, content.getvalue())
    shutil.rmtree(folder.path)
    return _Taught(torch.from_numpy(logits_NxC), flops)


def _trained(scoring: ScoreAttempt, data: TaskInputs, taught_NxC: Tensor | None) -> tuple[FineTuning, float]:
    """Return a module at its last step, with the seconds it took."""
    config, folder, execution, checkpoint = scoring.config, scoring.folder, scoring.execution, scoring.checkpoint
    model = task_model(config, scoring.run, data)
    module = FineTuning(config, data, model, in_int8=scoring.in_int8, taught_NxC=taught_NxC)
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
    return module, clock.seconds


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
