"""The searches of a sweep as Optuna studies: what is stored is what was run, and Optuna's analyses read it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import optuna
import pytest
from optuna.trial import TrialState

from study.base.errors import InputError
from study.config.sweep import SearchSweep
from study.planning.optuna_mirror import mirror
from study.planning.plan import searched_config
from study.store.sweep_folder import SweepFolder
from tests.synthetic import SWEEP, Law, add_run, depth_or_width, run_config, sweep_folder
from tests.waiting import until

SEARCH = {
    "trials": 20,
    "space": {
        "architecture.depth": {"low": 1, "high": 4},
        "recipe.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    },
}


def searched(path: Path) -> SweepFolder:
    """A search whose loss falls with depth, with a failed, a pruned and an excluded run."""
    plain = {key: value for key, value in SWEEP.items() if key not in ("shapes", "tune", "seeds")}
    shared = {"base": {"architecture": {"width": 64}}, "budgets": {"tokens": [1e6]}, "search": SEARCH}
    folder = sweep_folder(path, plain | shared)
    spec = folder.sweep()
    assert isinstance(spec, SearchSweep)
    ends: dict[int, dict[str, Any]] = {1: {"state": "OOM"}, 2: {"state": "PRUNED"}, 3: {"excluded": "a bad disk"}}
    for index in range(12):
        point = {"architecture.depth": 1 + index % 4, "recipe.learning_rate": 1e-3 * (1 + index)}
        add_run(folder, searched_config(spec, point), Law(), **ends.get(index, {}))
    return folder


@pytest.mark.slow
def test_a_search_is_one_study_that_importances_can_be_computed_of(tmp_path: Path) -> None:
    folder, storage = searched(tmp_path / "found"), f"sqlite:///{tmp_path}/found.db"
    assert mirror(folder, storage).added == 12
    study = optuna.load_study(study_name="found", storage=storage)
    records = {record.run_id: record for record in folder.records()}
    assert {trial.user_attrs["run_id"] for trial in study.trials} == {*records}
    for trial in study.trials:
        record = records[trial.user_attrs["run_id"]]
        assert trial.params == record.config.values_of(SEARCH["space"])  # type: ignore[arg-type]
        assert trial.value == (record.loss_nats if trial.state == TrialState.COMPLETE else None)
        assert trial.intermediate_values
        assert trial.duration is not None
        assert trial.duration.total_seconds() == 60
    states = [trial.state for trial in study.trials]
    assert [states.count(state) for state in (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED)] == [9, 2, 1]
    assert {*optuna.importance.get_param_importances(study)} == {*SEARCH["space"]}  # type: ignore[misc]
    losses = [record.loss_nats for record in records.values() if record.exclusion is None]
    assert study.best_value == min(loss for loss in losses if loss is not None)


@pytest.mark.slow
def test_the_dashboard_of_optuna_shows_a_mirrored_search_and_its_importances(tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed: make test")
    storage = f"sqlite:///{tmp_path}/found.db"
    mirror(searched(tmp_path / "found"), storage)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/api/studies"
    command = [sys.executable, "-c", "from optuna_dashboard._cli import main; main()", storage, "--port", str(port)]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as dashboard:
        try:
            until(lambda: answers(address), 60)
            (study,) = json.load(urlopen(address))["study_summaries"]
            assert study["study_name"] == "found"
            actual = json.load(urlopen(f"{address}/{study['study_id']}/param_importances"))["param_importances"]
        finally:
            dashboard.terminate()
    assert [{one["name"] for one in of_objective} for of_objective in actual] == [{*SEARCH["space"]}]  # type: ignore[misc]


def answers(address: str) -> bool:
    try:
        return bool(urlopen(address, timeout=5).status == 200)
    except URLError:
        return False


def test_each_tuned_cell_is_a_study_and_another_mirror_adds_what_has_ended_since(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "x", budgets=(1e6,), shapes=((1, 128), (2, 92)), rates=(2e-3, 4e-3), seeds=1)
    storage = f"sqlite:///{tmp_path}/x.db"
    done = mirror(folder, storage)
    assert done.studies == {"x: L1-H128-A2-F512 at 1M tokens": 2, "x: L2-H92-A2-F368 at 1M tokens": 2}
    assert done.added == 4
    add_run(folder, run_config(1, 128, rate=8e-3))
    assert mirror(folder, storage).added == 1
    study = optuna.load_study(study_name="x: L1-H128-A2-F512 at 1M tokens", storage=storage)
    assert sorted(trial.params["recipe.learning_rate"] for trial in study.trials) == [2e-3, 4e-3, 8e-3]


@pytest.mark.parametrize(("knob", "since"), [("warmup_tokens", 1e5), ("weight_decay", 0.1)])
def test_runs_without_a_value_of_a_knob_that_is_tuned_since_are_counted_and_left_out(
    study: Any, tmp_path: Path, knob: str, since: float
) -> None:
    """A run has no number of warmup tokens, or no weight decay, which no range of ratios holds."""
    tune = SWEEP["tune"] | {f"recipe.{knob}": {"low": since, "high": 2 * since, "trials": 2}}
    folder = sweep_folder(tmp_path / "x", SWEEP | {"tune": tune})
    earlier: dict[str, Any] = {} if knob == "warmup_tokens" else {knob: 0.0}
    now: dict[str, Any] = {knob: since}
    add_run(folder, run_config(1, 128, **earlier))
    add_run(folder, run_config(1, 128, **now))
    add_run(folder, run_config(2, 92, **earlier))
    status, out, err = study("optuna", folder.path, "--storage", f"sqlite:///{tmp_path}/x.db")
    assert status == 0, err
    assert out.splitlines()[:-1] == ["x: L1-H128-A2-F512 at 1M tokens: 1 trial"]
    assert err == "2 runs left out, without a value in the range of every knob\n"


def test_what_optuna_cannot_hold_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "x", budgets=(1e6,), shapes=((1, 128),), rates=(2e-3,), seeds=1)
    for storage, message in (
        ("x.db", "--storage: 'x.db' is not the URL of a database; write sqlite:///study.db"),
        (f"sqlite:///{tmp_path}/no/x.db", "--storage: .* cannot be opened: .*unable to open database file"),
    ):
        with pytest.raises(InputError, match=message):
            mirror(folder, storage)
    theirs = f"sqlite:///{tmp_path}/theirs.db"
    study = optuna.create_study(storage=theirs, study_name="x: L1-H128-A2-F512 at 1M tokens")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    with pytest.raises(InputError, match="that does not mirror this sweep; give another database"):
        mirror(folder, theirs)
    untuned = sweep_folder(tmp_path / "y", {key: value for key, value in SWEEP.items() if key != "tune"})
    with pytest.raises(InputError, match="has neither search nor tune"):
        mirror(untuned, storage)
