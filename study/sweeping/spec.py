"""A sweep file: one question, and the runs that answer it, as strict models."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Literal, Self, get_args

import numpy as np
from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from study.architecture import Architecture
from study.config import Budget, DataConfig, Masking, Recipe
from study.schema import Count, Distinct, Index, OneOrSeveral, Positive, Several, Share, Strict, Text, number_in, whole
from study.score_config import Downstream
from study.solving import HEAD_WIDTH, ShapeRules, undivided
from study.sweeping.resources import Resources

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""What a sweep may be called: its name becomes a folder, a W&B group and a title."""

LARGEST = {"depth": 10_000, "width": 1_000_000, "heads": 1_000_000, "ffn": 10_000_000}
"""The largest sizes that a sweep takes, far beyond any encoder, so that a slip of the keyboard is told and not planned."""

MOST_COMBINATIONS = 10_000
"""The most shapes of a grid, the most settings, and the most combinations of tuned values of a cell."""

Depth = Annotated[Count, Field(le=LARGEST["depth"])]
Width = Annotated[Count, Field(le=LARGEST["width"])]
Heads = Annotated[Count, Field(le=LARGEST["heads"])]
Ffn = Annotated[Count, Field(le=LARGEST["ffn"])]


class Grid(Strict):
    """Every combination of the sizes given; heads and ffn follow the width by the rules where they are not."""

    depth: Several[Depth]
    width: Several[Width]
    heads: Several[Heads] | None = None
    ffn: Several[Ffn] | None = None

    @field_validator("heads")
    @classmethod
    def _heads_divide_every_width(cls, heads: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        for width, count in product(info.data.get("width", ()), heads or ()):
            if width % count:
                raise ValueError(f"holds {count}, which does not divide width {width}; leave heads out, or list the shapes")
        return heads

    @model_validator(mode="after")
    def _not_endless(self) -> Self:
        count = math.prod(len(values) for _, values in self if values is not None)
        if count > MOST_COMBINATIONS:
            raise ValueError(f"has {count:,} shapes, more than {MOST_COMBINATIONS:,}")
        return self


class Shape(Strict):
    """One shape; heads and ffn follow the width by the rules where they are not given."""

    depth: Depth
    width: Width
    heads: Heads | None = None
    ffn: Ffn | None = None

    @field_validator("heads")
    @classmethod
    def _heads_divide_width(cls, heads: int | None, info: ValidationInfo) -> int | None:
        width = info.data.get("width")
        if heads is not None and width is not None and width % heads:
            raise ValueError(f"heads do not divide width {width}; leave them out, or give a number that does")
        return heads


class Shapes(Strict):
    """The shapes of a sweep, in exactly one way: `iso_parameters` with `depth`, `grid`, or `list`.

    `iso_parameters` are targets of `parameters_non_embedding`: at each target and depth the width is solved for, and a shape
    that misses the target by more than `tolerance` is refused. Heads and FFN that are not given follow the width by
    `head_width` and `ffn_ratio` (see study.solving.ShapeRules); of several of these each makes shapes of its own. A
    `head_width` that is given divides the widths: one that leaves part of a given width over is refused, and widths are solved
    for in multiples of it, unless `width_multiple` says in which.
    """

    iso_parameters: Several[Annotated[Positive, Field(le=1e12)]] | None = None
    depth: Several[Depth] | None = None
    tolerance: Annotated[Positive, Field(lt=1)] = 0.05
    grid: Grid | None = None
    listed: Several[Shape] | None = Field(default=None, alias="list")
    head_width: OneOrSeveral[Count] = (HEAD_WIDTH,)
    ffn_ratio: OneOrSeveral[Positive] = (4.0,)
    width_multiple: Count | None = None

    @model_validator(mode="after")
    def _exactly_one_way(self) -> Self:
        ways = {"iso_parameters": self.iso_parameters, "grid": self.grid, "list": self.listed}
        given = [name for name, value in ways.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of iso_parameters, grid, list, not {', '.join(given) or 'none'}")
        if (self.depth is None) != (self.iso_parameters is None):
            raise ValueError("needs depth exactly when iso_parameters are given")
        return self

    @model_validator(mode="after")
    def _rules_have_a_use(self) -> Self:
        for rule, size in (("head_width", "heads"), ("ffn_ratio", "ffn")):
            if rule in self.model_fields_set and self.iso_parameters is None and all(size in shape for shape in self._given()):
                raise ValueError(f"has {rule}, which no shape follows, since {size} are given")
        return self

    @model_validator(mode="after")
    def _head_widths_divide_widths(self) -> Self:
        widths = [shape["width"] for shape in self._given() if "heads" not in shape]
        if self.says_head_width and (problem := undivided(self.head_width, widths)):
            raise ValueError(problem)
        return self

    @property
    def says_head_width(self) -> bool:
        """Whether the file asks for a head width."""
        return "head_width" in self.model_fields_set

    @property
    def rules(self) -> list[ShapeRules]:
        """The rules by which widths fix the rest, one for each head width and FFN ratio."""
        pairs = product(self.head_width, self.ffn_ratio)
        return [ShapeRules(head_width, ffn_ratio, self._multiple(head_width)) for head_width, ffn_ratio in pairs]

    def _multiple(self, head_width: int) -> int:
        """What widths that are solved for are multiples of."""
        return self.width_multiple or math.lcm(8, head_width if self.says_head_width else 1)

    def combinations(self) -> list[dict[str, int]]:
        """The sizes of `grid` or `list`, completed by the rules."""
        return [rules.completed(shape) for shape in self._given() for rules in self.rules]

    def _given(self) -> list[dict[str, int]]:
        """The sizes of `grid` or `list` as they stand."""
        if self.grid is not None:
            axes = {name: values for name, values in self.grid if values is not None}
            return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        return [shape.model_dump(exclude_none=True) for shape in self.listed or ()]


class Budgets(Strict):
    """Budgets of a sweep, each a cell of its own: any of the units of a run's budget, each with a list of values."""

    tokens: Distinct[Annotated[Positive, Field(le=1e18)]] = ()
    steps: Distinct[Annotated[Count, Field(le=10**12)]] = ()
    flops: Distinct[Annotated[Positive, Field(le=1e30)]] = ()
    tokens_per_parameter: Distinct[Annotated[Positive, Field(le=1e6)]] = ()

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
    """A knob tuned for each cell: `trials` values from low to high in equal ratios, one more where the best is at an end.

    Up to three values are tried at once. Of more, a cell tries the three around the best of the nearest cheaper cell (of the
    range, where there is none), and goes on downhill until worse ones lie on both sides. Several knobs are tried in all
    combinations, and then the values on both sides of the best in each, until they have all been tried.
    """

    low: Positive
    high: Positive
    trials: Annotated[Count, Field(ge=2, le=1000)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self

    def values(self) -> list[float]:
        """The values to try, rounded to four digits, each once."""
        return list(_in_equal_ratios(self.low, self.high, self.trials))

    def line(self) -> list[float | None]:
        """The values with one more beyond each end, in order."""
        values = self.values()
        return [self.beyond(values[0]), *values, self.beyond(values[-1])]

    def beyond(self, value: float) -> float | None:
        """The next value outwards where `value` is an end of the range, None inside it."""
        values = self.values()
        ratio = (self.high / self.low) ** (1 / (self.trials - 1))
        if value == values[0]:
            return _rounded(self.low / ratio)
        return _rounded(self.high * ratio) if value == values[-1] else None


@functools.cache
def _in_equal_ratios(low: float, high: float, count: int) -> tuple[float, ...]:
    """So many values from low to high, rounded to four digits, each once; every cell of a sweep asks for the same."""
    return tuple(dict.fromkeys(_rounded(value) for value in np.geomspace(low, high, count)))


Value = Annotated[int | float | str | bool, BeforeValidator(number_in)]
"""A value of any knob; PyYAML reads 1e-3 as a string."""

Varied = Several[Value]
"""Values of a knob to compare, each a setting of its own at every shape and budget."""


WHOLE_KNOBS = frozenset(
    f"{part}.{name}"
    for part, model in (("architecture", Architecture), ("recipe", Recipe))
    for name, field in model.model_fields.items()
    if int in (field.annotation, *get_args(field.annotation)) and float not in (field.annotation, *get_args(field.annotation))
)
"""The knobs of a run that take whole numbers only."""


class Dimension(Strict):
    """One dimension of a search: numbers from `low` to `high`, or `choices`; whole numbers where the knob takes no others."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    step: Count | None = None
    choices: Distinct[Value] | None = None
    _of_whole_numbers: bool = PrivateAttr(default=True)

    @model_validator(mode="after")
    def _range_or_choices(self) -> Self:
        if self.choices is not None:
            if beside := [name for name, _ in self if name != "choices" and name in self.model_fields_set]:
                raise ValueError(f"has choices, beside which {', '.join(beside)} cannot stand")
            if not self.choices:
                raise ValueError("has no choices")
            return self
        if self.low is None or self.high is None:
            raise ValueError("needs either low and high, or choices")
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        if self.log and (self.low <= 0 or self.step):
            raise ValueError("a log dimension needs a low above zero and no step")
        if self.step and not self.whole:
            raise ValueError("a step needs whole low and high")
        return self

    @property
    def whole(self) -> bool:
        """Whether the dimension holds whole numbers."""
        return self._of_whole_numbers and _is_whole(self.low) and _is_whole(self.high)

    def of(self, path: str) -> Dimension:
        """The dimension as that of a knob, by its dotted key."""
        made = self.model_copy()
        made._of_whole_numbers = path in WHOLE_KNOBS or self.step is not None
        return made

    def holds(self, value: object) -> bool:
        """Whether a value lies in the dimension, and on a step of it where whole numbers do."""
        if self.choices is not None:
            return value in self.choices
        assert self.low is not None
        assert self.high is not None
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return not self.whole or (value - self.low) % (self.step or 1) == 0

    def top(self) -> int | float | str | bool:
        """The highest value there is: the high end or the last step below it, the largest choice, of words the last."""
        if self.choices is not None:
            numbers = [choice for choice in self.choices if isinstance(choice, int | float)]
            return max(numbers) if len(numbers) == len(self.choices) else self.choices[-1]
        assert self.low is not None
        assert self.high is not None
        return int(self.high - (self.high - self.low) % (self.step or 1)) if self.whole else self.high


class Prune(Strict):
    """Runs of a search that are worse than others at the same share of the budget are stopped before their end.

    `median`: worse than the median of the other trials there, once `spared` trials have ended. `hyperband`: by successive
    halving in brackets (Li et al. 2018, arXiv:1603.06560; reduction 3). Runs validate `checks` times, evenly over the budget,
    and none is stopped before `first` of it: masked language models stay on the unigram plateau for a while.
    """

    by: Literal["median", "hyperband"] = "median"
    checks: Annotated[Count, Field(ge=2, le=100)] = 8
    first: Annotated[Share, Field(lt=1)] = 0.25
    spared: Index = 5

    @property
    def first_check(self) -> int:
        """The first check, from 1, that may stop a run."""
        return max(1, math.ceil(self.first * self.checks - 1e-9))


class Search(Strict):
    """A free search by Optuna over any keys of a run; several objectives give a Pareto front. Never for a scaling fit.

    Heads and FFN that the space does not hold follow the width by `head_width` and `ffn_ratio` (see study.solving.ShapeRules);
    a `head_width` that is given divides every width of the space.
    """

    trials: Count
    prune: Prune | None = None
    sampler: Literal["tpe", "random", "nsga2"] = "tpe"
    objectives: Several[Literal["loss_nats", "parameters", "parameters_non_embedding", "train_flops"]] = ("loss_nats",)
    space: Annotated[dict[str, Dimension], Field(min_length=1)]
    head_width: Count = HEAD_WIDTH
    ffn_ratio: Positive = 4.0

    @property
    def rules(self) -> ShapeRules:
        """The rules by which a width fixes the rest."""
        return ShapeRules(self.head_width, self.ffn_ratio)

    @field_validator("space")
    @classmethod
    def _sizes_are_sensible(cls, space: dict[str, Dimension]) -> dict[str, Dimension]:
        for path, dimension in space.items():
            for value in dimension.choices if dimension.choices is not None else (dimension.high,):
                _check_size(path, value)
        return {path: dimension.of(path) for path, dimension in space.items()}

    @model_validator(mode="after")
    def _prunes_by_one_loss(self) -> Self:
        if self.prune is not None and self.objectives != ("loss_nats",):
            raise ValueError("prune needs loss_nats as the one objective: a run is stopped by its loss so far")
        return self


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
    vary: dict[str, Varied] = Field(default_factory=dict)
    tune: dict[str, Tuned] = Field(default_factory=dict)
    seeds: Annotated[Count, Field(le=100)] = 1
    first_seed: Annotated[Index, Field(le=2**31)] = 0
    search: Search | None = None
    tags: Distinct[Text] = ()
    downstream: Downstream | None = None
    resources: Resources = Resources()

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

    @field_validator("vary")
    @classmethod
    def _settings_are_not_endless(cls, vary: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        if (count := math.prod(len(values) for values in vary.values())) > MOST_COMBINATIONS:
            raise ValueError(f"asks for {count:,} settings, more than {MOST_COMBINATIONS:,}")
        return vary

    @field_validator("tune")
    @classmethod
    def _tuned_values_are_sensible(cls, tune: dict[str, Tuned]) -> dict[str, Tuned]:
        if (count := math.prod(tuned.trials for tuned in tune.values())) > MOST_COMBINATIONS:
            raise ValueError(f"asks for {count:,} combinations a cell, more than {MOST_COMBINATIONS:,}")
        return tune

    @model_validator(mode="after")
    def _shapes_or_search(self) -> Self:
        if (self.shapes is None) == (self.search is None):
            raise ValueError("needs either shapes or search")
        one_budget = sum(len(values) for _, values in self.budgets) == 1
        if self.search is not None and (self.vary or self.tune or self.seeds > 1 or not one_budget):
            raise ValueError("a search takes one budget and one seed, and tries what its space names, so no vary and no tune")
        return self

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Every combination of the values of `vary`, one of no values where it is empty."""
        return [dict(zip(self.vary, values, strict=True)) for values in product(*self.vary.values())]

    @property
    def seed_values(self) -> tuple[int, ...]:
        """The seeds of each cell; the first is the one that learning rates are tuned at."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))


def _check_size(path: str, value: object) -> None:
    """Raise ValueError where a knob that is a size exceeds what a sweep takes."""
    largest = LARGEST.get(path.removeprefix("architecture."))
    if largest is not None and isinstance(value, int | float) and value > largest:
        raise ValueError(f"{path} reaches {value:g}, above the most allowed, {largest:,}")


def _is_whole(value: float | None) -> bool:
    return value is not None and value.is_integer()


def _rounded(value: float) -> float:
    return whole(float(f"{value:.4g}"))
