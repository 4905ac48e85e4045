"""Output of `study compare`: models side by side, and changes of one model ranked by their effect."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from study.base.errors import InputError, Problem, map_all, nearest
from study.base.schema import number_in
from study.base.text import aligned
from study.counting.architecture import SET_BY_OBJECTIVE, Architecture, changed, not_of_berts_kind, unbuildable
from study.counting.parameters import parameters
from study.counting.solving import ShapeRules
from study.shapes.accounts import TOTALS, Conditions, NamedArchitecture, memory_in, totals, training_flops

if TYPE_CHECKING:
    from study.counting.latency import LatencyModel

BERTS_FFN = 4
"""BERT's ffn ÷ width."""

Measure = Callable[[Architecture], float]
"""A quantity of an architecture."""

LABELS = {
    "parameters": ("parameters", 1.0),
    "train_flops": ("train_flops a token", 1.0),
    "memory_bytes": ("training memory, MB", 1e-6),
    "latency_seconds": ("latency, µs", 1e6),
}
"""Display name and scale of each measure."""


def measures(conditions: Conditions, latency: LatencyModel | None = None) -> dict[str, Measure]:
    """Return the measures that changes are ranked by.

    `parameters` (unique tensors of the MLM model), `train_flops` per token, `memory_bytes` of training, and, with a latency
    model, `latency_seconds` of the encoder's forward pass.
    """
    by_name: dict[str, Measure] = {
        "parameters": lambda architecture: parameters(architecture).parameters,
        "train_flops": lambda architecture: training_flops(architecture, conditions.sequence_length)[1]["train_flops"],
        "memory_bytes": lambda architecture: memory_in(conditions, architecture)["training"].total,
    }
    if latency is not None:
        batch, length = conditions.batch, conditions.sequence_length
        by_name["latency_seconds"] = lambda architecture: latency.seconds(architecture, batch, length)
    return by_name


@dataclass(frozen=True)
class Effect:
    """One measure before and after a change, and its elasticity.

    The elasticity is ln(after/before) ÷ ln(new size/old size) over the whole step (an arc, not a slope); None if several sizes,
    or no size, change.
    """

    before: float
    after: float
    elasticity: float | None

    @property
    def added(self) -> float:
        """After minus before."""
        return self.after - self.before

    def to_dict(self) -> dict[str, float | None]:
        """Return the effect as plain values."""
        share = self.added / self.before
        return {"after": self.after, "added": self.added, "added_share": share, "elasticity": self.elasticity}


@dataclass(frozen=True)
class Change:
    """One change of a base: label, note on its consequences, architecture, and effect on each measure."""

    label: str
    note: str
    architecture: Architecture
    effects: Mapping[str, Effect]


def parse_changes(base: Architecture, texts: Iterable[str]) -> list[ProposedChange]:
    """Parse changes of a base, in order.

    Each text is `field=value`, or several joined by commas for one change. Other fields stay: a wider model keeps its ffn, and
    its heads if they divide the new width, else the divisor nearest to the base's head width. Raises InputError with every
    unreadable or impossible text, or with every text that makes the same model as one before it.
    """
    texts = [*texts]
    changes = map_all(partial(_step, base), texts)
    made = [change.architecture for change in changes]
    firsts = [made.index(architecture) for architecture in made]
    repeated = [(texts[place], texts[first]) for place, first in enumerate(firsts) if first < place]
    if repeated:
        raise InputError(
            Problem(f"--change {text}", f"repeats --change {first}; give each change once") for text, first in repeated
        )
    return changes


def with_berts_ffn(base: Architecture, steps: Sequence[ProposedChange]) -> list[ProposedChange]:
    """Return the changes, and beside each change of the width of a base with ffn 4·H one with ffn 4·H too.

    Its elasticity is that of the width.
    """
    known = [step.architecture for step in steps]
    changes: list[ProposedChange] = []
    for step in steps:
        wider, width = step.architecture, step.architecture.width
        changes.append(step)
        if width == base.width or base.ffn != BERTS_FFN * base.width or wider.ffn != base.ffn:
            continue
        architecture = changed(wider, {"ffn": BERTS_FFN * width}, "--change")
        if architecture not in known:
            heads, _, _ = step.note.partition(",")
            changes.append(ProposedChange(f"{step.label}, ffn = {BERTS_FFN}·H", heads, architecture, step.ratio))
    return changes


def rank_changes(
    base: Architecture, steps: Sequence[ProposedChange], measured: Mapping[str, Measure], by: str = "parameters"
) -> list[Change]:
    """Return the effects of changes, those that add most to the measure `by` first.

    Measures unknown for any model are left out. Raises InputError if `by` is.
    """
    architectures = (base, *(step.architecture for step in steps))
    unknown: Set[str] = set()
    if any(unbuildable(architecture) for architecture in architectures):
        unknown = measured.keys() - {"parameters", "train_flops"}
    elif any(map(not_of_berts_kind, architectures)):
        unknown = {"latency_seconds"}
    measured = {name: measure for name, measure in measured.items() if name not in unknown}
    if by not in measured:
        raise InputError.at("--by", f"{by} is not known for these models; known: {', '.join(measured)}")
    before = {name: measure(base) for name, measure in measured.items()}
    changes = [step.measured(before, measured) for step in steps]
    return sorted(changes, key=lambda change: -change.effects[by].added)


@dataclass(frozen=True)
class ProposedChange:
    """A change before measurement; `ratio` is new over old of the one size that changes."""

    label: str
    note: str
    architecture: Architecture
    ratio: float | None

    def measured(self, before: Mapping[str, float], measured: Mapping[str, Measure]) -> Change:
        """Add the effects on every measure, given the values before."""
        effects = {name: _effect(before[name], measure(self.architecture), self.ratio) for name, measure in measured.items()}
        return Change(self.label, self.note, self.architecture, effects)


def _step(base: Architecture, text: str) -> ProposedChange:
    values = _parse(text)
    note = ""
    if "width" in values and "heads" not in values:
        width = values["width"]
        if isinstance(width, int) and width > 0 and width % base.heads:
            heads = ShapeRules(head_width=base.head_width).heads(width)
            values |= {"heads": heads}
            note = f"heads {base.heads} → {heads}, to divide it"
    architecture = changed(base, values, "--change")
    named = [field for field in values if not (note and field == "heads")]
    old, new = dict(base), dict(architecture)
    if old == new:
        raise InputError.at(f"--change {text}", "does not change the model; give another value")
    label = ", ".join(f"{field} {_shown(old[field])} → {_shown(new[field])}" for field in named)
    return ProposedChange(label, note, architecture, _ratio([(old[field], new[field]) for field in named]))


def _parse(text: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for part in re.split(r",(?!\s*\d)", text):  # a comma before a digit separates thousands
        field, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not field or not value:
            raise InputError.at(f"--change {text}", "is not field=value, such as depth=24")
        if field not in Architecture.model_fields:
            raise InputError.at(
                f"--change {text}", f"{field!r} is not a field; {nearest(field, list(Architecture.model_fields))}"
            )
        if field in SET_BY_OBJECTIVE:
            raise InputError.at(f"--change {text}", f"{field} follows recipe.objective; compare a config.yaml that has it")
        if field in values:
            raise InputError.at(f"--change {text}", f"names {field} twice; give each value its own --change")
        values[field] = number_in(value)
    return values


def _effect(before: float, after: float, ratio: float | None) -> Effect:
    return Effect(before, after, None if ratio is None else math.log(after / before) / math.log(ratio))


def _ratio(pairs: list[tuple[object, object]]) -> float | None:
    if len(pairs) != 1:
        return None
    old, new = pairs[0]
    sizes = [value for value in (old, new) if isinstance(value, int) and not isinstance(value, bool) and value > 0]
    return sizes[1] / sizes[0] if len(sizes) == 2 else None


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def changes_as_text(base: NamedArchitecture, changes: Sequence[Change], by: str, conditions: Conditions) -> str:
    """Ranked changes as rows: per measure, what they add, as a share, and the elasticity."""
    lines = aligned([row for name in changes[0].effects for row in _rows(base, changes, name)], left=2)
    note = "elasticity: ln(after/before) ÷ ln(new size/old size), over the whole change; other fields stay the same"
    return "\n".join([*lines, *_answer(changes, by), note, f"counted at {conditions}"])


def _rows(base: NamedArchitecture, changes: Sequence[Change], name: str) -> list[list[str]]:
    label, scale = LABELS[name]
    rows = [["", "change", label, "added", "elasticity"]]
    rows.append(["", base.title, f"{changes[0].effects[name].before * scale:,.0f}", "", ""])
    for rank, change in enumerate(changes, 1):
        effect, words = change.effects[name], change.label + (f" ({change.note})" if change.note else "")
        slope = "–" if effect.elasticity is None else f"{effect.elasticity:z.3f}"
        added = f"{effect.added * scale:+,.0f}", f"{effect.added / effect.before:+.1%}"
        rows.append([f"{rank}.", words, *added, slope])
    return [*rows, [""] * len(rows[0])]


def changes_to_dict(base: NamedArchitecture, changes: Sequence[Change], by: str, conditions: Conditions) -> dict[str, object]:
    """Return the ranked changes as plain values."""
    return {
        "base": base.title,
        "counted_at": asdict(conditions),
        "ranked_by": by,
        "before": {name: effect.before for name, effect in changes[0].effects.items()},
        "changes": [
            {"change": change.label, "note": change.note, "shape": change.architecture.shape_name}
            | {name: effect.to_dict() for name, effect in change.effects.items()}
            for change in changes
        ],
    }


def _answer(changes: Sequence[Change], by: str) -> list[str]:
    parts = [f"ranked by {LABELS[by][0]} added"]
    for name in changes[0].effects:
        added = [change.effects[name].added for change in changes]
        parts.append(f"most {LABELS[name][0]}: {changes[added.index(max(added))].label}")
    return parts


@dataclass(frozen=True)
class ModelQuantity:
    """One quantity of every compared model; None if a model lacks it."""

    group: str
    name: str
    values: tuple[float | None, ...]


def tabulate_models(subjects: Sequence[NamedArchitecture], sequence_length: int) -> list[ModelQuantity]:
    """Shapes, components, totals and FLOPs per token of models; raises InputError."""
    columns = [_quantities(subject.architecture, sequence_length) for subject in subjects]
    names = dict.fromkeys(key for group in GROUPS for column in columns for key in column if key[0] == group)
    return [ModelQuantity(group, name, tuple(column.get((group, name)) for column in columns)) for group, name in names]


GROUPS = {
    "shape": "shape",
    "components": "parameters by component",
    "parameters": "parameters in all",
    "flops_per_token": "training FLOPs per token, {sequence_length} tokens a sequence",
}
"""Display names of the compared groups, in order."""


def _quantities(a: Architecture, sequence_length: int) -> dict[tuple[str, str], float]:
    count = parameters(a)
    shape = {"depth": a.depth, "width": a.width, "heads": a.heads, "ffn": a.ffn, "vocabulary": a.vocabulary}
    components = {component.name: component.count for component in count.components}
    flops = training_flops(a, sequence_length)[1]
    groups: tuple[Mapping[str, float], ...] = (shape, components, totals(count), flops)
    return {(group, name): value for group, of in zip(GROUPS, groups, strict=True) for name, value in of.items()}


def models_as_text(subjects: Sequence[NamedArchitecture], rows: Sequence[ModelQuantity], sequence_length: int) -> str:
    """Models as columns; for two, also the ratio of second to first."""
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


def models_to_dict(
    subjects: Sequence[NamedArchitecture], rows: Sequence[ModelQuantity], sequence_length: int
) -> dict[str, object]:
    """Models as plain values, quantities by group; None if absent."""
    models = [
        {"name": subject.title}
        | {group: {row.name: row.values[position] for row in rows if row.group == group} for group in GROUPS}
        for position, subject in enumerate(subjects)
    ]
    return {"sequence_length": sequence_length, "models": models}
