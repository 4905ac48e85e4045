"""Parameters by component and FLOPs by convention, in integer arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

from study.counting.architecture import Architecture
from study.counting.components import (
    Letters,
    Part,
    Quantity,
    attention_weights,
    bottleneck_weights,
    components,
    convolution_weights,
    detector_weights,
    ffn_weights,
    head_weights,
    pair_weights,
    projection_weights,
)

MASKING_RATE = 0.15
"""BERT's share of masked positions, for architectures without a run."""


TOTALS = ("parameters", "parameters_encoder", "parameters_non_embedding")
"""The totals of ParameterCount in every record."""

SizeCount = Literal["non_embedding", "total"]
"""The counts of parameters at which shapes are of one size."""

SIZE_COUNTS: dict[SizeCount, str] = {"non_embedding": "parameters_non_embedding", "total": "parameters"}
"""The total of ParameterCount that each of them is."""

CountWords = Literal["non-embedding parameters", "total parameters"]

COUNT_WORDS: dict[SizeCount, CountWords] = {"non_embedding": "non-embedding parameters", "total": "total parameters"}


@dataclass(frozen=True)
class Component:
    """One group of parameters: its part, name and count (see `formulas`)."""

    part: Part
    name: str
    count: int


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of one MLM model by component, with totals by convention.

    `parameters` counts the unique tensors of the MLM model, `parameters_encoder` the embeddings and blocks without pooler,
    `parameters_non_embedding` the encoder less its token, position (also relative ones and a bias by distance) and segment
    tables. `parameters_mlm_untied` is what transformers builds with `tie_word_embeddings=False`: a decoder V·E and, with
    `second_output_bias`, an unused V more; `tied_decoder=False` has one bias.
    """

    components: tuple[Component, ...]
    parameters: int
    parameters_encoder: int
    parameters_non_embedding: int
    parameters_pooler: int
    parameters_mlm_tied: int
    parameters_mlm_untied: int

    def totals(self) -> dict[str, int]:
        """Return the TOTALS by name."""
        return {name: getattr(self, name) for name in TOTALS}

    def size(self, count: SizeCount) -> int:
        """Return the total by which shapes are of one size."""
        return int(getattr(self, SIZE_COUNTS[count]))


def parameters(architecture: Architecture) -> ParameterCount:
    """Count the parameters of an architecture by component.

    For BERT, per layer 4(H² + H) for attention, 2HF + F + H for the FFN and 4H for its two norms; embeddings (V + P + T)·H and
    their norm 2H; MLM transform H² + H + 2H, output bias V, and V·H more for an untied decoder. Other families:
    study.counting.components.

    Source: Devlin et al. 2019 (arXiv:1810.04805) as built by google-research/bert; asserted against the live module in every
    run, and for named models against transformers.
    """
    a = architecture
    counted = tuple(Component(part, name, _whole(count)) for part, name, count in components(a, Letters.numbers(a)))
    tables = sum(component.count for component in counted if component.part == "tables")
    encoder = sum(component.count for component in counted if component.part != "head")
    total = sum(component.count for component in counted)
    decoder = a.vocabulary * a.table_width
    tied = total if a.tied_decoder else total - decoder
    return ParameterCount(
        components=counted,
        parameters=total,
        parameters_encoder=encoder,
        parameters_non_embedding=encoder - tables,
        parameters_pooler=(a.width + a.biased) * a.width if a.pooler else 0,
        parameters_mlm_tied=tied,
        parameters_mlm_untied=tied + decoder + (a.vocabulary if a.second_output_bias else 0),
    )


def formulas(architecture: Architecture) -> dict[str, str]:
    """Each component's closed form by name, in the letters of study.counting.components.LETTERS."""
    return {name: str(form) for _, name, form in components(architecture, Letters.symbols(architecture))}


def masked_positions(sequence_length: int, rate: float) -> int:
    """Masked positions of one sequence, round(rate · S)."""
    return round(rate * sequence_length)


@dataclass(frozen=True)
class SequenceFlops:
    """FLOPs of one training sequence, forward and backward, by convention; a multiply-add is two.

    `train_flops` are the matrix products of BERT's own code (google-research/bert, run_pretraining.py): 6 per block weight and
    token (layers that share weights count), full bidirectional attention 12·L·H·S per token, the head 6·(H² + V·H) on the
    masked positions only, and a pair head 6·(H² + 2·H) per sequence. Training here runs less of the last layer
    (`spared_flops_per_token`). `train_flops_dense_head` runs the head on every position. `train_flops_6n` is 6 · `parameters`
    per token, and `train_flops_6n_non_embedding` 6 · `parameters_non_embedding` (Kaplan et al. 2020, arXiv:2001.08361, §2.1).

    With a generator they are those of both encoders, of which the generator has the MLM head and the other a detector at every
    token, 6·(H² + H); the generator counts in `train_flops_6n_non_embedding`, too.

    An enhanced mask decoder adds a pass of the last layer with queries at the masked positions alone, as it runs here; its
    authors run it at all.

    Windowed layers count only pairs within their window, though training here multiplies all and masks some. Disentangled
    attention counts the table's projections for each sequence, as in a batch of one. Rotations, lookups, biases and norms are
    no products.
    """

    train_flops: int
    train_flops_dense_head: int
    train_flops_6n: int
    train_flops_6n_non_embedding: int


def flops_per_sequence(architecture: Architecture, sequence_length: int, predictions: int) -> SequenceFlops:
    """`SequenceFlops` of a length and number of masked positions, `predictions`.

    Backward runs two products per forward product: 2 · 3 FLOPs per multiply-add.
    """
    a, s = architecture, sequence_length
    count = parameters(a)
    encoder = s * _weights_per_token(a) + _attention_products(a, s)
    if a.generator is not None:
        detection = 6 * (encoder + s * _whole(detector_weights(a, Letters.numbers(a))))
        its = flops_per_sequence(a.generator, s, predictions)
        return SequenceFlops(
            train_flops=detection + its.train_flops,
            train_flops_dense_head=detection + its.train_flops_dense_head,
            train_flops_6n=6 * s * count.parameters,
            train_flops_6n_non_embedding=6 * s * count.parameters_non_embedding + its.train_flops_6n_non_embedding,
        )
    head = _whole(head_weights(a, Letters.numbers(a)))
    pair = _whole(pair_weights(a, Letters.numbers(a)))
    return SequenceFlops(
        train_flops=6 * (encoder + predictions * head + pair + _second_pass(a, s, predictions)),
        train_flops_dense_head=6 * (encoder + s * head + pair + _second_pass(a, s, s)),
        train_flops_6n=6 * s * count.parameters,
        train_flops_6n_non_embedding=6 * s * count.parameters_non_embedding,
    )


def encoder_flops(architecture: Architecture, lengths: Iterable[int], predictions: int = 0) -> float:
    """`train_flops` of an encoder over sequences of these lengths, with the MLM head at `predictions` places of each."""
    encoder = architecture.model_copy(update={"pair_head": False, "generator_share": 0.0})
    counts = Counter(lengths).items()
    return float(sum(count * flops_per_sequence(encoder, length, predictions).train_flops for length, count in counts))


def _weights_per_token(a: Architecture) -> int:
    """Weights per token before the head, counting every layer, shared or not."""
    x = Letters.numbers(a)
    layer = (attention_weights(a, x), ffn_weights(a, x), bottleneck_weights(a, x))
    return a.depth * _sum(layer) + _sum((projection_weights(a, x), convolution_weights(a, x)))


def _second_pass(a: Architecture, length: int, predictions: int) -> int:
    """Multiply-adds of the last layer's second pass in an enhanced mask decoder: keys of all S tokens, K queries.

    That is 2·S·H² for key and value, K·(2·H² + FFN) for the rest, 2·K·S·H for scores and mixtures, and with R relative
    positions 2·R·H² for their projections and (S + K)·R·H for their scores.
    """
    if not (a.enhanced_mask_decoder and predictions):
        return 0
    rows = relative_rows(a, length)
    keys = length * (2 * a.width**2 + rows * a.width) + 2 * rows * a.width**2
    scores = 2 * predictions * _pairs_of_last_layer(a, length) * a.width // length
    return keys + predictions * _weights_per_query(a, length) + scores


def _weights_per_query(a: Architecture, length: int) -> int:
    """Multiply-adds of a token's query in the last layer, but for scores and mixtures: all that keys and values do not need."""
    x, inner = Letters.numbers(a), a.block_width
    everywhere = 2 * a.width**2 if a.bottleneck_width is None else inner**2 + 2 * a.width * inner
    weights = _sum((attention_weights(a, x), ffn_weights(a, x), bottleneck_weights(a, x))) - everywhere
    return weights + relative_rows(a, length) * a.width


def _pairs_of_last_layer(a: Architecture, length: int) -> int:
    windowed = a.attention_window is not None and a.is_local(a.depth - 1)
    return pairs_within(a.attention_window or 0, length) if windowed else length**2


def _attention_products(a: Architecture, length: int) -> int:
    """Multiply-adds of one sequence without weights: scores, mixtures and relative positions.

    Scores and mixtures are two products over attended pairs. Disentangled attention projects its R relative positions twice
    (2·R·H²) and scores tokens against both (2·S·R·H); DeBERTa v1 takes only the 2·S rows in reach.
    """
    local = a.local_layers
    pairs = (a.depth - local) * length**2 + local * pairs_within(a.attention_window or 0, length)
    scores = 2 * a.block_width * pairs
    rows = relative_rows(a, length)
    return scores + a.depth * (2 * rows * a.width**2 + 2 * length * rows * a.width)


def relative_rows(a: Architecture, length: int) -> int:
    """Return the rows of relative positions that a sequence reads; DeBERTa v1 reads only those in reach."""
    return min(a.relative_positions, 2 * length) if a.position_encoding == "disentangled" else a.relative_positions


def pairs_within(window: int, length: int) -> int:
    """Pairs of `length` tokens at most window/2 apart: S·(2w + 1) − w·(w + 1), where w is window/2 or S − 1 if less."""
    reach = min(window // 2, length - 1)
    return length * (2 * reach + 1) - reach * (reach + 1)


def _whole(count: Quantity) -> int:
    assert isinstance(count, int)
    return count


def _sum(counts: Iterable[Quantity]) -> int:
    return sum(_whole(count) for count in counts)


def flops_per_token(architecture: Architecture, sequence_length: int, predictions: int) -> dict[str, float]:
    """`SequenceFlops` per input token."""
    flops = asdict(flops_per_sequence(architecture, sequence_length, predictions))
    return {convention: total / sequence_length for convention, total in flops.items()}


def spared_flops_per_token(architecture: Architecture, sequence_length: int, predictions: int) -> float:
    """Return the part of `train_flops` saved here, per input token: the last layer's work at unpredicted positions.

    Only the key and value weights, 2·H², meet all S tokens, in a bottleneck B² + 2·H·B with that of queries and keys; the other
    products, with scores and mixtures 2·S·H, run at the K
    masked positions: 6·(1 − K/S)·(2·H² + 2·H·F + 2·S·H), in a gated FFN 3·H·F, in a windowed layer for S the mean number of
    tokens in a window, and R·H more with R relative positions. A pair head adds [CLS] to K. With a generator only that saves
    any, since a detector reads every token. No convention subtracts it, so counts compare with other code's.
    """
    a = architecture.generator or architecture
    seen = _pairs_of_last_layer(a, sequence_length) / sequence_length
    query = _weights_per_query(a, sequence_length) + 2 * seen * a.block_width
    return 6 * (1 - (predictions + a.pair_head) / sequence_length) * query


def what_doubling_adds(architecture: Architecture) -> dict[str, int]:
    """Parameters of the encoder gained by doubling one size: depth, width (with the FFN), ffn alone, heads.

    Doubling the width keeps F/H and the number of heads; heads cost nothing. Counted as `parameters_encoder`.
    """
    before = parameters(architecture).parameters_encoder
    a = architecture
    doubled = {
        "depth": {"depth": 2 * a.depth},
        "width": {"width": 2 * a.width, "ffn": 2 * a.ffn},
        "ffn": {"ffn": 2 * a.ffn},
        "heads": {"heads": 2 * a.heads},
    }
    return {name: parameters(a.model_copy(update=change)).parameters_encoder - before for name, change in doubled.items()}
