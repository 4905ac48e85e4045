"""Encoders in fewer bits stand beside their sources and beside the smaller encoder nearest in bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.evidence.evidence import gather
from study.report.verdicts import verdict_of
from study.store.sweep_folder import SweepFolder

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"


def test_what_rounding_costs_and_how_it_stands_beside_a_smaller_encoder_is_paired_by_run_and_seed() -> None:
    evidence = gather(SweepFolder(REFERENCE / "int8_or_smaller"))
    (found,) = evidence.compressions
    rows = evidence.ledger.set_index("run_id")
    rounded = rows[rows["recipe.weights"] == "int8"]
    costs = rounded["loss_nats"].to_numpy() - rows.loc[rounded["recipe.start"].str.partition(":")[0], "loss_nats"].to_numpy()
    smaller = rows[rows["shape"] == "L4-H40-A2-F160"]["loss_nats"]
    assert (found.name, found.beside) == ("int8 L4-H96-A3-F384", "L4-H40-A2-F160 in fp32 (663 kB)")
    assert found.against is not None
    assert found.against.estimate_nats == pytest.approx(rounded["loss_nats"].mean() - smaller.mean())
    assert found.against_source.estimate_nats == pytest.approx(costs.mean())
    assert found.against_source.standard_error_seeds_nats == pytest.approx(costs.std(ddof=1) / 3**0.5)
    for difference in (found.against, found.against_source):
        low, high = difference.low_nats, difference.high_nats
        assert low is not None
        assert high is not None
        assert low < difference.estimate_nats < high
        assert low * high > 0


def test_a_question_about_int8_is_answered_by_it() -> None:
    verdict = verdict_of(gather(SweepFolder(REFERENCE / "int8_or_smaller")))
    assert verdict.sentence.startswith("Int8 L4-H96-A3-F384 (707 kB) ends 0.373 nats (95% interval 0.3")
    assert "below L4-H40-A2-F160 in fp32 (663 kB); rounding adds +0.0013 nats (+0.0" in verdict.sentence
    other = gather(SweepFolder(REFERENCE / "norm"))
    assert other.compressions == ()
