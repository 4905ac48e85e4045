"""The norms of an encoder. Letters: H width."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from study.counting.architecture import Architecture

EPSILON = 1e-12
"""BERT's epsilon, that of the kernels."""


class _Norm(nn.Module):
    """A norm of x, or of x plus a block's output, computed in fp32 under autocast.

    On a GPU autocast also rounds the result to bf16, as the next product would. Post-norm's residual stream and its gradient
    are then bf16 too, and memory-bound kernels between products take half the time.
    """

    def forward(
        self, x: Float[Tensor, "*positions H"], added: Float[Tensor, "*positions H"] | None = None
    ) -> Float[Tensor, "*positions H"]:
        rounded = rounds(x)
        x = x.float() if rounded else x
        if added is not None:
            x = x + added
        normed: Tensor = super().forward(x)
        return normed.to(torch.get_autocast_dtype(x.device.type)) if rounded else normed


class LayerNorm(_Norm, nn.LayerNorm):
    """(x − mean) ÷ deviation · weight + bias. Source: Ba et al. 2016, arXiv:1607.06450."""


class RMSNorm(_Norm, nn.RMSNorm):
    """x ÷ √(mean of x²) · weight. Source: Zhang and Sennrich 2019, arXiv:1910.07467."""

    def forward(
        self, x: Float[Tensor, "*positions H"], added: Float[Tensor, "*positions H"] | None = None
    ) -> Float[Tensor, "*positions H"]:
        """The norm of x, or of x + `added`, in the weight's precision, for which torch has a fused kernel."""
        return super().forward(x.to(self.weight.dtype), added)


class _Affine(nn.Module):
    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Float[Tensor, "*positions H"]) -> Float[Tensor, "*positions H"]:
        return x * self.weight if self.bias is None else torch.addcmul(self.bias, x, self.weight)


class Affine(_Norm, _Affine):
    """x · weight + bias, without normalising. Source: Sun et al. 2020, arXiv:2004.02984, section 3.2, equation 1."""


def norm(architecture: Architecture, width: int, normalises: bool = False) -> LayerNorm | RMSNorm | Affine:
    """A norm of an architecture's kind; where it must normalise, a LayerNorm stands in for an affine map."""
    if architecture.norm_kind == "rms":
        return RMSNorm(width, eps=architecture.norm_epsilon)
    if architecture.norm_kind == "affine" and not normalises:
        return Affine(width, architecture.norm_bias)
    return LayerNorm(width, eps=architecture.norm_epsilon, bias=architecture.norm_bias)


def rounds(x: Tensor) -> bool:
    """Whether results are rounded to autocast's precision; on a CPU conversion costs as much as it saves."""
    return x.device.type == "cuda" and torch.is_autocast_enabled("cuda")
