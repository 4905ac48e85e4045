"""The rows of a metrics.jsonl, one JSON object a line; a line that a kill has torn is no row yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from study.base.durable_files import json_value
from study.base.errors import InputError, shown

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


class Rows:
    """The rows of a growing file of JSON lines, each once; a line without its end is left until it has one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.bytes_seen = 0
        """The size of the file when its new rows were last asked for."""
        self._offset = 0
        self._last = b""

    def new(self) -> Iterator[dict[str, Any]]:
        """The rows that came since; raises InputError at a line that is no row."""
        self.bytes_seen = size_of(self.path)
        for line, row in whole_rows(self.path, self._offset, self.count):
            self._offset, self._last = self._offset + len(line), line
            self.count += 1
            yield row

    def rewritten(self) -> bool:
        """Whether the last row is no longer where it was, as when a resumed run drops the rows that it will repeat."""
        if not self._last:
            return False
        with self.path.open("rb") as lines:
            lines.seek(self._offset - len(self._last))
            return lines.read(len(self._last)) != self._last


def size_of(file: Path) -> int:
    """The size of a file in bytes, 0 where there is none."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


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
        if isinstance(row := json_value(line), dict):
            odd = [key for key, value in row.items() if type(value) not in (int, float)]
            if not odd:
                return row
            why = f" ({odd[0]} is {shown(row[odd[0]])}, no number)"
    except ValueError as error:
        why = f" ({error})"
    raise InputError.at(place, f"is no row of metrics{why}, and nothing but that line is lost without it: take it out")
