"""Replaced token detection: a generator fills masked positions, and the encoder detects which tokens it changed.

Letters: B sequences, S tokens, K masked positions, N = B·K, V vocabulary. Source: ELECTRA, Clark et al. 2020,
arXiv:2003.10555, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from study.data.masking import IGNORED, MaskedBatch
from study.model.masked_language_model import ENCODER, MaskedLanguageModel, mean_cross_entropy

DETECTION_WEIGHT = 50.0
"""λ, the weight of the detection beside the generator's loss (table 6)."""


class Detection(NamedTuple):
    """Each token's loss in nats, and whether it is judged right; zero and False where it does not count."""

    nats: Float[Tensor, "B S"]
    correct: Bool[Tensor, "B S"]

    @property
    def loss(self) -> Float[Tensor, ""]:
        """The loss of the tokens that count, over all tokens, of which every rank has as many."""
        return self.nats.mean()


def sampled(logits_NxV: Float[Tensor, "N V"], draws_N: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Tokens drawn from softmax(logits), without gradient: the first whose cumulative probability exceeds a draw from [0, 1).

    Equal logits and draws give equal tokens, so that a resumed run repeats them.
    """
    with torch.no_grad():
        cumulative_NxV = torch.softmax(logits_NxV, -1).cumsum_(-1)
        reached_Nx1 = draws_N[:, None] * cumulative_NxV[:, -1:]
        return torch.searchsorted(cumulative_NxV, reached_Nx1, right=True)[:, 0].clamp_(max=logits_NxV.shape[1] - 1)


def replaced(
    originals_BxS: Int[Tensor, "B S"],
    masked: MaskedBatch,
    logits_BxKxV: Float[Tensor, "B K V"],
    draws_BxK: Float[Tensor, "B K"],
) -> Int[Tensor, "B S"]:
    """Return the original tokens with those at masked positions drawn from the generator's logits."""
    drawn_BxK = sampled(logits_BxKxV.flatten(0, 1).float(), draws_BxK.flatten()).view_as(masked.labels)
    kept_BxK = torch.where(masked.labels == IGNORED, originals_BxS.gather(1, masked.positions), drawn_BxK)
    return originals_BxS.scatter(1, masked.positions, kept_BxK)


def detection(
    logits_BxS: Float[Tensor, "B S"], changed_BxS: Bool[Tensor, "B S"], counted_BxS: Bool[Tensor, "B S"]
) -> Detection:
    """Return the binary cross-entropy of each token having been changed.

    A token drawn as it was counts as unchanged (equation 2).
    """
    nats_BxS = F.binary_cross_entropy_with_logits(logits_BxS, changed_BxS.to(logits_BxS.dtype), reduction="none")
    return Detection(torch.where(counted_BxS, nats_BxS, 0), ((logits_BxS > 0) == changed_BxS) & counted_BxS)


def detector_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the encoder and its detector, without the generator's."""
    return {name: tensor for name, tensor in state.items() if name.startswith((ENCODER, "detector."))}


def generator_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the generator's weights as those of a MaskedLanguageModel of its architecture, with the tables that it shares."""
    shared = {name: tensor for name, tensor in state.items() if name.startswith(f"{ENCODER}embeddings.")}
    own = {
        name.replace("generator.", ENCODER, 1): tensor
        for name, tensor in state.items()
        if name.startswith(("generator.", "head."))
    }
    return {name: tensor for name, tensor in shared.items() if "projection" not in name} | own


def joint_loss(
    model: MaskedLanguageModel,
    originals_BxS: Int[Tensor, "B S"],
    masked: MaskedBatch,
    draws_BxK: Float[Tensor, "B K"],
    counted_BxS: Bool[Tensor, "B S"],
    segments_BxS: Int[Tensor, "B S"] | None = None,
    attended_BxS: Bool[Tensor, "B S"] | None = None,
) -> Float[Tensor, ""]:
    """Return the generator's cross-entropy at masked positions plus λ times the mean detection loss, in nats (section 3.1).

    `counted_BxS` are the tokens that are neither special nor padding; the loss of others is zero.
    """
    logits_BxKxV = model(masked.tokens, masked.positions, segments_BxS, attended_BxS).float()
    read_BxS = replaced(originals_BxS, masked, logits_BxKxV, draws_BxK)
    generator_loss = mean_cross_entropy(logits_BxKxV.flatten(0, 1), masked.labels.flatten())
    del logits_BxKxV
    detected = detection(model.detection_logits(read_BxS, segments_BxS, attended_BxS), read_BxS != originals_BxS, counted_BxS)
    return generator_loss + DETECTION_WEIGHT * detected.loss
