"""The notebooks run headless on a sweep folder, pass marimo's own check, export with their outputs, and follow their menus."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from study.base.errors import InputError
from study.report.notebooks import execute, folder_of, gather_ended, gather_scored
from study.store.sweep_folder import SweepFolder
from tests.browsing import ELEMENTS, WORDS, browser, needs_browser, served
from tests.synthetic import depth_or_width, sweep_folder
from tests.synthetic_scores import add_scores
from tests.waiting import until

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
NOTEBOOK = ANALYSIS / "depth_or_width.py"
LAWS = ANALYSIS / "scaling_laws.py"
SCORES = ANALYSIS / "loss_and_scores.py"
PANDAS = ANALYSIS / "ledger_with_pandas.py"


@pytest.mark.parametrize("notebook", sorted(ANALYSIS.glob("*.py")), ids=lambda file: file.stem)
def test_a_notebook_imports_what_there_is(notebook: Path) -> None:
    imports = [node for node in ast.walk(ast.parse(notebook.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        module = importlib.import_module(str(node.module))
        for name in node.names:
            assert hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}"), name.name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    folder = depth_or_width(tmp_path_factory.mktemp("results") / "made_up", budgets=(1e6,), shapes=((1, 128), (2, 92)))
    folder.write_ledger()
    add_scores(folder)
    return folder


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """A sweep to which a law can be fitted."""
    shapes = ((1, 48), (1, 64), (1, 92), (1, 128), (1, 184))
    place = tmp_path_factory.mktemp("results") / "sizes"
    folder = depth_or_width(place, budgets=(1e6, 2e6, 4e6), shapes=shapes, rates=(4e-3,), seeds=1)
    folder.write_ledger()
    return folder


def run(*command: str | Path, results: Path | None = None) -> str:
    environment = os.environ | ({"STUDY_RESULTS": str(results)} if results else {})
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_notebook_runs_on_the_folder_it_is_given(folder: SweepFolder) -> None:
    assert run(NOTEBOOK, "--folder", folder.path).startswith(
        "Width lowers loss more at equal non-embedding parameters: L1-H128"
    )


@pytest.mark.slow
def test_the_notebook_of_laws_shows_those_of_the_folder_it_is_given(sizes: SweepFolder) -> None:
    out = run(LAWS, "--", "--folder", sizes.path)
    assert out.startswith("sizes: 15 of 15 runs ended\nchinchilla, E + A·N^−alpha + B·D^−beta, over parameters, tokens: ")


@pytest.mark.slow
def test_the_notebook_of_scores_shows_those_of_the_folder_it_is_given(folder: SweepFolder) -> None:
    out = run(SCORES, "--folder", folder.path)
    assert out.startswith("made_up: 10 of 10 runs ended\n")
    assert "Beside a bag of words" in out


@pytest.mark.slow
def test_the_notebook_of_pandas_reads_the_table_of_the_folder_it_is_given(sizes: SweepFolder) -> None:
    assert re.fullmatch(r"sizes: 15 runs, \d+ columns\n", run(PANDAS, "--folder", sizes.path))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", [LAWS, PANDAS], ids=lambda notebook: notebook.stem)
def test_notebook_of_a_folder_that_is_missing_says_so_in_one_line(tmp_path: Path, notebook: Path) -> None:
    done = subprocess.run([sys.executable, notebook, "--", "--folder", tmp_path / "gone"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path}/gone/sweep.yaml: does not exist\n"


def test_a_notebook_without_a_folder_takes_the_users_own_sweep_before_the_reference(tmp_path: Path) -> None:
    assert folder_of(tmp_path, "mine", None).path == tmp_path / "mine"
    reference = sweep_folder(tmp_path / "reference" / "mine")
    assert folder_of(tmp_path, "mine", None).path == reference.path
    own = sweep_folder(tmp_path / "mine")
    assert folder_of(tmp_path, "mine", None).path == own.path
    assert folder_of(tmp_path, "mine", reference.path).path == reference.path


def test_folders_that_a_notebook_cannot_use_are_refused_with_what_would_serve(tmp_path: Path) -> None:
    begun = sweep_folder(tmp_path / "begun")
    with pytest.raises(InputError, match=r"holds sweeps but is not one; give one of them: begun"):
        folder_of(tmp_path, "mine", tmp_path)
    begun.write_ledger()
    with pytest.raises(InputError, match=r"begun: no run has ended yet"):
        gather_ended(begun)
    with pytest.raises(InputError, match=r"begun: has no downstream scores .* `study score`"):
        gather_scored(begun)


def exported(notebook: Path, results: Path, page: Path) -> str:
    """What a browser would show of a notebook on a sweep."""
    run("-m", "marimo", "export", "html", notebook, "-o", page, "--no-include-code", results=results)
    return page.read_text()


@pytest.mark.slow
def test_a_browser_shows_the_question_of_the_sweep_or_why_its_folder_cannot_be_read(
    folder: SweepFolder, tmp_path: Path
) -> None:
    shown = exported(NOTEBOOK, folder.path, tmp_path / "made_up.html")
    assert "At equal parameters, does depth or width lower MLM loss more?" in shown
    assert "Depth or width?" not in shown, "the heading is the sweep's own question"
    for finding in ("Width lowers loss more", "No law is fitted", "Beside a bag of words", "width adds most", "Anything"):
        assert finding in shown
    assert "int64" not in shown, "the table of cells is the answer's"
    assert "gone/sweep.yaml: does not exist" in exported(NOTEBOOK, tmp_path / "gone", tmp_path / "gone.html")


@pytest.mark.slow
def test_a_browser_shows_a_law_and_what_rests_on_it(sizes: SweepFolder, tmp_path: Path) -> None:
    shown = exported(LAWS, sizes.path, tmp_path / "sizes.html")
    assert "columns: parameters = parameters, tokens = tokens, loss = loss_nats" in shown
    for part in ("Forecast of the largest runs", "exponent of N*", "parameters_non_embedding", "in every count"):
        assert part in shown
    assert shown.count("data:image/png;base64") >= 3, "the law, its forecast and the frontier"
    assert "MarimoExceptionRaisedError" not in shown


@pytest.mark.slow
def test_a_browser_shows_why_a_law_cannot_be_fitted(folder: SweepFolder, tmp_path: Path) -> None:
    shown = exported(LAWS, folder.path, tmp_path / "made_up.html")
    assert "tokens: is " in shown
    assert "cannot estimate its effect" in shown
    assert "the best split is undetermined" in shown, "the frontier does not wait for a law"
    assert "MarimoExceptionRaisedError" not in shown


@pytest.mark.slow
def test_a_browser_shows_scores_beside_baselines_and_published_ones(folder: SweepFolder, tmp_path: Path) -> None:
    shown = exported(SCORES, folder.path, tmp_path / "scores.html")
    for part in ("majority class", "Rank correlations", "rank correlation", "error at the measured loss", "BERT-Tiny"):
        assert part in shown
    assert "data:image/png;base64" in shown
    assert "MarimoExceptionRaisedError" not in shown


@pytest.mark.slow
def test_notebooks_pass_marimo_check() -> None:
    run("-m", "marimo", "check", "--strict", NOTEBOOK, LAWS, SCORES, PANDAS)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nbformat") is None, reason="marimo exports ipynb only with nbformat")
def test_notebook_is_written_with_its_outputs(sizes: SweepFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUDY_RESULTS", str(sizes.path))
    shutil.copy(PANDAS, tmp_path)
    execute([tmp_path / PANDAS.name])
    _check(tmp_path / "ledger_with_pandas.ipynb", "parameters")


@pytest.mark.parametrize("notebook", [NOTEBOOK, LAWS, SCORES, PANDAS], ids=lambda notebook: notebook.stem)
def test_the_notebooks_that_are_committed_have_their_figures_and_no_error(notebook: Path) -> None:
    _check(notebook.with_suffix(".ipynb"), "loss")


def _check(executed: Path, word: str) -> None:
    """An executed notebook is small, has a figure that a forge shows, and no error."""
    assert executed.stat().st_size < 400_000
    outputs = [output for cell in json.loads(executed.read_text())["cells"] for output in cell.get("outputs", [])]
    assert [output for output in outputs if "image/png" in output.get("data", {})]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert word in json.dumps(outputs)


@pytest.mark.slow
@needs_browser
def test_a_law_follows_its_menus_in_a_browser(sizes: SweepFolder, tmp_path: Path) -> None:
    from selenium.webdriver.support.select import Select

    with (
        served(sizes.path, tmp_path / "log", "-m", "marimo", "run", "--headless", "--token", LAWS) as address,
        browser() as page,
    ):
        page.get(address)
        until(lambda: "columns: parameters = parameters, tokens" in page.execute_script(WORDS), 90)
        menus = [Select(menu) for menu in page.execute_script(ELEMENTS, "select")]
        counts = next(menu for menu in menus if any("the encoder less its tables" in option.text for option in menu.options))
        counts.select_by_visible_text("parameters_non_embedding (the encoder less its tables)")
        until(lambda: "columns: parameters = parameters_non_embedding" in page.execute_script(WORDS), 60)
        assert "internal error" not in page.execute_script(WORDS)
