"""The notebook runs headless on a sweep folder, passes marimo's own check, and exports with its outputs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from study.folders.sweep import SweepFolder
from tests.synthetic import depth_or_width
from tests.synthetic_scores import add_scores

NOTEBOOK = Path(__file__).resolve().parents[1] / "analysis" / "depth_or_width.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    folder = depth_or_width(tmp_path_factory.mktemp("results") / "made_up", budgets=(1e6,), shapes=((1, 128), (2, 92)))
    folder.write_ledger()
    add_scores(folder)
    return folder


def run(*command: str | Path, results: Path | None = None) -> str:
    environment = os.environ | ({"STUDY_RESULTS": str(results)} if results else {})
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_notebook_runs_on_the_folder_it_is_given(folder: SweepFolder) -> None:
    assert "made_up: 10 of 10 runs ended" in run(NOTEBOOK, "--folder", folder.path)


def test_notebook_of_a_folder_that_is_missing_says_so_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, NOTEBOOK, "--", "--folder", tmp_path / "gone"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path}/gone/sweep.yaml: does not exist\n"


def exported(results: Path, page: Path) -> str:
    """What a browser would show of the notebook on a sweep."""
    run("-m", "marimo", "export", "html", NOTEBOOK, "-o", page, "--no-include-code", results=results)
    return page.read_text()


def test_a_browser_shows_the_question_of_the_sweep_or_why_its_folder_cannot_be_read(
    folder: SweepFolder, tmp_path: Path
) -> None:
    shown = exported(folder.path, tmp_path / "made_up.html")
    assert "At equal parameters, does depth or width lower MLM loss more?" in shown
    assert "Depth or width?" not in shown, "the heading is the sweep's own question"
    for finding in ("Width lowers loss more", "No law is fitted", "Beside a bag of words", "width adds most", "Anything"):
        assert finding in shown
    assert "gone/sweep.yaml: does not exist" in exported(tmp_path / "gone", tmp_path / "gone.html")


def test_notebook_passes_marimo_check() -> None:
    run("-m", "marimo", "check", "--strict", NOTEBOOK)


@pytest.mark.skipif(importlib.util.find_spec("nbformat") is None, reason="marimo exports ipynb only with nbformat")
def test_notebook_exports_with_outputs(folder: SweepFolder, tmp_path: Path) -> None:
    page = tmp_path / "notebook.ipynb"
    run("-m", "marimo", "export", "ipynb", NOTEBOOK, "-o", page, "--include-outputs", results=folder.path)
    outputs = [output for cell in json.loads(page.read_text())["cells"] for output in cell.get("outputs", [])]
    assert any("data:image/png" in json.dumps(output) for output in outputs)
    assert not [output for output in outputs if output["output_type"] == "error"]
