"""The bias by distance that attention adds to its scores. Letters: B sequences, S tokens, K positions of them, A heads."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from study.counting.architecture import Architecture


class DistanceBias(nn.Module):
    """A number for each head and signed distance between a query and a key, whatever the tokens are.

    Distances beyond the reach M share the number of the farthest in their direction. Learned numbers are one vector, A times
    2M + 1, so that whatever treats vectors unlike matrices, as weight decay does, takes them for the biases that they are.
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
        """What is added to the scores of so many tokens, (1, A, S, S), or of some as queries, (B, A, K, S)."""
        distances = torch.arange(1 - length, length, device=self.numbers.device).clamp(-self.reach, self.reach)
        by_distance = self.numbers.view(self.heads, -1).index_select(1, distances + self.reach)
        windows_AxSxS = by_distance.unfold(1, length, 1)  # the last token as query comes first
        if positions_BxK is None:
            return windows_AxSxS.flip(1)[None]
        rows = windows_AxSxS.index_select(1, (length - 1 - positions_BxK).flatten())
        return rows.view(self.heads, *positions_BxK.shape, length).transpose(0, 1)


def local_bias(heads: int, distances: Int[Tensor, " T"]) -> Float[Tensor, "A T"]:
    """−3 · ln(1 + |distance − o|), where the offsets o of the heads are −1, 1, −2, 2 and so on.

    Attention so begins as a power law around one neighbour a head, (1 + |distance − o|)^−3 but for a factor, which leaves that
    neighbour 0.7 of it: word order is there to be read from the first step on, by heads that begin apart.
    """
    head = torch.arange(heads, device=distances.device)
    offsets = (head // 2 + 1) * (2 * (head % 2) - 1)
    return -3.0 * torch.log1p((distances - offsets[:, None]).abs().float())


def linear_bias(heads: int, distances: Int[Tensor, " T"]) -> Float[Tensor, "A T"]:
    """−slope · |distance|, with the slopes of ALiBi.

    They are 2^(−8h/A) for the heads h from 1 to A, where A is a power of two; of another A those of the power below, and every
    other one of the power above for the rest. Both directions are alike, as in an encoder. Source: Press et al. 2022,
    arXiv:2108.12409, section 3, and the code there; MosaicBERT, Portes et al. 2023, arXiv:2312.17482.
    """
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    slopes += [2.0 ** (-8 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)][: heads - power]
    return -torch.tensor(slopes)[:, None] * distances.abs()
