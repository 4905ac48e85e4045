"""Parameters by component and FLOPs by convention, in integer arithmetic and without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from study.architecture import Architecture
from study.errors import InputError


@dataclass(frozen=True)
class Component:
    """One group of parameters: its name, the closed form in the architecture's letters, and the count."""

    name: str
    formula: str
    count: int


@dataclass(frozen=True)
class ParameterCount:
    """The parameters of one MLM model: by component, and the totals that conventions call its size.

    `parameters` counts the unique tensors of the MLM model, `parameters_encoder` the embeddings and blocks without pooler,
    `parameters_non_embedding` the encoder less its token, position and segment tables. `parameters_mlm_untied` is what
    transformers builds with `tie_word_embeddings=False`: a decoder V·H and a second output bias V, which it never uses;
    an architecture with `tied_decoder=False` has the decoder but one bias.
    """

    components: tuple[Component, ...]
    parameters: int
    parameters_encoder: int
    parameters_non_embedding: int
    parameters_pooler: int
    parameters_mlm_tied: int
    parameters_mlm_untied: int

    def totals(self) -> dict[str, int]:
        """The three totals that travel with every record."""
        return {
            "parameters": self.parameters,
            "parameters_encoder": self.parameters_encoder,
            "parameters_non_embedding": self.parameters_non_embedding,
        }


def parameters(architecture: Architecture) -> ParameterCount:
    """Count the parameters of an architecture by component.

    Per layer 4(H² + H) for attention, 2HF + F + H for the FFN and 4H for its two norms; embeddings (V + P + S)·H and their
    norm 2H; MLM transform H² + H + 2H, output bias V, and V·H more for a decoder that is not tied. Pre-norm has the same
    norms plus a last one, 2H, in place of the norm of the embeddings. The layers' components are summed over depth.

    Source: Devlin et al. 2019 (arXiv:1810.04805) as built by google-research/bert; asserted against the
    live module in every run.
    """
    a = architecture
    h, f, v = a.width, a.ffn, a.vocabulary
    embedding_tables = (
        Component("token embeddings", "V·H", v * h),
        Component("position embeddings", "P·H", a.positions * h),
        Component("segment embeddings", "S·H", a.segments * h),
    )
    norm = Component("embedding norm", "2·H", 2 * h) if a.norm == "post" else Component("final norm", "2·H", 2 * h)
    blocks = (
        Component("attention", "L·4·(H² + H)", a.depth * 4 * (h * h + h)),
        Component("ffn", "L·(2·H·F + F + H)", a.depth * (2 * h * f + f + h)),
        Component("block norms", "L·4·H", a.depth * 4 * h),
    )
    head = (
        Component("MLM transform", "H² + H", h * h + h),
        Component("MLM norm", "2·H", 2 * h),
        Component("MLM output bias", "V", v),
    )
    decoder = () if a.tied_decoder else (Component("MLM decoder", "V·H", v * h),)
    tables = sum(component.count for component in embedding_tables)
    encoder = tables + norm.count + sum(component.count for component in blocks)
    tied = encoder + sum(component.count for component in head)
    components = (*embedding_tables, norm, *blocks, *head, *decoder)
    return ParameterCount(
        components=components,
        parameters=sum(component.count for component in components),
        parameters_encoder=encoder,
        parameters_non_embedding=encoder - tables,
        parameters_pooler=h * h + h,
        parameters_mlm_tied=tied,
        parameters_mlm_untied=tied + v * h + v,
    )


def masked_positions(sequence_length: int, rate: float) -> int:
    """Masked positions of one sequence, round(rate · S)."""
    return round(rate * sequence_length)


@dataclass(frozen=True)
class SequenceFlops:
    """FLOPs of one training sequence, forward and backward, by convention; a multiply-add is two.

    `train_flops` are the matrix products that really run: 6 per weight of the blocks and token, full bidirectional attention
    12·L·H·S per token, and the head 6·(H² + V·H) on the masked positions only. `train_flops_dense_head` runs the head on
    every position. `train_flops_6n` is 6 · `parameters` per token (Kaplan et al. 2020 with embeddings), and
    `train_flops_6n_non_embedding` 6 · `parameters_non_embedding` (Kaplan et al. 2020, arXiv:2001.08361, §2.1).
    """

    train_flops: int
    train_flops_dense_head: int
    train_flops_6n: int
    train_flops_6n_non_embedding: int


def flops_per_sequence(architecture: Architecture, sequence_length: int, predictions: int) -> SequenceFlops:
    """FLOPs of training on one sequence of `sequence_length` tokens with `predictions` masked positions, by convention."""
    a, s = architecture, sequence_length
    count = parameters(a)
    block_weights = a.depth * (4 * a.width**2 + 2 * a.width * a.ffn)
    attention = 12 * a.depth * a.width * s
    head_weights = a.width**2 + a.vocabulary * a.width
    encoder = s * (6 * block_weights + attention)
    return SequenceFlops(
        train_flops=encoder + 6 * predictions * head_weights,
        train_flops_dense_head=encoder + 6 * s * head_weights,
        train_flops_6n=6 * s * count.parameters,
        train_flops_6n_non_embedding=6 * s * count.parameters_non_embedding,
    )


def flops_per_token(architecture: Architecture, sequence_length: int, predictions: int) -> dict[str, float]:
    """FLOPs of training per input token, forward and backward, by convention (see SequenceFlops)."""
    flops = asdict(flops_per_sequence(architecture, sequence_length, predictions))
    return {convention: total / sequence_length for convention, total in flops.items()}


def what_doubling_adds(architecture: Architecture) -> dict[str, int]:
    """Parameters of the encoder gained when one size is doubled: depth, width (the FFN grows with it), ffn alone, heads.

    Doubling the width keeps the ratio F/H and the number of heads, as families of encoders do; heads cost nothing, since
    they only divide the width. Counted as `parameters_encoder`.
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


MASKING_RATE = 0.15
"""BERT's share of masked positions, for accounts of an architecture without a run."""


@dataclass(frozen=True)
class Account:
    """The parameters of an architecture and the FLOPs of training it at a sequence length, ready to print."""

    count: ParameterCount
    sequence_length: int
    predictions: int
    flops: dict[str, float]

    def to_dict(self) -> dict[str, object]:
        """The account as plain values."""
        count = self.count
        return {
            "parameters": {
                "encoder": count.parameters_encoder,
                "encoder_with_pooler": count.parameters_encoder + count.parameters_pooler,
                "mlm_tied": count.parameters_mlm_tied,
                "mlm_untied": count.parameters_mlm_untied,
                "non_embedding": count.parameters_non_embedding,
            },
            "components": {component.name: component.count for component in count.components},
            "flops_per_token": self.flops,
            "sequence_length": self.sequence_length,
            "predictions_per_sequence": self.predictions,
        }

    def to_text(self, title: str) -> str:
        """The account as a table in plain text."""
        count, total = self.count, self.count.parameters
        lines = [title, f"{'component':<22}{'formula':<20}{'parameters':>14}{'share':>8}"]
        lines += [f"{c.name:<22}{c.formula:<20}{c.count:>14,}{c.count / total:>8.1%}" for c in count.components]
        totals = {
            "encoder": count.parameters_encoder,
            "encoder with pooler": count.parameters_encoder + count.parameters_pooler,
            "encoder, non-embedding": count.parameters_non_embedding,
            "MLM model, tied": count.parameters_mlm_tied,
            "MLM model, untied": count.parameters_mlm_untied,
        }
        lines += ["", f"{'total':<42}{'parameters':>14}"] + [f"{name:<42}{value:>14,}" for name, value in totals.items()]
        where = f"{self.sequence_length} tokens a sequence, {self.predictions} of them masked"
        lines += ["", f"training FLOPs per token, forward and backward ({where})"]
        lines += [f"{convention:<42}{value:>14,.0f}" for convention, value in self.flops.items()]
        return "\n".join(lines)


def account(architecture: Architecture, sequence_length: int) -> Account:
    """The account of an architecture at a sequence length, with BERT's 15% of positions masked.

    Raises InputError where the architecture has fewer positions than that.
    """
    if not 1 <= sequence_length <= architecture.positions:
        raise InputError.at("--sequence-length", f"{sequence_length} is not between 1 and positions {architecture.positions}")
    predictions = masked_positions(sequence_length, MASKING_RATE)
    flops = flops_per_token(architecture, sequence_length, predictions)
    return Account(parameters(architecture), sequence_length, predictions, flops)
