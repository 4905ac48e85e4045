"""Where benchmarks are kept: one JSON, one table in Markdown and one figure a machine, written after every row."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from study.base.durable_files import is_there, write_atomically
from study.base.errors import InputError
from study.base.machine import cores
from study.benching.bench_tables import as_markdown
from study.counting.latency_table import hardware_name
from study.counting.memory import Device

FORMAT = 1
"""Raised when the form of the JSON changes; a file of another form is begun anew."""

PACKAGES = ("torch", "pytorch-lightning", "transformers", "accelerate", "tokenizers", "numpy", "scaling-study")
"""What the versions of a section name, where it is installed."""


def environment(device: Device, threads: int) -> dict[str, Any]:
    """What the rows of a section hold for: hardware, threads and versions."""
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
    """The results of one machine, by section; what is measured again replaces its section, and the others stay."""

    def __init__(self, folder: Path, device: Device, threads: int) -> None:
        self.environment = environment(device, threads)
        self.file = folder / f"{hardware_name(self.environment)}.json"
        self.sections: dict[str, Any] = read_sections(self.file) if is_there(self.file) else {}

    def put(self, section: str, rows: list[dict[str, Any]], busy: Sequence[float | None] = ()) -> None:
        """Write a section's rows so far, in this environment; `busy` is what others used of the processors before and after."""
        self.sections[section] = {"environment": self.environment | {"busy": [*busy]}, "rows": rows}
        content = {"format": FORMAT, "hardware": self.file.stem, "sections": self.sections}
        write_atomically(self.file, json.dumps(content, indent=1).encode() + b"\n")
        write_atomically(self.file.with_suffix(".md"), as_markdown(self.file.stem, self.sections).encode())


def read_sections(file: Path) -> dict[str, Any]:
    """The sections of a results file; none where it is of another form. Raises InputError where it is no such file."""
    try:
        content = json.loads(file.read_bytes())
        sections: dict[str, Any] = content["sections"] if content["format"] == FORMAT else {}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError.at(str(file), f"is no file of study bench ({error}); move it away") from None
    return sections
