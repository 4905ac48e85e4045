"""The heads of an encoder: masked language modelling, and BERT's for downstream tasks, with the encoder that has one of these.

Letters: B sequences, S tokens, N positions of a batch, H width, E embedding width, V vocabulary, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from study.base.randomness import Stream, stream_seed
from study.counting.architecture import Architecture
from study.model.encoder import Encoder
from study.model.layers import Dropout, Linear, Products, initialise, norm

PAIR_HEAD = "pair_head."
"""The prefix of the weights of a pair head."""

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
        self.products = Products()
        self.decoder = None if a.tied_decoder else Linear(a.table_width, a.vocabulary, bias=False)
        self.beside = None if inner == a.table_width else Linear(inner - a.table_width, a.vocabulary, bias=False)

    def forward(
        self, hidden: Float[Tensor, "*positions H"], token_embedding_VxE: Float[Tensor, "V E"]
    ) -> Float[Tensor, "*positions V"]:
        """Logits over the vocabulary at each position."""
        read, weight_VxE = self.transformed(hidden), self._decoder(token_embedding_VxE)
        if self.beside is None:
            return self.products.multiply(read, weight_VxE, self.bias)
        rows = read.flatten(0, -2)  # of a view of its product torch could add nothing in place
        logits = self.products.multiply(rows[:, : weight_VxE.shape[1]], weight_VxE, self.bias)
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
