"""The batches of a run as a LightningDataModule: (seed, t) decides which sequences step t reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from study.base.randomness import Stream, stream_seed
from study.config.run_config import RunConfig
from study.data.masking import MaskedBatch, Masker, StaticMasks
from study.data.prepared import PreparedData, prepare
from study.data.token_files import PackedSequences
from study.data.tokenizing import continuing_pieces


class DataOrder:
    """Sequence indices by step: one permutation per epoch, drawn from (seed, epoch)."""

    def __init__(self, sequences: int, batch: int, seed: int) -> None:
        self.sequences, self.batch, self.seed = sequences, batch, seed
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    def at(self, step: int) -> NDArray[np.int64]:
        """Return the indices of the global batch of `step` (from 0); a batch may span epochs."""
        first, last = step * self.batch, (step + 1) * self.batch
        parts = []
        while first < last:
            epoch, offset = divmod(first, self.sequences)
            part = self._order(epoch)[offset : offset + last - first]
            parts.append(part)
            first += len(part)
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64(stream_seed(Stream.DATA_ORDER, self.seed, epoch)))
            self._epoch, self._permutation = epoch, generator.permutation(self.sequences)
        return self._permutation


class ValidationBatch(NamedTuple):
    """Masked validation sequences, their row numbers, and their tokens permuted (Masker.permuted)."""

    rows: Int[Tensor, " B"]
    masked: MaskedBatch
    permuted: Int[Tensor, "B S"]


class PackedBatches(pl.LightningDataModule):
    """Training batches of packed tokens (B, S) from the trainer's step on, and the fixed masked validation set.

    One fixed permutation per validation sequence measures the value of word order. If `prepared` is None, the configured data
    are prepared. `pinned` batches are copied to the GPU while it computes.
    """

    def __init__(self, config: RunConfig, prepared: PreparedData | None = None, pinned: bool = False) -> None:
        super().__init__()
        prepared = prepare(config.data) if prepared is None else prepared
        masker = validation_masker(config, prepared)
        self.config, self.train, self.pinned = config, prepared.split("train"), pinned
        self.order = DataOrder(len(self.train), config.batch_sequences, config.seed)
        generator = torch.Generator().manual_seed(stream_seed(Stream.VALIDATION_MASKS))
        self.validation = masker(torch.from_numpy(prepared.validation()), generator)
        generator.manual_seed(stream_seed(Stream.VALIDATION_ORDER))
        self.permuted = masker.permuted(self.validation, generator)

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Return this rank's batches from the current step to the last."""
        assert self.trainer is not None
        steps = _Steps(self.config, self.train, self.order, self.trainer)
        return DataLoader(steps, batch_size=None, pin_memory=self.pinned)

    def val_dataloader(self) -> DataLoader[ValidationBatch]:
        """Return this rank's slices of the validation set (every `ranks`-th row)."""
        assert self.trainer is not None
        rows = torch.arange(len(self.validation.tokens))[self.trainer.global_rank :: self.trainer.world_size]
        slices = torch.split(rows, max(1, 2 * self.config.batch_sequences // self.trainer.world_size))
        batches = [ValidationBatch(r, MaskedBatch(*(each[r] for each in self.validation)), self.permuted[r]) for r in slices]
        return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]


def validation_masker(config: RunConfig, prepared: PreparedData) -> Masker:
    """Return the masker for a run's validation."""
    special, vocabulary = prepared.special, config.architecture.vocabulary
    return Masker(config.masking, config.validation_predictions, special.mask, special.all, vocabulary)


def training_masker(config: RunConfig, prepared: PreparedData) -> Masker:
    """Return the masker for a run's training.

    Raises InputError if whole words are masked and the tokeniser is not WordPiece.
    """
    masking, continuing = config.recipe.masking, None
    if masking.whole_words:
        continuing = torch.zeros(config.architecture.vocabulary, dtype=torch.bool)
        continuing[continuing_pieces(prepared.tokenizer())] = True
    return replace(
        validation_masker(config, prepared),
        masking=config.training_masking,
        predictions=config.predictions,
        continuing=continuing,
        static=StaticMasks(masking.static_copies, stream_seed(Stream.MASKS, config.seed)) if masking.static_copies else None,
    )


class _Steps(IterableDataset[Tensor]):
    """One rank's batches from the trainer's current step, which also resumes a run."""

    def __init__(self, config: RunConfig, train: PackedSequences, order: DataOrder, trainer: pl.Trainer) -> None:
        self.config, self.train, self.order, self.trainer = config, train, order, trainer

    def __len__(self) -> int:
        return self.config.steps

    def __iter__(self) -> Iterator[Tensor]:
        rank, ranks = self.trainer.global_rank, self.trainer.world_size
        share = self.config.batch_sequences // ranks
        for step in range(self.trainer.global_step, self.config.steps):
            rows = self.order.at(step)[rank * share : (rank + 1) * share]
            yield torch.from_numpy(self.train.take(rows))
