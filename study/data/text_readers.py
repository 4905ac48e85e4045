"""Documents from a user's own files: Parquet, Arrow, JSON lines, CSV and plain text, read in bounded memory.

Each reader yields one text a document, empty where a row holds none. Memory is bounded by the largest page of a Parquet
file or batch of an Arrow file, by 64 MiB for a line of JSON or a field of CSV, and by a few megabytes for plain text, however
long its lines. Text files may be compressed by gzip or zstd.

Parquet, Arrow and compression are read by pyarrow and the rest by the standard library: unlike `datasets.load_dataset`, they
leave no second copy on the disk, take a path with `[` in it as it stands, infer no dates from strings, and say at which row or
byte a file goes wrong.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

from study.base.errors import InputError, nearest, shown
from study.base.schema import flatten

MAX_CHARACTERS = 1_000_000
"""The longest document; a longer one is cut at white space into several."""

MAX_ROW_BYTES = 64 * 2**20
"""The longest row of a text file that is read into memory as a whole."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
"""How text files may be compressed, by their last suffix."""

_BLOCK_BYTES = 2**20
_ROWS = 256
_FILE_FORMAT = b"ARROW1"
"""How an Arrow file begins that is no stream."""


def kind_of(path: Path) -> str | None:
    """The suffix by which a file is read, such as .jsonl or .jsonl.gz, None where it is of no known kind."""
    suffix, compression = _suffixes(path)
    known = _LINES if compression else _READERS
    return suffix + compression if suffix in known else None


def read_file(path: Path, text_column: str) -> Iterator[str]:
    """The documents of one file of a known kind in order; a .txt separates them by blank lines and ignores `text_column`.

    A dotted column is a field of nested values, unless a column has just that name. In JSON lines, the rows after the first
    may lack the column, and hold no text then. Raises InputError where the file is not what its suffix says, the column is
    missing, or holds something else than text.
    """
    suffix, _ = _suffixes(path)
    try:
        yield from _READERS[suffix](path, text_column)
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror or error}") from error


def _suffixes(path: Path) -> tuple[str, str]:
    """The suffix of a file's kind, and that of its compression, empty where it is not compressed."""
    last = path.suffix.lower()
    return (Path(path.stem).suffix.lower(), last) if last in COMPRESSIONS else (last, "")


def opened(path: Path) -> BinaryIO:
    """The bytes of a file, decompressed where its suffix says so."""
    if (compression := COMPRESSIONS.get(path.suffix.lower())) is None:
        return path.open("rb")
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(str(path), compression=compression))


def pieces(text: str, limit: int = MAX_CHARACTERS) -> Iterator[str]:
    """A text in parts of at most `limit` characters, cut behind the last space or newline; joined they are the text."""
    start = 0
    while len(text) - start > limit:
        space = max(text.rfind(" ", start, start + limit), text.rfind("\n", start, start + limit))
        end = space + 1 if space >= start else start + limit
        yield text[start:end]
        start = end
    yield text[start:]


def check_text_column(place: str, column: str, columns: dict[str, bool]) -> None:
    """Refuse a column that is not there or not text; `columns` says of each whether it is.

    Raises InputError with the nearest column that holds text.
    """
    texts = [name for name, is_text in columns.items() if is_text]
    if column not in columns:
        raise InputError.at("data.text_column", f"{column!r} is not a column of {place}; {nearest(column, texts)}")
    if not columns[column]:
        raise InputError.at("data.text_column", f"{column!r} does not hold text in {place}; {nearest(column, texts)}")


def text_field(place: str, column: str, schema: Any) -> tuple[str, ...]:
    """The names that lead to a column of text in an Arrow schema, from the outer one to the inner one.

    Raises InputError where there is none, with the nearest that there is.
    """
    fields = {".".join(names): (names, _is_text(kind)) for names, kind in reversed(list(_fields(schema)))}
    check_text_column(place, column, {name: is_text for name, (_, is_text) in fields.items()})
    names: tuple[str, ...] = fields[column][0]
    return names


def texts_in(batch: Any, field: tuple[str, ...]) -> Iterator[str]:
    """The texts of a batch or table of Arrow, empty where a row holds none."""
    import pyarrow.compute as pc

    outer, *inner = field
    values = batch.column(outer)
    yield from (value.as_py() or "" for value in (pc.struct_field(values, inner) if inner else values))


def _fields(fields: Iterable[Any], outer: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field of a schema, the nested ones behind the one that they are of, with the names that lead there and its type."""
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
    """A stream, as save_to_disk of `datasets` writes it, or a file."""
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        with pa.memory_map(str(path)) as source:
            is_file = source.read(len(_FILE_FORMAT)) == _FILE_FORMAT
            source.seek(0)
            reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            field = text_field(str(path), column, reader.schema)
            found = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
            yield from ((batch, field) for batch in found)

    yield from _arrow_texts(path, column, "an Arrow file", batches)


def _arrow_texts(path: Path, column: str, what: str, batches: Callable[[], Iterator[Any]]) -> Iterator[str]:
    """The texts of the batches of a file; raises InputError with the row where it goes wrong."""
    import pyarrow as pa

    done = 0
    try:
        for batch, field in batches():
            for text in texts_in(batch, field):
                yield text
                done += 1
    except pa.ArrowInvalid as error:
        raise InputError.at(str(path), f"is not {what}, or damaged behind row {done}: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError.at(
            str(path), f"row {done} (from 0) is not UTF-8 text (byte {error.start} of column {column!r})"
        ) from error


def _read_jsonl(path: Path, column: str) -> Iterator[str]:
    for place, (number, row) in enumerate(json_rows(path)):
        known, value = _value(row, column)
        if not isinstance(value, str | None) or not (known or place):
            columns = {key: isinstance(found, str | None) for key, found in (flatten(row) | row).items()}
            check_text_column(f"{path}:{number}", column, columns)
        yield value or ""


def _value(row: dict[str, Any], column: str) -> tuple[bool, Any]:
    """Whether a row has a key, dotted where it is of nested values, and its value; fields of null are null."""
    if column in row:
        return True, row[column]
    found: Any = row
    for name in column.split("."):
        if found is None:
            return True, None
        if not isinstance(found, dict) or name not in found:
            return False, None
        found = found[name]
    return True, found


def _read_delimited(delimiter: str, path: Path, column: str) -> Iterator[str]:
    """A file with a header; a .tsv knows no quotes, a .csv has those of RFC 4180."""
    csv.field_size_limit(MAX_ROW_BYTES)  # a module's, of 131,072 characters otherwise, which a long document has
    quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    with opened_text(path, newline="") as file:
        lines = iter(partial(file.readline, MAX_ROW_BYTES), "")
        reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
        try:
            header = next(reader, [])
            check_text_column(str(path), column, dict.fromkeys(header, True))
            place = header.index(column)
            for row in filter(None, reader):
                if len(row) != len(header):
                    message = f"has {len(row)} fields where the header has {len(header)}; quote the fields that hold delimiters"
                    raise InputError.at(f"{path}:{reader.line_num}", message)
                yield row[place]
        except csv.Error as error:
            raise InputError.at(f"{path}:{reader.line_num}", f"{error}; write the file again as RFC 4180 has it") from error


@contextmanager
def opened_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """The characters of a file of UTF-8, decompressed where its suffix says so; raises InputError where it is not UTF-8."""
    try:
        with opened(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline) as text:
            yield text
    except UnicodeDecodeError as error:
        raise InputError.at(str(path), f"is not UTF-8 text (byte {first_bad_byte(path)}); convert it first") from error


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with the number of its line from 1; blank lines hold none.

    Raises InputError with line and byte where a line is too long, no UTF-8 text, or no object.
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
        row = json.loads(line[mark:].decode())
    except UnicodeDecodeError as error:
        where = f"byte {offset + mark + error.start} of the file"
        raise InputError.at(place, f"is not UTF-8 text ({where}); convert it first") from error
    except json.JSONDecodeError as error:
        where = f"byte {offset + mark + len(error.doc[: error.pos].encode())} of the file"
        raise InputError.at(place, f"is not JSON: {error.msg} ({where}); put one object on each line") from error
    except RecursionError as error:
        raise InputError.at(place, "is nested too deeply") from error
    except ValueError as error:  # of a number of 5,000 digits
        raise InputError.at(place, f"cannot be read: {error}") from error
    if not isinstance(row, dict):
        raise InputError.at(place, f"is {shown(row)} where an object is needed")
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
    """The offset of the first byte of a file's text that is NUL or not UTF-8."""
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
"""The documents of a file, whose column of this name holds the text."""

_TABLES: dict[str, Reader] = {".parquet": _read_parquet, ".arrow": _read_arrow}
_LINES: dict[str, Reader] = {
    ".jsonl": _read_jsonl,
    ".csv": partial(_read_delimited, ","),
    ".tsv": partial(_read_delimited, "\t"),
    ".txt": _read_text,
}
"""The kinds that may be compressed."""

_READERS = _TABLES | _LINES

KINDS = f"{', '.join([*_TABLES, *_LINES])}, the last {len(_LINES)} also as {' or '.join(COMPRESSIONS)}"
"""The kinds of files that are read, in words."""
