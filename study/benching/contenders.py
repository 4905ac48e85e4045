"""Our side of a comparison: the training path of runs, and the machine's matrix product rate."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from study.base.randomness import Stream, stream_seed
from study.benching.cases import Case
from study.benching.own_processes import Gate
from study.config.run_config import RunConfig
from study.counting.memory import Device
from study.data.batches import DataOrder, training_masker
from study.data.prepared import Facts, PreparedData
from study.data.token_files import token_dtype, token_file
from study.data.tokenizing import SPECIAL_PIECES, SpecialTokens
from study.model.layers import autocast, multiply_through_onednn, onednn_product
from study.model.optimization import clip_gradients, optimizer_of, schedule
from study.model.parametrization import fresh_model
from study.store.run_folder import RunFolder
from study.training.attempts import StopSignal
from study.training.execution import Execution, keep_freed_memory, resolve_kernels
from study.training.trainer import Training

SEQUENCES = {"train": 4096, "validation": 64}
"""Random sequences per split."""

UNPROFILED, PROFILED = 5, 8
"""Steps before a profile, for building kernels and recording a CUDA graph, and steps in it."""

MATMUL_SECONDS = 0.1
"""Seconds of timing per product and round."""


def drawn_data(folder: Path, vocabulary: int, sequence_length: int) -> PreparedData:
    """Write fixed Zipf-distributed token files into an existing folder."""
    random = np.random.default_rng(0)
    first, tokens = len(SPECIAL_PIECES), {}
    for split, sequences in SEQUENCES.items():
        count = sequences * sequence_length
        ids = first + np.exp(random.uniform(0, np.log(vocabulary - first), count)).astype(np.int64) - 1
        ids.astype(token_dtype(vocabulary)).tofile(token_file(folder, "train" if split == "train" else "validation"))
        tokens[split] = count
    facts = Facts.parse(
        {
            "vocabulary": vocabulary,
            "dtype": token_dtype(vocabulary).name,
            "tokens": tokens | {"test": 0},
            "documents": sum(SEQUENCES.values()),
            "text_bytes": 0,
            "empty_documents": 0,
            "duplicate_documents": 0,
            "unigram_entropy_nats": float(np.log(vocabulary)),
            "tokenizer_sha256": "",
        }
    )
    return PreparedData("drawn", folder, sequence_length, SEQUENCES["validation"], SpecialTokens(*range(first)), facts)


def gate_of(channel: Connection, device: Device) -> Gate:
    """Return a contender's gate for a device."""
    if device == "cuda":
        return Gate(channel, torch.cuda.synchronize, torch.cuda.empty_cache)
    return Gate(channel, lambda: None, lambda: None)


class GateCallback(pl.Callback):
    """Calls the gate after every optimiser step."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def on_train_batch_end(self, *_: Any) -> None:
        """Count the step."""
        self.gate.step()


class _ProfileCallback(pl.Callback):
    """Waits at the gate after a warm-up, profiles some steps, and reports their seconds by kind."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.profile = gate, profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == UNPROFILED:
            self.gate.ready()
            self.gate.wait()
            self.profile.start()
        elif trainer.global_step == UNPROFILED + PROFILED:
            self.gate.synchronise()
            self.profile.stop()
            self.gate.report(seconds_by_kind(self.profile, PROFILED))
            self.gate.wait()


def ours(case: Case, folder: Path, channel: Connection) -> None:
    """Train as `study launch` does, without checkpoints, which study.benching.overheads measures."""
    train(case, case.config(), folder, GateCallback(gate_of(channel, case.device)))


def profiled(case: Case, folder: Path, channel: Connection) -> None:
    """Report once the seconds of a step of `ours` on a GPU by kind of kernel."""
    train(case, case.config(), folder, _ProfileCallback(gate_of(channel, case.device)))


def train(case: Case, config: RunConfig, folder: Path, callback: pl.Callback) -> None:
    """Train as `study launch` does on drawn data of the case, without checkpoints."""
    prepared = _data_of(case, folder / f"data-{os.getpid()}")
    execution = Execution(device=case.device, threads=case.threads, checkpoint_seconds=1e9)
    Training(config, prepared, RunFolder(prepared.folder), execution).fit(StopSignal(), callbacks=[callback])


def _data_of(case: Case, folder: Path) -> PreparedData:
    folder.mkdir()
    return drawn_data(folder, case.architecture.vocabulary, case.sequence_length)


def bare(case: Case, folder: Path, channel: Connection) -> None:
    """Train as `ours` in a loop without Lightning and metrics."""
    torch.set_num_threads(case.threads)
    keep_freed_memory()
    gate, config = gate_of(channel, case.device), case.config()
    prepared = _data_of(case, folder / f"bare-{os.getpid()}")
    sequences = prepared.split("train")
    order = DataOrder(len(sequences), case.batch, config.seed)
    masker, generator = training_masker(config, prepared), torch.Generator()
    model = fresh_model(config.architecture, config.recipe, config.seed).train()
    if resolve_kernels(Execution(device=case.device), case.dtype) == "onednn":
        multiply_through_onednn(model)
    optimizer = optimizer_of(model, config.recipe)
    scheduler = schedule(optimizer, config.steps, config.recipe)
    step = 0
    while True:
        generator.manual_seed(stream_seed(Stream.MASKS, config.seed, step))
        masked = masker(torch.from_numpy(sequences.take(order.at(step))), generator)
        with autocast(case.device, case.dtype):
            hidden_BxKxH = model.hidden(masked.tokens, positions_BxK=masked.positions)
            loss = model.predicted_loss(hidden_BxKxH, masked.labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        clip_gradients(model.parameters(), config.recipe.gradient_clip_norm or float("inf"))
        optimizer.step()
        scheduler.step()
        step += 1
        gate.step()


def matmul(case: Case, folder: Path, channel: Connection) -> None:
    """Report the FLOP/s of plain matrix products in the case's dtype, by shape: those of its layers and large squares.

    Each uses the faster of `torch.mm` and, if our training uses it, oneDNN.
    """
    del folder
    gate = gate_of(channel, case.device)
    squares = (4096, 8192) if case.device == "cuda" else (1024, 2048)
    products = {sizes: _products(sizes, case) for sizes in [*case.products(), *((side, side, side) for side in squares)]}
    gate.ready()
    while True:
        gate.wait()
        gate.report({sizes: max(_rate(run, sizes, case.threads) for run in runs) for sizes, runs in products.items()})


def _products(sizes: tuple[int, int, int], case: Case) -> list[Callable[[], object]]:
    rows, inner, columns = sizes
    dtype = torch.bfloat16 if case.dtype == "bf16" else torch.float32
    left = torch.randn(rows, inner, device=case.device, dtype=dtype)
    right = torch.randn(inner, columns, device=case.device, dtype=dtype)
    out = torch.empty(rows, columns, device=case.device, dtype=dtype)
    ways: list[Callable[[], object]] = [lambda: torch.mm(left, right, out=out)]
    if resolve_kernels(Execution(device=case.device), case.dtype) == "onednn":
        weight = right.t().contiguous()
        ways.append(lambda: onednn_product(left, weight, None))
    return ways


def _rate(run: Callable[[], object], sizes: tuple[int, int, int], threads: int) -> float:
    """Return the FLOP/s of one product (2·rows·inner·columns each)."""
    rows, inner, columns = sizes
    timer = Timer("run()", globals={"run": run}, num_threads=threads)
    return float(2 * rows * inner * columns / timer.blocked_autorange(min_run_time=MATMUL_SECONDS).mean)


PRODUCTS, ATTENTION, REST = "products", "attention", "norms, GELU and sums"
"""The products of layers and head, attention with its own products, and the rest."""

IDLE = "the GPU idle between kernels"
"""The time of a step outside kernels."""

_KERNELS = {
    ATTENTION: ("flash", "fmha", "sdpa", "cudnn", "attention"),  # first, since flash's kernels also name the product library
    PRODUCTS: ("gemm", "nvjet", "cutlass", "splitk"),
    "the optimiser": ("adam", "multi_tensor_apply", "lpnorm"),
    "the loss over the logits": ("softmax", "nll_loss", "cross_entropy"),
    "the token table": ("embedding",),
    "the masks": ("topk", "sort", "distribution", "scatter_gather"),
}
"""Parts of CUDA kernel names: cuBLAS, cuDNN, flash attention, torch, and Inductor's fused kernels, which name their
operations."""


def kernel_kind(name: str) -> str:
    """Classify a CUDA kernel by name."""
    return next((kind for kind, parts in _KERNELS.items() if any(part in name.lower() for part in parts)), REST)


def shares_of(seconds: Mapping[str, float], step_seconds: float) -> dict[str, float]:
    """Return each kind's share of a step, largest first; the rest is an idle GPU.

    If the profiled step took longer, as on a busy machine, shares are of the profiled step.
    """
    whole = max(step_seconds, sum(seconds.values()))
    shares = {kind: of_kind / whole for kind, of_kind in seconds.items()}
    shares[IDLE] = 1 - sum(shares.values())
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def seconds_by_kind(profile: Any, steps: int) -> dict[str, float]:
    """Return seconds per step by kind of CUDA kernel, memory copies and fills included, from a torch profile.

    Raises ValueError if it shows no matrix product.
    """
    seconds: dict[str, float] = {}
    for event in profile.events():
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            kind = kernel_kind(event.name)
            seconds[kind] = seconds.get(kind, 0.0) + event.time_range.elapsed_us() / 1e6 / steps
    if PRODUCTS not in seconds:
        raise ValueError(f"the profile of {steps} steps names no matrix product")
    return seconds


def profile_sentence(shares: Mapping[str, float], rate: float) -> str:
    """Describe a step's shares, and its products' share of their best rate."""
    first = f"products take {shares[PRODUCTS]:.0%} of a step, at {rate:.0%} of their best rate"
    return ", ".join([first, *(f"{kind} {share:.0%}" for kind, share in shares.items() if kind != PRODUCTS)])
