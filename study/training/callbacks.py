"""Lightning callbacks of a run: stop signals, prune orders, checkpoints, the clock, shared trunks and the watchdog.

A run with a shared trunk saves its state where it or shorter budgets begin to decay, and others resume from it. The watchdog
detects a run that takes no steps, with its stack.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn

from study.base.durable_files import retry_write
from study.config.run_config import RunConfig
from study.model.lightning import MaskedLanguageModelling
from study.store.run_folder import RunFolder, Trunk
from study.training.attempts import Preempted, StopSignal
from study.training.checkpoints import POSTPONABLE, DurableCheckpointIO

FIRST_SECONDS, LONGEST_SECONDS = 10.0, 60.0
"""The time to an attempt's first checkpoint, and the limit of later intervals, each twice the last."""

SHARE = 0.02
"""The share of a run's time for checkpoints; BERT-Large's is 4 GB."""

AGAIN_SECONDS = 1.0
"""The pause before a failed checkpoint is retried."""

ROWS_OF_WARMUP = 5
"""The fewest metric rows in the warmup of a run with a shared trunk."""

UNWARMED_INTERVAL = 10
"""Steps between its rows without a warmup."""

FRAMES = 12
"""The number of innermost frames in a reason; the log has all."""

STDERR = 2


@runtime_checkable
class LogsRows(Protocol):
    """A module that logs its metrics before the checkpoint of their step."""

    def log_due_row(self) -> None:
        """Log the row of this step if it is due and not yet logged."""


class Checkpointer(pl.Callback):
    """Saves at step boundaries every `every_seconds`, and on a stop signal, after which it raises Preempted.

    By default a young attempt saves more often, so that a repeatedly killed run progresses, and large checkpoints are rarer, to
    take at most SHARE of the time. A step before a validation is no boundary: the state is saved one step later, so that a
    resumed run validates at the usual steps; where every step is validated, after its validation. A non-finite state is never
    saved. Checkpoints store the precision and the number of threads, which a resumed run keeps.
    """

    def __init__(self, folder: Path, stop: StopSignal, every_seconds: float | None) -> None:
        self.folder, self.stop, self.every_seconds = folder, stop, every_seconds
        self._interval = FIRST_SECONDS if every_seconds is None else every_seconds
        self._due = time.monotonic() + self._interval

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Install the signal handlers after Lightning, and check that all ranks resume from one step.

        Ranks communicate through gloo, also on GPUs: the host does not wait for the device, and notices a lost rank.
        """
        self.stop.install()
        if trainer.world_size > 1:
            self._ranks = torch.distributed.new_group(backend="gloo")
            step = torch.tensor([trainer.global_step, -trainer.global_step])
            torch.distributed.all_reduce(step, op=torch.distributed.ReduceOp.MAX, group=self._ranks)
            if step.sum():
                raise RuntimeError(f"the ranks resumed from different checkpoints, this one from step {trainer.global_step}")

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Install the signal handlers if Lightning only validates."""
        self.stop.install()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Save if a checkpoint is due."""
        assert isinstance(pl_module, LogsRows)
        pl_module.log_due_row()
        if not _validates_after(trainer):
            self._save_if_due(trainer, pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save if a checkpoint is due, every step is validated and this was not the last."""
        if trainer.state.fn == TrainerFn.FITTING and trainer.val_check_batch == 1 and not trainer.should_stop:
            self._save_if_due(trainer, pl_module)

    def _save_if_due(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        stopping, due = self._agreed(trainer)
        at_end = trainer.global_step >= trainer.max_steps
        if at_end or not (stopping or due):
            return
        refuse_infinite_weights(trainer, pl_module)
        for logger in trainer.loggers:
            logger.save()
        self._save(trainer, stopping)
        if stopping:
            raise Preempted

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Store precision and threads (see precision_of and resumed)."""
        checkpoint |= {"precision": trainer.precision, "threads": torch.get_num_threads()}

    def _save(self, trainer: pl.Trainer, stopping: bool) -> None:
        """Save and schedule the next checkpoint; only a stop needs the folder to be in reach."""
        started = time.monotonic()
        trainer.save_checkpoint(self.folder / "next.ckpt", storage_options=None if stopping else POSTPONABLE)
        writer = trainer.strategy.checkpoint_io
        assert isinstance(writer, DurableCheckpointIO)
        now = time.monotonic()
        if writer.saved and self.every_seconds is None:
            self._interval = max(min(2 * self._interval, LONGEST_SECONDS), (now - started) / SHARE)
        self._due = now + (self._interval if writer.saved else AGAIN_SECONDS)

    def _agreed(self, trainer: pl.Trainer) -> tuple[bool, bool]:
        """Whether to stop and whether a checkpoint is due; any rank decides for all."""
        flags = (self.stop.received, time.monotonic() > self._due)
        if trainer.world_size == 1:
            return flags
        votes = torch.tensor(flags, dtype=torch.int32)
        torch.distributed.all_reduce(votes, op=torch.distributed.ReduceOp.MAX, group=self._ranks)
        stopping, due = votes.tolist()
        return bool(stopping), bool(due)


def refuse_infinite_weights(trainer: pl.Trainer, module: pl.LightningModule) -> None:
    """Raise FloatingPointError if a weight is not finite."""
    if not torch.nn.utils.get_total_norm([*module.parameters()], math.inf).isfinite():
        raise FloatingPointError(f"a weight is not finite after step {trainer.global_step}")


def _validates_after(trainer: pl.Trainer) -> bool:
    assert trainer.val_check_batch is not None
    return trainer.global_step % int(trainer.val_check_batch) == 0


class Clock(pl.Callback):
    """Counts the seconds of training and validation over all attempts of a run, without its trunk's.

    Each attempt's start lasts until the end of its first step, which builds kernels.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._before, self._started = 0.0, time.perf_counter()
        self._starts_before, self._start = 0.0, 0.0
        self._earlier: int | None = 0

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        return self._before + time.perf_counter() - self._started

    @property
    def start_seconds(self) -> float:
        """Seconds of all starts."""
        return self._starts_before + self._start

    @property
    def starts(self) -> int | None:
        """The number of these starts; None after a checkpoint of an earlier version."""
        return None if self._earlier is None else self._earlier + (self._start > 0)

    def on_train_batch_end(self, *_: Any) -> None:
        """End the start with the first step."""
        self._start = self._start or time.perf_counter() - self._started

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds so far."""
        of_starts = {"start_seconds": self.start_seconds, "starts": self.starts}
        return {"seconds": self.seconds, **of_starts, "run_id": self.run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Add the seconds of earlier attempts."""
        if state_dict.get("run_id", self.run_id) == self.run_id:
            self._before, self._starts_before = state_dict["seconds"], state_dict.get("start_seconds", 0.0)
            self._earlier = state_dict.get("starts")


class Pruned(Exception):
    """The sweep gave up this run."""


class PruneOrder(pl.Callback):
    """Stops all ranks at one step if the run's folder has a `prune.json`, by raising Pruned with the reason.

    Rank 0 checks for the file at every logging step and informs the others.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        """Raise Pruned if ordered."""
        assert isinstance(pl_module, MaskedLanguageModelling)
        if trainer.global_step % pl_module.log_every_steps or trainer.global_step >= trainer.max_steps:
            return
        reason = self.folder.prune() if trainer.is_global_zero else None
        if trainer.world_size > 1:
            reason = trainer.strategy.broadcast(reason)
        if reason is not None:
            pl_module.log_due_row()
            raise Pruned(reason)


def shared_log_interval(config: RunConfig) -> int | None:
    """Return the steps between logged rows if longer runs share this run's steps before the decay; else None.

    It depends on the warmup, not the budget.
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
        """Return the run that saves this state."""
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
        """Save the state, after its metrics, if another budget branches off here."""
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


class Watchdog(pl.Callback):
    """Calls `hung` with the reason, in its own thread, if no batch ends for `seconds`.

    Time while the whole process was stopped does not count, up to twice `seconds`. If the interpreter is stuck, and with it
    every thread, the process exits with status 1 after twice `seconds`, with all stacks in its log. A process stopped for
    longer may end so too; it is retried from its last checkpoint.
    """

    def __init__(self, seconds: float, hung: Callable[[str], None]) -> None:
        self.seconds, self._hung = seconds, hung
        self._ticks = 0
        self._poll = min(1.0, seconds / 10)

    def tick(self) -> None:
        """Count a sign of progress."""
        self._ticks += 1

    def on_train_batch_end(self, *_: Any) -> None:
        """Count a step."""
        self.tick()

    def on_validation_batch_end(self, *_: Any, **__: Any) -> None:
        """Count a validation batch."""
        self.tick()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the calling thread inside the block."""
        over, watched = threading.Event(), threading.get_ident()
        thread = threading.Thread(target=self._watch, args=(over, watched), daemon=True, name="watchdog")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()  # before cancelling, so that the thread cannot start the timer again
            faulthandler.cancel_dump_traceback_later()

    def _watch(self, over: threading.Event, watched: int) -> None:
        seen, silent, before = -1, 0.0, time.monotonic()
        while not over.wait(self._poll):
            faulthandler.dump_traceback_later(2 * self.seconds, exit=True, file=STDERR)
            now = time.monotonic()
            silent += min(now - before, 2 * self._poll)
            before = now
            if self._ticks != seen:
                seen, silent = self._ticks, 0.0
            elif silent > self.seconds:
                faulthandler.cancel_dump_traceback_later()
                faulthandler.dump_traceback(STDERR)
                self._hung(f"no step for {self.seconds:g} s, in {_where(watched)}")
                return


def _where(thread: int) -> str:
    frames = traceback.extract_stack(sys._current_frames()[thread])[-FRAMES:]
    return " ← ".join(f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in reversed(frames))
