"""Every sweep file can be read and paid for, and says what it expects."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from study.sweeping.bill import bill
from study.sweeping.executors.slots import Slot
from study.sweeping.spec import read_sweep

FILES = sorted((Path(__file__).resolve().parents[1] / "sweeps").glob("*"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_sweep_file_is_a_question_with_a_price(file: Path) -> None:
    spec, _ = read_sweep(file)
    assert file.suffix == ".yaml"
    assert spec.name == file.stem
    assert spec.question.endswith("?")
    assert spec.expect is not None
    assert re.search(r"\d (seconds|minutes|hours|days) on ", spec.expect), "expect names no time and machine"
    for slot in (Slot("cpu", (0,), threads=1), Slot("cuda", (0,), threads=1)):
        estimate = bill(spec, [slot] * 2)
        assert estimate.runs > 0
        assert estimate.expected_seconds > 0
