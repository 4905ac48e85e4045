"""Published numbers and ours, by study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TABLES = Path(__file__).parent / "tables"
"""Published tables with licences that allow copies."""


@dataclass(frozen=True)
class Number:
    """A published number, ours, and the tolerance: relative, or a difference if `absolute`."""

    name: str
    published: float
    ours: float
    tolerance: float
    absolute: bool = False

    @property
    def difference(self) -> float:
        """Ours minus the published, relative unless `absolute`."""
        away = self.ours - self.published
        return away if self.absolute else away / abs(self.published)

    @property
    def agrees(self) -> bool:
        """Whether ours is within tolerance."""
        return bool(np.abs(self.difference) <= self.tolerance)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return {**vars(self), "difference": self.difference, "agrees": self.agrees}


@dataclass(frozen=True)
class Study:
    """A reproduced study; `skipped` explains why it was not run."""

    title: str
    source: str
    method: str
    status: str = ""
    numbers: tuple[Number, ...] = ()
    skipped: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the study as plain values."""
        return {**vars(self), "numbers": [number.to_dict() for number in self.numbers]}
