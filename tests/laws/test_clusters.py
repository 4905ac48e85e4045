"""Rows that belong together count as one, whatever their columns are called; the order of rows moves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.laws.catalogue import LAWS
from study.laws.estimation import Settings, fit
from study.laws.forecasting import Forecast
from study.laws.law_fits import LawFit, fit_table
from study.laws.observations import Observations
from study.laws.reading import TableQuery, read_observations
from study.laws.tables import RunTable, tidy_table
from tests.points import TRUTHS

CHINCHILLA = LAWS["chinchilla"]
QUICK = Settings(bootstrap=100, starts=16)


def runs(seed: int = 0, *, checkpoints: int = 8, luck: float = 0.006, sizes: int = 12) -> pd.DataFrame:
    """Twelve runs with eight checkpoints each: a run misses the law as a whole, and its rows a little beside."""
    random = np.random.default_rng(seed)
    size = 10 ** np.tile(np.linspace(7.5, 10, sizes), 12 // sizes)
    tokens = np.outer(20 * size * random.uniform(0.5, 2, 12), 2.0 ** -np.arange(checkpoints)).ravel()
    columns = {"parameters": size.repeat(checkpoints), "tokens": tokens}
    off = random.normal(0, luck, 12).repeat(checkpoints) + random.normal(0, 0.002, 12 * checkpoints)
    loss = CHINCHILLA.predict(TRUTHS["chinchilla"], columns) * np.exp(off)
    names = [f"exp-{number}" for number in random.permutation(12).repeat(checkpoints)]
    table = pd.DataFrame({"N": columns["parameters"], "D": tokens, "loss": loss, "experiment": names})
    return table.sample(frac=1, random_state=seed, ignore_index=True)


def query(frame: pd.DataFrame, **options: Any) -> TableQuery:
    return TableQuery(RunTable(Path("t.csv"), tidy_table(frame.copy(), Path("t.csv"))), **options)


def read(frame: pd.DataFrame, **options: Any) -> Observations:
    return read_observations(query(frame, **options), CHINCHILLA)


def fitted(frame: pd.DataFrame, **options: Any) -> LawFit:
    return fit_table(query(frame, **options), "chinchilla", QUICK)


@pytest.mark.parametrize("name", ["experiment", "run", "wandb.name", "Versuch"])
def test_checkpoints_of_two_runs_of_each_size_count_as_runs_whatever_the_column_is_called(name: str) -> None:
    points = read(runs(sizes=6).rename(columns={"experiment": name}))
    assert (points.cluster, points.n_clusters, points.n_runs) == ("run", 12, 12)
    (note,) = points.warnings
    assert note.startswith(f"96 rows are taken as checkpoints of 12 runs by {name!r}")


@pytest.mark.slow
def test_rows_of_a_size_count_as_one_where_they_miss_the_law_together() -> None:
    """No column names the runs; that residuals go by size shows that they are runs."""
    for frame in (runs(), runs().drop(columns="experiment")):
        points = fitted(frame).fit.observations
        assert (points.cluster, points.n_clusters) == ("size", 12)
        assert "miss the law by size" in points.warnings[-1]
    independent = fitted(runs(luck=0.0).drop(columns="experiment")).fit.observations
    assert (independent.n_clusters, independent.warnings) == (96, ())


def test_evenly_spaced_tokens_are_checkpoints() -> None:
    frame = runs().drop(columns="experiment").sort_values(["N", "D"])
    frame["D"] = np.tile(np.arange(1, 9), 12) * frame.groupby("N")["D"].transform("max") / 8
    points = read(frame)
    assert (points.n_clusters, points.n_runs) == (12, 12)
    assert "by their evenly spaced tokens" in points.warnings[0]


def test_seeds_of_one_setting_count_as_one() -> None:
    frame = runs(checkpoints=1)
    seeds = pd.concat([frame.assign(loss=frame["loss"] + off, experiment="a") for off in (0.0, 0.001, -0.002)])
    points = read(seeds)
    assert (points.cluster, points.n_clusters, points.n_runs) == ("setting", 12, 36)
    assert points.warnings == ("36 rows are of 12 settings, and rows of a setting count as one; --cluster names the groups",)
    alone = read(seeds.assign(row=range(36)), cluster="row")
    assert (alone.n_clusters, alone.warnings) == (36, ())


def test_columns_that_name_no_runs_group_nothing() -> None:
    """Names of sizes, corpora, measurements and columns with gaps say nothing of runs."""
    frame = runs(luck=0.0)
    for column in (
        frame["N"].astype(str),
        pd.Series(["a", "b"] * 48),
        frame["loss"] * 2,
        frame["experiment"].where(frame["N"] > 1e8),
    ):
        assert read(frame.assign(experiment=column)).n_clusters == 96


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [6, 12])
def test_intervals_over_what_belongs_together_hold_the_truth(sizes: int) -> None:
    """Over rows they would in 58% of draws."""
    draws = 100
    actual = [fitted(runs(seed, sizes=sizes)).fit.intervals["alpha"] for seed in range(draws)]
    assert sum(low <= TRUTHS["chinchilla"]["alpha"] <= high for low, high in actual) >= 0.9 * draws


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [6, 12])
def test_the_order_of_rows_moves_no_interval(sizes: int) -> None:
    frame = runs(sizes=sizes)
    original, turned = fitted(frame), fitted(frame.iloc[::-1].reset_index(drop=True))
    assert original.fit.status == turned.fit.status
    for name, interval in original.fit.intervals.items():
        assert turned.fit.intervals[name] == pytest.approx(interval, rel=1e-6)
    forecasts = [one.forecast for one in (original, turned) if isinstance(one.forecast, Forecast)]
    ends = [np.sort(np.concatenate([one.low, one.high])) for one in forecasts]
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)


def searched() -> pd.DataFrame:
    """A search over rates and batches at each of nine settings; the best of each follows the law."""
    frame = runs(checkpoints=1, luck=0.002)
    grid = pd.MultiIndex.from_product([range(len(frame)), [1e-4, 3e-4, 1e-3], [32, 64, 128]], names=["row", "lr", "batch"])
    table = frame.loc[grid.get_level_values("row")].reset_index(drop=True).drop(columns="experiment")
    table[["lr", "batch"]] = grid.to_frame(index=False)[["lr", "batch"]]
    away = np.log(table["lr"] / 3e-4) ** 2 + 3 * np.log(table["batch"] / 64) ** 2
    return table.assign(loss=table["loss"] * (1 + 0.02 * away))


@pytest.mark.slow
def test_a_search_is_named_and_its_best_rows_are_kept() -> None:
    actual = fitted(searched()).fit
    assert actual.status == "weakly_identified"
    assert "differ in lr, batch, which moves the response: if that is a search, --best-of N,D keeps" in actual.reasons[0]
    best = read(searched(), best_of="N,D")
    assert len(best) == 12
    np.testing.assert_allclose(np.sort(best.response), np.sort(runs(checkpoints=1, luck=0.002)["loss"]))
    assert set(best.excluded.values()) == {"left out by --best-of N,D"}
    assert best.doubts == ()
    seeds = searched()[["N", "D"]].assign(
        seed=np.tile(range(9), 12), loss=searched()["loss"].sample(frac=1, random_state=1).to_numpy()
    )
    assert read(seeds).doubts == ()


def test_a_search_around_the_default_rate_of_each_size_is_named() -> None:
    table = searched()
    around = table.assign(lr=table["lr"] * (table["N"] / 1e8) ** -0.3)
    (doubt,) = read(around).doubts
    assert "differ in lr, batch, which moves" in doubt


def test_the_luck_of_a_seed_over_the_checkpoints_of_its_run_is_no_search() -> None:
    tables = [runs(seed, luck=0.02)[["N", "D", "loss"]].assign(seed=seed, id=f"r{seed}") for seed in range(3)]
    size_and_tokens = runs(0).sort_values(["N", "D"], ignore_index=True)[["N", "D"]]
    frames = [table.sort_values(["N", "D"], ignore_index=True).assign(**size_and_tokens) for table in tables]
    repeated = pd.concat(frames, ignore_index=True)
    assert read(repeated.drop(columns="id")).doubts == ()
    named = repeated.assign(id=repeated["id"] + repeated["N"].map("{:.4g}".format))
    assert read(named).doubts == ()


@pytest.mark.parametrize("shapes", [4, 6])
def test_an_even_number_of_shapes_of_one_size_has_an_interval(shapes: int) -> None:
    """Huber's loss is flat between the middle two; squares decide, and resamples of shapes say how surely."""
    law, truth = LAWS["tokens-floor"], {"E": 1.7, "B": 400.0, "beta": 0.28}
    tokens, shape = np.tile(np.geomspace(1e8, 1e11, 8), shapes), np.repeat(np.arange(shapes), 8)
    covered = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        off = random.normal(0, 0.01, shapes)[shape] + random.normal(0, 0.0005, len(shape))
        points = Observations.of({"tokens": tokens}, law.predict(truth, {"tokens": tokens}) * np.exp(off), shape)
        actual = fit(law, points, QUICK)
        assert not any("flat" in reason for reason in actual.reasons)
        low, high = actual.intervals["beta"]
        covered.append(low <= truth["beta"] <= high)
    assert sum(covered) >= 7
