"""A trained model in transformers: the configuration and weights of the class there that computes the same, and back.

Letters: E half of the head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from study.architecture import Architecture, not_of_berts_kind, unbuildable
from study.data.tokenizing import SpecialTokens
from study.errors import InputError, Problem
from study.model.encoder import rotary_turns
from study.model.masked_language_model import MaskedLanguageModel
from study.model.norm import EPSILON

_SIZES = {
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "ffn",
    "max_position_embeddings": "positions",
}
_EMBEDDINGS = {
    "encoder.embeddings.token": "embeddings.word_embeddings",
    "encoder.embeddings.position": "embeddings.position_embeddings",
    "encoder.embeddings.segment": "embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "embeddings.LayerNorm",
}
_PRODUCTS = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
}
_JOINT, _PARTS = "query_key_value", ("query", "key", "value")
"""What is one product here and three there."""

_BERTS_HEAD = {
    "head": "cls.predictions",
    "head.transform": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.decoder": "cls.predictions.decoder",
}
_ESMS_HEAD = {
    "head": "lm_head",
    "head.transform": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.decoder": "lm_head.decoder",
}


@dataclass(frozen=True)
class Kin:
    """A class of transformers that computes what ours does, for one place of the norms and one kind of positions.

    `prefix` begins the names of its encoder's weights, `layer_norms` are those of a block's two norms, `final_norm` that of
    pre-norm's last, and `head` those of the head's parts.
    """

    model_type: str
    name: str
    prefix: str
    layer_norms: tuple[str, str]
    head: Mapping[str, str]
    final_norm: str = ""

    @property
    def has_segments(self) -> bool:
        """Whether it has a table of segments."""
        return self.model_type != "esm"


_AFTER_SUMS = ("attention.output.LayerNorm", "output.LayerNorm")

_KIN = {
    ("post", "learned"): Kin("bert", "BertForMaskedLM", "bert", _AFTER_SUMS, _BERTS_HEAD),
    ("post", "rotary"): Kin("roformer", "RoFormerForMaskedLM", "roformer", _AFTER_SUMS, _BERTS_HEAD),
    ("pre", "learned"): Kin(
        "megatron-bert", "MegatronBertForMaskedLM", "bert", ("attention.ln", "ln"), _BERTS_HEAD, "encoder.ln"
    ),
    ("pre", "rotary"): Kin(
        "esm", "EsmForMaskedLM", "esm", ("attention.LayerNorm", "LayerNorm"), _ESMS_HEAD, "encoder.emb_layer_norm_after"
    ),
}


_USUAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu",),
    "layer_norm_eps": (EPSILON,),
    "rotary_value": (False,),
    "emb_layer_norm_before": (False, None),
    "token_dropout": (False,),
    "is_decoder": (False,),
}
"""What their configurations say of what we build in one way alone, where they say it."""


def kin_of(architecture: Architecture) -> Kin:
    """The class of transformers for an architecture that study.model builds; raises InputError where none computes the same."""
    unlike = not_of_berts_kind(architecture)
    if unlike.keys() - {"position_encoding"}:
        told = ", ".join(f"{name} {value}" for name, value in unlike.items())
        raise InputError.at("architecture", f"has {told}, for which no class of transformers is written here")
    return _KIN[architecture.norm, architecture.position_encoding]


def their_config(architecture: Architecture, special: SpecialTokens, dropout: float = 0.0) -> dict[str, Any]:
    """The values of config.json for `kin_of(architecture)`."""
    a, kin = architecture, kin_of(architecture)
    values: dict[str, Any] = {"architectures": [kin.name], "model_type": kin.model_type}
    values |= {theirs: getattr(a, ours) for theirs, ours in _SIZES.items()}
    values |= {"type_vocab_size": max(1, a.segments)} if kin.has_segments else {}
    values |= {"tie_word_embeddings": a.tied_decoder and (kin.has_segments or not a.segments), "pad_token_id": special.pad}
    values |= {"hidden_act": "gelu", "layer_norm_eps": EPSILON, "initializer_range": 0.02}
    values |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    match kin.model_type:
        case "roformer":
            values |= {"embedding_size": a.width, "rotary_value": False}
        case "esm":
            values |= {"position_embedding_type": "rotary", "emb_layer_norm_before": False, "token_dropout": False}
            values |= {"mask_token_id": special.mask}
    return values


def their_weights(state: Mapping[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """The weights of a MaskedLanguageModel under the names of `kin_of(architecture)`, and what else its state holds.

    ESM has no segments: the row of the first one is added to each token, and the decoder keeps the tokens without it.
    """
    a, kin = architecture, kin_of(architecture)
    ours = _apart(state)
    more: dict[str, Tensor] = {}
    if kin.model_type == "esm":
        if a.segments:
            tokens, segments = ours["encoder.embeddings.token.weight"], ours.pop("encoder.embeddings.segment.weight")
            ours = {"head.decoder.weight": tokens} | ours | {"encoder.embeddings.token.weight": tokens + segments[0]}
        more["rotary_embeddings.inv_freq"] = 10_000.0 ** (-torch.arange(0, a.head_width, 2) / a.head_width)
        more["contact_head.regression.weight"] = torch.zeros(1, a.depth * a.heads)
        more["contact_head.regression.bias"] = torch.zeros(1)
    else:
        if not a.segments:
            ours["encoder.embeddings.segment.weight"] = torch.zeros(1, a.width)
        if not a.tied_decoder:
            ours["head.decoder.bias"] = ours["head.bias"]
    if kin.model_type == "roformer":
        ours |= {name: _neighbours(rows, a.heads) for name, rows in ours.items() if _is_turned(name)}
        cosine, sine = rotary_turns(a.positions, a.head_width)
        more["encoder.embed_positions.weight"] = torch.cat((sine, cosine), -1)
    theirs = {_their_name(name, kin): tensor for name, tensor in ours.items()}
    return theirs | {f"{kin.prefix}.{name}": tensor for name, tensor in more.items()}


def our_architecture(config: Mapping[str, Any], place: str) -> Architecture:
    """The architecture of the model that a config.json describes; what it leaves out is as in BERT.

    Raises InputError, at `place`, where nothing that is built here computes the same.
    """
    kinds = {kin.model_type: kind for kind, kin in _KIN.items()}
    if (model_type := config.get("model_type")) not in kinds:
        raise InputError.at(place, f"is a model of type {model_type}; what can be built here is {', '.join(kinds)}")
    norm, position_encoding = kinds[model_type]
    if problems := list(_unusual(config, position_encoding, place)):
        raise InputError(problems)
    values = {ours: config[theirs] for theirs, ours in _SIZES.items() if theirs in config}
    values |= {"segments": config.get("type_vocab_size", 2) if _KIN[norm, position_encoding].has_segments else 0}
    values |= {"norm": norm, "position_encoding": position_encoding, "tied_decoder": config.get("tie_word_embeddings", True)}
    architecture = Architecture.parse(values, place=place)
    if problem := unbuildable(architecture):
        raise InputError.at(place, problem)
    return architecture


def _unusual(config: Mapping[str, Any], position_encoding: str, place: str) -> Iterator[Problem]:
    """What a model computes otherwise than what we build, as its configuration says."""
    usual = _USUAL | {"embedding_size": (config.get("hidden_size"),)}
    usual["position_embedding_type"] = ("absolute",) if position_encoding == "learned" else ("rotary",)
    for name, values in usual.items():
        if config.get(name, values[0]) not in values:
            yield Problem(place, f"has {name} {config[name]}; what can be built here has {values[0]}")


def our_weights(theirs: Mapping[str, Tensor], architecture: Architecture, place: str) -> dict[str, Tensor]:
    """The weights of a MaskedLanguageModel of this architecture in fp32, from those of `kin_of` it.

    Others, as a pooler's, are left out; norms may have the names of TensorFlow. The head's bias is that of a decoder of its own
    where it has one, which BERT adds in place of the other. Raises InputError, at `place`, where one is missing or of another
    size.
    """
    kin = kin_of(architecture)
    there = {name.replace(".gamma", ".weight").replace(".beta", ".bias"): tensor.float() for name, tensor in theirs.items()}
    bias, decoders_bias = (_their_name(name, kin) for name in ("head.bias", "head.decoder.bias"))
    if not architecture.tied_decoder and decoders_bias in there:
        there[bias] = there[decoders_bias]
    with torch.device("meta"):
        wanted = MaskedLanguageModel(architecture).state_dict()
    found: dict[str, Tensor] = {}
    for name, meta in wanted.items():
        before, joint, after = name.partition(_JOINT)
        parts = [f"{before}{part}{after}" for part in _PARTS] if joint else [name]
        names = [_their_name(part, kin) for part in parts]
        if missing := [each for each in names if each not in there]:
            raise InputError.at(place, f"holds no {missing[0]}; an encoder with its MLM head is needed, as {kin.name} saves it")
        tensors = [there[each] for each in names]
        if kin.model_type == "roformer":
            pairs = zip(parts, tensors, strict=True)
            tensors = [_halves(rows, architecture.heads) if _is_turned(part) else rows for part, rows in pairs]
        found[name] = torch.cat(tensors)
        if found[name].shape != meta.shape:
            sizes = " x ".join(map(str, tensors[0].shape))
            raise InputError.at(place, f"holds {names[0]} of {sizes}, which is not what its config.json says")
    return found


def _apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights with query, key and value each for itself."""
    apart: dict[str, Tensor] = {}
    for name, tensor in state.items():
        before, joint, after = name.partition(_JOINT)
        parts = zip(_PARTS, tensor.chunk(3), strict=True) if joint else [("", tensor)]
        apart |= {f"{before}{part}{after}": rows for part, rows in parts}
    return apart


def _neighbours(rows: Tensor, heads: int) -> Tensor:
    """Rows of a query or key with those that are turned as a pair side by side: i and i + E of each head at 2i and 2i + 1."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _halves(rows: Tensor, heads: int) -> Tensor:
    """The rows that `_neighbours` was given, from what it made of them."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _is_turned(name: str) -> bool:
    """Whether a weight makes queries or keys, which rotary positions turn."""
    return ".query." in name or ".key." in name


def _their_name(name: str, kin: Kin) -> str:
    """The name there of a weight, by our name with query, key and value apart."""
    stem, _, kind = name.rpartition(".")
    if stem in kin.head:
        return f"{kin.head[stem]}.{kind}"
    norms = {"attention_norm": kin.layer_norms[0], "feed_forward_norm": kin.layer_norms[1]}
    parts = _EMBEDDINGS | {"encoder.final_norm": kin.final_norm}
    if stem in parts:
        return f"{kin.prefix}.{parts[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"{kin.prefix}.encoder.layer.{layer}.{(_PRODUCTS | norms)[part]}.{kind}"
