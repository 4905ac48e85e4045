"""Named encoders of the literature, read from the table beside this module; found by name or alias, in any case."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from study.architecture import Architecture
from study.errors import InputError
from study.schema import nearest
from study.solving import ShapeRules

SIZES = ("depth", "width", "heads", "ffn", "vocabulary", "positions", "segments")


def named_models() -> dict[str, Architecture]:
    """Every named model by its name, in the order of the table."""
    return {row["name"]: Architecture.parse({size: int(row[size]) for size in SIZES}) for row in _rows()}


def named(name: str) -> Architecture:
    """The architecture of a named model; raises InputError with the nearest known name."""
    known = {alias.lower(): row["name"] for row in _rows() for alias in (row["name"], *row["aliases"].split())}
    if name.lower() not in known:
        raise InputError.at(name, f"is not a known model; {nearest(name.lower(), sorted(known))}")
    return named_models()[known[name.lower()]]


def architecture_of(name: str | None, sizes: Mapping[str, Any]) -> Architecture:
    """A named model with some sizes changed, or a shape given by its sizes alone.

    Without a name depth and width are needed; heads are width/64 and ffn 4 · width unless given, as in BERT, and the
    vocabulary has 30,522 word pieces. Raises InputError for an unknown name or an impossible shape.
    """
    if name is not None:
        return Architecture.parse(named(name).model_dump() | dict(sizes), place=name)
    if missing := [size for size in ("depth", "width") if size not in sizes]:
        raise InputError.at(f"--{missing[0]}", "is missing; give a model's NAME, or --depth and --width")
    defaults: dict[str, Any] = {"vocabulary": 30522}
    if sizes["width"] > 0:
        rules = ShapeRules()
        defaults |= {"heads": rules.heads(sizes["width"]), "ffn": rules.ffn(sizes["width"])}
    return Architecture.parse(defaults | dict(sizes))


def _rows() -> list[dict[str, str]]:
    with files("study").joinpath("named_models.csv").open(encoding="utf-8") as table:
        return list(csv.DictReader(table))
