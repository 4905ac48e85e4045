"""Shapes from rules, parameter counts and goals."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from study.base.errors import InputError, Problem
from study.base.grouping import grouped
from study.counting.architecture import Architecture, changed, not_of_berts_kind, unbuildable
from study.counting.parameters import SizeCount, parameters

HEAD_WIDTH = 64
"""The default head width, as in BERT."""

MOST_SHAPES = 100_000
"""The most shapes counted, in about ten seconds."""


def undivided(head_widths: Iterable[int], widths: Collection[int]) -> str | None:
    """Why head widths do not divide all widths, if so."""
    problems = []
    for head_width in head_widths:
        if left := [f"{width}" for width in dict.fromkeys(widths) if width % head_width]:
            problems.append(f"head_width {head_width} does not divide width {', '.join(left[:8])}")
    return "; ".join([*problems, "give one that does, or heads, or other widths"]) if problems else None


@dataclass(frozen=True)
class ShapeRules:
    """Rules from width to shape: heads of about `head_width`, an ffn of `ffn_ratio` widths, widths in steps.

    With `even_heads`, head widths are even where the width allows it, as rotary positions need.
    """

    head_width: int = HEAD_WIDTH
    ffn_ratio: float = 4.0
    width_multiple: int = 8
    even_heads: bool = False

    @classmethod
    def like(cls, architecture: Architecture) -> ShapeRules:
        """Return the rules by which an encoder of any width has this one's head width and ffn ratio."""
        return cls(architecture.head_width, architecture.ffn / architecture.width, even_heads=architecture.rotary)

    def heads(self, width: int) -> int:
        """Return the divisor of `width` whose head width is nearest to `head_width`, the wider on a tie."""
        small = [heads for heads in range(1, math.isqrt(width) + 1) if width % heads == 0]
        divisors = {*small, *(width // heads for heads in small)}
        odd = {heads for heads in divisors if self.even_heads and width // heads % 2}
        return min(divisors - odd or divisors, key=lambda heads: (abs(width / heads - self.head_width), heads))

    def ffn(self, width: int) -> int:
        """Return the inner size, ffn_ratio · width, to the nearest whole number."""
        return max(1, round(self.ffn_ratio * width))

    def completed(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes including a width, with missing heads and ffn derived from it."""
        return {"heads": self.heads(sizes["width"]), "ffn": self.ffn(sizes["width"])} | dict(sizes)

    def shape(self, depth: int, width: int, template: Architecture) -> Architecture:
        """`template` with this depth and width, and heads and ffn by the rules."""
        embedding_width = None if template.embedding_width == width else template.embedding_width
        sizes = self.completed({"depth": depth, "width": width, "heads": self.heads(template.bottleneck_width or width)})
        return template.model_copy(update=sizes | {"embedding_width": embedding_width})

    def at_parameters(
        self, target: float, depth: int, template: Architecture, count: SizeCount = "non_embedding"
    ) -> Architecture:
        """Return the architecture of `depth` layers whose parameters by `count` come nearest to `target`.

        Widths are multiples of `width_multiple`; all but the shape comes from `template`.
        """

        def at(multiples: int) -> Architecture:
            return self.shape(depth, multiples * self.width_multiple, template)

        below, above = 1, 2
        while parameters(at(above)).size(count) < target:
            below, above = above, 2 * above
        while above - below > 1:
            middle = (below + above) // 2
            if parameters(at(middle)).size(count) < target:
                below = middle
            else:
                above = middle
        return min((at(below), at(above)), key=lambda a: abs(parameters(a).size(count) - target))


@dataclass(frozen=True)
class Goal:
    """A target amount: its count, its text, and the option it came from."""

    place: str
    quantity: str
    amount: float
    count: Callable[[Architecture], float]
    text: Callable[[float], str]

    @property
    def words(self) -> str:
        """The quantity: memory, whose unit is in `text`, or a count by its convention."""
        plain = self.quantity.removesuffix("_bytes").removesuffix("_seconds")
        return f"of {plain}" if plain != self.quantity else self.quantity.replace("_per_token", " a token")

    def off(self, architecture: Architecture) -> float:
        """Return a shape's relative deviation from the amount: 0.02 is 2% above."""
        return self.count(architecture) / self.amount - 1


@dataclass(frozen=True)
class Space:
    """The shapes to search: depths and, in steps of the rules' `width_multiple`, widths.

    Raises InputError if there are none, or more than MOST_SHAPES.
    """

    rules: ShapeRules
    depths: range
    widths: range
    template: Architecture

    def __post_init__(self) -> None:
        count = len(self.depths) * len(self._steps)
        if not count:
            message = f"no multiple of {self.rules.width_multiple} lies in the range ({self})"
            raise InputError.at("--width", f"{message}; give a wider one, or a smaller --width-multiple or --head-width")
        if count > MOST_SHAPES:
            message = f"hold {count:,} shapes ({self}); at most {MOST_SHAPES:,} can be counted"
            raise InputError.at("--depth, --width", f"{message}; narrow them, or raise --width-multiple")

    @property
    def _steps(self) -> range:
        step = self.rules.width_multiple
        return range(-(-self.widths.start // step) * step, self.widths.stop, step)

    def shapes(self) -> list[Architecture]:
        """All shapes, shallow to deep, narrow to wide; raises InputError without any."""
        if shapes := list(self):
            return shapes
        first = self.rules.shape(self.depths.start, self._steps[-1], self.template)
        message = f"no shape of this kind is possible ({self}), such as {first.shape_name}: {_impossible(first)}"
        raise InputError.at("--kind", f"{message}; give other depths, widths or another --head-width")

    def at(self, depth: int) -> Iterator[Architecture]:
        """Yield the shapes of a depth that are possible in the template's kind, narrow to wide."""
        for width in self._steps:
            shape = self.rules.shape(depth, width, self.template)
            if not not_of_berts_kind(shape) or _impossible(shape) is None:
                yield shape

    def __iter__(self) -> Iterator[Architecture]:
        """All shapes, shallow to deep, narrow to wide."""
        for depth in self.depths:
            yield from self.at(depth)

    def __str__(self) -> str:
        widths = f"widths {self.widths.start} to {self.widths.stop - 1} in multiples of {self.rules.width_multiple}"
        return f"depths {self.depths.start} to {self.depths.stop - 1}, {widths}"


def _impossible(shape: Architecture) -> str | None:
    try:
        return unbuildable(changed(shape, {}))
    except InputError as error:
        return "; ".join(problem.message for problem in error.problems)


def on_contour(space: Space, goal: Goal, tolerance: float) -> list[Architecture]:
    """All shapes of the space within the relative `tolerance` of the amount.

    Raises InputError, naming the nearest amount, if none is.
    """
    shapes = space.shapes()
    if fitting := [shape for shape in shapes if abs(goal.off(shape)) <= tolerance]:
        return fitting
    missing = f"no shape has {goal.text(goal.amount)} {goal.words} within {100 * tolerance:g}% ({space})"
    nearest = min(shapes, key=lambda shape: abs(goal.off(shape)))
    reached = f"the nearest, {nearest.shape_name}, has {goal.text(goal.count(nearest))} ({goal.off(nearest):+.2%})"
    remedy = "allow it with --tolerance, or more shapes with --depth, --width or a smaller --width-multiple or --head-width"
    raise InputError.at(goal.place, f"{missing}; {reached}; {remedy}")


def under(space: Space, goals: Sequence[Goal]) -> list[Architecture]:
    """At each depth the widest shape of the space that exceeds no amount.

    Raises InputError, naming the least reachable amounts, if there is none.
    """
    shapes, widest = space.shapes(), []
    for of_depth in grouped(shapes, lambda shape: shape.depth).values():
        fitting = [shape for shape in of_depth if all(goal.count(shape) <= goal.amount for goal in goals)]
        widest += fitting[-1:]
    if widest:
        return widest
    problems = []
    for goal in goals:
        least = min(shapes, key=goal.count)
        if goal.count(least) > goal.amount:
            needed = f"the smallest, {least.shape_name}, has {goal.text(goal.count(least))}"
            message = f"no shape stays under {goal.text(goal.amount)} {goal.words} ({space}); {needed}"
            problems.append(Problem(goal.place, message))
    together = Problem(", ".join(goal.place for goal in goals), f"no shape stays under all of them at once ({space})")
    raise InputError(problems or [together])
