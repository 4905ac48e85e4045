"""Models side by side: shapes, components, totals and FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from study.base.text import aligned
from study.counting.architecture import Architecture
from study.counting.parameters import parameters
from study.shapes.accounts import TOTALS, totals, training_flops
from study.shapes.naming import Subject


@dataclass(frozen=True)
class Row:
    """One quantity of every model that is compared; None where a model has no such thing."""

    group: str
    name: str
    values: tuple[float | None, ...]


def side_by_side(subjects: Sequence[Subject], sequence_length: int) -> list[Row]:
    """Shapes, components, totals and FLOPs per token of some models; raises InputError for an impossible length."""
    columns = [_quantities(subject.architecture, sequence_length) for subject in subjects]
    names = dict.fromkeys(key for group in GROUPS for column in columns for key in column if key[0] == group)
    return [Row(group, name, tuple(column.get((group, name)) for column in columns)) for group, name in names]


GROUPS = {
    "shape": "shape",
    "components": "parameters by component",
    "parameters": "parameters in all",
    "flops_per_token": "training FLOPs per token, {sequence_length} tokens a sequence",
}
"""What is compared, in this order, and what a reader calls it."""


def _quantities(a: Architecture, sequence_length: int) -> dict[tuple[str, str], float]:
    count = parameters(a)
    shape = {"depth": a.depth, "width": a.width, "heads": a.heads, "ffn": a.ffn, "vocabulary": a.vocabulary}
    components = {component.name: component.count for component in count.components}
    flops = training_flops(a, sequence_length)[1]
    groups: tuple[Mapping[str, float], ...] = (shape, components, totals(count), flops)
    return {(group, name): value for group, of in zip(GROUPS, groups, strict=True) for name, value in of.items()}


def rows_as_text(subjects: Sequence[Subject], rows: Sequence[Row], sequence_length: int) -> str:
    """Models as columns, with how many times the first the second is where there are two."""
    pair = len(subjects) == 2
    lines = [["", *(subject.title for subject in subjects), *(["second ÷ first"] if pair else [])]]
    for group, heading in GROUPS.items():
        lines.append([heading.format(sequence_length=sequence_length), *[""] * (len(lines[0]) - 1)])
        for row in (row for row in rows if row.group == group):
            first, last = row.values[0], row.values[-1]
            ratio = [f"{last / first:.3g}×" if first and last else ""] if pair else []
            shown = ["–" if value is None else f"{value:,.0f}" for value in row.values]
            lines.append([f"  {TOTALS.get(row.name, row.name)}", *shown, *ratio])
    return "\n".join(aligned(lines))


def rows_to_dict(subjects: Sequence[Subject], rows: Sequence[Row], sequence_length: int) -> dict[str, object]:
    """Each model as plain values, quantities by group; None where it has no such thing."""
    models = [
        {"name": subject.title}
        | {group: {row.name: row.values[place] for row in rows if row.group == group} for group in GROUPS}
        for place, subject in enumerate(subjects)
    ]
    return {"sequence_length": sequence_length, "models": models}
