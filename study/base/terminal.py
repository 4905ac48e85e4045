"""Tables and text on a terminal: never cut, and safe for text of unknown origin."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from study.base.text import printable, visible

PIPED_WIDTH = 200
"""The width of text without a terminal."""

NARROW = 78
"""The widest headings and notes in a table, so that a terminal of 80 columns wraps none."""

_ANY_WIDTH = 10_000

WHOLE = Column(no_wrap=True)
"""A column beside a bar that never wraps, such as a time."""


def narrow_table(
    title: str, words: Sequence[str], numbers: Sequence[str], rows: Sequence[tuple[str, Sequence[str], str]]
) -> Table:
    """Return a table with columns of words, then of numbers; none wraps, and empty ones are left out.

    A row is heading, cells and note; heading and note may be empty. Neighbours with one heading form a group below it; a note
    goes below its row.
    """
    names, ways = [*words, *numbers], [str.ljust] * len(words) + [str.rjust] * len(numbers)
    columns = zip(names, *(cells for _, cells, _ in rows), strict=True)
    widths = [max(map(len, column)) if any(column[1:]) or not rows else 0 for column in columns]

    def line(cells: Sequence[str]) -> Text:
        return Text("  ".join(way(cell, width) for way, cell, width in zip(ways, cells, widths, strict=True) if width))

    caption = Text(printable(title))
    table = Table(title=caption, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(line(names), no_wrap=True, min_width=min(caption.cell_len, NARROW))
    for heading, group in groupby(rows, lambda row: row[0]):
        for part in textwrap.wrap(printable(heading), NARROW):
            table.add_row(Text(part, "bold"))
        for _, cells, note in group:
            table.add_row(line(cells))
            for part in textwrap.wrap(printable(note), NARROW, initial_indent="  ", subsequent_indent="  "):
                table.add_row(Text(part))
    return table


@dataclass(frozen=True)
class Visible:
    """A renderable shown by its visible characters only."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Its segments; rich's own control segments stay."""
        for segment in console.render(self.content, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the width of the content."""
        return Measurement.get(console, options, self.content)


def say(console: Console, text: str) -> None:
    """Print visible text, on one line in a log."""
    console.print(visible(text), highlight=False, markup=False, soft_wrap=not console.is_terminal)


def listing(entries: Iterable[Sequence[str]]) -> str:
    """Return entries of a name and a text, indented and wrapped at the terminal's width."""
    width = max(shutil.get_terminal_size().columns, 40)
    lines = partial(textwrap.fill, width=width, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
    wrapped = ([lines(name), *(lines(text, initial_indent="    ") for text in about)] for name, *about in entries)
    return "\n".join(chain.from_iterable(wrapped))


def bars(console: Console, *numbers: str | ProgressColumn) -> Progress:
    """Progress bars with numbers, a description and a `note` a task, removed at the end.

    Numbers never wrap.
    """
    description, note = (
        TextColumn(f"{{{words}}}", markup=False, table_column=Column(overflow="fold"))
        for words in ("task.description", "task.fields[note]")
    )
    bar = BarColumn(bar_width=None, table_column=Column(ratio=1))
    return Progress(description, bar, *numbers, note, console=console, expand=True, transient=True)


def show(*parts: Table | str) -> None:
    """Print tables and lines at the terminal's width."""
    width = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).width
    for part in parts:
        needed = Console(width=_ANY_WIDTH).measure(part).maximum if isinstance(part, Table) else 0
        content = Text(part) if isinstance(part, str) else part
        Console(width=max(width, needed)).print(Visible(content), highlight=False, markup=False)
