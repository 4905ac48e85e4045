"""The trained runs that a recipe names: the initial weights and the teacher."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from study.base.schema import whole

NO_RUN = {"start": "fresh", "teacher": "none"}
"""The knobs that name a trained run, with their value for none."""

Keep = Literal["first", "last", "spread"]
"""The kept layers of a deeper encoder: the first, the last, or evenly spread ones."""


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


_RUN = r"(?P<folder>(?:.*/)?[0-9a-f]{16})/?"
_START = re.compile(_RUN + r"(?::(?P<keep>first|last|spread))?")
_TEACHER = re.compile(_RUN + r"(?::weight=(?P<weight>[0-9.e+-]+))?(?::temperature=(?P<temperature>[0-9.e+-]+))?")


@dataclass(frozen=True)
class InitFrom:
    """The trained run that supplies the initial weights, and the layers it keeps."""

    folder: Path
    keep: Keep

    @property
    def identity(self) -> str:
        """The run id and the kept layers, independent of the folder's location."""
        return f"{self.folder.name}:{self.keep}"


@dataclass(frozen=True)
class Teacher:
    """A trained run whose predictions are targets, their weight in the loss, and their temperature."""

    folder: Path
    weight: float = 1.0
    temperature: float = 1.0

    @property
    def identity(self) -> str:
        """The run id with non-default weight and temperature, independent of the folder's location."""
        unusual = {name: getattr(self, name) for name, usual in USUAL.items() if getattr(self, name) != usual}
        return "".join((self.folder.name, *(f":{name}={whole(value)!r}" for name, value in unusual.items())))


USUAL = {"weight": Teacher.weight, "temperature": Teacher.temperature}
"""The defaults of a teacher."""


def parse_start(start: str) -> InitFrom | None:
    """The run that `recipe.start` names, if any."""
    match = _START.fullmatch(start)
    return None if match is None else InitFrom(Path(match["folder"]), cast(Keep, match["keep"] or "first"))


def parse_teacher(named: str) -> Teacher | None:
    """The teacher that `recipe.teacher` names, if any; raises ValueError if a number is malformed."""
    if (match := _TEACHER.fullmatch(named)) is None:
        return None
    return Teacher(Path(match["folder"]), **{name: float(match[name] or usual) for name, usual in USUAL.items()})
