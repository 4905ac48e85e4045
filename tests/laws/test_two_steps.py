"""A score from sizes, through the loss and at once: both give back the score that they were made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.laws.catalogue import LAWS
from study.laws.estimation import Settings, fit
from study.laws.forecasting import Forecast
from study.laws.reading import TableQuery, read_observations
from study.laws.tables import RunTable
from study.laws.two_steps import fit_score
from tests.points import TRUTHS

TRUE_SCORE = {"chance": 0.25, "ceiling": 0.9, "k": 3.0, "L0": 2.8}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    columns = {"parameters": 10 ** random.uniform(7, 10, 120), "tokens": 10 ** random.uniform(9, 12, 120)}
    loss = LAWS["chinchilla"].predict(TRUTHS["chinchilla"], columns)
    score = LAWS["score-of-loss"].predict(TRUE_SCORE, {"loss": loss}) + random.normal(0, 0.004, 120)
    data = {"N": columns["parameters"], "D": columns["tokens"], "loss": loss * np.exp(random.normal(0, 0.002, 120))}
    pd.DataFrame({**data, "accuracy %": 100 * score}).to_csv(tmp_path / "scores.csv", index=False)
    return tmp_path / "scores.csv"


@pytest.mark.slow
def test_both_ways_forecast_the_largest_scores(table: Path) -> None:
    fitted = fit_score(
        TableQuery(RunTable.read(table), {"score": "`accuracy %`/100"}), Settings(bootstrap=100, huber_delta=0.01, starts=16)
    )
    assert fitted.two_steps.score.estimates == pytest.approx(TRUE_SCORE, abs=0.3, rel=0.1)
    for forecast in (fitted.two_step_forecast, fitted.single_step_forecast):
        assert isinstance(forecast, Forecast)
        assert len(forecast.labels) == 12
        assert np.abs(forecast.errors).mean() < 0.02
        assert forecast.covered.mean() > 0.6
    plain = fitted.to_dict()
    assert plain["two_steps"]["score"]["status"] == "converged"
    assert {"law", "status", "estimates", "forecast"} <= plain["single_step"].keys()
    assert fitted.to_text().count("forecast (") == 2
    assert "columns: parameters = N, tokens = D, loss = loss, score = `accuracy %`/100" in fitted.to_text()


@pytest.mark.slow
def test_the_score_at_sizes_is_that_at_the_loss_of_the_sizes(table: Path) -> None:
    actual = fit_score(
        TableQuery(RunTable.read(table), {"score": "`accuracy %`/100"}), Settings(bootstrap=40, starts=16)
    ).two_steps
    columns = {"parameters": np.array([1e8, 1e9]), "tokens": np.array([1e10, 1e11])}
    loss = actual.loss.predict(columns)
    np.testing.assert_allclose(actual.predict(columns), actual.score.predict({"loss": loss}))
    resampled = actual.predictions(columns)
    assert resampled.shape[1] == 2
    low, high = np.percentile(resampled, [0.5, 99.5], axis=0)
    assert ((low <= actual.predict(columns)) & (actual.predict(columns) <= high)).all()


def test_scores_in_percent_are_asked_about(table: Path) -> None:
    with pytest.raises(InputError, match=r"not in row 1 \(.* --score '`accuracy %`/100'; if not, --any-units"):
        fit_score(TableQuery(RunTable.read(table), {"score": "accuracy %"}))
    pd.read_csv(table).rename(columns={"accuracy %": "acc"}).to_csv(table, index=False)
    with pytest.raises(InputError, match=r"^score \(acc\): must be from 0 to 1, .* in percent\? Then give --score 'acc/100'"):
        fit_score(TableQuery(RunTable.read(table)))
    with pytest.raises(InputError, match=r"Then give --score '\(2\*acc/3\)/100'"):
        fit_score(TableQuery(RunTable.read(table), {"score": "2*acc/3"}))


@pytest.mark.slow
def test_a_score_of_zero_is_fitted_as_it_is_and_refused_in_logarithms(table: Path) -> None:
    data = pd.read_csv(table)
    data.loc[[4, 7], "accuracy %"] = 0.0
    data.to_csv(table, index=False)
    source = TableQuery(RunTable.read(table), {"score": "`accuracy %`/100"})
    fitted = fit_score(source, Settings(bootstrap=0, starts=16))
    assert fitted.two_steps.score.n == 120
    assert json.loads(json.dumps(fitted.to_dict(), allow_nan=False))["two_steps"]["forecast"]["n_forecast"] == 12
    message = r"score: is zero or below in 2 rows \(row 5, row 8\), which has no logarithm; give --space linear"
    with pytest.raises(InputError, match=message):
        fit(LAWS["score-of-loss"], read_observations(source, LAWS["score-of-loss"]), Settings(bootstrap=0))


@pytest.mark.parametrize(("law", "role"), [("score-of-loss", "score"), ("error-of-loss", "error")])
@pytest.mark.parametrize("value", [1.5, -0.25])
def test_single_scores_outside_0_to_1_are_named(tmp_path: Path, law: str, role: str, value: float) -> None:
    loss = np.linspace(2, 4, 20)
    data = pd.DataFrame({"loss": loss, role: 0.1 + loss / 10})
    data.loc[3, role] = value
    data.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=rf"{role}: must be from 0 to 1, but is not in row 4 \({value}\); correct these rows"):
        read_observations(TableQuery(RunTable.read(tmp_path / "t.csv")), LAWS[law])


def test_scores_of_odd_size_are_taken_as_they_are_where_told(table: Path) -> None:
    source = TableQuery(RunTable.read(table), {"score": "accuracy %"}, any_units=True)
    assert read_observations(source, LAWS["score-of-loss"]).response.max() > 1


def test_too_few_rows_say_so(table: Path) -> None:
    with pytest.raises(InputError, match="need 6 or more different points"):
        fit_score(TableQuery(RunTable.read(table), {"score": "`accuracy %`/100"}, where="N > 8e9 and D > 1e11"))
