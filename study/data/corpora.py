"""Corpora as streams of documents, their identities, and the split of each document."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from study.base.errors import InputError
from study.base.quantities import plural
from study.base.text import without_lone_surrogates
from study.config.run_config import DataConfig
from study.data.cache import cached_sha256_of
from study.data.docstrings import docstrings_identity, read_docstrings
from study.data.hub_corpus import PREFIX, hub_identity, hub_name, read_hub
from study.data.text_files import corpus_files, passed_over
from study.data.text_readers import kind_of, pieces, read_file

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

_DOCSTRINGS = "docstrings"
MORE_TEXT = "give more text (4% of the documents validate; in a .txt an empty line ends a document)"
"""The remedy for a split with too few documents."""

_VALIDATION_PERCENT = 4
_TEST_PERCENT = 4


@dataclass(frozen=True)
class Document:
    """A text and where it comes from: the package of a docstring, the name of a file, or the name of a hub dataset."""

    text: str
    source: str


@dataclass
class Tally:
    """Counts of documents kept and skipped, and the UTF-8 bytes kept."""

    documents: int = 0
    text_bytes: int = 0
    empty: int = 0
    duplicates: int = 0
    repeated_paragraphs: int = 0
    near_duplicates: int = 0


def read_corpus(data: DataConfig, *, progress: bool = False) -> Iterator[Document]:
    """The documents of a corpus in a fixed order, stripped; a row without text is an empty document, duplicates stay.

    Documents above a million characters come as several, cut at white space. Lone surrogates become question marks.

    Raises InputError where the corpus is missing, is not what its name says, or has no such text column.
    """
    for source, text in _texts(data, progress):
        for piece in pieces(text):
            yield Document(without_lone_surrogates(piece).strip(), source)


def is_local(corpus: str) -> bool:
    """Whether a corpus is a local file or a folder of them."""
    return corpus != _DOCSTRINGS and not corpus.startswith(PREFIX)


def skipped_files_note(data: DataConfig) -> str | None:
    """The skipped files of a corpus folder in words, None if there are none or it is no folder."""
    return passed_over(data.corpus) if is_local(data.corpus) else None


def check_corpus(data: DataConfig) -> None:
    """Raise InputError where a local corpus is missing or of no known kind, or a file does not begin as it should.

    Also where it has no document to train on, or too little to validate on whatever its tokens are, which is known after as
    much text, but of one that is too short. The hub is not asked, only its dataset's name is looked at.
    """
    if data.corpus.startswith(PREFIX):
        hub_name(data.corpus)
    elif is_local(data.corpus):
        for file in corpus_files(data.corpus).read[1:]:
            next(read_file(file, data.text_column), None)
        _check_splits(data)  # which begins with the first


def _check_splits(data: DataConfig) -> None:
    tally, found = Tally(), dict.fromkeys(SPLITS, 0)
    sequences, length = data.validation_sequences, data.sequence_length
    for split, text in split_documents(read_corpus(data), tally):
        found[split] += len(text.encode()) + 1  # a token is a byte or more, and [SEP] ends the document
        if found["train"] and found["validation"] >= sequences * (length - 1):
            return
    holds = f"{data.corpus!r} holds {plural(tally.documents, 'distinct document')}"
    if none := [name for name in ("train", "validation") if not found[name]]:
        raise InputError.at("data.corpus", f"{holds}, none of them in the {none[0]} split; {MORE_TEXT}")
    few = f"{sequences:,} of length {length} are asked for, but {holds}, of which those that validate have no more than"
    message = f"{few} {plural(found['validation'], 'token')}; set it lower, or {MORE_TEXT}"
    raise InputError.at("data.validation_sequences", message)


def corpus_identity(data: DataConfig) -> object:
    """Plain values that are equal exactly where the corpus is the same, whatever its path; reads files but builds nothing.

    Raises InputError where the corpus is missing.
    """
    if data.corpus == _DOCSTRINGS:
        return {"docstrings": docstrings_identity()}
    if data.corpus.startswith(PREFIX):
        return {"hub": hub_identity(data.corpus), "text_column": data.text_column}
    files = corpus_files(data.corpus).read
    try:
        identity: dict[str, object] = {"files": [[kind_of(path), cached_sha256_of(path)] for path in files]}
    except OSError as error:
        raise InputError.at("data.corpus", f"{str(error.filename)!r} cannot be read: {error.strerror}") from error
    if any(not str(kind_of(path)).startswith(".txt") for path in files):
        identity["text_column"] = data.text_column
    return identity


def split_of(text: str) -> Split:
    """The split of a document by a hash of its text: 92% train, 4% validation, 4% test.

    So a text is in one split wherever it stands, and documents that are added or removed move no other.
    """
    return _split_of(_digest(text))


def split_documents(documents: Iterable[Document], tally: Tally) -> Iterator[tuple[Split, str]]:
    """Each distinct text with its split; empty texts and repetitions are left out and counted in `tally`.

    Holds 8 bytes of hash for each document: two different texts of a billion share one with probability 0.03.
    """
    seen: set[bytes] = set()
    for document in documents:
        digest = _digest(document.text)
        if not document.text:
            tally.empty += 1
        elif digest in seen:
            tally.duplicates += 1
        else:
            seen.add(digest)
            tally.documents += 1
            tally.text_bytes += len(document.text.encode())
            yield _split_of(digest), document.text


def _texts(data: DataConfig, progress: bool) -> Iterator[tuple[str, str]]:
    """Source and text of each row."""
    if data.corpus == _DOCSTRINGS:
        yield from read_docstrings(progress=progress)
    elif data.corpus.startswith(PREFIX):
        yield from ((data.corpus, text) for text in read_hub(data.corpus, data.text_column))
    else:
        for path in corpus_files(data.corpus).read:
            yield from ((path.name, text) for text in read_file(path, data.text_column))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _split_of(digest: bytes) -> Split:
    percent = int.from_bytes(digest, "big") % 100
    if percent < _VALIDATION_PERCENT:
        return "validation"
    return "test" if percent < _VALIDATION_PERCENT + _TEST_PERCENT else "train"
