"""Named files, and how models, reasons, arrays and tables are read and written."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from study.base.durable_files import content_of, json_in, json_of, write_atomically, write_once
from study.base.errors import InputError, Problem
from study.base.schema import ModelT, Strict

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

ScalarT = TypeVar("ScalarT", bound=np.generic)

_NPY_HEADER_BYTES = 128
"""The header size of a vector: a multiple of 64 bytes, and no vector's length needs more than 128."""

ZSTD_LEVEL = 9
"""The level for Parquet; the highest saves a thirtieth in ten times the time."""

_VERSION = "schema_version"
"""The field that numbers the versions of a model's files."""


class Folder:
    """A folder with named files; only writing creates anything."""

    def __init__(self, path: Path) -> None:
        self.path = path


class Inside:
    """A descriptor: the path of a name inside a Folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Folder, _: type) -> Path:
        return folder.path / self.name


class Newer(Problem):
    """A file that a newer version of the workbench wrote."""


def refuse_newer(problems: Iterable[Problem]) -> None:
    """Raise InputError if a newer version wrote any of the files."""
    if newer := [problem for problem in problems if isinstance(problem, Newer)]:
        raise InputError(newer)


def parsed(content: bytes | None, place: str, model: type[ModelT], remedy: str) -> ModelT | None:
    """Parse a model from JSON, None without content; raises InputError."""
    values = json_in(content, place, dict, remedy)
    known = model.model_fields[_VERSION].default if _VERSION in model.model_fields else None
    if values is not None and known is not None and isinstance(theirs := values.get(_VERSION), int) and theirs > known:
        message = f"is of schema version {theirs}, and this version of the workbench reads up to {known}; install the newer one"
        raise InputError([Newer(place, message)])
    try:
        return None if values is None else model.parse(values, place=place)
    except InputError as error:
        message = f"is damaged, or of another version of the workbench; {remedy}, or read it with that version"
        raise InputError([Problem(place, message), *error.problems]) from None


def array_content(values: NDArray[np.generic]) -> bytes:
    """Return an array in NumPy's file format."""
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def array_in(content: bytes, kind: type[ScalarT]) -> NDArray[ScalarT]:
    """Return the vector in a NumPy file; raises ValueError for other content.

    `np.load` parses the header as Python, so a flipped bit can raise anything.
    """
    values = np.frombuffer(content[_NPY_HEADER_BYTES:], kind)
    if array_content(values) != content:
        raise ValueError(f"not a vector of {kind.__name__}")
    return values


def file_once(file: Path, record: Strict) -> bool:
    """Link a record into place; False if one exists, which stays."""
    return write_once(file, record.model_dump_json(indent=1, exclude_none=True).encode() + b"\n")


def reason_in(file: Path, remedy: str) -> str | None:
    """Return the reason in a file, None if missing; raises InputError."""
    values = json_of(file, dict, remedy)
    if values is not None and "reason" not in values:
        raise InputError.at(str(file), f"is damaged: it has no reason; {remedy}")
    return None if values is None else str(values["reason"])


def read_parquet(file: Path, remedy: str) -> pd.DataFrame:
    """Read a Parquet file; raises InputError."""
    import pandas as pd

    if (content := content_of(file)) is None:
        raise InputError.at(str(file), f"does not exist; {remedy}")
    try:
        return pd.read_parquet(io.BytesIO(content))
    except (ValueError, OSError, NotImplementedError) as error:  # pyarrow's errors for damaged files
        raise InputError.at(
            str(file), f"cannot be read as parquet: {' '.join(str(error).split())[:200].rstrip('.')}; {remedy}"
        ) from None


def as_read(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the types that Parquet gives it."""
    import pandas as pd

    return pd.read_parquet(io.BytesIO(_as_parquet(table)))


def write_table(file: Path, table: pd.DataFrame) -> None:
    """Write a table as Parquet and CSV, each atomically."""
    contents = {file: _as_parquet(table), file.with_suffix(".csv"): table.to_csv(index=False).encode()}
    for path, content in contents.items():
        write_atomically(path, content)


def _as_parquet(table: pd.DataFrame) -> bytes:
    """Return a table as Parquet without what pandas notes of it, which is larger than its few rows."""
    import pyarrow as pa

    attributes = {"PANDAS_ATTRS": json.dumps(table.attrs)}  # where pandas reads `attrs`
    return parquet_content(pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(attributes))


def parquet_content(table: Any, dictionaries: Collection[str] = (), floats: Collection[str] = ()) -> bytes:
    """Return an Arrow table as Parquet, without statistics; floats as byte streams, which halves them."""
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
