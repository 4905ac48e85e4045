"""Parametrisations: how initial weights, learning rates, weight decay and epsilon scale with encoder size.

The forward pass has no factors. Those of residual branches (1 ÷ depth), logits (1 ÷ width) and attention scores (1 ÷ head
width) are folded into the weights, which start and move that much smaller. The steps of AdamW and Muon ignore the gradient's
scale, so both forms train identically (Yang and Hu 2021, arXiv:2011.14522, section 3.2), and a trained encoder needs no special
treatment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from study.config.recipe import BASE_FFN_RATIO, BASE_HEAD_WIDTH, Recipe
from study.counting.architecture import Architecture
from study.model.masked_language_model import MaskedLanguageModel


@dataclass(frozen=True)
class Scale:
    """The factors of a parameter's initial values, learning rate, weight decay and AdamW epsilon."""

    initial: float = 1.0
    rate: float = 1.0
    decay: float = 1.0
    epsilon: float = 1.0

    def folded(self, factor: float) -> Scale:
        """Return this scale with a factor of the forward pass folded in."""
        return Scale(self.initial * factor, self.rate * factor, self.decay / factor, self.epsilon / factor)


@dataclass(frozen=True)
class CompleteP:
    """CompleteP with α = 1 (Dey et al. 2025, arXiv:2505.01618, table 1), which is µP over the width.

    Ratios to the base encoder: m of the width, l of the depth, n of a matrix's inputs, h = head width ÷ BASE_HEAD_WIDTH. If all
    are 1, so is every scale. With learning rate η, weight decay λ and epsilon ε:

    - tables, norms and biases have η and ε/m, in a residual branch ε/(m·l); the bias of the logits has ε;
    - matrices under AdamW have deviation 0.02/√n, η/n, λ·n and the same ε; an untied decoder scales like a table;
    - matrices under Muon have deviation 0.02/√n, η and λ: a step of spectral norm √(outputs ÷ inputs) changes a layer's output
      equally at any width (Yang et al. 2023, arXiv:2310.17813; Large et al. 2024, arXiv:2405.14813). For a matrix wider than
      tall the rate adds what Muon's factor √max(1, outputs ÷ inputs) lacks, relative to the base;
    - a pair head's output has deviation 0.02/n, η/n, λ·n and ε, its pooler those of a matrix;
    - residual branches are divided by l, folded into attention's output and the FFN's outer product; attention scores by √h
      besides the root of the head width, with h^(−1/4) folded into query, key and value, and undone for the value in
      attention's output; logits by n of the decoder, folded into the norm before it. Without an MLM transform that is
      pre-norm's final norm, and a pair head's pooler, which reads it, too, multiplies by n.

    Dey et al. use pre-norm. In post-norm a block's norms act on the stream itself, and l times as many of them: η/l and ε/m.

    With `scaled_rates` the depth scales likewise, but the width only divides rates, as Everett et al. found best (2024,
    arXiv:2407.05872, standard parametrisation, table 1): matrices keep the deviation 0.02, the logits have no factor, and
    tables, which are the decoder, too, have η/n and λ·n. A step then moves the logits as far as in CompleteP.
    """

    architecture: Architecture
    base_width: int
    base_depth: int
    scaled_rates: bool = False

    @cached_property
    def width(self) -> float:
        """The width relative to the base."""
        return self.architecture.width / self.base_width

    @cached_property
    def depth(self) -> float:
        """The depth relative to the base."""
        return self.architecture.depth / self.base_depth

    def scale(self, name: str, muon: bool = False) -> Scale:
        """Return the scale of a MaskedLanguageModel's parameter by name; `muon` if Muon updates it."""
        *way, layer, kind = name.split(".")
        if layer == "head" or name == "pair_head.output.bias":
            return Scale()  # the bias of the logits
        if name == "pair_head.output.weight":
            return Scale(initial=1 / self.width, rate=1 / self.width, decay=self.width)
        if layer in ("attention_norm", "feed_forward_norm") and self.architecture.norm == "post":
            return Scale(rate=1 / self.depth, epsilon=1 / self.width)
        scale = Scale(epsilon=1 / (self.width * (self.depth if "blocks" in way else 1)))
        if kind == "weight" and (inputs := self._inputs.get(layer)) is not None:
            rate, decay = (self._spectral(layer), 1.0) if muon else (1 / inputs, inputs)
            scale = replace(scale, initial=1.0 if self.scaled_rates else inputs**-0.5, rate=rate, decay=decay)
        elif self.scaled_rates and layer in ("token", "position", "segment"):
            scale = replace(scale, rate=1 / self._table, decay=self._table)
        return scale.folded(self._factor(layer, kind, way))

    @cached_property
    def _inputs(self) -> dict[str, float]:
        """Each matrix's inputs relative to the base by layer, except the decoder's."""
        inner = self.architecture.ffn / (BASE_FFN_RATIO * self.base_width)
        whole = dict.fromkeys(("query_key_value", "output", "inner", "transform", "pooler"), self.width)
        return whole | {"outer": inner, "projection": self._table}

    @cached_property
    def _table(self) -> float:
        return self.architecture.table_width / self.base_width

    def _spectral(self, layer: str) -> float:
        """Return what Muon's factor √max(1, outputs ÷ inputs) lacks of √(outputs ÷ inputs), relative to the base."""
        a = self.architecture
        outputs, base = {"inner": (a.ffn / a.width, 1.0), "outer": (a.width / a.ffn, 1 / BASE_FFN_RATIO)}.get(layer, (1.0, 1.0))
        return math.sqrt(min(1.0, outputs) / base)

    def _factor(self, layer: str, kind: str, way: list[str]) -> float:
        """Return the factor of the forward pass that is folded into a parameter."""
        of_scores = math.pow(self.architecture.head_width / BASE_HEAD_WIDTH, -0.25)
        match layer:
            case "query_key_value" | "query_norm" | "key_norm":
                return of_scores
            case "output":
                return 1 / (self.depth * (of_scores if kind == "weight" else 1))
            case "outer":
                return 1 / self.depth
            case "norm" if way == ["head"] and not self.scaled_rates:
                return 1 / self._table
            case "final_norm" if self._final_norm_divides:
                return 1 / self.width
            case "pooler" if self._final_norm_divides and kind == "weight":
                return self.width
            case _:
                return 1.0

    @property
    def _final_norm_divides(self) -> bool:
        return self.architecture.mlm_transform == "none" and not self.scaled_rates


def scale_of(model: MaskedLanguageModel, recipe: Recipe, name: str, muon: bool = False) -> Scale:
    """Return the scale of a named parameter under a recipe's parametrisation."""
    if recipe.parametrization == "standard":
        return Scale()
    scaled_rates = recipe.parametrization == "scaled_rates"
    return CompleteP(model.architecture, recipe.base_width, recipe.base_depth, scaled_rates).scale(name, muon)


def fresh_model(architecture: Architecture, recipe: Recipe, seed: int) -> MaskedLanguageModel:
    """Return a model with a recipe's initial weights, unless it starts from another run."""
    model = MaskedLanguageModel(architecture, recipe.dropout, seed, recipe.initialisation, recipe.residual_initialisation)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if (scale := scale_of(model, recipe, name)) != Scale():
                parameter.mul_(scale.initial)
    return model
