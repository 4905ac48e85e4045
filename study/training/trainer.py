"""Training by Lightning's Trainer: from prepared data to a trained and validated module, with its metrics as JSON lines.

A row of metrics is one write, rows are fsynced every few seconds, and a torn tail is repaired before appending.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.profilers import PassThroughProfiler
from pytorch_lightning.utilities import rank_zero_only
from torch import Tensor

from study.base.durable_files import content_of, retry_write, write_atomically
from study.config.run_config import RunConfig
from study.counting.memory import Device, Precision
from study.data.batches import PackedBatches, training_masker, validation_masker
from study.data.masking import Masker
from study.data.prepared import PreparedData
from study.model.lightning import MaskedLanguageModelling, ValidationResult
from study.model.stored_weights import multiply_in_int8, rounded
from study.store.run_folder import RunFolder
from study.store.work_folder import line_of, step_of, whole_rows
from study.training.attempts import StopSignal
from study.training.callbacks import Branching, Checkpointer, Clock, PruneOrder, shared_log_interval
from study.training.checkpoints import DurableCheckpointIO, precision_of
from study.training.execution import LIGHTNING_PRECISION, Execution, keep_freed_memory, peak_flops_per_second, resolve_kernels
from study.training.trained_runs import load_teacher, starting_weights

FSYNC_SECONDS = 5.0


class MetricsFile(Logger):
    """Lightning's logger for a run's `metrics.jsonl`, with one history over all attempts.

    Keys are the module's (`train/loss`, `trainer/tokens`, …) without Lightning's `epoch`, which packed batches lack. A killed
    attempt's rows after the resumed step are removed. The file is replaced, so that an attempt presumed dead appends to an
    unread file. `check` is called before each write, and raises if another attempt owns the run.
    """

    def __init__(self, path: Path, from_step: int, check: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.path, self._check = path, check
        retry_write(lambda: write_atomically(path, b"".join(_lines_to(path, from_step))), check=check)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._synced = time.monotonic()

    @property
    def name(self) -> str:
        """Lightning's name of the logger."""
        return "metrics"

    @property
    def version(self) -> str:
        """Lightning's version of the logger, unused."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the configuration has its own file."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Append one row, whole or not at all; raises OSError if the disk is full."""
        del step
        size = retry_write(lambda: os.fstat(self._file).st_size, check=self._check)
        row = {key: _number(value) for key, value in metrics.items() if key != "epoch"}
        line = line_of(row)
        if os.write(self._file, line) != len(line):
            os.ftruncate(self._file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        if time.monotonic() - self._synced > FSYNC_SECONDS:
            self.save()

    @rank_zero_only
    def save(self) -> None:
        """Make the rows durable."""
        os.fsync(self._file)
        self._synced = time.monotonic()

    def close(self) -> None:
        """Make the rows durable and close the file."""
        self.save()
        os.close(self._file)


def _number(value: float) -> int | float:
    return int(value) if float(value).is_integer() else float(value)


def _lines_to(path: Path, step: int) -> Iterator[bytes]:
    """Return the complete rows up to a step; raises InputError at a damaged one."""
    rows = whole_rows(io.BytesIO(content_of(path) or b""), str(path))
    return (line_of(row) for _, row in takewhile(lambda row: row[1]["trainer/step"] <= step, rows))


VALIDATION_SHARE = 0.05
"""The share of a run for validations before the final one."""

ROWS = 50
"""The approximate number of metric rows of a run; longer runs log one every 50 steps."""


@dataclass(frozen=True)
class Trained:
    """A run that reached its target: its module, its last validation, and its seconds.

    An encoder imported without an MLM head has no validation. `start_seconds` includes the time of each of the `starts` up to
    the end of its first step; None if nothing was trained. `masked_words` identifies the words masked in bits per byte.
    """

    module: MaskedLanguageModelling
    validation: ValidationResult | None
    seconds: float
    start_seconds: float | None = None
    starts: int | None = None
    masked_words: str | None = None


@dataclass(frozen=True)
class Training:
    """An attempt at training: a run, its data, folder and execution, and the checkpoint to resume from.

    The data are limited to the recipe's `unique_tokens`; raises InputError if they have fewer.
    """

    config: RunConfig
    prepared: PreparedData
    folder: RunFolder
    execution: Execution
    checkpoint: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prepared", self.prepared.with_unique_tokens(self.config.recipe.unique_tokens))

    @cached_property
    def precision(self) -> Precision:
        """The precision of matrix products (see precision_of)."""
        return precision_of(self.config.recipe.precision, self.checkpoint, self.execution.device)

    def fit(
        self,
        stop: StopSignal,
        check: Callable[[], None] | None = None,
        callbacks: Sequence[pl.Callback] = (),
        tick: Callable[[], object] = lambda: None,
    ) -> Trained:
        """Train from the checkpoint, or the recipe's start, to the last step, and validate there.

        `check` is called before every write and raises if another process owns the run; `callbacks` follow the run's own;
        `tick` is called while the initial weights are made. Raises Preempted after saving on a stop signal, and
        FloatingPointError if a loss or a weight is not finite.
        """
        config, folder, execution = self.config, self.folder, self.execution
        quiet()
        torch.set_num_threads(execution.threads)
        if execution.device == "cpu":
            keep_freed_memory()
        clock, module = Clock(folder.run_id), self._module(training_masker(config, self.prepared), tick)
        batches = PackedBatches(config, self.prepared, pinned=execution.device == "cuda")
        metrics = None
        if rank() == 0:
            metrics = MetricsFile(folder.metrics_file, 0 if self.checkpoint is None else step_of(self.checkpoint), check)
        checkpointer = Checkpointer(folder.checkpoints, stop, execution.checkpoint_seconds)
        trainer = lightning_trainer(
            execution.device,
            self.precision,
            folder.path,
            plugins=[DurableCheckpointIO(check)],
            devices=execution.devices // execution.nodes,
            num_nodes=execution.nodes,
            strategy="ddp" if execution.devices > 1 else "auto",
            max_steps=config.steps,
            val_check_interval=self._validation_interval(),
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            logger=metrics or False,
            callbacks=[clock, Branching(folder, check), PruneOrder(folder), checkpointer, *callbacks],
            use_distributed_sampler=False,
        )
        try:
            validation = _trained(trainer, module, batches, self.checkpoint)
        finally:
            if metrics is not None:
                metrics.close()
        return Trained(module, validation, clock.seconds, clock.start_seconds, clock.starts, batches.masked_words)

    def _validation_interval(self) -> int:
        if self.execution.validations is None and (checks := self.folder.orders().validations) is not None:
            return self.config.check_interval(checks)
        return self.config.validation_interval(self.execution.validations or validations_of(self.config))

    def _module(self, masker: Masker, tick: Callable[[], object]) -> MaskedLanguageModelling:
        """Return the module to train; torch.compile keeps to the run's threads."""
        config, execution = self.config, self.execution
        log_every = shared_log_interval(config) or max(1, min(50, config.steps // ROWS))
        kernels = resolve_kernels(execution, self.precision)
        peak = peak_flops_per_second(execution, self.precision)
        teacher = load_teacher(config, self.prepared)
        module = MaskedLanguageModelling(config, masker, log_every, peak, kernels, teacher, self._documents)
        if module.fused:
            compile_on(execution.threads)
        if self.checkpoint is None and (weights := starting_weights(config, self.prepared, tick)) is not None:
            module.model.load_trained(weights)
        return module

    @property
    def _documents(self) -> Tensor:
        return torch.from_numpy(self.prepared.validation_documents())

    def unvalidated(self, weights: Mapping[str, Tensor]) -> Trained:
        """Given weights with a head that predicts nothing."""
        module = MaskedLanguageModelling(self.config, validation_masker(self.config, self.prepared))
        module.model.load_state_dict(weights)
        return Trained(module, None, 0.0)

    def validated(self, weights: Mapping[str, Tensor], callbacks: Sequence[pl.Callback] = ()) -> Trained:
        """Validate given weights, rounded as they are stored; see Execution.of."""
        quiet()
        torch.set_num_threads(self.execution.threads)
        started, masker = time.perf_counter(), validation_masker(self.config, self.prepared)
        module = MaskedLanguageModelling(self.config, masker, validation_documents=self._documents)
        stored = self.config.recipe.weights
        module.model.load_trained(rounded(weights, stored))
        if stored == "int8":
            multiply_in_int8(module.model)
        device, devices = self.execution.device, self.execution.devices
        trainer = lightning_trainer(
            device, self.precision, self.folder.path, devices=devices, logger=False, callbacks=[*callbacks]
        )
        batches = PackedBatches(self.config, self.prepared)
        trainer.validate(module, batches, verbose=False)
        assert module.validation is not None
        return Trained(module, module.validation, time.perf_counter() - started, masked_words=batches.masked_words)


def _trained(
    trainer: pl.Trainer, module: MaskedLanguageModelling, batches: PackedBatches, checkpoint: Path | None
) -> ValidationResult:
    def at_end() -> ValidationResult | None:
        result = module.validation
        return result if result is not None and result.step == module.config.steps else None

    trainer.fit(module, batches, ckpt_path=checkpoint, weights_only=True)
    if at_end() is None:
        trainer.validate(module, batches, verbose=False)
    if (validation := at_end()) is None:
        raise RuntimeError(f"training ended at step {trainer.global_step} of {module.config.steps}")
    return validation


class _Unprofiled(PassThroughProfiler):
    """No profiler; Lightning's null profiler costs time at every step."""

    def profile(self, action_name: str) -> nullcontext[None]:  # type: ignore[override]
        """Measure nothing."""
        del action_name
        return nullcontext()


def lightning_trainer(
    device: Device, precision: Precision, folder: Path, plugins: Sequence[Any] = (), **rest: Any
) -> pl.Trainer:
    """Lightning's Trainer for a device and a precision, which displays and saves nothing itself.

    Ranks come from their environment variables (`rank`), not from a scheduler. `rest` holds other Trainer options.
    """
    return pl.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        precision=LIGHTNING_PRECISION[precision],
        default_root_dir=folder,
        plugins=[*plugins, LightningEnvironment()],
        profiler=_Unprofiled(),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **rest,
    )


def validations_of(config: RunConfig) -> int:
    """Return the number of validations of a run, the end included: at most ten, for at most 5% of the cost of training.

    A validation token, a forward pass, costs a third of a training token; pairs are validated besides.
    """
    cost = config.data.validation_sequences * config.data.sequence_length / 3 * (2 if config.recipe.judges_pairs else 1)
    return max(1, min(10, int(VALIDATION_SHARE * config.tokens / cost)))


def compile_on(threads: int) -> None:
    """Let torch.compile build in `threads` processes, unless the environment decides."""
    import torch._inductor.config as inductor

    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
        inductor.compile_threads = threads


def rank() -> int:
    """Return the rank of this process in its run (torchrun's RANK)."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")))


def quiet() -> None:
    """Silence Lightning's messages about devices and data loaders."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    for module in ("pytorch_lightning", "lightning_fabric"):
        warnings.filterwarnings("ignore", module=module)
