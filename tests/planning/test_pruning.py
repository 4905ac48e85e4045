"""Pruning of a search: the sweep compares what its runs report and tells the worse ones to stop; real runs and fakes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from study.base.errors import InputError
from study.config.run_config import RunConfig
from study.config.search_spec import Prune
from study.data.prepared import data_fingerprint
from study.executing.executors import LocalExecutor
from study.executing.processes import Job
from study.executing.slots import Slot
from study.planning import plan
from study.planning.search import OptunaSearch, Pruning, checks_in
from study.running.coordinator import Coordinator, Progress
from study.running.run_proposer import RunJob, RunProposer
from study.store.ownership import Attempt
from study.store.records import RunRecord
from study.store.run_folder import Orders, RunFolder
from study.store.sweep_folder import SweepFolder
from tests.ranks import ranks_said
from tests.small import config, run_folder, trained, write_corpus
from tests.sweeps import coordinator_of, parsed, record, run_in, search_sweep, sweep, write_topics

FIXED = {"architecture": {"depth": 1, "width": 16, "heads": 2, "ffn": 32}}
SPACE = {"recipe.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}


def searching(trials: int = 20, prune: Any = None, **changes: Any) -> dict[str, Any]:
    search = {"trials": trials, "space": SPACE, "sampler": "random", "prune": prune or {"by": "median"}}
    return {"shapes": None, "search": search, "base": FIXED} | changes


def test_cells_are_never_pruned_and_the_refusal_says_why() -> None:
    with pytest.raises(InputError, match=r"belongs under search: .* would bias"):
        sweep(prune={"by": "median"})
    with pytest.raises(InputError, match="prune needs loss_nats as the one objective"):
        search_sweep(search={"trials": 2, "space": SPACE, "objectives": ["loss_nats", "parameters"], "prune": {}})
    with pytest.raises(InputError, match=r"search\.prune\.by"):
        search_sweep(**searching(prune={"by": "luck"}))


@pytest.mark.parametrize(("first", "checks", "expected"), [(0.25, 8, 2), (0.0, 8, 1), (0.3, 10, 3), (0.9, 2, 2)])
def test_no_run_is_stopped_before_its_share_of_the_budget(first: float, checks: int, expected: int) -> None:
    assert Prune(first=first, checks=checks).first_check == expected


@pytest.mark.parametrize(("checks", "steps"), [(8, 50), (8, 24), (50, 100), (100, 400), (100, 9802), (3, 1000)])
def test_a_run_is_checked_as_often_as_its_search_says_and_never_before_the_share_that_is_spared(
    checks: int, steps: int
) -> None:
    wanted, prune = config(Path("corpus.txt"), recipe={"budget": {"steps": steps}}), Prune(checks=checks, first=0.3)
    interval = wanted.check_interval(checks)
    assert len([*range(interval, steps, interval), steps]) == checks
    assert prune.first <= prune.first_check * interval / steps < 1


@pytest.mark.parametrize(
    ("prune", "steps", "place", "message"),
    [
        (
            {"checks": 8},
            20,
            "checks",
            "8 do not fit evenly into a run of 20 steps; give 7, or give a budget of more than 49 steps",
        ),
        (
            {"checks": 50},
            20,
            "checks",
            "50 do not fit evenly into a run of 20 steps; give 20, or give a budget of more than 2,401 steps",
        ),
        (
            {"first": 0.9, "checks": 8},
            100,
            "first",
            "0.9 spares all of 8 checks, the last at the end; give 0.875 or less, or more",
        ),
    ],
)
def test_checks_that_cannot_be_made_are_refused_before_anything_is_trained(
    prune: dict[str, Any], steps: int, place: str, message: str
) -> None:
    spec = parsed(**searching(prune=prune), budgets={"steps": [steps]})
    with pytest.raises(InputError, match=re.escape(f"search.prune.{place}: {message}")):
        plan.Plan(spec).check()
    for given in {int(number) for number in re.findall("give ([0-9]+),", message)}:
        plan.Plan(parsed(**searching(prune={"checks": given}), budgets={"steps": [steps]})).check()


@pytest.mark.parametrize(("checks", "steps"), [(7, 20), (20, 20)])
def test_a_run_really_validates_as_often(corpus: Path, tmp_path: Path, checks: int, steps: int) -> None:
    wanted = config(corpus, recipe={"budget": {"steps": steps}})
    run = run_folder(tmp_path, wanted)
    run.write_config(wanted)
    run.write_orders(Orders(validations=checks))
    trained(tmp_path, wanted)
    assert len([row for row in run.metrics() if "val/loss" in row]) == checks


class Reporting:
    """An executor of three slots whose runs write one check a look and obey the order to stop."""

    def __init__(self, prune: Prune) -> None:
        self.prune = prune
        self.stopped: list[float] = []
        self._running: list[tuple[Future[int], RunConfig, RunFolder, int]] = []

    @property
    def free(self) -> int:
        return 3 - len(self._running)

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        job, future = run_in(jobs), Future[int]()
        assert job.folder.orders() == Orders(validations=self.prune.checks)
        self._running.append((future, job.config, job.folder, 0))
        return future

    def tick(self, progress: Progress[RunJob, RunRecord]) -> None:
        """Let every run get on to its next check, or end."""
        del progress
        going, self._running = self._running, []
        for future, wanted, run, check in going:
            if (reason := run.prune()) is not None:
                self.stopped.append(wanted.recipe.learning_rate)
                self._file(run, record(wanted, None, "PRUNED", reason=reason, run_id=run.run_id), future)
            elif check == self.prune.checks - 1:
                self._file(run, record(wanted, loss_at(wanted, wanted.steps), run_id=run.run_id), future)
            else:
                step = (check + 1) * wanted.check_interval(self.prune.checks)
                row = {"trainer/step": step, "trainer/tokens": step * 256, "val/loss": loss_at(wanted, step)}
                with run.metrics_file.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                self._running.append((future, wanted, run, check + 1))

    def _file(self, run: RunFolder, ended: Any, future: Future[int]) -> None:
        assert run.file_record(ended)
        future.set_result(0)

    def interrupt(self) -> None:
        for future, *_ in self._running:
            future.set_result(75)

    def kill(self) -> None:
        self._running.clear()


def study_of(coordinator: Coordinator[RunJob, RunRecord]) -> optuna.Study:
    """The Optuna study of a search."""
    assert isinstance(coordinator.proposer, RunProposer)
    assert isinstance(coordinator.proposer.configs, OptunaSearch)
    return coordinator.proposer.configs.study


def loss_at(config: RunConfig, step: int) -> float:
    """A valley at 0.01 that deepens with the steps."""
    return 6 - step / 100 * (2 - abs(config.recipe.learning_rate - 0.01) * 20)


@pytest.mark.parametrize("by", ["median", "hyperband"])
def test_worse_runs_are_stopped_and_leave_a_record_that_fits_leave_out(by: str, tmp_path: Path) -> None:
    changes = searching(trials=24, prune={"by": by})
    spec = search_sweep(**changes)
    assert spec.search.prune is not None
    executor = Reporting(spec.search.prune)
    folder = SweepFolder(tmp_path / "toy")
    coordinator_of(folder, **changes).run(executor, executor.tick, 0.0)
    records = folder.records()
    assert len(records) == 24
    pruned = [ended for ended in records if ended.state == "PRUNED"]
    assert len(pruned) == len(executor.stopped) >= 4
    for ended in pruned:
        assert ended.exclusion is not None
        assert ended.exclusion.startswith(f"PRUNED: {by}: ")
        assert ended.exclusion.endswith(" tokens")
    best = min(records, key=lambda ended: abs(ended.config.recipe.learning_rate - 0.01))
    assert best.state == "COMPLETED"
    table = folder.write_ledger()
    assert table["exclusion"].notna().sum() == len(pruned)
    again = coordinator_of(folder, **changes)
    trials = study_of(again).get_trials()
    assert [trial.state for trial in trials].count(TrialState.PRUNED) == len(pruned)
    assert all(trial.intermediate_values for trial in trials)
    again.run(Reporting(spec.search.prune), lambda _: None, 0.0)
    assert len(folder.records()) == 24


def test_runs_left_on_the_plateau_count_towards_the_median() -> None:
    spec = search_sweep(**searching())
    search = OptunaSearch(spec)
    *tried, last = search.wanted({}, {}, 6)
    assert spec.search.prune is not None
    assert len(tried) == spec.search.prune.spared
    for number, other in enumerate(tried):
        for check in (1, 2):
            assert search.report(other.key, check, 6 - number / 10) is None
        unread: dict[str, Any] = {"order_gain_nats": 0.001} if number < 3 else {}
        search.tell(other.key, record(other, 6 - number / 10, run_id=f"{number:016x}", **unread))
    assert search.report(last.key, 1, 5.9) is None, "before a quarter of the budget"
    assert "median" in str(search.report(last.key, 2, 5.9))


def test_a_restarted_search_prunes_what_runs_by_what_it_knew(tmp_path: Path) -> None:
    changes = searching(trials=12, prune={"spared": 3})
    spec = search_sweep(**changes)
    assert spec.search.prune is not None
    folder, ticks = SweepFolder(tmp_path / "toy"), 0
    executor = Reporting(spec.search.prune)

    def interrupted(progress: Progress[RunJob, RunRecord]) -> None:
        nonlocal ticks
        ticks += 1
        executor.tick(progress)
        if ticks == 18:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coordinator_of(folder, **changes).run(executor, interrupted, 0.0)
    known = len(folder.records())
    assert 3 <= known < 12
    again = coordinator_of(folder, **changes)
    before = study_of(again).get_trials(states=(TrialState.COMPLETE,))
    assert all(len(trial.intermediate_values) == 7 for trial in before)


def test_a_pruned_run_is_trained_whole_where_a_comparison_wants_it(tmp_path: Path) -> None:
    """In the same folder and in another sweep's: a cell has use for whole runs only."""
    from tests.running.test_coordinator import FakeExecutor

    cells: dict[str, Any] = {"base": {"recipe": {"learning_rate": 0.04}}, "shapes": {"grid": {"depth": [1]}}}
    (wanted,) = [cell.config for cell in plan.cells(sweep(**cells))]
    for name in ("toy", "other"):
        run = SweepFolder(tmp_path / name).run(wanted.fingerprint("data"))
        run.write_config(wanted)
        with Attempt.begin(run).renewed():
            run.file_record(record(wanted, None, "PRUNED", reason="worse", run_id=run.run_id))
        homes = tmp_path / ".homes"
        homes.mkdir(exist_ok=True)
        if name == "other":
            os.symlink(os.path.join("..", name, "runs", run.run_id), homes / run.run_id)
    folder, executor = SweepFolder(tmp_path / "toy"), FakeExecutor()
    coordinator_of(folder, **cells).run(executor, lambda _: None, 0.01)
    assert len(executor.submitted) == 1
    assert [ended.state for ended in folder.records()] == ["COMPLETED"]
    assert [ended.state for ended in SweepFolder(tmp_path / "other").records()] == ["PRUNED"]


def test_the_end_of_a_run_is_no_check_nor_is_what_lies_between_two() -> None:
    wanted = config(Path("corpus.txt"), recipe={"budget": {"steps": 6}})
    rows = [{"trainer/step": step, "val/loss": 3.0} for step in (2, 3, 4, 6)]
    assert [check for check, _ in checks_in(iter(rows), wanted, Prune(checks=4))] == [1, 2]


def test_a_run_that_repeats_its_way_reports_what_comes_after_it(tmp_path: Path) -> None:
    """Resumed from a checkpoint before its last row, as a killed run is."""
    wanted, reported = config(tmp_path, recipe={"budget": {"steps": 90}}), list[tuple[int, float]]()
    run, prune = RunFolder(tmp_path / "run"), Prune(checks=10)
    run.write_config(wanted)
    search = SimpleNamespace(report=lambda _, check, loss: reported.append((check, loss)))
    pruning = Pruning(search, prune, lambda _: run)  # type: ignore[arg-type]
    for losses in ([5.0, 4.0], [5.0], [5.0, 4.25, 3.0]):
        rows = ({"trainer/step": 9 * check, "val/loss": loss} for check, loss in enumerate(losses, 1))
        run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        pruning.look({wanted.key: wanted})
    assert reported[-1] == (3, 3.0)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "text.txt")


@pytest.mark.slow
def test_a_run_that_is_told_to_stop_ends_at_its_next_row_with_a_record(corpus: Path, tmp_path: Path) -> None:
    wanted = config(corpus, recipe={"budget": {"steps": 100}})
    run = run_folder(tmp_path, wanted)
    run.write_config(wanted)
    run.write_prune("median: 6.1 nats")
    run.write_orders(Orders(validations=50))
    trained(tmp_path, wanted)
    ended = run.record()
    assert ended is not None
    assert (ended.state, ended.reason, ended.steps, ended.loss_nats) == ("PRUNED", "median: 6.1 nats", 2, None)
    assert not list(run.checkpoints.glob("*"))
    run.put_record_aside({})
    trained(tmp_path, wanted)
    whole = run.record()
    assert whole is not None
    assert (whole.state, whole.steps) == ("COMPLETED", 100)
    assert [row["trainer/step"] for row in run.metrics() if "val/loss" in row] == [*range(2, 101, 2)]
    assert len(list(checks_in(run.metrics(), wanted, Prune(checks=50)))) == 49


def test_a_run_that_is_told_to_stop_at_its_last_step_is_whole(corpus: Path, tmp_path: Path) -> None:
    wanted = config(corpus, recipe={"budget": {"steps": 1}})
    run = run_folder(tmp_path, wanted)
    run.write_config(wanted)
    run.write_prune("median: 6.1 nats")
    ended = trained(tmp_path, wanted).record()
    assert ended is not None
    assert ended.state == "COMPLETED"


def real_search(root: Path, rates: list[float], trials: int) -> SweepFolder:
    """A search over these rates by real runs."""
    corpus = root / "topics.txt"
    prune = {"by": "median", "checks": 4, "spared": 1, "first": 0.25}
    space = {"recipe.learning_rate": {"choices": rates}}
    search = {"trials": trials, "space": space, "prune": prune}
    changes: dict[str, Any] = {"shapes": None, "search": search, "base": FIXED, "budgets": {"steps": [600]}}
    spec, folder = parsed(corpus, **changes), SweepFolder(root / "results" / "toy")
    coordinator = coordinator_of(folder, corpus, data_fingerprint(spec.data), **changes)
    coordinator.run(LocalExecutor([Slot("cpu", (0,), 1)]), lambda _: None, 0.05)
    return folder


@pytest.mark.slow
def test_a_real_search_stops_its_losers_early(tmp_path: Path) -> None:
    """The second launch knows from the first one's metrics what a good run reaches when."""
    write_topics(tmp_path / "topics.txt")
    (winner,) = real_search(tmp_path, [0.04], trials=1).records()
    assert winner.state == "COMPLETED"
    records = real_search(tmp_path, [0.04, 1e-6, 2e-6], trials=4).records()
    losers = [ended for ended in records if ended.run_id != winner.run_id]
    assert losers
    for ended in losers:
        assert ended.state == "PRUNED"
        assert 151 <= ended.steps < 600
        assert ended.reason is not None
        assert ended.reason.startswith("median: ")


@pytest.mark.slow
def test_all_ranks_stop_at_one_step(corpus: Path, tmp_path: Path) -> None:
    wanted = config(corpus, recipe={"budget": {"steps": 100}})
    run = run_folder(tmp_path, wanted)
    run.write_config(wanted)
    run.write_prune("median: 6.1 nats")
    assert ranks_said(run) == ["PRUNED", "PRUNED"]
    ended = run.record()
    assert ended is not None
    assert (ended.state, ended.steps) == ("PRUNED", 2)
