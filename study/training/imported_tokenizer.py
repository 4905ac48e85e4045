"""The tokeniser of an encoder trained elsewhere, as a tokenizer.json with BERT's special pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from study.base.durable_files import is_there, json_value
from study.base.errors import InputError, Problem
from study.config.run_config import TokenizerConfig
from study.data.tokenizing import is_cased, load_tokenizer, read_tokenizer

_SETTINGS, _SPECIAL_MAP = "tokenizer_config.json", "special_tokens_map.json"
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", _SETTINGS, _SPECIAL_MAP)
"""The files that say how an encoder reads text."""

_UNLIKE = {
    "strip_accents": "a vocab.txt that keeps accents",
    "tokenize_chinese_chars": "a vocab.txt that leaves Chinese characters together",
}
"""Values of transformers that, if false, change how it reads a vocab.txt."""

_PADDED_TO, _LEAST_MULTIPLE = 128, 4
"""A vocabulary is padded to a multiple of 8, 64, 100 or 128 rows, for the speed of products: by fewer rows than 128."""

_OTHER_NAMES = {
    "[PAD]": ("pad_token", "<pad>"),
    "[UNK]": ("unk_token", "<unk>"),
    "[CLS]": ("cls_token", "<s>", "<cls>"),
    "[SEP]": ("sep_token", "</s>", "<eos>"),
    "[MASK]": ("mask_token", "<mask>"),
}
"""The key of each special piece in a tokeniser's settings, and its other usual names."""


def imported_tokenizer(folder: Path, kept: Path, vocabulary: int) -> tuple[bytes, int]:
    """The encoder's tokeniser as a tokenizer.json, with its number of pieces, at most the padded `vocabulary`.

    Raises InputError if the numbers differ by more than padding, or the sweep folder has another tokeniser.
    """
    given = next((file for name in ("tokenizer.json", "vocab.txt") if is_there(file := folder / name)), None)
    if given is None:
        raise InputError.at(
            str(folder), "has neither tokenizer.json nor vocab.txt; write one with its tokeniser's save_pretrained"
        )
    settings = folder / _SETTINGS
    if given.suffix == ".txt" and is_there(settings):
        _refuse_unlike(settings, given)
    with _by_berts_names(given) as file:
        pieces = read_tokenizer(file).get_vocab_size()
        if vocabulary % _LEAST_MULTIPLE or not 0 < vocabulary - pieces < _PADDED_TO:
            pieces = vocabulary
        tokenizer = load_tokenizer(TokenizerConfig(kind="file", path=str(file), vocabulary=pieces))
        content = file.read_bytes() if given.suffix == ".json" else tokenizer.to_str(pretty=True).encode()
    if is_there(kept) and kept.read_bytes() != content:
        raise InputError.at(str(kept), f"differs from the tokeniser {given}; import into a separate folder")
    return content, pieces


@contextmanager
def _by_berts_names(given: Path) -> Iterator[Path]:
    """A tokeniser's file, in a copy if its special pieces have other names than BERT's; problems name the file itself."""
    if given.suffix != ".json" or not (names := _other_names(given, values := json_object(given))):
        yield given
        return
    with TemporaryDirectory() as scratch:
        copy = Path(scratch) / given.name
        copy.write_text(json.dumps(_renamed(values, names), ensure_ascii=False), encoding="utf-8")
        try:
            yield copy
        except InputError as error:
            raise InputError(
                Problem(each.place, each.message.replace(str(copy), str(given))) for each in error.problems
            ) from None


def _other_names(given: Path, values: dict[str, Any]) -> dict[str, str]:
    """BERT's names of the special pieces that have others, by these; settings beside the file decide, then usual names."""
    settings: dict[str, Any] = {}
    for file in (given.parent / _SPECIAL_MAP, given.parent / _SETTINGS):
        settings |= json_object(file) if is_there(file) else {}
    there = set(_vocabulary(values)) | {str(each.get("content")) for each in _added(values)}
    found = {}
    for piece, (key, *usual) in _OTHER_NAMES.items():
        told = settings.get(key)
        told = told.get("content") if isinstance(told, dict) else told
        if piece not in there and (name := next((name for name in (told, *usual) if name in there), None)) is not None:
            found[str(name)] = piece
    return found


def _vocabulary(values: dict[str, Any]) -> list[str]:
    """The pieces of a tokenizer.json's model: the keys of a dictionary or, of a unigram model, the first of each pair."""
    model = values.get("model")
    pieces = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(pieces, dict):
        return list(pieces)
    return [pair[0] for pair in pieces if isinstance(pair, list) and pair] if isinstance(pieces, list) else []


def _added(values: dict[str, Any]) -> list[dict[str, Any]]:
    added = values.get("added_tokens")
    return [each for each in added if isinstance(each, dict)] if isinstance(added, list) else []


def _renamed(values: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A tokenizer.json with other names for some pieces, which adds and pads nothing itself."""
    model = dict(values["model"]) if isinstance(values.get("model"), dict) else {}
    if isinstance(pieces := model.get("vocab"), dict):
        model["vocab"] = {names.get(piece, piece): number for piece, number in pieces.items()}
    elif isinstance(pieces, list):
        model["vocab"] = [[names.get(piece, piece), *rest] for piece, *rest in pieces]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    added = [each | {"content": names.get(each.get("content", ""), each.get("content"))} for each in _added(values)]
    return values | {"model": model, "added_tokens": added, "post_processor": None, "padding": None, "truncation": None}


def _refuse_unlike(settings: Path, vocabulary: Path) -> None:
    """Raise InputError if transformers reads a vocab.txt by other rules than load_tokenizer."""
    values = json_object(settings)
    problems = [f"describes {what}" for setting, what in _UNLIKE.items() if values.get(setting) is False]
    cased = is_cased(vocabulary)
    if values.get("do_lower_case") is cased:
        problems.append(f"has do_lower_case {str(cased).lower()}, and vocab.txt has {'' if cased else 'no '}capitals")
    if problems:
        raise InputError.at(str(settings), f"{problems[0]}; save its tokeniser as a tokenizer.json")


def json_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file; raises InputError if it is missing or holds none."""
    try:
        values = json_value(file.read_bytes())
    except FileNotFoundError:
        raise InputError.at(str(file), "does not exist; save_pretrained writes it") from None
    except ValueError as error:
        raise InputError.at(str(file), f"is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError.at(str(file), "is not a JSON object")
    return values
