"""The Slurm executor beside a Slurm that is made up: how jobs end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from study.errors import OOM_EXIT, PREEMPTED_EXIT
from study.folders import SweepFolder
from study.sweeping.executors import slurm
from study.sweeping.executors.slots import Slot
from study.sweeping.executors.slurm import SlurmExecutor
from study.sweeping.plan import cells
from study.sweeping.resources import SlurmOptions
from tests.sweeps import sweep


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
            return [SimpleNamespace(job_id=f"{len(self.arrays)}_{index}") for index in range(len(arguments[0]))]

        return SimpleNamespace(update_parameters=parameters.update, map_array=map_array)

    def output(self, command: str, *arguments: str) -> str:
        if command == "scancel":
            self.cancelled.append(arguments)
        jobs = [(number, index, name) for number, (name, runs) in enumerate(self.arrays, 1) for index in range(runs)]
        return "\n".join(f"{number}|{index}|{name}|{self.state}" for number, index, name in jobs)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    made = FakeSlurm()
    monkeypatch.setattr(slurm, "_submitit", lambda: made.submitit)
    monkeypatch.setattr(slurm, "_output", made.output)
    return made


def submitted(path: Path, runs: int = 2) -> list[Future[int]]:
    folder = SweepFolder(path / "toy")
    executor = SlurmExecutor(Slot("cpu", (0,), 1), SlurmOptions(), folder)
    planned = [cell.config for cell in cells(sweep())]
    return [executor.submit(config, folder.run(f"run-{number}").path) for number, config in enumerate(planned[:runs])]


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
