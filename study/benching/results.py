"""Saved benchmark rows: one JSON file per machine, with Markdown tables beside it."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from study.base.durable_files import is_there, write_atomically
from study.base.errors import InputError
from study.base.machine import cores
from study.benching.bench_tables import Row, as_markdown
from study.counting.latency import hardware_name
from study.counting.memory import Device

FORMAT = 1
"""Raise it when the JSON format changes; files of other formats are replaced."""

PACKAGES = ("torch", "pytorch-lightning", "transformers", "accelerate", "tokenizers", "numpy", "scaling-study")
"""The packages whose versions are saved."""

Report = Callable[[Row], None]
"""Takes each row as soon as it is measured."""


def measurement(
    what: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None, sentence: str = ""
) -> dict[str, Any]:
    """Return a row of one value, and whether it meets its target, if any."""
    met = None
    if at_most is not None:
        met = value <= at_most
    elif at_least is not None:
        met = value >= at_least
    row = {"what": what, "value": value, "unit": unit, "at_most": at_most, "at_least": at_least, "met": met, "error": None}
    return row | ({"sentence": sentence} if sentence else {})


def failure(what: str, error: str) -> dict[str, Any]:
    """Return the row of a failed measurement."""
    return {"what": what, "value": None, "unit": "", "at_most": None, "at_least": None, "met": None, "error": error}


def environment(device: Device, threads: int) -> dict[str, Any]:
    """Return the hardware, threads and versions of a section's rows."""
    import torch

    from study.training.execution import processor

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "processor": processor(),
        "cores": cores(),
        "threads": threads,
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class Results:
    """A machine's results by section; measuring a section again replaces it."""

    def __init__(self, folder: Path, device: Device, threads: int) -> None:
        self.environment = environment(device, threads)
        self.file = folder / f"{hardware_name(self.environment)}.json"
        self.sections: dict[str, Any] = read_sections(self.file) if is_there(self.file) else {}

    def put(self, section: str, rows: Sequence[Row], busy: Sequence[float | None] = ()) -> None:
        """Write a section's rows; `busy` is other programs' share of the processors before and after."""
        self.sections[section] = {"environment": self.environment | {"busy": [*busy]}, "rows": [*rows]}
        content = {"format": FORMAT, "hardware": self.file.stem, "sections": self.sections}
        write_atomically(self.file, json.dumps(content, indent=1).encode() + b"\n")
        write_atomically(self.file.with_suffix(".md"), as_markdown(self.file.stem, self.sections).encode())


def read_sections(file: Path) -> dict[str, Any]:
    """Read the sections of a results file, none if its format differs; raises InputError for other files."""
    try:
        content = json.loads(file.read_bytes())
        sections: dict[str, Any] = content["sections"] if content["format"] == FORMAT else {}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError.at(str(file), f"is not a file of study bench ({error}); move it away") from None
    return sections
