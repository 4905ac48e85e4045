"""The tables of a packed sweep: each keeps files of one kind and returns them byte for byte.

A file is named by its path below `runs/`, as `05bb558dd9e5a570/record.json`. One that a table cannot reproduce, such as torn or
edited metrics, goes into FILES verbatim.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import from_json, to_json

from study.store.named_files import array_content, array_in, parquet_content

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Entries(ABC):
    """The files in a table, rebuilt one at a time."""

    names: Collection[str]

    @abstractmethod
    def content(self, name: str) -> bytes:
        """Return the exact content of this file."""

    def json(self, name: str) -> bytes:
        """Return the content's JSON, perhaps with other white space, if quicker."""
        return self.content(name)


class PackedTable(ABC):
    """A file of a pack; `template` is the path below `runs/` of files in it, with key columns in braces."""

    def __init__(self, file: str, template: str) -> None:
        self.file, self.template = file, template
        self._parts = template.split("/")
        self.keys = tuple(part[1:-1] for part in self._parts if part.startswith("{"))
        self._pattern = re.compile("/".join(r"([\w.-]+)" if part.startswith("{") else re.escape(part) for part in self._parts))

    def takes(self, name: str) -> bool:
        """Whether this file belongs here."""
        return self._pattern.fullmatch(name) is not None

    def may_hold_below(self, folder: str) -> bool:
        """Whether files in this folder may belong here."""
        parts = folder.split("/")
        return len(parts) < len(self._parts) and all(
            own.startswith("{") or own == part for own, part in zip(self._parts, parts, strict=False)
        )

    def encode_all(self, names: Iterable[str], contents: Mapping[str, bytes]) -> tuple[bytes, tuple[str, ...]]:
        """Return the table of these files, and the names it reproduces."""
        names = [name for name in names if self.takes(name) and self.reads(contents[name])]
        while names:
            table = self.encode((name, contents[name]) for name in names)
            entries = self.decode(table)
            kept = [name for name in names if name in entries.names and entries.content(name) == contents[name]]
            if len(kept) == len(names):
                return table, tuple(names)
            names = kept
        return b"", ()

    @abstractmethod
    def reads(self, content: bytes) -> bool:
        """Whether a file has the table's format."""

    @abstractmethod
    def encode(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        """Return the table of these names and contents."""

    @abstractmethod
    def decode(self, table: bytes) -> Entries:
        """Return the files in a table."""

    def _keys_of(self, name: str) -> tuple[str, ...]:
        match = self._pattern.fullmatch(name)
        assert match is not None
        return match.groups()

    def _name_of(self, keys: Iterable[str]) -> str:
        return self.template.format(**dict(zip(self.keys, keys, strict=True)))


class JsonLines(PackedTable):
    """JSON objects, one a line, gzipped: `file`, the name, then their keys. `end` ends each file."""

    def __init__(self, file: str, template: str, end: bytes) -> None:
        super().__init__(file, template)
        self._end = end

    def reads(self, content: bytes) -> bool:
        """Whether a file is a nonempty JSON object."""
        try:
            values = from_json(content)
        except ValueError:
            return False
        return isinstance(values, dict) and bool(values)

    def encode(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        """Return a line a file."""
        lines = (b'{"file":"%s",%s\n' % (name.encode(), to_json(from_json(content))[1:]) for name, content in files)
        return gzip.compress(b"".join(lines), mtime=0)

    def decode(self, table: bytes) -> Entries:
        """Return the lines, parsed on request."""
        lines = {}
        for line in gzip.decompress(table).splitlines():
            named, _, rest = line.partition(b'",')
            lines[named.removeprefix(b'{"file":"').decode()] = b"{" + rest
        return _JsonEntries(lines, self._end)


class _JsonEntries(Entries):
    def __init__(self, lines: dict[str, bytes], end: bytes) -> None:
        self.names = lines.keys()
        self._lines, self._end = lines, end

    def content(self, name: str) -> bytes:
        return to_json(from_json(self._lines[name]), indent=1) + self._end

    def json(self, name: str) -> bytes:
        return self._lines[name]


class MetricRows(PackedTable):
    """Parquet with a row for each line of a metrics.jsonl: key columns, and a float64 column a metric.

    Missing values are null. Whole numbers have no point, as in study.training.trainer.
    """

    def reads(self, content: bytes) -> bool:
        """Whether a file holds finite rows as the workbench writes them."""
        try:
            return all(_line({key: float(value) for key, value in _row(line).items()}) == line for line in _lines(content))
        except (ValueError, TypeError, AttributeError, OverflowError):
            return False

    def encode(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        """Return the rows of all files."""
        import pyarrow as pa

        tables = []
        for name, content in files:
            rows = [_row(line) for line in _lines(content)]
            values = zip(self.keys, self._keys_of(name), strict=True)
            keys = {key: pa.array([value] * len(rows), pa.string()) for key, value in values}
            metrics = {
                metric: pa.array([None if (value := row.get(metric)) is None else float(value) for row in rows], pa.float64())
                for metric in dict.fromkeys(key for row in rows for key in row)
            }
            tables.append(pa.table(keys | metrics))
        table = pa.concat_tables(tables, promote_options="default")
        return parquet_content(table, self.keys, floats=[name for name in table.column_names if name not in self.keys])

    def decode(self, table: bytes) -> Entries:
        """Return the rows of each file."""
        import pyarrow.parquet as pq

        rows = pq.read_table(io.BytesIO(table), read_dictionary=list(self.keys)).combine_chunks()
        keys = [rows.column(key).chunk(0) for key in self.keys] if len(rows) else []
        changes = np.zeros(len(rows), dtype=bool)
        for column in keys:
            changes |= np.diff(column.indices.to_numpy(), prepend=-1) != 0
        starts = np.flatnonzero(changes)
        names = [self._name_of(column[start].as_py() for column in keys) for start in starts.tolist()]
        spans = zip(starts.tolist(), np.diff(starts, append=len(rows)).tolist(), strict=True)
        return _RowEntries(rows.drop_columns(list(self.keys)), dict(zip(names, spans, strict=True)))


class _RowEntries(Entries):
    def __init__(self, rows: Any, spans: dict[str, tuple[int, int]]) -> None:
        self.names = spans.keys()
        self._rows, self._spans = rows, spans

    def content(self, name: str) -> bytes:
        rows = self._rows.slice(*self._spans[name]).to_pylist()
        return b"".join(_line({key: value for key, value in row.items() if value is not None}) for row in rows)


class Losses(PackedTable):
    """Parquet with a row a run: the key column, and a float64 list, the nats of each validation sequence."""

    def reads(self, content: bytes) -> bool:
        """Whether a file is a NumPy vector of float64."""
        try:
            array_in(content, np.float64)
        except ValueError:
            return False
        return True

    def encode(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        """Return a row a file."""
        import pyarrow as pa

        names, vectors = [], []
        for name, content in files:
            names.append(self._keys_of(name))
            vectors.append(array_in(content, np.float64))
        offsets = pa.array(np.cumsum([0, *map(len, vectors)]), pa.int64())
        values = pa.array(np.concatenate(vectors), pa.float64())
        columns = [pa.array(column, pa.string()) for column in zip(*names, strict=True)]
        losses = pa.LargeListArray.from_arrays(offsets, values)
        table = pa.table([*columns, losses], names=[*self.keys, "losses_nats"])
        return parquet_content(table, (), floats=["losses_nats.list.element"])

    def decode(self, table: bytes) -> Entries:
        """Return the vectors."""
        import pyarrow.parquet as pq

        rows = pq.read_table(io.BytesIO(table)).combine_chunks()
        keys = zip(*(rows.column(key).to_pylist() for key in self.keys), strict=True)
        positions = {self._name_of(values): position for position, values in enumerate(keys)}
        return _LossEntries(rows.column("losses_nats"), positions)


class _LossEntries(Entries):
    def __init__(self, losses: Any, positions: dict[str, int]) -> None:
        self.names = positions.keys()
        self._losses, self._positions = losses, positions

    def content(self, name: str) -> bytes:
        losses: NDArray[np.float64] = self._losses[self._positions[name]].values.to_numpy()
        return array_content(losses)


class Verbatim(PackedTable):
    """Parquet with a row a file: its name and content."""

    def takes(self, name: str) -> bool:
        """Accept any name."""
        return bool(name)

    def may_hold_below(self, folder: str) -> bool:
        """Accept any folder."""
        return bool(folder)

    def reads(self, content: bytes) -> bool:
        """Accept any content."""
        return isinstance(content, bytes)

    def encode(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        """Return a row a file."""
        import pyarrow as pa

        names, contents = zip(*files, strict=True)
        return parquet_content(
            pa.table({"file": pa.array(names, pa.string()), "content": pa.array(contents, pa.large_binary())})
        )

    def decode(self, table: bytes) -> Entries:
        """Return the files."""
        import pyarrow.parquet as pq

        rows = pq.read_table(io.BytesIO(table))
        return _VerbatimEntries(dict(zip(rows.column("file").to_pylist(), rows.column("content").to_pylist(), strict=True)))


class _VerbatimEntries(Entries):
    def __init__(self, contents: dict[str, bytes]) -> None:
        self.names = contents.keys()
        self._contents = contents

    def content(self, name: str) -> bytes:
        return self._contents[name]


RECORDS = JsonLines("records.jsonl.gz", "{run_id}/record.json", end=b"\n")
SCORES = JsonLines("scores.jsonl.gz", "{run_id}/scores/{score_id}/record.json", end=b"\n")
ATTEMPTS = JsonLines("attempts.jsonl.gz", "{run_id}/attempts/{attempt}", end=b"")
SCORE_ATTEMPTS = JsonLines("score_attempts.jsonl.gz", "{run_id}/scores/{score_id}/attempts/{attempt}", end=b"")
CURVES = MetricRows("curves.parquet", "{run_id}/metrics.jsonl")
SCORE_CURVES = MetricRows("score_curves.parquet", "{run_id}/scores/{score_id}/metrics.jsonl")
LOSSES = Losses("validation_losses.parquet", "{run_id}/validation_losses.npy")
FILES = Verbatim("files.parquet", "{file}")

TABLES: tuple[PackedTable, ...] = (RECORDS, SCORES, ATTEMPTS, SCORE_ATTEMPTS, CURVES, SCORE_CURVES, LOSSES, FILES)
"""All tables; a file goes into the first that reproduces it, and FILES takes any."""


def _lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


def _row(line: bytes) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(line)
    return row


def _line(row: Mapping[str, float]) -> bytes:
    return json.dumps({key: int(value) if value.is_integer() else value for key, value in row.items()}).encode() + b"\n"
