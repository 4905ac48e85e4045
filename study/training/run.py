"""One run, from its configuration to its record: idempotent, resumable, and ending in a named state."""

from __future__ import annotations

import os
import platform
import resource
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import safetensors.torch
import torch
from filelock import FileLock, Timeout

from study.config import RunConfig
from study.data.prepared import PreparedData, prepare
from study.errors import InputError
from study.records import RunFolder, RunRecord, State, counts_of, write_atomically
from study.training.callbacks import Preempted, StopSignal
from study.training.execution import Execution, environment, resolve_precision
from study.training.trainer import Trained, fit, rank

LOCK_SECONDS = 30.0
"""How long a run waits for another process to let go of its folder (one that is just saving before it stops)."""

UNIGRAM_MARGIN = 0.03
"""A run whose loss is above (1 − margin) · unigram entropy has learned next to nothing about context."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: the state, why where it failed, and what was trained where the target was reached."""

    state: State | Literal["PREEMPTED"]
    reason: str | None = None
    trained: Trained | None = None


def train(
    config: RunConfig, folder: RunFolder, sweep: str, execution: Execution, stop: StopSignal
) -> State | Literal["PREEMPTED"]:
    """Train a run to its target and file its record; returns how it ended.

    A run that has its record is not trained again, a half-done one resumes from its newest whole checkpoint. Whatever goes
    wrong ends in a record with the reason, but for bad input, which raises InputError, and PREEMPTED, which leaves none.
    With several devices every rank calls this, under torchrun's variables (LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
    """
    execution.check(config)
    prepared = prepare(config.data)
    if rank() > 0:
        return _attempt(config, prepared, folder, execution, stop).state
    with _held(folder):
        if (record := folder.record()) is not None:
            _tidy(folder, record.state)
            return record.state
        folder.write_config(config)
        started = _now()
        folder.claim_attempt({"pid": os.getpid(), "hostname": platform.node(), "started_at": started})
        outcome = _attempt(config, prepared, folder, execution, stop)
        if outcome.state == "PREEMPTED":
            return outcome.state
        if outcome.trained is not None:
            write_atomically(folder.weights_file, safetensors.torch.save(outcome.trained.module.model.state_dict()))
            folder.write_validation_losses(outcome.trained.validation.nats.numpy())
        facts = _facts(outcome, prepared, folder) | _surroundings(config, prepared, execution)
        folder.file_record(
            RunRecord(
                run_id=folder.run_id,
                sweep=sweep,
                state=outcome.state,
                reason=outcome.reason,
                config=config,
                attempts=folder.attempts(),
                started_at=started,
                finished_at=_now(),
                **facts,
            )
        )
        _tidy(folder, outcome.state)
        return outcome.state


def _tidy(folder: RunFolder, state: State) -> None:
    """Remove the checkpoints of a completed run; one that failed keeps its last finite state."""
    if state == "COMPLETED":
        for checkpoint in folder.checkpoints.glob("*"):
            checkpoint.unlink()


@contextmanager
def _held(folder: RunFolder) -> Iterator[None]:
    """Hold the run's lock, which the kernel lets go of when the process dies."""
    folder.path.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder.lock_file, timeout=LOCK_SECONDS):
            yield
    except Timeout:
        raise InputError.at(str(folder.path), "is being trained by another process; wait for it or stop it") from None


def _attempt(config: RunConfig, prepared: PreparedData, folder: RunFolder, execution: Execution, stop: StopSignal) -> Outcome:
    try:
        return Outcome("COMPLETED", trained=fit(config, prepared, folder, execution, stop))
    except Preempted:
        return Outcome("PREEMPTED")
    except FloatingPointError as error:
        return Outcome("DIVERGED", str(error))
    except (MemoryError, torch.OutOfMemoryError) as error:
        return Outcome("OOM", str(error) or "out of memory")
    except Exception as error:
        traceback.print_exc()
        if "DefaultCPUAllocator: can't allocate memory" in str(error):  # a plain RuntimeError, unlike CUDA's
            return Outcome("OOM", str(error))
        return Outcome("FAILED", f"{type(error).__name__}: {error}")


def _facts(outcome: Outcome, prepared: PreparedData, folder: RunFolder) -> dict[str, Any]:
    """What the record says of the training itself; what was not reached is left out."""
    rows = list(folder.metrics())
    config = folder.config()
    steps = config.steps if outcome.trained else max((row["trainer/step"] for row in rows), default=0)
    facts: dict[str, Any] = {"steps": steps, "tokens": steps * config.recipe.batch_tokens} | counts_of(config, steps)
    if losses := [row["train/loss"] for row in rows if "train/loss" in row]:
        facts["train_loss_nats"] = losses[-1]
    if outcome.trained is not None:
        validation = outcome.trained.validation
        facts |= {
            "loss_nats": validation.loss,
            "loss_standard_error_nats": validation.standard_error,
            "accuracy": validation.accuracy,
            "validation_masked_tokens": int(validation.tokens.sum()),
            "stuck_at_unigram": validation.loss > (1 - UNIGRAM_MARGIN) * prepared.unigram_entropy_nats,
            "wall_seconds": outcome.trained.seconds,
            "tokens_per_second": config.tokens / outcome.trained.seconds,
        }
    return facts


def _surroundings(config: RunConfig, prepared: PreparedData, execution: Execution) -> dict[str, Any]:
    """What the record says of the data and the machine."""
    if execution.device == "cuda":
        peak_memory = torch.cuda.max_memory_allocated()
    else:
        peak_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "data_fingerprint": prepared.fingerprint,
        "train_tokens": prepared.train_tokens,
        "unigram_entropy_nats": prepared.unigram_entropy_nats,
        "peak_memory_bytes": peak_memory,
        "environment": environment(execution, resolve_precision(config.recipe.precision, execution.device)),
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
