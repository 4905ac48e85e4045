"""Trained weights for an encoder with fewer FFN neurons or narrower tables, without training.

Letters: N tokens or masked positions, H width, F FFN neurons, D and E old and new table width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from study.base.randomness import Stream, stream_seed
from study.config.run_config import RunConfig
from study.counting.architecture import Architecture
from study.data.batches import validation_masker
from study.data.masking import MaskedBatch
from study.data.prepared import PreparedData
from study.model.encoder import Block
from study.model.masked_language_model import MaskedLanguageModel

CALIBRATION_TOKENS = 2**16
"""The tokens of training text, evenly spread, that weigh neurons and directions."""

_BATCH_TOKENS = 4096
_TABLES = "encoder.embeddings."
_LINEAR_BEYOND = 6.0
"""A GELU passes numbers above this unchanged in fp32."""


def unshrinkable(given: Architecture, wanted: Architecture) -> str | None:
    """Why an encoder's weights cannot be made those of one with another ffn or table width; None if they can."""
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


def shrunk(weights: Mapping[str, Tensor], given: Architecture, config: RunConfig, prepared: PreparedData) -> dict[str, Tensor]:
    """The weights of `given` as those of the run's architecture: neurons left out first, then narrower tables."""
    wanted, shrinking = config.architecture, dict(weights)
    if given.ffn != wanted.ffn:
        shrinking = _pruned(shrinking, given, wanted.ffn, _Calibration(config, prepared))
        given = given.model_copy(update={"ffn": wanted.ffn})
    if given.table_width != wanted.table_width:
        shrinking = _factored(shrinking, given, wanted.table_width, _Calibration(config, prepared))
    return shrinking


@dataclass(frozen=True)
class _Calibration:
    """Training text masked as validation text is."""

    config: RunConfig
    prepared: PreparedData

    def __iter__(self) -> Iterator[MaskedBatch]:
        length, sequences = self.config.data.sequence_length, self.prepared.split("train")
        count = min(len(sequences), max(1, CALIBRATION_TOKENS // length))
        rows = np.linspace(0, len(sequences) - 1, count).round().astype(np.int64)
        masker, generator = validation_masker(self.config, self.prepared), torch.Generator()
        generator.manual_seed(stream_seed(Stream.MASKS, 0, 0))
        for batch in np.array_split(rows, max(1, count * length // _BATCH_TOKENS)):
            yield masker(torch.from_numpy(sequences.take(batch)), generator)


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
        """Add the inputs of an FFN's outer product, as its hook."""
        del layer
        activated_NxF = inputs[0].flatten(0, -2).double()
        self.count += len(activated_NxF)
        self.sum_F += activated_NxF.sum(0)
        self.squares_F += activated_NxF.square().sum(0)

    @property
    def mean(self) -> Float[Tensor, " F"]:
        """Mean outputs."""
        return self.sum_F / self.count

    @property
    def mean_square(self) -> Float[Tensor, " F"]:
        """Mean squared outputs."""
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
    for batch in batches:
        model.encoder(batch.tokens)
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
    least-squares fit of the old head's output by the encoder's, so large a bias that its activation passes it unchanged, and
    the new norm's scales and bias a fit in each direction: to be trained, or taken as it is.

    Source: weighted low-rank tables, Chen et al. 2018, arXiv:1806.06950, section 3; the shape is ALBERT's.
    """
    model, factored = _model(weights, given), dict(weights)
    seen_V = torch.ones(given.vocabulary, dtype=torch.float64)  # rows that were not seen count as once
    hidden: list[Tensor] = []
    for batch in batches:
        seen_V += torch.bincount(batch.tokens.flatten(), minlength=given.vocabulary)
        hidden.append(model.encoder(batch.tokens, positions_BxK=batch.positions).flatten(0, 1))
    tables = {name: weights[f"{_TABLES}{name}.weight"] for name in ("token", "position", "segment") if _has(weights, name)}
    shares = {"token": seen_V / seen_V.sum()}
    if "position" in tables:
        read, length = torch.zeros(given.positions, dtype=torch.float64), batches.config.data.sequence_length
        shares["position"] = read.index_fill(0, torch.arange(length), 1 / length)
    if "segment" in tables:
        shares["segment"] = torch.zeros(given.segments, dtype=torch.float64).index_fill(0, torch.tensor([0]), 1.0)
    gram_DxD = sum((_gram(tables[name], shares[name]) for name in tables), torch.zeros(()))
    directions_ExD = _directions(gram_DxD, width, constant=given.norms_embeddings)
    narrow = partial(_narrower, directions_ExD=directions_ExD)
    factored |= {f"{_TABLES}{name}.weight": narrow(table) for name, table in tables.items()}
    factored |= _projection(weights, given, directions_ExD)
    decoding_ExD = directions_ExD
    if (decoder_VxD := weights.get("head.decoder.weight")) is not None:
        decoding_ExD = _directions(_gram(decoder_VxD, shares["token"]), width, constant=False)
        factored["head.decoder.weight"] = _narrower(decoder_VxD, decoding_ExD)
    hidden_NxH = torch.cat(hidden)
    wanted_NxE = model.head.transformed(hidden_NxH).double() @ decoding_ExD.T
    return factored | _fitted_head(hidden_NxH.double(), wanted_NxE, given)


def _has(weights: Mapping[str, Tensor], table: str) -> bool:
    return f"{_TABLES}{table}.weight" in weights


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
    """The embedding norm without effect but norming, and the projection E → H with the old scales, bias and projection."""
    width, wide = directions_ExD.shape
    scales_D, bias_D = torch.ones(wide, dtype=torch.float64), torch.zeros(wide, dtype=torch.float64)
    new: dict[str, Tensor] = {}
    if given.norms_embeddings:
        scales_D = weights[f"{_TABLES}norm.weight"].double()
        new[f"{_TABLES}norm.weight"] = torch.ones(width)
        if given.norm_bias:
            bias_D = weights[f"{_TABLES}norm.bias"].double()
            new[f"{_TABLES}norm.bias"] = torch.zeros(width)
    weight_HxE, bias_H = scales_D[:, None] * directions_ExD.T, bias_D
    if given.embedding_width is not None:
        old_HxD = weights[f"{_TABLES}projection.weight"].double()
        weight_HxE, bias_H = old_HxD @ weight_HxE, old_HxD @ bias_D + weights[f"{_TABLES}projection.bias"].double()
    return new | {f"{_TABLES}projection.weight": weight_HxE.float(), f"{_TABLES}projection.bias": bias_H.float()}


def _fitted_head(hidden_NxH: Float[Tensor, "N H"], wanted_NxE: Float[Tensor, "N E"], given: Architecture) -> dict[str, Tensor]:
    """The transform and norm of the MLM head whose outputs are nearest to `wanted_NxE` among linear transforms."""
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
