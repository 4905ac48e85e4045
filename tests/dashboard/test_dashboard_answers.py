"""What the dashboard answers: everything is read, kept until it changes, and says what cannot be read."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from threading import Barrier, Event
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from study.base.errors import InputError
from study.counting.latency import read_table
from study.counting.named_models import catalogue
from study.dashboard.law_lines import MOST_AHEAD, _fitted, _score, law_lines, offers
from study.dashboard.library import Library
from study.dashboard.pages import answer_html, figure_of, overview, pulse, run_page, sweep_page, verdict_in
from study.dashboard.run_charts import curves, importances, points
from study.dashboard.what_if import what_if, what_if_form
from study.evidence.ledgers import LOSS, LOSS_OF_DETECTING, LOSSES, open_ledger
from study.laws.estimation import Settings
from study.laws.law_fits import fit_table
from study.laws.reading import TableQuery
from study.report.answer import report
from study.report.figures import FIGURES
from study.shapes.accounts import Conditions, account, default_length
from study.store.ownership import sweep_lock, work_lock
from study.store.packing import pack
from study.store.sweep_folder import ChosenRun, GoalLook, GoalPath, SweepFolder
from tests.synthetic import SWEEP, add_run, depth_or_width, environment, goal_path, in_setting, run_config, sweep_folder
from tests.synthetic_scores import TASKS, add_scores
from tests.waiting import until

MALICE = """# An answer

<iframe srcdoc="<script>fetch('http://evil.example')</script>"></iframe> <img src=x onerror=alert(1)>
<script>alert(1)</script>

[here](javascript:alert(1)) [there](data:text/html,x) ![pixel](http://evil.example/pixel.png) ![own](data:text/html,x)
![up](figures/../../secret.svg) ![other](/figure/x/y.svg)

| a | b |
| --- | --- |
| <svg onload=alert(1)> | fine {: onclick=alert(1)} |
"""
"""What a stranger may have written into an answer."""

SHAPES = ((1, 48), (1, 64), (1, 92), (1, 128), (1, 184))


RESAMPLES = 100


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    """A sweep to which laws can be fitted, with few resamples."""
    results = tmp_path_factory.mktemp("results")
    folder = depth_or_width(results / "sizes", budgets=(1e6, 2e6, 4e6), shapes=SHAPES, rates=(4e-3,), seeds=1)
    folder.write_ledger()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("study.dashboard.law_lines.DEFAULT_SETTINGS", Settings(bootstrap=RESAMPLES))
        yield Library(results)


def sizes_of(answer: dict[str, Any]) -> dict[str, int]:
    return {name: len(curve["x"]) for name, curve in answer["curves"].items()}


def test_the_overview_counts_the_runs_of_every_sweep_by_what_became_of_them(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "one")
    for state in ("COMPLETED", "FAILED", "DIVERGED"):
        add_run(folder, run_config(1, 64, seed=len(folder.runs())), state=state)
    folder.run("f" * 16).write_config(run_config(1, 128))
    waiting = sweep_folder(tmp_path / "group" / "two")
    with work_lock(waiting.run("a" * 16)):
        waiting.run("a" * 16).write_config(run_config(1, 128))
        answer = overview(Library(tmp_path), {})
    first, second = answer["sweeps"]
    assert answer["problems"] == []
    assert [first[name] for name in ("sweep", "done", "failed", "running", "waiting", "live")] == ["one", 1, 2, 0, 1, False]
    assert first["question"] == SWEEP["question"]
    assert first["tokens"] == sum(record.tokens for record in folder.records())
    assert first["changed"] == "2026-01-01T00:01:00+00:00"
    assert [second[name] for name in ("sweep", "running", "live")] == ["group/two", 1, True]


def test_what_has_not_changed_is_not_read_again_and_what_has_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3, 4e-3), seeds=1)
    library = Library(tmp_path)
    versions = [pulse(library, {"sweep": "made"})["version"]]
    with monkeypatch.context() as patch:
        patch.setattr("study.store.run_folder.RunFolder.record", lambda _: pytest.fail("a record is read again"))
        assert pulse(library, {"sweep": "made"})["version"] == versions[0]
        assert pulse(library, {}) == pulse(library, {})
    run = folder.runs()[0]
    run.exclusion_file.write_text(json.dumps({"reason": "a bad disk"}))
    versions.append(pulse(library, {"sweep": "made"})["version"])
    assert library.snapshot("made").runs[run.run_id].record.excluded == "a bad disk"  # type: ignore[union-attr]
    add_run(folder, run_config(1, 64, 8e-3))
    versions.append(pulse(library, {"sweep": "made"})["version"])
    folder.answer_file.write_text("# made\n\n**It is lower.**\n")
    versions.append(pulse(library, {"sweep": "made"})["version"])
    assert len(set(versions)) == 4
    assert sweep_page(library, {"sweep": "made"})["verdict"] == "It is lower."


def test_the_page_of_a_goal_shows_its_path_and_follows_it(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3,), seeds=1)
    library, asked = Library(tmp_path), {"sweep": "made"}
    before = sweep_page(library, asked)
    assert before["goal"] is None
    run = ChosenRun(
        run_id=folder.runs()[0].run_id,
        shape="L1 H64",
        parameters_non_embedding=1000,
        tokens=10**6,
        seed=0,
        spent_flops=1e9,
        used=True,
    )
    looks = (GoalLook(runs=1, spent_flops=1e9, half_width=0.2), GoalLook(runs=2, spent_flops=2e9))
    path = GoalPath(of="beta", wanted=0.1, spend_flops=1e10, state="open", sentence="beta is known", looks=looks, runs=(run,))
    folder.goal_file.write_text(path.model_dump_json())
    answer = sweep_page(library, asked)
    assert answer["version"] != before["version"]
    assert answer["goal"]["sentence"] == "beta is known."
    assert [look["half_width"] for look in answer["goal"]["looks"]] == [0.2, None]
    assert answer["goal"]["runs"][0]["run_id"] == run.run_id
    folder.goal_file.write_text('{"of": "<b>"}')
    damaged = sweep_page(library, asked)
    assert damaged["goal"] is None
    assert any("goal" in problem for problem in damaged["problems"])


def test_a_packed_sweep_is_shown_like_the_folders_it_was_packed_from(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 64), (2, 64)), rates=(2e-3, 4e-3), seeds=1)
    asked = {"sweep": "made"}

    def shown() -> list[Any]:
        library = Library(tmp_path)
        run = sorted(library.snapshot("made").runs)[0]
        return [
            sweep_page(library, asked)["runs"],
            curves(library, asked)["curves"],
            run_page(library, asked | {"run": run})["config"],
            points(library, {"sweeps": "made"})["columns"],
        ]

    before = shown()
    pack(folder)
    assert not list(folder.runs_folder.glob("*")), "all of it is in the pack"
    assert shown() == before


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    damaged = depth_or_width(tmp_path / "damaged", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3, 4e-3), seeds=1)
    first, second = damaged.runs()
    first.metrics_file.write_text("[1, 2]\n")
    broken = depth_or_width(tmp_path / "broken", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3, 4e-3), seeds=1)
    broken.runs()[0].record_file.write_text("{")
    shutil.copytree(broken.runs()[1].path, broken.run("e" * 16).path)
    sweep_folder(tmp_path / "no_sweep").sweep_file.write_text("tune: 3")
    library = Library(tmp_path)
    answer = overview(library, {})
    assert [row["sweep"] for row in answer["sweeps"]] == ["broken", "damaged", "no_sweep"]
    assert [row["done"] for row in answer["sweeps"]] == [1, 2, 0]
    problems = "\n".join(answer["problems"])
    assert "record.json" in problems
    assert "its folder has another name" in problems
    assert "no_sweep" in problems
    drawn = curves(library, {"sweep": "damaged"})
    assert list(drawn["curves"]) == [second.run_id]
    assert "metrics.jsonl:1: is not a row of metrics" in drawn["problems"][0]
    assert "broken" in points(library, {"sweeps": "broken,damaged"})["problems"][0]


@pytest.mark.parametrize("made", [True, False])
def test_an_empty_or_missing_folder_is_said_to_be_so(tmp_path: Path, made: bool) -> None:
    root = tmp_path if made else tmp_path / "gone"
    answer = overview(Library(root), {})
    assert answer["sweeps"] == []
    assert ("holds no sweep" if made else "is not a folder") in answer["problems"][0]
    with pytest.raises(InputError, match=r"is not a folder|holds no sweep"):
        Library(root).snapshot("x")


def test_every_logged_metric_has_a_curve_over_tokens_steps_or_flops(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3,), seeds=2)
    run = folder.runs()[0]
    rows = [
        {"trainer/step": n, "trainer/tokens": 10 * n, "trainer/flops": 2.0 * n, "odd/new": float(n % 7)} for n in range(1, 2001)
    ]
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[-1] | {"odd/new": 99.0}]))
    library = Library(tmp_path)
    usual = curves(library, {"sweep": "made"})
    assert usual["metric"] == "val/loss", "of a sweep that has ended"
    assert set(usual["metrics"]) == {"train/loss", "val/loss", "odd/new"}
    assert list(usual["curves"]) == [folder.runs()[1].run_id]
    for axis, times in {"trainer/tokens": 10, "trainer/step": 1, "trainer/flops": 2}.items():
        curve = curves(library, {"sweep": "made", "metric": "odd/new", "x": axis, "runs": run.run_id})["curves"][run.run_id]
        assert len(curve["x"]) == 400
        assert (curve["x"][0], curve["x"][-1], curve["y"][0], curve["y"][-1]) == (times, 2000 * times, 1.0, 99.0), (
            "the last row counts"
        )


def test_runs_that_were_validated_once_begin_with_their_training_loss(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3,), seeds=1)
    (run,) = folder.runs()
    rows = [{"trainer/step": n, "trainer/tokens": 10 * n, "train/loss": 7.0 - n} for n in (1, 2)]
    once = rows[-1] | {"val/loss": 5.5}
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, once]))
    assert curves(Library(tmp_path), {"sweep": "made"})["metric"] == "train/loss"
    run.metrics_file.write_text(json.dumps(once) + "\n" + json.dumps({**once, "trainer/tokens": 30}) + "\n")
    assert curves(Library(tmp_path), {"sweep": "made"})["metric"] == "val/loss"


def test_a_live_sweep_begins_with_its_training_loss_and_its_version_follows_each_row(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3,), seeds=1)
    run, library = folder.run("a" * 16), Library(tmp_path)
    run.write_config(run_config(2, 64))
    run.metrics_file.write_text('{"trainer/step": 1, "trainer/tokens": 1024, "train/loss": 7.5}\n')
    stopped = library.snapshot("made")
    assert (stopped.live, stopped.runs[run.run_id].state) == (False, "STOPPED")
    with work_lock(run):
        before = library.snapshot("made")
        assert (before.live, before.runs[run.run_id].state) == (True, "RUNNING")
        assert curves(library, {"sweep": "made"})["metric"] == "train/loss"
        with run.metrics_file.open("a") as metrics:
            metrics.write('{"trainer/step": 2, "trainer/tokens": 2048, "train/loss": 7.25}\n')
        after = library.snapshot("made")
        assert after.version != before.version
        assert after.runs[run.run_id].tokens == 2048
        assert curves(library, {"sweep": "made", "runs": run.run_id})["curves"][run.run_id]["y"] == [7.5, 7.25]


def test_a_run_stands_beside_another_with_its_lineage_scores_and_the_end_of_its_log(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "made")
    trunk = add_run(folder, run_config(1, 64, tokens=2e6))
    branch = add_run(folder, run_config(1, 64, tokens=1e6, dropout=0.1), trunk=trunk)
    other = sweep_folder(tmp_path / "other")
    student = add_run(other, run_config(1, 92, teacher=str(folder.run(trunk).path)))
    add_run(other, run_config(1, 64, tokens=2e6))
    add_scores(folder, {"sst2": TASKS["sst2"]}, seeds=1)
    folder.run(trunk).log_file.write_text("first\n" + "x" * 30_000 + "\nlast\n")
    library = Library(tmp_path)
    page = run_page(library, {"sweep": "made", "run": branch, "other": trunk})
    differing = {row["key"]: (row["value"], row["other"]) for row in page["config"] if row["differs"]}
    assert differing == {"recipe.budget.tokens": (1e6, 2e6), "recipe.dropout": (0.1, 0.0)}
    steps = run_config(1, 64, tokens=1e6, dropout=0.1).steps // 2
    assert [(one["relation"], one["run"]) for one in page["lineage"]] == [(f"branched after step {steps:,} from", trunk)]
    above = run_page(library, {"sweep": "made", "run": trunk})
    assert [(one["relation"], one["sweep"]) for one in above["lineage"]] == [
        ("is the trunk of", "made"),
        ("is also a run of", "other"),
    ]
    assert {row["task"] for row in above["scores"]} == {"sst2"}
    assert above["log"] == "last\n"
    below = run_page(library, {"sweep": "other", "run": student})
    assert [(one["relation"], one["run"], one["sweep"]) for one in below["lineage"]] == [("is taught by", trunk, "made")]
    assert below["log"] == ""
    with pytest.raises(InputError, match="is no run of made"):
        run_page(library, {"sweep": "made", "run": "b" * 16})
    record = library.snapshot("made").run(branch).folder.record_file
    record.unlink()
    record.symlink_to(record.name)
    with pytest.raises(InputError, match=r"cannot be shown: .*record\.json"):
        run_page(library, {"sweep": "made", "run": branch})


def test_laws_are_offered_only_where_they_can_be_fitted_and_are_those_of_study_fit(sizes: Library) -> None:
    menu = {one["key"]: one["words"] for one in offers(sizes, {"sweep": "sizes"})}
    assert next(iter(menu)) == "chinchilla"
    asked = {"sweep": "sizes", "law": "chinchilla", "count": "parameters_non_embedding"}
    shown = law_lines(sizes, asked)
    query = TableQuery(open_ledger(sizes.root / "sizes"), {"parameters": "parameters_non_embedding"})
    fitted = fit_table(query, "chinchilla", Settings(bootstrap=RESAMPLES))
    assert {name: values[0] for name, values in shown["estimates"].items()} == fitted.fit.estimates
    assert shown["columns"] == {"parameters": "parameters_non_embedding", "tokens": "tokens"}
    assert {curve["variable"] for curve in shown["curves"]} == {"parameters", "tokens"}
    for curve in shown["curves"]:
        assert all(low <= law <= high for low, law, high in zip(curve["low"], curve["law"], curve["high"], strict=True))
    assert len(shown["runs"]) == fitted.fit.n
    assert set(shown["held_out"]) < set(shown["runs"])
    records = [run.record for run in sizes.snapshot("sizes").runs.values()]
    flops = {record.run_id: record.train_flops for record in records if record is not None}
    held = {run: flops.pop(run) for run in shown["held_out"]}
    assert min(held.values()) > max(flops.values()), "the runs of most FLOPs are forecast"
    assert "--" not in json.dumps([menu, shown])
    with pytest.raises(InputError, match="choose another"):
        law_lines(sizes, {"sweep": "sizes", "law": "shape"})


def test_a_law_leads_to_the_target_that_is_asked_for_else_to_that_of_the_goal(sizes: Library) -> None:
    asked = {"sweep": "sizes", "law": "chinchilla", "count": "parameters_non_embedding"}
    assert law_lines(sizes, asked)["targets"] == []
    shown = law_lines(sizes, asked | {"at": "N=2M, D=40M"})
    assert [(one["variable"], one["x"]) for one in shown["targets"]] == [("parameters", 2e6), ("tokens", 4e7)]
    for star in shown["targets"]:
        (way,) = [curve for curve in shown["curves"] if curve["to_target"] and curve["variable"] == star["variable"]]
        assert (way["size"][-1], way["law"][-1]) == pytest.approx((star["x"], star["y"]), rel=1e-4)
        assert star["low"] < star["y"] < star["high"]
    with pytest.raises(InputError, match="Target: tokens is missing") as refused:
        law_lines(sizes, asked | {"at": "N=2M"})
    assert "--" not in str(refused.value)
    file = SweepFolder(sizes.root / "sizes").goal_file
    file.write_text(goal_path().model_dump_json())
    try:
        assert {one["y"] for one in law_lines(sizes, asked)["targets"]} == {3.0}
        assert law_lines(sizes, asked | {"count": "parameters"})["targets"] == [], "which counts other parameters"
    finally:
        file.unlink()


def keys_made(whose: Callable[[Library], bool], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The keys of what some libraries make from now on; the threads of others may still be at work."""
    kept, keys = Library.kept, list[tuple[Any, ...]]()

    def noted(library: Library, key: tuple[Any, ...], version: object, make: Callable[[], object]) -> object:
        def made() -> object:
            if whose(library):
                keys.append(key)
            return make()

        return kept(library, key, version, made)

    monkeypatch.setattr(Library, "kept", noted)
    return keys


def laws_in(keys: Iterable[tuple[Any, ...]]) -> list[str]:
    """The laws among the keys of what was made."""
    return [key[2] for key in keys if key[0] == "law"]


def test_offered_laws_are_fitted_before_one_is_chosen(sizes: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the count that is shown, each once, though a page that is drawn again asks anew; not while runs are trained."""
    library, asked = Library(sizes.root), {"sweep": "sizes", "count": "parameters_encoder"}
    made = keys_made(lambda one: one is library, monkeypatch)
    with sweep_lock(sizes.snapshot("sizes").folder.launching):
        live = [one["key"] for one in offers(library, asked)]
    assert laws_in(made) == []
    menu = [one["key"] for one in offers(library, asked)]
    assert menu == live == [one["key"] for one in offers(library, asked)]
    for law in reversed(menu[:2]):
        law_lines(library, asked | {"law": law})
    until(lambda: len(laws_in(made)) >= MOST_AHEAD)
    assert sorted(laws_in(made)) == sorted(menu[:MOST_AHEAD])


def test_the_laws_that_what_if_offers_are_fitted_before_a_sweep_is_chosen(
    sizes: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first law of every sweep, then all that the menu of the chosen one has; none while runs are trained."""
    library = Library(sizes.root)
    made = keys_made(lambda one: one is library, monkeypatch)
    ahead: list[Callable[[], object]] = []
    monkeypatch.setattr(library, "make_ahead", ahead.extend)
    with sweep_lock(sizes.snapshot("sizes").folder.launching):
        what_if_form(library, {})
    assert ahead == []
    what_if_form(library, {})
    for make in ahead:
        make()
    menu = [*what_if(library, {"sweep": "sizes"})["prediction"]["laws"]]
    assert laws_in(made) == menu[:1]
    what_if_form(library, {"sweep": "sizes"})
    for make in ahead:
        make()
    assert laws_in(made) == menu[:MOST_AHEAD]


def test_values_are_made_ahead_one_at_a_time_and_those_of_the_last_call(tmp_path: Path) -> None:
    library, begun, goes_on, made = Library(tmp_path), Event(), Event(), []

    def first() -> None:
        begun.set()
        goes_on.wait()
        made.append("first")

    library.make_ahead([first, lambda: made.append("not asked for any more")])
    begun.wait()
    library.make_ahead([lambda: made.append(str(1 // 0)), lambda: made.append("last")])
    assert made == []
    goes_on.set()
    until(lambda: len(made) == 2)
    assert made == ["first", "last"]
    library.make_ahead([lambda: made.append("later")])
    until(lambda: made[-1] == "later")


def test_what_two_ask_for_at_once_is_made_once_and_a_failure_is_not_kept(tmp_path: Path) -> None:
    library, together, made = Library(tmp_path), Barrier(2), []

    def make() -> int:
        made.append(1)
        time.sleep(0.05)
        return len(made)

    def ask(_: int) -> int:
        together.wait()
        return library.kept(("key",), 1, make)

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(ask, range(2))] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        library.kept(("other",), 1, lambda: 1 // 0)
    assert library.kept(("other",), 1, lambda: 2) == library.kept(("other",), 1, lambda: 3) == 2
    assert library.kept(("other",), 2, lambda: 4) == 4, "of a new version, in place of the old one"


def test_runs_of_one_size_and_budget_are_offered_no_law(tmp_path: Path) -> None:
    depth_or_width(tmp_path / "one", budgets=(1e6,), shapes=((1, 64),), seeds=2)
    library = Library(tmp_path)
    assert offers(library, {"sweep": "one"}) == [], "without a ledger"
    SweepFolder(tmp_path / "one").write_ledger()
    assert offers(library, {"sweep": "one"}) == []
    prediction = what_if(library, {"sweep": "one"})["prediction"]
    assert prediction["why_not"].startswith("The runs of this sweep allow no law")


@pytest.mark.slow
@pytest.mark.parametrize(("objectives", "label"), [(("rtd",), LOSS_OF_DETECTING), (("mlm", "rtd"), LOSSES), (("mlm",), LOSS)])
def test_a_loss_of_detecting_replaced_tokens_is_named_as_such(tmp_path: Path, objectives: tuple[str, ...], label: str) -> None:
    folder = sweep_folder(tmp_path / "made")
    for objective in objectives:
        add_run(folder, run_config(1, 64, objective=objective))
    library = Library(tmp_path)
    assert points(library, {"sweeps": "made"})["axes"]["loss_nats"] == label
    labels = curves(library, {"sweep": "made"})["metrics"]
    assert labels["val/loss"] == label
    assert ("masked" in labels["train/loss"]) == (label == LOSS)


def test_importances_find_the_knob_that_decides(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "made")
    for seed in range(3):
        for rate in (1e-3, 2e-3, 4e-3, 8e-3, 3.2e-2):
            for dropout in (0.0, 0.1):
                add_run(folder, run_config(1, 64, rate, seed, dropout=dropout))
    library = Library(tmp_path)
    for evaluator in ("ped-anova", "fanova"):
        answer = importances(library, {"sweep": "made", "target": "loss_nats", "evaluator": evaluator})
        assert set(answer["importances"]) == {"recipe.learning_rate", "recipe.dropout"}
        assert answer["importances"]["recipe.learning_rate"] > 0.8
        assert sum(answer["importances"].values()) == pytest.approx(1)
    assert points(library, {"sweeps": "made"})["higher_is_better"] == ["order_gain_nats"], "of what these runs have"
    few = sweep_folder(tmp_path / "few")
    add_run(few, run_config(1, 64))
    assert "need 10 completed runs" in importances(library, {"sweep": "few", "target": "loss_nats"})["why_not"]
    assert importances(library, {"sweep": "few", "target": "x"})["importances"] == {}


@pytest.mark.parametrize("model", [model.short_name for model in catalogue()])
def test_what_if_counts_exactly_what_study_params_counts(model: str, tmp_path: Path) -> None:
    architecture = next(one.architecture for one in catalogue() if one.short_name == model)
    wanted = account(architecture, Conditions(default_length(None, [architecture]), 32, "fp32"))
    fields = {name: "none" if value is None else str(value).lower() for name, value in architecture.model_dump().items()}
    for asked in ({"model": model}, fields):  # by its name, and by every control
        answer = what_if(Library(tmp_path), asked)
        assert answer["problems"] == []
        assert answer["account"] | {"name": ""} == wanted.to_dict() | {"name": ""}
        assert sum(part["count"] for part in answer["parts"]) == wanted.count.parameters
        assert any(
            own["name"] in answer["nearest"]
            for own in answer["models"]
            if own["parameters_encoder"] == wanted.count.parameters_encoder
        )


def test_the_form_has_a_control_for_every_field_of_the_architecture(tmp_path: Path) -> None:
    form = what_if_form(Library(tmp_path), {})
    kinds = {field["name"]: field["kind"] for field in form["fields"]}
    assert set(kinds) == set(form["models"]["bert-base"])
    assert {kinds[name] for name in ("norm", "tied_decoder", "embedding_norm", "depth", "embedding_width")} == {
        "choice",
        "flag",
        "count",
    }


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"heads": "7"}, "heads: 7 heads do not divide width 768; 6 would"),
        ({"sequence_length": "600"}, "sequence length: is 600; it is from 1 to the number of positions, 512"),
        ({"depth": "x"}, "depth"),
        ({"depth": "99999999"}, "the most is 10,000,000"),
        ({"norm": "sideways"}, "norm"),
        ({"model": "bert-bse"}, "bert-base"),
        ({"batch": "0"}, "batch"),
    ],
)
def test_what_cannot_be_built_is_said_in_words_without_an_option_of_the_shell(
    asked: dict[str, str], message: str, tmp_path: Path
) -> None:
    problems = "\n".join(what_if(Library(tmp_path), asked)["problems"])
    assert message in problems
    assert "--" not in problems


@pytest.mark.slow
def test_a_predicted_loss_is_that_of_the_law_and_says_how_far_it_extrapolates(sizes: Library) -> None:
    asked = SHAPE_ASKED | {"sweep": "sizes", "law": "chinchilla", "tokens": "2M"}
    within = what_if(sizes, asked)["prediction"]
    fitted = fit_table(TableQuery(open_ledger(sizes.root / "sizes")), "chinchilla", Settings(bootstrap=RESAMPLES)).fit
    count = what_if(sizes, asked)["totals"]["parameters"]
    assert within["loss_nats"] == fitted.predict({"parameters": np.array([count]), "tokens": np.array([2e6])})[0]
    assert within["low"] < within["loss_nats"] < within["high"]
    assert within["beyond"] == []
    far = what_if(sizes, asked | {"tokens": "40M", "vocabulary": "4096"})["prediction"]
    assert any(words.startswith("tokens is 10 times above the largest") for words in far["beyond"])
    assert any("losses over other vocabularies do not compare" in words for words in far["beyond"])
    assert far["high"] - far["low"] > within["high"] - within["low"]
    assert what_if(sizes, asked | {"tokens": "0"})["prediction"]["why_not"].startswith("tokens: ")


SHAPE_ASKED = {
    "depth": "1",
    "width": "92",
    "heads": "2",
    "ffn": "368",
    "vocabulary": "2048",
    "positions": "64",
    "sequence_length": "64",
}
"""A shape of SHAPES, of the text of the synthetic sweep."""


@pytest.fixture
def of_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A sweep of two ways of positions, each with a law of its own."""
    varied = {"vary": {"architecture.position_encoding": ["learned", "rotary"]}}
    folder = sweep_folder(tmp_path / "ways", SWEEP | {"tune": {}} | varied)
    for depth, width in SHAPES:
        for tokens in (1e6, 2e6, 4e6):
            for positions in ("learned", "rotary"):
                add_run(folder, in_setting(run_config(depth, width, tokens=tokens), position_encoding=positions))
    folder.write_ledger()
    monkeypatch.setattr("study.dashboard.law_lines.DEFAULT_SETTINGS", Settings(bootstrap=0))
    return Library(tmp_path)


def test_an_encoder_unlike_the_runs_of_a_law_is_predicted_with_a_caution_for_each_difference(of_positions: Library) -> None:
    asked = SHAPE_ASKED | {"sweep": "ways", "tokens": "2M", "law": "chinchilla|architecture.position_encoding == 'learned'"}
    assert what_if(of_positions, asked)["prediction"]["beyond"] == []
    other = {"position_encoding": "rotary", "norm": "pre", "activation": "geglu", "pooler": "false"}
    unlike = what_if(of_positions, asked | other)["prediction"]["beyond"]
    has = [words.removeprefix("this encoder has ") for words in unlike]
    assert sorted(has) == [
        "GeGLU, the law's runs GELU",
        "pre-norm, the law's runs post-norm",
        "rotary positions, the law's runs learned positions",
    ], "a pooler is no part of the loss"
    shorter = what_if(of_positions, asked | {"sequence_length": "32"})["prediction"]["beyond"]
    assert shorter == ["losses over other lengths do not compare, and the law's runs read sequences of 64 tokens"]


def test_a_budget_whose_whole_steps_are_fewer_tokens_is_no_extrapolation(of_positions: Library) -> None:
    asked = SHAPE_ASKED | {"sweep": "ways", "law": "chinchilla|architecture.position_encoding == 'rotary'"}
    asked |= {"position_encoding": "rotary"}
    trained = open_ledger(of_positions.root / "ways").frame["tokens"].max()
    assert trained < 4_000_000
    assert what_if(of_positions, asked | {"tokens": "4M"})["prediction"]["beyond"] == []
    (far,) = what_if(of_positions, asked | {"tokens": "4.1M"})["prediction"]["beyond"]
    assert far == "tokens is 1.03 times above the largest that the law was fitted to"


def test_no_score_is_predicted_from_losses_of_another_validation_set(of_positions: Library) -> None:
    shot = of_positions.snapshot("ways")
    fitted = _fitted(of_positions, shot, "chinchilla|architecture.position_encoding == 'rotary'", "")
    facts = {"metric": "accuracy", "unit": "nats per masked token", "loss": [5.0, 4.5, 4.0], "shape": ["a", "b", "c"]}
    score = _score(of_positions, shot, fitted, "sst2", pd.DataFrame(facts | {"validation": "other"}), {})
    assert score["why_not"] == "scores are related to losses of other text, masks or objective than those of the law's runs"


def test_what_if_counts_the_flops_of_a_law_as_its_runs_do() -> None:
    """With their share of masks, 30%, not BERT's 15%, which reads a law of FLOPs at a third fewer."""
    reference = Path(__file__).resolve().parents[2] / "results" / "reference"
    table = open_ledger(reference / "width_and_tokens")
    run = table.frame.iloc[0]
    asked = {name: str(run[f"architecture.{name}"]) for name in ("depth", "width", "heads", "ffn", "vocabulary")}
    asked |= {"model": "bert-base", "positions": "64", "sequence_length": "64", "tokens": str(run["tokens"])}
    asked |= {name: str(run[f"architecture.{name}"]) for name in ("position_encoding", "distance_bias")}
    prediction = what_if(Library(reference), asked | {"sweep": "width_and_tokens", "law": "flops"})["prediction"]
    fitted = fit_table(TableQuery(table), "flops", Settings(bootstrap=0)).fit
    expected = fitted.predict({"flops": np.array([run["train_flops"]])})[0]
    assert prediction["loss_nats"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_a_predicted_score_is_that_of_the_predicted_loss(tmp_path: Path) -> None:
    shapes = ((1, 64), (1, 92), (1, 128), (2, 64), (2, 92), (2, 128), (3, 92), (3, 128))
    folder = depth_or_width(tmp_path / "made", budgets=(1e6, 2e6), shapes=shapes, rates=(4e-3,), seeds=2)
    folder.write_ledger()
    library = Library(tmp_path)
    asked = {"sweep": "made", "depth": "2", "width": "92", "heads": "2", "ffn": "368", "vocabulary": "2048"}
    asked |= {"positions": "64", "sequence_length": "64", "tokens": "2M"}
    unscored = what_if(library, asked)["prediction"]
    assert (unscored["tasks"], unscored["score"]) == ([], None)
    losses = [record.loss_nats for record in folder.records() if record.loss_nats is not None]
    task = replace(TASKS["sst2"], slope=2.0, middle=float(np.median(losses)))
    add_scores(folder, {"sst2": task, "cola": TASKS["cola"]}, seeds=2)
    predicted = what_if(library, asked | {"task": "sst2"})["prediction"]
    assert (predicted["tasks"], predicted["task"]) == (["cola", "sst2"], "sst2")
    score = predicted["score"]
    assert (score["metric"], score["beyond"]) == ("accuracy", None)
    assert score["value"] == pytest.approx(task.score(predicted["loss_nats"]), abs=0.02), "the law that the scores follow"
    assert score["low"] < score["value"] < score["high"]
    assert score["n"] == 16
    far = what_if(library, asked | {"task": "sst2", "depth": "8", "width": "512", "heads": "8", "ffn": "2048"})["prediction"]
    assert far["score"]["beyond"].endswith("nats below the lowest of the scored encoders")
    assert far["score"]["value"] > score["value"]
    assert what_if(library, asked)["prediction"]["task"] == "cola", "the first, where none is chosen"


def test_no_score_of_a_loss_per_byte_is_predicted_from_a_loss_per_token() -> None:
    points = pd.DataFrame({"metric": ["accuracy"], "unit": ["bits per byte"]})
    score = _score(Mock(), Mock(), Mock(), "sst2", points, {})
    assert score["why_not"] == "scores are related to losses in bits per byte, and the law gives nats per masked token"


def test_a_slider_that_moves_fits_no_table_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).resolve().parents[2] / "results" / "reference" / "latency"
    shutil.copytree(source, tmp_path / "latency")
    read: list[Path] = []

    def counted(path: Path) -> pd.DataFrame:
        read.append(path)
        return read_table(path)

    monkeypatch.setattr("study.dashboard.what_if.read_table", counted)
    library = Library(tmp_path)
    shapes = [{"batch": "1", "depth": str(depth)} for depth in (2, 4, 6)]
    seconds = [what_if(library, asked)["latency"][0]["seconds"] for asked in shapes]
    assert seconds == sorted(seconds)
    assert len(read) == 1
    what_if(library, {"batch": "8"})
    assert len(read) == 2, "other batches need other rows"
    table = read[0]
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:1]))
    assert "problem" in what_if(library, shapes[0])["latency"][0], "a table that has changed is read again"


def test_latency_comes_from_the_tables_below_the_folder() -> None:
    reference = Path(__file__).resolve().parents[2] / "results" / "reference"
    for root in (reference, reference.parent):
        (row,) = what_if(Library(root), {"batch": "1"})["latency"]
        assert (row["machine"], row["threads"]) == ("amd-epyc-family-25-avx2", 2)
        assert 0 < row["seconds"] < 5
    assert what_if(Library(reference), {"depth": "40"})["latency"][0]["beyond"] == ["depth"]
    assert what_if(Library(reference), {"activation": "geglu"})["latency"][0]["beyond"] == ["activation"]
    of_its_own_kind = {"depth": "4", "width": "256", "heads": "4", "ffn": "1024", "position_encoding": "rotary"}
    of_its_own_kind |= {"distance_bias": "learned"}
    assert what_if(Library(reference), of_its_own_kind)["latency"][0]["beyond"] == []


def test_a_table_without_times_in_a_precision_says_so_and_shows_no_others() -> None:
    library = Library(Path(__file__).resolve().parents[2] / "results" / "reference")
    plain, whole, half = (what_if(library, {"batch": "1", "precision": form}) for form in ("fp32", "int8", "bf16"))
    (row,) = half["latency"]
    assert "seconds" not in row
    assert row["problem"].startswith("its table has no times in bf16; it has fp32 at 2 threads, int8 at 2 threads")
    assert whole["latency"][0]["seconds"] < plain["latency"][0]["seconds"]
    memory, other = (each["account"]["memory"] for each in (whole, plain))
    assert memory["inference"]["weights_bytes"] < 0.3 * other["inference"]["weights_bytes"]
    assert memory["training"] == other["training"]
    assert what_if(library, {"precision": "int4"})["problems"] == ["precision: is int4; it is fp32, bf16, int8"]


class _Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def test_an_answer_of_a_stranger_runs_nothing_and_loads_nothing() -> None:
    elements = _Elements(answer_html('x" onload="hit()', MALICE)).elements
    assert {tag for tag, _ in elements} == {"h1", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert {name for _, attributes in elements for name in attributes} == {"style"}
    figure = "![own](data:image/svg+xml;base64,PHN2Zy8+) [page](https://example.org) ![drawn](figures/law_fit.svg)"
    kept = _Elements(answer_html('x" onload="hit()', figure)).elements
    assert ("a", {"href": "https://example.org"}) in kept
    assert ("img", {"src": "data:image/svg+xml;base64,PHN2Zy8+", "alt": "own"}) in kept
    assert ("img", {"src": "/figure/x%22%20onload%3D%22hit%28%29/law_fit.svg", "alt": "law fit", "loading": "lazy"}) in kept
    fold = '<details markdown="1">\n<summary>All <b>pairs</b></summary>\n\ntext\n\n</details>'
    assert _Elements(answer_html("x", fold)).elements == [("details", {}), ("summary", {}), ("p", {})]
    assert {tag for tag, _ in _Elements(answer_html("x", fold.replace(">", ' onclick="x">', 1))).elements} == {"p"}


def test_of_what_links_lead_to_out_of_a_strangers_folder_nothing_is_shown(tmp_path: Path) -> None:
    secret = tmp_path / "secrets"
    secret.mkdir()
    folder = depth_or_width(tmp_path / "results" / "made", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3,), seeds=1)
    (run,) = folder.runs()
    (secret / "key").write_text("**a secret.**")
    (secret / "sweep.yaml").write_text(f"{folder.sweep_file.read_text()}\n# a secret\n")
    (folder.path / "own.md").write_text("**its own words.**")
    folder.sweep_file.unlink()
    folder.sweep_file.symlink_to(secret / "sweep.yaml")
    folder.answer_file.symlink_to("own.md")
    folder.figures.mkdir()
    (folder.figures / "mine.svg").write_text("<svg/>")
    (folder.figures / "again.svg").symlink_to("mine.svg")
    (folder.figures / "theirs.svg").symlink_to(secret / "key")
    run.log_file.symlink_to(secret / "key")

    def shown() -> dict[str, Any]:
        library = Library(tmp_path / "results")
        asked = {"sweep": "made", "run": run.run_id}
        row, page, log = overview(library, {})["sweeps"][0], sweep_page(library, asked), run_page(library, asked)["log"]
        assert "a secret" not in json.dumps([row, page, log])
        return page

    assert (shown()["verdict"], shown()["figures"]) == ("its own words.", ["again.svg", "mine.svg"])
    assert shown()["problems"] == [f"{folder.sweep_file}: is a link that leads out of its folder, and is not followed"]
    folder.answer_file.unlink()
    folder.answer_file.symlink_to(secret / "key")
    assert shown()["verdict"] == ""
    shot = Library(tmp_path / "results").snapshot("made")
    assert figure_of(shot, "again.svg") == b"<svg/>"
    for name in ("theirs.svg", "none.svg"):
        with pytest.raises(InputError, match="is no figure of made"):
            figure_of(shot, name)
    shutil.rmtree(folder.figures)
    (secret / "mine.svg").write_text("a secret")
    folder.figures.symlink_to(secret)
    assert shown()["figures"] == []
    with pytest.raises(InputError, match="is no figure of made"):
        figure_of(shot, "mine.svg")


def test_a_sweep_that_is_itself_linked_to_is_shown(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "elsewhere" / "made")
    folder.answer_file.write_text("**It is lower.**")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "made").symlink_to(folder.path)
    assert [row["verdict"] for row in overview(Library(tmp_path / "results"), {})["sweeps"]] == ["It is lower."]


def test_a_pipe_in_place_of_a_log_or_of_metrics_is_not_waited_for(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3,), seeds=1)
    (run,) = folder.runs()
    for file in (run.log_file, run.metrics_file):
        file.unlink(missing_ok=True)
        os.mkfifo(file)
    library = Library(tmp_path)
    assert run_page(library, {"sweep": "made", "run": run.run_id})["log"] == ""
    assert "is a pipe or a device" in curves(library, {"sweep": "made"})["problems"][0]


def test_the_verdict_of_a_row_is_that_of_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("study.report.answer.FIGURES", {"learning_rate": FIGURES["learning_rate"]})
    answer = report(depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 128), (2, 92)), rates=(2e-3, 4e-3, 8e-3)))
    library = Library(tmp_path)
    page = sweep_page(library, {"sweep": "made"})
    assert overview(library, {})["sweeps"][0]["verdict"] == page["verdict"] == answer.headline
    assert page["figures"] == ["learning_rate.svg"]
    assert 'src="/figure/made/learning_rate.svg"' in page["answer"]
    assert verdict_in("# x\n\nno verdict\n") == ""


def test_reading_writes_nothing(tmp_path: Path) -> None:
    folder = depth_or_width(tmp_path / "made", budgets=(1e6, 2e6), shapes=SHAPES[:4], rates=(4e-3,), seeds=1)
    folder.write_ledger()
    os.utime(folder.path / "sweep.yaml", (0, 0))
    library = Library(tmp_path)
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    run = next(iter(library.snapshot("made").runs))
    for asked in (
        overview(library, {}),
        sweep_page(library, {"sweep": "made"}),
        run_page(library, {"sweep": "made", "run": run}),
    ):
        assert asked
    points(library, {"sweeps": "made"})
    curves(library, {"sweep": "made"})
    offers(library, {"sweep": "made"})
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == files


def test_the_environment_of_a_run_is_shown(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "made")
    run = folder.run(add_run(folder, run_config(1, 64)))
    record = run.record()
    assert record is not None
    run.record_file.write_text(record.model_copy(update={"environment": environment(device="TPU")}).model_dump_json())
    assert run_page(Library(tmp_path), {"sweep": "made", "run": run.run_id})["environment"]["device"] == "TPU"
