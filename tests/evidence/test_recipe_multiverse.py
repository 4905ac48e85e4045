"""Sweeps are asked one question, and what turns its answer is a choice of recipe, text, budget or size."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from study.base.errors import InputError
from study.config.run_config import RunConfig
from study.evidence.evidence import gather
from study.evidence.recipe_multiverse import ASKABLE, _recipe_of, _together, explore_knob, explore_recipes
from study.store.sweep_folder import SweepFolder
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


@dataclass(frozen=True)
class NormLaw(Law):
    """Pre-norm adds `without` nats, and `normed` nats if a norm of the embeddings goes with it."""

    without: float = 0.1
    normed: float = 0.0

    def loss(self, config: RunConfig) -> float:
        pre = self.normed if config.architecture.embedding_norm else self.without
        return super().loss(config) + (pre if config.architecture.norm == "pre" else 0.0)


POST, PRE = {"norm": "post"}, {"norm": "pre"}
PRE_NORMED = {"norm": "pre", "embedding_norm": True}
TWO_SHAPES = ((1, 128), (2, 92))


def norms(
    path: Path,
    *variants: dict[str, Any],
    law: Law | None = None,
    shapes: Sequence[tuple[int, int]] = TWO_SHAPES[:1],
    order_gain: float = 1.0,
    **settings: Any,
) -> Path:
    """A sweep of variants, which names the norm of the embeddings if one of them has it."""
    normed = {"architecture.embedding_norm": [True, "none"]} if PRE_NORMED in variants else {}
    folder = sweep_folder(path, SWEEP | {"vary": {"architecture.norm": ["post", "pre"]} | normed})
    for (depth, width), variant, (rate, seed) in product(shapes, variants, RATES_AND_SEEDS):
        config = in_setting(run_config(depth, width, rate, seed), **variant, **settings)
        add_run(folder, config, law or NormLaw(), order_gain=order_gain)
    folder.write_ledger()
    return path


def test_an_answer_about_a_knob_that_turns_with_the_recipe_is_reported_as_turning(tmp_path: Path) -> None:
    """Post-norm is lower with AdamW and pre-norm with Muon, in both shapes."""
    folders = [
        norms(tmp_path / optimizer, POST, PRE, law=NormLaw(without=effect), shapes=TWO_SHAPES, optimizer=optimizer)
        for optimizer, effect in (("adamw", 0.05), ("muon", -0.05))
    ]
    (actual,) = explore_knob(folders, "architecture.norm")
    assert actual.question.text == "At equal size and budget, which lowers the loss: norm=post or norm=pre?"
    assert [universe.value for universe in actual.universes] == pytest.approx([0.05, 0.05, -0.05, -0.05], abs=0.02)
    assert actual.flips() == {"optimizer": 1.0, "shape": 0.0}
    assert (actual.decided("norm=post"), actual.decided("norm=pre")) == (2, 2)
    text = actual.to_text()
    assert (
        "norm=post, say the runs of the first sweep at its largest budget and size: nats by which pre exceeds post 0.0" in text
    )
    assert "in 2 of 2 for norm=post and 2 of 2 for norm=pre." in text
    assert "optimizer flips the answer in 100% of pairs (agreement: adamw 100%, muon 0%)" in text
    assert "never flips it alone: shape" in text


def test_the_universes_of_a_knob_in_one_sweep_are_the_pairs_that_its_report_compares(tmp_path: Path) -> None:
    path = norms(tmp_path / "made_up", POST, PRE, shapes=TWO_SHAPES)
    (actual,) = explore_knob([path], "architecture.norm")
    pairs = [pair for pair in gather(SweepFolder(path)).comparisons.pairs if pair.weighs == "architecture.norm"]
    assert sorted(one.value for one in actual.universes if one.value is not None) == pytest.approx(
        sorted(pair.difference.estimate_nats for pair in pairs)
    )
    assert {universe.choices["shape"] for universe in actual.universes} == {"L1-H128-A2-F512", "L2-H92-A2-F368"}


def test_a_cell_has_partners_in_other_sweeps(tmp_path: Path) -> None:
    """Post-norm always norms the embeddings, so that it is the partner of pre-norm with and without such a norm."""
    law = NormLaw(without=0.1, normed=-0.05)
    one, other = norms(tmp_path / "post", POST, law=law), norms(tmp_path / "pre", PRE, PRE_NORMED, law=law)
    (actual,) = explore_knob([one, other], "architecture.norm")
    values = {universe.choices["embedding norm"]: universe.value for universe in actual.universes}
    assert values == {"none": pytest.approx(0.1, abs=0.02), "True": pytest.approx(-0.05, abs=0.02)}
    assert actual.flips() == {"embedding norm": 1.0}
    assert actual.notes == ()


def test_a_cell_that_another_value_does_not_change_is_no_partner_of_its_own(tmp_path: Path) -> None:
    """Post-norm with a norm of the embeddings is post-norm."""
    (actual,) = explore_knob([norms(tmp_path / "made_up", POST, PRE, PRE_NORMED)], "architecture.embedding_norm")
    (universe,) = actual.universes
    assert universe.choices == {"approach": "equal shape", "budget": "1M tokens", "shape": "L1-H128-A2-F512"}
    assert universe.value == pytest.approx(0.1, abs=0.02)


def test_every_two_values_of_a_knob_have_a_multiverse(tmp_path: Path) -> None:
    kinds = [{"position_encoding": kind} for kind in ("learned", "rotary", "none")]
    asked = explore_knob([norms(tmp_path / "made_up", *kinds)], "architecture.position_encoding")
    answers = [(one.question.above.partition("=")[2], one.question.below.partition("=")[2]) for one in asked]
    assert {frozenset(pair) for pair in answers} == {frozenset(pair) for pair in combinations(("learned", "rotary", "none"), 2)}
    assert [len(one.universes) for one in asked] == [1, 1, 1]


def test_a_cell_of_two_sweeps_is_compared_once(tmp_path: Path) -> None:
    one = norms(tmp_path / "one", POST, PRE)
    other = Path(shutil.copytree(one, tmp_path / "other"))
    assert explore_knob([one, other], "architecture.norm") == explore_knob([one], "architecture.norm")


def test_cells_that_differ_in_more_than_the_knob_are_no_pair(tmp_path: Path) -> None:
    folders = [norms(tmp_path / "a", POST), norms(tmp_path / "b", PRE, optimizer="muon")]
    with pytest.raises(InputError) as caught:
        explore_knob(folders, "architecture.norm")
    assert [problem.place for problem in caught.value.problems] == [*map(str, folders)]
    assert "no cell differs from another in architecture.norm alone" in str(caught.value)
    good = norms(tmp_path / "good", POST, PRE)
    (actual,) = explore_knob([good, folders[1]], "architecture.norm")
    assert actual.notes == (f"left out: {folders[1]}: no cell differs from another in architecture.norm alone",)
    assert len(actual.universes) == 1


def test_bags_of_words_and_rates_without_brackets_say_nothing_about_a_knob(tmp_path: Path) -> None:
    (bags,) = explore_knob([norms(tmp_path / "bags", POST, PRE, order_gain=0.0)], "architecture.norm")
    assert {universe.status for universe in bags.universes} == {"neither encoder reads word order"}
    (edges,) = explore_knob([norms(tmp_path / "edges", POST, PRE, law=NormLaw(best_rate=2e-2))], "architecture.norm")
    assert {universe.status for universe in edges.universes} == {"one of the two has no bracketed rate"}


@pytest.mark.parametrize(
    ("knob", "remedy"),
    [("norm", "did you mean 'architecture.norm'?"), ("shap", "did you mean 'shape'?"), ("architecture.depth", "ask shape")],
)
def test_a_question_that_is_none_is_refused(knob: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^--ask: '{knob}' is neither compute, nor shape, nor a knob") as caught:
        explore_knob([tmp_path], knob)
    assert remedy in str(caught.value)


def test_every_knob_that_may_be_asked_is_one_of_a_recipe() -> None:
    assert {*ASKABLE} <= _recipe_of(run_config(1, 64), ASKABLE).keys()
