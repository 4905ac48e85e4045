"""Embeddings: the sum of token, learned position and segment, normed and projected to the width if narrower.

Letters: B sequences, S tokens, E embedding width, H width.
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from study.counting.architecture import Architecture
from study.model.dropout import Dropout
from study.model.linear import Linear
from study.model.norm import norm


class Embeddings(nn.Module):
    """The sum of the token, position and segment tables, a norm (optional in pre-norm), dropout and projection.

    The projection is ALBERT's (Lan et al. 2020, arXiv:1909.11942, section 3.1): tables of width E, then E → H. The residual
    stream starts in its final precision, the tables' in pre-norm and the norms' in post-norm, so that every layer reads one
    dtype and is compiled once. A generator reads the tables and norm `of` its discriminator (ELECTRA, Clark et al. 2020,
    arXiv:2003.10555, section 3.2), which alone lists them as its weights.
    """

    def __init__(self, architecture: Architecture, dropout: float, of: Embeddings | None = None) -> None:
        super().__init__()
        a = architecture
        width = a.table_width
        self.pre_norm = a.norm == "pre"
        self._of = None if of is None else (of,)  # torch would list the weights of a bare module
        if of is None:
            self.token = nn.Embedding(a.vocabulary, width)
            self.position = nn.Embedding(a.positions, width) if a.position_encoding == "learned" else None
            self.segment = nn.Embedding(a.segments, width) if a.segments else None
            self.norm = norm(a, width) if a.norms_embeddings else nn.Identity()
        self.dropout = Dropout(dropout)
        self.projection = None if width == a.width else Linear(width, a.width, bias=a.biased)

    def forward(self, tokens_BxS: Int[Tensor, "B S"], segments_BxS: Int[Tensor, "B S"] | None = None) -> Float[Tensor, "B S H"]:
        """Embed tokens; without `segments_BxS` all belong to segment 0."""
        tables = self if self._of is None else self._of[0]
        embedded_BxSxE: Tensor = tables.token(tokens_BxS)
        offsets: list[Tensor] = []  # equal for all sequences; summed before broadcasting
        if tables.position is not None:
            offsets.append(tables.position.weight[: tokens_BxS.shape[1]])
        if tables.segment is not None and segments_BxS is not None:
            embedded_BxSxE = embedded_BxSxE + tables.segment(segments_BxS)
        elif tables.segment is not None:
            offsets.append(tables.segment.weight[0])
        if offsets:
            embedded_BxSxE = embedded_BxSxE + functools.reduce(torch.add, offsets)
        normed_BxSxE: Tensor = self.dropout(tables.norm(embedded_BxSxE))
        stream_BxSxH: Tensor = normed_BxSxE if self.projection is None else self.projection(normed_BxSxE)
        return stream_BxSxH.to(embedded_BxSxE.dtype if self.pre_norm else normed_BxSxE.dtype)


def initialise_unit_stream(embeddings: Embeddings) -> None:
    """Draw the projection of narrower tables, if any, with deviation 1/√E.

    The residual stream then starts with the embedding norm's unit variance; weights of deviation 0.02 would reduce it to
    0.0004·E.
    """
    if (projection := embeddings.projection) is not None:
        nn.init.normal_(projection.weight, std=projection.in_features**-0.5)


def initialise(module: nn.Module) -> None:
    """BERT's initialisation of one module: weights normal with deviation 0.02, biases zero, norms one and zero."""
    match module:
        case nn.Linear() | nn.Conv1d():
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        case nn.Embedding():
            nn.init.normal_(module.weight, std=0.02)
        case nn.LayerNorm() | nn.RMSNorm():
            nn.init.ones_(module.weight)
            if (bias := getattr(module, "bias", None)) is not None:
                nn.init.zeros_(bias)


def padding_mask(attended_BxS: Tensor) -> Tensor:
    """A boolean mask over keys, (B, 1, 1, S), that excludes padding."""
    return attended_BxS.to(torch.bool)[:, None, None, :]
