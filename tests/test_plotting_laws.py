"""What the figures of a law show, and that the same table gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study.fitting.estimation import Settings
from study.fitting.law_fits import LawFit, fit_table
from study.fitting.observations import Observations
from study.fitting.reading import Source
from study.plotting import forecast_against_truth, iso_flop_valleys, law_fit
from study.plotting.law_figures import draw_all
from tests.test_fitting_frontiers import best, iso_flop_runs

ROLES = {"parameters": "N", "flops": "C", "tokens": "C/(6*N)"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    parameters, flops, loss = iso_flop_runs(noise=0.001)
    pd.DataFrame({"N": parameters, "C": flops, "loss": loss}).to_csv(tmp_path / "runs.csv", index=False)
    return tmp_path / "runs.csv"


@pytest.fixture
def found(table: Path) -> LawFit:
    return fit_table(Source(table, ROLES), "chinchilla", Settings(bootstrap=200))


def test_law_fit_shows_every_row_at_every_variable(found: LawFit) -> None:
    data = law_fit.frame(found)
    assert data.groupby("variable").size().to_dict() == {"parameters": 63, "tokens": 63, "budget": 63}
    one = data[data["variable"] == "tokens"]
    assert one["held_out"].sum() == 9  # all of the largest budget
    np.testing.assert_allclose(np.log(one["law"] / one["measured"]), one["residual"], rtol=1e-9, atol=1e-12)
    assert ((one["low"] <= one["law"]) & (one["law"] <= one["high"])).all()


def test_forecast_shows_the_rows_held_out(found: LawFit) -> None:
    data = forecast_against_truth.frame(found)
    assert len(data) == 9
    inside = (data["low"] <= data["measured"]) & (data["measured"] <= data["high"])
    assert (data["covered"] == inside).all()


def test_valleys_have_their_minima_where_the_law_has_them() -> None:
    parameters, flops, loss = iso_flop_runs()
    points = Observations.of({"parameters": parameters, "flops": flops}, loss)
    data = iso_flop_valleys.valleys(points)
    minima = data[data["kind"] == "minimum"]
    assert (data["kind"] == "run").sum() == 63
    np.testing.assert_allclose(minima["parameters"], best(minima["flops"].to_numpy()), rtol=0.1)


def test_the_same_table_gives_the_same_bytes(table: Path, tmp_path: Path) -> None:
    first = draw_all(Source(table, ROLES), "chinchilla", tmp_path / "one")
    second = draw_all(Source(table, ROLES), "chinchilla", tmp_path / "two")
    names = {file.stem for file in first}
    assert names == {"law_fit", "forecast_against_truth", "iso_flop_valleys", "exponents_by_convention"}
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
