"""Time to a loss: ours trains at growing budgets until it is where transformers' run_mlm ended, on the same masks."""

from __future__ import annotations

import json
import math
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertForMaskedLM

from study.benching import time_to_loss as racing
from study.benching.cases import Case
from study.benching.peers import model_of
from study.benching.results import Results, as_line, as_text, failure, read_sections
from study.benching.time_to_loss import (
    Curve,
    LossPoint,
    TrainingClock,
    budgets,
    race,
    run_of,
    time_to_loss_row,
    validation_loss,
)
from study.config.run_config import DataConfig, RunConfig
from study.counting.architecture import Architecture
from study.data.prepared import prepare
from study.data.tokenizing import SpecialTokens
from study.model.in_transformers import their_weights
from study.model.parametrization import fresh_model
from study.plotting.speed import curves_frame
from study.store.run_folder import RunFolder
from study.training.execution import Execution
from study.training.trainer import Training
from tests.small import write_corpus

TINY = Architecture(depth=1, width=64, heads=1, ffn=256, vocabulary=200, positions=64)
CASE = Case(TINY, "fp32", batch=8, sequence_length=16)
THEIRS: Curve = [LossPoint(1.0, 512, 6.0), LossPoint(4.0, 2048, 5.0)]


@pytest.fixture
def small_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataConfig:
    """A drawn corpus in place of the docstrings."""
    write_corpus(tmp_path / "text.txt")
    values = {"corpus": str(tmp_path / "text.txt"), "tokenizer": {"vocabulary": 200}, "sequence_length": 16}
    data = DataConfig.parse(values | {"validation_sequences": 16})
    monkeypatch.setattr(racing, "data_of", lambda _: data)
    return data


def test_budgets_grow_by_one_factor_up_to_theirs() -> None:
    steps = list(budgets(2000))
    assert (steps[0], steps[-1]) == (31, 2000)
    assert all(1.38 < later / earlier < 1.45 for earlier, later in pairwise(steps))
    assert list(budgets(3)) == [1, 2, 3]


def test_a_row_compares_the_first_budget_that_reaches_their_loss() -> None:
    smaller, larger = [LossPoint(0.1, 128, 5.5)], [LossPoint(0.1, 128, 5.6), LossPoint(0.2, 256, 4.9)]
    ours: list[tuple[float, Curve]] = [(4e-3, smaller), (8e-3, larger)]
    row = time_to_loss_row(CASE, "modern", 3, (2e-3, THEIRS), ours)
    assert (row["shape"], row["vocabulary"], row["tokens"], row["seed"]) == ("1x64", 200, 2048, 3)
    assert (row["their_loss"], row["their_seconds"], row["our_tokens"], row["our_seconds"]) == (5.0, 4.0, 256, 0.2)
    assert (row["fewer_tokens"], row["faster"]) == (8.0, 20.0)
    assert row["our_budgets"] == [[128, 5.5], [256, 4.9]]
    assert row["our_rate"] == row["changes"]["recipe"]["learning_rate"] == 8e-3
    assert json.loads(json.dumps(row)) == row
    assert "fewer tokens x 8.0, faster x 20.0" in as_line("time-to-loss", row)


def test_a_loss_that_ours_does_not_reach_is_said_and_not_counted() -> None:
    row = time_to_loss_row(CASE, "modern", 0, (2e-3, THEIRS), [(4e-3, [LossPoint(9.0, 2048, 5.1)])])
    assert [row[name] for name in ("our_tokens", "our_seconds", "fewer_tokens", "faster")] == [None] * 4
    assert "not reached (5.100)" in as_text("time-to-loss", [row])
    assert "no memory" in as_text("time-to-loss", [row, failure("1x64, seed 0", "no memory")])


def test_the_clock_of_training_stands_still_in_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 3.0, 10.0, 11.0])
    monkeypatch.setattr(racing, "perf_counter", lambda: next(times))
    clock = TrainingClock()
    clock.start()
    assert clock.pause() == clock.pause() == 2.0
    clock.start()
    assert clock.pause() == 3.0


def test_both_sides_are_validated_on_the_same_masks(small_text: DataConfig, tmp_path: Path) -> None:
    """The weights of one of our encoders have the same loss in BertForMaskedLM by their measure and by ours."""
    config, prepared = run_of(CASE, small_text, "modern recipe, BERT's architecture", 1, 4e-3, seed=0), prepare(small_text)
    ours = fresh_model(config.architecture, config.recipe, seed=0)
    with torch.no_grad():
        for weight in ours.parameters():
            weight.mul_(4)
    theirs: Any = model_of(CASE)
    assert isinstance(theirs, BertForMaskedLM)
    theirs.load_state_dict(their_weights(ours.state_dict(), TINY), strict=False)
    theirs.tie_weights()
    trained = Training(config, prepared, RunFolder(tmp_path / "run"), Execution("cpu")).validated(ours.state_dict())
    assert trained.validation is not None
    assert validation_loss(theirs, CASE, prepared) == pytest.approx(trained.validation.loss, rel=1e-5)
    assert trained.validation.loss > 1.01 * math.log(200), "the loss is of these weights, not of any"
    assert isinstance(prepared.special, SpecialTokens)


def test_the_first_budget_wins_at_which_any_rate_is_at_their_loss(
    small_text: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is made lowest at the middle rate, and falls with the steps."""

    def trained(_: Any, config: RunConfig, case: Case) -> Curve:
        assert config.recipe.budget.steps is not None
        loss = abs(config.recipe.learning_rate - 8e-3) * 100 + 6 - math.log(config.recipe.budget.steps)
        return [LossPoint(1.0, config.recipe.budget.steps * case.batch_tokens, loss)]

    monkeypatch.setattr(racing, "in_own_process", trained)
    ours = race(CASE, small_text, "modern", 64, 4.0, (4e-3, 8e-3, 16e-3), seed=0)
    assert {rate for rate, _ in ours} == {8e-3}
    assert [curve[-1].tokens // CASE.batch_tokens for _, curve in ours] == [1, 2, 3, 4, 6, 8]


@pytest.mark.slow
def test_the_command_races_every_variant_and_draws_the_curves(
    study: Any, small_text: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(racing, "in_own_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(racing, "THEIR_RATES", (1e-3, 2e-3))
    monkeypatch.setattr(racing, "OUR_RATES", (4e-3, 8e-3))
    size = ("--shapes", "1x64", "--vocabulary", "200", "--batch", 8, "--sequence-length", 16, "--dtype", "fp32")
    options = (*size, "--tokens", 8 * 16 * 24, "--threads", 1, "--device", "cpu", "--into", tmp_path / "bench", "--json")
    status, out, err = study("bench", "--only", "time-to-loss", *options)
    assert status == 0, err
    rows = json.loads(out[out.index("[\n") :])
    assert [row["variant"] for row in rows] == ["modern", "modern recipe, BERT's architecture"]
    for row in rows:
        assert row["error"] is None
        assert row["tokens"] == row["their_curve"][-1][1] == 8 * 16 * 24
        assert (row["their_rate"], row["our_rate"]) in product((1e-3, 2e-3), (4e-3, 8e-3))
        assert row["our_budgets"][-1][1] <= row["their_loss"] or row["our_tokens"] is None
        assert all(loss > row["their_loss"] for _, loss in row["our_budgets"][:-1])
        seconds = [point[0] for point in row["our_curve"]]
        assert seconds == sorted(seconds)
    (results,) = (tmp_path / "bench").glob("*.json")
    assert results.with_name(f"{results.stem}-time-to-loss.svg").is_file()
    data = curves_frame(read_sections(results)["time-to-loss"]["rows"])
    assert len(data["series"].unique()) == 3
    assert Results(tmp_path / "bench", "cpu", 1).sections.keys() == {"time-to-loss"}
