"""Presets: named defaults of architecture and recipe, which `base` overrides one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from study.base.errors import InputError, Problem
from study.base.schema import deep_merge, flatten
from study.counting.architecture import Architecture, changed

PresetName = Literal["bert", "modern", "modern2"]

_MODERN: Mapping[str, Mapping[str, Any]] = {
    "architecture": {"position_encoding": "rotary", "distance_bias": "learned"},
    "recipe": {"optimizer": "muon", "learning_rate": 4e-3, "masking": {"rate": 0.3}},
}
_SINCE_MODERN: Mapping[str, Mapping[str, Any]] = {
    "architecture": {"norm": "pre", "embedding_norm": True, "mlm_transform": "none"},
    "recipe": {"masking": {"rate": 0.4}},
}

PRESETS: Mapping[PresetName, Mapping[str, Mapping[str, Any]]] = {
    "bert": {},
    "modern": _MODERN,
    "modern2": deep_merge(_MODERN, _SINCE_MODERN),
}
"""The values of each preset by part of a run; `bert` has none, since all defaults are BERT's.

A preset never changes, so that a sweep file always means the same runs; improvements get a new name. `modern` holds what
lowered the loss most at equal tokens (docs/recipes.md): rotary positions (Su et al. 2021, arXiv:2104.09864), a learned distance
bias, 30% masks (Wettig et al. 2023, arXiv:2202.08005) and Muon (Jordan et al. 2024). `modern2` decodes without the MLM head's
transform, as NeoBERT does (Le Breton et al. 2025, arXiv:2502.19587), from pre-norm with a norm of the embeddings, and has 40%
masks.
"""

PRESET = "preset"
"""The key of the preset, also as a varied knob."""

PRESET_KNOBS = tuple(
    dict.fromkeys(knob for values in PRESETS.values() for knob in flatten(values) if knob != "recipe.learning_rate")
)
"""The knobs that some preset sets, except for the rate to begin with; their values tell the presets apart."""


def kind(name: str, option: str) -> Architecture:
    """Return the architecture that stands for the kind (norms, positions, activation) of a preset or named model.

    A preset's has BERT-Base's sizes. Raises InputError at `option` for an unknown name.
    """
    from study.counting.named_models import named, trained  # only these commands need them

    if name in PRESETS:
        return changed(named("bert-base"), PRESETS[cast("PresetName", name)].get("architecture", {}))
    try:
        return trained(name)
    except InputError as error:
        presets = f" (or a preset: {', '.join(PRESETS)})"
        raise InputError(Problem(f"{option} {each.place}", each.message + presets) for each in error.problems) from None
