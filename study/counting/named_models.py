"""Named encoders of the literature, from the table beside this module."""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from study.base.errors import InputError, nearest
from study.counting.architecture import ALWAYS_WRITTEN, NOT_IN_MLM, Architecture, changed, unlike_bert
from study.counting.solving import ShapeRules


@dataclass(frozen=True)
class NamedModel:
    """One row of the table: a model's names, its published size, and the sources.

    `published_status` is the source of that size, mostly from memory of the paper or card. Empty cells mean BERT's value.
    """

    name: str
    family: str
    aliases: tuple[str, ...]
    published: str
    published_status: str
    source: str
    sizes: Mapping[str, str]

    @property
    def short_name(self) -> str:
        """The shortest usual name, such as bert-base."""
        return self.aliases[0]

    @property
    def architecture(self) -> Architecture:
        """The architecture; a test checks that every row has one."""
        return Architecture.parse(self.sizes, place=self.name)


def catalogue() -> tuple[NamedModel, ...]:
    """Every named model, in the table's order."""
    with files("study.counting").joinpath("named_models.csv").open(encoding="utf-8") as table:
        return tuple(_model(row) for row in csv.DictReader(table))


def _model(row: dict[str, str]) -> NamedModel:
    facts = {key: row.pop(key) for key in ("name", "family", "published", "published_status", "source")}
    aliases = tuple(row.pop("aliases").split())
    return NamedModel(**facts, aliases=aliases, sizes={size: value for size, value in row.items() if value})


def find(name: str) -> NamedModel | None:
    """Return the model of a name or alias, in any case, if known."""
    wanted = name.lower()
    return next((m for m in catalogue() if wanted in (m.name.lower(), *map(str.lower, m.aliases))), None)


def unknown(name: str, where: str = "") -> InputError:
    """Return the error for an unknown name, with the nearest models; `where` names what else it is not.

    The start of known names lists all.
    """
    short = [model.short_name for model in catalogue()]
    known = sorted({alias.lower() for model in catalogue() for alias in (model.name, *model.aliases)})
    starting = [repr(one) for one in short if one.startswith(name.lower())] if name else []
    near = f"did you mean {' or '.join(starting)}?" if starting else nearest(name.lower(), known)
    hint = near if near.startswith("did") else "known: " + ", ".join(short)
    return InputError.at(name, f"is not a known model{where}; {hint}")


def named(name: str) -> Architecture:
    """Return the architecture of a named model; raises InputError."""
    model = find(name)
    if model is None:
        raise unknown(name)
    return model.architecture


OF_THE_TEXT = ("vocabulary", "positions")
"""The sizes of a sweep's runs that its tokeniser and sequence length give."""


def trained(name: str) -> Architecture:
    """Return the architecture of a named model as it is trained: ESM-2's contact head is fitted to its attention afterwards.

    Raises InputError for an unknown name.
    """
    return named(name).model_copy(update={"contact_head": False})


@functools.cache
def trained_values(name: str) -> dict[str, Any]:
    """Return the fields of a named model for training on another text: all but OF_THE_TEXT that differ from BERT's.

    Raises InputError for an unknown name.
    """
    architecture = trained(name)
    unlike = {field: value for field, value in unlike_bert(architecture).items() if field not in NOT_IN_MLM}
    return {field: getattr(architecture, field) for field in ALWAYS_WRITTEN if field not in OF_THE_TEXT} | unlike


def architecture_of(name: str | None, sizes: Mapping[str, Any]) -> Architecture:
    """Return a named model with some sizes changed, or a shape given by its sizes.

    Without a name depth and width are required; defaults are heads width/64, ffn 4 · width, and 30,522 word pieces, as in BERT.
    Raises InputError for an unknown name or an impossible shape.
    """
    if name is not None:
        return changed(named(name), sizes, name)
    if missing := [size for size in ("depth", "width") if size not in sizes]:
        raise InputError.at(f"--{missing[0]}", "is missing; give a model's NAME, or --depth and --width")
    completed = ShapeRules().completed(sizes) if sizes["width"] > 0 else {"heads": 1, "ffn": 1} | dict(sizes)
    return Architecture.parse({"vocabulary": 30522} | completed)
