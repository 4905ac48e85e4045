"""Fine-tuning beside transformers' Trainer: both sides see the same examples, and a row says how they compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from study.scoring import benchmark, trainer_peer
from study.scoring.benchmark import TASKS, Drawn, measure_fine_tuning


def test_drawn_texts_are_as_long_as_the_task_they_stand_for() -> None:
    for task in TASKS:
        tokens = task.tokens(30522)
        assert len(tokens) == task.examples
        assert np.log(tokens.lengths).mean() == pytest.approx(task.log_mean, abs=0.03)
        assert len(np.unique(tokens.values)) <= task.pieces


@pytest.mark.parametrize(("supported", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_both_sides_are_measured_in_one_precision(supported: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    products, linear = [], F.linear

    def seen(*arguments: Any) -> torch.Tensor:
        product = linear(*arguments)
        products.append(product.dtype)
        return product

    monkeypatch.setattr(F, "linear", seen)
    for module in (benchmark, trainer_peer):
        monkeypatch.setattr(module, "STEPS", {"cpu": 2})
        monkeypatch.setattr(module, "WARM_UP", 1)
    monkeypatch.setattr(benchmark, "MODELS", ("bert-tiny",))
    monkeypatch.setattr(benchmark, "TASKS", (Drawn("few", 200, 2.0, 0.3, 50),))
    rows: list[dict[str, Any]] = []
    measure_fine_tuning("cpu", 1, rows.append, rounds=1)
    (row,) = rows
    assert (row["model"], row["task"], row["dtype"]) == ("bert-tiny", "few", "bf16" if supported else "fp32")
    assert set(products) == {dtype}
    assert row["versus_trainer"] == pytest.approx(row["tokens_per_second"] / row["trainer_tokens_per_second"])


def test_the_command_shows_it_as_a_table(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row: dict[str, Any] = {"model": "bert-tiny", "task": "CoLA", "dtype": "bf16", "tokens_per_second": 300.0}
    row |= {"trainer_tokens_per_second": 100.0, "versus_trainer": 3.0}
    monkeypatch.setattr(benchmark, "measure_fine_tuning", lambda *arguments: arguments[-1](row))
    status, out, err = study("bench", "--only", "finetune", "--device", "cpu", "--output", tmp_path)
    assert status == 0, err
    assert "fine-tuning bert-tiny on texts as long as CoLA's, over Trainer" in out
    (table,) = tmp_path.glob("*.md")
    assert "bert-tiny, CoLA, bf16: 300 tokens/s, Trainer 100." in table.read_text()
