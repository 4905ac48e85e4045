"""Linear layers with products by oneDNN on a CPU, or aligned for a GPU. Letters: H inputs, F outputs.

MKL, torch's default for fp32 on a CPU, is fast only on Intel processors. On an AMD EPYC oneDNN computed x·Wᵀ 1.35 times and the
gradient by x 1.3 times as fast. MKL stays faster for the gradient by W, except for a decoder (more outputs than input rows),
and on EPYCs from Zen 5 on (oneDNN 200 GFLOP/s a core, MKL 100).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from study.base.machine import processor_line

LEAST_PRODUCTS = 2**25
"""The fewest multiplications for which oneDNN pays; calling it takes torch some 0.1 ms longer."""

ZEN_5 = 26
"""The CPU family of Zen 5."""

ALIGNED = 8
"""The outputs of a product on a GPU are a multiple of this, 16 bytes in bf16."""


class Linear(nn.Linear):
    """`nn.Linear`; if `onednn` is set, oneDNN computes large fp32 products on a CPU outside autocast.

    The two differ in the last bits. `rounded`, if set, computes all products instead (study.model.rounding). `matrices` counts
    the equally sized matrices that the weight stacks.
    """

    onednn = False
    rounded: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None
    matrices = 1

    def forward(self, x: Float[Tensor, "*positions H"]) -> Float[Tensor, "*positions F"]:
        """x·Wᵀ + b."""
        return self.multiply(x, self.weight, self.bias)

    def multiply(
        self, x: Float[Tensor, "*positions H"], weight_FxH: Float[Tensor, "F H"], bias_F: Float[Tensor, " F"] | None
    ) -> Float[Tensor, "*positions F"]:
        """x·Wᵀ + b by this layer's kernel with other weights, such as a tied decoder's."""
        if self.rounded is not None:
            return self.rounded(x, weight_FxH, bias_F)
        if self.onednn and _applies(x, weight_FxH):
            product: Tensor = _Product.apply(x, weight_FxH, bias_F)  # type: ignore[no-untyped-call]
            return product
        if x.device.type == "cuda" and torch.compiler.is_compiling():
            return aligned_product(x, weight_FxH, bias_F)
        return F.linear(x, weight_FxH, bias_F)


def multiply_through_onednn(module: nn.Module) -> None:
    """Let oneDNN compute the products of every layer of a module."""
    for layer in module.modules():
        if isinstance(layer, Linear):
            layer.onednn = True


def _applies(x: Tensor, weight: Tensor) -> bool:
    on_cpu = x.device.type == weight.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return on_cpu and x.dtype == weight.dtype == torch.float32 and x.numel() * len(weight) >= LEAST_PRODUCTS


def aligned_outputs(outputs: int) -> int:
    """The next multiple of ALIGNED."""
    return outputs + -outputs % ALIGNED


def aligned_product(
    x: Float[Tensor, "*positions H"], weight_FxH: Float[Tensor, "F H"], bias_F: Float[Tensor, " F"] | None
) -> Float[Tensor, "*positions F"]:
    """x·Wᵀ + b, with W and b zero-padded to `aligned_outputs`, and the padding cut off.

    cuBLAS's Hopper kernels need rows of multiples of 16 bytes, unlike logits over BERT's 30,522 word pieces. Fused with the
    bf16 copy of W and the gradient of the logits, the zeros cost nothing.
    """
    if missing := aligned_outputs(len(weight_FxH)) - len(weight_FxH):
        filled = None if bias_F is None else F.pad(bias_F, (0, missing))
        return F.linear(x, F.pad(weight_FxH, (0, 0, 0, missing)), filled)[..., : len(weight_FxH)]
    return F.linear(x, weight_FxH, bias_F)


def gradient_by_weight(gradient: Float[Tensor, "*positions F"], x: Float[Tensor, "*positions H"]) -> Float[Tensor, "F H"]:
    """The gradient of x·Wᵀ by W, in fp32, the precision of a GPU's sums."""
    rows, inputs = gradient.flatten(0, -2), x.flatten(0, -2)
    if rows.dtype == torch.float32:
        return rows.t() @ inputs
    return torch.mm(rows.t(), inputs, out_dtype=torch.float32)


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x·Wᵀ + b; torch 2.13's kernel takes any strides of x and W, but assumes a contiguous bias."""
    dense = None if bias is None else bias.contiguous()
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, dense, "none", [], "")
    return product


class _Product(torch.autograd.Function):
    """x·Wᵀ + b, differentiable once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        return (
            onednn_product(rows, weight.t(), None).view(x.shape) if of_x else None,
            _of_weight(rows, x.reshape(-1, x.shape[-1])) if of_weight else None,
            rows.new_ones(len(rows)) @ rows if of_bias else None,
        )


def _of_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """The gradient by W, by the faster library: for BERT's decoder oneDNN was 1.1 to 1.6 times as fast as MKL.

    oneDNN is faster with the shorter side first: by a quarter, if the sides differ fourfold.
    """
    (rows, outputs), inputs = gradient.shape, x.shape[1]
    if outputs <= rows and not mkl_is_half_as_fast():
        return gradient.t() @ x
    if outputs < inputs:
        return onednn_product(gradient.t(), x.t(), None)
    return onednn_product(x.t(), gradient.t(), None).t().contiguous()


@functools.cache
def mkl_is_half_as_fast() -> bool:
    """Whether oneDNN multiplies twice as fast as MKL: on AMD processors with full AVX-512 units, from Zen 5 on."""
    family = processor_line("cpu family")
    return processor_line("vendor_id") == "AuthenticAMD" and family is not None and int(family) >= ZEN_5
