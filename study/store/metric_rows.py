"""The rows of a metrics.jsonl, one JSON object a line; a torn line is not yet a row."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from study.base.durable_files import json_value
from study.base.errors import InputError, shown

TAIL_BYTES = 4096
"""The bytes read from the end of a file for its newest rows."""

_NUMBERS = frozenset({int, float})


def whole_rows(lines: BinaryIO, place: str, lines_before: int = 0) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield each line with its row, up to a torn line, numbered after `lines_before`.

    Raises InputError, with file and line number, for an invalid line.
    """
    for number, line in enumerate(lines, lines_before + 1):
        if not line.endswith(b"\n"):
            return
        yield line, _row(line, f"{place}:{number}")


def line_of(row: Mapping[str, float]) -> bytes:
    """A row as a line of JSON, which has neither NaN nor infinity: a metric of such a value is left out."""
    finite = {key: value for key, value in row.items() if math.isfinite(value)}
    return json.dumps(finite, allow_nan=False).encode() + b"\n"


class Rows:
    """The rows of a growing file, each once, without a torn last line.

    `opened` opens the file, empty if missing; `place` names it.
    """

    def __init__(self, opened: Callable[[], BinaryIO], place: str) -> None:
        self._opened, self._place = opened, place
        self.count = 0
        self.bytes_seen = 0
        """The size of the file at the last call of `new`."""
        self._offset = 0
        self._last = b""

    def new(self) -> Iterator[dict[str, Any]]:
        """The rows since the last call; raises InputError for an invalid line."""
        with self._opened() as lines:
            self.bytes_seen = lines.seek(0, os.SEEK_END)
            lines.seek(self._offset)
            for line, row in whole_rows(lines, self._place, self.count):
                self._offset, self._last = self._offset + len(line), line
                self.count += 1
                yield row

    def rewritten(self) -> bool:
        """Whether the last row has moved, as when a resumed run drops rows to repeat."""
        if not self._last:
            return False
        with self._opened() as lines:
            lines.seek(self._offset - len(self._last))
            return lines.read(len(self._last)) != self._last


def size_of(file: Path) -> int:
    """The size of a file in bytes, 0 if missing."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def newest_rows(lines: BinaryIO, place: str) -> list[dict[str, Any]]:
    """About the last ten rows."""
    start = max(0, lines.seek(0, os.SEEK_END) - TAIL_BYTES)
    lines.seek(start)
    tail = lines.read().split(b"\n")[1 if start else 0 : -1]
    return [_row(line, f"{place}, near its end") for line in tail]


def newest_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest value of each metric in ordered rows."""
    values: dict[str, Any] = {}
    for row in rows:
        values |= row
    return values


def _row(line: bytes, place: str) -> dict[str, Any]:
    """Parse a line; raises InputError if invalid.

    Pydantic's parser is many times as fast as the standard library's, but does not see a key that appears twice.
    """
    with suppress(ValueError):  # said by the parser below
        row = from_json(line)
        if isinstance(row, dict) and len(row) == line.count(b'":') and _NUMBERS.issuperset(map(type, row.values())):
            return row
    why = ""
    try:
        if isinstance(row := json_value(line), dict):
            odd = [key for key, value in row.items() if type(value) not in _NUMBERS]
            if not odd:
                return row
            why = f" ({odd[0]} is {shown(row[odd[0]])}, not a number)"
    except ValueError as error:
        why = f" ({error})"
    raise InputError.at(place, f"is not a row of metrics{why}; remove that line, nothing else is lost")
