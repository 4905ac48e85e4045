"""A sweep file: one question, and the runs that answer it, as strict models."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from study.base.errors import shown
from study.base.schema import Count, Distinct, Index, Positive, Several, Strict, Text, whole
from study.config.recipe import Budget
from study.config.resources import Resources
from study.config.run_config import DataConfig, Masking
from study.config.score_config import Downstream, Seeds
from study.config.search_spec import Search, Value
from study.config.shape_spec import MOST_COMBINATIONS, Shapes
from study.config.tuned_values import trial_seeds

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""What a sweep may be called: its name becomes a folder, a W&B group and a title."""


class Budgets(Strict):
    """Budgets of a sweep, each a cell of its own: any of the units of a run's budget, each with a list of values."""

    tokens: Distinct[Annotated[Positive, Field(le=1e18)]] = ()
    steps: Distinct[Annotated[Index, Field(le=10**12)]] = ()
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

    def line(self) -> list[float]:
        """The values with one more beyond each end, in order."""
        ratio = (self.high / self.low) ** (1 / (self.trials - 1))
        return [_rounded(self.low / ratio), *self.values(), _rounded(self.high * ratio)]


@functools.cache
def _in_equal_ratios(low: float, high: float, count: int) -> tuple[float, ...]:
    """So many values from low to high, rounded to four digits, each once; every cell of a sweep asks for the same."""
    return tuple(dict.fromkeys(_rounded(value) for value in np.geomspace(low, high, count)))


Varied = Several[Value]
"""Values of a knob to compare, each a setting of its own at every shape and budget."""


PARTS = ("architecture", "recipe")
"""The parts of a run of which `base` says what all runs share."""


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
    seeds: Seeds = 1
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
            if key not in PARTS:
                raise ValueError(f"holds {key!r}; it takes {' and '.join(PARTS)}")
            if not isinstance(value, dict):
                raise ValueError(f"holds {shown(value)} under {key} where keys and values are needed")
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
        if 0 in self.budgets.steps and (self.search is not None or self.tune or self.seeds > 1 or not one_budget):
            raise ValueError("a budget of 0 steps trains nothing: it takes no other beside it, one seed, and no tune or search")
        return self

    @property
    def settings(self) -> list[dict[str, Any]]:
        """Every combination of the values of `vary`, one of no values where it is empty."""
        return [dict(zip(self.vary, values, strict=True)) for values in product(*self.vary.values())]

    @property
    def seed_values(self) -> tuple[int, ...]:
        """The seeds of each cell."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    @property
    def trial_seeds(self) -> tuple[int, ...]:
        """The seeds that a cell begins with: all, but those that tell tuned values apart where any are tuned."""
        return self.seed_values[: trial_seeds(self.seeds) if self.tune else None]

    @property
    def repeat_seeds(self) -> tuple[int, ...]:
        """The seeds that the best of the tuned values is repeated at: the others."""
        return self.seed_values[len(self.trial_seeds) :]


def _rounded(value: float) -> float:
    return whole(float(f"{value:.4g}"))
