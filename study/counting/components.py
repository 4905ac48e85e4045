"""Closed forms of parameters by component, in integers or letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from study.counting.architecture import Architecture


@dataclass(frozen=True)
class Symbol:
    """A letter or expression as text; arithmetic writes the formula, without 1· or + 0."""

    text: str
    is_sum: bool = False

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: Quantity) -> Quantity:
        return self if other == 0 else Symbol(f"{self} + {other}", is_sum=True)

    def __radd__(self, other: int) -> Quantity:
        return self if other == 0 else Symbol(f"{other} + {self}", is_sum=True)

    def __sub__(self, other: Quantity) -> Quantity:
        return self if other == 0 else Symbol(f"{self} − {other}", is_sum=True)

    def __rsub__(self, other: int) -> Quantity:
        return Symbol(f"{other} − {self}", is_sum=True)

    def __mul__(self, other: Quantity) -> Quantity:
        if isinstance(other, int):
            return other * self
        if self == other:
            return self**2
        return Symbol(f"{self._factor()}·{other._factor()}")

    def __rmul__(self, other: int) -> Quantity:
        if other == 0:
            return 0
        return self if other == 1 else Symbol(f"{other}·{self._factor()}")

    def __pow__(self, power: Literal[2]) -> Symbol:
        return Symbol(f"{self._factor()}²")

    def _factor(self) -> str:
        return f"({self})" if self.is_sum else self.text


SHARED_WITH_GENERATOR = ("token embeddings", "position embeddings", "segment embeddings", "embedding norm")
"""The components that a generator reads of its discriminator (Clark et al. 2020, arXiv:2003.10555, section 3.2)."""

OF_GENERATOR = "generator "
"""The prefix of the components of a generator alone."""

Quantity = int | Symbol
"""A number, or its formula."""


Part = Literal["tables", "encoder", "head"]
"""The part of the model: an embedding table (looked up), the rest of the encoder, or the MLM head."""

LETTERS = {
    "L": "depth",
    "H": "width",
    "A": "heads",
    "F": "ffn",
    "V": "vocabulary",
    "P": "positions",
    "T": "segments (token types)",
    "E": "embedding width",
    "B": "bottleneck width",
    "N": "FFNs a block",
    "G": "layer groups",
    "R": "relative positions",
    "K": "convolution kernel",
    "M": "reach of the distance bias",
    "D": "width of a head",
}
"""The meaning of each letter of a formula."""


@dataclass(frozen=True)
class Letters:
    """The sizes in formulas (see LETTERS), all as numbers or all as symbols."""

    L: Quantity
    H: Quantity
    A: Quantity
    F: Quantity
    V: Quantity
    P: Quantity
    T: Quantity
    E: Quantity
    B: Quantity
    N: Quantity
    G: Quantity
    R: Quantity
    K: Quantity
    M: Quantity
    D: Quantity

    @classmethod
    def numbers(cls, architecture: Architecture) -> Letters:
        """Return the sizes of an architecture."""
        a = architecture
        tables = (a.vocabulary, a.positions, a.segments)
        others = (a.ffn_stack, a.groups, a.relative_positions, a.convolution_kernel)
        attention = (a.biased_distances // 2, a.head_width)
        return cls(a.depth, a.width, a.heads, a.ffn, *tables, a.table_width, a.block_width, *others, *attention)

    @classmethod
    def symbols(cls, architecture: Architecture) -> Letters:
        """Return the letters; a size has its own only if it differs from BERT's pattern."""
        letters: dict[str, Quantity] = {letter: Symbol(letter) for letter in LETTERS}
        if architecture.embedding_width is None:
            letters["E"] = letters["H"]
        if architecture.bottleneck_width is None:
            letters["B"] = letters["H"]
        if architecture.layer_groups is None:
            letters["G"] = letters["L"]
        if architecture.ffn_stack == 1:
            letters["N"] = 1
        return cls(**letters)

    def primed(self, tables: Quantity) -> Letters:
        """Return a generator's letters: sizes of its own are primed, as H′, and its tables have another encoder's width."""
        own = {letter: Symbol(f"{getattr(self, letter)}′") for letter in "HAFBD"}
        return replace(self, **own, E=tables)


Entry = tuple[Part, str, Quantity]


def components(architecture: Architecture, letters: Letters) -> Iterator[Entry]:
    """Every component of the MLM model: its part, its name and its count or formula.

    Layers that share parameters count once (G instead of L). There is no pooler. A generator has primed letters, and tables and
    their norm in common with the encoder.
    """
    yield from _embeddings(architecture, letters)
    yield from _blocks(architecture, letters)
    if (generator := architecture.generator) is None:
        yield from _head(architecture, letters)
        return
    yield "head", "detector transform", letters.H**2 + letters.H
    yield "head", "detector output", letters.H + 1
    its = Letters.numbers(generator) if isinstance(letters.H, int) else Letters.symbols(generator).primed(letters.E)
    for entries in (_embeddings, _blocks, _head):
        for _, name, count in entries(generator, its):
            if name not in SHARED_WITH_GENERATOR:
                yield "head", f"{OF_GENERATOR}{name}", count


def _embeddings(a: Architecture, x: Letters) -> Iterator[Entry]:
    summed = x.H if a.trigram_embedding else x.E
    yield "tables", "token embeddings", x.V * x.E
    if a.position_encoding == "learned":
        yield "tables", "position embeddings", x.P * summed
    if a.segments:
        yield "tables", "segment embeddings", x.T * summed
    if a.relative:
        yield "tables", "relative position embeddings", x.R * x.H
    if a.distance_bias == "learned":
        distances = 2 * x.P - 1 if a.distance_bias_reach is None else 2 * x.M + 1
        yield "tables", "distance bias", x.G * (x.A * distances)
    if projection := projection_weights(a, x):
        yield "encoder", "embedding projection", projection + a.biased * x.H
    if a.norms_embeddings:
        yield "encoder", "embedding norm", norm_vectors(a) * summed
    if a.position_encoding == "disentangled_shared":
        yield "encoder", "relative position norm", norm_vectors(a) * x.H


def _blocks(a: Architecture, x: Letters) -> Iterator[Entry]:
    if a.bottleneck_width is not None:
        yield "encoder", "bottlenecks", x.G * (bottleneck_weights(a, x) + a.biased * (2 * x.B + x.H))
    attention_biases = {"all": 4, "no_key": 3, "none": 0}[a.biases]
    yield "encoder", "attention", x.G * (attention_weights(a, x) + attention_biases * x.B)
    if a.position_encoding == "disentangled":
        yield "encoder", "relative position projections", x.G * (2 * x.H**2 + x.H)
    if a.query_key_norm:
        yield "encoder", "query and key norms", x.G * (2 * norm_vectors(a) * x.D)
    ffn_biases = x.N * ((matrices(a) - 1) * x.F + x.B)
    yield "encoder", "ffn", x.G * (ffn_weights(a, x) + a.biased * ffn_biases)
    yield "encoder", "block norms", _block_norms(a, x)
    if a.convolution_kernel:
        biases, norm = a.biased * x.H, norm_vectors(a) * x.H
        yield "encoder", "convolution", convolution_weights(a, x) + biases + norm
    if a.norm == "pre":
        yield "encoder", "final norm", norm_vectors(a) * x.H
    if a.contact_head:
        yield "encoder", "contact head", x.L * x.A + 1


def _block_norms(a: Architecture, x: Letters) -> Quantity:
    """Norms after attention and each FFN; a bottleneck also norms its two inputs and its output."""
    vectors = norm_vectors(a)
    if a.bottleneck_width is not None:
        return x.G * (vectors * ((x.N + 3) * x.B + x.H))
    if a.norm == "pre" and a.norms_embeddings:
        return x.G * ((x.N + 1) * (vectors * x.H)) - vectors * x.H
    return x.G * ((x.N + 1) * vectors * x.H)


def _head(a: Architecture, x: Letters) -> Iterator[Entry]:
    inner = _mlm_inner(a, x)
    if a.enhanced_mask_decoder:
        yield "head", "mask decoder positions", x.P * x.H
    if a.mlm_transform != "none":
        yield "head", "MLM transform", x.H * inner + a.biased * inner
        yield "head", "MLM norm", norm_vectors(a) * inner
    yield "head", "MLM output bias", x.V
    if a.mlm_transform == "width" and a.embedding_width is not None:
        yield "head", "MLM decoder beside the embedding", x.V * (x.H - x.E)
    if not a.tied_decoder:
        yield "head", "MLM decoder", x.V * x.E
    if a.pair_head:
        yield "head", "pair pooler", x.H**2 + x.H
        yield "head", "pair output", 2 * x.H + 2


def norm_vectors(a: Architecture) -> int:
    """Vectors of a norm: a scale, and any bias."""
    return 2 if a.norm_bias else 1


def matrices(a: Architecture) -> int:
    """Matrices of an FFN, 3 if gated."""
    return 3 if a.gated else 2


def projection_weights(a: Architecture, x: Letters) -> Quantity:
    """Weights between embeddings and blocks, E·H, thrice that for trigrams; 0 at equal widths."""
    if a.trigram_embedding:
        return 3 * x.E * x.H
    return x.E * x.H if a.embedding_width is not None else 0


def bottleneck_weights(a: Architecture, x: Letters) -> Quantity:
    """Weights of one layer's two projections into its bottleneck and the one out."""
    return 3 * x.H * x.B if a.bottleneck_width is not None else 0


def attention_weights(a: Architecture, x: Letters) -> Quantity:
    """Weights of one layer's query, key, value and output; within a bottleneck only the value reads width H."""
    return 4 * x.H**2 if a.bottleneck_width is None else 3 * x.B**2 + x.H * x.B


def ffn_weights(a: Architecture, x: Letters) -> Quantity:
    """Weights of one layer's FFNs."""
    return x.N * (matrices(a) * x.B * x.F)


def convolution_weights(a: Architecture, x: Letters) -> Quantity:
    """Weights of the convolution beside the first block."""
    return x.K * x.H**2 if a.convolution_kernel else 0


def head_weights(a: Architecture, x: Letters) -> Quantity:
    """Weights of a masked position's products: transform and decoder."""
    if a.mlm_transform == "none":
        return x.V * x.H
    inner = _mlm_inner(a, x)
    return x.H * inner + x.V * inner


def _mlm_inner(a: Architecture, x: Letters) -> Quantity:
    return x.E if a.mlm_transform == "embedding_width" else x.H


def detector_weights(a: Architecture, x: Letters) -> Quantity:
    """Weights of a token's products in the detector of replaced tokens."""
    return x.H**2 + x.H if a.generator_share else 0


def pair_weights(a: Architecture, x: Letters) -> Quantity:
    """Weights of a pair's products: pooler and 2-way output."""
    return x.H**2 + 2 * x.H if a.pair_head else 0
