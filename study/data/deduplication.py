"""Text that a corpus holds more than once: repeated paragraphs, and documents that nearly repeat others.

With `data.dedupe`,

1. a paragraph, that is a line, of WINDOW words or more is dropped wherever it occurs again;
2. a validation or test document joins the training split if training documents hold half of its windows of WINDOW words, and
   then counts as one of them; a test document joins the validation split likewise;
3. a paragraph of the remaining validation and test documents is dropped if half of its words stand in windows that training
   documents hold.

Case and white space do not count; punctuation marks are words. Windows are compared exactly, not by MinHash: what matters is
how much of a short document a long one holds, which Jaccard similarity does not measure.

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

from study.data.corpora import SPLITS, Split, Tally
from study.data.overlap import Hashes, WindowSet, items_in, window_hashes

Documents = Iterable[tuple[Split, str]]

WINDOW = 10
"""Words of a window: of the docstrings about 13 tokens of a vocabulary of 2,048, by which the overlap of splits is measured."""

MOST_REPEATED = 0.5
"""The share of repeated windows from which a document is a near-duplicate, and that of repeated words of a paragraph."""

DEDUPLICATION_VERSION = 1
"""Raised whenever a change of the code moves what is dropped."""

_WORD = re.compile(r"[^\W_\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+|\S")
"""Adjacent letters and digits, or any other single character; Chinese and Japanese characters are words of their own."""

_NO_WORD = ""
"""Stands between documents, so that windows of two of them equal no window of one."""

_BATCH = 2**18
"""Words that are hashed together, and distinct words whose hashes are remembered."""


@dataclass(frozen=True, eq=False)
class Repetitions:
    """What deduplication changes in a corpus: which of its paragraphs are dropped, and which documents join another split.

    Paragraphs and documents are numbered from 0 in the order of the corpus.
    """

    dropped: NDArray[np.bool_]
    joined: Mapping[int, Split]

    def without_repetitions(self, documents: Documents, tally: Tally) -> Iterator[tuple[Split, str]]:
        """The corpus without its repetitions, and without documents that held nothing else; corrects the counts of `tally`."""
        for number, split, places, paragraphs in _numbered(documents):
            kept = list(compress(paragraphs, ~self.dropped[places]))
            text = "\n".join(kept).strip()
            tally.repeated_paragraphs += len(paragraphs) - len(kept)
            tally.near_duplicates += number in self.joined
            tally.text_bytes -= len("\n".join(paragraphs).encode()) - len(text.encode())
            if text:
                yield self.joined.get(number, split), text
            else:
                tally.documents -= 1


def repetitions(documents: Callable[[], Documents]) -> Repetitions:
    """What a corpus repeats; `documents` gives its documents in the same order each time, and is called three times.

    Which documents join another split does not depend on their order, since joining only ever adds to what a split holds.
    Memory is about 30 bytes a paragraph and 70 bytes a word of the validation and test documents, which are 8% of all.
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
    """The words of the validation and test documents in one row, and the splits that these join.

    `document` and `paragraph` say of each word which of `numbers` and of `places` it belongs to; `own` says of each window
    whether it lies within one document. Splits are given by their place among SPLITS.
    """

    numbers: NDArray[np.int64]
    places: NDArray[np.int64]
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
        """Read the documents that do not train, without their dropped paragraphs."""
        numbers, places, splits, hashes = array("q"), array("q"), array("b"), _WordHashes()
        words, paragraphs, lengths = array("Q"), array("q"), array("q")
        for number, split, here, texts in _numbered(documents):
            if split == "train":
                continue
            for place in np.flatnonzero(~dropped[here]).tolist():
                found = _WORD.findall(texts[place].lower())
                words.extend(map(hashes.__getitem__, found))
                places.append(here.start + place)
                paragraphs.append(len(numbers))
                lengths.append(len(found))
            numbers.append(number)
            splits.append(SPLITS.index(split))
        paragraph = np.repeat(np.arange(len(places), dtype=np.int32), np.array(lengths))
        return cls(
            numbers=np.array(numbers),
            places=np.array(places),
            splits=np.array(splits),
            document=np.array(paragraphs, np.int32)[paragraph],
            paragraph=paragraph,
            words=np.array(words),
        )

    @property
    def joined(self) -> dict[int, Split]:
        """The split that each document now belongs to which belonged to another one, by the document's number."""
        moved = self.splits != self.before
        return {number: SPLITS[split] for number, split in zip(self.numbers[moved].tolist(), self.splits[moved], strict=True)}

    def windows_of(self, split: Split) -> Hashes:
        """The windows of the documents that now belong to a split."""
        of_split = (self.splits == SPLITS.index(split))[self.window_document]
        return np.asarray(self.windows[self.own & of_split])

    def join(self, split: Split, windows: WindowSet) -> None:
        """Let every document of a later split join that has enough windows among those met, until none is left."""
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
        """The numbers of the paragraphs that do not train and repeat, by enough of their words, what does."""
        training = (self.splits == SPLITS.index("train"))[self.window_document]
        repeated = items_in(self.own & windows.met & ~training, WINDOW, len(self.words))
        count = len(self.places)
        share = np.bincount(self.paragraph, repeated, count) / np.maximum(np.bincount(self.paragraph, minlength=count), 1)
        return self.places[share >= MOST_REPEATED]


class _WordHashes(dict[str, int]):
    """64-bit hashes of words, each computed when it is first asked for; forgets all when it holds too many."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _BATCH:
            self.clear()
        found = self[word] = _digest(word)
        return found


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _numbered(documents: Documents) -> Iterator[tuple[int, Split, slice, list[str]]]:
    """The number, the split, the paragraphs' numbers and the paragraphs of each document."""
    end = 0
    for number, (split, text) in enumerate(documents):
        paragraphs = text.split("\n")
        start, end = end, end + len(paragraphs)
        yield number, split, slice(start, end), paragraphs


def _occurring_again(documents: Documents) -> NDArray[np.bool_]:
    """For each paragraph, whether it is long enough and has occurred before."""
    digests = array("Q")
    for *_, paragraphs in _numbered(documents):
        for paragraph in paragraphs:
            is_long = sum(1 for _ in islice(_WORD.finditer(paragraph), WINDOW)) == WINDOW
            digests.append(_digest(" ".join(paragraph.lower().split())) if is_long else len(digests))
    again = np.ones(len(digests), np.bool_)
    again[np.unique(np.array(digests), return_index=True)[1]] = False
    return again


def _training_words(documents: Documents, dropped: NDArray[np.bool_]) -> Iterator[Hashes]:
    """The hashes of the words of the training documents, some documents at a time, with _NO_WORD behind each."""
    hashes, words = _WordHashes(), list[str]()
    for _, split, places, paragraphs in _numbered(documents):
        if split == "train":
            words += _WORD.findall("\n".join(compress(paragraphs, ~dropped[places])).lower())
            words.append(_NO_WORD)
        if len(words) >= _BATCH:
            yield np.fromiter(map(hashes.__getitem__, words), np.uint64, len(words))
            words.clear()
    yield np.fromiter(map(hashes.__getitem__, words), np.uint64, len(words))
