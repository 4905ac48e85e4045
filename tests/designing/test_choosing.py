"""Chosen runs forecast a target, and only they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.designing import advising, benchmark
from study.designing.advising import Advice
from study.designing.benchmark import Task, as_markdown, load, load_replays, measure, measure_replay, score, simulate_coverage
from study.designing.choosing import METHODS, RUNS_A_PARAMETER, Choice, Prices, choose, pilot
from study.designing.posterior import Learner, Optima, Pool, Prior, Rows, median
from study.laws.catalogue import LAWS, find_law
from study.laws.law import Floats
from study.laws.minimising import Space
from study.laws.observations import log_or_value
from study.laws.tables import RunTable
from tests.points import TRUTHS

LAW, TRUTH = LAWS["chinchilla"], TRUTHS["chinchilla"]


def grid() -> dict[str, Floats]:
    """Sizes and tokens over three decades each."""
    sizes, tokens = np.meshgrid(np.geomspace(1e7, 1e10, 12), np.geomspace(1e9, 1e12, 12))
    return {"parameters": sizes.ravel(), "tokens": tokens.ravel()}


TARGETS = {"parameters": np.geomspace(2e10, 7e10, 6), "tokens": np.geomspace(3e12, 1e12, 6)}


@pytest.fixture(scope="module")
def pool() -> Pool:
    """A pool whose cost is 6·N·D."""
    columns = grid()
    return Pool(LAW, columns, 6 * columns["parameters"] * columns["tokens"], TARGETS)


def test_a_design_reads_only_what_it_runs_keeps_to_its_budgets_and_forecasts_the_target(pool: Pool) -> None:
    exact = LAW.predict(TRUTH, pool.candidates)
    response = exact * np.exp(np.random.default_rng(0).normal(0, 0.002, len(pool)))
    asked = np.zeros(len(pool), dtype=int)

    def run(rows: Rows) -> Floats:
        asked[rows] += 1
        return response[rows]

    budgets = [0.003 * pool.costs.sum(), 0.02 * pool.costs.sum()]
    chosen = choose(pool, budgets, run, METHODS["error"], seed=1)
    assert asked.max() == 1
    assert set(np.flatnonzero(asked)) == set(chosen[-1])
    assert set(chosen[0]) <= set(chosen[1])
    assert all(pool.costs[rows].sum() <= budget for rows, budget in zip(chosen, budgets, strict=True))
    errors = Learner(pool, 0).forecast(chosen[-1], response) / LAW.predict(TRUTH, TARGETS) - 1
    assert np.abs(errors).mean() < 0.015


def test_a_pilot_is_cheap_spread_and_never_twice_the_same_run(pool: Pool) -> None:
    rows = pilot(pool, 1e-3 * pool.costs.sum(), np.random.default_rng(0))
    assert len(set(rows.tolist())) == max(RUNS_A_PARAMETER) * len(LAW.parameters)
    assert pool.costs[rows].sum() <= 1e-3 * pool.costs.sum()
    assert len(np.unique(pool.candidates["parameters"][rows])) > 3
    assert len(np.unique(pool.candidates["tokens"][rows])) > 3


def test_a_pilot_of_a_small_budget_leaves_half_of_it_and_still_varies_the_sizes() -> None:
    """Of three streams at six sizes, the ten cheapest runs would cost more than the budget and vary the sizes by a third."""
    sizes, streams = (axis.ravel() for axis in np.meshgrid([0.54e9, 0.69e9, 1.13e9, 1.62e9, 2.77e9, 4.35e9], [1.0, 2.0, 4.0]))
    law = find_law("E + A*N^-alpha + B*streams^-beta; streams is a column")
    pool = Pool(law, {"parameters": sizes, "streams": streams}, sizes, {"parameters": sizes[-1:], "streams": np.array([8.0])})
    budget, truth = 0.1 * float(sizes.sum()), {"E": 1.36, "A": 118.0, "alpha": 0.26, "B": 0.12, "beta": 0.4}
    response, target = law.predict(truth, pool.candidates), law.predict(truth, pool.targets)[0]
    for seed in range(3):
        rows = pilot(pool, budget, np.random.default_rng(seed))
        assert len(rows) >= 2
        assert sizes[rows].sum() <= budget / 2
        (chosen,) = choose(pool, [budget], lambda rows: response[rows], METHODS["error"], seed)
        assert sizes[chosen].sum() <= budget
        missed = [abs(Learner(pool, seed).forecast(some, response)[0] - target) for some in (chosen, np.argsort(sizes)[:5])]
        assert missed[0] < missed[1] / 3


@pytest.mark.parametrize(
    ("costs", "budget", "most"),
    [([3.0, 4.0, 10.0, 20.0], 8.0, 7.0), ([5.0, 6.0, 7.0, 8.0], 10.0, 5.0), ([1e-9, 1.0], 3.0, 1.1)],
)
def test_a_pilot_takes_half_of_a_budget_or_the_cheapest_two_and_never_more_than_the_budget(
    costs: list[float], budget: float, most: float
) -> None:
    """With 10 to spend on runs of 5 to 8, one is all; with 8 on runs of 3 and more, the two cheapest are."""
    sizes = np.array(costs)
    pool = Pool(find_law("E + A*N^-alpha"), {"parameters": sizes}, sizes, {"parameters": sizes[-1:]})
    response = 2 + 3 * sizes**-0.3
    for seed in range(8):
        assert 0 < sizes[pilot(pool, budget, np.random.default_rng(seed))].sum() <= most
        (chosen,) = choose(pool, [budget], lambda rows: response[rows], METHODS["error"], seed)
        assert sizes[chosen].sum() <= budget * (1 + 1e-9)


@pytest.mark.parametrize("share", [0.2, 0.4])
def test_a_pilot_of_a_small_pool_is_spread_and_not_its_cheapest_runs(share: float) -> None:
    """Of six sizes from 1M to 32M at four budgets, the eight cheapest are of 1M and 2M alone."""
    sizes, tokens = (axis.ravel() for axis in np.meshgrid(1e6 * 2.0 ** np.arange(6), [1e7, 2e7, 4e7, 8e7]))
    pool = Pool(LAW, {"parameters": sizes, "tokens": tokens}, sizes, TARGETS)
    budget = share * float(sizes.sum())
    for seed in range(4):
        rows = pilot(pool, budget, np.random.default_rng(seed))
        assert len(rows) > 4
        assert sizes[rows].sum() <= budget / 2
        assert sizes[rows].max() >= 8e6
        assert len(np.unique(tokens[rows])) > 2


def test_few_rows_do_not_make_a_linear_law_sure_of_what_they_happen_to_say() -> None:
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.ones(3), 40)
    columns = {name: shares[:, place] for place, name in enumerate(("x", "y"))}
    law = find_law("loss = a + b*x + c*y; a in -10..10; b in -5..5; c in -5..5; x, y are columns")
    response = 2 + 0.5 * columns["x"] - 0.8 * columns["y"] + random.normal(0, 0.001, 40)
    pool = Pool(law, columns, np.ones(40), {name: values[:5] for name, values in columns.items()}, "linear")
    learner = Learner(pool, 0, 0.0)
    learner.fit(np.array([0, 1]), response)
    assert learner.forecast(np.arange(12), response) == pytest.approx(response[:5], abs=0.02)


def test_a_prior_in_logarithms_widens_with_the_unit_of_the_response() -> None:
    x = np.linspace(0, 1, 20)
    pool = Pool(find_law("loss = a + b*x; x is a column"), {"x": x}, np.ones(20), {"x": np.array([2.0])})
    spreads = [Learner(pool).fit(np.array([0, 1]), unit * (1 + 0.01 * x)).prior.spread for unit in (1.0, 10.0)]
    assert spreads[1] == pytest.approx(10 * spreads[0])


@pytest.mark.slow
def test_the_benchmark_scores_every_method_within_its_budget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    columns = grid()
    frame = pd.DataFrame({"N": columns["parameters"], "D": columns["tokens"], "loss": LAW.predict(TRUTH, columns)})
    frame[::2].to_parquet(tmp_path / "farseer_train.parquet")
    targets = pd.DataFrame({"N": TARGETS["parameters"], "D": TARGETS["tokens"], "loss": LAW.predict(TRUTH, TARGETS)})
    targets.to_parquet(tmp_path / "farseer_test.parquet")
    task = Task(LAW, {"parameters": "N", "tokens": "D"}, "loss", ("N", "D"))
    monkeypatch.setattr(benchmark, "TASKS", {"farseer": task})
    monkeypatch.setattr(benchmark, "BUDGETS", (0.1,))
    rows: list[dict[str, Any]] = []
    measure(tmp_path, rows.append, repeats=1)
    assert [row["method"] for row in rows] == ["random", "cheapest", "d-optimal", "v-optimal", "error", "all"]
    by_method = {row["method"]: row["r2"] for row in rows}
    assert by_method["all"] == pytest.approx([1.0], abs=1e-4)
    assert by_method["error"] > [0.9]
    coverage = [{"bend": 0.01, "simulated": 200, "covered": 0.95, "half_width": 0.02}]
    written = benchmark.write("coverage", coverage, tmp_path)
    assert "| farseer |" not in written.read_text()
    benchmark.write("designs", rows, tmp_path)
    parts = {"designs": rows, "coverage": coverage}
    assert json.loads((tmp_path / "design.json").read_text()) == parts
    assert written.read_text() == as_markdown(parts)
    assert "| farseer | error |" in written.read_text()
    assert "Of 200 simulated laws that bend by 1.0%, 95.0% have the loss" in written.read_text()
    with pytest.raises(InputError, match=r"--pools: .* has no farseer_train.parquet"):
        load("farseer", tmp_path / "nowhere")


def test_a_file_of_an_older_benchmark_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    older = json.dumps({"replay": [{"method": method, "error": [0.01]} for method in ("error", "all")]})
    (tmp_path / "design.json").write_text(older)
    with pytest.raises(InputError, match=r"design\.json: lacks 'targets' .*; move it away") as refused:
        benchmark.write("coverage", [], tmp_path)
    assert len(refused.value.problems) == 1
    assert (tmp_path / "design.json").read_text() == older


def test_a_sweep_is_replayed_to_its_dearest_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of an exact law with 0.1% of scatter: chosen runs come near to all, for 15% of the FLOPs of all but the target."""
    columns = grid()
    noise = np.random.default_rng(0).normal(0, 0.001, len(columns["tokens"]))
    values = {
        "parameters_non_embedding": columns["parameters"],
        "tokens": columns["tokens"],
        "flops": 6 * columns["parameters"] * columns["tokens"],
        "loss": LAW.predict(TRUTH, columns) * np.exp(noise),
    }
    table = RunTable(Path("runs.csv"), pd.DataFrame(values))
    monkeypatch.setattr(benchmark, "BASELINES", ("cheapest",))
    monkeypatch.setattr(benchmark, "TURNS", 2)
    rows: list[dict[str, Any]] = []
    measure_replay(table, rows.append, repeats=1)
    assert [row["method"] for row in rows] == ["cheapest", "error", "all"]
    by_method = {row["method"]: row for row in rows}
    first, second = by_method["all"]["targets"]
    assert first == {"parameters": 1e10, "tokens": 1e12}
    assert second["parameters"] * second["tokens"] == pytest.approx(10**22 / 10 ** (3 / 11))
    assert (by_method["all"]["pool"], by_method["all"]["rows"]) == (143, [143.0])
    assert by_method["error"]["exact"][-1] < 0.005
    assert by_method["error"]["rows"][-1] < by_method["cheapest"]["rows"][-1] < 143
    text = benchmark.write("replay", rows, tmp_path).read_text()
    times = by_method["error"]["error"][-1] / by_method["all"]["error"][-1]
    assert f"miss the dearest cell by {times:.2f} times the error of all" in text
    alone = [abs(each[-1]) for each in by_method["error"]["each"]]
    assert by_method["error"]["error"][-1] == pytest.approx(np.mean(alone))
    assert by_method["error"]["in_turn"][-1] < 0.005
    assert by_method["error"]["in_turn"] != by_method["error"]["error"]
    assert "| error |" in text


def test_seeds_of_the_target_of_a_replay_are_not_in_its_pool_nor_are_dearer_cells() -> None:
    columns = grid()
    values = {"N": columns["parameters"], "D": columns["tokens"], "flops": 6 * columns["parameters"] * columns["tokens"]}
    one = pd.DataFrame(values | {"loss": LAW.predict(TRUTH, columns)})
    seeds = pd.concat([one, one.assign(loss=one["loss"] * 1.01)], ignore_index=True)
    table = RunTable(Path("runs.csv"), seeds.rename(columns={"N": "parameters_non_embedding", "D": "tokens"}))
    replays = [*load_replays(table)]
    dearest = one.sort_values("flops", ascending=False, kind="stable")[: len(replays)]
    assert [len(loaded.pool) for loaded in replays] == [2 * (144 - turn) for turn in range(1, benchmark.TURNS + 1)]
    assert replays[0].truth == pytest.approx([1.005 * dearest["loss"].iloc[0]])
    for loaded in replays:
        size, tokens = (loaded.pool.candidates[name] for name in LAW.variables)
        assert (size * tokens).max() <= loaded.pool.targets["parameters"] * loaded.pool.targets["tokens"] * (1 + 1e-9)
        assert loaded.pool.costs.sum() == pytest.approx(1)
    few = RunTable(Path("runs.csv"), table.frame[:144:9])
    assert len([*load_replays(few)]) == 1, "a pool of fewer runs than a pilot is no replay"


def test_what_is_sure_beforehand_changes_what_is_chosen(pool: Pool) -> None:
    """Sure of all but one term, a choice buys other runs than one sure of all but the other."""
    response = LAW.predict(TRUTH, pool.candidates)
    known = Learner(pool).fit(np.arange(len(pool)), response).theta[0]
    chosen = []
    for term in ("A", "B"):
        spread = np.where(np.array(LAW.parameters) == term, 1.0, 1e-9)
        budgets = [0.01 * pool.costs.sum()]
        (rows,) = choose(pool, budgets, lambda rows: response[rows], METHODS["error"], seed=1, prior=Prior(known, spread))
        chosen.append(set(rows.tolist()))
    assert chosen[0] != chosen[1]


def test_trunks_are_priced_by_what_comes_after_the_state_that_a_budget_goes_on_from() -> None:
    """Budgets of 10, 20 and 40 that decay over a fifth, of one trunk, beside a run alone."""
    whole = np.array([10.0, 20.0, 40.0, 7.0])
    prices = Prices(whole, whole, np.array([8.0, 16.0, 32.0, 0.0]), np.array([0, 0, 0, 1]))
    assert prices.after(0).now[1:].tolist() == [12, 32, 7], "longer budgets go on from where the shorter began to decay"
    assert prices.after(2).now.tolist() == [2, 4, 8, 7], "shorter budgets only decay"
    assert prices.after(0).after(2).after(1).now[:1] == [2]
    assert prices.beside([1]).tolist() == [0, 1, 2]
    assert Prices.alone(whole).after(1).now.tolist() == whole.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("bend", [0.0, 0.01])
def test_the_interval_of_a_forecast_holds_as_often_as_it_says(bend: float) -> None:
    """Of 30 random laws; 25 would be two standard errors too few."""
    coverage = simulate_coverage(bend, simulated=30)
    assert coverage.covered >= 25 / 30
    assert 0 < coverage.half_width < 0.2


def test_r2_is_clipped() -> None:
    truth = np.array([1.0, 2.0, 3.0])
    assert score(truth, truth) == 1
    assert score(truth, np.full(3, 2.0)) == 0
    assert score(truth, truth[::-1] * 9) == -1


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    """Small runs that are finished, and a grid of candidates."""
    columns = grid()
    frame = pd.DataFrame({"N": columns["parameters"], "D": columns["tokens"]})
    small = frame[6 * frame["N"] * frame["D"] < 3e19].copy()
    noise = np.random.default_rng(2).normal(0, 0.002, len(small))
    point = {"parameters": small["N"].to_numpy(), "tokens": small["D"].to_numpy()}
    small["loss"] = LAW.predict(TRUTH, point) * np.exp(noise)
    small.to_csv(tmp_path / "runs.csv", index=False)
    frame.to_csv(tmp_path / "grid.csv", index=False)
    return tmp_path / "runs.csv", tmp_path / "grid.csv"


def test_the_next_runs_narrow_the_forecast_and_more_than_cheap_ones(study: Any, tables: tuple[Path, Path]) -> None:
    runs, candidates = tables
    options = ("--law", "chinchilla", "--candidates", candidates, "--target", "parameters=7e10,tokens=1.4e12")
    status, out, _ = study("design", runs, *options, "--budget", "1e21", "--json")
    answer = json.loads(out)
    assert status == 0
    assert sum(run["cost"] for run in answer["runs"]) <= 1e21
    assert all(run["cost"] == pytest.approx(6 * run["parameters"] * run["tokens"]) for run in answer["runs"])
    widths = [answer["before"], *(run["half_width"] for run in answer["runs"])]
    assert widths == sorted(widths, reverse=True)
    assert answer["after"] == pytest.approx(widths[-1])
    assert answer["after"] < min(answer["cheapest"], answer["random"])
    status, out, _ = study("design", runs, *options, "--budget", "1e21")
    assert status == 0
    assert " FLOPs in all: ± " in out
    assert "; for the same budget ± " in out
    refused: dict[str, tuple[object, ...]] = {
        "--budget: 1 is less than the cheapest candidate costs": (*options, "--budget", "1"),
        "--target: tokens is missing in 'parameters=1B'": (*options, "--budget", "1e21", "--target", "parameters=1B"),
        "did you mean 'tokens'?": (*options, "--budget", "1e21", "--target", "parameters=1B,token=1B"),
        "has no column 'seconds'": (*options, "--budget", "1e21", "--cost", "seconds"),
    }
    for message, given in refused.items():
        status, out, err = study("design", runs, *given)
        assert (status, out) == (2, "")
        assert message in err


def test_a_design_is_never_expected_to_do_worse_than_the_plain_runs_beside_it(
    study: Any, tables: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = Choice((100,), (1.0,), (1.0, 1.0))
    monkeypatch.setattr(advising, "plan", lambda *_: poor)
    options = ("--candidates", tables[1], "--target", "parameters=7e10,tokens=1.4e12", "--budget", "1e20", "--json")
    chosen = json.loads(study("design", tables[0], "--law", "chinchilla", *options)[1])
    assert chosen["after"] <= min(chosen["cheapest"], chosen["random"])
    assert sum(run["cost"] for run in chosen["runs"]) <= 1e20
    assert any(note.startswith("no plan is expected to do better than ") for note in chosen["notes"])
    by_volume = json.loads(study("design", tables[0], "--law", "chinchilla", *options, "--criterion", "d-optimal")[1])
    assert len(by_volume["runs"]) == 1


def test_a_stranger_begins_with_column_names_alone_and_spends_a_share_of_all_candidates(study: Any, tmp_path: Path) -> None:
    """Streams in parallel at six sizes, as published: the target region is a table, and a tenth of the cost buys four runs."""
    random = np.random.default_rng(0)
    sizes, streams = (axis.ravel() for axis in np.meshgrid([0.54e9, 0.69e9, 1.13e9, 1.62e9, 2.77e9, 4.35e9], [1, 2, 4, 8]))
    every = pd.DataFrame({"num_params": sizes, "parallel_size": streams})
    every["val_loss"] = 1.29 + (1.95e8 / (sizes * (0.334 * np.log(streams) + 1))) ** 0.196
    every["val_loss"] *= np.exp(random.normal(0, 0.001, len(every)))
    known, target = every[every["parallel_size"] < 8], every[every["parallel_size"] == 8]
    runs, candidates, region = (tmp_path / name for name in ("runs.csv", "grid.csv", "target.csv"))
    done, left = known.head(0), known
    target.to_csv(region, index=False)
    law = ("--law", "val_loss = E + (A/(num_params*(k*log(parallel_size) + 1)))^a", "--cost", "num_params")
    total, spent = known["num_params"].sum(), 0.0
    for _ in range(4):
        done.to_csv(runs, index=False)
        left.drop(columns="val_loss").to_csv(candidates, index=False)
        budget = f"{10 * total / left['num_params'].sum()}%" if done.empty else str(0.1 * total - spent)
        status, out, err = study(
            "design", runs, *law, "--candidates", candidates, "--target", region, "--budget", budget, "--json"
        )
        if status:
            assert "is less than the cheapest candidate costs" in err
            break
        found = json.loads(out)
        assert (found["before"] is None) == done.empty
        for run in found["runs"][: len(done) or None]:
            row = left[(left["num_params"] == run["parameters"]) & (left["parallel_size"] == run["parallel_size"])]
            done, left = pd.concat([done, row]), left.drop(row.index)
            spent += run["cost"]
    assert spent <= 0.1 * total
    assert len(done) >= 4
    parts = [{"parameters": of["num_params"], "parallel_size": of["parallel_size"]} for of in (done, target)]
    points = [{name: values.to_numpy(dtype=float) for name, values in part.items()} for part in parts]
    pool = Pool(find_law(law[1], table=RunTable(runs, known)), points[0], np.ones(len(done)), points[1])
    assert score(target["val_loss"].to_numpy(), Learner(pool).forecast(np.arange(len(done)), done["val_loss"].to_numpy())) > 0.9


def test_many_targets_are_weighed_by_some_and_a_share_below_every_candidate_is_refused(
    study: Any, tables: tuple[Path, Path], tmp_path: Path
) -> None:
    region = tmp_path / "region.csv"
    pd.DataFrame({"N": np.geomspace(2e10, 7e10, 60), "D": 1e12}).to_csv(region, index=False)
    options = ("--law", "chinchilla", "--candidates", tables[1], "--target", region)
    status, out, _ = study("design", tables[0], *options, "--budget", "0.1%")
    assert status == 0
    assert "at 60 targets: loss " in out
    assert "note: of 60 targets 24 are weighed, spread over their sizes" in out
    assert "at points of finished rows, and count as other seeds" in out
    chosen = json.loads(study("design", tables[0], *options, "--budget", "0.1%", "--json")[1])
    points = {"parameters": np.geomspace(2e10, 7e10, 60), "tokens": np.full(60, 1e12)}
    assert [target["parameters"] for target in chosen["targets"]] == pytest.approx(points["parameters"])
    predicted = np.array([target["predicted"] for target in chosen["targets"]])
    assert np.abs(predicted / LAW.predict(TRUTH, points) - 1).max() < 0.05
    told = study("design", tables[0], *options, "--budget", "1e-9%")[2]
    assert "--budget: 1e-9% of " in told
    assert "is less than the cheapest candidate costs" in told


@pytest.mark.parametrize("losses", [[4.1], [4.1, 3.5], [4.1, 4.1]])
def test_one_or_two_finished_rows_lead_on(study: Any, tables: tuple[Path, Path], tmp_path: Path, losses: list[float]) -> None:
    few = tmp_path / "few.csv"
    pd.DataFrame({"N": [1e7, 4e7], "D": [1e9, 8e9]})[: len(losses)].assign(loss=losses).to_csv(few, index=False)
    options = ("--law", "chinchilla", "--candidates", tables[1], "--target", "N=7e10,D=1.4e12", "--budget", "1e21")
    answer = json.loads(study("design", few, *options, "--json")[1])
    assert 0 < answer["after"] < answer["before"] < np.inf
    status, out, err = study("design", few, *options)
    assert (status, err) == (0, "")
    how = "within a factor of " if answer["before"] >= advising.WIDE else "± "
    assert f"95% interval of the law there: {how}" in out
    often = "run" if len(losses) == 1 else "2 runs"
    assert f"add results and ask again after every {often}, until there are 10 points" in out


def test_a_wide_interval_of_logarithms_is_a_factor() -> None:
    def width(value: float, space: Space = "log") -> str:
        return Advice(LAW, space, {}, np.zeros(0), (), (), (value,), 0, 0, 1, "", ())._width(value)

    assert width(0.0312) == "± 3.12%"
    assert width(10.6195) == "within a factor of 41,000"
    assert width(0.7) == "within a factor of 2"
    assert width(10.6195, "linear") == "± 10.62"


def test_equal_losses_of_many_rows_leave_nothing_to_explain(study: Any, tables: tuple[Path, Path], tmp_path: Path) -> None:
    equal = tmp_path / "equal.csv"
    pd.read_csv(tables[0]).assign(loss=3.0).to_csv(equal, index=False)
    options = ("--law", "chinchilla", "--candidates", tables[1], "--target", "N=7e10,D=1.4e12", "--budget", "1e21")
    status, _, err = study("design", equal, *options)
    assert status == 2
    assert "loss: is 3 in all " in err
    assert "so there is nothing for chinchilla to explain" in err


@pytest.mark.parametrize("rows", ["", "1e7,1e9,\n"])
def test_without_a_result_a_design_begins_and_takes_no_option_that_needs_one(
    study: Any, tables: tuple[Path, Path], tmp_path: Path, rows: str
) -> None:
    empty, named = tmp_path / "empty.csv", tmp_path / "n=1" / "target.csv"
    empty.write_text("N,D,loss\n" + rows)
    named.parent.mkdir()
    named.write_text("N,D\n7e10,1.4e12\n")
    options = ("--law", "chinchilla", "--candidates", tables[1], "--target", named, "--budget")
    found = json.loads(study("design", empty, *options, "1e20", "--json")[1])
    full = json.loads(study("design", tables[0], *options, "1e20", "--json")[1])
    assert found.keys() == full.keys()
    assert found["targets"] == [{"parameters": 7e10, "tokens": 1.4e12, "predicted": None}]
    assert {found[name] for name in ("half_width", "before", "after", "cheapest", "random", "basins")} == {None}
    assert (found["notes"][:1] == ["left out: 1 row (loss is missing)"]) == bool(rows)
    out = study("design", empty, *options, "7e16")[1]
    assert "the first run costs 6e+16 FLOPs; nothing is known of the law until it has ended" in out
    assert "runs, spread over the candidates as far as the budget allows, cost " in study("design", empty, *options, "1e20")[1]
    for given in (
        ("--where", "N > 3" if rows else "foo > 3"),
        ("--best-of", "N"),
        ("--space", "linear"),
        ("--criterion", "d-optimal"),
    ):
        status, out, err = study("design", empty, *options, "1e20", *given)
        assert (status, out) == (2, "")
        assert f"{given[0]}: is for finished runs, of which {empty} has none to use; leave it out" in err


@pytest.mark.slow
def test_a_stranger_designs_by_columns_of_no_known_role(study: Any, tmp_path: Path) -> None:
    """Mixture-of-experts runs under names of their own; one has no loss, and costs are in hours."""
    random = np.random.default_rng(0)
    active, experts = 10 ** random.uniform(7.5, 9, 60), 2.0 ** random.integers(0, 6, 60)
    frame = pd.DataFrame({"active": active, "num_experts": experts, "tokens": 10 ** random.uniform(9, 10.5, 60)})
    frame["lm_loss"] = 1.6 + 400 * active**-0.33 * experts**-0.12 + 1900 * frame["tokens"] ** -0.35
    frame["lm_loss"] *= np.exp(random.normal(0, 0.003, 60))
    frame.loc[3, "lm_loss"] = np.nan
    runs, candidates, fit = (tmp_path / name for name in ("runs.csv", "grid.csv", "fit.json"))
    frame.to_csv(runs, index=False)
    more = pd.DataFrame({"active": [2e9, 2e9, 5e8], "num_experts": [64, 1, 64], "tokens": [1e11, 1e11, 1e10]})
    more.assign(hours=[50, 50, 1]).to_csv(candidates, index=False)
    law = ("--law", "E + A*active^-a*num_experts^-g + B*D^-b")
    target = ("--target", "active=3e9,num_experts=64,D=1e11", "--candidates", candidates)
    status, out, _ = study("design", runs, *law, *target, "--budget", "60", "--cost", "hours", "--json")
    answer = json.loads(out)
    assert status == 0
    assert answer["runs"][0] == {**answer["runs"][0], "active": 2e9, "num_experts": 64, "tokens": 1e11, "cost": 50}
    assert answer["after"] < answer["before"]
    assert answer["notes"][0] == "left out: 1 row (lm_loss is missing)"
    assert answer["notes"][-1] == "cost counted as hours"
    assert study("design", runs, *law, *target, "--budget", "2", "--cost", "1")[0] == 0
    message = f"--cost: is needed: {candidates} has no column cost or flops, and not both parameters and tokens"
    assert message in study("design", runs, *law, *target, "--budget", "60")[2]

    fit.write_text(study("fit", runs, *law, "--bootstrap", 40, "--json")[1])
    status, out, _ = study("predict", fit, "--at", "active=3e9,num_experts=64,tokens=100B", "--json")
    (point,) = json.loads(out)["predictions"]
    assert status == 0
    truth = 1.6 + 400 * 3e9**-0.33 * 64**-0.12 + 1900 * 1e11**-0.35
    assert point["interval"][0] < truth < point["interval"][1]
    assert len(json.loads(study("predict", fit, "--points", candidates, "--json")[1])["predictions"]) == 3
    for message, given in {
        "--at: num_experts is missing; E + A*active^-a*num_experts^-g + B*D^-b needs it": ("--tokens", "1B"),
        "did you mean 'num_experts'?": ("--at", "num_expert=8"),
        "--at: gives every variable; leave out --tokens": ("--at", "active=1", "--tokens", "1B"),
    }.items():
        assert message in study("predict", fit, *given)[2]


@pytest.mark.slow
def test_candidates_in_millions_cost_what_they_cost_in_units(study: Any, tmp_path: Path) -> None:
    """And what makes a fit of the finished rows doubtful is said."""
    sizes, tokens = (np.array(each).ravel() for each in np.meshgrid([1e7, 4e7, 1.6e8], [1e9, 4e9, 1.6e10]))
    columns = {"N": sizes, "D": tokens, "loss": 1.7 + 400 * sizes**-0.34 + 410 * tokens**-0.28}
    table, scaled = tmp_path / "plain.csv", tmp_path / "scaled.csv"
    pd.DataFrame(columns).to_csv(table, index=False)
    in_millions = {"params (M)": sizes / 1e6, "tokens (B)": tokens / 1e9, "loss": columns["loss"]}
    pd.DataFrame(in_millions).to_csv(scaled, index=False)
    asked = ("--law", "chinchilla", "--target", "N=1e9,D=1e11", "--budget", 1e19, "--json")
    units = ("--parameters", "1e6*`params (M)`", "--tokens", "1e9*`tokens (B)`")
    plain, other = (
        json.loads(study("design", file, *asked, "--candidates", file, *more)[1])
        for file, more in ((table, ()), (scaled, units))
    )
    assert plain["runs"] == other["runs"]
    swapped = study("design", table, *asked[:-1], "--candidates", table, "--parameters", "1e6*N")[1]
    assert "fewer tokens than parameters" in swapped


def test_a_variable_that_no_finished_row_varies_has_a_target(study: Any, tmp_path: Path) -> None:
    finished, candidates = tmp_path / "finished.csv", tmp_path / "candidates.csv"
    finished.write_text("share,N,loss\n0,1e8,3.10\n0,2e8,2.95\n0,4e8,2.81\n")
    candidates.write_text("share,N\n0.1,1e8\n0.2,1e8\n0.5,2e8\n0.9,4e8\n0,4e8\n")
    law = "loss = c + k*exp(-t*share) + A*N^-a"
    asked = ("--law", law, "--target", "share=0.5,N=1e9", "--budget", 3, "--cost", 1)
    status, out, err = study("design", finished, *asked, "--candidates", candidates)
    assert status == 0, err
    assert "times beyond the finished rows" in out


def test_a_stranger_designs_for_losses_below_zero_and_for_shares_that_sum_to_one(study: Any, tmp_path: Path) -> None:
    """Tables as in the published benchmark: several responses, zeros, groups named 70M, and a budget without its logarithm."""
    random = np.random.default_rng(0)
    shares = random.dirichlet(np.ones(3), 60).round(3)
    shares[:6, 0] = 0.0
    shares[:, 2] = 1 - shares[:, 0] - shares[:, 1]
    mixed = pd.DataFrame(shares, columns=["share.a", "share b", "share_c"]).assign(group=["70M", "160M"] * 30)
    for place, name in enumerate(("loss_a", "loss b")):
        mixed[name] = 2 + 0.8 * np.exp(-3 * shares[:, place]) + random.normal(0, 0.003, 60)
    compute = np.linspace(-1, 3, 30)
    brier = pd.DataFrame({"log_flops": compute, "flops": 10 ** (compute + 20), "score": -0.6 + 0.05 * (compute - 1) ** 2})
    brier["score"] += random.normal(0, 0.003, 30)
    brier = brier.rename(columns={"score": "brier_score"})
    files = [tmp_path / "mixed.csv", tmp_path / "brier.csv"]
    for file, frame in zip(files, (mixed, brier), strict=True):
        frame.to_csv(file, index=False)
    of_mix = ("--candidates", files[0], "--cost", "1", "--budget", "3", "--where", "group == '70M'")
    law = ("--law", "`loss b` = c + A*exp(-k*`share b`) + t*`share.a` + u*share_c; t in -5..5; u in -5..5")
    status, out, _ = study("design", files[0], *of_mix, *law, "--target", "share b=0,share.a=0.5,share_c=0.5")
    assert status == 0
    assert "after 3 runs" in out
    assert "note: share b, share.a and share_c sum to 1 in all 30 rows" in out
    of_brier = ("--candidates", files[1], "--target", "log_flops=4", "--budget", "1e23", "--cost", "flops")
    law = ("--law", "brier_score = y0 + k*(log_flops - m)^2")
    status, out, _ = study("design", files[1], *of_brier, *law, "--space", "linear", "--json")
    chosen = json.loads(out)
    assert status == 0
    assert chosen["targets"][0]["predicted"] == pytest.approx(-0.15, abs=0.05)
    assert chosen["after"] < chosen["before"] < 0.1
    assert "or give --space linear" in study("design", files[1], *of_brier, *law)[2]


def test_results_that_are_all_zero_are_refused(study: Any, tmp_path: Path) -> None:
    finished, candidates = tmp_path / "finished.csv", tmp_path / "candidates.csv"
    candidates.write_text("parameters,tokens\n1e6,1e9\n1e8,1e10\n1e9,1e11\n")
    asked = ("--law", "chinchilla", "--candidates", candidates, "--target", "parameters=1e10,tokens=1e12", "--budget", "5%")
    for row in ("1e6,1e8,0\n", "1e6,1e8,0\n1e7,1e9,0\n"):
        finished.write_text("parameters,tokens,loss\n" + row)
        status, _, error = study("design", finished, *asked, "--space", "linear")
        assert status == 2
        assert error.startswith("error: loss: is 0 in ")
        assert "leave these out to begin without results" in error


def test_counts_from_zero_are_spread_by_their_ratios_and_shares_are_not() -> None:
    counts, shares = np.array([0.0, 1e2, 1e4, 1e6]), np.array([0.0, 0.1, 0.9])
    assert log_or_value(counts) == pytest.approx(np.log(counts + 100))
    assert log_or_value(shares).tolist() == shares.tolist()
    assert log_or_value(-counts).tolist() == (-counts).tolist()


def test_a_forecast_is_the_median_over_basins_and_a_sharp_optimum_weighs_little() -> None:
    values = np.array([[1.0, 5.0], [2.0, 4.0], [9.0, 0.0]])
    assert median(values, np.array([0.2, 0.4, 0.4])).tolist() == [2.0, 4.0]
    assert median(values, np.array([0.1, 0.2, 0.7])).tolist() == [9.0, 0.0]
    assert median(values[:1], np.ones(1)).tolist() == [1.0, 5.0]
    columns = {"parameters": np.geomspace(1e7, 1e9, 9)}
    pool = Pool(LAWS["power-floor"], columns, np.ones(9), {"parameters": np.array([1e11])})
    learner = Learner(pool, prior=Prior(np.array([2.0, 1.0, 0.3]), np.ones(3)))
    theta = np.array([[2.0, 1.0, 0.3], [2.0, 1e-3, 0.3]])
    optima = Optima(theta, np.zeros(2), 1e-4, Prior(theta[0], np.ones(3)))
    order, weights = learner.weighed(optima, np.arange(9))
    slopes = [learner.surface.gradients(one[None])[1][0, :9] / learner.surface.value(one[None])[0, :9, None] for one in theta]
    volumes = [np.linalg.det(slope.T @ slope / optima.noise + np.eye(3)) ** -0.5 for slope in slopes]
    assert order == [1, 0]
    assert weights[0] / weights[1] == pytest.approx(volumes[1] / volumes[0])
