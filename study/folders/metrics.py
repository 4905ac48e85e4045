"""The rows of a metrics.jsonl, one JSON object a line; a line that a kill has torn is no row yet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from study.errors import InputError

TAIL_BYTES = 4096
"""How much of a file's end is read for its newest rows."""


def whole_rows(file: Path, offset: int = 0, lines_before: int = 0) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each line with its row, in order, none where there is no file; a torn line ends them.

    They begin at `offset`, before which so many lines end.

    Raises InputError at a whole line that is no row.
    """
    try:
        lines = file.open("rb")
    except FileNotFoundError:
        return
    with lines:
        lines.seek(offset)
        for number, line in enumerate(lines, lines_before + 1):
            if not line.endswith(b"\n"):
                return
            yield line, _row(line, f"{file}:{number}")


def newest_rows(file: Path) -> list[dict[str, Any]]:
    """The last rows, some ten, read from the end of the file; none where there is no file."""
    try:
        with file.open("rb") as lines:
            start = max(0, file.stat().st_size - TAIL_BYTES)
            lines.seek(start)
            tail = lines.read().split(b"\n")[1 if start else 0 : -1]
    except FileNotFoundError:
        return []
    return [_row(line, f"{file}, near its end") for line in tail]


def newest_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest value of each metric in rows that are in order."""
    values: dict[str, Any] = {}
    for row in rows:
        values |= row
    return values


def _row(line: bytes, place: str) -> dict[str, Any]:
    """A line of metrics.jsonl as a row; raises InputError at the place where it is none."""
    why = ""
    try:
        if isinstance(row := json.loads(line), dict):
            return row
    except ValueError as error:
        why = f" ({error})"
    raise InputError.at(place, f"is no row of metrics{why}, and nothing but that line is lost without it: take it out")
