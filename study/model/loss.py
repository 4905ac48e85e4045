"""The loss of masked language modelling. Letters: N positions, V vocabulary."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from study.data.masking import IGNORED

LEAST_PROBABILITY = 1e-30
"""Below this label probability the loss is computed from the logits, since fp32 ends at 1e-38."""


def mean_cross_entropy(logits_NxV: Float[Tensor, "N V"], labels_N: Int[Tensor, " N"]) -> Float[Tensor, ""]:
    """The mean of -log softmax(logits) at the labels other than IGNORED, in nats.

    On a CPU the gradient reuses the probabilities' memory, in half as many passes over the logits as torch's own; both agree up
    to rounding.
    """
    if logits_NxV.device.type != "cpu" or torch.compiler.is_compiling():
        return F.cross_entropy(logits_NxV, labels_N, ignore_index=IGNORED)
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
    return temperature**2 * torch.where(counts_N, divergence_N, 0).sum() / counts_N.sum()


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
        return torch.where(counts_N, -logs_N, 0).sum() / counts_N.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if ctx.probabilities is None:
            raise RuntimeError("the gradient of the loss was taken already, and its memory is reused")
        gradient_NxV, ctx.probabilities = ctx.probabilities, None
        scale_Nx1 = torch.where(ctx.counts, gradient / ctx.counts.sum(), 0)[:, None].to(gradient_NxV.dtype)
        return gradient_NxV.mul_(scale_Nx1).scatter_add_(1, ctx.targets, -scale_Nx1), None
