"""Text for readers: statuses, file names, paths and tables, and streams that may be gone."""

from __future__ import annotations

import re
import shlex
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import click

from study.base.errors import InputError


def status_words(status: str, reasons: Sequence[str] = ()) -> str:
    """Return a status with its reasons, as in weakly identified (few rows); a sentence stays."""
    words = status.replace("_", " ") if status.isidentifier() else status
    return f"{words} ({'; '.join(reasons)})" if reasons else words


_SAID = {
    "on_bound": "ends on a bound",
    "lack_of_fit": "shows lack of fit",
    "missed_forecast": "misses its forecast",
    "reads_no_order": "rests on runs that read no order",
    "failed": "failed",
}
"""Statuses as predicates of a fit, where they are no adjectives."""


def status_said(status: str, reasons: Sequence[str] = ()) -> str:
    """Return a status as what is said of a fit, as in shows lack of fit (reasons) or is converged."""
    said = _SAID.get(status)
    return f"is {status_words(status, reasons)}" if said is None else status_words(said, reasons)


def shape_and_variant(shape: str, variant: str) -> str:
    """Return a shape with its variant, if any: L2-H128-A2-F512 (norm=pre)."""
    return f"{shape} ({variant})" if variant else shape


def joined(parts: Sequence[str], last: str = "and") -> str:
    """Parts as a list in words, `a, b and c`; empty without parts."""
    return f" {last} ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def at_budget(words: str, budget: str) -> str:
    """Return words with a budget, if any: L2-H128-A2-F512 at 1M tokens."""
    return f"{words} at {budget}" if budget else words


def file_name(words: str) -> str:
    """Return the stem of a file name: no quotes, and dashes for all but letters, digits and `.=_-`."""
    return re.sub(r"[^\w.=-]+", "-", words.replace(" == ", "=").replace("'", "")).strip("-")


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of control and format characters, surrogates, and line separators."""


def visible(text: str) -> str:
    """Remove characters that control a terminal or reorder its text."""
    return "".join(character for character in text if character in "\n\t" or unicodedata.category(character) not in _HIDDEN)


def printable(text: str) -> str:
    """Return the visible characters of a text, on one line."""
    return visible(" ".join(text.split()))


def echo(text: object = "", err: bool = False) -> None:
    """Print visible characters only."""
    click.echo(visible(str(text)), err=err)


def escape(text: object) -> str:
    """Return a text as one line of Markdown without markup."""
    return re.sub(r"([\\`*_\[\]<>#|~&$!])", r"\\\1", printable(str(text)))


def code(name: str) -> str:
    """Return a name of letters, digits and `._-` as Markdown code.

    Another is escaped.
    """
    return f"`{name}`" if re.fullmatch(r"[\w.-]+", name) else escape(name)


def bullets(sentences: Iterable[str]) -> str:
    """Return a Markdown list of sentences, escaped."""
    return "\n".join(f"- {escape(sentence)}" for sentence in sentences)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; cells are escaped."""
    lines = [[escape(name) for name in header], ["---"] * len(header)]
    lines += [["–" if value is None else escape(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a Markdown table of rows with the same columns; empty without rows."""
    return table(list(rows[0]), [list(row.values()) for row in rows]) if rows else ""


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Rows as aligned lines, the first `left` columns flush left, others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            _cell(text, width, column < left) for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cell(text: str, width: int, left: bool) -> str:
    return f"{text:<{width}}" if left else f"{text:>{width}}"


def path_from(text: str, place: str) -> Path:
    """Return the path in a text, ~ and ~name expanded; raises InputError for an unknown user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError.at(place, f"{text!r} begins with the home folder of an unknown user; give the full path") from None


def pasted(path: Path) -> str:
    """Return a path quoted for a shell."""
    return shlex.quote(str(path))


def without_lone_surrogates(text: str) -> str:
    """Return the text with a question mark for each lone surrogate."""
    return text.encode("utf-8", "replace").decode()


class _Outlived:
    """A stream that drops text that cannot be written."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def tolerate_lost(*names: Literal["stdout", "stderr"]) -> Iterator[None]:
    """Drop output to these streams inside the block once they accept no more."""
    kept = {name: getattr(sys, name) for name in names}
    for name, stream in kept.items():
        setattr(sys, name, _Outlived(stream))
    try:
        yield
    finally:
        for name, stream in kept.items():
            setattr(sys, name, stream)
