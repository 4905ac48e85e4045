"""Reject bad input with all problems at once."""

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
"""Exit status of a run that saved and stopped on request (EX_TEMPFAIL: try again)."""

OOM_EXIT = 71
"""Exit status that an executor gives a run that ran out of memory (EX_OSERR)."""

GOES_ON = "the same command continues from here"
"""The remedy for work that stopped after saving."""


@dataclass(frozen=True)
class Problem:
    """A place, and a message with the value and the remedy."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class InputError(Exception):
    """Unusable input, with all its problems; the command line exits with 2."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    @classmethod
    def at(cls, place: str, message: str) -> InputError:
        """Return an error with a single problem."""
        return cls([Problem(place, message)])

    def __reduce__(self) -> tuple[type[InputError], tuple[tuple[Problem, ...]]]:
        return (type(self), (self.problems,))


def option_name(name: str) -> str:
    """Return the command-line spelling of a parameter."""
    return f"--{name.replace('_', '-')}"


MOST_KNOWN = 100
"""At most so many known words are named."""

LONGEST_KNOWN = 60
"""So many characters of a known word are named, such as a line of text that is taken for the header of a table."""

LEAST_LIKENESS = 0.6
"""The least similarity at which one known word is suggested."""


def nearest(word: str, known: list[str]) -> str:
    """Return a clause with the nearest known word, or the known ones."""
    if best := near(word, known):
        return f"did you mean {cut(best)!r}?"
    more = ", …" if len(known) > MOST_KNOWN else ""
    return "known: " + ", ".join(map(cut, sorted(known)[:MOST_KNOWN])) + more if known else "nothing is allowed here"


def cut(word: str) -> str:
    """Return a word without the end of a long one."""
    return word if len(word) <= LONGEST_KNOWN else word[:LONGEST_KNOWN] + "…"


def near(word: str, known: list[str], least: float = LEAST_LIKENESS) -> str | None:
    """Return the nearest known word, None if none is near enough."""
    best, most, matcher = None, least, difflib.SequenceMatcher(None, b=word)
    for one in known:
        likeness = _likeness(word, one, matcher, most)
        if likeness > most or (best is None and likeness == most):
            best, most = one, likeness
    return best


def _likeness(word: str, one: str, matcher: difflib.SequenceMatcher[str], least: float) -> float:
    """Return the similarity of two words: from 0 to 1, 2 if the initials match (`lr`, `learning_rate`), 3 if only case differs.

    A word without dots is also compared with the last word of a path. The matcher holds the word; similarities below `least`
    may be 0.
    """
    parent, dot, last = one.rpartition(".")
    initials = "".join(part[:1] for part in last.split("_"))
    if word.lower() in (one.lower(), last.lower()):
        return 3.0
    if word in (parent + dot + initials, initials):
        return 2.0
    best = 0.0
    for end in {one, one if "." in word else last}:
        matcher.set_seq1(end)
        if matcher.real_quick_ratio() >= least and matcher.quick_ratio() >= least:
            best = max(best, matcher.ratio())
    return best


def shown(value: object, limit: int = 60) -> str:
    """Return the repr of a value, shortened for a message."""
    shortened = reprlib.Repr()
    shortened.maxlevel, shortened.maxstring, shortened.maxother = 3, limit, limit
    text = shortened.repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def map_all(make: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """Map a function over items and raise all distinct problems together."""
    results, problems = _collect(make, items)
    if problems:
        raise InputError(dict.fromkeys(problems))
    return results


def check_all(first: Callable[[], ResultT], *others: Callable[[], object]) -> ResultT:
    """Run every check, raise all problems together, and return the first result.

    At each place, the first check with problems reports them; those without a place are each reported once.
    """
    results: list[Any] = []
    problems: list[Problem] = []
    for check in (first, *others):
        try:
            results.append(check())
        except InputError as error:
            reported = {problem.place for problem in problems if problem.place}
            problems += [each for each in error.problems if each.place not in reported and each not in problems]
    if problems:
        raise InputError(problems)
    result: ResultT = results[0]
    return result


UNREADABLE = (InputError, OSError, TypeError, ValueError)
"""Errors from reading a damaged folder, for callers that report it and continue with other folders."""


def map_readable(make: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> tuple[list[ResultT], list[Problem]]:
    """Map a function over items; return results and the problems of unreadable items."""

    def read(item: ItemT) -> ResultT:
        try:
            return make(item)
        except OSError as error:
            raise InputError.at(str(error.filename or ""), f"cannot be read: {error.strerror or error}") from error

    return _collect(read, items)


def _collect(make: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> tuple[list[ResultT], list[Problem]]:
    results: list[ResultT] = []
    problems: list[Problem] = []
    for item in items:
        try:
            results.append(make(item))
        except InputError as error:
            problems += error.problems
    return results, problems


def warn_of(problems: Iterable[Problem]) -> None:
    """Log each problem once per process."""
    for problem in problems:
        _warn(str(problem))


@functools.cache
def _warn(message: str) -> None:
    logger.warning("left out: %s", "".join(character for character in message if character.isprintable()))
