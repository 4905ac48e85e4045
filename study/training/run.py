"""One run from configuration to record: idempotent, resumable, ending in a named state."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from study.base.durable_files import retry_write, write_atomically
from study.base.errors import InputError
from study.config.run_config import RunConfig
from study.data.prepared import prepare
from study.store.ownership import Attempt, Fenced
from study.store.records import Ending
from study.store.run_folder import RunFolder, flops_before, init_from_depth, teacher_architecture
from study.training.attempts import Preempted, StopSignal, in_attempt
from study.training.callbacks import Pruned, Watchdog
from study.training.checkpoints import newest_whole_checkpoint, resumed
from study.training.execution import Execution
from study.training.filing import Filing, Outcome, failure_of, tidy
from study.training.trained_runs import starting_weights
from study.training.trainer import Trained, Training, rank

PEER_SECONDS = 5.0
"""Seconds that a rank waits for a lost peer's reason."""


class PeerLost(RuntimeError):
    """Another rank died; the run can resume from its last checkpoint."""


def train(config: RunConfig, folder: RunFolder, sweep: str, execution: Execution, stop: StopSignal) -> Ending:
    """Train a run to its target and file its record; return its end state.

    A run with a record is not trained again; a partial one resumes from its newest whole checkpoint. Failures are recorded with
    their reason, except bad input, which raises InputError; PeerLost; and PREEMPTED: the run was stopped, another process
    trains it, or a later attempt took over. With several devices every rank calls this, under torchrun's variables (RANK,
    LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
    """
    execution.check(config)
    this = _Rank(Training(config, prepare(config.data), folder, execution.of(config)), stop)
    if rank() > 0:
        return this.follow()
    return in_attempt(folder, this.begin, partial(this.lead, sweep))


@dataclass(frozen=True)
class _Rank:
    """A process of a run: the leader owns the folder and files the record, the others follow it."""

    training: Training
    stop: StopSignal

    def begin(self) -> Ending | None:
        """Write the configuration, or return the state of an existing record."""
        folder = self.training.folder
        if (record := folder.record()) is not None:
            tidy(folder, record.state)
            return record.state
        retry_write(lambda: folder.write_config(self.training.config))
        return None

    def lead(self, sweep: str, attempt: Attempt) -> Ending:
        training = self._from_newest()
        config = training.config
        filing = Filing(training, sweep, attempt, teacher_architecture(config), init_from_depth(config), flops_before(config))
        watchdog = Watchdog(training.execution.hang_seconds, filing.give_up)
        outcome = self._outcome(training, watchdog, attempt.check)
        if outcome.state != "PREEMPTED":
            filing.file(outcome)
        return outcome.state

    def follow(self) -> Ending:
        """Train without filing; leave the reason of a failure to the leader."""
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
        """Train the run's steps; a run of no steps only validates its initial weights."""
        config, prepared = training.config, training.prepared
        if config.steps or (weights := starting_weights(config, prepared)) is None:
            return training.fit(self.stop, check, [watchdog])
        return training.validated(weights, [watchdog])


def _end_at_once(reason: str) -> None:
    sys.stderr.write(f"{reason}\n")
    os._exit(1)


def _is_of_peers(error: Exception) -> bool:
    """Whether ranks failed to communicate: torch's own error, or a RuntimeError of gloo or NCCL."""
    words = ("gloo", "NCCL", "by peer", "ProcessGroup", "socketPollConnect", "Broken pipe")
    return isinstance(error, torch.distributed.DistError) or any(word in str(error) for word in words)


def _said_by_peer(folder: RunFolder, error: Exception) -> Outcome:
    """Return the outcome that the lost rank left; raises PeerLost if it left none."""
    end = time.monotonic() + PEER_SECONDS
    while rank() == 0 and time.monotonic() < end:
        for file in folder.rank_files():
            return Outcome(**json.loads(file.read_bytes()))
        time.sleep(0.1)
    raise PeerLost(f"another rank was lost ({str(error).splitlines()[0]})") from error
