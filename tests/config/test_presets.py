"""A preset names defaults in one word: the runs are those of the same values written out, and each value can be overridden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from study.base.errors import InputError
from study.base.schema import flatten, set_path
from study.config.presets import PRESETS, PresetName
from study.config.run_config import RunConfig
from study.config.sweep import parse_sweep
from study.config.sweep_files import read_sweep
from study.planning.plan import Plan
from tests.sweeps import sweep_values, write_sweep

TEXT = Path("corpus.txt")

OTHERS = {
    "architecture.position_encoding": "learned",
    "architecture.distance_bias": "none",
    "architecture.norm": "post",
    "architecture.embedding_norm": "none",
    "architecture.mlm_transform": "embedding_width",
    "recipe.optimizer": "adamw",
    "recipe.learning_rate": 0.001,
    "recipe.masking.rate": 0.2,
}
"""Another value for each knob that a preset sets."""

COMPARED: dict[str, Any] = {"vary": {"preset": ["bert", "modern"]}}

SETS: dict[str, dict[str, Any]] = {name: flatten(values) for name, values in PRESETS.items() if values}


def first_runs(**changes: Any) -> list[RunConfig]:
    """The first runs of the toy sweep, whose file gives no learning rate."""
    values = sweep_values(TEXT, **changes)
    if "learning_rate" not in changes.get("base", {}).get("recipe", {}):
        del values["base"]["recipe"]["learning_rate"]
    return Plan(parse_sweep(values)).first_runs


def test_each_preset_has_values_and_those_of_bert_are_the_defaults() -> None:
    assert set(get_args(PresetName)) == PRESETS.keys()
    assert flatten(PRESETS["bert"]) == {}
    assert first_runs() == first_runs(preset="bert")


def test_tables_of_another_width_are_refused_where_the_preset_decodes_without_a_transform() -> None:
    """The shapes of a sweep give the width, to which the tables are compared."""
    own = {"embedding_width": 8}
    with pytest.raises(InputError) as caught:
        first_runs(preset="modern2", base={"architecture": own})
    assert str(caught.value).splitlines() == [
        "preset (modern2) architecture.mlm_transform: 'none' leaves width 16 to a decoder of embedding_width 8; "
        "make them equal, or set mlm_transform: embedding_width"
    ]
    remedied, equal = own | {"mlm_transform": "embedding_width"}, {"embedding_width": 16}
    assert {run.architecture.table_width for run in first_runs(preset="modern2", base={"architecture": remedied})} == {8}
    assert first_runs(preset="modern2", base={"architecture": equal}) == first_runs(preset="modern2")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_has_one_id_whether_the_preset_or_the_file_gives_its_values(preset: PresetName) -> None:
    named, written = first_runs(preset=preset), first_runs(base=PRESETS[preset])
    assert [run.to_yaml() for run in named] == [run.to_yaml() for run in written], "every value is in the configuration"
    assert [run.fingerprint("text") for run in named] == [run.fingerprint("text") for run in written]
    assert "preset" not in "".join(run.to_yaml() for run in named)


@pytest.mark.parametrize("preset", SETS)
def test_a_preset_sets_what_it_says(preset: str) -> None:
    assert all(run.values_of(SETS[preset]) == SETS[preset] for run in first_runs(preset=preset))


@pytest.mark.parametrize(("preset", "knob"), [(preset, knob) for preset, values in SETS.items() for knob in values])
def test_each_value_of_a_preset_can_be_overridden_varied_and_searched(preset: str, knob: str) -> None:
    """Post-norm has a norm of the embeddings anyhow."""
    chosen, other = SETS[preset], OTHERS[knob]
    base: dict[str, Any] = {}
    set_path(base, knob, other)
    assert {run.values_of([knob])[knob] or "none" for run in first_runs(preset=preset, base=base)} == {other}
    varied = first_runs(preset=preset, vary={knob: [chosen[knob], other]})
    assert {run.values_of([knob])[knob] or "none" for run in varied} == {chosen[knob], other}
    assert all(run.values_of(chosen) == chosen for run in first_runs(preset=preset)), "the preset stays what it was"
    search = {"trials": 2, "space": {knob: {"choices": [chosen[knob], other]}}}
    sizes = {"architecture": {"depth": 1, "width": 16, "heads": 2, "ffn": 32}}
    (largest,) = first_runs(preset=preset, shapes=None, search=search, base=sizes)
    kept = chosen.keys() - {knob} - ({"architecture.embedding_norm"} if knob == "architecture.norm" else set())
    assert largest.values_of(kept) == {other_knob: chosen[other_knob] for other_knob in kept}


def test_what_goes_with_a_value_of_a_preset_need_not_repeat_it() -> None:
    """A reach goes with a distance bias, which the preset has and BERT has not; values that vary are not the preset's."""
    reach = "architecture.distance_bias_reach"
    base = {"architecture": {"distance_bias_reach": 8}}
    assert {run.values_of([reach])[reach] for run in first_runs(preset="modern", base=base)} == {8}
    assert {
        run.values_of([reach])[reach] for run in first_runs(base=base, vary={"architecture.distance_bias": ["learned"]})
    } == {8}
    for changes in ({}, {"preset": "modern", "vary": {"architecture.distance_bias": ["none", "learned"]}}):
        with pytest.raises(InputError, match=rf"base\.{reach}"):
            first_runs(base=base, **changes)
    with pytest.raises(InputError) as refusal:
        first_runs(preset="modrn", base=base)
    assert [problem.place for problem in refusal.value.problems] == ["preset"]


def test_a_tuned_rate_replaces_that_of_a_preset() -> None:
    tune = {"recipe.learning_rate": {"low": 0.001, "high": 0.002, "trials": 2}}
    assert {run.recipe.learning_rate for run in first_runs(preset="modern", tune=tune)} == {0.001, 0.002}


def test_the_command_line_names_a_preset(tmp_path: Path) -> None:
    file = write_sweep(tmp_path / "x.yaml", tmp_path / "text.txt")
    spec, values = read_sweep(file, ("preset=modern",))
    assert (spec.preset, values["preset"]) == ("modern", "modern")


@pytest.mark.parametrize(
    ("changes", "place", "message"),
    [
        ({"preset": "moderm"}, "preset", "'moderm' is not one of bert, modern, modern2; did you mean 'modern'?"),
        ({"base": {"preset": "modern"}}, "base.preset", "belongs beside base, not under it"),
        ({"vary": {"preset": ["bert", "modrn"]}}, "vary.preset", "'modrn' is no preset; did you mean 'modern'?"),
        ({"preset": "modern", **COMPARED}, "vary.preset", "but preset sets modern for all runs"),
        ({"base": {"architecture": {"norm": "pre"}}, **COMPARED}, "vary.preset", "the file also sets base.architecture.norm:"),
        ({"base": {"architecture": {"model": "albert-base"}}, **COMPARED}, "vary.preset", "also sets base.architecture.model:"),
        ({"vary": {**COMPARED["vary"], "recipe.optimizer": ["adamw", "muon"]}}, "vary.preset", "also sets recipe.optimizer:"),
        ({"tune": {"preset": {"low": 1, "high": 2, "trials": 2}}}, "tune.preset", "compare presets under vary"),
        ({"preset": "modern", "shapes": {"grid": {"width": [6], "ffn": [12]}}}, "", "rotary rotates pairs of numbers"),
    ],
)
def test_a_preset_that_cannot_be_is_refused_in_one_sentence(changes: dict[str, Any], place: str, message: str) -> None:
    with pytest.raises(InputError) as refusal:
        first_runs(**changes)
    actual = {problem.place: problem.message for problem in refusal.value.problems}
    assert message in actual[place]
    assert set(actual) == {place}


def test_compared_presets_train_what_a_file_with_each_trains() -> None:
    named = [run for preset in PRESETS for run in first_runs(preset=preset)]
    assert first_runs(vary={"preset": [*PRESETS]}) == named
    assert [run.variant(["preset"]) for run in named] == [f"preset={run.preset}" for run in named]
    assert {run.preset for run in named} == PRESETS.keys()


def test_compared_presets_may_differ_in_the_shapes_that_meet_a_size() -> None:
    """The MLM head's transform leaves a small encoder less width."""
    sizes = {"iso_parameters": [60_000], "depth": [1], "width_multiple": 2, "head_width": 2, "count": "total"}
    shapes = {"grid": None, "list": None, **sizes}
    compared = ["bert", "modern2"]
    runs = first_runs(shapes=shapes, vary={"preset": compared})
    assert runs == [run for preset in compared for run in first_runs(shapes=shapes, preset=preset)]
    assert len({run.architecture.width for run in runs}) == 2


def test_a_shape_that_one_of_the_compared_presets_cannot_have_is_named_with_it() -> None:
    with pytest.raises(InputError, match="rotary rotates pairs of numbers"):
        first_runs(shapes={"grid": {"width": [6], "ffn": [12]}}, **COMPARED)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_run_knows_the_preset_whose_values_it_has(preset: PresetName) -> None:
    """Also of its own rate, and of masks that follow those of the validation; post-norm norms the embeddings anyhow."""
    assert {run.preset for run in first_runs(preset=preset, base={"recipe": {"learning_rate": 0.005}})} == {preset}
    assert {run.preset for run in first_runs(preset=preset, masking={"rate": 0.25})} == {preset}
    changed = SETS["modern2"] if preset == "bert" else {knob: OTHERS[knob] for knob in SETS[preset]}
    unseen = {"recipe.learning_rate"} | ({"architecture.embedding_norm"} if preset == "bert" else set())
    for knob in changed.keys() - unseen:
        base: dict[str, Any] = {}
        set_path(base, knob, changed[knob])
        assert preset not in {run.preset for run in first_runs(preset=preset, base=base)}, knob


def test_params_counts_the_architecture_of_a_preset(study: Any) -> None:
    sizes = ("--depth", "2", "--width", "64", "--positions", "64", "--vocabulary", "1000")
    counted = {preset: json.loads(study("params", *sizes, "--preset", preset, "--json")[1]) for preset in PRESETS}
    plain, modern, modern2 = (counted[preset]["parameters"]["mlm_tied"] for preset in PRESETS)
    assert modern - plain == 2 * (2 * 64 - 1) - 64 * 64, "a bias by distance in place of a table of positions"
    assert modern2 - modern == -(64 * 64 + 64 + 2 * 64), "without the head's transform and its norm"
