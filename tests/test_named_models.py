"""Named models are found by name or alias, and changed or replaced by sizes."""

from __future__ import annotations

from typing import Any

import pytest

from study.architecture import Architecture
from study.errors import InputError
from study.named_models import architecture_of, named, named_models


def test_names_of_the_literature_have_their_shapes() -> None:
    shapes = {name: architecture.shape_name for name, architecture in named_models().items()}
    assert shapes == {
        "BERT-Tiny": "L2-H128-A2-F512",
        "BERT-Mini": "L4-H256-A4-F1024",
        "BERT-Small": "L4-H512-A8-F2048",
        "BERT-Medium": "L8-H512-A8-F2048",
        "BERT-Base": "L12-H768-A12-F3072",
        "BERT-Large": "L24-H1024-A16-F4096",
    }


@pytest.mark.parametrize("name", ["BERT-Base", "bert-base", "BERT-BASE", "bert-base-uncased", "google-bert/bert-base-uncased"])
def test_a_model_answers_to_its_aliases_in_any_case(name: str) -> None:
    assert named(name) == named_models()["BERT-Base"]


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(InputError, match=r"bert-bsae: is not a known model; did you mean 'bert-base'\?"):
        named("bert-bsae")


def test_sizes_change_a_named_model() -> None:
    assert architecture_of("bert-base", {"depth": 6}) == named("bert-base").model_copy(update={"depth": 6})


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"depth": 12, "width": 768}, {"heads": 12, "ffn": 3072}),
        ({"depth": 1, "width": 100}, {"heads": 2, "ffn": 400}),
        ({"depth": 1, "width": 128, "heads": 8, "ffn": 100}, {"heads": 8, "ffn": 100}),
    ],
)
def test_sizes_alone_follow_the_rules_of_bert(sizes: dict[str, int], expected: dict[str, int]) -> None:
    assert architecture_of(None, sizes) == Architecture.parse({"vocabulary": 30522} | sizes | expected)


@pytest.mark.parametrize(
    ("name", "sizes", "problem"),
    [
        (None, {}, "--depth: is missing"),
        (None, {"depth": 2}, "--width: is missing"),
        (None, {"depth": 2, "width": -8}, "width: -8 is below the least allowed, 1"),
        ("bert-base", {"heads": 7}, "bert-base.heads: 7 heads do not divide width 768; 6 would"),
    ],
)
def test_impossible_sizes_are_refused(name: str | None, sizes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        architecture_of(name, sizes)
