"""The tokeniser of an encoder trained elsewhere, as a tokenizer.json with BERT's special pieces."""

from __future__ import annotations

from pathlib import Path

from study.base.durable_files import is_there
from study.base.errors import InputError
from study.config.run_config import TokenizerConfig
from study.data.tokenizing import (
    MOST_PADDING,
    SETTINGS,
    SPECIAL_MAP,
    is_cased,
    json_object,
    load_tokenizer,
    named_as_berts,
    read_tokenizer,
)

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", SETTINGS, SPECIAL_MAP)
"""The files that say how an encoder reads text."""

_UNLIKE = {
    "strip_accents": "a vocab.txt that keeps accents",
    "tokenize_chinese_chars": "a vocab.txt that leaves Chinese characters together",
}
"""Values of transformers that, if false, change how it reads a vocab.txt."""

_LEAST_MULTIPLE = 4
"""A padded vocabulary is a multiple of this."""


def imported_tokenizer(folder: Path, kept: Path, vocabulary: int) -> tuple[bytes, int]:
    """The encoder's tokeniser as a tokenizer.json, with its number of pieces, at most the padded `vocabulary`.

    Raises InputError if the numbers differ by more than padding, or the sweep folder has another tokeniser.
    """
    given = next((file for name in ("tokenizer.json", "vocab.txt") if is_there(file := folder / name)), None)
    if given is None:
        raise InputError.at(
            str(folder), "has neither tokenizer.json nor vocab.txt; write one with its tokeniser's save_pretrained"
        )
    settings = folder / SETTINGS
    if given.suffix == ".txt" and is_there(settings):
        _refuse_unlike(settings, given)
    pieces = read_tokenizer(given).get_vocab_size()
    if vocabulary > pieces and (vocabulary % _LEAST_MULTIPLE or vocabulary - pieces >= MOST_PADDING):
        rows = f"holds {pieces:,} pieces, but the model has {vocabulary:,}, which is no usual padding"
        raise InputError.at(str(given), f"{rows}; save the tokeniser of this model beside it")
    pieces = min(pieces, vocabulary)
    tokenizer = load_tokenizer(TokenizerConfig(kind="file", path=str(given), vocabulary=pieces))
    content = named_as_berts(given) if given.suffix == ".json" else tokenizer.to_str(pretty=True).encode()
    if is_there(kept) and kept.read_bytes() != content:
        raise InputError.at(str(kept), f"differs from the tokeniser {given}; import into a separate folder")
    return content, pieces


def _refuse_unlike(settings: Path, vocabulary: Path) -> None:
    """Raise InputError if transformers reads a vocab.txt by other rules than load_tokenizer."""
    values = json_object(settings)
    problems = [f"describes {what}" for setting, what in _UNLIKE.items() if values.get(setting) is False]
    cased = is_cased(vocabulary)
    if values.get("do_lower_case") is cased:
        problems.append(f"has do_lower_case {str(cased).lower()}, and vocab.txt has {'' if cased else 'no '}capitals")
    if problems:
        raise InputError.at(str(settings), f"{problems[0]}; save its tokeniser as a tokenizer.json")
