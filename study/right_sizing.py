"""What `study shapes` does: from amounts as people write them to the shapes that have them, the best first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from study.accounts import Conditions, memory_in, training_flops
from study.aligned import aligned
from study.architecture import SIZES, Architecture
from study.counting import TOTALS, parameters
from study.errors import InputError
from study.fitting.law_files import FittedLaw, read_law
from study.fitting.observations import VOCABULARY
from study.latency.prediction import LatencyModel, Statistic, fit_latency
from study.latency.table import read_table
from study.memory import Precision
from study.quantities import (
    bytes_text,
    count_text,
    flops_text,
    plural,
    read_bytes,
    read_count,
    read_range,
    read_seconds,
    seconds_text,
)
from study.solving import HEAD_WIDTH, Goal, ShapeRules, Space, on_contour, under
from study.wording import span

Quantities = dict[str, Callable[[Architecture], float]]
"""How each quantity of a shape is counted, by its name."""

WRITERS: dict[str, Callable[[float], str]] = {
    "train_flops_per_token": flops_text,
    "memory_bytes": bytes_text,
    "latency_seconds": seconds_text,
}
"""How quantities other than counts are written."""


@dataclass(frozen=True)
class Solved:
    """Shapes that meet the goals, with their quantities; the first is the best, by the law's loss where there is one."""

    goals: tuple[Goal, ...]
    question: str
    shapes: tuple[Architecture, ...]
    quantities: Quantities
    latency: LatencyModel | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The question, the shapes with every quantity, and how latency was predicted, as plain values."""
        rows = [
            {"shape": shape.shape_name, **{size: getattr(shape, size) for size in SIZES}, **self._values(shape)}
            for shape in self.shapes
        ]
        goals = {goal.quantity: goal.amount for goal in self.goals}
        latency = self.latency and self.latency.to_dict()
        return {"goals": goals, "question": self.question, "shapes": rows, "latency_model": latency, "notes": list(self.notes)}

    def to_text(self) -> str:
        """The shapes as a table in plain text."""
        rows = [["shape", *(_heading(name) for name in self.quantities)]]
        for shape in self.shapes:
            rows.append([shape.shape_name, *(_written(name, value) for name, value in self._values(shape).items())])
        return "\n".join([self.question, "", *aligned(rows), "", *self.notes])

    def _values(self, shape: Architecture) -> dict[str, float]:
        return {name: count(shape) for name, count in self.quantities.items()}


def right_size(
    *,
    parameters: str | None = None,
    convention: str = "parameters_non_embedding",
    train_flops: str | None = None,
    memory: str | None = None,
    memory_of: str = "inference",
    latency: str | None = None,
    latency_table: Path = Path("results/latency"),
    latency_statistic: Statistic = "median",
    threads: int | None = None,
    law: Path | None = None,
    law_convention: str | None = None,
    tokens: str | None = None,
    under: bool = False,
    tolerance: float = 0.02,
    **rest: Any,
) -> Solved:
    """The shapes that have the amounts asked for: one amount within `tolerance`, or under one or several.

    Raises InputError for amounts that cannot be read or reached, and where latency is asked for and no table is there.
    """
    for option, value, needed, given in (
        ("--threads", threads, "--latency", latency),
        ("--law-convention", law_convention, "--law", law),
        ("--tokens", tokens, "--law", law),
    ):
        if value is not None and given is None:
            raise InputError.at(option, f"is for {needed}; give that too")
    setting = _setting(memory_of, **rest)
    model = None
    if latency is not None:
        conditions = setting.conditions
        size = (conditions.batch, conditions.sequence_length)
        model = fit_latency(read_table(latency_table), conditions.precision, threads, size, latency_statistic)
    fitted = read_law(law, law_convention) if law is not None else None
    trained = None if tokens is None else read_count("--tokens", tokens)
    quantities = _quantities(setting, model, fitted, trained)
    read = (
        ("--parameters", convention, parameters, read_count),
        ("--train-flops", "train_flops_per_token", train_flops, read_count),
        ("--memory", "memory_bytes", memory, read_bytes),
        ("--latency", "latency_seconds", latency, read_seconds),
    )
    goals = [
        Goal(place, quantity, reader(place, text), quantities[quantity], partial(_written, quantity))
        for place, quantity, text, reader in read
        if text is not None
    ]
    solved = _solved(goals, setting, quantities, model, under or len(goals) > 1, tolerance)
    beyond = [] if model is None else _unmeasured(model, solved.shapes, setting)
    of_law = (
        [] if fitted is None else [*fitted.notes, *_unlike(fitted, setting), *_extrapolated(fitted, solved.shapes, trained)]
    )
    return replace(solved, notes=(*solved.notes, *beyond, *(f"loss: {note}" for note in of_law)))


def _unmeasured(model: LatencyModel, shapes: Sequence[Architecture], setting: Setting) -> list[str]:
    """How many shapes lie beyond what latency was measured on, and in what."""
    batch, length = setting.conditions.batch, setting.conditions.sequence_length
    beyond = [found for shape in shapes if (found := model.beyond(shape, batch, length))]
    if not beyond:
        return []
    in_what = Counter(name for found in beyond for name in found)
    measured = ", ".join(_from_to(name, *model.ranges[name]) for name in model.ranges if name in in_what)
    return [
        f"latency is extrapolated for {len(beyond)} of {plural(len(shapes), 'shape')}, which that error does not cover: it was "
        f"measured at {measured}"
    ]


def _from_to(name: str, least: float, largest: float) -> str:
    return f"{name} {least:g}" if least == largest else f"{name} {least:g} to {largest:g}"


def _unlike(law: FittedLaw, setting: Setting) -> list[str]:
    """What all runs of a law had otherwise than the shapes considered, so that its losses are not theirs."""
    vocabulary = setting.space.template.vocabulary
    if (fitted := law.alike.get(VOCABULARY, vocabulary)) == vocabulary:
        return []
    return [
        f"{law.law.name} was fitted to runs of vocabulary {fitted:,}, and these shapes have {vocabulary:,}; "
        f"losses over other vocabularies are not comparable: give --vocabulary {fitted}"
    ]


def _extrapolated(law: FittedLaw, shapes: Sequence[Architecture], tokens: float | None) -> list[str]:
    """For each variable of a law, how many shapes lie beyond the values that it was fitted to."""
    beyond = Counter(name for shape in shapes for name in law.beyond(shape, tokens))
    return [
        f"{law.law.name} is extrapolated for {beyond[name]} of {plural(len(shapes), 'shape')}: it was fitted to {name} of "
        f"{span(*law.ranges[name])}"
        for name in law.ranges
        if beyond[name]
    ]


@dataclass(frozen=True)
class Setting:
    """The shapes considered, and what their memory and latency are counted at."""

    space: Space
    memory_of: str
    conditions: Conditions


def _setting(
    memory_of: str,
    *,
    batch: int = 1,
    sequence_length: int = 128,
    precision: Precision = "fp32",
    depth: str = "1:24",
    width: str = "64:2048",
    width_multiple: int = 64,
    head_width: int | None = None,
    ffn_ratio: float = 4.0,
    vocabulary: int = 30522,
    positions: int = 512,
) -> Setting:
    if sequence_length > positions:
        raise InputError.at("--sequence-length", f"{sequence_length} exceeds --positions {positions}; raise those too")
    rules = ShapeRules(head_width or HEAD_WIDTH, ffn_ratio, math.lcm(width_multiple, head_width or 1))
    sizes = {"depth": 1, "width": 1, "heads": 1, "ffn": 1, "vocabulary": vocabulary, "positions": positions}
    space = Space(rules, read_range("--depth", depth), read_range("--width", width), Architecture.parse(sizes))
    return Setting(space, memory_of, Conditions(sequence_length, batch, precision))


def _quantities(setting: Setting, model: LatencyModel | None, law: FittedLaw | None, tokens: float | None) -> Quantities:
    """How each column is counted; latency only with a model, loss only with a law."""
    conditions = setting.conditions
    batch, length = conditions.batch, conditions.sequence_length

    def total(name: str) -> Callable[[Architecture], float]:
        return lambda shape: parameters(shape).totals()[name]

    found: Quantities = {name: total(name) for name in TOTALS}
    found["train_flops_per_token"] = lambda shape: training_flops(shape, length)[1]["train_flops"]
    found["memory_bytes"] = lambda shape: memory_in(conditions, shape)[setting.memory_of].total
    if model is not None:
        found["latency_seconds"] = lambda shape: model.seconds(shape, batch, length)
    if law is not None:
        found["loss_nats"] = lambda shape: law.loss_nats(shape, tokens)
    return found


def _solved(
    goals: list[Goal], setting: Setting, quantities: Quantities, model: LatencyModel | None, budgets: bool, tolerance: float
) -> Solved:
    if not goals:
        raise InputError.at("--parameters", "nothing is asked for; give --parameters, --train-flops, --memory or --latency")
    amounts = ", ".join(f"{goal.text(goal.amount)} of {goal.words}" for goal in goals)
    if budgets:
        shapes = under(setting.space, goals)
        question = f"the widest shape at each depth under {amounts}"
    else:
        shapes = on_contour(setting.space, goals[0], tolerance)
        question = f"all shapes within {100 * tolerance:g}% of {amounts}"
    if loss := quantities.get("loss_nats"):
        shapes.sort(key=loss)
    elif budgets:
        shapes.sort(key=quantities["parameters_non_embedding"], reverse=True)
    step = " a step, 15% masked" if setting.memory_of == "training" else ""
    notes = [f"memory: {setting.memory_of}, {setting.conditions}{step}"]
    notes += [model.to_text()] if model is not None else []
    return Solved(tuple(goals), f"{question} ({setting.space})", tuple(shapes), quantities, model, tuple(notes))


def _written(name: str, value: float) -> str:
    """A value as its column shows it."""
    return f"{value:.4f}" if name == "loss_nats" else WRITERS.get(name, count_text)(value)


def _heading(name: str) -> str:
    """A quantity's name as a column's heading."""
    return name.removesuffix("_bytes").removesuffix("_seconds").replace("parameters_", "").replace("_per_token", "/token")
