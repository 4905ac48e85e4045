"""One run from configuration to record: idempotent, resumable, ending in a named state."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev
from typing import Any

import safetensors.torch
import torch

from study.base.durable_files import FULL_DISK, retry_write, write_atomically
from study.base.errors import InputError
from study.config.run_config import RunConfig
from study.counting.architecture import Architecture
from study.data.prepared import prepare
from study.model.stored_weights import stored
from study.store.ownership import Attempt, Fenced
from study.store.records import DISK_FULL, Ending, RunRecord, State, counts_of, seconds_per_step, timestamp
from study.store.run_folder import RunFolder, flops_before, init_from_depth, teacher_architecture
from study.store.work_folder import WorkFolder, written_in
from study.training.attempts import Preempted, StopSignal, in_attempt
from study.training.callbacks import Pruned, Watchdog
from study.training.checkpoints import newest_whole_checkpoint, resumed
from study.training.execution import Execution, environment, forget_peak_memory, peak_memory_bytes
from study.training.trained_runs import starting_weights
from study.training.trainer import Trained, Training, rank

DEVIATIONS = 7.0
"""Standard deviations above the mean of preceding rows that make a loss a spike."""

ROWS_BEFORE = 10
"""The number of rows that estimate a row's expected loss.

A run logs some fifty rows, each the mean of many steps. Over all preceding rows, or the last fifty, the initial fall of the
loss hides every spike; over ten it hides those of the first rows, and 3 of the 784 reference runs have one.
"""

LEAST_RISE = 0.01
"""The least share that a spike rises above the mean, since a loss that hardly moves has a deviation of almost zero."""

NO_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "can't allocate memory")
"""Phrases of out-of-memory errors."""


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt: the state, a failure's reason, and the trained model at its target."""

    state: Ending
    reason: str | None = None
    trained: Trained | None = None


@dataclass(frozen=True)
class Filing:
    """Files the results of one attempt at a run."""

    training: Training
    sweep: str
    attempt: Attempt
    teacher: Architecture | None = None
    init_from_depth: int | None = None
    flops_before: float | None = None

    def file(self, outcome: Outcome) -> None:
        """Write the results; raises Fenced if another attempt owns the run."""
        config, folder, weights_sha256 = self.training.config, self.training.folder, None
        if outcome.trained is not None:
            try:
                weights_sha256 = self._write_results(outcome.trained)
            except OSError as error:
                outcome = Outcome("FAILED", reason_of(error))
        assert outcome.state != "PREEMPTED", "a preempted run has not ended"
        facts = _facts(outcome, self.training, self.teacher) | _surroundings(self.training)
        if self.flops_before is not None:
            facts["spent_flops"] = facts["train_flops"] + self.flops_before
        record = RunRecord(
            run_id=folder.run_id,
            sweep=self.sweep,
            state=outcome.state,
            reason=outcome.reason,
            config=config,
            attempts=self.attempt.number,
            started_at=self.attempt.started_at,
            finished_at=timestamp(),
            weights_sha256=weights_sha256,
            layers_cut=None if self.init_from_depth is None else self.init_from_depth - config.architecture.depth,
            **facts,
        )
        retry_write(lambda: folder.file_record(record), check=self.attempt.check)
        tidy(folder, outcome.state)

    def _write_results(self, trained: Trained) -> str:
        """Write weights and validation losses, and return the SHA-256 of the weights' file.

        Raises OSError if the disk is full or out of reach, and Fenced.
        """
        folder, form = self.training.folder, self.training.config.recipe.weights
        weights = safetensors.torch.save(stored(trained.module.model.state_dict(), form))
        retry_write(lambda: write_atomically(folder.weights_file, weights), check=self.attempt.check)
        if (validation := trained.validation) is None:
            return hashlib.sha256(weights).hexdigest()
        retry_write(lambda: folder.write_validation_losses(validation.nats.numpy()), check=self.attempt.check)
        if (documents := validation.documents) is not None:
            retry_write(lambda: folder.write_validation_documents(documents.numpy()), check=self.attempt.check)
        if (losses := validation.byte_losses) is not None:
            retry_write(lambda: folder.write_byte_losses(losses), check=self.attempt.check)
        return hashlib.sha256(weights).hexdigest()


def tidy(folder: WorkFolder, state: State) -> None:
    """Remove the run's own checkpoints; a failed run keeps its last finite state."""
    if state in ("COMPLETED", "PRUNED"):
        for checkpoint in written_in(folder.checkpoints):
            checkpoint.unlink(missing_ok=True)


def failure_of(error: Exception) -> Outcome:
    """Return the outcome of an attempt that raised an error: DIVERGED, OOM, or FAILED with the traceback in its log.

    Re-raises device errors: on a shared GPU one process's fault may fail all, so the run must be retried.
    """
    if isinstance(error, FloatingPointError):
        return Outcome("DIVERGED", str(error))
    traceback.print_exc()
    if (lack := lack_of_memory(error)) is not None:
        return Outcome("OOM", lack)
    if isinstance(error, torch.AcceleratorError):
        raise error
    return Outcome("FAILED", reason_of(error))


def lack_of_memory(error: BaseException) -> str | None:
    """Return what an error, or one behind it, says of a lack of memory; None if it is of something else."""
    lack = next(filter(_of_memory, _behind(error)), None)
    return None if lack is None else str(lack) or "out of memory"


def _of_memory(error: BaseException) -> bool:
    """Whether an error reports a lack of memory; libraries raise plain RuntimeErrors."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(words in str(error) for words in NO_MEMORY)


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yield an error with its causes."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = getattr(current, "inner_exception", None) or current.__cause__ or current.__context__


def reason_of(error: Exception) -> str:
    """Return the reason that a record gives for an error; it names a full disk."""
    full = isinstance(error, OSError) and error.errno in FULL_DISK
    return f"{DISK_FULL}: {error}" if full else f"{type(error).__name__}: {error}"


def _facts(outcome: Outcome, training: Training, teacher: Architecture | None) -> dict[str, Any]:
    """Return the record's fields about training, without results not reached."""
    config, folder = training.config, training.folder
    rows = list(_rows(folder))
    steps = config.steps if outcome.trained else max((row["trainer/step"] for row in rows), default=0)
    tokens = steps * config.recipe.batch_tokens
    facts: dict[str, Any] = {"steps": steps, "tokens": tokens} | counts_of(config, steps, teacher)
    facts |= folder.spent(tokens, config.recipe.batch_tokens)
    if losses := [row["train/loss"] for row in rows if "train/loss" in row]:
        facts |= {"train_loss_nats": losses[-1], "loss_spikes": loss_spikes(losses)}
    if outcome.trained is not None:
        validation, seconds = outcome.trained.validation, outcome.trained.seconds
        start, starts = outcome.trained.start_seconds, outcome.trained.starts
        if validation is None:
            return facts | {"untrained_head": True}
        own_steps = facts["spent_tokens"] / config.recipe.batch_tokens
        per_step = seconds_per_step(seconds, start, starts, own_steps) if own_steps else None
        facts |= {
            "loss_nats": validation.loss,
            "loss_standard_error_nats": validation.standard_error,
            "accuracy": validation.accuracy,
            "validation_masked_tokens": int(validation.tokens.sum()),
            "validation_documents": validation.document_count,
            "order_gain_nats": validation.order_gain,
            "order_gain_standard_error_nats": validation.order_gain_standard_error,
            "pair_loss_nats": validation.pair_loss,
            "pair_accuracy": validation.pair_accuracy,
            "generator_loss_nats": validation.generator_loss,
            "generator_accuracy": validation.generator_accuracy,
            "bits_per_masked_byte": validation.bits_per_masked_byte,
            "bits_per_masked_byte_standard_error": validation.bits_per_masked_byte_standard_error,
            "masked_words": outcome.trained.masked_words,
            "wall_seconds": seconds,
            "start_seconds": start,
            "starts": starts,
            "tokens_per_second": None if per_step is None else config.recipe.batch_tokens / per_step,
        }
    return facts


def _rows(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Yield the rows of a run up to a damaged one."""
    with contextlib.suppress(InputError):
        yield from folder.metrics()


def _surroundings(training: Training) -> dict[str, Any]:
    prepared, execution = training.prepared, training.execution
    return {
        "data_fingerprint": prepared.fingerprint,
        "train_tokens": prepared.train_tokens,
        "unigram_entropy_nats": prepared.unigram_entropy_nats,
        "unknown_share": prepared.facts.unknown_share,
        "lost_share": prepared.facts.lost_share,
        "validation_overlap_share": prepared.validation_overlap_share,
        "peak_memory_bytes": peak_memory_bytes(execution),
        "environment": environment(execution, training.precision),
    }


def loss_spikes(losses: Sequence[float]) -> int:
    """Return the number of spikes among the logged training losses.

    Source: the spike score of OLMo 2 (Team OLMo 2024, arXiv:2501.00656), which counts values seven deviations or more from the
    mean of the last 1,000 steps. Here it is also LEAST_RISE above that mean. Losses that are not finite count as missing.
    """
    rows = [loss for loss in losses if math.isfinite(loss)]
    return sum(_is_spike(loss, rows[row - ROWS_BEFORE : row]) for row, loss in enumerate(rows) if row >= ROWS_BEFORE)


def _is_spike(loss: float, before: Sequence[float]) -> bool:
    return loss > fmean(before) + max(DEVIATIONS * stdev(before), LEAST_RISE * abs(fmean(before)))


PEER_SECONDS = 5.0
"""Seconds that a rank waits for a lost peer's reason."""


class PeerLost(RuntimeError):
    """Another rank died; the run can resume from its last checkpoint."""


def train(
    config: RunConfig,
    folder: RunFolder,
    sweep: str,
    execution: Execution,
    stop: StopSignal,
    end_hung: Callable[[str], object] = lambda _: os._exit(1),
) -> Ending:
    """Train a run to its target and file its record; return its end state.

    A run with a record is not trained again; a partial one resumes from its newest whole checkpoint. Failures are recorded with
    their reason, except bad input, which raises InputError; PeerLost; and PREEMPTED: the run was stopped, or another process
    owns it. A run that hangs is recorded from the watchdog's thread, and `end_hung` ends the process, given the reason. With
    several devices, every rank calls this, under torchrun's variables (RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
    """
    execution.check(config)
    this = _Rank(Training(config, prepare(config.data), folder, execution.of(config)), stop, end_hung)
    if rank() > 0:
        return this.follow()
    return in_attempt(folder, this.begin, partial(this.lead, sweep))


@dataclass(frozen=True)
class _Rank:
    """A process of a run: the leader owns the folder and files the record, the others follow it."""

    training: Training
    stop: StopSignal
    end_hung: Callable[[str], object]

    def begin(self) -> Ending | None:
        """Write the configuration, or return an existing record's state."""
        folder = self.training.folder
        if (record := folder.record()) is not None:
            tidy(folder, record.state)
            return record.state
        forget_peak_memory(self.training.execution)
        retry_write(lambda: folder.write_config(self.training.config))
        return None

    def lead(self, sweep: str, attempt: Attempt) -> Ending:
        training = self._from_newest()
        config = training.config
        filing = Filing(training, sweep, attempt, teacher_architecture(config), init_from_depth(config), flops_before(config))

        def give_up(reason: str) -> None:
            try:
                filing.file(Outcome("HUNG", reason))
            finally:
                self.end_hung(reason)

        watchdog = Watchdog(training.execution.hang_seconds, give_up)
        outcome = self._outcome(training, watchdog, attempt.check)
        if outcome.state != "PREEMPTED":
            filing.file(outcome)
        return outcome.state

    def follow(self) -> Ending:
        """Train without filing."""
        training = self._from_newest()
        outcome = self._outcome(training, Watchdog(training.execution.hang_seconds, _end_at_once))
        if outcome.state not in ("COMPLETED", "PREEMPTED", "PRUNED"):
            said = json.dumps({"state": outcome.state, "reason": f"rank {rank()}: {outcome.reason}"})
            write_atomically(training.folder.rank_file(rank()), said.encode())
        return outcome.state

    def _from_newest(self) -> Training:
        checkpoint = newest_whole_checkpoint(self.training.folder.checkpoints)
        return replace(self.training, checkpoint=checkpoint, execution=resumed(self.training.execution, checkpoint))

    def _outcome(self, training: Training, watchdog: Watchdog, check: Callable[[], None] | None = None) -> Outcome:
        if training.config.fingerprint(training.prepared.fingerprint) != training.folder.run_id:
            changed = f"{training.config.data.corpus} has changed since the run was planned"
            remedy = "restore it and run `study retry`, or launch again with the new text"
            return Outcome("FAILED", f"data.corpus: {changed}; {remedy}")
        try:
            training.folder.refuse_linked_checkpoints()
        except InputError as error:
            return Outcome("FAILED", str(error))
        try:
            with watchdog.watching():
                return Outcome("COMPLETED", trained=self._trained(training, watchdog, check))
        except Preempted:
            return Outcome("PREEMPTED")
        except Pruned as order:
            return Outcome("PRUNED", str(order))
        except Fenced:
            raise
        except Exception as error:
            outcome = failure_of(error)
            if outcome.state == "FAILED" and training.execution.devices > 1 and _is_of_peers(error):
                return _said_by_peer(training.folder, error)
            return outcome

    def _trained(self, training: Training, watchdog: Watchdog, check: Callable[[], None] | None) -> Trained:
        """Train the run, or only validate the initial weights of a run of no steps."""
        config, prepared = training.config, training.prepared
        if config.steps or (weights := starting_weights(config, prepared, watchdog.tick)) is None:
            return training.fit(self.stop, check, [watchdog], watchdog.tick)
        return training.validated(weights, [watchdog])


def _end_at_once(reason: str) -> None:
    sys.stderr.write(f"{reason}\n")
    os._exit(1)


def _is_of_peers(error: Exception) -> bool:
    """Whether ranks failed to communicate."""
    words = ("gloo", "NCCL", "by peer", "ProcessGroup", "socketPollConnect", "Broken pipe")
    return isinstance(error, torch.distributed.DistError) or any(word in str(error) for word in words)


def _said_by_peer(folder: RunFolder, error: Exception) -> Outcome:
    """Return the lost rank's outcome; raises PeerLost without one."""
    end = time.monotonic() + PEER_SECONDS
    while rank() == 0 and time.monotonic() < end:
        for file in folder.rank_files():
            return Outcome(**json.loads(file.read_bytes()))
        time.sleep(0.1)
    raise PeerLost(f"another rank was lost ({str(error).splitlines()[0]})") from error
