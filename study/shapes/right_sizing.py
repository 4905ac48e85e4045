"""`study shapes`: from written amounts to the shapes that meet them, best first if a law ranks them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.base.durable_files import is_there
from study.base.errors import InputError, option_name
from study.base.grouping import grouped
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
from study.base.shipped import PACKAGE
from study.base.text import aligned
from study.config.presets import kind
from study.counting.architecture import SIZES, Architecture
from study.counting.latency import LatencyModel, Statistic, fit_latency, kind_words, read_table
from study.counting.memory import WeightFormat, encoder_bytes, inference_memory
from study.counting.named_models import catalogue
from study.counting.parameters import TOTALS, parameters
from study.counting.solving import Goal, ShapeRules, Space, on_contour, under
from study.shapes.accounts import Conditions, memory_in, training_flops

if TYPE_CHECKING:
    from study.laws.law_files import FittedLaw, FittedScore

Quantities = dict[str, Callable[[Architecture], float]]
"""How to count each quantity, by name."""

WRITERS: dict[str, Callable[[float], str]] = {
    "train_flops_per_token": flops_text,
    "weights_bytes": bytes_text,
    "memory_bytes": bytes_text,
    "latency_seconds": seconds_text,
}
"""How to write quantities other than counts."""


MEASURED, SHIPPED = Path("results/latency"), Path("results/reference/latency")
"""Where `study latency` writes its table, and the committed one."""

UNRANKED = "no law ranks these shapes, so the first is no better than the others; give --law or --score-law"
"""The note on shapes that are in no order of quality."""


@dataclass(frozen=True)
class Solved:
    """Shapes that meet the goals, with their quantities; the best first by a law of the loss or score, if there is one."""

    goals: tuple[Goal, ...]
    question: str
    shapes: tuple[Architecture, ...]
    quantities: Quantities
    latency: LatencyModel | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the question, shapes, quantities and latency model as plain values."""
        rows = [
            {
                "shape": shape.shape_name,
                "named": named_shape(shape),
                **{size: getattr(shape, size) for size in SIZES},
                **self._values(shape),
            }
            for shape in self.shapes
        ]
        goals = {goal.quantity: goal.amount for goal in self.goals}
        latency = self.latency and self.latency.to_dict()
        return {"goals": goals, "question": self.question, "shapes": rows, "latency_model": latency, "notes": list(self.notes)}

    def to_text(self) -> str:
        """Return the shapes as a plain text table."""
        rows = [["shape", "that of", *(_heading(name) for name in self.quantities)]]
        for shape in self.shapes:
            values = (_written(name, value) for name, value in self._values(shape).items())
            rows.append([shape.shape_name, named_shape(shape) or "", *values])
        return "\n".join([self.question, "", *aligned(rows, left=2), "", *self.notes])

    def _values(self, shape: Architecture) -> dict[str, float]:
        return {name: count(shape) for name, count in self.quantities.items()}


def named_shape(shape: Architecture) -> str | None:
    """Return the named model of the same kind and sizes, BERT's own first, if any."""
    return _named_by_sizes().get((kind_words(shape), *shape.sizes))


@cache
def _named_by_sizes() -> dict[tuple[str, int, int, int, int], str]:
    preferred = sorted(catalogue(), key=lambda model: (model.family != "BERT", not model.family.startswith("BERT")))
    kinds = {model.short_name: kind(model.short_name, "") for model in reversed(preferred)}
    return {(kind_words(shape), *shape.sizes): name for name, shape in kinds.items()}


@dataclass(frozen=True, kw_only=True)
class ShapeQuery:
    """Options of `study shapes`: amounts, shapes to consider, and predictors of latency, loss and score.

    One amount is met within `tolerance`; with `under`, shapes stay below all amounts. A `score` is the least that a law of
    `study score-law` must predict. Without a `latency_table` it is that of MEASURED, or else the shipped one.
    """

    parameters: str | None = None
    convention: str = "parameters_non_embedding"
    train_flops: str | None = None
    memory: str | None = None
    memory_of: str = "inference"
    size: str | None = None
    latency: str | None = None
    score: float | None = None
    under: bool = False
    tolerance: float = 0.02
    batch: int = 1
    sequence_length: int = 128
    precision: WeightFormat = "fp32"
    latency_table: Path | None = None
    latency_statistic: Statistic = "median"
    threads: int | None = None
    law: Path | None = None
    law_convention: str | None = None
    score_law: Path | None = None
    tokens: str | None = None
    depth: str = "1:24"
    width: str = "64:2048"
    width_multiple: int = 64
    head_width: int | None = None
    ffn_ratio: float | None = None
    kind: str = "bert"
    vocabulary: int = 30522
    positions: int = 512
    embedding_width: int | None = None

    def answer(self) -> Solved:
        """Return the shapes that have the amounts.

        Raises InputError for unreadable or unreachable amounts, and for latency without a table.
        """
        self._check()
        space, quantities, goals = self._space, self._quantities, self._goals
        amounts = " and ".join(f"{goal.text(goal.amount)} {goal.words}" for goal in goals)
        budgets = self.under or len(goals) > 1
        if not goals:
            shapes, question = space.shapes(), "the smallest shape at each depth"
        elif budgets:
            shapes = under(space, goals)
            question = f"the widest shape at each depth under {amounts}"
        else:
            shapes = on_contour(space, goals[0], self.tolerance)
            question = f"all shapes within {100 * self.tolerance:g}% of {amounts}"
        if self.score is not None:
            shapes = self._reaching(shapes)
            question += f" with a score of {self.score:g} or more"
        if score := quantities.get("score"):
            shapes.sort(key=quantities["parameters"] if not goals else score, reverse=bool(goals))
        elif loss := quantities.get("loss_nats"):
            shapes.sort(key=loss)
        elif budgets:
            shapes.sort(key=quantities["parameters_non_embedding"], reverse=True)
        notes = tuple(self._notes(shapes))
        like = "" if self.kind == "bert" else f", like {self.kind}"
        return Solved(goals, f"{question}{like} ({space})", tuple(shapes), quantities, self._latency_model, notes)

    def _reaching(self, shapes: Sequence[Architecture]) -> list[Architecture]:
        """Return the shapes that reach the score, by default the narrowest at each depth.

        Raises InputError for none.
        """
        score = self._quantities["score"]
        assert self.score is not None
        scores = {shape: score(shape) for shape in shapes}
        reaching = [shape for shape, value in scores.items() if value >= self.score]
        if not reaching:
            best = max(scores, key=scores.__getitem__)
            message = f"no such shape reaches {self.score:g}; the best, {best.shape_name}, reaches {scores[best]:.4f}"
            raise InputError.at("--score", f"{message}; allow more, or train on more --tokens")
        if self._goals:
            return reaching
        return [min(of_depth, key=lambda shape: shape.width) for of_depth in grouped(reaching, lambda one: one.depth).values()]

    def _check(self) -> None:
        """Raise InputError if no amount is given, or an option has no effect."""
        given = [self.parameters, self.train_flops, self.memory, self.size, self.latency]
        amounts = len(given) - given.count(None)
        if not amounts and self.score is None:
            known = "--parameters, --train-flops, --memory, --size, --latency or --score"
            raise InputError.at("--parameters", f"no amount is given; give {known}")
        for name, needed, there in (
            ("convention", "--parameters", self.parameters),
            ("threads", "--latency", self.latency),
            ("latency_table", "--latency", self.latency),
            ("latency_statistic", "--latency", self.latency),
            ("law_convention", "--law or --score-law", self.law or self.score_law),
            ("tokens", "--law or --score-law", self.law or self.score_law),
            ("score", "--score-law", self.score_law),
            ("under", "an amount, such as --memory", amounts or None),
        ):
            if self._sets(name) and there is None:
                raise InputError.at(option_name(name), f"only applies with {needed}; give that too")
        if self._sets("tolerance") and (self.under or amounts != 1):
            raise InputError.at("--tolerance", "only applies to a single amount that is met, without --under; leave it out")
        if self.precision == "int8" and self.memory is not None and self.memory_of == "training":
            raise InputError.at("--precision", "int8 is for inference; give --memory-of inference, or fp32 or bf16")
        if self.sequence_length > self.positions:
            message = f"{self.sequence_length} exceeds --positions {self.positions}; raise that too"
            raise InputError.at("--sequence-length", message)

    def _sets(self, name: str) -> bool:
        """Whether an option is not at its default."""
        return bool(getattr(self, name) != getattr(ShapeQuery, name))

    @property
    def _space(self) -> Space:
        of_kind = kind(self.kind, "--kind")
        rules = ShapeRules.like(of_kind)
        rules = replace(
            rules,
            head_width=self.head_width or rules.head_width,
            ffn_ratio=self.ffn_ratio or rules.ffn_ratio,
            width_multiple=math.lcm(self.width_multiple, self.head_width or 1),
        )
        own = {"vocabulary": self.vocabulary, "positions": self.positions}
        own |= {} if self.embedding_width is None else {"embedding_width": self.embedding_width}
        template = of_kind.model_copy(update=own)
        return Space(rules, read_range("--depth", self.depth), read_range("--width", self.width), template)

    @property
    def _conditions(self) -> str:
        return f"{self.batch} x {self.sequence_length} tokens, {self.precision}"

    def _memory(self, shape: Architecture) -> float:
        """Bytes of `memory_of`; int8 is for inference."""
        if self.precision == "int8":
            return inference_memory(shape, self.batch, self.sequence_length, "int8").total
        return memory_in(Conditions(self.sequence_length, self.batch, self.precision), shape)[self.memory_of].total

    @cached_property
    def _table(self) -> Path:
        if self.latency_table is not None:
            return self.latency_table
        shipped = PACKAGE.parent / SHIPPED
        return shipped if not any(MEASURED.glob("*/*.csv")) and is_there(shipped) else MEASURED

    @cached_property
    def _latency_model(self) -> LatencyModel | None:
        if self.latency is None:
            return None
        batch_and_length = (self.batch, self.sequence_length)
        of_kind = self._space.template
        table = read_table(self._table)
        return fit_latency(table, self.precision, self.threads, batch_and_length, self.latency_statistic, of_kind)

    @cached_property
    def _fitted_law(self) -> FittedLaw | None:
        """The law, if any; its import takes a second."""
        if self.law is None:
            return None
        from study.laws.law_files import read_law

        return read_law(self.law, self.law_convention)

    @cached_property
    def _fitted_score(self) -> FittedScore | None:
        if self.score_law is None:
            return None
        from study.laws.law_files import read_score_law

        return read_score_law(self.score_law, self.law_convention)

    @cached_property
    def _trained_tokens(self) -> float | None:
        return None if self.tokens is None else read_count("--tokens", self.tokens)

    @cached_property
    def _quantities(self) -> Quantities:
        """Latency only with a model, loss and score only with a law."""

        def total(name: str) -> Callable[[Architecture], float]:
            return lambda shape: parameters(shape).totals()[name]

        model, law, of_score, tokens = self._latency_model, self._fitted_law, self._fitted_score, self._trained_tokens
        quantities: Quantities = {name: total(name) for name in TOTALS}
        quantities["train_flops_per_token"] = lambda shape: training_flops(shape, self.sequence_length)[1]["train_flops"]
        quantities["memory_bytes"] = self._memory
        quantities["weights_bytes"] = lambda shape: encoder_bytes(shape, self.precision)
        if model is not None:
            quantities["latency_seconds"] = lambda shape: model.seconds(shape, self.batch, self.sequence_length)
        if law is not None:
            quantities["loss_nats"] = lambda shape: law.loss_nats(shape, tokens)
        if of_score is not None:
            quantities["score"] = lambda shape: of_score.score(shape, tokens)
        return quantities

    @property
    def _goals(self) -> tuple[Goal, ...]:
        read = (
            ("--parameters", self.convention, self.parameters, read_count),
            ("--train-flops", "train_flops_per_token", self.train_flops, read_count),
            ("--memory", "memory_bytes", self.memory, read_bytes),
            ("--size", "weights_bytes", self.size, read_bytes),
            ("--latency", "latency_seconds", self.latency, read_seconds),
        )
        return tuple(
            Goal(option, quantity, reader(option, text), self._quantities[quantity], partial(_written, quantity))
            for option, quantity, text, reader in read
            if text is not None
        )

    def _notes(self, shapes: Sequence[Architecture]) -> Iterator[str]:
        """Conditions of memory and size, whether a law ranks shapes, and predictors with their ranges."""
        step = " a step, 15% masked" if self.memory_of == "training" else ""
        yield f"memory: {self.memory_of}, {self._conditions}{step}; size: the encoder's weights in {self.precision}"
        if self.law is None and self.score_law is None:
            yield UNRANKED
        elif self.precision != "fp32":
            yield f"loss and score are those of fp32; study compress measures what {self.precision} changes"
        if (model := self._latency_model) is not None:
            yield model.to_text()
            if self.latency_table is None and self._table != MEASURED:
                yield f"latency: this machine was not measured, so by the table in {SHIPPED}; measure yours with study latency"
            yield from _unmeasured(model, shapes, self.batch, self.sequence_length)
        if (law := self._fitted_law) is not None:
            yield from (f"loss: {note}" for note in law.notes_on(shapes, self.vocabulary, self._trained_tokens))
        if (of_score := self._fitted_score) is not None:
            notes = of_score.loss.notes_on(shapes, self.vocabulary, self._trained_tokens)
            yield from (f"score: {note}" for note in notes)


def _unmeasured(model: LatencyModel, shapes: Sequence[Architecture], batch: int, length: int) -> list[str]:
    """How many shapes lie outside the measured latencies, and in what."""
    beyond = [names for shape in shapes if (names := model.beyond(shape, batch, length))]
    if not beyond:
        return []
    in_what = Counter(name for names in beyond for name in names)
    measured = [_from_to(name, *model.ranges[name]) for name in model.ranges if name in in_what]
    if unlike := [name for name in in_what if name not in model.ranges]:
        measured.append(f"BERT's {', '.join(unlike)}")
    return [
        f"latency is extrapolated for {len(beyond)} of {plural(len(shapes), 'shape')}, beyond what that error covers: it was "
        f"measured at {', '.join(measured)}"
    ]


def _from_to(name: str, least: float, largest: float) -> str:
    return f"{name} {least:g}" if least == largest else f"{name} {least:g} to {largest:g}"


def _written(name: str, value: float) -> str:
    return f"{value:.4f}" if name in ("loss_nats", "score") else WRITERS.get(name, count_text)(value)


def _heading(name: str) -> str:
    return name.removesuffix("_bytes").removesuffix("_seconds").replace("parameters_", "").replace("_per_token", "/token")
