"""A sweep file as strict models: one question, and either the cells or the search that answers it.

Whether the parts of its runs fit each other is for study.planning.plan.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from pydantic import Field, field_validator, model_validator

from study.base.errors import InputError, Problem, shown
from study.base.schema import Count, Distinct, Index, Positive, Several, Strict, Text, deep_merge, whole
from study.config.presets import PRESETS, PresetName
from study.config.recipe import Budget
from study.config.resources import Resources
from study.config.run_config import DataConfig, Masking
from study.config.score_config import Downstream, Seeds
from study.config.search_spec import Search, Value
from study.config.shape_spec import MOST_COMBINATIONS, Shapes
from study.config.tuned_values import trial_seeds
from study.counting.architecture import SHAPE

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""The pattern of a sweep's name, which becomes a folder, a W&B group and a title."""


class Budgets(Strict):
    """Budgets of a sweep, each a cell of its own: lists of values in any unit of a run's budget."""

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
        """Yield the budgets."""
        for unit, values in self:
            for value in values:
                yield Budget.parse({unit: value})

    @property
    def several(self) -> bool:
        """Whether there is more than one budget."""
        return sum(len(values) for _, values in self) > 1

    @property
    def trains_nothing(self) -> bool:
        """Whether a budget has no steps."""
        return 0 in self.steps


class TuneRange(Strict):
    """A knob tuned for each cell: `trials` values from low to high in equal ratios, one more if the best is at an end.

    Up to three values are tried at once. Of more, a cell tries three around the best of the nearest cheaper cell, or around the
    middle of the range, and goes downhill until worse values lie on both sides. Several knobs are tried in all combinations of
    these values, then next to the best of each, until all neighbours have been tried.

    `at: smallest` tunes only the cheapest cell of each variant and budget. The others train with its best values, and the most
    expensive cell of the variant also tries the values on both sides, to check that they transfer, as they should under
    `recipe.parametrization: completep`.
    """

    low: Positive
    high: Positive
    trials: Annotated[Count, Field(ge=2, le=1000)]
    at: Literal["every", "smallest"] = "every"

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
    """`count` values from low to high, rounded to four digits, each once; cached, since every cell needs the same."""
    return tuple(dict.fromkeys(_rounded(value) for value in np.geomspace(low, high, count)))


def _rounded(value: float) -> float:
    return whole(float(f"{value:.4g}"))


Varied = Several[Value]
"""Values of a knob to compare, each a variant of its own at every shape and budget."""


PARTS = ("architecture", "recipe")
"""The parts of a run that `base` sets for all runs."""

_ANY_SHAPE = {"list": [{"depth": 1, "width": 1}]}
"""A substitute for missing shapes, so that the other problems of a file are found too."""

_NOTHING_TO_TUNE = "a budget of 0 steps trains nothing: give no other budget, one seed, and no tune or search"
_SEARCH_ALONE = "a search has one budget and one seed, and its space names what it tries; leave out vary and tune"


class SweepBase(Strict):
    """What every sweep has: a question, the data, what all runs share, how long they train, and where they execute.

    `preset` names the defaults of architecture and recipe, and `base` overrides them (see study.config.presets). The
    configuration of each run holds every value: its id is the same whether the preset or the file gives them.
    """

    name: Text
    question: Text
    expect: Text | None = None
    data: DataConfig = DataConfig()
    masking: Masking = Masking()
    preset: PresetName = "bert"
    base: dict[str, Any] = Field(default_factory=dict)
    budgets: Budgets
    seeds: Seeds = 1
    first_seed: Annotated[Index, Field(le=2**31)] = 0
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

    @classmethod
    def known_keys(cls) -> dict[str, Any]:
        """The keys of either kind of sweep file, any of which a typing error may mean."""
        return {name: field.annotation for kind in (CellSweep, SearchSweep) for name, field in kind.model_fields.items()}

    @property
    def shared(self) -> dict[str, Any]:
        """What all runs share: the values of the preset, and over them those of `base`."""
        return deep_merge(PRESETS[self.preset], self.base)

    @property
    def varied(self) -> tuple[str, ...]:
        """The knobs whose values are compared."""
        return ()

    @property
    def tuned(self) -> tuple[str, ...]:
        """The knobs that are tuned for each cell."""
        return ()

    @property
    def searched(self) -> tuple[str, ...]:
        """The knobs that a search tries."""
        return ()

    @property
    def distinguishing_knobs(self) -> tuple[str, ...]:
        """The knobs that distinguish runs, apart from shape, rate and seed: those varied, tuned or searched."""
        knobs = (*self.varied, *self.tuned, *self.searched)
        return tuple(knob for knob in knobs if knob not in ("recipe.learning_rate", *SHAPE))

    @property
    def choosing_seeds(self) -> tuple[int, ...]:
        """The seeds at which tuned values are tried; none if nothing is tuned."""
        return ()

    @property
    def transfers(self) -> bool:
        """Whether only the smallest cells are tuned, and the others take their best values."""
        return False

    @property
    def iso_parameters(self) -> tuple[float, ...]:
        """The targets of non-embedding parameters for shapes of equal size."""
        return ()

    def place_of(self, knob: str) -> str | None:
        """Where the file lists the values of a knob that differs between its runs; None for other knobs."""
        sections = {"vary": self.varied, "tune": self.tuned, "search.space": self.searched}
        return next((f"{section}.{knob}" for section, knobs in sections.items() if knob in knobs), None)


class CellSweep(SweepBase):
    """A sweep of cells: every shape at every budget in every variant, with tuned knobs and repeated seeds."""

    shapes: Shapes
    vary: dict[str, Varied] = Field(default_factory=dict)
    tune: dict[str, TuneRange] = Field(default_factory=dict)

    @field_validator("vary")
    @classmethod
    def _variants_are_not_endless(cls, vary: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        if (count := math.prod(len(values) for values in vary.values())) > MOST_COMBINATIONS:
            raise ValueError(f"makes {count:,} variants, more than {MOST_COMBINATIONS:,}")
        return vary

    @field_validator("tune")
    @classmethod
    def _tuned_values_are_sensible(cls, tune: dict[str, TuneRange]) -> dict[str, TuneRange]:
        if (count := math.prod(tuned.trials for tuned in tune.values())) > MOST_COMBINATIONS:
            raise ValueError(f"makes {count:,} combinations a cell, more than {MOST_COMBINATIONS:,}")
        if len({tuned.at for tuned in tune.values()}) > 1:
            raise ValueError("tunes some knobs at every cell and others at: smallest; give all of them the same")
        return tune

    @model_validator(mode="after")
    def _nothing_is_tuned_without_training(self) -> Self:
        if self.budgets.trains_nothing and (self.tune or self.seeds > 1 or self.budgets.several):
            raise ValueError(_NOTHING_TO_TUNE)
        return self

    @property
    def varied(self) -> tuple[str, ...]:
        """The knobs whose values are compared."""
        return tuple(self.vary)

    @property
    def tuned(self) -> tuple[str, ...]:
        """The knobs that are tuned for each cell."""
        return tuple(self.tune)

    @property
    def transfers(self) -> bool:
        """Whether the smallest cells alone are tuned, and the others take over their best values."""
        return any(tuned.at == "smallest" for tuned in self.tune.values())

    @property
    def variants(self) -> list[dict[str, Any]]:
        """Every combination of the values of `vary`; one without values if it is empty."""
        return [dict(zip(self.vary, values, strict=True)) for values in product(*self.vary.values())]

    @property
    def seed_values(self) -> tuple[int, ...]:
        """The seeds of each cell."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    @property
    def choosing_seeds(self) -> tuple[int, ...]:
        """The seeds at which tuned values are tried and chosen by; none where nothing is tuned."""
        return self.seed_values[: trial_seeds(self.seeds)] if self.tune else ()

    @property
    def trial_seeds(self) -> tuple[int, ...]:
        """The seeds that a cell begins with: the choosing seeds if knobs are tuned, else all."""
        return self.choosing_seeds or self.seed_values

    @property
    def repeat_seeds(self) -> tuple[int, ...]:
        """The other seeds, at which the best tuned values are repeated."""
        return self.seed_values[len(self.trial_seeds) :]

    @property
    def iso_parameters(self) -> tuple[float, ...]:
        """The targets of non-embedding parameters for shapes of equal size."""
        return self.shapes.iso_parameters or ()


class SearchSweep(SweepBase):
    """A sweep that Optuna searches: one budget, one seed, and a space."""

    search: Search

    @model_validator(mode="after")
    def _one_budget_and_seed(self) -> Self:
        if self.seeds > 1 or self.budgets.several:
            raise ValueError(_SEARCH_ALONE)
        if self.budgets.trains_nothing:
            raise ValueError(_NOTHING_TO_TUNE)
        return self

    @property
    def searched(self) -> tuple[str, ...]:
        """The knobs that the search tries."""
        return tuple(self.search.space)

    @property
    def budget(self) -> Budget:
        """The budget of every run."""
        (budget,) = self.budgets.each()
        return budget


Sweep: TypeAlias = CellSweep | SearchSweep
"""A sweep is of one of two kinds."""


def sweep_of(values: Mapping[str, Any], unknown: Literal["forbid", "ignore"] = "forbid") -> Sweep:
    """The sweep that values describe, of the kind that they name; `unknown` decides about keys that no sweep has.

    Raises InputError with every problem, each under its dotted path.
    """
    given = {key: value for key, value in values.items() if value is not None or key not in ("shapes", "search")}
    kind: type[CellSweep] | type[SearchSweep] = SearchSweep if "search" in given else CellSweep
    aside = given.keys() & kind.known_keys().keys() - kind.model_fields.keys()
    problems = []
    if ("shapes" in given) is ("search" in given):
        problems = [Problem("", "needs either shapes or search")]
        given.setdefault("shapes", _ANY_SHAPE)
    elif any(given[key] for key in aside):
        problems = [Problem("", _SEARCH_ALONE)]
    try:
        sweep = kind.parse({key: value for key, value in given.items() if key not in aside}, unknown=unknown)
    except InputError as error:
        problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise InputError(problems)
    return sweep
