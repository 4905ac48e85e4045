"""Tables in plain text: what the counting commands print, the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence


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
