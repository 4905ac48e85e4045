"""The heads of an encoder: masked language modelling, and BERT's for downstream tasks.

Letters: B sequences, S tokens, N positions, H width, E embedding width, V vocabulary, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from study.counting.architecture import Architecture
from study.model.layers import Dropout, Linear, norm

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class MaskedLanguageModelHead(nn.Module):
    """BERT's MLM head: H → E, GELU, a norm, then the token embedding (tied) or a separate decoder, and a bias.

    Without a transform (NeoBERT) the decoder reads the encoder's output. After a transform H → H (MobileBERT) the embedding
    reads the first E numbers, and columns `beside` it the others. `position` is what an enhanced mask decoder adds to queries.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = architecture
        inner, transforms = a.mlm_width, a.mlm_transform != "none"
        self.position = nn.Embedding(a.positions, a.width) if a.enhanced_mask_decoder else None
        self.activate = _ACTIVATIONS[a.mlm_activation]
        self.transform = Linear(a.width, inner, bias=a.biased) if transforms else None
        self.norm = norm(a, inner, normalises=True) if transforms else None
        self.bias = nn.Parameter(torch.zeros(a.vocabulary))
        self.decoder = None if a.tied_decoder else Linear(a.table_width, a.vocabulary, bias=False)
        self.beside = None if inner == a.table_width else Linear(inner - a.table_width, a.vocabulary, bias=False)

    def forward(
        self, hidden: Float[Tensor, "*positions H"], token_embedding_VxE: Float[Tensor, "V E"]
    ) -> Float[Tensor, "*positions V"]:
        """Logits over the vocabulary at each position."""
        multiply = F.linear if (layer := self.transform or self.decoder) is None else layer.multiply
        read, weight_VxE = self.transformed(hidden), self._decoder(token_embedding_VxE)
        if self.beside is None:
            return multiply(read, weight_VxE, self.bias)
        rows = read.flatten(0, -2)  # of a view of its product torch could add nothing in place
        logits = multiply(rows[:, : weight_VxE.shape[1]], weight_VxE, self.bias)
        return logits.add_(self.beside(rows[:, weight_VxE.shape[1] :])).view(*read.shape[:-1], -1)

    def transformed(self, hidden: Float[Tensor, "*positions H"]) -> Float[Tensor, "*positions inner"]:
        """Return the decoder's input."""
        if self.transform is None or self.norm is None:
            return hidden
        normed: Tensor = self.norm(self.activate(self.transform(hidden)))
        return normed

    def decoding(self, token_embedding_VxE: Float[Tensor, "V E"]) -> Float[Tensor, "V inner"]:
        """Return the decoder's whole weight."""
        weight_VxE = self._decoder(token_embedding_VxE)
        return weight_VxE if self.beside is None else torch.cat((weight_VxE, self.beside.weight), 1)

    def _decoder(self, token_embedding_VxE: Float[Tensor, "V E"]) -> Float[Tensor, "V E"]:
        return token_embedding_VxE if self.decoder is None else self.decoder.weight


class DetectionHead(nn.Module):
    """The logit of each token being replaced: H → H, the encoder's activation (GELU if that is gated), H → 1.

    As `ElectraDiscriminatorPredictions` (Clark et al. 2020, arXiv:2003.10555, equation 2).
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.activate = _ACTIVATIONS.get(architecture.activation, F.gelu)
        self.transform = Linear(architecture.width, architecture.width)
        self.output = Linear(architecture.width, 1)

    def forward(self, hidden_BxSxH: Float[Tensor, "B S H"]) -> Float[Tensor, "B S"]:
        """Return the logit at every token."""
        logits_BxSx1: Tensor = self.output(self.activate(self.transform(hidden_BxSxH)))
        return logits_BxSx1[..., 0]


class SequenceHead(nn.Module):
    """A class or a number for the whole input: the pooler (H → H and tanh) on [CLS], dropout, H → C.

    As `BertForSequenceClassification` (Devlin et al. 2019, §4.1).
    """

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.pooler = Linear(width, width)
        self.dropout = Dropout(dropout)
        self.output = Linear(width, outputs)

    def forward(self, first_BxH: Float[Tensor, "B H"]) -> Float[Tensor, "B C"]:
        """Logits from the encoder's output at the first token."""
        logits_BxC: Tensor = self.output(self.dropout(torch.tanh(self.pooler(first_BxH))))
        return logits_BxC


class TokenHead(nn.Module):
    """A class for each labelled token: dropout, H → C, as `BertForTokenClassification`."""

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.output = Linear(width, outputs)

    def forward(self, hidden_BxSxH: Float[Tensor, "B S H"], places_N: Int[Tensor, " N"] | None = None) -> Tensor:
        """Logits (N, C) at indices into the flattened batch; (B, S, C) without them."""
        hidden = hidden_BxSxH if places_N is None else hidden_BxSxH.flatten(0, 1).index_select(0, places_N)
        logits: Tensor = self.output(self.dropout(hidden))
        return logits


class SpanHead(nn.Module):
    """The start and end of an answer: H → 2 for each token, as `BertForQuestionAnswering`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output = Linear(width, 2)

    def forward(self, hidden_BxSxH: Float[Tensor, "B S H"]) -> Float[Tensor, "B S 2"]:
        """Start and end logits."""
        logits_BxSx2: Tensor = self.output(hidden_BxSxH)
        return logits_BxSx2


TaskHead = SequenceHead | TokenHead | SpanHead
