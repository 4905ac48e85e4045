"""One run, from its configuration to its record: idempotent, resumable, and ending in a named state."""

from __future__ import annotations

import logging
import os
import platform
import resource
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import pytorch_lightning as pl
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from lightning_fabric.plugins.environments.lightning import LightningEnvironment

from study.config import RunConfig
from study.data.batches import PackedBatches
from study.data.masking import Masker
from study.data.prepared import PreparedData, data_fingerprint, prepare
from study.errors import InputError
from study.model.lightning import MaskedLanguageModelling
from study.records import RunFolder, RunRecord, State, counts_of, write_atomically
from study.training.callbacks import Checkpointer, Clock, Preempted, StopSignal
from study.training.checkpoints import DurableCheckpointIO, newest_whole_checkpoint
from study.training.execution import Execution, environment, peak_flops_per_second, resolve_precision
from study.training.metrics import MetricsFile

LOCK_SECONDS = 30.0
"""How long a run waits for another process to let go of its folder (one that is just saving before it stops)."""

UNIGRAM_MARGIN = 0.03
"""A run whose loss is above (1 − margin) · unigram entropy has learned next to nothing about context."""


@dataclass(frozen=True)
class Trained:
    """A trained run before it is filed: the module, with its validation, and the seconds it took."""

    module: MaskedLanguageModelling
    seconds: float


def train(
    config: RunConfig, folder: RunFolder, sweep: str, execution: Execution, stop: StopSignal
) -> State | Literal["PREEMPTED"]:
    """Train a run to its target and file its record; returns how it ended.

    A run that has its record is not trained again, a half-done one resumes from its newest whole checkpoint. Whatever goes
    wrong ends in a record with the reason, but for bad input, which raises InputError, and PREEMPTED, which leaves none.
    With several devices every rank calls this, under torchrun's variables (LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
    """
    execution.check()
    if _rank() > 0:
        return _attempt(config, folder, execution, stop)[0]
    with _held(folder):
        if (record := folder.record()) is not None:
            return record.state
        folder.write_config(config)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        folder.claim_attempt({"pid": os.getpid(), "hostname": platform.node(), "started_at": started})
        state, reason, trained = _attempt(config, folder, execution, stop)
        if state == "PREEMPTED":
            return state
        if trained is not None and trained.module.validation is not None:
            _save_weights(folder, trained.module)
            folder.write_validation_losses(trained.module.validation.nats.numpy())
        folder.file_record(_record(config, folder, sweep, execution, state, reason, trained, started))
        for checkpoint in folder.checkpoints.glob("*"):
            if state == "COMPLETED":
                checkpoint.unlink()
        return state


@contextmanager
def _held(folder: RunFolder) -> Iterator[None]:
    """Hold the run's lock, which the kernel lets go of when the process dies."""
    folder.path.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder.lock_file, timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise InputError.at(str(folder.path), "is being trained by another process; wait for it or stop it") from None


def _attempt(
    config: RunConfig, folder: RunFolder, execution: Execution, stop: StopSignal
) -> tuple[State | Literal["PREEMPTED"], str | None, Trained | None]:
    """Train and name how it ended: state, reason, and what was trained where the target was reached."""
    try:
        return "COMPLETED", None, _fit(config, folder, execution, stop)
    except Preempted:
        return "PREEMPTED", None, None
    except FloatingPointError as error:
        return "DIVERGED", str(error), None
    except (MemoryError, torch.OutOfMemoryError) as error:
        return "OOM", str(error) or "out of memory", None
    except InputError:
        raise
    except Exception as error:
        traceback.print_exc()
        return "FAILED", f"{type(error).__name__}: {error}", None


def _fit(config: RunConfig, folder: RunFolder, execution: Execution, stop: StopSignal) -> Trained:
    _quiet()
    torch.set_num_threads(execution.threads)
    prepared = prepare(config.data)
    masker = masker_of(config, prepared)
    steps = config.steps
    precision = resolve_precision(config.recipe.precision, execution.device)
    peak = peak_flops_per_second(execution, precision)
    module = MaskedLanguageModelling(config, masker, max(1, min(50, steps // 50)), peak)
    batches = PackedBatches(config, prepared, masker)
    checkpoint = newest_whole_checkpoint(folder.checkpoints)
    resumed_step = 0 if checkpoint is None else int(checkpoint.name.split("-")[1])
    clock = Clock()
    metrics = MetricsFile(folder.metrics_file, from_step=resumed_step) if _rank() == 0 else None
    trainer = pl.Trainer(
        accelerator="gpu" if execution.device == "cuda" else "cpu",
        devices=execution.devices,
        strategy="ddp" if execution.devices > 1 else "auto",
        precision="bf16-mixed" if precision == "bf16" else "32-true",
        max_steps=steps,
        val_check_interval=steps // execution.validations + 1 if steps >= execution.validations else 1,
        check_val_every_n_epoch=None,
        log_every_n_steps=1,
        num_sanity_val_steps=0,
        logger=metrics or False,
        callbacks=[Checkpointer(folder.checkpoints, stop, execution.checkpoint_seconds), clock],
        plugins=[DurableCheckpointIO(), LightningEnvironment()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder.path,
    )
    try:
        trainer.fit(module, batches, ckpt_path=checkpoint, weights_only=True)
        trainer.validate(module, batches, verbose=False)
    finally:
        if metrics is not None:
            metrics.close()
    if trainer.global_step != steps:
        raise RuntimeError(f"training ended at step {trainer.global_step} of {steps}")
    return Trained(module, clock.seconds)


def masker_of(config: RunConfig, prepared: PreparedData) -> Masker:
    """The masking of a run on prepared data."""
    special = prepared.special
    return Masker(
        masking=config.masking,
        predictions=config.predictions,
        mask_token=special.mask,
        special_tokens=(special.pad, special.unk, special.cls, special.sep, special.mask),
        vocabulary=config.architecture.vocabulary,
    )


def _record(
    config: RunConfig,
    folder: RunFolder,
    sweep: str,
    execution: Execution,
    state: State,
    reason: str | None,
    trained: Trained | None,
    started: str,
) -> RunRecord:
    rows = list(folder.metrics())
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    steps = config.steps if trained else max((row["trainer/step"] for row in rows), default=0)
    results: dict[str, Any] = {}
    prepared = prepare(config.data)
    if trained is not None and (validation := trained.module.validation) is not None:
        stuck = validation.loss > (1 - UNIGRAM_MARGIN) * prepared.unigram_entropy_nats
        results = {
            "loss_nats": validation.loss,
            "loss_standard_error_nats": validation.standard_error,
            "accuracy": validation.accuracy,
            "validation_masked_tokens": int(validation.tokens.sum()),
            "stuck_at_unigram": stuck,
            "wall_seconds": trained.seconds,
            "tokens_per_second": config.tokens / trained.seconds,
        }
    return RunRecord(
        run_id=folder.run_id,
        sweep=sweep,
        state=state,
        reason=reason,
        config=config,
        data_fingerprint=data_fingerprint(config.data),
        steps=steps,
        tokens=steps * config.recipe.batch_tokens,
        train_loss_nats=losses[-1] if losses else None,
        unigram_entropy_nats=prepared.unigram_entropy_nats,
        peak_memory_bytes=_peak_memory(execution),
        attempts=folder.attempts(),
        started_at=started,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        environment=environment(execution, resolve_precision(config.recipe.precision, execution.device)),
        **counts_of(config, steps),
        **results,
    )


def _save_weights(folder: RunFolder, module: MaskedLanguageModelling) -> None:
    """Keep the final weights as safetensors, whole or not at all."""
    write_atomically(folder.weights_file, safetensors.torch.save(module.model.state_dict()))


def _peak_memory(execution: Execution) -> int:
    """Peak bytes: allocated on the GPU, or resident in the process on a CPU."""
    if execution.device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _quiet() -> None:
    """Silence what Lightning says of devices and data loaders; a run speaks through its folder."""
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
