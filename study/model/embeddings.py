"""Embeddings of BERT: token, position if learned, and segment, summed and normed. Letters: B sequences, S tokens, H width."""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from study.architecture import Architecture
from study.model.dropout import Dropout
from study.model.norm import LayerNorm


class Embeddings(nn.Module):
    """Sum of the token, position and segment tables, LayerNorm (post-norm only) and dropout."""

    def __init__(self, architecture: Architecture, dropout: float) -> None:
        super().__init__()
        a = architecture
        self.token = nn.Embedding(a.vocabulary, a.width)
        self.position = nn.Embedding(a.positions, a.width) if a.position_encoding == "learned" else None
        self.segment = nn.Embedding(a.segments, a.width) if a.segments else None
        self.norm = LayerNorm(a.width) if a.norm == "post" else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, tokens_BxS: Int[Tensor, "B S"], segments_BxS: Int[Tensor, "B S"] | None = None) -> Float[Tensor, "B S H"]:
        """Embed tokens; without `segments_BxS` all belong to segment 0."""
        embedded_BxSxH: Tensor = self.token(tokens_BxS)
        offsets: list[Tensor] = []  # what every sequence gets alike, summed before it is spread over them
        if self.position is not None:
            offsets.append(self.position.weight[: tokens_BxS.shape[1]])
        if self.segment is not None and segments_BxS is not None:
            embedded_BxSxH = embedded_BxSxH + self.segment(segments_BxS)
        elif self.segment is not None:
            offsets.append(self.segment.weight[0])
        if offsets:
            embedded_BxSxH = embedded_BxSxH + functools.reduce(torch.add, offsets)
        normed: Tensor = self.dropout(self.norm(embedded_BxSxH))
        return normed


def initialise(module: nn.Module) -> None:
    """BERT's initialisation of one module: weights normal with deviation 0.02, biases zero, norms one and zero."""
    match module:
        case nn.Linear():
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        case nn.Embedding():
            nn.init.normal_(module.weight, std=0.02)
        case nn.LayerNorm():
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def padding_mask(attended_BxS: Tensor) -> Tensor:
    """A boolean mask over keys, (B, 1, 1, S), from the tokens that are not padding."""
    return attended_BxS.to(torch.bool)[:, None, None, :]
