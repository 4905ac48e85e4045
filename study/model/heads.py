"""Heads on the encoder. Letters: H width, E embedding width, V vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from study.counting.architecture import Architecture
from study.model.linear import Linear
from study.model.norm import norm


class MaskedLanguageModelHead(nn.Module):
    """BERT's MLM head: H → E, GELU, a norm, then the token embedding (tied) or a decoder of its own, and a bias."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = architecture
        width = a.table_width
        self.transform = Linear(a.width, width, bias=a.biased)
        self.norm = norm(a, width)
        self.bias = nn.Parameter(torch.zeros(a.vocabulary))
        self.decoder = None if a.tied_decoder else Linear(width, a.vocabulary, bias=False)

    def forward(
        self, hidden: Float[Tensor, "*places H"], token_embedding_VxE: Float[Tensor, "V E"]
    ) -> Float[Tensor, "*places V"]:
        """Logits over the vocabulary at each place that is given."""
        return self.transform.multiply(self.transformed(hidden), self.decoding(token_embedding_VxE), self.bias)

    def transformed(self, hidden: Float[Tensor, "*places H"]) -> Float[Tensor, "*places E"]:
        """What the decoder multiplies."""
        normed: Tensor = self.norm(F.gelu(self.transform(hidden)))
        return normed

    def decoding(self, token_embedding_VxE: Float[Tensor, "V E"]) -> Float[Tensor, "V E"]:
        """The weight of the decoder."""
        return token_embedding_VxE if self.decoder is None else self.decoder.weight
