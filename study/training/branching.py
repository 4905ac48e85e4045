"""Shared trunks: a run saves its state where it or shorter budgets begin to decay, and others resume from it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl

from study.base.durable_files import retry_write
from study.config.run_config import RunConfig
from study.model.lightning import MaskedLanguageModelling
from study.store.run_folder import RunFolder, Trunk
from study.training.callbacks import refuse_infinite_weights
from study.training.checkpoints import POSTPONABLE

ROWS_OF_WARMUP = 5
"""The fewest metric rows in the warmup of a run with a shared trunk."""

UNWARMED_INTERVAL = 10
"""Steps between its rows without a warmup."""


def shared_log_interval(config: RunConfig) -> int | None:
    """Steps between logged rows if longer runs share this run's steps before the decay; else None.

    It depends on the warmup, not the budget, so that all budgets log the same rows in shared steps.
    """
    if config.branch_step is None:
        return None
    warmup = config.recipe.warmup_steps(config.steps)
    return max(1, min(50, warmup // ROWS_OF_WARMUP)) if warmup else UNWARMED_INTERVAL


class Branching(pl.Callback):
    """Saves the run's state where other budgets branch off, and records the run that its own state came from.

    `check` is called before a write (study.training.trainer.Training.fit). A state that cannot be written is skipped.

    A checkpoint names the run that saved it. The sweep links a trunk's state into the checkpoints of a run without any; the run
    resumes from it, and this callback writes `trunk.json`.
    """

    def __init__(self, folder: RunFolder, check: Callable[[], None] | None = None) -> None:
        self.folder, self._check = folder, check or (lambda: None)
        self._steps = frozenset(folder.orders().branch_steps)
        self._from: str | None = None

    def state_dict(self) -> dict[str, Any]:
        """The run that saves this state."""
        return {"run_id": self.folder.run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Remember the run that saved the state, if another."""
        if state_dict["run_id"] != self.folder.run_id:
            self._from = state_dict["run_id"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the run that this one branched from."""
        if not trainer.is_global_zero:
            return
        if self._from is not None or trainer.global_step == 0:
            trunk = None if self._from is None else Trunk(run_id=self._from, step=trainer.global_step)
            retry_write(lambda: self.folder.write_trunk(trunk), check=self._check)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Save the state after logging its metrics, if another budget branches off here."""
        if trainer.global_step not in self._steps:
            return
        assert isinstance(pl_module, MaskedLanguageModelling)
        pl_module.log_due_row()
        refuse_infinite_weights(trainer, pl_module)
        for logger in trainer.loggers:
            logger.save()
        if trainer.is_global_zero:
            with contextlib.suppress(OSError):  # then branches get the rows present when they start
                self._check()
                self.folder.leave_rows(trainer.global_step)
        trainer.save_checkpoint(self.folder.branch(trainer.global_step) / "next.ckpt", storage_options=POSTPONABLE)
