"""A clone stays small: what is tracked by git, in files and in bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def tracked() -> dict[str, int]:
    """The sizes in bytes of the files that git tracks, without those that are deleted but not yet committed so."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = filter(None, listed.split("\0"))
    return {name: (ROOT / name).lstat().st_size for name in names if (ROOT / name).exists()}


def test_few_files_are_tracked(tracked: dict[str, int]) -> None:
    assert len(tracked) < 1500


def test_the_working_tree_and_the_results_in_it_are_small(tracked: dict[str, int]) -> None:
    assert sum(tracked.values()) < 40 * MEGABYTE
    assert sum(size for name, size in tracked.items() if name.startswith("results/")) < 25 * MEGABYTE


def test_committed_sweeps_are_packed_their_tables_parquet_and_their_figures_svg(tracked: dict[str, int]) -> None:
    results = [name for name in tracked if name.startswith("results/")]
    assert [name for name in results if "/runs/" in name] == []
    assert [name for name in results if name.endswith((".png", "/ledger.csv", "/scores.csv"))] == []
