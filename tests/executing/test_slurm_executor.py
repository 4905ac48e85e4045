"""The Slurm executor beside a Slurm that is made up: how jobs end, and what fails around them."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from study.base.durable_files import retry_write, write_atomically
from study.base.errors import OOM_EXIT, PREEMPTED_EXIT, InputError
from study.base.machine import WAITING
from study.config.resources import SlurmOptions
from study.executing import slurm
from study.executing.slots import ALONE, Slot
from study.executing.slurm import SlurmExecutor, exit_file
from study.planning.plan import cells
from study.running.run_proposer import RunJob
from study.store.run_folder import RunFolder
from study.store.sweep_folder import SweepFolder
from tests.sweeps import coordinator_of, sweep
from tests.waiting import until


class FakeSlurm:
    """What submitit and Slurm's commands do: arrays get numbers, every job is in one `state`, what is cancelled is noted."""

    def __init__(self) -> None:
        self.state = "RUNNING"
        self.arrays: list[tuple[str, int]] = []
        self.cancelled: list[tuple[str, ...]] = []
        errors = SimpleNamespace(FailedJobError=RuntimeError, FailedSubmissionError=RuntimeError)
        self.submitit = SimpleNamespace(core=SimpleNamespace(utils=errors), SlurmExecutor=self._executor)

    def _executor(self, folder: Path) -> Any:
        parameters: dict[str, Any] = {}

        def map_array(function: Callable[..., int], *arguments: Any) -> list[Any]:
            self.arrays.append((parameters["job_name"], len(arguments[0])))
            return self.finish([f"{len(self.arrays)}_{index}" for index in range(len(arguments[0]))])

        return SimpleNamespace(update_parameters=parameters.update, map_array=map_array)

    def finish(self, ids: list[str]) -> list[Any]:
        """What submitit does once Slurm has a job: it moves files, and gives its own jobs."""
        return [SimpleNamespace(job_id=job_id) for job_id in ids]

    def output(self, command: str, *arguments: str) -> str:
        if command == "scancel":
            self.cancelled.append(arguments)
        jobs = [(number, index, name) for number, (name, runs) in enumerate(self.arrays, 1) for index in range(runs)]
        return "\n".join(f"{number}|{index}|{self.state}|{name}" for number, index, name in jobs)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    made = FakeSlurm()
    monkeypatch.setattr(slurm, "_submitit", lambda: made.submitit)
    monkeypatch.setattr(slurm, "_output", made.output)
    return made


def submitted(path: Path, batches: Sequence[Sequence[int]] = ((0,), (1,))) -> list[Future[int]]:
    folder = SweepFolder(path / "toy")
    executor = SlurmExecutor(Slot("cpu", (0,), 1), SlurmOptions(), folder)
    config = cells(sweep())[0].config
    return [executor.submit([RunJob(folder.run(f"run-{number}"), config, "toy") for number in batch]) for batch in batches]


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("OUT_OF_MEMORY", OOM_EXIT),
        ("NODE_FAIL", PREEMPTED_EXIT),
        ("TIMEOUT", -signal.SIGKILL),
        ("CANCELLED", -signal.SIGTERM),
        ("FAILED", 1),
    ],
)
def test_how_slurm_ended_a_job_that_left_no_word_is_its_exit_status(
    state: str, status: int, cluster: FakeSlurm, tmp_path: Path
) -> None:
    futures = submitted(tmp_path)
    cluster.state = state
    assert [future.result(10) for future in futures] == [status] * 2
    assert [runs for _, runs in cluster.arrays] == [2]


def failing(function: Callable[..., Any], number: int, times: float) -> Callable[..., Any]:
    """A function that raises an error of the system so many times before it does what it should."""
    left = itertools.count()

    def called(*arguments: Any) -> Any:
        if next(left) < times:
            raise OSError(number, os.strerror(number), "somewhere")
        return function(*arguments)

    return called


def test_a_folder_that_cannot_be_written_or_read_for_a_while_is_waited_for(
    cluster: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "write_atomically", failing(write_atomically, errno.ESTALE, 3))
    futures = submitted(tmp_path)
    until(lambda: cluster.arrays != [])
    for index, status in enumerate((0, PREEMPTED_EXIT)):
        exit_file(tmp_path / "toy" / "slurm", f"1_{index}").write_text(str(status))
    monkeypatch.setattr(Path, "read_bytes", failing(Path.read_bytes, errno.EIO, 3))
    cluster.state = "COMPLETED"
    assert [future.result(10) for future in futures] == [0, PREEMPTED_EXIT]
    assert [runs for _, runs in cluster.arrays] == [2]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ESTALE])
def test_an_error_that_lasts_ends_the_launch_and_says_what_it_is(
    number: int, cluster: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "retry_write", functools.partial(retry_write, seconds=0.5))
    monkeypatch.setattr(slurm, "write_atomically", failing(write_atomically, number, math.inf))
    folder = SweepFolder(tmp_path / "toy")
    launched = coordinator_of(folder)
    said = f"--on slurm: jobs cannot be submitted or monitored: .*{os.strerror(number)}.* the same command resumes them"
    with pytest.raises(InputError, match=said):
        launched.run(SlurmExecutor(Slot("cpu", (0,), 1), SlurmOptions(), folder), lambda _: None)


def test_what_nobody_expected_reaches_every_future(cluster: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    futures = submitted(tmp_path)
    monkeypatch.setattr(slurm, "_output", lambda *_: "not what squeue prints")
    assert [type(future.exception(10)) for future in futures] == [ValueError, ValueError]


def test_an_array_that_slurm_has_without_its_files_is_cancelled_before_another(
    cluster: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "finish", failing(cluster.finish, errno.EIO, 1))
    futures = submitted(tmp_path)
    until(lambda: len(cluster.arrays) == 2)
    assert cluster.cancelled == [(f"--name={cluster.arrays[0][0]}",)]
    cluster.state = "OUT_OF_MEMORY"
    assert [future.result(10) for future in futures] == [OOM_EXIT] * 2


def test_a_command_that_cannot_be_started_has_not_answered() -> None:
    assert slurm._output("no-such-command") is None


def test_a_job_waits_for_its_folder_to_leave_its_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(slurm, "execute_here", lambda *_: PREEMPTED_EXIT)
    monkeypatch.setattr(slurm, "write_atomically", failing(write_atomically, errno.ESTALE, 2))
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_PROCID", "0")
    for name in (*WAITING, *ALONE):
        monkeypatch.setenv(name, "")  # so that it is as before in the end
        monkeypatch.delenv(name)
    assert slurm.execute_in_slurm([], tmp_path, Slot("cpu", (0,), 1), nodes=1) == PREEMPTED_EXIT
    assert exit_file(tmp_path, "7").read_text() == str(PREEMPTED_EXIT)
    assert os.environ["OMP_WAIT_POLICY"] == "passive", "sbatch may be told to take no variables along"


def test_other_jobs_of_the_user_may_have_any_name(cluster: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = cluster.output
    others = "7|N/A|RUNNING|a|b|c\n8|3|PENDING|two\nlines | long\n9|N/A|RUNNING|%j|study-toy-\n"
    monkeypatch.setattr(slurm, "_output", lambda *asked: others + listed(*asked) + "\n")
    futures = submitted(tmp_path)
    until(lambda: cluster.arrays != [])
    cluster.state = "OUT_OF_MEMORY"
    assert [future.result(10) for future in futures] == [OOM_EXIT] * 2


def test_variables_that_shorten_what_squeue_shows_hide_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "gpu")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert slurm._output("sh", "-c", "echo $SQUEUE_PARTITION $SLURM_CONF") == "/etc/slurm.conf\n"


def test_variables_of_sbatch_replace_nothing_that_the_sweep_asks_for(
    cluster: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SBATCH_JOB_NAME", "SBATCH_PARTITION", "SBATCH_ACCOUNT", "SBATCH_RESERVATION"):
        monkeypatch.setenv(name, "profile")
    SlurmExecutor(Slot("cpu", (0,), 1), SlurmOptions(partition="mine"), SweepFolder(tmp_path / "toy"))
    assert {name for name in os.environ if name.startswith("SBATCH_")} == {"SBATCH_ACCOUNT", "SBATCH_RESERVATION"}


def test_a_job_under_another_name_is_the_one_that_was_submitted(cluster: FakeSlurm, tmp_path: Path) -> None:
    futures = submitted(tmp_path)
    until(lambda: cluster.arrays != [])
    cluster.arrays[0] = ("renamed by scontrol", 2)
    with pytest.raises(TimeoutError):
        futures[0].result(3)
    cluster.state = "OUT_OF_MEMORY"
    assert [future.result(10) for future in futures] == [OOM_EXIT] * 2


def test_names_in_another_encoding_are_read() -> None:
    assert slurm._output("printf", r"7|N/A|RUNNING|caf\351") == "7|N/A|RUNNING|caf�"


def test_a_damaged_list_of_jobs_is_named_with_what_withdraws_them(cluster: FakeSlurm, tmp_path: Path) -> None:
    cluster.arrays.append(("study-toy-0a1b2c3d", 1))
    file = tmp_path / "toy" / "slurm" / "0a1b2c3d.json"
    file.parent.mkdir(parents=True)
    file.write_text("[[")
    with pytest.raises(InputError, match=r"0a1b2c3d\.json: is damaged: .* scancel --name=study-toy-0a1b2c3d, and remove it"):
        submitted(tmp_path)
    file.write_text("[]")
    assert submitted(tmp_path), "of which nothing is known is nobody's batch"


def test_a_batch_of_which_a_job_is_in_the_queue_already_is_not_submitted(cluster: FakeSlurm, tmp_path: Path) -> None:
    """A launch that was killed left a job that makes more than what is asked for now, and the job goes on."""
    submitted(tmp_path, batches=[[0, 1, 2]])
    until(lambda: cluster.arrays != [])
    first, second = submitted(tmp_path, batches=[[1], [2, 3]])
    exit_file(tmp_path / "toy" / "slurm", "1_0").write_text("75")
    cluster.state = "COMPLETED"
    assert (first.result(10), second.result(10)) == (PREEMPTED_EXIT, PREEMPTED_EXIT)
    assert [count for _, count in cluster.arrays] == [1]
    (listed,) = (tmp_path / "toy" / "slurm").glob("*.json")
    assert json.loads(listed.read_text()) == [["run-0", "run-1", "run-2"]]


def test_a_sweep_whose_name_a_script_would_part_has_jobs_all_the_same(cluster: FakeSlurm, tmp_path: Path) -> None:
    executor = SlurmExecutor(Slot("cpu", (0,), 1), SlurmOptions(), SweepFolder(tmp_path / "my bert | v2"))
    executor.submit([RunJob(RunFolder(tmp_path / "run"), cells(sweep())[0].config, "toy")])
    until(lambda: cluster.arrays != [])
    ((name, _),) = cluster.arrays
    assert name.startswith("study-my_bert___v2-")
