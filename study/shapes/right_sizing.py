"""`study shapes`: from written amounts to the shapes that meet them, best first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.base.errors import InputError
from study.base.quantities import (
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
from study.base.text import aligned
from study.counting.architecture import SIZES, Architecture
from study.counting.latency_prediction import LatencyModel, Statistic, fit_latency
from study.counting.latency_table import read_table
from study.counting.memory import Precision
from study.counting.parameters import TOTALS, parameters
from study.counting.solving import HEAD_WIDTH, Goal, ShapeRules, Space, on_contour, under
from study.shapes.accounts import Conditions, memory_in, training_flops

if TYPE_CHECKING:
    from study.laws.law_files import FittedLaw

Quantities = dict[str, Callable[[Architecture], float]]
"""How to count each quantity, by name."""

WRITERS: dict[str, Callable[[float], str]] = {
    "train_flops_per_token": flops_text,
    "memory_bytes": bytes_text,
    "latency_seconds": seconds_text,
}
"""How to write quantities other than counts."""


@dataclass(frozen=True)
class Solved:
    """Shapes that meet the goals, with their quantities; the best first, by the law's loss if there is a law."""

    goals: tuple[Goal, ...]
    question: str
    shapes: tuple[Architecture, ...]
    quantities: Quantities
    latency: LatencyModel | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The question, shapes, quantities and latency model as plain values."""
        rows = [
            {"shape": shape.shape_name, **{size: getattr(shape, size) for size in SIZES}, **self._values(shape)}
            for shape in self.shapes
        ]
        goals = {goal.quantity: goal.amount for goal in self.goals}
        latency = self.latency and self.latency.to_dict()
        return {"goals": goals, "question": self.question, "shapes": rows, "latency_model": latency, "notes": list(self.notes)}

    def to_text(self) -> str:
        """The shapes as a plain text table."""
        rows = [["shape", *(_heading(name) for name in self.quantities)]]
        for shape in self.shapes:
            rows.append([shape.shape_name, *(_written(name, value) for name, value in self._values(shape).items())])
        return "\n".join([self.question, "", *aligned(rows), "", *self.notes])

    def _values(self, shape: Architecture) -> dict[str, float]:
        return {name: count(shape) for name, count in self.quantities.items()}


@dataclass(frozen=True, kw_only=True)
class ShapeQuery:
    """Options of `study shapes`: amounts, shapes to consider, and predictors of latency and loss.

    One amount is met within `tolerance`; with `under`, shapes stay below all amounts.
    """

    parameters: str | None = None
    convention: str = "parameters_non_embedding"
    train_flops: str | None = None
    memory: str | None = None
    memory_of: str = "inference"
    latency: str | None = None
    under: bool = False
    tolerance: float = 0.02
    batch: int = 1
    sequence_length: int = 128
    precision: Precision = "fp32"
    latency_table: Path = Path("results/latency")
    latency_statistic: Statistic = "median"
    threads: int | None = None
    law: Path | None = None
    law_convention: str | None = None
    tokens: str | None = None
    depth: str = "1:24"
    width: str = "64:2048"
    width_multiple: int = 64
    head_width: int | None = None
    ffn_ratio: float = 4.0
    vocabulary: int = 30522
    positions: int = 512

    def answer(self) -> Solved:
        """The shapes that have the amounts.

        Raises InputError for unreadable or unreachable amounts, and for latency without a table.
        """
        self._check()
        space, quantities = self._space, self._quantities
        if not (goals := self._goals):
            raise InputError.at("--parameters", "no amount is given; give --parameters, --train-flops, --memory or --latency")
        amounts = " and ".join(f"{goal.text(goal.amount)} {goal.words}" for goal in goals)
        budgets = self.under or len(goals) > 1
        if budgets:
            shapes = under(space, goals)
            question = f"the widest shape at each depth under {amounts}"
        else:
            shapes = on_contour(space, goals[0], self.tolerance)
            question = f"all shapes within {100 * self.tolerance:g}% of {amounts}"
        if loss := quantities.get("loss_nats"):
            shapes.sort(key=loss)
        elif budgets:
            shapes.sort(key=quantities["parameters_non_embedding"], reverse=True)
        notes = tuple(self._notes(shapes))
        return Solved(goals, f"{question} ({space})", tuple(shapes), quantities, self._latency_model, notes)

    def _check(self) -> None:
        """Raise InputError if an option has no effect, or sequences exceed the positions."""
        for option, value, needed, given in (
            ("--threads", self.threads, "--latency", self.latency),
            ("--law-convention", self.law_convention, "--law", self.law),
            ("--tokens", self.tokens, "--law", self.law),
        ):
            if value is not None and given is None:
                raise InputError.at(option, f"only applies with {needed}; give that too")
        if self.sequence_length > self.positions:
            message = f"{self.sequence_length} exceeds --positions {self.positions}; raise that too"
            raise InputError.at("--sequence-length", message)

    @property
    def _space(self) -> Space:
        head_width = self.head_width or HEAD_WIDTH
        rules = ShapeRules(head_width, self.ffn_ratio, math.lcm(self.width_multiple, self.head_width or 1))
        sizes = {"depth": 1, "width": 1, "heads": 1, "ffn": 1, "vocabulary": self.vocabulary, "positions": self.positions}
        return Space(rules, read_range("--depth", self.depth), read_range("--width", self.width), Architecture.parse(sizes))

    @property
    def _conditions(self) -> Conditions:
        return Conditions(self.sequence_length, self.batch, self.precision)

    @cached_property
    def _latency_model(self) -> LatencyModel | None:
        if self.latency is None:
            return None
        batch_and_length = (self.batch, self.sequence_length)
        return fit_latency(
            read_table(self.latency_table), self.precision, self.threads, batch_and_length, self.latency_statistic
        )

    @cached_property
    def _fitted_law(self) -> FittedLaw | None:
        """The law, if any, imported on use because that takes a second."""
        if self.law is None:
            return None
        from study.laws.law_files import read_law

        return read_law(self.law, self.law_convention)

    @cached_property
    def _trained_tokens(self) -> float | None:
        return None if self.tokens is None else read_count("--tokens", self.tokens)

    @cached_property
    def _quantities(self) -> Quantities:
        """Latency only with a model, loss only with a law."""

        def total(name: str) -> Callable[[Architecture], float]:
            return lambda shape: parameters(shape).totals()[name]

        conditions, model, law, tokens = self._conditions, self._latency_model, self._fitted_law, self._trained_tokens
        quantities: Quantities = {name: total(name) for name in TOTALS}
        quantities["train_flops_per_token"] = lambda shape: training_flops(shape, self.sequence_length)[1]["train_flops"]
        quantities["memory_bytes"] = lambda shape: memory_in(conditions, shape)[self.memory_of].total
        if model is not None:
            quantities["latency_seconds"] = lambda shape: model.seconds(shape, self.batch, self.sequence_length)
        if law is not None:
            quantities["loss_nats"] = lambda shape: law.loss_nats(shape, tokens)
        return quantities

    @property
    def _goals(self) -> tuple[Goal, ...]:
        read = (
            ("--parameters", self.convention, self.parameters, read_count),
            ("--train-flops", "train_flops_per_token", self.train_flops, read_count),
            ("--memory", "memory_bytes", self.memory, read_bytes),
            ("--latency", "latency_seconds", self.latency, read_seconds),
        )
        return tuple(
            Goal(option, quantity, reader(option, text), self._quantities[quantity], partial(_written, quantity))
            for option, quantity, text, reader in read
            if text is not None
        )

    def _notes(self, shapes: Sequence[Architecture]) -> Iterator[str]:
        """Conditions of memory, and predictors of latency and loss with the range they cover."""
        step = " a step, 15% masked" if self.memory_of == "training" else ""
        yield f"memory: {self.memory_of}, {self._conditions}{step}"
        if (model := self._latency_model) is not None:
            yield model.to_text()
            yield from _unmeasured(model, shapes, self._conditions)
        if (law := self._fitted_law) is not None:
            yield from (f"loss: {note}" for note in law.notes_on(shapes, self.vocabulary, self._trained_tokens))


def _unmeasured(model: LatencyModel, shapes: Sequence[Architecture], conditions: Conditions) -> list[str]:
    """How many shapes lie outside the measured range of latency, and in what."""
    batch, length = conditions.batch, conditions.sequence_length
    beyond = [names for shape in shapes if (names := model.beyond(shape, batch, length))]
    if not beyond:
        return []
    in_what = Counter(name for names in beyond for name in names)
    measured = ", ".join(_from_to(name, *model.ranges[name]) for name in model.ranges if name in in_what)
    return [
        f"latency is extrapolated for {len(beyond)} of {plural(len(shapes), 'shape')}, beyond what that error covers: it was "
        f"measured at {measured}"
    ]


def _from_to(name: str, least: float, largest: float) -> str:
    return f"{name} {least:g}" if least == largest else f"{name} {least:g} to {largest:g}"


def _written(name: str, value: float) -> str:
    return f"{value:.4f}" if name == "loss_nats" else WRITERS.get(name, count_text)(value)


def _heading(name: str) -> str:
    return name.removesuffix("_bytes").removesuffix("_seconds").replace("parameters_", "").replace("_per_token", "/token")
