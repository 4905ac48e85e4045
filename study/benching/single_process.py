"""Measurements of one process each, which report once: a checkpoint, loading beside a step, a run with its validations."""

from __future__ import annotations

from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pytorch_lightning as pl
import torch

from study.base.schema import deep_merge
from study.benching.cases import Case
from study.benching.synthetic import drawn_data
from study.config.run_config import RunConfig
from study.counting.parameters import parameters
from study.data.batches import DataOrder
from study.store.run_folder import RunFolder
from study.training.checkpoints import DurableCheckpointIO
from study.training.execution import Execution
from study.training.stopping import StopSignal
from study.training.trainer import Training

REPEATS, STEPS, VALIDATED_STEPS = 5, 30, 400
"""How often a checkpoint is saved, the steps beside which batches are loaded, and those of the run that validates."""

VALIDATION_SEQUENCES = 1024
"""As many as a run has by default."""


class _Times(pl.Callback):
    """When each step ended, and the seconds and number of the validations."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.validation_seconds, self.validations, self._began = 0.0, 0, 0.0

    def on_train_batch_end(self, *_: Any) -> None:
        """One step is done."""
        self.steps.append(perf_counter())

    def on_validation_start(self, *_: Any) -> None:
        """A validation begins."""
        self._began = perf_counter()

    def on_validation_end(self, *_: Any) -> None:
        """A validation is over."""
        self.validation_seconds += perf_counter() - self._began
        self.validations += 1

    @property
    def step_seconds(self) -> float:
        """The median step."""
        return median(after - before for before, after in pairwise(self.steps))


def checkpoint(case: Case, folder: Path, channel: Connection) -> None:
    """Seconds of one durable checkpoint of weights and optimiser, fsynced, hashed and renamed."""
    tensors = {
        name: torch.randn(parameters(case.architecture).parameters) for name in ("weights", "first moments", "second moments")
    }
    saver, seconds = DurableCheckpointIO(), []
    for step in range(REPEATS):
        started = perf_counter()
        saver.save_checkpoint({"global_step": step, "tensors": tensors}, folder / "checkpoints" / "next.ckpt")
        seconds.append(perf_counter() - started)
    channel.send({"seconds": median(seconds)})


def loading(case: Case, folder: Path, channel: Connection) -> None:
    """Seconds of a step, and of loading its batch: the order of the data, and the rows of the token file."""
    times = _run(case, case.config(steps=STEPS), folder / "loading", 64)
    batches = drawn_data(folder / "loading", case.architecture.vocabulary, case.sequence_length).split("train")
    order, seconds = DataOrder(len(batches), case.batch, seed=0), []
    for step in range(10 * STEPS):
        started = perf_counter()
        torch.from_numpy(batches.take(order.at(step)))
        seconds.append(perf_counter() - started)
    channel.send({"step_seconds": times.step_seconds, "loading_seconds": sum(seconds) / len(seconds)})


def validated(case: Case, folder: Path, channel: Connection) -> None:
    """Seconds of a run that validates as often as runs do, and of its validations."""
    values = deep_merge(case.config(VALIDATED_STEPS).to_dict(), {"data": {"validation_sequences": VALIDATION_SEQUENCES}})
    config = RunConfig.parse(values)
    started = perf_counter()
    times = _run(case, config, folder / "validated", VALIDATION_SEQUENCES)
    found = {"seconds": perf_counter() - started, "tokens": config.tokens, "validations": times.validations}
    channel.send({**found, "validation_seconds": times.validation_seconds})


def _run(case: Case, config: RunConfig, folder: Path, validation_sequences: int) -> _Times:
    folder.mkdir()
    prepared = drawn_data(folder, case.architecture.vocabulary, case.sequence_length, validation_sequences)
    execution, times = Execution(case.device, threads=case.threads), _Times()
    Training(config, prepared, RunFolder(folder), execution).fit(StopSignal(), callbacks=[times])
    return times
