"""Losses between the layers of a student and of its teacher (study.counting.layer_losses.LayerLosses names them).

Letters: B sequences, S tokens, H width, A heads or relation heads, D width of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from study.base.randomness import Stream, stream_seed
from study.counting.architecture import Architecture
from study.counting.layer_losses import LayerLosses
from study.model.encoder import AttentionInputs, LayerState
from study.model.layers import Linear, initialise


def hidden_cosine_loss(
    student_BxSxH: Float[Tensor, "B S H"], teacher_BxSxH: Float[Tensor, "B S H"], attended_BxS: Bool[Tensor, "B S"] | None
) -> Float[Tensor, ""]:
    """Return the mean over tokens of 1 − cos(h, h'), of hidden states h.

    Source: DistilBERT, Sanh et al. 2019, arXiv:1910.01108, section 3, as in its code.
    """
    student_BxSxH, teacher_BxSxH = student_BxSxH.float(), teacher_BxSxH.float()
    products_BxS = torch.linalg.vecdot(student_BxSxH, teacher_BxSxH)
    norms_BxS = torch.linalg.vector_norm(student_BxSxH, dim=-1) * torch.linalg.vector_norm(teacher_BxSxH, dim=-1)
    return _mean(1 - products_BxS / norms_BxS, attended_BxS)


def hidden_mse_loss(
    student_BxSxH: Float[Tensor, "B S H"], teacher_BxSxH: Float[Tensor, "B S H"], attended_BxS: Bool[Tensor, "B S"] | None
) -> Float[Tensor, ""]:
    """Return the mean over tokens and numbers of (h − h')².

    Source: TinyBERT, Jiao et al. 2020, arXiv:1909.10351, equations 8 and 9.
    """
    student_BxSxH, teacher_BxSxH = student_BxSxH.float(), teacher_BxSxH.float()
    if attended_BxS is None:
        return F.mse_loss(student_BxSxH, teacher_BxSxH)
    return _mean((student_BxSxH - teacher_BxSxH).square().mean(-1), attended_BxS)


def attention_loss(
    student_BxAxSxS: Float[Tensor, "B A S S"],
    teacher_BxAxSxS: Float[Tensor, "B A S S"],
    attended_BxS: Bool[Tensor, "B S"] | None,
) -> Float[Tensor, ""]:
    """Return the mean over heads and pairs of tokens of the squared difference of attention scores, before the softmax.

    Source: TinyBERT, Jiao et al. 2020, arXiv:1909.10351, equation 7.
    """
    if attended_BxS is None:
        return F.mse_loss(student_BxAxSxS, teacher_BxAxSxS)
    pairs_Bx1xSxS = (attended_BxS[:, None, :, None] & attended_BxS[:, None, None, :]).expand_as(student_BxAxSxS)
    return _mean((student_BxAxSxS - teacher_BxAxSxS).square(), pairs_Bx1xSxS)


def relation_loss(
    student_BxAxSxS: Float[Tensor, "B A S S"],
    teacher_BxAxSxS: Float[Tensor, "B A S S"],
    attended_BxS: Bool[Tensor, "B S"] | None,
) -> Float[Tensor, ""]:
    """Return the mean over heads and tokens of KL(softmax(teacher) ‖ softmax(student)), of scores over keys, in nats.

    Source: MiniLM, Wang et al. 2020, arXiv:2002.10957, equations 4 and 6; MiniLMv2, arXiv:2012.15828, equation 5.
    """
    if attended_BxS is not None:
        hidden_Bx1x1xS = ~attended_BxS[:, None, None, :]
        least = torch.finfo(student_BxAxSxS.dtype).min
        student_BxAxSxS, teacher_BxAxSxS = (
            scores.masked_fill(hidden_Bx1x1xS, least) for scores in (student_BxAxSxS, teacher_BxAxSxS)
        )
    divergence_BxAxS: Tensor = _Divergence.apply(student_BxAxSxS, teacher_BxAxSxS)  # type: ignore[no-untyped-call]
    return _mean(divergence_BxAxS.mean(1), attended_BxS)


class _Divergence(torch.autograd.Function):
    """KL(softmax(teacher) ‖ softmax(student)) over the last axis; it keeps its gradient, the difference of both, alone."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor) -> Tensor:
        learned, taught = torch.log_softmax(student, -1), torch.log_softmax(teacher, -1)
        share = taught.exp()
        divergence: Tensor = taught.sub_(learned).mul_(share).sum(-1)
        ctx.save_for_backward(learned.exp_().sub_(share))
        return divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (difference,) = ctx.saved_tensors
        return difference * gradient[..., None], None


def relations(
    one_BxAxSxD: Float[Tensor, "B A S D"], other_BxAxSxD: Float[Tensor, "B A S D"], heads: int | None = None
) -> Float[Tensor, "B A S S"]:
    """Return the scaled products X·Yᵀ/√D of every two tokens, head by head; `heads` first divides the width into others."""
    if heads is not None:
        batch, _, length, _ = one_BxAxSxD.shape
        one_BxAxSxD, other_BxAxSxD = (
            each.transpose(1, 2).reshape(batch, length, heads, -1).transpose(1, 2) for each in (one_BxAxSxD, other_BxAxSxD)
        )
    products_BxAxSxS: Tensor = torch.matmul(one_BxAxSxD, other_BxAxSxD.transpose(-1, -2)).float()
    return products_BxAxSxS.mul_(one_BxAxSxD.shape[-1] ** -0.5)


def attention_scores(attention: AttentionInputs) -> Float[Tensor, "B A S S"]:
    """Return the scores that attention's softmax reads, without its mask."""
    scores_BxAxSxS = relations(attention.query, attention.key)
    return scores_BxAxSxS if attention.bias is None else scores_BxAxSxS + attention.bias


def _mean(values: Tensor, counted: Bool[Tensor, "*any"] | None) -> Float[Tensor, ""]:
    return values.mean() if counted is None else torch.where(counted, values, 0).sum() / counted.sum()


class LayerMatching(nn.Module):
    """The weighted sum of the losses between layers, and the projection that one of them learns.

    The projection has no bias, as in TinyBERT's equations 8 and 9, and serves every pair of layers. Its initial weights depend
    on the run's seed alone, and the trained model leaves it behind.
    """

    def __init__(self, losses: LayerLosses, student: Architecture, teacher: Architecture, seed: int = 0) -> None:
        super().__init__()
        self.losses, self.pairs = losses, losses.pairs(student.depth, teacher.depth)
        self.of_student, self.of_teacher = ({pair[side] for pair in self.pairs} for side in (0, 1))
        self.projection: Linear | None = None
        if losses.projects(student, teacher):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream_seed(Stream.PROJECTION, seed))
                self.projection = Linear(student.width, teacher.width, bias=False)
                initialise(self.projection)

    def forward(
        self,
        student: Mapping[int, LayerState],
        teacher: Mapping[int, LayerState],
        attended_BxS: Bool[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return the sum over pairs of layers, at attended tokens (None for all)."""
        weighted = []
        for one, other in self.pairs:
            weighted += self._of_hidden(student[one].hidden, teacher[other].hidden, attended_BxS)
            learned, taught = student[one].attention, teacher[other].attention
            if learned is not None and taught is not None:
                weighted += self._of_attention(learned, taught, attended_BxS)
        return torch.stack(weighted).sum()

    def _of_hidden(self, student_BxSxH: Tensor, teacher_BxSxH: Tensor, attended_BxS: Tensor | None) -> list[Tensor]:
        losses, terms = self.losses, []
        if losses.hidden_cosine:
            terms.append(losses.hidden_cosine * hidden_cosine_loss(student_BxSxH, teacher_BxSxH, attended_BxS))
        if losses.hidden_mse:
            projected = student_BxSxH if self.projection is None else self.projection(student_BxSxH)
            terms.append(losses.hidden_mse * hidden_mse_loss(projected, teacher_BxSxH, attended_BxS))
        return terms

    def _of_attention(self, student: AttentionInputs, teacher: AttentionInputs, attended_BxS: Tensor | None) -> list[Tensor]:
        losses, terms = self.losses, []
        if losses.weighs_scores:
            scores = (attention_scores(student), attention_scores(teacher))
            if losses.attention:
                terms.append(losses.attention * attention_loss(*scores, attended_BxS))
            if losses.relations and not losses.relation_heads:
                terms.append(losses.relations * relation_loss(*scores, attended_BxS))
            del scores  # as large as what the other relations need
        if losses.relation_products:
            heads = losses.relation_heads or None
            for one, other in list(zip(student[:3], teacher[:3], strict=True))[0 if heads else 2 :]:
                learned, taught = relations(one, one, heads), relations(other, other, heads)
                terms.append(losses.relations * relation_loss(learned, taught, attended_BxS))
                del learned, taught
        return terms
