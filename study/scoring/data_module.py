"""The batches of a fine-tuning as a LightningDataModule: a resumed one begins at the step that it has reached."""

from __future__ import annotations

from collections.abc import Iterator

import pytorch_lightning as pl
from torch.utils.data import DataLoader, IterableDataset

from study.scoring.fine_tuning import FineTuning
from study.scoring.task_batches import EvaluatedSplit, TaskBatch


class TaskBatches(pl.LightningDataModule):
    """Training batches from the trainer's step on, and those of dev."""

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
    """The training batches from the step that the trainer has reached."""

    def __init__(self, module: FineTuning) -> None:
        self.module = module

    def __len__(self) -> int:
        return self.module.steps

    def __iter__(self) -> Iterator[TaskBatch]:
        collate = self.module.data.collator("train")
        for step in range(self.module.steps_done, self.module.steps):
            yield collate(self.module.order.at(step))
