"""Coordinating costs the same for every run, however many a sweep has and however many run at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.folders.sweep import SweepFolder
from study.sweeping.simulation import Figures, simulate


def simulated(root: Path, runs: int, slots: int) -> Figures:
    return simulate(SweepFolder(root / f"{runs}-{slots}"), runs, slots)


@pytest.mark.slow
def test_a_run_of_a_large_sweep_costs_what_one_of_a_small_sweep_does(tmp_path: Path) -> None:
    simulated(tmp_path, 100, 10)  # imports are not in the first figure
    small, large = simulated(tmp_path, 320, 60), simulated(tmp_path, 2400, 480)
    assert (small.runs, large.runs) == (320, 2400)
    assert large.cpu_milliseconds_per_run < 1.5 * small.cpu_milliseconds_per_run
    assert large.cpu_restart_seconds / large.runs < 1.5 * small.cpu_restart_seconds / small.runs


def test_a_simulated_sweep_ends_every_run_once(tmp_path: Path) -> None:
    assert simulated(tmp_path, 60, 20).runs == 60
    folder = SweepFolder(tmp_path / "60-20")
    assert len(folder.records()) == 60
