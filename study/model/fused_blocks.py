"""Blocks of BERT's with their gradients written out, for a GPU: torch's products, and between them the kernels of gpu_kernels.

Letters: B sequences, S tokens, A heads, D head width, H width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from study.model import gpu_kernels as kernels
from study.model.autocast import product_dtype
from study.model.encoder import Block, attended
from study.model.linear import Linear, gradient_by_weight
from study.model.norm import EPSILON

Copies = tuple[Tensor, Tensor]
"""Weight and bias of a product in the precision that it runs in."""


def fused_blocks(blocks: Sequence[Block], x_BxSxH: Float[Tensor, "B S H"]) -> Float[Tensor, "B S H"]:
    """What blocks that are BERT's (`is_written_out`) make one after the other of tokens of which none is padding.

    Products run in the precision of autocast, and what is between them is rounded to it; gradients of the weights are summed in
    fp32. Each block gives its result twice, for the product and for the residual sum of the next, so that the two gradients of
    it are added where they are read.
    """
    dtype = product_dtype(x_BxSxH)
    with torch.autocast(x_BxSxH.device.type, enabled=False):
        x_BxSxH = residual_BxSxH = x_BxSxH.to(dtype).contiguous()
        copies = _copies(blocks, dtype)
        for block in blocks:
            x_BxSxH, residual_BxSxH = _fused_block(block, x_BxSxH, residual_BxSxH, copies)
        return x_BxSxH


def _copies(blocks: Sequence[Block], dtype: torch.dtype) -> dict[Linear, Copies]:
    """The weights and biases of all products in the precision of autocast, copied together."""
    layers = [
        layer
        for block in dict.fromkeys(blocks)
        for layer in (
            block.attention.query_key_value,
            block.attention.output,
            block.feed_forward.inner,
            block.feed_forward.outer,
        )
    ]
    parameters = [parameter.detach() for layer in layers for parameter in (layer.weight, layer.bias)]
    copies = [torch.empty_like(parameter, dtype=dtype) for parameter in parameters]
    torch._foreach_copy_(copies, parameters)
    return dict(zip(layers, zip(copies[::2], copies[1::2], strict=True), strict=True))


def _fused_block(block: Block, x_BxSxH: Tensor, residual_BxSxH: Tensor, copies: dict[Linear, Copies]) -> tuple[Tensor, Tensor]:
    """One block, whose product before attention reads x and whose first residual sum `residual_BxSxH`."""
    attention, feed_forward = block.attention, block.feed_forward
    joint, heads = attention.query_key_value, attention.heads
    given = (x_BxSxH, copies[joint], heads, joint.weight, joint.bias)
    attended_BxSxH = (
        _Attention.apply(*given)  # type: ignore[no-untyped-call]
        if kernels.holds_attention(x_BxSxH, heads)
        else _attended(*_Joint.apply(*given))  # type: ignore[no-untyped-call]
    )
    products = (attention.output, feed_forward.inner, feed_forward.outer)
    norms = (block.attention_norm, block.feed_forward_norm)
    y_BxSxH, again_BxSxH = _AfterAttention.apply(  # type: ignore[no-untyped-call]
        residual_BxSxH,
        attended_BxSxH,
        [copies[product] for product in products],
        *(parameter for layer in (*products, *norms) for parameter in (layer.weight, layer.bias)),
    )
    return y_BxSxH, again_BxSxH


def _by_heads(joint: Float[Tensor, "B S 3*A*D"], heads: int) -> tuple[Tensor, ...]:
    """Queries, keys and values, (B, A, S, D) each."""
    batch, length, width = joint.shape
    return joint.view(batch, length, 3, heads, width // 3 // heads).transpose(1, 3).unbind(2)


def attention_of(joint: Float[Tensor, "B S 3*A*D"], heads: int) -> Float[Tensor, "B S A*D"]:
    """Attention of queries, keys and values that lie side by side, by torch's own kernel."""
    return _attended(*_by_heads(joint, heads))


def _attended(query: Tensor, key: Tensor, value: Tensor) -> Float[Tensor, "B S A*D"]:
    """Attention, its heads side by side."""
    return attended(query, key, value, mask=None, dropout=0.0).transpose(1, 2).flatten(2)


class _Joint(torch.autograd.Function):
    """Queries, keys and values, with the product that makes them, whose weight and bias come last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, copies: Copies, heads: int, *_: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, copies[0])
        return _by_heads(F.linear(x, *copies), heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        djoint, of_bias = kernels.joined(*(each.transpose(1, 2).flatten(2).contiguous() for each in gradients))
        return djoint @ weight, None, None, gradient_by_weight(djoint, x), of_bias


class _Attention(torch.autograd.Function):
    """Attention without the product after it, with that before it, whose weight and bias come last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, copies: Copies, heads: int, *_: Tensor) -> Tensor:
        joint = F.linear(x, *copies)
        ctx.save_for_backward(x, copies[0], joint)
        ctx.heads = heads
        return attention_of(joint, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, joint = ctx.saved_tensors
        djoint, of_bias = kernels.attention_gradient(joint, dy.contiguous(), ctx.heads)
        return djoint @ weight, None, None, gradient_by_weight(djoint, x), of_bias


class _AfterAttention(torch.autograd.Function):
    """A block from the product after attention on, to whose result `x` is added; it gives its own result twice.

    The parameters are those of the three products, of which it reads the copies, and of the two norms.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, attended: Tensor, copies: list[Copies], *parameters: Tensor) -> tuple[Tensor, Tensor]:
        output, inner, outer = copies
        *_, first_norm, first_bias, last_norm, last_bias = parameters
        mixed = F.linear(attended, *output)
        middle = kernels.add_norm(x, mixed, first_norm, first_bias, EPSILON)
        before = F.linear(middle.y, *inner)
        activated = kernels.gelu(before)
        fed = F.linear(activated, *outer)
        last = kernels.add_norm(middle.y, fed, last_norm, last_bias, EPSILON)
        weights = (output[0], inner[0], outer[0], first_norm, last_norm)
        ctx.save_for_backward(x, attended, mixed, *middle, before, activated, fed, last.mean, last.scale, *weights)
        ctx.set_materialize_grads(False)
        return last.y, last.y.view_as(last.y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, again: Tensor | None) -> tuple[Tensor | None, ...]:
        x, attended, mixed, middle, middle_mean, middle_scale, before, activated, fed, last_mean, last_scale, *weights = (
            ctx.saved_tensors
        )
        output, inner, outer, first_norm, last_norm = weights
        again = None if again is None else again.contiguous()
        of_last = kernels.add_norm_gradient(dy.contiguous(), again, middle, fed, last_norm, last_mean, last_scale)
        dbefore, of_inner_bias = kernels.gelu_gradient(of_last.dx @ outer, before)
        of_first = kernels.add_norm_gradient(dbefore @ inner, of_last.dx, x, mixed, first_norm, middle_mean, middle_scale)
        return (
            of_first.dx,
            of_first.dx @ output,
            None,
            gradient_by_weight(of_first.dx, attended),
            of_first.sums,
            gradient_by_weight(dbefore, middle),
            of_inner_bias,
            gradient_by_weight(of_last.dx, activated),
            of_last.sums,
            of_first.dweight,
            of_first.dbias,
            of_last.dweight,
            of_last.dbias,
        )
