"""The encoder with a head for a downstream task. Letters: B sequences, S tokens, N positions of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from study.base.randomness import Stream, stream_seed
from study.counting.architecture import Architecture
from study.model.encoder import Encoder
from study.model.heads import SequenceHead, SpanHead, TaskHead, TokenHead
from study.model.layers import initialise
from study.model.masked_language_model import PAIR_HEAD

HeadKind = Literal["sequence", "tokens", "spans"]
"""The input of a head: the first token, some tokens, or all."""

TOKEN_TABLE = "embeddings.token.weight"


class TaskModel(nn.Module):
    """An encoder with random weights and a new head; `load_encoder` loads pre-trained weights.

    The token table holds only the `vocabulary` pieces that the task uses: unused rows have no gradient, so scores stay the
    same, at less optimiser work.
    """

    def __init__(
        self, architecture: Architecture, vocabulary: int, head: HeadKind, outputs: int, dropout: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__()
        width = architecture.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(Stream.INITIALISATION, seed))
            self.encoder = Encoder(architecture.model_copy(update={"vocabulary": vocabulary}), dropout)
            self.encoder.apply(initialise)
            torch.manual_seed(stream_seed(Stream.HEAD_INITIALISATION, seed))
            self.head = _head(head, width, outputs, dropout)
            self.head.apply(initialise)

    def load_encoder(self, state: Mapping[str, Tensor], pieces: Tensor) -> None:
        """Load the weights of a pre-trained masked language model, with the token rows of `pieces`.

        The pooler of a pair head becomes that of a head on [CLS], as in BERT.
        """
        own = {name.removeprefix("encoder."): value for name, value in state.items() if name.startswith("encoder.")}
        own[TOKEN_TABLE] = own[TOKEN_TABLE][pieces]
        self.encoder.load_state_dict(own)
        if isinstance(self.head, SequenceHead) and f"{PAIR_HEAD}pooler.weight" in state:
            of_pooler = f"{PAIR_HEAD}pooler."
            pooler = {name.removeprefix(of_pooler): value for name, value in state.items() if name.startswith(of_pooler)}
            self.head.pooler.load_state_dict(pooler)

    def forward(
        self,
        tokens_BxS: Int[Tensor, "B S"],
        segments_BxS: Int[Tensor, "B S"] | None = None,
        attended_BxS: Bool[Tensor, "B S"] | None = None,
        places_N: Int[Tensor, " N"] | None = None,
    ) -> Tensor:
        """Logits: (B, C) for a whole input, (N, C) at `places_N` or (B, S, C) for tokens, (B, S, 2) for spans."""
        if isinstance(self.head, SequenceHead):
            first_Bx1 = torch.zeros(len(tokens_BxS), 1, dtype=torch.long, device=tokens_BxS.device)
            hidden_Bx1xH = self.encoder(tokens_BxS, segments_BxS, attended_BxS, first_Bx1)
            logits: Tensor = self.head(hidden_Bx1xH[:, 0])
            return logits
        hidden_BxSxH = self.encoder(tokens_BxS, segments_BxS, attended_BxS)
        tokens: Tensor = self.head(hidden_BxSxH, places_N) if isinstance(self.head, TokenHead) else self.head(hidden_BxSxH)
        return tokens


def _head(kind: HeadKind, width: int, outputs: int, dropout: float) -> TaskHead:
    match kind:
        case "sequence":
            return SequenceHead(width, outputs, dropout)
        case "tokens":
            return TokenHead(width, outputs, dropout)
        case "spans":
            return SpanHead(width)
