"""Attention to relative positions: a bias of the scores by distance, and disentangled attention (DeBERTa).

Letters: B sequences, S tokens or keys, K query positions, A heads, D head width, H width, T distances, R relative positions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from study.counting.architecture import Architecture
from study.model.layers import Dropout, norm

SCORES = 3
"""The products that make a score: content to content, content to position, position to content."""


class DistanceBias(nn.Module):
    """A bias for each head and signed distance between query and key.

    Distances beyond the reach M share the bias at M in their direction. Learned biases form one vector of A·(2M + 1), so that
    weight decay and other rules for matrices exclude them.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.heads, self.reach = architecture.heads, architecture.biased_distances // 2
        distances = torch.arange(-self.reach, self.reach + 1)
        if architecture.distance_bias == "learned":
            self.numbers: Tensor = nn.Parameter(local_bias(self.heads, distances).flatten())
        else:
            self.register_buffer("numbers", linear_bias(self.heads, distances).flatten(), persistent=False)

    def forward(self, length: int, positions_BxK: Int[Tensor, "B K"] | None = None) -> Float[Tensor, "#B A K S"]:
        """Return the bias of all scores, (1, A, S, S), or with queries at some positions only, (B, A, K, S)."""
        distances = torch.arange(1 - length, length, device=self.numbers.device).clamp(-self.reach, self.reach)
        by_distance = self.numbers.view(self.heads, -1).index_select(1, distances + self.reach)
        windows_AxSxS = by_distance.unfold(1, length, 1)  # the last query comes first
        if positions_BxK is None:
            return windows_AxSxS.flip(1)[None]
        rows = windows_AxSxS.index_select(1, (length - 1 - positions_BxK).flatten())
        return rows.view(self.heads, *positions_BxK.shape, length).transpose(0, 1)


def local_bias(heads: int, distances: Int[Tensor, " T"]) -> Float[Tensor, "A T"]:
    """−3 · ln(1 + |distance − o|), with offsets o of −1, 1, −2, 2 and so on for the heads.

    Initial attention is a power law around one neighbour per head, proportional to (1 + |distance − o|)^−3; that neighbour gets
    0.7. Heads see word order from the first step on, and differ from each other.
    """
    head = torch.arange(heads, device=distances.device)
    offsets = (head // 2 + 1) * (2 * (head % 2) - 1)
    return -3.0 * torch.log1p((distances - offsets[:, None]).abs().float())


def linear_bias(heads: int, distances: Int[Tensor, " T"]) -> Float[Tensor, "A T"]:
    """−slope · |distance|, with ALiBi's slopes, the same in both directions.

    They are 2^(−8h/A) for heads h from 1 to A if A is a power of two, else those of the power below, then every other slope of
    the power above. Source: Press et al. 2022, arXiv:2108.12409, section 3, and its code; for encoders MosaicBERT, Portes et
    al. 2023, arXiv:2312.17482.
    """
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    slopes += [2.0 ** (-8 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)][: heads - power]
    return -torch.tensor(slopes)[:, None] * distances.abs()


class Relative(NamedTuple):
    """The rows of the table of relative positions in use, and the row of each pair of query and key."""

    rows: Float[Tensor, "R H"]
    row_of_pair: Int[Tensor, "*batch K S"]

    def at(self, positions_BxK: Int[Tensor, "B K"]) -> Relative:
        """Return the same for queries at some positions."""
        return Relative(self.rows, self.row_of_pair[positions_BxK])


class RelativePositions(nn.Module):
    """The table of R relative positions that all layers read, normed in DeBERTa v2 and v3."""

    def __init__(self, architecture: Architecture, dropout: float) -> None:
        super().__init__()
        a = architecture
        self.span, self.reach, self.shared = a.relative_positions // 2, a.relative_reach, a.position_encoding.endswith("shared")
        self.table = nn.Embedding(a.relative_positions, a.width)
        self.norm = norm(a, a.width) if self.shared else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, length: int) -> Relative:
        """Return the rows that sequences of a length read; DeBERTa v1 projects only these."""
        rows, span = self.table.weight, self.span
        if not self.shared and length < span:
            rows, span = rows[span - length : span + length], length
        positions = torch.arange(length, device=rows.device)
        distances = positions[:, None] - positions
        if self.reach is not None:
            distances = log_buckets(distances, self.span, self.reach)
        return Relative(self.dropout(self.norm(rows)), (distances + span).clamp(0, 2 * span - 1))


def log_buckets(distances: Int[Tensor, "*S"], buckets: int, reach: int) -> Int[Tensor, "*S"]:
    """Signed buckets: distances up to m = ⌊buckets/2⌋ alone, longer ones d in m + ⌈(m − 1)·ln(d/m) / ln((reach − 1)/m)⌉."""
    middle = buckets // 2
    far = distances.abs().clamp_min(middle).float() / middle
    logarithmic = torch.ceil(far.log() / math.log((reach - 1) / middle) * (middle - 1)).long() + middle
    return torch.where(distances.abs() <= middle, distances, logarithmic * distances.sign())


def relative_scores(
    query_BxKxAxD: Float[Tensor, "B K A D"],
    key_BxSxAxD: Float[Tensor, "B S A D"],
    position_query_RxAxD: Float[Tensor, "R A D"],
    position_key_RxAxD: Float[Tensor, "R A D"],
    index: Int[Tensor, "*batch K S"],
) -> Float[Tensor, "B A K S"]:
    """(query · relative key + key · relative query) / √(3·D)."""
    scores_AxBxKxS = _at_rows(query_BxKxAxD, position_key_RxAxD, index)
    scores_AxBxKxS += _at_rows(key_BxSxAxD, position_query_RxAxD, index.mT).mT
    scores_AxBxKxS *= (SCORES * key_BxSxAxD.shape[-1]) ** -0.5
    return scores_AxBxKxS.transpose(0, 1)


def _at_rows(
    x_BxKxAxD: Float[Tensor, "B K A D"], positions_RxAxD: Float[Tensor, "R A D"], index: Int[Tensor, "*batch K S"]
) -> Float[Tensor, "A B K S"]:
    """Products of each token's x with the relative positions at `index`."""
    batch, length, heads, _ = x_BxKxAxD.shape
    x_AxNxD = x_BxKxAxD.permute(2, 0, 1, 3).flatten(1, 2)
    products_AxBxKxR = torch.bmm(x_AxNxD, positions_RxAxD.permute(1, 2, 0)).view(heads, batch, length, -1)
    at_rows: Tensor = _Gathered.apply(products_AxBxKxR, index.expand(heads, batch, *index.shape[-2:]))  # type: ignore[no-untyped-call]
    return at_rows


class _Gathered(torch.autograd.Function):
    """x.gather(-1, index); torch's own keeps all of x for the backward pass, R/S times what it returns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = x.shape[-1]
        return x.gather(-1, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return gradient.new_zeros(*index.shape[:-1], ctx.rows).scatter_add_(-1, index, gradient), None


class Convolution(nn.Module):
    """A convolution of the embeddings beside the first block: norm(block + GELU(convolution)).

    As in the large encoders of DeBERTa v2.
    """

    def __init__(self, architecture: Architecture, dropout: float) -> None:
        super().__init__()
        a = architecture
        self.product = nn.Conv1d(a.width, a.width, a.convolution_kernel, padding=(a.convolution_kernel - 1) // 2, bias=a.biased)
        self.norm = norm(a, a.width)
        self.dropout = Dropout(dropout)

    def forward(
        self, embedded: Float[Tensor, "B S H"], block: Float[Tensor, "B S H"], attended_BxS: Bool[Tensor, "B S"] | None
    ) -> Float[Tensor, "B S H"]:
        """Return the sum at every token; padding is read as zeros."""
        seen = embedded if attended_BxS is None else embedded * attended_BxS[..., None]
        normed: Tensor = self.norm(block, F.gelu(self.dropout(self.product(seen.mT).mT)))
        return normed
