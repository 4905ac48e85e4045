"""The docstring corpus as the embedded tasks see it: documents in the corpus's own splits, their prose, and its sentences.

`dev` and `test` are the documents that no encoder is pre-trained on (study.data.corpora.split_of), so that what a task
measures was not read before; with `data.dedupe` near-duplicates of training documents train, of which half was read anyhow.
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
    """A document in its split: the lines of prose that stand in no other document, in runs of adjacent ones."""

    role: str
    package: str
    runs: tuple[tuple[str, ...], ...]

    @property
    def words(self) -> list[str]:
        """All its words in order."""
        return [word for run in self.runs for line in run for word in line.split()]


def documents(packages: tuple[str, ...] = PACKAGES) -> list[Passages]:
    """The documents of the corpus with their own prose, in the order of a hash of their text.

    Lines of code, lines that two documents share but for their numbers (headings, boilerplate, copies), and lines that name
    a package are left out, so that no single phrase gives an answer away.
    """
    texts = [(package, text.strip()) for package, text in read_docstrings(packages)]
    keys = [[line_key(line) for line in text.splitlines()] for _, text in texts]
    holders = Counter(key for lines in keys for key in set(lines))
    found = []
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
            found.append((order(text), Passages(ROLE_OF_SPLIT[split_of(text)], package, runs)))
    return [document for _, document in sorted(found, key=lambda item: item[0])]


def _is_prose(line: str) -> bool:
    return not _CODE_LINE.match(line) and not _NAMES.search(line)


def line_key(line: str) -> str:
    """What two lines share where they differ in numbers, case and white space only."""
    return " ".join(_DIGITS.sub("0", line.lower()).split())


def order(text: str) -> bytes:
    """A place in a fixed random order that depends on nothing but the text."""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8, person=b"task order").digest()


def paragraphs(run: Iterable[str], most: int) -> Iterator[str]:
    """What adjacent lines say up to a line that ends a sentence, each cut behind `most` words.

    What begins inside a sentence, since the line before was left out, is passed over.
    """
    words: list[str] = []
    for line in run:
        words += line.split()
        if line.endswith((".", "?", "!", ":")):
            if words[0][0].isupper():
                yield " ".join(words[:most])
            words = []


def sentences(text: str) -> list[str]:
    """A text cut behind full stops that a capital letter follows."""
    return [sentence.strip() for sentence in _SENTENCE_END.split(text)]
