"""What starts and teachers buy beside training from scratch, and shapes that others with less of everything beat."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from study.config.run_config import RunConfig
from study.evidence.evidence import Evidence, gather
from study.evidence.gains import OWN, SPENT, spending_fronts, way
from study.report.answer import Answer
from study.report.findings import dominance_sentences, loss_findings
from study.report.verdicts import verdict_of
from study.store.records import counts_of
from study.store.sweep_folder import SweepFolder
from tests.synthetic import SWEEP, Law, add_run, run_config, sweep_folder

DEEP = "../runs/0123456789abcdef"
STARTS: dict[str, Any] = SWEEP | {
    "question": "Cut, distil, or train again?",
    "shapes": {"grid": {"depth": [1], "width": [64]}},
    "budgets": {"tokens": [1e6]},
    "vary": {"recipe.start": ["fresh", DEEP], "recipe.teacher": ["none", DEEP]},
    "tune": {},
}


class Ways(Law):
    """Starting from layers lowers the loss by 0.3 nats, a teacher by 0.1, and a fourfold budget by 0.6."""

    def loss(self, config: RunConfig) -> float:
        recipe = config.recipe
        return 5 - 0.3 * (recipe.init_from is not None) - 0.1 * (recipe.teacher_run is not None) - 0.6 * (config.tokens > 2e6)


@dataclass(frozen=True)
class Constant(Law):
    """One loss for every configuration."""

    nats: float = 5.0

    def loss(self, config: RunConfig) -> float:
        return self.nats


class Sizes(Law):
    """More layers raise the loss, whatever they cost."""

    def loss(self, config: RunConfig) -> float:
        return 4 + 0.1 * config.architecture.depth


def gathered(folder: SweepFolder) -> Evidence:
    folder.write_ledger()
    return gather(folder, include_unbracketed=True)


@pytest.fixture
def starts(tmp_path: Path) -> SweepFolder:
    folder = sweep_folder(tmp_path / "s", STARTS)
    deep = counts_of(run_config(2, 64, tokens=3e6), 2930)["train_flops"]
    for seed in range(3):
        for start in ("fresh", DEEP):
            for teacher in ("none", f"{DEEP}:weight=0.5"):
                before = None if (start, teacher) == ("fresh", "none") else deep
                add_run(folder, run_config(1, 64, seed=seed, start=start, teacher=teacher), Ways(), flops_before=before)
        add_run(folder, run_config(1, 64, seed=seed, tokens=4e6), Ways())
    return folder


def test_an_encoder_that_needs_others_stands_beside_those_from_scratch(starts: SweepFolder) -> None:
    evidence = gathered(starts)
    estimates = {(one.needs, one.scratch): one.difference.estimate_nats for one in evidence.spendings}
    assert len(estimates) == 6
    assert estimates["continued for 1M tokens", "from scratch for 1M tokens"] == pytest.approx(-0.3, abs=0.02)
    both = "continued and distilled (weight=0.5) for 1M tokens"
    assert estimates[both, "from scratch for 4M tokens"] == pytest.approx(0.2, abs=0.02)
    assert {one.status for one in evidence.spendings} == {"decided"}
    assert all(one.spent_flops > one.own_flops for one in evidence.spendings)
    (fronts,) = spending_fronts(evidence.cells)
    assert {way(cell) for cell in fronts[SPENT]} == {"from scratch for 1M tokens", "from scratch for 4M tokens"}
    assert [way(cell) for cell in fronts[OWN]] == [both, "from scratch for 4M tokens"]


def test_the_verdict_counts_own_flops_and_then_all(starts: SweepFolder) -> None:
    verdict = verdict_of(gathered(starts))
    assert verdict.figures[:2] == ("loss_against_flops", "loss_against_spent_flops")
    sentence = verdict.sentence
    own, spent = sentence.split(" and 0.")
    assert own.startswith(
        "An encoder continued and distilled from a teacher's predictions beside masked words for 1M tokens is 0.4"
    )
    assert own.endswith(" below one trained from scratch for 1M tokens (1.00 times its own FLOPs)")
    assert spent.endswith(" above one trained from scratch for 4M tokens (0.65 times its FLOPs with the runs that it needs).")
    answer = Answer(gathered(starts), {}).to_markdown()
    assert "What starts and teachers buy" in answer
    assert "| spent\\_flops |" in answer


@pytest.mark.parametrize(("others", "rest"), [((DEEP,), "one run, whose"), ((DEEP, "fedcba9876543210"), "2 runs, whose")])
def test_the_verdict_counts_the_runs_that_all_rests_on(others: tuple[str, ...], rest: str, tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", STARTS | {"vary": {"recipe.start": ["fresh", *others]}})
    deep = counts_of(run_config(2, 64, tokens=3e6), 2930)["train_flops"]
    for seed in range(2):
        for start in ("fresh", *others):
            before = None if start == "fresh" else deep
            add_run(folder, run_config(1, 64, seed=seed, start=start), Ways(), flops_before=before)
    assert verdict_of(gathered(folder)).certainty.endswith(f" All rest on {rest} luck no interval holds.")


def test_a_question_about_teachers_compares_them_and_leaves_training_from_scratch_to_the_findings(tmp_path: Path) -> None:
    asked = {"question": "Does a student learn more from its teacher's layers?", "vary": {"recipe.teacher": ["none", DEEP]}}
    folder = sweep_folder(tmp_path / "s", STARTS | asked)
    deep = counts_of(run_config(2, 64, tokens=3e6), 2930)["train_flops"]
    for seed in range(3):
        for teacher, loss in (("none", 5.0), (f"{DEEP}:weight=0.5", 4.9), (f"{DEEP}:weight=0.5:hidden_mse=1", 4.6)):
            before = None if teacher == "none" else deep
            add_run(folder, run_config(1, 64, seed=seed, teacher=teacher), Constant(nats=loss), flops_before=before)
    answer = verdict_of(gathered(folder))
    assert re.match(
        r"(At equal shape, t|T)he loss with a teacher's predictions and hidden states beside masked words is 0\.30.* below "
        r"that with a teacher's predictions beside masked words \(",
        answer.sentence,
    )
    (spent,) = answer.also
    of_both = "a teacher's predictions and hidden states beside masked words"
    assert spent.startswith(f"An encoder distilled from {of_both} for 1M tokens is 0.40")
    assert spent.endswith(" (1.00 times its own FLOPs, 0.16 times its FLOPs with the runs that it needs).")


def test_a_record_that_counts_no_other_runs_changes_no_answer(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", STARTS)
    for seed in range(2):
        for start in ("fresh", DEEP):
            add_run(folder, run_config(1, 64, seed=seed, start=start), Ways())
    evidence = gathered(folder)
    assert evidence.spendings == ()
    assert "spendings" not in evidence.differences()
    assert "spent_flops" not in evidence.ledger


def test_a_shape_with_less_of_everything_and_a_lower_loss_dominates(tmp_path: Path) -> None:
    """No two of these shapes are of one size; the deepest loses to both, none to what costs more."""
    shapes = [(1, 64), (2, 96), (4, 128)]
    folder = sweep_folder(
        tmp_path / "s", SWEEP | {"shapes": {"list": [{"depth": d, "width": w} for d, w in shapes]}, "tune": {}}
    )
    for seed in range(3):
        for depth, width in shapes:
            add_run(folder, run_config(depth, width, seed=seed), Sizes())
    evidence = gathered(folder)
    pairs = {(one.first[:2], one.second[:2]) for one in evidence.dominances if one.status == "decided"}
    assert pairs == {("L1", "L2"), ("L1", "L4"), ("L2", "L4")}
    first, second = dominance_sentences(evidence)
    assert first.startswith("L4-H128-A2-F512 at 1M tokens is dominated by L1-H64-A2-F256, which has fewer parameters (")
    assert second.startswith("L2-H96-A2-F384 at 1M tokens is dominated by L1-H64-A2-F256")
    assert {first, second} <= {*loss_findings(evidence)}
    assert not evidence.comparisons.pairs


def test_a_larger_shape_of_lower_loss_is_dominated_by_none(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", SWEEP | {"tune": {}})
    for seed in range(3):
        for depth, width in ((1, 64), (1, 128), (1, 184)):
            add_run(folder, run_config(depth, width, seed=seed), Law())
    evidence = gathered(folder)
    assert evidence.dominances == ()
    assert dominance_sentences(evidence) == []
