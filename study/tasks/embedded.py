"""Built-in tasks, made from the docstrings with labels that occur in them.

| task | example | label |
| --- | --- | --- |
| docstring-package | a docstring's prose | its package |
| docstring-pairs | two paragraphs of one package | whether the second follows the first |
| docstring-code | the words of a passage without markup | B-CODE and I-CODE for words in code markup |
| docstring-order | a sentence, and a version with two or three words reordered | the first is English |

Hashes of the texts decide everything, so the same packages give the same examples.

No encoder is pre-trained on `dev` and `test` documents (study.data.corpora.split_of), except that `data.dedupe` moves
near-duplicates, whose text training documents hold by half, to the training split.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from study.base.errors import InputError, nearest, shown
from study.config.run_config import fingerprint_of
from study.data.cache import cache_root, open_entry
from study.data.corpora import split_of
from study.data.docstrings import PACKAGES, docstrings_identity, read_docstrings
from study.tasks.example_tables import ExampleTable, read_table

Rows = dict[str, list[tuple[object, ...]]]
"""The rows of each split, without column names."""

FEWEST_DOCUMENTS = 500
"""The fewest documents of a class; smaller ones would have only a handful of test documents."""

MOST_EXAMPLES = 8000
"""The most examples of a train split, which keeps default tasks fast."""

MOST_A_DOCUMENT = 3
"""The most examples per document; more would not be independent."""

MOST_PAIRS_A_PARADIGM = 500

_VERSION = 2
_MOST_WORDS = 60
_PACKAGE_WORDS = 30
_FEWEST_WORDS = 8
_MARKUP = re.compile(r"(?::[a-z:]+:)?(`+)([^`\n]+)\1")
_WORD = re.compile(r"\w+(?:[._]\w+)*|[^\w\s]")
_PLAIN = re.compile(r"[A-Z][a-z]*(?: [a-z]+,?){5,19}\.")
_FUNCTION_WORDS = {
    "article": {"the", "a", "an"},
    "preposition": {"of", "in", "to", "for", "with", "from", "by", "on", "at", "into"},
    "auxiliary": {"is", "are", "be", "was", "were", "can", "will", "must", "should", "may", "has", "have"},
}
_IMMOVABLE = set().union(*_FUNCTION_WORDS.values(), {"and", "or", "not", "all", "both", "only", "also", "then"})

ROLE_OF_SPLIT = {"train": "train", "validation": "dev", "test": "test"}

_CODE_LINE = re.compile(r"\s*(>>>|\.\.\.|\.\. |:\w+:|\$|#|[|+])")
_NAMES = re.compile(rf"{'|'.join(PACKAGES)}|\b(np|pd|plt|nx|sp|sns)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
_DIGITS = re.compile(r"\d+")


def embedded_tables(name: str, packages: tuple[str, ...] = PACKAGES) -> dict[str, ExampleTable]:
    """Return the cached split tables of an embedded task, with the columns of study.tasks.task_spec.ROLES.

    Raises InputError if the name is unknown.
    """
    if name not in MAKERS:
        raise InputError.at("embedded", f"{shown(name)} is not known; {nearest(name, list(MAKERS))}")
    columns, make = MAKERS[name]
    folder = cache_root() / "tasks" / fingerprint_of([name, _VERSION, docstrings_identity(packages)])
    roles = open_entry(folder, lambda new: _write(new, columns, make(documents(packages))))["rows"]
    return {role: read_table(folder / f"{role}.parquet", columns) for role in roles}


def _write(folder: Path, columns: tuple[str, ...], rows: Rows) -> dict[str, object]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for role, of_split in rows.items():
        values = dict(zip(columns, map(list, zip(*of_split, strict=True)), strict=True))
        pq.write_table(pa.table(values), folder / f"{role}.parquet", compression="zstd")
    return {"rows": {role: len(of_split) for role, of_split in rows.items()}}


def by_package(passages: list[Passages]) -> Rows:
    """Pair the first words of each document with its package; skips small packages."""
    kept = [document for document in passages if len(document.words) >= 2 * _FEWEST_WORDS]
    sizes = Counter(document.package for document in kept)
    rows: Rows = defaultdict(list)
    for document in kept:
        if sizes[document.package] >= FEWEST_DOCUMENTS:
            rows[document.role].append((" ".join(document.words[:_PACKAGE_WORDS]), document.package))
    return _capped(rows)


def following(passages: list[Passages]) -> Rows:
    """Pair consecutive paragraphs, and equally many whose second paragraph comes from another document.

    Negatives rotate second paragraphs within package and split: both classes have the same distributions of first and second
    paragraphs, and each paragraph occurs once. The first pairs of all documents precede the second ones, so neighbours differ
    in document.
    """
    couples: dict[tuple[str, str], list[tuple[int, int, str, str]]] = defaultdict(list)
    for number, document in enumerate(passages):
        consecutive = [
            (first, second)
            for run in document.runs
            for first, second in pairwise(paragraphs(run, _MOST_WORDS))
            if min(len(first.split()), len(second.split())) >= _FEWEST_WORDS
        ]
        for rank, couple in enumerate(consecutive[::2][:MOST_A_DOCUMENT]):
            couples[document.role, document.package].append((rank, number, *couple))
    rows: Rows = defaultdict(list)
    for (role, _), of_package in couples.items():
        pairs = [couple[1:] for couple in sorted(of_package, key=lambda couple: couple[0])]
        kept = pairs[: len(pairs) // 4 * 4]
        true, split = kept[::2], kept[1::2]
        negatives = [(one[1], other[2]) for one, other in zip(split, split[1:] + split[:1], strict=True) if one[0] != other[0]]
        rows[role] += [(first, second, "follows") for _, first, second in true[: len(negatives)]]
        rows[role] += [(first, second, "does_not_follow") for first, second in negatives]
    return _capped({role: sorted(of_role, key=lambda row: order(str(row[0]))) for role, of_role in rows.items()})


def code_words(passages: list[Passages]) -> Rows:
    """Tag the words of each document's first paragraphs that hold code markup."""
    rows: Rows = defaultdict(list)
    for document in passages:
        texts = [text for run in document.runs for text in paragraphs(run, _MOST_WORDS)]
        long_enough = [(tokens, tags) for tokens, tags in map(tagged, texts) if len(tokens) >= _FEWEST_WORDS]
        with_code = [(tokens, tags) for tokens, tags in long_enough if {"O", "B-CODE"} <= set(tags)]
        rows[document.role] += with_code[:MOST_A_DOCUMENT]
    return _capped(rows)


def tagged(text: str) -> tuple[list[str], list[str]]:
    """Split a text into words without code markup, each tagged O, or B-CODE or I-CODE inside markup."""
    tokens: list[str] = []
    tags: list[str] = []
    end = 0
    for match in _MARKUP.finditer(text):
        outside = _WORD.findall(text[end : match.start()].replace("`", " "))
        inside = _WORD.findall(match.group(2).removeprefix("~"))
        tokens += [*outside, *inside]
        tags += ["O"] * len(outside) + ["B-CODE", *["I-CODE"] * (len(inside) - 1)][: len(inside)]
        end = match.end()
    rest = _WORD.findall(text[end:].replace("`", " "))
    return [*tokens, *rest], [*tags, *["O"] * len(rest)]


def reordered(passages: list[Passages]) -> Rows:
    """Pair plain held-out sentences with a version whose function word moves behind the next one or two words.

    Only the word order differs. Sentences that train documents also hold are skipped.
    """
    seen = {sentence for document in passages if document.role == "train" for sentence in _plain(document)}
    rows: Rows = defaultdict(list)
    for document in passages:
        for sentence in _plain(document) if document.role != "train" else ():
            if sentence not in seen:
                seen.add(sentence)
                paradigm, misordered = _misordered(sentence)
                if misordered and len(rows[paradigm]) < MOST_PAIRS_A_PARADIGM:
                    rows[paradigm].append((sentence, misordered, paradigm))
    return {"test": [row for paradigm in sorted(rows) for row in rows[paradigm]]}


def _plain(document: Passages) -> Iterator[str]:
    """Yield sentences of 6 to 20 purely alphabetic words."""
    for run in document.runs:
        for paragraph in paragraphs(run, most=200):
            yield from (sentence for sentence in sentences(paragraph) if _PLAIN.fullmatch(sentence))


def _misordered(sentence: str) -> tuple[str, str]:
    """Return a sentence's paradigm and misordered form, empty if no word can move."""
    words = sentence.removesuffix(".").split()
    moves = [
        (kind, index, passed)
        for kind, function_words in _FUNCTION_WORDS.items()
        for index, word in enumerate(words)
        for passed in (words[index + 1 : index + 2], words[index + 1 : index + 3])
        if index > 0 and word in function_words and _movable(passed)
    ]
    if not moves:
        return "", ""
    kind, index, passed = moves[order(sentence)[0] % len(moves)]
    moved = [*words[:index], *passed, words[index], *words[index + 1 + len(passed) :]]
    return f"{kind}_moved", " ".join(moved) + "."


def _movable(passed: list[str]) -> bool:
    """Whether a function word can move behind these words: at least one, no commas, no function words."""
    return bool(passed) and not any("," in word or word in _IMMOVABLE for word in passed)


def _capped(rows: Mapping[str, Iterable[tuple[object, ...]]]) -> Rows:
    return {role: list(of_split)[:MOST_EXAMPLES] for role, of_split in rows.items()}


MAKERS: dict[str, tuple[tuple[str, ...], Callable[[list[Passages]], Rows]]] = {
    "docstring-package": (("text", "label"), by_package),
    "docstring-pairs": (("text_a", "text_b", "label"), following),
    "docstring-code": (("tokens", "tags"), code_words),
    "docstring-order": (("sentence_good", "sentence_bad", "UID"), reordered),
}
"""The columns of each embedded task, and the function that makes its rows."""


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
