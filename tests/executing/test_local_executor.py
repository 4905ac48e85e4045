"""The local executor with real processes, and slots: a crash costs one run, a stop saves, ranks agree with one device."""

from __future__ import annotations

import _thread
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from study.base.errors import OOM_EXIT, InputError
from study.base.machine import WAITING
from study.config.run_config import RunConfig
from study.data.prepared import prepare
from study.executing import processes
from study.executing.executors import LocalExecutor
from study.executing.slots import Slot, local_slots
from study.running.run_proposer import RunJob
from study.store.records import RunRecord
from study.store.run_folder import RunFolder
from study.store.work_folder import checkpoints_in
from tests.launching import has_rows
from tests.small import config, run_folder
from tests.sweeps import write_topics
from tests.waiting import until

ONE = Slot("cpu", (0,), 1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("corpus") / "text.txt")


def toy(corpus: Path, steps: int = 30, seed: int = 0) -> RunConfig:
    changes = {"architecture": {"vocabulary": 100}, "data": {"tokenizer": {"vocabulary": 100}}, "seed": seed}
    wanted = config(corpus, recipe={"budget": {"steps": steps}}, **changes)
    prepare(wanted.data)
    return wanted


def started(executor: LocalExecutor, wanted: RunConfig, root: Path) -> tuple[Future[int], RunFolder]:
    folder = run_folder(root, wanted)
    return executor.submit([RunJob(folder, wanted, "toy")]), folder


def pid_of(folder: RunFolder) -> int:
    (attempt,) = (folder.path / "attempts").glob("*.json")
    return int(json.loads(attempt.read_text())["pid"])


def recorded(folder: RunFolder) -> RunRecord:
    record = folder.record()
    assert record is not None
    return record


def test_a_run_trains_in_a_session_of_its_own_and_frees_its_slot(corpus: Path, tmp_path: Path) -> None:
    executor = LocalExecutor([ONE])
    assert executor.free == 1
    future, folder = started(executor, toy(corpus, 600), tmp_path)
    assert executor.free == 0
    until(lambda: has_rows(folder))
    assert os.getsid(pid_of(folder)) == pid_of(folder)
    assert future.result(60) == 0
    assert executor.free == 1
    assert (recorded(folder).state, recorded(folder).sweep, recorded(folder).steps) == ("COMPLETED", "toy", 600)


def test_a_killed_run_ends_with_its_signal_and_harms_no_other(corpus: Path, tmp_path: Path) -> None:
    executor = LocalExecutor([ONE, ONE])
    killed, folder = started(executor, toy(corpus, 3000), tmp_path)
    other, other_folder = started(executor, toy(corpus, 30, seed=1), tmp_path)
    until(lambda: has_rows(folder))
    os.kill(pid_of(folder), signal.SIGKILL)
    assert killed.result(10) == -signal.SIGKILL
    assert folder.record() is None
    assert other.result(60) == 0
    assert recorded(other_folder).state == "COMPLETED"
    assert executor.free == 2


def test_runs_that_the_kernel_kills_together_for_want_of_memory_say_so(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = 5
    monkeypatch.setattr(processes, "memory_kills", lambda: kills)
    executor = LocalExecutor([ONE, ONE])
    runs = [started(executor, toy(corpus, 3000, seed), tmp_path) for seed in (0, 1)]
    until(lambda: all(has_rows(folder) for _, folder in runs))
    kills += 2
    for _, folder in runs:
        os.kill(pid_of(folder), signal.SIGKILL)
    assert [future.result(10) for future, _ in runs] == [OOM_EXIT, OOM_EXIT]
    again, folder = started(executor, toy(corpus, 3000), tmp_path / "again")
    until(lambda: has_rows(folder))
    os.kill(pid_of(folder), signal.SIGKILL)
    assert again.result(10) == -signal.SIGKILL, "what was killed before it was started is not its own death"


@pytest.mark.slow
def test_an_interrupt_saves_and_another_executor_resumes(corpus: Path, tmp_path: Path) -> None:
    executor, wanted = LocalExecutor([ONE]), toy(corpus, 400)
    future, folder = started(executor, wanted, tmp_path)
    until(lambda: has_rows(folder))
    executor.interrupt()
    assert future.result(20) == 75
    assert folder.record() is None
    (checkpoint,) = checkpoints_in(folder.checkpoints)
    saved = int(checkpoint.name.split("-")[1])
    assert 0 < saved < 400
    again, _ = started(LocalExecutor([ONE]), wanted, tmp_path)
    assert again.result(60) == 0
    assert (recorded(folder).attempts, recorded(folder).steps) == (2, 400)


def test_kill_ends_every_run_at_once(corpus: Path, tmp_path: Path) -> None:
    executor = LocalExecutor([ONE, ONE])
    runs = [started(executor, toy(corpus, 3000, seed), tmp_path) for seed in (0, 1)]
    until(lambda: all(has_rows(folder) for _, folder in runs))
    executor.kill()
    assert [future.result(10) for future, _ in runs] == [-9, -9]
    assert executor.free == 2


def test_what_a_run_prints_is_in_its_log_and_what_it_raises_is_its_exit_status(corpus: Path, tmp_path: Path) -> None:
    executor, wanted = LocalExecutor([ONE]), toy(corpus)
    folder = run_folder(tmp_path, wanted)
    folder.path.mkdir(parents=True)
    folder.checkpoints.write_text("a file where the folder should be")
    folder.record_file.mkdir()
    assert executor.submit([RunJob(folder, wanted, "toy")]).result(60) == 1
    assert "IsADirectoryError" in folder.log_file.read_text()


def test_two_ranks_train_one_run_to_the_losses_of_one_device(corpus: Path, tmp_path: Path) -> None:
    wanted = toy(corpus, 60)
    alone, folder = started(LocalExecutor([ONE]), wanted, tmp_path / "alone")
    together, pair = started(LocalExecutor([Slot("cpu", (0, 1), 1)]), wanted, tmp_path / "together")
    assert (alone.result(60), together.result(120)) == (0, 0)
    one, two = recorded(folder), recorded(pair)
    assert two.environment is not None
    assert two.environment.devices == 2
    assert two.loss_nats == pytest.approx(one.loss_nats, abs=1e-4)
    assert two.train_loss_nats == pytest.approx(one.train_loss_nats, abs=1e-4)
    assert two.run_id == one.run_id
    losses = [
        [(row["trainer/step"], row["train/loss"]) for row in run.metrics() if "train/loss" in row] for run in (folder, pair)
    ]
    assert [step for step, _ in losses[0]] == [step for step, _ in losses[1]]
    assert [loss for _, loss in losses[1]] == pytest.approx([loss for _, loss in losses[0]], abs=1e-4)


@pytest.fixture
def _light() -> Iterator[None]:
    """Forkservers that load no torch, for jobs that train nothing; the one that has loaded it is put aside meanwhile."""
    here: Any = forkserver._forkserver
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in vars(here) if name.startswith("_forkserver_")]:
            patch.setattr(here, name, None)
        patch.setattr(processes, "PRELOADED", ("__main__",))
        yield
        here._stop()


light = pytest.mark.usefixtures("_light")


@light
@pytest.mark.parametrize("status", [0, 1])
def test_a_rank_that_waits_for_one_that_has_ended_is_ended_too(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that is within an exchange between GPUs, which does not tell it that nobody answers any more."""
    monkeypatch.setattr(processes, "RANK_SECONDS", 0.5)
    context = processes.start_forkserver()
    ranks = object.__new__(processes.JobProcesses)
    ranks._memory_kills = processes.memory_kills()
    ranks._processes = [context.Process(target=sys.exit, args=(status,)), context.Process(target=wait_deaf)]
    for process in ranks._processes:
        process.start()
    assert ranks.wait() == (status or -signal.SIGKILL)


def wait_deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)


@light
def test_a_run_starts_though_the_forkserver_is_killed_before_it_forks() -> None:
    context = processes.start_forkserver()
    before: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(before, signal.SIGSTOP)  # it is asked for a process, and is killed before it answers
    threading.Timer(0.5, os.kill, (before, signal.SIGKILL)).start()
    run = context.Process(target=sys.exit, args=(7,))
    processes.start(run)
    run.join(60)
    assert run.exitcode == 7


@light
def test_ctrl_c_while_the_forkserver_is_being_started_leaves_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = util.spawnv_passfds

    def interrupted(*arguments: Any) -> int:
        pid: int = spawn(*arguments)
        _thread.interrupt_main()
        return pid

    resource_tracker.ensure_running()
    monkeypatch.setattr(util, "spawnv_passfds", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            processes.start_forkserver()
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    started: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    run = processes.start_forkserver().Process(target=sys.exit, args=(7,))
    processes.start(run)
    run.join(60)
    assert (run.exitcode, forkserver._forkserver._forkserver_pid) == (7, started)  # type: ignore[attr-defined]


@light
@pytest.mark.parametrize(("asked", "used"), [(None, b"passive"), ("active", b"active")])
def test_jobs_come_from_a_forkserver_whose_threads_rest_at_barriers(
    asked: str | None, used: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is there before the forkserver loads torch, which reads it once."""
    for name in WAITING:
        monkeypatch.setenv(name, "")  # so that it is as before in the end
        monkeypatch.delenv(name)
    if asked is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", asked)
    processes.start_forkserver()
    pid: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    variables = Path(f"/proc/{pid}/environ")
    until(lambda: variables.read_bytes() != b"")  # it has not begun yet
    assert b"OMP_WAIT_POLICY=" + used in variables.read_bytes().split(b"\0")


def test_torch_is_loaded_for_the_first_job_and_not_where_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Mock()
    monkeypatch.setattr(processes, "_ensure_forkserver", started)
    assert LocalExecutor([ONE]).free == 1
    assert not started.called


@pytest.mark.slow
def test_a_run_starts_though_the_killed_forkserver_takes_its_time_to_die(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_ensure_forkserver", Mock())
    run = Mock()
    run.start.side_effect = [EOFError, ConnectionRefusedError, ConnectionRefusedError, None]
    processes.start(run)
    assert run.start.call_count == 4
    run.start.side_effect = ConnectionRefusedError
    with pytest.raises(ConnectionRefusedError):
        processes.start(run)


@pytest.mark.slow
def test_an_interrupted_run_of_two_ranks_saves_once_and_resumes(corpus: Path, tmp_path: Path) -> None:
    wanted, pair = toy(corpus, 400), Slot("cpu", (0, 1), 1)
    executor = LocalExecutor([pair])
    future, folder = started(executor, wanted, tmp_path)
    until(lambda: has_rows(folder))
    executor.interrupt()
    assert future.result(30) == 75
    assert len(checkpoints_in(folder.checkpoints)) == 1
    again, _ = started(LocalExecutor([pair]), wanted, tmp_path)
    assert again.result(120) == 0
    assert (recorded(folder).state, recorded(folder).steps) == ("COMPLETED", 400)


def machine(monkeypatch: pytest.MonkeyPatch, cores: int, gpus: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


@pytest.mark.parametrize(
    ("cores", "slots_per_device", "devices", "slots"),
    [
        (2, None, 1, [Slot("cpu", (0,), 1)] * 2),
        (16, None, 1, [Slot("cpu", (0,), 1)] * 16),
        (16, 4, 1, [Slot("cpu", (0,), 4)] * 4),
        (16, 1, 1, [Slot("cpu", (0,), 16)]),
        (16, None, 4, [Slot("cpu", (0, 1, 2, 3), 1)] * 4),
        (16, 2, 4, [Slot("cpu", (0, 1, 2, 3), 2)] * 2),
        (1, None, 2, [Slot("cpu", (0, 1), 1, sharing=2)]),
        (2, 8, 1, [Slot("cpu", (0,), 1, sharing=4)] * 8),
    ],
)
def test_slots_of_a_cpu(
    cores: int, slots_per_device: int | None, devices: int, slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, cores, gpus=0)
    assert local_slots("auto", slots_per_device, devices) == slots
    machine(monkeypatch, cores, gpus=8)
    assert local_slots("cpu", slots_per_device, devices) == slots


@pytest.mark.parametrize(
    ("gpus", "slots_per_device", "devices", "slots"),
    [
        (2, None, 1, [Slot("cuda", (0,), 8), Slot("cuda", (1,), 8)]),
        (1, 4, 1, [Slot("cuda", (0,), 4, sharing=4)] * 4),
        (5, None, 2, [Slot("cuda", (0, 1), 4), Slot("cuda", (2, 3), 4)]),
        (8, None, 8, [Slot("cuda", tuple(range(8)), 2)]),
        (2, 2, 1, [Slot("cuda", (0,), 4, sharing=2), Slot("cuda", (1,), 4, sharing=2)] * 2),
    ],
)
def test_slots_of_gpus(
    gpus: int, slots_per_device: int | None, devices: int, slots: list[Slot], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, 16, gpus)
    assert local_slots("auto", slots_per_device, devices) == slots
    assert local_slots("cuda", slots_per_device, devices) == slots


@pytest.mark.parametrize(("gpus", "devices"), [(0, 1), (1, 2)])
def test_gpus_that_are_not_there_are_refused(gpus: int, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 2, gpus)
    with pytest.raises(InputError, match=f"--device cuda: each run needs {devices} GPUs?, but torch finds {gpus} here"):
        local_slots("cuda", None, devices)


def test_a_slot_names_the_gpus_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from study.executing.slots import rank_environments

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    alone = {"RANK": "0", "LOCAL_RANK": "0"}
    assert rank_environments(Slot("cuda", (1,), 1)) == [{"CUDA_VISIBLE_DEVICES": "1"} | alone]
    assert rank_environments(Slot("cpu", (0,), 1)) == [alone]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-6e1")
    first, second = rank_environments(Slot("cuda", (1, 2), 1))
    assert first["CUDA_VISIBLE_DEVICES"] == second["CUDA_VISIBLE_DEVICES"] == "5,GPU-6e1"
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"]) == ("0", "1")
    assert (first["MASTER_ADDR"], first["MASTER_PORT"]) == ("127.0.0.1", second["MASTER_PORT"])
