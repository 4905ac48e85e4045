"""Presets: an architecture's and a recipe's defaults under one word, which `base` overrides value by value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

PresetName = Literal["bert", "modern"]

PRESETS: Mapping[PresetName, Mapping[str, Mapping[str, Any]]] = {
    "bert": {},
    "modern": {
        "architecture": {"position_encoding": "rotary", "distance_bias": "learned"},
        "recipe": {"optimizer": "muon", "learning_rate": 4e-3, "masking": {"rate": 0.3}},
    },
}
"""The values of each preset by part of a run; `bert` has none, since every default is BERT's.

A preset never changes, so that a sweep file always means the same runs: a better one gets a name of its own. `modern` holds
what lowered the loss most at equal tokens (docs/recipes.md): rotary positions (Su et al. 2021, arXiv:2104.09864), a learned
bias by distance, 30% masks (Wettig et al. 2023, arXiv:2202.08005) and Muon (Jordan et al. 2024).
"""
