"""Embeddings: the sum of token, learned position and segment, normed and projected to the width if narrower.

Letters: B sequences, S tokens, E embedding width, H width, D the width of the sum.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from study.counting.architecture import Architecture
from study.model.dropout import Dropout
from study.model.linear import Linear
from study.model.norm import Affine, norm


class Embeddings(nn.Module):
    """The sum of the token, position and segment tables, a norm (optional in pre-norm), dropout and projection.

    The projection is ALBERT's (Lan et al. 2020, arXiv:1909.11942, section 3.1): tables of width E, then E → H. That of trigrams
    reads the next, this and the previous token, 3E → H, zeros at padding and beyond the ends, and precedes the sum, whose other
    tables then have width H (MobileBERT, Sun et al. 2020, arXiv:2004.02984, section 3.1). The residual
    stream starts in its final precision, the tables' in pre-norm and the norms' in post-norm, so that every layer reads one
    dtype and is compiled once. A generator reads the tables and norm `of` its discriminator (ELECTRA, Clark et al. 2020,
    arXiv:2003.10555, section 3.2), which alone lists them as its weights.
    """

    def __init__(self, architecture: Architecture, dropout: float, of: Embeddings | None = None) -> None:
        super().__init__()
        a = architecture
        width = a.summed_width
        self.pre_norm, self.trigrams = a.norm == "pre", a.trigram_embedding
        self._of = None if of is None else (of,)  # torch would list the weights of a bare module
        if of is None:
            self.token = nn.Embedding(a.vocabulary, a.table_width)
            self.position = nn.Embedding(a.positions, width) if a.position_encoding == "learned" else None
            self.segment = nn.Embedding(a.segments, width) if a.segments else None
            self.norm = norm(a, width) if a.norms_embeddings else nn.Identity()
        self.dropout = Dropout(dropout)
        read = a.table_width * (3 if a.trigram_embedding else 1)
        self.projection = None if read == a.width and not a.trigram_embedding else Linear(read, a.width, bias=a.biased)

    def forward(
        self,
        tokens_BxS: Int[Tensor, "B S"],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B S H"]:
        """Embed tokens; without `segments_BxS` all belong to segment 0."""
        tables = self if self._of is None else self._of[0]
        embedded_BxSxD: Tensor = tables.token(tokens_BxS)
        if self.trigrams and self.projection is not None:
            embedded_BxSxD = self.projection(trigrams(embedded_BxSxD, attended_BxS))
        offsets: list[Tensor] = []  # equal for all sequences; summed before broadcasting
        if tables.position is not None:
            offsets.append(tables.position.weight[: tokens_BxS.shape[1]])
        if tables.segment is not None and segments_BxS is not None:
            embedded_BxSxD = embedded_BxSxD + tables.segment(segments_BxS)
        elif tables.segment is not None:
            offsets.append(tables.segment.weight[0])
        if offsets:
            embedded_BxSxD = embedded_BxSxD + functools.reduce(torch.add, offsets)
        normed_BxSxD: Tensor = self.dropout(tables.norm(embedded_BxSxD))
        last = None if self.trigrams else self.projection
        stream_BxSxH: Tensor = normed_BxSxD if last is None else last(normed_BxSxD)
        return stream_BxSxH.to(embedded_BxSxD.dtype if self.pre_norm else normed_BxSxD.dtype)


def trigrams(x_BxSxE: Float[Tensor, "B S E"], attended_BxS: Bool[Tensor, "B S"] | None) -> Float[Tensor, "B S 3*E"]:
    """The embeddings of the next, this and the previous token of each, zeros at padding and beyond the ends."""
    seen_BxSxE = x_BxSxE if attended_BxS is None else x_BxSxE * attended_BxS[..., None]
    return torch.cat((F.pad(seen_BxSxE[:, 1:], (0, 0, 0, 1)), seen_BxSxE, F.pad(seen_BxSxE[:, :-1], (0, 0, 1, 0))), -1)


def initialise_unit_stream(embeddings: Embeddings) -> None:
    """Draw the projection of narrower tables, if any, with deviation 1/√E.

    The residual stream then starts with the embedding norm's unit variance; weights of deviation 0.02 would reduce it to
    0.0004·E. The projection of trigrams precedes the norm, and stays.
    """
    if (projection := embeddings.projection) is not None and not embeddings.trigrams:
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
        case nn.LayerNorm() | nn.RMSNorm() | Affine():
            nn.init.ones_(module.weight)
            if (bias := getattr(module, "bias", None)) is not None:
                nn.init.zeros_(bias)


def padding_mask(attended_BxS: Tensor) -> Tensor:
    """A boolean mask over keys, (B, 1, 1, S), that excludes padding."""
    return attended_BxS.to(torch.bool)[:, None, None, :]
