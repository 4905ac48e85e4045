"""Latency is measured in turns, kept with its environment, and predicted with a stated error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from study.base.errors import InputError
from study.benching import forward_passes as measuring
from study.benching.forward_passes import (
    LatencyCase,
    LatencyOptions,
    Timing,
    disturbance,
    hardware_environment,
    latency_cases,
    measure,
    measured_models,
)
from study.cli import commands
from study.counting.architecture import Architecture
from study.counting.latency import KEY, TERMS, check_environment, fit_latency, read_table, write_table
from study.plotting import model_figures

TINY = "1x16,2x16"


def models() -> dict[str, Architecture]:
    return measured_models(TINY, "", vocabulary=50, positions=32)


def synthetic_table(noise: float = 0.0, kind: str = "bert", **changes: Any) -> pd.DataFrame:
    """Times that follow the model exactly, but for noise: 1 ms a call, 0.2 ms a layer, 50 GFLOP/s."""
    draw = np.random.default_rng(0)
    shapes = measured_models("2x128,4x256,4x512,8x512,12x256", "", 30522, 512, kind)
    rows = []
    for case in latency_cases(shapes, (1, 32), (128, 512)):
        row = measuring._row(case, Timing(threads=2), [1.0])
        a, tokens = case.architecture, case.batch * case.sequence_length
        flops = tokens * a.depth * (24 * a.width**2 + 4 * case.sequence_length * a.width)
        seconds = (1e-3 + 2e-4 * a.depth + flops / 5e10) * float(np.exp(noise * draw.normal()))
        rows.append(row | {"median_seconds": seconds, "p95_seconds": 1.2 * seconds, "fastest_seconds": seconds / 2} | changes)
    return pd.DataFrame(rows)


def test_a_measurement_has_a_row_a_case_and_leaves_the_threads_alone() -> None:
    before = torch.get_num_threads()
    shares: list[float] = []
    rows = measure(latency_cases(models(), (1, 2), (8, 16)), Timing(threads=2, seconds=0.01), shares.append)
    assert torch.get_num_threads() == before
    assert len(rows) == 8
    assert (rows["n"] >= measuring.FEWEST).all()
    assert (rows["fastest_seconds"] <= rows["median_seconds"]).all()
    assert (rows["median_seconds"] <= rows["p95_seconds"]).all()
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)


def test_shapes_of_another_kind_are_measured_beside_berts(tmp_path: Path) -> None:
    options = ["--shapes", "2x16,3x16", "--batch", "1", "--sequence-length", "8", "--vocabulary", "50", "--positions", "16"]
    options += ["--threads", "1", "--seconds", "0.01", "--into", str(tmp_path)]
    for kind in ("bert", "modern", "albert-base"):
        result = CliRunner().invoke(commands, ["latency", *options, "--kind", kind], catch_exceptions=False)
        assert result.exit_code == 0
    table = read_table(tmp_path)
    assert table.groupby("unlike_bert", sort=False)["model"].apply(list).to_dict() == {
        "": ["L2-H16-A1-F64", "L3-H16-A1-F64"],
        "position_encoding rotary, distance_bias learned": ["modern L2-H16-A1-F64", "modern L3-H16-A1-F64"],
        "embedding_width 128, layer_groups 1, activation gelu_tanh, mlm_activation gelu_tanh": [
            "albert-base L2-H16-A1-F64",
            "albert-base L3-H16-A1-F64",
        ],
    }
    result = CliRunner().invoke(commands, ["latency", *options, "--models", "esm2-8m", "--shapes", ""], catch_exceptions=False)
    assert "esm2-8m" in result.output, "without the contact head, which reads its attention"


def test_precisions_of_one_shape_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = LatencyOptions("", TINY, "1", "8", 50, 16, 1, "fp32,bf16,int8", "cpu", 0.01)
    rows = measure(asked.cases(), asked.timing())
    assert rows["precision"].tolist() == ["fp32", "fp32", "bf16", "bf16", "int8", "int8"]
    assert (rows["fastest_seconds"] > 0).all()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    result = CliRunner().invoke(commands, ["latency", "--shapes", TINY, "--precision", "fp32,int8", "--device", "cuda"])
    assert "int8 runs on a CPU alone" in str(result.exception)
    result = CliRunner().invoke(commands, ["latency", "--shapes", TINY, "--precision", "fp32,int4"])
    assert "--precision: 'int4' is none of fp32, bf16, int8; write it as fp32,int8" in str(result.exception)


def test_cases_take_turns_over_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(measuring, "seconds_of", lambda call: call())

    def call(name: str, seconds: float) -> Any:
        def run() -> float:
            order.append(name)
            return seconds

        return run

    times = measuring._timed_in_rounds([call("slow", 2.0), call("quick", 1.0)], 10.0, lambda _: None)
    assert [len(taken) for taken in times] == [5, 10]
    timed = "".join(name[0] for name in order[4:])  # the first call apart, a second is enough of warming up
    assert timed == "sqq" * 5


def test_a_first_call_that_loads_kernels_does_not_say_how_often_a_case_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "seconds_of", lambda call: call())
    seconds = iter([30.0])
    (times,) = measuring._timed_in_rounds([lambda: next(seconds, 0.5)], 10.0, lambda _: None)
    assert times == [0.5] * 20


def test_median_and_p95_are_those_of_the_sample() -> None:
    (case,) = latency_cases({"one": next(iter(models().values()))}, (1,), (8,))
    row = measuring._row(case, Timing(), [float(value) for value in range(100, 0, -1)])
    assert (row["median_seconds"], row["p95_seconds"], row["fastest_seconds"]) == (50.5, 95.0, 1.0)


def test_rows_stay_unless_measured_again_and_an_environment_has_its_own_folder(tmp_path: Path) -> None:
    environment = hardware_environment("cpu")
    rows = synthetic_table()
    path = write_table(rows, environment, tmp_path)
    again = rows.head(1).assign(median_seconds=9.0)
    assert write_table(again, environment, tmp_path) == path
    kept = read_table(tmp_path)
    assert len(kept) == len(rows)
    assert (kept["median_seconds"] == 9.0).sum() == 1
    assert json.loads((path.parent / "environment.json").read_bytes()) == environment
    with pytest.raises(InputError, match=r"another environment \(torch was"):
        write_table(rows, environment | {"torch": "0.1"}, tmp_path)
    (path.parent / "environment.json").write_text("{")
    with pytest.raises(InputError, match=r"environment\.json: is damaged: .*; give another --into"):
        write_table(rows, environment, tmp_path)


def test_a_table_that_follows_the_model_is_predicted_exactly() -> None:
    model = fit_latency(synthetic_table(), "fp32")
    assert model.worst_error < 1e-3
    assert model.coefficients["flop"] == pytest.approx(1 / 5e10, rel=1e-3)
    assert all(model.coefficients[term] >= 0 for term in TERMS)
    unseen = Architecture.parse({"depth": 6, "width": 384, "heads": 6, "ffn": 1536, "vocabulary": 30522})
    flops = 2 * 128 * 6 * 12 * 384**2 + 4 * 128 * 128 * 6 * 384
    assert model.seconds(unseen, 1, 128) == pytest.approx(1e-3 + 6 * 2e-4 + flops / 5e10, rel=1e-3)


def test_a_vocabulary_costs_a_forward_pass_nothing() -> None:
    """Of the table a call reads the rows of its tokens alone, however many there are."""
    table = synthetic_table()
    table["median_seconds"] += 4 * 12 * table["depth"] * table["width"] ** 2 / 1e10  # weights are read at 10 GB/s
    model = fit_latency(table, "fp32")
    assert model.coefficients["weight_byte"] == pytest.approx(1e-10, rel=0.05)
    small, large = (Architecture(depth=3, width=256, heads=4, ffn=1024, vocabulary=size) for size in (512, 250_000))
    assert model.seconds(small, 1, 128) == model.seconds(large, 1, 128)


def test_a_batch_and_length_with_shapes_enough_is_fitted_alone() -> None:
    alone = fit_latency(synthetic_table(), "fp32", setting=(1, 128))
    assert (alone.n_rows, alone.settings) == (5, "1 x 128 tokens")
    together = fit_latency(synthetic_table(), "fp32", setting=(4, 128), statistic="p95")
    assert (together.n_rows, together.settings) == (20, "all batches and lengths")
    assert together.coefficients["flop"] == pytest.approx(1.2 / 5e10, rel=1e-3)


def test_noise_shows_in_the_error_that_is_stated() -> None:
    model = fit_latency(synthetic_table(noise=0.2), "fp32")
    assert 0.05 < model.error < 0.4
    assert f"{model.error:.0%} off (median)" in model.to_text()


@pytest.mark.parametrize(
    ("table", "threads", "place", "message"),
    [
        (synthetic_table(precision="bf16"), None, "--latency-table", "no times in fp32; it has bf16 at 2 threads"),
        (synthetic_table(), 7, "--latency-table", "fp32 at 7 threads; it has fp32 at 2 threads"),
        (pd.concat([synthetic_table(), synthetic_table(threads=1)]), None, "--threads", "1, 2"),
        (synthetic_table().head(4), None, "--latency-table", "1 shapes"),
        (synthetic_table().assign(width=512, heads=8, ffn=2048), None, "--latency-table", "only shapes of width 512"),
        (synthetic_table().assign(depth=4), None, "--latency-table", "only shapes of depth 4"),
    ],
)
def test_a_table_that_cannot_answer_says_why(table: pd.DataFrame, threads: int | None, place: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        fit_latency(table, "fp32", threads)
    (problem,) = refused.value.problems
    assert problem.place == place
    assert message in problem.message


def test_no_table_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="study latency --models"):
        read_table(tmp_path)
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="it has no column"):
        read_table(tmp_path)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("threads", "True", "threads of row 3 is 'True', not a whole number of at least zero"),
        ("batch", "1.5", "batch of row 3 is '1.5', not a whole number of at least zero"),
        ("depth", "", "depth of row 3 is nan, not a whole number of at least zero"),
        ("width", "9" * 400, "width of row 3 is '999"),
        ("median_seconds", "0", "median_seconds of row 3 is '0', not a time above zero"),
        ("p95_seconds", "inf", "p95_seconds of row 3 is 'inf', not a time above zero"),
        ("fastest_seconds", "fast", "fastest_seconds of row 3 is 'fast', not a time above zero"),
    ],
)
def test_a_damaged_number_of_a_table_is_reported_by_whoever_reads_it_or_adds_to_it(
    column: str, value: str, message: str, tmp_path: Path
) -> None:
    environment = hardware_environment("cpu")
    path = write_table(synthetic_table(), environment, tmp_path)
    table = pd.read_csv(path, dtype=str)
    table.loc[2, column] = value
    table.to_csv(path, index=False)
    for reads in (lambda: read_table(tmp_path), lambda: check_environment(environment, tmp_path)):
        with pytest.raises(InputError, match=re.escape(f"{path}: {message}")):
            reads()


def test_the_figure_shows_every_case_of_one_precision() -> None:
    modern = synthetic_table(kind="modern")
    data = model_figures.latency_frame(pd.concat([synthetic_table(), synthetic_table(threads=1), modern]))
    assert len(data) == 20, "of BERT's kind where there are such"
    assert len(model_figures.latency_frame(modern)) == 20
    assert set(data["threads"]) == {2}
    assert data["panel"].unique().tolist() == ["1 x 128 tokens", "32 x 128 tokens", "1 x 512 tokens", "32 x 512 tokens"]
    figure = model_figures.draw_latency(data)
    assert len(figure.axes) == 4
    assert "parameters_encoder" in figure.axes[2].get_xlabel()
    names = [text.get_color() for text in figure.axes[0].texts]
    assert names == [line.get_color() for line in figure.axes[0].get_lines()], "of a name between two points"
    with pytest.raises(InputError, match="no times in bf16"):
        model_figures.latency_frame(synthetic_table(), "bf16")


def test_the_command_measures_writes_and_draws(tmp_path: Path) -> None:
    options = ["--shapes", TINY, "--batch", "1", "--sequence-length", "8", "--vocabulary", "50", "--positions", "16"]
    options += ["--threads", "1", "--seconds", "0.01", "--into", str(tmp_path), "--json"]
    result = CliRunner().invoke(commands, ["latency", *options], catch_exceptions=False)
    printed = json.loads(result.stdout)
    assert len(printed["rows"]) == 2
    folder = Path(printed["table"]).parent
    assert {path.name for path in folder.iterdir()} == {
        "table.csv",
        "environment.json",
        "parameters_against_latency.svg",
    }
    assert set(KEY) <= set(read_table(folder).columns)


def test_what_is_measured_before_a_stop_is_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch sizes and lengths are timed from the smallest on, and each is named when it begins."""
    options = ["--shapes", TINY, "--batch", "2,1", "--sequence-length", "16,8", "--vocabulary", "50", "--positions", "16"]
    options += ["--threads", "1", "--seconds", "0.01", "--into", str(tmp_path)]
    real = measuring.measure

    def stopped(cases: list[LatencyCase], *more: Any) -> pd.DataFrame:
        if cases[0].batch == 2 and cases[0].sequence_length == 16:
            raise KeyboardInterrupt
        return real(cases, *more)

    monkeypatch.setattr(measuring, "measure", stopped)
    result = CliRunner().invoke(commands, ["latency", *options])
    assert result.exit_code != 0
    assert [line.partition(",")[0] for line in result.stderr.splitlines() if "tokens" in line] == [
        "1 x 8 tokens (1 of 4)",
        "2 x 8 tokens (2 of 4)",
        "1 x 16 tokens (3 of 4)",
        "2 x 16 tokens (4 of 4)",
    ]
    kept = read_table(tmp_path)
    assert sorted(zip(kept["batch"], kept["sequence_length"], strict=True)) == [(1, 8)] * 2 + [(1, 16)] * 2 + [(2, 8)] * 2


def test_a_machine_that_others_use_is_noticed() -> None:
    busy = synthetic_table()
    message = disturbance(busy)
    assert message is not None
    assert "2.0 times as long as the fastest" in message
    assert disturbance(busy.assign(fastest_seconds=0.9 * busy["median_seconds"])) is None


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ([], "--models"),
        (["--models", "bert-tinny"], "--models bert-tinny"),
        (["--shapes", "2x32", "--kind", "mobilebert"], "--shapes 2x32.mlm_transform"),
        (["--shapes", "2x128", "--kind", "mobilbert"], "--kind mobilbert"),
        (["--shapes", "2by128"], "--shapes"),
        (["--shapes", "2x128", "--sequence-length", "513"], "--sequence-length"),
        (["--shapes", "2x128", "--batch", "many"], "--batch"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(options: list[str], place: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(commands, ["latency", "--into", str(tmp_path), *options])
    assert isinstance(result.exception, InputError)
    assert result.exception.problems[0].place == place
    assert not list(tmp_path.iterdir())
