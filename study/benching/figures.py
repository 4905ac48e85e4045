"""Single figures with their targets, the rows of most sections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Tell = Callable[[dict[str, Any]], None]
"""Told each row when it is finished."""


def figure(
    what: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None, sentence: str = ""
) -> dict[str, Any]:
    """A figure as a row: what it is, its value and unit, and whether it meets the target, where there is one."""
    met = None
    if at_most is not None:
        met = value <= at_most
    elif at_least is not None:
        met = value >= at_least
    row = {"what": what, "value": value, "unit": unit, "at_most": at_most, "at_least": at_least, "met": met, "error": None}
    return row | ({"sentence": sentence} if sentence else {})


def failed(what: str, error: str) -> dict[str, Any]:
    """The row of a figure that could not be measured."""
    return {"what": what, "value": None, "unit": "", "at_most": None, "at_least": None, "met": None, "error": error}
