"""Bytes of tensors alive on the CPU, and a short training run to measure them in."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.data import DataLoader

from study.config.run_config import RunConfig
from study.counting.architecture import Architecture
from study.counting.layer_losses import NO_LOSSES, LayerLosses
from study.data.batches import ValidationBatch
from study.data.masking import Masker
from study.data.pairs import Pairs
from study.model.lightning import MaskedLanguageModelling
from study.model.masked_language_model import MaskedLanguageModel, TeacherModel


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within, follows every storage that an operation returns, each once however many tensors view it, until it is freed.

    What an operation allocates and frees inside itself is not seen; `test_the_tracker_agrees_with_the_allocator` says that
    this does not matter here.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live, self.peak = 0, 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self._follow(value.untyped_storage())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._sizes:
            return
        self._sizes[key] = storage.nbytes()
        weakref.finalize(storage, self._freed, key)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)

    def _freed(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def tracked_peak(work: Callable[[], object]) -> int:
    """The most bytes of tensors alive at once while `work` runs, those that it makes counted."""
    memory = LiveMemory()
    with memory:
        work()
    return memory.peak


def cuda_peak(work: Callable[[], object]) -> int:
    """The most bytes that `work` has allocated at once on the GPU; a first round leaves cuBLAS's workspaces out of it."""
    work()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - int(before)


def with_labels(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens as rows of `PackedPairs`: the second half is segment B, which follows A in every other pair."""
    begins, labels = torch.full((len(tokens), 1), tokens.shape[1] // 2), torch.arange(len(tokens))[:, None] % 2
    return torch.cat((tokens, begins, labels), 1)


def train_three_steps(
    config: RunConfig,
    device: str = "cpu",
    teacher: Architecture | None = None,
    weight: float = 1.0,
    losses: LayerLosses = NO_LOSSES,
) -> None:
    """Three steps of the workbench's own LightningModule on random tokens, validated as a run is, perhaps with a teacher."""
    masker = Masker(config.training_masking, config.predictions, 4, (0, 1, 2, 3, 4), config.architecture.vocabulary)
    validating = replace(masker, masking=config.masking, predictions=config.validation_predictions)
    masker = replace(masker, padding=0 if config.recipe.pads else None)
    teacher_run = None if teacher is None else TeacherModel(MaskedLanguageModel(teacher), weight, 2.0, losses)
    module = MaskedLanguageModelling(config, masker, teacher=teacher_run)
    draw = torch.Generator().manual_seed(0)
    vocabulary, size = config.architecture.vocabulary, (config.batch_sequences, config.data.sequence_length)
    batches = [torch.randint(5, vocabulary, size, generator=draw) for _ in range(3)]
    rows = torch.arange(2 * size[0])
    masked = validating(torch.randint(5, vocabulary, (2 * size[0], size[1]), generator=draw), draw)
    pairs = None
    if config.recipe.judges_pairs:
        batches = [with_labels(tokens) for tokens in batches]
        pairs = Pairs.of(with_labels(torch.randint(5, vocabulary, masked.tokens.shape, generator=draw)))
    draws = torch.rand(masked.positions.shape, generator=draw) if config.recipe.detects_replaced else None
    validation = [ValidationBatch(rows, masked, validating.permuted(masked, draw), pairs, draws)]
    trainer = pl.Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if config.recipe.precision == "bf16" else "32-true",
        max_steps=3,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, DataLoader(batches, batch_size=None), DataLoader(validation, batch_size=None))  # type: ignore[arg-type]
