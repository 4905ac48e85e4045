"""Several sweeps are asked one question, and what turns its answer is a choice of recipe, text, budget or size."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from study.base.errors import InputError
from study.evidence.recipe_multiverse import _together, explore_recipes
from tests.synthetic import SHAPES, SWEEP, Law, add_run, in_setting, run_config, sweep_folder

SHAPES_OF_TWO_DEPTHS = (SHAPES[0], SHAPES[2], SHAPES[3], SHAPES[5])
RATES_AND_SEEDS = ((2e-3, 0), (4e-3, 0), (4e-3, 1), (8e-3, 0))


def sweep(path: Path, effect: float, budgets: tuple[float, ...] = (1e6, 2e6), order_gain: float = 1.0, **settings: Any) -> Path:
    """A sweep of two sizes whose losses rise by `effect` nats for each doubling of the depth."""
    folder, law = sweep_folder(path), Law(depth_effect=effect)
    for (depth, width), tokens, (rate, seed) in product(SHAPES_OF_TWO_DEPTHS, budgets, RATES_AND_SEEDS):
        config = in_setting(run_config(depth, width, rate, seed, tokens), **settings)
        add_run(folder, config, law, order_gain=order_gain)
    folder.write_ledger()
    return path


@pytest.mark.slow
def test_an_answer_that_turns_with_the_recipe_is_seen_to(tmp_path: Path) -> None:
    """Width wins with learned positions and depth with rotary ones, whatever the optimiser, budget and size."""
    multiverse = explore_recipes(
        [
            sweep(tmp_path / f"{encoding}-{optimizer}", effect, position_encoding=encoding, optimizer=optimizer)
            for encoding, effect in (("learned", 0.05), ("rotary", -0.05))
            for optimizer in ("adamw", "muon")
        ]
    )
    as_dict = multiverse.to_dict()
    assert as_dict["universes"] == as_dict["answered"] == 4 * 2 * 2
    assert as_dict["flips"] == {"position encoding": 1.0, "optimizer": 0.0, "budget": 0.0, "size": 0.0}
    assert as_dict["agreement"] == 0.5
    assert as_dict["answers"]["Depth"] == {"universes": 8, "decided": multiverse.decided("Depth")}
    assert multiverse.decided("Depth") > 4
    text = multiverse.to_text()
    assert "Width, say the runs of the first sweep at its largest budget and size: nats that doubling the" in text
    assert "position encoding flips the answer in 100% of pairs (agreement: learned 100%, rotary 0%)" in text
    assert "never flips it alone: optimizer, budget, size" in text
    assert multiverse.universes[0].choices["budget"] == "2M tokens"


def test_each_universe_is_what_the_sweep_compares_at_one_size_and_budget(tmp_path: Path) -> None:
    one, other = sweep(tmp_path / "one", 0.05, (1e6,)), sweep(tmp_path / "other", 0.02, (1e6,), optimizer="muon")
    multiverse = explore_recipes([one, other])
    assert [universe.value for universe in multiverse.universes] == [
        pytest.approx(value, abs=0.01) for value in (0.05, 0.05, 0.02, 0.02)
    ]
    assert len({universe.choices["size"] for universe in multiverse.universes}) == 2


@pytest.mark.slow
def test_bags_of_words_have_no_answer(tmp_path: Path) -> None:
    folders = [sweep(tmp_path / "a", 0.05, (1e6,)), sweep(tmp_path / "b", 0.05, (1e6,), order_gain=0.0, optimizer="muon")]
    multiverse = explore_recipes(folders)
    assert "without an answer, 2 universes: an encoder reads no word order" in multiverse.to_text()


def test_knobs_that_change_together_are_one_choice() -> None:
    recipes = [
        {
            "recipe.optimizer": "adamw",
            "architecture.position_encoding": "learned",
            "data.corpus": "a",
            "recipe.schedule": "wsd",
        },
        {"recipe.optimizer": "muon", "architecture.position_encoding": "rotary", "data.corpus": "a", "recipe.schedule": "wsd"},
        {
            "recipe.optimizer": "adamw",
            "architecture.position_encoding": "learned",
            "data.corpus": "b",
            "recipe.schedule": "wsd",
        },
    ]
    assert _together(recipes) == [
        {"optimizer, position encoding": "adamw, learned", "corpus": "a"},
        {"optimizer, position encoding": "muon, rotary", "corpus": "a"},
        {"optimizer, position encoding": "adamw, learned", "corpus": "b"},
    ]


def shallow(path: Path) -> Path:
    """A sweep of one depth."""
    folder = sweep_folder(path, SWEEP | {"seeds": 1})
    add_run(folder, run_config(1, 64))
    folder.write_ledger()
    return path


def test_a_sweep_that_cannot_answer_is_left_out_with_a_note(tmp_path: Path) -> None:
    good, unfit = sweep(tmp_path / "good", 0.05, (1e6,)), shallow(tmp_path / "unfit")
    actual, alone = explore_recipes([good, unfit]), explore_recipes([good])
    assert actual.universes == alone.universes
    assert alone.notes == ()
    (note,) = actual.notes
    assert note.startswith(f"left out: {unfit}: cannot compare depth and width: no two depths ")
    assert note in actual.to_text()


def test_that_no_sweep_can_answer_is_one_error_with_every_folder(tmp_path: Path) -> None:
    folders = [shallow(tmp_path / "a"), shallow(tmp_path / "b")]
    with pytest.raises(InputError) as caught:
        explore_recipes(folders)
    assert [problem.place for problem in caught.value.problems] == [*map(str, folders)]
    assert all("cannot compare depth and width" in problem.message for problem in caught.value.problems)


def test_every_folder_that_is_no_sweep_is_reported(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with pytest.raises(InputError) as caught:
        explore_recipes([sweep(tmp_path / "good", 0.05, (1e6,)), *folders])
    assert [problem.place for problem in caught.value.problems] == [*map(str, folders)]
    assert "is not a sweep folder" in str(caught.value)


def test_a_sweep_given_twice_counts_once(tmp_path: Path) -> None:
    one = sweep(tmp_path / "one", 0.05, (1e6,))
    assert explore_recipes([one, one]) == explore_recipes([one])


def test_sweeps_of_one_recipe_are_told_by_their_folders(tmp_path: Path) -> None:
    one = sweep(tmp_path / "a" / "same_name", 0.05, (1e6,))
    other = Path(shutil.copytree(one, tmp_path / "b" / "same_name"))
    both = explore_recipes([one, other])
    assert [universe.choices["sweep"] for universe in both.universes] == [str(one)] * 2 + [str(other)] * 2
    assert both.flips()["sweep"] == 0.0
