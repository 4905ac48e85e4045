"""Calls in processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


def apart(function: Callable[..., ResultT], *arguments: Any, **named: Any) -> ResultT:
    """What a function gives in a new process, which has imported nothing of this one's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *arguments, **named).result()
