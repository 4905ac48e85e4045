"""All replications, as JSON and Markdown."""

from __future__ import annotations

import json
from pathlib import Path

from study.base.durable_files import write_atomically
from study.base.quantities import rounded_all
from study.base.text import escape, table_of
from study.replicating.studies import Study, chinchilla, data_constrained, olmo_ladder, open_lm, reconciliation


def replicate(into: Path, chinchilla_points: Path | None) -> tuple[Study, ...]:
    """Run every replication and write `replications.json` and `replications.md`."""
    studies = (chinchilla(chinchilla_points), olmo_ladder(), open_lm(), data_constrained(), reconciliation())
    text = json.dumps(rounded_all([study.to_dict() for study in studies]), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(into / "replications.json", text.encode() + b"\n")
    write_atomically(into / "replications.md", to_markdown(studies).encode())
    return studies


def to_markdown(studies: tuple[Study, ...]) -> str:
    """One table per study."""
    parts = ["# Replications", "Published numbers beside ours. `make replicate` writes this page."]
    for study in studies:
        parts += [f"## {escape(study.title)}", f"{escape(study.source)}.", escape(study.method)]
        if study.skipped:
            parts.append(f"Skipped: {escape(study.skipped)}.")
            continue
        rows = [
            {
                "number": number.name,
                "published": f"{number.published:.8g}",
                "ours": f"{number.ours:.8g}",
                "difference": _difference(number.difference, number.absolute),
                "within tolerance": "yes" if number.agrees else "no",
            }
            for number in study.numbers
        ]
        parts += [f"Status: {escape(study.status)}.", table_of(rows)]
    return "\n\n".join(parts) + "\n"


def _difference(value: float, absolute: bool) -> str:
    return f"{value:+.2e}" if absolute else f"{value:+z.4%}"
