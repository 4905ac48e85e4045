"""Encoders in fewer bits stand beside their sources and beside the smaller encoder nearest in bytes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from study.evidence.compressions import compressions_of
from study.evidence.evidence import gather
from study.report.findings import compression_words
from study.report.verdicts import verdict_of
from study.store.sweep_folder import SweepFolder

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"


def test_what_rounding_costs_and_how_it_stands_beside_a_smaller_encoder_is_paired_by_run_and_seed() -> None:
    evidence = gather(SweepFolder(REFERENCE / "int8_or_smaller"))
    (actual,) = evidence.compressions
    rows = evidence.ledger.set_index("run_id")
    rounded = rows[rows["recipe.weights"] == "int8"]
    costs = rounded["loss_nats"].to_numpy() - rows.loc[rounded["recipe.start"].str.partition(":")[0], "loss_nats"].to_numpy()
    smaller = rows[rows["shape"] == "L4-H40-A2-F160"]["loss_nats"]
    assert (actual.name, actual.beside) == ("int8 L4-H96-A3-F384", "L4-H40-A2-F160 in fp32 (663 kB)")
    assert actual.against is not None
    assert actual.against.estimate_nats == pytest.approx(rounded["loss_nats"].mean() - smaller.mean())
    assert actual.against_source.estimate_nats == pytest.approx(costs.mean())
    assert actual.against_source.standard_error_seeds_nats == pytest.approx(costs.std(ddof=1) / 3**0.5)
    for difference in (actual.against, actual.against_source):
        low, high = difference.low_nats, difference.high_nats
        assert low is not None
        assert high is not None
        assert low < difference.estimate_nats < high
        assert low * high > 0


def test_a_question_about_int8_is_answered_by_it() -> None:
    verdict = verdict_of(gather(SweepFolder(REFERENCE / "int8_or_smaller")))
    assert verdict.sentence.startswith("Int8 L4-H96-A3-F384 (707 kB) ends 0.373 nats (95% interval 0.3")
    assert verdict.sentence.endswith(" below L4-H40-A2-F160 in fp32 (663 kB).")
    assert verdict.also[0].startswith("Rounding adds +0.0013 nats (95% interval +0.0")
    other = gather(SweepFolder(REFERENCE / "norm"))
    assert other.compressions == ()


def test_what_is_cut_besides_is_no_rounding_and_other_layers_are_no_second_run() -> None:
    """Records as `study compress --to layers=2,int8` and `layers=2:last,int8` would leave them."""
    folder = SweepFolder(REFERENCE / "int8_or_smaller")
    evidence = gather(folder)
    rounded = evidence.ledger[evidence.ledger["recipe.weights"] == "int8"]["run_id"].tolist()
    records = {run: folder.run(run).record() for run in rounded}
    cut: dict[str, Any] = {}
    for run, keep in zip(rounded, ("first", "first", "last"), strict=True):
        record = records[run]
        assert record is not None
        config, start = record.config, record.config.recipe.init_from
        assert start is not None
        recipe = config.recipe.model_copy(update={"start": f"{start.folder}:{keep}"})
        shallow = config.architecture.model_copy(update={"depth": 2})
        config = config.model_copy(update={"architecture": shallow, "recipe": recipe})
        cut[run] = record.model_copy(update={"config": config})
    given: Any = Cut(folder, cut)
    compressions = compressions_of(given, evidence.ledger, evidence.cells, evidence.comparisons.seed_variances)
    assert {one.name: one.against_source.n_seeds for one in compressions} == {
        "int8 L2-H96-A3-F384 (first layers)": (2, 2),
        "int8 L2-H96-A3-F384 (last layers)": (1, 1),
    }
    assert not any(one.rounds for one in compressions)
    assert "compressing adds " in compression_words(compressions[0])


class Cut:
    """A sweep's folder whose runs have other records."""

    def __init__(self, folder: SweepFolder, records: dict[str, Any]) -> None:
        self.folder, self.records = folder, records

    def run(self, run_id: str) -> Any:
        run = self.folder.run(run_id)
        return SimpleNamespace(record=lambda: self.records[run_id], losses_per_token=run.losses_per_token)


def test_losses_per_byte_have_no_compressions() -> None:
    """Their cells hold losses of documents, and a compression's are of sequences."""
    evidence = gather(SweepFolder(REFERENCE / "vocabulary"))
    run = evidence.cells[0].runs[0]
    made = evidence.ledger.assign(steps=0)
    made["recipe.weights"] = "int8"
    record = evidence.folder.run(run).record()
    assert record is not None
    recipe = record.config.recipe.model_copy(update={"start": str(evidence.folder.run(run).path)})
    starting = record.model_copy(update={"config": record.config.model_copy(update={"recipe": recipe})})
    folder: Any = Cut(evidence.folder, dict.fromkeys(made["run_id"], starting))
    assert compressions_of(folder, made, evidence.cells, evidence.comparisons.seed_variances) == ()
