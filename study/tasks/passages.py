"""The docstring corpus for the embedded tasks: documents by split, their prose and sentences.

No encoder is pre-trained on `dev` and `test` documents (study.data.corpora.split_of), except that `data.dedupe` moves
near-duplicates, whose text training documents hold by half, to the training split.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from study.data.corpora import split_of
from study.data.docstrings import PACKAGES, read_docstrings

ROLE_OF_SPLIT = {"train": "train", "validation": "dev", "test": "test"}

_CODE_LINE = re.compile(r"\s*(>>>|\.\.\.|\.\. |:\w+:|\$|#|[|+])")
_NAMES = re.compile(rf"{'|'.join(PACKAGES)}|\b(np|pd|plt|nx|sp|sns)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Passages:
    """A document of a split: its prose lines that no other document shares, in runs of adjacent lines."""

    role: str
    package: str
    runs: tuple[tuple[str, ...], ...]

    @property
    def words(self) -> list[str]:
        """All words in order."""
        return [word for run in self.runs for line in run for word in line.split()]


def documents(packages: tuple[str, ...] = PACKAGES) -> list[Passages]:
    """Return the corpus's documents with their own prose, ordered by a hash of their text.

    Lines of code, lines shared by two documents up to numbers (headings, boilerplate, copies), and lines that name a package
    are dropped, so no single phrase reveals an answer.
    """
    texts = [(package, text.strip()) for package, text in read_docstrings(packages)]
    keys = [[line_key(line) for line in text.splitlines()] for _, text in texts]
    holders = Counter(key for lines in keys for key in set(lines))
    ordered = []
    for (package, text), own_keys in zip(texts, keys, strict=True):
        kept = [
            line.strip() if holders[key] == 1 and _is_prose(line) else None
            for line, key in zip(text.splitlines(), own_keys, strict=True)
        ]
        runs = tuple(
            tuple(line for line in run if line is not None)
            for there, run in groupby(kept, lambda line: line is not None)
            if there
        )
        if runs:
            ordered.append((order(text), Passages(ROLE_OF_SPLIT[split_of(text)], package, runs)))
    return [document for _, document in sorted(ordered, key=lambda item: item[0])]


def _is_prose(line: str) -> bool:
    return not _CODE_LINE.match(line) and not _NAMES.search(line)


def line_key(line: str) -> str:
    """Normalise numbers, case and white space of a line."""
    return " ".join(_DIGITS.sub("0", line.lower()).split())


def order(text: str) -> bytes:
    """Return a sort key for a fixed random order, a hash of the text."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8, person=b"task order").digest()


def paragraphs(run: Iterable[str], most: int) -> Iterator[str]:
    """Join adjacent lines up to one that ends a sentence; cut after `most` words.

    Skips text that begins inside a sentence because its previous line was dropped.
    """
    words: list[str] = []
    for line in run:
        words += line.split()
        if line.endswith((".", "?", "!", ":")):
            if words[0][0].isupper():
                yield " ".join(words[:most])
            words = []


def sentences(text: str) -> list[str]:
    """Split a text after a sentence mark (.?!) followed by a capital letter."""
    return [sentence.strip() for sentence in _SENTENCE_END.split(text)]
