"""The loss over a vocabulary with its gradients written out, for a GPU. Letters: N places, E embedding width, V vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from study.data.masking import IGNORED
from study.model import gpu_kernels as kernels
from study.model.autocast import product_dtype
from study.model.linear import aligned_outputs, gradient_by_weight
from study.model.masked_language_model import MaskedLanguageModel


def fused_predicted_loss(
    model: MaskedLanguageModel,
    transformed: Callable[[Tensor], Tensor],
    hidden_BxKxH: Float[Tensor, "B K H"],
    labels_BxK: Int[Tensor, "B K"],
) -> Float[Tensor, ""]:
    """What MaskedLanguageModel.predicted_loss gives without a lesson; `transformed` is that of the model's head."""
    weight_VxE = model.head.decoding(model.encoder.embeddings.token.weight)
    return fused_cross_entropy(transformed(hidden_BxKxH).flatten(0, 1), weight_VxE, model.head.bias, labels_BxK.flatten())


def fused_cross_entropy(
    hidden_NxE: Float[Tensor, "N E"],
    weight_VxE: Float[Tensor, "V E"],
    bias_V: Float[Tensor, " V"],
    labels_N: Int[Tensor, " N"],
) -> Float[Tensor, ""]:
    """The mean_cross_entropy of the logits hidden·Wᵀ + b, in the precision of autocast; its gradient can be taken once.

    The logits are read twice and written twice, as their own gradient the second time.
    """
    hidden_NxE = hidden_NxE.to(product_dtype(hidden_NxE))
    with torch.autocast(hidden_NxE.device.type, enabled=False):
        loss: Tensor = _CrossEntropy.apply(hidden_NxE, weight_VxE, bias_V, labels_N)  # type: ignore[no-untyped-call]
        return loss


class _CrossEntropy(torch.autograd.Function):
    """Rows of zeros fill W up to its `aligned_outputs` (see aligned_product)."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        vocabulary, width = weight.shape
        filled = hidden.new_empty(aligned_outputs(vocabulary), width)
        filled[:vocabulary], filled[vocabulary:] = weight, 0
        logits = F.linear(hidden, filled, F.pad(bias.to(hidden.dtype), (0, len(filled) - vocabulary)))
        losses, normalisers = kernels.cross_entropy(logits, labels, vocabulary, IGNORED)
        count = (labels != IGNORED).sum()
        ctx.save_for_backward(hidden, filled, labels, logits, normalisers, count)
        ctx.vocabulary = vocabulary
        return losses.sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        hidden, filled, labels, logits, normalisers, count = ctx.saved_tensors
        vocabulary = ctx.vocabulary
        of_bias = kernels.write_cross_entropy_gradient(logits, labels, normalisers, dloss / count, vocabulary, IGNORED)
        return logits @ filled, gradient_by_weight(logits, hidden)[:vocabulary], of_bias[:vocabulary], None
