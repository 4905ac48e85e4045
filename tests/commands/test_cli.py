"""The command line: help, versions, counts and reports, and bad input reported in full."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
import yaml
from click.shell_completion import ShellComplete

from study.cli import HOMES, TITLES, commands
from study.commands.options import FiniteRange, OutputFolder
from study.commands.sweeps import TEMPLATE
from study.config.sweep_files import read_sweep
from study.laws.catalogue import LAWS
from study.planning.plan import Plan
from study.report.figures import FIGURES
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.tasks.task_spec import known_tasks
from tests.points import TRUTHS, columns_of
from tests.synthetic import SWEEP, add_run, depth_or_width, in_setting, run_config, sweep_folder

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [name for names in HOMES.values() for name in names]
CONVENTIONS = {"train_flops", "train_flops_dense_head", "train_flops_6n", "train_flops_6n_non_embedding"}


def test_help_names_every_command(study: Any) -> None:
    status, out, _ = study("--help")
    assert status == 0
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("home", HOMES)
def test_every_command_of_a_module_is_named_where_it_is_looked_for(home: str) -> None:
    defined = vars(import_module(f"study.commands.{home}")).values()
    assert {command.name for command in defined if isinstance(command, click.Command)} == {*HOMES[home]}


def test_the_summary_of_every_command_is_whole_at_80_columns(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = study("--help")
    groups = out.partition(f"{TITLES['sweeps']}:\n")[2].splitlines()
    summaries = [line for line in groups if line.startswith("  ")]
    assert len(summaries) == len(COMMANDS), "one line each"
    assert not [line for line in summaries if line.endswith("...") or len(line) > 80]


def test_a_new_sweep_file_can_be_planned_and_replaces_none(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = study("new", "mine")
    assert (status, out) == (0, "mine.yaml: edit its question and values, then: study plan mine.yaml\n")
    spec, _ = read_sweep(Path("mine.yaml"))
    assert spec.name == "mine"
    assert len(Plan(spec).cells) == 6, "three depths at two budgets"
    Path("mine.yaml").write_text("mine")
    assert study("new", "mine")[::2] == (2, "error: mine.yaml: exists, and no file is overwritten; give another name\n")
    assert Path("mine.yaml").read_text() == "mine"
    assert study("new", "nowhere/mine")[2] == "error: nowhere: is not a folder; create it first\n"
    assert study("new", "norms", "--like", "norm")[0] == 0
    assert Path("norms.yaml").read_text() == (ROOT / "sweeps" / "norm.yaml").read_text()
    assert "NAME: 'my own' cannot name a folder" in study("new", "my own")[2]
    Path("norms.yaml").rename("my own.yaml")
    assert "name: 'my own' cannot name a folder: letters" in study("plan", "my own.yaml")[2]
    assert study("plan", "my own.yaml", "name=mine")[0] == 0
    assert study("new", "more", "--like", "nrom")[2] == "error: --like: 'nrom' is not known; did you mean 'norm'?\n"


@pytest.mark.parametrize("key", ["vary", "downstream", "resources"])
def test_what_a_new_sweep_file_offers_can_be_planned(key: str, tmp_path: Path) -> None:
    text = TEMPLATE.read_text()
    offered = text.replace(f"\n# {key}:", f"\n{key}:")
    assert offered != text
    (file := tmp_path / "mine.yaml").write_text(offered)
    spec, _ = read_sweep(file)
    assert len(Plan(spec).cells) == 6 * (2 if key == "vary" else 1)


def test_a_notebook_is_listed_copied_and_opened_on_a_folder(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = study("notebook")[1]
    assert "scaling_laws\n    How the loss of a sweep falls with parameters and tokens" in out
    assert "dashboard" not in out
    assert study("notebook", "scaling_law")[2] == "error: NAME: 'scaling_law' is not known; did you mean 'scaling_laws'?\n"
    copy = tmp_path / "mine.py"
    assert study("notebook", "scaling_laws", "--into", copy)[1] == f"{copy}: marimo edit {copy}\n"
    assert copy.read_text() == (ROOT / "analysis" / "scaling_laws.py").read_text()
    assert "exists, and no file is overwritten" in study("notebook", "scaling_laws", "--into", copy)[2]
    monkeypatch.setattr("study.commands.sweeps.find_spec", lambda _: None)
    assert "needs marimo: pip install 'scaling-study[notebooks]'" in study("notebook", "scaling_laws")[2]
    monkeypatch.setattr("study.commands.sweeps.find_spec", lambda _: True)
    opened: list[tuple[list[str], str | None]] = []

    def run(words: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        opened.append((words[1:], env.get("STUDY_RESULTS")))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.delenv("STUDY_RESULTS", raising=False)
    assert "--folder: 'results/nope' is not a folder" in study("notebook", "scaling_laws", "--folder", "results/nope")[2]
    monkeypatch.chdir(tmp_path)
    Path("results/lr=1e-3").mkdir(parents=True)
    study("notebook", "scaling_laws", "--folder", "results/lr=1e-3")
    study("notebook", "scaling_laws")
    marimo = ["-m", "marimo", "run", "--token", f"{ROOT}/analysis/scaling_laws.py"]
    assert opened == [(marimo, "results/lr=1e-3"), (marimo, None)]


def test_shipped_sweeps_and_tasks_are_listed(study: Any) -> None:
    sweeps = json.loads(study("sweeps", "--json")[1])
    assert {Path(sweep["file"]) for sweep in sweeps} == {*(ROOT / "sweeps").glob("*.yaml")}
    listed = " ".join(study("sweeps")[1].split())
    assert all(f"{sweep['name']} {sweep['question']}" in listed for sweep in sweeps)
    tasks = json.loads(study("tasks", "--json")[1])
    assert [task["task"] for task in tasks] == known_tasks()
    assert "cola: single, matthews, accuracy" in study("tasks")[1]


@pytest.mark.parametrize("name", ["laws", "notebook", "sweeps", "tasks"])
def test_what_is_listed_is_as_wide_as_the_terminal(study: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    words = study(name)[1].split()
    assert [line for line in study(name)[1].splitlines() if len(line) > 60] == []
    monkeypatch.delenv("COLUMNS")
    assert study(name)[1].split() == words


@pytest.mark.parametrize(
    ("name", "message"), [("lanch", "unknown command 'lanch'; did you mean 'launch'?"), ("xyzzy", "'xyzzy'")]
)
def test_an_unknown_command_is_reported_with_the_nearest_name(study: Any, name: str, message: str) -> None:
    status, _, err = study(name)
    assert status == 2
    assert message in err
    assert ("did you mean" in err) == (name == "lanch")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_in_80_columns(study: Any, name: str) -> None:
    for flag in ("-h", "--help"):
        status, out, _ = study(name, flag)
        assert status == 0
        assert out.startswith(f"Usage: study {name}")
        assert [line for line in out.splitlines() if len(line) > 80 or re.search(r"None]|<function|\d{7}", line)] == []


def parameters_of(name: str) -> list[click.Parameter]:
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    return command.params


def test_where_to_write_has_one_name_in_every_command() -> None:
    given = [parameter for name in COMMANDS for parameter in parameters_of(name)]
    writing = [parameter for parameter in given if isinstance(parameter.type, OutputFolder)]
    assert len(writing) > 5
    assert {tuple(parameter.opts) for parameter in writing} == {("--into",)}
    others = [parameter for parameter in given if parameter.name != "methods"]  # study compress --to says what a run becomes
    assert not {"--out", "--output", "--to", "-o"} & {flag for parameter in others for flag in parameter.opts}


def test_where_sweeps_are_has_one_name_in_every_command() -> None:
    given = {name: {parameter.name: parameter for parameter in parameters_of(name)} for name in COMMANDS}
    reading = {name: parameters["results"] for name, parameters in given.items() if "results" in parameters}
    assert {"plan", "launch", "demo", "exclude", "export", "features", "params"} <= reading.keys()
    assert len({(*parameter.opts, parameter.default, getattr(parameter, "help", "")) for parameter in reading.values()}) == 1
    assert not {"into"} & {name for command in ("plan", "launch", "demo") for name in given[command]}, "a launch goes on there"


@pytest.mark.parametrize(
    ("words", "begun", "completions"),
    [
        ([], "la", {"laws", "launch", "latency"}),
        (["params"], "bert-t", {"bert-tiny"}),
        (["compare", "bert-base"], "roberta-b", {"roberta-base"}),
        (["fit", "t.csv", "--law"], "chinchilla-t", {"chinchilla-tied"}),
        (["score", "x", "--tasks"], "cola,ss", {"cola,sst2"}),
        (["launch"], "depth_c", {"depth_curve"}),
        (["new", "--like"], "demo", {"demo"}),
        (["notebook"], "scal", {"scaling_laws"}),
        (["report"], "results/m", {"results/mine"}),
        (["open"], "results/m", {"results/mine"}),
        (["exclude"], "", {"0123456789abcdef"}),
        (["retry", "results/mine"], "0", {"0123456789abcdef"}),
        (["retry", "results/other"], "", set()),
        (["features", "--results", "results"], "01", {"0123456789abcdef"}),
        (["bench", "--only"], "la", {"laws"}),
    ],
)
def test_tab_completes_commands_and_names(
    words: list[str], begun: str, completions: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep_folder(Path("results/mine")).run("0123456789abcdef").path.mkdir(parents=True)
    (Path("results/mine/runs/0123456789abcdef") / "config.yaml").write_text("")
    sweep_folder(Path("results/other"))
    offered = ShellComplete(commands, {}, "study", "_STUDY_COMPLETE").get_completions(words, begun)
    assert {item.value for item in offered if item.type == "plain"} == completions


def test_version_is_that_of_the_distribution(study: Any) -> None:
    assert study("--version") == (0, f"study, version {version('scaling-study')}\n", "")


def test_the_package_is_the_command(study: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "study"]
    done = subprocess.run([*command, "params", "bert-base", "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == study("params", "bert-base", "--json")[:2]
    mistyped = subprocess.run([*command, "lanch"], capture_output=True, text=True, cwd=tmp_path)
    assert mistyped.returncode == 2
    assert "did you mean 'launch'?" in mistyped.stderr


def test_params_as_json_has_totals_components_and_conventions(study: Any) -> None:
    status, out, _ = study("params", "bert-base", "--json")
    counted = json.loads(out)
    assert status == 0
    assert counted["parameters"] == {
        "encoder": 108_891_648,
        "encoder_with_pooler": 109_482_240,
        "mlm_tied": 109_514_298,
        "mlm_untied": 132_985_716,
        "non_embedding": 85_056_000,
    }
    assert sum(counted["components"].values()) == counted["parameters"]["mlm_tied"]
    assert counted["flops_per_token"].keys() == CONVENTIONS


def test_a_model_of_few_positions_is_counted_at_all_it_has(study: Any, tmp_path: Path) -> None:
    """A run on sequences of 64 tokens has as many positions; a length that is asked for is taken at its word."""
    run = RunFolder(tmp_path / "toy" / "runs" / ("a" * 16))
    run.write_config(run_config(2, 64))
    counted = json.loads(study("params", run.path, "--json")[1])
    assert counted["sequence_length"] == run.config().architecture.positions == 64
    assert json.loads(study("params", "bert-tiny", "--json")[1])["sequence_length"] == 128
    assert study("compare", run.path, "bert-tiny")[0] == 0
    status, _, err = study("params", run.path, "--sequence-length", "128")
    assert status == 2
    assert "128 is not between 1 and positions 64" in err


def test_counts_on_the_command_line_take_the_prefixes_of_files(study: Any) -> None:
    def asked(*numbers: object) -> Any:
        options = ("--width", "--vocabulary", "--batch", "--sequence-length")
        pairs = [part for pair in zip(options, numbers, strict=True) for part in pair]
        return json.loads(study("params", "--depth", 2, "--positions", "1K", *pairs, "--json")[1])

    assert asked("1.024K", "16.1K", "1k", "1e3") == asked(1024, 16100, 1000, 1000)


def test_numbers_on_the_command_line_take_separators_and_prefixes_too() -> None:
    number = FiniteRange(0, 5000, min_open=True)
    assert [number.convert(text, None, None) for text in ("1,000.5", "2k", "1e-3")] == [1000.5, 2000.0, 0.001]
    for text, message in {"2%": "'2%' is not a valid number", "nan": "not finite", "0": "not in the range"}.items():
        with pytest.raises(click.BadParameter, match=message):
            number.convert(text, None, None)


def test_params_as_text_is_for_readers(study: Any) -> None:
    _, out, _ = study("params", "--depth", 2, "--width", 128)
    assert out.startswith("L2-H128-A2-F512\n")
    assert "4,416,698" in out
    assert all(name in out for name in CONVENTIONS)
    assert "128 tokens a sequence, 19 of them masked" in out


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (
            ("params", "bert-bse"),
            ["error: bert-bse: is not a known model, a file or a run in results; did you mean 'bert-base'?"],
        ),
        (("params",), ["error: --depth: is missing"]),
        (
            ("params", "bert-base", "--depth", 0, "--heads", 7),
            ["error: bert-base.depth: 0 is below", "error: bert-base.heads: 7 heads"],
        ),
        (
            ("params", "bert-base", "--sequence-length", 513),
            ["error: --sequence-length: 513 is not between 1 and positions 512"],
        ),
        (("params", "bert-base", "--deph", 2), ["No such option", "--depth"]),
        (("report", "nowhere"), ["error: nowhere: is not a sweep folder: it has no sweep.yaml"]),
        (("lanch",), ["unknown command 'lanch'; did you mean 'launch'?"]),
    ],
)
def test_bad_input_is_reported_in_full_with_status_2(study: Any, arguments: tuple[object, ...], messages: list[str]) -> None:
    status, out, err = study(*arguments)
    assert (status, out) == (2, "")
    assert all(message in err for message in messages), err


def test_a_usage_error_shows_arguments_without_their_control_characters(study: Any) -> None:
    status, _, err = study("status", "one", "ot\x1b]0;owned\x07h\u202eer")
    assert (status, err.splitlines()[-1]) == (2, "Error: Got unexpected extra argument (ot]0;ownedher)")


def test_report_prints_the_headline_and_where_the_answer_is(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("study.report.answer.FIGURES", {"learning_rate": FIGURES["learning_rate"]})
    folder = depth_or_width(tmp_path / "made_up", budgets=(1e6,), shapes=((1, 128), (2, 92)))
    status, out, _ = study("report", folder.path)
    assert status == 0
    assert "Width lowers loss more at equal non-embedding parameters: L1-H128" in out
    assert str(folder.answer_file) in out
    _, out, _ = study("report", folder.path, "--json")
    assert json.loads(out)["headline"].startswith("Width lowers loss more at equal non-embedding parameters: ")


def test_a_multiverse_of_shape_refuses_what_only_a_table_has(study: Any, tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made_up", budgets=(1e6,), shapes=((1, 128), (2, 92)))
    folder.write_ledger()
    status, out, err = study("multiverse", folder.path, "--where", "loss < 3", "--any-units")
    assert (status, out) == (2, "")
    assert "error: --where, --any-units: is only for tables" in err
    (tmp_path / "t.csv").write_text("N,D,loss\n1e6,1e8,3\n")
    assert study("multiverse", tmp_path / "t.csv", "--ask", "shape")[::2] == (
        2,
        f"error: {tmp_path / 't.csv'}: is not a sweep folder, which --ask shape needs; for a table use --ask compute\n",
    )


def test_a_multiverse_of_a_sweep_that_no_question_fits_says_why(study: Any, tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made_up", budgets=(1e6,), shapes=((1, 128), (2, 128)))
    folder.write_ledger()
    status, out, err = study("multiverse", folder.path)
    assert (status, out) == (2, "")
    shape, compute = err.splitlines()
    why = "cannot compare depth and width: no two depths were trained at equal parameters and different width or FFN"
    assert shape == f"error: shape: {why}"
    assert compute.startswith("error: compute: the best split is undetermined: all ")
    assert " rows have the same tokens (" in compute
    assert study("multiverse", folder.path, "--ask", "compute")[2] == f"{compute}\n"
    folder.sweep_file.write_text(yaml.safe_dump(SWEEP | {"vary": {"architecture.norm": ["post", "pre"]}}))
    message = study("multiverse", folder.path)[2].splitlines()[0]
    assert message == f"error: shape: {why}; --ask architecture.norm compares variants"


def test_a_multiverse_of_a_knob_has_an_item_and_a_folder_for_each_two_values(study: Any, tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "made_up", SWEEP | {"vary": {"architecture.norm": ["post", "pre"]}})
    for norm, seed, rate in product(("post", "pre"), (0, 1), (2e-3, 4e-3, 8e-3)):
        add_run(folder, in_setting(run_config(1, 64, rate, seed), norm=norm))
    folder.write_ledger()
    ask = ("multiverse", folder.path, "--ask", "architecture.norm")
    status, out, _ = study(*ask, "--into", tmp_path / "figures", "--json")
    assert status == 0
    (asked,) = json.loads(out)
    assert asked["universes"] == asked["answered"] == 1
    kept = tmp_path / "figures" / "norm=post-or-norm=pre"
    assert {file.name for file in kept.iterdir()} == {"multiverse.json", "answer_by_convention.svg"}
    assert json.loads((kept / "multiverse.json").read_text()) == asked
    assert study(*ask)[1].startswith("At equal size and budget, which lowers the loss: norm=post or norm=pre?\n")
    assert study(*ask, "--where", "loss < 3")[2].startswith("error: --where: is only for tables")
    assert study("multiverse", tmp_path, "--ask", "norm")[2].endswith("did you mean 'architecture.norm'?\n")


def test_fit_prints_json_with_its_status_and_forecast(study: Any, tmp_path: Path) -> None:
    law = LAWS["chinchilla"]
    columns = columns_of(law, 60)
    noise = np.random.default_rng(0).normal(0, 0.002, 60)
    loss = law.predict(TRUTHS["chinchilla"], columns) * np.exp(noise)
    table = pd.DataFrame({"Model Size": columns["parameters"], "D": columns["tokens"], "loss": loss, "run_name": range(60)})
    table.loc[7, "loss"] = np.nan
    table.to_csv(tmp_path / "table.csv", index=False)
    arguments = ("fit", tmp_path / "table.csv", "--law", "chinchilla", "--parameters", "Model Size", "--tokens", "D")
    options = ("--loss", "loss", "--where", "loss < 4", "--cluster", "run_name", "--huber-delta", "1e-3", "--bootstrap", 200)
    status, out, _ = study(*arguments, *options, "--json")
    answer = json.loads(out)
    assert status == 0
    assert (answer["law"], answer["status"]) == ("chinchilla", "converged")
    assert answer["n"] + len(answer["excluded"]) == 60
    assert {"row": "row 8", "reason": "loss is missing"} in answer["excluded"]
    assert answer["estimates"].keys() == answer["intervals"].keys() == {"E", "A", "B", "alpha", "beta"}
    assert answer["forecast"]["n_forecast"] == round(0.1 * answer["n"])
    status, out, _ = study(*arguments, *options)
    assert status == 0
    assert "status: converged" in out
    assert " beyond the budgets fitted, up to " in out


def test_a_folder_that_cannot_be_written_is_named(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "ledger.csv"))

    monkeypatch.setattr(SweepFolder, "write_ledger", full)
    status, _, errors = study("report", sweep_folder(tmp_path / "s").path)
    assert status == 2
    remedy = "free some space there, and run the command again"
    assert errors == f"error: {tmp_path / 'ledger.csv'}: No space left on device; {remedy}\n"


def test_closed_streams_lead_nowhere() -> None:
    """Python leaves them out, and the next file would get the number of standard output."""
    words = [sys.executable, "-m", "study", "params", "bert-tiny"]
    done = subprocess.run(["sh", "-c", '"$@" >&- <&-', "sh", *words], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_full_standard_error_ends_no_command(tmp_path: Path) -> None:
    """Progress goes there, which nobody waits for."""
    words = [sys.executable, "-m", "study", "sync", str(sweep_folder(tmp_path / "s").path)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert (done.returncode, done.stdout.partition(",")[0]) == (0, "0 runs mirrored now")
