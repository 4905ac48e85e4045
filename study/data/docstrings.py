"""The built-in corpus: docstrings of the scientific packages and the standard library.

A document is a docstring of at least 200 characters, dedented, without lines that hold no letter or digit (heading rulers
would be a tenth of all tokens). The package list is fixed to the project's own dependencies, so an extra such as `dev` leaves
the corpus unchanged. Test folders are excluded, since Linux distributions drop them. Source files are parsed, never imported.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from study.base.errors import InputError
from study.base.machine import garbage_collection_paused
from study.base.text import without_lone_surrogates
from study.config.run_config import fingerprint_of
from study.data.cache import cache_root, open_entry

PACKAGES = (
    "matplotlib",
    "mpmath",
    "networkx",
    "numpy",
    "optuna",
    "pandas",
    "python",
    "scipy",
    "seaborn",
    "sympy",
    "torch",
    "torchmetrics",
)
"""The packages read; `python` is the standard library."""

_MIN_CHARACTERS = 200
_LEFT_OUT = frozenset({"test", "tests", "testing", "idle_test", "site-packages", "dist-packages", "__pycache__"})
_BODIES = ("body", "orelse", "handlers", "finalbody", "cases")
_WORD = re.compile(r"[^\W_]")
_VERSION = 1


def docstrings_identity(packages: tuple[str, ...] = PACKAGES) -> str:
    """Return 16 hex digits of SHA-256 over source file names and sizes and Python's minor version."""
    digest = hashlib.sha256()
    for name, path in source_files(packages):
        digest.update(f"{name} {path.stat().st_size}\n".encode())
    return fingerprint_of([_VERSION, sys.version_info[:2], digest.hexdigest()])


def read_docstrings(packages: tuple[str, ...] = PACKAGES, *, progress: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (package, docstring) for each distinct docstring, by path and then by position in the file.

    The first call parses about 110 MB of source (15 s) and caches the docstrings.
    """
    import pyarrow.parquet as pq

    folder = cache_root() / "docstrings" / docstrings_identity(packages)
    open_entry(folder, lambda new: _write(new / "docstrings.parquet", packages, progress))
    with pq.ParquetFile(folder / "docstrings.parquet") as file:
        for batch in file.iter_batches(batch_size=1024):
            yield from zip(batch["package"].to_pylist(), batch["text"].to_pylist(), strict=True)


def source_files(packages: tuple[str, ...] = PACKAGES) -> list[tuple[str, Path]]:
    """Return the source files sorted by name (`torch/nn/functional.py`).

    Raises InputError if a package is not installed.
    """
    files = []
    for package in packages:
        root = _root_of(package)
        for folder, below, names in os.walk(root):
            below[:] = [name for name in below if name not in _LEFT_OUT]
            here = Path(folder)
            prefix = (Path(package) / here.relative_to(root)).as_posix()
            files += [(f"{prefix}/{name}", here / name) for name in names if name.endswith(".py")]
    return sorted(files)


def docstrings_of(source: bytes) -> Iterator[str]:
    """Yield the docstrings of a module, then of its classes and functions; none if it does not parse.

    Visiting only statements takes a third of the time of `ast.walk`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            waiting: list[Any] = [ast.parse(source)]
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield "\n".join(line for line in docstring.splitlines() if _WORD.search(line))
        below = [child for body in _BODIES for child in getattr(node, body, ())]
        waiting.extend(reversed(below))


def _root_of(package: str) -> Path:
    if package == "python":
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise InputError.at(
            "data.corpus", f"docstrings needs the package {package}, which is not installed; reinstall the project"
        )
    return Path(spec.submodule_search_locations[0])


def _write(file: Path, packages: tuple[str, ...], progress: bool) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts: dict[str, str] = {}
    sources = source_files(packages)
    with garbage_collection_paused():  # syntax trees hold no cycles; collecting while they grow takes a quarter of the time
        for name, path in track(sources, "Reading docstrings", console=Console(stderr=True), disable=not progress):
            for text in docstrings_of(path.read_bytes()):
                if len(text) >= _MIN_CHARACTERS:
                    texts.setdefault(without_lone_surrogates(text), name.partition("/")[0])
    table = pa.table({"package": list(texts.values()), "text": list(texts)})
    pq.write_table(table, file, compression="zstd", row_group_size=4096)
    return {"files": len(sources), "documents": len(texts), "characters": sum(map(len, texts))}
