"""Tables and text on a terminal: narrow, never cut, and safe with text of unknown origin."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Column, Table
from rich.text import Text

PIPED_WIDTH = 200
"""How wide text is where no terminal says."""

_ANY_WIDTH = 10_000

WHOLE = Column(no_wrap=True)
"""The layout of what is never wrapped beside a bar, such as a time."""


def printable(text: str) -> str:
    """Text of unknown origin on one line, without the characters that would steer a terminal."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def narrow_table(title: str, words: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    """An empty table with columns of words and then of numbers, none of them wrapped."""
    table = Table(title=Text(printable(title)), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def say(console: Console, text: str) -> None:
    """Print text as it stands: on a terminal wrapped at words, in a log one line that is as long as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=not console.is_terminal)


def bars(console: Console, *numbers: str | ProgressColumn) -> Progress:
    """Bars with numbers beside them, each task with its description and a `note`, gone from the terminal when they end.

    On a narrow terminal the bar gives way first, then descriptions and notes are wrapped; numbers stay whole.
    """
    description, note = (
        TextColumn(f"{{{words}}}", markup=False, table_column=Column(overflow="fold"))
        for words in ("task.description", "task.fields[note]")
    )
    bar = BarColumn(bar_width=None, table_column=Column(ratio=1))
    return Progress(description, bar, *numbers, note, console=console, expand=True, transient=True)


def show(*parts: Table | str) -> None:
    """Print tables and lines, as wide as the terminal is; a wider table is left to it to wrap, so that nothing is cut."""
    width = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).width
    for part in parts:
        needed = Console(width=_ANY_WIDTH).measure(part).maximum if isinstance(part, Table) else 0
        Console(width=max(width, needed)).print(part, highlight=False, markup=False)
