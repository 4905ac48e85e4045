"""What goes on beside the steps of a run: stopping when told to, checkpoints, the clock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch

from study.model.lightning import MaskedLanguageModelling
from study.store.run_folder import RunFolder
from study.training.checkpoints import POSTPONABLE, DurableCheckpointIO
from study.training.stopping import Preempted, StopSignal

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 60.0
"""When the first checkpoint of an attempt is due, and the pause that each later one doubles up to."""

SHARE = 0.02
"""How much of a run's time its checkpoints may take; one of BERT-Large is 4 GB."""

AGAIN_SECONDS = 1.0
"""When a checkpoint is tried again that could not be written."""


@runtime_checkable
class LogsRows(Protocol):
    """A module whose rows of metrics come before the checkpoint of their step."""

    def log_due_row(self) -> None:
        """Log the row of this step where it is due and not logged yet."""


class Checkpointer(pl.Callback):
    """Saves at a step boundary every so many seconds and when told to stop, then raising Preempted.

    Where the seconds are left open a young attempt saves more often, so that a run that is killed again and again gets on, and
    one whose checkpoints are large less often, so that they take no more than SHARE of its time. A step after which validation
    is due is no boundary: the state is saved one step later, so that a resumed run validates exactly where an undisturbed one
    does. A state that is not finite is never saved. Every checkpoint tells its precision, which a resumed run keeps to.
    """

    def __init__(self, folder: Path, stop: StopSignal, every_seconds: float | None) -> None:
        self.folder, self.stop, self.every_seconds = folder, stop, every_seconds
        self._interval = FIRST_SECONDS if every_seconds is None else every_seconds
        self._due = time.monotonic() + self._interval

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take over the signals after Lightning has set its own, and see that all ranks go on from one step.

        Ranks agree through gloo, on GPUs too: the host does not wait for the device, and hears of a rank that is gone.
        """
        self.stop.install()
        if trainer.world_size > 1:
            self._ranks = torch.distributed.new_group(backend="gloo")
            step = torch.tensor([trainer.global_step, -trainer.global_step])
            torch.distributed.all_reduce(step, op=torch.distributed.ReduceOp.MAX, group=self._ranks)
            if step.sum():
                raise RuntimeError(f"the ranks resumed from different checkpoints, this one from step {trainer.global_step}")

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take over the signals again where Lightning validates on its own: the run ends with its record."""
        self.stop.install()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Save where it is time."""
        assert isinstance(pl_module, LogsRows)
        pl_module.log_due_row()
        stopping, due = self._agreed(trainer)
        at_end = trainer.global_step >= trainer.max_steps
        if at_end or not (stopping or due) or _validates_after(trainer):
            return
        refuse_infinite_weights(trainer, pl_module)
        for logger in trainer.loggers:
            logger.save()
        self._save(trainer, stopping)
        if stopping:
            raise Preempted

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the precision (see precision_of)."""
        checkpoint["precision"] = trainer.precision

    def _save(self, trainer: pl.Trainer, stopping: bool) -> None:
        """Save, and say when next; while the folder is out of reach training goes on, unless it is to stop here."""
        started = time.monotonic()
        trainer.save_checkpoint(self.folder / "next.ckpt", storage_options=None if stopping else POSTPONABLE)
        writer = trainer.strategy.checkpoint_io
        assert isinstance(writer, DurableCheckpointIO)
        now = time.monotonic()
        if writer.saved and self.every_seconds is None:
            self._interval = max(min(2 * self._interval, LONGEST_SECONDS), (now - started) / SHARE)
        self._due = now + (self._interval if writer.saved else AGAIN_SECONDS)

    def _agreed(self, trainer: pl.Trainer) -> tuple[bool, bool]:
        """Whether to stop and whether a checkpoint is due; over several ranks any of them decides for all."""
        flags = (self.stop.received, time.monotonic() > self._due)
        if trainer.world_size == 1:
            return flags
        votes = torch.tensor(flags, dtype=torch.int32)
        torch.distributed.all_reduce(votes, op=torch.distributed.ReduceOp.MAX, group=self._ranks)
        stopping, due = votes.tolist()
        return bool(stopping), bool(due)


def refuse_infinite_weights(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Raise FloatingPointError where a weight is not finite, so that no such state is saved."""
    if not all(torch.isfinite(parameter).all() for parameter in module.parameters()):
        raise FloatingPointError(f"a weight is not finite after step {trainer.global_step}")


def _validates_after(trainer: pl.Trainer) -> bool:
    assert trainer.val_check_batch is not None
    return trainer.global_step % int(trainer.val_check_batch) == 0


class Clock(pl.Callback):
    """Keeps the seconds that a run has trained and validated, over all its attempts; those of its trunk are not its own.

    Of these, an attempt's up to the end of its first step are its start: kernels are built in it.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._before, self._started = 0.0, time.perf_counter()
        self._starts_before, self._start = 0.0, 0.0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._before + time.perf_counter() - self._started

    @property
    def start_seconds(self) -> float:
        """Seconds of all starts."""
        return self._starts_before + self._start

    def on_train_batch_end(self, *_: Any) -> None:
        """End the start with the first step."""
        self._start = self._start or time.perf_counter() - self._started

    def state_dict(self) -> dict[str, Any]:
        """What has been spent."""
        return {"seconds": self.seconds, "start_seconds": self.start_seconds, "run_id": self.run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what earlier attempts had spent when they saved."""
        if state_dict.get("run_id", self.run_id) == self.run_id:
            self._before, self._starts_before = state_dict["seconds"], state_dict.get("start_seconds", 0.0)


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
