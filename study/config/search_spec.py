"""The search of a sweep file: its space, its sampler and its pruning, as strict models."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, field_validator, model_validator

from study.base.schema import Count, Distinct, Index, Number, Several, Share, Strict, number_in
from study.config.recipe import Recipe, TrainingMasking
from study.config.shape_spec import LARGEST, FfnRatio, Width, why_beyond
from study.counting.architecture import Architecture
from study.counting.solving import HEAD_WIDTH, ShapeRules

Value = Annotated[int | float | str | bool, BeforeValidator(number_in)]
"""A value of any knob; PyYAML reads 1e-3 as a string."""


def _plain(annotation: Any) -> list[Any]:
    """The types that an annotation names, those within unions and beside constraints too."""
    return [annotation, *(plain for part in get_args(annotation) for plain in _plain(part))]


WHOLE_KNOBS = frozenset(
    f"{part}.{name}"
    for part, model in (("architecture", Architecture), ("recipe", Recipe), ("recipe.masking", TrainingMasking))
    for name, field in model.model_fields.items()
    if int in (types := _plain(field.annotation)) and float not in types
)
"""The knobs of a run that take whole numbers only."""


class Dimension(Strict):
    """One dimension of a search: numbers from `low` to `high`, or `choices`; whole numbers where the knob takes no others."""

    low: Number | None = None
    high: Number | None = None
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
        if self.step and self.step > self.high - self.low:
            raise ValueError(f"step {self.step} from low {self.low:g} leads beyond high {self.high:g}")
        return self

    @property
    def whole(self) -> bool:
        """Whether the dimension holds whole numbers."""
        return self._of_whole_numbers and all(end is not None and end.is_integer() for end in (self.low, self.high))

    @property
    def ends(self) -> tuple[float, float]:
        """The low and the high end of a range; choices have none."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def of(self, path: str) -> Dimension:
        """The dimension as that of a knob, by its dotted key."""
        made = self.model_copy()
        made._of_whole_numbers = path in WHOLE_KNOBS or self.step is not None
        return made

    def holds(self, value: object) -> bool:
        """Whether a value lies in the dimension, and on a step of it where whole numbers do."""
        if self.choices is not None:
            return value in self.choices
        low, high = self.ends
        if not isinstance(value, int | float) or not low <= value <= high:
            return False
        return not self.whole or (value - low) % (self.step or 1) == 0

    def top(self) -> int | float | str | bool:
        """The highest value there is: the high end or the last step below it, the largest choice, of words the last."""
        if self.choices is not None:
            numbers = [choice for choice in self.choices if isinstance(choice, int | float)]
            return max(numbers) if len(numbers) == len(self.choices) else self.choices[-1]
        low, high = self.ends
        return int(high - (high - low) % (self.step or 1)) if self.whole else high


class Prune(Strict):
    """Runs of a search that are worse than others at the same share of the budget are stopped before their end.

    `median`: worse than the median of the other trials there, once `spared` have ended that did not fail. `hyperband`: by
    successive halving in brackets (Li et al. 2018, arXiv:1603.06560; reduction 3). Runs validate `checks` times, evenly over
    the budget, and none is stopped before `first` of it: masked language models stay on a plateau for a while.
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

    Heads and FFN that the space does not hold follow the width by `head_width` and `ffn_ratio` (see
    study.counting.solving.ShapeRules); a `head_width` that is given divides every width of the space.
    """

    trials: Count
    prune: Prune | None = None
    sampler: Literal["tpe", "random", "nsga2"] = "tpe"
    objectives: Several[Literal["loss_nats", "parameters", "parameters_non_embedding", "train_flops"]] = ("loss_nats",)
    space: Annotated[dict[str, Dimension], Field(min_length=1)]
    head_width: Width = HEAD_WIDTH
    ffn_ratio: FfnRatio = 4.0

    @property
    def rules(self) -> ShapeRules:
        """The rules by which a width fixes the rest."""
        return ShapeRules(self.head_width, self.ffn_ratio)

    @field_validator("space")
    @classmethod
    def _sizes_are_sensible(cls, space: dict[str, Dimension]) -> dict[str, Dimension]:
        for path, dimension in space.items():
            for value in dimension.choices if dimension.choices is not None else dimension.ends:
                _check_size(path, value)
        return {path: dimension.of(path) for path, dimension in space.items()}

    @model_validator(mode="after")
    def _prunes_by_one_loss(self) -> Self:
        if self.prune is not None and self.objectives != ("loss_nats",):
            raise ValueError("prune needs loss_nats as the one objective: a run is stopped by its loss so far")
        return self


def _check_size(path: str, value: object) -> None:
    """Raise ValueError where a knob that is a size is beyond what a sweep takes."""
    size = path.removeprefix("architecture.")
    if size in LARGEST and isinstance(value, int | float) and (why := why_beyond(size, value)):
        raise ValueError(f"{path} reaches {value:g}, {why}")
