"""BERT's token masking, at a fixed number of positions per sequence. Letters: B sequences, S tokens, K positions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from study.config.run_config import Masking
from study.data.splitmix import GOLDEN, mixed, shifted

IGNORED = -100
"""The label of an unpredicted position; torch's cross_entropy ignores it."""

_FRACTION_BITS = 24
"""Bits of a drawn fraction: the precision of float32."""


class MaskedBatch(NamedTuple):
    """Corrupted tokens, the positions to predict in ascending order, and their original tokens."""

    tokens: Int[Tensor, "B S"]
    positions: Int[Tensor, "B K"]
    labels: Int[Tensor, "B K"]

    @property
    def originals(self) -> Int[Tensor, "B S"]:
        """The tokens before their corruption."""
        given = self.tokens.gather(1, self.positions)
        return self.tokens.scatter(1, self.positions, torch.where(self.labels == IGNORED, given, self.labels))


class StaticMasks(NamedTuple):
    """The number of masks per sequence, and their seed."""

    copies: int
    seed: int


@dataclass(frozen=True)
class Masker:
    """Masking for one tokeniser: special tokens are never predicted; random tokens come from all pieces.

    `continuing` marks word-continuing pieces for whole-word masking. With `static`, each visit draws one of `copies` masks,
    functions of the tokens and the seed; without, each visit draws a new mask. With `padding`, its token, a sequence that ends
    with it has masked positions in proportion to its other tokens.
    """

    masking: Masking
    predictions: int
    mask_token: int
    special_tokens: tuple[int, ...]
    vocabulary: int
    continuing: Bool[Tensor, " V"] | None = None
    static: StaticMasks | None = None
    padding: int | None = None

    def to(self, device: torch.device) -> Masker:
        """Return the same masker on a device."""
        return replace(self, continuing=None if self.continuing is None else self.continuing.to(device))

    def __call__(self, tokens: Int[Tensor, "B S"], generator: torch.Generator, rank: int = 0, ranks: int = 1) -> MaskedBatch:
        """Choose K random positions per sequence and corrupt them 80/10/10 (Devlin et al. 2019, §3.1).

        Each rank draws for the global batch of B·ranks sequences and keeps its rows, so the masks do not depend on `ranks`.
        With fewer than K ordinary tokens, or with padding, a sequence's remaining labels are IGNORED.
        """
        device, (batch, length) = tokens.device, tokens.shape
        rows = slice(rank * batch, (rank + 1) * batch)

        def anew(count: int) -> Tensor:
            return torch.rand(batch * ranks, count, device=device, generator=generator)[rows]

        draw: Callable[[int], Tensor] = anew
        if self.static is not None:
            copies_B = (anew(1)[:, 0] * self.static.copies).long()
            draw = _static_draws(tokens, copies_B, self.static.seed)
        special = self.special(tokens)
        chosen = self._chosen(draw(length), tokens, special)
        if (attended := self.attended(tokens)) is not None:
            most_B = (attended.sum(1).double() * self.masking.rate).round()  # as masked_positions rounds
            beyond = torch.arange(self.predictions, device=device) >= most_B[:, None]
            chosen = chosen.masked_fill(beyond, 0)  # [CLS], which is never predicted
        positions = chosen.sort(dim=1).values
        originals = tokens.gather(1, positions)
        labels = originals.masked_fill(special.gather(1, positions), IGNORED)

        fate = draw(self.predictions)
        random_tokens = (draw(self.predictions) * self.vocabulary).to(tokens.dtype).clamp_(max=self.vocabulary - 1)
        masked, replaced = self.masking.mask_share, self.masking.mask_share + self.masking.random_share
        corrupted = torch.where(fate < replaced, random_tokens, originals).masked_fill_(fate < masked, self.mask_token)
        corrupted = torch.where(labels == IGNORED, originals, corrupted)
        return MaskedBatch(tokens.scatter(1, positions, corrupted), positions, labels)

    def special(self, tokens: Int[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
        """Return where tokens are special, padding included."""
        return torch.isin(tokens, _on_device(self.special_tokens, tokens.device))

    def attended(self, tokens: Int[Tensor, "B S"]) -> Bool[Tensor, "B S"] | None:
        """Return where tokens are no padding; None if all are."""
        return None if self.padding is None else tokens != self.padding

    def permuted(self, masked: MaskedBatch, generator: torch.Generator) -> Int[Tensor, "B S"]:
        """Permute the visible ordinary tokens of each sequence at random.

        Special tokens and masked positions stay.
        """
        tokens = masked.tokens
        fixed = self.special(tokens).scatter_(1, masked.positions, True)
        keys = torch.rand(tokens.shape, device=tokens.device, generator=generator).masked_fill_(fixed, 1.0)
        targets, sources = (order.argsort(dim=1, stable=True) for order in (fixed.byte(), keys))  # fixed ones last, in order
        return tokens.scatter(1, targets, tokens.gather(1, sources))

    def _chosen(
        self, scores: Float[Tensor, "B S"], tokens: Int[Tensor, "B S"], special: Bool[Tensor, "B S"]
    ) -> Int[Tensor, "B K"]:
        """Return the K positions with the highest scores, special tokens last; with padding, the highest first.

        With whole words, the first piece's score counts for all pieces; ties go to earlier pieces.
        """
        if self.continuing is None:
            return scores.masked_fill_(special, -1.0).topk(self.predictions, dim=1, sorted=self.padding is not None).indices
        begins = ~self.continuing[tokens] | special
        begins[:, 1:] |= special[:, :-1]
        indices_S = torch.arange(tokens.shape[1], device=tokens.device)
        of_words = scores.gather(1, torch.where(begins, indices_S, 0).cummax(1).values).masked_fill_(special, -1.0)
        return of_words.sort(dim=1, descending=True, stable=True).indices[:, : self.predictions]


def _static_draws(
    tokens: Int[Tensor, "B S"], copies_B: Int[Tensor, " B"], seed: int
) -> Callable[[int], Float[Tensor, "B count"]]:
    """Return a function that draws fractions, determined by tokens, copy and seed, by SplitMix64 of a counter."""
    indices_S = torch.arange(tokens.shape[1], device=tokens.device)
    of_text_B = mixed(tokens + indices_S * GOLDEN).sum(1)
    keys_Bx1 = mixed(mixed(of_text_B + seed) + copies_B)[:, None]
    drawn = 0

    def draw(count: int) -> Tensor:
        nonlocal drawn
        counters = torch.arange(drawn, drawn + count, device=tokens.device)
        drawn += count
        bits_Bxcount = shifted(mixed(keys_Bx1 + counters * GOLDEN), 64 - _FRACTION_BITS)
        return bits_Bxcount.float().div_(2**_FRACTION_BITS)

    return draw


@functools.cache
def _on_device(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """Return token ids as a tensor on a device, copied once."""
    return torch.tensor(tokens, device=device)
