"""Corpora as streams of documents: their files, identities and splits."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from study.base.durable_files import files_below, is_there
from study.base.errors import InputError, Problem, shown
from study.base.quantities import plural
from study.base.text import path_from, without_lone_surrogates
from study.config.run_config import DataConfig, fingerprint_of
from study.data.cache import cached_sha256_of, counted_once
from study.data.docstrings import docstrings_identity, read_docstrings
from study.data.hub_corpus import FORM, PREFIX, hub_identity, hub_name, read_hub
from study.data.text_readers import KINDS, kind_of, pieces, read_file

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

_DOCSTRINGS = "docstrings"
MORE_TEXT = "give more text, or raise data.documents if it is set"
"""The remedy for too little text."""

MORE_DOCUMENTS = f"{MORE_TEXT} (4% of the documents validate; in a .txt an empty line ends a document)"
"""The remedy for a split with too few documents."""

MOST_READ_BYTES = 2**30
"""The size of files up to which a plan reads a corpus to its end: 1 GB takes some 4 s of CPU, compressed text up to 11 s."""

_VALIDATION_PERCENT = 4
_TEST_PERCENT = 4

_NAMED = 3
"""How many skipped files a note names."""

_OF_A_DATASET = ("dataset_dict.json", "dataset_info.json", "state.json")
"""What `datasets.save_to_disk` writes beside the data files."""


_OF_TRAIN = re.compile(r"-train(-\d{5}-of-\d{5})?\.arrow$")
"""The files of the train split in the cache of `load_dataset`, beside those of other splits and of maps."""

_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\.parquet")
"""A Parquet file of a split, as the hub names it."""

_SPLIT_WORDS = {"train": "train", "training": "train"}
_SPLIT_WORDS |= dict.fromkeys(("validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"), "other")
"""The words by which `datasets` knows the split of a file, with whether it is train."""

_NAMED_SPLIT = re.compile(rf"(?:(.*)[._-])?({'|'.join(_SPLIT_WORDS)})(?:[._-]?\d+(?:-of-\d+)?)?")
"""The name of a split's file without its suffix: what precedes the split's word, the word, and a shard's number."""


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

    Raises InputError if the corpus is missing, of another kind, or lacks the text column.
    """
    for source, text in islice(_texts(data, progress), data.documents):
        for piece in pieces(text):
            yield Document(without_lone_surrogates(piece).strip(), source)


def is_local(corpus: str) -> bool:
    """Whether a corpus is a local file or folder."""
    return corpus != _DOCSTRINGS and not corpus.startswith(PREFIX)


def skipped_files_note(data: DataConfig) -> str | None:
    """Describe the skipped files of a corpus folder; None if there are none."""
    return passed_over(data.corpus) if is_local(data.corpus) else None


def check_corpus(data: DataConfig) -> None:
    """Raise InputError if a local corpus is missing, unreadable, of unknown kind, or certainly too small.

    It is too small without a training document, or with fewer validation bytes than validation tokens. A large one is read at
    its start alone (`most_tokens`). Of a hub corpus only the name is checked, offline.
    """
    if data.corpus.startswith(PREFIX):
        hub_name(data.corpus)
    elif is_local(data.corpus):
        files = corpus_files(data.corpus).read
        if blank := [file for file in files if len(files) > 1 and next(read_file(file, data.text_column), None) is None]:
            raise InputError(Problem("data.corpus", f"{str(file)!r} holds no rows; remove it or fill it") for file in blank)
        most_tokens(data)
        _check_splits(data)  # reads the first file


def most_tokens(data: DataConfig) -> int | None:
    """Return the most tokens that a local corpus may hold, None for a large one, which takes long to read.

    A token is at least one byte, and [SEP] ends the document. Each content is read once, to its end. Raises InputError where it
    is broken.
    """
    if sum(file.stat().st_size for file in corpus_files(data.corpus).read) > MOST_READ_BYTES:
        return None
    return counted_once(
        "read", fingerprint_of(corpus_identity(data)), lambda: sum(len(one.text.encode()) + 1 for one in read_corpus(data))
    )


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
        raise InputError.at("data.corpus", f"{holds}, none of them in the {none[0]} split; {MORE_DOCUMENTS}")
    few = f"{sequences:,} of length {length} are requested, but {holds}, and its validation split has at most"
    message = f"{few} {plural(most_tokens['validation'], 'token')}; set it lower, {MORE_DOCUMENTS}"
    raise InputError.at("data.validation_sequences", message)


def corpus_identity(data: DataConfig) -> object:
    """Return plain values that identify a corpus by content, not path.

    Raises InputError if the corpus is missing.
    """
    return _whole_identity(data) | ({} if data.documents is None else {"documents": data.documents})


def _whole_identity(data: DataConfig) -> dict[str, object]:
    if data.corpus == _DOCSTRINGS:
        return {"docstrings": docstrings_identity()}
    if data.corpus.startswith(PREFIX):
        streamed = data.documents is not None
        return {"hub": hub_identity(data.corpus, streamed=streamed), "text_column": data.text_column}
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

    Adding or removing documents moves no other.
    """
    return _split_of(_digest(text))


def split_documents(documents: Iterable[Document], tally: Tally) -> Iterator[tuple[Split, str]]:
    """Yield each distinct text with its split; empty and duplicate texts are counted in `tally` and dropped.

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
        texts = read_hub(data.corpus, data.text_column, streamed=data.documents is not None)
        yield from ((data.corpus, text) for text in texts)
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


@dataclass(frozen=True)
class CorpusFiles:
    """The files of a corpus in reading order, and the skipped files of its folder."""

    read: tuple[Path, ...]
    passed_over: tuple[Path, ...] = ()


def corpus_files(corpus: str) -> CorpusFiles:
    """Return the files of a corpus: the path itself, or all files of known kinds below a folder, sorted.

    Hidden files are ignored, and links to folders skipped. Of a `save_to_disk` dataset only the files it names are read; of
    several splits, only train, as in the cache of `load_dataset`, in a copy of a hub dataset, and where files or folders side
    by side are named as splits (train.jsonl and test.jsonl, wiki.train.txt and wiki.valid.txt, train/ and dev/).

    Raises InputError for a path without readable files, or without the split train.
    """
    try:
        return _files_at(corpus)
    except OSError as error:  # a name too long, or a subfolder without permission
        what = f"{error.strerror} ({shown(str(error.filename))})"
        raise InputError.at("data.corpus", f"{shown(corpus)} cannot be read: {what}; give a file or a folder of text") from None


def passed_over(corpus: str) -> str | None:
    """Describe a folder's skipped files, if any."""
    files = corpus_files(corpus).passed_over
    if not files:
        return None
    named = ", ".join(str(file) for file in files[:_NAMED]) + (", …" if len(files) > _NAMED else "")
    return f"{plural(len(files), 'file')} of {corpus} {'is' if len(files) == 1 else 'are'} skipped: {named}"


def _files_at(corpus: str) -> CorpusFiles:
    path = path_from(corpus, "data.corpus")
    if path.is_dir():
        files = _files_in(path)
        if not files.read:
            raise InputError.at("data.corpus", f"the folder {corpus!r} holds no file of a known kind; known: {KINDS}")
    elif not is_there(path):
        remedy = f"give docstrings, a path, or {FORM} (looked at {path.absolute()})"
        raise InputError.at("data.corpus", f"{corpus!r} does not exist; {remedy}")
    elif kind_of(path) is None:
        raise InputError.at("data.corpus", f"{corpus!r} has an unknown suffix; known: {KINDS}")
    else:
        files = CorpusFiles((path,))
    if empty := [file for file in files.read if file.stat().st_size == 0]:
        raise InputError(Problem("data.corpus", f"{str(file)!r} is empty; remove it or fill it") for file in empty)
    return files


def _files_in(folder: Path) -> CorpusFiles:
    below = [file for file in (*files_below(folder), *_linked_folders(folder)) if not _is_hidden(file.relative_to(folder))]
    files = sorted(below)
    known = [file for file in files if kind_of(file) is not None and (file.is_file() or not file.exists())]
    unread = {file for left_out in map(_left_out_by, files) for file in left_out}
    unread |= _other_shards(files) | _other_splits(known, folder)
    read = {file for file in known if not unread & {file, *file.parents}}
    others = (file for file in files if file not in read and file.name not in _OF_A_DATASET)
    return CorpusFiles(tuple(sorted(read)), tuple(others))


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _linked_folders(folder: Path) -> Iterator[Path]:
    """Yield the links to folders, which are not followed."""
    yield from (link for parent, names, _ in os.walk(folder) for name in names if (link := Path(parent, name)).is_symlink())


def _left_out_by(file: Path) -> Iterator[Path]:
    """Yield what a file of a saved or cached dataset excludes: splits other than train, and Arrow files it does not name."""
    described = _values(file) if file.name in _OF_A_DATASET else {}
    splits = described.get("splits")
    if file.name == "dataset_dict.json" and isinstance(splits, list):
        if "train" not in splits and len(splits) > 1:
            message = f"{str(file.parent)!r} has the splits {', '.join(map(str, splits))}, none of them train"
            raise InputError.at(
                "data.corpus", f"{message}; give the folder of one, such as {str(file.parent / str(splits[0]))!r}"
            )
        yield from (file.parent / str(split) for split in splits if split != "train" and "train" in splits)
    if file.name == "dataset_info.json" and isinstance(splits, dict) and not is_there(file.with_name("state.json")):
        yield from (other for other in file.parent.glob("*.arrow") if len(splits) > 1 and not _OF_TRAIN.search(other.name))
    shards = described.get("_data_files")
    if file.name == "state.json" and isinstance(shards, list):
        names = {shard.get("filename") for shard in shards if isinstance(shard, dict)}
        yield from (other for other in file.parent.glob("*.arrow") if other.name not in names)


def _other_shards(files: Iterable[Path]) -> set[Path]:
    splits = {file: (file.parent, shard[1]) for file in files if (shard := _SHARD.fullmatch(file.name))}
    trains = {folder for folder, split in splits.values() if split == "train"}
    return {file for file, (folder, split) in splits.items() if split != "train" and folder in trains}


def _other_splits(files: Iterable[Path], folder: Path) -> set[Path]:
    """Return the files and subfolders that are named as another split beside one that is named as train."""
    below = {path for file in files for path in (file, *file.parents) if folder in path.parents}
    splits = {path: split for path in below if (split := _split_named(path)) is not None}
    trains = {(path.parent, prefix) for path, (prefix, word) in splits.items() if word == "train"}
    return {path for path, (prefix, word) in splits.items() if word != "train" and (path.parent, prefix) in trains}


def _split_named(path: Path) -> tuple[str | None, str] | None:
    """Return the split of a name, if it says one: what precedes its word, and _SPLIT_WORDS of it."""
    name = path.name.lower().removesuffix(kind_of(path) or "")
    match = _NAMED_SPLIT.fullmatch(name)
    return None if match is None else (match[1], _SPLIT_WORDS[match[2]])


def _values(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
