"""What a person tells a sweep from outside: to stop, to try runs again, to leave one out; and what they see of it meanwhile."""

from __future__ import annotations

import json
import os
import shlex
import threading
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pytest
import yaml
from rich.table import Table

from study.base.errors import InputError
from study.base.quantities import duration
from study.base.terminal import show
from study.config.resources import Resources
from study.config.run_config import RunConfig
from study.data.prepared import data_fingerprint
from study.planning.cost_estimate import cost_summary, estimate_cost
from study.planning.plan import Plan, cells, search_example
from study.running.control import exclude, include, retry, stop
from study.running.display import Signs, seconds_per_row, signs_of
from study.running.launch import another_question, plan
from study.running.run_proposer import run_line
from study.running.status import ANY_SLOT, MOST_LISTED, RunStatus, SweepStatus, status, status_summary, status_table, watched
from study.scoring.targets import single_run
from study.shapes.accounts import resolve_architecture
from study.store.ownership import Attempt, sweep_lock, work_lock
from study.store.records import FOREIGN, State, ledger
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from tests.fake_runs import FakeRun, empty_sweep
from tests.running.test_coordinator import CORPUS, FakeExecutor, RunProgress, completes, coordinator, run
from tests.sweeps import RATES, coordinator_of, record, search_sweep, sweep, sweep_values, texts_of, write_topics
from tests.synthetic import add_run, depth_or_width, run_config

TUNED: dict[str, Any] = {"shapes": {"grid": {"depth": [1]}}, "tune": RATES}

SHALLOW_AND_DEEP: dict[str, Any] = {"shapes": {"grid": {"depth": [1, 2]}}}


def sweep_at(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path / "results" / "toy")


def fails_when_deep(config: RunConfig, folder: RunFolder) -> int:
    if config.architecture.depth == 1:
        return completes(config, folder)
    state = "HUNG" if config.seed else "DIVERGED"
    ended = record(config, None, state, run_id=folder.run_id, reason=f"it {state.lower()}", attempts=1)  # type: ignore[arg-type]
    Attempt.begin(folder)
    assert folder.file_record(ended)
    return 0


def test_failed_runs_are_tried_again_and_their_records_kept(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor(fails_when_deep), seeds=2)
    folder = sweep_at(tmp_path)
    before = {one.run_id: folder.run(one.run_id).record_file.read_bytes() for one in folder.records()}
    (retried,) = retry(folder)
    assert (retried.state, retried.reason) == ("HUNG", "it hung")
    assert Path(retried.kept).read_bytes() == before[retried.run_id]
    assert json.loads(Path(retried.kept).with_name("0001.note.json").read_text()).keys() == {"by", "at"}
    again = FakeExecutor()
    run(tmp_path, again, seeds=2)
    assert again.submitted == [retried.run_id]
    diverged = next(one.run_id for one in folder.records() if one.state == "DIVERGED")
    assert retry(folder) == []
    assert [one.run_id for one in retry(folder, [diverged[:8]])] == [diverged]
    with pytest.raises(
        InputError, match="is completed, and so are its scores; to leave it out of the answer, use study exclude"
    ):
        retry(folder, [retried.run_id])
    with pytest.raises(InputError, match="has no record; the next launch resumes it anyway"):
        retry(folder, [diverged])
    with pytest.raises(InputError, match=r"'': matches [0-9]+ runs"):
        retry(folder, [""])
    with pytest.raises(InputError, match="matches no run"):
        retry(folder, ["zzzz"])


def test_a_sweep_that_is_being_run_is_not_told_to_retry(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor(fails_when_deep))
    done = threading.Event()
    ready = threading.Event()

    def hold() -> None:
        with sweep_lock(sweep_at(tmp_path).launching):
            ready.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    with pytest.raises(InputError, match="is being run by process"):
        retry(sweep_at(tmp_path))
    done.set()
    thread.join()


@pytest.mark.slow
def test_stop_lets_the_runs_save_wherever_the_coordinator_is(tmp_path: Path) -> None:
    folder, executor = sweep_at(tmp_path), FakeExecutor(lambda *_: 75, lingering=True)
    assert not stop(folder)
    stopped: list[bool] = []
    stopper = threading.Thread(target=lambda: stopped.append(stop(folder)))

    def refresh(progress: RunProgress) -> None:
        if len(progress.running) == 2 and not stopper.is_alive():
            stopper.start()

    with pytest.raises(KeyboardInterrupt), sweep_lock(folder.launching):
        coordinator(tmp_path).run(executor, refresh, refresh_seconds=10)
    stopper.join()
    assert stopped == [True]
    assert executor.signals == ["interrupt", "kill"]
    assert not folder.launching.stop_file.exists()
    assert len(run(tmp_path, FakeExecutor()).ended) == 2


def test_an_order_to_stop_that_nobody_took_is_not_for_the_next_launch(tmp_path: Path) -> None:
    folder = sweep_at(tmp_path)
    folder.path.mkdir(parents=True)
    folder.launching.stop_file.write_text("{}")  # its coordinator was killed
    with sweep_lock(folder.launching):
        assert not folder.launching.stop_file.exists()


def test_an_excluded_run_is_left_out_everywhere_and_its_record_stands(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor(), **TUNED, seeds=2)
    folder = sweep_at(tmp_path)
    best = min(folder.records(), key=lambda one: one.loss_nats or 9)
    content = folder.run(best.run_id).record_file.read_bytes()
    (changed,) = exclude(best.run_id[:6], folder.path.parent, "the GPU was broken")
    assert changed.run_id == best.run_id
    assert folder.run(best.run_id).record_file.read_bytes() == content
    kept = folder.run(best.run_id).record()
    assert kept is not None
    assert kept.exclusion == "excluded: the GPU was broken"
    table = ledger(folder.records())
    assert list(table.loc[table["run_id"] == best.run_id, "exclusion"]) == ["excluded: the GPU was broken"]
    assert pd.notna(table["exclusion"]).sum() == 1
    shown = status(folder)
    assert [one.run_id for one in shown.left_out] == [best.run_id]
    (next_best,) = shown.best
    assert next_best.run_id != best.run_id
    more = FakeExecutor()
    run(tmp_path, more, **TUNED, seeds=2)
    assert {RunConfig.from_yaml(folder.run(name).config_file).recipe.learning_rate for name in more.submitted} != {
        best.config.recipe.learning_rate
    }
    assert include(best.run_id, folder.path.parent)[0].record() == best
    with pytest.raises(InputError, match="is not excluded"):
        include(best.run_id, folder.path.parent)
    with pytest.raises(InputError, match="79: is too short for an id; give at least 4 characters"):
        exclude("79", folder.path.parent, "broken")
    with pytest.raises(InputError, match="'': is too short for an id"):
        exclude("", folder.path.parent, "broken")
    with pytest.raises(InputError, match="--reason: is empty; give the reason"):
        exclude(best.run_id, folder.path.parent, " ")
    with pytest.raises(InputError, match="is neither a run's folder nor the id of a run"):
        exclude("nowhere", folder.path.parent, "why not")


def test_an_excluded_run_can_be_trained_anew(tmp_path: Path) -> None:
    """Its record stays among the past attempts with why it was excluded, and the next launch has its loss to choose by."""
    run(tmp_path, FakeExecutor(), **TUNED)
    folder = sweep_at(tmp_path)
    best = min(folder.records(), key=lambda one: one.loss_nats or 9)
    exclude(best.run_id, folder.path.parent, "broken GPU")
    (folder.run(best.run_id).scores / "cola").mkdir(parents=True)
    (retried,) = retry(folder, [best.run_id])
    assert (retried.state, retried.reason) == ("COMPLETED", "excluded: broken GPU")
    assert json.loads(Path(retried.kept).with_name("0001.note.json").read_text())["excluded"] == "broken GPU"
    assert folder.run(best.run_id).excluded() is None
    assert not folder.run(best.run_id).scores.exists(), "they were of the weights that are no more"
    assert list(folder.run(best.run_id).path.glob("attempts/*.scores/cola"))
    again = FakeExecutor()
    run(tmp_path, again, **TUNED)
    assert again.submitted == [best.run_id]
    assert all(record.exclusion is None for record in folder.records())


def test_runs_of_an_earlier_launch_are_distinguished_and_count_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither as completed, nor as the best, nor as what is being done of what is left."""
    run(tmp_path, FakeExecutor(), budgets={"steps": [40]})
    assert len(run(tmp_path, FakeExecutor(), budgets={"steps": [20]}).ended) == 2
    state = status(sweep_at(tmp_path))
    assert (len(state.runs), len(state.own), state.counts, state.planned_runs) == (4, 2, {"COMPLETED": 2}, 2)
    assert {one.target_tokens for one in state.own} == {20 * 256}
    assert {one.target_tokens for one in state.left_out} == {40 * 256}
    assert state.best[0].target_tokens == 20 * 256
    assert state.to_dict()["of_earlier_launches"] == 2
    text = status_summary(state)
    assert text.startswith(
        "2 COMPLETED of about 2 planned. 2 runs more of earlier launches, not part of the sweep as last launched."
    )


def test_runs_of_an_earlier_launch_that_failed_are_no_more_of_the_sweep_either(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor(fails_when_deep), budgets={"steps": [40]})
    run(tmp_path, FakeExecutor(), budgets={"steps": [20]})
    actual, table = status(sweep_at(tmp_path)), sweep_at(tmp_path).ledger()
    assert (len(actual.own), actual.counts) == (2, {"COMPLETED": 2})
    assert table["state"].tolist().count("DIVERGED") == 1
    assert table["exclusion"].tolist().count(FOREIGN) == 2


def test_runs_beyond_those_planned_are_reported_as_more(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor(), budgets={"steps": [20]})
    state = status(sweep_at(tmp_path))
    assert status_summary(replace(state, planned_runs=1)).startswith("2 COMPLETED, 1 more than planned.")
    assert status_summary(replace(state, planned_runs=2)).startswith("2 COMPLETED of about 2 planned.")


def test_a_run_of_an_earlier_launch_that_hangs_is_no_running_run_of_the_sweep() -> None:
    values: dict[str, Any] = dict.fromkeys(RunStatus.__dataclass_fields__)
    hanging = RunStatus(**values | {"run_id": "a", "state": "running", "reason": FOREIGN, "signs": Signs(900.0, 1.0, None)})
    state = SweepStatus("s", None, (replace(hanging, tokens=1, spent_tokens=1, target_tokens=2, train_flops=1.0),), 2, 1e9)
    assert status_summary(state).startswith("no run has started of about 2 planned. 1 run more of earlier launches, ")
    assert state.seconds_left is None


def test_runs_of_an_earlier_search_are_none_of_its_next(tmp_path: Path) -> None:
    def searched(highest: int) -> dict[str, Any]:
        space = {"architecture.width": {"choices": [8 * size for size in range(1, highest + 1)]}}
        return {"shapes": None, "search": {"trials": 2, "space": space, "head_width": 8}}

    for ffn, highest in ((32, 4), (48, 2)):
        last = run(tmp_path, FakeExecutor(), base={"architecture": {"depth": 1, "ffn": ffn}}, **searched(highest))
    state = status(sweep_at(tmp_path))
    assert (len(state.runs), len(state.own), len(last.ended)) == (4, 2, 2)
    table = sweep_at(tmp_path).ledger()
    assert set(table.loc[table["exclusion"] == FOREIGN, "architecture.ffn"]) == {32}
    assert set(table.loc[table["exclusion"] != FOREIGN, "architecture.ffn"]) == {48}


def test_a_search_goes_on_with_none_of_the_runs_that_an_earlier_one_began(tmp_path: Path) -> None:
    def searched(widths: list[int]) -> dict[str, Any]:
        search = {"trials": 2, "space": {"architecture.width": {"choices": widths}}, "head_width": 8}
        return {"shapes": None, "search": search, "base": {"architecture": {"depth": 1}}}

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FakeExecutor(stops_at_once), **searched([8, 16]))
    assert sweep_at(tmp_path).runs()
    last = run(tmp_path, FakeExecutor(), **searched([24, 32]))
    assert {one.config.architecture.width for one in last.ended.values()} == {24, 32}


def test_runs_beyond_the_range_of_rates_leave_what_was_planned_to_be_done(tmp_path: Path) -> None:
    """The best of three rates is the highest: a fourth, beyond the range, is tried before the second seed at the best."""

    def falls(config: RunConfig, folder: RunFolder) -> int:
        if config.seed:
            raise KeyboardInterrupt
        Attempt.begin(folder)
        assert folder.file_record(record(config, 2 - config.recipe.learning_rate, run_id=folder.run_id))
        return 0

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FakeExecutor(falls, slots=1), seeds=2, **TUNED)
    state = status(sweep_at(tmp_path))
    assert (state.planned_runs, state.count("COMPLETED")) == (4, 4)
    (last,) = {one.train_flops for one in state.runs if one.state == "COMPLETED"}
    assert state.remaining_flops == pytest.approx(last)


def test_nothing_is_left_of_a_sweep_whose_cells_want_no_more(tmp_path: Path) -> None:
    """The deep cell has no run at a second seed, since all its rates diverged; of five rates the shallow one tried three."""

    def valley(config: RunConfig, folder: RunFolder) -> int:
        if config.architecture.depth == 2:
            return fails_when_deep(config, folder)
        Attempt.begin(folder)
        loss = 2 + abs(config.recipe.learning_rate - 4e-3)
        assert folder.file_record(record(config, loss, run_id=folder.run_id))
        return 0

    tune = {"recipe.learning_rate": {"low": 1e-3, "high": 1.6e-2, "trials": 5}}
    run(tmp_path, FakeExecutor(valley), seeds=2, tune=tune, **SHALLOW_AND_DEEP)
    state = status(sweep_at(tmp_path))
    assert state.counts == {"COMPLETED": 4, "DIVERGED": 5}
    assert (state.planned_runs, state.remaining_flops) == (12, 0)
    config = cells(sweep(CORPUS, seeds=2, tune=tune, **SHALLOW_AND_DEEP))[0].trials()[0]
    begun = sweep_at(tmp_path).run(config.fingerprint("data"))
    begun.write_config(config)
    begun.metrics_file.write_text(json.dumps({"trainer/step": 1, "trainer/tokens": 256, "trainer/flops": 1e6}) + "\n")
    assert status(sweep_at(tmp_path)).remaining_flops == 0, "and not less, though a run that nobody wants has begun"


def test_runs_stand_in_the_order_of_their_sizes_with_their_budgets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {"grid": {"depth": [2, 10], "width": [16]}}
    run(tmp_path, FakeExecutor(), shapes=shapes, budgets={"steps": [20, 100]}, seeds=2)
    state = status(sweep_at(tmp_path))
    order = [(one.shape.partition("-")[0], one.target_tokens, one.seed) for one in state.runs]
    assert order == list(product(("L2", "L10"), (20 * 256, 100 * 256), (0, 1)))
    show(status_table(state))
    assert capsys.readouterr().out.count("5.12k") == 2, "above the two seeds of each shape"


def test_runs_of_a_shape_stand_budget_by_budget_and_rate_by_rate(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor(), budgets={"steps": [20, 100]}, **TUNED)
    order = [(one.target_tokens, one.learning_rate) for one in status(sweep_at(tmp_path)).runs]
    assert order == sorted(order)
    assert len({tokens for tokens, _ in order}) == 2


def test_runs_of_a_varied_sweep_say_their_setting(tmp_path: Path, study: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, FakeExecutor(), vary={"recipe.dropout": [0, 0.1]}, shapes={"grid": {"depth": [1]}})
    state = status(sweep_at(tmp_path))
    assert [one.setting for one in state.runs] == ["dropout=0", "dropout=0.1"]
    show(status_table(state), status_summary(state))
    printed = capsys.readouterr().out
    assert "dropout=0.1" in printed
    assert "nats, L1-H16-A2-F32 dropout=0 lr=4e-2 seed=0 (run " in printed
    labels = {run_line(one, ("recipe.dropout",)).split(":")[0] for one in sweep_at(tmp_path).records()}
    assert labels == {f"COMPLETED L1-H16-A2-F32 dropout={dropout} lr=4e-2 seed=0" for dropout in (0, 0.1)}
    sweep_at(tmp_path).sweep_file.write_text("vary: [")
    assert [one.setting for one in status(sweep_at(tmp_path)).runs] == ["", ""]


def test_what_is_unknown_of_a_run_is_no_zero_in_its_line() -> None:
    known = record(run_config(1, 64), 3.0, loss_standard_error_nats=0.01, wall_seconds=7.0)
    assert ": 3.0000 ± 0.0100 nats after " in run_line(known, ())
    assert run_line(known, ()).endswith(" tokens in 7 s")
    unknown = known.model_copy(update={"loss_standard_error_nats": None, "wall_seconds": None})
    assert ": 3.0000 ± unknown nats after " in run_line(unknown, ())
    assert run_line(unknown, ()).endswith(" tokens")


@pytest.mark.parametrize("name", ["cut_distil_or_scratch", "suite", "width_and_tokens"])
def test_the_status_of_a_sweep_fits_a_terminal_of_80_columns(name: str, study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long settings, many budgets, fast runs, and runs that are left out."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    folder = Path(__file__).resolve().parents[2] / "results" / "reference" / name
    printed = click.unstyle(study("status", folder)[1])
    assert max(map(len, printed.splitlines())) <= 80
    assert "…" not in printed
    for one in status(SweepFolder(folder)).runs:
        (line,) = (line for line in printed.splitlines() if line.startswith(f" {one.run_id} "))
        assert line.split()[1:4] == ["COMPLETED", f"{one.learning_rate:g}", f"{one.seed}"]


@pytest.mark.parametrize("rows", [4, 7, 1000])
def test_what_is_watched_has_so_many_rows_with_headings_and_notes_and_counts_the_rest(rows: int, tmp_path: Path) -> None:
    """Five runs are left out, each with a note below it and most with a heading above."""
    folder = depth_or_width(tmp_path / "s", seeds=1, shapes=((1, 128), (2, 92)), rates=(1e-3, 2e-3, 4e-3))
    for depth, width, rate in ((1, 128, 8e-3), (1, 184, 4e-3), (1, 184, 8e-3), (2, 92, 8e-3), (4, 64, 8e-3)):
        add_run(folder, run_config(depth, width, rate), state="DIVERGED", reason="the training loss is nan")
    state = status(folder)
    assert len(state.left_out) == 5 < len(state.runs)
    table, _, note = watched(state, rows)
    assert isinstance(table, Table)
    assert table.row_count <= rows
    shown = sum(str(cell).startswith(tuple(run.run_id for run in state.left_out)) for cell in table.columns[0].cells)
    assert 0 < shown <= len(state.left_out)
    assert note == f"{len(state.runs) - shown} runs more: study status --all"


@pytest.mark.slow
def test_the_status_of_very_many_runs_fits_a_screen(tmp_path: Path, study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that need looking at are listed, all are counted, and listed where that is asked for."""
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("COLUMNS", "80")
    run(tmp_path, FakeExecutor(), shapes={"grid": {"depth": [1, 2, 3], "width": [16]}}, seeds=70)
    folder = sweep_at(tmp_path)
    excluded, spiked, *_ = folder.runs()
    assert len(folder.runs()) == 210 > MOST_LISTED
    excluded.exclusion_file.write_text(json.dumps({"reason": "a bad disk"}))
    spiked.record_file.write_text(json.dumps(json.loads(spiked.record_file.read_bytes()) | {"loss_spikes": 2}))
    printed = click.unstyle(study("status", folder.path)[1])
    assert len(printed.splitlines()) <= 24
    assert {one.run_id for one in folder.runs() if one.run_id in printed} >= {excluded.run_id, spiked.run_id}
    assert "excluded: a bad disk" in printed
    assert "its training loss spiked 2 times" in printed
    assert "210 COMPLETED" in printed
    assert "208 runs more: study status --all" in printed
    listed = click.unstyle(study("status", folder.path, "--all")[1])
    assert all(one.run_id in listed for one in folder.runs())


def test_a_run_whose_configuration_is_gone_is_known_by_its_record(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor())
    one = sweep_at(tmp_path).runs()[0]
    one.config_file.unlink()
    results = tmp_path / "results"
    for name in (str(one.path), one.run_id, one.run_id[:6]):
        assert [there.run_id for there in exclude(name, results, "the GPU was broken")] == [one.run_id]
        assert [there.run_id for there in include(name, results)] == [one.run_id]
        assert resolve_architecture(name, results).architecture.shape_name == "L1-H16-A2-F32"
    with pytest.raises(InputError, match=r"weights\.safetensors: does not exist, but the weights are needed"):
        single_run(one.path)
    scores = one.scores / "0123456789abcdef"
    scores.mkdir(parents=True)
    (scores / "record.json").write_text("{}")
    for folder in (results, scores):
        with pytest.raises(InputError, match="is not a run folder: it needs"):
            resolve_architecture(str(folder), results)
    with pytest.raises(InputError, match="is neither a run's folder nor the id of a run"):
        exclude(str(scores), results, "the GPU was broken")


def test_who_excludes_a_run_is_named_by_number_where_the_system_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that runs as any number, to which no user belongs."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    run(tmp_path, FakeExecutor())
    one = sweep_at(tmp_path).runs()[0]
    exclude(str(one.path), tmp_path, "the GPU was broken")
    assert json.loads(one.exclusion_file.read_text())["by"] == str(os.getuid())


def test_a_damaged_exclusion_is_named_and_excludes_its_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path, FakeExecutor())
    one = sweep_at(tmp_path).runs()[0]
    one.exclusion_file.write_text("{")
    record = one.record()
    assert record is not None
    assert record.exclusion == "excluded: exclusion.json cannot be read"
    assert f"{one.exclusion_file}: is damaged" in caplog.text


def test_status_says_what_is_spent_and_left_and_which_run_is_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def stops_when_deep(config: RunConfig, folder: RunFolder) -> int:
        if config.architecture.depth == 1:
            return completes(config, folder)
        rows = {"trainer/step": 25, "trainer/tokens": 6400, "trainer/flops": 1e6}
        folder.metrics_file.write_text(json.dumps(rows | {"perf/tokens_per_second": 100.0, "perf/mfu": 0.25}) + "\n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FakeExecutor(stops_when_deep, slots=1), **SHALLOW_AND_DEEP)
    folder = sweep_at(tmp_path)
    deep = next(one for one in folder.runs() if one.record() is None)
    with work_lock(deep):
        state = status(folder)
        (running,) = state.running
        assert (running.mfu, running.tokens, running.seconds_left) == (0.25, 6400, (25600 - 6400) / 100)
        planned = [cell.config for cell in cells(sweep(CORPUS, **SHALLOW_AND_DEEP))]
        total = sum(config.flops_per_token["train_flops"] * config.tokens for config in planned)
        assert state.planned_runs == 2
        assert state.remaining_flops == pytest.approx(total - state.spent_flops)
        assert state.seconds_left == pytest.approx((state.remaining_flops or 0) / (100 * 1e6 / 6400))
        show(status_summary(state))
        printed = capsys.readouterr().out
        assert "1 running of about 2 planned." in printed
        assert "Spent: 1e+06 FLOPs (train_flops); left:" in printed
        assert watched(state, 5)
    assert status(folder).counts == {"stopped": 1}
    with sweep_lock(folder.launching):
        assert status(folder).counts == {"waiting": 1}, "whoever launched the sweep goes on with it"
    wider = SHALLOW_AND_DEEP | {"shapes": {"grid": {"depth": [1, 3]}}}  # what was begun of depth 2 is no part of this
    folder.sweep_file.write_text(yaml.safe_dump(sweep_values(CORPUS, **wider)))
    planned = [cell.config for cell in cells(sweep(CORPUS, **wider))]
    total = sum(config.flops_per_token["train_flops"] * config.tokens for config in planned)
    assert status(folder).remaining_flops == pytest.approx(total, rel=1e-12)
    with sweep_lock(folder.launching):
        assert [one.state for one in status(folder).runs if one.reason == FOREIGN] == ["stopped"], "no launch goes on with it"


def test_a_running_run_that_fell_silent_is_marked(tmp_path: Path, study: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def logs_and_stops(config: RunConfig, folder: RunFolder) -> int:
        Attempt.begin(folder)
        rows = [{"trainer/tokens": 1000 * row, "perf/tokens_per_second": 500.0} for row in range(1, 5)]
        folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FakeExecutor(logs_and_stops), shapes={"grid": {"depth": [1]}})
    folder = sweep_at(tmp_path)
    (one,) = folder.runs()
    with work_lock(one):
        (awake,) = status(folder).running
        assert awake.signs is not None
        assert (awake.silent, awake.signs.seconds_per_row) == (False, 2.0)
        assert awake.seconds_left == (awake.target_tokens - 4000) / 500
        assert "1 running of about" in status_summary(status(folder))
        past(one.metrics_file, 300)
        past(one.attempt_file(1), 320)
        one.attempt_file(1).with_suffix(".beat").write_text("80")
        show(status_table(status(folder)))
        printed = capsys.readouterr().out
        assert "no row for 5 min, usually one every 2 s" in printed
        assert "no sign" not in printed
        assert "1 running (1 silent) of about" in status_summary(status(folder))
        past(one.attempt_file(1).with_suffix(".beat"), 240)
        (shown,) = json.loads(study("status", folder.path, "--json")[1])["runs"]
        assert (shown["silent"], shown["seconds_per_row"], shown["seconds_left"]) == (True, 2.0, None)
        assert shown["seconds_since_row"] == pytest.approx(300, abs=60)
        assert "; no sign of its process for 4 min" in study("status", folder.path)[1]
    (stopped,) = status(folder).runs
    assert (stopped.state, stopped.silent, stopped.signs) == ("stopped", False, None)


def test_a_run_that_has_just_begun_again_is_not_silent(tmp_path: Path) -> None:
    one = RunFolder(tmp_path / "run")
    Attempt.begin(one)
    one.metrics_file.write_text("")
    past(one.metrics_file, 1000)
    assert not signs_of(one, []).silent


def past(file: Path, seconds: float) -> None:
    """Make a file as old as that."""
    os.utime(file, (time.time() - seconds,) * 2)


def test_a_run_on_another_machine_runs_as_long_as_its_lease_is_renewed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FakeExecutor(stops_at_once), shapes={"grid": {"depth": [1]}})
    folder = sweep_at(tmp_path)
    (one,) = folder.runs()
    attempt = Attempt.begin(one, locked=False)  # as that of another machine, whose locks are not seen here
    beat = one.attempt_file(attempt.number).with_suffix(".beat")
    assert status(folder).counts == {"running": 1}
    beat.write_text("7")
    past(beat, 60)
    assert status(folder).counts == {"stopped": 1}
    with attempt.renewed():
        pass
    assert status(folder).counts == {"stopped": 1}


def stops_at_once(config: RunConfig, folder: RunFolder) -> int:
    raise KeyboardInterrupt


def test_a_search_that_may_end_early_has_at_most_so_many_runs_left(tmp_path: Path) -> None:
    rates = {"recipe.learning_rate": {"low": 0.01, "high": 0.08, "trials": 4}}
    run(tmp_path, FakeExecutor(), shapes={"grid": {"depth": [1]}}, tune=rates)
    state = status(sweep_at(tmp_path))
    assert state.to_dict()["at_most"]
    assert "of at most 4 planned" in status_summary(state)
    assert "left: at most" in status_summary(state)


@pytest.mark.parametrize(
    ("rows", "seconds", "silent"),
    [
        ([], None, False),
        ([], 59, False),
        ([], 61, True),
        ([1e3], 61, True),  # of one row it is not known how long it took
        ([1e3, 11e3, 21e3], 99, False),
        ([1e3, 11e3, 21e3], 101, True),
    ],
)
def test_silence_is_measured_by_a_runs_own_rows(rows: list[float], seconds: float | None, silent: bool) -> None:
    usual = seconds_per_row([{"trainer/tokens": tokens, "perf/tokens_per_second": 1e3} for tokens in rows])
    assert Signs(seconds, usual, 1.0).silent == silent


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2.0 h"), (9e5, "10.4 d")]
)
def test_durations_are_written_as_people_read_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_each_validation_set_has_a_best_run_of_its_own(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 128), (2, 92)), rates=(2e-3, 4e-3), seeds=1)
    lowest = min(folder.records(), key=lambda one: one.loss_nats or 9)
    assert "Best so far: " in status_summary(status(folder))
    config = run_config(1, 64)
    shorter = config.model_copy(update={"data": config.data.model_copy(update={"sequence_length": 32})})
    other = add_run(folder, shorter)
    assert {one.run_id for one in status(folder).best} == {lowest.run_id, other}
    text = status_summary(status(folder))
    assert text.count("Best so far on one of 2 validation sets, between which losses do not compare: ") == 2


def test_the_commands_say_what_they_did(tmp_path: Path, study: Any) -> None:
    place = tmp_path / "my study"
    run(place, FakeExecutor(fails_when_deep), seeds=2)
    folder, results = sweep_at(place), sweep_at(place).path.parent
    code, out, _ = study("status", folder.path)
    assert code == 0
    assert out.startswith("toy: 4 runs started, 2 completed, not running")
    assert "2 COMPLETED, 1 DIVERGED, 1 HUNG of about 4 planned." in out
    assert "Best so far: 2.0000 nats, L1-" in out
    code, out, _ = study("status", folder.path, "--json", "--watch")
    assert json.loads(out)["counts"] == {"COMPLETED": 2, "DIVERGED": 1, "HUNG": 1}
    assert study("status", folder.path, "--watch")[0] == 0
    code, out, _ = study("retry", folder.path)
    assert out.splitlines()[1:] == ["1 run will be tried again by the next launch of toy"]
    assert study("retry", folder.path, "--json")[1].split() == ["{", '"sweep":', '"toy",', '"retried":', "[]", "}"]
    assert study("stop", folder.path)[1] == "toy is not running\n"
    best = next(one.run_id for one in folder.records() if one.state == "COMPLETED")
    code, out, _ = study("exclude", best, "--reason", "odd", "--results", results)
    message, _, command = out.strip().partition("; to update its answer: ")
    assert message == f"{best} is excluded in toy"
    assert shlex.split(command) == ["study", "report", str(folder.path)], "as a shell reads it"
    code, out, _ = study("exclude", best, "--undo", "--results", results, "--json")
    assert json.loads(out)["excluded"] is None
    assert study("exclude", best, "--results", results)[0] == 2
    assert study("exclude", best, "--undo", "--results", results)[2].strip() == f"error: {best}: is not excluded"


def test_the_newest_rows_of_a_long_run_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun(empty_sweep(tmp_path, monkeypatch))
    run.write(200)
    rows = run.folder.newest_rows()
    assert [row["trainer/step"] for row in rows] == list(range(201 - len(rows), 201))
    assert 10 <= len(rows) < 200


def running(**changes: Any) -> RunStatus:
    values: dict[str, Any] = dict.fromkeys(RunStatus.__dataclass_fields__)
    return RunStatus(**values | {"run_id": "a", "state": "running", "tokens": 100, "spent_tokens": 100, "target_tokens": 200,
                                 "train_flops": 1000.0, "tokens_per_second": 10.0} | changes)  # fmt: skip


def test_a_silent_run_does_not_speed_up_what_is_left() -> None:
    silent = running(run_id="b", signs=Signs(900.0, 1.0, None))
    assert silent.silent
    assert SweepStatus("s", None, (running(),), 2, 1e4).seconds_left == pytest.approx(100)
    assert SweepStatus("s", None, (running(), silent), 2, 1e4).seconds_left == pytest.approx(100)
    foreign = running(run_id="c", reason=FOREIGN)
    assert SweepStatus("s", None, (running(), foreign), 2, 1e4).seconds_left == pytest.approx(100)


def test_a_run_without_a_loss_is_not_the_best() -> None:
    lost, known = (running(state="COMPLETED", loss_nats=loss) for loss in (None, 3.0))
    assert SweepStatus("s", None, (lost, known)).best == (known,)


def test_runs_on_text_that_has_changed_since_are_left_to_do(tmp_path: Path) -> None:
    """By the same path: plan, status and retry go by the text as it is now, and so does a launch."""
    corpus = write_topics(tmp_path / "text.txt")
    spec, folder = sweep(corpus, **SHALLOW_AND_DEEP), sweep_at(tmp_path)

    def launch_anew() -> FakeExecutor:
        text = data_fingerprint(spec.data)

        def fails(config: RunConfig, run: RunFolder) -> int:
            state: State = "COMPLETED" if config.architecture.depth == 1 else "FAILED"
            assert run.file_record(record(config, 3.0, state, run.run_id, data_fingerprint=text))
            return 0

        executor = FakeExecutor(fails)
        coordinator_of(folder, corpus, text, **SHALLOW_AND_DEEP).run(executor, lambda _: None, refresh_seconds=0.01)
        return executor

    def left() -> int:
        return plan(spec, folder.path.parent, Resources()).runs_left

    launch_anew()
    failed = next(one for one in folder.records() if one.state == "FAILED")
    assert left() == 0
    assert (status(folder).remaining_flops, len(status(folder).own)) == (0, 2)

    corpus.write_text(f"{corpus.read_text()}\n\nAnother document.\n")
    assert left() == 2
    note = f"2 runs of earlier launches read another text than {corpus} is now"
    assert note in cost_summary(plan(spec, folder.path.parent, Resources()))
    assert (status(folder).remaining_flops or 0) > 0
    assert {one.reason for one in status(folder).runs} == {FOREIGN}
    assert f"{note}." in status_summary(status(folder))
    assert retry(folder) == []
    with pytest.raises(InputError, match=r"read another text than data\.corpus is now"):
        retry(folder, [failed.run_id])

    assert len(launch_anew().submitted) == 2, "what a launch trains is what the plan says"
    assert left() == 0
    assert len(retry(folder)) == 1, "the one on the text as it is now"
    corpus.unlink()
    assert len(status(folder).own) == 4, "where the text is not here nobody knows"


def test_points_of_a_search_on_text_that_has_changed_since_are_left_to_do(tmp_path: Path) -> None:
    spec = sweep(write_topics(tmp_path / "text.txt"))
    changes: dict[str, Any] = {
        "search": {"trials": 4, "space": {"architecture.depth": {"low": 1, "high": 8}}},
        "base": {"architecture": {"width": 16, "heads": 2, "ffn": 32}},
    }
    search = search_sweep(**changes)
    tried = search_example(search)
    now = record(tried, run_id=tried.fingerprint("data"))
    assert estimate_cost(Plan(search, [now], texts_of(search)), [ANY_SLOT]).runs_left == 3
    assert estimate_cost(Plan(search, [now], texts_of(search, data_fingerprint(spec.data))), [ANY_SLOT]).runs_left == 4


def test_another_question_in_the_same_folder_is_named(tmp_path: Path) -> None:
    folder = sweep_at(tmp_path)
    folder.path.mkdir(parents=True)
    assert another_question(folder, sweep()) is None, "nothing was launched before"
    folder.sweep_file.write_text(yaml.safe_dump(sweep_values(CORPUS)))
    assert another_question(folder, sweep(seeds=3)) is None
    message = another_question(folder, sweep(question="Does a third layer help?"))
    assert message is not None
    assert "held another question, 'Does a second layer help?'" in message
    folder.sweep_file.write_text("{")
    assert another_question(folder, sweep()) is None
