"""Tokenisers from files: BERT's WordPiece from a vocab.txt, or any tokenizer.json; and what all of them share.

Whatever a file calls its special pieces, here they have BERT's names.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer, Normalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing

from study.base.durable_files import is_there, json_value
from study.base.errors import InputError, shown
from study.base.quantities import plural
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
_SPACE_MARKS = ("Ġ", "Ċ", "ĉ", "▁")
"""What begins the pieces that stand after white space: bytes of it, as ByteLevel writes them, or Metaspace's mark."""

CONTINUING = "##"
"""The prefix of the pieces that continue a word."""

MOST_PADDING = 128
"""A vocabulary is padded to a multiple of 8, 64, 100 or 128 rows, for the speed of products: by fewer rows than this."""

_ACCENTED_SCRIPTS = ("LATIN", "GREEK", "CYRILLIC", "COMBINING")
"""How the names of characters begin whose marks are accents; in other scripts marks are vowels or make other letters."""

SETTINGS, SPECIAL_MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
"""The files that transformers writes beside a tokeniser."""

_DECODER = "added_tokens_decoder"
"""The key of the added pieces in a tokenizer_config.json, by their ids."""

CASED_SHARE = 0.01
"""The share of pieces with capitals from which a vocabulary is cased; BERT's cased one has 40%, placeholders are a few."""

_READ_AS_THEY_ARE = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""The classes of transformers that read by a tokenizer.json alone, whatever the settings say."""

_READS = {
    "do_lower_case": ("lowercases text", "keeps capitals"),
    "strip_accents": ("drops accents", "keeps accents"),
    "tokenize_chinese_chars": ("splits Chinese characters", "leaves Chinese characters together"),
}
"""What a BERT tokeniser does where each of its settings is true, and where it is false."""

_REMEDY = "save its tokeniser as a tokenizer.json"
_REMEDIES = {
    setting: f"{_REMEDY}, or say {_PLACE}.{knob} in the sweep"
    for setting, knob in (("do_lower_case", "lowercase"), ("strip_accents", "strip_accents"))
}
"""The remedies for a vocab.txt with unlike settings."""

_OTHER_NAMES = {
    "[PAD]": ("pad_token", "<pad>"),
    "[UNK]": ("unk_token", "<unk>"),
    "[CLS]": ("cls_token", "<s>", "<cls>"),
    "[SEP]": ("sep_token", "</s>", "<eos>"),
    "[MASK]": ("mask_token", "<mask>"),
}
"""The key of each special piece in a tokeniser's settings, and its other usual names."""


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

    def check_dropped(self, piece: int | None, place: str) -> None:
        """Raise InputError where an encoder leaves out another piece than the mask."""
        if piece not in (None, self.mask):
            message = f"{piece} is not the id of the tokeniser's mask piece; give {self.mask}, or leave it out"
            raise InputError.at(place, message)

    @property
    def all(self) -> tuple[int, ...]:
        """The five ids."""
        return astuple(self)


def first_characters(texts: Iterable[str], limit: int) -> Iterator[str]:
    """Yield texts until `limit` characters are reached."""
    size = 0
    for text in texts:
        yield text
        size += len(text)
        if size >= limit:
            return


def continuing_pieces(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the pieces that continue a word: ## in WordPiece; elsewhere those without a mark of white space.

    Raises InputError if the tokeniser marks neither.
    """
    special, pieces = SpecialTokens.of(tokenizer).all, tokenizer.get_vocab()
    if prefix := getattr(tokenizer.model, "continuing_subword_prefix", None):
        return sorted(number for piece, number in pieces.items() if piece.startswith(prefix) and piece != prefix)
    if not any(piece.startswith(_SPACE_MARKS) for piece in pieces):
        remedy = "leave it out, or give another tokeniser"
        kind = type(tokenizer.model).__name__
        raise InputError.at(
            "recipe.masking.whole_words", f"needs pieces that say where words begin, and this {kind} has none; {remedy}"
        )
    return sorted(number for piece, number in pieces.items() if not piece.startswith(_SPACE_MARKS) and number not in special)


def sentence_ends(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the pieces that end a sentence, such as a full stop."""
    texts = tokenizer.decode_batch([[piece] for piece in range(tokenizer.get_vocab_size())], skip_special_tokens=False)
    return [piece for piece, text in enumerate(texts) if text.rstrip().endswith(_SENTENCE_MARKS)]


def special_tokens(config: TokenizerConfig) -> SpecialTokens:
    """Return the special tokens of a tokeniser, also of one that is not trained yet; raises InputError."""
    return SpecialTokens.of(load_tokenizer(config)) if config.kind == "file" else SpecialTokens(*range(len(SPECIAL_PIECES)))


def load_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Load `config.path`: BERT's WordPiece from a `vocab.txt`, or any `tokenizer.json`.

    A `vocab.txt` with capitals is cased and keeps accents, as BERT's; any other is uncased, unless the configuration says
    (`lowercases`). Rows of `config.vocabulary` beyond the pieces are padding.

    Raises InputError if the file is unreadable, lacks a special piece, or does not fit the configuration or the settings beside
    it.
    """
    path = tokenizer_file(config)
    tokenizer = read_tokenizer(path, config)
    ids = tokenizer.get_vocab().values()
    padding = config.vocabulary - len(ids)
    if not 0 <= padding < min(MOST_PADDING, 1 + len(ids) // 8) or max(ids) >= config.vocabulary:
        holds = f"{str(path)!r} holds {len(ids):,} pieces with ids up to {max(ids):,}"
        rows = max(ids) + 1
        remedy = f"set it to {rows}" if rows >= FEWEST_PIECES else f"a tokeniser has at least {FEWEST_PIECES} pieces"
        raise InputError.at(f"{_PLACE}.vocabulary", f"is {config.vocabulary:,}, but {holds}; {remedy}")
    return tokenizer


def read_tokenizer(path: Path, config: TokenizerConfig | None = None) -> Tokenizer:
    """Return the tokeniser in a file of any size; raises InputError."""
    if path.suffix.lower() != ".json":
        tokenizer = _from_pieces(path, config)
    else:
        try:
            tokenizer = Tokenizer.from_buffer(named_as_berts(path))
        except InputError:  # of the file that it names
            raise
        except Exception as error:  # the library raises nothing narrower
            raise InputError.at(f"{_PLACE}.path", f"{str(path)!r} is not a tokenizer.json: {error}") from error
    SpecialTokens.of(tokenizer)
    _require_unknown_token(tokenizer, path)
    _check_settings(tokenizer, path, config)
    return tokenizer


def named_as_berts(path: Path) -> bytes:
    """Return the content of a tokenizer.json with BERT's names of special pieces.

    So renamed, it adds and pads nothing itself.
    """
    content = path.read_bytes()
    if not (names := special_names(path)):
        return content
    return json.dumps(_renamed(json.loads(content), names), ensure_ascii=False).encode()


def special_names(path: Path) -> dict[str, str]:
    """Return BERT's names of a tokenizer.json's special pieces, by their other names.

    Settings beside the file decide, then usual names.
    """
    try:
        values = json_value(path.read_bytes())
    except ValueError:  # which `read_tokenizer` refuses
        return {}
    if not isinstance(values, dict):
        return {}
    named: dict[str, str | None] = {}
    for file in (path.parent / SPECIAL_MAP, path.parent / SETTINGS):
        settings = json_object(file) if is_there(file) else {}
        keys = [key for key, *_ in _OTHER_NAMES.values() if key in settings]
        named |= {key: None if settings[key] is None else _piece(settings[key], file, key) for key in keys}
    added = {_piece(each, path, f"added_tokens.{place}") for place, each in enumerate(_added(values))}
    there = added.union(_vocabulary(values))
    renamed = {}
    for piece, (key, *usual) in _OTHER_NAMES.items():
        other = next((name for name in (named.get(key), *usual) if name in there), None)
        if piece not in there and other is not None:
            renamed[other] = piece
    return renamed


def _piece(value: object, file: Path, key: str) -> str:
    """Return the piece under a key of a JSON file, which may stand in an object as its `content`; raises InputError."""
    place, piece = (f"{key}.content", value.get("content")) if isinstance(value, dict) else (key, value)
    if not isinstance(piece, str):
        needed = "where a piece is a string; save_pretrained the tokeniser anew"
        raise InputError.at(str(file), f"has {shown(piece)} under {place}, {needed}")
    return piece


def json_object(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raises InputError without one."""
    try:
        values = json_value(file.read_bytes())
    except FileNotFoundError:
        raise InputError.at(str(file), "does not exist; save_pretrained writes it") from None
    except ValueError as error:
        raise InputError.at(str(file), f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError.at(str(file), "is not a JSON object")
    return values


def _vocabulary(values: Mapping[str, Any]) -> list[str]:
    """Return the pieces in a tokenizer.json: a dictionary's keys, or the first of each pair."""
    model = values.get("model")
    pieces = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(pieces, dict):
        return list(pieces)
    firsts = [pair[0] for pair in pieces if isinstance(pair, list) and pair] if isinstance(pieces, list) else []
    return [piece for piece in firsts if isinstance(piece, str)]  # the library refuses others


def _added(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    added = values.get("added_tokens")
    return [each for each in added if isinstance(each, dict)] if isinstance(added, list) else []


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a tokenizer.json with other names for some pieces."""

    def name(piece: Any) -> Any:
        return names.get(piece, piece) if isinstance(piece, str) else piece  # which the library refuses

    model = dict(values["model"]) if isinstance(values.get("model"), dict) else {}
    if isinstance(pieces := model.get("vocab"), dict):
        model["vocab"] = {name(piece): number for piece, number in pieces.items()}
    elif isinstance(pieces, list):
        model["vocab"] = [[name(piece), *rest] for piece, *rest in pieces]
    if "unk_token" in model:
        model["unk_token"] = name(model["unk_token"])
    added = [each | {"content": name(each.get("content"))} for each in _added(values)]
    return dict(values) | {"model": model, "added_tokens": added, "post_processor": None, "padding": None, "truncation": None}


def _require_unknown_token(tokenizer: Tokenizer, path: Path) -> None:
    """Raise InputError if a tokeniser fails on unknown characters."""
    try:
        tokenizer.encode_batch_fast(_RARE, add_special_tokens=False)
    except Exception as error:  # the library raises nothing narrower
        remedy = "set its unk_id or unk_token to [UNK]"
        raise InputError.at(f"{_PLACE}.path", f"{str(path)!r} cannot encode unknown characters: {error}; {remedy}") from None


def tokenizer_file(config: TokenizerConfig) -> Path:
    """Return the tokeniser file's path; raises InputError."""
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


def lowercases(vocabulary: Path, config: TokenizerConfig | None = None) -> bool:
    """Whether text is made lower-case for a vocab.txt: as the configuration says, else by the pieces.

    Where few pieces have capitals, as in a cased Chinese vocabulary, the settings beside the file decide; raises InputError if
    there are none.
    """
    if config is not None and config.lowercase is not None:
        return config.lowercase
    words, capitals = _words_and_capitals(vocabulary.read_text(encoding="utf-8-sig", errors="replace").split())
    if not capitals or len(capitals) >= CASED_SHARE * len(words):
        return not capitals
    settings = vocabulary.parent / SETTINGS
    lowers = json_object(settings).get("do_lower_case") if is_there(settings) else None
    if not isinstance(lowers, bool):
        few = f"{len(capitals):,} of the {len(words):,} pieces of {str(vocabulary)!r} have capitals, such as {capitals[0]!r}"
        remedy = "say whether it reads capitals (lowercase: false), or makes them small (lowercase: true)"
        raise InputError.at(f"{_PLACE}.lowercase", f"is missing, but {few}; {remedy}")
    return lowers


def _words_and_capitals(pieces: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the pieces unlike [CLS] and <url>, and those of them with capitals."""
    words = [piece for piece in pieces if piece and piece[0] + piece[-1] not in ("[]", "<>")]
    return words, [word for word in words if word != word.lower()]


def unused_capitals(tokenizer: Tokenizer) -> str | None:
    """Return a note if the vocabulary is cased, but text is made lower-case.

    Vocabularies of bytes, some of which are written as capitals, are not judged.
    """
    pieces = tokenizer.get_vocab(with_added_tokens=False)
    words, capitals = _words_and_capitals(pieces)
    if tokenizer.normalizer is None or "Ġ" in pieces or len(capitals) < max(1.0, CASED_SHARE * len(words)):
        return None
    if any(_words_and_capitals([tokenizer.normalizer.normalize_str(capital)])[1] for capital in capitals):
        return None
    unused = f"{len(capitals):,} of the tokeniser's {len(words):,} pieces have capitals, such as {shown(min(capitals))}"
    return f"{unused}, and it lowercases text, which leaves them unused; take the lowercasing out of its normalizer"


def bert_tokenizer(pieces: dict[str, int], lowercase: bool = True, strip_accents: bool | None = None) -> Tokenizer:
    """Build BERT's tokeniser with these pieces; it wraps texts in [CLS] and [SEP]."""
    tokenizer = Tokenizer(WordPiece(pieces, unk_token="[UNK]", max_input_chars_per_word=100))
    as_bert_reads(tokenizer, lowercase, strip_accents)
    return wrapped(tokenizer) if pieces else tokenizer


def as_bert_reads(tokenizer: Tokenizer, lowercase: bool, strip_accents: bool | None) -> None:
    """Split text into words as BERT does, at white space, punctuation and Chinese characters."""
    tokenizer.normalizer = BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = WordPieceDecoder()


def wrapped(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokeniser, which wraps texts in [CLS] and [SEP]."""
    special = SpecialTokens.of(tokenizer)
    tokenizer.post_processor = BertProcessing(("[SEP]", special.sep), ("[CLS]", special.cls))
    tokenizer.add_special_tokens(list(SPECIAL_PIECES))
    return tokenizer


@dataclass(frozen=True)
class Stripped:
    """The shares of a text's characters, without spaces, that lose a mark: of all, and of those for which it is no accent."""

    share: float
    vowel_share: float

    @classmethod
    def by(cls, normalizer: Normalizer | None, texts: Iterable[str]) -> Stripped:
        """Count the characters of texts whose marks a normaliser drops.

        Marks are the nonspacing ones of a character's canonical decomposition (Unicode, category Mn). In Latin, Greek and
        Cyrillic they are accents. In other scripts they are vowels, as in Hindi and Thai, or make another letter, as in
        Japanese.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        for space in [character for character in counts if character.isspace()]:
            del counts[space]
        lost = {c: count for c, count in counts.items() if normalizer is not None and _loses_mark(c, normalizer)}
        total = max(1, counts.total())
        vowels = sum(count for character, count in lost.items() if not _is_accented(character))
        return cls(sum(lost.values()) / total, vowels / total)


def _marks(text: str) -> int:
    return sum(unicodedata.category(character) == "Mn" for character in unicodedata.normalize("NFD", text))


def _loses_mark(character: str, normalizer: Normalizer) -> bool:
    return not character.isascii() and _marks(character) > _marks(normalizer.normalize_str(character))


def _is_accented(character: str) -> bool:
    """Whether a character's script has marks that are accents."""
    name = unicodedata.name(unicodedata.normalize("NFD", character)[0], "")
    return name.startswith(_ACCENTED_SCRIPTS) and "KATAKANA" not in name


def _from_pieces(path: Path, config: TokenizerConfig | None) -> Tokenizer:
    """Read a vocab.txt, one piece per line; Unicode line separators may be part of a piece."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
        lines = [line.removesuffix("\r") for line in lines]
    except UnicodeDecodeError as error:
        raise InputError.at(f"{_PLACE}.path", f"{str(path)!r} is not UTF-8 text (byte {error.start})") from error
    pieces = {line: number for number, line in enumerate(lines)}
    if len(pieces) != len(lines):
        twice = next(piece for piece, count in Counter(lines).items() if count > 1)
        raise InputError.at(f"{_PLACE}.path", f"{str(path)!r} holds the piece {twice!r} twice")
    _require_added(pieces, path)
    return bert_tokenizer(pieces, lowercases(path, config), None if config is None else config.strip_accents)


def _require_added(pieces: Mapping[str, int], path: Path) -> None:
    """Raise InputError if a file beside a vocab.txt adds pieces to it."""
    for name in (ADDED, SETTINGS):
        file = path.parent / name
        values = json_object(file) if is_there(file) else {}
        added = list(values) if name == ADDED else _decoded(values, file)
        if lacking := [piece for piece in added if piece not in pieces]:
            adds = f"adds {plural(len(lacking), 'piece')} that {path.name} lacks, such as {shown(lacking[0])}"
            raise InputError.at(str(file), f"{adds}; {_REMEDY}")


def _decoded(settings: Mapping[str, Any], file: Path) -> list[str]:
    """Return the pieces that a tokenizer_config.json adds; raises InputError."""
    decoder, key = settings.get(_DECODER), f"{_DECODER}."
    return [_piece(each, file, key + number) for number, each in decoder.items()] if isinstance(decoder, dict) else []


def _check_settings(tokenizer: Tokenizer, path: Path, config: TokenizerConfig | None) -> None:
    """Raise InputError if transformers reads a BERT tokeniser by other rules, those of the settings beside its file.

    What the configuration says was decided.
    """
    settings, reads, is_json = path.parent / SETTINGS, tokenizer.normalizer, path.suffix.lower() == ".json"
    if not isinstance(reads, BertNormalizer) or not is_there(settings):
        return
    values = json_object(settings)
    if is_json and values.get("tokenizer_class") in _READ_AS_THEY_ARE:
        return
    strips = reads.lowercase if reads.strip_accents is None else reads.strip_accents
    for setting, does, decided in (
        ("do_lower_case", reads.lowercase, config and config.lowercase),
        ("strip_accents", strips, config and config.strip_accents),
        ("tokenize_chinese_chars", reads.handle_chinese_chars, None),
    ):
        if decided is None and isinstance(value := values.get(setting), bool) and value is not does:
            sets, unlike = f"has {setting} {str(value).lower()}", f"{path.name} {_READS[setting][not does]}"
            remedy = "correct one of the two" if is_json else _REMEDIES.get(setting, _REMEDY)
            raise InputError.at(str(settings), f"{sets}, but {unlike}; {remedy}")
