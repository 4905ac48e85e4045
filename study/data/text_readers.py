"""Readers of Parquet, Arrow, JSON lines, CSV and plain text files in bounded memory.

Each reader yields one text per document, empty for rows without text. Memory is bounded by the largest Parquet page or Arrow
batch, 64 MiB per JSON line or CSV field, and a few megabytes of plain text. Text files may be gzip- or zstd-compressed.

pyarrow reads Parquet, Arrow and compression, the standard library the rest. Unlike `datasets.load_dataset`, they write no
second copy, accept `[` in paths, infer no dates, and report the bad row or byte.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from study.base.durable_files import json_value
from study.base.errors import InputError, nearest, shown
from study.base.schema import flatten

MAX_CHARACTERS = 1_000_000
"""The longest document; longer ones are cut at white space."""

MAX_ROW_BYTES = 64 * 2**20
"""The longest row of a text file."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
"""Compressions of text files, by last suffix."""

_LOOKS_LIKE = {
    b"\xff\xfe": "UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
    b"\x1f\x8b": "gzip; end its name in .gz, or unpack it",
    b"\x28\xb5\x2f\xfd": "Zstandard; end its name in .zst",
    b"PAR1": "Parquet; end its name in .parquet",
    b"ARROW1": "Arrow; end its name in .arrow",
    b"PK\x03\x04": "a ZIP archive; unpack it",
    b"BZh": "bzip2; unpack it",
    b"\xfd7zXZ": "xz; unpack it",
    b"%PDF": "a PDF; extract its text",
}
"""What a file that is no UTF-8 is, by its first bytes, and the remedy."""

_BLOCK_BYTES = 2**20
_ROWS = 256
_SHOWN_KIND = 60
_FILE_FORMAT = b"ARROW1"
"""The first bytes of an Arrow file, as opposed to a stream."""


def kind_of(path: Path) -> str | None:
    """Return the suffix that selects the reader, such as .jsonl or .jsonl.gz, if known."""
    suffix, compression = _suffixes(path)
    known = _LINES if compression else _READERS
    return suffix + compression if suffix in known else None


def read_file(path: Path, text_column: str) -> Iterator[str]:
    """Yield the documents of one file in order; a .txt separates them by blank lines and ignores `text_column`.

    A dotted column names a nested field, unless a column has exactly that name. JSON rows after the first may lack the column.
    Raises InputError for other content, or a column that is missing or not text.
    """
    suffix, _ = _suffixes(path)
    try:
        yield from _READERS[suffix](path, text_column)
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror or error}") from error


def _suffixes(path: Path) -> tuple[str, str]:
    """Return the suffixes of a file's kind and of its compression, if any."""
    last = path.suffix.lower()
    return (Path(path.stem).suffix.lower(), last) if last in COMPRESSIONS else (last, "")


def opened(path: Path) -> BinaryIO:
    """Open a file's bytes, decompressed according to its suffix."""
    if (compression := COMPRESSIONS.get(path.suffix.lower())) is None:
        return path.open("rb")
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(str(path), compression=compression))


def pieces(text: str, limit: int = MAX_CHARACTERS) -> Iterator[str]:
    """Yield a text in parts of at most `limit` characters, cut after the last space or newline."""
    start = 0
    while len(text) - start > limit:
        space = max(text.rfind(" ", start, start + limit), text.rfind("\n", start, start + limit))
        end = space + 1 if space >= start else start + limit
        yield text[start:end]
        start = end
    yield text[start:]


def check_text_column(place: str, column: str, columns: dict[str, str | None], hint: str = "") -> None:
    """Raise InputError, with the nearest text column, if a column is missing or not text.

    `columns` maps names to what they hold, None for text.
    """
    texts = [name for name, holds in columns.items() if holds is None]
    remedy = nearest(column, texts) if texts else "no column holds text; write one, with a string in each row"
    if column not in columns:
        raise InputError.at("data.text_column", f"{column!r} is not a column of {place}; {remedy}{hint}")
    if (holds := columns[column]) is not None:
        raise InputError.at("data.text_column", f"{column!r} does not hold text in {place}, but {holds}; {remedy}")


def _check_one_column(place: str, column: str, count: int) -> None:
    if count > 1:
        raise InputError.at("data.text_column", f"{column!r} names {count} columns of {place}; rename the others")


def text_field(place: str, column: str, schema: Any) -> tuple[str, ...]:
    """Return the field names that lead to a text column in an Arrow schema, outermost first.

    Raises InputError with the nearest text column if it is missing, and for two of one name.
    """
    fields = {".".join(names): (names, kind) for names, kind in reversed(list(_fields(schema)))}
    holds = {name: None if _is_text(kind) else str(kind)[:_SHOWN_KIND] for name, (_, kind) in fields.items()}
    check_text_column(place, column, holds)
    names: tuple[str, ...] = fields[column][0]
    _check_one_column(place, column, sum(path == names for path, _ in _fields(schema)))
    return names


def texts_in(batch: Any, field: tuple[str, ...]) -> Iterator[str]:
    """Yield the texts of an Arrow batch or table, empty for nulls."""
    import pyarrow.compute as pc

    outer, *inner = field
    values = batch.column(outer)
    yield from (value.as_py() or "" for value in (pc.struct_field(values, inner) if inner else values))


def _fields(fields: Iterable[Any], outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield path and type of every field of a schema, nested fields after their parent."""
    from pyarrow import types

    for field in fields:
        names = (*outer, field.name)
        yield names, field.type
        if types.is_struct(field.type):
            yield from _fields(field.type, names)


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _read_parquet(path: Path, column: str) -> Iterator[str]:
    import pyarrow.parquet as pq

    def batches() -> Iterator[Any]:
        with pq.ParquetFile(path) as file:
            field = text_field(str(path), column, file.schema_arrow)
            yield from ((batch, field) for batch in file.iter_batches(batch_size=_ROWS, columns=[column]))

    yield from _arrow_texts(path, column, "a Parquet file", batches)


def _read_arrow(path: Path, column: str) -> Iterator[str]:
    """Read an Arrow file, or stream as of `datasets.save_to_disk`."""
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        with pa.memory_map(str(path)) as source:
            is_file = source.read(len(_FILE_FORMAT)) == _FILE_FORMAT
            source.seek(0)
            reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            field = text_field(str(path), column, reader.schema)
            source_batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            yield from ((batch, field) for batch in source_batches)

    yield from _arrow_texts(path, column, "an Arrow file", batches)


def _arrow_texts(path: Path, column: str, what: str, batches: Callable[[], Iterator[Any]]) -> Iterator[str]:
    import pyarrow as pa

    done = 0
    try:
        for batch, field in batches():
            for text in texts_in(batch, field):
                yield text
                done += 1
    except pa.ArrowInvalid as error:
        raise InputError.at(str(path), f"is not {what}, or is damaged after row {done}: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError.at(
            str(path), f"row {done} (from 0) is not UTF-8 text (byte {error.start} of column {column!r})"
        ) from error


def _read_jsonl(path: Path, column: str) -> Iterator[str]:
    for index, (number, row) in enumerate(json_rows(path)):
        known, value = _value(row, column)
        if not isinstance(value, str | None) or not (known or index):
            fields = (flatten(row) | row).items()
            columns = {key: None if isinstance(entry, str | None) else shown(entry) for key, entry in fields}
            check_text_column(f"{path}:{number}", column, columns)
        yield value or ""


def _value(row: dict[str, Any], column: str) -> tuple[bool, Any]:
    """Return whether a row has a key, dotted if nested, and its value."""
    if column in row:
        return True, row[column]
    value: Any = row
    for name in column.split("."):
        if value is None:
            return True, None
        if not isinstance(value, dict) or name not in value:
            return False, None
        value = value[name]
    return True, value


DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What may separate the fields of a .csv, by name."""

_QUOTED = re.compile(r'(?<![^,;\t|])"(?:[^"]|"")*"?')
"""A field in quotes, or what a line has of it."""


def delimiter_of(path: Path) -> str:
    """Return a .tsv's tabs, or of commas, semicolons, tabs and bars the one that a .csv's header has most of.

    What stands in quotes does not count.
    """
    if _suffixes(path)[0] == ".tsv":
        return "\t"
    with opened_text(path) as file:
        header = file.readline(MAX_ROW_BYTES)
    return max(DELIMITERS, key=_QUOTED.sub("", header).count)


def delimited_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a delimited file, the header first, with the number of its last line, from 1.

    A .csv quotes as in RFC 4180, tabs separate without quotes. Raises InputError for a row of another length than the header.
    """
    delimiter = delimiter_of(path)
    csv.field_size_limit(MAX_ROW_BYTES)  # global to the module; 131,072 characters by default, too few for long documents
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    with opened_text(path, newline="") as file:
        lines = iter(partial(file.readline, MAX_ROW_BYTES), "")
        reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
        try:
            header = next(reader, [])
            yield reader.line_num, header
            for row in filter(None, reader):
                if len(row) != len(header):
                    remedy = "replace tabs within fields" if delimiter == "\t" else "quote the fields that hold delimiters"
                    message = f"has {len(row)} fields but the header has {len(header)}; {remedy}"
                    raise InputError.at(f"{path}:{reader.line_num}", message)
                yield reader.line_num, row
        except csv.Error as error:
            raise InputError.at(f"{path}:{reader.line_num}", f"{error}; rewrite the file according to RFC 4180") from error


def _read_delimited(path: Path, column: str) -> Iterator[str]:
    rows = delimited_rows(path)
    _, header = next(rows)
    hint = f" (line 1 names the columns, with {DELIMITERS[delimiter_of(path)]} between them)"
    check_text_column(str(path), column, dict.fromkeys(header), hint)
    _check_one_column(str(path), column, header.count(column))
    index = header.index(column)
    yield from (row[index] for _, row in rows)


@contextmanager
def opened_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Open a text file, decompressed according to its suffix; raises InputError if it is not UTF-8."""
    try:
        with opened(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline) as text:
            yield text
    except UnicodeDecodeError as error:
        raise InputError.at(str(path), f"is not UTF-8 text (byte {first_bad_byte(path)}); {_remedy(path)}") from error


def _remedy(path: Path) -> str:
    with opened(path) as file:
        start = file.read(max(map(len, _LOOKS_LIKE)))
    kind = next((remedy for mark, remedy in _LOOKS_LIKE.items() if start.startswith(mark)), None)
    return "convert it first" if kind is None else f"it looks like {kind}"


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number (from 1) and object of each non-blank line of a JSON lines file.

    Raises InputError with line and byte for another line.
    """
    offset = 0
    with opened(path) as file:
        for number, line in enumerate(iter(partial(file.readline, MAX_ROW_BYTES), b""), 1):
            if len(line) == MAX_ROW_BYTES:
                raise InputError.at(f"{path}:{number}", f"is longer than {MAX_ROW_BYTES:,} bytes; put one object on each line")
            if not line.isspace():
                yield number, _object(f"{path}:{number}", line, offset)
            offset += len(line)


def _object(place: str, line: bytes, offset: int) -> dict[str, Any]:
    mark = len(codecs.BOM_UTF8) if offset == 0 and line.startswith(codecs.BOM_UTF8) else 0
    try:
        row = json_value(line[mark:].decode())
    except UnicodeDecodeError as error:
        where = f"byte {offset + mark + error.start} of the file"
        raise InputError.at(place, f"is not UTF-8 text ({where}); convert it first") from error
    except json.JSONDecodeError as error:
        where = f"byte {offset + mark + len(error.doc[: error.pos].encode())} of the file"
        raise InputError.at(place, f"is not JSON: {error.msg} ({where}); put one object on each line") from error
    except ValueError as error:  # a repeated key, deep nesting, a number of 5,000 digits
        raise InputError.at(place, f"cannot be read: {error}") from error
    if not isinstance(row, dict):
        raise InputError.at(place, f"is {shown(row)}, but an object is needed")
    return row


def _read_text(path: Path, _: str) -> Iterator[str]:
    document: list[str] = []
    length = 0
    with opened_text(path) as file:
        while line := file.readline(MAX_CHARACTERS):
            if "\0" in line:
                raise InputError.at(str(path), f"holds a NUL (byte {first_bad_byte(path)}), so it is not text")
            if not line.isspace():
                document.append(line)
                length += len(line)
            elif document:
                yield "".join(document)
                document, length = [], 0
            if length > MAX_CHARACTERS:
                *full, rest = pieces("".join(document))
                yield from full
                document, length = [rest], len(rest)
    if document:
        yield "".join(document)


def first_bad_byte(path: Path) -> int:
    """Return the offset of a file's first byte that is NUL or not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with opened(path) as file:
        while block := file.read(_BLOCK_BYTES):
            waiting = len(decoder.getstate()[0])
            nul = block.find(0)
            try:
                decoder.decode(block if nul < 0 else block[:nul])
            except UnicodeDecodeError as error:
                return offset - waiting + error.start
            if nul >= 0:
                return offset + nul
            offset += len(block)
    return offset - len(decoder.getstate()[0])


Reader = Callable[[Path, str], Iterator[str]]
"""Yields the documents of a file from the column of this name."""

_TABLES: dict[str, Reader] = {".parquet": _read_parquet, ".arrow": _read_arrow}
_LINES: dict[str, Reader] = {
    ".jsonl": _read_jsonl,
    ".csv": _read_delimited,
    ".tsv": _read_delimited,
    ".txt": _read_text,
}
"""The kinds that may be compressed."""

_READERS = _TABLES | _LINES

KINDS = f"{', '.join([*_TABLES, *_LINES])}, the last {len(_LINES)} also as {' or '.join(COMPRESSIONS)}"
"""The readable kinds of files, in words."""
