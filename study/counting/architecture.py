"""The architecture of an encoder, with invariants."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from study.base.schema import Count, Index, Positive, Share, Strict

SIZES = ("depth", "width", "heads", "ffn")
"""The sizes of a shape, in sort order."""

SHAPE = tuple(f"architecture.{size}" for size in SIZES)
"""The same as knobs and ledger columns."""

ALWAYS_WRITTEN = (*SIZES, "vocabulary", "positions", "segments", "norm", "tied_decoder")
"""The fields in every configuration; others are written only if they differ from BERT."""

BUILT_AS_BERT = ("contact_head",)
"""The fields that study.model builds only with BERT's value."""

NONE = "none"
"""How a missing value is written."""

SET_BY_OBJECTIVE = ("pair_head", "generator_share")
"""Fields that follow recipe.objective."""

NOT_IN_MLM = ("pooler", "second_output_bias", *SET_BY_OBJECTIVE)
"""Fields outside the MLM model: those of other people's totals, and what recipe.objective adds."""

Theta = Annotated[Positive, Field(ge=1, le=1e12)]
"""The base of rotary angles."""


class Architecture(Strict):
    """An encoder with a masked-language-model head: depth L, width H, heads A, ffn F, and the rest, by default as BERT's.

    `ffn` is the built inner size. `norm` is `post`, after each residual sum, as in BERT (arXiv:1810.04805), or `pre`, before
    each sublayer and after the last (arXiv:2002.04745). With `tied_decoder` the output projection is the token embedding. Other
    fields:

    - `embedding_width` E: tables of width E with a projection to H (ALBERT, arXiv:1909.11942; ELECTRA, arXiv:2003.10555); the
      decoder then works at E. `trigram_embedding` projects three neighbouring tokens at once, before adding positions and
      segments (MobileBERT, arXiv:2004.02984).
    - `bottleneck_width` B: blocks at width B between projections from and to H, where queries and keys share a projection of
      their own and values read H (MobileBERT). `ffn_stack` N: FFNs in a block, each with its residual sum and norm.
    - `layer_groups` G: layers share parameters within G groups (ALBERT has one).
    - `activation`: a gated FFN, GeGLU or SwiGLU, has three matrices (arXiv:2002.05202). `gelu_tanh` is the GELU's approximation
      by a tanh (ALBERT; transformers' `gelu_new`). `mlm_activation`: the same of the MLM head.
    - `biases`: the matrices with biases. DeBERTa's key has none; in ModernBERT (arXiv:2412.13663) only the output has.
    - `norm_kind`: LayerNorm, RMSNorm, or MobileBERT's affine map without normalising, beside which the MLM head has a
      LayerNorm. `norm_epsilon`: added to a variance or
      mean square. `embedding_norm`: in pre-norm, one after the embeddings that replaces the first block's (ModernBERT).
    - `token_dropout`: the id of the mask piece, whose embedding is left out, and the others multiplied by 0.88 ÷ (1 − share of
      masks), as if every sequence had 12% of masks (ESM-2, Lin et al. 2022, doi:10.1101/2022.07.20.500902, and its code).
    - `position_encoding`: `learned` adds P rows; `rotary` rotates queries and keys by angles that grow with the position,
      without parameters (RoFormer, arXiv:2104.09864; ESM-2, ModernBERT); `disentangled` has a table of R relative positions
      with its own projections (DeBERTa, arXiv:2006.03654), 2P of them if R is left out; `disentangled_shared` uses the
      content's projections and norms the table (DeBERTa v2 and v3, arXiv:2111.09543); distances beyond R/2 share a row, or with
      `relative_reach` those from R/4 up to it share rows by their logarithm; `none` leaves token order to `distance_bias`, and
      without one the encoder is a bag of words. `convolution_kernel` K: a convolution beside the first block.
    - `distance_bias`: an addition to attention scores by head and signed distance. `learned` has a number per layer, head and
      distance, initialised to favour neighbours (T5, arXiv:1910.10683, section 2.1, without buckets); beyond
      `distance_bias_reach` M, all distances share one number per direction (arXiv:1803.02155, section 3.2). `alibi` falls
      linearly with the distance, without parameters (arXiv:2108.12409).
    - `query_key_norm`: norms of each head's queries and keys, of the usual kind, with vectors shared by the heads, before
      rotation (arXiv:2010.04245; arXiv:2302.05442, section 2).
    - `attention_window` W: tokens see W/2 others on each side, except in the first of every `global_attention_every` layers.
    - `rotary_theta`: the base of the rotary angles, θ^(−2i/D); `local_rotary_theta`: another one in layers with windows.
    - `mlm_transform`: the head's product before the decoder goes to E, to H (the decoder then has H − E more columns,
      MobileBERT), or is absent (NeoBERT, arXiv:2502.19587).
    - `enhanced_mask_decoder`: the MLM head reads the last layer applied twice at the masked positions. Keys and values are the
      stream before that layer; the queries begin as the stream plus P absolute positions, which the head has, and the second
      pass reads those of the first (DeBERTa, arXiv:2006.03654, section 3.2 and its code). All else reads the plain encoder.
    - `pair_head`: a pooler (H → H and tanh) over [CLS] and a 2-way output, as in BertForPreTraining. `recipe.objective` sets
      it in every run, so that configurations omit it.
    - `generator_share`: above 0, the encoder detects tokens that a `generator` replaced (ELECTRA); set like `pair_head`.
    - `pooler`, `contact_head` (ESM-2), and `second_output_bias`, which transformers adds to an untied BERT-style decoder.

    Raises InputError (through `parse`) or ValidationError if sizes do not fit together or one is below one.
    """

    depth: Count
    width: Count
    heads: Count
    ffn: Count
    vocabulary: Count
    positions: Count = 512
    segments: Index = 2
    norm: Literal["post", "pre"] = "post"
    tied_decoder: bool = True
    embedding_width: Count | None = None
    trigram_embedding: bool = False
    token_dropout: Index | None = None
    bottleneck_width: Count | None = None
    ffn_stack: Count = 1
    layer_groups: Count | None = None
    activation: Literal["gelu", "gelu_tanh", "relu", "geglu", "swiglu"] = "gelu"
    biases: Literal["all", "no_key", "none"] = "all"
    norm_kind: Literal["layer", "rms", "affine"] = "layer"
    norm_bias: bool = True
    norm_epsilon: Annotated[Positive, Field(le=1)] = 1e-12
    embedding_norm: bool | None = None
    position_encoding: Literal["learned", "rotary", "none", "disentangled", "disentangled_shared"] = "learned"
    relative_positions: Index = 0
    relative_reach: Count | None = None
    distance_bias: Literal["none", "learned", "alibi"] = "none"
    distance_bias_reach: Count | None = None
    query_key_norm: bool = False
    convolution_kernel: Index = 0
    attention_window: Count | None = None
    global_attention_every: Count = 1
    rotary_theta: Theta = 10_000.0
    local_rotary_theta: Theta | None = None
    mlm_transform: Literal["embedding_width", "width", "none"] = "embedding_width"
    mlm_activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    enhanced_mask_decoder: bool = False
    pooler: bool = True
    contact_head: bool = False
    second_output_bias: bool = True
    pair_head: bool = Field(default=False, exclude=True)
    generator_share: Share = Field(default=0.0, exclude=True)

    @field_validator(
        "embedding_width",
        "token_dropout",
        "bottleneck_width",
        "layer_groups",
        "embedding_norm",
        "distance_bias_reach",
        "relative_reach",
        "attention_window",
        "local_rotary_theta",
        mode="before",
    )
    @classmethod
    def _none_is_a_word(cls, value: object) -> object:
        """Accept `none`."""
        return None if value == NONE else value

    @field_validator("heads")
    @classmethod
    def _heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("width")
        if width is not None and width % heads:
            raise ValueError(f"heads do not divide width {width}; {nearest_divisor(width, heads)} would")
        return heads

    @field_validator("embedding_width", "layer_groups")
    @classmethod
    def _same_as_none(cls, value: int | None, info: ValidationInfo) -> int | None:
        """Map tables as wide as the blocks, or a group per layer, to None."""
        most = info.data.get("width" if info.field_name == "embedding_width" else "depth")
        if info.field_name == "layer_groups" and value is not None and most is not None and value > most:
            raise ValueError(f"groups of layers exceed depth {most}")
        return None if value == most else value

    @field_validator("token_dropout")
    @classmethod
    def _mask_is_a_piece(cls, mask: int | None, info: ValidationInfo) -> int | None:
        vocabulary = info.data.get("vocabulary")
        if mask is not None and vocabulary is not None and mask >= vocabulary:
            raise ValueError(f"is no id of {vocabulary} pieces; give that of the mask piece, at most {vocabulary - 1}")
        return mask

    @field_validator("bottleneck_width")
    @classmethod
    def _heads_divide_bottleneck(cls, bottleneck: int | None, info: ValidationInfo) -> int | None:
        heads = info.data.get("heads")
        if bottleneck is not None and heads is not None and bottleneck % heads:
            raise ValueError(f"is not divisible by heads {heads}; {max(1, round(bottleneck / heads)) * heads} would be")
        return bottleneck

    @model_validator(mode="before")
    @classmethod
    def _rms_implies_no_bias(cls, values: Any) -> Any:
        return {"norm_bias": False} | values if isinstance(values, dict) and values.get("norm_kind") == "rms" else values

    @field_validator("norm_bias")
    @classmethod
    def _rms_has_no_bias(cls, bias: bool, info: ValidationInfo) -> bool:
        if bias and info.data.get("norm_kind") == "rms":
            raise ValueError("does not go with norm_kind rms, which has no bias; set norm_bias: false")
        return bias

    @field_validator("embedding_norm")
    @classmethod
    def _embedding_norm_fits(cls, normed: bool | None, info: ValidationInfo) -> bool | None:
        """Resolve None: post-norm has one, pre-norm has none."""
        norm = info.data.get("norm")
        if norm == "post" and normed is False:
            raise ValueError("does not go with norm post, which always norms the embeddings")
        return None if normed is (norm == "post") else normed

    @field_validator("relative_positions")
    @classmethod
    def _relative_positions_fit(cls, rows: int, info: ValidationInfo) -> int:
        """Resolve 0 under disentangled attention: a row for every distance, as in DeBERTa's own default."""
        encoding, positions = info.data.get("position_encoding", ""), info.data.get("positions")
        if encoding.startswith("disentangled") and positions is not None and rows == 0:
            return 2 * int(positions)
        if encoding.startswith("disentangled") and rows % 2:
            raise ValueError(f"is odd, and position_encoding {encoding} has as many rows ahead as behind; {rows + 1} would do")
        if encoding and not encoding.startswith("disentangled") and rows:
            raise ValueError(f"relative positions do not go with position_encoding {encoding}; leave them out")
        return rows

    @field_validator("relative_reach")
    @classmethod
    def _reach_is_beyond_single_rows(cls, reach: int | None, info: ValidationInfo) -> int | None:
        rows = info.data.get("relative_positions")
        if reach is not None and rows is not None and (rows < 4 or reach - 1 <= rows // 4):
            alone = f"distances up to {rows // 4} have rows of their own with relative_positions {rows}"
            raise ValueError(
                f"is too near: {alone}; give at least {rows // 4 + 2}, or leave it out" if rows else "needs relative_positions"
            )
        return reach

    @field_validator("distance_bias_reach")
    @classmethod
    def _reach_needs_a_learned_bias(cls, reach: int | None, info: ValidationInfo) -> int | None:
        """Map a reach of every distance to None."""
        bias, positions = info.data.get("distance_bias"), info.data.get("positions")
        if reach is not None and bias not in (None, "learned"):
            raise ValueError(f"does not go with distance_bias {bias}; set distance_bias: learned, or leave it out")
        return None if reach is None or (positions is not None and reach >= positions - 1) else reach

    @field_validator("global_attention_every")
    @classmethod
    def _global_layers_need_windows(cls, every: int, info: ValidationInfo) -> int:
        if every > 1 and info.data.get("attention_window") is None:
            raise ValueError("needs an attention_window for the layers between; without one every layer is global")
        return every

    @field_validator("local_rotary_theta")
    @classmethod
    def _local_theta_differs(cls, theta: float | None, info: ValidationInfo) -> float | None:
        """Map the theta of all layers to None."""
        if theta is not None and info.data.get("attention_window") is None:
            raise ValueError("needs an attention_window; without one no layer is local, and rotary_theta is that of all")
        return None if theta == info.data.get("rotary_theta") else theta

    @field_validator("mlm_transform")
    @classmethod
    def _head_fits_decoder(cls, transform: str, info: ValidationInfo) -> str:
        """Map a transform to the width of equal tables to theirs."""
        width, embedding = info.data.get("width"), info.data.get("embedding_width")
        if None not in (width, embedding) and transform == "none":
            remedy = "make them equal, or set mlm_transform: embedding_width"
            raise ValueError(f"leaves width {width} to a decoder of embedding_width {embedding}; {remedy}")
        if width is not None and embedding is not None and transform == "width" and embedding > width:
            raise ValueError(f"needs an embedding_width of at most width {width}, not {embedding}")
        return "embedding_width" if transform == "width" and embedding is None else transform

    @property
    def block_width(self) -> int:
        """Width of attention and FFN, B within a bottleneck and else H."""
        return self.bottleneck_width or self.width

    @property
    def head_width(self) -> int:
        """Width of one attention head, H/A, or B/A within a bottleneck."""
        return self.block_width // self.heads

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Depth, width, heads and FFN, the sort key of shapes."""
        return self.depth, self.width, self.heads, self.ffn

    @property
    def shape_name(self) -> str:
        """A short name, such as L2-H128-A2-F512."""
        return f"L{self.depth}-H{self.width}-A{self.heads}-F{self.ffn}"

    @property
    def table_width(self) -> int:
        """Width E of the embedding tables, H by default."""
        return self.embedding_width or self.width

    @property
    def summed_width(self) -> int:
        """Width of the sum of the embedding tables; trigrams are projected before it."""
        return self.width if self.trigram_embedding else self.table_width

    @property
    def mlm_width(self) -> int:
        """Width of what the MLM decoder reads."""
        return self.table_width if self.mlm_transform == "embedding_width" else self.width

    @property
    def groups(self) -> int:
        """Groups of layers that share parameters, L by default."""
        return self.layer_groups or self.depth

    @property
    def biased(self) -> bool:
        """Whether matrices have biases (the output bias always exists)."""
        return self.biases != "none"

    @property
    def gated(self) -> bool:
        """Whether the FFN has a third matrix, whose output gates the inner one."""
        return self.activation in ("geglu", "swiglu")

    @property
    def norms_embeddings(self) -> bool:
        """Whether a norm follows the embeddings."""
        return self.norm == "post" if self.embedding_norm is None else self.embedding_norm

    @property
    def skips_first_norm(self) -> bool:
        """Whether the embedding norm replaces the first block's, as in ModernBERT."""
        return self.norm == "pre" and self.norms_embeddings

    @property
    def rotary(self) -> bool:
        """Whether positions rotate queries and keys."""
        return self.position_encoding == "rotary"

    def is_local(self, layer: int) -> bool:
        """Whether tokens see only their window in a layer, numbered from 0."""
        return self.attention_window is not None and (
            self.global_attention_every == 1 or layer % self.global_attention_every > 0
        )

    @property
    def local_layers(self) -> int:
        """The number of layers with windows."""
        return sum(map(self.is_local, range(self.depth)))

    @property
    def biased_distances(self) -> int:
        """Signed distances with their own number in a bias by distance: 2·P − 1, or 2·M + 1 with reach M."""
        return 2 * (self.positions - 1 if self.distance_bias_reach is None else self.distance_bias_reach) + 1

    @property
    def orders_tokens(self) -> bool:
        """Whether the encoder has any source of token order."""
        neighbours = (self.trigram_embedding, self.convolution_kernel, self.attention_window, self.enhanced_mask_decoder)
        return self.position_encoding != "none" or self.distance_bias != "none" or any(neighbours)

    @property
    def relative(self) -> bool:
        """Whether attention has products with a table of relative positions."""
        return self.position_encoding.startswith("disentangled")

    @property
    def generator(self) -> Architecture | None:
        """The MLM encoder that replaces tokens for this one to detect; None without.

        It has as many layers, and a share of the width, heads and ffn, to whole numbers (heads to a divisor of its width). It
        reads this encoder's tables through a projection of its own; its head is BERT's. Source: ELECTRA, Clark et al. 2020,
        arXiv:2003.10555, section 3.2 and table 6.
        """
        if not self.generator_share:
            return None
        width, heads, ffn = (max(1, round(self.generator_share * size)) for size in (self.width, self.heads, self.ffn))
        sizes: dict[str, Any] = {"width": width, "heads": nearest_divisor(width, heads), "ffn": ffn}
        tables = None if self.table_width == width else self.table_width
        own = {"embedding_width": tables, "mlm_transform": "embedding_width", "generator_share": 0.0}
        return self.model_copy(update=sizes | own)


def changed(architecture: Architecture, sizes: Mapping[str, Any], place: str = "") -> Architecture:
    """Return an architecture with some fields changed and rechecked; raises InputError."""
    return Architecture.parse(dict(architecture) | dict(sizes), place=place)  # its dump leaves out what the objective sets


def nearest_divisor(width: int, heads: int) -> int:
    """Return the divisor of `width` nearest to `heads`, the smaller on a tie."""
    small = [n for n in range(1, math.isqrt(width) + 1) if width % n == 0]
    return min(sorted({*small, *(width // n for n in small)}), key=lambda n: abs(n - heads))


def unlike_bert(architecture: Architecture) -> dict[str, object]:
    """Return the fields outside ALWAYS_WRITTEN that differ from BERT."""
    return {name: value for name, default in berts_values().items() if (value := getattr(architecture, name)) != default}


def not_of_berts_kind(architecture: Architecture) -> dict[str, object]:
    """Return the fields outside ALWAYS_WRITTEN in which the MLM model differs from BERT's."""
    return {name: value for name, value in unlike_bert(architecture).items() if name not in NOT_IN_MLM}


@functools.cache
def berts_values() -> dict[str, object]:
    """BERT's values in the fields outside ALWAYS_WRITTEN."""
    return {name: field.default for name, field in Architecture.model_fields.items() if name not in ALWAYS_WRITTEN}


def unbuildable(architecture: Architecture) -> str | None:
    """Why study.model cannot build an architecture, by field, if so."""
    for name, value in not_of_berts_kind(architecture).items():
        if name in BUILT_AS_BERT:
            built = str(berts_values()[name]).lower()
            return f"{name} {value} can be counted but not trained or timed; build it with {name} {built}"
    if problem := _unbuildable_bottleneck(architecture) or _unbuildable_decoder(architecture):
        return problem
    if architecture.token_dropout is not None and architecture.segments:
        scaled = f"token_dropout {architecture.token_dropout} scales tokens as ESM-2 does"
        return f"{scaled}, which has no segments; set segments 0"
    if architecture.skips_first_norm and architecture.layer_groups is not None:
        groups = f"layer_groups {architecture.layer_groups}"
        return f"embedding_norm True replaces the first layer's norm, which {groups} would share; leave out one of them"
    if architecture.convolution_kernel and (architecture.norm == "pre" or architecture.depth == 1):
        kernel = f"convolution_kernel {architecture.convolution_kernel}"
        return f"{kernel} stands beside the first of several blocks in norm post; leave it out"
    if architecture.convolution_kernel and architecture.convolution_kernel % 2 == 0:
        return f"convolution_kernel {architecture.convolution_kernel} has no middle; give an odd one"
    if architecture.rotary and (each := architecture.head_width) % 2:
        sizes = f"width {architecture.width} in {architecture.heads} heads"
        return f"position_encoding rotary rotates pairs of numbers, but {sizes} gives {each} each"
    return None


def _unbuildable_bottleneck(a: Architecture) -> str | None:
    """Why bottlenecks or trigrams do not go with the rest, if so."""
    if a.generator_share and (a.trigram_embedding or a.bottleneck_width is not None):
        fixed = "trigram_embedding" if a.trigram_embedding else f"bottleneck_width {a.bottleneck_width}"
        return f"{fixed} has no generator, whose width would be another; leave out objective rtd"
    if a.bottleneck_width is None:
        return None
    beside = {"norm pre": a.norm == "pre", f"position_encoding {a.position_encoding}": a.relative}
    beside[f"convolution_kernel {a.convolution_kernel}"] = bool(a.convolution_kernel)
    if odd := [name for name, differs in beside.items() if differs]:
        its = f"bottleneck_width {a.bottleneck_width}"
        return f"{its} stands in MobileBERT's blocks, which have no {odd[0]}; leave out one of them"
    return None


def _unbuildable_decoder(a: Architecture) -> str | None:
    """Why an enhanced mask decoder does not go with the rest, if so."""
    beside = {"position_encoding learned, whose tokens have absolute positions": a.position_encoding == "learned"}
    beside["objectives mlm_nsp and mlm_sop, which read the plain encoder in the same pass"] = a.pair_head
    beside["objective rtd, whose encoder predicts no masked tokens"] = a.generator_share > 0
    beside[f"bottleneck_width {a.bottleneck_width}, whose queries read the stream alone"] = a.bottleneck_width is not None
    reasons = [reason for reason, differs in beside.items() if a.enhanced_mask_decoder and differs]
    return f"enhanced_mask_decoder does not go with {reasons[0]}; leave out one of them" if reasons else None
