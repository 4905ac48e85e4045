"""The one way in which the workbench refuses bad input: every problem at once, each with its place, value and remedy."""

from __future__ import annotations

import difflib
import functools
import logging
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

PREEMPTED_EXIT = 75
"""Exit status of a run that saved and stopped because it was told to (EX_TEMPFAIL: try again)."""

OOM_EXIT = 71
"""Exit status by which an executor tells that a run was killed for want of memory (EX_OSERR)."""

GOES_ON = "the same command goes on from here"
"""What is said of work that stopped and kept what it had done."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where it is, what stands there, and what to do about it."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class InputError(Exception):
    """Input that cannot be used; carries all problems found, and the command line exits with 2."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def at(cls, place: str, message: str) -> InputError:
        """An error of a single problem."""
        return cls([Problem(place, message)])

    def __reduce__(self) -> tuple[type[InputError], tuple[tuple[Problem, ...]]]:
        return (type(self), (self.problems,))


def option_name(name: str) -> str:
    """How the option of a parameter is written on the command line, where it is a place of a problem."""
    return f"--{name.replace('_', '-')}"


LEAST_LIKENESS = 0.6
"""A known word is named alone where it has so much in common with the one that stands there."""


def nearest(word: str, known: list[str]) -> str:
    """The clause that names the nearest known word, or all where none is near."""
    if best := near(word, known):
        return f"did you mean {best!r}?"
    return "known: " + ", ".join(sorted(known)) if known else "nothing can stand here"


def near(word: str, known: list[str], least: float = LEAST_LIKENESS) -> str | None:
    """The known word that is nearest, None where none is so near."""
    best = max(known, key=functools.partial(_likeness, word), default=None)
    return None if best is None or _likeness(word, best) < least else best


def _likeness(word: str, one: str) -> float:
    """How alike a word and a known one are: the share that both have, 0 to 1.

    Above them, 2 where it has the initials, as `lr` has those of `learning_rate`, and 3 where only case differs. A word without
    dots is also compared with the last word of a path.
    """
    place, dot, last = one.rpartition(".")
    initials = "".join(part[:1] for part in last.split("_"))
    if word.lower() in (one.lower(), last.lower()):
        return 3.0
    if word in (place + dot + initials, initials):
        return 2.0
    return max(difflib.SequenceMatcher(None, word, end).ratio() for end in {one, one if "." in word else last})


def shown(value: object, limit: int = 60) -> str:
    """A value as an error message shows it: its repr, shortened, however much it holds."""
    shortened = reprlib.Repr()
    shortened.maxlevel, shortened.maxstring, shortened.maxother = 3, limit, limit
    text = shortened.repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def map_all(make: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """What is made of each item; raises InputError with the problems of all, each once."""
    results: list[ResultT] = []
    problems: list[Problem] = []
    for item in items:
        try:
            results.append(make(item))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(dict.fromkeys(problems))
    return results


def check_all(first: Callable[[], ResultT], *others: Callable[[], object]) -> ResultT:
    """Make all these checks and return what the first gives; raise InputError with the problems of all.

    What is wrong with one place is told by the first check that finds it.
    """
    results: list[Any] = []
    problems: list[Problem] = []
    for check in (first, *others):
        try:
            results.append(check())
        except InputError as error:
            told = {problem.place for problem in problems}
            problems += [problem for problem in error.problems if problem.place not in told]
    if problems:
        raise InputError(problems)
    result: ResultT = results[0]
    return result


UNREADABLE = (InputError, OSError, TypeError, ValueError)
"""What reading a folder raises whose files somebody damaged, for whoever goes on with the others and says so."""


def map_readable(make: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> tuple[list[ResultT], list[Problem]]:
    """What is made of each item that can be read, and the problems of the others."""
    results: list[ResultT] = []
    problems: list[Problem] = []
    for item in items:
        try:
            results.append(make(item))
        except InputError as error:
            problems += error.problems
        except OSError as error:
            problems.append(Problem(str(error.filename or ""), f"cannot be read: {error.strerror or error}"))
    return results, problems


def warn_of(problems: Iterable[Problem]) -> None:
    """Log each problem, once in the life of a process."""
    for problem in problems:
        _warn(str(problem))


@functools.cache
def _warn(message: str) -> None:
    logger.warning("left out: %s", "".join(character for character in message if character.isprintable()))
