"""Shapes that meet a parameter count: no other width comes nearer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from study.architecture import Architecture
from study.counting import parameters
from study.solving import ShapeRules

TEMPLATE = Architecture(depth=1, width=1, heads=1, ffn=1, vocabulary=2048, positions=64)


def size(architecture: Architecture) -> int:
    return parameters(architecture).parameters_non_embedding


def test_heads_divide_the_width_and_are_near_the_width_wanted() -> None:
    rules = ShapeRules(head_width=64)
    assert [rules.heads(width) for width in (768, 512, 64, 96, 1)] == [12, 8, 1, 2, 1]
    assert ShapeRules(head_width=32).heads(92) == 4
    assert ShapeRules(head_width=72).heads(96) == 1, "the wider of two as near"


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
    found = rules.at_parameters(target, depth, template)
    assert found.depth == depth
    assert found.width % multiple == 0
    assert found.width % found.heads == 0
    assert (found.vocabulary, found.positions, found.norm) == (2048, 64, norm)
    for width in (found.width - multiple, found.width + multiple):
        if width > 0:
            sizes = {"width": width, "heads": rules.heads(width), "ffn": rules.ffn(width)}
            assert abs(size(found) - target) <= abs(size(found.model_copy(update=sizes)) - target)
