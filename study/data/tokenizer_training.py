"""Tokenisers trained on a corpus: WordPiece, BPE, byte-level BPE and unigram, with equal bytes from equal texts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer

from study.base.errors import InputError
from study.config.run_config import FEWEST_PIECES, TokenizerConfig
from study.data.corpora import MORE_TEXT
from study.data.tokenizing import CONTINUING, SPECIAL_PIECES, as_bert_reads, first_characters, wrapped

_VOCABULARY = "data.tokenizer.vocabulary"
_UNKNOWN = "[UNK]"
_ALPHABET_SHARE = 1 / 8
_LARGEST_ALPHABET = 1000
_LEAST_WORD_COUNT = 2
_SCORE_DIGITS = 6

TRAINING_CHARACTERS = 32_000_000
"""The characters at a corpus's beginning that a tokeniser is trained on."""


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """Train a tokeniser of exactly `config.vocabulary` pieces on the first 32 million characters.

    Raises InputError if the texts are empty or yield too few pieces.
    """
    sample = list(first_characters(texts, TRAINING_CHARACTERS))
    if not any(sample):
        raise InputError.at("data.corpus", f"its train split holds no text to learn a vocabulary from; {MORE_TEXT}")
    match config.kind:
        case "byte_bpe":
            model = _of_bytes(sample, config)
        case "unigram":
            model = _unigram(sample, config)
        case _:
            model = _of_characters(sample, config)
    if (count := len(model["vocab"])) > config.vocabulary:
        raise _too_few(config, count)
    if count < config.vocabulary:
        remedy = f"lower it, {MORE_TEXT}" if count >= FEWEST_PIECES else MORE_TEXT
        yielded = f"this corpus yields only {count:,}; {remedy}"
        raise InputError.at(_VOCABULARY, f"{config.vocabulary:,} pieces are requested, but {yielded}")
    return wrapped(untrained(config, model))


def _too_few(config: TokenizerConfig, needed: int) -> InputError:
    needs = f"this corpus needs {needed:,}, for all its characters; raise it, or use kind: byte_bpe"
    return InputError.at(_VOCABULARY, f"{config.vocabulary:,} pieces are requested, but {needs}")


def untrained(config: TokenizerConfig, model: Mapping[str, Any] | None = None) -> Tokenizer:
    """Return the tokeniser of a kind, by default without pieces."""
    pieces: Any = {} if model is None else model["vocab"]
    merges = [] if model is None else [tuple(pair) for pair in model.get("merges", ())]
    match config.kind:
        case "byte_bpe":
            tokenizer = Tokenizer(BPE(pieces, merges))
            tokenizer.normalizer = _small_and_plain(config)
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
            tokenizer.decoder = decoders.ByteLevel()
        case "unigram":
            scored = [(piece, score) for piece, score in pieces]
            tokenizer = Tokenizer(Unigram(scored, SPECIAL_PIECES.index(_UNKNOWN)) if scored else Unigram())
            spaces = normalizers.Replace(Regex(r"\s+"), " ")
            tokenizer.normalizer = normalizers.Sequence([spaces, _small_and_plain(config)])
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
            tokenizer.decoder = decoders.Metaspace()
        case kind:
            if kind == "bpe":
                tokenizer = Tokenizer(BPE(pieces, merges, unk_token=_UNKNOWN, continuing_subword_prefix=CONTINUING))
            else:
                tokenizer = Tokenizer(WordPiece(pieces, unk_token=_UNKNOWN, max_input_chars_per_word=100))
            as_bert_reads(tokenizer, config.lowercases(), config.strip_accents)
    return tokenizer


def _small_and_plain(config: TokenizerConfig) -> normalizers.Sequence:
    """BERT's dropping of accents and capitals alone: composed characters stay composed, and white space stays."""
    plain = [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()] if config.strips_accents() else []
    return normalizers.Sequence([*plain, *([normalizers.Lowercase()] if config.lowercases() else [])])


def _trained(config: TokenizerConfig, sample: list[str], trainer: Any) -> dict[str, Any]:
    learning = untrained(config)
    learning.train_from_iterator(sample, trainer)
    model: dict[str, Any] = json.loads(learning.to_str())["model"]
    return model


def _of_characters(sample: list[str], config: TokenizerConfig) -> dict[str, Any]:
    """WordPiece or BPE over an alphabet of the most frequent characters, at most 1,000 and an eighth of the vocabulary.

    Pieces must occur twice. If that gives too few, as in Chinese, whose characters never merge, further characters fill the
    vocabulary. The trainer numbers characters in hash-map order and breaks ties by number; here they are numbered beforehand,
    so equal texts give equal bytes.
    """
    characters = _characters(sample, config)
    count = min(_LARGEST_ALPHABET, int(config.vocabulary * _ALPHABET_SHARE))
    model = _merging(sample, config, characters[:count])
    if (lacking := config.vocabulary - len(model["vocab"])) > 0 and len(characters) > count:
        model = _merging(sample, config, characters[:count] + _filling(characters[count:], lacking, config))
    return model


def _merging(sample: list[str], config: TokenizerConfig, characters: list[str]) -> dict[str, Any]:
    alphabet = sorted(characters)
    continuing = (piece for character in alphabet for piece in _pieces_of(character, config)[1:])
    options: dict[str, Any] = {
        "vocab_size": config.vocabulary,
        "min_frequency": _LEAST_WORD_COUNT,
        "initial_alphabet": alphabet,
        "limit_alphabet": len(alphabet),
        "special_tokens": [*SPECIAL_PIECES, *alphabet, *continuing],
        "show_progress": False,
    }
    if config.kind == "bpe":
        return _trained(config, sample, BpeTrainer(continuing_subword_prefix=CONTINUING, **options))
    return _trained(config, sample, WordPieceTrainer(**options))


def _of_bytes(sample: list[str], config: TokenizerConfig) -> dict[str, Any]:
    """BPE over all 256 bytes, numbered beforehand as characters are."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(
        vocab_size=config.vocabulary,
        min_frequency=_LEAST_WORD_COUNT,
        initial_alphabet=alphabet,
        special_tokens=[*SPECIAL_PIECES, *alphabet],
        show_progress=False,
    )
    return _trained(config, sample, trainer)


def _unigram(sample: list[str], config: TokenizerConfig) -> dict[str, Any]:
    """Return the special pieces, every character, and the likeliest longer pieces, with their log probabilities.

    The trainer may fall short of the requested size, so more are requested. It adds up probabilities in varying order, so they
    are rounded. Raises InputError where the characters alone are too many.
    """
    if (needed := len(SPECIAL_PIECES) + len(_characters(sample, config))) > config.vocabulary:
        raise _too_few(config, needed)
    trainer = UnigramTrainer(
        vocab_size=config.vocabulary * 9 // 8 + len(SPECIAL_PIECES),
        special_tokens=[*SPECIAL_PIECES],
        unk_token=_UNKNOWN,
        show_progress=False,
    )
    model = _trained(config, sample, trainer)
    special = len(SPECIAL_PIECES)
    learnt = sorted(((piece, round(score, _SCORE_DIGITS)) for piece, score in model["vocab"][special:]), key=_likeliest_first)
    characters = [pair for pair in learnt if len(pair[0]) == 1]
    longer = [pair for pair in learnt if len(pair[0]) > 1]
    kept = characters + longer[: max(0, config.vocabulary - special - len(characters))]
    return {"vocab": [*model["vocab"][:special], *sorted(kept, key=_likeliest_first)]}


def _likeliest_first(scored: tuple[str, float]) -> tuple[float, str]:
    piece, score = scored
    return -score, piece


def _characters(texts: list[str], config: TokenizerConfig) -> list[str]:
    """Return the normalised characters by falling frequency."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    normalizer = untrained(config).normalizer
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for normal in normalizer.normalize_str(character).strip():
            counts[normal] += count
    return sorted(counts, key=lambda character: (-counts[character], character))


def _filling(characters: list[str], lacking: int, config: TokenizerConfig) -> list[str]:
    """Choose leading characters whose pieces fill `lacking` exactly, skipping any with too many."""
    chosen = []
    for character in characters:
        if (count := len(_pieces_of(character, config))) <= lacking:
            chosen.append(character)
            lacking -= count
        if not lacking:
            break
    return chosen


def _pieces_of(character: str, config: TokenizerConfig) -> list[str]:
    """Return a character's pieces: itself and, unless it is always its own word (punctuation, CJK), its ## form."""
    blank = untrained(config)
    words = blank.pre_tokenizer.pre_tokenize_str(blank.normalizer.normalize_str(f"a{character}"))
    return [character, *([f"{CONTINUING}{character}"] if len(words) == 1 else [])]
