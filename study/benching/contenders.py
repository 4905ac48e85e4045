"""Our side of a comparison: the real training path, Lightning included, and the machine's own matrix-product rate."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import pytorch_lightning as pl
import torch

from study.benching.cases import Case
from study.benching.gate import Gate
from study.benching.synthetic import drawn_data
from study.memory import Device, Precision
from study.records import RunFolder
from study.training.callbacks import StopSignal
from study.training.execution import Execution
from study.training.trainer import fit
from study.training.watchdog import Watchdog

MATMUL_SECONDS = 0.15
"""How long each product is repeated for, a round."""


def gate_of(channel: Connection, device: Device) -> Gate:
    """The gate of a contender that works on a device."""
    if device == "cuda":
        return Gate(channel, torch.cuda.synchronize, torch.cuda.empty_cache)
    return Gate(channel, lambda: None, lambda: None)


def dtype_of(precision: Precision) -> torch.dtype:
    """The dtype that matrix products run in."""
    return torch.bfloat16 if precision == "bf16" else torch.float32


class _GateCallback(pl.Callback):
    """Passes the gate after every optimiser step."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def on_train_batch_end(self, *_: Any) -> None:
        """One step is done."""
        self.gate.step()


def ours(case: Case, folder: Path, channel: Connection) -> None:
    """Our training path as `study launch` runs it: Lightning's Trainer, data module, masks, clipping, schedule and metrics.

    Checkpoints, which come once a minute, are left to the measurement of what surrounds a step.
    """
    gate = gate_of(channel, case.device)
    data = folder / f"data-{os.getpid()}"
    data.mkdir()
    prepared = drawn_data(data, case.architecture.vocabulary, case.sequence_length)
    execution = Execution(case.device, threads=case.threads, checkpoint_seconds=float("inf"))
    watchdog = Watchdog(float("inf"), _never)
    fit(case.config(), prepared, RunFolder(data), execution, StopSignal(), watchdog, callbacks=[_GateCallback(gate)])


def _never(reason: str) -> None:
    raise AssertionError(reason)


def matmul(case: Case, folder: Path, channel: Connection) -> None:
    """FLOP/s of plain matrix products at the case's dtype: those of the model's layers and large square ones, by shape."""
    del folder
    torch.set_num_threads(case.threads)
    gate = gate_of(channel, case.device)
    squares = (4096, 8192) if case.device == "cuda" else (1024, 2048)
    products = [_product(sizes, case) for sizes in [*case.products(), *((side, side, side) for side in squares)]]
    for _, run in products:
        run()
    gate.ready()
    while True:
        gate.wait()
        gate.report({shape: rate(run, shape, gate.synchronise) for shape, run in products})


def _product(sizes: tuple[int, int, int], case: Case) -> tuple[tuple[int, int, int], Callable[[], object]]:
    rows, inner, columns = sizes
    dtype = dtype_of(case.dtype)
    left = torch.randn(rows, inner, device=case.device, dtype=dtype)
    right = torch.randn(inner, columns, device=case.device, dtype=dtype)
    out = torch.empty(rows, columns, device=case.device, dtype=dtype)
    return sizes, lambda: torch.mm(left, right, out=out)


def rate(run: Callable[[], object], sizes: tuple[int, int, int], synchronise: Callable[[], None]) -> float:
    """FLOP/s of one product, repeated for a while."""
    rows, inner, columns = sizes
    synchronise()
    started, repeats, batch = perf_counter(), 0, 1
    while perf_counter() - started < MATMUL_SECONDS:
        for _ in range(batch):
            run()
        synchronise()
        repeats, batch = repeats + batch, min(64, 2 * batch)
    return 2 * rows * inner * columns * repeats / (perf_counter() - started)
