"""Paths as people write them, and as they paste them."""

from __future__ import annotations

import shlex
from pathlib import Path

from study.base.errors import InputError


def path_from(text: str, place: str) -> Path:
    """The path of a text, ~ and ~name as homes; raises InputError at the place where a home is nobody's."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError.at(place, f"{text!r} begins with a home that is nobody's; give the whole path") from None


def pasted(path: Path) -> str:
    """A path as a shell takes it, for a command that is told to be pasted."""
    return shlex.quote(str(path))
