"""Text from a user's own files: Parquet, JSON lines and plain text, read in bounded memory, refused with place and remedy.

Each reader yields one text a document, empty where a row holds none. Memory is bounded by the largest page of a Parquet
file, by 64 MiB for a line of JSON, and by a few megabytes for plain text, however long its lines.

Parquet is read by pyarrow and the rest by the standard library: unlike `datasets.load_dataset`, they leave no second copy on
the disk, take a path with `[` in it as it stands, infer no dates from strings, and say at which row or byte a file goes wrong.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from study.base.durable_files import files_below, is_there
from study.base.errors import InputError, nearest, shown
from study.base.paths import path_from

MAX_CHARACTERS = 1_000_000
"""The longest document; a longer one is cut at white space into several."""

MAX_ROW_BYTES = 64 * 2**20
"""The longest row of a text file that is read into memory as a whole."""

_BLOCK_BYTES = 2**20
_ROWS = 256


def corpus_files(corpus: str) -> list[Path]:
    """The files of a corpus, in the order in which they are read: the path itself, or all known kinds below a folder, sorted.

    Raises InputError where nothing is there, the suffix is unknown, a file is empty, or a folder holds no known kind.
    """
    try:
        return _files_at(corpus)
    except OSError as error:  # of a name too long, or of a folder below that lists no files
        what = f"{error.strerror} ({shown(str(error.filename))})"
        raise InputError.at("data.corpus", f"{shown(corpus)} cannot be read: {what}; give a file or a folder of text") from None


def _files_at(corpus: str) -> list[Path]:
    path = path_from(corpus, "data.corpus")
    kinds = ", ".join(_READERS)
    if path.is_dir():
        files = sorted(file for file in files_below(path) if file.suffix.lower() in _READERS and file.is_file())
        if not files:
            raise InputError.at("data.corpus", f"the folder {corpus!r} holds no {kinds} file")
    elif not is_there(path):
        remedy = f"give docstrings, a path, or hub:NAME[:CONFIG] (looked at {path.absolute()})"
        raise InputError.at("data.corpus", f"{corpus!r} does not exist; {remedy}")
    elif path.suffix.lower() not in _READERS:
        raise InputError.at("data.corpus", f"{corpus!r} has an unknown suffix; known: {kinds}")
    else:
        files = [path]
    for file in files:
        if file.stat().st_size == 0:
            raise InputError.at("data.corpus", f"{str(file)!r} is empty; remove it or fill it")
    return files


def read_file(path: Path, text_column: str) -> Iterator[str]:
    """The documents of one file in order; a .txt separates them by blank lines and ignores `text_column`.

    Raises InputError where the file is not what its suffix says, the column is missing, or holds something else than text.
    """
    try:
        yield from _READERS[path.suffix.lower()](path, text_column)
    except OSError as error:
        raise InputError.at(str(path), f"cannot be read: {error.strerror or error}") from error


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


def _read_parquet(path: Path, column: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    try:
        with pq.ParquetFile(path) as file:
            check_text_column(str(path), column, {field.name: _is_text(field.type) for field in file.schema_arrow})
            for batch in file.iter_batches(batch_size=_ROWS, columns=[column]):
                for value in batch.column(0):
                    yield value.as_py() or ""
                    done += 1
    except pa.ArrowInvalid as error:
        raise InputError.at(str(path), f"is not a Parquet file, or damaged behind row {done}: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError.at(
            str(path), f"row {done} (from 0) is not UTF-8 text (byte {error.start} of column {column!r})"
        ) from error


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _read_jsonl(path: Path, column: str) -> Iterator[str]:
    for number, row in json_rows(path):
        check_text_column(f"{path}:{number}", column, {key: isinstance(value, str | None) for key, value in row.items()})
        yield row[column] or ""


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, each with the number of its line from 1; blank lines hold none.

    Raises InputError with line and byte where a line is too long, no UTF-8 text, or no object.
    """
    offset = 0
    with path.open("rb") as file:
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
    try:
        with path.open(encoding="utf-8-sig") as file:
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
    except UnicodeDecodeError as error:
        raise InputError.at(str(path), f"is not UTF-8 text (byte {first_bad_byte(path)}); convert it first") from error
    if document:
        yield "".join(document)


def first_bad_byte(path: Path) -> int:
    """The offset of the first byte of a file that is NUL or not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with path.open("rb") as file:
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


_READERS = {".parquet": _read_parquet, ".jsonl": _read_jsonl, ".txt": _read_text}
