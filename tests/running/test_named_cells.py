"""Sweeps that train the run that others start from or learn from: its order, its failure, a kill, and what it cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from study.base.errors import InputError
from study.config.run_config import RunConfig
from study.data.prepared import data_fingerprint
from study.executing.slots import Slot
from study.planning.cost_estimate import cost_summary, estimate_cost
from study.planning.plan import Plan, parents_of
from study.running.control import retry
from study.running.launch import _check_trained_runs
from study.store.records import RunRecord, counts_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.training.attempts import StopSignal
from study.training.execution import Execution
from study.training.run import train
from study.training.trained_runs import check_trained_runs
from tests.running.test_coordinator import FakeExecutor, completes
from tests.sweeps import RATES, coordinator_of, record, sweep, texts_of, write_topics

CORE = Slot("cpu", (0,), threads=1)
CUT: dict[str, Any] = {
    "shapes": {"grid": {"depth": [2]}},
    "cells": {"deep": {"depth": 4, "steps": 60}, "longer": {"steps": 80}},
    "budgets": {"steps": [20]},
    "vary": {
        "recipe.start": ["fresh", {"cell": "deep", "keep": "spread"}],
        "recipe.teacher": ["none", {"cell": "deep", "weight": 0.5}],
    },
    "seeds": 2,
}
"""One run of four layers, ten of two: four variants and a longer one from scratch, of two seeds each."""


def trained_with_weights(config: RunConfig, run: RunFolder) -> int:
    run.weights_file.write_bytes(b"weights")
    return completes(config, run)


def launch(
    tmp_path: Path, life: Callable[[RunConfig, RunFolder], int] = trained_with_weights, **changes: Any
) -> list[RunConfig]:
    """Launch with fake runs: the configurations that were submitted, in order."""
    folder, executor = SweepFolder(tmp_path / "results" / "toy"), FakeExecutor(life, slots=2)
    coordinator_of(folder, **CUT | changes).run(executor, lambda _: None, refresh_seconds=0.01)
    return [folder.run(run_id).config() for run_id in executor.submitted]


def records(tmp_path: Path) -> list[RunRecord]:
    return SweepFolder(tmp_path / "results" / "toy").records()


def plan_of(**changes: Any) -> Plan:
    spec = sweep(**CUT | changes)
    return Plan(spec, texts=texts_of(spec))


def test_the_run_that_others_need_is_trained_first_and_once(tmp_path: Path) -> None:
    submitted = launch(tmp_path)
    ids = [config.fingerprint("data") for config in submitted]
    assert len(ids) == len(set(ids)) == 11
    assert [config.architecture.depth for config in submitted] == [4, *[2] * 10]
    assert all(ids.index(parent) < place for place, config in enumerate(submitted) for parent in parents_of(config))
    assert {parent for config in submitted for parent in parents_of(config)} == {ids[0]}
    assert sum(map(bool, map(parents_of, submitted))) == 6
    assert launch(tmp_path) == [], "all have ended"


def test_no_run_is_submitted_while_the_one_that_it_needs_is_running(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "results" / "toy")
    proposer = coordinator_of(folder, **CUT).proposer
    first = [job for (job,) in proposer.wanted([], 20)]
    assert [bool(parents_of(job.config)) for job in first] == [False] * 5
    assert proposer.wanted(first, 20) == []
    assert trained_with_weights(first[0].config, first[0].folder) == 0
    proposer.take(first[0])
    proposer.configs._look_again = 0.0  # type: ignore[attr-defined]
    assert sum(bool(parents_of(job.config)) for (job,) in proposer.wanted(first[1:], 20)) == 6


@pytest.mark.parametrize("state", ["DIVERGED", "FAILED"])
def test_runs_that_need_a_failed_one_say_so_and_are_trained_once_it_is(tmp_path: Path, state: Any) -> None:
    def fails(config: RunConfig, run: RunFolder) -> int:
        if config.architecture.depth < 4:
            return trained_with_weights(config, run)
        run.file_record(record(config, None, state, run_id=run.run_id, reason="for a test"))
        return 0

    assert len(launch(tmp_path, fails)) == 5, "the six that need it are not submitted"
    reasons = {one.reason for one in records(tmp_path) if parents_of(one.config)}
    assert len(reasons) == 1
    assert f"(L4-H16-A2-F32 start=fresh, teacher=none lr=4e-2 seed=0), which ended {state}: for a test;" in str(reasons)
    retry(SweepFolder(tmp_path / "results" / "toy"), [one.run_id for one in records(tmp_path) if one.state != "COMPLETED"])
    assert len(launch(tmp_path)) == 7
    assert {one.state for one in records(tmp_path)} == {"COMPLETED"}


@pytest.mark.parametrize("killed_after", [0, 1, 4, 9])
def test_a_launch_that_is_killed_goes_on_where_it_was(tmp_path: Path, killed_after: int) -> None:
    done: list[str] = []

    def dies(config: RunConfig, run: RunFolder) -> int:
        if len(done) == killed_after:
            raise KeyboardInterrupt
        done.append(run.run_id)
        return trained_with_weights(config, run)

    with pytest.raises(KeyboardInterrupt):
        launch(tmp_path, dies)
    again = [config.fingerprint("data") for config in launch(tmp_path)]
    assert len(again) == 11 - killed_after
    assert len({*done, *again}) == 11


def test_the_id_of_a_run_follows_what_can_change_the_run_that_it_needs(tmp_path: Path) -> None:
    def children(**changes: Any) -> set[str]:
        spec = sweep(**CUT | changes)
        plan = Plan(spec, texts=texts_of(spec), runs=changes.pop("runs", tmp_path))
        return {cell.config.fingerprint("data") for cell in plan.cells if parents_of(cell.config)}

    plain = children()
    assert len(plain) == 3
    assert plain == {
        cell.config.fingerprint("data")
        for cell in Plan(sweep(**CUT), texts=texts_of(sweep(**CUT)), runs=Path("elsewhere")).cells
        if parents_of(cell.config)
    }
    rate = {"deep": {"depth": 4, "steps": 60, "learning_rate": 0.02}}
    longer, deeper = {"deep": {"depth": 4, "steps": 61}}, {"deep": {"depth": 5, "steps": 60}}
    for cells in (rate, longer, deeper):
        assert not plain & children(cells=cells)


def test_a_plan_names_the_run_that_comes_first_and_counts_its_predictions() -> None:
    plan = plan_of()
    estimate = estimate_cost(plan, [CORE])
    assert "Trained first: run " in cost_summary(estimate)
    assert "(L4-H16-A2-F32, 15,360 tokens); 6 runs then start from it or learn from it." in cost_summary(estimate)
    deep, longer, plain, taught, cut, both = estimate.rows
    assert (deep.runs, deep.first_for, longer.runs, longer.tokens) == (1, 6, 2, 80 * 256)
    assert taught.train_flops - plain.train_flops == pytest.approx(deep.train_flops * 20 / 60 / 3)
    assert (cut.train_flops, both.train_flops) == (plain.train_flops, taught.train_flops)


def test_layers_that_are_all_first_make_one_cell_before_and_after_the_deep_one_is_trained() -> None:
    starts = [{"cell": "deep", "keep": keep} for keep in ("first", "spread")]
    plan = plan_of(shapes={"grid": {"depth": [1, 3]}}, cells={"deep": {"depth": 4, "steps": 60}}, vary={"recipe.start": starts})
    assert [cell.config.architecture.depth for cell in plan.cells] == [4, 1, 3, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cells": {"deeper": {"depth": 4, "steps": 60}}}, r"name the cell 'deep', .* did you mean 'deeper'\?"),
        ({"cells": {}}, r"name the cell 'deep', .* under cells; write cells: \{deep: \{depth: 4, tokens: 1\.0e6\}\}$"),
        ({"cells": {"deep": {"depth": 4}}}, "cells.deep: needs exactly one budget, of tokens, steps"),
        ({"tune": RATES}, r"needs cells\.deep\.learning_rate"),
        ({"tune": {"recipe.dropout": {"low": 0.1, "high": 0.3, "trials": 2}}}, r"tunes recipe\.dropout, which cells\.deep"),
        ({"vary": {"recipe.start": ["fresh", {"cell": "deep", "layers": 2}]}}, "has 'layers' beside cell; known: keep"),
        (
            {"vary": {"recipe.teacher": [{"cell": "deep", "weight": 5}]}},
            r"vary: has the teacher \{'cell': 'deep', 'weight': 5\}, which needs a weight above 0 and at most 1",
        ),
        (
            {"vary": {"recipe.teacher": [{"cell": "deep", "relation_heads": 2}]}},
            "'relation_heads': 2}, which has relation_heads",
        ),
        ({"vary": {"recipe.start": [{"cell": "deep", "keep": [1, 1]}]}}, r"\[1, 1\]\}, which names a layer twice \(1,1\)"),
        ({"vary": {"recipe.start": [{"cell": 3}]}}, "has 3 for a cell; give one of the names under cells"),
        ({"base": {"recipe": {"start": {"cell": "deep"}}}}, r"write vary: \{recipe\.start: \[\{cell: …\}\]\}"),
    ],
)
def test_a_cell_that_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sweep(**CUT | {"cells": {"deep": {"depth": 4, "steps": 60}}} | changes)


@pytest.mark.parametrize(
    ("named", "idle"),
    [
        ({"same": {"steps": 20}}, ["same"]),
        ({"same": {"depth": 2, "tokens": 20 * 256}}, ["same"]),
        ({"one": {"steps": 30}, "other": {"tokens": 30 * 256}}, ["other"]),
        ({"one": {"steps": 30}, "again": {"steps": 30}, "same": {"steps": 20}}, ["again", "same"]),
    ],
)
def test_a_named_cell_whose_runs_others_have_is_refused(named: dict[str, Any], idle: list[str]) -> None:
    """The run that others start from may be that of a cell."""
    deep: dict[str, Any] = {"deep": {"depth": 2, "steps": 20}}
    assert len(plan_of(cells=deep | {"one": {"steps": 30}}).cells) == 5
    with pytest.raises(InputError) as caught:
        _ = plan_of(cells=deep | named).cells
    assert [problem.place for problem in caught.value.problems] == [f"cells.{name}" for name in idle]


def test_too_few_layers_are_reported_before_anything_is_spent() -> None:
    plan = plan_of(cells={"deep": {"depth": 1, "steps": 60}})
    with pytest.raises(InputError, match=r"recipe\.start: the cell L1-H16-A2-F32 has 1 of the 2 layers that"):
        check_trained_runs([cell.config for cell in plan.cells], planned=plan.parents)


def test_tuned_runs_wait_for_a_run_of_a_given_rate(tmp_path: Path) -> None:
    cells = {"deep": {"depth": 4, "steps": 60, "learning_rate": 0.03}}
    first, *others = launch(tmp_path, cells=cells, tune=RATES)
    assert (first.architecture.depth, first.recipe.learning_rate) == (4, 0.03)
    assert {one.architecture.depth for one in others} == {2}
    assert {one.recipe.learning_rate for one in others} >= {0.02, 0.04, 0.08}


@pytest.mark.slow
def test_a_sweep_cuts_and_distils_what_it_trained_and_counts_what_all_cost(tmp_path: Path) -> None:
    """Real runs: each record counts its own FLOPs, a third of the teacher's at its tokens, and the deep run's training once."""
    corpus, folder = write_topics(tmp_path / "text.txt"), SweepFolder(tmp_path / "results" / "toy")
    text = data_fingerprint(sweep(corpus, **CUT).data)

    def trains(config: RunConfig, run: RunFolder) -> int:
        train(config, run, "toy", Execution(), StopSignal())
        return 0

    short = CUT | {"cells": {"deep": {"depth": 4, "steps": 8}}, "budgets": {"steps": [4]}, "seeds": 1}
    coordinator_of(folder, corpus, text, **short).run(FakeExecutor(trains), lambda _: None, refresh_seconds=0.01)
    actual = {one.config.variant(("recipe.start", "recipe.teacher")): one for one in folder.records() if one.config.steps == 4}
    (deep,) = (one for one in folder.records() if one.config.steps == 8)
    assert {one.state for one in folder.records()} == {"COMPLETED"}
    assert len(actual) == 4
    for one in actual.values():
        taught, needs = one.config.recipe.teacher_run is not None, bool(parents_of(one.config))
        own = counts_of(one.config, 4)["train_flops"] + taught * deep.train_flops * 4 / 8 / 3
        assert one.train_flops == pytest.approx(own)
        assert one.spent_flops == (pytest.approx(own + deep.train_flops) if needs else None)
        assert one.layers_cut == (2 if one.config.recipe.init_from else None)
    ledger = folder.ledger().set_index("run_id")
    assert ledger["spent_flops"][deep.run_id] == deep.train_flops
    assert ledger["spent_flops"].notna().all()
    spec = sweep(corpus, **short)
    _check_trained_runs(Plan(spec, folder.records(), texts_of(spec, text), folder.runs_folder), folder)
