"""A run of a search is told by its sweep to stop before its end; it knows nothing of why, nor of Optuna."""

from __future__ import annotations

from typing import Any

import pytorch_lightning as pl

from study.model.lightning import MaskedLanguageModelling
from study.store.run_folder import RunFolder


class Pruned(Exception):
    """The sweep wants no more of this run."""


class PruneOrder(pl.Callback):
    """Stops all ranks of a run at one step, by raising Pruned with the reason, once `prune.json` is in its folder.

    Rank 0 looks at every step that a row may be logged at, and tells the others.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Look whether the run is to stop."""
        assert isinstance(pl_module, MaskedLanguageModelling)
        if trainer.global_step % pl_module.log_every_steps or trainer.global_step >= trainer.max_steps:
            return
        reason = self.folder.prune() if trainer.is_global_zero else None
        if trainer.world_size > 1:
            reason = trainer.strategy.broadcast(reason)
        if reason is not None:
            pl_module.log_due_row()
            raise Pruned(reason)
