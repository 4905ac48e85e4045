"""The coordinator: no run twice, none lost, whatever dies; runs here are faked, and end at once."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from study.base import durable_files
from study.base.errors import OOM_EXIT, InputError
from study.config.resources import Resources
from study.config.run_config import RunConfig
from study.executing.processes import Job
from study.running import display
from study.running.coordinator import CRASHES, KILLS, SAVE_SECONDS, Coordinator, Progress
from study.running.run_proposer import RunJob
from study.store.records import RunRecord, counts_of
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from study.store.work_folder import newest_values
from tests.sweeps import RATES, coordinator_of, record, run_in
from tests.synthetic import add_run, run_config, sweep_folder
from tests.waiting import ImpatientClock

Life = Callable[[RunConfig, RunFolder], int]
"""What becomes of a run: it may file a record, and gives an exit status."""

RunProgress = Progress[RunJob, RunRecord]

CORPUS = Path("corpus.txt")
TWELVE_CELLS: dict[str, Any] = {"shapes": {"grid": {"depth": list(range(1, 13))}}, "tune": RATES, "seeds": 3}


def completes(config: RunConfig, run: RunFolder) -> int:
    loss = 2 + abs(config.recipe.learning_rate - 0.04)
    assert run.file_record(record(config, loss, run_id=run.run_id))
    return 0


class FakeExecutor:
    """Four slots; each submitted run has lived its life when `submit` returns, or when it is interrupted."""

    def __init__(self, life: Life = completes, slots: int = 4, lingering: bool = False) -> None:
        self.life, self.slots, self.lingering = life, slots, lingering
        self.submitted: list[str] = []
        self.signals: list[str] = []
        self._running: list[tuple[Future[int], RunConfig, RunFolder]] = []

    @property
    def free(self) -> int:
        return self.slots - len(self._running)

    def submit(self, jobs: Sequence[Job]) -> Future[int]:
        assert self.free > 0
        job = run_in(jobs)
        assert job.folder.config_file.exists()
        self.submitted.append(job.key)
        future: Future[int] = Future()
        self._running.append((future, job.config, job.folder))
        if not self.lingering:
            self._end()
        return future

    def _end(self) -> None:
        while self._running:
            future, config, run = self._running.pop()
            future.set_result(self.life(config, run))

    def interrupt(self) -> None:
        self.signals.append("interrupt")
        self._end()

    def kill(self) -> None:
        self.signals.append("kill")


class Stubborn(FakeExecutor):
    """Its runs go on until they are killed."""

    def interrupt(self) -> None:
        self.signals.append("interrupt")

    def kill(self) -> None:
        self.signals.append("kill")
        self._end()


def coordinator(tmp_path: Path, **changes: Any) -> Coordinator[RunJob, RunRecord]:
    return coordinator_of(SweepFolder(tmp_path / "results" / "toy"), CORPUS, **changes)


def run(tmp_path: Path, executor: FakeExecutor, **changes: Any) -> RunProgress:
    started = coordinator(tmp_path, **changes)
    started.run(executor, lambda _: None, refresh_seconds=0.01)
    return started.progress


def states(tmp_path: Path) -> Counter[str]:
    return Counter(record.state for record in SweepFolder(tmp_path / "results" / "toy").records())


def test_sixty_runs_are_each_run_once_longest_first(tmp_path: Path) -> None:
    executor = FakeExecutor()
    progress = run(tmp_path, executor, **TWELVE_CELLS)
    assert len(executor.submitted) == len(set(executor.submitted)) == len(progress.ended) == 60
    assert states(tmp_path) == {"COMPLETED": 60}
    assert progress.running == {}
    folder = SweepFolder(tmp_path / "results" / "toy")
    depths = [folder.run(run_id).config().architecture.depth for run_id in executor.submitted]
    assert depths[:3] == [12, 12, 12]


def test_a_sweep_that_is_done_submits_nothing(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor(), **TWELVE_CELLS)
    again = FakeExecutor()
    assert len(run(tmp_path, again, **TWELVE_CELLS).ended) == 60
    assert again.submitted == []


def test_a_run_whose_record_is_damaged_is_trained_again_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(tmp_path, FakeExecutor(), tune=RATES, seeds=2)
    folder = SweepFolder(tmp_path / "results" / "toy")
    torn, replaced, excluded = folder.runs()[:3]
    torn.record_file.write_text("{")
    replaced.record_file.unlink()
    replaced.record_file.mkdir()
    excluded.exclusion_file.write_text("{")
    (folder.homes / folder.runs()[3].run_id).unlink()
    (folder.homes / folder.runs()[3].run_id).symlink_to("nowhere")
    again = FakeExecutor()
    run(tmp_path, again, tune=RATES, seeds=2)
    assert {*again.submitted} == {torn.run_id, replaced.run_id}
    assert len(folder.records()) == len(folder.runs())
    assert (torn.path / "attempts" / "0001.record.json").read_text() == "{"
    assert excluded.exclusion_file.read_text() == "{"
    named = (torn.record_file, replaced.record_file, excluded.exclusion_file)
    assert all(str(file) in caplog.text for file in named)


def test_more_seeds_run_only_what_is_new(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor(), tune=RATES, seeds=2)
    more = FakeExecutor()
    progress = run(tmp_path, more, tune=RATES, seeds=3)
    assert (len(more.submitted), len(progress.ended)) == (2, 10)


def test_runs_of_other_data_are_not_taken_for_this_sweeps(tmp_path: Path) -> None:
    run(tmp_path, FakeExecutor())
    folder = SweepFolder(tmp_path / "results" / "toy")
    other = coordinator_of(folder, CORPUS, "other data")
    executor = FakeExecutor()
    other.run(executor, lambda _: None)
    assert len(executor.submitted) == 2
    assert len(folder.records()) == 4


@pytest.mark.parametrize(
    ("exit_status", "times", "state", "reason"),
    [
        (OOM_EXIT, CRASHES, "OOM", "was killed 3 times without getting past step 0, the last time for want of memory"),
        (-9, KILLS, "FAILED", "was killed 30 times without getting past step 0, the last time with signal SIGKILL"),
        (143, KILLS, "FAILED", "was killed 30 times without getting past step 0, the last time with exit status 143"),
        (
            -11,
            CRASHES,
            "FAILED",
            "ended without a record 3 times without getting past step 0, the last time with signal SIGSEGV",
        ),
        (
            -35,
            CRASHES,
            "FAILED",
            "ended without a record 3 times without getting past step 0, the last time with signal 35",
        ),
        (0, CRASHES, "FAILED", "ended without a record 3 times without getting past step 0, the last time with exit status 0"),
    ],
)
def test_a_run_whose_process_keeps_dying_is_filed_and_the_rest_goes_on(
    exit_status: int, times: int, state: str, reason: str, tmp_path: Path
) -> None:
    def life(config: RunConfig, run: RunFolder) -> int:
        return exit_status if config.architecture.depth == 2 else completes(config, run)

    executor = FakeExecutor(life)
    progress = run(tmp_path, executor)
    assert sorted(Counter(executor.submitted).values()) == [1, times]
    lost = next(record for record in progress.ended.values() if record.state != "COMPLETED")
    assert (lost.state, lost.steps, lost.loss_nats) == (state, 0, None)
    assert lost.reason == f"its process {reason}; see log.txt"
    assert lost.exclusion == f"{state}: {lost.reason}"
    assert states(tmp_path) == {"COMPLETED": 1, state: 1}


def test_the_flops_of_a_run_whose_process_keeps_dying_hold_its_teachers(tmp_path: Path) -> None:
    teachers = sweep_folder(tmp_path / "teachers")
    teacher = teachers.run(add_run(teachers, run_config(4, 64))).path

    def life(config: RunConfig, run: RunFolder) -> int:
        run.metrics_file.write_text('{"trainer/step": 7}\n')
        return -11

    progress = run(tmp_path, FakeExecutor(life), base={"recipe": {"teacher": str(teacher)}})
    for lost in progress.ended.values():
        assert (lost.state, lost.steps) == ("FAILED", 7)
        own, passes = counts_of(lost.config, 7), lost.config.flops_per_token_with(run_config(4, 64).architecture)
        assert lost.train_flops == passes["train_flops"] * lost.tokens > own["train_flops"]


def test_a_run_that_is_killed_again_and_again_while_it_gets_on_is_not_given_up(tmp_path: Path) -> None:
    def life(config: RunConfig, run: RunFolder) -> int:
        steps = int(newest_values(run.newest_rows()).get("trainer/step", 0)) + 1
        run.metrics_file.write_text(f'{{"trainer/step": {steps}}}\n')
        return -9 if steps < 3 * KILLS else completes(config, run)

    run(tmp_path, FakeExecutor(life))
    assert states(tmp_path) == {"COMPLETED": 2}


def test_a_run_whose_process_died_twice_completes_at_the_third_attempt(tmp_path: Path) -> None:
    deaths: Counter[str] = Counter()

    def life(config: RunConfig, run: RunFolder) -> int:
        deaths[run.run_id] += 1
        return 1 if deaths[run.run_id] < CRASHES else completes(config, run)

    run(tmp_path, FakeExecutor(life))
    assert states(tmp_path) == {"COMPLETED": 2}


def test_in_a_search_too_a_run_whose_process_died_is_tried_again(tmp_path: Path) -> None:
    deaths: Counter[str] = Counter()

    def life(config: RunConfig, run: RunFolder) -> int:
        deaths[run.run_id] += 1
        return 1 if deaths[run.run_id] < CRASHES else completes(config, run)

    search = {"trials": 5, "space": {"recipe.learning_rate": {"low": 0.01, "high": 0.1}}}
    fixed = {"architecture": {"depth": 1, "width": 16, "heads": 2, "ffn": 32}}
    progress = run(tmp_path, FakeExecutor(life), shapes=None, search=search, base=fixed)
    assert len(progress.ended) == 5
    assert set(deaths.values()) == {CRASHES}


def test_a_search_trains_a_run_again_whose_record_is_damaged(tmp_path: Path) -> None:
    """And no other in its place."""
    search = {"trials": 5, "space": {"recipe.learning_rate": {"low": 0.01, "high": 0.1}}}
    asked = {"shapes": None, "search": search, "base": {"architecture": {"depth": 1, "width": 16, "heads": 2, "ffn": 32}}}
    run(tmp_path, FakeExecutor(), **asked)
    folder = SweepFolder(tmp_path / "results" / "toy")
    torn = folder.runs()[2]
    torn.record_file.write_text("{bad")
    again = FakeExecutor()
    assert len(run(tmp_path, again, **asked).ended) == 5
    assert again.submitted == [torn.run_id]
    assert (torn.path / "attempts" / "0001.record.json").read_text() == "{bad"
    assert len(folder.records()) == len(folder.runs()) == 5


def test_a_search_says_that_its_space_is_exhausted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    search = {"trials": 5, "space": {"architecture.depth": {"low": 1, "high": 3}}, "head_width": 8}
    started = coordinator(tmp_path, shapes=None, search=search, base={"architecture": {"width": 16}})
    monkeypatch.setattr(display, "make_executor", lambda *_: FakeExecutor())
    display.execute_all(started.folder, started.proposer, Resources(), [], Console(width=200))
    assert states(tmp_path) == {"COMPLETED": 3}
    assert "The search ends after 3 runs of 5 trials: all 3 points of its space are tried" in capsys.readouterr().out


def fails_on(reason: str) -> Life:
    """The deeper of the two runs fails."""

    def life(config: RunConfig, run: RunFolder) -> int:
        if config.architecture.depth == 1:
            return completes(config, run)
        run.file_record(record(config, None, "FAILED", reason=reason, run_id=run.run_id))
        return 0

    return life


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_run_that_met_a_full_disk_goes_on_at_the_next_launch_once_a_launch(tmp_path: Path, elsewhere: bool) -> None:
    full = fails_on("disk full: [Errno 28] No space left on device")
    for _ in range(2):
        run(tmp_path, executor := FakeExecutor(full))
    (failed,) = executor.submitted
    assert states(tmp_path) == {"COMPLETED": 1, "FAILED": 1}
    folder = SweepFolder(tmp_path / "results" / ("another" if elsewhere else "toy"))
    coordinator_of(folder, CORPUS).run(again := FakeExecutor(), lambda _: None, refresh_seconds=0.01)
    assert again.submitted == [failed]
    assert [ended.state for ended in folder.records()] == ["COMPLETED"] * 2


def test_a_launch_says_which_failed_runs_it_leaves_alone_and_what_tries_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, FakeExecutor(fails_on("OSError: no such file")))
    started, again = coordinator(tmp_path), FakeExecutor()
    monkeypatch.setattr(display, "make_executor", lambda *_: again)
    display.execute_all(started.folder, started.proposer, Resources(), [], Console(width=300))
    assert again.submitted == []
    remedy = f"of which 1 failed; to try again: study retry {tmp_path}/results/toy"
    assert f"2 runs have ended already, {remedy}\n" in capsys.readouterr().out


def test_runs_that_were_preempted_are_resumed_however_often(tmp_path: Path) -> None:
    attempts: Counter[str] = Counter()

    def life(config: RunConfig, run: RunFolder) -> int:
        attempts[run.run_id] += 1
        return 75 if attempts[run.run_id] <= 2 * CRASHES else completes(config, run)

    run(tmp_path, FakeExecutor(life))
    assert states(tmp_path) == {"COMPLETED": 2}


def test_ctrl_c_lets_the_runs_save_and_a_restart_goes_on(tmp_path: Path) -> None:
    def life(config: RunConfig, run: RunFolder) -> int:
        return 75

    def press(progress: RunProgress) -> None:
        if len(progress.running) == 4:
            raise KeyboardInterrupt

    for _ in range(CRASHES + 1):  # however often it is stopped, no run is taken for one that keeps dying
        started, executor = coordinator(tmp_path, **TWELVE_CELLS), FakeExecutor(life, lingering=True)
        with pytest.raises(KeyboardInterrupt):
            started.run(executor, press)
        assert executor.signals == ["interrupt", "kill"]
        assert len(executor.submitted) == 4
        assert started.progress.running == {}
    again = FakeExecutor()
    assert len(run(tmp_path, again, **TWELVE_CELLS).ended) == 60
    assert len(again.submitted) == len(set(again.submitted)) == 60


def test_runs_that_do_not_save_in_time_are_killed_and_not_filed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("study.running.coordinator.SAVE_SECONDS", 0.1)
    executor = Stubborn(lambda *_: -9, lingering=True)

    def press(progress: RunProgress) -> None:
        raise KeyboardInterrupt

    for _ in range(CRASHES):
        with pytest.raises(KeyboardInterrupt):
            coordinator(tmp_path).run(executor, press)
    assert executor.signals == ["interrupt", "kill"] * CRASHES
    assert states(tmp_path) == {}


def test_who_presses_ctrl_c_twice_does_not_wait_for_the_runs_to_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class PressedAgain(Stubborn):
        def interrupt(self) -> None:
            super().interrupt()
            raise KeyboardInterrupt

    def press(progress: RunProgress) -> None:
        raise KeyboardInterrupt

    executor, started = PressedAgain(lambda *_: -9, lingering=True), coordinator(tmp_path)
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match="the same command continues"):
        started.run(executor, press)
    assert time.monotonic() - before < SAVE_SECONDS / 2
    assert executor.signals == ["interrupt", "kill"]
    assert (started.progress.running, states(tmp_path)) == ({}, {})
    message = "stopping: waiting up to 60 s for 2 jobs to save; press Ctrl-C again to end now, at the last checkpoint\n"
    assert capsys.readouterr().err == message


def test_sigterm_stops_a_sweep_as_ctrl_c_does(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        coordinator(tmp_path).run(FakeExecutor(lingering=True), lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_error_of_the_system_stops_a_sweep_and_is_reported_as_what_it_is(tmp_path: Path) -> None:
    class Exhausted(FakeExecutor):
        def submit(self, jobs: Sequence[Job]) -> Future[int]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    executor = Exhausted()
    with pytest.raises(InputError) as caught:
        run(tmp_path, executor)
    place = tmp_path / "results" / "toy"
    said = "the sweep had to stop: [Errno 24] Too many open files; the same command continues from here"
    assert str(caught.value) == f"{place}: {said}"
    assert executor.signals == ["interrupt", "kill"]


def test_a_sweep_whose_folder_is_moved_stops_and_makes_none_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, elsewhere = tmp_path / "results", tmp_path / "elsewhere"
    monkeypatch.setattr(durable_files, "time", ImpatientClock())

    class Moving(FakeExecutor):
        def submit(self, jobs: Sequence[Job]) -> Future[int]:
            future = super().submit(jobs)
            results.rename(elsewhere)
            return future

    executor = Moving(lambda *_: 75, slots=1, lingering=True)
    with pytest.raises(InputError) as caught:
        run(tmp_path, executor)
    place = results / "toy"
    message = f"was moved or removed ({place / 'sweep.yaml'}: {os.strerror(errno.ENOENT)}); bring it back, and "
    assert str(caught.value) == f"{place}: {message}the same command continues from here"
    assert executor.signals == ["interrupt", "kill"]
    assert not results.exists()
    elsewhere.rename(results)
    run(tmp_path, FakeExecutor())
    assert states(tmp_path) == {"COMPLETED": 2}
