"""The files that come with the workbench: sweeps, notebooks and tasks."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def shipped(folder: str, suffix: str = ".yaml") -> dict[str, Path]:
    """Return the shipped files of a folder (`sweeps`, `analysis` or `tasks/specs`) by name, in order.

    In a checkout `sweeps` and `analysis` lie beside the package.
    """
    place = next(place for place in (PACKAGE / folder, PACKAGE.parent / folder) if place.is_dir())
    return {file.stem: file for file in sorted(place.glob(f"*{suffix}"))}
