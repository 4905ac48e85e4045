"""Corpora as streams of documents, their identities and splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from study.base.errors import InputError, Problem
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
    """A text and its source: a docstring's package, a file name or a hub dataset."""

    text: str
    source: str


@dataclass
class Tally:
    """Counts of documents kept and dropped, and the UTF-8 bytes kept."""

    documents: int = 0
    text_bytes: int = 0
    empty: int = 0
    duplicates: int = 0
    repeated_paragraphs: int = 0
    near_duplicates: int = 0


def read_corpus(data: DataConfig, *, progress: bool = False) -> Iterator[Document]:
    """Yield the stripped documents of a corpus in a fixed order; rows without text are empty, duplicates stay.

    Documents above a million characters are cut at white space. Lone surrogates become question marks.

    Raises InputError if the corpus is missing, is not of the kind its name implies, or lacks the text column.
    """
    for source, text in _texts(data, progress):
        for piece in pieces(text):
            yield Document(without_lone_surrogates(piece).strip(), source)


def is_local(corpus: str) -> bool:
    """Whether a corpus is a local file or folder."""
    return corpus != _DOCSTRINGS and not corpus.startswith(PREFIX)


def skipped_files_note(data: DataConfig) -> str | None:
    """Describe the skipped files of a corpus folder; None if there are none."""
    return passed_over(data.corpus) if is_local(data.corpus) else None


def check_corpus(data: DataConfig) -> None:
    """Raise InputError if a local corpus is missing, unreadable at its start, of unknown kind, or certainly too small.

    It is too small without a training document, or with fewer validation bytes than required validation tokens. Reading stops
    once there is enough. Of a hub corpus only the name is checked, offline.
    """
    if data.corpus.startswith(PREFIX):
        hub_name(data.corpus)
    elif is_local(data.corpus):
        files = corpus_files(data.corpus).read
        if blank := [file for file in files if len(files) > 1 and next(read_file(file, data.text_column), None) is None]:
            raise InputError(Problem("data.corpus", f"{str(file)!r} holds no rows; remove it or fill it") for file in blank)
        _check_splits(data)  # reads the first file


def _check_splits(data: DataConfig) -> None:
    tally, most_tokens = Tally(), dict.fromkeys(SPLITS, 0)
    sequences, length = data.validation_sequences, data.sequence_length
    for split, text in split_documents(read_corpus(data), tally):
        most_tokens[split] += len(text.encode()) + 1  # a token is at least one byte, and [SEP] ends the document
        if most_tokens["train"] and most_tokens["validation"] >= sequences * (length - 1):
            return
    textless = f" and {plural(tally.empty, 'row')} without text" if tally.empty else ""
    holds = f"{data.corpus!r} holds {plural(tally.documents, 'distinct document')}{textless}"
    if none := [name for name in ("train", "validation") if not most_tokens[name]]:
        raise InputError.at("data.corpus", f"{holds}, none of them in the {none[0]} split; {MORE_TEXT}")
    few = f"{sequences:,} of length {length} are requested, but {holds}, and its validation split has at most"
    message = f"{few} {plural(most_tokens['validation'], 'token')}; set it lower, or {MORE_TEXT}"
    raise InputError.at("data.validation_sequences", message)


def corpus_identity(data: DataConfig) -> object:
    """Return plain values that identify a corpus by content, not path; reads files but builds nothing.

    Raises InputError if the corpus is missing.
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
    """Return a document's split from a hash of its text: 92% train, 4% validation, 4% test.

    Adding or removing documents moves no other document.
    """
    return _split_of(_digest(text))


def split_documents(documents: Iterable[Document], tally: Tally) -> Iterator[tuple[Split, str]]:
    """Yield each distinct text with its split; counts empty and duplicate texts in `tally` and drops them.

    Texts are compared by 8-byte hashes: two of a billion collide with probability 0.03.
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
