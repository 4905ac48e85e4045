"""Freed memory stays with a process that trains, so that no step pays for fresh pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from study.training.execution import keep_freed_memory

FAULTS = """
import resource, torch
from study.training.execution import keep_freed_memory
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step(): return sum(float(torch.ones(10_000_000)[0]) for _ in range(2))
for prepare in (bool, keep_freed_memory):
    prepare()
    for _ in range(5):
        step()
    before = faults()
    step()
    print(faults() - before)
"""


@pytest.mark.slow
def test_a_step_causes_no_page_faults_once_memory_is_kept() -> None:
    if not keep_freed_memory():
        pytest.skip("this C library has no mallopt")
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    fresh, kept = map(int, done.stdout.split())
    assert fresh > 10_000
    assert kept < fresh / 100
