"""The page to send: one file that asks for nothing, names the points of its figures, and shows what it was given as text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from study.base.errors import InputError
from study.cli import commands
from study.evidence.evidence import gather
from study.plotting.loss_by_size import LossBySize
from study.plotting.style import drawable
from study.report import page
from study.report.answer import Answer, report
from study.report.figures import FIGURES
from study.store.sweep_folder import SweepFolder
from tests.browsing import PHONE, browser, harmful, needs_browser
from tests.synthetic import SWEEP, add_run, depth_or_width, run_config, sweep_folder
from tests.waiting import until

MALICE = "<img src=http://evil.example/x onerror=alert(1)><script>alert(2)</script> ![p](http://evil.example/p.png)"
"""What a stranger may have written into a sweep file or a record."""

SHAPES = ((1, 64), (1, 92), (2, 64))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """A stranger's sweep, with its page, which holds two figures: all of them take most of a report's time."""
    place = tmp_path_factory.mktemp("results") / "made_up"
    folder = depth_or_width(place, budgets=(1e6,), shapes=SHAPES, rates=(2e-3, 4e-3, 8e-3), seeds=2)
    add_run(folder, run_config(1, 64, 1.6e-2), state="DIVERGED", reason=f"the loss became NaN {MALICE}")
    written = folder.sweep_file.read_text()
    folder.sweep_file.write_text(re.sub("question: .*", f"question: {json.dumps(f'Depth or width {MALICE}?')}", written))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("study.report.answer.FIGURES", {name: FIGURES[name] for name in ("loss_by_depth", "learning_rate")})
        report(folder, page=place / "report.html")
    return folder


@pytest.fixture(scope="module")
def text(folder: SweepFolder) -> str:
    return (folder.path / "report.html").read_text()


SORTED = """
const heading = [...document.querySelectorAll("th")].find(heading => heading.textContent === arguments[0]);
heading.querySelector("button").click();
return [...heading.closest("table").tBodies[0].rows].map(row => row.cells[heading.cellIndex].textContent);
"""
"""The values of a column after a click on its heading."""


OVERRIDDEN = """
const all = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]);
const rules = all.filter(rule => /^\\.s[0-9a-f]{6}$/.test(rule.selectorText));
const lost = rule => [...document.querySelectorAll(rule.selectorText)].some(one =>
  ["strokeLinecap", "strokeLinejoin"].some(name => rule.style[name] && getComputedStyle(one)[name] !== rule.style[name]));
return [rules.filter(rule => rule.style.strokeLinecap).length, rules.filter(lost).map(rule => rule.cssText)];
"""
"""How many styles of figures say how lines end, and those that something else on the page overrides in ends or joins."""


FILLED = """
const heading = [...document.querySelectorAll("th")].find(heading => heading.textContent === arguments[0]);
const [row] = heading.closest("table").tBodies[0].rows;
heading.removeAttribute("aria-sort");
row.parentElement.replaceChildren(...arguments[1].map(words => {
  const copy = row.cloneNode(true);
  copy.cells[heading.cellIndex].textContent = words;
  return copy;
}));
"""
"""Puts rows with these values in a column in place of a table's."""


class _Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_holds_the_answer_its_exclusions_and_how_to_reproduce_it(folder: SweepFolder, text: str) -> None:
    answer, words = Answer(gather(folder), {}), _Elements(text).words
    assert words.index("Depth or width") < words.index(answer.headline) < words.index("How sure")
    assert "1 run stays in the ledger" in words
    assert "the loss became NaN" in words
    assert "study launch made_up.yaml" in words
    assert SWEEP["data"]["tokenizer"]["kind"] in words, "the sweep file"
    assert re.search(r"this page\s*Python 3\.\d+\.\d+, scaling-study ", words)
    assert len(text.encode()) < 5_000_000


def test_the_page_has_one_script_no_request_and_shows_names_as_text(text: str) -> None:
    page = _Elements(text)
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 1
    assert not {"img", "iframe", "object", "embed", "base", "form"} & {*tags}
    assert not [attributes for _, attributes in page.elements if any(name.startswith("on") for name in attributes)]
    sources = [attributes.get(name) or "#" for _, attributes in page.elements for name in ("src", "href", "xlink:href")]
    assert not [source for source in sources if not source.startswith(("#", "data:"))]
    assert page.words.count("<script>alert(2)</script>") >= 2, "in the question and in the reason"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)), "ids of several drawings do not meet"


def test_every_style_that_a_figure_names_is_on_the_page(text: str) -> None:
    named = {style for styles in re.findall(r'class="([^"]*)"', text) for style in re.findall(r"\bs[0-9a-f]{6}\b", styles)}
    assert named
    assert named == set(re.findall(r"\.(s[0-9a-f]{6})\{", text))


def test_points_name_the_runs_and_values_of_the_frame(folder: SweepFolder, text: str) -> None:
    titles = re.findall(r"<title>(.*?)</title></circle>", text, re.DOTALL)
    shown = drawable(LossBySize("depth").frame(gather(folder)))
    assert len(shown) == 4
    for run, loss in shown[["run_id", "loss_nats"]].itertuples(index=False):
        assert [words for words in titles if f"run {run}" in words and f"loss {loss:.4f} nats" in words]


def test_a_sweep_file_that_is_a_link_out_of_its_folder_is_not_sent(folder: SweepFolder, tmp_path: Path) -> None:
    theirs = SweepFolder(tmp_path / "made")
    theirs.path.mkdir()
    theirs.sweep_file.symlink_to(folder.sweep_file)
    assert page._sweep_file(theirs) == "sweep.yaml is a link that leads out of its folder, and is not followed"
    assert page._sweep_file(folder) == folder.sweep_file.read_text()


def test_figures_without_room_are_named_and_long_tables_cut(folder: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("study.report.answer.FIGURES", {"loss_by_depth": FIGURES["loss_by_depth"]})
        patch.setattr(page, "MOST_BYTES", 10_000)
        patch.setattr(page, "MOST_ROWS", 2)
        report(folder, page=folder.path / "small.html")
    small = (folder.path / "small.html").read_text()
    assert "Left out to keep this page small: figures/loss_by_depth.svg" in small
    assert "and 1 more rows: see answer.md" in small


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--html", "{folder}"], "is a folder, not a file; without a file, --html comes last: study report"),
        (["{folder}", "--html", "gone/x.html"], "gone is not a folder; create it first"),
        (["{folder}", "--formats", "gif"], "'gif' is not a format of figures; choose from svg, pdf, png, csv"),
    ],
)
def test_a_page_or_format_that_cannot_be_written_is_refused_at_once(tmp_path: Path, options: list[str], expected: str) -> None:
    folder = sweep_folder(tmp_path / "s")
    done = CliRunner().invoke(commands, ["report", *(option.format(folder=folder.path) for option in options)])
    assert isinstance(done.exception, InputError)
    assert expected in str(done.exception)


@needs_browser
def test_a_browser_without_a_network_opens_the_page_and_names_a_point(folder: SweepFolder) -> None:
    with browser("--host-resolver-rules=MAP * ~NOTFOUND") as chromium:
        chromium.get((folder.path / "report.html").as_uri())
        assert not chromium.get_log("browser"), "no error, and nothing that the content policy refused"
        asked = chromium.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
        assert [name for name in asked if not name.startswith("data:")] == []
        assert "<script>alert(2)</script>" in chromium.title
        of_lines, overridden = chromium.execute_script(OVERRIDDEN)
        assert of_lines
        assert overridden == []
        assert _tip(chromium) == ""
        point = chromium.find_element("css selector", ".spot")
        chromium.execute_script("arguments[0].scrollIntoView({block: 'center'})", point)
        _move_to(chromium, point)
        assert "loss" in _tip(chromium)
        values = [int(value.replace(",", "")) for value in chromium.execute_script(SORTED, "parameters")]
        assert len(values) > 1
        assert values == sorted(values)
        counts = ["1.2M (1.1M to 1.3M)", "850.0k (800.0k to 900.0k)", "2.4B", "3T", "12.5", "1,500", "−3.1k", "1.0e18", "none"]
        chromium.execute_script(FILLED, "parameters", counts)
        in_order = ["−3.1k", "12.5", "1,500", counts[1], counts[0], "2.4B", "3T", "1.0e18", "none"]
        assert chromium.execute_script(SORTED, "parameters") == in_order
        for scheme, dark in (("light", False), ("dark", True)):
            emulated = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
            shade = chromium.execute_script("return getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", shade))) < 3 * 64) == dark


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_on_the_page_keeps_a_reader_out(folder: SweepFolder, scheme: str) -> None:
    with browser() as chromium:
        emulated = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
        chromium.get((folder.path / "report.html").as_uri())
        for narrow, opened in product((False, True), (False, True)):
            if narrow:
                chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
            chromium.execute_script("document.querySelectorAll('details').forEach(one => one.open = arguments[0])", opened)
            assert harmful(chromium) == []
        chromium.execute_script("document.querySelector('.figure').removeAttribute('tabindex')")
        chromium.execute_script("document.querySelector('svg[role=img]').removeAttribute('aria-label')")
        chromium.execute_script("document.querySelector('p').style = 'color: #787878; background: #888'")
        rules = {one.partition(":")[0] for one in harmful(chromium)}
        assert rules == {"color-contrast", "scrollable-region-focusable", "svg-img-alt"}, "it finds what is wrong"


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_its_figures_scroll_by_the_keyboard(folder: SweepFolder, scheme: str) -> None:
    from selenium.webdriver import Keys

    with browser() as chromium:
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
        emulated = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
        chromium.get((folder.path / "report.html").as_uri())
        for opened in (False, True):
            chromium.execute_script("document.querySelectorAll('details').forEach(one => one.open = arguments[0])", opened)
            assert chromium.execute_script("return document.documentElement.scrollWidth") <= 390
        figure = chromium.find_element("css selector", ".figure")
        assert figure.get_attribute("role") == "region"
        assert figure.get_attribute("aria-label") == figure.find_element("css selector", "svg").get_attribute("aria-label")
        figure.send_keys(Keys.ARROW_RIGHT)
        until(lambda: chromium.execute_script("return arguments[0].scrollLeft", figure) > 0, 10)


def _tip(chromium: Any) -> str:
    return str(chromium.execute_script("const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.textContent"))


def _move_to(chromium: Any, element: Any) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(chromium).move_to_element(element).perform()
