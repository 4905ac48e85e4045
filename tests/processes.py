"""Calls in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

from study.executing.processes import start_forkserver

ResultT = TypeVar("ResultT")


def apart(function: Callable[..., ResultT], *arguments: Any, **named: Any) -> ResultT:
    """What a function gives in a new process with this one's environment, where types are not checked at run time.

    It has what the forkserver of jobs has imported, torch among it, and nothing of this process.
    """
    with ProcessPoolExecutor(1, start_forkserver(), initializer=_take, initargs=(dict(os.environ),)) as process:
        return process.submit(function, *arguments, **named).result()


def _take(environment: dict[str, str]) -> None:
    os.environ.update(environment)
