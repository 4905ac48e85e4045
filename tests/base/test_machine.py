"""What a process asks of its machine, how a pause of its garbage collector ends, and what a GPU's name says of its peak."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import sys
from pathlib import Path

import pytest
import torch

from study.base import machine
from study.base.machine import (
    WAITING,
    busy_share,
    cores,
    forget_peak_resident,
    garbage_collection_paused,
    peak_resident_bytes,
    rest_at_barriers,
)
from study.training.execution import Execution, peak_flops_per_second, processor


def test_cores_are_those_of_the_affinity_or_all_where_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores() == os.cpu_count()


@pytest.mark.parametrize("asked", [{"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}, {"KMP_BLOCKTIME": "0"}, {}])
def test_threads_rest_at_barriers_unless_the_user_says_how_they_wait(
    asked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in WAITING:
        monkeypatch.setenv(name, "")  # so that it is as before in the end
        monkeypatch.delenv(name)
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    rest_at_barriers()
    actual = {name: os.environ[name] for name in WAITING if name in os.environ}
    assert actual == (asked or {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000"})


def test_a_machine_is_busy_by_what_is_not_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticks of proc_stat(5), of which those for guests stand among the user's, too."""
    counted = tmp_path / "stat"
    monkeypatch.setattr(machine, "CPU_TIMES", str(counted))
    assert busy_share(0.0) is None
    counted.write_text("cpu  100 20 30 800 50 0 0 0 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    ticks = "cpu  130 20 40 840 60 0 0 10 9 9\n"
    monkeypatch.setattr("time.sleep", lambda _: counted.write_text(ticks))
    assert busy_share() == pytest.approx(0.5)


def test_the_peak_is_in_bytes_whatever_the_system_counts_in(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(machine, "OWN_STATUS", "missing")
    assert peak_resident_bytes() == pytest.approx(1024 * counted, rel=0.1)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert peak_resident_bytes() == pytest.approx(counted, rel=0.1)


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="this system forgets no peak")
def test_the_peak_of_a_job_is_not_that_of_the_one_before() -> None:
    """A process does many jobs, of which the second takes 200 MB less; a mapping is given back whatever malloc keeps."""
    with mmap.mmap(-1, 200_000_000) as large:
        large[:: mmap.PAGESIZE] = b"1" * len(range(0, len(large), mmap.PAGESIZE))
        assert (first := peak_resident_bytes()) > len(large)
    forget_peak_resident()
    assert peak_resident_bytes() < first - 150_000_000


@pytest.mark.parametrize(
    ("name", "family", "expected"),
    [
        ("AMD EPYC", 25, "AMD EPYC family 25"),
        ("AMD EPYC", 26, "AMD EPYC family 26"),
        ("AMD EPYC 9654 96-Core Processor", 25, "AMD EPYC 9654 96-Core Processor"),
    ],
)
def test_processors_of_one_name_without_a_number_are_distinguished_by_their_family(
    name: str, family: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text(f"processor\t: 0\ncpu family\t: {family}\nmodel name\t: {name}\n")
    monkeypatch.setattr(machine, "PROCESSORS", str(listed))
    assert processor() == f"{expected} ({torch.backends.cpu.get_cpu_capability()})"


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA H200 MIG 1g.18gb", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_peak_is_of_the_very_form_of_a_gpu(name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert peak_flops_per_second(Execution(device="cuda"), "bf16") == peak
    two = peak_flops_per_second(Execution(device="cuda", devices=2), "bf16")
    assert two == (None if peak is None else 2 * peak)


@pytest.mark.parametrize("enabled", [True, False])
def test_after_a_pause_the_collector_is_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with garbage_collection_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
