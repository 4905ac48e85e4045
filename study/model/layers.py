"""The layers that an encoder is made of: linear layers, norms, dropout and embeddings, and products in bf16 of weights in fp32.

oneDNN computes the products of linear layers on a CPU; on a GPU they are aligned. MKL, torch's default for fp32 on a CPU, is
fast only on Intel processors. On an AMD EPYC oneDNN computed x·Wᵀ 1.35 times and the gradient by x 1.3 times as fast. MKL stays
faster for the gradient by W, except for a decoder (more outputs than input rows), and on EPYCs from Zen 5 on (oneDNN 200
GFLOP/s a core, MKL 100).

Letters: H inputs or width, F outputs, B sequences, S tokens, E embedding width, D the width of an embedding's sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from study.base.machine import processor_line
from study.counting.architecture import Architecture
from study.counting.memory import Device, Precision

LEAST_PRODUCTS = 2**25
"""The fewest multiplications for which oneDNN pays; calling it takes torch some 0.1 ms longer."""

ZEN_5 = 26
"""The CPU family of Zen 5."""

ALIGNED = 8
"""The outputs of a product on a GPU are a multiple of this, 16 bytes in bf16."""

NORM_EPSILON = 1e-12
"""BERT's epsilon, that of the kernels."""

MASKS_IN_TRAINING = 0.15 * 0.8
"""The share of masks in the sequences that ESM-2 was trained on."""

DRAWS = 2**16
"""The values of a draw on a CPU: a quarter of a random 64-bit word."""


class Products(nn.Module):
    """The kernel of products x·Wᵀ + b, whose weights are a layer's own or a tied table.

    If `onednn` is set, oneDNN computes large fp32 products on a CPU outside autocast; the two differ in the last bits.
    `rounded`, if set, computes all products instead (study.model.stored_weights).
    """

    onednn = False
    rounded: Callable[[Tensor, Tensor, Tensor | None], Tensor] | None = None

    def multiply(
        self, x: Float[Tensor, "*positions H"], weight_FxH: Float[Tensor, "F H"], bias_F: Float[Tensor, " F"] | None
    ) -> Float[Tensor, "*positions F"]:
        """x·Wᵀ + b."""
        if self.rounded is not None:
            return self.rounded(x, weight_FxH, bias_F)
        if self.onednn and _onednn_applies(x, weight_FxH):
            product: Tensor = _Product.apply(x, weight_FxH, bias_F)  # type: ignore[no-untyped-call]
            return product
        if x.device.type == "cuda" and torch.compiler.is_compiling():
            return aligned_product(x, weight_FxH, bias_F)
        return F.linear(x, weight_FxH, bias_F)


class Linear(Products, nn.Linear):
    """`nn.Linear` by the kernel of Products; `matrices` counts the equally sized matrices that the weight stacks."""

    matrices = 1

    def forward(self, x: Float[Tensor, "*positions H"]) -> Float[Tensor, "*positions F"]:
        """x·Wᵀ + b."""
        return self.multiply(x, self.weight, self.bias)


def multiply_through_onednn(module: nn.Module) -> None:
    """Let oneDNN compute all products of a module."""
    for each in module.modules():
        if isinstance(each, Products):
            each.onednn = True


def _onednn_applies(x: Tensor, weight: Tensor) -> bool:
    on_cpu = x.device.type == weight.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    return on_cpu and x.dtype == weight.dtype == torch.float32 and x.numel() * len(weight) >= LEAST_PRODUCTS


def aligned_outputs(outputs: int) -> int:
    """Return the next multiple of ALIGNED."""
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
    """Return the gradient of x·Wᵀ by W, in fp32, the precision of a GPU's sums."""
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
    """Return the gradient by W, by the faster library: for BERT's decoder oneDNN was 1.1 to 1.6 times as fast as MKL.

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
        """Return the norm of x, or of x + `added`, in the weight's precision, for which torch has a fused kernel."""
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
    """Return a norm of an architecture's kind; where it must normalise, a LayerNorm stands in for an affine map."""
    if architecture.norm_kind == "rms":
        return RMSNorm(width, eps=architecture.norm_epsilon)
    if architecture.norm_kind == "affine" and not normalises:
        return Affine(width, architecture.norm_bias)
    return LayerNorm(width, eps=architecture.norm_epsilon, bias=architecture.norm_bias)


def rounds(x: Tensor) -> bool:
    """Whether results are rounded to autocast's precision; on a CPU conversion costs as much as it saves."""
    return x.device.type == "cuda" and torch.is_autocast_enabled("cuda")


class Dropout(nn.Dropout):
    """`nn.Dropout`, by `drop`."""

    def forward(self, x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        """Drop numbers in training only."""
        return drop(x, self.p if self.training else 0.0)


def drop(x: Float[Tensor, "*any"], rate: float) -> Float[Tensor, "*any"]:
    """Scale each number by 1 ÷ (1 − rate) or zero it, independently; at rate 0 return x itself.

    On a CPU the rate, also in the scale, is rounded to a multiple of 1 ÷ DRAWS. torch draws one by one there, at 6 ns each, a
    quarter of a step; draws of 16 bits take a seventh of that. Source: Srivastava et al. 2014, "Dropout", scaled in training
    instead of evaluation.
    """
    if not rate or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    return x * _kept_scales(x, min(round(rate * DRAWS), DRAWS - 1))


def _kept_scales(x: Tensor, dropped: int) -> Tensor:
    """Return the factor of each number of x, zero for `dropped` of DRAWS draws."""
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    draws = words.view(torch.int16)[: x.numel()].view(x.shape)
    kept = torch.ge(draws, dropped - DRAWS // 2, out=torch.empty(x.shape, dtype=x.dtype))
    return kept.mul_(DRAWS / (DRAWS - dropped))


def seed_dropout(device: torch.device, seed: int) -> None:
    """Seed one device's generator; `torch.manual_seed` seeds all devices, which takes a millisecond on a CPU."""
    (torch.cuda.manual_seed if device.type == "cuda" else torch.default_generator.manual_seed)(seed)


class Embeddings(nn.Module):
    """The sum of the token, position and segment tables, a norm (optional in pre-norm), dropout and projection.

    The projection is ALBERT's (Lan et al. 2020, arXiv:1909.11942, section 3.1): tables of width E, then E → H. That of trigrams
    reads the next, this and the previous token, 3E → H, zeros at padding and beyond the ends, and precedes the sum, whose other
    tables then have width H (MobileBERT, Sun et al. 2020, arXiv:2004.02984, section 3.1). The residual
    stream starts in its final precision, the tables' in pre-norm and the norms' in post-norm, so that every layer reads one
    dtype and is compiled once. A generator reads the tables and norm `of` its discriminator (ELECTRA, Clark et al. 2020,
    arXiv:2003.10555, section 3.2), which alone lists them as its weights.
    """

    def __init__(self, architecture: Architecture, dropout: float, of: Embeddings | None = None) -> None:
        super().__init__()
        a = architecture
        width = a.summed_width
        self.pre_norm, self.trigrams, self.dropped = a.norm == "pre", a.trigram_embedding, a.token_dropout
        self._of = None if of is None else (of,)  # torch would list the weights of a bare module
        if of is None:
            self.token = nn.Embedding(a.vocabulary, a.table_width)
            self.position = nn.Embedding(a.positions, width) if a.position_encoding == "learned" else None
            self.segment = nn.Embedding(a.segments, width) if a.segments else None
            self.norm = norm(a, width) if a.norms_embeddings else nn.Identity()
        self.dropout = Dropout(dropout)
        read = a.table_width * (3 if a.trigram_embedding else 1)
        self.projection = None if read == a.width and not a.trigram_embedding else Linear(read, a.width, bias=a.biased)

    def forward(
        self,
        tokens_BxS: Int[Tensor, "B S"],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B S H"]:
        """Embed tokens; without `segments_BxS` all belong to segment 0."""
        tables = self if self._of is None else self._of[0]
        embedded_BxSxD: Tensor = tables.token(tokens_BxS)
        if self.dropped is not None:
            embedded_BxSxD = without_masks(embedded_BxSxD, tokens_BxS == self.dropped, attended_BxS)
        if self.trigrams and self.projection is not None:
            embedded_BxSxD = self.projection(trigrams(embedded_BxSxD, attended_BxS))
        offsets: list[Tensor] = []  # equal for all sequences; summed before broadcasting
        if tables.position is not None:
            offsets.append(tables.position.weight[: tokens_BxS.shape[1]])
        if tables.segment is not None and segments_BxS is not None:
            embedded_BxSxD = embedded_BxSxD + tables.segment(segments_BxS)
        elif tables.segment is not None:
            offsets.append(tables.segment.weight[0])
        if offsets:
            embedded_BxSxD = embedded_BxSxD + functools.reduce(torch.add, offsets)
        normed_BxSxD: Tensor = self.dropout(tables.norm(embedded_BxSxD))
        last = None if self.trigrams else self.projection
        stream_BxSxH: Tensor = normed_BxSxD if last is None else last(normed_BxSxD)
        return stream_BxSxH.to(embedded_BxSxD.dtype if self.pre_norm else normed_BxSxD.dtype)


def without_masks(
    x_BxSxD: Float[Tensor, "B S D"], masks_BxS: Bool[Tensor, "B S"], attended_BxS: Bool[Tensor, "B S"] | None
) -> Float[Tensor, "B S D"]:
    """Zeros at masks, and elsewhere x · (1 − MASKS_IN_TRAINING) ÷ (1 − share of masks among the attended tokens)."""
    masks_B, length = masks_BxS.sum(1), masks_BxS.shape[1]
    length_B = torch.full_like(masks_B, length) if attended_BxS is None else attended_BxS.sum(1)
    scale_B = (1 - MASKS_IN_TRAINING) * length_B / (length_B - masks_B).clamp(min=1)
    return x_BxSxD.masked_fill(masks_BxS[..., None], 0.0) * scale_B[:, None, None].to(x_BxSxD.dtype)


def trigrams(x_BxSxE: Float[Tensor, "B S E"], attended_BxS: Bool[Tensor, "B S"] | None) -> Float[Tensor, "B S 3*E"]:
    """Return the embeddings of the next, this and the previous token of each, zeros at padding and beyond the ends."""
    seen_BxSxE = x_BxSxE if attended_BxS is None else x_BxSxE * attended_BxS[..., None]
    return torch.cat((F.pad(seen_BxSxE[:, 1:], (0, 0, 0, 1)), seen_BxSxE, F.pad(seen_BxSxE[:, :-1], (0, 0, 1, 0))), -1)


def initialise_unit_stream(embeddings: Embeddings) -> None:
    """Draw the projection of narrower tables, if any, with deviation 1/√E.

    The residual stream then starts with the embedding norm's unit variance; weights of deviation 0.02 would reduce it to
    0.0004·E. The projection of trigrams precedes the norm, and stays.
    """
    if (projection := embeddings.projection) is not None and not embeddings.trigrams:
        nn.init.normal_(projection.weight, std=projection.in_features**-0.5)


def initialise(module: nn.Module) -> None:
    """BERT's initialisation of one module: weights normal with deviation 0.02, biases zero, norms one and zero."""
    match module:
        case nn.Linear() | nn.Conv1d():
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        case nn.Embedding():
            nn.init.normal_(module.weight, std=0.02)
        case nn.LayerNorm() | nn.RMSNorm() | Affine():
            nn.init.ones_(module.weight)
            if (bias := getattr(module, "bias", None)) is not None:
                nn.init.zeros_(bias)


def padding_mask(attended_BxS: Tensor) -> Tensor:
    """Return a boolean mask over keys, (B, 1, 1, S), that excludes padding."""
    return attended_BxS.to(torch.bool)[:, None, None, :]


def autocast(device: str, precision: Precision) -> torch.autocast:
    """Run products in the block in bf16 if that is the precision."""
    return torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")


def multiplies_in_bf16(device: Device) -> bool:
    """Whether a device multiplies in bf16 natively: a GPU without emulation, or a CPU with AVX512-BF16."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported())


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a tensor's products."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
