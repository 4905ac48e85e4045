"""The weights of a wider or deeper encoder that computes what a smaller one does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from study.base.randomness import Stream, stream_seed
from study.config.named_runs import Grow
from study.counting.architecture import NOT_IN_MLM, Architecture
from study.model.masked_language_model import PAIR_HEAD, MaskedLanguageModel

UNEVEN = 0.5
"""The largest deviation, relative to the mean, that `uneven` draws for a weight before centring."""

MOST_EPSILON = 1e-7
"""The largest norm_epsilon with which norming twice is norming once."""

Axis = Literal["stream", "ffn", "table", "bias by distance"]
"""What is copied: the residual stream, also of the heads, the FFN's inner size, the token table, or a bias by distance."""

_ROWS: dict[str, tuple[Axis, int]] = {
    "query_key_value": ("stream", 3),
    "query_value_bias": ("stream", 2),
    "output": ("stream", 1),
    "outer": ("stream", 1),
    "inner": ("ffn", 1),
    "attention_norm": ("stream", 1),
    "feed_forward_norm": ("stream", 1),
    "final_norm": ("stream", 1),
    "projection": ("stream", 1),
    "transform": ("table", 1),
    "norm": ("table", 1),
    "distance_bias": ("bias by distance", 1),
}
"""The axis of the outputs of each layer, and the number of parts that are copied one by one."""

_COLUMNS: dict[str, Axis] = {
    "query_key_value": "stream",
    "output": "stream",
    "inner": "stream",
    "outer": "ffn",
    "transform": "stream",
    "decoder": "table",
}
"""The axis that each layer reads, whose copies share its weights."""

_TABLES = ("token", "position", "segment")
_BLOCK = re.compile(r"encoder\.blocks\.(\d+)\.(.+)")
_RESIDUAL = ("attention.output.", "feed_forward.outer.")


def ungrowable(given: Architecture, wanted: Architecture) -> str | None:
    """Why an encoder cannot grow into another that computes the same, in words that follow its name; None if it can."""
    fixed = [name for name in Architecture.model_fields if name not in (*NOT_IN_MLM, "depth", "width", "heads", "ffn")]
    if differ := [name for name in fixed if getattr(given, name) != getattr(wanted, name)]:
        differences = ", ".join(f"{name} {getattr(given, name)}, not {getattr(wanted, name)}" for name in differ)
        return f"has {differences}; growth changes depth, width, heads and ffn alone"
    sizes = [(each.depth, each.width, each.heads, each.ffn) for each in (given, wanted)]
    if sizes[0] == sizes[1]:
        return "has these sizes already; leave out grow"
    if wanted.depth < given.depth or wanted.ffn < given.ffn or wanted.width % given.width:
        return (
            f"has {given.depth} layers, width {given.width} and ffn {given.ffn}, which cannot grow into {wanted.shape_name}; "
            "give a multiple of the width, and no less of the others"
        )
    own = {"bottleneck_width": given.bottleneck_width, "ffn_stack": given.ffn_stack if given.ffn_stack > 1 else None}
    if of_mobilebert := [f"{name} {value}" for name, value in own.items() if value is not None]:
        return f"has {of_mobilebert[0]}; growth copies blocks of attention and one FFN at the encoder's width alone"
    if wanted.head_width != given.head_width:
        return f"has heads of width {given.head_width}, not {wanted.head_width}; a wider encoder has more heads, no wider ones"
    normed = given.norm == "post" and given.norm_kind != "affine"
    if wanted.depth > given.depth and normed and given.norm_epsilon > MOST_EPSILON:
        return (
            f"has norm_epsilon {given.norm_epsilon:g}, so that every further norm of a new layer in post-norm would shrink the "
            "stream; grow its width alone"
        )
    if wanted.depth > given.depth and given.layer_groups is not None:
        return f"has layer_groups {given.layer_groups}; layers that share their weights cannot begin as the identity"
    return None if wanted.width == given.width else _unwidenable(given)


def _unwidenable(given: Architecture) -> str | None:
    if given.relative or given.convolution_kernel or given.distance_bias == "alibi":
        by = "distance_bias alibi" if given.distance_bias == "alibi" else f"position_encoding {given.position_encoding}"
        return f"has {by}, whose scores would change with its width; grow its depth or ffn alone"
    if given.trigram_embedding or given.mlm_transform == "width":
        own = "trigram_embedding" if given.trigram_embedding else "mlm_transform width"
        return f"has {own}, whose product reads tables of two widths; grow its depth or ffn alone"
    if given.tied_decoder and given.mlm_transform == "none":
        return "has no MLM transform, so that its tied decoder would read every copy; grow its depth or ffn alone"
    return None


def grown(
    weights: Mapping[str, Tensor], given: Architecture, wanted: Architecture, grow: Grow, seed: int = 0
) -> dict[str, Tensor]:
    """The weights of a MaskedLanguageModel of the wanted sizes that predicts what one of the given sizes does.

    Number i of a wider axis copies number i mod its old size, so heads copy heads, and whatever reads c copies divides its
    weights by c (Net2WiderNet, Chen et al. 2016, arXiv:1511.05641, section 2.2; bert2BERT's FPI, Chen et al. 2022,
    arXiv:2110.07143, section 3.2); the norm before a tied decoder does so for it. `even` copies get equal gradients and stay
    equal without dropout. `uneven` draws the share of each weight, with the same sum: the function stays, and the copies part
    (LEMON, Wang et al. 2024, arXiv:2310.07999, section 4).

    New layers follow the old ones, which they copy in order (Gong et al. 2019, stacking), except that what they add to the
    residual stream starts at zero, so that in pre-norm each is the identity. In post-norm the old last norm's gains and biases
    move to the new last one, and the norms between begin as those of a fresh encoder: each norms what is normed already. A pair
    head starts afresh. See `ungrowable`.
    """
    widening = _Widening(given, wanted, grow, torch.Generator().manual_seed(stream_seed(Stream.GROWTH, seed)))
    wide = {name: widening.widened(name, tensor) for name, tensor in weights.items() if not name.startswith(PAIR_HEAD)}
    fresh = MaskedLanguageModel(wanted, seed=seed).state_dict()
    stacked = _stacked(wide, given.depth, wanted.depth)
    if given.norm == "post" and wanted.depth > given.depth:
        stacked |= _norms_moved_back(wide, fresh, given.depth, wanted.depth)
    return fresh | wide | stacked


def _stacked(weights: Mapping[str, Tensor], depth: int, wanted: int) -> dict[str, Tensor]:
    """The weights of the layers from `depth` to `wanted`, of no effect in pre-norm."""
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items() if wanted > depth else ():
        if (block := _BLOCK.fullmatch(name)) is not None:
            copied = torch.zeros_like(tensor) if block[2].startswith(_RESIDUAL) else tensor
            found |= {f"encoder.blocks.{new}.{block[2]}": copied for new in range(depth + int(block[1]), wanted, depth)}
    return found


def _norms_moved_back(weights: Mapping[str, Tensor], fresh: Mapping[str, Tensor], depth: int, wanted: int) -> dict[str, Tensor]:
    """The last norm of `depth` layers as that of `wanted`, and fresh norms from where it stood."""
    first, last = f"encoder.blocks.{depth - 1}.feed_forward_norm.", f"encoder.blocks.{wanted - 1}.feed_forward_norm."
    new = [f"encoder.blocks.{layer}.{norm}_norm." for layer in range(depth, wanted) for norm in ("attention", "feed_forward")]
    norms = {name: tensor for name, tensor in fresh.items() if name.startswith((first, *new))}
    return norms | {name.replace(first, last): tensor for name, tensor in weights.items() if name.startswith(first)}


class _Widening:
    """The copies of each axis of an encoder, and the shares of whatever reads them."""

    def __init__(self, given: Architecture, wanted: Architecture, grow: Grow, draw: torch.Generator) -> None:
        self.given, self.grow, self.draw = given, grow, draw
        biases = (given.heads * given.biased_distances, wanted.heads * wanted.biased_distances)
        self.sizes: dict[Axis, tuple[int, int]] = {
            "stream": (given.width, wanted.width),
            "ffn": (given.ffn, wanted.ffn),
            "table": (given.table_width, wanted.table_width),
            "bias by distance": biases,
        }

    def widened(self, name: str, tensor: Tensor) -> Tensor:
        """A parameter by name with copies of its outputs, and shared weights of the copies that it reads."""
        *_, layer, kind = name.split(".")
        layer = kind if kind == "query_value_bias" else layer
        if layer in _TABLES:
            return self._copied(tensor, 1, "table")
        if layer in _ROWS:
            axis, parts = _ROWS[layer]
            tensor = self._copied(tensor, 0, axis, 2 if layer == "inner" and self.given.gated else parts)
        if layer in _COLUMNS and kind == "weight":
            tensor = self._shared(tensor, _COLUMNS[layer])
        if name.startswith("head.norm.") and self.given.tied_decoder:
            before, after = self.sizes["table"]
            tensor = tensor * (before / after)
        return tensor

    def _copied(self, tensor: Tensor, dim: int, axis: Axis, parts: int = 1) -> Tensor:
        before, after = self.sizes[axis]
        if before == after:
            return tensor
        source = torch.arange(after) % before
        return tensor.index_select(dim, torch.cat([source + part * before for part in range(parts)]))

    def _shared(self, weight: Tensor, axis: Axis) -> Tensor:
        """The columns of a weight copied, each times its share."""
        before, after = self.sizes[axis]
        copied = self._copied(weight, 1, axis)
        if before == after:
            return copied
        source = torch.arange(after) % before
        copies = torch.bincount(source)[source]
        drawn = torch.zeros_like(copied)
        if self.grow == "uneven":
            drawn.uniform_(-UNEVEN, UNEVEN, generator=self.draw)
            drawn -= torch.zeros_like(weight).index_add(1, source, drawn).index_select(1, source) / copies
        return copied * (1 + drawn) / copies
