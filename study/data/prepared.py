"""Data ready for training: built once and cached by content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer

from study.base.errors import InputError, Problem, check_all
from study.base.quantities import plural
from study.base.schema import Strict
from study.config.run_config import DataConfig, TokenizerConfig, fingerprint_of
from study.data.cache import cache_root, check_cache, facts_of, open_entry, sha256_of
from study.data.corpora import (
    MORE_TEXT,
    Split,
    Tally,
    check_corpus,
    corpus_identity,
    is_local,
    read_corpus,
    split_documents,
)
from study.data.deduplication import DEDUPLICATION_VERSION, Repetitions, repetitions
from study.data.overlap import overlap_share
from study.data.token_files import (
    PackedSequences,
    count_characters,
    entropy_nats,
    open_stream,
    token_dtype,
    token_file,
    write_tokens,
)
from study.data.tokenizing import (
    SpecialTokens,
    as_trained_on,
    first_characters,
    is_cased,
    load_tokenizer,
    open_tokenizer,
    tokenizer_file,
    train_tokenizer,
)

PACKING_VERSION = 1
"""Raised whenever a change of the code moves the tokens that a corpus becomes."""

_TOKENIZER_FILE = "tokenizer.json"
_OVERLAP = "validation_overlap_share"
_VALIDATION_SEED = 0
_LOOKED_AT_CHARACTERS = 200_000


class Facts(Strict):
    """What is known of a corpus and its tokens; `unigram_entropy_nats` is that of the train split without special tokens.

    `unknown_share` is the share of [UNK] among its tokens without the other special ones, and `lost_share` the share of its
    characters, white space aside, that became [UNK]; entries of earlier versions lack them. `text_bytes` counts the UTF-8 bytes
    of the documents kept; empty and repeated documents are left out and counted. A corpus that is deduplicated lacks repeated
    paragraphs, and keeps near-duplicates, which join another split.
    """

    vocabulary: int
    dtype: str
    tokens: dict[Split, int]
    documents: int
    text_bytes: int
    empty_documents: int
    duplicate_documents: int
    repeated_paragraphs: int = 0
    near_duplicate_documents: int = 0
    unigram_entropy_nats: float
    unknown_share: float | None = None
    lost_share: float | None = None
    tokenizer_sha256: str


@dataclass(frozen=True)
class PreparedData:
    """The token files of a corpus at one sequence length, and what is known of them.

    `validation_overlap_share` is the share of validation tokens in windows that occur in the training text; see overlap_share.
    """

    fingerprint: str
    folder: Path
    sequence_length: int
    validation_sequences: int
    special: SpecialTokens
    facts: Facts
    validation_overlap_share: float | None = None

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary."""
        return self.facts.vocabulary

    @property
    def unigram_entropy_nats(self) -> float:
        """The loss of a model that knows unigram frequencies alone."""
        return self.facts.unigram_entropy_nats

    @property
    def train_tokens(self) -> int:
        """Tokens in the stream of the train split, [SEP] included and [CLS] not."""
        return self.facts.tokens["train"]

    @property
    def unique_tokens(self) -> float:
        """Those of the train split as runs count them, with the [CLS] that begins each sequence."""
        return self.train_tokens * self.sequence_length / (self.sequence_length - 1)

    def fingerprint_at(self, sequence_length: int) -> str:
        """The fingerprint of the same tokens at another sequence length."""
        return _fingerprint(self.folder.name, sequence_length)

    def tokenizer(self) -> Tokenizer:
        """The tokeniser that made the tokens."""
        return open_tokenizer(self.folder / _TOKENIZER_FILE)

    def split(self, name: Split) -> PackedSequences:
        """The sequences of a split, mapped from its file."""
        return PackedSequences.open(token_file(self.folder, name), self.vocabulary, self.sequence_length, self.special.cls)

    def validation(self) -> NDArray[np.int64]:
        """The fixed validation set, (validation_sequences, S): the first of a fixed permutation of the validation split.

        A smaller set is the beginning of a larger one.
        """
        return self.split("validation").take(self._validation_order)

    def validation_documents(self) -> NDArray[np.int64]:
        """The document that each sequence of the validation set belongs to: the one that most of its tokens are of.

        Documents are numbered in the order of the validation split; of equally many tokens the first counts.
        """
        return self.split("validation").documents(self._validation_order, self.special.sep)

    @property
    def _validation_order(self) -> NDArray[np.int64]:
        """The sequences of the validation split that are in the validation set, in its order."""
        generator = np.random.RandomState(_VALIDATION_SEED)  # the one stream that NumPy never changes
        return generator.permutation(len(self.split("validation")))[: self.validation_sequences]


class CorpusText:
    """The documents of a corpus with their splits, without what they repeat where the configuration says `dedupe`."""

    def __init__(self, data: DataConfig, *, progress: bool = False) -> None:
        self.data, self.progress = data, progress

    def documents(self, title: str, tally: Tally) -> Iterator[tuple[Split, str]]:
        """Read them from the start; a bar of this title on standard error shows them going by."""
        distinct = self._distinct(title, tally)
        return self._repetitions.without_repetitions(distinct, tally) if self.data.dedupe else distinct

    @cached_property
    def _repetitions(self) -> Repetitions:
        return repetitions(lambda: self._distinct("Looking for repetitions", Tally()))

    def _distinct(self, title: str, tally: Tally) -> Iterator[tuple[Split, str]]:
        documents = read_corpus(self.data, progress=self.progress)
        return split_documents(track(documents, title, console=Console(stderr=True), disable=not self.progress), tally)


def check_files(data: DataConfig) -> None:
    """Raise InputError with every file of corpus and tokeniser that is missing, of an unknown kind, or begins wrongly.

    Also where the cache, which is to hold what is made of them, can hold no files.
    """
    checks: list[Callable[[], object]] = [check_cache, partial(check_corpus, data)]
    if data.tokenizer.kind == "file":
        checks.append(partial(tokenizer_file, data.tokenizer))
    check_all(*checks)


def data_fingerprint(data: DataConfig) -> str:
    """16 hex digits over what determines a run's tokens: corpus, tokeniser and sequence length, but no path.

    Reads the corpus's files but builds nothing. The number of validation sequences is left out.

    Raises InputError where the corpus or the tokeniser's file is missing.
    """
    return _fingerprint(stream_fingerprint(data), data.sequence_length)


def files_fingerprint(data: DataConfig) -> str | None:
    """The `data_fingerprint` of a text in local files as they are now.

    None of any other text, which differs between machines, and where the files cannot be read.
    """
    try:
        return data_fingerprint(data) if is_local(data.corpus) else None
    except InputError:
        return None


def prepare(data: DataConfig, *, progress: bool = False) -> PreparedData:
    """The data of a configuration, from the cache, or built into it first; all sequence lengths share one entry.

    Raises InputError where corpus or tokeniser cannot be used, or hold less than a training sequence and the validation set.
    """
    stream = stream_fingerprint(data)
    folder = cache_root() / "tokens" / stream
    facts = Facts.parse(open_entry(folder, partial(_build, data, progress)), place=str(folder))
    special = SpecialTokens.of(open_tokenizer(folder / _TOKENIZER_FILE))
    overlap = open_entry(_overlap_entry(stream), lambda _: _measured_overlap(folder, facts, special))
    prepared = PreparedData(
        fingerprint=_fingerprint(stream, data.sequence_length),
        folder=folder,
        sequence_length=data.sequence_length,
        validation_sequences=data.validation_sequences,
        special=special,
        facts=facts,
        validation_overlap_share=overlap[_OVERLAP],
    )
    _check_read(prepared, data)
    _check_sizes(prepared, data)
    return prepared


def unread_at_first(data: DataConfig) -> str | None:
    """A note if the tokeniser's file does not know much of the beginning of a text, else None.

    Also None if the tokeniser is yet to be trained, and for texts that are no local files, which take long to get.
    """
    if data.tokenizer.kind != "file" or not is_local(data.corpus):
        return None
    tokenizer = as_trained_on(load_tokenizer(data.tokenizer))
    texts = list(first_characters((document.text for document in read_corpus(data)), _LOOKED_AT_CHARACTERS))
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    characters = count_characters(tokenizer, texts, encodings, SpecialTokens.of(tokenizer).unk)
    return data.tokenizer.unread(characters.lost_share, of="characters")


def known_overlap_share(data: DataConfig) -> float | None:
    """The share of validation tokens in windows of the training text, None where the text has not been prepared yet."""
    facts = facts_of(_overlap_entry(stream_fingerprint(data)))
    return None if facts is None else facts[_OVERLAP]


def stream_fingerprint(data: DataConfig) -> str:
    """The key of the token files, which do not depend on the sequence length."""
    dedupe = [DEDUPLICATION_VERSION] if data.dedupe else []
    return fingerprint_of([PACKING_VERSION, corpus_identity(data), _tokenizer_identity(data.tokenizer), *dedupe])


def _overlap_entry(stream: str) -> Path:
    """The cache entry of the overlap of token files, apart from theirs, which may be older."""
    return cache_root() / "overlaps" / stream


def _measured_overlap(folder: Path, facts: Facts, special: SpecialTokens) -> dict[str, Any]:
    validation, train = (open_stream(token_file(folder, split), facts.vocabulary) for split in ("validation", "train"))
    return {_OVERLAP: overlap_share(validation, train, facts.vocabulary, special.sep)}


def _fingerprint(stream: str, sequence_length: int) -> str:
    return fingerprint_of([stream, sequence_length])


def _tokenizer_identity(config: TokenizerConfig) -> dict[str, object]:
    identity: dict[str, object] = {"kind": config.kind, "vocabulary": config.vocabulary}
    if config.kind == "file":
        path = tokenizer_file(config)
        identity |= {"suffix": path.suffix.lower(), "sha256": sha256_of(path)}
        if path.suffix.lower() == ".txt" and is_cased(path):
            identity["cased"] = True  # an entry of an earlier version was lower-cased
    return identity


def _build(data: DataConfig, progress: bool, folder: Path) -> dict[str, Any]:
    """Fill an empty folder with the tokeniser and the token files of each split; the facts of the entry."""
    corpus = CorpusText(data, progress=progress)
    if data.tokenizer.kind == "file":
        tokenizer = load_tokenizer(data.tokenizer)
    else:
        train = (text for split, text in corpus.documents("Training the tokenizer", Tally()) if split == "train")
        tokenizer = train_tokenizer(train, data.tokenizer.vocabulary)
    (folder / _TOKENIZER_FILE).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    tokenizer = open_tokenizer(folder / _TOKENIZER_FILE)

    tally = Tally()
    written = write_tokens(corpus.documents("Tokenizing", tally), tokenizer, folder)
    special = SpecialTokens.of(tokenizer)
    train_counts, characters = written["train"]
    words = train_counts.copy()
    words[list(special.all)] = 0
    facts = Facts(
        vocabulary=data.tokenizer.vocabulary,
        dtype=token_dtype(data.tokenizer.vocabulary).name,
        tokens={split: int(of_split.sum()) for split, (of_split, _) in written.items()},
        documents=tally.documents,
        text_bytes=tally.text_bytes,
        empty_documents=tally.empty,
        duplicate_documents=tally.duplicates,
        repeated_paragraphs=tally.repeated_paragraphs,
        near_duplicate_documents=tally.near_duplicates,
        unigram_entropy_nats=entropy_nats(words),
        unknown_share=_unknown_share(train_counts, special),
        lost_share=characters.lost_share,
        tokenizer_sha256=sha256_of(folder / _TOKENIZER_FILE),
    )
    return facts.model_dump(mode="json")


def _unknown_share(counts: NDArray[np.int64], special: SpecialTokens) -> float:
    """The share of [UNK] among tokens that were counted, without the other special ones."""
    known = counts.sum() - counts[list(special.all)].sum()
    return float(counts[special.unk] / max(1, counts[special.unk] + known))


def _check_sizes(prepared: PreparedData, data: DataConfig) -> None:
    """Raise InputError where a split is too small; what the tokeniser lost of the text, which makes it small, comes first."""
    train, validation = len(prepared.split("train")), len(prepared.split("validation"))
    length, facts = prepared.sequence_length, prepared.facts
    paragraphs = f" and {plural(facts.repeated_paragraphs, 'repeated paragraph')}" if facts.repeated_paragraphs else ""
    left_out = f"{facts.empty_documents:,} empty and {facts.duplicate_documents:,} repeated ones{paragraphs} left out"
    holds = f"the corpus of {facts.documents:,} documents ({left_out}) and {sum(facts.tokens.values()):,} tokens holds"
    if train == 0:
        place, message = "data.sequence_length", f"{holds} no training sequence of {length}; give more text or a lower value"
    elif validation < prepared.validation_sequences:
        remedy = f"set it to at most {validation:,}" if validation else MORE_TEXT
        place = "data.validation_sequences"
        message = f"{prepared.validation_sequences:,} are asked for, but {holds} {validation:,} of length {length}; {remedy}"
    else:
        return
    lost = data.tokenizer.unread(facts.lost_share, of="characters")
    raise InputError([*([Problem("data.tokenizer", lost)] if lost else []), Problem(place, message)])


def _check_read(prepared: PreparedData, data: DataConfig) -> None:
    """Raise InputError where the text is next to nothing but [UNK], of which nothing can be learned."""
    if prepared.unigram_entropy_nats == 0:
        name = data.tokenizer.path or "the tokeniser trained on it"
        nothing = f"{name} cannot read {data.corpus}: but for [UNK] its train split holds one kind of piece at most"
        raise InputError.at("data.tokenizer", f"{nothing}; {data.tokenizer.remedy}")
