"""The Python interface: each call does what its command does, and imports no more than it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import study.api
from study.api import Architecture, RunConfig, Sweep, fit, launch, load_ledger, report, train
from study.base.errors import InputError
from study.base.machine import SHORT_SPIN, WAITING
from study.counting.parameters import parameters
from study.laws.catalogue import LAWS
from tests.points import TRUTHS, columns_of
from tests.small import config_values, losses, write_corpus
from tests.small import trained as trained_by_the_engine

REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "size_and_tokens"


def test_every_name_is_that_of_its_room() -> None:
    assert set(study.api.HOMES) == set(study.api.__all__) == set(dir(study.api))
    for name, home in study.api.HOMES.items():
        assert getattr(study.api, name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        study.api.nothing  # noqa: B018


def test_counting_and_fitting_need_no_torch_and_no_figure(tmp_path: Path) -> None:
    columns = columns_of(LAWS["power"], 20)
    loss = LAWS["power"].predict(TRUTHS["power"], columns)
    pd.DataFrame({**columns, "loss": loss}).to_csv(tmp_path / "their.csv", index=False)
    code = f"""import sys; from study.api import Architecture, fit, load_ledger, report
fit({str(tmp_path / "their.csv")!r}, "power", bootstrap=0)
print(*sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "pytorch_lightning", "optuna", "wandb", "matplotlib"} & set(done.stdout.split())


def test_a_run_is_trained_once_and_as_by_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WAITING:
        monkeypatch.setenv(name, "")  # so that it is as before in the end
        monkeypatch.delenv(name)
    write_corpus(tmp_path / "text.txt")
    config = RunConfig.parse(config_values(tmp_path / "text.txt"))
    record = train(config, tmp_path / "mine", device="cpu", threads=1)
    assert (record.state, record.steps) == ("COMPLETED", 30)
    assert {name: os.environ[name] for name in WAITING if name in os.environ} == SHORT_SPIN
    engine = trained_by_the_engine(tmp_path / "engine", config)
    assert record.loss_nats == getattr(engine.record(), "loss_nats", None)
    assert len(losses(engine)) > 1
    assert train(config, tmp_path / "mine").finished_at == record.finished_at


def test_a_sweep_is_launched_and_its_ledger_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("study.report.answer.FIGURES", {})
    write_corpus(tmp_path / "text.txt")
    values = config_values(tmp_path / "text.txt")
    sweep = Sweep.parse(
        {
            "name": "two",
            "question": "Do two seeds differ?",
            "data": values["data"],
            "base": {"recipe": {"batch_tokens": 128, "precision": "fp32"}},
            "shapes": {"list": [{"depth": 1, "width": 64}]},
            "budgets": {"steps": [4]},
            "seeds": 2,
        }
    )
    answer = launch(sweep, tmp_path / "results", device="cpu")
    ledger = load_ledger(tmp_path / "results" / "two")
    assert ledger["seed"].tolist() == [0, 1] or sorted(ledger["seed"]) == [0, 1]
    assert (ledger["state"] == "COMPLETED").all()
    assert report(tmp_path / "results" / "two").to_markdown() == answer.to_markdown()


def test_a_law_is_recovered_from_a_dataframe_and_from_a_file(tmp_path: Path) -> None:
    columns = columns_of(LAWS["chinchilla"], 30)
    loss = LAWS["chinchilla"].predict(TRUTHS["chinchilla"], columns)
    table = pd.DataFrame({"N": columns["parameters"], "D": columns["tokens"], "loss": loss})
    table.to_csv(tmp_path / "their.csv", index=False)
    for source in (table, tmp_path / "their.csv"):
        fitted = fit(source, "chinchilla", parameters="N", tokens="D", loss="loss", bootstrap=0).fit
        for name, truth in TRUTHS["chinchilla"].items():
            assert np.isclose(fitted.estimates[name], truth, rtol=1e-3), name
    with pytest.raises(InputError, match="missing"):
        fit(table, "chinchilla", parameters="missing", tokens="D", loss="loss")


VALID: dict[str, Any] = {"table": pd.DataFrame({"N": [1.0]}), "law": "chinchilla"}
"""Arguments of a fit, all of their types."""


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({"table": 3}, ["table: is 3; give a DataFrame, or the path of a table or of a sweep's folder"]),
        ({"table": {"N": [1]}}, ["table: is {'N': [1]}; give a DataFrame, or the path of a table or of a sweep's folder"]),
        ({"law": 3}, ["law: is 3; give the name of a law, or its formula"]),
        ({"bootstrap": -1}, ["bootstrap: -1 is below the least allowed, 0"]),
        (
            {"bootstrap": 2.5, "where": 3, "loss": 4},
            [
                "where: is 3; give a condition on rows",
                "bootstrap: is 2.5; give a number of resamples",
                "loss: is 4; give the name of a column, or an expression of columns",
            ],
        ),
    ],
)
def test_a_fit_of_wrong_arguments_says_what_it_takes(arguments: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        fit(**{**VALID, **arguments})
    assert str(refused.value).splitlines() == problems


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"device": "gpu"}, "device: 'gpu' is not one of cpu, cuda; did you mean 'cpu'?"),
        ({"threads": "one"}, "threads: 'one' is not a whole number"),
        ({"threads": 0}, "threads: 0 is below the least allowed, 1"),
        ({"thread": 1}, "thread: is not a known key; did you mean 'threads'?"),
        ({"devices": 0}, "devices: 0 is below the least allowed, 1"),
        ({"kernels": "fast"}, "kernels: 'fast' is not one of eager, onednn, compiled, graphed, auto"),
        ({"validations": 1.5}, "validations: 1.5 is not a whole number"),
        ({"checkpoint_seconds": -1}, "checkpoint_seconds: -1 is below the least allowed, 0"),
        ({"hang_seconds": "x"}, "hang_seconds: 'x' is not a number"),
        ({"devices": 2}, "devices: 2 need a process each, and train is this one alone; use launch, which starts them"),
        ({"nodes": 2}, "nodes: 2 need a process each, and train is this one alone; use launch, which starts them"),
        ({"config": {}}, "config: is {}; give what RunConfig.parse returns"),
        ({"folder": None}, "folder: is None; give the path of a folder"),
    ],
)
def test_a_training_of_wrong_arguments_leaves_no_record(arguments: dict[str, Any], problem: str, tmp_path: Path) -> None:
    config = RunConfig.parse(config_values(write_corpus(tmp_path / "text.txt")))
    with pytest.raises(InputError) as refused:
        train(**{"config": config, "folder": tmp_path / "mine", "device": "cpu", **arguments})
    assert str(refused.value) == problem
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({"folder": None}, ["folder: is None; give the path of a sweep's folder"]),
        ({"formats": "png"}, ["formats: is 'png'; give a list of formats"]),
        ({"formats": ["png", "gif"]}, ["formats[1]: is 'gif'; give one of svg, pdf, png, csv"]),
        (
            {"style": "poster", "page": 3, "include_unbracketed": "no"},
            [
                "include_unbracketed: is 'no'; give True or False",
                "style: is 'poster'; give one of page, paper",
                "page: is 3; give the path of an HTML file",
            ],
        ),
    ],
)
def test_a_report_of_wrong_arguments_writes_nothing(
    arguments: dict[str, Any], problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("study.report.answer.report", lambda *_: pytest.fail("it wrote"))
    with pytest.raises(InputError) as refused:
        report(**{"folder": REFERENCE, **arguments})
    assert str(refused.value).splitlines() == problems


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: Sweep.parse(3), "values: is 3; give keys and values, as a sweep file holds them"),  # type: ignore[arg-type]
        (lambda: Sweep.read(3), "path: is 3; give the path of a sweep file, or a shipped sweep's name"),  # type: ignore[arg-type]
        (lambda: Sweep.read("norm", 3), "overrides[0]: is 3; give text, such as 'seeds=3'"),  # type: ignore[arg-type]
        (lambda: launch("mine"), "sweep: is 'mine'; give what Sweep.read or Sweep.parse returns"),  # type: ignore[arg-type]
        (lambda: launch(Sweep.read("norm"), None), "results: is None; give the path of a folder"),  # type: ignore[arg-type]
        (lambda: load_ledger(None), "folder: is None; give the path of a sweep's folder"),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_type_is_refused(call: Callable[[], object], problem: str) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert str(refused.value) == problem


def test_a_committed_ledger_loads() -> None:
    ledger = load_ledger(REFERENCE)
    assert {"run_id", "loss_nats", "exclusion", "architecture.depth"} <= set(ledger.columns)
    with pytest.raises(InputError):
        load_ledger(REFERENCE / "nothing")


def test_an_architecture_counts() -> None:
    bert = Architecture(depth=12, width=768, heads=12, ffn=3072, vocabulary=30522)
    assert parameters(bert).parameters_encoder == 108_891_648
