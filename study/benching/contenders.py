"""Our side of a comparison: the real training path, Lightning included, and the machine's own matrix-product rate."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

import pytorch_lightning as pl
import torch
from torch.profiler import ProfilerActivity, profile

from study.base.randomness import Stream, stream_seed
from study.benching.cases import Case
from study.benching.gate import Gate
from study.benching.step_profile import seconds_by_kind
from study.benching.synthetic import drawn_data
from study.counting.memory import Device, Precision
from study.data.batches import DataOrder
from study.model.autocast import autocast
from study.model.linear import multiply_through_onednn, onednn_product
from study.model.optimization import clip_gradients, optimizer_of, schedule
from study.model.parametrization import fresh_model
from study.store.run_folder import RunFolder
from study.training.execution import Execution, keep_freed_memory, resolve_kernels
from study.training.stopping import StopSignal
from study.training.trainer import Training, training_masker

COPIED, COPIES = 2**26, 8
"""Numbers that are copied to measure the memory's bandwidth, 256 MB, more than any cache holds; how often between two looks."""

UNPROFILED, PROFILED = 5, 8
"""Steps before a profile, in which kernels are built and a CUDA graph is recorded, and in it."""

MATMUL_SECONDS = 0.1
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


class _ProfileCallback(pl.Callback):
    """Passes the gate after the first steps, profiles some and passes it again with their seconds by kind."""

    def __init__(self, gate: Gate, case: Case) -> None:
        self.gate, self.case = gate, case
        activities = {"cpu": [ProfilerActivity.CPU], "cuda": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}
        self.profile = profile(activities=activities[case.device], record_shapes=True)

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Begin after the warm-up, once asked to, and end after the last of the profiled steps."""
        if trainer.global_step == UNPROFILED:
            self.gate.ready()
            self.gate.wait()
            self.profile.start()
        elif trainer.global_step == UNPROFILED + PROFILED:
            self.gate.synchronise()
            self.profile.stop()
            self.gate.report(seconds_by_kind(self.profile, self.case.device, self.case.architecture.vocabulary, PROFILED))
            self.gate.wait()


def ours(case: Case, folder: Path, channel: Connection) -> None:
    """Our training path as `study launch` runs it: Lightning's Trainer, data module, masks, clipping, schedule and metrics.

    Checkpoints, which come once a minute, are left to the measurement of what surrounds a step.
    """
    _train(case, folder, _GateCallback(gate_of(channel, case.device)))


def muon(case: Case, folder: Path, channel: Connection) -> None:
    """What `ours` does with Muon for the matrices of the blocks."""
    _train(case, folder, _GateCallback(gate_of(channel, case.device)), optimizer="muon")


def profiled(case: Case, folder: Path, channel: Connection) -> None:
    """Seconds of a step of `ours` by kind of operation, or of kernel on a GPU, once."""
    _train(case, folder, _ProfileCallback(gate_of(channel, case.device), case))


def _train(case: Case, folder: Path, callback: pl.Callback, **recipe: Any) -> None:
    data = folder / f"data-{os.getpid()}"
    data.mkdir()
    prepared = drawn_data(data, case.architecture.vocabulary, case.sequence_length)
    execution = Execution(case.device, threads=case.threads, checkpoint_seconds=float("inf"))
    Training(case.config(**recipe), prepared, RunFolder(data), execution).fit(StopSignal(), callbacks=[callback])


def bare(case: Case, folder: Path, channel: Connection) -> None:
    """What `ours` computes, in a loop without Lightning and metrics: the same model, batches, masks, clipping and schedule."""
    torch.set_num_threads(case.threads)
    keep_freed_memory()
    gate, config = gate_of(channel, case.device), case.config()
    data = folder / f"bare-{os.getpid()}"
    data.mkdir()
    prepared = drawn_data(data, case.architecture.vocabulary, case.sequence_length)
    sequences = prepared.split("train")
    order = DataOrder(len(sequences), case.batch, config.seed)
    masker, generator = training_masker(config, prepared), torch.Generator()
    model = fresh_model(config.architecture, config.recipe, config.seed).train()
    if resolve_kernels(Execution(case.device), case.dtype) == "onednn":
        multiply_through_onednn(model)
    optimizer = optimizer_of(model, config.recipe)
    scheduler = schedule(optimizer, config.steps, config.recipe)
    step = 0
    while True:
        generator.manual_seed(stream_seed(Stream.MASKS, config.seed, step))
        masked = masker(torch.from_numpy(sequences.take(order.at(step))), generator)
        with autocast(case.device, case.dtype):
            hidden_BxKxH = model.encoder(masked.tokens, positions_BxK=masked.positions)
            loss = model.predicted_loss(hidden_BxKxH, masked.labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        clip_gradients(model.parameters(), config.recipe.gradient_clip_norm or float("inf"))
        optimizer.step()
        scheduler.step()
        step += 1
        gate.step()


def bandwidth(case: Case, folder: Path, channel: Connection) -> None:
    """Bytes a second that a copy of a large tensor reads and writes, once a round."""
    del folder
    torch.set_num_threads(case.threads)
    gate = gate_of(channel, case.device)
    source = torch.ones(COPIED, device=case.device)
    target = torch.empty_like(source)
    target.copy_(source)
    gate.ready()
    while True:
        order = gate.wait()
        started, copies = perf_counter(), 0
        while perf_counter() - started < order.seconds:
            for _ in range(COPIES):
                target.copy_(source)
            gate.synchronise()
            copies += COPIES
        gate.report(2 * source.nbytes * copies / (perf_counter() - started))


def matmul(case: Case, folder: Path, channel: Connection) -> None:
    """FLOP/s of plain matrix products at the case's dtype: those of the model's layers and large square ones, by shape.

    Each by the faster of `torch.mm` and, where our training takes it, oneDNN.
    """
    del folder
    torch.set_num_threads(case.threads)
    gate = gate_of(channel, case.device)
    squares = (4096, 8192) if case.device == "cuda" else (1024, 2048)
    products = {sizes: _products(sizes, case) for sizes in [*case.products(), *((side, side, side) for side in squares)]}
    for run in chain.from_iterable(products.values()):
        run()
    gate.ready()
    while True:
        gate.wait()
        gate.report({sizes: max(rate(run, sizes, gate.synchronise) for run in runs) for sizes, runs in products.items()})


def _products(sizes: tuple[int, int, int], case: Case) -> list[Callable[[], object]]:
    """The ways to make one product: torch's, and oneDNN's where our training takes it."""
    rows, inner, columns = sizes
    dtype = dtype_of(case.dtype)
    left = torch.randn(rows, inner, device=case.device, dtype=dtype)
    right = torch.randn(inner, columns, device=case.device, dtype=dtype)
    out = torch.empty(rows, columns, device=case.device, dtype=dtype)
    ways: list[Callable[[], object]] = [lambda: torch.mm(left, right, out=out)]
    if resolve_kernels(Execution(case.device), case.dtype) == "onednn":
        weight = right.t().contiguous()
        ways.append(lambda: onednn_product(left, weight, None))
    return ways


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
