"""Shapes that meet a parameter count: no other width comes nearer; and those of a space that meet goals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.base.errors import InputError
from study.counting.architecture import Architecture
from study.counting.parameters import parameters
from study.counting.solving import Goal, ShapeRules, Space, on_contour, under

TEMPLATE = Architecture(depth=1, width=1, heads=1, ffn=1, vocabulary=2048, positions=64)

SPACE = Space(ShapeRules(), range(1, 3), range(10, 41), TEMPLATE)
"""One and two layers of 16, 24, 32 and 40."""


def size(architecture: Architecture) -> int:
    return parameters(architecture).parameters_non_embedding


def test_heads_divide_the_width_and_are_near_the_width_wanted() -> None:
    rules = ShapeRules(head_width=64)
    assert [rules.heads(width) for width in (768, 512, 64, 96, 1)] == [12, 8, 1, 2, 1]
    assert ShapeRules(head_width=32).heads(92) == 4
    assert ShapeRules(head_width=72).heads(96) == 1, "the wider of two as near"
    assert [ShapeRules(head_width=16, even_heads=True).heads(width) for width in (88, 100, 15)] == [4, 5, 1]


def test_an_ffn_is_to_the_nearest_whole_number_and_never_none() -> None:
    assert [ShapeRules(ffn_ratio=2.7).ffn(width) for width in (10, 64)] == [27, 173]
    assert ShapeRules(ffn_ratio=0.1).ffn(4) == 1


def test_bert_base_is_found_again() -> None:
    base = Architecture(depth=12, width=768, heads=12, ffn=3072, vocabulary=30522)
    assert ShapeRules().at_parameters(size(base), 12, base) == base


@given(
    st.integers(10_000, 10**9),
    st.integers(1, 48),
    st.integers(1, 64),
    st.sampled_from([1.0, 2.5, 4.0]),
    st.sampled_from(["post", "pre"]),
)
def test_no_neighbour_is_nearer(target: int, depth: int, multiple: int, ratio: float, norm: str) -> None:
    rules = ShapeRules(ffn_ratio=ratio, width_multiple=multiple)
    template = TEMPLATE.model_copy(update={"norm": norm})
    actual = rules.at_parameters(target, depth, template)
    assert actual.depth == depth
    assert actual.width % multiple == 0
    assert actual.width % actual.heads == 0
    assert (actual.vocabulary, actual.positions, actual.norm) == (2048, 64, norm)
    for width in (actual.width - multiple, actual.width + multiple):
        if width > 0:
            other = {"width": width, "heads": rules.heads(width), "ffn": rules.ffn(width)}
            assert abs(size(actual) - target) <= abs(size(actual.model_copy(update=other)) - target)


def goal(place: str, amount: float, count: Callable[[Architecture], float]) -> Goal:
    return Goal(place, place, amount, count, lambda value: f"{value:g}")


def of_width(amount: float) -> Goal:
    return goal("width", amount, lambda shape: shape.width)


def sizes(shapes: list[Architecture]) -> list[tuple[int, int]]:
    return [(shape.depth, shape.width) for shape in shapes]


def test_a_contour_is_all_that_is_as_near_as_the_tolerance_either_way() -> None:
    assert sizes(on_contour(SPACE, of_width(32), 0.25)) == [(depth, width) for depth in (1, 2) for width in (24, 32, 40)]
    assert sizes(on_contour(SPACE, of_width(16), 1.5)) == [(depth, width) for depth in (1, 2) for width in (16, 24, 32, 40)]
    with pytest.raises(InputError, match=r"the nearest, L1-H32-A1-F128, has 32 \(\+6\.67%\)"):
        on_contour(SPACE, of_width(30), 0.05)


def test_under_all_amounts_is_the_widest_shape_of_each_depth() -> None:
    assert sizes(under(SPACE, [of_width(32)])) == [(1, 32), (2, 32)]
    product = goal("product", 48, lambda shape: shape.depth * shape.width)
    assert sizes(under(SPACE, [of_width(32), product])) == [(1, 32), (2, 24)]


def test_of_goals_that_nothing_meets_those_are_named_that_alone_cannot_be_met() -> None:
    depth, narrowness = goal("depth", 0.5, lambda shape: shape.depth), goal("narrowness", 60, lambda shape: 100 - shape.width)
    with pytest.raises(InputError) as impossible:
        under(SPACE, [of_width(16), depth])
    assert [problem.place for problem in impossible.value.problems] == ["depth"]
    with pytest.raises(InputError) as at_odds:
        under(SPACE, [of_width(16), narrowness])
    assert [problem.place for problem in at_odds.value.problems] == ["width, narrowness"]
