"""The search of a sweep file: space, sampler and pruning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args

from pydantic import BeforeValidator, Discriminator, Field, PrivateAttr, Tag, field_validator, model_validator

from study.base.errors import shown
from study.base.schema import Count, Distinct, Index, Number, Several, Share, Strict, number_in
from study.config.knobs import SearchedKnob, few_enough
from study.config.recipe import Recipe, TrainingMasking
from study.config.shape_spec import LARGEST, FfnRatio, Width, needs_even_heads, why_beyond
from study.counting.architecture import Architecture
from study.counting.solving import HEAD_WIDTH, ShapeRules


def _single(value: object) -> object:
    if not isinstance(value, int | float | str):
        raise ValueError(f"is {shown(value)}; give a number, a text, true or false")
    return number_in(value)


Value = Annotated[int | float | str | bool, BeforeValidator(_single)]
"""A value of any knob; PyYAML reads 1e-3 as a string."""


def _plain(annotation: Any) -> list[Any]:
    return [annotation, *(plain for part in get_args(annotation) for plain in _plain(part))]


WHOLE_KNOBS = frozenset(
    f"{part}.{name}"
    for part, model in (("architecture", Architecture), ("recipe", Recipe), ("recipe.masking", TrainingMasking))
    for name, field in model.model_fields.items()
    if int in (types := _plain(field.annotation)) and float not in types
)
"""The knobs of a run that take only whole numbers."""


class Choices(Strict):
    """A search dimension with listed values."""

    choices: Distinct[Value]

    @model_validator(mode="before")
    @classmethod
    def _nothing_beside(cls, values: object) -> object:
        if isinstance(values, Mapping) and (beside := [str(name) for name in values if name != "choices"]):
            raise ValueError(f"has choices and also {', '.join(beside)}; leave out one or the other")
        return values

    @field_validator("choices")
    @classmethod
    def _any(cls, choices: tuple[Any, ...]) -> tuple[Any, ...]:
        if not choices:
            raise ValueError("has no choices")
        return choices

    def of(self, knob: str) -> Self:
        """Return the dimension for a knob, by dotted key."""
        del knob
        return self

    @property
    def finite(self) -> bool:
        """Whether `values` is complete."""
        return True

    @property
    def values(self) -> Sequence[Any]:
        """The values to check."""
        return self.choices

    def holds(self, value: object) -> bool:
        """Whether the dimension includes a value."""
        return value in self.choices

    def top(self) -> int | float | str | bool:
        """Return the largest number, or the last choice if any is a word."""
        numbers = [choice for choice in self.choices if isinstance(choice, int | float)]
        return max(numbers) if len(numbers) == len(self.choices) else self.choices[-1]


End = Annotated[Number, Field(ge=-1e15, le=1e15)]
"""An end of a range, within which floats represent whole numbers exactly."""


class Range(Strict):
    """A search dimension from `low` to `high`, of whole numbers if the knob requires them.

    `log` draws evenly in the logarithm; `step` is the distance between whole numbers.
    """

    low: End
    high: End
    log: bool = False
    step: Count | None = None
    _of_whole_numbers: bool = PrivateAttr(default=True)

    @model_validator(mode="before")
    @classmethod
    def _has_both_ends(cls, values: object) -> object:
        if isinstance(values, Mapping) and not {"low", "high"} <= values.keys():
            raise ValueError("needs either low and high, or choices")
        return values

    @model_validator(mode="after")
    def _ends_fit(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        if self.log and (self.low <= 0 or self.step):
            raise ValueError("a log dimension needs a low above zero and no step")
        if self.step and not self.whole:
            raise ValueError("a step needs whole low and high")
        if self.step and self.step > self.high - self.low:
            raise ValueError(f"step {self.step} from low {self.low:g} goes beyond high {self.high:g}")
        return self

    def of(self, knob: str) -> Self:
        """Return the dimension for a knob, by dotted key."""
        made = self.model_copy()
        made._of_whole_numbers = knob in WHOLE_KNOBS or self.step is not None
        return made

    @property
    def whole(self) -> bool:
        """Whether the dimension holds only whole numbers."""
        return self._of_whole_numbers and self.low.is_integer() and self.high.is_integer()

    @property
    def finite(self) -> bool:
        """Whether `values` is complete."""
        return self.whole

    @property
    def values(self) -> Sequence[float]:
        """The values to check: all whole numbers, or both ends."""
        return range(int(self.low), int(self.high) + 1, self.step or 1) if self.whole else (self.low, self.high)

    def holds(self, value: object) -> bool:
        """Whether a value is in the range and on a step."""
        if not isinstance(value, int | float) or not self.low <= value <= self.high:
            return False
        return not self.whole or (value - self.low) % (self.step or 1) == 0

    def top(self) -> int | float:
        """Return the high end, or the last step before it."""
        return int(self.high - (self.high - self.low) % (self.step or 1)) if self.whole else self.high


def _kind_of_dimension(values: object) -> str:
    has_choices = isinstance(values, Choices) or (isinstance(values, Mapping) and "choices" in values)
    return "[choices]" if has_choices else "[range]"


Dimension: TypeAlias = Annotated[
    Annotated[Range, Tag("[range]")] | Annotated[Choices, Tag("[choices]")], Discriminator(_kind_of_dimension)
]
"""One dimension of a search."""


class Prune(Strict):
    """Stop a search's runs early if they are worse than others at the same share of the budget.

    `median` stops a run that is worse than the median of the other trials, once `spared` trials have ended without failing.
    `hyperband` halves successively in brackets (Li et al. 2018, arXiv:1603.06560; reduction 3). Runs validate `checks` times,
    evenly over the budget, the last at its end, and none stops before `first` of it: masked language models start on a plateau.
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
    """A free search by Optuna over any knobs of a run; several objectives give a Pareto front. Never for a scaling fit.

    Heads and FFN outside the space follow the width by `head_width` and `ffn_ratio` (study.counting.solving.ShapeRules); a
    given `head_width` divides every width of the space.
    """

    trials: Count
    prune: Prune | None = None
    sampler: Literal["tpe", "random", "nsga2"] = "tpe"
    objectives: Several[Literal["loss_nats", "parameters", "parameters_non_embedding", "train_flops"]] = ("loss_nats",)
    space: Annotated[dict[SearchedKnob, Dimension], Field(min_length=1), BeforeValidator(few_enough)]
    head_width: Width = HEAD_WIDTH
    ffn_ratio: FfnRatio = 4.0

    def rules(self, architecture: Mapping[str, Any]) -> ShapeRules:
        """Return the rules that derive other sizes from a width."""
        return ShapeRules(self.head_width, self.ffn_ratio, even_heads=needs_even_heads(architecture))

    @field_validator("space")
    @classmethod
    def _sizes_are_sensible(cls, space: dict[str, Choices | Range]) -> dict[str, Choices | Range]:
        for path, dimension in space.items():
            for value in dimension.choices if isinstance(dimension, Choices) else (dimension.low, dimension.high):
                _check_size(path, value)
        return {path: dimension.of(path) for path, dimension in space.items()}

    @model_validator(mode="after")
    def _prunes_by_one_loss(self) -> Self:
        if self.prune is not None and self.objectives != ("loss_nats",):
            raise ValueError("prune needs loss_nats as the one objective: a run is stopped by its loss so far")
        return self


def _check_size(path: str, value: object) -> None:
    size = path.removeprefix("architecture.")
    if size in LARGEST and isinstance(value, int | float) and (why := why_beyond(size, value)):
        raise ValueError(f"{path} reaches {value:g}, {why}")
