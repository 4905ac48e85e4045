"""Where the time of a training step goes: its operations by kind, as torch's profiler sees them on a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PRODUCTS, BETWEEN = "products", "Python between the operations"
"""The matrix products of the layers and the head, and what is left of a step without its operations."""

_BY_NAME = {
    PRODUCTS: ("aten::mm", "aten::addmm", "aten::bmm", "_linear_pointwise"),
    "attention": ("scaled_dot_product",),
    "the optimiser": ("adamw", "_foreach_", "linalg_vector_norm", "clip_grad"),
}

Shares = dict[str, float]


def kind_of(name: str, shapes: Iterable[Sequence[int]], vocabulary: int) -> str:
    """The kind of an operation, by its name, or by whether it reads logits (…, V) or a token table (V, H)."""
    for kind, parts in _BY_NAME.items():
        if any(part in name.lower() for part in parts):
            return kind
    sizes = [tuple(shape) for shape in shapes if len(shape) > 1]
    if any(size[-1] == vocabulary for size in sizes):
        return "the loss over the logits"
    if "embedding" in name or any(size[0] == vocabulary for size in sizes):
        return "the token table"
    return "norms, GELU and sums"


def shares_of(seconds: Mapping[str, float], step_seconds: float) -> Shares:
    """The parts of a step by kind, the largest first; what the operations leave is Python's."""
    shares = {kind: spent / step_seconds for kind, spent in seconds.items()}
    shares[BETWEEN] = max(0.0, 1 - sum(shares.values()))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def seconds_by_kind(profile: Any, vocabulary: int, steps: int) -> dict[str, float]:
    """Seconds a step by kind, from a torch profile of some steps that kept the shapes."""
    found: dict[str, float] = {}
    for event in profile.key_averages(group_by_input_shape=True):
        if event.key.startswith(("aten::", "mkldnn::")):
            kind = kind_of(event.key, event.input_shapes, vocabulary)
            found[kind] = found.get(kind, 0.0) + event.self_cpu_time_total / 1e6 / steps
    return found


def explained(step: tuple[Shares, float], usual: tuple[Shares, float]) -> str:
    """How a step differs from a better one, each its shares and the part of the best rate that its products run at."""
    (spent, rate), (there, rate_there) = step, usual
    grown = max((kind for kind in spent if kind != PRODUCTS), key=lambda kind: spent[kind] - there.get(kind, 0.0))
    return (
        f"products take {spent[PRODUCTS]:.0%} of the step, at {rate:.0%} of their best rate, and {grown} {spent[grown]:.0%} "
        f"({there[PRODUCTS]:.0%}, {rate_there:.0%} and {there.get(grown, 0.0):.0%} there)"
    )
