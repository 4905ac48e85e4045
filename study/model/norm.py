"""LayerNorm, whose result on a GPU has the precision of the products. Letters: H width."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

EPSILON = 1e-12
"""BERT's, under every LayerNorm."""


class LayerNorm(nn.LayerNorm):
    """LayerNorm of x, or of the sum of x and what a block adds to it, reckoned in fp32 under autocast.

    Under autocast on a GPU the result is rounded to bf16, which the next product would do anyway, so that the residual stream
    of post-norm blocks, and its gradient, is in bf16 too: kernels between the products take as long as their bytes.
    Source: Ba et al. 2016, arXiv:1607.06450.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, eps=EPSILON)

    def forward(
        self, x: Float[Tensor, "*places H"], added: Float[Tensor, "*places H"] | None = None
    ) -> Float[Tensor, "*places H"]:
        """(x - mean) ÷ deviation · weight + bias."""
        rounded = rounds(x)
        if added is not None:
            x = (x.float() if rounded else x) + added
        normed: Tensor = super().forward(x)
        return normed.to(torch.get_autocast_dtype(x.device.type)) if rounded else normed


def rounds(x: Tensor) -> bool:
    """Whether results are rounded to the precision of autocast: on a CPU the conversions take the time that the bytes save."""
    return x.device.type == "cuda" and torch.is_autocast_enabled("cuda")
