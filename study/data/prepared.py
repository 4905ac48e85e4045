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
"""Raise it whenever a code change alters the tokens of a corpus."""

_TOKENIZER_FILE = "tokenizer.json"
_OVERLAP = "validation_overlap_share"
_VALIDATION_SEED = 0
_LOOKED_AT_CHARACTERS = 200_000


class Facts(Strict):
    """Facts about a corpus and its tokens.

    Of the train split: `unigram_entropy_nats` excludes special tokens, `unknown_share` is the share of [UNK] among tokens other
    than the other special ones, and `lost_share` the share of non-space characters that became [UNK]; older entries lack the
    shares. `text_bytes` counts UTF-8 bytes of the kept documents. Empty and duplicate documents are dropped and counted.
    Deduplication also drops repeated paragraphs, and moves near-duplicates to another split.
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
    """The token files of a corpus at one sequence length, with their facts.

    `validation_overlap_share`: see `overlap_share`.
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
        """The vocabulary size."""
        return self.facts.vocabulary

    @property
    def unigram_entropy_nats(self) -> float:
        """The loss of a unigram model."""
        return self.facts.unigram_entropy_nats

    @property
    def train_tokens(self) -> int:
        """Tokens in the train stream, including [SEP] but not [CLS]."""
        return self.facts.tokens["train"]

    @property
    def unique_tokens(self) -> float:
        """Train tokens as runs count them, including the [CLS] of each sequence."""
        return self.train_tokens * self.sequence_length / (self.sequence_length - 1)

    def fingerprint_at(self, sequence_length: int) -> str:
        """Return the fingerprint of the same tokens at another sequence length."""
        return _fingerprint(self.folder.name, sequence_length)

    def tokenizer(self) -> Tokenizer:
        """Open the tokeniser."""
        return open_tokenizer(self.folder / _TOKENIZER_FILE)

    def stream(self, name: Split) -> NDArray[np.unsignedinteger]:
        """Memory-map the tokens of a split; each document ends with [SEP]."""
        return open_stream(token_file(self.folder, name), self.vocabulary)

    def split(self, name: Split) -> PackedSequences:
        """Memory-map the sequences of a split."""
        return PackedSequences.open(token_file(self.folder, name), self.vocabulary, self.sequence_length, self.special.cls)

    def validation(self) -> NDArray[np.int64]:
        """Return the fixed validation set, (validation_sequences, S): a prefix of a fixed permutation of its split.

        A smaller set is a prefix of a larger one.
        """
        return self.split("validation").take(self._validation_order)

    def validation_documents(self) -> NDArray[np.int64]:
        """Return the document number, in split order, that holds most tokens of each validation sequence.

        Ties go to the first document.
        """
        return self.split("validation").documents(self._validation_order, self.special.sep)

    @property
    def _validation_order(self) -> NDArray[np.int64]:
        """The indices of the validation set's sequences in their split."""
        return validation_order(len(self.split("validation")), self.validation_sequences)


def validation_order(sequences: int, chosen: int) -> NDArray[np.int64]:
    """Return the first chosen indices of a fixed permutation of all."""
    generator = np.random.RandomState(_VALIDATION_SEED)  # the one stream that NumPy never changes
    return generator.permutation(sequences)[:chosen]


class CorpusText:
    """The documents of a corpus with their splits, deduplicated if the configuration says `dedupe`."""

    def __init__(self, data: DataConfig, *, progress: bool = False) -> None:
        self.data, self.progress = data, progress

    def documents(self, title: str, tally: Tally) -> Iterator[tuple[Split, str]]:
        """Read the documents from the start, with a progress bar on standard error."""
        distinct = self._distinct(title, tally)
        return self._repetitions.without_repetitions(distinct, tally) if self.data.dedupe else distinct

    @cached_property
    def _repetitions(self) -> Repetitions:
        return repetitions(lambda: self._distinct("Looking for repetitions", Tally()))

    def _distinct(self, title: str, tally: Tally) -> Iterator[tuple[Split, str]]:
        documents = read_corpus(self.data, progress=self.progress)
        return split_documents(track(documents, title, console=Console(stderr=True), disable=not self.progress), tally)


def check_files(data: DataConfig) -> None:
    """Raise InputError with every corpus and tokeniser file that is missing, malformed at its start or of unknown kind.

    It also raises if the cache cannot hold files.
    """
    checks: list[Callable[[], object]] = [check_cache, partial(check_corpus, data)]
    if data.tokenizer.kind == "file":
        checks.append(partial(tokenizer_file, data.tokenizer))
    check_all(*checks)


def data_fingerprint(data: DataConfig) -> str:
    """Return 16 hex digits over corpus, tokeniser and sequence length, independent of paths and validation size.

    Reads the corpus files but builds nothing. Raises InputError if the corpus or tokeniser file is missing.
    """
    return _fingerprint(stream_fingerprint(data), data.sequence_length)


def files_fingerprint(data: DataConfig) -> str | None:
    """Return the current `data_fingerprint` of local files.

    None if the corpus is not local, and so differs between machines, or cannot be read.
    """
    try:
        return data_fingerprint(data) if is_local(data.corpus) else None
    except InputError:
        return None


def prepare(data: DataConfig, *, progress: bool = False) -> PreparedData:
    """Return the data of a configuration, building the cache entry if needed; all sequence lengths share it.

    Raises InputError if corpus or tokeniser is unusable, or a split is too small.
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
    """Return a note if the tokeniser file cannot read much of the corpus's beginning, else None.

    Also None if the tokeniser is trained on the corpus, or the corpus is not local.
    """
    if data.tokenizer.kind != "file" or not is_local(data.corpus):
        return None
    tokenizer = as_trained_on(load_tokenizer(data.tokenizer))
    texts = list(first_characters((document.text for document in read_corpus(data)), _LOOKED_AT_CHARACTERS))
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    characters = count_characters(tokenizer, texts, encodings, SpecialTokens.of(tokenizer).unk)
    return data.tokenizer.unread(characters.lost_share, of="characters")


def known_overlap_share(data: DataConfig) -> float | None:
    """Return the validation overlap share, None if the corpus has not been prepared."""
    facts = facts_of(_overlap_entry(stream_fingerprint(data)))
    return None if facts is None else facts[_OVERLAP]


def stream_fingerprint(data: DataConfig) -> str:
    """Return the key of the token files, which is independent of sequence length."""
    dedupe = [DEDUPLICATION_VERSION] if data.dedupe else []
    return fingerprint_of([PACKING_VERSION, corpus_identity(data), _tokenizer_identity(data.tokenizer), *dedupe])


def _overlap_entry(stream: str) -> Path:
    """The overlap's cache entry; it is separate, since token files may be older."""
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
            identity["cased"] = True  # earlier versions lower-cased
    return identity


def _build(data: DataConfig, progress: bool, folder: Path) -> dict[str, Any]:
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
    """The share of [UNK] among [UNK] and ordinary tokens."""
    known = counts.sum() - counts[list(special.all)].sum()
    return float(counts[special.unk] / max(1, counts[special.unk] + known))


def _check_sizes(prepared: PreparedData, data: DataConfig) -> None:
    """Raise InputError if a split is too small, first naming the text lost by the tokeniser."""
    train, validation = len(prepared.split("train")), len(prepared.split("validation"))
    length, facts = prepared.sequence_length, prepared.facts
    paragraphs = f" and {plural(facts.repeated_paragraphs, 'repeated paragraph')}" if facts.repeated_paragraphs else ""
    dropped = f"{facts.empty_documents:,} empty and {facts.duplicate_documents:,} repeated ones{paragraphs} left out"
    holds = f"the corpus of {facts.documents:,} documents ({dropped}) and {sum(facts.tokens.values()):,} tokens holds"
    if train == 0:
        place, message = "data.sequence_length", f"{holds} no training sequence of {length}; give more text or a lower value"
    elif validation < prepared.validation_sequences:
        remedy = f"set it to at most {validation:,}" if validation else MORE_TEXT
        place = "data.validation_sequences"
        message = f"{prepared.validation_sequences:,} are requested, but {holds} {validation:,} of length {length}; {remedy}"
    else:
        return
    lost = data.tokenizer.unread(facts.lost_share, of="characters")
    raise InputError([*([Problem("data.tokenizer", lost)] if lost else []), Problem(place, message)])


def _check_read(prepared: PreparedData, data: DataConfig) -> None:
    """Raise InputError if the train split is almost only [UNK]."""
    if prepared.unigram_entropy_nats == 0:
        name = data.tokenizer.path or "the tokeniser trained on it"
        nothing = f"{name} cannot read {data.corpus}: besides [UNK], its train split holds at most one distinct piece"
        raise InputError.at("data.tokenizer", f"{nothing}; {data.tokenizer.remedy}")
