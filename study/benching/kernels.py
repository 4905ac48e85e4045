"""The GPU kernels between matrix products, beside torch.compile's and the memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.testing import do_bench

from study.counting.architecture import Architecture
from study.counting.named_models import named
from study.counting.parameters import MASKING_RATE, masked_positions
from study.data.masking import IGNORED
from study.model import gpu_kernels as ours
from study.model.fused import attention_of
from study.model.layers import NORM_EPSILON, aligned_outputs

ROUNDS = 3
"""Rounds in which both sides alternate."""

COPIED = 2**28
"""Bytes of the copy that measures bandwidth, more than any cache holds."""

Tensors = tuple[Tensor, ...]
Division = Mapping[str, int]
"""A division of a kernel's work: argument values by name."""

BY_COLUMNS: tuple[Division, ...] = (
    {"rows": 16, "steps": 16},
    {"rows": 8, "columns": 256, "steps": 32},
    {"rows": 64, "columns": 64, "steps": 4},
    {"rows": 16, "columns": 256, "steps": 16, "warps": 8},
)
"""Divisions to try for kernels that sum columns."""


@dataclass(frozen=True)
class Sizes:
    """The tensor sizes of a model's training, with dtype and device."""

    model: Architecture
    sequences: int
    length: int
    dtype: torch.dtype
    device: str

    def drawn(self, *sizes: int) -> Tensor:
        """Return random numbers."""
        return torch.randn(sizes, device=self.device, dtype=self.dtype)

    def tokens(self, width: int) -> Tensor:
        """Return random numbers per token."""
        return self.drawn(self.sequences * self.length, width)


@dataclass(frozen=True)
class Kernel:
    """Our kernel, its plain torch equivalent, and the tensors that both must move.

    `run` takes one of `divisions` and returns the same as `plain`, which torch.compile compiles unless torch has a kernel.
    """

    name: str
    run: Callable[..., Tensors]
    plain: Callable[[], Tensors]
    moved: Tensors
    divisions: tuple[Division, ...]
    compiled: bool = True


def gelu(of: Sizes) -> Kernel:
    """GELU."""
    x = of.tokens(of.model.ffn)
    return Kernel(
        "GELU",
        run=lambda **division: (ours.gelu(x, **division),),
        plain=lambda: (F.gelu(x),),
        moved=(x, x),
        divisions=({"columns": 2048}, {"columns": 2048, "warps": 8}, {"columns": 512, "warps": 2}),
    )


def gelu_gradient(of: Sizes) -> Kernel:
    """Return the gradient of GELU, with the column sums for the preceding bias."""
    dy, x = of.tokens(of.model.ffn), of.tokens(of.model.ffn)
    return Kernel(
        "gradient of GELU",
        run=lambda **division: ours.gelu_gradient(dy, x, **division),
        plain=lambda: _with_sums(torch.ops.aten.gelu_backward(dy, x)),
        moved=(dy, x, x),
        divisions=({"stages": 1}, *BY_COLUMNS),
    )


def add_norm(of: Sizes) -> Kernel:
    """Return the norm after a residual sum."""
    width, dtype = of.model.width, of.dtype
    x, added, (added_bias, weight, bias) = of.tokens(width), of.tokens(width), torch.randn(3, width, device=of.device)
    return Kernel(
        "norm of a sum",
        run=lambda **division: (ours.add_norm(x, added, added_bias, weight, bias, NORM_EPSILON, **division).y,),
        plain=lambda: (F.layer_norm(x.float() + added.float() + added_bias, (width,), weight, bias, NORM_EPSILON).to(dtype),),
        moved=(x, added, x),
        divisions=({"block": 2048}, {"block": 2048, "warps": 2}, {"block": 4096, "warps": 4}, {"block": 4096, "warps": 8}),
    )


def add_norm_gradient(of: Sizes) -> Kernel:
    """Return the gradients of `add_norm`, from a gradient in two parts."""
    width, dtype = of.model.width, of.dtype
    dy, dy2, x, added = (of.tokens(width) for _ in range(4))
    added_bias, weight, bias = torch.randn(3, width, device=of.device)
    _, mean, scale = ours.add_norm(x, added, added_bias, weight, bias, NORM_EPSILON)

    def plain() -> Tensors:
        dy_in_all = dy.float() + dy2.float()
        deviation = (x.float() + added.float() + added_bias - mean[:, None]) * scale[:, None]
        inner = dy_in_all * weight
        along = (inner * deviation).mean(1, keepdim=True)
        dx = (inner - inner.mean(1, keepdim=True) - deviation * along) * scale[:, None]
        return dx.to(dtype), (dy_in_all * deviation).sum(0), dy_in_all.sum(0), dx.sum(0)

    return Kernel(
        "gradient of the norm of a sum",
        run=lambda **division: ours.add_norm_gradient(dy, dy2, x, added, added_bias, weight, mean, scale, **division),
        plain=plain,
        moved=(dy, dy2, x, added, x),
        divisions=(
            {"stages": 1},
            {"stages": 4},
            {"block": 1024, "programs": 5},
            {"block": 4096, "warps": 8, "programs": 1, "stages": 4},
        ),
    )


def attention_gradient(of: Sizes) -> Kernel:
    """Return the attention gradient for concatenated queries, keys and values, with its column sums."""
    heads, width = of.model.heads, of.model.width
    joint, dy = of.drawn(of.sequences, of.length, 3 * width), of.drawn(of.sequences, of.length, width)
    attended = attention_of(joint.requires_grad_(), heads)
    return Kernel(
        "gradient of attention",
        run=lambda **division: ours.attention_gradient(joint.detach(), dy, heads, **division),
        plain=lambda: _with_sums(*torch.autograd.grad(attended, joint, dy, retain_graph=True)),
        moved=(joint, dy, joint),
        divisions=({"stages": 2}, {"stages": 1}, {"stages": 1, "warps": 16}),
        compiled=False,
    )


def joined(of: Sizes) -> Kernel:
    """Return the concatenation of the three gradients of torch's attention kernel, for longer sequences."""
    query, key, value = parts = tuple(of.tokens(of.model.width) for _ in range(3))
    return Kernel(
        "three gradients side by side",
        run=lambda **division: ours.joined(query, key, value, **division),
        plain=lambda: _with_sums(torch.cat(parts, -1)),
        moved=(*parts, *parts),
        divisions=BY_COLUMNS,
    )


def cross_entropy(of: Sizes) -> Kernel:
    """Return the losses at masked positions."""
    vocabulary, (logits, labels) = of.model.vocabulary, _predictions(of)

    def plain() -> Tensors:
        numbers = logits[:, :vocabulary].float()
        normalisers = numbers.logsumexp(1)
        return normalisers - numbers.gather(1, labels[:, None])[:, 0], normalisers

    return Kernel(
        "cross-entropy",
        run=lambda **division: ours.cross_entropy(logits, labels, vocabulary, IGNORED, **division),
        plain=plain,
        moved=(logits,),
        divisions=({"columns": 4096, "warps": 8}, {"columns": 8192, "warps": 16}, {"columns": 1024, "warps": 1}),
    )


def cross_entropy_gradient(of: Sizes) -> Kernel:
    """Return the gradient of `cross_entropy`, which ours writes over the logits."""
    vocabulary, dtype, (logits, labels) = of.model.vocabulary, of.dtype, _predictions(of)
    _, normalisers = ours.cross_entropy(logits, labels, vocabulary, IGNORED)
    factor = torch.full((), 0.5, device=of.device)

    def run(**division: int) -> Tensors:
        sums = ours.write_cross_entropy_gradient(logits, labels, normalisers, factor, vocabulary, IGNORED, **division)
        return logits[:, :vocabulary], sums[:vocabulary]

    def plain() -> Tensors:
        is_label = torch.arange(vocabulary, device=labels.device) == labels[:, None]
        gradient = ((logits[:, :vocabulary].float() - normalisers[:, None]).exp() - is_label.float()) * factor
        return gradient.to(dtype), gradient.sum(0)

    return Kernel(
        "gradient of cross-entropy",
        run=run,
        plain=plain,
        moved=(logits, logits),
        divisions=({"rows": 16, "columns": 128}, {"warps": 8}, {"steps": 8}, {"rows": 8, "columns": 256}),
    )


KERNELS: tuple[Callable[[Sizes], Kernel], ...] = (
    gelu,
    gelu_gradient,
    add_norm,
    add_norm_gradient,
    attention_gradient,
    joined,
    cross_entropy,
    cross_entropy_gradient,
)
"""The kernels of study.model.gpu_kernels, in table order."""


def kernels(of: Sizes) -> Iterator[Kernel]:
    """Yield the kernels that training uses at these sizes."""
    taken = ours.holds_attention(torch.empty(of.sequences, of.length, of.model.width, device=of.device), of.model.heads)
    return (make(of) for make in KERNELS if taken or make is not attention_gradient)


def _with_sums(gradient: Tensor) -> Tensors:
    return gradient, gradient.flatten(0, -2).sum(0, dtype=torch.float32)


def _predictions(of: Sizes) -> tuple[Tensor, Tensor]:
    """Return random logits at masked positions, padded as in fused_cross_entropy, and labels."""
    logits = of.drawn(of.sequences * masked_positions(of.length, MASKING_RATE), aligned_outputs(of.model.vocabulary))
    return logits, torch.randint(of.model.vocabulary, (len(logits),), device=of.device)


def measured(kernel: Kernel, bytes_per_second: float) -> dict[str, Any]:
    """Return a kernel's row: its time, share of bandwidth, and plain torch's time over its own.

    The ratio is the median over alternating rounds. `divisions` are the seconds of other divisions, None if the GPU lacks
    resources.
    """
    plain = torch.compile(kernel.plain) if kernel.compiled else kernel.plain
    times = [(_seconds(kernel.run), _seconds(plain)) for _ in range(ROUNDS)]
    seconds, moved = median(mine for mine, _ in times), sum(tensor.nbytes for tensor in kernel.moved)
    return {
        "kernel": kernel.name,
        "seconds": seconds,
        "bytes": moved,
        "share_of_bandwidth": moved / seconds / bytes_per_second,
        "versus": median(theirs / mine for mine, theirs in times),
        "divisions": {_named(division): _seconds_divided(kernel, division) for division in kernel.divisions},
        "error": None,
    }


def _named(division: Division) -> str:
    return ", ".join(f"{name} {number}" for name, number in division.items())


def _seconds_divided(kernel: Kernel, division: Division) -> float | None:
    try:
        return _seconds(lambda: kernel.run(**division))
    except OutOfResources:
        return None


def _seconds(call: Callable[[], object]) -> float:
    """Return the median seconds of a GPU call with empty caches."""
    milliseconds: float = do_bench(call, return_mode="median")
    return milliseconds / 1000


def bandwidth() -> float:
    """Return the bytes per second that a large copy moves."""
    source = torch.ones(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPIED / _seconds(lambda: target.copy_(source))


def kernel_rows() -> list[dict[str, Any]]:
    """Return the rows of all kernels for BERT-Base at 256 x 128 tokens in bf16."""
    rate, sizes = bandwidth(), Sizes(named("bert-base"), 256, 128, torch.bfloat16, "cuda")
    return [measured(kernel, rate) for kernel in kernels(sizes)]
