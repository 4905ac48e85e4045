"""The sections of a results file of `study bench`, as figures read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_section(results: Path, name: str) -> tuple[list[dict[str, Any]], str]:
    """The rows of a section, none where the file has no such section, and the hardware that they were measured on."""
    section = json.loads(results.read_bytes())["sections"].get(name)
    if section is None:
        return [], ""
    place = section["environment"]
    where = place["device"] if place["device"] != "cpu" else f"{place['processor']}, {place['threads']} threads"
    return section["rows"], where
