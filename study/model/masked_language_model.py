"""The encoder with the heads of its objective, and their losses.

Letters: B sequences, S tokens, K masked positions, N positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from study.base.errors import InputError
from study.base.randomness import Stream, stream_seed
from study.config.recipe import Initialisation, ResidualInitialisation
from study.counting.architecture import Architecture, unbuildable
from study.counting.layer_losses import NO_LOSSES, LayerLosses
from study.counting.parameters import parameters
from study.data.masking import IGNORED, MaskedBatch
from study.model.encoder import Encoder, LayerState, at_positions
from study.model.heads import PAIR_HEAD, DetectionHead, MaskedLanguageModelHead, SequenceHead
from study.model.layers import initialise, initialise_unit_stream

DECODER_POSITIONS = "head.position."
"""The prefix of the weights of an enhanced mask decoder."""

ENCODER = "encoder."
"""The prefix of the weights of the encoder."""

LEAST_PROBABILITY = 1e-30
"""Below this label probability the loss is computed from the logits, since fp32 ends at 1e-38."""


class TeacherLogits(NamedTuple):
    """A teacher's logits at the masked positions, its weight in the student's loss, and the temperature of both."""

    logits: Float[Tensor, "B K V"]
    weight: float
    temperature: float


class MaskedLanguageModel(nn.Module):
    """An encoder that predicts masked tokens; only requested positions pass through the last block and the head.

    A pair head, initialised last so that it changes no other weight, judges pairs of segments from [CLS]. With a generator that
    predicts them, through the MLM head, and the encoder has a detector of replaced tokens (study.model.replaced_tokens).
    Raises InputError for an architecture that can be counted but not built here.
    """

    def __init__(
        self,
        architecture: Architecture,
        dropout: float = 0.0,
        seed: int = 0,
        initialisation: Initialisation = "bert",
        residual_initialisation: ResidualInitialisation = "bert",
    ) -> None:
        super().__init__()
        if problem := unbuildable(architecture):
            raise InputError.at("architecture", problem)
        self.architecture = architecture
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(Stream.INITIALISATION, seed))
            self.encoder = Encoder(architecture, dropout)
            small, self.generator, self.detector = architecture.generator, None, None
            if small is not None:
                self.generator = Encoder(small, dropout, self.encoder.embeddings)
                self.detector = DetectionHead(architecture)
            self.head = MaskedLanguageModelHead(small or architecture)
            self.apply(initialise)
            for encoder in self.encoders:
                if initialisation == "unit_stream":
                    initialise_unit_stream(encoder.embeddings)
                if residual_initialisation == "zero":
                    encoder.zero_residuals()
            self.pair_head = SequenceHead(architecture.width, 2, dropout=0.0) if architecture.pair_head else None
            if self.pair_head is not None:
                self.pair_head.apply(initialise)
        assert_counts_agree(self, architecture)

    def forward(
        self,
        tokens_BxS: Int[Tensor, "B S"],
        positions_BxK: Int[Tensor, "B K"] | None = None,
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B positions V"]:
        """Logits at `positions_BxK`, by default at every position."""
        return self.logits(self.hidden(tokens_BxS, segments_BxS, attended_BxS, positions_BxK))

    def hidden(
        self,
        tokens_BxS: Int[Tensor, "B S"],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
        positions_BxK: Int[Tensor, "B K"] | None = None,
    ) -> Float[Tensor, "B positions H"]:
        """Return what the MLM head reads at `positions_BxK`: the output of the encoder, or of its enhanced mask decoder."""
        if self.head.position is None:
            hidden: Tensor = self.predictor(tokens_BxS, segments_BxS, attended_BxS, positions_BxK)
            return hidden
        return self.predictor.decode(self.head.position.weight, tokens_BxS, segments_BxS, attended_BxS, positions_BxK)

    @property
    def encoders(self) -> tuple[Encoder, ...]:
        """The encoder, and its generator if any."""
        return (self.encoder,) if self.generator is None else (self.encoder, self.generator)

    @property
    def predictor(self) -> Encoder:
        """The encoder that predicts masked tokens: the generator if there is one."""
        return self.encoders[-1]

    def detection_logits(
        self,
        tokens_BxS: Int[Tensor, "B S"],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B S"]:
        """Return the logit of each token being replaced."""
        assert self.detector is not None, "the objective detects no replaced tokens"
        logits_BxS: Tensor = self.detector(self.encoder(tokens_BxS, segments_BxS, attended_BxS))
        return logits_BxS.float()

    def logits(self, hidden: Float[Tensor, "B positions H"]) -> Float[Tensor, "B positions V"]:
        """Logits at each position."""
        logits: Tensor = self.head(hidden, self.encoder.embeddings.token.weight)
        return logits

    def pair_logits(self, tokens_BxS: Int[Tensor, "B S"], segments_BxS: Int[Tensor, "B S"]) -> Float[Tensor, "B 2"]:
        """Logits of the labels of pairs (study.data.pairs)."""
        first_Bx1 = torch.zeros_like(tokens_BxS[:, :1])
        hidden_Bx1xH = self.encoder(tokens_BxS, segments_BxS, positions_BxK=first_Bx1)
        return self.judged(hidden_Bx1xH[:, 0])

    def judged(self, first_BxH: Float[Tensor, "B H"]) -> Float[Tensor, "B 2"]:
        """Logits of the labels of pairs from the encoder's output at [CLS]."""
        assert self.pair_head is not None, "the objective judges no pairs"
        logits_Bx2: Tensor = self.pair_head(first_BxH)
        return logits_Bx2.float()

    def pair_loss(self, first_BxH: Float[Tensor, "B H"], labels_B: Int[Tensor, " B"]) -> Float[Tensor, ""]:
        """Return the mean cross-entropy in nats of the labels of pairs, from the encoder's output at [CLS]."""
        return F.cross_entropy(self.judged(first_BxH), labels_B)

    def load_trained(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights of a trained model; a pair head that it lacks stays as it is, one too many is left out.

        Weights of an encoder alone leave all else as it is.
        """
        own = self.state_dict()
        if all(name.startswith(ENCODER) for name in weights):
            weights = {name: tensor for name, tensor in own.items() if not name.startswith(ENCODER)} | dict(weights)
        shared = {name: tensor for name, tensor in weights.items() if not name.startswith(PAIR_HEAD) or name in own}
        kept = {name: tensor for name, tensor in own.items() if name.startswith(PAIR_HEAD)}
        self.load_state_dict(kept | shared)

    def predicted_loss(
        self,
        hidden_BxKxH: Float[Tensor, "B K H"],
        labels_BxK: Int[Tensor, "B K"],
        teacher: TeacherLogits | None = None,
    ) -> Float[Tensor, ""]:
        """Return the mean cross-entropy in nats over labels other than IGNORED.

        With a teacher of weight w: (1 − w) · cross-entropy + w · distillation_loss.
        """
        logits_NxV = self.logits(hidden_BxKxH).flatten(0, 1).float()
        labels_N = labels_BxK.flatten()
        if teacher is None:
            return mean_cross_entropy(logits_NxV, labels_N)
        distilled = distillation_loss(logits_NxV, teacher.logits.flatten(0, 1).float(), labels_N, teacher.temperature)
        if teacher.weight == 1:
            return distilled
        return (1 - teacher.weight) * mean_cross_entropy(logits_NxV, labels_N) + teacher.weight * distilled


@dataclass(frozen=True)
class TeacherModel:
    """A trained model, the weight of its predictions in the student's loss, their temperature, and losses between layers.

    It is not a module, so that the student's optimiser, checkpoints and parameter count exclude it.
    """

    model: MaskedLanguageModel
    weight: float
    temperature: float
    losses: LayerLosses = NO_LOSSES

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)

    @torch.no_grad()
    def predict(
        self,
        masked: MaskedBatch,
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
    ) -> TeacherLogits:
        """Return the teacher's logits at the masked positions of the student's input, with segments if it judged pairs."""
        logits_BxKxV = self.model(masked.tokens, masked.positions, self._read(segments_BxS), attended_BxS)
        return TeacherLogits(logits_BxKxV, self.weight, self.temperature)

    @torch.no_grad()
    def observe(
        self,
        masked: MaskedBatch,
        layers: Collection[int],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
    ) -> tuple[TeacherLogits | None, dict[int, LayerState]]:
        """Return what `predict` returns, None if it has no weight, and the states of some layers (Encoder.observe)."""
        encoder, attentions = self.model.encoder, self.losses.of_attention
        output_BxSxH, states = encoder.observe(masked.tokens, self._read(segments_BxS), attended_BxS, layers, attentions)
        if not self.weight:
            return None, states
        if self.model.architecture.enhanced_mask_decoder:  # its logits are those of a pass of its own
            return self.predict(masked, segments_BxS, attended_BxS), states
        logits_BxKxV = self.model.logits(at_positions(output_BxSxH, masked.positions))
        return TeacherLogits(logits_BxKxV, self.weight, self.temperature), states

    def _read(self, segments_BxS: Int[Tensor, "B S"] | None) -> Int[Tensor, "B S"] | None:
        return segments_BxS if self.model.architecture.pair_head else None


def assert_counts_agree(model: nn.Module, architecture: Architecture) -> None:
    """Raise AssertionError unless the closed form equals the module's parameter count."""
    counted, live = parameters(architecture).parameters, sum(parameter.numel() for parameter in model.parameters())
    assert counted == live, f"{architecture.shape_name}: counted {counted:,} parameters, the module has {live:,}"


def mean_cross_entropy(logits_NxV: Float[Tensor, "N V"], labels_N: Int[Tensor, " N"]) -> Float[Tensor, ""]:
    """Return the mean of -log softmax(logits) at the labels other than IGNORED, in nats; 0 where there are none.

    On a CPU the gradient reuses the probabilities' memory, in half as many passes over the logits as torch's own; both agree up
    to rounding.
    """
    if logits_NxV.device.type != "cpu" or torch.compiler.is_compiling():
        summed = F.cross_entropy(logits_NxV, labels_N, ignore_index=IGNORED, reduction="sum")
        return summed / (labels_N != IGNORED).sum().clamp(min=1)
    loss: Tensor = _MeanCrossEntropy.apply(logits_NxV, labels_N)  # type: ignore[no-untyped-call]
    return loss


def distillation_loss(
    logits_NxV: Float[Tensor, "N V"], taught_NxV: Float[Tensor, "N V"], labels_N: Int[Tensor, " N"], temperature: float
) -> Float[Tensor, ""]:
    """T² times the mean of KL(softmax(taught/T) ‖ softmax(logits/T)), in nats, over the labels other than IGNORED.

    T² keeps the gradient's size at any temperature. Source: Hinton et al. 2015 (arXiv:1503.02531), §2.
    """
    taught_NxV, learned_NxV = (torch.log_softmax(logits / temperature, -1) for logits in (taught_NxV, logits_NxV))
    divergence_N = F.kl_div(learned_NxV, taught_NxV, reduction="none", log_target=True).sum(-1)
    counts_N = labels_N != IGNORED
    return temperature**2 * torch.where(counts_N, divergence_N, 0).sum() / counts_N.sum().clamp(min=1)


class _MeanCrossEntropy(torch.autograd.Function):
    """Gradient: (softmax(logits) − one at the label) ÷ number of labels. Differentiable once."""

    @staticmethod
    def forward(ctx: Any, logits_NxV: Tensor, labels_N: Tensor) -> Tensor:
        counts_N = labels_N != IGNORED
        targets_Nx1 = torch.where(counts_N, labels_N, 0)[:, None]
        probabilities_NxV = torch.softmax(logits_NxV, -1)
        of_labels_N = probabilities_NxV.gather(1, targets_Nx1)[:, 0]
        unlikely = bool((of_labels_N < LEAST_PROBABILITY).any())
        logs_N = torch.log_softmax(logits_NxV, -1).gather(1, targets_Nx1)[:, 0] if unlikely else of_labels_N.log()
        ctx.probabilities, ctx.counts, ctx.targets = probabilities_NxV, counts_N, targets_Nx1
        return torch.where(counts_N, -logs_N, 0).sum() / counts_N.sum().clamp(min=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.probabilities is None:
            raise RuntimeError("the gradient of the loss was taken already, and its memory is reused")
        gradient_NxV, ctx.probabilities = ctx.probabilities, None
        scale_Nx1 = torch.where(ctx.counts, gradient / ctx.counts.sum(), 0)[:, None].to(gradient_NxV.dtype)
        return gradient_NxV.mul_(scale_Nx1).scatter_add_(1, ctx.targets, -scale_Nx1), None
