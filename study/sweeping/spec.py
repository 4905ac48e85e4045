"""A sweep file: one question, and the runs that answer it, as strict models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import yaml
from pydantic import Field, field_validator, model_validator

from study.config import Budget, DataConfig, Masking, read_yaml
from study.errors import InputError
from study.schema import Count, Index, Positive, Strict, Text, set_path, whole
from study.solving import ShapeRules

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""What a sweep may be called: its name becomes a folder, a W&B group and a title."""


class Rules(Strict):
    """How widths fix heads and ffn where a sweep does not give them (see study.solving.ShapeRules)."""

    head_width: Count = 64
    ffn_ratio: Positive = 4.0
    width_multiple: Count = 8

    @property
    def rules(self) -> ShapeRules:
        """The rules themselves."""
        return ShapeRules(self.head_width, self.ffn_ratio, self.width_multiple)


class Grid(Strict):
    """Every combination of the sizes given; heads and ffn follow the width by the rules where they are not."""

    depth: Annotated[tuple[Count, ...], Field(min_length=1)]
    width: Annotated[tuple[Count, ...], Field(min_length=1)]
    heads: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    ffn: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None


class Shape(Strict):
    """One shape; heads and ffn follow the width by the rules where they are not given."""

    depth: Count
    width: Count
    heads: Count | None = None
    ffn: Count | None = None


class Shapes(Rules):
    """The shapes of a sweep, in exactly one way: `iso_parameters` with `depth`, `grid`, or `list`.

    `iso_parameters` are targets of `parameters_non_embedding`: at each target and depth the width is solved for, and a shape
    that misses the target by more than `tolerance` is refused.
    """

    iso_parameters: Annotated[tuple[Positive, ...], Field(min_length=1)] | None = None
    depth: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    tolerance: Annotated[Positive, Field(lt=1)] = 0.05
    grid: Grid | None = None
    listed: Annotated[tuple[Shape, ...], Field(min_length=1)] | None = Field(default=None, alias="list")

    @model_validator(mode="after")
    def _exactly_one_way(self) -> Self:
        ways = {"iso_parameters": self.iso_parameters, "grid": self.grid, "list": self.listed}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of iso_parameters, grid, list, not {', '.join(given) or 'none'}")
        if (self.depth is None) != (self.iso_parameters is None):
            raise ValueError("needs depth exactly when iso_parameters are given")
        return self

    def combinations(self) -> list[dict[str, int]]:
        """The sizes of `grid` or `list`, completed by the rules."""
        if self.grid is not None:
            axes = {name: values for name, values in self.grid if values is not None}
            shapes = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        else:
            shapes = [shape.model_dump(exclude_none=True) for shape in self.listed or ()]
        return [self.completed(shape) for shape in shapes]

    def completed(self, shape: dict[str, int]) -> dict[str, int]:
        """A shape with its heads and ffn."""
        rules, width = self.rules, shape["width"]
        return {"heads": rules.heads(width), "ffn": rules.ffn(width)} | shape


class Budgets(Strict):
    """Budgets of a sweep, each a cell of its own: any of the units of a run's budget, each with a list of values."""

    tokens: tuple[Positive, ...] = ()
    steps: tuple[Count, ...] = ()
    flops: tuple[Positive, ...] = ()
    tokens_per_parameter: tuple[Positive, ...] = ()

    @model_validator(mode="after")
    def _at_least_one(self) -> Self:
        if not any(values for _, values in self):
            raise ValueError(f"needs at least one budget in {', '.join(type(self).model_fields)}")
        return self

    def each(self) -> Iterator[Budget]:
        """The budgets one by one."""
        for unit, values in self:
            for value in values:
                yield Budget.parse({unit: value})


class Tuned(Strict):
    """A knob tuned for each cell: `trials` values from low to high in equal ratios, one more where the best is at an end."""

    low: Positive
    high: Positive
    trials: Annotated[Count, Field(ge=2)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self

    def values(self) -> list[float]:
        """The values to try, rounded to four digits."""
        return [_rounded(value) for value in np.geomspace(self.low, self.high, self.trials)]

    def beyond(self, value: float) -> float | None:
        """The next value outwards where `value` is an end of the range, None inside it."""
        values = self.values()
        ratio = (self.high / self.low) ** (1 / (self.trials - 1))
        if value == values[0]:
            return _rounded(self.low / ratio)
        return _rounded(self.high * ratio) if value == values[-1] else None


class Dimension(Strict):
    """One dimension of a search: numbers from `low` to `high` (whole ones where both are), or `choices`."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    step: Count | None = None
    choices: tuple[int | float | str | bool, ...] | None = None

    @model_validator(mode="after")
    def _range_or_choices(self) -> Self:
        if (self.choices is None) == (self.low is None or self.high is None):
            raise ValueError("needs either low and high, or choices")
        if self.low is not None and self.high is not None:
            if self.low >= self.high:
                raise ValueError(f"low {self.low} is not below high {self.high}")
            if self.log and (self.low <= 0 or self.step):
                raise ValueError("a log dimension needs a low above zero and no step")
            if self.step and not self.whole:
                raise ValueError("a step needs whole low and high")
        if self.choices == ():
            raise ValueError("has no choices")
        return self

    @property
    def whole(self) -> bool:
        """Whether the dimension holds whole numbers."""
        return self.low is not None and self.high is not None and self.low.is_integer() and self.high.is_integer()

    def top(self) -> int | float | str | bool:
        """The high end, or the last choice."""
        if self.choices is not None:
            return self.choices[-1]
        assert self.high is not None
        return int(self.high) if self.whole else self.high


class Search(Rules):
    """A free search by Optuna over any keys of a run; several objectives give a Pareto front. Never for a scaling fit."""

    trials: Count
    sampler: Literal["tpe", "random", "nsga2"] = "tpe"
    objectives: Annotated[
        tuple[Literal["loss_nats", "parameters", "parameters_non_embedding", "train_flops"], ...], Field(min_length=1)
    ] = ("loss_nats",)
    space: Annotated[dict[str, Dimension], Field(min_length=1)]


class SweepSpec(Strict):
    """A sweep: a question, the data, what all runs share, and the cells or the search that answer it."""

    name: Text
    question: Text
    expect: Text | None = None
    data: DataConfig = DataConfig()
    masking: Masking = Masking()
    base: dict[str, Any] = Field(default_factory=dict)
    shapes: Shapes | None = None
    budgets: Budgets
    tune: dict[str, Tuned] = Field(default_factory=dict)
    seeds: Annotated[Count, Field(le=100)] = 1
    first_seed: Index = 0
    search: Search | None = None
    tags: tuple[Text, ...] = ()

    @field_validator("name")
    @classmethod
    def _name_is_safe(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError("cannot name a folder: letters, digits, '_', '.' and '-', at most 64")
        return name

    @field_validator("base")
    @classmethod
    def _base_has_known_parts(cls, base: dict[str, Any]) -> dict[str, Any]:
        for key, value in base.items():
            if key not in ("architecture", "recipe"):
                raise ValueError(f"holds {key!r}; it takes architecture and recipe (data, masking and seeds stand beside it)")
            if not isinstance(value, dict):
                raise ValueError(f"holds {value!r} under {key} where keys and values are needed")
        return base

    @model_validator(mode="after")
    def _shapes_or_search(self) -> Self:
        if (self.shapes is None) == (self.search is None):
            raise ValueError("needs either shapes or search")
        if self.search is not None and (self.tune or self.seeds > 1 or sum(len(values) for _, values in self.budgets) > 1):
            raise ValueError("a search takes one budget and one seed, and tunes what its space names, so no tune")
        return self

    @property
    def seed_values(self) -> tuple[int, ...]:
        """The seeds of each cell; the first is the one that learning rates are tuned at."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))


def read_sweep(path: Path, overrides: tuple[str, ...] = ()) -> tuple[SweepSpec, dict[str, Any]]:
    """A sweep file with `key.path=value` overrides put in: the strict model, and the plain values as `sweep.yaml` keeps them.

    Raises InputError with everything that is wrong with the file or the overrides.
    """
    values = {"name": path.stem} | read_yaml(path)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise InputError.at(override, "is not an override; write key.path=value, as in seeds=3")
        try:
            set_path(values, key, yaml.safe_load(text))
        except yaml.YAMLError:
            raise InputError.at(override, f"{text!r} is not a YAML value") from None
    return SweepSpec.parse(values, place=""), values


def _rounded(value: float) -> float:
    return whole(float(f"{value:.4g}"))
