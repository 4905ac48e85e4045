"""How soon a browser shows a dashboard of many packed runs, started as a user starts it, and answers a click."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

from rich.console import Console

from study.base.errors import InputError
from study.benching.overheads import CODE, SLOTS, InstantExecutor, coordinator_of, simulated_record, simulated_values
from study.benching.own_processes import failures_reported, in_own_process
from study.benching.results import Report, measurement
from study.running.display import Display
from study.running.run_proposer import RunJob
from study.store.packing import pack
from study.store.sweep_folder import SweepFolder

RUNS = (800, 10_000)
"""The runs of the sweeps."""

ROWS = 20
"""The logged rows of a run."""

OPENINGS = 3
"""The servers that are started on a sweep, one after another, each of which has read nothing yet."""

READING_SECONDS = 2.0
"""How long a reader looks at a page before choosing on it."""

TEXT_SECONDS, TABLE_SECONDS, CLICK_SECONDS = 1.0, 5.0, 0.5
"""The targets for the first text, for all runs of the smaller sweep, and for what answers a click."""

_PATIENCE = 300.0
_TEXT = "return location.protocol === 'http:' && !!document.body?.innerText.trim()"
_DRAWN = "return !!document.querySelector('main table tbody tr') && !document.querySelector('[aria-busy]')"
_SORTED = """
const done = arguments[0], began = performance.now();
document.getElementById("table-by-learning_rate").click();
requestAnimationFrame(() => setTimeout(() => done((performance.now() - began) / 1000)));
"""
_FORM = "return !!document.getElementById('sweep') && !document.querySelector('[aria-busy]')"
_PREDICTED = """
const [sweep, done] = arguments, menu = document.getElementById("sweep"), began = performance.now();
menu.value = sweep;
menu.dispatchEvent(new Event("change"));
const look = () => document.querySelector("[aria-labelledby=predicted-title]") && !document.querySelector("[aria-busy]")
    ? done((performance.now() - began) / 1000) : requestAnimationFrame(look);
look();
"""


class LoggingExecutor(InstantExecutor):
    """Ends runs at once, each with the rows of a curve."""

    def end(self, job: RunJob) -> None:
        """File a run's rows and record."""
        loss = simulated_record(job.config, job.key).loss_nats or 0.0
        rows = [
            {
                "trainer/step": job.config.steps * row // ROWS,
                "trainer/tokens": job.config.tokens * row // ROWS,
                "train/loss": loss + 1 / row,
                "val/loss": loss + 1 / row - 1 / ROWS,
            }
            for row in range(1, ROWS + 1)
        ]
        job.folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        super().end(job)


def packed_sweep(path: Path, runs: int) -> int:
    """Make a finished sweep of about so many runs in a folder, pack it, and return how many it has."""
    folder, values = SweepFolder(path), simulated_values(runs)
    coordinator, executor = coordinator_of(folder, values), LoggingExecutor(SLOTS)
    display = Display(Console(quiet=True), coordinator.proposer)
    with display.bars:
        coordinator.run(executor, display.refresh)
    executor.kill()
    folder.write_ledger()
    pack(folder)
    return len(coordinator.progress.ended)


@dataclass(frozen=True)
class Opening:
    """Seconds from the command to its address, from there to the first text, to all runs, and from choices to their answers.

    A choice is `click`, another order of the table, or `predicted`, of the sweep under What if for its predicted loss.
    """

    address: float
    text: float
    runs: float
    click: float
    predicted: float


@contextmanager
def _address_of(results: Path) -> Iterator[str]:
    """Start the dashboard of a results folder as a command, and yield its address."""
    command = [sys.executable, "-c", CODE, "dashboard", str(results), "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            yield next(match[0] for line in server.stdout if (match := re.search(r"http://\S+", line)))
        finally:
            server.terminate()


@contextmanager
def _browser() -> Iterator[Any]:
    """Start a Chromium that nobody sees and that returns before a page is loaded."""
    driver = shutil.which("chromedriver")
    try:
        from selenium.webdriver import Chrome, ChromeOptions, ChromeService
    except ModuleNotFoundError:
        driver = None
    if driver is None:
        raise InputError.at("--only dashboard", "needs selenium, and Chromium with chromedriver: pip install selenium")
    options = ChromeOptions()
    options.page_load_strategy = "none"
    for option in ("--headless", "--no-sandbox", "--window-size=1400,1200"):
        options.add_argument(option)
    with Chrome(options, ChromeService(driver)) as page:
        page.set_script_timeout(_PATIENCE)
        yield page


def open_dashboard(results: Path, sweep: str, page: Any) -> Opening:
    """Start a dashboard, open it and the runs of a sweep in a browser, sort its table, and choose the sweep under What if."""
    page.get("about:blank")
    started = perf_counter()
    with _address_of(results) as address:
        served = perf_counter()
        page.get(address)
        text = _seconds_until(lambda: page.execute_script(_TEXT), served)
        _seconds_until(lambda: page.execute_script(_DRAWN), served)
        page.get("about:blank")
        asked = perf_counter()
        page.get(f"{address.split('?')[0]}?page=sweep&sweep={sweep}&tab=runs")
        runs = _seconds_until(lambda: page.execute_script(f"{_TEXT} && (() => {{ {_DRAWN} }})()"), asked)
        click = float(page.execute_async_script(_SORTED))
        page.get(f"{address.split('?')[0]}?page=what-if")
        _seconds_until(lambda: page.execute_script(_FORM), perf_counter())
        sleep(READING_SECONDS)
        return Opening(served - started, text, runs, click, float(page.execute_async_script(_PREDICTED, sweep)))


def _seconds_until(condition: Callable[[], bool], began: float) -> float:
    while not condition():
        if perf_counter() - began > _PATIENCE:
            raise TimeoutError(f"the page did not show it within {_PATIENCE:.0f} s")
        sleep(0.01)
    return perf_counter() - began


def rows_of(runs: int, openings: list[Opening]) -> list[dict[str, Any]]:
    """Return the medians of openings as rows; the target of the table is that of the smaller sweep."""
    middle = Opening(**{each.name: median(getattr(one, each.name) for one in openings) for each in fields(Opening)})
    of, most = f"{runs:,} packed runs", TABLE_SECONDS if runs <= RUNS[0] else None
    return [
        measurement(f"{of}: from study dashboard to its address", middle.address, "s"),
        measurement(f"{of}: the first text", middle.text, "s", at_most=TEXT_SECONDS),
        measurement(f"{of}: their table and curves", middle.runs, "s", at_most=most),
        measurement(f"{of}: their table sorted anew", middle.click, "s", at_most=CLICK_SECONDS),
        measurement(f"{of}: their predicted loss under What if", middle.predicted, "s", at_most=CLICK_SECONDS),
    ]


def measure_dashboard(report: Report) -> None:
    """Open the dashboards of both sweeps several times, and report the medians."""
    with failures_reported("opening the dashboard", report), _browser() as page:
        for runs in RUNS:
            with tempfile.TemporaryDirectory(prefix="study-bench-") as folder:
                made = in_own_process(packed_sweep, Path(folder) / "simulated", runs)
                openings = [open_dashboard(Path(folder), "simulated", page) for _ in range(OPENINGS)]
                for row in rows_of(made, openings):
                    report(row)
