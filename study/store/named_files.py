"""Named files of a folder, and how models, reasons, arrays and tables are read and written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from study.base.durable_files import content_of, json_in, json_of, write_atomically, write_once
from study.base.errors import InputError, Problem
from study.base.schema import ModelT, Strict

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

ScalarT = TypeVar("ScalarT", bound=np.generic)

_NPY_HEADER_BYTES = 128
"""Of a vector: the header is padded to a multiple of 64 bytes, and no length of a vector takes more."""


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


def parsed(content: bytes | None, place: str, model: type[ModelT], remedy: str) -> ModelT | None:
    """Parse a model from JSON, None if there is no text; raises InputError with place and remedy."""
    values = json_in(content, place, dict, remedy)
    try:
        return None if values is None else model.parse(values, place=place)
    except InputError as error:
        message = f"is damaged, or of another version of the workbench; {remedy}, or read it with that version"
        raise InputError([Problem(place, message), *error.problems]) from None


def array_content(values: NDArray[np.generic]) -> bytes:
    """An array as NumPy saves it."""
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=False)
    return buffer.getvalue()


def array_in(content: bytes, kind: type[ScalarT]) -> NDArray[ScalarT]:
    """The vector of numbers of one kind that NumPy saved as this content.

    Raises ValueError for any other content. `np.load` reads Python from the header, and a flipped bit makes it raise anything.
    """
    values = np.frombuffer(content[_NPY_HEADER_BYTES:], kind)
    if array_content(values) != content:
        raise ValueError(f"no vector of {kind.__name__}")
    return values


def file_once(file: Path, record: Strict) -> bool:
    """Link a record into place; False if one exists already, which stays."""
    return write_once(file, record.model_dump_json(indent=1, exclude_none=True).encode() + b"\n")


def reason_in(file: Path, remedy: str) -> str | None:
    """The reason in a file, None if there is none; raises InputError with the remedy if it is damaged."""
    values = json_of(file, dict, remedy)
    if values is not None and "reason" not in values:
        raise InputError.at(str(file), f"is damaged: it gives no reason; {remedy}")
    return None if values is None else str(values["reason"])


def read_parquet(file: Path, remedy: str) -> pd.DataFrame:
    """Read a Parquet file; raises InputError with the remedy if it is missing or damaged."""
    import pandas as pd

    if (content := content_of(file)) is None:
        raise InputError.at(str(file), f"does not exist; {remedy}")
    try:
        return pd.read_parquet(io.BytesIO(content))
    except (ValueError, OSError, NotImplementedError) as error:  # pyarrow's, of damage at any place
        raise InputError.at(
            str(file), f"cannot be read as parquet: {' '.join(str(error).split())[:200].rstrip('.')}; {remedy}"
        ) from None


def write_table(file: Path, table: pd.DataFrame) -> None:
    """Write a table as Parquet, and as CSV beside it, each atomically."""
    contents = {file: table.to_parquet(None, index=False), file.with_suffix(".csv"): table.to_csv(index=False).encode()}
    for path, content in contents.items():
        write_atomically(path, content)
