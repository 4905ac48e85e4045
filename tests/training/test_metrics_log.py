"""The rows of `metrics.jsonl` are JSON, whatever a run logs."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from study.training.trainer import MetricsFile


def test_what_is_not_finite_is_left_out_also_of_rows_that_were_logged_with_it(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"trainer/step": 1, "train/loss": NaN, "val/loss": 0.1}\n{"trainer/step": 3, "train/loss": 2}\n')
    log = MetricsFile(file, from_step=2)
    log.log_metrics({"trainer/step": 3, "train/loss": math.inf, "train/gradient_norm": math.nan, "epoch": 0})
    log.close()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in file.read_text().splitlines()]
    assert rows == [{"trainer/step": 1, "val/loss": 0.1}, {"trainer/step": 3}]
