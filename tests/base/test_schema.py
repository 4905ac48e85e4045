"""Strict models refuse what is wrong, all of it at once, each under its path with the value and the nearest known key."""

from __future__ import annotations

import math
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from study.base.errors import InputError, nearest, shown
from study.base.schema import (
    MOST_HINTS,
    Count,
    Index,
    NonNegative,
    Positive,
    Share,
    Strict,
    Text,
    deep_merge,
    flatten,
    set_path,
    whole,
)


class Leaf(Strict):
    """A model inside another."""

    share: Share = 0.5
    number: Count = 1
    kind: Literal["wordpiece", "file"] = "file"


class Tree(Strict):
    """One field of every sort."""

    count: Count = 1
    index: Index = 0
    rate: Positive = 1.0
    decay: NonNegative = 0.0
    name: Text = "x"
    leaf: Leaf = Leaf()
    leaves: tuple[Leaf, ...] = ()
    numbers: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None


def problems(values: object, place: str = "") -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        Tree.parse(values, place)
    return {problem.place: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("rate", "1e-3", 0.001),
        ("rate", "1E-3", 0.001),
        ("rate", 2, 2.0),
        ("count", 2e5, 200_000),
        ("count", "200000", 200_000),
        ("count", "2e5", 200_000),
        ("index", "1E3", 1000),
        ("count", "16.1K", 16_100),
        ("index", "2M", 2_000_000),
        ("index", "190,350,517", 190_350_517),
        ("rate", "1,024.5", 1024.5),
        ("rate", "1.5k", 1500.0),
        ("decay", 0, 0.0),
    ],
)
def test_numbers_are_read_as_people_write_them(key: str, given: object, expected: float) -> None:
    value = getattr(Tree.parse({key: given}), key)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("count", 0, "0 is below the least allowed, 1"),
        ("count", 1.5, "1.5 is not a whole number"),
        ("count", "many", "'many' is not a whole number"),
        ("count", "1,5", "'1,5' is not a whole number"),
        ("count", "1,5000", "'1,5000' is not a whole number"),
        ("count", True, "True is true or false, not a number"),
        ("index", -1, "-1 is below the least allowed, 0"),
        ("rate", 0, "0 must be above 0"),
        ("rate", "fast", "'fast' is not a number"),
        ("rate", math.inf, "inf must be a finite number"),
        ("rate", ".nan", "'.nan' is not a number"),
        ("decay", -0.1, "-0.1 is below the least allowed, 0"),
        ("name", "", "is empty"),
        ("name", False, "False is not text; no, yes, on, off, true and false are text only in quotes, as in 'no'"),
        ("name", date(2026, 1, 2), "datetime.date(2026, 1, 2) is not text; write it in quotes, such as '2026-01-02'"),
        ("count", None, "has no value; give one, or leave it out"),
        ("count", 1e308, "1e+308 is too large"),
        ("name", [7] * 99, f"{shown([7] * 99)} is not text; write it in quotes, such as '{shown(str([7] * 99))[1:-1]}'"),
        ("leaf", 3, "3 is not a mapping with keys share, number, kind"),
        ("leaf", None, "None is not a mapping with keys share, number, kind"),
    ],
)
def test_a_wrong_value_is_reported_with_its_remedy(key: str, given: object, message: str) -> None:
    assert problems({key: given}) == {key: message}


def test_all_problems_are_reported_at_once_under_their_paths() -> None:
    values = {
        "cuont": 1,
        "rate": -1,
        "leaf": {"share": 2, "knd": "file"},
        "leaves": [{}, {"kind": "wordpeice"}],
        "numbers": [1, 0],
    }
    assert problems(values, "base") == {
        "base.cuont": "is not a known key; did you mean 'count'?",
        "base.rate": "-1 must be above 0",
        "base.leaf.share": "2 is above the most allowed, 1",
        "base.leaf.knd": "is not a known key; did you mean 'kind'?",
        "base.leaves[1].kind": "'wordpeice' is not one of wordpiece, file; did you mean 'wordpiece'?",
        "base.numbers[1]": "0 is below the least allowed, 1",
    }


def test_a_key_of_a_part_below_is_reported_with_its_path() -> None:
    assert problems({"share": 0.5}) == {"share": "is not a known key; did you mean 'leaf.share'?"}


def test_a_key_that_is_nearly_one_beside_it_is_not_sought_in_parts_below() -> None:
    assert problems({"number": 1}) == {"number": "is not a known key; did you mean 'numbers'?"}


@pytest.mark.parametrize("key", ["count[0]", "int", "str"])
def test_an_unknown_key_that_looks_like_an_arm_of_a_union_is_named(key: str) -> None:
    assert [*problems({"leaf": {key: 1}}, "base")] == [f"base.leaf.{key}"]


def test_a_word_that_is_like_none_of_a_few_has_them_listed_once() -> None:
    assert problems({"leaf": {"kind": "bpe"}}) == {"leaf.kind": "'bpe' is not one of wordpiece, file"}


@pytest.mark.parametrize("values", [None, 3, "text", [1, 2]])
def test_what_holds_no_keys_is_refused(values: object) -> None:
    assert "not keys and values" in problems(values, "sweep.yaml")["sweep.yaml"]


def test_a_long_value_is_shortened() -> None:
    assert len(problems({"count": "9" * 10_000 + "x"})["count"]) < 200


def test_a_model_never_changes() -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(Tree(), "count", 2)  # noqa: B010


def test_a_far_word_is_answered_with_all_known_ones() -> None:
    assert nearest("widht", ["head_width", "width", "embedding_width"]) == "did you mean 'width'?"
    assert nearest("widht", ["head_width", "depth"]) == "known: depth, head_width", "half of a word is no slip of another"
    assert nearest("widht", ["recipe.warmup_fraction", "architecture.width"]) == "did you mean 'architecture.width'?"
    assert nearest("lr", ["recipe.beta1", "recipe.learning_rate"]) == "did you mean 'recipe.learning_rate'?"
    assert nearest("zzz", ["width", "depth"]) == "known: depth, width"
    assert nearest("zzz", []) == "nothing is allowed here"
    assert nearest("zzz", ["a" * 5000]) == "known: " + "a" * 60 + "…"
    assert len(nearest("zzz", [f"column {number}" for number in range(5000)])) < 1300


def test_merging_and_setting_leave_the_rest_alone() -> None:
    base: dict[str, Any] = {"recipe": {"rate": 1, "decay": 2}, "seed": 0}
    merged = deep_merge(base, {"recipe": {"rate": 3}, "seed": {"a": 1}})
    assert merged == {"recipe": {"rate": 3, "decay": 2}, "seed": {"a": 1}}
    assert base == {"recipe": {"rate": 1, "decay": 2}, "seed": 0}
    for shared in (deep_merge(base, {"seed": 1}), deep_merge({"seed": 1}, base)):
        set_path(shared, "recipe.rate", 9)
    assert base["recipe"] == {"rate": 1, "decay": 2}, "what is merged shares no mapping with its sources"
    set_path(base, "recipe.budget.tokens", 5)
    assert base["recipe"] == {"rate": 1, "decay": 2, "budget": {"tokens": 5}}
    with pytest.raises(InputError, match="seed is 0, so nothing can be set below it"):
        set_path(base, "seed.a.b", 1)


nested = st.recursive(st.integers(), lambda below: st.dictionaries(st.sampled_from("abc"), below, min_size=1), max_leaves=8)


@given(st.dictionaries(st.sampled_from("abc"), nested))
def test_flattened_values_can_be_set_back(values: dict[str, Any]) -> None:
    back: dict[str, Any] = {}
    for path, value in flatten(values).items():
        set_path(back, path, value)
    assert back == values


@given(st.floats())
def test_whole_changes_the_type_and_never_the_value(value: float) -> None:
    assert whole(value) == value or math.isnan(value)
    assert isinstance(whole(value), int) == (value.is_integer() and abs(value) < 2**53)


def test_initials_stand_for_a_name() -> None:
    known = ["recipe.start", "recipe.learning_rate", "recipe.batch_tokens", "recipe.schedule"]
    assert nearest("recipe.lr", known) == "did you mean 'recipe.learning_rate'?"
    assert nearest("lr", ["start", "learning_rate"]) == "did you mean 'learning_rate'?"
    assert nearest("recipe.stat", known) == "did you mean 'recipe.start'?"


def test_of_endless_unknown_keys_the_first_have_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hint compares a key with all known ones."""
    asked = list[str]()

    def hint(key: str, _known: list[str]) -> str:
        asked.append(key)
        return "a hint"

    monkeypatch.setattr("study.base.schema.nearest", hint)
    reported = problems({f"key{number}": 1 for number in range(30_000)})
    assert len(asked) == MOST_HINTS
    assert (reported["key0"], reported["key29999"]) == ("is not a known key; a hint", "is not a known key")


def test_a_name_that_differs_in_case_alone_is_the_nearest() -> None:
    assert nearest("n", ["run", "N", "D"]) == "did you mean 'N'?"
