"""The tables of a packed sweep: each keeps the files of one kind and gives every one of them back byte for byte.

A file is named by its path below `runs/`, as `05bb558dd9e5a570/record.json`. What a table could not give back byte for byte,
as metrics that a kill has torn or a person has edited, goes into FILES as it stands.
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

from study.store.named_files import array_content, array_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

ZSTD_LEVEL = 9
"""Of Parquet; the highest level writes a thirtieth less in ten times the time."""


class Entries(ABC):
    """The files that a table holds, which are made again one at a time."""

    names: Collection[str]

    @abstractmethod
    def content(self, name: str) -> bytes:
        """What the file of this name held, byte for byte."""

    def json(self, name: str) -> bytes:
        """The same JSON value as `content`, perhaps with other white space, where that is quicker."""
        return self.content(name)


class PackedTable(ABC):
    """A file of a pack, and which files of the run folders it is for.

    `template` is their path below `runs/`, with the name of a key column in braces where paths differ.
    """

    def __init__(self, file: str, template: str) -> None:
        self.file, self.template = file, template
        self._parts = template.split("/")
        self.keys = tuple(part[1:-1] for part in self._parts if part.startswith("{"))
        self._pattern = re.compile("/".join(r"([\w.-]+)" if part.startswith("{") else re.escape(part) for part in self._parts))

    def takes(self, name: str) -> bool:
        """Whether a file of this name belongs here."""
        return self._pattern.fullmatch(name) is not None

    def may_hold_below(self, folder: str) -> bool:
        """Whether files in this folder may belong here."""
        parts = folder.split("/")
        return len(parts) < len(self._parts) and all(
            here.startswith("{") or here == there for here, there in zip(self._parts, parts, strict=False)
        )

    def encode_all(self, names: Iterable[str], contents: Mapping[str, bytes]) -> tuple[bytes, tuple[str, ...]]:
        """The table of these files, and the names of those that it holds: all that it gives back byte for byte."""
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
        """Whether a file is of the kind that the table is for."""

    @abstractmethod
    def encode(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        """The table of files that it reads, each a name and a content."""

    @abstractmethod
    def decode(self, table: bytes) -> Entries:
        """The files in a table."""

    def _keys_of(self, name: str) -> tuple[str, ...]:
        """The values of the key columns that a name stands for."""
        match = self._pattern.fullmatch(name)
        assert match is not None
        return match.groups()

    def _name_of(self, keys: Iterable[str]) -> str:
        """The name that values of the key columns stand for."""
        return self.template.format(**dict(zip(self.keys, keys, strict=True)))


class JsonLines(PackedTable):
    """JSON objects, one a line, gzipped: `file`, the name, and then the keys of the object. `end` ends each file."""

    def __init__(self, file: str, template: str, end: bytes) -> None:
        super().__init__(file, template)
        self._end = end

    def reads(self, content: bytes) -> bool:
        """Whether a file holds a JSON object with any key."""
        try:
            values = from_json(content)
        except ValueError:
            return False
        return isinstance(values, dict) and bool(values)

    def encode(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        """A line a file."""
        lines = (b'{"file":"%s",%s\n' % (name.encode(), to_json(from_json(content))[1:]) for name, content in files)
        return gzip.compress(b"".join(lines), mtime=0)

    def decode(self, table: bytes) -> Entries:
        """The lines, which are parsed when they are asked for."""
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
        """The object as the workbench writes it, a key a line."""
        return to_json(from_json(self._lines[name]), indent=1) + self._end

    def json(self, name: str) -> bytes:
        """The object in one line."""
        return self._lines[name]


class MetricRows(PackedTable):
    """Parquet with a row for each line of a metrics.jsonl: the key columns, and a column of float64 a metric.

    What a line does not tell is null. Whole numbers are written without a point, as by study.training.metrics_log.
    """

    def reads(self, content: bytes) -> bool:
        """Whether a file holds rows of finite numbers as the workbench writes them."""
        try:
            return all(_line({key: float(value) for key, value in _row(line).items()}) == line for line in _lines(content))
        except (ValueError, TypeError, AttributeError, OverflowError):
            return False

    def encode(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        """The rows of all files, one file after the other."""
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
        return _parquet(table, self.keys, floats=[name for name in table.column_names if name not in self.keys])

    def decode(self, table: bytes) -> Entries:
        """The rows of each file, which are written out when they are asked for."""
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
        """The rows as lines of JSON."""
        rows = self._rows.slice(*self._spans[name]).to_pylist()
        return b"".join(_line({key: value for key, value in row.items() if value is not None}) for row in rows)


class Losses(PackedTable):
    """Parquet with a row a run: the key column, and a list of float64, the nats of each validation sequence."""

    def reads(self, content: bytes) -> bool:
        """Whether a file is a vector of float64 as NumPy saves it."""
        try:
            array_in(content, np.float64)
        except ValueError:
            return False
        return True

    def encode(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        """A row a file."""
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
        return _parquet(table, (), floats=["losses_nats.list.element"])

    def decode(self, table: bytes) -> Entries:
        """The vectors, which become files when they are asked for."""
        import pyarrow.parquet as pq

        rows = pq.read_table(io.BytesIO(table)).combine_chunks()
        keys = zip(*(rows.column(key).to_pylist() for key in self.keys), strict=True)
        places = {self._name_of(values): place for place, values in enumerate(keys)}
        return _LossEntries(rows.column("losses_nats"), places)


class _LossEntries(Entries):
    def __init__(self, losses: Any, places: dict[str, int]) -> None:
        self.names = places.keys()
        self._losses, self._places = losses, places

    def content(self, name: str) -> bytes:
        """The vector as NumPy saves it."""
        losses: NDArray[np.float64] = self._losses[self._places[name]].values.to_numpy()
        return array_content(losses)


class Verbatim(PackedTable):
    """Parquet with a row a file: its name, and its content as it stands."""

    def takes(self, name: str) -> bool:
        """Whether there is a name: any will do."""
        return bool(name)

    def may_hold_below(self, folder: str) -> bool:
        """Whether there is a folder: any may have files here."""
        return bool(folder)

    def reads(self, content: bytes) -> bool:
        """Whether there is a content: any will do."""
        return isinstance(content, bytes)

    def encode(self, files: Iterable[tuple[str, bytes]]) -> bytes:
        """A row a file."""
        import pyarrow as pa

        names, contents = zip(*files, strict=True)
        return _parquet(pa.table({"file": pa.array(names, pa.string()), "content": pa.array(contents, pa.large_binary())}))

    def decode(self, table: bytes) -> Entries:
        """The files."""
        import pyarrow.parquet as pq

        rows = pq.read_table(io.BytesIO(table))
        return _VerbatimEntries(dict(zip(rows.column("file").to_pylist(), rows.column("content").to_pylist(), strict=True)))


class _VerbatimEntries(Entries):
    def __init__(self, contents: dict[str, bytes]) -> None:
        self.names = contents.keys()
        self._contents = contents

    def content(self, name: str) -> bytes:
        """The content as it stood."""
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
"""All tables; a file goes into the first that gives it back, and FILES takes any."""


def _lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


def _row(line: bytes) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(line)
    return row


def _line(row: Mapping[str, float]) -> bytes:
    """A row of metrics as it is logged."""
    return json.dumps({key: int(value) if value.is_integer() else value for key, value in row.items()}).encode() + b"\n"


def _parquet(table: Any, dictionaries: Collection[str] = (), floats: Collection[str] = ()) -> bytes:
    """A table as Parquet; floats are split into streams of bytes, which halves them: their high bytes are alike."""
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=list(dictionaries),
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT") or None,
        write_statistics=False,
    )
    return sink.getvalue()
