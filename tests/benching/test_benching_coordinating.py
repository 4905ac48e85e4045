"""Coordinating costs the same for every run, however many a sweep has and however many run at once."""

from __future__ import annotations

import fcntl
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from study.benching.overheads import Costs, lower, rows_of, simulate
from study.benching.own_processes import failures_reported, in_own_process
from study.benching.results import Row
from study.store.sweep_folder import SweepFolder
from tests.waiting import until


def simulated(root: Path, runs: int, slots: int) -> Costs:
    return simulate(SweepFolder(root / f"{runs}-{slots}"), runs, slots)


@pytest.mark.slow
def test_a_run_of_a_large_sweep_costs_what_one_of_a_small_sweep_does(tmp_path: Path) -> None:
    simulated(tmp_path, 100, 10)  # imports are not in the first figure
    small, large = simulated(tmp_path, 320, 60), simulated(tmp_path, 2400, 480)
    assert (small.runs, large.runs) == (320, 2400)
    assert large.cpu_seconds_per_run < 1.5 * small.cpu_seconds_per_run
    assert large.cpu_restart_seconds / large.runs < 1.5 * small.cpu_restart_seconds / small.runs


def test_a_simulated_sweep_ends_every_run_once(tmp_path: Path) -> None:
    assert simulated(tmp_path, 60, 20).runs == 60
    assert len(SweepFolder(tmp_path / "60-20-packed").records()) == 60


def test_the_figures_name_the_sweep_and_are_seconds_and_bytes() -> None:
    rows = rows_of(Costs(10_000, 1_000, 1.5, 0.0048, 0.0034, 8.8, 8.6, 1.1, 0.4, 650_000_000))
    assert (rows[1]["what"], rows[1]["value"]) == ("each of 10,000 runs on 1,000 slots", 0.0048)
    assert [row["unit"] for row in rows] == [*["s"] * 7, "bytes"]


def test_of_two_measurements_each_figure_is_the_lower() -> None:
    quiet, upset = (
        Costs(100, 10, 1.0, 0.005, 0.003, 9.0, 8.0, 0.2, 0.03, 650),
        Costs(100, 10, 2.0, 0.014, 0.004, 8.0, 9.0, 0.1, 0.04, 700),
    )
    assert lower(quiet, upset) == lower(upset, quiet) == Costs(100, 10, 1.0, 0.005, 0.003, 8.0, 8.0, 0.1, 0.03, 650)


@pytest.mark.slow
def test_what_cannot_be_measured_in_its_own_process_becomes_a_row_that_says_why() -> None:
    rows: list[Row] = []
    with failures_reported("the logarithm of minus one", rows.append):
        in_own_process(math.log, -1.0)
    with failures_reported("a killed process", rows.append):
        in_own_process(os._exit, 1)
    assert [(row["what"], row["value"]) for row in rows] == [("the logarithm of minus one", None), ("a killed process", None)]
    assert rows[0]["error"].startswith("ValueError: ")
    assert rows[1]["error"].startswith("BrokenProcessPool: ")


HOLDER = """
import fcntl, sys, time
from study.benching.own_processes import in_own_process

def hold(lock, held):
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        open(held, "w").close()
        time.sleep(600)

if __name__ == "__main__":
    in_own_process(hold, *sys.argv[1:])
"""


def test_a_process_of_its_own_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """It holds a lock, which the system takes back when it ends."""
    lock, held = tmp_path / "lock", tmp_path / "held"
    (tmp_path / "holder.py").write_text(HOLDER)
    with subprocess.Popen([sys.executable, tmp_path / "holder.py", lock, held]) as parent:
        until(held.is_file)
        parent.kill()

    def taken() -> bool:
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    until(taken)
