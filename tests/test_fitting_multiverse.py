"""The multiverse asks one question everywhere and says what turns its answer."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from study.fitting import multiverse
from study.fitting.compute_optimal import frontiers, to_dict, to_text
from study.fitting.multiverse import Multiverse, Universe, explore
from study.fitting.reading import Source
from tests.synthetic import depth_or_width
from tests.test_fitting_frontiers import EXPONENT, iso_flop_runs


@pytest.fixture
def table(tmp_path: Path) -> Path:
    parameters, flops, loss = iso_flop_runs(noise=0.0005)
    path = tmp_path / "runs.csv"
    data = {"N": parameters, "C": flops, "loss": loss, "without embeddings": parameters - 3e6 * (parameters / 1e8) ** 0.33}
    pd.DataFrame(data).to_csv(path, index=False)
    return path


def test_every_approach_is_told_side_by_side(table: Path) -> None:
    found = frontiers(Source(table, {"parameters": "N", "flops": "C"}))
    told = to_dict(found)
    for name in ("parabola", "akima", "parametric"):
        assert told[name]["exponent"] == pytest.approx(EXPONENT, abs=0.02)
    assert all(name in to_text(found) for name in told)


def test_multiverse_of_a_table_counts_agreement(table: Path) -> None:
    source = Source(table, {"tokens": "C/(6*N)"})
    found = explore(source, parameters=("N", "without embeddings"), flops=("C",))
    told = found.to_dict()
    assert told["universes"] == 2 * 3 * (8 + 1)
    assert told["answer"] is True
    assert 0.5 < told["agreement"] <= 1
    assert {"parameters", "rows", "floor", "loss", "space"} <= told["flips"].keys()
    assert "say the usual conventions" in found.to_text()


def test_flips_compare_universes_that_differ_in_one_choice() -> None:
    def universe(size: str, loss: str, exponent: float | None) -> Universe:
        return Universe({"parameters": size, "loss": loss}, "converged", exponent)

    found = Multiverse(
        (
            universe("all", "huber", 0.6),
            universe("all", "squares", 0.6),
            universe("without", "huber", 0.4),
            universe("without", "squares", 0.4),
            universe("other", "huber", None),
        )
    )
    assert found.agreement == 0.5
    assert found.flips() == {"parameters": 1.0, "loss": 0.0}


def test_a_ledger_brings_its_conventions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiverse, "_TRIMS", {"all rows": lambda points: points})
    monkeypatch.setattr(multiverse, "LEDGER_PARAMETERS", multiverse.LEDGER_PARAMETERS[:2])
    folder = depth_or_width(tmp_path / "made_up", seeds=2, budgets=(1e6, 2e6, 4e6))
    folder.write_ledger()
    told = explore(Source(folder.path)).to_dict()
    assert told["universes"] == 2 * 2 * 1 * (8 + 4)
    assert {universe["choices"]["rates"] for universe in told["all"]} == {"all cells", "bracketed only"}
