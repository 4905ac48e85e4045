"""Encoders with fewer layers from deeper ones that were trained: which layers are kept, and their weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from study.named_runs import Keep

_BLOCK = re.compile(r"encoder\.blocks\.(\d+)\.(.+)")


def kept_layers(depth: int, kept: int, keep: Keep) -> tuple[int, ...]:
    """The layers, from 0, that an encoder of `kept` layers has of one of `depth`.

    The first ones, since cutting off those nearest the output loses least (Sajjad et al. 2023, arXiv:2004.03844, top-layer
    dropping); the last ones; or round(i·(depth − 1)/(kept − 1)), and of one layer the first: six of 12 are 0, 2, 4, 7, 9 and
    11, as in DistilBERT (Sanh et al. 2019, arXiv:1910.01108, its scripts). Raises ValueError where there are fewer layers.
    """
    if not 1 <= kept <= depth:
        raise ValueError(f"{kept} layers cannot be kept of {depth}")
    match keep:
        case "first":
            return tuple(range(kept))
        case "last":
            return tuple(range(depth - kept, depth))
        case "spread":
            return tuple(int(layer) for layer in np.linspace(0, depth - 1, kept).round())


def cut(weights: Mapping[str, Tensor], layers: Sequence[int]) -> dict[str, Tensor]:
    """The weights of a MaskedLanguageModel with these layers alone, numbered anew; all else is kept."""
    places = {layer: place for place, layer in enumerate(layers)}
    found = {}
    for name, tensor in weights.items():
        if (block := _BLOCK.fullmatch(name)) is None:
            found[name] = tensor
        elif (place := places.get(int(block[1]))) is not None:
            found[f"encoder.blocks.{place}.{block[2]}"] = tensor
    return found
