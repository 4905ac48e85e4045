"""Encoders with fewer layers from deeper ones that were trained: the weights of the layers that are kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

_BLOCK = re.compile(r"encoder\.blocks\.(\d+)\.(.+)")


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
