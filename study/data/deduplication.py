"""Deduplication of repeated paragraphs and near-duplicate documents, and the overlap of the splits that remains.

With `data.dedupe`,

1. a paragraph (line) of WINDOW words or more is dropped if it has occurred before;
2. a validation or test document moves to the training split if training documents hold half of its windows of WINDOW words,
   and then counts as one of them; a test document moves to the validation split likewise;
3. a paragraph of the remaining validation and test documents is dropped if half of its words lie in training windows.

Case and white space are ignored; punctuation marks are words. Windows are compared exactly: MinHash estimates Jaccard
similarity, which does not measure how much of a short document a long one holds.

Sources: Broder 1997, On the resemblance and containment of documents; Lee et al. 2022, Deduplicating training data makes
language models better.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import compress, islice
from typing import Self

import numpy as np
from numpy.typing import NDArray

from study.config.run_config import OVERLAP_WINDOW
from study.data.corpora import SPLITS, Split, Tally
from study.data.splitmix import GOLDEN, mixed

Documents = Iterable[tuple[Split, str]]

WINDOW = 10
"""Words per window: for the docstrings about 13 tokens of a 2,048-piece vocabulary, as in the overlap measure."""

MOST_REPEATED = 0.5
"""The least share of repeated windows of a near-duplicate document, and of repeated words of a dropped paragraph."""

DEDUPLICATION_VERSION = 1
"""Raise it whenever a code change alters what is dropped."""

_WORD = re.compile(r"[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+|\S")
"""Adjacent letters and digits, or any other single character; each Chinese or Japanese character is a word."""

_NO_WORD = ""
"""Separates documents, so no window across two of them matches a window within one."""

_BATCH = 2**18
"""Words hashed at a time, and distinct words whose hashes are kept."""

Tokens = NDArray[np.unsignedinteger]
Hashes = NDArray[np.uint64]

_HASH_BASE = np.uint64(GOLDEN % 2**64)
"""The base of the polynomial hash of a window."""

_SPARSE = 8
"""Table cells per window of a `WindowSet`: an eighth of foreign windows pass."""

BLOCK = 2**20
"""Training tokens hashed at a time."""

CHUNK = 2**23
"""Validation windows held in memory; the training text is read once per chunk."""


@dataclass(frozen=True, eq=False)
class Repetitions:
    """The dropped paragraphs and the documents that change split.

    Paragraphs and documents are numbered from 0 in corpus order.
    """

    dropped: NDArray[np.bool_]
    joined: Mapping[int, Split]

    def without_repetitions(self, documents: Documents, tally: Tally) -> Iterator[tuple[Split, str]]:
        """Yield the deduplicated corpus; corrects the counts of `tally`."""
        for number, split, numbers, paragraphs in _numbered(documents):
            kept = list(compress(paragraphs, ~self.dropped[numbers]))
            text = "\n".join(kept).strip()
            tally.repeated_paragraphs += len(paragraphs) - len(kept)
            tally.near_duplicates += number in self.joined
            tally.text_bytes -= len("\n".join(paragraphs).encode()) - len(text.encode())
            if text:
                yield self.joined.get(number, split), text
            else:
                tally.documents -= 1


def repetitions(documents: Callable[[], Documents]) -> Repetitions:
    """Find a corpus's repetitions; `documents` is called three times and must keep its order.

    The moves do not depend on document order. Memory: about 30 bytes per paragraph and 70 bytes per word of the validation and
    test documents (8% of all).
    """
    dropped = _occurring_again(documents())
    held_out = _HeldOut.of(documents(), dropped)
    windows = WindowSet(held_out.windows)
    for words in _training_words(documents(), dropped):
        windows.meet(window_hashes(words, WINDOW))
    held_out.join("train", windows)
    dropped[held_out.paragraphs_in_training(windows)] = True
    windows.forget()
    windows.meet(held_out.windows_of("validation"))
    held_out.join("validation", windows)
    return Repetitions(dropped, held_out.joined)


@dataclass(eq=False)
class _HeldOut:
    """The words of the validation and test documents in one array, and the splits they move to.

    `document` and `paragraph` index `numbers` and `paragraph_numbers` for each word; `own` marks windows within one document.
    Splits are indices into SPLITS.
    """

    numbers: NDArray[np.int64]
    paragraph_numbers: NDArray[np.int64]
    splits: NDArray[np.int8]
    document: NDArray[np.int32]
    paragraph: NDArray[np.int32]
    words: Hashes

    def __post_init__(self) -> None:
        self.windows = window_hashes(self.words, WINDOW)
        self.window_document = self.document[: len(self.windows)]
        self.own = self.window_document == self.document[len(self.document) - len(self.windows) :]
        self.before = self.splits.copy()

    @classmethod
    def of(cls, documents: Documents, dropped: NDArray[np.bool_]) -> Self:
        numbers, paragraph_numbers, splits, hashes = array("q"), array("q"), array("b"), _WordHashes()
        words, paragraphs, lengths = array("Q"), array("q"), array("q")
        for number, split, here, texts in _numbered(documents):
            if split == "train":
                continue
            for index in np.flatnonzero(~dropped[here]).tolist():
                of_paragraph = _WORD.findall(texts[index].lower())
                words.extend(map(hashes.__getitem__, of_paragraph))
                paragraph_numbers.append(here.start + index)
                paragraphs.append(len(numbers))
                lengths.append(len(of_paragraph))
            numbers.append(number)
            splits.append(SPLITS.index(split))
        paragraph = np.repeat(np.arange(len(paragraph_numbers), dtype=np.int32), np.array(lengths))
        return cls(
            numbers=np.array(numbers),
            paragraph_numbers=np.array(paragraph_numbers),
            splits=np.array(splits),
            document=np.array(paragraphs, np.int32)[paragraph],
            paragraph=paragraph,
            words=np.array(words),
        )

    @property
    def joined(self) -> dict[int, Split]:
        """The new split of each moved document."""
        moved = self.splits != self.before
        return {number: SPLITS[split] for number, split in zip(self.numbers[moved].tolist(), self.splits[moved], strict=True)}

    def windows_of(self, split: Split) -> Hashes:
        of_split = (self.splits == SPLITS.index(split))[self.window_document]
        return np.asarray(self.windows[self.own & of_split])

    def join(self, split: Split, windows: WindowSet) -> None:
        """Move documents of later splits into `split` while any has enough of its windows met."""
        into, count = SPLITS.index(split), len(self.numbers)
        own = np.bincount(self.window_document, self.own, count)
        while True:
            met = np.bincount(self.window_document, self.own & windows.met, count)
            near = (self.splits > into) & (met >= MOST_REPEATED * np.maximum(own, 1))
            if not near.any():
                return
            self.splits[near] = into
            windows.meet(self.windows[self.own & near[self.window_document]])

    def paragraphs_in_training(self, windows: WindowSet) -> NDArray[np.int64]:
        """Return held-out paragraphs with enough words in training windows."""
        training = (self.splits == SPLITS.index("train"))[self.window_document]
        repeated = items_in(self.own & windows.met & ~training, WINDOW, len(self.words))
        count = len(self.paragraph_numbers)
        share = np.bincount(self.paragraph, repeated, count) / np.maximum(np.bincount(self.paragraph, minlength=count), 1)
        return self.paragraph_numbers[share >= MOST_REPEATED]


class _WordHashes(dict[str, int]):
    """64-bit hashes of words, computed on demand; cleared when full."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _BATCH:
            self.clear()
        digest = self[word] = _digest(word)
        return digest


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _numbered(documents: Documents) -> Iterator[tuple[int, Split, slice, list[str]]]:
    end = 0
    for number, (split, text) in enumerate(documents):
        paragraphs = text.split("\n")
        start, end = end, end + len(paragraphs)
        yield number, split, slice(start, end), paragraphs


def _occurring_again(documents: Documents) -> NDArray[np.bool_]:
    """Flag each long paragraph that has occurred before."""
    digests = array("Q")
    for *_, paragraphs in _numbered(documents):
        for paragraph in paragraphs:
            is_long = sum(1 for _ in islice(_WORD.finditer(paragraph), WINDOW)) == WINDOW
            digests.append(_digest(" ".join(paragraph.lower().split())) if is_long else len(digests))
    again = np.ones(len(digests), np.bool_)
    again[np.unique(np.array(digests), return_index=True)[1]] = False
    return again


def _training_words(documents: Documents, dropped: NDArray[np.bool_]) -> Iterator[Hashes]:
    """Yield the word hashes of the training documents in batches, with _NO_WORD after each document."""
    hashes, words = _WordHashes(), list[str]()
    for _, split, numbers, paragraphs in _numbered(documents):
        if split == "train":
            words += _WORD.findall("\n".join(compress(paragraphs, ~dropped[numbers])).lower())
            words.append(_NO_WORD)
        if len(words) >= _BATCH:
            yield np.fromiter(map(hashes.__getitem__, words), np.uint64, len(words))
            words.clear()
    yield np.fromiter(map(hashes.__getitem__, words), np.uint64, len(words))


def overlap_share(validation: Tokens, train: Tokens, vocabulary: int, separator: int) -> float:
    """Return the share of validation tokens in windows of OVERLAP_WINDOW tokens that occur in the training text.

    Both are memory-mapped streams with a separator after each document. Windows lie within one document. Memory is constant;
    60M tokens take two seconds.

    Source: the word 13-grams of Brown et al. 2020 (Language models are few-shot learners, appendix C), here of tokens.
    """
    table = token_hashes(vocabulary)
    own_table = table.copy()
    own_table[separator] += np.uint64(1)  # no window across a document's end matches
    count = max(0, len(validation) - OVERLAP_WINDOW + 1)
    occurring = np.zeros(count, np.bool_)
    for start in range(0, count, CHUNK):
        windows = WindowSet(_hashes(validation, start, CHUNK, own_table))
        for block in range(0, len(train), BLOCK):
            windows.meet(_hashes(train, block, BLOCK, table))
        occurring[start : start + CHUNK] = windows.met
    covered = items_in(occurring, OVERLAP_WINDOW, len(validation))
    return float(covered.sum() / max(1, np.count_nonzero(validation != separator)))


def _hashes(tokens: Tokens, start: int, count: int, table: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return window_hashes(table[tokens[start : start + count + OVERLAP_WINDOW - 1]], OVERLAP_WINDOW)


def token_hashes(vocabulary: int) -> Hashes:
    """Return the hash of each token, all different: the first outputs of SplitMix64."""
    return mixed(np.arange(1, vocabulary + 1) * GOLDEN).view(np.uint64)


def window_hashes(items: Hashes, length: int) -> Hashes:
    """Hash every window of `length` consecutive items (themselves hashes), Σ xⱼ·Bʲ modulo 2⁶⁴; none if there are fewer.

    Two of a billion windows collide with probability 0.03.
    """
    count = max(0, len(items) - length + 1)
    hashes = np.zeros(count, np.uint64)
    for offset in range(length):
        hashes *= _HASH_BASE
        hashes += items[offset : offset + count]
    return hashes


def items_in(chosen: NDArray[np.bool_], length: int, count: int) -> NDArray[np.bool_]:
    """Flag which of `count` items lie in a chosen window of `length` items."""
    changes = np.zeros(count + 1, np.int8)
    changes[: len(chosen)] = chosen
    changes[length : length + len(chosen)] -= chosen
    return np.cumsum(changes[:-1], dtype=np.int32) > 0


class WindowSet:
    """The windows of one text, and which of them another text has met.

    About 40 bytes per window. A table of leading hash bits rejects most foreign windows ten times faster than a search.
    """

    def __init__(self, windows: Hashes) -> None:
        self._known, self._places = np.unique(windows, return_inverse=True)
        self._met = np.zeros(len(self._known), np.bool_)
        self._shift = np.uint64(64 - max(1, int(len(self._known) * _SPARSE).bit_length()))
        self._table = np.zeros(1 << (64 - int(self._shift)), np.bool_)
        self._table[self._known >> self._shift] = True

    def meet(self, windows: Hashes) -> None:
        """Mark the windows of the set that are among these."""
        candidates = windows[self._table[windows >> self._shift]]
        indices = np.searchsorted(self._known, candidates)
        indices[indices == len(self._known)] = 0
        self._met[indices[self._known[indices] == candidates]] = True

    @property
    def met(self) -> NDArray[np.bool_]:
        """A flag per window, in text order: whether it has been met."""
        return self._met[self._places]

    def forget(self) -> None:
        """Unmark all windows."""
        self._met[:] = False
