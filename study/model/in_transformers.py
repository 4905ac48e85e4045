"""Conversion of a trained model to the equivalent class of transformers, and back.

Letters: E half of the head width.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from study.base.errors import InputError, Problem
from study.counting.architecture import Architecture, unbuildable
from study.data.tokenizing import SpecialTokens
from study.model.encoder import rotary_table
from study.model.masked_language_model import PAIR_HEAD, MaskedLanguageModel
from study.model.transformers_classes import TransformersClass, class_for, class_in

_JOINT, _PARTS = "query_key_value", ("query", "key", "value")
"""One product here, three in most classes of transformers."""

_BLOCK = re.compile(r"encoder\.blocks\.(\d+)\.")
_TOKENS, _SEGMENTS = "encoder.embeddings.token.weight", "encoder.embeddings.segment.weight"
_BY_PIECE = (_TOKENS, "head.decoder.weight", "head.bias")
"""The weights that have a row for each piece of the vocabulary."""


def their_config(architecture: Architecture, special: SpecialTokens, dropout: float = 0.0) -> dict[str, Any]:
    """The config.json for `class_for(architecture)`."""
    a, family = architecture, class_for(architecture)
    values: dict[str, Any] = {"architectures": [family.name_for(a)], "model_type": family.model_type}
    plain = {"embedding_width": a.table_width, "layer_groups": a.groups, "segments": 1}
    values |= {theirs: getattr(a, ours) or plain.get(ours, False) for theirs, ours in family.fields.items()}
    values |= {family.activation: family.activations[a.activation], "initializer_range": 0.02}
    values |= family.usual | dict.fromkeys(family.dropouts, dropout)
    if a.segments and not family.has_segments:
        values["tie_word_embeddings"] = False
    ids = {"pad": special.pad, "mask": special.mask, "cls": special.cls, "sep": special.sep}
    ids |= {"bos": special.cls, "eos": special.sep}
    return values | {f"{piece}_token_id": ids[piece] for piece in family.special}


def their_weights(state: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """The weights of a MaskedLanguageModel under the names of `class_for(architecture)`, with the rest of its state.

    If the class has no segments, the first segment's row is added to each token, and the decoder keeps the original tokens. A
    pair head is left out if no class has one.
    """
    a, family = architecture, class_for(architecture)
    ours: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(PAIR_HEAD) and family.pretraining is None:
            continue
        pieces = _pieces(name, family)
        ours |= dict(zip(pieces, tensor.chunk(len(pieces)), strict=True))
    if a.segments and not family.has_segments:
        tokens, segments = ours[_TOKENS], ours.pop(_SEGMENTS)
        ours = {"head.decoder.weight": tokens} | ours | {_TOKENS: tokens + segments[0]}
    if family.has_segments and not a.segments:
        ours[_SEGMENTS] = torch.zeros(1, ours[_TOKENS].shape[1])
    if not a.tied_decoder and family.model_type != "esm":  # ESM's decoder has no bias
        ours["head.decoder.bias"] = ours["head.bias"]
    more: dict[str, Tensor] = {}
    match family.model_type:
        case "roformer":
            ours |= {name: _neighbours(rows, a.heads) for name, rows in ours.items() if _is_rotated(name)}
            cosine, sine = rotary_table(a.positions, a.head_width)
            more["roformer.encoder.embed_positions.weight"] = torch.cat((sine, cosine), -1)
        case "esm":
            more["esm.rotary_embeddings.inv_freq"] = 10_000.0 ** (-torch.arange(0, a.head_width, 2) / a.head_width)
            more["esm.contact_head.regression.weight"] = torch.zeros(1, a.depth * a.heads)
            more["esm.contact_head.regression.bias"] = torch.zeros(1)
    ours |= _always_there(a, family)
    return {_their_name(name, family): tensor for name, tensor in ours.items()} | more


def our_architecture(config: Mapping[str, Any], place: str) -> Architecture:
    """The architecture of a config.json, with its class's defaults.

    Raises InputError, at `place`, if nothing built here computes the same.
    """
    family = class_in(config, place)
    given = _with_defaults(config, family)
    activations = {theirs: ours for ours, theirs in family.activations.items()}
    values: dict[str, Any] = {} if family.has_segments else {"segments": 0}
    values |= {ours: given[theirs] for theirs, ours in family.fields.items() if theirs in given}
    values |= family.kind | {"activation": activations.get(str(given.get(family.activation)), next(iter(family.activations)))}
    if _is_local(given, family):
        values["attention_window"] = given.get("local_attention", 128)
    try:
        architecture = Architecture.parse(values, place=place)
    except InputError as error:
        renamed = {f"{place}.{ours}": f"{place}.{theirs}" for theirs, ours in family.fields.items()}
        raise InputError(Problem(renamed.get(each.place, each.place), each.message) for each in error.problems) from None
    unlike = {name: (getattr(architecture, name), has) for name, has in family.unlike(architecture).items()}
    if differ := _unusual(given, family) | unlike:
        raise InputError(
            Problem(place, f"has {name} {value}; only {has} is supported") for name, (value, has) in differ.items()
        )
    if problem := unbuildable(architecture):
        raise InputError.at(place, problem)
    return architecture


def _with_defaults(config: Mapping[str, Any], family: TransformersClass) -> dict[str, Any]:
    """A config.json with its class's defaults; ModernBERT's angles get the names of its first releases."""
    given = family.left_out | {name: value for name, value in config.items() if value is not None}
    angles = given.get("rope_parameters")
    each = angles.get("full_attention") if isinstance(angles, dict) else given.get("rope_scaling")
    if isinstance(each, dict):
        plain = each.get("rope_type", each.get("type", "default")) == "default"
        given["global_rope_theta"] = each.get("rope_theta", given.get("global_rope_theta")) if plain else each
    return given


def _is_local(given: Mapping[str, Any], family: TransformersClass) -> bool:
    """Whether some layers limit attention to neighbours, as two of three layers of ModernBERT do."""
    if isinstance(layers := given.get("layer_types"), list):
        return any(layer != "full_attention" for layer in layers)
    return family.model_type == "modernbert" and given.get("global_attn_every_n_layers", 3) != 1


def _unusual(given: Mapping[str, Any], family: TransformersClass) -> dict[str, tuple[Any, str]]:
    usual = {name: (value,) for name, value in family.usual.items()} | {family.activation: tuple(family.activations.values())}
    if "embedding_size" not in family.fields:
        usual["embedding_size"] = (given.get("hidden_size"),)
    values = {name: (given.get(name, allowed[0]), allowed) for name, allowed in usual.items()}
    return {name: (value, " or ".join(map(str, allowed))) for name, (value, allowed) in values.items() if value not in allowed}


def our_weights(
    theirs: Mapping[str, Tensor], architecture: Architecture, family: TransformersClass, place: str
) -> dict[str, Tensor]:
    """The fp32 weights of a MaskedLanguageModel of this architecture, from a class of transformers.

    Other weights, such as a pooler's, are ignored; norms may have TensorFlow's names. An untied decoder's bias replaces the
    head's, as in BERT. Raises InputError, at `place`, if a weight is missing or of another size, or if ALBERT maps embeddings
    as wide as the blocks.
    """
    there = {name.replace(".gamma", ".weight").replace(".beta", ".bias"): tensor.float() for name, tensor in theirs.items()}
    bias, decoders_bias = (_their_name(name, family) for name in ("head.bias", "head.decoder.bias"))
    if not architecture.tied_decoder and decoders_bias in there:
        there[bias] = there[decoders_bias]
    with torch.device("meta"):
        wanted = MaskedLanguageModel(architecture).state_dict()
    weights: dict[str, Tensor] = {}
    for name, meta in wanted.items():
        pieces = _pieces(name, family)
        names = [_their_name(piece, family) for piece in pieces]
        if missing := [each for each in names if each not in there]:
            raise InputError.at(
                place, f"holds no {missing[0]}; an encoder with its MLM head is needed, as {family.name} saves it"
            )
        tensors = [there[each] for each in names]
        if family.model_type == "roformer":
            pairs = zip(pieces, tensors, strict=True)
            tensors = [_halves(rows, architecture.heads) if _is_rotated(piece) else rows for piece, rows in pairs]
        weights[name] = torch.cat(tensors)
        if weights[name].shape != meta.shape:
            sizes = " x ".join(map(str, tensors[0].shape))
            raise InputError.at(place, f"holds {names[0]} of {sizes}, unlike its config.json")
    for name, plain in _always_there(architecture, family).items():
        if not torch.equal(there.get(their := _their_name(name, family), plain), plain):
            raise InputError.at(place, f"holds {their} between tables and blocks of one width, which is not supported")
    return weights


def cut_vocabulary(weights: Mapping[str, Tensor], pieces: int) -> dict[str, Tensor]:
    """The weights of a MaskedLanguageModel for the first pieces of its vocabulary alone."""
    return {name: tensor[:pieces].clone() if name in _BY_PIECE else tensor for name, tensor in weights.items()}


def _always_there(a: Architecture, family: TransformersClass) -> dict[str, Tensor]:
    """ALBERT's product between tables and blocks of one width, which must be the identity."""
    if family.model_type != "albert" or a.embedding_width is not None:
        return {}
    product = "encoder.embeddings.projection"
    return {f"{product}.weight": torch.eye(a.width), f"{product}.bias": torch.zeros(a.width)}


def _pieces(name: str, family: TransformersClass) -> list[str]:
    """Our name of a weight, or its query, key and value if the class separates them."""
    before, joint, after = name.partition(_JOINT)
    if not joint or f"encoder.blocks.*.attention.{_JOINT}" in family.parts:
        return [name]
    return [f"{before}{part}{after}" for part in _PARTS]


def _neighbours(rows: Tensor, heads: int) -> Tensor:
    """Rows of a query or key with rotated pairs side by side: i and i + E of each head at 2i and 2i + 1."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _halves(rows: Tensor, heads: int) -> Tensor:
    """The inverse of `_neighbours`."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _is_rotated(name: str) -> bool:
    return ".query." in name or ".key." in name


def _their_name(name: str, family: TransformersClass) -> str:
    stem, _, kind = name.rpartition(".")
    block = _BLOCK.search(stem)
    part = family.parts[_BLOCK.sub("encoder.blocks.*.", stem)]
    return f"{part.replace('*', block[1]) if block else part}.{kind}"
