"""Data ready for training: built once and cached by content."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from tokenizers import Tokenizer

from study.base.errors import InputError, Problem, check_all
from study.base.quantities import count_text, plural
from study.base.randomness import fixed_permutation
from study.base.schema import Strict
from study.config.run_config import MOST_STRIPPED, DataConfig, Texts, TokenizerConfig, fingerprint_of
from study.data.cache import cache_root, check_cache, facts_of, open_entry, sha256_of
from study.data.corpora import (
    MORE_DOCUMENTS,
    MORE_TEXT,
    Split,
    Tally,
    check_corpus,
    corpus_identity,
    is_local,
    read_corpus,
    split_documents,
)
from study.data.deduplication import DEDUPLICATION_VERSION, Repetitions, overlap_share, repetitions
from study.data.masked_words import Passage, passages_of
from study.data.token_files import (
    PackedSequences,
    count_characters,
    entropy_nats,
    open_stream,
    some_documents,
    token_dtype,
    token_file,
    write_tokens,
)
from study.data.tokenizer_training import TRAINING_CHARACTERS, train_tokenizer, untrained
from study.data.tokenizing import (
    SpecialTokens,
    Stripped,
    as_trained_on,
    first_characters,
    load_tokenizer,
    lowercases,
    open_tokenizer,
    special_names,
    tokenizer_file,
    unused_capitals,
)

PACKING_VERSION = 1
"""Raise it whenever a code change alters the tokens of a corpus."""

_TOKENIZER_FILE = "tokenizer.json"
_OVERLAP = "validation_overlap_share"
_LOOKED_AT_CHARACTERS = 200_000


class Facts(Strict):
    """Facts about a corpus and its tokens.

    Of the train split: `unigram_entropy_nats` excludes special tokens, `unknown_share` is the share of [UNK] among tokens other
    than the other special ones, `lost_share` the share of non-space characters that became [UNK] or no piece, and
    `stripped_share` that of those in its first 32 million that lose a mark, such as an accent; older entries lack the shares.
    `text_bytes` counts UTF-8 bytes of the kept documents. Empty and duplicate documents are dropped and counted. Deduplication
    also drops repeated paragraphs, and moves near-duplicates to another split.
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
    stripped_share: float | None = None
    tokenizer_sha256: str


@dataclass(frozen=True)
class PreparedData:
    """The token files of a corpus at one sequence length, with their facts.

    `validation_overlap_share`: see `overlap_share`. `passages` are of the validation split and the same for every tokeniser, by
    hash, as much text as the validation sequences hold at four bytes a token; none in data that is no text. With
    `most_train_tokens`, the train stream is some of its documents, the same for every run.
    """

    fingerprint: str
    folder: Path
    sequence_length: int
    validation_sequences: int
    special: SpecialTokens
    facts: Facts
    validation_overlap_share: float | None = None
    passages: tuple[Passage, ...] = ()
    most_train_tokens: int | None = None

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
        return self.facts.tokens["train"] if self.most_train_tokens is None else self.most_train_tokens

    @property
    def unique_tokens(self) -> float:
        """Train tokens as runs count them, including the [CLS] of each sequence."""
        return self.train_tokens * self.sequence_length / (self.sequence_length - 1)

    def with_unique_tokens(self, unique_tokens: float | None) -> Self:
        """Limit the train split to so many `unique_tokens`; None is all of it.

        Raises InputError if the split has fewer.
        """
        whole = replace(self, most_train_tokens=None)
        if unique_tokens is None:
            return whole
        most = int(unique_tokens * (self.sequence_length - 1) / self.sequence_length)
        if most > whole.train_tokens:
            has = f"is {count_text(unique_tokens)}, but the text has {count_text(whole.unique_tokens)} tokens to train on"
            raise InputError.at("recipe.unique_tokens", f"{has}; lower it, leave it out, {MORE_TEXT}")
        return replace(self, most_train_tokens=most)

    def fingerprint_at(self, sequence_length: int) -> str:
        """Return the fingerprint of the same tokens at another sequence length."""
        return _fingerprint(self.folder.name, sequence_length)

    def tokenizer(self) -> Tokenizer:
        """Open the tokeniser."""
        return open_tokenizer(self.folder / _TOKENIZER_FILE)

    def stream(self, name: Split) -> NDArray[np.unsignedinteger]:
        """Memory-map the tokens of a split, of which a limited train split is read."""
        if name == "train" and self.most_train_tokens is not None:
            return self._some_train_documents
        return open_stream(token_file(self.folder, name), self.vocabulary)

    @cached_property
    def _some_train_documents(self) -> NDArray[np.unsignedinteger]:
        assert self.most_train_tokens is not None
        stream = open_stream(token_file(self.folder, "train"), self.vocabulary)
        return some_documents(stream, self.special.sep, self.most_train_tokens)

    def split(self, name: Split) -> PackedSequences:
        """Open the sequences of a split."""
        return PackedSequences.of(self.stream(name), self.sequence_length, self.special.cls)

    def validation(self) -> NDArray[np.int64]:
        """Return the validation set, (validation_sequences, S): a prefix of a fixed permutation of its split.

        A smaller set is a prefix of a larger one.
        """
        return self.split("validation").take(self._validation_order)

    def validation_documents(self) -> NDArray[np.int64]:
        """Return the number of the document that holds most tokens of each validation sequence.

        Ties go to the first document.
        """
        return self.split("validation").documents(self._validation_order, self.special.sep)

    @property
    def _validation_order(self) -> NDArray[np.int64]:
        return validation_order(len(self.split("validation")), self.validation_sequences)


def validation_order(sequences: int, chosen: int) -> NDArray[np.int64]:
    """Return the first chosen indices of a fixed permutation of all."""
    return fixed_permutation(sequences)[:chosen]


class CorpusText:
    """The documents of a corpus with their splits, deduplicated if the configuration says `dedupe`."""

    def __init__(self, data: DataConfig, *, progress: bool = False) -> None:
        self.data, self.progress = data, progress

    def documents(self, title: str, tally: Tally) -> Iterator[tuple[Split, str]]:
        """Read the documents from the start, with a progress bar."""
        distinct = self._distinct(title, tally)
        return self._repetitions.without_repetitions(distinct, tally) if self.data.dedupe else distinct

    @cached_property
    def _repetitions(self) -> Repetitions:
        return repetitions(lambda: self._distinct("Looking for repetitions", Tally()))

    def _distinct(self, title: str, tally: Tally) -> Iterator[tuple[Split, str]]:
        documents = read_corpus(self.data, progress=self.progress)
        return split_documents(track(documents, title, console=Console(stderr=True), disable=not self.progress), tally)


def check_files(data: DataConfig) -> None:
    """Raise InputError with every corpus and tokeniser file that is missing or malformed at its start.

    It also raises if the cache cannot hold files.
    """
    checks: list[Callable[[], object]] = [check_cache, partial(check_corpus, data)]
    if data.tokenizer.kind == "file":
        checks.append(partial(tokenizer_file, data.tokenizer))
    check_all(*checks)
    if is_local(data.corpus) and not _decides_marks(data.tokenizer):
        _check_vowels(data.tokenizer, stripped_at_first(data))


def stripped_at_first(data: DataConfig) -> Stripped:
    """Return what the tokeniser strips of the beginning of a corpus."""
    texts = first_characters((document.text for document in read_corpus(data)), _LOOKED_AT_CHARACTERS)
    return Stripped.by(_untrained_or_loaded(data.tokenizer).normalizer, texts)


def _untrained_or_loaded(config: TokenizerConfig) -> Tokenizer:
    return load_tokenizer(config) if config.kind == "file" else untrained(config)


def _check_vowels(config: TokenizerConfig, stripped: Stripped) -> None:
    """Raise InputError if undecided marks that are no accents are lost."""
    if stripped.vowel_share > MOST_STRIPPED and not _decides_marks(config):
        lost = f"{stripped.vowel_share:.0%} of the text's characters lose a mark that is no accent, as vowels in Hindi and Thai"
        remedy = "set it to false to keep marks, or to true to train without them"
        raise InputError.at("data.tokenizer.strip_accents", f"follows lowercase, so that {lost}; {remedy}")


def _decides_marks(config: TokenizerConfig) -> bool:
    """Whether the configuration, or a tokenizer.json, decides on marks."""
    return config.strip_accents is not None or (config.path or "").lower().endswith(".json")


def data_fingerprint(data: DataConfig) -> str:
    """Return 16 hex digits over corpus, tokeniser and sequence length, independent of paths and validation size.

    Raises InputError if the corpus or tokeniser file is missing.
    """
    return _fingerprint(stream_fingerprint(data), data.sequence_length)


def fingerprints(texts: Iterable[DataConfig]) -> Texts:
    """Return the `data_fingerprint` of each tokeniser of one corpus."""
    return {data.tokenizer.variant: data_fingerprint(data) for data in texts}


def files_fingerprints(texts: Sequence[DataConfig]) -> Texts:
    """Return the current fingerprints of local files.

    None are known if the corpus is not local or cannot be read.
    """
    try:
        return fingerprints(texts) if is_local(texts[0].corpus) else {}
    except InputError:
        return {}


def prepare(data: DataConfig, *, progress: bool = False) -> PreparedData:
    """Return the data of a configuration, building the cache entry if needed; all sequence lengths share it.

    Raises InputError if corpus or tokeniser is unusable, or a split is too small.
    """
    stream = stream_fingerprint(data)
    folder = cache_root() / "tokens" / stream
    corpus = CorpusText(data, progress=progress)
    facts = Facts.parse(open_entry(folder, partial(_build, corpus)), place=str(folder))
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
        passages=passages_of(data, lambda: corpus.documents("Choosing passages", Tally())),
    )
    _check_read(prepared, data)
    _check_sizes(prepared, data)
    return prepared


def unread_at_first(data: DataConfig) -> str | None:
    """Return a note if the tokeniser file cannot read much of the corpus's beginning, or has capitals that it lowers.

    None, too, without a tokeniser file or a local corpus.
    """
    if data.tokenizer.kind != "file" or not is_local(data.corpus):
        return None
    tokenizer = as_trained_on(load_tokenizer(data.tokenizer))
    texts = list(first_characters((document.text for document in read_corpus(data)), _LOOKED_AT_CHARACTERS))
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    characters = count_characters(texts, encodings, SpecialTokens.of(tokenizer).unk)
    lost = data.tokenizer.unread(characters.lost_share)
    return f"At the beginning, {lost}" if lost else unused_capitals(tokenizer)


def known_overlap_share(data: DataConfig) -> float | None:
    """Return the validation overlap share, None if the corpus has not been prepared."""
    facts = facts_of(_overlap_entry(stream_fingerprint(data)))
    return None if facts is None else facts[_OVERLAP]


def stream_fingerprint(data: DataConfig) -> str:
    """Return the key of the token files, which is independent of sequence length."""
    dedupe = [DEDUPLICATION_VERSION] if data.dedupe else []
    return fingerprint_of([PACKING_VERSION, corpus_identity(data), _tokenizer_identity(data.tokenizer), *dedupe])


def _overlap_entry(stream: str) -> Path:
    """Return the overlap's own cache entry, since token files may be older."""
    return cache_root() / "overlaps" / stream


def _measured_overlap(folder: Path, facts: Facts, special: SpecialTokens) -> dict[str, Any]:
    validation, train = (open_stream(token_file(folder, split), facts.vocabulary) for split in ("validation", "train"))
    return {_OVERLAP: overlap_share(validation, train, facts.vocabulary, special.sep)}


def _fingerprint(stream: str, sequence_length: int) -> str:
    return fingerprint_of([stream, sequence_length])


def _tokenizer_identity(config: TokenizerConfig) -> dict[str, object]:
    identity: dict[str, object] = {"kind": config.kind, "vocabulary": config.vocabulary}
    lower = config.lowercases()
    if config.kind == "file":
        path = tokenizer_file(config)
        identity |= {"suffix": path.suffix.lower(), "sha256": sha256_of(path)}
        if path.suffix.lower() == ".txt":
            lower = lowercases(path, config)
        elif names := special_names(path):
            identity["special"] = names
    if not lower:
        identity["cased"] = True
    if config.strips_accents(lower) != lower:
        identity["strip_accents"] = config.strip_accents
    return identity


def _build(corpus: CorpusText, folder: Path) -> dict[str, Any]:
    data = corpus.data
    training = (text for split, text in corpus.documents("Training the tokenizer", Tally()) if split == "train")
    sample = list(first_characters(training, TRAINING_CHARACTERS))
    stripped = Stripped.by(_untrained_or_loaded(data.tokenizer).normalizer, sample)
    _check_vowels(data.tokenizer, stripped)
    tokenizer = load_tokenizer(data.tokenizer) if data.tokenizer.kind == "file" else train_tokenizer(sample, data.tokenizer)
    del sample
    (folder / _TOKENIZER_FILE).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    tokenizer = open_tokenizer(folder / _TOKENIZER_FILE)

    tally = Tally()
    written = write_tokens(corpus.documents("Tokenizing", tally), tokenizer, folder, data.tokenizer.vocabulary)
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
        stripped_share=stripped.share,
        tokenizer_sha256=sha256_of(folder / _TOKENIZER_FILE),
    )
    return facts.model_dump(mode="json")


def _unknown_share(counts: NDArray[np.int64], special: SpecialTokens) -> float:
    known = counts.sum() - counts[list(special.all)].sum()
    return float(counts[special.unk] / max(1, counts[special.unk] + known))


def _check_sizes(prepared: PreparedData, data: DataConfig) -> None:
    """Raise InputError if a split is too small."""
    train, validation = len(prepared.split("train")), len(prepared.split("validation"))
    length, facts = prepared.sequence_length, prepared.facts
    paragraphs = f" and {plural(facts.repeated_paragraphs, 'repeated paragraph')}" if facts.repeated_paragraphs else ""
    dropped = f"{facts.empty_documents:,} empty and {facts.duplicate_documents:,} repeated ones{paragraphs} left out"
    holds = f"the corpus of {facts.documents:,} documents ({dropped}) and {sum(facts.tokens.values()):,} tokens holds"
    if train == 0:
        place, message = "data.sequence_length", f"{holds} no training sequence of {length}; lower it, {MORE_TEXT}"
    elif validation < prepared.validation_sequences:
        remedy = f"set it to at most {validation:,}" if validation else MORE_DOCUMENTS
        place = "data.validation_sequences"
        message = f"{prepared.validation_sequences:,} are requested, but {holds} {validation:,} of length {length}; {remedy}"
    else:
        return
    lost = data.tokenizer.unread(facts.lost_share)
    raise InputError([*([Problem("data.tokenizer", lost)] if lost else []), Problem(place, message)])


def _check_read(prepared: PreparedData, data: DataConfig) -> None:
    if prepared.unigram_entropy_nats == 0:
        name = data.tokenizer.path or "the tokeniser trained on it"
        nothing = f"{name} cannot read {data.corpus}: besides [UNK], its train split holds at most one distinct piece"
        raise InputError.at("data.tokenizer", f"{nothing}; {data.tokenizer.remedy}")
