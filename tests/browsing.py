"""Notebooks and the dashboard as a browser shows them: a server for each, a Chromium, and what it has on its page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until

DRIVER = shutil.which("chromedriver")
NO_DRIVER = "no Chromium with its driver here: apt-get install chromium-driver"
assert DRIVER or "REQUIRE_BROWSER" not in os.environ, NO_DRIVER
needs_browser = pytest.mark.skipif(DRIVER is None, reason=NO_DRIVER)


@contextmanager
def served(results: Path, log: Path, *command: str | Path) -> Iterator[str]:
    """Where Python serves a page by a command, with its token."""
    environment = os.environ | {"STUDY_RESULTS": str(results)}
    with log.open("w") as out, subprocess.Popen([sys.executable, *command], stdout=out, stderr=out, env=environment) as server:
        try:
            until(lambda: "access_token=" in log.read_text(), 60)
            (url,) = re.findall(r"http://\S+access_token=\S+", log.read_text())
            yield url
        finally:
            server.terminate()


@contextmanager
def browser(*more: str) -> Iterator[Any]:
    """A Chromium that nobody sees, with more options."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    for option in ("--headless", "--no-sandbox", "--window-size=1400,1200", *more):
        options.add_argument(option)
    with Chrome(options, ChromeService(DRIVER)) as page:
        yield page


PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}

AXE = """
const done = arguments[arguments.length - 1], harmful = ["critical", "serious"];
const described = (rule, node) => `${rule}: ${node.html.slice(0, 200)} at ${node.target}: ${node.failureSummary}`;
axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => done(violations
    .filter(one => harmful.includes(one.impact)).flatMap(one => one.nodes.map(node => described(one.id, node)))));
"""


def harmful(page: Any) -> list[str]:
    """What axe-core finds critical or serious on a page as it is shown: names, contrasts, roles, what no key reaches."""
    page.set_script_timeout(120)
    page.execute_script((files("axe_playwright_python") / "axe.min.js").read_text())
    return list(page.execute_async_script(AXE))


WORDS = """
const words = node => node.nodeType === 3 ? node.data : node.matches?.("style, script") ? "" :
    [...(node.shadowRoot?.childNodes ?? []), ...node.childNodes].map(words).join(" ");
return words(document.body);
"""
"""All text of the page, with that of its shadow trees."""

_MATCHED = """
const within = node => [node, ...[...(node.shadowRoot?.children ?? []), ...node.children].flatMap(within)];
const elements = within(document.body).filter(node => node.matches(arguments[0]));
"""

ELEMENTS = f"{_MATCHED} return elements;"
"""All elements of the page that a selector matches, with those of its shadow trees."""

LINES = f"""{_MATCHED}
return elements.filter(node => node.checkVisibility()).map(node => {{
    const style = getComputedStyle(node);
    const height = node.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
    return [node.innerText, height / (parseFloat(style.lineHeight) || 1.2 * parseFloat(style.fontSize))];
}});
"""
"""The text of each shown element that a selector matches and how many lines high it is, at one moment: pages draw anew."""
