"""An architecture as the model of transformers that has it, family by family."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from study.counting.architecture import Architecture
from study.data.tokenizing import SpecialTokens
from study.model.in_transformers import their_config, their_weights
from study.model.masked_language_model import MaskedLanguageModel
from study.model.transformers_classes import class_for

MODERN: dict[str, Any] = {"norm": "pre", "embedding_norm": True, "position_encoding": "rotary", "segments": 0}
MODERN |= {"activation": "geglu", "biases": "none", "norm_bias": False}
"""ModernBERT with global attention in every layer."""

WINDOWS: dict[str, Any] = {"attention_window": 6, "global_attention_every": 3, "rotary_theta": 160_000.0}
WINDOWS |= {"local_rotary_theta": 10_000.0, "norm_epsilon": 1e-5}
"""What else ModernBERT has: windows in two of three layers, with angles of their own."""

DEBERTA: dict[str, Any] = {"position_encoding": "disentangled", "relative_positions": 12, "biases": "no_key", "segments": 0}
DEBERTA |= {"norm_epsilon": 1e-7}
DEBERTA_V3: dict[str, Any] = {"position_encoding": "disentangled_shared", "relative_positions": 16, "relative_reach": 24}
DEBERTA_V3 |= {"segments": 0, "norm_epsilon": 1e-7}

NEOBERT: dict[str, Any] = {
    "norm": "pre",
    "norm_kind": "rms",
    "norm_epsilon": 1e-5,
    "position_encoding": "rotary",
    "segments": 0,
}
NEOBERT |= {"activation": "swiglu", "biases": "none", "mlm_transform": "none", "tied_decoder": False}

MOBILEBERT: dict[str, Any] = {"embedding_width": 8, "trigram_embedding": True, "bottleneck_width": 16, "ffn_stack": 3}
MOBILEBERT |= {"norm_kind": "affine", "activation": "relu", "mlm_activation": "relu", "mlm_transform": "width"}

BERTS: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": {},
    "RoFormerForMaskedLM": {"position_encoding": "rotary"},
    "MegatronBertForMaskedLM": {"norm": "pre"},
    "EsmForMaskedLM": {"norm": "pre", "position_encoding": "rotary"},
}
CLASSES = BERTS | {
    "ElectraForMaskedLM": {"embedding_width": 8},
    "AlbertForMaskedLM": {"embedding_width": 8, "layer_groups": 1},
    "ModernBertForMaskedLM": MODERN | WINDOWS,
    "DebertaForMaskedLM": DEBERTA,
    "DebertaV2ForMaskedLM": DEBERTA_V3,
    "MobileBertForMaskedLM": MOBILEBERT,
}
"""The classes of transformers that compute what is built here, each with an architecture."""

COMMON = {
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "ffn",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "positions",
    "type_vocab_size": "segments",
}
DISTILBERT = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
DISTILBERT |= {"intermediate_size": "hidden_dim"}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
FAMILIES = {
    "RoBERTa": "Roberta",
    "XLM-R": "XLMRoberta",
    "ALBERT": "Albert",
    "MobileBERT": "MobileBert",
    "DeBERTa v1": "Deberta",
    "DeBERTa v2/v3": "DebertaV2",
    "ELECTRA": "Electra",
    "ModernBERT": "ModernBert",
    "Ettin": "ModernBert",
    "ESM-2 (protein MLM ladder)": "Esm",
}


def live_model(family: str, architecture: Architecture, **more: Any) -> PreTrainedModel:
    """The MLM model of transformers for an architecture of a family, with weights as it initialises them."""
    distilled = "Roberta" if architecture.segments else "DistilBert"
    kind = distilled if family == "DistilBERT" else FAMILIES.get(family, "Bert")
    config: PreTrainedConfig = getattr(transformers, f"{kind}Config")(**settings(kind, architecture), **more)
    model: PreTrainedModel = getattr(transformers, f"{kind}ForMaskedLM")(config)
    return model


def settings(kind: str, a: Architecture) -> dict[str, Any]:
    """The architecture as a configuration of transformers."""
    names = DISTILBERT if kind == "DistilBert" else {}
    values: dict[str, Any] = {names.get(theirs, theirs): getattr(a, ours) for theirs, ours in COMMON.items()}
    match kind:
        case "Albert" | "Electra":
            values |= {"embedding_size": a.embedding_width or a.width}
        case "MobileBert":
            values |= {"embedding_size": a.embedding_width, "intra_bottleneck_size": a.bottleneck_width}
            values |= {"num_feedforward_networks": a.ffn_stack, "trigram_input": a.trigram_embedding}
        case "Deberta":
            values |= DISENTANGLED | {"max_relative_positions": a.relative_positions // 2}
        case "DebertaV2":
            values |= DISENTANGLED | {"share_att_key": True, "position_buckets": a.relative_positions // 2}
            values |= {"norm_rel_ebd": "layer_norm", "conv_kernel_size": a.convolution_kernel, "conv_act": "gelu"}
        case "ModernBert":
            values |= {"pad_token_id": 3, "global_attn_every_n_layers": a.global_attention_every}
            values |= {} if a.attention_window is None else {"local_attention": a.attention_window}
        case "Esm":
            values |= {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 32, "pad_token_id": 1}
            values |= {"emb_layer_norm_before": False}
    return values


def their_settings(architecture: Architecture, **more: Any) -> PreTrainedConfig:
    """The configuration of transformers for what is built here."""
    values = their_config(architecture, SpecialTokens(0, 1, 2, 3, 4)) | more
    made: PreTrainedConfig = getattr(transformers, class_for(architecture).name.replace("ForMaskedLM", "Config"))(**values)
    return made


def theirs_of(ours: MaskedLanguageModel) -> PreTrainedModel:
    """The model of transformers with our weights, of which each has a place there, and none there is without its weight."""
    config = their_settings(ours.architecture)
    theirs: PreTrainedModel = getattr(transformers, class_for(ours.architecture).name)(config).eval()
    loaded = theirs.load_state_dict(their_weights(ours.state_dict(), ours.architecture), strict=False)
    assert not loaded.unexpected_keys
    assert set(loaded.missing_keys) <= (set(theirs._tied_weights_keys) if config.tie_word_embeddings else set())
    return theirs
