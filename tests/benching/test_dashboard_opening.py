"""The dashboard is opened as users open it, and its times are rows with their targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.benching import dashboard_opening
from study.benching.dashboard_opening import ROWS, Opening, measure_dashboard, packed_sweep, rows_of
from study.benching.results import Row
from study.store.sweep_folder import SweepFolder
from tests.browsing import needs_browser


def test_the_rows_are_medians_and_the_table_has_its_target_for_the_smaller_sweep_alone() -> None:
    openings = [Opening(1.0, 0.5, 4.0, 0.1, 0.4), Opening(2.0, 3.0, 6.0, 0.2, 0.7), Opening(1.5, 1.5, 5.0, 0.9, 0.6)]
    rows = rows_of(800, openings)
    assert [row["value"] for row in rows] == [1.5, 1.5, 5.0, 0.2, 0.6]
    assert [row["met"] for row in rows] == [None, False, True, True, False]
    assert [row["at_most"] for row in rows_of(10_000, openings)] == [None, 1.0, None, 0.5, 0.5]


def test_a_sweep_to_open_is_packed_and_has_curves(tmp_path: Path) -> None:
    made = packed_sweep(tmp_path / "simulated", 20)
    runs = SweepFolder(tmp_path / "simulated").runs()
    assert len(runs) == made >= 20
    assert len([*runs[0].metrics()]) == ROWS
    assert not (tmp_path / "simulated" / "runs").exists(), "all of it is in the pack"


def test_without_a_browser_a_row_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    rows: list[Row] = []
    measure_dashboard(rows.append)
    (row,) = rows
    assert row["value"] is None
    assert "needs selenium, and Chromium with chromedriver" in row["error"]


@pytest.mark.slow
@needs_browser
def test_a_browser_shows_every_run_and_answers_a_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_opening, "RUNS", (30,))
    monkeypatch.setattr(dashboard_opening, "OPENINGS", 1)
    rows: list[Row] = []
    measure_dashboard(rows.append)
    assert [row["error"] for row in rows] == [None] * 5
    assert all(row["value"] > 0 for row in rows)
