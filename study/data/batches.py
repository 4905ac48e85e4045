"""The batches of a run as a LightningDataModule: (seed, t) decides which sequences step t reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from study.base.randomness import Stream, stream_seed
from study.config.run_config import RunConfig
from study.data.masked_words import MaskedWords, masked_words
from study.data.masking import MaskedBatch, Masker, StaticMasks
from study.data.pairs import PackedPairs, Pairs
from study.data.prepared import PreparedData, prepare, validation_order
from study.data.token_files import PackedDocuments, PackedSequences
from study.data.tokenizing import continuing_pieces

TrainingSequences = PackedSequences | PackedDocuments | PackedPairs


class DataOrder:
    """Sequence indices by step: one permutation per epoch, drawn from (seed, epoch)."""

    def __init__(self, sequences: int, batch: int, seed: int) -> None:
        self.sequences, self.batch, self.seed = sequences, batch, seed
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    def at(self, step: int) -> NDArray[np.int64]:
        """Return the indices of the global batch of `step`, which may span epochs."""
        first, last = step * self.batch, (step + 1) * self.batch
        parts = []
        while first < last:
            epoch, offset = divmod(first, self.sequences)
            part = self._order(epoch)[offset : offset + last - first]
            parts.append(part)
            first += len(part)
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def epochs(self, step: int) -> NDArray[np.int64]:
        """Return the epoch of each sequence of the batch."""
        return np.arange(step * self.batch, (step + 1) * self.batch) // self.sequences

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if epoch != self._epoch:
            generator = np.random.Generator(np.random.PCG64(stream_seed(Stream.DATA_ORDER, self.seed, epoch)))
            self._epoch, self._permutation = epoch, generator.permutation(self.sequences)
        return self._permutation


class ValidationBatch(NamedTuple):
    """Masked validation sequences, their row numbers, their tokens permuted (Masker.permuted), and what objectives read.

    These are as many masked pairs, or a draw for each masked position (study.model.replaced_tokens).
    """

    rows: Int[Tensor, " B"]
    masked: MaskedBatch
    permuted: Int[Tensor, "B S"]
    pairs: Pairs | None = None
    draws: Float[Tensor, "B K"] | None = None


class WordBatch(NamedTuple):
    """Sequences with masked words (study.data.masked_words), and the document of each masked position."""

    masked: MaskedBatch
    documents: Int[Tensor, "B K"]


class PackedBatches(pl.LightningDataModule):
    """Training batches of packed tokens (B, S) from the trainer's step on, and the fixed masked validation set.

    Batches of pairs hold rows of `PackedPairs`; if the objective judges them, as many fixed masked ones are validated too. One
    fixed permutation per validation sequence measures the value of word order, and fixed draws replace its masked tokens if the
    objective detects them; `words` are masked words, the same for every tokeniser. If `prepared` is None, the configured data
    are prepared. `pinned` batches are copied to the GPU while it computes.
    """

    def __init__(self, config: RunConfig, prepared: PreparedData | None = None, pinned: bool = False) -> None:
        super().__init__()
        prepared = (prepare(config.data) if prepared is None else prepared).with_unique_tokens(config.recipe.unique_tokens)
        masker = validation_masker(config, prepared)
        self.config, self.pinned = config, pinned
        self.train = training_sequences(config, prepared)
        self.order = DataOrder(len(self.train), config.batch_sequences, config.seed)
        generator = torch.Generator().manual_seed(stream_seed(Stream.VALIDATION_MASKS))
        self.validation = masker(torch.from_numpy(prepared.validation()), generator)
        generator.manual_seed(stream_seed(Stream.VALIDATION_ORDER))
        self.permuted = masker.permuted(self.validation, generator)
        self.pairs = _validation_pairs(config, prepared, masker) if config.recipe.judges_pairs else None
        self.draws: Tensor | None = None
        self.words: MaskedWords | None = None
        if config.recipe.detects_replaced:
            generator.manual_seed(stream_seed(Stream.VALIDATION_REPLACEMENTS))
            self.draws = torch.rand(self.validation.positions.shape, generator=generator)
        elif prepared.passages:
            special, length = prepared.special, prepared.sequence_length
            self.words = masked_words(prepared.passages, prepared.tokenizer(), special, length, config.masking.rate)

    @property
    def masked_words(self) -> str | None:
        """What identifies the masked words, if any."""
        return None if self.words is None else self.words.fingerprint

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Return this rank's batches from the current step."""
        assert self.trainer is not None
        steps = _Steps(self.config, self.train, self.order, self.trainer)
        return DataLoader(steps, batch_size=None, pin_memory=self.pinned)

    def val_dataloader(self) -> DataLoader[ValidationBatch | WordBatch]:
        """Return this rank's slices of the validation set (every `ranks`-th row) and of the masked words."""
        assert self.trainer is not None
        size = max(1, 2 * self.config.batch_sequences // self.trainer.world_size)
        batches: list[ValidationBatch | WordBatch] = []
        batches += map(self._validation_batch, self._own(len(self.validation.tokens), size))
        if self.words is not None:
            masked, documents = self.words.masked, self.words.documents
            size = max(1, size * self.config.validation_predictions // masked.positions.shape[1])  # equal logits
            slices = self._own(len(masked.tokens), size)
            batches += (WordBatch(MaskedBatch(*(each[rows] for each in masked)), documents[rows]) for rows in slices)
        return DataLoader(batches, batch_size=None)  # type: ignore[arg-type]

    def _own(self, sequences: int, size: int) -> tuple[Int[Tensor, " B"], ...]:
        """Return slices of this rank's sequences."""
        assert self.trainer is not None
        return torch.split(torch.arange(sequences)[self.trainer.global_rank :: self.trainer.world_size], size)

    def _validation_batch(self, rows: Int[Tensor, " B"]) -> ValidationBatch:
        pairs = None if self.pairs is None else Pairs(*(each[rows] for each in self.pairs))
        draws = None if self.draws is None else self.draws[rows]
        return ValidationBatch(rows, MaskedBatch(*(each[rows] for each in self.validation)), self.permuted[rows], pairs, draws)


def training_sequences(config: RunConfig, prepared: PreparedData) -> TrainingSequences:
    """Return what a run trains on, by its objective and packing."""
    recipe = config.recipe
    if recipe.reads_pairs:
        return PackedPairs.of(prepared, "train", recipe.objective, stream_seed(Stream.PAIRS, config.seed))
    if recipe.pads:
        return PackedDocuments.of(prepared.stream("train"), prepared.sequence_length, prepared.special)
    return prepared.split("train")


def _validation_pairs(config: RunConfig, prepared: PreparedData, masker: Masker) -> Pairs:
    """Return the fixed pairs of validation, one for each sequence and masked as it is."""
    seed = stream_seed(Stream.VALIDATION_PAIRS)
    packed = PackedPairs.of(prepared, "validation", config.recipe.objective, seed)
    windows = validation_order(len(packed), config.data.validation_sequences)
    pairs = Pairs.of(torch.from_numpy(packed.take(windows, np.zeros_like(windows))))
    return pairs._replace(tokens=masker(pairs.tokens, torch.Generator().manual_seed(seed)).tokens)


def validation_masker(config: RunConfig, prepared: PreparedData) -> Masker:
    """Return the masker for a run's validation.

    Raises InputError if the encoder leaves out another piece than the tokeniser's mask.
    """
    special, vocabulary = prepared.special, config.architecture.vocabulary
    special.check_dropped(config.architecture.token_dropout, "architecture.token_dropout")
    return Masker(config.masking, config.validation_predictions, special.mask, special.all, vocabulary)


def training_masker(config: RunConfig, prepared: PreparedData) -> Masker:
    """Return the masker for a run's training.

    Raises InputError for whole words without marks of their beginning.
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
        padding=prepared.special.pad if config.recipe.pads else None,
    )


class _Steps(IterableDataset[Tensor]):
    """One rank's batches from the trainer's current step."""

    def __init__(self, config: RunConfig, train: TrainingSequences, order: DataOrder, trainer: pl.Trainer) -> None:
        self.config, self.train, self.order, self.trainer = config, train, order, trainer

    def __len__(self) -> int:
        return self.config.steps

    def __iter__(self) -> Iterator[Tensor]:
        rank, ranks = self.trainer.global_rank, self.trainer.world_size
        share = self.config.batch_sequences // ranks
        for step in range(self.trainer.global_step, self.config.steps):
            mine = slice(rank * share, (rank + 1) * share)
            rows = self.order.at(step)[mine]
            if isinstance(self.train, PackedPairs):
                yield torch.from_numpy(self.train.take(rows, self.order.epochs(step)[mine]))
            else:
                yield torch.from_numpy(self.train.take(rows))
