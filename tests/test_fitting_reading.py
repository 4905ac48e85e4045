"""Strangers' tables: any format and names are read, and what cannot be used is refused or left out with the row named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from study.errors import InputError
from study.fitting.catalogue import LAWS
from study.fitting.expressions import evaluate
from study.fitting.observations import Observations
from study.fitting.reading import Source, read_observations
from tests.points import TRUTHS, columns_of
from tests.synthetic import depth_or_width

CHINCHILLA = LAWS["chinchilla"]
ROLES = {"parameters": "Model Size", "tokens": "tok", "loss": "final/loss"}


def table(rows: int = 20) -> pd.DataFrame:
    columns = columns_of(CHINCHILLA, rows)
    loss = CHINCHILLA.predict(TRUTHS["chinchilla"], columns)
    run = [f"run {row // 2}" for row in range(rows)]
    return pd.DataFrame({"Model Size": columns["parameters"], "tok": columns["tokens"], "final/loss": loss, "run": run})


def read(path: Path, data: pd.DataFrame, **source: Any) -> Observations:
    data.to_csv(path / "t.csv", index=False)
    return read_observations(Source(path / "t.csv", **{"roles": ROLES, **source}), CHINCHILLA)


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
    points = read_observations(Source(path, ROLES), CHINCHILLA)
    np.testing.assert_allclose(points.response, data["final/loss"], rtol=1e-12)
    np.testing.assert_allclose(points.columns["parameters"], data["Model Size"], rtol=1e-12)


def test_columns_may_be_expressions_of_columns_and_symbols(tmp_path: Path) -> None:
    data = table().assign(**{"Training FLOP": lambda t: 6 * t["Model Size"] * t["tok"]})
    for tokens in ("C/(6*N)", "`Training FLOP`/(6*`Model Size`)", "Training FLOP/(6*Model Size)"):
        points = read(tmp_path, data, roles={**ROLES, "flops": "Training FLOP", "tokens": tokens})
        np.testing.assert_allclose(points.columns["tokens"], data["tok"], rtol=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "a.__class__",
        "(1).real",
        "[x for x in a]",
        "lambda: 1",
        "a if a else a",
        "a;b",
        "a[0]",
    ],
)
def test_expressions_are_arithmetic_and_nothing_else(text: str) -> None:
    columns = {"a": pd.Series([1.0, 2.0])}

    def column(name: str) -> Any:
        if name not in columns:
            raise InputError.at("t.csv", f"has no column {name!r}")
        return columns[name]

    with pytest.raises(InputError):
        evaluate(text, column, "--tokens")


def test_conditions_keep_rows(tmp_path: Path) -> None:
    data = table()
    points = read(tmp_path, data, where="`final/loss` < 2.5 and run != 'run 3'")
    kept = (data["final/loss"] < 2.5) & (data["run"] != "run 3")
    assert len(points) == kept.sum()
    assert {gone.reason for gone in points.excluded} == {"left out by `final/loss` < 2.5 and run != 'run 3'"}


def test_missing_infinite_and_repeated_rows_are_left_out_with_reasons(tmp_path: Path) -> None:
    data = table()
    data["tok"] = data["tok"].astype(object)
    data.loc[0, "final/loss"] = np.nan
    data.loc[1, "tok"] = "-"
    data.loc[2, "Model Size"] = np.inf
    points = read(tmp_path, pd.concat([data, data.iloc[[5]]]))
    assert [(gone.row, gone.reason) for gone in points.excluded] == [
        ("row 1", "final/loss is missing"),
        ("row 2", "tok is missing"),
        ("row 3", "Model Size is infinite"),
        ("row 21", "repeats an earlier row"),
    ]
    assert len(points) == 17


def test_clusters_follow_their_column(tmp_path: Path) -> None:
    assert read(tmp_path, table(), cluster="run").runs == 10
    assert read(tmp_path, table()).runs == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"final/loss": -1.0}, "loss: must be positive, but is not in row 1 (-1)"),
        ({"Model Size": 0.0}, "parameters: must be positive, but is not in row 1 (0)"),
        ({"final/loss": "high"}, "final/loss: holds 1 value that are no numbers (row 1: 'high')"),
    ],
)
def test_impossible_values_are_refused_with_their_rows(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    data = table().astype(dict.fromkeys(change, object))
    for name, value in change.items():
        data.loc[0, name] = value
    with pytest.raises(InputError) as refused:
        read(tmp_path, data)
    assert message in str(refused.value)


def test_units_that_look_wrong_are_asked_about(tmp_path: Path) -> None:
    millions = table()
    millions["Model Size"] /= 1e6
    with pytest.raises(InputError, match=r"too small to be a count .*--parameters '1e6\*`Model Size`'"):
        read(tmp_path, millions)
    assert len(read(tmp_path, millions, roles={**ROLES, "parameters": "1e6*`Model Size`"})) == 20
    perplexity = table()
    perplexity["final/loss"] = np.exp(perplexity["final/loss"] + 1)
    with pytest.raises(InputError, match="a perplexity, not nats"):
        read(tmp_path, perplexity)
    assert len(read(tmp_path, perplexity, any_units=True)) == 20
    bits = read(tmp_path, table().rename(columns={"final/loss": "bits"}), roles={**ROLES, "loss": "bits"})
    assert "looks like bits" in bits.warnings[0]


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ({"parameters": "Model Sise"}, "has no column 'Model Sise'; did you mean 'Model Size'?"),
        ({"tokens": "run*2"}, "column 'run' holds text"),
        ({"tokens": "6*7"}, "names no column"),
        ({"tokens": "D"}, "has no column 'D'"),
    ],
)
def test_wrong_columns_are_told(tmp_path: Path, roles: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, table(), roles={**ROLES, **roles})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", None, "does not exist"),
        ("t.xls", b"x", "is none of .csv"),
        ("t.csv", b"", "cannot be read"),
        ("t.csv", b"a,b\n", "has no rows"),
        ("t.parquet", b"PAR1garbage", "cannot be read as parquet"),
        ("t.jsonl", b"{not json", "cannot be read as jsonl"),
        ("t.csv", b"\xff\xfe\x00\x01", "cannot be read"),
    ],
)
def test_files_that_are_no_tables_are_told(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_observations(Source(tmp_path / name), CHINCHILLA)


def test_a_ledger_brings_its_columns_and_leaves_out_worse_rates(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made_up", seeds=2)
    folder.write_ledger()
    points = read_observations(Source(folder.path), CHINCHILLA)
    assert {gone.reason for gone in points.excluded} == {"not at the best learning rate of its cell"}
    assert len(points) == 6 * 2 * 2
