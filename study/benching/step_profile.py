"""The time of a training step by kind of operation on a CPU or kernel on a GPU, from torch's profiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from study.counting.memory import Device

PRODUCTS, ATTENTION, REST = "products", "attention", "norms, GELU and sums"
"""The products of layers and head, attention with its own products, and the rest."""

BETWEEN: dict[Device, str] = {"cpu": "Python between the operations", "cuda": "the GPU idle between kernels"}
"""The time of a step outside operations or kernels."""

_OPERATIONS = {
    PRODUCTS: ("aten::mm", "aten::addmm", "_linear_pointwise"),
    ATTENTION: ("scaled_dot_product", "aten::bmm"),
    "the optimiser": ("adamw", "_foreach_", "linalg_vector_norm", "clip_grad"),
}

_KERNELS = {
    ATTENTION: ("flash", "fmha", "sdpa", "cudnn", "attention"),  # first, since flash's kernels also name the product library
    PRODUCTS: ("gemm", "nvjet", "cutlass", "splitk"),
    "the optimiser": ("adam", "multi_tensor_apply", "lpnorm"),
    "the loss over the logits": ("softmax", "nll_loss", "cross_entropy"),
    "the token table": ("embedding",),
    "the masks": ("topk", "sort", "distribution", "scatter_gather"),
}
"""Parts of CUDA kernel names: cuBLAS, cuDNN, flash attention, torch, and Inductor's fused kernels, which name their
operations."""


def kind_of(name: str, shapes: Iterable[Sequence[int]], vocabulary: int) -> str:
    """Classify an operation by name, or by inputs: logits (…, V) or a token table (V, H)."""
    if (kind := _named(name, _OPERATIONS)) != REST:
        return kind
    sizes = [tuple(shape) for shape in shapes if len(shape) > 1]
    if any(size[-1] == vocabulary for size in sizes):
        return "the loss over the logits"
    if "embedding" in name or any(size[0] == vocabulary for size in sizes):
        return "the token table"
    return REST


def kernel_kind(name: str) -> str:
    """Classify a CUDA kernel by name."""
    return _named(name, _KERNELS)


def _named(name: str, kinds: Mapping[str, Sequence[str]]) -> str:
    return next((kind for kind, parts in kinds.items() if any(part in name.lower() for part in parts)), REST)


def shares_of(seconds: Mapping[str, float], step_seconds: float, device: Device) -> dict[str, float]:
    """Return each kind's share of a step, largest first; the rest is Python, or an idle GPU.

    If the profiled step took longer, as on a busy machine, shares are of the profiled step.
    """
    whole = max(step_seconds, sum(seconds.values()))
    shares = {kind: of_kind / whole for kind, of_kind in seconds.items()}
    shares[BETWEEN[device]] = 1 - sum(shares.values())
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def seconds_by_kind(profile: Any, device: Device, vocabulary: int, steps: int) -> dict[str, float]:
    """Return seconds per step by kind, from a torch profile with shapes.

    Raises ValueError if it shows no matrix product.
    """
    seconds: dict[str, float] = {}
    for kind, microseconds in _kernels(profile) if device == "cuda" else _operations(profile, vocabulary):
        seconds[kind] = seconds.get(kind, 0.0) + microseconds / 1e6 / steps
    if PRODUCTS not in seconds:
        raise ValueError(f"the profile of {steps} steps names no matrix product")
    return seconds


def _operations(profile: Any, vocabulary: int) -> Iterator[tuple[str, float]]:
    for event in profile.key_averages(group_by_input_shape=True):
        if event.key.startswith(("aten::", "mkldnn::")):
            yield kind_of(event.key, event.input_shapes, vocabulary), event.self_cpu_time_total


def _kernels(profile: Any) -> Iterator[tuple[str, float]]:
    """Yield kind and microseconds of each CUDA kernel, including memory copies and fills."""
    for event in profile.events():
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            yield kernel_kind(event.name), event.time_range.elapsed_us()


def profile_sentence(shares: Mapping[str, float], rate: float) -> str:
    """Describe a step's shares, and its products' share of their best rate."""
    first = f"products take {shares[PRODUCTS]:.0%} of a step, at {rate:.0%} of their best rate"
    return ", ".join([first, *(f"{kind} {share:.0%}" for kind, share in shares.items() if kind != PRODUCTS)])
