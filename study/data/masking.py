"""BERT's corruption of tokens, at a fixed number of positions a sequence. Letters: B sequences, S tokens, K positions."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from study.config.run_config import Masking

IGNORED = -100
"""The label of a position that is not predicted; torch's cross_entropy leaves it out."""


class MaskedBatch(NamedTuple):
    """Corrupted tokens, the positions to predict in ascending order, and the tokens that stood there."""

    tokens: Int[Tensor, "B S"]
    positions: Int[Tensor, "B K"]
    labels: Int[Tensor, "B K"]


@dataclass(frozen=True)
class Masker:
    """Masking for one tokeniser: its special tokens are never predicted, and random tokens come from all its pieces."""

    masking: Masking
    predictions: int
    mask_token: int
    special_tokens: tuple[int, ...]
    vocabulary: int

    def __call__(self, tokens: Int[Tensor, "B S"], generator: torch.Generator, rank: int = 0, ranks: int = 1) -> MaskedBatch:
        """Choose K positions of each sequence at random and corrupt them 80/10/10 (Devlin et al. 2019, §3.1).

        The draws are those of the global batch of B·ranks sequences, of which this rank takes its rows, so that one rank and
        several mask alike. Where a sequence holds fewer than K ordinary tokens, the rest of its labels are IGNORED.
        """
        device, (batch, length) = tokens.device, tokens.shape
        rows = slice(rank * batch, (rank + 1) * batch)
        draw = functools.partial(torch.rand, batch * ranks, device=device, generator=generator)
        special = torch.isin(tokens, _on_device(self.special_tokens, device))
        scores = draw(length)[rows].masked_fill_(special, -1.0)
        positions = scores.topk(self.predictions, dim=1, sorted=False).indices.sort(dim=1).values
        originals = tokens.gather(1, positions)
        labels = originals.masked_fill(special.gather(1, positions), IGNORED)

        fate = draw(self.predictions)[rows]
        random_tokens = (draw(self.predictions)[rows] * self.vocabulary).to(tokens.dtype).clamp_(max=self.vocabulary - 1)
        masked, replaced = self.masking.mask_share, self.masking.mask_share + self.masking.random_share
        corrupted = torch.where(fate < replaced, random_tokens, originals).masked_fill_(fate < masked, self.mask_token)
        corrupted = torch.where(labels == IGNORED, originals, corrupted)
        return MaskedBatch(tokens.scatter(1, positions, corrupted), positions, labels)

    def permuted(self, masked: MaskedBatch, generator: torch.Generator) -> Int[Tensor, "B S"]:
        """The tokens with the visible ordinary ones of each sequence permuted at random among their places.

        Special tokens stay, and so does whatever stands at a masked position: [MASK], a random token or the token itself.
        """
        tokens = masked.tokens
        fixed = torch.isin(tokens, _on_device(self.special_tokens, tokens.device)).scatter_(1, masked.positions, True)
        keys = torch.rand(tokens.shape, device=tokens.device, generator=generator).masked_fill_(fixed, 1.0)
        places, drawn = (order.argsort(dim=1, stable=True) for order in (fixed.byte(), keys))  # fixed places last, in order
        return tokens.scatter(1, places, tokens.gather(1, drawn))


@functools.cache
def _on_device(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """The ids of tokens as a tensor, copied to a device once, since a copy from the host would wait for it."""
    return torch.tensor(tokens, device=device)
