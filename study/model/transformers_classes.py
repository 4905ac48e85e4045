"""The classes of transformers that match encoders here, with their names for fields and weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from study.base.errors import InputError, Problem
from study.counting.architecture import NONE, NOT_IN_MLM, Architecture

_SIZES = {
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "ffn",
    "max_position_embeddings": "positions",
    "tie_word_embeddings": "tied_decoder",
}
_FIELDS = _SIZES | {"layer_norm_eps": "norm_epsilon"}
_SEGMENTS = {"type_vocab_size": "segments"}
_FACTORISED = {"embedding_size": "embedding_width"}
_BERTS_USUAL = {"is_decoder": False, "position_embedding_type": "absolute"}
_ACTIVATIONS = {
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "relu": ("relu",),
}
"""Transformers' names of each activation, the one that is written first."""
_EMBEDDINGS = {
    "token": "word_embeddings",
    "position": "position_embeddings",
    "segment": "token_type_embeddings",
    "norm": "LayerNorm",
}
_PRODUCTS = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "feed_forward.inner": "intermediate.dense",
    "feed_forward.outer": "output.dense",
}
_DEBERTAS_USUAL = {"relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c"}
_DEBERTAS_LEFT_OUT = {
    "relative_attention": False,
    "position_biased_input": True,
    "pos_att_type": "none",
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}
_BERTS_HEAD = {
    "head": "cls.predictions",
    "head.transform": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.decoder": "cls.predictions.decoder",
}
_BERTS_PAIRS = {"pair_head.pooler": "bert.pooler.dense", "pair_head.output": "cls.seq_relationship"}
_ALBERTS_PAIRS = {"pair_head.pooler": "albert.pooler", "pair_head.output": "sop_classifier.classifier"}


@dataclass(frozen=True)
class TransformersClass:
    """A class of transformers that computes the same as an encoder here.

    - `parts`: its names of our modules; `*` is the number of a block, or of an FFN in it.
    - `fields`: our fields that may have any value, by its names.
    - `activation`, `activations`: its names of that field and of the possible values.
    - `head_activates`: whether its MLM head has the same activation, and not the GELU.
    - `kind`: its fixed values of our fields; other fields are BERT's.
    - `usual`: its configuration values that are fixed here.
    - `left_out`: its defaults that differ from ours.
    - `dropouts`, `special`: its names of dropout rates, and of the special pieces whose ids it stores.
    - `pretraining`: the class with a pair head too, `detecting`: that with a detector of replaced tokens in place of the MLM
      head, None if there is none.
    - `has_pooler`: whether the class of its bare encoder makes a pooler unless told not to.
    - `also`: other model types of the same class. `first_position`: the first row of its position table that is used.
    - `exported`: whether encoders are written as this class; others compute what a plainer one does, or are not in
      transformers.
    """

    model_type: str
    name: str
    parts: dict[str, str]
    fields: dict[str, str] = field(default_factory=lambda: _FIELDS | _SEGMENTS)
    kind: dict[str, object] = field(default_factory=dict)
    activation: str = "hidden_act"
    activations: dict[str, tuple[str, ...]] = field(default_factory=lambda: _ACTIVATIONS)
    head_activates: bool = True
    usual: dict[str, Any] = field(default_factory=lambda: _BERTS_USUAL)
    left_out: dict[str, Any] = field(default_factory=dict)
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    special: tuple[str, ...] = ("pad",)
    pretraining: str | None = None
    detecting: str | None = None
    has_pooler: bool = False

    def name_for(self, architecture: Architecture) -> str:
        """Return the class with all heads of an architecture that it has."""
        if architecture.generator_share and self.detecting is not None:
            return self.detecting
        return self.pretraining if architecture.pair_head and self.pretraining is not None else self.name

    also: tuple[str, ...] = ()
    first_position: int = 0
    exported: bool = True

    @property
    def encoder_name(self) -> str:
        """The class of its encoder without a head."""
        return f"{self.name.removesuffix('ForMaskedLM')}Model"

    @property
    def has_segments(self) -> bool:
        """Whether it has a segment table."""
        return "segments" in self.fields.values()

    def unlike(self, architecture: Architecture) -> dict[str, str]:
        """Return the fields that differ from an architecture, with this class's values."""
        free = {"segments", *self.fields.values(), *NOT_IN_MLM}
        unlike = {}
        for name, info in Architecture.model_fields.items():
            has: tuple[object, ...] = (self.kind.get(name, info.default),)
            if name == "activation":
                has = tuple(self.activations)
            elif name == "mlm_activation" and self.head_activates and architecture.activation in self.activations:
                has = (architecture.activation,)
            if name not in free and getattr(architecture, name) not in has:
                unlike[name] = " or ".join(NONE if value is None else str(value) for value in has)
        if "bottleneck_width" in self.fields.values() and architecture.bottleneck_width is None:
            unlike["bottleneck_width"] = "a number"
        if "layer_groups" in self.fields.values() and architecture.depth % architecture.groups:
            unlike["layer_groups"] = f"a divisor of depth {architecture.depth}"  # ALBERT rounds others as floats
        return unlike


def _berts(
    prefix: str,
    norms: tuple[str, str] = ("attention.output.LayerNorm", "output.LayerNorm"),
    head: Mapping[str, str] = _BERTS_HEAD,
    final_norm: str = "",
) -> dict[str, str]:
    """Return the parts of a BERT-like class; `norms` are a block's, by default after its sums."""
    blocks = _PRODUCTS | {"attention_norm": norms[0], "feed_forward_norm": norms[1]}
    parts = {f"encoder.embeddings.{ours}": f"{prefix}.embeddings.{theirs}" for ours, theirs in _EMBEDDINGS.items()}
    parts |= {f"encoder.blocks.*.{ours}": f"{prefix}.encoder.layer.*.{theirs}" for ours, theirs in blocks.items()}
    parts |= {"encoder.embeddings.projection": f"{prefix}.embeddings_project", "encoder.final_norm": f"{prefix}.{final_norm}"}
    return parts | dict(head)


def _debertas(projections: Mapping[str, str]) -> dict[str, str]:
    """Return the parts of a DeBERTa, with its names of the products in its attention."""
    parts = _berts("deberta")
    block, theirs = "encoder.blocks.*", "deberta.encoder.layer.*.attention.self"
    parts |= {f"{block}.attention": theirs}
    parts |= {f"{block}.attention.{ours}": f"{theirs}.{name}" for ours, name in projections.items()}
    parts |= {"encoder.relative.table": "deberta.encoder.rel_embeddings", "encoder.relative.norm": "deberta.encoder.LayerNorm"}
    convolution = "deberta.encoder.conv"
    return parts | {
        "encoder.convolution.product": f"{convolution}.conv",
        "encoder.convolution.norm": f"{convolution}.LayerNorm",
    }


_ELECTRAS_HEAD = {
    "head": "generator_lm_head",
    "head.transform": "generator_predictions.dense",
    "head.norm": "generator_predictions.LayerNorm",
    "head.decoder": "generator_lm_head",
}
_ELECTRAS_DETECTOR = {
    "detector.transform": "discriminator_predictions.dense",
    "detector.output": "discriminator_predictions.dense_prediction",
}
_ESMS_HEAD = {
    "head": "lm_head",
    "head.transform": "lm_head.dense",
    "head.norm": "lm_head.layer_norm",
    "head.decoder": "lm_head.decoder",
}
_ROBERTAS_HEAD = _ESMS_HEAD
_DISTILBERTS_FIELDS = {
    "vocab_size": "vocabulary",
    "dim": "width",
    "n_layers": "depth",
    "n_heads": "heads",
    "hidden_dim": "ffn",
    "max_position_embeddings": "positions",
    "tie_word_embeddings": "tied_decoder",
}
_DISTILBERTS_BLOCK = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "attention_norm": "sa_layer_norm",
    "feed_forward.inner": "ffn.lin1",
    "feed_forward.outer": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}
_DISTILBERTS = {
    **{f"encoder.embeddings.{ours}": f"distilbert.embeddings.{theirs}" for ours, theirs in _EMBEDDINGS.items()},
    **{f"encoder.blocks.*.{ours}": f"distilbert.transformer.layer.*.{theirs}" for ours, theirs in _DISTILBERTS_BLOCK.items()},
    "head": "vocab_projector",
    "head.transform": "vocab_transform",
    "head.norm": "vocab_layer_norm",
    "head.decoder": "vocab_projector",
}
_NEOBERTS_FIELDS = {
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "ffn",
    "max_length": "positions",
    "norm_eps": "norm_epsilon",
}
_NEOBERTS = {
    "encoder.embeddings.token": "model.encoder",
    "encoder.blocks.*.attention.query_key_value": "model.transformer_encoder.*.qkv",
    "encoder.blocks.*.attention.output": "model.transformer_encoder.*.wo",
    "encoder.blocks.*.attention_norm": "model.transformer_encoder.*.attention_norm",
    "encoder.blocks.*.feed_forward.inner": "model.transformer_encoder.*.ffn.w12",
    "encoder.blocks.*.feed_forward.outer": "model.transformer_encoder.*.ffn.w3",
    "encoder.blocks.*.feed_forward_norm": "model.transformer_encoder.*.ffn_norm",
    "encoder.final_norm": "model.layer_norm",
    "head": "decoder",
    "head.decoder": "decoder",
}
_WINDOWS = {
    "local_attention": "attention_window",
    "global_attn_every_n_layers": "global_attention_every",
    "global_rope_theta": "rotary_theta",
    "local_rope_theta": "local_rotary_theta",
}
_ALBERTS_BLOCK = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.dense",
    "attention_norm": "attention.LayerNorm",
    "feed_forward.inner": "ffn",
    "feed_forward.outer": "ffn_output",
    "feed_forward_norm": "full_layer_layer_norm",
}
_ALBERTS = {
    **{f"encoder.embeddings.{ours}": f"albert.embeddings.{theirs}" for ours, theirs in _EMBEDDINGS.items()},
    "encoder.embeddings.projection": "albert.encoder.embedding_hidden_mapping_in",
    **{
        f"encoder.blocks.*.{ours}": f"albert.encoder.albert_layer_groups.*.albert_layers.0.{theirs}"
        for ours, theirs in _ALBERTS_BLOCK.items()
    },
    "head": "predictions",
    "head.transform": "predictions.dense",
    "head.norm": "predictions.LayerNorm",
    "head.decoder": "predictions.decoder",
}
_MODERNBERTS = {
    "encoder.embeddings.token": "model.embeddings.tok_embeddings",
    "encoder.embeddings.norm": "model.embeddings.norm",
    "encoder.blocks.*.attention.query_key_value": "model.layers.*.attn.Wqkv",
    "encoder.blocks.*.attention.output": "model.layers.*.attn.Wo",
    "encoder.blocks.*.attention_norm": "model.layers.*.attn_norm",
    "encoder.blocks.*.feed_forward.inner": "model.layers.*.mlp.Wi",
    "encoder.blocks.*.feed_forward.outer": "model.layers.*.mlp.Wo",
    "encoder.blocks.*.feed_forward_norm": "model.layers.*.mlp_norm",
    "encoder.final_norm": "model.final_norm",
    "head": "decoder",
    "head.transform": "head.dense",
    "head.norm": "head.norm",
    "head.decoder": "decoder",
}

_MOBILEBERTS_BLOCK = {
    "attention.bottleneck.product": "bottleneck.attention.dense",
    "attention.bottleneck.norm": "bottleneck.attention.LayerNorm",
    "bottleneck.product": "bottleneck.input.dense",
    "bottleneck.norm": "bottleneck.input.LayerNorm",
    "stacked.*.feed_forward.inner": "ffn.*.intermediate.dense",
    "stacked.*.feed_forward.outer": "ffn.*.output.dense",
    "stacked.*.norm": "ffn.*.output.LayerNorm",
    "widening": "output.bottleneck.dense",
    "widening_norm": "output.bottleneck.LayerNorm",
}
_MOBILEBERTS = {
    **_berts("mobilebert"),
    **{f"encoder.blocks.*.{ours}": f"mobilebert.encoder.layer.*.{theirs}" for ours, theirs in _MOBILEBERTS_BLOCK.items()},
    "encoder.embeddings.projection": "mobilebert.embeddings.embedding_transformation",
    "head.beside": "cls.predictions.dense",
    "pair_head.pooler": "mobilebert.pooler.dense",
    "pair_head.output": "cls.seq_relationship",
}

TRANSFORMERS_CLASSES = (
    TransformersClass(
        "bert", "BertForMaskedLM", _berts("bert") | _BERTS_PAIRS, pretraining="BertForPreTraining", has_pooler=True
    ),
    TransformersClass(
        "roformer",
        "RoFormerForMaskedLM",
        _berts("roformer"),
        fields=_FIELDS | _SEGMENTS | _FACTORISED,
        kind={"position_encoding": "rotary"},
        usual={"is_decoder": False, "rotary_value": False},
    ),
    TransformersClass(
        "megatron-bert",
        "MegatronBertForMaskedLM",
        _berts("bert", ("attention.ln", "ln"), final_norm="encoder.ln") | _BERTS_PAIRS,
        kind={"norm": "pre"},
        pretraining="MegatronBertForPreTraining",
        has_pooler=True,
    ),
    TransformersClass(
        "esm",
        "EsmForMaskedLM",
        _berts("esm", ("attention.LayerNorm", "LayerNorm"), _ESMS_HEAD, final_norm="encoder.emb_layer_norm_after"),
        fields=_FIELDS | {"token_dropout": "token_dropout"},
        kind={"norm": "pre", "position_encoding": "rotary"},
        activations={"gelu": ("gelu",)},
        usual=_BERTS_USUAL | {"position_embedding_type": "rotary", "emb_layer_norm_before": False},
        left_out={"position_embedding_type": "absolute"},
        special=("pad", "mask"),
        has_pooler=True,
    ),
    TransformersClass(
        "electra",
        "ElectraForMaskedLM",
        _berts("electra", head=_ELECTRAS_HEAD | _ELECTRAS_DETECTOR),
        fields=_FIELDS | _SEGMENTS | _FACTORISED,
        head_activates=False,
        left_out={"embedding_size": 128},
        detecting="ElectraForPreTraining",
    ),
    TransformersClass(
        "albert",
        "AlbertForMaskedLM",
        _ALBERTS | _ALBERTS_PAIRS,
        fields=_FIELDS | _SEGMENTS | _FACTORISED | {"num_hidden_groups": "layer_groups"},
        usual={"inner_group_num": 1, "position_embedding_type": "absolute"},
        left_out={"embedding_size": 128, "num_hidden_groups": 1, "hidden_act": "gelu_new"},
        special=("pad", "bos", "eos"),
        pretraining="AlbertForPreTraining",
        has_pooler=True,
    ),
    TransformersClass(
        "modernbert",
        "ModernBertForMaskedLM",
        _MODERNBERTS,
        fields=_SIZES | _WINDOWS | {"norm_bias": "norm_bias", "norm_eps": "norm_epsilon"},
        kind={"norm": "pre", "position_encoding": "rotary", "embedding_norm": True, "biases": "none"},
        activation="hidden_activation",
        activations={"geglu": ("gelu",), "swiglu": ("silu", "swish")},
        head_activates=False,
        usual={
            "attention_bias": False,
            "mlp_bias": False,
            "classifier_bias": False,
            "decoder_bias": True,
            "classifier_activation": "gelu",
        },
        left_out={
            "norm_eps": 1e-5,
            "norm_bias": False,
            "local_attention": 128,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 160_000.0,
            "local_rope_theta": 10_000.0,
        },
        dropouts=("embedding_dropout", "attention_dropout", "mlp_dropout"),
        special=("pad", "cls", "sep", "bos", "eos"),
    ),
    TransformersClass(
        "roberta",
        "RobertaForMaskedLM",
        _berts("roberta", head=_ROBERTAS_HEAD),
        head_activates=False,
        usual=_BERTS_USUAL | {"pad_token_id": 1},
        also=("xlm-roberta", "camembert"),
        first_position=2,
        exported=False,
    ),
    TransformersClass(
        "deberta",
        "DebertaForMaskedLM",
        _debertas({"query_key_value": "in_proj", "position_query": "pos_q_proj", "position_key": "pos_proj"}),
        fields=_FIELDS | _SEGMENTS | {"relative_positions": "relative_positions"},
        kind={"position_encoding": "disentangled", "biases": "no_key"},
        usual=_DEBERTAS_USUAL | {"talking_head": False},
        left_out=_DEBERTAS_LEFT_OUT,
    ),
    TransformersClass(
        "deberta-v2",
        "DebertaV2ForMaskedLM",
        _debertas({part: f"{part}_proj" for part in ("query", "key", "value")}),
        fields=_FIELDS
        | _SEGMENTS
        | {name: name for name in ("relative_positions", "relative_reach")}
        | {"conv_kernel_size": "convolution_kernel"},
        kind={"position_encoding": "disentangled_shared"},
        usual=_DEBERTAS_USUAL | {"share_att_key": True, "norm_rel_ebd": "layer_norm", "conv_act": "gelu", "conv_groups": 1},
        left_out=_DEBERTAS_LEFT_OUT | {"share_att_key": False, "norm_rel_ebd": "none"},
    ),
    TransformersClass(
        "mobilebert",
        "MobileBertForMaskedLM",
        _MOBILEBERTS,
        fields=_FIELDS
        | _SEGMENTS
        | _FACTORISED
        | {"intra_bottleneck_size": "bottleneck_width", "num_feedforward_networks": "ffn_stack"},
        kind={"trigram_embedding": True, "norm_kind": "affine", "mlm_transform": "width"},
        usual={
            "is_decoder": False,
            "trigram_input": True,
            "use_bottleneck": True,
            "use_bottleneck_attention": False,
            "key_query_shared_bottleneck": True,
            "normalization_type": "no_norm",
        },
        left_out={
            "embedding_size": 128,
            "intra_bottleneck_size": 128,
            "num_feedforward_networks": 4,
            "hidden_act": "relu",
        },
        pretraining="MobileBertForPreTraining",
        has_pooler=True,
    ),
    TransformersClass(
        "distilbert",
        "DistilBertForMaskedLM",
        _DISTILBERTS,
        fields=_DISTILBERTS_FIELDS,
        activation="activation",
        usual={},
        exported=False,
    ),
    TransformersClass(
        "neobert",
        "NeoBERTLMHead",
        _NEOBERTS,
        fields=_NEOBERTS_FIELDS,
        kind={
            "norm": "pre",
            "norm_kind": "rms",
            "norm_bias": False,
            "position_encoding": "rotary",
            "biases": "none",
            "mlm_transform": "none",
            "tied_decoder": False,
        },
        activations={"swiglu": ("SwiGLU", "swiglu")},
        head_activates=False,
        usual={"rope": True, "rms_norm": True, "ngpt": False},
        left_out={"norm_eps": 1e-6},
        exported=False,
    ),
)
"""The known classes; the plainer of two matches comes first."""


_NOT_BUILT = {
    "longformer": "whose global attention has products of its own",
    "big_bird": "whose attention reads random blocks",
    "xlnet": "which predicts permuted words, not masked ones",
    "mpnet": "whose layers share a bias by distance in buckets",
}
"""Why encoders of some types are not read."""


def class_for(architecture: Architecture) -> TransformersClass:
    """Return the class of transformers that computes an architecture; of an encoder with a generator, both are of one class.

    Raises InputError if there is none, with the values that no class has, or with the differences of each, the nearest first.
    """
    detects = architecture.generator is not None
    exported = [family for family in TRANSFORMERS_CLASSES if family.exported and (family.detecting is not None or not detects)]
    unlike = sorted(((family, family.unlike(architecture)) for family in exported), key=lambda each: len(each[1]))
    nearest, differs = unlike[0]
    some = {name for family in exported for name in family.fields.values()}
    if nowhere := [name for name in differs if name not in some and all(name in each for _, each in unlike)]:
        fields = ", ".join(f"{name} {getattr(architecture, name)}" for name in nowhere)
        names = ", ".join(family.name_for(architecture) for family in exported)
        raise InputError.at("architecture", f"has {fields}, which {'no' if detects else 'none of'} {names} has")
    if differs:
        differences = {
            family.name_for(architecture): ", ".join(
                f"{name} {has}, not {getattr(architecture, name)}" for name, has in each.items()
            )
            for family, each in unlike
        }
        raise InputError(
            Problem("architecture", f"does not match {name}, which has {each}") for name, each in differences.items()
        )
    return nearest


def class_in(config: Mapping[str, Any], place: str) -> TransformersClass:
    """Return the class of transformers of a config.json; raises InputError, at `place`, if it is not supported."""
    known = {name: family for family in TRANSFORMERS_CLASSES for name in (family.model_type, *family.also)}
    if (family := known.get(str(model_type := config.get("model_type")))) is None:
        why = f", {_NOT_BUILT[str(model_type)]}" if str(model_type) in _NOT_BUILT else ""
        raise InputError.at(place, f"is a model of type {model_type}{why}; supported types are {', '.join(known)}")
    return family
