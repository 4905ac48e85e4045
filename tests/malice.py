"""What a reader does with made-up input: it reads it, or reports each problem on a line that says something."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from study.base.errors import InputError, Problem
from study.base.text import printable

T = TypeVar("T")


def outcome(read: Callable[[], T]) -> tuple[T | None, tuple[Problem, ...]]:
    """What is read, and no problems; or nothing, and what is wrong. Whatever else is raised fails the test."""
    try:
        return read(), ()
    except InputError as error:
        problems = error.problems
    assert problems
    assert all(problem.message and printable(str(problem)) for problem in problems)
    assert max(len(problem.message) for problem in problems) < 4000, "a message is no copy of what stands there"
    return None, problems
