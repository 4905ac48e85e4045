"""The tasks that every installation has, made of the docstrings with labels that occur in them.

| task | example | label |
| --- | --- | --- |
| docstring-package | the prose of a docstring | the package that it comes from |
| docstring-pairs | two paragraphs of one package | whether the second follows the first |
| docstring-code | the words of a passage, markup taken off | which stood in code markup, as B-CODE and I-CODE |
| docstring-order | a sentence, and it with two or three words in another order | the first is English |

Everything follows from the texts by hashes, so the same packages give the same examples.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from study.base.errors import InputError, nearest
from study.config.run_config import fingerprint_of
from study.data.cache import cache_root, open_entry
from study.data.docstrings import PACKAGES, docstrings_identity
from study.tasks.example_tables import ExampleTable, read_table
from study.tasks.passages import Passages, documents, order, paragraphs, sentences

Rows = dict[str, list[tuple[object, ...]]]
"""The rows of each split, without names of columns."""

FEWEST_DOCUMENTS = 500
"""The fewest documents of a class; smaller ones would hold a handful of test documents."""

MOST_EXAMPLES = 8000
"""The most examples of a train split, which keeps default tasks fast."""

MOST_A_DOCUMENT = 3
"""The most examples of one document: more would not be independent."""

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


def embedded_tables(name: str, packages: tuple[str, ...] = PACKAGES) -> dict[str, ExampleTable]:
    """The splits of an embedded task as tables, with the columns that study.tasks.task_spec.ROLES names; made once and cached.

    Raises InputError where nothing has this name.
    """
    if name not in MAKERS:
        raise InputError.at("embedded", f"{name!r} is not known; {nearest(name, list(MAKERS))}")
    columns, make = MAKERS[name]
    folder = cache_root() / "tasks" / fingerprint_of([name, _VERSION, docstrings_identity(packages)])
    roles = open_entry(folder, lambda new: _write(new, columns, make(documents(packages))))["rows"]
    return {role: read_table(folder / f"{role}.parquet", columns) for role in roles}


def _write(folder: Path, columns: tuple[str, ...], rows: Rows) -> dict[str, object]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for role, found in rows.items():
        values = dict(zip(columns, map(list, zip(*found, strict=True)), strict=True))
        pq.write_table(pa.table(values), folder / f"{role}.parquet", compression="zstd")
    return {"rows": {role: len(found) for role, found in rows.items()}}


def by_package(passages: list[Passages]) -> Rows:
    """The first words of each document's prose with its package; small packages are left out."""
    kept = [document for document in passages if len(document.words) >= 2 * _FEWEST_WORDS]
    sizes = Counter(document.package for document in kept)
    rows: Rows = defaultdict(list)
    for document in kept:
        if sizes[document.package] >= FEWEST_DOCUMENTS:
            rows[document.role].append((" ".join(document.words[:_PACKAGE_WORDS]), document.package))
    return _capped(rows)


def following(passages: list[Passages]) -> Rows:
    """Two paragraphs that follow each other, and as many of which the second is of another document.

    Second paragraphs of the negatives go round within package and split: both classes hold the same kinds of first and of
    second paragraphs, and each paragraph stands once. The first couples of all documents come before the second ones, so
    that neighbours are of two documents.
    """
    couples: dict[tuple[str, str], list[tuple[int, int, str, str]]] = defaultdict(list)
    for number, document in enumerate(passages):
        found = [
            (first, second)
            for run in document.runs
            for first, second in pairwise(paragraphs(run, _MOST_WORDS))
            if min(len(first.split()), len(second.split())) >= _FEWEST_WORDS
        ]
        for turn, couple in enumerate(found[::2][:MOST_A_DOCUMENT]):
            couples[document.role, document.package].append((turn, number, *couple))
    rows: Rows = defaultdict(list)
    for (role, _), turns in couples.items():
        pairs = [couple[1:] for couple in sorted(turns, key=lambda couple: couple[0])]
        kept = pairs[: len(pairs) // 4 * 4]
        true, torn = kept[::2], kept[1::2]
        apart = [(one[1], other[2]) for one, other in zip(torn, torn[1:] + torn[:1], strict=True) if one[0] != other[0]]
        rows[role] += [(first, second, "follows") for _, first, second in true[: len(apart)]]
        rows[role] += [(first, second, "does_not_follow") for first, second in apart]
    return _capped({role: sorted(found, key=lambda row: order(str(row[0]))) for role, found in rows.items()})


def code_words(passages: list[Passages]) -> Rows:
    """The words of the first paragraphs with code of each document, and which of them stood in code markup."""
    rows: Rows = defaultdict(list)
    for document in passages:
        texts = [text for run in document.runs for text in paragraphs(run, _MOST_WORDS)]
        found = [(tokens, tags) for tokens, tags in map(tagged, texts) if len(tokens) >= _FEWEST_WORDS]
        with_code = [(tokens, tags) for tokens, tags in found if {"O", "B-CODE"} <= set(tags)]
        rows[document.role] += with_code[:MOST_A_DOCUMENT]
    return _capped(rows)


def tagged(text: str) -> tuple[list[str], list[str]]:
    """The words of a text without its code markup, and for each O, or B-CODE or I-CODE where it stood in markup."""
    tokens: list[str] = []
    tags: list[str] = []
    end = 0
    for found in _MARKUP.finditer(text):
        outside = _WORD.findall(text[end : found.start()].replace("`", " "))
        inside = _WORD.findall(found.group(2).removeprefix("~"))
        tokens += [*outside, *inside]
        tags += ["O"] * len(outside) + ["B-CODE", *["I-CODE"] * (len(inside) - 1)][: len(inside)]
        end = found.end()
    rest = _WORD.findall(text[end:].replace("`", " "))
    return [*tokens, *rest], [*tags, *["O"] * len(rest)]


def reordered(passages: list[Passages]) -> Rows:
    """Plain sentences of unseen documents, and the same with a function word put behind the next word or the next two.

    Both have the same words, so that only their order differs. Sentences of train documents are left out.
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
    """Sentences of 6 to 20 words of nothing but letters."""
    for run in document.runs:
        for paragraph in paragraphs(run, most=200):
            yield from (sentence for sentence in sentences(paragraph) if _PLAIN.fullmatch(sentence))


def _misordered(sentence: str) -> tuple[str, str]:
    """The paradigm of a sentence and its misordered form, empty where no word of it can be moved."""
    words = sentence.removesuffix(".").split()
    moves = [
        (kind, place, passed)
        for kind, function_words in _FUNCTION_WORDS.items()
        for place, word in enumerate(words)
        for passed in (words[place + 1 : place + 2], words[place + 1 : place + 3])
        if place > 0 and word in function_words and _movable(passed)
    ]
    if not moves:
        return "", ""
    kind, place, passed = moves[order(sentence)[0] % len(moves)]
    moved = [*words[:place], *passed, words[place], *words[place + 1 + len(passed) :]]
    return f"{kind}_moved", " ".join(moved) + "."


def _movable(passed: list[str]) -> bool:
    """Whether a function word can go behind these: there are some, without a comma, and no function words."""
    return bool(passed) and not any("," in word or word in _IMMOVABLE for word in passed)


def _capped(rows: Mapping[str, Iterable[tuple[object, ...]]]) -> Rows:
    return {role: list(found)[:MOST_EXAMPLES] for role, found in rows.items()}


MAKERS: dict[str, tuple[tuple[str, ...], Callable[[list[Passages]], Rows]]] = {
    "docstring-package": (("text", "label"), by_package),
    "docstring-pairs": (("text_a", "text_b", "label"), following),
    "docstring-code": (("tokens", "tags"), code_words),
    "docstring-order": (("sentence_good", "sentence_bad", "UID"), reordered),
}
"""Each embedded task: its columns, and what makes their rows from the documents."""
