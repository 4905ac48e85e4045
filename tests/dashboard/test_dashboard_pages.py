"""The dashboard in a real browser, in which no other host can be reached: one server and one session for all tests."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import uvicorn

from study.counting.named_models import named
from study.counting.parameters import parameters
from study.dashboard.serving import application
from study.store.ownership import work_lock
from study.store.run_folder import RunFolder
from study.store.sweep_folder import ChosenRun, GoalLook, GoalPath, SweepFolder
from tests.browsing import WORDS, browser, harmful, needs_browser, served
from tests.dashboard.test_dashboard_answers import MALICE, keys_made, laws_in
from tests.synthetic import SWEEP, add_run, depth_or_width, run_config, sweep_folder
from tests.synthetic_scores import TASKS, add_scores
from tests.waiting import until

pytestmark = needs_browser

COMMAND = ("-c", "from study.cli import main; main()", "dashboard")

EVIL = "<img src=x onerror=hit()>"
"""A name that would load an image and run a script if it were markup."""

READY = """
return document.readyState === "complete" && !document.querySelector("[aria-busy]") && !!document.querySelector("main h1");
"""

CUT = """
return [...document.querySelectorAll(".wide-words")].filter(node => node.getBoundingClientRect().right > innerWidth)
    .map(node => node.outerHTML.slice(0, 200));
"""
"""Verdicts that reach beyond the screen."""

TABS = ("answer", "goal", "runs", "figures", "file")

CONTRASTS = """
const brightness = text => {
    const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = text.match(/[0-9.]+/g).slice(0, 3).map(one => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = node => {
    const colour = getComputedStyle(node).backgroundColor;
    return /rgba\\(0, 0, 0, 0\\)|transparent/.test(colour) && node.parentElement ? behind(node.parentElement) : colour;
};
return [...document.querySelectorAll("main *, header *")].filter(node => node.checkVisibility() && !node.closest("svg") &&
    [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())).map(node => {
    const [a, b] = [getComputedStyle(node).color, behind(node)].map(brightness);
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), node.outerHTML.slice(0, 120)];
}).filter(([ratio]) => ratio < 4.5);
"""
"""Texts whose contrast with what is behind them is below WCAG's 4.5."""


@dataclass
class Shown:
    """The dashboard of some made-up results in a browser."""

    page: Any
    address: str
    log: Path
    live: RunFolder

    def open(self, **parameters: str) -> None:
        """Go to a page and wait until it is drawn."""
        self.page.get(f"{self.address}?{urlencode(parameters)}")
        self.wait()

    def wait(self, condition: Callable[[], bool] = lambda: True) -> None:
        """Wait until the page is drawn and something is so."""
        until(lambda: bool(self.page.execute_script(READY)) and condition())

    @property
    def words(self) -> str:
        """All text of the page."""
        return str(self.page.execute_script(WORDS))

    @property
    def asked(self) -> dict[str, str]:
        """The parameters of the address."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.page.current_url).query).items()}

    def find(self, selector: str) -> Any:
        """The first element that a selector matches."""
        return self.page.find_element("css selector", selector)

    def count(self, selector: str) -> int:
        """How many elements a selector matches."""
        return len(self.page.find_elements("css selector", selector))

    def tip(self, selector: str) -> str:
        """The words at the pointer when it is at the first element that a selector matches."""
        from selenium.webdriver import ActionChains

        element = self.find(selector)
        self.page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.page).move_to_element(element).perform()
        script = "return [...document.querySelectorAll('[aria-label=tip] text > *')].map(line => line.textContent).join(' ')"
        self.wait(lambda: bool(self.page.execute_script(script)))
        return str(self.page.execute_script(script)).replace("\u200b", "")

    def column(self, place: int) -> list[str]:
        """The words of a column of the first table."""
        script = "return [...document.querySelector('table').tBodies[0].rows].map(row => row.cells[arguments[0]].innerText)"
        return list(self.page.execute_script(script, place))

    def pick(self, name: str, words: str) -> None:
        """Choose in a menu by the words of an option."""
        from selenium.webdriver.support.select import Select

        Select(self.find(f"#{name}")).select_by_visible_text(words)
        self.wait()

    def choose(self, name: str, value: str) -> None:
        """Choose in a menu by the value of an option, or move a slider."""
        event = "input" if name == "smooth" else "change"
        script = "const [id, value, event] = arguments; const one = document.getElementById(id); one.value = value;"
        self.page.execute_script(f"{script} one.dispatchEvent(new Event(event))", name, value, event)

    def sized(self, width: int, height: int, phone: bool = False) -> None:
        """Give the window a size."""
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    results = tmp_path_factory.mktemp("results")
    shapes = ((1, 64), (1, 92), (1, 128), (2, 64), (2, 92))
    folder = depth_or_width(results / "made_up", budgets=(1e6, 2e6), shapes=shapes, rates=(2e-3, 4e-3, 8e-3), seeds=2)
    folder.write_ledger()
    add_scores(folder, {"sst2": TASKS["sst2"], "cola": TASKS["cola"]}, seeds=1)
    folder.answer_file.write_text("# made_up\n\n**Width lowers loss more at equal parameters.**\n")
    folder.figures.mkdir()
    (folder.figures / "loss_by_depth.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="90" height="60"/>')
    folder.goal_file.write_text(goal_of(folder).model_dump_json())
    evil = sweep_folder(results / EVIL, SWEEP | {"question": f"Is {EVIL} \u202eshown?"})
    evil_run = evil.run(add_run(evil, run_config(1, 64), excluded=EVIL))
    evil.answer_file.write_text(f"**{EVIL}**\n\n{MALICE}")
    evil_run.log_file.write_text(f"{EVIL}\x1b[31m\n")
    evil_run.metrics_file.write_text(json.dumps({"trainer/tokens": 1, EVIL: 2.0}) + "\n")
    going = sweep_folder(results / "going")
    live = going.run("a" * 16)
    live.write_config(run_config(2, 64))
    live.metrics_file.write_text(row(1))
    log = tmp_path_factory.mktemp("log") / "log"
    blocked = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with work_lock(live), served(results, log, *COMMAND, results, "--no-open") as address, browser(blocked) as page:
        page.get(address.split("?")[0])
        assert "token" in page.execute_script(WORDS), "nothing is shown without the token"
        assert page.execute_script("return document.querySelector('main')") is None
        page.get(address)
        yield Shown(page, address.split("?")[0], log, live)


def goal_of(folder: SweepFolder) -> GoalPath:
    """The path to a forecast within 1%, by four runs of which the last is not used."""
    ended = [
        ChosenRun(
            run_id=run.run_id,
            shape=run.config().architecture.shape_name,
            parameters_non_embedding=parameters(run.config().architecture).totals()["parameters_non_embedding"],
            tokens=run.config().tokens,
            seed=run.config().seed,
            spent_flops=1e9,
            used=place < 3,
        )
        for place, run in enumerate(folder.runs()[:4])
    ]
    halves = ((1, None), (2, 0.04), (4, 0.02))
    looks = [GoalLook(runs=count, spent_flops=count * 1e9, half_width=half) for count, half in halves]
    return GoalPath(
        of="the forecast, relative",
        wanted=0.01,
        spend_flops=1e10,
        state="open",
        sentence="The loss is known to ± 2%",
        looks=tuple(looks),
        runs=tuple(ended),
        target_parameters=10**6,
        target_tokens=10**7,
    )


def row(step: int) -> str:
    """A row of the live run."""
    return json.dumps({"trainer/step": step, "trainer/tokens": 1024 * step, "train/loss": 8 - step}) + "\n"


def test_the_table_of_sweeps_sorts_and_filters_and_the_address_holds_how(shown: Shown) -> None:
    shown.open()
    assert set(shown.column(0)) == {"made_up", "going", EVIL}
    assert "Width lowers loss more at equal parameters." in shown.words
    shown.find("#sweeps-by-done").click()
    shown.wait()
    assert shown.column(0)[-1] == "made_up"
    assert shown.find("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    shown.find("#filter").send_keys("done>5")
    shown.wait(lambda: shown.column(0) == ["made_up"])
    assert shown.page.execute_script("return document.activeElement.id") == "filter", "the focus stays while one types"
    assert shown.asked == {"sweeps-sort": "done~up", "filter": "done>5"}
    shown.page.refresh()
    shown.wait()
    assert shown.column(0) == ["made_up"]
    shown.find("tbody a").click()
    shown.wait(lambda: shown.asked.get("sweep") == "made_up")
    shown.page.back()
    shown.wait(lambda: shown.column(0) == ["made_up"])


def test_a_live_sweep_shows_its_training_loss_and_follows_it(shown: Shown) -> None:
    shown.open(page="sweep", sweep="going")
    assert shown.find("#metric").get_attribute("value") == "train/loss"
    assert "1,024" not in shown.words
    with shown.live.metrics_file.open("a") as metrics:
        metrics.writelines(map(row, range(2, 6)))
    shown.wait(lambda: "5.12k" in shown.words)
    assert shown.count("main svg [data-mark=line] path") == 1
    assert "Updated at" in shown.words


def test_curves_are_of_every_metric_with_bands_over_seeds_smoothing_and_what_the_table_leaves(shown: Shown) -> None:
    shown.open(page="sweep", sweep="made_up", tab="runs")
    paths = "svg[role=img] [data-mark=line] path"
    cells, bands = shown.count(paths), shown.count("svg [data-mark=area] path")
    assert (cells, bands) == (30, 10), "three rates of ten cells; two seeds at the best rate"
    shown.pick("group", "each run")
    assert shown.count(paths) == 40
    shown.pick("metric", "training loss (nats per masked token; with a teacher, what is learnt)")
    assert shown.asked["metric"] == "train/loss"
    before = shown.find(paths).get_attribute("d")
    shown.choose("smooth", "0.9")
    shown.wait(lambda: shown.find(paths).get_attribute("d") != before)
    assert shown.asked["smooth"] == "0.9"
    shown.find("#filter").send_keys("depth=2 seed=1")
    shown.wait(lambda: shown.count(paths) == 8)
    assert shown.count("#main table tbody tr") == 4, "each with what was measured behind it, being few"
    shown.find("tbody input[type=checkbox]").click()
    shown.wait(lambda: shown.count(paths) == 2)
    shown.open(page="sweep", sweep="made_up", tab="figures")
    shown.wait(lambda: shown.page.execute_script("return document.querySelector('.gallery img').naturalWidth") == 90)


def test_a_run_stands_beside_another(shown: Shown) -> None:
    shown.open(page="sweep", sweep="made_up", tab="runs")
    shown.find("tbody a").click()
    shown.wait(lambda: shown.asked["page"] == "run")
    keys = shown.column(0)
    assert {"architecture.depth", "recipe.learning_rate", "data.corpus"} <= set(keys)
    shown.page.execute_script(
        "const menu = document.getElementById('other'); menu.selectedIndex = 1; menu.dispatchEvent(new Event('change'))"
    )
    shown.wait(lambda: len(shown.column(0)) < len(keys))
    assert "data.corpus" not in shown.column(0), "only what differs"
    assert shown.count("svg[role=img] [data-mark=line] path") == 2


def test_the_scaling_plot_has_points_a_law_and_a_map(shown: Shown) -> None:
    shown.open(page="scaling", sweeps="made_up")
    points = "svg[role=img] [data-mark=dot] circle"
    assert shown.count(points) == 20, "those that laws use: two seeds at the best rate of ten cells"
    shown.find("#used").click()
    shown.wait(lambda: shown.count(points) == 40)
    shown.page.execute_script(
        "const menu = document.getElementById('law'); menu.value = 'flops'; menu.dispatchEvent(new Event('change'))"
    )
    shown.wait(lambda: "C·F^−gamma" in shown.words)
    assert "choose one of them across to see its curve" in shown.words
    shown.pick("x", "training FLOPs (train_flops_6n: 6·parameters·tokens)")
    shown.wait(lambda: shown.count("svg [data-mark=line] path") == 2)  # within the budgets and, dotted, beyond
    assert shown.asked["x"] == "train_flops_6n"
    shown.page.execute_script(
        "const at = document.getElementById('at'); at.value = 'flops=1e18'; at.dispatchEvent(new Event('input'))"
    )
    shown.wait(lambda: "at 1.0e18 flops, by the law" in shown.words)
    assert shown.asked["at"] == "flops=1e18"
    assert shown.count("svg[role=img] [data-mark=dot] path") == 1, "the star"
    assert "--" not in shown.words
    assert shown.count("svg [data-mark=cell] rect") == 5, "depth and width"
    shown.open(page="knobs", sweep="made_up")
    assert shown.count("svg [data-mark=bar] rect") >= 3, "importances"
    assert shown.count("svg [data-mark=line] path") == 40, "parallel axes"


def test_points_of_no_value_seeds_and_seconds_are_drawn_as_what_they_are(shown: Shown) -> None:
    """Without a value of a knob a run has a dot, too; a mean is over seeds alone; fewer seconds are better."""
    tuned = {knob: {"low": 1e-3, "high": 1e-1, "trials": 3} for knob in ("recipe.learning_rate", "recipe.weight_decay")}
    folder = sweep_folder(shown.live.path.parents[2] / "mixed", SWEEP | {"tune": tuned})
    try:
        for number, (width, text, decay, seed) in enumerate(product((64, 128), (2e5, 4e5, None), (0.01, 0.1), (0, 1)), 1):
            run = folder.run(add_run(folder, run_config(1, width, 1e-3, seed, weight_decay=decay, unique_tokens=text)))
            record = run.record()
            assert record is not None
            run.record_file.write_text(record.model_copy(update={"wall_seconds": float(number)}).model_dump_json())
        points, asked = (
            "[aria-label='scaling plot'] [data-mark=dot] circle",
            {"page": "scaling", "sweeps": "mixed", "used": "0"},
        )
        shown.open(**asked, colour="recipe.unique_tokens")
        legend = shown.find("[aria-label='scaling plot'] [class*=swatches]").text
        assert shown.count(points) == 24
        assert shown.count(f"{points}[fill='currentColor']") == 0
        assert legend.split() == ["(none)", "200k", "400k"]
        shown.open(**asked, means="1")
        assert shown.count(points) == 12, "two widths, three texts, two weight decays"
        assert "mean of 2 seeds" in shown.tip(points)
        cells = "[aria-label='depth and width'] [data-mark=cell] rect"
        shown.open(**asked, y="wall_seconds")
        assert "The lowest value of each depth and width over all budgets." in shown.words
        tip = shown.tip(cells)
        assert "wall time (s; of a branch, that of its own part): 1 lowest of 12" in tip
        assert "mean" not in tip
        shown.open(**asked, y="wall_seconds", budget="999424")
        assert "mean of 12" in shown.tip(cells)
    finally:
        shutil.rmtree(folder.path)


def test_a_goal_shows_its_intervals_down_to_what_is_wanted_and_where_the_runs_are(shown: Shown) -> None:
    shown.open(page="sweep", sweep="made_up", tab="goal")
    assert shown.words.count("The loss is known to ± 2%.") == 1
    assert shown.count("[aria-label='interval against what was spent'] [data-mark=dot] circle") == 2, "looks with an interval"
    goal = shown.find("[aria-label='interval against what was spent'] [data-mark=rule] line")
    drawn = shown.find("[aria-label='interval against what was spent'] svg[role=img]").rect
    assert drawn["y"] < goal.rect["y"] < drawn["y"] + drawn["height"] - 40, "above the axis"
    assert "goal: ± 1%" in shown.words
    assert shown.count("[aria-label='chosen runs'] [data-mark=dot] path") >= 1, "the star where the loss is wanted"
    shown.sized(390, 844, phone=True)
    try:
        shown.open(page="sweep", sweep="made_up", tab="goal")
        assert "2" in shown.find("[aria-label='interval against what was spent'] [data-mark='y-axis tick label']").text.split()
    finally:
        shown.sized(1400, 1200)


def test_what_if_counts_exactly_whatever_moves_the_controls(shown: Shown) -> None:
    from selenium.webdriver import Keys

    shown.open(page="what-if")
    base = named("bert-base")

    def counts(**sizes: Any) -> list[str]:
        counted = parameters(base.model_copy(update=sizes)).totals()
        return [f"{count:,}" for count in counted.values()]

    def displayed() -> list[str]:
        return [fact.text for fact in shown.page.find_elements("css selector", ".fact b")][:3]

    assert displayed() == counts()
    shown.find("#depth-slider").send_keys(Keys.ARROW_RIGHT)
    shown.wait(lambda: displayed() == counts(depth=13))
    assert shown.find("#depth").get_attribute("value") == shown.asked["depth"] == "13"
    number = shown.find("#width")
    number.clear()
    number.send_keys("96")
    shown.wait(lambda: displayed() == counts(depth=13, width=96, heads=12, ffn=384))
    assert shown.find("#ffn").get_attribute("value") == "384", "the FFN follows the width"
    shown.choose("activation", "swiglu")
    shown.wait(lambda: displayed() == counts(depth=13, width=96, heads=12, ffn=384, activation="swiglu"))
    shown.find("#sequence_length").send_keys("0")
    shown.wait(lambda: "sequence length: is 1,280; it is from 1 to the number of positions, 512" in shown.words)
    shown.open(
        page="what-if",
        sweep="made_up",
        depth="1",
        width="92",
        heads="2",
        ffn="368",
        positions="64",
        vocabulary="2048",
        tokens="2M",
    )
    shown.wait(lambda: "95% interval of the law" in shown.words)
    assert "Score on" in shown.words
    shown.wait(lambda: "matthews on cola (95% interval of both laws" in shown.words)
    before = shown.find(SCORE).text
    shown.find("#depth-slider").send_keys(Keys.ARROW_RIGHT)
    shown.wait(lambda: shown.find(SCORE).text != before)
    shown.pick("task", "sst2")
    shown.wait(lambda: "accuracy on sst2 (95% interval of both laws" in shown.words)
    assert shown.asked["task"] == "sst2"
    assert "--" not in shown.words


def test_the_first_law_of_every_sweep_is_fitted_before_one_is_chosen_under_what_if(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = shown.live.path.parents[2]
    made = keys_made(lambda library: library.root == results, monkeypatch)
    with served_here(results) as address:
        shown.page.get(f"{address}&page=what-if")
        shown.wait()
        until(lambda: any(key[0] == "score" for key in made))
        first, *_ = laws_in(made)
        shown.choose("sweep", "made_up")
        shown.wait(lambda: "95% interval of the law" in shown.words)
        assert shown.find("#law").get_attribute("value") == first
        assert laws_in(made).count(first) == 1, "the choice waits for no fit"


@contextmanager
def served_here(results: Path) -> Iterator[str]:
    """Where this process serves the dashboard of some results, with its token."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(application(results, "secret"), log_level="critical"))
        serving = Thread(target=server.run, kwargs={"sockets": [listening]})
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/?access_token=secret"
        finally:
            server.should_exit = True
            serving.join()


SCORE = "[aria-labelledby=predicted-title] .fact:nth-child(2) b"
"""The predicted score."""

PAGES: tuple[dict[str, str], ...] = (
    {},
    {"page": "sweep", "sweep": EVIL, "tab": "answer"},
    {"page": "sweep", "sweep": EVIL, "tab": "runs"},
    {"page": "sweep", "sweep": EVIL, "tab": "file"},
    {"page": "scaling", "sweeps": EVIL},
    {"page": "knobs", "sweep": EVIL},
    {"page": "what-if", "sweep": EVIL},
    {"page": EVIL, "sweep": EVIL, "filter": EVIL},
    {"page": "sweep", "sweep": f"no {EVIL}"},
)


def test_names_texts_and_answers_of_a_stranger_stay_text_on_every_page(shown: Shown) -> None:
    (run,) = (path.name for path in (shown.live.path.parents[2] / EVIL / "runs").iterdir())
    for asked in (*PAGES, {"page": "run", "sweep": EVIL, "run": run}):
        shown.open(**asked)
        assert EVIL in shown.words, asked
        assert shown.count("img, iframe, main script, main [onerror], main [onload]") == 0, asked
        assert not {"\u202e", "\x1b"} & set(shown.words), asked
    loaded = shown.page.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
    assert loaded
    assert [name for name in loaded if not name.startswith(shown.address)] == []
    messages = [entry["message"] for entry in shown.page.get_log("browser")]
    refused = "status of 4"  # what the server refuses in words
    assert [one for one in messages if refused not in one] == [], "nothing fails, and no policy has anything to block"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_can_be_read_on_a_phone_and_named_by_a_screen_reader(shown: Shown, theme: str, tmp_path: Path) -> None:
    run = min(path.name for path in (shown.live.path.parents[2] / "made_up" / "runs").iterdir())
    shown.sized(390, 844, phone=True)
    try:
        for asked in (
            {},
            *({"page": "sweep", "sweep": "made_up", "tab": tab} for tab in TABS),
            {"page": "run", "sweep": "made_up", "run": run},
            {"page": "scaling", "sweeps": "made_up"},
            {"page": "knobs", "sweep": "made_up"},
            {"page": "what-if"},
        ):
            shown.open(**asked, theme=theme)
            width = shown.page.execute_script("return document.documentElement.scrollWidth")
            assert width <= 390, f"{asked} is {width} wide"
            for wrong in (CONTRASTS, CUT):
                assert shown.page.execute_script(wrong) == [], asked
            assert harmful(shown.page) == [], asked
            assert shown.count("h1:not(.answer h1)") == 1
            assert shown.page.save_screenshot(
                str(tmp_path / f"{theme}-{asked.get('page', 'sweeps')}-{asked.get('tab', '')}.png")
            )
        ground = shown.page.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[theme]
    finally:
        shown.sized(1400, 1200)


def test_nothing_on_a_wide_screen_keeps_a_reader_out(shown: Shown) -> None:
    run, other, *_ = sorted(path.name for path in (shown.live.path.parents[2] / "made_up" / "runs").iterdir())
    for asked in (
        {},
        *({"page": "sweep", "sweep": "made_up", "tab": tab} for tab in TABS),
        {"page": "run", "sweep": "made_up", "run": run, "other": other},
        {"page": "scaling", "sweeps": "made_up", "law": "chinchilla", "at": "N=2M, D=20M"},
        {"page": "scaling", "sweeps": "made_up", "law": "chinchilla", "at": "nonsense"},
        {"page": "knobs", "sweep": "made_up"},
        {"page": "what-if", "sweep": "made_up"},
    ):
        shown.open(**asked)
        assert harmful(shown.page) == [], asked


def test_the_terminal_holds_the_address_and_nothing_else(shown: Shown) -> None:
    shown.open()
    assert shown.log.read_text().count("\n") == 1
    assert "Traceback" not in shown.log.read_text()


def test_a_sweep_whose_text_has_changed_says_so_there_and_among_all(shown: Shown, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("Other words than the run has read.")
    folder = sweep_folder(shown.live.path.parents[2] / "moved", SWEEP | {"data": SWEEP["data"] | {"corpus": str(text)}})
    try:
        add_run(folder, run_config(1, 64).model_copy(update={"data": folder.sweep().data}))
        for asked in ({}, {"page": "sweep", "sweep": "moved"}):
            shown.open(**asked)
            shown.wait(lambda: f"1 run of earlier launches read another text than {text} is now." in shown.words)
            assert shown.page.execute_script(CONTRASTS) == []
    finally:
        shutil.rmtree(folder.path)
