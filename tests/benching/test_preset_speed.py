"""A step of the modern presets beside one of BERT's recipe: what each variant changes, and its ratio within rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from study.benching.cases import Case
from study.benching.command import BenchOptions
from study.benching.own_processes import RoundTime
from study.benching.preset_speed import BERT, VARIANTS, config_of, preset_row
from study.benching.results import as_line, as_text
from study.benching.training_comparison import Rounds
from study.config.presets import PRESETS
from study.counting.architecture import Architecture

TINY = Architecture(depth=1, width=64, heads=1, ffn=256, vocabulary=200, positions=64)
CASE = Case(TINY, "fp32", batch=8, sequence_length=16)
ADAMW, AS_MANY_MASKS, MODERN, MODERN2 = [name for name in VARIANTS if name != BERT]


def rounds(**seconds: list[float]) -> Rounds:
    """Rounds of one step, of the variants named by their first letters."""
    names = dict(zip("bampn", (BERT, ADAMW, AS_MANY_MASKS, MODERN, MODERN2), strict=True))
    return Rounds(times={names[name]: [RoundTime(1, each) for each in times] for name, times in seconds.items()})


def test_the_variants_go_from_bert_s_recipe_to_the_preset_one_part_at_a_time() -> None:
    assert config_of(CASE, BERT) == CASE.config()
    configs = [config_of(CASE, name) for name in (BERT, ADAMW, AS_MANY_MASKS, MODERN)]
    assert [config.recipe.optimizer for config in configs] == ["adamw", "adamw", "muon", "muon"]
    assert [config.recipe.masking.rate or 0.15 for config in configs] == [0.15, 0.15, 0.15, 0.3]
    assert [config.architecture.distance_bias for config in configs] == ["none", "learned", "learned", "learned"]
    for variant, preset in ((MODERN, PRESETS["modern"]), (MODERN2, PRESETS["modern2"])):
        written = CASE.config().to_dict()
        for part, values in preset.items():
            written[part] |= values
        assert config_of(CASE, variant).to_dict() == type(CASE.config()).parse(written).to_dict()


def test_a_row_has_the_ratio_within_rounds() -> None:
    """Of three rounds the second was twice as slow for both."""
    times = rounds(b=[0.1, 0.2, 0.1], a=[0.1, 0.2, 0.1], m=[0.11, 0.22, 0.12], p=[0.1, 0.2, 0.1])
    row = preset_row(CASE, AS_MANY_MASKS, times, peak=None)
    assert row["over_bert"] == pytest.approx(1.1)
    assert row["over_bert_interval"] == pytest.approx([1.1, 1.2])
    assert row["tokens_per_second"] == pytest.approx(8 * 16 / 0.12)
    assert row["mfu"] is None
    assert "over BERT's 1.10 (1.10–1.20)" in as_line("presets", row)
    assert preset_row(CASE, BERT, times, peak=None)["over_bert_interval"] == [1.0, 1.0]


def test_twice_the_masks_are_more_flops_of_the_same_peak() -> None:
    times = rounds(b=[0.1], a=[0.1], m=[0.1], p=[0.1])
    few, many = (preset_row(CASE, name, times, peak=1e12)["mfu"] for name in (AS_MANY_MASKS, MODERN))
    assert 1.1 < many / few < 2


def test_a_variant_that_fails_is_a_row_that_says_why() -> None:
    failed = rounds(b=[0.1], a=[0.1], m=[0.1], n=[0.1])
    failed.errors[MODERN] = "no memory"
    table = as_text("presets", [preset_row(CASE, name, failed, None) for name in VARIANTS])
    assert "no memory" in table
    assert "1.00 (1.00–1.00)" in table


def test_on_a_gpu_base_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    (case,) = BenchOptions("cuda").preset_cases()
    assert (case.model, case.batch, case.sequence_length, case.dtype) == ("bert-base", 256, 128, "bf16")


@pytest.mark.slow
def test_the_command_lets_all_variants_take_turns(study: Any, tmp_path: Path) -> None:
    size = ("--shapes", "1x64", "--vocabulary", "200", "--batch", 8, "--sequence-length", 16, "--dtype", "fp32")
    options = ("--rounds", 2, "--threads", 1, "--device", "cpu", "--into", tmp_path, "--json")
    status, out, err = study("bench", "--only", "presets", *size, *options)
    assert status == 0, err
    rows = json.loads(out[out.index("[\n") :])
    assert [row["variant"] for row in rows] == [*VARIANTS]
    assert all(row["error"] is None and row["rounds"] == 2 and row["over_bert"] > 0 for row in rows)
    (table,) = tmp_path.glob("*.md")
    assert "## Presets: a step beside one of BERT's recipe" in table.read_text()
