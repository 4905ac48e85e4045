"""Runs on the devices of fake machines: an exclusive device has one run at a time, no slot stays empty, groups are disjoint."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from study.base.errors import InputError
from study.config.resources import Resources, minutes_of
from study.executing import executors, slots
from study.executing.executors import LocalExecutor
from study.executing.processes import Job
from study.executing.slots import MPS_PORTION, Slot, local_slots, mps_is_running, rank_environments, sharing_note
from study.running.run_proposer import RunJob
from study.store.sweep_folder import SweepFolder
from study.training.execution import Execution
from tests.sweeps import coordinator_of, record, run_in, sweep

machines = st.fixed_dictionaries(
    {"cores": st.integers(1, 64), "gpus": st.integers(0, 8), "sharing": st.integers(1, 4), "devices": st.integers(1, 8)}
)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(cores: int, gpus: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
        monkeypatch.setattr(slots, "_gpu_count", lambda: gpus)

    return of


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(machines)
def test_every_gpu_is_in_one_group_and_has_as_many_slots_as_asked(machine: Any, drawn: dict[str, int]) -> None:
    cores, gpus, sharing, devices = (drawn[name] for name in ("cores", "gpus", "sharing", "devices"))
    machine(cores, gpus)
    if gpus < devices:
        with pytest.raises(InputError, match=f"each run needs {devices} GPUs?, but torch finds {gpus} here"):
            local_slots("cuda", sharing, devices)
        return
    actual = local_slots("cuda", sharing, devices)
    users = Counter(index for slot in actual for index in slot.indices)
    assert set(users.values()) == {sharing} == {slot.sharing for slot in actual}
    assert gpus - len(users) == gpus % devices, "more GPUs are idle than cannot make a group"
    groups = {slot.indices for slot in actual}
    assert sum(map(len, groups)) == len(set().union(*groups)), "two groups of ranks share a GPU"
    assert len(actual) * devices * actual[0].threads <= max(cores, len(actual) * devices)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(machines)
def test_a_cpu_without_shares_asked_for_is_not_oversubscribed(machine: Any, drawn: dict[str, int]) -> None:
    machine(drawn["cores"], 0)
    actual = local_slots("cpu", None, drawn["devices"])
    used = len(actual) * drawn["devices"] * actual[0].threads
    assert actual[0].sharing == max(1, -(-used // drawn["cores"]))
    assert used <= drawn["cores"] or len(actual) == 1


class FakeRuns:
    """Stands for the processes of runs, which end once all slots were full or no run is left; sees who has which GPU."""

    def __init__(self, capacity: int, runs: int) -> None:
        self.capacity, self.left = capacity, runs
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.running, self.largest = 0, 0
        self.changed = threading.Condition()

    def __call__(self, jobs: Sequence[Job], execution: Execution, environments: list[dict[str, str]]) -> FakeRun:
        gpus = environments[0]["CUDA_VISIBLE_DEVICES"].split(",")
        assert len(gpus) == len(environments) == execution.devices
        with self.changed:
            self.now.update(gpus)
            self.running += 1
            self.left -= 1
            self.largest = max(self.largest, self.running)
            for gpu in gpus:
                self.most[gpu] = max(self.most[gpu], self.now[gpu])
            self.changed.notify_all()
        return FakeRun(self, run_in(jobs), gpus)


class FakeRun:
    """Stands for the processes of one run."""

    def __init__(self, of: FakeRuns, job: RunJob, gpus: list[str]) -> None:
        self.of, self.job, self.gpus = of, job, gpus

    def wait(self) -> int:
        with self.of.changed:
            full = self.of.changed.wait_for(lambda: self.of.largest == self.of.capacity or not self.of.left, timeout=20)
            assert full, "a slot stayed empty"
            self.job.folder.file_record(record(self.job.config, run_id=self.job.key))
            self.of.now.subtract(self.gpus)
            self.of.running -= 1
        return 0


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(gpus=st.integers(1, 6), sharing=st.integers(1, 3), devices=st.integers(1, 3))
def test_a_coordinated_sweep_fills_the_slots_and_never_overfills_a_gpu(
    machine: Any, tmp_path_factory: pytest.TempPathFactory, gpus: int, sharing: int, devices: int
) -> None:
    devices = min(devices, gpus)
    machine(8, gpus)
    actual = local_slots("cuda", sharing, devices)
    fake = FakeRuns(len(actual), runs=24)
    folder = SweepFolder(tmp_path_factory.mktemp("packing") / "results" / "toy")
    changes: dict[str, Any] = {"shapes": {"grid": {"depth": list(range(1, 13))}}, "seeds": 2}
    coordinator = coordinator_of(folder, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.setattr(executors, "JobProcesses", fake)
        coordinator.run(LocalExecutor(actual), lambda _: None, refresh_seconds=0.01)
    assert len(coordinator.progress.ended) == 24
    assert fake.largest == len(actual)
    assert set(fake.most.values()) == {sharing}
    assert len(fake.most) == gpus - gpus % devices


def test_shared_gpus_are_reported_and_whether_mps_serves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.delenv(MPS_PORTION, raising=False)
    shared, alone = [Slot("cuda", (0,), 1, sharing=4)] * 4, [Slot("cuda", (0,), 1)]
    assert sharing_note(alone) is None
    assert not mps_is_running()
    assert "MPS is not running" in (sharing_note(shared) or "")
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    assert mps_is_running()
    assert sharing_note(shared) == (
        "4 runs share each GPU: records have environment.sharing 4, and their tokens/s are those of one share. "
        "MPS runs each on at most 50% of the multiprocessors"
    )
    monkeypatch.setenv(MPS_PORTION, "30")
    assert (sharing_note(shared) or "").endswith("at most 30% of the multiprocessors")


@pytest.mark.parametrize(("sharing", "portion"), [(2, 100), (3, 66), (4, 50), (16, 12), (400, 1)])
def test_runs_that_share_a_gpu_each_get_twice_an_even_share_of_it(
    sharing: int, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(MPS_PORTION, raising=False)
    (variables,) = rank_environments(Slot("cuda", (0,), 1, sharing))
    assert variables[MPS_PORTION] == str(portion)
    assert MPS_PORTION not in rank_environments(Slot("cuda", (0,), 1))[0]
    assert MPS_PORTION not in rank_environments(Slot("cpu", (0,), 1, sharing))[0]
    monkeypatch.setenv(MPS_PORTION, "30")
    assert MPS_PORTION not in rank_environments(Slot("cuda", (0,), 1, sharing))[0], "what the user set is inherited"


def test_resources_are_the_files_with_the_command_lines_over_them() -> None:
    spec = sweep(resources={"on": "slurm", "devices": 4, "slurm": {"partition": "gpu", "time": "4h"}})
    over = spec.resources.overridden(time="1-00:00:00", array=8, devices=None, device="cuda")
    assert (over.on, over.devices, over.device) == ("slurm", 4, "cuda")
    assert (over.slurm.partition, over.slurm.time, over.slurm.array) == ("gpu", "1-00:00:00", 8)
    assert Resources().overridden(slots_per_device=2).slots_per_device == 2


def test_resources_change_no_runs_id() -> None:
    from study.planning.plan import cells

    plain, asked = cells(sweep())[0].config, cells(sweep(resources={"on": "ray", "devices": 2}))[0].config
    assert plain == asked
    assert plain.fingerprint("data") == asked.fingerprint("data")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        *(("90s", 2), ("30m", 30), ("10min", 10), ("1.5h", 90), ("2d", 2880)),
        *(("30:00", 30), ("0:30", 1), ("90:30", 91), ("4:00:00", 240), ("1-12", 2160), ("1-12:30", 2190), ("1-12:00:00", 2160)),
    ],
)
def test_time_limits_are_read_as_people_and_as_slurm_write_them(text: str, minutes: int) -> None:
    assert minutes_of(text) == minutes


@pytest.mark.parametrize("text", ["30", "1-", "-12", "1:2", "1:00:00:00", "4 h", ""])
def test_what_is_no_time_limit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time limit"):
        minutes_of(text)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"slurm": {"time": 14400}}, "14400 is a number without a unit; write 30m, 4h, 2d or '1-12:00:00', in quotes"),
        ({"slurm": {"time": "soon"}}, "'soon' is not a time limit"),
        ({"slurm": {"partitoin": "gpu"}}, "did you mean 'partition'?"),
        ({"on": "slrum"}, "did you mean 'slurm'?"),
        ({"on": "slurm", "slots_per_device": 2}, "does not apply on Slurm"),
        ({"on": "slurm", "devices": 3, "slurm": {"nodes": 2}}, "devices 3 cannot be divided evenly among 2 nodes"),
        ({"on": "ray", "devices": 2, "slots_per_device": 2}, "leave slots_per_device out"),
    ],
)
def test_impossible_resources_are_refused(resources: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        sweep(resources=resources)
    assert message in str(refused.value)


def test_a_flag_of_slurm_without_slurm_is_refused() -> None:
    with pytest.raises(InputError, match="--partition: applies only with --on slurm"):
        Resources().overridden(partition="gpu")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from study.executing.executors import make_slots

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for on, package in (("slurm", "submitit"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(InputError, match=rf"pip install 'scaling-study\[{on}\]'"):
            make_slots(Resources.parse({"on": on}))
