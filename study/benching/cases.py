"""The cases of the training benchmark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from study.base.errors import map_all
from study.base.quantities import listed, read_shape
from study.config.run_config import RunConfig
from study.counting.architecture import Architecture, changed
from study.counting.memory import Device, Precision
from study.counting.named_models import architecture_of
from study.counting.parameters import MASKING_RATE, flops_per_token, masked_positions, spared_flops_per_token

SHAPES = "2x128,4x256,4x512"
VOCABULARIES = (30522, 8192)
BATCH, SEQUENCE_LENGTH = 32, 128
RACED_SHAPES, RACED_VOCABULARY = "2x128,4x256", 8192
"""The default cases: those of training speed, and those of time-to-loss."""

STEPS = 10**9
"""A budget that no benchmark reaches."""

GPU_MODELS = (
    ("bert-large", 512, 128, 0),
    ("bert-large", 128, 512, 1),
    ("bert-base", 1024, 128, 2),
    ("bert-base", 256, 512, 3),
    ("bert-base", 256, 128, 4),
    ("bert-base", 64, 512, 5),
    ("bert-medium", 256, 128, 6),
    ("bert-small", 256, 128, 6),
    ("bert-mini", 256, 128, 7),
    ("bert-tiny", 256, 128, 7),
)
"""Model, sequences per batch, tokens per sequence, and wave; the cases of a wave compile in parallel.

Base also has BERT's own batch of 131,072 tokens (Devlin et al. 2019, appendix A.2). A wave fits into 80 GB: ours, ours
profiled at up to PEERS_TOKENS per batch, and one peer at a time."""

PRESET_MODEL = ("bert-base", 256, 128)
"""The model, sequences per batch and tokens per sequence at which presets are compared on a GPU."""

PEERS_TOKENS = 32_768
"""Tokens of the largest batch that peers train at: their dense heads alone take 16 GB there."""


@dataclass(frozen=True)
class Case:
    """A model, device, precision, batch, sequence length and dropout, the same for all contenders."""

    architecture: Architecture
    dtype: Precision
    batch: int
    sequence_length: int
    device: Device = "cpu"
    threads: int = 1
    dropout: float = 0.0
    model: str | None = None
    wave: int = 0

    @property
    def shape(self) -> str:
        """Depth x width, as on the command line."""
        return f"{self.architecture.depth}x{self.architecture.width}"

    @property
    def predictions(self) -> int:
        """Masked positions per sequence."""
        return masked_positions(self.sequence_length, MASKING_RATE)

    @property
    def batch_tokens(self) -> int:
        """Tokens per step."""
        return self.batch * self.sequence_length

    @property
    def flops_per_token(self) -> float:
        """FLOPs per token of our training's matrix products: train_flops less what the last layer skips."""
        return computed_flops_per_token(self.architecture, self.sequence_length, self.predictions)

    @property
    def product_flops_per_token(self) -> float:
        """FLOPs per token of the products of layers and head, without attention scores and mixtures.

        The latter are 12·H·S per layer; the last layer runs them at masked positions only.
        """
        a = self.architecture
        return self.flops_per_token - 12 * a.width * ((a.depth - 1) * self.sequence_length + self.predictions)

    def products(self) -> list[tuple[int, int, int]]:
        """Return the distinct forward products (rows, inner, columns) of layers and head."""
        a, tokens = self.architecture, self.batch_tokens
        sizes = [(tokens, a.width, 3 * a.width), (tokens, a.width, a.ffn), (tokens, a.ffn, a.width)]
        return list(dict.fromkeys([*sizes, (self.batch * self.predictions, a.width, a.vocabulary)]))

    def config(self, steps: int = STEPS) -> RunConfig:
        """Return the configuration of a run of this case, with BERT's recipe but for dropout and warmup."""
        values = {
            "architecture": self.architecture.model_dump(),
            "recipe": {
                "batch_tokens": self.batch_tokens,
                "precision": self.dtype,
                "dropout": self.dropout,
                "warmup_fraction": 0.0,
                "budget": {"steps": steps},
            },
            "data": {
                "tokenizer": {"vocabulary": self.architecture.vocabulary},
                "sequence_length": self.sequence_length,
                "validation_sequences": 64,
            },
        }
        return RunConfig.parse(values)


def computed_flops_per_token(architecture: Architecture, sequence_length: int, predictions: int) -> float:
    """Return `train_flops` per token less what the last layer skips."""
    of = architecture, sequence_length, predictions
    return flops_per_token(*of)["train_flops"] - spared_flops_per_token(*of)


class RaceCases(NamedTuple):
    """The cases of run_mlm and of ours, which differ in precision at most."""

    theirs: Case
    ours: Case


def read_shapes(text: str) -> list[tuple[int, int]]:
    """Parse depths and widths from `2x128,4x256`; raises InputError with every bad part."""
    return map_all(partial(read_shape, "--shapes"), listed(text) or [text])


def cases_of_shapes(
    shapes: Iterable[tuple[int, int]],
    vocabularies: Iterable[int],
    dtypes: Iterable[Precision],
    size: tuple[int, int],
    **rest: Any,
) -> list[Case]:
    """Return all combinations in waves of one; `size` is (sequences per batch, tokens per sequence).

    Raises InputError for impossible shapes.
    """
    models = [
        architecture_of(None, {"depth": depth, "width": width, "vocabulary": vocabulary, "positions": max(512, size[1])})
        for depth, width in shapes
        for vocabulary in vocabularies
    ]
    return [Case(model, dtype, *size, **rest, wave=wave) for wave, (model, dtype) in enumerate(product(models, dtypes))]


def cases_of_models(threads: int, dropout: float) -> list[Case]:
    """Return BERT's miniatures, Base and Large in bf16, at batches that fill a large GPU."""
    return [
        Case(
            changed(architecture_of(name, {}), {"positions": 512}), "bf16", batch, length, "cuda", threads, dropout, name, wave
        )
        for name, batch, length, wave in GPU_MODELS
    ]
