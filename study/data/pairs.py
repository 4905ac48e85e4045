"""Pairs of segments, [CLS] A [SEP] B [SEP], as BERT and ALBERT read them.

Letters: N pairs, S tokens, R = S − 3 of them text, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from study.base.errors import InputError
from study.config.recipe import Objective
from study.data.corpora import MORE_TEXT, Split
from study.data.masking import GOLDEN, mixed
from study.data.prepared import PreparedData
from study.data.tokenizing import SpecialTokens, sentence_ends

BRACKETS = 3
"""[CLS] and two [SEP]."""

FOLLOWS, OTHERWISE = 0, 1
"""The labels of BERT and ALBERT: B follows A, or it is random (`mlm_nsp`) or precedes A (`mlm_sop`)."""

_BOUNDARY, _LABEL, _ELSEWHERE = range(3)
"""The draws of a pair."""


class Pairs(NamedTuple):
    """Tokens, their segments (0 for [CLS] A [SEP], 1 for B [SEP]), and the labels FOLLOWS or OTHERWISE."""

    tokens: Int[Tensor, "N S"]
    segments: Int[Tensor, "N S"]
    labels: Int[Tensor, " N"]

    @classmethod
    def of(cls, rows: Int[Tensor, "N S+2"]) -> Self:
        """Read the rows of `PackedPairs.take`."""
        tokens, first_of_B = rows[:, :-2], rows[:, -2:-1]
        places = torch.arange(tokens.shape[1], device=rows.device)
        return cls(tokens, (places >= first_of_B).long(), rows[:, -1])


@dataclass(frozen=True)
class PackedPairs:
    """The pairs of a split without padding: pair i of an epoch is a function of (seed, epoch, i), under `mlm` as `mlm_nsp`'s.

    Window i holds stream tokens i·R to (i+1)·R, and is cut in two at a random sentence boundary within a document (else at any
    place within a document, else anywhere). Half of the pairs are the two parts in order. The others are swapped under
    `mlm_sop` (Lan et al. 2020, arXiv:1909.11942, section 3.1); under `mlm_nsp` B begins at the boundary of another random
    window and is as long (Devlin et al. 2019, section 3.1 and appendix A.2). A segment may begin within a sentence and hold the
    end of a document, with its [SEP], as packed sequences do. `ends` marks the pieces that end a sentence.
    """

    stream: NDArray[np.unsignedinteger]
    sequence_length: int
    special: SpecialTokens
    ends: NDArray[np.bool_]
    objective: Objective
    seed: int

    @classmethod
    def of(cls, prepared: PreparedData, split: Split, objective: Objective, seed: int) -> Self:
        """Open the pairs of a split; raises InputError if it holds fewer than two."""
        ends = np.zeros(prepared.vocabulary, np.bool_)
        ends[sentence_ends(prepared.tokenizer())] = True
        pairs = cls(prepared.stream(split), prepared.sequence_length, prepared.special, ends, objective, seed)
        if len(pairs) < 2:
            raise InputError.at("data.corpus", f"its {split} split holds fewer than two pairs of segments; {MORE_TEXT}")
        return pairs

    @property
    def room(self) -> int:
        """R, the tokens of a pair without [CLS] and [SEP]."""
        return self.sequence_length - BRACKETS

    def __len__(self) -> int:
        return len(self.stream) // self.room

    def take(self, windows: NDArray[np.int64], epochs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the pairs of windows in epochs, (N, S + 2): the tokens, the first place of segment 1, and the label.

        One array is copied to a GPU at once; `Pairs.of` reads it.
        """
        labels, cuts = self._drawn(windows, epochs, _LABEL) & 1, self._cuts(windows, epochs)
        begins, swapped = windows * self.room, (labels == OTHERWISE) & (self.objective == "mlm_sop")
        first, second = np.where(swapped, begins + cuts, begins), np.where(swapped, begins, begins + cuts)
        lengths = np.where(swapped, self.room - cuts, cuts)
        if self.objective != "mlm_sop":
            others = (windows + 1 + self._drawn(windows, epochs, _ELSEWHERE) % (len(self) - 1)) % len(self)
            second = np.where(labels == OTHERWISE, others * self.room + self._cuts(others, epochs), second)
        places, lengths_Nx1 = np.arange(self.sequence_length), lengths[:, None]
        in_A, in_B = first[:, None] + places - 1, second[:, None] + places - lengths_Nx1 - 2
        tokens = self.stream[np.where(places <= lengths_Nx1, in_A, in_B) % len(self.stream)]  # B may pass the stream's end
        rows = np.empty((len(windows), self.sequence_length + 2), np.int64)
        rows[:, :-2], rows[:, -2], rows[:, -1] = tokens, lengths + 2, labels
        rows[:, 0] = self.special.cls
        rows[np.arange(len(rows)), lengths + 1] = rows[:, -3] = self.special.sep
        return rows

    def _cuts(self, windows: NDArray[np.int64], epochs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lengths of the first parts of windows, from 1 to R − 1."""
        text_NxR = self.stream[: len(self) * self.room].reshape(len(self), self.room)[windows]
        before, after = text_NxR[:, :-1], text_NxR[:, 1:]
        within = (before != self.special.sep) & (after != self.special.sep)
        sentences = within & self.ends[before] & ~self.ends[after]
        anywhere = np.where(within.any(1, keepdims=True), within, True)
        allowed = np.where(sentences.any(1, keepdims=True), sentences, anywhere)
        chosen = self._drawn(windows, epochs, _BOUNDARY) % allowed.sum(1)
        return 1 + (allowed.cumsum(1) > chosen[:, None]).argmax(1)

    def _drawn(self, windows: NDArray[np.int64], epochs: NDArray[np.int64], draw: int) -> NDArray[np.int64]:
        """63 random bits of each window in its epoch, by SplitMix64."""
        keys_N = mixed(mixed(torch.from_numpy(windows) + self.seed) + torch.from_numpy(epochs))
        bits: NDArray[np.int64] = mixed(keys_N + torch.tensor(draw) * GOLDEN).numpy()
        return bits & np.iinfo(np.int64).max
