"""BERT's WordPiece: trained uncased and reproducibly on a corpus, or loaded from a file, cased or uncased."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing
from tokenizers.trainers import WordPieceTrainer

from study.base.errors import InputError
from study.base.text import path_from
from study.config.run_config import FEWEST_PIECES, TokenizerConfig

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""The pieces that stand for no text; ids 0 to 4 in vocabularies trained here."""

BATCH_CHARACTERS = 2_000_000
"""Characters encoded at a time: enough for all cores, about 100 MB."""

_PLACE = "data.tokenizer"
_RARE = ["\U0001fae8", "\u0f00\u16a0\ua4d0", "\ue000", "\U0010ffff"]
"""A new emoji, three old scripts and private-use characters, which few tokenisers know."""

_SENTENCE_MARKS = (".", "!", "?", "…", "。", "！", "？", "।", "؟")
_TRAINING_CHARACTERS = 32_000_000
_ALPHABET_SHARE = 1 / 8
_LARGEST_ALPHABET = 1000
_LEAST_WORD_COUNT = 2


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of the special pieces."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> SpecialTokens:
        """Return a tokeniser's special tokens; raises InputError if one is missing."""
        return cls.among(tokenizer.get_vocab())

    @classmethod
    def among(cls, pieces: Mapping[str, int]) -> SpecialTokens:
        """Return the special tokens of a vocabulary; raises InputError if one is missing."""
        missing = [piece for piece in SPECIAL_PIECES if piece not in pieces]
        if missing:
            raise InputError.at(f"{_PLACE}.path", f"the vocabulary lacks {', '.join(missing)}, which masked training needs")
        return cls(*(pieces[piece] for piece in SPECIAL_PIECES))

    @property
    def all(self) -> tuple[int, ...]:
        """The five ids."""
        return astuple(self)


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a WordPiece tokeniser of exactly `vocabulary` pieces on the first 32 million characters.

    The alphabet is the most frequent characters, at most 1,000 and an eighth of the vocabulary; pieces must occur twice. If
    that gives too few pieces, as in Chinese, whose characters never merge, further characters fill the vocabulary. The trainer
    numbers characters in hash-map order and breaks ties by number, so its vocabularies vary; here all characters are numbered
    beforehand, and equal texts give equal bytes.

    Raises InputError if the texts are empty or yield too few pieces.
    """
    sample = list(first_characters(texts, _TRAINING_CHARACTERS))
    if not any(sample):
        raise InputError.at("data.corpus", "its train split holds no text to learn a vocabulary from; give more text")
    characters = _characters(sample)
    count = min(_LARGEST_ALPHABET, int(vocabulary * _ALPHABET_SHARE))
    pieces = _learnt(sample, vocabulary, characters[:count])
    if len(pieces) < vocabulary and len(characters) > count:
        further = _filling(characters[count:], vocabulary - len(pieces))
        pieces = _learnt(sample, vocabulary, characters[:count] + further)
    if len(pieces) != vocabulary:
        remedy = "lower it, or give more text" if len(pieces) >= FEWEST_PIECES else "give more text"
        yielded = f"this corpus yields only {len(pieces):,}; {remedy}"
        raise InputError.at(f"{_PLACE}.vocabulary", f"{vocabulary:,} pieces are requested, but {yielded}")
    return bert_tokenizer(pieces)


def _learnt(sample: list[str], vocabulary: int, characters: list[str]) -> dict[str, int]:
    alphabet = sorted(characters)
    continuing = (piece for character in alphabet for piece in _pieces_of(character)[1:])
    trainer = WordPieceTrainer(
        vocab_size=vocabulary,
        min_frequency=_LEAST_WORD_COUNT,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=[*SPECIAL_PIECES, *alphabet, *continuing],
        show_progress=False,
    )
    learning = bert_tokenizer({})
    learning.train_from_iterator(sample, trainer)
    pieces: dict[str, int] = learning.get_vocab()
    return pieces


def first_characters(texts: Iterable[str], limit: int) -> Iterator[str]:
    """Yield texts until `limit` characters are reached."""
    size = 0
    for text in texts:
        yield text
        size += len(text)
        if size >= limit:
            return


def continuing_pieces(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the pieces that continue a word (## in WordPiece).

    Raises InputError if the tokeniser is not WordPiece.
    """
    model = tokenizer.model
    if not isinstance(model, WordPiece):
        remedy = "leave it out, or give a WordPiece vocabulary"
        raise InputError.at(
            "recipe.masking.whole_words", f"needs word pieces, and the tokeniser is a {type(model).__name__}; {remedy}"
        )
    prefix = model.continuing_subword_prefix
    return sorted(number for piece, number in tokenizer.get_vocab().items() if piece.startswith(prefix) and piece != prefix)


def sentence_ends(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the pieces that end with a mark that ends a sentence, such as a full stop."""
    texts = tokenizer.decode_batch([[piece] for piece in range(tokenizer.get_vocab_size())], skip_special_tokens=False)
    return [piece for piece, text in enumerate(texts) if text.rstrip().endswith(_SENTENCE_MARKS)]


def load_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Load `config.path`: BERT's WordPiece from a `vocab.txt`, or any `tokenizer.json`.

    A `vocab.txt` with capitals is cased and keeps accents, as BERT's; any other is uncased.

    Raises InputError if the file is unreadable, lacks a special piece, or does not hold `config.vocabulary` pieces.
    """
    path = tokenizer_file(config)
    tokenizer = read_tokenizer(path)
    ids = tokenizer.get_vocab().values()
    if len(ids) != config.vocabulary or max(ids) >= config.vocabulary:
        holds = f"{str(path)!r} holds {len(ids):,} pieces with ids up to {max(ids):,}"
        raise InputError.at(f"{_PLACE}.vocabulary", f"is {config.vocabulary:,}, but {holds}; the two must agree")
    return tokenizer


def read_tokenizer(path: Path) -> Tokenizer:
    """The tokeniser in a file, whatever its size; raises InputError as `load_tokenizer` does."""
    tokenizer = _from_json(path) if path.suffix.lower() == ".json" else _from_pieces(path)
    SpecialTokens.of(tokenizer)
    _require_unknown_token(tokenizer, path)
    return tokenizer


def _require_unknown_token(tokenizer: Tokenizer, path: Path) -> None:
    """Raise InputError if a tokeniser fails on unknown characters for lack of an unknown token."""
    try:
        tokenizer.encode_batch_fast(_RARE, add_special_tokens=False)
    except Exception as error:  # the library raises nothing narrower
        remedy = "set its unk_id or unk_token to [UNK]"
        raise InputError.at(f"{_PLACE}.path", f"{str(path)!r} cannot encode unknown characters: {error}; {remedy}") from None


def tokenizer_file(config: TokenizerConfig) -> Path:
    """Return the tokeniser file's path; raises InputError if it is missing or its suffix unknown."""
    path = path_from(config.path or "", f"{_PLACE}.path")
    if not path.is_file():
        remedy = f"give a vocab.txt or a tokenizer.json (looked at {path.absolute()})"
        raise InputError.at(f"{_PLACE}.path", f"{config.path!r} is not a file; {remedy}")
    if path.suffix.lower() not in (".txt", ".json"):
        raise InputError.at(f"{_PLACE}.path", f"{config.path!r} is neither a .txt of pieces nor a tokenizer.json")
    return path


def open_tokenizer(path: Path) -> Tokenizer:
    """Open a `tokenizer.json` for training."""
    return as_trained_on(Tokenizer.from_file(str(path)))


def as_trained_on(tokenizer: Tokenizer) -> Tokenizer:
    """Set a tokeniser up for training: no truncation or padding; `[SEP]` in a text is plain text."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def is_cased(vocabulary: Path) -> bool:
    """Whether a vocab.txt has capitals outside special pieces such as [CLS]."""
    pieces = vocabulary.read_text(encoding="utf-8", errors="replace").split()
    return any(piece != piece.lower() for piece in pieces if not (piece.startswith("[") and piece.endswith("]")))


def bert_tokenizer(pieces: dict[str, int], cased: bool = False) -> Tokenizer:
    """Build BERT's tokeniser with these pieces; it wraps texts in [CLS] and [SEP]."""
    tokenizer = Tokenizer(WordPiece(pieces, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = WordPieceDecoder()
    if pieces:
        special = SpecialTokens.among(pieces)
        tokenizer.post_processor = BertProcessing(("[SEP]", special.sep), ("[CLS]", special.cls))
        tokenizer.add_special_tokens(list(SPECIAL_PIECES))
    return tokenizer


def _characters(texts: list[str]) -> list[str]:
    """Return BERT-normalised characters by descending frequency, then code point."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    normalizer = BertNormalizer(lowercase=True)
    counts: Counter[str] = Counter()
    for character, count in raw.items():
        for normal in normalizer.normalize_str(character).strip():
            counts[normal] += count
    return sorted(counts, key=lambda character: (-counts[character], character))


def _filling(characters: list[str], lacking: int) -> list[str]:
    """Choose leading characters whose pieces fill `lacking` exactly, skipping any with too many."""
    chosen = []
    for character in characters:
        if (count := len(_pieces_of(character))) <= lacking:
            chosen.append(character)
            lacking -= count
        if not lacking:
            break
    return chosen


def _pieces_of(character: str) -> list[str]:
    """Return a character's pieces: itself and, unless it is always its own word (punctuation, CJK), its ## form."""
    word = BertNormalizer(lowercase=True).normalize_str(f"a{character}")
    return [character, *([f"##{character}"] if len(BertPreTokenizer().pre_tokenize_str(word)) == 1 else [])]


def _from_json(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise InputError.at(f"{_PLACE}.path", f"{str(path)!r} is not a tokenizer.json: {error}") from error


def _from_pieces(path: Path) -> Tokenizer:
    """Read a vocab.txt, one piece per line; Unicode line separators may be part of a piece."""
    try:
        lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        lines = [line.removesuffix("\r") for line in lines]
    except UnicodeDecodeError as error:
        raise InputError.at(f"{_PLACE}.path", f"{str(path)!r} is not UTF-8 text (byte {error.start})") from error
    pieces = {line: number for number, line in enumerate(lines)}
    if len(pieces) != len(lines):
        twice = next(piece for piece, count in Counter(lines).items() if count > 1)
        raise InputError.at(f"{_PLACE}.path", f"{str(path)!r} holds the piece {twice!r} twice")
    return bert_tokenizer(pieces, cased=is_cased(path))
