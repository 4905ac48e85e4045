"""What a fit is worth: units, signs and designs are named, and lack of fit and missed forecasts are part of the status."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.laws.catalogue import LAWS
from study.laws.estimation import Settings, fit
from study.laws.forecasting import Forecast, forecast_rows
from study.laws.frontiers import hull
from study.laws.law_files import read_law
from study.laws.law_fits import LawFit, fit_table
from study.laws.observations import Observations
from study.laws.reading import TableQuery, read_observations
from study.laws.residual_tests import bend_of_residuals, merge_by_size
from study.laws.tables import RunTable, tidy_table
from study.plotting.law_fit import frame as figure_frame
from tests.points import TRUTHS, columns_of, observed

CHINCHILLA = LAWS["chinchilla"]
PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "published"


def table(rows: int = 40, noise: float = 0.002, seed: int = 1) -> pd.DataFrame:
    points = observed(CHINCHILLA, rows, noise, seed)
    return pd.DataFrame({"N": points.columns["parameters"], "D": points.columns["tokens"], "loss": points.response})


def query(frame: pd.DataFrame, **options: object) -> TableQuery:
    opened = RunTable(Path("t.csv"), tidy_table(frame.copy(), Path("t.csv")))
    return TableQuery(opened, **options)  # type: ignore[arg-type]


def fitted(frame: pd.DataFrame) -> LawFit:
    return fit_table(query(frame), "chinchilla", Settings(bootstrap=100, starts=32))


def read(frame: pd.DataFrame, **options: object) -> Observations:
    return read_observations(query(frame, **options), CHINCHILLA)


@pytest.mark.parametrize("name", ["ppl", "val_PPL", "eval perplexity"])
def test_a_perplexity_is_named_however_low_it_is(name: str) -> None:
    frame = table().rename(columns={"loss": name})
    frame[name] = np.exp(frame[name])
    roles = {"loss": name}
    with pytest.raises(InputError, match="is a perplexity by its name: give --loss 'log"):
        read(frame[frame[name] < 13], roles=roles)
    expression = f"log(`{name}`)"
    np.testing.assert_allclose(read(frame, roles={"loss": expression}).response, table()["loss"])
    assert len(read(frame, roles=roles, any_units=True)) == len(frame)


def test_a_perplexity_is_seen_by_its_logarithm() -> None:
    frame = table().assign(final=lambda t: np.exp(t["loss"])).rename(columns={"loss": "nats", "final": "loss"})
    frame = frame[frame["loss"] < 13]
    with pytest.raises(InputError, match="is a perplexity: nats is its logarithm, as in row 1; give --loss 'nats'"):
        read(frame)


def test_swapped_sizes_are_named() -> None:
    frame = table()
    with pytest.raises(InputError) as refused:
        read(frame, roles={"parameters": "D", "tokens": "N"})
    assert [str(problem) for problem in refused.value.problems] == [
        "--parameters: 'D' is named like tokens: are the two swapped? If not, --any-units",
        "--tokens: 'N' is named like parameters: are the two swapped? If not, --any-units",
    ]
    tokens = frame["N"] * np.linspace(20, 200, len(frame))
    values = frame.assign(N=tokens, D=frame["N"])
    assert read(values).doubts == ("models have fewer tokens than parameters (0.0091 a parameter): are the two swapped?",)
    values["D"] = values["D"].where(values.index > 0, values["N"])
    assert len(read(values).doubts) == 1
    assert read(frame.assign(D=tokens)).doubts == ()


def test_a_search_over_names_is_named() -> None:
    frame = table()
    gains = {"adam": 1.0, "lion": 1.02, "sgd": 1.1}
    search = pd.concat([frame.assign(method=name, loss=frame["loss"] * gain) for name, gain in gains.items()])
    assert [doubt.split(",")[0] for doubt in read(search).doubts] == ["rows of one setting differ in method"]
    seeded = pd.concat([frame.assign(seed=name) for name in "abc"])
    noise = np.random.default_rng(0).normal(0, 0.01, len(seeded))
    assert read(seeded.assign(loss=seeded["loss"] * np.exp(noise))).doubts == ()


@pytest.mark.parametrize("sizes", [["N", "D"], ["N"]])
def test_a_loss_that_rises_with_size_is_named(sizes: list[str]) -> None:
    frame = table()[[*sizes, "loss"]].assign(loss=lambda t: 12 - t["loss"])
    law = CHINCHILLA if len(sizes) > 1 else LAWS["power"]
    with pytest.raises(InputError, match=r"loss: rises with parameters.*: is it a score, or is its sign reversed"):
        read_observations(query(frame), law)
    assert len(read_observations(query(frame, any_units=True), law)) == len(frame)
    score = table()[["N", "D"]].assign(score=lambda t: 0.9 - 0.02 * np.log(t["N"] * t["D"] / 1e15))
    with pytest.raises(InputError, match="score: falls with parameters and with tokens: is it a loss"):
        read_observations(query(score), LAWS["score-of-sizes"])


@pytest.mark.parametrize(
    "law",
    [
        pytest.param("chinchilla", marks=pytest.mark.slow),
        pytest.param("chinchilla-tied", marks=pytest.mark.slow),
        "chinchilla-no-floor",
    ],
)
def test_tokens_that_follow_parameters_are_named(law: str) -> None:
    """The reason was that alpha is on its bound of 10."""
    frame = table().assign(D=lambda t: 20 * t["N"])
    actual = fit_table(query(frame), law, Settings(bootstrap=0, starts=16)).fit
    assert actual.status == "weakly_identified"
    assert actual.reasons[0].startswith(f"tokens are 20 times the parameters in all 40 rows, so {law} cannot separate the two")
    assert not any("times the parameters" in reason for reason in fitted(table()).fit.reasons)


@pytest.mark.parametrize("digits", [3, 16])
def test_shares_that_sum_to_one_are_named(digits: int) -> None:
    """The reason was a condition number, or a bound."""
    random = np.random.default_rng(0)
    shares = pd.DataFrame(random.dirichlet([1, 1, 1], 60).round(digits), columns=["web", "code", "books"])
    frame = shares.assign(loss=3 - shares["web"] - 0.5 * shares["code"] + random.normal(0, 0.01, 60))
    actual = fit_table(query(frame), "E + a*web + b*code + c*books", Settings(bootstrap=0, starts=16)).fit
    assert actual.status != "converged"
    assert any("web, code and books sum to 1 in all 60 rows" in reason for reason in actual.reasons)
    apart = frame.assign(books=random.permutation(frame["books"]))
    reasons = fit_table(query(apart), "E + a*web + b*code + c*books", Settings(bootstrap=0, starts=16)).fit.reasons
    assert not any("in all 60 rows" in reason for reason in reasons)


@pytest.mark.slow
def test_logarithms_that_follow_from_each_other_are_named() -> None:
    frame = table().assign(width=lambda t: 2 * t["N"] ** 0.5)
    actual = fit_table(query(frame), "E + A*N**-alpha + B*width**-beta", Settings(bootstrap=0, starts=16)).fit
    assert any("the logarithms of parameters and width follow from each other" in reason for reason in actual.reasons)


def test_an_exponent_through_two_best_models_that_makes_no_sense_is_refused() -> None:
    """The hull of a table gave −24.5 through two models."""
    sizes = np.array([1e8, 4e8, 1e9, 1e8, 4e8, 1e9, 1e8, 4e8, 1e9])
    flops = np.array([1e18, 1e18, 1e18, 1.05e18, 1.05e18, 1.05e18, 1e20, 1e20, 1e20])
    loss = np.array([3.6, 3.61, 3.5, 3.6, 3.4, 3.55, 3.5, 3.2, 3.3])
    with pytest.raises(InputError) as refused:
        hull(sizes, flops, loss)
    assert "best models" in str(refused.value)


def interacting(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """Losses of no sum of powers: what tokens give depends on the size of the model."""
    random = np.random.default_rng(seed)
    columns = columns_of(CHINCHILLA, rows, seed)
    n, d = np.log(columns["parameters"] / 1e8), np.log(columns["tokens"] / 1e10)
    loss = CHINCHILLA.predict(TRUTHS["chinchilla"], columns) * np.exp(0.01 * n * d + random.normal(0, 0.002, rows))
    return pd.DataFrame({"N": columns["parameters"], "D": columns["tokens"], "loss": loss})


@pytest.mark.slow
def test_lack_of_fit_is_part_of_the_status_in_text_json_and_figure() -> None:
    actual = [fitted(interacting(seed=seed)) for seed in range(4)]
    assert all(one.fit.status != "converged" for one in actual)
    one = actual[0]
    assert any("residuals bend over the sizes" in reason for reason in one.fit.reasons)
    assert one.to_dict()["status"] == one.fit.status
    assert f"status: {one.fit.status.replace('_', ' ')}" in one.to_text()
    title = figure_frame(one)["title"].iloc[0]
    assert title.startswith(f"The law's fit shows {one.fit.status.replace('_', ' ')}, ")
    assert title.endswith(", n = 60")


def sizes_over_tokens(miss: Callable[[Any, Any], Any], luck: float = 0.0, seed: int = 0) -> Observations:
    """13 sizes at ten numbers of tokens whose losses miss the law, and have as much luck of a size."""
    random = np.random.default_rng(seed)
    grid = np.meshgrid(np.linspace(6, 9, 13), np.linspace(7.5, 10.5, 10), indexing="ij")
    size, tokens = (10 ** part.ravel() for part in grid)
    loss = CHINCHILLA.predict(TRUTHS["chinchilla"], {"parameters": size, "tokens": tokens}) + miss(size, tokens)
    off = random.normal(0, luck, 13).repeat(10) + random.normal(0, 0.003, 130)
    points = read(pd.DataFrame({"N": size, "D": tokens, "loss": loss * np.exp(off)}))
    return merge_by_size(CHINCHILLA, points, Settings(bootstrap=0, starts=16))


def test_a_wrong_law_is_distinguished_from_runs_that_share_errors() -> None:
    """An optimum of tokens per parameter makes rows of a size miss the law together, as the luck of a run does."""
    points = sizes_over_tokens(lambda size, tokens: 0.03 * (np.log10(tokens / size) - 1.3) ** 2)
    assert points.cluster == "size"
    assert (bend_of_residuals(fit(CHINCHILLA, points, Settings(bootstrap=0, starts=16))) or 1) < 0.001


@pytest.mark.slow
@pytest.mark.parametrize("luck", [False, True])
def test_the_test_of_bends_is_fair(luck: bool) -> None:
    """Of tables that follow the law few residuals bend by chance."""
    settings = Settings(bootstrap=0, starts=16)
    made = [
        sizes_over_tokens(lambda *_: 0.0, 0.01, seed) if luck else observed(CHINCHILLA, 40, 0.01, seed) for seed in range(60)
    ]
    chances = [bend_of_residuals(fit(CHINCHILLA, points, settings)) for points in made]
    known = np.array([chance for chance in chances if chance is not None])
    assert len(known) == 60
    assert np.mean(known < 0.05) <= 0.15
    assert luck or np.mean(known < 0.5) == pytest.approx(0.5, abs=0.2), "three tests at once are cautious"


def test_clusters_of_two_sizes_leave_no_curvature_to_look_for_within_them() -> None:
    """Less its mean, every function of two sizes has one direction, which the exponent of the law takes."""
    sizes = np.array([*[1e6, 2e6] * 12, 4e6])
    points = Observations.of({"parameters": sizes}, 12 * sizes**-0.1 * np.exp(np.random.default_rng(0).normal(0, 0.01, 25)))
    fitted = fit(LAWS["power"], replace(points, clusters=np.arange(25) // 2), Settings(bootstrap=0, starts=16))
    chance = bend_of_residuals(fitted)
    assert chance is None or 0 < chance <= 1


def missing_its_largest() -> LawFit:
    """The four largest runs are a tenth worse than the law."""
    frame = table(rows=40, noise=0.003)
    largest = np.argsort((frame["N"] * frame["D"]).to_numpy())[-4:]
    frame.loc[largest, "loss"] *= 1.1
    return fitted(frame)


@pytest.mark.slow
def test_a_missed_forecast_is_part_of_the_status(tmp_path: Path) -> None:
    actual = missing_its_largest()
    assert isinstance(actual.forecast, Forecast)
    assert actual.forecast.missed
    assert actual.fit.status != "converged"
    assert "the forecast of the largest runs missed them: its interval covered 0 of 4" in " ".join(actual.fit.reasons)
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(actual.to_dict() | {"columns": {}}))
    (note, *_) = read_law(path, "parameters").notes
    assert "missed" in note
    assert not fitted(table()).fit.reasons


@pytest.mark.slow
def test_intervals_widen_by_what_held_out_rows_showed() -> None:
    actual = missing_its_largest()
    forecast = actual.forecast
    assert isinstance(forecast, Forecast)
    assert forecast.missed_by > 2
    points = actual.fit.observations
    narrow, wide = (forecast_rows(actual.fit, points, widening) for widening in (1.0, forecast.missed_by))
    np.testing.assert_allclose(np.log(wide.high / wide.predicted), forecast.missed_by * np.log(narrow.high / narrow.predicted))
    endless = forecast_rows(actual.fit, points, 1e9)
    assert not endless.has_interval
    json.dumps(endless.to_dict(), allow_nan=False)
    again = fitted(pd.concat([table(40, 0.003).assign(loss=lambda t: t["loss"] * (1 + 0.1 * (t["N"] * t["D"] > 1e20)))]))
    assert isinstance(again.forecast, Forecast)
    assert again.forecast.widening >= 1


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published tables are not at hand")
def test_published_tables_whose_forecasts_miss_are_not_called_converged() -> None:
    points = RunTable.read(PUBLISHED / "chinchilla" / "svg_extracted_data.csv")
    roles = {"parameters": "Model Size", "flops": "Training FLOP", "tokens": "C/(6*N)"}
    actual = fit_table(TableQuery(points, roles), "chinchilla", Settings(bootstrap=100, starts=32))
    assert actual.fit.status in ("lack_of_fit", "missed_forecast")
    search = RunTable.read(PUBLISHED / "scalebench" / "lr_bsz_train.parquet")
    sizes = {"parameters": "non_embedding_param_size", "tokens": "data_size", "loss": "lm_loss"}
    doubts = read_observations(TableQuery(search, sizes), CHINCHILLA).doubts
    assert doubts[0].startswith("rows of one setting differ in lr, bsz, which moves the response")
    assert "--best-of N,D keeps the best of each" in doubts[0]
    assert len(read_observations(TableQuery(search, sizes, best_of="N,D"), CHINCHILLA)) < 60
