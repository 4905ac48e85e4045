"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

from study.errors import InputError


def path_from(text: str, place: str) -> Path:
    """The path of a text, ~ and ~name as homes; raises InputError at the place where a home is nobody's."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError.at(place, f"{text!r} begins with a home that is nobody's; give the whole path") from None
