"""Sweep files: every one here can be read and paid for, and all that is wrong with another is reported at once."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from study.base.errors import InputError
from study.config.recipe import Budget
from study.config.sweep import Budgets, CellSweep, Sweep
from study.config.sweep_files import read_sweep
from study.counting.architecture import ALWAYS_WRITTEN
from study.counting.named_models import named
from study.executing.slots import Slot
from study.planning.cost_estimate import estimate_cost
from study.planning.plan import Plan
from tests.sweeps import RATES, write_sweep

FILES = sorted((Path(__file__).resolve().parents[2] / "sweeps").glob("*"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_sweep_file_is_a_question_with_a_price(file: Path) -> None:
    spec, _ = read_sweep(file)
    assert file.suffix == ".yaml"
    assert spec.name == file.stem
    assert spec.question.endswith("?")
    assert spec.expect is not None
    assert re.search(r"\d (seconds|minutes|hours|days) on ", spec.expect), "expect names no time and machine"
    plan = Plan(spec)
    plan.check()
    for slot in (Slot("cpu", (0,), threads=1), Slot("cuda", (0,), threads=1)):
        estimate = estimate_cost(plan, [slot] * 2)
        assert estimate.runs > 0
        assert estimate.expected_seconds > 0


def test_the_name_of_a_shipped_sweep_stands_for_its_file_where_no_other_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec, _ = read_sweep(Path("depth_or_width"), ["seeds=5"])
    assert (spec.name, spec.seeds) == ("depth_or_width", 5)
    with pytest.raises(InputError, match=r"depth_or_with: is not a file; did you mean depth_or_width\?"):
        read_sweep(Path("depth_or_with"))
    write_sweep(tmp_path / "depth_or_width.yaml", tmp_path / "text.txt")
    with pytest.raises(InputError, match=r"is not a file; did you mean depth_or_width\.yaml\?"):
        read_sweep(Path("depth_or_width"))
    assert read_sweep(Path("norm"))[0].name == "norm"


def test_a_file_is_read_and_named_after_itself(tmp_path: Path) -> None:
    file = write_sweep(tmp_path / "depth.yaml", tmp_path / "text.txt", name=None, tune=RATES, seeds=2, first_seed=5)
    spec, values = read_sweep(file)
    assert isinstance(spec, CellSweep)
    assert spec.name == values["name"] == "depth"
    assert spec.seed_values == (5, 6)
    assert spec.tune["recipe.learning_rate"].values() == [0.02, 0.04, 0.08]


def test_numbers_may_be_written_as_powers_of_ten(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "question: Why?\nshapes: {iso_parameters: [2e5], depth: [1]}\nbudgets: {tokens: [1e6]}\n"
        "tune: {recipe.learning_rate: {low: 1e-3, high: 1e-2, trials: 2}}\nbase: {recipe: {learning_rate: 3e-3}}\n"
    )
    spec, _ = read_sweep(file)
    assert isinstance(spec, CellSweep)
    assert spec.shapes.iso_parameters == (200_000.0,)
    assert list(spec.budgets.each()) == [Budget(tokens=1_000_000)]
    assert spec.tune["recipe.learning_rate"].values() == [0.001, 0.01]


def test_overrides_reach_every_key_and_land_in_what_is_saved(tmp_path: Path) -> None:
    file = write_sweep(tmp_path / "x.yaml", tmp_path / "text.txt", tune=RATES)
    overrides = (
        "seeds=3",
        "base.recipe.learning_rate=1e-3",
        "budgets={tokens: [1e6, 2e6]}",
        "tune.recipe.learning_rate.trials=5",
        "tune.recipe.weight_decay={low: 0.01, high: 0.1, trials: 2}",
    )
    spec, values = read_sweep(file, overrides)
    assert isinstance(spec, CellSweep)
    assert (spec.seeds, values["seeds"]) == (3, 3)
    assert spec.base["recipe"] == {"batch_tokens": 256, "precision": "fp32", "learning_rate": "1e-3"}
    assert spec.budgets == Budgets(tokens=(1e6, 2e6))
    assert {path: tuned.trials for path, tuned in spec.tune.items()} == {"recipe.learning_rate": 5, "recipe.weight_decay": 2}
    assert values["tune"]["recipe.learning_rate"]["trials"] == 5


def test_a_knob_of_training_masks_is_one_key(tmp_path: Path) -> None:
    tune = {"recipe.masking.rate": {"low": 0.2, "high": 0.8, "trials": 2}}
    file = write_sweep(tmp_path / "x.yaml", tmp_path / "text.txt", tune=tune)
    overrides = (
        "vary.recipe.masking.whole_words=[false, true]",
        "tune.recipe.masking.rate.trials=3",
        "base.recipe.masking.static_copies=2",
    )
    spec, values = read_sweep(file, overrides)
    assert isinstance(spec, CellSweep)
    assert spec.variants == [{"recipe.masking.whole_words": False}, {"recipe.masking.whole_words": True}]
    assert values["tune"]["recipe.masking.rate"]["trials"] == 3
    runs = [run for cell in Plan(spec).cells for run in cell.trials()]
    assert {run.training_masking.rate for run in runs} == {0.2, 0.4, 0.8}
    assert {(run.masking.rate, run.recipe.masking.static_copies) for run in runs} == {(0.15, 2)}


@pytest.mark.parametrize(
    ("override", "place", "message"),
    [
        ("seeds", "'seeds'", "write key.path=value"),
        ("=3", "'=3'", "write key.path=value"),
        ("base..x=3", "'base..x=3'", "write key.path=value"),
        ("seeds=[1", "seeds", "is not a YAML value"),
        ("seeds.more=1", "seeds.more", "seeds is 2, so nothing can be set below it"),
        ("masking.rate.more=1", "masking.rate.more", "masking.rate is 0.2, so nothing can be set below it"),
        ("sedes=3", "sedes", "did you mean 'seeds'?"),
        ("base.recipe.lerning_rate=1", "base.recipe.lerning_rate", "did you mean 'learning_rate'?"),
        ("vary.architecture.pooler=[true, false]", "vary.architecture.pooler", "changes no run"),
        ("tune.recipe.lr={low: 1, high: 2, trials: 2}", "tune.recipe.lr", "is not a knob of a run"),
        (
            "vary.recipe.norm=[pre, post]",
            "vary.recipe.norm",
            "is not a knob of a run; did you mean 'architecture.norm'?",
        ),
        (
            "vary={recipe: {dropout: [0, 1]}}",
            "vary.recipe",
            "contains keys; write each as one dotted key, as in recipe.dropout",
        ),
        ("vary={data.sequence_length: [64, 128]}", "vary.data.sequence_length", "write one sweep each"),
    ],
)
def test_an_override_that_cannot_be_is_named(override: str, place: str, message: str, tmp_path: Path) -> None:
    file = write_sweep(tmp_path / "x.yaml", tmp_path / "text.txt", seeds=2, masking={"rate": 0.2})
    with pytest.raises(InputError) as caught:
        read_sweep(file, (override,))
    assert [problem.place for problem in caught.value.problems] == [place]
    assert message in caught.value.problems[0].message


def test_everything_wrong_with_a_file_and_its_overrides_is_reported_at_once(tmp_path: Path) -> None:
    file = write_sweep(
        tmp_path / "x.yaml",
        tmp_path / "text.txt",
        seeds=0,
        sampler="tpe",
        data={"sequence_lenght": 16, "tokenizer": {"vocabulary": True}},
        base={"recipe": {"learning_rate": -1e-3, "batch_tokens": 256, "dropuot": 0.1}},
        shapes={"grid": None, "list": [{"depth": 0, "width": 16, "heads": 3}, {"depth": 1, "width": ".nan"}]},
        budgets={"tokens": [64]},
        tune={"recipe.lr": {"low": 2, "high": 1, "trials": 1}},
    )
    with pytest.raises(InputError) as caught:
        read_sweep(file, ("nothing",))
    messages = {problem.place: problem.message for problem in caught.value.problems}
    assert messages.keys() == {
        "'nothing'",
        "seeds",
        "sampler",
        "data.sequence_lenght",
        "data.tokenizer.vocabulary",
        "base.recipe.learning_rate",
        "base.recipe.dropuot",
        "shapes.list[0].depth",
        "shapes.list[0].heads",
        "shapes.list[1].width",
        "budgets.tokens",
        "tune.recipe.lr",
        "tune.recipe.lr.trials",
    }
    assert messages["shapes.list[0].heads"] == "3 heads do not divide width 16; leave them out, or give a number that does"
    assert messages["data.sequence_lenght"] == "is not a known key; did you mean 'sequence_length'?"
    assert messages["budgets.tokens"] == "64 tokens are less than one batch of 256"


def test_a_part_of_a_run_at_the_top_is_refused_with_its_place(tmp_path: Path) -> None:
    file = write_sweep(tmp_path / "depth.yaml", tmp_path / "text.txt")
    with pytest.raises(InputError) as caught:
        read_sweep(file, ("recipe.learning_rate=1", "architecture.norm=pre"))
    assert [str(problem) for problem in caught.value.problems] == [
        "architecture: belongs under base; write base.architecture",
        "recipe: belongs under base; write base.recipe",
    ]


def named_model(tmp_path: Path, *overrides: str, **architecture: Any) -> Sweep:
    """A sweep of a named model, whose file gives no shapes."""
    base = {"architecture": {"model": "albert-base"} | architecture}
    return read_sweep(write_sweep(tmp_path / "named.yaml", Path("corpus.txt"), base=base, shapes=None), overrides)[0]


def test_a_named_model_is_trained_with_changes_and_the_vocabulary_of_the_text(tmp_path: Path) -> None:
    (run,) = Plan(named_model(tmp_path, depth=6)).first_runs
    albert = named("albert-base")
    of_text = {"vocabulary": 100, "positions": 16}
    assert run.architecture == albert.model_copy(update={"depth": 6} | of_text)
    (other,) = Plan(named_model(tmp_path, "base.architecture.model=google-bert/bert-base-uncased")).first_runs
    assert other.architecture == named("bert-base").model_copy(update=of_text)
    assert other.to_dict()["architecture"].keys() == {*ALWAYS_WRITTEN}


def test_a_named_model_replaces_the_architecture_of_a_preset_and_has_shapes_of_its_own(tmp_path: Path) -> None:
    overrides = ("preset=modern", "shapes={list: [{depth: 2, width: 64}, {depth: 3, width: 64}]}")
    runs = Plan(named_model(tmp_path, *overrides)).first_runs
    assert [run.architecture.sizes for run in runs] == [(2, 64, 1, 256), (3, 64, 1, 256)]
    assert {(run.architecture.distance_bias, run.architecture.layer_groups) for run in runs} == {("none", 1)}
    assert {run.recipe.optimizer for run in runs} == {"muon"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["base.architecture.model=albert"], "base.architecture.model: is not a known model; did you mean 'albert-base'"),
        (["base.architecture.model=7"], "base.architecture.model: is 7, not the name of a model such as albert-base"),
        (["base.architecture=albert-base"], "needs keys and values; for a named model write {model: albert-base}"),
        (
            ["vary={architecture.model: [albert-base, bert-base]}"],
            "vary.architecture.model: is the same for all runs of a sweep",
        ),
        (["base.architecture.heads=7"], "shapes.list[0].heads: 7 heads do not divide width 768"),
        (["base.architecture.layer_groups=13"], "base.architecture.layer_groups"),
    ],
)
def test_what_is_wrong_with_a_named_model_is_reported_at_its_place(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        _ = Plan(named_model(tmp_path, *overrides)).first_runs


def test_a_sweep_comes_through_a_pipe_with_a_name_of_its_own(tmp_path: Path) -> None:
    """As from <(cat sweep.yaml); a name made of the number of a file descriptor would be that of the results."""
    ends = [os.pipe(), os.pipe()]
    try:
        for _, write in ends:
            os.write(write, write_sweep(tmp_path / "toy.yaml", tmp_path).read_bytes().replace(b"name: toy", b""))
            os.close(write)
        with pytest.raises(InputError, match="name: is missing, since text from a pipe has no file name; give name=NAME"):
            read_sweep(Path(f"/dev/fd/{ends[0][0]}"))
        assert read_sweep(Path(f"/dev/fd/{ends[1][0]}"), ["name=piped"])[0].name == "piped"
    finally:
        for read, _ in ends:
            os.close(read)
    with pytest.raises(InputError, match="/dev/zero: is larger than"):
        read_sweep(Path("/dev/zero"))
