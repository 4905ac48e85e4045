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
    load_tokenizer,
    named_as_berts,
    read_tokenizer,
)

TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", SETTINGS, SPECIAL_MAP)
"""The files that say how an encoder reads text."""

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
