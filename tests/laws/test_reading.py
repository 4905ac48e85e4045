"""Strangers' tables: any format and names are read, and what cannot be used is refused or left out with the row named."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.laws.catalogue import LAWS, find_law
from study.laws.estimation import Settings
from study.laws.expressions import evaluate
from study.laws.forecasting import Forecast, forecast
from study.laws.observations import Observations
from study.laws.reading import TableQuery, read_columns, read_observations
from study.laws.tables import RunTable, Selection, read_table
from study.laws.text_numbers import read_text_numbers
from tests.points import TRUTHS, columns_of

CHINCHILLA = LAWS["chinchilla"]
ROLES = {"parameters": "Model Size", "tokens": "tok", "loss": "final/loss"}


def table(rows: int = 20) -> pd.DataFrame:
    columns = columns_of(CHINCHILLA, rows)
    loss = CHINCHILLA.predict(TRUTHS["chinchilla"], columns)
    run = [f"run {row // 2}" for row in range(rows)]
    return pd.DataFrame({"Model Size": columns["parameters"], "tok": columns["tokens"], "final/loss": loss, "run": run})


def read(path: Path, data: pd.DataFrame, **source: Any) -> Observations:
    data.to_csv(path / "t.csv", index=False)
    return read_observations(TableQuery(RunTable.read(path / "t.csv"), **{"roles": ROLES, **source}), CHINCHILLA)


@pytest.mark.parametrize("kind", ["csv", "tsv", "semicolons", "jsonl", "json", "parquet"])
def test_every_format_gives_the_same_points(tmp_path: Path, kind: str) -> None:
    data = table()
    path = tmp_path / f"t.{'csv' if kind == 'semicolons' else kind}"
    match kind:
        case "csv" | "tsv" | "semicolons":
            data.to_csv(path, index=False, sep={"csv": ",", "tsv": "\t", "semicolons": ";"}[kind])
        case "jsonl" | "json":
            data.to_json(path, orient="records", lines=kind == "jsonl", double_precision=15)
        case "parquet":
            data.to_parquet(path)
    points = read_observations(TableQuery(RunTable.read(path), ROLES), CHINCHILLA)
    np.testing.assert_allclose(points.response, data["final/loss"], rtol=1e-12)
    np.testing.assert_allclose(points.columns["parameters"], data["Model Size"], rtol=1e-12)


def test_columns_may_be_expressions_of_columns_and_symbols(tmp_path: Path) -> None:
    data = table().assign(**{"Training FLOP": lambda t: 6 * t["Model Size"] * t["tok"]})
    for tokens in ("C/(6*N)", "`Training FLOP`/(6*`Model Size`)", "Training FLOP/(6*Model Size)"):
        points = read(tmp_path, data, roles={**ROLES, "flops": "Training FLOP", "tokens": tokens})
        np.testing.assert_allclose(points.columns["tokens"], data["tok"], rtol=1e-12)


COLUMNS = {
    "a": pd.Series([1.0, 2.0], name="a"),
    "b": pd.Series(["x", "y"], name="b"),
    "two words": pd.Series(["two words", "c"]),
    "part": pd.Series([1.0, np.nan]),
}


def column(name: str) -> Any:
    if name not in COLUMNS:
        raise InputError.at("t.csv", f"has no column {name!r}")
    return COLUMNS[name]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-a", [-1, -2]),
        ("(a + 1) * 3 - a/2", [5.5, 8]),
        ("a**2 % 3", [1, 1]),
        ("not a < 2", [False, True]),
        ("1 <= a < 2", [True, False]),
        ("a > 1 or b == 'x'", [True, True]),
        ("a > 1 and b == 'x'", [False, False]),
        ("(a > 1) | (b == 'x')", [True, True]),
        ("(a > 1) & ~(b == 'x')", [False, True]),
        ("b in ('x', 'z')", [True, False]),
        ("b not in ['x']", [False, True]),
        ("1 < 2 < a + 1", [False, True]),
        ("two words == 'two words' or `two words` == \"b\"", [True, False]),
    ],
)
def test_expressions_are_computed_row_by_row(text: str, value: list[float]) -> None:
    assert list(evaluate(text, column, "--where", COLUMNS)) == value


@pytest.mark.parametrize(
    "text", ["part > 0", "part != 2", "not part == 2", "part not in [2]", "part in [1]", "not not part < 2"]
)
def test_what_is_compared_with_a_missing_value_is_not_true(text: str) -> None:
    assert list(evaluate(text, column, "--where").fillna(False)) == [True, False]


def test_of_two_conditions_one_may_be_enough_where_the_other_is_missing() -> None:
    assert list(evaluate("part == 1 or a == 2", column, "--where")) == [True, True]
    assert list(evaluate("not (part == 1 and a == 3)", column, "--where")) == [True, True]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__import__('os').system('true')", "is not arithmetic or a comparison of columns"),
        ("a.__class__", "has no column 'a.__class__'"),
        ("(1).real", "'1' is not a column"),
        ("[x for x in a]", "is not arithmetic or a comparison of columns"),
        ("lambda: 1", "is not arithmetic or a comparison of columns"),
        ("a if a else a", "is not arithmetic or a comparison of columns"),
        ("a;b", "invalid syntax"),
        ("a[0]", "is not arithmetic or a comparison of columns"),
        ("a is b", "`is` does not compare columns"),
        ("a in 1", "`in` needs a column and a list of values"),
        ("a and b == 'x'", "`and`, `or` and `not` join comparisons"),
        ("a > 1 & a < 3", "join comparisons, which need brackets beside & and |"),
        ("a = 1", "equality is written =="),
        ("b + 1", "column 'b' holds text"),
        ("a + 'x'", "'x' is not a number"),
        ("a+" * 600 + "a", "it is longer than 1000 characters"),
    ],
)
def test_expressions_are_arithmetic_and_nothing_else(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=re.escape(reason)):
        evaluate(text, column, "--tokens")


def test_conditions_keep_rows(tmp_path: Path) -> None:
    data = table()
    points = read(tmp_path, data, where="`final/loss` < 2.5 and run != 'run 3'")
    kept = (data["final/loss"] < 2.5) & (data["run"] != "run 3")
    assert len(points) == kept.sum()
    assert {*points.excluded.values()} == {"left out by `final/loss` < 2.5 and run != 'run 3'"}


def test_a_row_that_where_leaves_out_is_called_missing_only_where_it_is(tmp_path: Path) -> None:
    data = table().astype({"final/loss": object})
    data.loc[2, "final/loss"], data.loc[4, "final/loss"] = "crashed", None
    points = read(tmp_path, data, where="`final/loss` != 'crashed'")
    assert points.excluded == {"row 3": "left out by `final/loss` != 'crashed'", "row 5": "final/loss is missing"}


def test_missing_infinite_and_repeated_rows_are_left_out_with_reasons(tmp_path: Path) -> None:
    data = table()
    data["tok"] = data["tok"].astype(object)
    data.loc[0, "final/loss"] = np.nan
    data.loc[1, "tok"] = "-"
    data.loc[2, "Model Size"] = np.inf
    points = read(tmp_path, pd.concat([data, data.iloc[[5]]]))
    assert list(points.excluded.items()) == [
        ("row 1", "final/loss is missing"),
        ("row 2", "tok is missing"),
        ("row 3", "Model Size is infinite"),
        ("row 21", "repeats an earlier row"),
    ]
    assert len(points) == 17


def test_rows_that_agree_in_all_that_is_read_and_differ_elsewhere_are_reported(tmp_path: Path) -> None:
    """As where two exports of one table were put together, each with its own running number."""
    data = table()
    twice = pd.concat([data, data.iloc[[5, 7]]]).assign(number=range(22))
    points = read(tmp_path, twice)
    differing, together = points.warnings
    assert "rows of a setting count as one" in together
    assert differing.startswith("2 rows (row 21, row 22) equal an earlier row in Model Size, tok, final/loss but differ")
    assert (len(points), points.excluded) == (22, {})
    assert read(tmp_path, twice, where="number < 20").warnings == ()
    assert read(tmp_path, twice.assign(tok=twice["tok"] + 1e3 * twice["number"])).warnings == ()


ORDERS: list[dict[str, Any]] = [{"budget": "C"}, {"roles": {**ROLES, "flops": "C"}}]


@pytest.mark.parametrize("source", ORDERS, ids=["budget", "flops"])
def test_rows_without_a_budget_are_left_out_with_reasons(tmp_path: Path, source: dict[str, Any]) -> None:
    data = table().assign(C=lambda t: 6 * t["Model Size"] * t["tok"])
    data.loc[2, "C"], data.loc[4, "C"] = np.nan, np.inf
    points = read(tmp_path, data, **source)
    assert list(points.excluded.items()) == [("row 3", "C is missing"), ("row 5", "C is infinite")]
    np.testing.assert_allclose(points.budget, data["C"].drop([2, 4]), rtol=1e-12)
    actual = forecast(CHINCHILLA, points, Settings(bootstrap=0))
    assert isinstance(actual, Forecast)
    assert np.isfinite(actual.extrapolation)


@pytest.mark.parametrize("source", ORDERS, ids=["budget", "flops"])
@pytest.mark.parametrize(
    ("value", "message"),
    [("much", "C: holds a non-numeric value (row 3: 'much')"), (-1.0, "must be positive, but is not in row 3 (-1)")],
)
def test_impossible_budgets_are_refused_with_their_rows(
    tmp_path: Path, source: dict[str, Any], value: str | float, message: str
) -> None:
    data = table().assign(C=lambda t: (6 * t["Model Size"] * t["tok"]).astype(object))
    data.loc[2, "C"] = value
    with pytest.raises(InputError) as refused:
        read(tmp_path, data, **source)
    assert message in str(refused.value)


def test_a_budget_that_is_no_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--budget: '6\*7' names no column"):
        read(tmp_path, table(), budget="6*7")


def test_a_condition_may_name_numbers_as_the_table_writes_them(tmp_path: Path) -> None:
    data = table().assign(group=["70M"] * 12 + ["160M"] * 8)
    assert len(read(tmp_path, data, where="group == '70M'")) == 12
    assert len(read(tmp_path, data, where="group in ('70M', '160M')")) == 20
    assert len(read(tmp_path, data, where="group != 'crashed'")) == 20


def test_a_missing_column_is_reported_with_the_options_that_were_found(tmp_path: Path) -> None:
    frame = pd.DataFrame({"lr": [1e-3], "bsz": [64], "data size": [1e9], "lm_loss": [2.0]})
    with pytest.raises(InputError) as refused:
        read_observations(TableQuery(RunTable(tmp_path / "t.csv", frame)), LAWS["learning-rate-batch"])
    problems = [str(problem) for problem in refused.value.problems]
    assert problems[:2] == ["--parameters: is needed", "--tokens: is needed"]
    assert problems[-1] == f"{tmp_path / 't.csv'}: is read with --learning-rate lr, --batch bsz, --loss lm_loss"
    own = find_law("E + A*N^-a + B*exp(-`data size`)", table=RunTable(tmp_path / "t.csv", frame))
    with pytest.raises(InputError, match=r"is read with --loss lm_loss$"):
        read_observations(TableQuery(RunTable(tmp_path / "t.csv", frame)), own)


def test_clusters_follow_their_column(tmp_path: Path) -> None:
    assert read(tmp_path, table(), cluster="run").n_runs == 10
    assert read(tmp_path, table()).n_runs == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"final/loss": -1.0}, "loss (final/loss): must be positive, but is not in row 1 (-1)"),
        ({"Model Size": 0.0}, "parameters (Model Size): must be positive, but is not in row 1 (0)"),
        ({"final/loss": "high"}, "final/loss: holds a non-numeric value (row 1: 'high')"),
        ({"Model Size": 1e300}, "parameters (Model Size): must be between 1e-100 and 1e+100, but is not in row 1 (1e+300)"),
        ({"final/loss": 1e-200}, "loss (final/loss): must be between 1e-100 and 1e+100, but is not in row 1 (1e-200)"),
    ],
)
def test_impossible_values_are_refused_with_their_rows(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    data = table().astype(dict.fromkeys(change, object))
    for name, value in change.items():
        data.loc[0, name] = value
    with pytest.raises(InputError) as refused:
        read(tmp_path, data, any_units=True)
    assert message in str(refused.value)


def test_what_is_known_of_a_table_beyond_its_columns_is_handed_over_with_it() -> None:
    known = Selection(
        roles=ROLES,
        counts={},
        excluded={3: "was stopped"},
        unbracketed={3: "was stopped", 5: "its rate is at an edge"},
        runs=np.arange(20) // 2,
        clusters=np.arange(20) // 4,
        cluster="shape",
        validation=["masks"],
        settings=["norm"],
        amounts={"tok": "tokens"},
    )
    frame = table().assign(masks=0, norm=["pre", "post"] * 10, **{"Model Size": table()["Model Size"] / 1e6})
    theirs = RunTable(Path("runs"), frame, known)
    with pytest.raises(InputError, match=r"runs that differ in norm have laws of their own; .* --where \"norm == 'pre'\""):
        read_observations(TableQuery(theirs), CHINCHILLA)
    observations = read_observations(TableQuery(theirs, where="norm == 'post'"), CHINCHILLA)
    assert (observations.n_runs, observations.n_clusters, observations.cluster, len(observations)) == (9, 5, "shape", 9)
    assert observations.excluded["row 4"] == "was stopped"
    assert len(read_observations(TableQuery(theirs, where="norm == 'post'", bracketed_only=True), CHINCHILLA)) == 8
    with pytest.raises(InputError, match="in tokens for repeats of each other"):
        read_observations(TableQuery(replace(theirs, frame=frame.assign(norm=0, **{"Model Size": 1e8}))), LAWS["power"])
    with pytest.raises(InputError, match="that differ in masks are not comparable"):
        read_observations(TableQuery(replace(theirs, frame=frame.assign(norm=0, masks=range(20)))), CHINCHILLA)


def test_runs_that_differ_in_a_variable_of_the_law_have_one_law() -> None:
    """A variable is the setting itself, or expresses it; other laws refuse to pool."""
    frame = table().assign(batches=[512, 1024] * 10, text=["few", "more"] * 10, seen=[1e8, 2e8] * 10)
    known = Selection(
        roles=ROLES | {"unique_tokens": "seen"},
        counts={},
        excluded={},
        unbracketed={},
        runs=np.arange(20),
        clusters=np.arange(20),
        cluster="run",
        validation=[],
        settings=["batches"],
        amounts={},
        expressed={"text": "unique_tokens"},
    )
    runs = RunTable(Path("runs"), frame, known)
    of_text = replace(runs, selection=replace(known, settings=["text"]))
    for one, differing in ((runs, "batches"), (of_text, "text")):
        with pytest.raises(InputError, match=rf"runs that differ in {differing} have laws of their own"):
            read_observations(TableQuery(one), CHINCHILLA)
    batches = read_columns(TableQuery(runs, {"batch": "batches"}), ("parameters", "batch"), "loss")
    assert {*batches.columns["batch"]} == {512, 1024}
    lengths = read_columns(TableQuery(runs, {"batch": "batches/64"}), ("parameters", "batch"), "loss")
    assert {*lengths.columns["batch"]} == {8, 16}
    texts = read_columns(TableQuery(of_text), ("parameters", "unique_tokens"), "loss")
    assert {*texts.columns["unique_tokens"]} == {1e8, 2e8}
    with pytest.raises(InputError, match=r"differ in text have laws"):
        read_columns(TableQuery(of_text, {"unique_tokens": "tok"}), ("parameters", "unique_tokens"), "loss")
    with pytest.raises(InputError, match=r"differ in batches have laws"):
        read_columns(TableQuery(runs), ("parameters", "unique_tokens"), "loss")


def test_a_cluster_that_no_row_names_is_refused(tmp_path: Path) -> None:
    empty = table().assign(setting=np.nan)
    with pytest.raises(InputError, match=r"--cluster: 'setting' is empty in all 20 rows, and names no run; name another"):
        read(tmp_path, empty, cluster="setting")
    some = read(tmp_path, empty.assign(setting=["a"] * 5 + [""] * 15), cluster="setting")
    assert some.n_runs == 16, "a row without one is a run of its own"


def test_units_that_look_wrong_are_asked_about(tmp_path: Path) -> None:
    millions = table()
    millions["Model Size"] /= 1e6
    with pytest.raises(InputError, match=r"too small to be a count, as in row 1 .*--parameters '1e6\*`Model Size`'"):
        read(tmp_path, millions)
    assert len(read(tmp_path, millions, roles={**ROLES, "parameters": "1e6*`Model Size`"})) == 20
    perplexity = table()
    perplexity["final/loss"] = np.exp(perplexity["final/loss"] + 1)
    with pytest.raises(InputError, match="a perplexity, not nats"):
        read(tmp_path, perplexity)
    assert len(read(tmp_path, perplexity, any_units=True)) == 20


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bits", "looks like bits: E, A and B are then in bits too (nats are bits · 0.6931)"),
        ("log2_ppl", "looks like bits"),
        ("log10_ppl", "looks like decimal logarithms: E, A and B are then in decimal logarithms too"),
        ("log_ppl", ""),
    ],
)
def test_a_loss_whose_name_says_the_base_of_its_logarithm_is_warned_of(tmp_path: Path, name: str, said: str) -> None:
    named = table().rename(columns={"final/loss": name})
    warned = read(tmp_path, named, roles={**ROLES, "loss": name}).warnings
    assert [said in warning for warning in warned] == [True] * bool(said)
    assert read(tmp_path, named, roles={**ROLES, "loss": f"0.693147*{name}"}).warnings == (), "an expression makes it nats"


def test_an_abbreviated_perplexity_is_none_the_less_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"perplexity by its name: give --loss 'log\(`Perp.`\)'"):
        read(tmp_path, table().rename(columns={"final/loss": "Perp."}), roles={**ROLES, "loss": "Perp."})


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"parameters": "Model Sise"}, "has no column 'Model Sise'; did you mean 'Model Size'?"),
        ({"tokens": "run*2"}, "column 'run' holds text"),
        ({"tokens": "6*7"}, "names no column"),
        ({"tokens": "foo"}, "has no column 'foo'"),
        ({"loss": "final/loss/2"}, "--loss: 'final/loss/2' needs backticks: `final/loss`"),
    ],
)
def test_wrong_columns_are_reported(tmp_path: Path, roles: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, table(), roles={**ROLES, **roles})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", None, "does not exist"),
        ("t.xls", b"x", "is none of .csv"),
        ("t.csv", b"", "it is empty"),
        ("t.csv", b"\n \n", "it is empty"),
        ("t.csv", "modèle,loss\né,1\n".encode("latin-1"), "is not UTF-8"),
        ("t.jsonl", b'{"N": 1}\n{oops\n', "line 2"),
        ("t.csv", b"a,b\n", "has no rows"),
        ("t.csv", b"# of last week\na,b\n1,2\n1,2,3\n", "Expected 2 fields in line 4, saw 3"),
        ("t.csv", b'a,b\n1,2\n"3,4\n', "EOF inside string starting at line 3"),
        ("t.csv", b"# of last week\n1e6,2e8\n2e6,4e8\n", "t.csv: the first line after the comments holds numbers, not names"),
        ("t.parquet", b"PAR1garbage", "cannot be read as parquet"),
        ("t.jsonl", b"{not json", "cannot be read as jsonl"),
        ("t.jsonl", b"[" * 100_000, "cannot be read as jsonl: it is nested too deeply"),
        ("t.jsonl", b'{"loss": 1}\n{"loss": 1, "loss": 2}\n', "line 2: the key 'loss' appears twice"),
        ("t.json", b'[{"loss": 1,\n "loss": 2}]', "cannot be read as json: the key 'loss' appears twice"),
        ("t.csv", b"\xff\xfe\x00\x01", "is not UTF-8"),
    ],
)
def test_files_that_are_no_tables_are_reported(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_observations(TableQuery(RunTable.read(tmp_path / name)), CHINCHILLA)


@pytest.mark.parametrize(
    ("text", "decimal_commas", "number"),
    [
        ("190,350,517", False, 190_350_517),
        ("1 234 567", False, 1_234_567),
        ("1'234.5", False, 1234.5),
        ("125M", False, 125e6),
        ("2.4 b", False, 2.4e9),
        ("63.2%", False, 0.632),
        ("0,35", True, 0.35),
        ("1e-3", False, 1e-3),
        ("0,35", False, 0.35),
        ("0,350", False, 0.35),
        ("3,656", False, None),
        ("3,656", True, 3.656),
        ("0,350", True, 0.35),
        ("035,000", False, None),
        ("12,34,567", False, None),
        ("5 of 7", False, None),
        ("M", False, None),
    ],
)
def test_numbers_written_as_text_are_read(text: str, decimal_commas: bool, number: float | None) -> None:
    column = pd.DataFrame({"a": [text, None]})
    numbers = read_text_numbers(column, decimal_commas)
    if number is None:
        assert numbers.table["a"].iloc[0] == text
        assert not numbers.notes
    else:
        assert numbers.table["a"].iloc[0] == pytest.approx(number)
        assert text in numbers.notes[0]


def test_names_are_found_without_case_spaces_and_units(tmp_path: Path) -> None:
    data = table().rename(columns={"Model Size": "N_PARAMS", "tok": "Training Tokens", "final/loss": "Val Loss (nats)"})
    points = read(tmp_path, data, roles={})
    assert points.roles == {"parameters": "N_PARAMS", "tokens": "Training Tokens", "loss": "Val Loss (nats)"}
    with pytest.raises(InputError, match="--loss: is needed; it may be Val Loss, eval_loss"):
        read(tmp_path, data.assign(eval_loss=1.0).rename(columns={"Val Loss (nats)": "Val Loss"}), roles={})
    with pytest.raises(InputError) as refused:
        read(tmp_path, data[["run"]], roles={})
    assert [problem.place for problem in refused.value.problems][:-1] == ["--parameters", "--tokens", "--loss"]


@pytest.mark.parametrize(("columns", "end"), [(30, "x28, x29"), (33, "x28, x29 and 3 more")])
def test_columns_are_listed_once_where_no_role_is_found(tmp_path: Path, columns: int, end: str) -> None:
    data = pd.DataFrame({f"x{number}": [1.0, 2.0] for number in range(columns)})
    with pytest.raises(InputError) as refused:
        read(tmp_path, data, roles={})
    *needed, listed = map(str, refused.value.problems)
    assert needed == ["--parameters: is needed", "--tokens: is needed", "--loss: is needed"]
    assert listed.startswith(f"{tmp_path / 't.csv'}: has the columns x0, x1, ")
    assert listed.endswith(end)


def test_units_in_a_name_are_the_ones_proposed(tmp_path: Path) -> None:
    data = table().rename(columns={"Model Size": "Model Size (B)"})
    data["Model Size (B)"] /= 1e9
    with pytest.raises(InputError, match=r"Then give --parameters '1e9\*`Model Size \(B\)`';"):
        read(tmp_path, data, roles={"tokens": "tok", "loss": "final/loss"})


def test_a_single_row_in_other_units_is_named(tmp_path: Path) -> None:
    """A small run is not: half a million tokens beside two million are no millions."""
    data = table()
    data["tok"] = [4.5e5, *[2e6, 4e6] * 9, 2e6]
    data["Model Size"] /= data["Model Size"].max() / 4e6
    read(tmp_path, data[data["Model Size"] > 1e5])
    data = table()
    data.loc[7, "Model Size"] = 123.0
    with pytest.raises(InputError, match="too small to be a count in row 8"):
        read(tmp_path, data)
    data = table()
    data.loc[3, "final/loss"] = 57.0
    with pytest.raises(InputError, match=r"loss \(final/loss\): is too large in row 4 \(57\): a perplexity"):
        read(tmp_path, data)


@pytest.mark.parametrize(("other", "said"), [("perplexity", "2 to its power"), ("nats", "0.6931 times it")])
def test_bits_are_seen_by_another_column(tmp_path: Path, other: str, said: str) -> None:
    data = table()
    data["final/loss"] /= np.log(2)
    data[other] = 2 ** data["final/loss"] if other == "perplexity" else data["final/loss"] * np.log(2)
    with pytest.raises(InputError, match=f"is in bits: {other} is {said}"):
        read(tmp_path, data)


def test_nested_records_and_comments_are_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"runs": [{"cfg": {"n": 1e8 * k}, "loss": 3.0 / k} for k in range(1, 6)]}))
    points = read_observations(TableQuery(RunTable.read(path), {"parameters": "cfg.n"}), LAWS["power"])
    assert points.columns["parameters"].tolist() == [1e8, 2e8, 3e8, 4e8, 5e8]
    path = tmp_path / "t.csv"
    path.write_text("# of last week\nN,loss\n" + "".join(f"{k}e8,{3 / k}\n" for k in range(1, 6)))
    assert len(read_observations(TableQuery(RunTable.read(path)), LAWS["power"])) == 5


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("# N,D,loss\n", ["N", "D", "loss"]),
        ('# a, b, c\n#Params (B),"Tokens, seen",loss\n# of last week\n', ["Params (B)", "Tokens, seen", "loss"]),
        ("# 3, 4, 5\nN,D,loss\n", ["N", "D", "loss"]),
    ],
)
def test_a_header_that_is_a_comment_is_read(tmp_path: Path, header: str, names: list[str]) -> None:
    (tmp_path / "t.csv").write_text(header + "7e7,nan,3.2\n1e8,2e9,3.1\n")
    actual = read_table(tmp_path / "t.csv")
    assert list(actual.columns) == names
    np.testing.assert_array_equal(actual, [[7e7, np.nan, 3.2], [1e8, 2e9, 3.1]])


@pytest.mark.parametrize("header", ["N,loss,loss", "N; loss;loss", 'N,"loss",loss '])
def test_two_columns_of_one_name_are_refused_and_not_renamed(tmp_path: Path, header: str) -> None:
    mark = ";" if ";" in header else ","
    (tmp_path / "t.csv").write_text(f"{header}\n" + mark.join(["1", "2", "3"]) + "\n")
    with pytest.raises(InputError, match="has more than one column named loss"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_whole_number_that_no_float_holds_is_left_out_as_infinite(name: str, tmp_path: Path) -> None:
    rows = [{"N": 10**6, "loss": 4.0}, {"N": 10**400, "loss": 3.0}, {"N": 10**7, "loss": 3.5}, {"N": -(10**400), "loss": 3.0}]
    lines = ["N,loss", *(f"{row['N']},{row['loss']}" for row in rows)] if name == "t.csv" else map(json.dumps, rows)
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    actual = read_columns(
        TableQuery(RunTable.read(tmp_path / name), {"parameters": "N", "loss": "loss"}), ("parameters",), "loss"
    )
    assert actual.columns["parameters"].tolist() == [1e6, 1e7]
    assert actual.excluded == {"row 2": "N is infinite", "row 4": "N is infinite"}


def test_rows_are_left_out_for_one_reason_whatever_its_particulars() -> None:
    edges = {f"row {row}": f"not at the best rate of its cell (loss 5.9{row} nats)" for row in range(3)}
    others = {"row 4": "left out by (N > 1) & (D > 1)", "row 5": "D (B) is missing"}
    observations = Observations.of({}, np.ones(2))
    assert replace(observations, excluded={**edges, **others}).excluded_by_reason() == {
        "not at the best rate of its cell": ["row 0", "row 1", "row 2"],
        "left out by (N > 1) & (D > 1)": ["row 4"],
        "D (B) is missing": ["row 5"],
    }


@pytest.mark.parametrize("name", ["unigram_normalized_loss", "smoothed loss", "c4/nll", "val_bpb"])
def test_the_only_column_named_like_a_loss_is_the_loss_and_of_several_one_must_be_named(tmp_path: Path, name: str) -> None:
    data = table().rename(columns={"final/loss": name})
    roles = {"parameters": "Model Size", "tokens": "tok"}
    assert read(tmp_path, data, roles=roles).roles["loss"] == name
    with pytest.raises(InputError, match=rf"--loss: is needed; it may be {name}, code_loss"):
        read(tmp_path, data.assign(code_loss=2 * data[name]), roles=roles)
