"""An architecture as the model of transformers that has it, family by family."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from study.architecture import Architecture

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
CLASSES = {
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
    kind = distilled if family == "DistilBERT" else CLASSES.get(family, "Bert")
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
            values |= {"pad_token_id": 3, "local_attention": a.attention_window}
            values |= {"global_attn_every_n_layers": a.global_attention_every}
        case "Esm":
            values |= {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 32, "pad_token_id": 1}
            values |= {"emb_layer_norm_before": False}
    return values
