"""The goal of a sweep file: what is to be known, the pool of runs that may tell it, and what they may cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from study.base.errors import near, shown
from study.base.schema import OneOrSeveral, Positive, Several, Strict, number_in, whole
from study.config.knobs import KNOBS
from study.config.search_spec import Value
from study.config.shape_spec import Depth, FfnRatio, Width
from study.counting.architecture import SIZES
from study.counting.solving import HEAD_WIDTH

SOLVED = ("depth", "width")
"""The sizes that are compared at equal parameters."""

_UNLIKE = {*(f"architecture.{size}" for size in SIZES), "architecture.vocabulary"}

Tokens = Annotated[Positive, Field(le=1e18)]
Parameters = Annotated[Positive, Field(le=1e12)]


def _share(value: object) -> object:
    """Return a share, also from a percentage such as 2%."""
    share = number_in(f"{value[:-1]}e-2") if isinstance(value, str) and value.endswith("%") else value
    return value if isinstance(share, str) else share


HalfWidth = Annotated[Positive, Field(le=0.5), BeforeValidator(_share)]
"""Half of an interval: 0.02, or 2%."""


class SizedPoint(Strict):
    """A size and a budget, where a goal is to be met."""

    parameters_non_embedding: Parameters
    tokens: Tokens


class ForecastGoal(Strict):
    """Forecast the loss of one size and budget until half its 95% interval is `within` a share of the loss, such as 2%.

    The law is chinchilla, E + A·N^−alpha + B·D^−beta, in non-embedding parameters and tokens.
    """

    forecast: SizedPoint
    within: HalfWidth


class ExponentGoal(Strict):
    """Estimate an exponent of that law until half its 95% interval is `within` so much, such as 0.05."""

    exponent: Literal["alpha", "beta"]
    within: HalfWidth


class ComparedPoint(Strict):
    """Where variants are compared: a budget, and a size for which the other sizes are solved, or one shape.

    Without tokens the budget is the longest of the pool at which all seeds of every variant can be afforded.
    """

    tokens: Tokens | None = None
    parameters_non_embedding: Parameters | None = None
    depth: Depth | None = None
    width: Width | None = None

    @model_validator(mode="after")
    def _a_size_or_a_shape(self) -> Self:
        shape = [size for size in (self.depth, self.width) if size is not None]
        if len(shape) == 1 or (self.parameters_non_embedding is None) == (not shape):
            raise ValueError("needs parameters_non_embedding, or depth and width of one shape")
        return self


class DecisionGoal(Strict):
    """Decide which of some variants has the lowest loss, one seed of each after another.

    `decide` is depth or width, compared at equal non-embedding parameters, or the path of a knob of architecture or recipe,
    such as recipe.masking.rate, compared at one shape. It ends once one variant is below all others, or all that are left lie
    within `difference` nats of each other. Looking after every seed errs in at most 5% of sweeps whose variants are equal
    (study.designing.racing).
    """

    decide: Annotated[str, Field(max_length=100)]
    among: Several[Value]
    at: ComparedPoint
    difference: Positive

    @field_validator("decide")
    @classmethod
    def _is_compared_in_nats(cls, knob: str) -> str:
        if knob.startswith("recipe.budget"):
            raise ValueError("is the budget, which a decision holds equal; forecast a loss to compare budgets")
        known = [*SOLVED, *(one for one in KNOBS if one.startswith(("architecture.", "recipe.")))]
        if knob not in known:
            best = near(knob, known)
            hint = f"did you mean {best!r}?" if best else "write one, or a knob such as recipe.masking.rate"
            raise ValueError(f"is neither {' nor '.join(SOLVED)}, nor a knob of architecture or recipe; {hint}")
        if knob in _UNLIKE:
            raise ValueError(f"is {knob}, whose values differ in size or in loss per token; write {' or '.join(SOLVED)}")
        return knob

    @field_validator("among")
    @classmethod
    def _two_or_more(cls, among: tuple[Value, ...]) -> tuple[Value, ...]:
        if len(among) < 2:
            raise ValueError("is one variant; give two or more to decide among")
        return among

    @model_validator(mode="after")
    def _compared_at_what_it_needs(self) -> Self:
        solved = self.decide in SOLVED
        if solved != (self.at.parameters_non_embedding is not None):
            needed = "parameters_non_embedding" if solved else "depth and width"
            raise ValueError(f"decides {self.decide}, which is compared at {needed} and tokens; give these under at")
        if solved and (odd := [value for value in self.among if type(value) is not int or value < 1]):
            raise ValueError(f"has {odd[0]!r} among, which is no {self.decide}")
        return self


class SizeCompared(Strict):
    """A size at which all depths or widths of a pool are compared, and a budget as in ComparedPoint."""

    parameters_non_embedding: Parameters
    tokens: Tokens | None = None


class OptimumGoal(Strict):
    """Find the depth or width of the least loss at equal non-embedding parameters, among those of the pool.

    A decision whose variants are the pool's, each the nearest within half a doubling whose shape lies in the pool and within 5%
    of the size; a plan lists those left out. It ends once one is below all others, or those left lie `within` so many nats of
    each other, of which any is the optimum to that precision.
    """

    optimum: Literal["depth", "width"]
    at: SizeCompared
    within: Positive


_KINDS = {"forecast": ForecastGoal, "exponent": ExponentGoal, "decide": DecisionGoal, "optimum": OptimumGoal}


def _one_goal(values: object) -> object:
    if not isinstance(values, Mapping):
        return values
    named = [kind for kind in _KINDS if kind in values]
    if len(named) != 1:
        meant = [(key, best) for key in values if (best := near(str(key), [*_KINDS]))] if not named else []
        hint = f"; for {shown(meant[0][0])}, did you mean {meant[0][1]!r}?" if meant else ""
        raise ValueError(f"needs exactly one of {', '.join(_KINDS)}, not {', '.join(named) or 'none'}{hint}")
    return values


def _kind_of_goal(values: object) -> str:
    kinds = _KINDS.items()
    given = (kind for kind, model in kinds if isinstance(values, model) or (isinstance(values, Mapping) and kind in values))
    return f"[{next(given, 'forecast')}]"


SweepGoal: TypeAlias = Annotated[
    Annotated[
        Annotated[ForecastGoal, Tag("[forecast]")]
        | Annotated[ExponentGoal, Tag("[exponent]")]
        | Annotated[DecisionGoal, Tag("[decide]")]
        | Annotated[OptimumGoal, Tag("[optimum]")],
        Discriminator(_kind_of_goal),
    ],
    BeforeValidator(_one_goal),
]
"""One goal of a sweep."""


class RunPool(Strict):
    """The runs that may be chosen: every depth and width at every budget in tokens.

    Each is one value, or the two ends of a range, which is filled in steps of about a doubling; widths are multiples of
    `width_multiple`. Heads and FFN follow the width by `head_width` and `ffn_ratio` (study.counting.solving.ShapeRules). A
    decision gives its variants and size itself, and takes these rules and, if it gives none, its budget from the pool; an
    optimum takes the candidates of its size from it, too.
    """

    depth: OneOrSeveral[Depth] | None = None
    width: OneOrSeveral[Width] | None = None
    tokens: OneOrSeveral[Tokens] | None = None
    head_width: Width = HEAD_WIDTH
    ffn_ratio: FfnRatio = 4.0
    width_multiple: Width = 8

    @field_validator("depth", "width", "tokens")
    @classmethod
    def _is_a_range(cls, ends: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if ends is not None and len(ends) > 2:
            raise ValueError(f"has {len(ends)} values; give one, or the two ends of a range")
        if ends is not None and ends[0] > ends[-1]:
            raise ValueError("has its larger end first; turn it round")
        return ends

    @model_validator(mode="after")
    def _widths_are_multiples(self) -> Self:
        if odd := [width for width in self.width or () if width % self.width_multiple]:
            raise ValueError(f"has width {odd[0]}, no multiple of {self.width_multiple}; give one, or width_multiple")
        return self

    def depths(self) -> list[int]:
        """Return the depths of the pool."""
        return [round(value) for value in _doublings(self.depth or ())]

    def widths(self) -> list[int]:
        """Return the widths of the pool, each the nearest multiple."""
        step = self.width_multiple
        return [*dict.fromkeys(step * max(1, round(value / step)) for value in _doublings(self.width or ()))]

    def budgets(self) -> list[float]:
        """Return the budgets of the pool in tokens, rounded to four digits."""
        return [whole(float(f"{value:.4g}")) for value in _doublings(self.tokens or ())]


def _doublings(ends: tuple[float, ...]) -> list[float]:
    """One value, or a range in equal ratios of about two."""
    if len(ends) < 2:
        return [*ends]
    steps = max(1, round(math.log2(ends[1] / ends[0])))
    return [float(value) for value in np.geomspace(ends[0], ends[1], steps + 1)]


class SpendLimit(Strict):
    """What a goal may cost at most: `flops`, the `train_flops` that its runs spend themselves, `hours` of training, or both.

    Hours are summed over runs.
    """

    flops: Annotated[Positive, Field(le=1e30)] | None = None
    hours: Annotated[Positive, Field(le=1e7)] | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.flops is None and self.hours is None:
            raise ValueError("needs flops or hours")
        return self
