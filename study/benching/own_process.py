"""Measurements in a fresh process, without the command's memory, threads or caches."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from study.benching.results import Report, failure
from study.executing.processes import log_into

P = ParamSpec("P")
R = TypeVar("R")


def in_own_process(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a new process without output; returns its result or raises its exception."""
    with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
        spawn: Any = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn, initializer=log_into, initargs=(Path(folder) / "log",)) as pool:
            return pool.submit(function, *args, **kwargs).result()


@contextmanager
def failures_reported(what: str, report: Report) -> Iterator[None]:
    """Report an exception of the block as a failure row and continue."""
    try:
        yield
    except Exception as error:
        first_line, *_ = [*str(error).strip().splitlines(), "no message"]
        report(failure(what, f"{type(error).__name__}: {first_line}"))
