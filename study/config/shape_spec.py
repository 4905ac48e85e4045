"""The shapes of a sweep file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from study.base.errors import InputError, Problem
from study.base.schema import Count, OneOrSeveral, Positive, Several, Strict
from study.counting.architecture import Architecture
from study.counting.parameters import SizeCount, parameters
from study.counting.solving import HEAD_WIDTH, ShapeRules, undivided

LARGEST = {"depth": 10_000, "width": 1_000_000, "heads": 1_000_000, "ffn": 10_000_000}
"""The largest sizes of a sweep, far beyond any encoder, to catch typing errors."""

MOST_COMBINATIONS = 10_000
"""The most shapes of a grid, variants of a sweep, and tuned combinations of a cell."""

Depth = Annotated[Count, Field(le=LARGEST["depth"])]
Width = Annotated[Count, Field(le=LARGEST["width"])]
Heads = Annotated[Count, Field(le=LARGEST["heads"])]
Ffn = Annotated[Count, Field(le=LARGEST["ffn"])]
FfnRatio = Annotated[Positive, Field(ge=0.001, le=1000)]


def why_beyond(size: str, value: float) -> str | None:
    """Why a size of LARGEST cannot have this value, if so."""
    if value > LARGEST[size]:
        return f"above the most allowed, {LARGEST[size]:,}"
    return "below the least allowed, 1" if value < 1 else None


class Grid(Strict):
    """Every combination of sizes; heads and ffn follow the width by rule unless given."""

    depth: Several[Depth]
    width: Several[Width]
    heads: Several[Heads] | None = None
    ffn: Several[Ffn] | None = None

    @field_validator("heads")
    @classmethod
    def _heads_divide_every_width(cls, heads: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        for width, count in product(info.data.get("width", ()), heads or ()):
            if width % count:
                raise ValueError(f"has {count}, which does not divide width {width}; leave heads out, or list the shapes")
        return heads

    @model_validator(mode="after")
    def _not_endless(self) -> Self:
        count = math.prod(len(values) for _, values in self if values is not None)
        if count > MOST_COMBINATIONS:
            raise ValueError(f"has {count:,} shapes, more than {MOST_COMBINATIONS:,}")
        return self


class Shape(Strict):
    """One shape; heads and ffn follow the width by rule unless given."""

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

    `iso_parameters` are targets of `count`: the width is solved for each target and depth, and a shape that misses the target
    by more than `tolerance` is refused. `count` is also that by which shapes of one size are compared: `non_embedding`
    (`parameters_non_embedding`) or `total` (`parameters`, tables and MLM head included). Heads and FFN follow the width by
    `head_width` and `ffn_ratio` unless given (study.counting.solving.ShapeRules); several values of these multiply the shapes.
    A given `head_width` must divide given widths; solved widths are multiples of it or of `width_multiple`.
    """

    iso_parameters: Several[Annotated[Positive, Field(le=1e12)]] | None = None
    depth: Several[Depth] | None = None
    tolerance: Annotated[Positive, Field(lt=1)] = 0.05
    count: SizeCount = "non_embedding"
    grid: Grid | None = None
    listed: Several[Shape] | None = Field(default=None, alias="list")
    head_width: OneOrSeveral[Width] = (HEAD_WIDTH,)
    ffn_ratio: OneOrSeveral[FfnRatio] = (4.0,)
    width_multiple: Width | None = None

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
    def _not_endless(self) -> Self:
        if self.number > MOST_COMBINATIONS:
            made = " x ".join(f"{number:,} of {name}" for name, number in self._factors.items() if number > 1)
            raise ValueError(f"has {self.number:,} shapes ({made}), more than {MOST_COMBINATIONS:,}; give fewer values")
        return self

    @property
    def number(self) -> int:
        """Return the number of shapes, those that occur twice counted twice."""
        return math.prod(self._factors.values())

    @property
    def _factors(self) -> dict[str, int]:
        lists = {"iso_parameters": self.iso_parameters, "depth": self.depth, "list": self.listed}
        lists |= {"head_width": self.head_width, "ffn_ratio": self.ffn_ratio}
        grid = () if self.grid is None else (len(values) for _, values in self.grid if values is not None)
        return {"grid": math.prod(grid)} | {name: len(values) for name, values in lists.items() if values is not None}

    @model_validator(mode="after")
    def _widths_are_solved(self, info: ValidationInfo) -> Self:
        """Refuse what only solved widths use, but in the file of a sweep that was launched, which has no context."""
        rules = ("tolerance", "width_multiple")
        idle = [name for name in rules if name in self.model_fields_set and getattr(self, name) is not None]
        if idle and self.iso_parameters is None and info.context is not None:
            raise ValueError(f"has {idle[0]}, which only iso_parameters use, whose widths are solved; leave it out")
        return self

    @model_validator(mode="after")
    def _rules_have_a_use(self) -> Self:
        for rule, size in (("head_width", "heads"), ("ffn_ratio", "ffn")):
            if rule in self.model_fields_set and self.iso_parameters is None and all(size in shape for shape in self._given()):
                raise ValueError(f"has {rule}, which no shape uses, since all give {size}")
        return self

    @model_validator(mode="after")
    def _head_widths_divide_widths(self) -> Self:
        widths = [shape["width"] for shape in self._given() if "heads" not in shape]
        if self.says_head_width and (problem := undivided(self.head_width, widths)):
            raise ValueError(problem)
        return self

    @property
    def says_head_width(self) -> bool:
        """Whether the file gives a head width."""
        return "head_width" in self.model_fields_set

    def rules(self, architecture: Mapping[str, Any]) -> list[ShapeRules]:
        """Return the rules that derive other sizes from widths, one per head width and FFN ratio."""
        pairs = product(self.head_width, self.ffn_ratio)
        even = needs_even_heads(architecture)
        return [ShapeRules(head_width, ffn_ratio, self._multiple(head_width), even) for head_width, ffn_ratio in pairs]

    def _multiple(self, head_width: int) -> int:
        return self.width_multiple or math.lcm(8, head_width if self.says_head_width else 1)

    def sizes(self, architecture: Mapping[str, Any], variant: str = "") -> tuple[list[dict[str, int]], list[Problem]]:
        """Return the sizes of every shape, and a problem for each target that no width meets.

        `architecture` holds the other given fields, which may change the count, of which the total also needs the vocabulary
        and positions; `variant` describes the varied ones in messages.
        """
        if self.iso_parameters is None:
            return [rules.completed(shape) for shape in self._given() for rules in self.rules(architecture)], []
        return self._solved(self.iso_parameters, architecture, variant)

    def _solved(
        self, targets: Sequence[float], architecture: Mapping[str, Any], variant: str
    ) -> tuple[list[dict[str, int]], list[Problem]]:
        templates = {depth: _template(depth, architecture) for depth in self.depth or ()}
        shapes, unmet = [], []
        for target, (depth, template), rules in product(targets, templates.items(), self.rules(architecture)):
            solved = rules.at_parameters(target, depth, template, self.count)
            reached = parameters(solved).size(self.count)
            if abs(reached / target - 1) > self.tolerance:
                ratio = f" and FFN ratio {rules.ffn_ratio:g}" if len(self.ffn_ratio) > 1 else ""
                place = f"shapes.iso_parameters {target:,.0f} at depth {depth}{ratio}{f' with {variant}' if variant else ''}"
                remedy = "move the target, or allow it with tolerance (shapes are compared within 5% of one size)"
                nearest = f"the nearest width, {solved.width}, has {reached:,} parameters"
                unmet.append(Problem(place, f"{nearest}; {remedy} or a smaller width_multiple"))
            shapes.append({"depth": depth, "width": solved.width, "heads": solved.heads, "ffn": solved.ffn})
        return shapes, unmet

    def _given(self) -> list[dict[str, int]]:
        if self.grid is not None:
            axes = {name: values for name, values in self.grid if values is not None}
            return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        return [shape.model_dump(exclude_none=True) for shape in self.listed or ()]


def needs_even_heads(architecture: Mapping[str, Any]) -> bool:
    """Whether an architecture asks for rotary positions, which rotate pairs of numbers."""
    return architecture.get("position_encoding") == "rotary"


def _template(depth: int, architecture: Mapping[str, Any]) -> Architecture:
    """Return an encoder for solving widths, with the given fields; BERT's if these are invalid, which its runs report."""
    sizes = {"depth": depth, "width": LARGEST["width"], "heads": 1, "ffn": 1}
    others = {"vocabulary": 1} | {name: value for name, value in architecture.items() if name not in sizes}
    try:
        return Architecture.parse(others | sizes)
    except InputError:
        return Architecture.parse(sizes | {"vocabulary": others["vocabulary"]})
