"""The field's heads for downstream tasks, as in BERT. Letters: B sequences, S tokens, H width, C outputs, N places."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from study.model.dropout import Dropout
from study.model.linear import Linear


class SequenceHead(nn.Module):
    """A class or a number for a whole input: the pooler (H → H and tanh) on [CLS], dropout, H → C.

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
        """Logits (N, C) at the places given, which count through the flattened batch; (B, S, C) without them."""
        hidden = hidden_BxSxH if places_N is None else hidden_BxSxH.flatten(0, 1).index_select(0, places_N)
        logits: Tensor = self.output(self.dropout(hidden))
        return logits


class SpanHead(nn.Module):
    """How likely an answer starts, and ends, at each token: H → 2, as `BertForQuestionAnswering`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output = Linear(width, 2)

    def forward(self, hidden_BxSxH: Float[Tensor, "B S H"]) -> Float[Tensor, "B S 2"]:
        """Logits of the start and of the end."""
        logits_BxSx2: Tensor = self.output(hidden_BxSxH)
        return logits_BxSx2


TaskHead = SequenceHead | TokenHead | SpanHead
