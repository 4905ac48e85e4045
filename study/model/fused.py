"""BERT's blocks and the loss with explicit gradients for a GPU: torch's products, and gpu_kernels between them.

Letters: B sequences, S tokens, K positions of them, N positions, A heads, D head width, H width, E embedding width (of rotary
positions, D/2), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from study.data.masking import IGNORED
from study.model import gpu_kernels as kernels
from study.model.encoder import Block, at_positions, attended, rows_at
from study.model.layers import NORM_EPSILON, aligned_outputs, gradient_by_weight, product_dtype
from study.model.masked_language_model import MaskedLanguageModel

Copies = dict[Tensor, Tensor]
"""Parameters with their copies in the products' precision."""


def fused_blocks(
    blocks: Sequence[Block],
    x_BxSxH: Float[Tensor, "B S H"],
    rotary_2xSxE: Float[Tensor, "2 S E"] | None,
    positions_BxK: Int[Tensor, "B K"] | None,
) -> Float[Tensor, "B K H"]:
    """Run BERT's blocks (`has_fused_kernels`) on tokens without padding, the last block at some positions if given.

    Products and the tensors between them have autocast's precision; weight gradients accumulate in fp32. Each block returns its
    result twice, for the next product and residual sum, so that its two gradients are added on reading.
    """
    dtype = product_dtype(x_BxSxH)
    with torch.autocast(x_BxSxH.device.type, enabled=False):
        x_BxSxH = residual_BxSxH = x_BxSxH.to(dtype).contiguous()
        copies, rotary = _copies(blocks, dtype), None if rotary_2xSxE is None else rotary_2xSxE.contiguous()
        *earlier, last = blocks
        for block in earlier:
            x_BxSxH, residual_BxSxH = _fused_block(block, x_BxSxH, residual_BxSxH, copies, rotary)
        if positions_BxK is None:
            y_BxKxH, _ = _fused_block(last, x_BxSxH, residual_BxSxH, copies, rotary)
        else:
            y_BxKxH = _fused_block_at(last, x_BxSxH, positions_BxK, copies, rotary)
        return y_BxKxH


def _copies(blocks: Sequence[Block], dtype: torch.dtype) -> Copies:
    """Copy, in autocast's precision, all product weights, and the biases that no norm adds."""
    parameters = [
        parameter
        for block in dict.fromkeys(blocks)
        for parameter in (
            block.attention.query_key_value.weight,
            block.attention.query_key_value.bias,
            block.attention.output.weight,
            block.feed_forward.inner.weight,
            block.feed_forward.inner.bias,
            block.feed_forward.outer.weight,
        )
    ]
    copies = [torch.empty_like(parameter, dtype=dtype) for parameter in parameters]
    torch._foreach_copy_(copies, [parameter.detach() for parameter in parameters])
    return dict(zip(parameters, copies, strict=True))


def _fused_block(
    block: Block, x_BxSxH: Tensor, residual_BxSxH: Tensor, copies: Copies, rotary_2xSxE: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One block, whose attention reads x and whose first residual sum reads `residual_BxSxH`."""
    attention = block.attention
    joint, heads, distances = attention.query_key_value, attention.heads, attention.distance_bias
    if rotary_2xSxE is None and distances is None and kernels.holds_attention(x_BxSxH, heads):
        attended_BxSxH = _Attention.apply(x_BxSxH, copies, heads, joint.weight, joint.bias)  # type: ignore[no-untyped-call]
    else:
        query, key, value = _Joint.apply(  # type: ignore[no-untyped-call]
            x_BxSxH, rotary_2xSxE, copies, heads, joint.weight, joint.bias
        )
        attended_BxSxH = _attended(query, key, value, None if distances is None else distances(x_BxSxH.shape[1]))
    return _after_attention(block, residual_BxSxH, attended_BxSxH, copies)


def _fused_block_at(
    block: Block, x_BxSxH: Tensor, positions_BxK: Tensor, copies: Copies, rotary_2xSxE: Tensor | None
) -> Tensor:
    attention = block.attention
    joint, distances = attention.query_key_value, attention.distance_bias
    at_BxKxH, query, key, value = _JointAt.apply(  # type: ignore[no-untyped-call]
        x_BxSxH, positions_BxK, rotary_2xSxE, copies, attention.heads, joint.weight, joint.bias
    )
    bias = None if distances is None else distances(x_BxSxH.shape[1], positions_BxK)
    y_BxKxH, _ = _after_attention(block, at_BxKxH, _attended(query, key, value, bias), copies)
    return y_BxKxH


def _after_attention(block: Block, x: Tensor, attended: Tensor, copies: Copies) -> tuple[Tensor, Tensor]:
    products = (block.attention.output, block.feed_forward.inner, block.feed_forward.outer)
    norms = (block.attention_norm, block.feed_forward_norm)
    y, again = _AfterAttention.apply(  # type: ignore[no-untyped-call]
        x,
        attended,
        copies,
        *(parameter for layer in (*products, *norms) for parameter in (layer.weight, layer.bias)),
    )
    return y, again


def _by_heads(joint: Float[Tensor, "B S parts*A*D"], heads: int, parts: int = 3) -> tuple[Tensor, ...]:
    """Return queries, keys and values, or some of them, (B, A, S, D) each."""
    batch, length, width = joint.shape
    return joint.view(batch, length, parts, heads, width // parts // heads).transpose(1, 3).unbind(2)


def _side_by_side(by_heads: Float[Tensor, "B A S D"]) -> Float[Tensor, "B S A*D"]:
    return by_heads.transpose(1, 2).flatten(2)


def attention_of(joint: Float[Tensor, "B S 3*A*D"], heads: int) -> Float[Tensor, "B S A*D"]:
    """Attention of stacked queries, keys and values, by torch's kernel."""
    return _attended(*_by_heads(joint, heads))


def _attended(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Float[Tensor, "B S A*D"]:
    return _side_by_side(attended(query, key, value, mask=None, dropout=0.0, bias=bias))


class _Joint(torch.autograd.Function):
    """The product before attention, by heads, with rotary positions if given; its weight and bias come last.

    The gradients by queries and keys are rotated back in place, so nothing else may read them.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rotary: Tensor | None, copies: Copies, heads: int, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, rotary, copies[weight])
        ctx.heads = heads
        joint = F.linear(x, copies[weight], copies[bias])
        if rotary is not None:
            kernels.rotate(joint, rotary, 2 * heads)
        return _by_heads(joint, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, rotary, weight = ctx.saved_tensors
        dquery, dkey, dvalue = (_side_by_side(each).contiguous() for each in gradients)
        if rotary is not None:
            kernels.rotate(dquery, rotary, ctx.heads, back=True)
            kernels.rotate(dkey, rotary, ctx.heads, back=True)
        djoint, of_bias = kernels.joined(dquery, dkey, dvalue)
        return djoint @ weight, None, None, None, gradient_by_weight(djoint, x), of_bias


class _JointAt(torch.autograd.Function):
    """`_Joint` with queries at some positions only; also returns the residual stream there."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, positions: Tensor, rotary: Tensor | None, copies: Copies, heads: int, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        (weight, bias), width = (copies[parameter] for parameter in parameters), x.shape[-1]
        at = at_positions(x, positions)
        rotary_at = None if rotary is None else rotary[:, positions.flatten()]
        ctx.save_for_backward(x, positions, at, rotary, rotary_at, weight)
        ctx.heads = heads
        query = F.linear(at, weight[:width], bias[:width])
        key_and_value = F.linear(x, weight[width:], bias[width:])
        if rotary is not None and rotary_at is not None:
            kernels.rotate(query, rotary_at, heads)
            kernels.rotate(key_and_value, rotary, heads)
        return at, *_by_heads(query, heads, parts=1), *_by_heads(key_and_value, heads, parts=2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_at: Tensor, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, positions, at, rotary, rotary_at, weight = ctx.saved_tensors
        _, length, width = x.shape
        dquery, *parts = (_side_by_side(each).contiguous() for each in gradients)
        if rotary is not None:
            kernels.rotate(dquery, rotary_at, ctx.heads, back=True)
            kernels.rotate(parts[0], rotary, ctx.heads, back=True)
        dkey_and_value, of_other_biases = kernels.joined(*parts)
        dx = dkey_and_value @ weight[width:]
        dx.flatten(0, 1).index_add_(0, rows_at(positions, length), (of_at + dquery @ weight[:width]).flatten(0, 1))
        of_weight = torch.cat((gradient_by_weight(dquery, at), gradient_by_weight(dkey_and_value, x)))
        of_bias = torch.cat((dquery.sum((0, 1), dtype=torch.float32), of_other_biases))
        return dx, None, None, None, None, of_weight, of_bias


class _Attention(torch.autograd.Function):
    """Attention and the product before it, whose weight and bias come last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, copies: Copies, heads: int, weight: Tensor, bias: Tensor) -> Tensor:
        joint = F.linear(x, copies[weight], copies[bias])
        ctx.save_for_backward(x, copies[weight], joint)
        ctx.heads = heads
        return attention_of(joint, heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, joint = ctx.saved_tensors
        djoint, of_bias = kernels.attention_gradient(joint, dy.contiguous(), ctx.heads)
        return djoint @ weight, None, None, gradient_by_weight(djoint, x), of_bias


class _AfterAttention(torch.autograd.Function):
    """A block after its attention, whose product is added to `x`; returns its result twice.

    The parameters are those of the three products and two norms; a norm adds the preceding product's bias.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, attended: Tensor, copies: Copies, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        output, output_bias, inner, inner_bias, outer, outer_bias, first_norm, first_bias, last_norm, last_bias = parameters
        mixed = F.linear(attended, copies[output])
        middle = kernels.add_norm(x, mixed, output_bias, first_norm, first_bias, NORM_EPSILON)
        before = F.linear(middle.y, copies[inner], copies[inner_bias])
        activated = kernels.gelu(before)
        fed = F.linear(activated, copies[outer])
        last = kernels.add_norm(middle.y, fed, outer_bias, last_norm, last_bias, NORM_EPSILON)
        for_first = (x, mixed, output_bias, first_norm, middle.mean, middle.scale)
        for_last = (middle.y, fed, outer_bias, last_norm, last.mean, last.scale)
        weights = (copies[output], copies[inner], copies[outer])
        ctx.save_for_backward(*for_first, *for_last, attended, before, activated, *weights)
        ctx.set_materialize_grads(False)
        return last.y, last.y.view_as(last.y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, again: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        for_first, for_last, (attended, before, activated, output, inner, outer) = saved[:6], saved[6:12], saved[12:]
        middle, again = for_last[0], None if again is None else again.contiguous()
        of_last = kernels.add_norm_gradient(dy.contiguous(), again, *for_last)
        dbefore, of_inner_bias = kernels.gelu_gradient(of_last.dx @ outer, before)
        of_first = kernels.add_norm_gradient(dbefore @ inner, of_last.dx, *for_first)
        return (
            of_first.dx,
            of_first.dx @ output,
            None,
            gradient_by_weight(of_first.dx, attended),
            of_first.dadded_bias,
            gradient_by_weight(dbefore, middle),
            of_inner_bias,
            gradient_by_weight(of_last.dx, activated),
            of_last.dadded_bias,
            of_first.dweight,
            of_first.dbias,
            of_last.dweight,
            of_last.dbias,
        )


def fused_predicted_loss(
    model: MaskedLanguageModel,
    transformed: Callable[[Tensor], Tensor],
    hidden_BxKxH: Float[Tensor, "B K H"],
    labels_BxK: Int[Tensor, "B K"],
) -> Float[Tensor, ""]:
    """MaskedLanguageModel.predicted_loss without a teacher; `transformed` is the method of the model's head."""
    weight_VxE = model.head.decoding(model.encoder.embeddings.token.weight)
    return fused_cross_entropy(transformed(hidden_BxKxH).flatten(0, 1), weight_VxE, model.head.bias, labels_BxK.flatten())


def fused_cross_entropy(
    hidden_NxE: Float[Tensor, "N E"],
    weight_VxE: Float[Tensor, "V E"],
    bias_V: Float[Tensor, " V"],
    labels_N: Int[Tensor, " N"],
) -> Float[Tensor, ""]:
    """`mean_cross_entropy` of the logits hidden·Wᵀ + b, in autocast's precision; differentiable once.

    The logits are read twice and written twice, as their own gradient the second time.
    """
    hidden_NxE = hidden_NxE.to(product_dtype(hidden_NxE))
    with torch.autocast(hidden_NxE.device.type, enabled=False):
        loss: Tensor = _CrossEntropy.apply(hidden_NxE, weight_VxE, bias_V, labels_N)  # type: ignore[no-untyped-call]
        return loss


class _CrossEntropy(torch.autograd.Function):
    """Zero rows pad W to its `aligned_outputs` (see aligned_product)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        vocabulary, width = weight.shape
        filled = hidden.new_empty(aligned_outputs(vocabulary), width)
        filled[:vocabulary], filled[vocabulary:] = weight, 0
        logits = F.linear(hidden, filled, F.pad(bias.to(hidden.dtype), (0, len(filled) - vocabulary)))
        losses, normalisers = kernels.cross_entropy(logits, labels, vocabulary, IGNORED)
        count = (labels != IGNORED).sum().clamp(min=1)
        ctx.save_for_backward(hidden, filled, labels, logits, normalisers, count)
        ctx.vocabulary = vocabulary
        return losses.sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden, filled, labels, logits, normalisers, count = ctx.saved_tensors
        vocabulary = ctx.vocabulary
        of_bias = kernels.write_cross_entropy_gradient(logits, labels, normalisers, dloss / count, vocabulary, IGNORED)
        return logits @ filled, gradient_by_weight(logits, hidden)[:vocabulary], of_bias[:vocabulary], None
