"""Trained weights for another shape: a wider or deeper encoder that computes the same, fewer neurons, or narrower tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from study.base.randomness import Stream, stream_seed
from study.config.named_runs import Grow
from study.config.run_config import RunConfig
from study.counting.architecture import NOT_IN_MLM, Architecture
from study.data.batches import validation_masker
from study.data.masking import MaskedBatch
from study.data.prepared import PreparedData
from study.model.encoder import Block
from study.model.heads import PAIR_HEAD
from study.model.masked_language_model import DECODER_POSITIONS, MaskedLanguageModel

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
    """Why an encoder cannot grow into another that computes the same, in words that follow its name, if so."""
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
    if wanted.depth > given.depth and given.enhanced_mask_decoder:
        return "has enhanced_mask_decoder, which runs the last layer, one without effect if new; grow its width or ffn alone"
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
    """Return the weights of a MaskedLanguageModel of the wanted sizes that predicts what one of the given sizes does.

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
    """Return the weights of the layers from `depth` to `wanted`, of no effect in pre-norm."""
    copies: dict[str, Tensor] = {}
    for name, tensor in weights.items() if wanted > depth else ():
        if (block := _BLOCK.fullmatch(name)) is not None:
            copied = torch.zeros_like(tensor) if block[2].startswith(_RESIDUAL) else tensor
            copies |= {f"encoder.blocks.{new}.{block[2]}": copied for new in range(depth + int(block[1]), wanted, depth)}
    return copies


def _norms_moved_back(weights: Mapping[str, Tensor], fresh: Mapping[str, Tensor], depth: int, wanted: int) -> dict[str, Tensor]:
    """Return `depth` layers' last norm as that of `wanted`, and fresh norms between."""
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
        """Return a parameter with copies of its outputs, and shared weights of copied inputs."""
        *_, layer, kind = name.split(".")
        layer = kind if kind == "query_value_bias" else layer
        if name.startswith(DECODER_POSITIONS):
            return self._copied(tensor, 1, "stream")
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
        """Return the columns of a weight copied, each times its share."""
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


CALIBRATION_TOKENS = 2**16
"""The tokens of training text, evenly spread, that weigh neurons and directions."""

_BATCH_TOKENS = 4096
_EMBEDDINGS = "encoder.embeddings."
_LINEAR_BEYOND = 6.0
"""A GELU passes numbers above this unchanged in fp32."""


def unshrinkable(given: Architecture, wanted: Architecture) -> str | None:
    """Why an encoder's weights cannot be made those of one with another ffn or table width, if so."""
    for size, has, wants in (("ffn", given.ffn, wanted.ffn), ("embedding_width", given.table_width, wanted.table_width)):
        if has < wants:
            return f"has {size} {has}, less than {wants}; neurons and directions can only be left out"
    if given.ffn != wanted.ffn and (given.ffn_stack > 1 or given.bottleneck_width is not None):
        several = f"ffn_stack {given.ffn_stack}" if given.ffn_stack > 1 else f"bottleneck_width {given.bottleneck_width}"
        return f"has {several}; neurons are only left out of blocks with one FFN at the encoder's width"
    if given.table_width == wanted.table_width:
        return None
    if wanted.table_width < 2:
        return "has tables that can become no narrower than embedding_width 2"
    if given.trigram_embedding:
        return "has trigram_embedding, whose tables have two widths; leave embedding_width as it is"
    if not given.biased or given.norm_kind != "layer" or given.mlm_transform != "embedding_width":
        kind = f"norm_kind {given.norm_kind}, biases {given.biases} and mlm_transform {given.mlm_transform}"
        return f"has {kind}; tables are only made narrower between layer norms, with biases and BERT's MLM head"
    return None


def shrunk(
    weights: Mapping[str, Tensor],
    given: Architecture,
    config: RunConfig,
    prepared: PreparedData,
    tick: Callable[[], object] = lambda: None,
) -> dict[str, Tensor]:
    """Return the weights of `given` as those of the run's architecture: neurons left out first, then narrower tables.

    `tick` is called after every batch of text that weighs them.
    """
    wanted, shrinking, batches = config.architecture, dict(weights), _Calibration(config, prepared, tick)
    if given.ffn != wanted.ffn:
        shrinking = _pruned(shrinking, given, wanted.ffn, batches)
        given = given.model_copy(update={"ffn": wanted.ffn})
    if given.table_width != wanted.table_width:
        shrinking = _factored(shrinking, given, wanted.table_width, batches)
    return shrinking


@dataclass(frozen=True)
class _Calibration:
    """Training text masked as validation text is."""

    config: RunConfig
    prepared: PreparedData
    tick: Callable[[], object]

    def __iter__(self) -> Iterator[MaskedBatch]:
        length, sequences = self.config.data.sequence_length, self.prepared.with_unique_tokens(None).split("train")
        count = min(len(sequences), max(1, CALIBRATION_TOKENS // length))
        rows = np.linspace(0, len(sequences) - 1, count).round().astype(np.int64)
        masker, generator = validation_masker(self.config, self.prepared), torch.Generator()
        generator.manual_seed(stream_seed(Stream.MASKS, 0, 0))
        for batch in np.array_split(rows, max(1, count * length // _BATCH_TOKENS)):
            yield masker(torch.from_numpy(sequences.take(batch)), generator)
            self.tick()


def _model(weights: Mapping[str, Tensor], architecture: Architecture) -> MaskedLanguageModel:
    model = MaskedLanguageModel(architecture.model_copy(update={"pair_head": False}))
    model.load_trained(weights)
    return model.eval()


class _Moments:
    """Sums of each neuron's output and its square over tokens."""

    def __init__(self, neurons: int) -> None:
        self.count = 0
        self.sum_F: Tensor = torch.zeros(neurons, dtype=torch.float64)
        self.squares_F: Tensor = torch.zeros(neurons, dtype=torch.float64)

    def add(self, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        """Add the inputs of an FFN's outer product."""
        del layer
        activated_NxF = inputs[0].flatten(0, -2).double()
        self.count += len(activated_NxF)
        self.sum_F += activated_NxF.sum(0)
        self.squares_F += activated_NxF.square().sum(0)

    @property
    def mean(self) -> Float[Tensor, " F"]:
        return self.sum_F / self.count

    @property
    def mean_square(self) -> Float[Tensor, " F"]:
        return self.squares_F / self.count


@torch.no_grad()
def _pruned(weights: dict[str, Tensor], given: Architecture, kept: int, batches: _Calibration) -> dict[str, Tensor]:
    """Keep the neurons of each FFN whose fluctuation its output would miss most.

    A neuron's importance is Var(a)·‖o‖², with a its output on training text and o its column of the outer product; the mean of
    what is left out, E(a)·o, joins the bias. Without biases the importance is E(a²)·‖o‖².

    Source: FLAP, An et al. 2024, arXiv:2312.11983, sections 3.2 and 3.3, with as many neurons in each layer.
    """
    model, pruned = _model(weights, given), dict(weights)
    moments = [_Moments(given.ffn) for _ in model.encoder.blocks]
    for block, of_block in zip(model.encoder.blocks, moments, strict=True):
        assert isinstance(block, Block)
        block.feed_forward.outer.register_forward_pre_hook(of_block.add)
    read = model.hidden if given.enhanced_mask_decoder else model.encoder  # the decoder runs the last layer in its own way
    for batch in batches:
        read(batch.tokens)
    for number, of_block in enumerate(moments):
        name = f"encoder.blocks.{number}.feed_forward."
        outer_HxF = weights[f"{name}outer.weight"]
        spread_F = of_block.mean_square - (of_block.mean.square() if given.biased else 0)
        importance_F = spread_F * outer_HxF.double().square().sum(0)
        best = importance_F.argsort(descending=True, stable=True)
        chosen, left_out = best[:kept].sort().values, best[kept:]
        rows = torch.cat((chosen, chosen + given.ffn)) if given.gated else chosen
        pruned[f"{name}inner.weight"] = weights[f"{name}inner.weight"][rows]
        pruned[f"{name}outer.weight"] = outer_HxF[:, chosen].contiguous()
        if given.biased:
            pruned[f"{name}inner.bias"] = weights[f"{name}inner.bias"][rows]
            missing_H = outer_HxF[:, left_out].double() @ of_block.mean[left_out]
            pruned[f"{name}outer.bias"] = (weights[f"{name}outer.bias"].double() + missing_H).float()
    return pruned


@torch.no_grad()
def _factored(weights: dict[str, Tensor], given: Architecture, width: int, batches: _Calibration) -> dict[str, Tensor]:
    """Replace tables of width D by tables of width E with a projection, and fit the MLM head to what it then decodes.

    Tables are projected onto the E directions in which their rows, weighted by how often text reads them, are longest. One of
    these is constant over the width: the old norm, which subtracts it, then equals the new one with a projection of its scales
    and bias, so that the encoder's only error is what the directions miss. The head's product before the decoder becomes the
    least-squares fit of the old head's output by the encoder's, with so large a bias that its activation passes it unchanged;
    the new norm's scales and bias are fitted in each direction.

    Source: weighted low-rank tables, Chen et al. 2018, arXiv:1806.06950, section 3; the shape is ALBERT's.
    """
    model, factored = _model(weights, given), dict(weights)
    seen_V = torch.ones(given.vocabulary, dtype=torch.float64)  # rows that were not seen count as once
    hidden: list[Tensor] = []
    for batch in batches:
        seen_V += torch.bincount(batch.tokens.flatten(), minlength=given.vocabulary)
        hidden.append(model.hidden(batch.tokens, positions_BxK=batch.positions).flatten(0, 1))
    tables = {name: weights[f"{_EMBEDDINGS}{name}.weight"] for name in ("token", "position", "segment") if _has(weights, name)}
    shares = {"token": seen_V / seen_V.sum()}
    if "position" in tables:
        read, length = torch.zeros(given.positions, dtype=torch.float64), batches.config.data.sequence_length
        shares["position"] = read.index_fill(0, torch.arange(length), 1 / length)
    if "segment" in tables:
        shares["segment"] = torch.zeros(given.segments, dtype=torch.float64).index_fill(0, torch.tensor([0]), 1.0)
    gram_DxD = sum((_gram(tables[name], shares[name]) for name in tables), torch.zeros(()))
    directions_ExD = _directions(gram_DxD, width, constant=given.norms_embeddings)
    narrow = partial(_narrower, directions_ExD=directions_ExD)
    factored |= {f"{_EMBEDDINGS}{name}.weight": narrow(table) for name, table in tables.items()}
    factored |= _projection(weights, given, directions_ExD)
    decoding_ExD = directions_ExD
    if (decoder_VxD := weights.get("head.decoder.weight")) is not None:
        decoding_ExD = _directions(_gram(decoder_VxD, shares["token"]), width, constant=False)
        factored["head.decoder.weight"] = _narrower(decoder_VxD, decoding_ExD)
    hidden_NxH = torch.cat(hidden)
    wanted_NxE = model.head.transformed(hidden_NxH).double() @ decoding_ExD.T
    return factored | _fitted_head(hidden_NxH.double(), wanted_NxE, given)


def _has(weights: Mapping[str, Tensor], table: str) -> bool:
    return f"{_EMBEDDINGS}{table}.weight" in weights


def _gram(table_VxD: Float[Tensor, "V D"], shares_V: Float[Tensor, " V"]) -> Float[Tensor, "D D"]:
    rows_VxD = table_VxD.double()
    return rows_VxD.T @ (shares_V[:, None] * rows_VxD)


def _directions(gram_DxD: Float[Tensor, "D D"], width: int, constant: bool) -> Float[Tensor, "E D"]:
    """√(D/E) times E orthonormal directions, by which E numbers are read as D with the same mean square.

    With `constant`, one of them has equal components, and becomes the direction of equal components among the E numbers, so
    that means are kept too.
    """
    wide = len(gram_DxD)
    if not constant:
        longest_ExD: Tensor = torch.linalg.eigh(gram_DxD).eigenvectors[:, -width:].T
        return math.sqrt(wide / width) * longest_ExD
    equal_D = torch.full((wide,), wide**-0.5, dtype=torch.float64)
    equal_DxD = equal_D[:, None] * equal_D
    without_DxD = torch.eye(wide, dtype=torch.float64) - equal_DxD
    longest_DxE = torch.linalg.eigh(without_DxD @ gram_DxD @ without_DxD - equal_DxD).eigenvectors[:, wide - width + 1 :]
    orthonormal_ExD = torch.cat((longest_DxE.T, equal_D[None]))
    mirror_E = torch.full((width,), -(width**-0.5), dtype=torch.float64)  # maps the last unit vector to equal components
    mirror_E[-1] += 1
    reflected = 2 * mirror_E[:, None] * (mirror_E @ orthonormal_ExD) / mirror_E.square().sum()
    return math.sqrt(wide / width) * (orthonormal_ExD - reflected)


def _narrower(table_VxD: Float[Tensor, "V D"], directions_ExD: Float[Tensor, "E D"]) -> Float[Tensor, "V E"]:
    width, wide = directions_ExD.shape
    return (width / wide * table_VxD.double() @ directions_ExD.T).float()


def _projection(weights: Mapping[str, Tensor], given: Architecture, directions_ExD: Float[Tensor, "E D"]) -> dict[str, Tensor]:
    """Return an embedding norm that only norms, and the projection E → H with the old scales and bias."""
    width, wide = directions_ExD.shape
    scales_D, bias_D = torch.ones(wide, dtype=torch.float64), torch.zeros(wide, dtype=torch.float64)
    new: dict[str, Tensor] = {}
    if given.norms_embeddings:
        scales_D = weights[f"{_EMBEDDINGS}norm.weight"].double()
        new[f"{_EMBEDDINGS}norm.weight"] = torch.ones(width)
        if given.norm_bias:
            bias_D = weights[f"{_EMBEDDINGS}norm.bias"].double()
            new[f"{_EMBEDDINGS}norm.bias"] = torch.zeros(width)
    weight_HxE, bias_H = scales_D[:, None] * directions_ExD.T, bias_D
    if given.embedding_width is not None:
        old_HxD = weights[f"{_EMBEDDINGS}projection.weight"].double()
        weight_HxE, bias_H = old_HxD @ weight_HxE, old_HxD @ bias_D + weights[f"{_EMBEDDINGS}projection.bias"].double()
    return new | {f"{_EMBEDDINGS}projection.weight": weight_HxE.float(), f"{_EMBEDDINGS}projection.bias": bias_H.float()}


def _fitted_head(hidden_NxH: Float[Tensor, "N H"], wanted_NxE: Float[Tensor, "N E"], given: Architecture) -> dict[str, Tensor]:
    """Return the MLM head's transform and norm, the linear ones with outputs nearest to `wanted_NxE`."""
    ones_Nx1 = torch.ones(len(hidden_NxH), 1, dtype=torch.float64)
    inputs = torch.cat((hidden_NxH, ones_Nx1), 1)
    solved = torch.linalg.lstsq(inputs, wanted_NxE, driver="gelsd").solution
    transformed_NxE = inputs @ solved
    lift = _LINEAR_BEYOND + 2 * float(transformed_NxE.abs().max())
    centred_NxE = transformed_NxE - transformed_NxE.mean(1, keepdim=True)
    normed_NxE = centred_NxE / (centred_NxE.square().mean(1, keepdim=True) + given.norm_epsilon).sqrt()
    mean_E = normed_NxE.mean(0) if given.norm_bias else torch.zeros(len(solved.T), dtype=torch.float64)
    around_NxE = normed_NxE - mean_E
    scales_E = (around_NxE * wanted_NxE).sum(0) / around_NxE.square().sum(0)
    head = {
        "transform.weight": solved[:-1].T.contiguous(),
        "transform.bias": solved[-1] + lift,
        "norm.weight": scales_E,
    }
    if given.norm_bias:
        head["norm.bias"] = wanted_NxE.mean(0) - scales_E * mean_E
    return {f"head.{name}": tensor.float() for name, tensor in head.items()}
