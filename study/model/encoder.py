"""BERT's encoder at any depth, width, heads and ffn, with its successors' changes.

Letters: B sequences, S tokens, K positions of them, H width, N width within bottlenecks, A heads, D head width, E half of it,
F ffn, P positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from study.counting.architecture import Architecture
from study.model.layers import NORM_EPSILON, Dropout, Embeddings, Linear, drop, norm, padding_mask
from study.model.relative_attention import SCORES, Convolution, DistanceBias, Relative, RelativePositions, relative_scores


class AttentionInputs(NamedTuple):
    """What attention weighs and mixes: query, key and value, and the bias of the scores query · key / √D, if any."""

    query: Float[Tensor, "B A S D"]
    key: Float[Tensor, "B A S D"]
    value: Float[Tensor, "B A S D"]
    bias: Float[Tensor, "#B A S S"] | None


class LayerState(NamedTuple):
    """A layer's output, and what its attention read, if kept."""

    hidden: Float[Tensor, "B S H"]
    attention: AttentionInputs | None


class Attention(nn.Module):
    """Bidirectional multi-head self-attention; query, key and value come from one product of width 3H.

    Optional head norms of queries and keys precede rotary positions; an optional distance bias is added to the scores.
    """

    def __init__(self, architecture: Architecture, dropout: float) -> None:
        super().__init__()
        self.heads, self.head_width, self.dropout = architecture.heads, architecture.head_width, dropout
        self._add_products(architecture)
        self.output = Linear(architecture.block_width, architecture.block_width, architecture.biased)
        normed = architecture.query_key_norm
        self.query_norm = norm(architecture, self.head_width) if normed else None
        self.key_norm = norm(architecture, self.head_width) if normed else None
        self.distance_bias = DistanceBias(architecture) if architecture.distance_bias != "none" else None

    def _add_products(self, architecture: Architecture) -> None:
        width = architecture.width
        self.query_key_value = Linear(width, 3 * width, architecture.biases == "all")
        self.query_key_value.matrices = 3
        self.query_value_bias = nn.Parameter(torch.zeros(2 * width)) if architecture.biases == "no_key" else None
        apart = architecture.position_encoding == "disentangled"
        self.position_query = Linear(width, width) if apart else None
        self.position_key = Linear(width, width, bias=False) if apart else None

    def forward(
        self,
        x_BxSxH: Float[Tensor, "B S H"],
        mask: Bool[Tensor, "#B 1 #S S"] | None,
        rotary_2xSxE: Float[Tensor, "2 S E"] | None = None,
        relative: Relative | None = None,
        kept: list[AttentionInputs] | None = None,
    ) -> Float[Tensor, "B S N"]:
        """Attend from every token to every token, or to those that `mask` allows; `rotary_2xSxE` are rotary positions.

        The inputs of attention are appended to `kept`, if given.
        """
        length = x_BxSxH.shape[1]
        query_BxSxAxD, key_BxSxAxD, value_BxSxAxD = self._products(x_BxSxH)
        query_BxSxAxD, key_BxSxAxD = self._normed(query_BxSxAxD, key_BxSxAxD)
        bias = None if self.distance_bias is None else self.distance_bias(length)
        if rotary_2xSxE is not None:
            by_heads, in_order = plain_products(query_BxSxAxD, self._dropped, bias), kept is not None
            query_BxSxAxD = rotated(query_BxSxAxD, rotary_2xSxE, by_heads, in_order)
            key_BxSxAxD = rotated(key_BxSxAxD, rotary_2xSxE, by_heads, in_order)
        if relative is not None:
            query_BxSxAxD, bias = self._with_positions(query_BxSxAxD, key_BxSxAxD, relative, bias)
        if kept is not None:
            query, key, value = (each.transpose(1, 2) for each in (query_BxSxAxD, key_BxSxAxD, value_BxSxAxD))
            kept.append(AttentionInputs(query, key, value, bias))
        attended_BxSxAxD = self._attended(query_BxSxAxD, key_BxSxAxD, value_BxSxAxD, mask, bias)
        mixed: Tensor = self.output(attended_BxSxAxD.flatten(2))
        return mixed

    def attend_from(
        self,
        queries_BxKxH: Float[Tensor, "B K H"],
        positions_BxK: Int[Tensor, "B K"],
        x_BxSxH: Float[Tensor, "B S H"],
        mask: Bool[Tensor, "#B 1 #S S"] | None,
        rotary_2xSxE: Float[Tensor, "2 S E"] | None,
        relative: Relative | None = None,
    ) -> Float[Tensor, "B K N"]:
        """Attend from only the tokens `queries_BxKxH` to all of `x_BxSxH`, as `forward` does at their positions."""
        length = x_BxSxH.shape[1]
        mask = None if mask is None else mask_at(mask, positions_BxK)
        query_BxKxAxD, key_BxSxAxD, value_BxSxAxD = self._products_from(queries_BxKxH, positions_BxK, x_BxSxH)
        query_BxKxAxD, key_BxSxAxD = self._normed(query_BxKxAxD, key_BxSxAxD)
        bias = None if self.distance_bias is None else self.distance_bias(length, positions_BxK)
        if rotary_2xSxE is not None:
            by_heads = plain_products(query_BxKxAxD, self._dropped, bias)
            query_BxKxAxD = rotated(query_BxKxAxD, rotary_2xSxE[:, positions_BxK], by_heads)
            key_BxSxAxD = rotated(key_BxSxAxD, rotary_2xSxE, by_heads)
        if relative is not None:
            query_BxKxAxD, bias = self._with_positions(query_BxKxAxD, key_BxSxAxD, relative.at(positions_BxK), bias)
        attended_BxKxAxD = self._attended(query_BxKxAxD, key_BxSxAxD, value_BxSxAxD, mask, bias)
        mixed: Tensor = self.output(attended_BxKxAxD.flatten(2))
        return mixed

    def _products(self, x_BxSxH: Float[Tensor, "B S H"]) -> tuple[Tensor, ...]:
        """Query, key and value of every token, by heads."""
        joint = self.query_key_value.multiply(x_BxSxH, self.query_key_value.weight, self._bias)
        return joint.view(*x_BxSxH.shape[:2], 3, self.heads, self.head_width).unbind(2)

    def _products_from(
        self, queries_BxKxH: Float[Tensor, "B K H"], positions_BxK: Int[Tensor, "B K"], x_BxSxH: Float[Tensor, "B S H"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the query at some positions, and every key and value, by heads."""
        del positions_BxK
        batch, length, width = x_BxSxH.shape
        of_query, of_key_and_value = self._parts([width, 2 * width])
        query_BxKxAxD = self.query_key_value.multiply(queries_BxKxH, *of_query).view(batch, -1, self.heads, self.head_width)
        joint = self.query_key_value.multiply(x_BxSxH, *of_key_and_value)
        key_BxSxAxD, value_BxSxAxD = joint.view(batch, length, 2, self.heads, self.head_width).unbind(2)
        return query_BxKxAxD, key_BxSxAxD, value_BxSxAxD

    @property
    def _bias(self) -> Float[Tensor, " joint"] | None:
        """The bias of query, key and value; that of the key is zero if it has none of its own."""
        if self.query_value_bias is None:
            return self.query_key_value.bias
        query_H, value_H = self.query_value_bias.chunk(2)
        return torch.cat((query_H, torch.zeros_like(query_H), value_H))

    def _parts(self, outputs: list[int]) -> list[tuple[Tensor, Tensor | None]]:
        """Return the weight and bias of query, key and value, split into parts with these numbers of outputs."""
        bias = self._bias
        biases = [None] * len(outputs) if bias is None else torch.split(bias, outputs)
        return list(zip(torch.split(self.query_key_value.weight, outputs), biases, strict=True))

    def _with_positions(
        self,
        query_BxKxAxD: Float[Tensor, "B K A D"],
        key_BxSxAxD: Float[Tensor, "B S A D"],
        relative: Relative,
        bias: Float[Tensor, "#B A K S"] | None,
    ) -> tuple[Float[Tensor, "B K A D"], Float[Tensor, "B A K S"]]:
        """Return the query of three products' scores, and their bias with relative positions."""
        width = self.heads * self.head_width
        if self.position_query is not None and self.position_key is not None:
            query_RxH, key_RxH = self.position_query(relative.rows), self.position_key(relative.rows)
        else:
            (weight, of_both), _ = self._parts([2 * width, width])
            query_RxH, key_RxH = self.query_key_value.multiply(relative.rows, weight, of_both).chunk(2, -1)
        query_RxAxD, key_RxAxD = (rows.view(len(rows), self.heads, -1) for rows in (query_RxH, key_RxH))
        scores = relative_scores(query_BxKxAxD, key_BxSxAxD, query_RxAxD, key_RxAxD, relative.row_of_pair)
        return query_BxKxAxD * SCORES**-0.5, scores if bias is None else scores + bias

    def _normed(
        self, query_BxKxAxD: Float[Tensor, "B K A D"], key_BxSxAxD: Float[Tensor, "B S A D"]
    ) -> tuple[Float[Tensor, "B K A D"], Float[Tensor, "B S A D"]]:
        if self.query_norm is None or self.key_norm is None:
            return query_BxKxAxD, key_BxSxAxD
        dtype = query_BxKxAxD.dtype
        return self.query_norm(query_BxKxAxD).to(dtype), self.key_norm(key_BxSxAxD).to(dtype)

    def _attended(
        self,
        query_BxKxAxD: Float[Tensor, "B K A D"],
        key_BxSxAxD: Float[Tensor, "B S A D"],
        value_BxSxAxD: Float[Tensor, "B S A D"],
        mask: Bool[Tensor, "#B 1 #K S"] | None,
        bias: Float[Tensor, "#B A K S"] | None,
    ) -> Float[Tensor, "B K A D"]:
        query_BxAxKxD, key_BxAxSxD, value_BxAxSxD = (
            tensor.transpose(1, 2) for tensor in (query_BxKxAxD, key_BxSxAxD, value_BxSxAxD)
        )
        return attended(query_BxAxKxD, key_BxAxSxD, value_BxAxSxD, mask, self._dropped, bias).transpose(1, 2)

    @property
    def _dropped(self) -> float:
        return self.dropout if self.training else 0.0


class Bottleneck(nn.Module):
    """H → N and a norm."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.product = Linear(architecture.width, architecture.block_width, architecture.biased)
        self.norm = norm(architecture, architecture.block_width)

    def forward(self, x_BxSxH: Float[Tensor, "B S H"]) -> Float[Tensor, "B S N"]:
        """Narrow each token."""
        narrow_BxSxN: Tensor = self.norm(self.product(x_BxSxH))
        return narrow_BxSxN


class BottleneckAttention(Attention):
    """Attention of width N, whose queries and keys read a bottleneck that they share, and whose values read the stream.

    Source: MobileBERT, Sun et al. 2020, arXiv:2004.02984, section 3.1.
    """

    def _add_products(self, architecture: Architecture) -> None:
        width = architecture.block_width
        self.bottleneck = Bottleneck(architecture)
        self.query = Linear(width, width, architecture.biased)
        self.key = Linear(width, width, architecture.biases == "all")
        self.value = Linear(architecture.width, width, architecture.biased)

    def _products(self, x_BxSxH: Float[Tensor, "B S H"]) -> tuple[Tensor, ...]:
        narrow_BxSxN = self.bottleneck(x_BxSxH)
        return tuple(map(self._by_heads, (self.query(narrow_BxSxN), self.key(narrow_BxSxN), self.value(x_BxSxH))))

    def _products_from(
        self, queries_BxKxH: Float[Tensor, "B K H"], positions_BxK: Int[Tensor, "B K"], x_BxSxH: Float[Tensor, "B S H"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        del queries_BxKxH
        narrow_BxSxN = self.bottleneck(x_BxSxH)
        query, key = self.query(at_positions(narrow_BxSxN, positions_BxK)), self.key(narrow_BxSxN)
        return self._by_heads(query), self._by_heads(key), self._by_heads(self.value(x_BxSxH))

    def _by_heads(self, x: Float[Tensor, "B S N"]) -> Float[Tensor, "B S A D"]:
        return x.view(*x.shape[:-1], self.heads, self.head_width)


def rotary_table(positions: int, head_width: int, theta: float = 10_000.0) -> Float[Tensor, "2 P E"]:
    """Cosine and sine of the angles p · θ^(−2i/D) by which position p rotates pair i, in fp32.

    Source: RoFormer, Su et al. 2021, arXiv:2104.09864, section 3.4.2.
    """
    frequencies = theta ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.cos().float(), angles.sin().float()))


def rotated(
    x: Float[Tensor, "B S A D"], rotary: Float[Tensor, "2 *positions E"], by_heads: bool = False, in_order: bool = False
) -> Float[Tensor, "B S A D"]:
    """Rotate numbers i and i + D/2 of every head as a pair, as GPT-NeoX and ESM-2 do; RoFormer pairs 2i and 2i + 1.

    `rotary` holds the tokens' rows of `rotary_table`, (2, S, E) or (2, B, S, E). On a CPU the result is stored head by head on
    request, as plain products of queries and keys read it. Elsewhere pairs are put side by side, which leaves these products
    the same, unless the numbers must stay `in_order`, as for products over parts of a head.
    """
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        turned: Tensor = _Rotated.apply(x, rotary, by_heads)  # type: ignore[no-untyped-call]
        return turned
    cosine, sine = rotary.to(x.dtype).unsqueeze(-2)
    first, second = x.chunk(2, -1)
    halves = first * cosine - second * sine, second * cosine + first * sine
    return torch.cat(halves, -1) if in_order else torch.stack(halves, -1).flatten(-2)


class _Rotated(torch.autograd.Function):
    """x·cos ∓ (x with swapped halves)·sin on a CPU, in runs of whole heads, since half a head is too short for SIMD in bf16.

    The gradient is rotated back, and only the angles are kept for it, in the precision of x. It has no gradient of its own.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rotary: Tensor, by_heads: bool) -> Tensor:
        table = rotary.to(x.dtype)
        ctx.save_for_backward(table)
        ctx.by_heads = by_heads
        cosine, sine = table
        return _turned(x, cosine, sine, by_heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors[0]
        return _turned(gradient, cosine, -sine, ctx.by_heads), None, None


def _turned(x_BxSxAxD: Tensor, cosine: Tensor, sine: Tensor, by_heads: bool) -> Tensor:
    dense = (x_BxSxAxD.transpose(1, 2) if by_heads else x_BxSxAxD).contiguous()
    heads = -3 if by_heads else -2
    cosines, sines = (torch.cat(parts, -1).unsqueeze(heads) for parts in ((cosine, cosine), (-sine, sine)))
    turned = dense.roll(cosine.shape[-1], -1).mul_(sines).addcmul_(dense, cosines)
    return turned.transpose(1, 2) if by_heads else turned


def attended(
    query_BxAxKxD: Float[Tensor, "B A K D"],
    key_BxAxSxD: Float[Tensor, "B A S D"],
    value_BxAxSxD: Float[Tensor, "B A S D"],
    mask: Bool[Tensor, "#B 1 #K S"] | None,
    dropout: float,
    bias: Float[Tensor, "#B A K S"] | None = None,
) -> Float[Tensor, "B A K D"]:
    """Values mixed by softmax(query · key / √D + bias), by `plain_products` or torch's fused attention."""
    if bias is not None:
        bias = bias.to(query_BxAxKxD.dtype)
    if not plain_products(query_BxAxKxD, dropout, bias):
        allowed = mask if bias is None else bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        return F.scaled_dot_product_attention(query_BxAxKxD, key_BxAxSxD, value_BxAxSxD, attn_mask=allowed, dropout_p=dropout)
    scores_BxAxKxS = torch.matmul(query_BxAxKxD * query_BxAxKxD.shape[-1] ** -0.5, key_BxAxSxD.transpose(-1, -2))
    if bias is not None:
        scores_BxAxKxS += bias
    if mask is not None:
        scores_BxAxKxS = scores_BxAxKxS.masked_fill(~mask, float("-inf"))
    return torch.matmul(drop(torch.softmax(scores_BxAxKxS, -1), dropout), value_BxAxSxD)


def plain_products(query: Tensor, dropout: float, bias: Tensor | None) -> bool:
    """Whether plain products replace torch's fused attention, which is faster if it has all gradients.

    On a CPU they do for bf16, where its backward pass takes three times as long; for dropout, where torch falls back to fp32
    and draws one by one; and for a learned bias, which needs the scores' gradient.
    """
    slow = query.dtype == torch.bfloat16 or dropout > 0
    return query.device.type == "cpu" and (slow or (bias is not None and bias.requires_grad))


class _Gelu(torch.autograd.Function):
    """The GELU, exact or by a tanh; its gradient overwrites the incoming one, which nothing else may read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, approximate: str) -> Tensor:
        ctx.save_for_backward(x)
        ctx.approximate = approximate
        return F.gelu(x, approximate=approximate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        torch.ops.aten.gelu_backward.grad_input(gradient, x, approximate=ctx.approximate, grad_input=gradient)
        return gradient, None


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return the GELU; on a CPU its gradient overwrites the incoming one, so only a product may read the result."""
    if x.device.type != "cpu" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return F.gelu(x, approximate=approximate)
    activated: Tensor = _Gelu.apply(x, approximate)  # type: ignore[no-untyped-call]
    return activated


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": _gelu,
    "gelu_tanh": partial(_gelu, approximate="tanh"),
    "relu": F.relu,
    "geglu": _gelu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """H → F → H: f(x·W)·O, or gated (f(x·W) ⊗ x·V)·O with W and V as one product of width 2F.

    Source: Shazeer 2020, arXiv:2002.05202, equations 1, 2 and 6.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.activation, self.gated = architecture.activation, architecture.gated
        biases = architecture.biased
        self.inner = Linear(architecture.block_width, architecture.ffn * (2 if self.gated else 1), biases)
        self.inner.matrices = 2 if self.gated else 1
        self.outer = Linear(architecture.ffn, architecture.block_width, biases)

    def forward(self, x_BxSxH: Float[Tensor, "B S H"]) -> Float[Tensor, "B S H"]:
        """Transform each token."""
        y_BxSxH: Tensor = self.outer(self._activated(self.inner(x_BxSxH)))
        return y_BxSxH

    def _activated(self, inner: Float[Tensor, "B S inner"]) -> Float[Tensor, "B S F"]:
        activate = _ACTIVATIONS[self.activation]
        if not self.gated:
            return activate(inner)
        x_BxSxF, gate_BxSxF = inner.chunk(2, -1)
        return activate(x_BxSxF) * gate_BxSxF


class StackedFeedForward(nn.Module):
    """One of several FFNs of a block, with its residual sum and its norm after it (post) or before it (pre)."""

    def __init__(self, architecture: Architecture, dropout: float) -> None:
        super().__init__()
        self.pre_norm = architecture.norm == "pre"
        self.feed_forward = FeedForward(architecture)
        self.norm = norm(architecture, architecture.block_width)
        self.dropout = Dropout(dropout)

    def forward(self, x_BxKxH: Float[Tensor, "B K H"]) -> Float[Tensor, "B K H"]:
        """Transform each token."""
        if self.pre_norm:
            return x_BxKxH + cast("Tensor", self.dropout(self.feed_forward(self.norm(x_BxKxH))))
        y_BxKxH: Tensor = self.norm(x_BxKxH, self.dropout(self.feed_forward(x_BxKxH)))
        return y_BxKxH


class Block(nn.Module):
    """One layer: attention and feed-forward, each with a residual sum and a norm after it (post) or before it (pre).

    A `normed` block omits the norm before its attention, since its input is already normed. Any further FFNs are `stacked`
    before the last.
    """

    def __init__(self, architecture: Architecture, dropout: float, normed: bool = False) -> None:
        super().__init__()
        width = architecture.block_width
        self.pre_norm = architecture.norm == "pre"
        self.attention = (Attention if architecture.bottleneck_width is None else BottleneckAttention)(architecture, dropout)
        self.attention_norm = nn.Identity() if normed else norm(architecture, width)
        stacked = 0.0 if architecture.bottleneck_width is not None else dropout
        self.stacked = nn.ModuleList(StackedFeedForward(architecture, stacked) for _ in range(architecture.ffn_stack - 1))
        self.feed_forward = FeedForward(architecture)
        self.feed_forward_norm = norm(architecture, width)
        self.dropout = Dropout(dropout)

    @property
    def residual_products(self) -> list[Linear]:
        """The last product of each residual branch."""
        feed_forwards = [*(cast("StackedFeedForward", each).feed_forward for each in self.stacked), self.feed_forward]
        return [self.attention.output, *(each.outer for each in feed_forwards)]

    def forward(
        self,
        x_BxSxH: Float[Tensor, "B S H"],
        mask: Bool[Tensor, "#B 1 #S S"] | None,
        rotary_2xSxE: Float[Tensor, "2 S E"] | None = None,
        positions_BxK: Int[Tensor, "B K"] | None = None,
        relative: Relative | None = None,
        kept: list[AttentionInputs] | None = None,
        queries_BxKxH: Float[Tensor, "B K H"] | None = None,
    ) -> Float[Tensor, "B K H"]:
        """Transform the residual stream at every token, or only at some positions, without computing the others.

        `queries_BxKxH`, if given, are transformed in place of the stream at those positions. At every token the inputs of
        attention are appended to `kept`, if given.
        """
        at_BxKxH = queries_BxKxH
        if at_BxKxH is None:
            at_BxKxH = x_BxSxH if positions_BxK is None else at_positions(x_BxSxH, positions_BxK)
        inputs = (x_BxSxH, mask, rotary_2xSxE, positions_BxK, relative, kept)
        at_BxKxH = (  # no name holds what attention gives, so that its memory is free again in the FFN
            at_BxKxH + self.dropout(self._mixed(at_BxKxH, *inputs))
            if self.pre_norm
            else self.attention_norm(at_BxKxH, self.dropout(self._mixed(at_BxKxH, *inputs)))
        )
        for feed_forward in self.stacked:
            at_BxKxH = feed_forward(at_BxKxH)
        if self.pre_norm:
            y_BxKxH: Tensor = at_BxKxH + self.dropout(self.feed_forward(self.feed_forward_norm(at_BxKxH)))
        else:
            y_BxKxH = self.feed_forward_norm(at_BxKxH, self.dropout(self.feed_forward(at_BxKxH)))
        return y_BxKxH

    def _mixed(
        self,
        at_BxKxH: Float[Tensor, "B K H"],
        x_BxSxH: Float[Tensor, "B S H"],
        mask: Bool[Tensor, "#B 1 #S S"] | None,
        rotary_2xSxE: Float[Tensor, "2 S E"] | None,
        positions_BxK: Int[Tensor, "B K"] | None,
        relative: Relative | None,
        kept: list[AttentionInputs] | None,
    ) -> Float[Tensor, "B K N"]:
        normed_BxSxH = self.attention_norm(x_BxSxH) if self.pre_norm else x_BxSxH
        if positions_BxK is None:
            mixed_BxSxH: Tensor = self.attention(normed_BxSxH, mask, rotary_2xSxE, relative, kept)
            return mixed_BxSxH
        queries_BxKxH = self.attention_norm(at_BxKxH) if self.pre_norm else at_BxKxH
        return self.attention.attend_from(queries_BxKxH, positions_BxK, normed_BxSxH, mask, rotary_2xSxE, relative)


class BottleneckBlock(Block):
    """A layer of width N between projections from and to the stream; dropout acts on what it adds to the stream alone.

    Source: MobileBERT, Sun et al. 2020, arXiv:2004.02984, section 3.1 and figure 1.
    """

    def __init__(self, architecture: Architecture, dropout: float) -> None:
        super().__init__(architecture, dropout)
        self.bottleneck = Bottleneck(architecture)
        self.widening = Linear(architecture.block_width, architecture.width, architecture.biased)
        self.widening_norm = norm(architecture, architecture.width)

    @property
    def residual_products(self) -> list[Linear]:
        """The product that the stream adds."""
        return [self.widening]

    def forward(
        self,
        x_BxSxH: Float[Tensor, "B S H"],
        mask: Bool[Tensor, "#B 1 #S S"] | None,
        rotary_2xSxE: Float[Tensor, "2 S E"] | None = None,
        positions_BxK: Int[Tensor, "B K"] | None = None,
        relative: Relative | None = None,
        kept: list[AttentionInputs] | None = None,
        queries_BxKxH: Float[Tensor, "B K H"] | None = None,
    ) -> Float[Tensor, "B K H"]:
        """Transform the residual stream as `Block.forward` does, without `queries_BxKxH`."""
        assert queries_BxKxH is None, "a bottleneck's queries read the stream alone"
        at_BxKxH = x_BxSxH if positions_BxK is None else at_positions(x_BxSxH, positions_BxK)
        inputs = (x_BxSxH, mask, rotary_2xSxE, positions_BxK, relative, kept)
        narrow_BxKxN = self.attention_norm(self.bottleneck(at_BxKxH), self._mixed(at_BxKxH, *inputs))
        for feed_forward in self.stacked:
            narrow_BxKxN = feed_forward(narrow_BxKxN)
        narrow_BxKxN = self.feed_forward_norm(narrow_BxKxN, self.feed_forward(narrow_BxKxN))
        y_BxKxH: Tensor = self.widening_norm(at_BxKxH, self.dropout(self.widening(narrow_BxKxN)))
        return y_BxKxH


def has_fused_kernels(architecture: Architecture, dropout: float) -> bool:
    """Whether `fused_blocks` supports an architecture's blocks."""
    a = architecture
    berts = (a.norm, a.norm_kind, a.activation, a.biases) == ("post", "layer", "gelu", "all")
    plain = a.norm_bias and a.norm_epsilon == NORM_EPSILON and a.attention_window is None
    plain = plain and a.bottleneck_width is None and a.ffn_stack == 1 and not a.enhanced_mask_decoder
    return berts and plain and not (a.relative or a.convolution_kernel or a.query_key_norm or dropout)


class Seen(NamedTuple):
    """What a layer's tokens see: the mask of keys, None if all, and rotary and relative positions, if any."""

    mask: Bool[Tensor, "#B 1 #S S"] | None
    rotary: Float[Tensor, "2 S E"] | None
    relative: Relative | None


class Encoder(nn.Module):
    """Embeddings and L layers, as in BERT (Devlin et al. 2019, arXiv:1810.04805); pre-norm adds a last norm.

    Each layer has its own block, or layers share blocks in G groups: layer i, from 0, uses group ⌊i·G/L⌋ (ALBERT, Lan et al.
    2020, arXiv:1909.11942, section 3.1). `fused`, if set, replaces the blocks in training without padding. `tables` are another
    encoder's embeddings, whose tables and norm it reads.
    """

    fused: Callable[[list[Block], Tensor, Tensor | None, Tensor | None], Tensor] | None = None

    def __init__(self, architecture: Architecture, dropout: float = 0.0, tables: Embeddings | None = None) -> None:
        super().__init__()
        self.architecture = architecture
        self.embeddings = Embeddings(architecture, dropout, tables)
        groups = architecture.groups
        normed = [architecture.skips_first_norm and group == 0 for group in range(groups)]
        if architecture.bottleneck_width is None:
            self.blocks = nn.ModuleList(Block(architecture, dropout, each) for each in normed)
        else:
            self.blocks = nn.ModuleList(BottleneckBlock(architecture, dropout) for _ in normed)
        self.block_of_layer = [layer * groups // architecture.depth for layer in range(architecture.depth)]
        self.final_norm = norm(architecture, architecture.width) if architecture.norm == "pre" else nn.Identity()
        a, rotary, local_rotary = architecture, None, None
        if a.rotary:
            rotary = rotary_table(a.positions, a.head_width, a.rotary_theta)
            local_rotary = (
                None if a.local_rotary_theta is None else rotary_table(a.positions, a.head_width, a.local_rotary_theta)
            )
        self.register_buffer("rotary_2xPxE", rotary, persistent=False)
        self.register_buffer("local_rotary_2xPxE", local_rotary, persistent=False)
        self.rotary_2xPxE: Tensor | None
        self.relative = RelativePositions(a, dropout) if a.relative else None
        self.convolution = Convolution(a, dropout) if a.convolution_kernel else None
        self.local_rotary_2xPxE: Tensor | None

    def forward(
        self,
        tokens_BxS: Int[Tensor, "B S"],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
        positions_BxK: Int[Tensor, "B K"] | None = None,
    ) -> Float[Tensor, "B K H"]:
        """Encode every token, or with `positions_BxK` only some, which saves the last block's work for the others.

        `attended_BxS` is False at padding; None means no padding.
        """
        if self.fused is not None and self.training and attended_BxS is None:
            x_BxSxH = self.embeddings(tokens_BxS, segments_BxS)
            rotary_2xSxE = None if self.rotary_2xPxE is None else self.rotary_2xPxE[:, : tokens_BxS.shape[1]]
            y_BxKxH = self.fused(self._in_order, x_BxSxH, rotary_2xSxE, positions_BxK)
        else:
            x_BxSxH, last, (mask, rotary, relative) = self._up_to_last(tokens_BxS, segments_BxS, attended_BxS)
            y_BxKxH = last(x_BxSxH, mask, rotary, positions_BxK, relative)
        normed_BxKxH: Tensor = self.final_norm(y_BxKxH)
        return normed_BxKxH

    def decode(
        self,
        offsets_PxH: Float[Tensor, "P H"],
        tokens_BxS: Int[Tensor, "B S"],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
        positions_BxK: Int[Tensor, "B K"] | None = None,
    ) -> Float[Tensor, "B K H"]:
        """Decode masks: the last layer twice, at `positions_BxK` or everywhere, with queries that know positions.

        Both passes read keys and values from the stream before the last layer; the first's queries are that stream plus
        `offsets_PxH` of their positions, the second's what the first gave. Source: He et al. 2021, arXiv:2006.03654, section
        3.2, and EnhancedMaskDecoder in its code.
        """
        x_BxSxH, last, (mask, rotary, relative) = self._up_to_last(tokens_BxS, segments_BxS, attended_BxS)
        if positions_BxK is None:
            positions_BxK = torch.arange(tokens_BxS.shape[1], device=tokens_BxS.device).expand_as(tokens_BxS)
        y_BxKxH = at_positions(x_BxSxH, positions_BxK) + offsets_PxH[positions_BxK].to(x_BxSxH.dtype)
        for _ in range(2):
            y_BxKxH = last(x_BxSxH, mask, rotary, positions_BxK, relative, queries_BxKxH=y_BxKxH)
        normed_BxKxH: Tensor = self.final_norm(y_BxKxH)
        return normed_BxKxH

    def layers(
        self,
        tokens_BxS: Int[Tensor, "B S"],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
    ) -> list[Float[Tensor, "B S H"]]:
        """Return the L + 1 outputs of the embeddings and of every layer; the last includes pre-norm's final norm."""
        every = range(self.architecture.depth + 1)
        _, states = self.observe(tokens_BxS, segments_BxS, attended_BxS, every)
        return [states[layer].hidden for layer in every]

    def observe(
        self,
        tokens_BxS: Int[Tensor, "B S"],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
        layers: Collection[int] = (),
        attentions: bool = False,
    ) -> tuple[Float[Tensor, "B S H"], dict[int, LayerState]]:
        """Return the output at every token, and the states of some layers (0: the embeddings), perhaps with attention's."""
        x_BxSxH = self.embeddings(tokens_BxS, segments_BxS, attended_BxS)
        states = {0: LayerState(x_BxSxH, None)} if 0 in layers else {}
        embedded_BxSxH = None if self.convolution is None else x_BxSxH
        for layer, (block, seen) in enumerate(self._layers(tokens_BxS, attended_BxS), start=1):
            kept: list[AttentionInputs] | None = [] if attentions and layer in layers else None
            x_BxSxH = self._output(block, seen, x_BxSxH, embedded_BxSxH, attended_BxS, kept)
            embedded_BxSxH = None
            if layer == self.architecture.depth:
                x_BxSxH = self.final_norm(x_BxSxH)
            if layer in layers:
                states[layer] = LayerState(x_BxSxH, kept[0] if kept else None)
        return x_BxSxH, states

    def zero_residuals(self) -> None:
        """Zero the last products of attention and FFN, so that each block initially adds nothing."""
        for block in self.blocks:
            assert isinstance(block, Block)
            for product in block.residual_products:
                nn.init.zeros_(product.weight)

    @property
    def _in_order(self) -> list[Block]:
        return [cast("Block", self.blocks[block]) for block in self.block_of_layer]

    def _output(
        self,
        block: Block,
        seen: Seen,
        x_BxSxH: Float[Tensor, "B S H"],
        embedded_BxSxH: Float[Tensor, "B S H"] | None,
        attended_BxS: Bool[Tensor, "B S"] | None,
        kept: list[AttentionInputs] | None = None,
    ) -> Float[Tensor, "B S H"]:
        """Return a layer's output at every token; the first one's convolution reads the embeddings."""
        y_BxSxH: Tensor = block(x_BxSxH, seen.mask, seen.rotary, None, seen.relative, kept)
        if self.convolution is not None and embedded_BxSxH is not None:
            y_BxSxH = self.convolution(embedded_BxSxH, y_BxSxH, attended_BxS)
        return y_BxSxH

    def _up_to_last(
        self, tokens_BxS: Int[Tensor, "B S"], segments_BxS: Int[Tensor, "B S"] | None, attended_BxS: Bool[Tensor, "B S"] | None
    ) -> tuple[Float[Tensor, "B S H"], Block, Seen]:
        """Return the output before the last layer, the last one's block, and what its tokens see."""
        x_BxSxH = self.embeddings(tokens_BxS, segments_BxS, attended_BxS)
        *earlier, (last, seen_by_last) = self._layers(tokens_BxS, attended_BxS)
        embedded_BxSxH = None if self.convolution is None else x_BxSxH
        for block, seen in earlier:
            x_BxSxH = self._output(block, seen, x_BxSxH, embedded_BxSxH, attended_BxS)
            embedded_BxSxH = None
        return x_BxSxH, last, seen_by_last

    def _layers(self, tokens_BxS: Int[Tensor, "B S"], attended_BxS: Bool[Tensor, "B S"] | None) -> Iterator[tuple[Block, Seen]]:
        """Each layer's block, and what its tokens see."""
        length, window = tokens_BxS.shape[1], self.architecture.attention_window
        mask = None if attended_BxS is None else padding_mask(attended_BxS)
        relative = None if self.relative is None else self.relative(length)
        everywhere = local = Seen(mask, None if self.rotary_2xPxE is None else self.rotary_2xPxE[:, :length], relative)
        if window is not None:
            near = window_mask(length, window, mask, tokens_BxS.device)
            own = self.local_rotary_2xPxE
            rotary_2xSxE = everywhere.rotary if own is None else own[:, :length]
            local = Seen(near, rotary_2xSxE, relative)
        for layer, block in enumerate(self._in_order):
            yield block, local if self.architecture.is_local(layer) else everywhere


def window_mask(
    length: int, window: int, mask: Bool[Tensor, "B 1 1 S"] | None, device: torch.device
) -> Bool[Tensor, "#B 1 S S"]:
    """Whether a query sees a key: at most window/2 positions apart, and no padding but itself, so that all see something."""
    positions_S = torch.arange(length, device=device)
    distances_SxS = (positions_S[:, None] - positions_S).abs()
    near = (distances_SxS <= window // 2)[None, None]
    return near if mask is None else near & (mask | (distances_SxS == 0))


def mask_at(mask: Bool[Tensor, "#B 1 #S S"], positions_BxK: Int[Tensor, "B K"]) -> Bool[Tensor, "#B 1 #K S"]:
    """Return the rows of a mask for queries at some positions; a mask over keys has one row for all."""
    batch, length = len(positions_BxK), mask.shape[-1]
    if mask.shape[2] == 1:
        return mask
    rows = mask.expand(batch, 1, length, length)
    return rows.gather(2, positions_BxK[:, None, :, None].expand(-1, 1, -1, length))


def at_positions(x_BxSxH: Float[Tensor, "B S H"], positions_BxK: Int[Tensor, "B K"]) -> Float[Tensor, "B K H"]:
    """Return the rows of each sequence at its positions."""
    _, length, width = x_BxSxH.shape
    chosen = x_BxSxH.reshape(-1, width).index_select(0, rows_at(positions_BxK, length))
    return chosen.view(*positions_BxK.shape, width)


def rows_at(positions_BxK: Int[Tensor, "B K"], length: int) -> Int[Tensor, " B*K"]:
    """Return the indices of each sequence's positions in the flattened batch."""
    first_Bx1 = torch.arange(len(positions_BxK), device=positions_BxK.device)[:, None] * length
    return (positions_BxK + first_Bx1).flatten()
