"""The distance bias of attention scores. Letters: B sequences, S tokens, K query positions, A heads."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from study.counting.architecture import Architecture


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
        """The bias of all scores, (1, A, S, S), or with queries at some positions only, (B, A, K, S)."""
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
