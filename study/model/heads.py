"""Heads on the encoder. Letters: H width, V vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from study.architecture import Architecture
from study.model.linear import Linear
from study.model.norm import LayerNorm


class MaskedLanguageModelHead(nn.Module):
    """BERT's MLM head: H → H, GELU, LayerNorm, then the token embedding (tied) or a decoder of its own, and a bias."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.transform = Linear(architecture.width, architecture.width)
        self.norm = LayerNorm(architecture.width)
        self.bias = nn.Parameter(torch.zeros(architecture.vocabulary))
        self.decoder = None if architecture.tied_decoder else Linear(architecture.width, architecture.vocabulary, bias=False)

    def forward(
        self, hidden: Float[Tensor, "*places H"], token_embedding_VxH: Float[Tensor, "V H"]
    ) -> Float[Tensor, "*places V"]:
        """Logits over the vocabulary at each place that is given."""
        weight_VxH = token_embedding_VxH if self.decoder is None else self.decoder.weight
        return self.transform.multiply(self.norm(F.gelu(self.transform(hidden))), weight_VxH, self.bias)
