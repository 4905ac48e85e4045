"""One run in a process of its own, to be killed, stopped and starved, and what is left of it."""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import random
import resource
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from study.config.run_config import RunConfig
from study.data.prepared import prepare
from study.executing.processes import log_into
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.training.checkpoints import newest_whole_checkpoint
from tests.launching import TIMINGS
from tests.small import run_folder

MASKS = "masks.txt"


@dataclass(frozen=True)
class Circumstances:
    """What a process lives under: how often it saves, how large its files may get once a checkpoint is there, and its clock."""

    checkpoint_seconds: float = 0.05
    file_bytes: int | None = None
    clock_seconds: float = 0.0
    lease_seconds: float = 30.0
    temporary: str | None = None


def live(config: RunConfig, path: Path, circumstances: Circumstances) -> None:
    """Train a run as a launch does, writing down a digest of what each step was given."""
    from study.store import ownership
    from study.training.attempts import StopSignal
    from study.training.callbacks import Checkpointer
    from study.training.execution import Execution
    from study.training.run import train

    os.setsid()
    log_into(RunFolder(path).log_file)
    if circumstances.temporary is not None:
        os.environ["TMPDIR"] = circumstances.temporary
    real_time = time.time
    time.time = lambda: real_time() + circumstances.clock_seconds
    ownership.LEASE_SECONDS, ownership.BEAT_SECONDS = circumstances.lease_seconds, circumstances.lease_seconds / 10
    _note_inputs(path)
    if circumstances.file_bytes is not None:
        save = Checkpointer._save

        def starved(self: Checkpointer, trainer: Any, stopping: bool) -> None:
            save(self, trainer, stopping)
            assert circumstances.file_bytes is not None
            resource.setrlimit(resource.RLIMIT_FSIZE, (circumstances.file_bytes, resource.RLIM_INFINITY))

        Checkpointer._save = starved  # type: ignore[method-assign]
    stop = StopSignal()
    stop.install()
    state = train(config, RunFolder(path), "faults", Execution(checkpoint_seconds=circumstances.checkpoint_seconds), stop)
    sys.exit(75 if state == "PREEMPTED" else 0)


def _note_inputs(path: Path) -> None:
    """Write a line for each training step: its number and the digest of the masked batch that it saw."""
    from study.data.masking import Masker
    from study.model.lightning import MaskedLanguageModelling

    mask, step_of_training = Masker.__call__, MaskedLanguageModelling.training_step
    last: list[str] = []

    def masked(self: Masker, *arguments: Any) -> Any:
        batch = mask(self, *arguments)
        content = b"".join(tensor.numpy().tobytes() for tensor in (batch.tokens, batch.positions, batch.labels))
        last[:] = [hashlib.sha256(content).hexdigest()[:16]]
        return batch

    def training_step(self: MaskedLanguageModelling, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = step_of_training(self, batch, batch_idx)
        with (path / MASKS).open("a") as file:
            file.write(f"{self.trainer.global_step} {last[0]}\n")
        return loss

    Masker.__call__ = masked  # type: ignore[method-assign, assignment]
    MaskedLanguageModelling.training_step = training_step  # type: ignore[method-assign]


class Lives:
    """Starts processes for runs, each a fork of one server that has torch loaded."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["study.training.run"])

    def start(self, config: RunConfig, folder: RunFolder, **circumstances: Any) -> BaseProcess:
        """Begin an attempt at a run."""
        prepare(config.data)
        process = self._context.Process(target=live, args=(config, folder.path, Circumstances(**circumstances)))
        process.start()
        return process

    def undisturbed(self, config: RunConfig, root: Path) -> RunFolder:
        """A run that nothing happens to."""
        folder = run_folder(root, config)
        process = self.start(config, folder, checkpoint_seconds=60.0)
        assert ended(process) == 0
        return folder

    def signalled(self, config: RunConfig, folder: RunFolder, number: int, draw: random.Random, **circumstances: Any) -> int:
        """Begin an attempt, signal it at some moment of its training, and return its exit status."""
        process = self.start(config, folder, **circumstances)
        enough, later = size_of(folder.path / MASKS) + draw.randrange(40, 800), draw.uniform(0, 0.05)
        while size_of(folder.path / MASKS) < enough and process.is_alive():
            time.sleep(0.002)
        time.sleep(later)  # the file grows where a step begins; saving comes after it
        if process.is_alive():
            assert process.pid is not None
            os.kill(process.pid, number)
        return ended(process)


def ended(process: BaseProcess, seconds: float = 900) -> int:
    """The exit status of a process once it has ended."""
    process.join(seconds)
    assert process.exitcode is not None, "it did not end"
    return process.exitcode


def size_of(file: Path) -> int:
    """The bytes of a file, 0 where there is none."""
    return file.stat().st_size if file.exists() else 0


def history(folder: RunFolder) -> list[dict[str, Any]]:
    """Every logged row without timings: losses, learning rates, gradient norms."""
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in folder.metrics()]


def inputs(folder: RunFolder) -> dict[int, str]:
    """The digest of what each step was given; a step that was taken twice was given the same."""
    seen: defaultdict[int, set[str]] = defaultdict(set)
    for line in (folder.path / MASKS).read_text().splitlines():
        step, _, digest = line.partition(" ")
        if len(digest) == 16:
            seen[int(step)].add(digest)
    assert all(len(digests) == 1 for digests in seen.values())
    return {step: digests.pop() for step, digests in seen.items()}


def recorded(folder: RunFolder) -> RunRecord:
    """The record that a run has left."""
    record = folder.record()
    assert record is not None, folder.log_file.read_text()
    return record


def assert_same_bits(one: RunFolder, other: RunFolder) -> None:
    """Losses, learning rates, masks, weights and validation losses of two runs are the same to the last bit."""
    assert recorded(one).state == recorded(other).state == "COMPLETED"
    assert history(one) == history(other)
    assert inputs(one) == inputs(other)
    ours, theirs = (safetensors.torch.load_file(folder.weights_file) for folder in (one, other))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours.keys() | theirs.keys())
    assert one.validation_losses_file.read_bytes() == other.validation_losses_file.read_bytes()


def whole_step(folder: RunFolder) -> int:
    """The step of the newest checkpoint that is whole, read back and its optimiser as far as its trainer."""
    from study.training.checkpoints import DurableCheckpointIO

    path = newest_whole_checkpoint(folder.checkpoints)
    assert path is not None
    checkpoint = DurableCheckpointIO().load_checkpoint(path)
    steps = {int(state["step"]) for state in checkpoint["optimizer_states"][0]["state"].values()}
    assert steps == {checkpoint["global_step"]}
    return int(checkpoint["global_step"])


def obey_permissions() -> None:
    """Give up root's right to write where permissions forbid it, in the process that calls this and what it starts."""
    libc, pr_capbset_drop, cap_dac_override = ctypes.CDLL(None), 24, 1
    libc.prctl(pr_capbset_drop, cap_dac_override)
