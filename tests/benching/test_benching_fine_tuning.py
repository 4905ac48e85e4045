"""Fine-tuning beside transformers' Trainer: both sides see the same examples, and a row says how they compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from study.benching import fine_tuning_speed as fine_tuning
from study.benching.fine_tuning_speed import TASKS, DrawnTask, TokenClock, measure_fine_tuning
from study.benching.results import Row


def test_drawn_texts_are_as_long_as_the_task_they_stand_for() -> None:
    for task in TASKS:
        tokens = task.tokens(30522)
        assert len(tokens) == task.examples
        assert np.log(tokens.lengths).mean() == pytest.approx(task.log_mean, abs=0.03)
        assert len(np.unique(tokens.values)) <= task.pieces


@pytest.mark.parametrize(
    ("supported", "dtype"), [pytest.param(True, torch.bfloat16, marks=pytest.mark.slow), (False, torch.float32)]
)
def test_both_sides_are_measured_in_one_precision(supported: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    products, linear = [], F.linear

    def seen(*arguments: Any) -> torch.Tensor:
        product = linear(*arguments)
        products.append(product.dtype)
        return product

    monkeypatch.setattr(F, "linear", seen)
    monkeypatch.setattr(fine_tuning, "STEPS", {"cpu": 2})
    monkeypatch.setattr(fine_tuning, "WARM_UP", 1)
    monkeypatch.setattr(fine_tuning, "MODELS", ("bert-tiny",))
    monkeypatch.setattr(fine_tuning, "TASKS", (DrawnTask("few", 200, 2.0, 0.3, 50),))
    rows: list[Row] = []
    measure_fine_tuning("cpu", 1, 1, rows.append)
    (row,) = rows
    assert set(products) == {dtype}
    assert row["value"] > 0
    assert row["sentence"].startswith(f"bert-tiny, few, {'bf16' if supported else 'fp32'}: ")


def test_ratios_are_taken_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"ours": iter([300.0, 60.0, 900.0]), "trainer": iter([100.0, 30.0, 200.0])}
    monkeypatch.setattr(fine_tuning, "ours_tokens_per_second", lambda *_: next(speeds["ours"]))
    monkeypatch.setattr(fine_tuning, "trainer_tokens_per_second", lambda *_: next(speeds["trainer"]))
    monkeypatch.setattr(fine_tuning, "MODELS", ("bert-tiny",))
    monkeypatch.setattr(fine_tuning, "TASKS", (DrawnTask("few", 20, 2.0, 0.3, 50),))
    rows: list[Row] = []
    measure_fine_tuning("cpu", 1, 3, rows.append)
    assert [row["value"] for row in rows] == [3.0]


def test_the_command_shows_it_as_a_table(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fine_tuning, "ours_tokens_per_second", lambda *_: 300.0)
    monkeypatch.setattr(fine_tuning, "trainer_tokens_per_second", lambda *_: 100.0)
    status, out, err = study("bench", "--only", "finetune", "--rounds", 1, "--device", "cpu", "--into", tmp_path)
    assert status == 0, err
    assert "fine-tuning bert-tiny on texts as long as CoLA's, over Trainer" in out
    (table,) = tmp_path.glob("*.md")
    text = table.read_text()
    assert "| 3 times | ≥ 1.5 times | yes |" in text
    assert "bert-tiny, CoLA, bf16: 300 tokens/s, Trainer 100." in text or "fp32: 300 tokens/s, Trainer 100." in text


def test_a_token_clock_counts_from_the_warm_up_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 14.0])
    monkeypatch.setattr(fine_tuning, "perf_counter", lambda: next(times))
    clock = TokenClock("cpu")
    for number in range(1, fine_tuning.WARM_UP + fine_tuning.STEPS["cpu"] + 1):
        clock.step(number, 8 * number)
    assert clock.tokens_per_second == 8 * fine_tuning.STEPS["cpu"] / 4
