"""Text for readers: statuses, file names, paths, escaped Markdown, and tables in Markdown and plain text."""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from study.base.errors import InputError


def status_words(status: str, reasons: Sequence[str] = ()) -> str:
    """A status with its reasons, as in weakly identified (few rows); a sentence stays as it is."""
    words = status.replace("_", " ") if status.isidentifier() else status
    return f"{words} ({'; '.join(reasons)})" if reasons else words


def shape_and_variant(shape: str, setting: str) -> str:
    """A shape with its variant in brackets, if any: L2-H128-A2-F512 (norm=pre)."""
    return f"{shape} ({setting})" if setting else shape


def at_budget(words: str, budget: str) -> str:
    """Words with their budget, if any: L2-H128-A2-F512 at 1M tokens."""
    return f"{words} at {budget}" if budget else words


def file_name(words: str) -> str:
    """Words as the stem of a file name: no quotes, and dashes for all but letters, digits and `.=_-`."""
    return re.sub(r"[^\w.=-]+", "-", words.replace(" == ", "=").replace("'", "")).strip("-")


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""The categories of Unicode of control and format characters, halves of surrogate pairs, and separators of lines."""


def visible(text: str) -> str:
    """Text of unknown origin without the characters that control a terminal or reorder what it shows; lines stay."""
    return "".join(character for character in text if character in "\n\t" or unicodedata.category(character) not in _HIDDEN)


def printable(text: str) -> str:
    """Text of unknown origin on one line, visible characters alone."""
    return visible(" ".join(text.split()))


def echo(text: object = "", err: bool = False) -> None:
    """Print text of unknown origin, visible characters alone: what commands print goes through here or `terminal.show`."""
    click.echo(visible(str(text)), err=err)


def escape(text: object) -> str:
    """Text of unknown origin as one line of Markdown without markup."""
    return re.sub(r"([\\`*_\[\]<>#|~&$!])", r"\\\1", printable(str(text)))


def bullets(sentences: Iterable[str]) -> str:
    """A Markdown list of sentences, escaped."""
    return "\n".join(f"- {escape(sentence)}" for sentence in sentences)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; its cells are escaped, and a missing value is a dash."""
    lines = [[escape(name) for name in header], ["---"] * len(header)]
    lines += [["–" if value is None else escape(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(rows: Sequence[Mapping[str, object]]) -> str:
    """A Markdown table of rows with the same columns; empty if there are none."""
    return table(list(rows[0]), [list(row.values()) for row in rows]) if rows else ""


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Rows as lines of aligned columns, the first `left` columns flush left and the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            _cell(text, width, place < left) for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cell(text: str, width: int, left: bool) -> str:
    return f"{text:<{width}}" if left else f"{text:>{width}}"


def path_from(text: str, place: str) -> Path:
    """The path of a text, with ~ and ~name expanded; raises InputError for an unknown home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError.at(place, f"{text!r} begins with a home that is nobody's; give the whole path") from None


def pasted(path: Path) -> str:
    """A path quoted for a shell, in a command to paste."""
    return shlex.quote(str(path))


def without_lone_surrogates(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair, so that other characters keep their positions."""
    return text.encode("utf-8", "replace").decode()
