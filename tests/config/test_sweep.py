"""What a sweep may say, and what it means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from study.base.errors import InputError
from study.config.search_spec import Choices, Dimension, Range, Search
from study.config.shape_spec import Shapes
from study.config.sweep import Budgets, TuneRange
from study.config.sweep_files import read_sweep
from study.planning.plan import cells
from tests.sweeps import RATES, parsed, search_sweep, sweep, write_sweep


def of_dimension(values: dict[str, Any]) -> Dimension:
    return Search.parse({"trials": 1, "space": {"recipe.dropout": values}}).space["recipe.dropout"]


def problems(**changes: Any) -> dict[str, str]:
    with pytest.raises(InputError) as caught:
        parsed(**changes)
    return {problem.place: problem.message for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"shapes": None}, "", "needs exactly one of shapes"),
        ({"search": {"trials": 2, "space": {"recipe.dropout": {"low": 0, "high": 0.5}}}}, "", "needs exactly one of shapes"),
        ({"shapes": {"iso_parameters": [1e5], "depth": [1]}}, "shapes", "exactly one of iso_parameters, grid, list, not"),
        ({"shapes": {"depth": [1]}}, "shapes", "needs depth exactly when iso_parameters are given"),
        ({"one_seed_above": 1e3}, "", "has one_seed_above, but one seed everywhere"),
        ({"shapes": {"grid": {"depth": []}}}, "shapes.grid.depth", "is empty"),
        ({"shapes": {"grid": {"heads": [2, 3]}}}, "shapes.grid.heads", "3, which does not divide width 16"),
        ({"shapes": {"grid": {"width": [10**12]}}}, "shapes.grid.width[0]", "above the most allowed, 1,000,000"),
        ({"shapes": {"grid": {"ffn": list(range(1, 9000))}}}, "shapes.grid", "has 17,998 shapes, more than 10,000"),
        ({"shapes": {"grid": None, "iso_parameters": [*range(10_000, 10_200)], "depth": [*range(1, 101)]}}, "shapes",
         "has 20,000 shapes (200 of iso_parameters x 100 of depth), more than 10,000; give fewer values"),
        ({"budgets": {"steps": [*range(1, 30_001)]}, "tune": {}, "vary": {"recipe.dropout": [0, 0.1]}}, "",
         "makes 120,000 runs (2 shapes x 2 variants x 30,000 budgets), more than 100,000; give fewer values of one"),
        ({"budgets": {"steps": [*range(1, 101)]}, "tune": {f"recipe.{knob}": {"low": 0.1, "high": 0.2, "trials": 25}
                                                       for knob in ("dropout", "epsilon")}}, "",
         "makes 125,000 runs (2 shapes x 100 budgets x 625 tuned combinations), more than 100,000"),
        ({"shapes": {"tolerance": 0.1}}, "shapes", "has tolerance, which only iso_parameters use, whose widths are solved"),
        ({"shapes": {"width_multiple": 8}}, "shapes", "has width_multiple, which only iso_parameters use"),
        ({"shapes": {"head_width": []}}, "shapes.head_width", "is empty"),
        ({"shapes": {"head_width": [8, 0]}}, "shapes.head_width[1]", "below the least allowed, 1"),
        ({"shapes": {"head_width": 8}}, "shapes", "has head_width, which no shape uses, since all give heads"),
        ({"shapes": {"grid": {"heads": None, "width": [24, 32, 40]}, "head_width": [16, 8]}}, "shapes",
         "head_width 16 does not divide width 24, 40; give one that does, or heads"),
        ({"shapes": {"grid": None, "list": [{"depth": 1, "width": 24}, {"depth": 1, "width": 24, "heads": 2}],
                     "head_width": 16}}, "shapes", "head_width 16 does not divide width 24; give"),
        ({"shapes": {"grid": {"heads": None}, "ffn_ratio": 2}}, "shapes", "has ffn_ratio, which no shape uses, since all give"),
        ({"shapes": {"grid": None, "list": [{"depth": 1, "width": 8, "headss": 1}]}}, "shapes.list[0].headss", "mean 'heads'?"),
        ({"shapes": {"grid": None, "list": [{"depth": 1, "width": 8}], "lst": []}}, "shapes.lst", "did you mean 'list'?"),
        ({"shapes": None, "search": {"trials": 2, "space": {"recipe.dropout": {"low": 0, "high": 0.5, "setp": 1}}}},
         "search.space.recipe.dropout.setp", "did you mean 'step'?"),
        ({"budgets": {"steps": []}}, "budgets", "needs at least one budget"),
        ({"budgets": {"steps": [1.5]}}, "budgets.steps[0]", "1.5 is not a whole number"),
        ({"tune": {"recipe.beta1": {"low": 0.5, "high": 0.5, "trials": 2}}}, "tune.recipe.beta1", "low 0.5 is not below"),
        ({"tune": {"architecture.width": {"low": 8, "high": 1e12, "trials": 2}}}, "tune.architecture.width",
         "list its values under shapes"),
        ({"tune": {"masking.rate": {"low": 0.1, "high": 0.4, "trials": 3}}}, "tune.masking.rate", "changes validation masks"),
        ({"tune": {f"recipe.{knob}": {"low": 0.1, "high": 0.2, "trials": 200} for knob in ("dropout", "epsilon")}}, "tune",
         "makes 40,000 combinations a cell"),
        ({"base": {"data": {"sequence_length": 8}}}, "base.data", "belongs beside base, not under it"),
        ({"base": {"masking_rate": 0.3}}, "base.masking_rate", "belongs beside base, as masking.rate"),
        ({"base": {"recipe": {"masking_rate": 0.3}}}, "base.recipe.masking_rate", "belongs beside base, as masking.rate"),
        ({"data": {"masking_rate": 0.3}}, "data.masking_rate", "is not a known key; did you mean 'masking.rate'?"),
        ({"masking_rate": 0.3}, "masking_rate", "is not a known key; did you mean 'masking.rate'?"),
        ({"base": {"architecture": {"position_encoding": "alibi"}}}, "base.architecture.position_encoding",
         "'alibi' is not one of learned, rotary, none, disentangled, disentangled_shared"),
        ({"base": {"recipe": 3}}, "base", "has 3 under recipe"),
        ({"base": {"recipe": {"budget": {"steps": 4}}}}, "base.recipe.budget", "belongs under budgets, beside base"),
        ({"base": {"architecture": {"width": 8}}}, "base.architecture.width", "is set by the shapes of the sweep"),
        ({"base": {"architecture": {"norm": "rms"}}}, "base.architecture.norm", "is not one of post, pre"),
        ({"resources": {"kernels": "fast"}}, "resources.kernels", "is not one of eager, onednn, compiled, graphed, auto"),
        ({"vary": {"recipe.dropuot": [0]}}, "vary.recipe.dropuot", "did you mean 'recipe.dropout'?"),
        ({"vary": {"recipe.dropout": []}}, "vary.recipe.dropout", "is empty"),
        ({"vary": {f"recipe.{knob}": [place / 1000 for place in range(200)] for knob in ("dropout", "beta1")}}, "vary",
         "makes 40,000 variants, more than 10,000"),
        ({"tune": {f"recipe.{knob}": {"low": 1, "high": 2, "trials": 1000}
                   for knob in ("beta1", "beta2", "dropout", "epsilon", "weight_decay", "learning_rate")}}, "tune",
         "makes over 10^18 combinations a cell"),
        ({"vary": {f"recipe.k{number}": [1, 2] for number in range(500)}}, "vary", "has 500 keys, more than the "),
        ({"vary": {"recipe.dropout": 0.1}}, "vary.recipe.dropout", "0.1 is not a list"),
        ({"vary": {"architecture.depth": [1, 2]}}, "vary.architecture.depth", "list its values under shapes"),
        ({"vary": {"masking.rate": [0.1, 0.2]}}, "vary.masking.rate",
         "so losses would not compare; recipe.masking.rate changes only training masks"),
        ({"vary": {"recipe.precision": ["bf16", "fp32"]}}, "vary.recipe.precision", "has a value in base too"),
        ({"vary": {"recipe.beta1": [0.8, 0.9]}, "tune": {"recipe.beta1": {"low": 0.5, "high": 0.9, "trials": 2}}},
         "vary.recipe.beta1", "is tuned too"),
        ({"tune": {"recipe.beta1": {"low": 0.5, "high": 0.9, "trials": 2, "at": "smallest"},
                   "recipe.dropout": {"low": 0.1, "high": 0.2, "trials": 2}}}, "tune", "give all of them the same"),
        ({"tune": {"recipe.beta1": {"low": 0.5, "high": 0.9, "trials": 2, "at": "largest"}}}, "tune.recipe.beta1.at",
         "'largest' is not one of every, smallest"),
        ({"tune": {"recipe.start": {"low": 1, "high": 2, "trials": 2}}}, "tune.recipe.start", "compare runs under vary"),
        ({"seeds": True}, "seeds", "is true or false, not a number"),
        ({"seeds": 101}, "seeds", "above the most allowed, 100"),
        ({"first_seed": -1}, "first_seed", "below the least allowed, 0"),
        ({"question": ""}, "question", "is empty"),
        ({"name": "../up"}, "name", "cannot name a folder"),
        ({"name": "a/b"}, "name", "cannot name a folder"),
        ({"name": ".."}, "name", "cannot name a folder"),
        ({"name": "toy\n"}, "name", "cannot name a folder"),
        ({"name": "x" * 65}, "name", "cannot name a folder"),
    ],
)  # fmt: skip
def test_what_a_sweep_cannot_say(changes: dict[str, Any], place: str, message: str) -> None:
    messages = problems(**changes)
    assert list(messages) == [place]
    assert message in messages[place]


def test_sections_are_compared_even_if_others_cannot_be_read() -> None:
    messages = problems(
        seeds=0,
        base={"recipe": {"dropout": 0.1, "dropuot": 0.1, "batch_tokens": 512}},
        budgets={"steps": [], "tokens": [300]},
        tune={"recipe.beta1": {"low": 0.5, "high": 0.9, "trials": 2}},
        vary={"recipe.dropout": [0, 0.1], "recipe.beta1": [0.8], "recipe.betta2": [0.9], "recipe": {"norm": ["pre"]}},
    )
    assert messages == {
        "seeds": "0 is below the least allowed, 1",
        "base.recipe.dropuot": "is not a known key; did you mean 'dropout'?",
        "budgets.tokens": "300 tokens are less than one batch of 512",
        "vary.recipe.dropout": "has a value in base too; remove that one",
        "vary.recipe.beta1": "is tuned too; leave it out of vary or of tune",
        "vary.recipe.betta2": "is not a knob of a run; did you mean 'recipe.beta2'?",
        "vary.recipe": "contains keys; write each as one dotted key, as in recipe.dropout",
    }


@pytest.mark.parametrize(
    ("tokenizer", "kinds"), [({}, ["wordpiece", "file"]), ({"kind": "file", "path": "v.txt"}, ["wordpiece", "bpe"])]
)
def test_a_tokeniser_from_a_file_is_not_compared_with_trained_ones(tokenizer: dict[str, str], kinds: list[str]) -> None:
    message = "compares tokenisers that are trained on the text, and 'file' is not; write one sweep for each file"
    actual = problems(data={"tokenizer": tokenizer}, vary={"data.tokenizer.kind": kinds})
    assert actual == {"vary.data.tokenizer.kind": message}


def test_auto_is_no_precision_to_compare() -> None:
    """Its runs would be those of bf16 or fp32, whichever the device has."""
    knob, message = "recipe.precision", "'auto' means bf16 or fp32, depending on the device; list those two to compare them"
    assert problems(base=None, vary={knob: ["auto", "fp32"]})[f"vary.{knob}"] == message
    space = {knob: {"choices": ["auto", "bf16"]}}
    assert problems(base=None, shapes=None, search={"trials": 2, "space": space})[f"search.space.{knob}"] == message


def test_amounts_may_be_written_as_on_the_command_line() -> None:
    assert sweep(budgets={"steps": [], "tokens": ["10M", "1.5e6", "190,350,517"]}).budgets.tokens == (1e7, 1.5e6, 190_350_517)
    with pytest.raises(InputError, match=r"'190,350,517' is not a list; write it in brackets, such as \[190350517\]"):
        sweep(budgets={"tokens": "190,350,517"})
    assert sweep(budgets={"steps": [], "flops": ["2.5P"]}).budgets.flops == (2.5e15,)
    shapes = {"grid": None, "iso_parameters": ["4k"], "depth": [1]}
    assert sweep(shapes=shapes).shapes.iso_parameters == (4000.0,)
    knob = "recipe.batch_tokens"
    made = sweep(base={"recipe": {"batch_tokens": "1.6K"}}, vary={"recipe.warmup_tokens": ["16k"]}, seeds="3")
    assert cells(made)[0].config.recipe.batch_tokens == 1600
    assert made.vary == {"recipe.warmup_tokens": (16_000,)}
    assert sweep(tune={knob: {"low": "1K", "high": "4K", "trials": 3}}).tune[knob].values() == [1000, 2000, 4000]
    search = search_sweep(search={"trials": 2, "space": {knob: {"choices": ["1K", 2048]}}}).search
    assert search.space[knob] == Choices(choices=(1000, 2048))
    assert "'10X' is not a number" in problems(budgets={"steps": [], "tokens": ["10X"]})["budgets.tokens[0]"]
    assert "holds 1000000 twice" in problems(budgets={"steps": [], "tokens": ["1M", 1e6]})["budgets.tokens"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 2}, "one budget and one seed"),
        ({"budgets": {"tokens": [1e6]}}, "one budget and one seed"),
    ],
)
def test_a_search_takes_one_budget_and_one_seed_and_tunes_itself(changes: dict[str, Any], message: str) -> None:
    search = {"trials": 2, "space": {"recipe.dropout": {"low": 0, "high": 0.5}}}
    assert search_sweep(search=search).seeds == 1
    assert message in problems(shapes=None, search=search, **changes)[""]


def test_each_key_that_belongs_to_another_kind_of_sweep_is_reported_at_its_place() -> None:
    search = {"trials": 2, "space": {"recipe.dropout": {"low": 0, "high": 0.5}}}
    of_cells: dict[str, Any] = {"tune": RATES, "vary": {"recipe.beta1": [0.8, 0.9]}, "cells": {"a": {"steps": 1}},
                                "one_seed_above": 9}  # fmt: skip
    beside = "does not go with a search, whose space lists the knobs of one budget and one seed; leave it out"
    assert problems(shapes=None, search=search, pool={"depth": 1}, **of_cells) == dict.fromkeys((*of_cells, "pool"), beside)
    assert problems(prior="fit.json", spend={"hours": 1}).keys() == {"prior", "spend"}


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": 2},
        {"tune": RATES},
        {"budgets": {"steps": [0, 10]}},
        {"budgets": {"steps": [0], "tokens": [1e6]}},
        {"shapes": None, "search": {"trials": 2, "space": {"recipe.dropout": {"low": 0, "high": 0.5}}}},
    ],
)
def test_where_nothing_is_trained_there_is_nothing_to_tune_or_repeat(changes: dict[str, Any]) -> None:
    assert sweep(budgets={"steps": [0]}).budgets.steps == (0,)
    message = problems(**{"budgets": {"steps": [0]}, **changes})[""]
    assert message == "a budget of 0 steps trains nothing: give no other budget, one seed, and no tune or search"


@pytest.mark.parametrize(
    ("dimension", "message"),
    [
        ({"low": 1}, "needs either low and high, or choices"),
        ({"low": 1, "high": 2, "choices": [1]}, "has choices and also low, high; leave out"),
        ({"choices": [1, 2], "low": 1}, "has choices and also low;"),
        ({"choices": [1, 2], "log": True}, "has choices and also log;"),
        ({"choices": [1, 3], "step": 2}, "has choices and also step;"),
        ({"low": 2, "high": 1}, "low 2.0 is not below high 1.0"),
        ({"low": 0, "high": 1, "log": True}, "a log dimension needs a low above zero"),
        ({"low": 0.5, "high": 1, "step": 1}, "a step needs whole low and high"),
        ({"low": 0.5, "high": True}, "high: True is true or false, not a number"),
        ({"choices": []}, "has no choices"),
    ],
)
def test_a_dimension_is_a_range_or_choices(dimension: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        of_dimension(dimension)


def test_choices_that_spell_numbers_are_numbers() -> None:
    assert of_dimension({"choices": ["1e-3", 2e5, "cosine", True, "nan"]}).values == (0.001, 2e5, "cosine", True, "nan")


def test_tuned_values_stand_in_equal_ratios_each_once() -> None:
    assert TuneRange.parse({"low": 1e-3, "high": 1e-2, "trials": 3}).values() == [0.001, 0.003162, 0.01]
    assert TuneRange.parse({"low": 1, "high": 1.001, "trials": 9}).values() == [1, 1.001]


def test_beyond_an_end_lies_the_next_value_of_the_same_ratio() -> None:
    tuned = TuneRange.parse({"low": 1e-3, "high": 1e-2, "trials": 3})
    assert tuned.line() == [0.0003162, *tuned.values(), 0.03162]


def test_shapes_follow_the_rules_where_heads_and_ffn_are_not_given() -> None:
    shapes = Shapes.parse({"grid": {"depth": [1, 2], "width": [96]}, "head_width": 32, "ffn_ratio": 2.5})
    common = {"width": 96, "heads": 3, "ffn": 240}
    assert shapes.sizes({})[0] == [{"depth": 1} | common, {"depth": 2} | common]
    listed = Shapes.parse({"list": [{"depth": 1, "width": 128, "heads": 4}, {"depth": 1, "width": 128, "ffn": 7}]})
    assert [(shape["heads"], shape["ffn"]) for shape in listed.sizes({})[0]] == [(4, 512), (2, 7)]
    several = Shapes.parse({"grid": {"depth": [1], "width": [96]}, "head_width": [32, 96], "ffn_ratio": [1, 4]})
    assert [(shape["heads"], shape["ffn"]) for shape in several.sizes({})[0]] == [(3, 96), (3, 384), (1, 96), (1, 384)]


def test_each_budget_keeps_its_unit() -> None:
    budgets = Budgets.parse({"tokens": [1e6], "steps": [30, 60], "flops": ["1e12"], "tokens_per_parameter": [20]})
    units = [budget.model_dump(exclude_none=True) for budget in budgets.each()]
    assert units == [{"tokens": 1e6}, {"steps": 30}, {"steps": 60}, {"flops": 1e12}, {"tokens_per_parameter": 20}]


def test_resources_are_read_as_the_documentation_writes_them(tmp_path: Path) -> None:
    """YAML 1.1 takes the plain word `on` for true."""
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()
    (block,) = re.findall(r"```yaml\n(resources:\n.*?)```", page, re.DOTALL)
    path = write_sweep(tmp_path / "sweep.yaml", tmp_path / "text.txt")
    path.write_text(path.read_text() + block)
    resources = read_sweep(path)[0].resources
    assert (resources.on, resources.devices, resources.slurm.partition) == ("slurm", 8, "gpu")
    assert read_sweep(path, ("resources={on: ray}",))[0].resources.on == "ray"


@pytest.mark.parametrize(("low", "high", "step", "top"), [(64, 100, 32, 96), (64, 96, 32, 96), (1, 3, None, 3)])
def test_the_largest_value_of_a_dimension_is_one_that_can_be_tried(low: int, high: int, step: int | None, top: int) -> None:
    assert Range.parse({"low": low, "high": high, "step": step}).top() == top


def test_a_search_compares_no_masks() -> None:
    space = {"masking.rate": {"low": 0.1, "high": 0.4}, "architecture.width": {"choices": [16]}}
    messages = problems(shapes=None, search={"trials": 2, "space": space})
    assert list(messages) == ["search.space.masking.rate"]


def test_a_search_takes_whole_numbers_where_the_knob_does_and_fractions_elsewhere() -> None:
    """The ends of a range may be whole for both."""
    space = {
        "recipe.weight_decay": {"low": 0.0, "high": 1.0},
        "recipe.batch_tokens": {"low": 256, "high": 1024},
        "architecture.embedding_width": {"low": 2, "high": 8},
        "recipe.warmup_tokens": {"low": 0, "high": 256},
        "recipe.gradient_clip_norm": {"low": 0, "high": 4, "step": 2},
        "architecture.width": {"choices": [64, 16]},
        "recipe.schedule": {"choices": ["linear", "cosine"]},
        "recipe.masking.rate": {"low": 0, "high": 1},
        "recipe.masking.static_copies": {"low": 0, "high": 10},
    }
    search = search_sweep(search={"trials": 2, "space": space}).search
    assert {path: dimension.whole for path, dimension in search.space.items() if isinstance(dimension, Range)} == {
        "recipe.weight_decay": False,
        "recipe.batch_tokens": True,
        "architecture.embedding_width": True,
        "recipe.warmup_tokens": False,
        "recipe.gradient_clip_norm": True,
        "recipe.masking.rate": False,
        "recipe.masking.static_copies": True,
    }
    assert search.space["recipe.weight_decay"].holds(0.3)
    assert not search.space["recipe.batch_tokens"].holds(300.5)
    assert [dimension.top() for dimension in search.space.values()] == [1.0, 1024, 8, 256, 4, 64, "cosine", 1.0, 10]


@pytest.mark.parametrize(
    "fields",
    [{"embedding_width": 8, "mlm_transform": "width"}, {"layer_groups": 2}, {"model": "mobilebert", "embedding_width": 8}],
)
def test_a_base_may_have_fields_that_only_its_own_shapes_have_room_for(fields: dict[str, Any]) -> None:
    """They were refused as beyond a width or a depth of one."""
    shapes = {"grid": {"depth": [2], "width": [16], "heads": [4]}}
    assert parsed(base={"architecture": fields}, shapes=shapes).base["architecture"] == fields
