"""The trained runs that a recipe names: the initial weights and the teacher."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from study.base.errors import shown
from study.base.schema import number_in, whole
from study.counting.distillation import NO_LOSSES, LayerLosses, layers_as_text

NO_RUN = {"start": "fresh", "teacher": "none"}
"""The knobs that name a trained run, with their value for none."""

Keep = Literal["first", "last", "spread"]
"""The kept layers of a deeper encoder: the first, the last, or evenly spread ones."""

Grow = Literal["even", "uneven"]
"""How the weights that read a widened encoder's copies share their value: equally, or at random (study.training.growing)."""


def kept_layers(depth: int, kept: int, keep: Keep) -> tuple[int, ...]:
    """The layers, from 0, that `kept` layers take from an encoder of `depth`.

    `first` drops the layers nearest the output, which loses least (Sajjad et al. 2023, arXiv:2004.03844). `spread` keeps
    round(i·(depth − 1)/(kept − 1)): 0, 2, 4, 7, 9 and 11 for six of 12, as in DistilBERT (Sanh et al. 2019, arXiv:1910.01108,
    its scripts). Raises ValueError if there are too few layers.
    """
    if not 1 <= kept <= depth:
        raise ValueError(f"{kept} layers cannot be kept of {depth}")
    match keep:
        case "first":
            return tuple(range(kept))
        case "last":
            return tuple(range(depth - kept, depth))
        case "spread":
            stride = (depth - 1) / max(1, kept - 1)
            return tuple(round(index * stride) for index in range(kept))


@dataclass(frozen=True)
class InitFrom:
    """The trained run that supplies the initial weights, and the layers it keeps or how it grows."""

    folder: Path
    keep: Keep = "first"
    grow: Grow | None = None

    @property
    def identity(self) -> str:
        """The run id and the kept layers or the growth, independent of the folder's location."""
        return f"{self.folder.name}:{self.keep if self.grow is None else f'grow={self.grow}'}"


@dataclass(frozen=True)
class Teacher:
    """A trained run whose predictions are targets, their weight in the loss, their temperature, and losses between layers."""

    folder: Path
    weight: float = 1.0
    temperature: float = 1.0
    losses: LayerLosses = NO_LOSSES

    @property
    def unusual(self) -> dict[str, float | str]:
        """The settings that differ from their defaults, by name."""
        settings = {name: value for name, value in _settings(self).items() if value != USUAL[name]}
        return {name: value if isinstance(value, str) else whole(value) for name, value in settings.items()}

    @property
    def identity(self) -> str:
        """The run id with the unusual settings, independent of the folder's location."""
        return "".join((self.folder.name, *(f":{name}={value}" for name, value in self.unusual.items())))


def _settings(teacher: Teacher) -> dict[str, float | str]:
    return {"weight": teacher.weight, "temperature": teacher.temperature, **asdict(teacher.losses)}


USUAL = _settings(Teacher(Path()))
"""The defaults of a teacher, by name, in the order of its text."""

_RUN = r"(?P<folder>(?:.*/)?[0-9a-f]{16})/?"
_START = re.compile(_RUN + r"(?::(?P<keep>first|last|spread)|:grow=(?P<grow>even|uneven))?")
_VALUES = {"layers": r"last|uniform|\d{1,4}-\d{1,4}(?:,\d{1,4}-\d{1,4})*", "relation_heads": r"[0-9]{1,6}"}
_TEACHER = re.compile(_RUN + "".join(f"(?::{name}=(?P<{name}>{_VALUES.get(name, '[0-9.e+-]+')}))?" for name in USUAL))


def parse_start(start: str) -> InitFrom | None:
    """The run that `recipe.start` names, if any."""
    if (match := _START.fullmatch(start)) is None:
        return None
    return InitFrom(Path(match["folder"]), cast(Keep, match["keep"] or "first"), cast("Grow | None", match["grow"]))


def parse_teacher(named: str) -> Teacher | None:
    """The teacher that `recipe.teacher` names, if any; raises ValueError if a number is malformed."""
    if (match := _TEACHER.fullmatch(named)) is None:
        return None
    read: dict[str, Any] = {name: type(usual)(match[name] or usual) for name, usual in USUAL.items()}
    weight, temperature = (read.pop(name) for name in ("weight", "temperature"))
    return Teacher(Path(match["folder"]), weight, temperature, LayerLosses(**read))


_CELL = re.compile(r"cell (?P<name>[A-Za-z][A-Za-z0-9_-]*)(?P<rest>(?::.*)?)")

_BESIDE_CELL = {"start": ("keep", "grow"), "teacher": tuple(USUAL)}
"""The keys beside `cell` in a start and a teacher, in the order of their text."""


def cell_as_text(knob: str, value: object) -> object:
    """A start or teacher `{cell: NAME, …}` of a sweep file as text, such as `cell deep:last`; other values as they are.

    Raises ValueError for unknown keys, or a name that is not a word.
    """
    if not isinstance(value, Mapping):
        return value
    beside = _BESIDE_CELL[knob]
    if unknown := [key for key in value if key not in ("cell", *beside)]:
        raise ValueError(f"has {shown(unknown[0])} beside cell; known: {', '.join(beside)}")
    given = (f":{'' if key == 'keep' else f'{key}='}{number_in(layers_as_text(value[key]))}" for key in beside if key in value)
    text = "".join((f"cell {value.get('cell')}", *given))
    if cell_in(text) is None:
        raise ValueError(f"has {shown(value.get('cell'))} for a cell; give one of the names under cells")
    return text


def cell_in(value: object) -> tuple[str, str] | None:
    """The cell's name and the layers or numbers after it, of a start or teacher by `cell_as_text`; None for other values."""
    match = _CELL.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else (match["name"], match["rest"])
