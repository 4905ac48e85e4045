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
from study.data.corpora import MORE_DOCUMENTS, Split
from study.data.prepared import PreparedData
from study.data.splitmix import GOLDEN, mixed
from study.data.tokenizing import SpecialTokens, sentence_ends

BRACKETS = 3
"""[CLS] and two [SEP]."""

FOLLOWS, OTHERWISE = 0, 1
"""The labels of BERT and ALBERT: B follows A, or it is random (`mlm_nsp`) or precedes A (`mlm_sop`)."""

_BOUNDARY = 0
"""The draw that chooses where a window is cut; the others are its label and the place of a random segment."""

_STEPS_3x1 = np.arange(3)[:, None] * np.int64(GOLDEN)

_WORD, _END, _SEPARATOR = range(3)
"""The kinds of pieces: others, those that end a sentence, and [SEP]."""


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
    end of a document, with its [SEP], as packed sequences do. `kinds` are those of the pieces.
    """

    stream: NDArray[np.unsignedinteger]
    sequence_length: int
    special: SpecialTokens
    kinds: NDArray[np.uint8]
    objective: Objective
    seed: int

    @classmethod
    def of(cls, prepared: PreparedData, split: Split, objective: Objective, seed: int) -> Self:
        """Open the pairs of a split; raises InputError if it holds fewer than two."""
        kinds = kinds_of(sentence_ends(prepared.tokenizer()), prepared.special, prepared.vocabulary)
        pairs = cls(prepared.stream(split), prepared.sequence_length, prepared.special, kinds, objective, seed)
        if len(pairs) < 2:
            raise InputError.at("data.corpus", f"its {split} split holds fewer than two pairs of segments; {MORE_DOCUMENTS}")
        return pairs

    @property
    def room(self) -> int:
        """R, the tokens of a pair without [CLS] and [SEP]."""
        return self.sequence_length - BRACKETS

    def __len__(self) -> int:
        return len(self.stream) // self.room

    def take(self, windows: NDArray[np.int64], epochs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the pairs of windows in epochs, (N, S + 2): the tokens, the first place of segment 1, and the label.

        `Pairs.of` reads it.
        """
        boundaries, labels, elsewhere = self._drawn(windows, epochs)
        labels &= 1
        cuts, begins = self._cuts(windows, boundaries), windows * self.room
        first, second, lengths = begins, begins + cuts, cuts
        if self.objective == "mlm_sop":
            swapped = labels == OTHERWISE
            first, second = np.where(swapped, second, first), np.where(swapped, first, second)
            lengths = np.where(swapped, self.room - cuts, cuts)
        else:
            others = (windows + 1 + elsewhere % (len(self) - 1)) % len(self)
            cuts_of_others = self._cuts(others, self._drawn(others, epochs)[_BOUNDARY])
            second = np.where(labels == OTHERWISE, others * self.room + cuts_of_others, second)
        places, in_A = np.arange(self.sequence_length), np.arange(self.sequence_length) <= lengths[:, None]
        offsets = np.where(in_A, first[:, None] - 1, (second - lengths - 2)[:, None]) + places
        rows = np.empty((len(windows), self.sequence_length + 2), np.int64)
        rows[:, :-2] = self.stream[offsets % len(self.stream)]  # B may pass the end of the stream
        rows[:, -2], rows[:, -1] = lengths + 2, labels
        rows[:, 0] = self.special.cls
        rows[np.arange(len(rows)), lengths + 1] = rows[:, -3] = self.special.sep
        return rows

    def _cuts(self, windows: NDArray[np.int64], boundaries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths of first parts, from 1 to R − 1."""
        kinds_NxR = self.kinds[self.stream[: len(self) * self.room].reshape(len(self), self.room)[windows]]
        before, after = kinds_NxR[:, :-1], kinds_NxR[:, 1:]
        sentences, within = (before == _END) & (after == _WORD), (before != _SEPARATOR) & (after != _SEPARATOR)
        anywhere = within | ~within.any(1, keepdims=True)
        allowed = np.where(sentences.any(1, keepdims=True), sentences, anywhere)
        chosen = boundaries % allowed.sum(1)
        cuts: NDArray[np.int64] = 1 + (allowed.cumsum(1, dtype=np.int32) > chosen[:, None]).argmax(1)
        return cuts

    def _drawn(self, windows: NDArray[np.int64], epochs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Three draws of 63 random bits for each window in its epoch, by SplitMix64."""
        keys_N = mixed(mixed(windows + self.seed) + epochs)
        return mixed(keys_N + _STEPS_3x1) & np.iinfo(np.int64).max


def kinds_of(ends: list[int], special: SpecialTokens, vocabulary: int) -> NDArray[np.uint8]:
    """Return the kind of each piece of a vocabulary."""
    kinds = np.full(vocabulary, _WORD, np.uint8)
    kinds[ends], kinds[special.sep] = _END, _SEPARATOR
    return kinds
