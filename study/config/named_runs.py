"""The trained runs that a recipe names: one whose weights a run begins with, and one from whose predictions it learns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from study.base.schema import whole

NO_RUN = {"start": "fresh", "teacher": "none"}
"""The knobs of a recipe that name a trained run, and what they are where they name none."""

Keep = Literal["first", "last", "spread"]
"""Which layers of a deeper encoder are kept: its first ones, its last ones, or ones evenly from the first to the last."""


def kept_layers(depth: int, kept: int, keep: Keep) -> tuple[int, ...]:
    """The layers, from 0, that an encoder of `kept` layers has of one of `depth`.

    The first ones, since cutting off those nearest the output loses least (Sajjad et al. 2023, arXiv:2004.03844, top-layer
    dropping); the last ones; or round(i·(depth − 1)/(kept − 1)), and of one layer the first: six of 12 are 0, 2, 4, 7, 9 and
    11, as in DistilBERT (Sanh et al. 2019, arXiv:1910.01108, its scripts). Raises ValueError where there are fewer layers.
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
            return tuple(round(place * stride) for place in range(kept))


_RUN = r"(?P<folder>(?:.*/)?[0-9a-f]{16})/?"
_START = re.compile(_RUN + r"(?::(?P<keep>first|last|spread))?")
_TEACHER = re.compile(_RUN + r"(?::weight=(?P<weight>[0-9.e+-]+))?(?::temperature=(?P<temperature>[0-9.e+-]+))?")


@dataclass(frozen=True)
class InitFrom:
    """The trained run whose weights another one begins with, and which of its layers are kept where it has more."""

    folder: Path
    keep: Keep

    @property
    def identity(self) -> str:
        """What tells donors apart wherever they lie: the run's id, and the layers kept."""
        return f"{self.folder.name}:{self.keep}"


@dataclass(frozen=True)
class Teacher:
    """The trained run from whose predictions another one learns, their share of its loss, and their temperature."""

    folder: Path
    weight: float = 1.0
    temperature: float = 1.0

    @property
    def identity(self) -> str:
        """What tells teachers apart wherever they lie: the run's id, with weight and temperature where they are not usual."""
        told = {name: getattr(self, name) for name, usual in USUAL.items() if getattr(self, name) != usual}
        return "".join((self.folder.name, *(f":{name}={whole(value)!r}" for name, value in told.items())))


USUAL = {"weight": Teacher.weight, "temperature": Teacher.temperature}
"""How a teacher is followed where nothing is said of it."""


def parse_start(start: str) -> InitFrom | None:
    """The donor that a start names, None where it names none."""
    found = _START.fullmatch(start)
    return None if found is None else InitFrom(Path(found["folder"]), cast(Keep, found["keep"] or "first"))


def parse_teacher(named: str) -> Teacher | None:
    """The teacher that a recipe names, None where it names none; raises ValueError where weight or temperature is no number."""
    if (found := _TEACHER.fullmatch(named)) is None:
        return None
    return Teacher(Path(found["folder"]), **{name: float(found[name] or usual) for name, usual in USUAL.items()})
