"""Conversion of a trained model to the equivalent class of transformers, and back.

Letters: E half of the head width.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from study.base.errors import InputError, Problem
from study.base.randomness import Stream, stream_seed
from study.counting.architecture import Architecture, unbuildable
from study.data.tokenizing import SpecialTokens
from study.model.encoder import rotary_table
from study.model.heads import PAIR_HEAD, MaskedLanguageModelHead
from study.model.layers import initialise
from study.model.masked_language_model import MaskedLanguageModel
from study.model.replaced_tokens import detector_state
from study.model.stored_weights import why_unusable
from study.model.transformers_classes import TransformersClass, class_for, class_in

_JOINT, _PARTS = "query_key_value", ("query", "key", "value")
"""One product here, three in most classes of transformers."""

_REGULAR = "full_attention in the first of every n layers"
_EIGHT = 8
"""NeoBERT's inner width is two thirds of what its config.json says, rounded up to a multiple of this."""

_AUTHORS_HEAD = {
    "lm_predictions.lm_head.dense": "cls.predictions.transform.dense",
    "lm_predictions.lm_head.LayerNorm": "cls.predictions.transform.LayerNorm",
    "lm_predictions.lm_head.bias": "cls.predictions.bias",
}
"""The parts of the MLM head as DeBERTa's authors name them, and transformers where it is not `legacy`."""

_LAYER_TYPES = ("full_attention", "sliding_attention")
"""ModernBERT's names of layers without windows and with them."""

_QUERY_VALUE_BIAS = "query_value_bias"
"""DeBERTa v1 adds biases to query and value alone."""

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_POSITIONS = "encoder.embeddings.position.weight"
_TOKENS, _SEGMENTS = "encoder.embeddings.token.weight", "encoder.embeddings.segment.weight"
_BESIDE = "head.beside.weight"
_BY_PIECE = (_TOKENS, "head.decoder.weight", _BESIDE, "head.bias")
"""The weights that have a row for each piece of the vocabulary."""


def their_config(
    architecture: Architecture, special: SpecialTokens, dropout: float = 0.0, family: TransformersClass | None = None
) -> dict[str, Any]:
    """Return the config.json for a class, by default `class_for(architecture)`."""
    a, family = architecture, family or class_for(architecture)
    values: dict[str, Any] = {"architectures": [family.name_for(a)], "model_type": family.model_type}
    plain: dict[str, Any] = {"embedding_width": a.table_width, "layer_groups": a.groups, "segments": 0 if a.relative else 1}
    plain |= {"convolution_kernel": 0, "attention_window": 128, "local_rotary_theta": a.rotary_theta}
    values |= {theirs: getattr(a, ours) or plain.get(ours, False) for theirs, ours in family.fields.items()}
    values |= {family.activation: family.activations[a.activation][0], "initializer_range": 0.02}
    values |= family.usual | dict.fromkeys(family.dropouts, dropout)
    if a.relative:
        own = {"relative_positions", "relative_reach"}
        values = {name: value for name, value in values.items() if name not in own} | {"legacy": True}
        values |= {"max_relative_positions": a.relative_reach or a.relative_positions // 2}
        values |= {"position_buckets": a.relative_positions // 2 if a.relative_reach else -1}
    if "token_dropout" in family.fields:
        values["token_dropout"] = a.token_dropout is not None  # of the piece `mask_token_id`
    if "attention_window" in family.fields.values():
        values["layer_types"] = [_LAYER_TYPES[a.is_local(layer)] for layer in range(a.depth)]
    if a.segments and not family.has_segments:
        values["tie_word_embeddings"] = False
    ids = {"pad": special.pad, "mask": special.mask, "cls": special.cls, "sep": special.sep}
    ids |= {"bos": special.cls, "eos": special.sep}
    return values | {f"{piece}_token_id": ids[piece] for piece in family.special}


def their_weights(
    state: Mapping[str, Tensor], architecture: Architecture, family: TransformersClass | None = None
) -> dict[str, Tensor]:
    """Return the weights of a MaskedLanguageModel under the names of a class, as in `their_config`, with the rest of its state.

    Of an encoder with a generator they are its own and its detector's. If the class has no segments, the first segment's row is
    added to each token, and the decoder keeps the original tokens. A pair head is left out if no class has one.
    """
    a, family = architecture, family or class_for(architecture)
    state = detector_state(state) if a.generator_share else state
    ours: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(PAIR_HEAD) and family.pretraining is None:
            continue
        pieces = _pieces(name, family)
        ours |= dict(zip(pieces, tensor.chunk(len(pieces)), strict=True))
    if a.segments and not family.has_segments:
        tokens, segments = ours[_TOKENS], ours.pop(_SEGMENTS)
        ours = {"head.decoder.weight": tokens} | ours | {_TOKENS: tokens + segments[0]}
    if family.has_segments and not a.segments and not a.relative:  # only DeBERTa may have no table of segments
        ours[_SEGMENTS] = torch.zeros(1, a.summed_width)
    debertas = family.model_type.startswith("deberta")  # the legacy head adds the bias in the decoder, tied or not
    untied = not a.tied_decoder and family.model_type != "esm" and not a.generator_share  # ESM's decoder has no bias
    if debertas or untied:
        ours["head.decoder.bias"] = ours["head.bias"]
    more: dict[str, Tensor] = {}
    match family.model_type:
        case "roformer":
            ours |= {name: _neighbours(rows, a.heads) for name, rows in ours.items() if _is_rotated(name)}
            cosine, sine = rotary_table(a.positions, a.head_width)
            more["roformer.encoder.embed_positions.weight"] = torch.cat((sine, cosine), -1)
        case "deberta":
            ours |= {name: _by_heads(rows, a.heads) for name, rows in ours.items() if name.endswith(f"{_JOINT}.weight")}
        case "esm":
            more["esm.rotary_embeddings.inv_freq"] = 10_000.0 ** (-torch.arange(0, a.head_width, 2) / a.head_width)
            more["esm.contact_head.regression.weight"] = torch.zeros(1, a.depth * a.heads)
            more["esm.contact_head.regression.bias"] = torch.zeros(1)
        case "mobilebert":
            ours[_BESIDE] = ours[_BESIDE].mT.contiguous()
    ours |= _always_there(a, family)
    return {_their_name(name, family): tensor for name, tensor in ours.items()} | more


def our_architecture(config: Mapping[str, Any], place: str) -> Architecture:
    """Return the architecture of a config.json, with its class's defaults.

    Raises InputError, at `place`, if nothing built here computes the same.
    """
    family = class_in(config, place)
    given = _with_defaults(config, family)
    activations = {theirs: ours for ours, names in family.activations.items() for theirs in names}
    activation = activations.get(str(given.get(family.activation)), next(iter(family.activations)))
    values: dict[str, Any] = {} if family.has_segments else {"segments": 0}
    values |= {ours: given[theirs] for theirs, ours in family.fields.items() if theirs in given}
    values |= family.kind | {"activation": activation, "mlm_activation": activation if family.head_activates else "gelu"}
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
    """Return a config.json with its class's defaults, spelled as other classes do."""
    given = family.left_out | {name: value for name, value in config.items() if value is not None}
    if family.first_position and isinstance(rows := given.get("max_position_embeddings"), int):
        given["max_position_embeddings"] = rows - family.first_position
    match family.model_type:
        case "modernbert":
            return _with_windows(given)
        case "deberta" | "deberta-v2":
            return _with_relative_positions(given, family)
        case "esm":
            dropping = given.get("token_dropout", False)
            return given | {"token_dropout": given.get("mask_token_id", dropping) if dropping else None}
        case "neobert" if isinstance(inner := given.get("intermediate_size"), int):
            given["intermediate_size"] = _EIGHT * -(-(2 * inner // 3) // _EIGHT)
    return given


def _with_relative_positions(given: dict[str, Any], family: TransformersClass) -> dict[str, Any]:
    """DeBERTa's rows of relative positions, and the distance up to which the buckets of v2 and v3 reach."""
    kinds = given["pos_att_type"]
    kinds = kinds if isinstance(kinds, list) else str(kinds).split("|")
    given["pos_att_type"] = "|".join(sorted({str(kind).strip().lower() for kind in kinds}))
    reach, buckets = given.get("max_relative_positions", -1), given.get("position_buckets", -1)
    reach = given.get("max_position_embeddings") if isinstance(reach, int) and reach < 1 else reach
    if family.model_type == "deberta-v2" and isinstance(buckets, int) and buckets > 0:
        return given | {"relative_positions": 2 * buckets, "relative_reach": reach}
    return given | ({"relative_positions": 2 * reach} if isinstance(reach, int) else {})


def _with_windows(given: dict[str, Any]) -> dict[str, Any]:
    """ModernBERT's angles and windows by the names of its first releases, without windows where no layer has one."""
    angles = given.get("rope_parameters")
    for kind, name in zip(_LAYER_TYPES, ("global_rope_theta", "local_rope_theta"), strict=True):
        each = angles.get(kind) if isinstance(angles, dict) else given.get("rope_scaling")
        if isinstance(each, dict):
            plain = each.get("rope_type", each.get("type", "default")) == "default"
            given[name] = each.get("rope_theta", given[name]) if plain else each
    every, layers = given["global_attn_every_n_layers"], given.get("layer_types")
    if isinstance(layers, list):
        full = [layer for layer, kind in enumerate(layers) if kind == _LAYER_TYPES[0]]
        every = full[1] if len(full) > 1 else max(1, len(layers))
        regular = [_LAYER_TYPES[layer % every > 0] for layer in range(len(layers))]
        if not full:
            every, regular = 1, [_LAYER_TYPES[1]] * len(layers)
        given["layer_types"] = _REGULAR if layers == regular and len(layers) == given.get("num_hidden_layers") else layers
    without_windows = every == 1 and (not isinstance(layers, list) or _LAYER_TYPES[0] in layers)
    windows = () if not without_windows else ("local_attention", "local_rope_theta")
    return {name: value for name, value in given.items() if name not in windows} | {"global_attn_every_n_layers": every}


def _unusual(given: Mapping[str, Any], family: TransformersClass) -> dict[str, tuple[Any, str]]:
    usual: dict[str, tuple[Any, ...]] = {name: (value,) for name, value in family.usual.items()}
    usual[family.activation] = tuple(name for names in family.activations.values() for name in names)
    if "attention_window" in family.fields.values():
        usual["layer_types"] = (_REGULAR,)
    if "embedding_size" not in family.fields:
        usual["embedding_size"] = (given.get("hidden_size"),)
    values = {name: (given.get(name, allowed[0]), allowed) for name, allowed in usual.items()}
    return {name: (value, " or ".join(map(str, allowed))) for name, (value, allowed) in values.items() if value not in allowed}


def our_weights(
    theirs: Mapping[str, Tensor], architecture: Architecture, family: TransformersClass, place: str
) -> dict[str, Tensor]:
    """Return the fp32 weights of a MaskedLanguageModel of this architecture, from a class of transformers.

    Other weights, such as a pooler's, are ignored; norms may have TensorFlow's names. An untied decoder's bias replaces the
    head's, as in BERT. Without its MLM head (`has_mlm_head`) an encoder gets an untrained one. Raises InputError, at `place`,
    if weights are missing, unusable, of other sizes or layers, or ALBERT maps embeddings as wide as the blocks.
    """
    there = _by_full_name(theirs, family)
    bias, decoders_bias = (_their_name(name, family) for name in ("head.bias", "head.decoder.bias"))
    if not architecture.tied_decoder and decoders_bias in there:
        there[bias] = there[decoders_bias]
    with torch.device("meta"):
        wanted = MaskedLanguageModel(architecture).state_dict()
    _check_layers(there, architecture, family, place)
    weights: dict[str, Tensor] = {}
    if not has_mlm_head(theirs, family):
        weights = untrained_head(architecture)
    for name, meta in wanted.items():
        if name in weights:
            continue
        pieces = _pieces(name, family)
        names = [_their_name(piece, family) for piece in pieces]
        if missing := [each for each in names if each not in there]:
            raise InputError.at(place, f"holds no {missing[0]}, which {family.name} has; save_pretrained the whole encoder")
        tensors = [there[each] for each in names]
        for each, tensor, part in zip(names, tensors, meta.chunk(len(pieces)), strict=True):
            if (why := why_unusable(tensor)) is not None:
                raise InputError.at(place, f"holds {each} {why}; fetch the encoder anew, without quantisation")
            if tensor.shape != _their_shape(name, part, family):
                sizes = " x ".join(map(str, tensor.shape)) or "one number"
                raise InputError.at(place, f"holds {each} of {sizes}, unlike its config.json")
        weights[name] = _in_our_order(name, pieces, [tensor.float() for tensor in tensors], architecture, family)
    for name, plain in _always_there(architecture, family).items():
        if not torch.equal(there.get(their := _their_name(name, family), plain).float(), plain):
            raise InputError.at(place, f"holds {their} between tables and blocks of one width, which is not supported")
    return weights


def _check_layers(names: Iterable[str], architecture: Architecture, family: TransformersClass, place: str) -> None:
    """Raise InputError if there are weights of more blocks than the architecture stores."""
    prefix = next(theirs.partition("*")[0] for theirs in family.parts.values() if "*" in theirs)
    below = {name.removeprefix(prefix).partition(".")[0] for name in names if name.startswith(prefix)}
    held, described = sum(part.isdecimal() for part in below), architecture.layer_groups or architecture.depth
    if held > described:
        raise InputError.at(
            place, f"holds {held} layers, but its config.json describes {described}; give the one that belongs to it"
        )


def has_mlm_head(names: Iterable[str], family: TransformersClass) -> bool:
    """Whether an encoder of a class, by its weights' names, was saved with its MLM head: with the bias of the logits."""
    biases = {_their_name(name, family) for name in ("head.bias", "head.decoder.bias")}
    return any(_usual_name(name) in biases for name in names)


def without_mlm_head(weights: Mapping[str, Tensor], family: TransformersClass) -> dict[str, Tensor]:
    """Return the weights of a class without those of its MLM head."""
    head = tuple(f"{theirs}." for ours, theirs in family.parts.items() if ours.partition(".")[0] == "head")
    return {name: tensor for name, tensor in weights.items() if not name.startswith(head)}


def untrained_head(architecture: Architecture) -> dict[str, Tensor]:
    """Return the weights of an MLM head as training begins with them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(Stream.HEAD_INITIALISATION, 0))
        head = MaskedLanguageModelHead(architecture)
        head.apply(initialise)
    return {f"head.{name}": tensor for name, tensor in head.state_dict().items()}


def _by_full_name(theirs: Mapping[str, Tensor], family: TransformersClass) -> dict[str, Tensor]:
    """Return the weights by the MLM model's names; an encoder saved alone leaves out its own."""
    there = {_usual_name(name): tensor for name, tensor in theirs.items()}
    prefix = family.parts["encoder.embeddings.token"].partition(".")[0] + "."
    return there if any(name.startswith(prefix) for name in there) else {prefix + name: each for name, each in there.items()}


def _usual_name(name: str) -> str:
    """Return a weight's name as transformers writes it now."""
    name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
    for head, usual in _AUTHORS_HEAD.items():
        name = name.replace(head, usual)
    return name


def _their_shape(name: str, ours: Tensor, family: TransformersClass) -> torch.Size:
    """Return the shape that a weight, or its part, has in a class."""
    if name == _POSITIONS:
        return torch.Size((len(ours) + family.first_position, *ours.shape[1:]))
    return ours.mT.shape if name == _BESIDE else ours.shape


def _in_our_order(
    name: str, pieces: list[str], tensors: list[Tensor], architecture: Architecture, family: TransformersClass
) -> Tensor:
    """Return a weight from its tensors in a class, with the rows in our order."""
    heads = architecture.heads
    match family.model_type:
        case "roformer":
            pairs = zip(pieces, tensors, strict=True)
            tensors = [_halves(rows, heads) if _is_rotated(piece) else rows for piece, rows in pairs]
        case "neobert" | "deberta" if name.endswith(f"{_JOINT}.weight"):
            query, key, value = (part.flatten(0, 1) for part in tensors[0].view(heads, 3, -1, tensors[0].shape[1]).unbind(1))
            turned = family.model_type == "neobert"
            tensors = [_halves(query, heads), _halves(key, heads), value] if turned else [query, key, value]
        case "mobilebert" if name == _BESIDE:
            tensors = [tensors[0].mT]
        case _ if name == _POSITIONS:
            tensors = [tensors[0][family.first_position :]]
    return torch.cat(tensors)


def cut_vocabulary(weights: Mapping[str, Tensor], pieces: int) -> dict[str, Tensor]:
    """Return the weights of a MaskedLanguageModel for the first pieces of its vocabulary alone."""
    return {name: tensor[:pieces].clone() if name in _BY_PIECE else tensor for name, tensor in weights.items()}


def _always_there(a: Architecture, family: TransformersClass) -> dict[str, Tensor]:
    """ALBERT's product between tables and blocks of one width, which must be the identity."""
    if family.model_type != "albert" or a.embedding_width is not None:
        return {}
    product = "encoder.embeddings.projection"
    return {f"{product}.weight": torch.eye(a.width), f"{product}.bias": torch.zeros(a.width)}


def _pieces(name: str, family: TransformersClass) -> list[str]:
    """Our name of a weight, or its query, key and value if the class separates them."""
    if name.endswith(_QUERY_VALUE_BIAS):
        return [name.replace(_QUERY_VALUE_BIAS, bias) for bias in ("q_bias", "v_bias")]
    before, joint, after = name.partition(_JOINT)
    if not joint or f"encoder.blocks.*.attention.{_JOINT}" in family.parts:
        return [name]
    return [f"{before}{part}{after}" for part in _PARTS]


def _by_heads(rows: Tensor, heads: int) -> Tensor:
    """Rows of query, key and value, each head's three together."""
    return rows.view(3, heads, -1, rows.shape[1]).transpose(0, 1).reshape(rows.shape)


def _neighbours(rows: Tensor, heads: int) -> Tensor:
    """Rows of a query or key with rotated pairs side by side: i and i + E of each head at 2i and 2i + 1."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _halves(rows: Tensor, heads: int) -> Tensor:
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _is_rotated(name: str) -> bool:
    return ".query." in name or ".key." in name


def _their_name(name: str, family: TransformersClass) -> str:
    stem, _, kind = name.rpartition(".")
    part = family.parts[_NUMBER.sub("*", stem)]
    for number in _NUMBER.findall(stem):
        part = part.replace("*", number, 1)
    return f"{part}.{kind}"
