"""A trained model as transformers has it: a configuration and weights of the class there that computes the same.

Letters: E half of the head width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from study.architecture import Architecture
from study.data.tokenizing import SpecialTokens
from study.model.encoder import rotary_turns
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


def kin_of(architecture: Architecture) -> Kin:
    """The class of transformers for an architecture that study.model builds."""
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
        turned = (".query.", ".key.")
        ours |= {name: _neighbours(rows, a.heads) for name, rows in ours.items() if any(part in name for part in turned)}
        cosine, sine = rotary_turns(a.positions, a.head_width)
        more["encoder.embed_positions.weight"] = torch.cat((sine, cosine), -1)
    theirs = {_their_name(name, kin): tensor for name, tensor in ours.items()}
    return theirs | {f"{kin.prefix}.{name}": tensor for name, tensor in more.items()}


def _apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights with query, key and value each for itself."""
    apart: dict[str, Tensor] = {}
    for name, tensor in state.items():
        before, joint, after = name.partition("query_key_value")
        parts = zip(("query", "key", "value"), tensor.chunk(3), strict=True) if joint else [("", tensor)]
        apart |= {f"{before}{part}{after}": rows for part, rows in parts}
    return apart


def _neighbours(rows: Tensor, heads: int) -> Tensor:
    """Rows of a query or key with those that are turned as a pair side by side: i and i + E of each head at 2i and 2i + 1."""
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


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
