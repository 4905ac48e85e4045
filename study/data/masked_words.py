"""Fixed masked words of the validation text, chosen without regard to a tokeniser, so that losses compare across vocabularies.

Letters: N sequences, S tokens, K positions, D documents.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from study.base.randomness import Stream, stream_seed
from study.config.run_config import DataConfig, fingerprint_of
from study.data.cache import cache_root, open_entry
from study.data.corpora import Split, corpus_identity
from study.data.deduplication import DEDUPLICATION_VERSION
from study.data.tokenizing import SpecialTokens

if TYPE_CHECKING:
    from torch import Tensor

    from study.data.masking import MaskedBatch

PASSAGES_VERSION = 1
"""Raise it whenever a code change alters the words that are masked."""

WORD = re.compile(r"\S{1,24}")
"""A word: what stands between white space; longer runs, as in scripts without spaces, are cut after 24 characters."""

BITS_A_BYTE = 8.0
"""What a byte costs that no piece stands for: as much as writing it down."""

_PASSAGE_CHARACTERS = 1000
_BYTES_A_TOKEN = 4


class Passage(NamedTuple):
    """A stretch of about a thousand characters of a validation document, by the number of the document."""

    document: int
    text: str


@dataclass(frozen=True)
class MaskedWords:
    """Sequences in which all pieces of the chosen words are [MASK], and what is known of each document's words.

    `documents` are those of the masked positions, `word_bytes` the UTF-8 bytes of each document's masked words, `lost_bytes`
    those of them that no piece stands for. `fingerprint` identifies the words, whatever the tokeniser.
    """

    masked: MaskedBatch
    documents: Int[Tensor, "N K"]
    word_bytes: Float[Tensor, " D"]
    lost_bytes: Float[Tensor, " D"]
    fingerprint: str


def passages_of(data: DataConfig, documents: Callable[[], Iterable[tuple[Split, str]]]) -> tuple[Passage, ...]:
    """Return the validation passages of the smallest hashes, as much text as its sequences hold at four bytes a token.

    They depend on the text alone.
    """
    limit = _BYTES_A_TOKEN * data.validation_sequences * data.sequence_length
    later = [DEDUPLICATION_VERSION] if data.dedupe and DEDUPLICATION_VERSION > 1 else []  # entries of the first lack it
    identity = fingerprint_of([PASSAGES_VERSION, corpus_identity(data), data.dedupe, limit, *later])

    def build(_: object) -> dict[str, Any]:
        return {"passages": _with_smallest_hashes(documents(), limit)}

    return tuple(Passage(*passage) for passage in open_entry(cache_root() / "passages" / identity, build)["passages"])


def masked_words(
    passages: Sequence[Passage], tokenizer: Tokenizer, special: SpecialTokens, sequence_length: int, rate: float
) -> MaskedWords | None:
    """Mask a share of the words of passages, all of their pieces; None without any.

    Words are chosen in the text, each with probability `rate`; the positions of a word are those of all pieces that overlap
    with it, so a piece that reaches beyond a word counts in whole. The pieces of all passages, each followed by [SEP], are
    packed as in training; the last sequence is filled from the first.
    """
    draw = np.random.RandomState(stream_seed(Stream.MASKED_WORDS) % 2**32)  # the one stream that NumPy never changes
    numbers = {document: number for number, document in enumerate(dict.fromkeys(each.document for each in passages))}
    word_bytes, lost_bytes = np.zeros(len(numbers)), np.zeros(len(numbers))
    tokens: list[int] = []
    of_words: list[bool] = []
    of_documents: list[int] = []
    encodings = tokenizer.encode_batch([each.text for each in passages], add_special_tokens=False)
    for passage, encoding in zip(passages, encodings, strict=True):
        number, chosen = numbers[passage.document], _chosen_characters(passage.text, draw, rate)
        size = np.array([len(character.encode()) for character in passage.text]) * chosen
        word_bytes[number] += size.sum()
        lost_bytes[number] += size[~_covered(len(chosen), encoding, special)].sum()
        before = np.concatenate([[0], chosen.cumsum()])
        tokens += [*encoding.ids, special.sep]
        of_words += [
            bool(before[end] > before[begin]) and piece not in special.all
            for piece, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True)
        ]
        of_words.append(False)
        of_documents += [number] * (len(encoding.ids) + 1)
    if not any(of_words):
        return None
    import torch

    masked, documents = _packed(np.array(tokens), np.array(of_words), np.array(of_documents), special, sequence_length)
    identity = fingerprint_of([PASSAGES_VERSION, [list(each) for each in passages], rate])
    return MaskedWords(masked, documents, torch.from_numpy(word_bytes), torch.from_numpy(lost_bytes), identity)


def _with_smallest_hashes(documents: Iterable[tuple[Split, str]], limit: int) -> list[tuple[int, str]]:
    """Return the document's number and text of each chosen passage, by hash."""
    chosen: list[tuple[int, int, str]] = []
    held = 0
    validation = (text for split, text in documents if split == "validation")
    for number, text in enumerate(validation):
        for passage in _passages(text):
            digest = hashlib.blake2b(passage.encode(), digest_size=8).digest()
            heapq.heappush(chosen, (-int.from_bytes(digest, "big"), number, passage))
            held += len(passage.encode())
            while held - (largest := len(chosen[0][2].encode())) >= limit:
                heapq.heappop(chosen)
                held -= largest
    return [(number, passage) for _, number, passage in sorted(chosen, reverse=True)]


def _passages(text: str) -> Iterator[str]:
    """Cut a text before words into passages."""
    begin = 0
    for word in WORD.finditer(text):
        if word.start() - begin >= _PASSAGE_CHARACTERS:
            yield text[begin : word.start()].rstrip()
            begin = word.start()
    yield text[begin:]


def _chosen_characters(text: str, draw: np.random.RandomState, rate: float) -> NDArray[np.bool_]:
    """Which characters belong to chosen words."""
    chosen = np.zeros(len(text), bool)
    spans = [word.span() for word in WORD.finditer(text)]
    for (begin, end), fraction in zip(spans, draw.random_sample(len(spans)), strict=True):
        chosen[begin:end] = fraction < rate
    return chosen


def _covered(characters: int, encoding: Encoding, special: SpecialTokens) -> NDArray[np.bool_]:
    """Which characters an ordinary piece stands for."""
    covered = np.zeros(characters, bool)
    for piece, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if piece not in special.all:
            covered[begin:end] = True
    return covered


def _packed(
    tokens: NDArray[np.int64],
    of_words: NDArray[np.bool_],
    of_documents: NDArray[np.int64],
    special: SpecialTokens,
    sequence_length: int,
) -> tuple[MaskedBatch, Int[Tensor, "N K"]]:
    """Sequences of [CLS] and S − 1 tokens each, masked at words, and the document of each position; labels may be IGNORED."""
    import torch

    from study.data.masking import IGNORED, MaskedBatch

    room = sequence_length - 1
    count = -(-len(tokens) // room)
    shape = (count, room)
    beyond = np.zeros(count * room - len(tokens), bool)
    chosen = np.pad(np.concatenate([of_words, beyond]).reshape(shape), ((0, 0), (1, 0)))
    originals = np.pad(np.resize(tokens, shape), ((0, 0), (1, 0)), constant_values=special.cls)
    documents = np.pad(np.resize(of_documents, shape), ((0, 0), (1, 0)))
    most = int(chosen.sum(axis=1).max())
    positions = np.sort(np.argsort(~chosen, axis=1, kind="stable")[:, :most], axis=1)
    at_words = np.take_along_axis(chosen, positions, axis=1)
    labels = np.where(at_words, np.take_along_axis(originals, positions, axis=1), IGNORED)
    corrupted = np.where(chosen, special.mask, originals)
    masked = MaskedBatch(*(torch.from_numpy(each) for each in (corrupted, positions, labels)))
    return masked, torch.from_numpy(np.take_along_axis(documents, positions, axis=1))
