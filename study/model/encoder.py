"""BERT's encoder at any depth, width, heads and ffn, with its successors' changes.

Letters: B sequences, S tokens, K positions of them, H width, A heads, D head width, E half of it, F ffn, P positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from study.counting.architecture import Architecture
from study.model.distance_bias import DistanceBias
from study.model.dropout import Dropout, drop
from study.model.embeddings import Embeddings, padding_mask
from study.model.linear import Linear
from study.model.norm import norm


class Attention(nn.Module):
    """Bidirectional multi-head self-attention; query, key and value come from one product of width 3H.

    Optional head norms of queries and keys precede rotary positions; an optional distance bias is added to the scores.
    """

    def __init__(self, architecture: Architecture, dropout: float) -> None:
        super().__init__()
        self.heads, self.head_width, self.dropout = architecture.heads, architecture.head_width, dropout
        biases = architecture.biased
        self.query_key_value = Linear(architecture.width, 3 * architecture.width, biases)
        self.query_key_value.matrices = 3
        self.output = Linear(architecture.width, architecture.width, biases)
        normed = architecture.query_key_norm
        self.query_norm = norm(architecture, self.head_width) if normed else None
        self.key_norm = norm(architecture, self.head_width) if normed else None
        self.distance_bias = DistanceBias(architecture) if architecture.distance_bias != "none" else None

    def forward(
        self,
        x_BxSxH: Float[Tensor, "B S H"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        rotary_2xSxE: Float[Tensor, "2 S E"] | None = None,
    ) -> Float[Tensor, "B S H"]:
        """Attend from every token to every token, or to those that `mask` allows; `rotary_2xSxE` are rotary positions."""
        batch, length, width = x_BxSxH.shape
        joint = self.query_key_value(x_BxSxH).view(batch, length, 3, self.heads, self.head_width)
        query_BxSxAxD, key_BxSxAxD, value_BxSxAxD = joint.unbind(2)
        query_BxSxAxD, key_BxSxAxD = self._normed(query_BxSxAxD, key_BxSxAxD)
        if rotary_2xSxE is not None:
            query_BxSxAxD, key_BxSxAxD = rotated(query_BxSxAxD, rotary_2xSxE), rotated(key_BxSxAxD, rotary_2xSxE)
        bias = None if self.distance_bias is None else self.distance_bias(length)
        attended_BxSxAxD = self._attended(query_BxSxAxD, key_BxSxAxD, value_BxSxAxD, mask, bias)
        mixed: Tensor = self.output(attended_BxSxAxD.reshape(batch, length, width))
        return mixed

    def attend_from(
        self,
        queries_BxKxH: Float[Tensor, "B K H"],
        positions_BxK: Int[Tensor, "B K"],
        x_BxSxH: Float[Tensor, "B S H"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        rotary_2xSxE: Float[Tensor, "2 S E"] | None,
    ) -> Float[Tensor, "B K H"]:
        """Attend from only the tokens `queries_BxKxH` to all of `x_BxSxH`, as `forward` does at their positions."""
        batch, length, width = x_BxSxH.shape
        of_query, of_key_and_value = self.query_key_value.parts([width, 2 * width])
        query_BxKxAxD = self.query_key_value.multiply(queries_BxKxH, *of_query).view(batch, -1, self.heads, self.head_width)
        joint = self.query_key_value.multiply(x_BxSxH, *of_key_and_value)
        key_BxSxAxD, value_BxSxAxD = joint.view(batch, length, 2, self.heads, self.head_width).unbind(2)
        query_BxKxAxD, key_BxSxAxD = self._normed(query_BxKxAxD, key_BxSxAxD)
        if rotary_2xSxE is not None:
            query_BxKxAxD = rotated(query_BxKxAxD, rotary_2xSxE[:, positions_BxK])
            key_BxSxAxD = rotated(key_BxSxAxD, rotary_2xSxE)
        bias = None if self.distance_bias is None else self.distance_bias(length, positions_BxK)
        attended_BxKxAxD = self._attended(query_BxKxAxD, key_BxSxAxD, value_BxSxAxD, mask, bias)
        mixed: Tensor = self.output(attended_BxKxAxD.flatten(2))
        return mixed

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
        mask: Bool[Tensor, "B 1 1 S"] | None,
        bias: Float[Tensor, "#B A K S"] | None,
    ) -> Float[Tensor, "B K A D"]:
        dropout = self.dropout if self.training else 0.0
        query_BxAxKxD, key_BxAxSxD, value_BxAxSxD = (
            tensor.transpose(1, 2) for tensor in (query_BxKxAxD, key_BxSxAxD, value_BxSxAxD)
        )
        return attended(query_BxAxKxD, key_BxAxSxD, value_BxAxSxD, mask, dropout, bias).transpose(1, 2)


def rotary_table(positions: int, head_width: int) -> Float[Tensor, "2 P E"]:
    """Cosine and sine of the angles p · 10,000^(−2i/D) by which position p rotates pair i, in fp32.

    Source: RoFormer, Su et al. 2021, arXiv:2104.09864, section 3.4.2.
    """
    frequencies = 10_000.0 ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.cos().float(), angles.sin().float()))


def rotated(x: Float[Tensor, "B S A D"], rotary: Float[Tensor, "2 *positions E"]) -> Float[Tensor, "B S A D"]:
    """Rotate numbers i and i + D/2 of every head as a pair, as GPT-NeoX and ESM-2 do; RoFormer pairs 2i and 2i + 1.

    `rotary` holds the tokens' rows of `rotary_table`, (2, S, E) or (2, B, S, E).
    """
    cosine, sine = rotary.to(x.dtype).unsqueeze(-2)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


def attended(
    query_BxAxKxD: Float[Tensor, "B A K D"],
    key_BxAxSxD: Float[Tensor, "B A S D"],
    value_BxAxSxD: Float[Tensor, "B A S D"],
    mask: Bool[Tensor, "B 1 1 S"] | None,
    dropout: float,
    bias: Float[Tensor, "#B A K S"] | None = None,
) -> Float[Tensor, "B A K D"]:
    """Values mixed by softmax(query · key / √D + bias), by torch's fused kernel if it is fast and has all gradients.

    On a CPU plain products replace it for bf16, where its backward pass takes three times as long; for dropout, where torch
    falls back to fp32 and draws one by one; and for a learned bias, which needs the scores' gradient.
    """
    if bias is not None:
        bias = bias.to(query_BxAxKxD.dtype)
    plain = query_BxAxKxD.dtype == torch.bfloat16 or dropout or (bias is not None and bias.requires_grad)
    if query_BxAxKxD.device.type != "cpu" or not plain:
        allowed = mask if bias is None else bias if mask is None else bias.masked_fill(~mask, float("-inf"))
        return F.scaled_dot_product_attention(query_BxAxKxD, key_BxAxSxD, value_BxAxSxD, attn_mask=allowed, dropout_p=dropout)
    scores_BxAxKxS = torch.matmul(query_BxAxKxD * query_BxAxKxD.shape[-1] ** -0.5, key_BxAxSxD.transpose(-1, -2))
    if bias is not None:
        scores_BxAxKxS += bias
    if mask is not None:
        scores_BxAxKxS = scores_BxAxKxS.masked_fill(~mask, float("-inf"))
    return torch.matmul(drop(torch.softmax(scores_BxAxKxS, -1), dropout), value_BxAxSxD)


class _Gelu(torch.autograd.Function):
    """The exact GELU; its gradient overwrites the incoming one, which nothing else may read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        torch.ops.aten.gelu_backward.grad_input(gradient, x, grad_input=gradient)
        return gradient


def _gelu(x: Tensor) -> Tensor:
    """The exact GELU; on a CPU its gradient overwrites the incoming one, so only a product may read the result."""
    if x.device.type != "cpu" or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return F.gelu(x)
    activated: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return activated


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": _gelu, "relu": F.relu, "geglu": _gelu, "swiglu": F.silu}


class FeedForward(nn.Module):
    """H → F → H: f(x·W)·O, or gated (f(x·W) ⊗ x·V)·O with W and V as one product of width 2F; GELU is exact.

    Source: Shazeer 2020, arXiv:2002.05202, equations 1, 2 and 6.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.activation, self.gated = architecture.activation, architecture.gated
        biases = architecture.biased
        self.inner = Linear(architecture.width, architecture.ffn * (2 if self.gated else 1), biases)
        self.inner.matrices = 2 if self.gated else 1
        self.outer = Linear(architecture.ffn, architecture.width, biases)

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


class Block(nn.Module):
    """One layer: attention and feed-forward, each with a residual sum and a norm after it (post) or before it (pre).

    A `normed` block omits the norm before its attention, since its input is already normed.
    """

    def __init__(self, architecture: Architecture, dropout: float, normed: bool = False) -> None:
        super().__init__()
        self.pre_norm = architecture.norm == "pre"
        self.attention = Attention(architecture, dropout)
        self.attention_norm = nn.Identity() if normed else norm(architecture, architecture.width)
        self.feed_forward = FeedForward(architecture)
        self.feed_forward_norm = norm(architecture, architecture.width)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x_BxSxH: Float[Tensor, "B S H"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        rotary_2xSxE: Float[Tensor, "2 S E"] | None = None,
        positions_BxK: Int[Tensor, "B K"] | None = None,
    ) -> Float[Tensor, "B K H"]:
        """Transform the residual stream at every token, or only at some positions, without computing the others."""
        at_BxKxH = x_BxSxH if positions_BxK is None else at_positions(x_BxSxH, positions_BxK)
        if self.pre_norm:
            at_BxKxH = at_BxKxH + self.dropout(self._mixed(at_BxKxH, x_BxSxH, mask, rotary_2xSxE, positions_BxK))
            y_BxKxH: Tensor = at_BxKxH + self.dropout(self.feed_forward(self.feed_forward_norm(at_BxKxH)))
        else:
            at_BxKxH = self.attention_norm(
                at_BxKxH, self.dropout(self._mixed(at_BxKxH, x_BxSxH, mask, rotary_2xSxE, positions_BxK))
            )
            y_BxKxH = self.feed_forward_norm(at_BxKxH, self.dropout(self.feed_forward(at_BxKxH)))
        return y_BxKxH

    def _mixed(
        self,
        at_BxKxH: Float[Tensor, "B K H"],
        x_BxSxH: Float[Tensor, "B S H"],
        mask: Bool[Tensor, "B 1 1 S"] | None,
        rotary_2xSxE: Float[Tensor, "2 S E"] | None,
        positions_BxK: Int[Tensor, "B K"] | None,
    ) -> Float[Tensor, "B K H"]:
        normed_BxSxH = self.attention_norm(x_BxSxH) if self.pre_norm else x_BxSxH
        if positions_BxK is None:
            mixed_BxSxH: Tensor = self.attention(normed_BxSxH, mask, rotary_2xSxE)
            return mixed_BxSxH
        queries_BxKxH = self.attention_norm(at_BxKxH) if self.pre_norm else at_BxKxH
        return self.attention.attend_from(queries_BxKxH, positions_BxK, normed_BxSxH, mask, rotary_2xSxE)


def has_fused_kernels(architecture: Architecture, dropout: float) -> bool:
    """Whether `fused_blocks` supports an architecture's blocks: BERT's, also with rotary positions or a distance bias."""
    a = architecture
    berts = (a.norm, a.norm_kind, a.activation, a.biases) == ("post", "layer", "gelu", "all")
    return berts and a.norm_bias and not (a.query_key_norm or dropout)


class Encoder(nn.Module):
    """Embeddings and L layers, as in BERT (Devlin et al. 2019, arXiv:1810.04805); pre-norm adds a last norm.

    Each layer has its own block, or layers share blocks in G groups: layer i, from 0, uses group ⌊i·G/L⌋ (ALBERT, Lan et al.
    2020, arXiv:1909.11942, section 3.1). `fused`, if set, replaces the blocks in training without padding.
    """

    fused: Callable[[list[Block], Tensor, Tensor | None, Tensor | None], Tensor] | None = None

    def __init__(self, architecture: Architecture, dropout: float = 0.0) -> None:
        super().__init__()
        self.architecture = architecture
        self.embeddings = Embeddings(architecture, dropout)
        groups = architecture.groups
        normed = [architecture.skips_first_norm and group == 0 for group in range(groups)]
        self.blocks = nn.ModuleList(Block(architecture, dropout, each) for each in normed)
        self.block_of_layer = [layer * groups // architecture.depth for layer in range(architecture.depth)]
        self.final_norm = norm(architecture, architecture.width) if architecture.norm == "pre" else nn.Identity()
        rotary = rotary_table(architecture.positions, architecture.head_width) if architecture.rotary else None
        self.register_buffer("rotary_2xPxE", rotary, persistent=False)
        self.rotary_2xPxE: Tensor | None

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
        x_BxSxH, mask, rotary_2xSxE = self._before_blocks(tokens_BxS, segments_BxS, attended_BxS)
        if self.fused is not None and self.training and mask is None:
            y_BxKxH = self.fused(self._in_order, x_BxSxH, rotary_2xSxE, positions_BxK)
        else:
            *earlier, last = self._in_order
            for block in earlier:
                x_BxSxH = block(x_BxSxH, mask, rotary_2xSxE)
            y_BxKxH = last(x_BxSxH, mask, rotary_2xSxE, positions_BxK)
        normed_BxKxH: Tensor = self.final_norm(y_BxKxH)
        return normed_BxKxH

    def layers(
        self,
        tokens_BxS: Int[Tensor, "B S"],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
    ) -> list[Float[Tensor, "B S H"]]:
        """The L + 1 outputs of the embeddings and of every layer; the last includes pre-norm's final norm."""
        x_BxSxH, mask, rotary_2xSxE = self._before_blocks(tokens_BxS, segments_BxS, attended_BxS)
        outputs = [x_BxSxH]
        for block in self._in_order:
            outputs.append(block(outputs[-1], mask, rotary_2xSxE))
        return [*outputs[:-1], self.final_norm(outputs[-1])]

    def zero_residuals(self) -> None:
        """Zero the last products of attention and FFN, so that each block initially adds nothing."""
        for block in self.blocks:
            assert isinstance(block, Block)
            for product in (block.attention.output, block.feed_forward.outer):
                nn.init.zeros_(product.weight)

    @property
    def _in_order(self) -> list[Block]:
        return [cast("Block", self.blocks[block]) for block in self.block_of_layer]

    def _before_blocks(
        self, tokens_BxS: Int[Tensor, "B S"], segments_BxS: Int[Tensor, "B S"] | None, attended_BxS: Bool[Tensor, "B S"] | None
    ) -> tuple[Float[Tensor, "B S H"], Bool[Tensor, "B 1 1 S"] | None, Float[Tensor, "2 S E"] | None]:
        mask = None if attended_BxS is None else padding_mask(attended_BxS)
        rotary_2xSxE = None if self.rotary_2xPxE is None else self.rotary_2xPxE[:, : tokens_BxS.shape[1]]
        return self.embeddings(tokens_BxS, segments_BxS), mask, rotary_2xSxE


def at_positions(x_BxSxH: Float[Tensor, "B S H"], positions_BxK: Int[Tensor, "B K"]) -> Float[Tensor, "B K H"]:
    """The rows of each sequence at its positions."""
    _, length, width = x_BxSxH.shape
    chosen = x_BxSxH.reshape(-1, width).index_select(0, rows_at(positions_BxK, length))
    return chosen.view(*positions_BxK.shape, width)


def rows_at(positions_BxK: Int[Tensor, "B K"], length: int) -> Int[Tensor, " B*K"]:
    """The indices of each sequence's positions in the flattened batch."""
    first_Bx1 = torch.arange(len(positions_BxK), device=positions_BxK.device)[:, None] * length
    return (positions_BxK + first_Bx1).flatten()
