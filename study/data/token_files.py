"""Token files: one flat token stream per split, written in bounded memory and memory-mapped."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from study.base.randomness import fixed_permutation
from study.data.corpora import SPLITS, Split
from study.data.tokenizing import BATCH_CHARACTERS, SpecialTokens

_UINT16_VOCABULARY = 2**16
_PART_TOKENS = 2**24

MOST_WORDS = 2**18
"""Distinct words kept, about 50 MB; when full, the cache is cleared."""


@dataclass(frozen=True)
class Characters:
    """Counts of the non-space characters that a tokeniser read, and of those that became [UNK] or no piece at all.

    One [UNK] may replace a whole line of a script without spaces, so the share of lost tokens says little. BPE without an
    unknown piece drops what it does not know, and so do some normalisers.
    """

    read: int = 0
    lost: int = 0

    def __add__(self, other: Characters) -> Characters:
        return Characters(self.read + other.read, self.lost + other.lost)

    @property
    def lost_share(self) -> float:
        """The share of characters that were lost."""
        return self.lost / max(1, self.read)


@dataclass(frozen=True)
class PackedSequences:
    """The sequences of a split at length S: sequence i is [CLS] and stream tokens i·(S-1) to (i+1)·(S-1).

    Nothing is padded; an incomplete last sequence is dropped. `rows` is (len, S-1), a view of the mapped file.
    """

    rows: NDArray[np.unsignedinteger]
    cls: int

    @classmethod
    def of(cls, stream: NDArray[np.unsignedinteger], sequence_length: int, cls_token: int) -> Self:
        """View a stream as sequences."""
        stride = sequence_length - 1
        count = len(stream) // stride
        return cls(stream[: count * stride].reshape(count, stride), cls_token)

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sequences at `indices`, (n, S); raises IndexError if out of range."""
        sequences = np.empty((len(indices), self.rows.shape[1] + 1), np.int64)
        sequences[:, 0] = self.cls
        sequences[:, 1:] = self.rows[indices]
        return sequences

    def documents(self, indices: NDArray[np.int64], separator: int) -> NDArray[np.int64]:
        """Return the document that holds most tokens of each sequence at `indices`; ties go to the first.

        Documents are numbered from 0 in stream order.
        """
        ends = self.rows == separator
        ended = ends.sum(axis=1)
        document = np.cumsum(ends[indices], axis=1) - ends[indices]  # of each token, numbered within its sequence
        most = 1 + int(document.max(initial=0))
        keys = document + most * np.arange(len(document))[:, None]
        tokens = np.bincount(keys.ravel(), minlength=most * len(document)).reshape(-1, most)
        return np.asarray((np.cumsum(ended) - ended)[indices] + tokens.argmax(axis=1))


@dataclass(frozen=True)
class PackedDocuments:
    """The sequences of a split within documents: [CLS], up to S − 1 tokens of one document, and padding.

    A document begins a sequence, and continues in the next if it is longer; its [SEP] never stands in a sequence alone.
    `begins` are the documents' places in the stream and its end, `firsts` the numbers of their first sequences and of all.
    """

    stream: NDArray[np.unsignedinteger]
    sequence_length: int
    special: SpecialTokens
    begins: NDArray[np.int64]
    firsts: NDArray[np.int64]

    @classmethod
    def of(cls, stream: NDArray[np.unsignedinteger], sequence_length: int, special: SpecialTokens) -> Self:
        """Find the documents in one pass."""
        begins = document_begins(stream, special.sep)
        sequences = -(-(np.diff(begins) - 1) // (sequence_length - 1))
        return cls(stream, sequence_length, special, begins, np.concatenate([np.zeros(1, np.int64), sequences.cumsum()]))

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def take(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sequences at `indices`, (n, S)."""
        room = self.sequence_length - 1
        documents = self.firsts.searchsorted(indices, side="right") - 1
        places = (self.begins[documents] + (indices - self.firsts[documents]) * room)[:, None] + np.arange(room)
        held = places < self.begins[documents + 1][:, None]
        sequences = np.full((len(indices), self.sequence_length), self.special.cls, np.int64)
        sequences[:, 1:] = np.where(held, self.stream[np.minimum(places, len(self.stream) - 1)], self.special.pad)
        return sequences


def document_begins(stream: NDArray[np.unsignedinteger], separator: int) -> NDArray[np.int64]:
    """Return the places where documents begin, and the end of the last, in one pass over the stream.

    The last may lack its separator.
    """
    parts = range(0, len(stream), _PART_TOKENS)
    ends = [np.flatnonzero(stream[part : part + _PART_TOKENS] == separator) + part for part in parts]
    begins = np.concatenate([np.zeros(1, np.int64), *(each + 1 for each in ends)])
    return begins if begins[-1] == len(stream) else np.append(begins, len(stream))


def some_documents(stream: NDArray[np.unsignedinteger], separator: int, tokens: int) -> NDArray[np.unsignedinteger]:
    """Return documents of so many tokens, in a fixed order drawn from all; of the last, the beginning.

    Fewer are a prefix of more.
    """
    begins = document_begins(stream, separator)
    order = fixed_permutation(len(begins) - 1)
    count = 1 + int(np.diff(begins)[order].cumsum().searchsorted(tokens))
    return np.concatenate([stream[begins[document] : begins[document + 1]] for document in order[:count]])[:tokens]


class TokenWriter:
    """Writes a token file, encoding two million characters at a time, each distinct word once if the tokeniser allows it.

    `counts` (per token, including [SEP]) and `characters` cover all written batches; closing writes the rest.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        special = SpecialTokens.of(tokenizer)
        self._separator, self._unknown = (special.sep,), special.unk
        self._words = WordCache(tokenizer, special) if encodes_words_alone(tokenizer) else None
        self.characters = Characters()
        self._dtype = token_dtype(vocabulary)
        self._file = path.open("wb")
        self._waiting: list[str] = []
        self._waiting_characters = 0
        self.counts = np.zeros(vocabulary, np.int64)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._file:
            if kind is None:
                self._write()

    def append(self, text: str) -> None:
        """Append a document's tokens and a [SEP]."""
        self._waiting.append(text)
        self._waiting_characters += len(text)
        if self._waiting_characters >= BATCH_CHARACTERS:
            self._write()

    def _write(self) -> None:
        if self._words is not None:
            words, characters = self._words.encode(self._waiting)
            tokens = words.astype(self._dtype)
        else:
            encodings = self._tokenizer.encode_batch(self._waiting, add_special_tokens=False)
            characters = count_characters(self._waiting, encodings, self._unknown)
            stream = chain.from_iterable(chain(encoding.ids, self._separator) for encoding in encodings)
            tokens = np.fromiter(stream, self._dtype)
        self.characters += characters
        self.counts += np.bincount(tokens, minlength=len(self.counts))
        self._file.write(tokens.data)  # tofile does not report why it failed
        self._waiting, self._waiting_characters = [], 0


def count_characters(texts: Sequence[str], encodings: Sequence[Encoding], unknown: int) -> Characters:
    """Count the characters of encoded texts; the encodings have offsets."""
    lost = sum(_lost(text, encoding, unknown) for text, encoding in zip(texts, encodings, strict=True))
    return Characters(sum(map(_visible, texts)), lost)


def _lost(text: str, encoding: Encoding, unknown: int) -> int:
    """Count the characters, other than marks, that became [UNK] or lie between pieces."""
    lost = end = 0
    for (begin, stop), token in zip(encoding.offsets, encoding.ids, strict=True):
        if begin > end:
            lost += _dropped(text[end:begin])
        if token == unknown:
            lost += _visible(text[begin:stop])
        end = max(end, stop)
    return lost + _dropped(text[end:])


def _dropped(gap: str) -> int:
    return sum(unicodedata.category(character)[0] not in "ZMC" for character in gap)


def _visible(text: str) -> int:
    return sum(map(len, text.split()))


def token_file(folder: Path, split: Split) -> Path:
    """Return the path of a split's tokens, raw little-endian integers."""
    return folder / f"{split}.tokens"


def open_stream(path: Path, vocabulary: int) -> NDArray[np.unsignedinteger]:
    """Memory-map the tokens of a file."""
    dtype = token_dtype(vocabulary)
    if path.stat().st_size < dtype.itemsize:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def token_dtype(vocabulary: int) -> np.dtype[np.unsignedinteger]:
    """Return uint16 if every id fits, else uint32."""
    return np.dtype("<u2") if vocabulary <= _UINT16_VOCABULARY else np.dtype("<u4")


def write_tokens(
    documents: Iterable[tuple[Split, str]], tokenizer: Tokenizer, folder: Path, vocabulary: int
) -> dict[Split, tuple[NDArray[np.int64], Characters]]:
    """Write each split's token file; return token counts and characters."""
    with ExitStack() as stack:
        writers = {
            split: stack.enter_context(TokenWriter(token_file(folder, split), tokenizer, vocabulary)) for split in SPLITS
        }
        for split, text in documents:
            writers[split].append(text)
    return {split: (writer.counts, writer.characters) for split, writer in writers.items()}


def entropy_nats(counts: NDArray[np.int64]) -> float:
    """Return the entropy of the empirical distribution in nats, -Σ p·ln p; zero without counts."""
    present = counts[counts > 0]
    shares = present / max(1, present.sum())
    return float(-(shares * np.log(shares)).sum()) + 0.0


def encodes_words_alone(tokenizer: Tokenizer) -> bool:
    """Whether a text's tokens are the concatenated tokens of its words, split at spaces and lines.

    This holds for BERT: its normaliser never looks across a space, and words end there. An added piece could hold a space, so
    only special ones, which are not matched in texts, are allowed.
    """
    kinds = ((tokenizer.model, WordPiece), (tokenizer.normalizer, BertNormalizer), (tokenizer.pre_tokenizer, BertPreTokenizer))
    added = tokenizer.get_added_tokens_decoder().values()
    return (
        all(isinstance(part, kind) for part, kind in kinds)
        and tokenizer.encode_special_tokens
        and all(token.special for token in added)
    )


class WordCache:
    """Encodes texts word by word from a cache, with a separator after each text; see `encodes_words_alone`.

    Word w has tokens pieces[starts[w] : starts[w] + lengths[w]] and characters[w] read and lost; word 0 is the separator.
    """

    def __init__(self, tokenizer: Tokenizer, special: SpecialTokens) -> None:
        self._tokenizer, self._separator, self._unknown = tokenizer, special.sep, special.unk
        self._forget()

    def encode(self, texts: Iterable[str]) -> tuple[NDArray[np.int64], Characters]:
        """Return the concatenated tokens of all texts, and their characters."""
        words: list[str] = []
        for text in texts:
            words += text.replace("\n", " ").split(" ")
            words.append("\n")
        if len(self._numbers) > MOST_WORDS:
            self._forget()
        self._learn(sorted(set(words).difference(self._numbers)))
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        offsets = np.repeat(self._starts[numbers] - (ends - lengths), lengths)
        tokens: NDArray[np.int64] = self._pieces[offsets + np.arange(len(offsets))]
        read, lost = self._characters[numbers].sum(axis=0).tolist()
        return tokens, Characters(read, lost)

    def _forget(self) -> None:
        """Keep only the separator, a line end, which no word contains."""
        self._numbers = {"\n": 0}
        self._pieces = np.array([self._separator], np.int64)
        self._starts, self._lengths = np.zeros(1, np.int64), np.ones(1, np.int64)
        self._characters = np.zeros((1, 2), np.int64)

    def _learn(self, new: list[str]) -> None:
        encodings = self._tokenizer.encode_batch(new, add_special_tokens=False)
        encoded = [encoding.ids for encoding in encodings]
        counted = [
            (_visible(word), _lost(word, encoding, self._unknown)) for word, encoding in zip(new, encodings, strict=True)
        ]
        self._characters = np.concatenate([self._characters, np.array(counted, np.int64).reshape(-1, 2)])
        lengths = np.fromiter(map(len, encoded), np.int64, len(new))
        self._starts = np.concatenate([self._starts, len(self._pieces) + np.cumsum(lengths) - lengths])
        self._lengths = np.concatenate([self._lengths, lengths])
        pieces = [piece for ids in encoded for piece in ids]
        self._pieces = np.concatenate([self._pieces, np.array(pieces, np.int64)])
        self._numbers |= zip(new, range(len(self._numbers), len(self._numbers) + len(new)), strict=True)
