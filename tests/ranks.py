"""A run trained by two processes that exchange gradients, as on two devices."""

from __future__ import annotations

import os
import socket
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait

import torch

from study.executing.processes import start_forkserver
from study.model.lightning import MaskedLanguageModelling
from study.store.run_folder import RunFolder
from study.training.attempts import StopSignal
from study.training.execution import Execution
from study.training.run import train


def ranks_said(folder: RunFolder, stop_at: int = -1) -> list[str]:
    """Train a run by two ranks that are told to stop in one step; how each says that it ended.

    A rank that fails leaves the other one waiting for it, which is killed, so that the error of the first is what a test shows.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    with ProcessPoolExecutor(2, start_forkserver()) as processes:
        said = [processes.submit(_said_by, rank, port, folder, stop_at) for rank in range(2)]
        ended, waiting = wait(said, timeout=200, return_when=FIRST_EXCEPTION)
        if waiting:
            for process in processes._processes.values():
                process.kill()
        for each in ended:
            each.result()
        return [each.result() for each in said]


def _said_by(rank: int, port: str, folder: RunFolder, stop_at: int) -> str:
    """The life of one rank, in a process of its own."""
    here = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update(here)  # RANK too, which the forkserver may have from a job that ran in this process before
    stop, step = StopSignal(), MaskedLanguageModelling.training_step

    def training_step(self: MaskedLanguageModelling, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == stop_at:
            stop.set()
        return step(self, batch, batch_idx)

    MaskedLanguageModelling.training_step = training_step  # type: ignore[method-assign]
    return train(folder.config(), folder, "test", Execution(devices=2), stop)
