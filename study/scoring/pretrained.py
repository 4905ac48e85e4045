"""The encoder of a run as scores use it: configuration, weights and tokeniser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from study.base.errors import InputError
from study.config.run_config import RunConfig, fingerprint_of
from study.data.corpora import Tally
from study.data.prepared import CorpusText, PreparedData, prepare
from study.data.tokenizing import SpecialTokens
from study.store.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

    from study.model.masked_language_model import MaskedLanguageModel

MOST_TEXT = 30_000_000
"""Characters of text in which words are counted, about five million words."""


@dataclass(frozen=True)
class Pretrained:
    """A completed run, read lazily."""

    folder: RunFolder

    @cached_property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self.folder.config()

    @cached_property
    def prepared(self) -> PreparedData:
        """The run's data with its tokeniser; raises InputError where the text has changed."""
        prepared = prepare(self.config.data, progress=True)
        if prepared.fingerprint != self.data_fingerprint:
            corpus = self.config.data.corpus
            changed = f"{corpus} has changed since run {self.run_id} was trained, and with it the word pieces"
            raise InputError.at("data.corpus", f"{changed}; restore the text, or train on the new one")
        return prepared

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokeniser of the run."""
        return self.prepared.tokenizer()

    @property
    def special(self) -> SpecialTokens:
        """The special tokens of the tokeniser."""
        return self.prepared.special

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.folder.run_id

    @property
    def random_id(self) -> str:
        """The fingerprint of architecture and data, which equal untrained runs share."""
        return fingerprint_of([self.config.to_dict()["architecture"], self.data_fingerprint])

    @cached_property
    def data_fingerprint(self) -> str:
        """The fingerprint of the run's training data."""
        record = self.folder.record()
        assert record is not None
        return record.data_fingerprint

    @cached_property
    def usual_length(self) -> int:
        """The longest input in tokens unless one is requested.

        It is the sequence length of pre-training, beyond which positions are untrained; of an encoder that was trained
        elsewhere it is all positions, since its run's sequences are those of a validation.
        """
        elsewhere = self.config.recipe.budget.steps == 0 and _was_trained_elsewhere(self.folder)
        return self.config.architecture.positions if elsewhere else self.config.data.sequence_length

    def max_length(self, requested: int | None) -> int:
        """Return the longest input in tokens: as requested, else the sequence length of the run.

        Raises InputError where the encoder has fewer positions.
        """
        length, positions = requested or self.config.data.sequence_length, self.config.architecture.positions
        if length > positions:
            shape = f"run {self.run_id} has {positions} positions"
            raise InputError.at("downstream.knobs.max_length", f"{length} is too long: {shape}; give at most {positions}")
        return length

    @property
    def in_int8(self) -> bool:
        """Whether the encoder's weights are stored and multiplied in int8."""
        return self.config.recipe.weights == "int8"

    def state(self) -> dict[str, Tensor]:
        """Return the weights in fp32; raises InputError."""
        from study.model.stored_weights import trained_weights

        return trained_weights(self.folder)

    def masked_language_model(self, seed: int | None = None) -> MaskedLanguageModel:
        """Return the model with its stored weights, or with random ones by a seed."""
        from study.model.masked_language_model import MaskedLanguageModel
        from study.model.stored_weights import multiply_in_int8

        model = MaskedLanguageModel(self.config.architecture, seed=seed or 0)
        if seed is None:
            model.load_state_dict(self.state())
            if self.in_int8:
                multiply_in_int8(model)
        return model.eval()


def _was_trained_elsewhere(run: RunFolder) -> bool:
    """Whether a run is an imported encoder, or was made from one in no steps; False where its start is gone or damaged."""
    record = None
    with suppress(InputError):
        record = run.record()
    if record is None or record.steps:
        return False
    start = record.config.recipe.init_from
    return record.is_imported or (start is not None and _was_trained_elsewhere(RunFolder(start.folder)))


def train_text(run: Pretrained) -> Iterator[str]:
    """Yield the first MOST_TEXT characters of a run's training documents."""
    characters = 0
    for split, text in CorpusText(run.config.data).documents("Reading the text", Tally()):
        if split == "train":
            characters += len(text)
            yield text
        if characters >= MOST_TEXT:
            return


@lru_cache(maxsize=2)
def pretrained(path: Path) -> Pretrained:
    """Return the run in a folder, cached."""
    return Pretrained(RunFolder(path))
