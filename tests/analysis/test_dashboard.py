"""The dashboard reads a folder of sweeps, fits what is asked for, says what it cannot read, and shows in a real browser."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from html.parser import HTMLParser
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from study.report.answer import report
from study.report.figures import FIGURES
from study.store.sweep_folder import SweepFolder
from tests.browsing import ELEMENTS, LINES, WORDS, browser, served
from tests.synthetic import add_run, depth_or_width, run_config, sweep_folder
from tests.waiting import until

DASHBOARD = Path(__file__).resolve().parents[2] / "analysis" / "dashboard.py"
SERVER = DASHBOARD.with_name("serve_dashboard.py")

MALICE = """# An answer

<iframe srcdoc="<script>fetch('http://evil.example')</script>"></iframe> <img src=x onerror=alert(1)>
<script>alert(1)</script>

[here](javascript:alert(1)) [there](data:text/html,x) ![pixel](http://evil.example/pixel.png) ![own](data:text/html,x)

| a | b |
| --- | --- |
| <svg onload=alert(1)> | fine {: onclick=alert(1)} |
"""
"""What a stranger may have written into an answer."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep that is reported on, and one that has not begun."""
    results = tmp_path_factory.mktemp("results")
    shapes = ((1, 64), (1, 92), (1, 128), (2, 64), (2, 92))
    with pytest.MonkeyPatch.context() as patch:  # two figures stand for all, which take most of a report's time
        patch.setattr("study.report.answer.FIGURES", {name: FIGURES[name] for name in ("loss_by_depth", "learning_rate")})
        report(depth_or_width(results / "made_up", budgets=(1e6,), shapes=shapes, seeds=2))
    waiting = sweep_folder(results / "group" / "waiting")
    waiting.run("f" * 16).write_config(run_config(1, 128))
    return results


Apart = Callable[..., Any]


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    """Calls in one process for all dashboards, since transformers takes a process with marimo for a notebook."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield lambda function, *arguments: process.submit(function, *arguments).result()


PAGES = ("sweep_page", "sweep_table", "run_table", "sweeps_warning", "explorer_page", "sizes_page")


class _Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def rendered(text: str) -> str:
    """The HTML of an answer."""
    from study.report.notebooks import scrolling_tables

    return str(scrolling_tables(text).text)


def responses(*requests: dict[str, dict[str, str]]) -> list[tuple[int, dict[str, str], str]]:
    """Status, headers and page that the server of the dashboard answers to requests; its token is `secret`."""
    from starlette.testclient import TestClient

    spec = importlib.util.spec_from_file_location("serve_dashboard", SERVER)
    assert spec is not None
    assert spec.loader is not None
    server = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(server)
    client = TestClient(server.dashboard("secret"), base_url="http://127.0.0.1")
    found = [client.get("/", follow_redirects=False, **request) for request in requests]  # type: ignore[arg-type]
    return [(one.status_code, dict(one.headers), one.text) for one in found]


def cells(results: Path, **given: Any) -> dict[str, Any]:
    """What the dashboard's cells define on a folder; `given` stands for all that some of them define."""
    os.environ["STUDY_RESULTS"] = str(results)
    spec = importlib.util.spec_from_file_location("dashboard", DASHBOARD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _, defined = module.app.run(given)
    return dict(defined)


def looked_at(results: Path, *forms: dict[str, str]) -> dict[str, Any]:
    """What a look at the dashboard finds, with the fits of some forms, as plain values."""
    found = cells(results)
    plain = {name: list(found[name]) for name in ("pages", "folders", "readable")}
    plain |= {"sweeps of runs": found["runs"]["sweep"].tolist(), "axes": [found["x_axis"].value, found["y_axis"].value]}
    return plain | {name: found[name].text for name in PAGES} | {"fitted": [found["fitted"](form).text for form in forms]}


def looked_at_runs(results: Path, sweep: str) -> dict[str, str]:
    """What the dashboard shows of a sweep's answer, and of the curves of its runs."""
    found = cells(results)
    rows = found["sweep_runs"].assign(sweep=sweep, validation="")
    return {"answer": found["sweep_page"].text, "curves": found["curves_page"](rows, found["current"]).text}


def colours(results: Path) -> list[str]:
    """What the dashboard tells runs apart by."""
    return list(cells(results)["colour"].options)


def looked_at_sizes(results: Path, vocabulary: float | None) -> str:
    """What the dashboard says of a small shape with a vocabulary as it was typed."""
    chosen = {"depth": 2, "heads": 2, "head_width": 64, "ffn_ratio": 4, "length": 128, "vocabulary": vocabulary}
    elements = {name: SimpleNamespace(value=value) for name, value in chosen.items()}
    return str(cells(results, **elements, sliders="")["sizes_page"].text)


def kept(results: Path) -> list[str | None]:
    """What an element begins with before and after something was chosen, after that has gone, and of no options."""
    found, axes = cells(results), {"training tokens": "tokens", "parameters": "parameters"}
    values = [found["dropdown"]("x", axes, "parameters").value]
    for chosen in ("tokens", "a column that is gone"):
        found["keep"]("x")(chosen)
        values.append(found["dropdown"]("x", axes, "parameters").value)
    return [*values, found["dropdown"]("x", {}, "parameters").value]


def test_dashboard_passes_marimo_check() -> None:
    done = subprocess.run([sys.executable, "-m", "marimo", "check", "--strict", DASHBOARD], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_shows_sweeps_runs_laws_and_sizes(apart: Apart, results: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in results.rglob("*")}
    asked = {
        "sweep": "made_up",
        "law": "power",
        "parameters": "parameters_non_embedding",
        "flops": "train_flops",
        "where": "",
    }
    found = apart(looked_at, results, asked, asked | {"where": "architecture.dept == 2"}, asked | {"law": "flops"})
    assert found["folders"] == ["made_up", "group/waiting"]
    assert len(found["sweeps of runs"]) == len(SweepFolder(results / "made_up").records())
    assert found["axes"] == ["train_flops", "loss_nats"]
    figures = list((results / "made_up" / "figures").glob("*.svg"))
    assert found["sweep_page"].count("data:image/svg+xml;base64,") == len(figures)
    assert 'href="figures/' not in found["sweep_page"], "nothing serves the files of an answer"
    assert "stopped" in found["sweep_table"]
    assert "failed" not in found["sweep_table"], "a state that no run is in has no column"
    fitted, refused, of_flops = found["fitted"]
    assert "status: " in fitted
    assert "parameters = parameters_non_embedding" in fitted
    assert "architecture.depth" in refused, "the nearest column is named"
    assert "status: " in of_flops, "what the form says of N is nothing to a law in C"
    assert "L12-H768-A12-F3072" in found["sizes_page"]
    assert {file: file.stat().st_mtime_ns for file in results.rglob("*")} == before, "it only reads"


@pytest.mark.parametrize(("typed", "counted"), [(1000, "1,000"), (1000.5, "1,000"), (None, "30,522")])
def test_any_vocabulary_that_can_be_typed_is_counted_in_whole_pieces(
    apart: Apart, results: Path, typed: float | None, counted: str
) -> None:
    assert f"vocabulary {counted} →" in apart(looked_at_sizes, results, typed)


def test_points_are_coloured_by_what_differs_between_the_runs_that_are_shown(apart: Apart, tmp_path: Path) -> None:
    depth_or_width(tmp_path / "made", budgets=(1e6,), shapes=((1, 128), (2, 92)), rates=(2e-3,), seeds=1)
    config = run_config(4, 64)
    elsewhere = config.model_copy(update={"data": config.data.model_copy(update={"sequence_length": 32})})
    add_run(sweep_folder(tmp_path / "other"), elsewhere)
    found = apart(colours, tmp_path)
    assert "architecture.depth" in found
    assert not {"sweep", "data.sequence_length"} & set(found), "losses are shown of one validation set"


def test_what_was_chosen_is_kept_when_an_element_is_made_anew(apart: Apart, results: Path) -> None:
    assert apart(kept, results) == ["parameters", "tokens", "parameters", None]


def test_dashboard_says_what_it_cannot_read_and_shows_the_rest(apart: Apart, results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "results")
    broken = depth_or_width(tmp_path / "results" / "broken", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3,), seeds=1)
    broken.runs()[0].record_file.write_text("{")
    sweep_folder(tmp_path / "results" / "no_sweep").sweep_file.write_text("tune: 3")
    found = apart(looked_at, tmp_path / "results")
    assert found["readable"] == ["broken", "made_up", "group/waiting"], "of which one lacks a run"
    assert "record.json" in found["sweeps_warning"]
    assert "no_sweep" in found["sweeps_warning"]
    assert "record.json" in found["explorer_page"]
    assert set(found["sweeps of runs"]) == {"made_up"}


def test_dashboard_shows_what_is_left_of_damaged_curves_and_answers(apart: Apart, tmp_path: Path) -> None:
    damaged = depth_or_width(tmp_path / "damaged", budgets=(1e6,), shapes=((1, 64),), rates=(2e-3,), seeds=2)
    damaged.runs()[0].metrics_file.write_text("[1, 2]\n")
    damaged.answer_file.write_bytes(b"It is \xff lower.")
    found = apart(looked_at_runs, tmp_path, "damaged")
    assert "lower." in found["answer"]
    assert "metrics.jsonl:1: is not a row of metrics" in found["curves"]
    assert "marimo-vega" in found["curves"], "the other run is drawn"


def test_dashboard_of_a_sweep_that_has_just_begun_has_every_page(apart: Apart, tmp_path: Path) -> None:
    sweep_folder(tmp_path / "begun")
    found = apart(looked_at, tmp_path)
    assert found["pages"] == ["Sweeps", "Explore", "Laws", "Sizes"]
    assert "No run of these sweeps has ended yet." in found["explorer_page"]
    assert "iso_parameters" in found["sweep_page"], "its file is shown"


def test_an_answer_of_a_stranger_runs_nothing_and_loads_nothing(apart: Apart) -> None:
    elements = _Elements(apart(rendered, MALICE)).found
    assert {tag for tag, _ in elements} == {"span", "h1", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert {name for _, attributes in elements for name in attributes} == {"class", "style"}
    figure = "![own](data:image/svg+xml;base64,PHN2Zy8+) [page](https://example.org)"
    kept = _Elements(apart(rendered, figure)).found
    fold = '<details markdown="1">\n<summary>All <b>pairs</b></summary>\n\ntext\n\n</details>'
    assert _Elements(apart(rendered, fold)).found[1:] == [("details", {}), ("summary", {}), ("p", {})]
    assert {tag for tag, _ in _Elements(apart(rendered, fold.replace(">", ' onclick="x">', 1))).found} == {"span", "p"}
    assert ("a", {"href": "https://example.org"}) in kept
    assert ("img", {"src": "data:image/svg+xml;base64,PHN2Zy8+", "alt": "own"}) in kept


def test_the_server_answers_its_own_page_alone(apart: Apart) -> None:
    """By the token, which the first redirect puts into a cookie; as this machine; and in no frame."""
    token = {"access_token": "secret"}
    own, foreign = {"origin": "http://127.0.0.1"}, {"origin": "http://evil.example"}
    asked: tuple[dict[str, dict[str, str]], ...] = (
        {},
        {"params": {"access_token": "guess"}},
        {"params": token, "headers": {"host": "evil.example"}},
        {"params": token, "headers": foreign},
        {"params": token, "headers": own},
        {"headers": foreign},
        {"headers": own},
    )
    answers = apart(responses, *asked)
    assert [status for status, _, _ in answers] == [303, 303, 400, 403, 303, 403, 200]
    assert [answers[place][1]["location"].startswith("/auth/login") for place in (0, 1, 4)] == [True, True, False]
    assert ["Scaling study" in page for *_, page in answers] == [False] * 6 + [True]
    for status, headers, _ in answers:
        if status not in (400, 403):
            assert headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_the_token_of_the_server_is_drawn_anew(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    addresses = []
    for number in range(2):
        with served(results, tmp_path / f"log{number}", SERVER) as address:
            addresses.append(address.split("=")[1])
    assert len(set(addresses)) == 2
    assert min(map(len, addresses)) > 40


def test_dashboard_says_so_where_there_is_no_sweep(apart: Apart, tmp_path: Path) -> None:
    found = apart(looked_at, tmp_path)
    assert found["pages"] == ["Sweeps", "Explore", "Laws", "Sizes"]
    assert "holds no sweep" in found["sweeps_warning"]
    assert "No run of these sweeps has ended yet." in found["explorer_page"]


def test_dashboard_says_so_where_its_folder_is_missing(apart: Apart, tmp_path: Path) -> None:
    found = apart(looked_at, tmp_path / "gone")
    assert found["pages"] == ["Sweeps", "Explore", "Laws", "Sizes"]
    assert "gone: is not a folder" in found["sweeps_warning"]


def test_dashboard_says_how_to_see_runs_that_laws_do_not_use(apart: Apart, tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "excluded")
    for rate in (2e-3, 4e-3):
        add_run(folder, run_config(1, 64, rate), excluded="a bad disk")
    found = apart(looked_at, tmp_path)
    assert "Laws use none of the 2 runs here: 2 excluded: a bad disk." in found["explorer_page"]
    assert "Untick" in found["explorer_page"]


def test_dashboard_says_how_to_see_runs_that_a_logarithmic_axis_does_not_show(apart: Apart) -> None:
    untrained = DASHBOARD.parents[1] / "results" / "reference" / "cut_as_it_is"
    assert "Untick “log x” to see them." in apart(looked_at, untrained)["explorer_page"], "all spent 0 FLOPs"


@pytest.mark.skipif(
    shutil.which("chromedriver") is None, reason="no Chromium with its driver here: apt-get install chromium-driver"
)
def test_a_browser_shows_the_answer_the_curves_of_points_in_a_box_and_tables_as_they_stand(
    results: Path, tmp_path: Path
) -> None:
    from selenium.webdriver import ActionChains

    with served(results, tmp_path / "log", SERVER) as address, browser() as page:
        page.get(address.split("?")[0])
        assert "Scaling study" not in page.execute_script(WORDS), "nothing is shown without the token"
        page.get(address)
        until(lambda: "What the evidence does not decide" in page.execute_script(WORDS), 90)
        for fold in page.execute_script(ELEMENTS, "details"):
            page.execute_script("arguments[0].open = true", fold)
        page.set_window_size(700, 1200)
        of_shapes = [lines for text, lines in page.execute_script(LINES, "td") if text.startswith("L1-H")]
        assert 0 < max(of_shapes) < 2, "the name of a shape is broken"
        page.set_window_size(1400, 1200)
        tabs = {tab.text: tab for tab in page.execute_script(ELEMENTS, "[role=tab]")}
        tabs["Explore"].click()
        until(lambda: "log x" in page.execute_script(WORDS), 60)
        until(lambda: bool(page.execute_script(ELEMENTS, "canvas")), 60)
        (points,) = page.execute_script(ELEMENTS, "canvas")
        width, height = points.size["width"], points.size["height"]
        box = ActionChains(page).move_to_element_with_offset(points, 60 - width / 2, 40 - height / 2).click_and_hold()
        box.move_by_offset(width / 2, height / 2).move_by_offset(width / 2 - 190, height / 2 - 100).release().perform()
        until(lambda: "10 runs" in page.execute_script(WORDS), 60)
        until(lambda: len(page.execute_script(ELEMENTS, "canvas")) == 2, 60)
        assert "internal error" not in page.execute_script(WORDS)
        tabs["Sizes"].click()
        page.set_window_size(800, 1200)
        until(lambda: bool(page.execute_script(LINES, "pre")), 60)
        for text, lines in page.execute_script(LINES, "pre"):
            assert lines < len(text.splitlines()) + 1, "a line of a table is wrapped"
