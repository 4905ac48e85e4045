"""The answer of a sweep as one page without network: figures whose points show their values, and all tables."""

from __future__ import annotations

import base64
import hashlib
import html
import platform
import re
import shlex
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from study.base.durable_files import own_content, write_atomically
from study.base.quantities import plural
from study.base.text import file_name, printable, visible
from study.plotting.hover import inline_svg
from study.report.figures import FIGURES
from study.report.markdown_html import html_of
from study.store.sweep_folder import SweepFolder

if TYPE_CHECKING:
    from study.evidence.evidence import Evidence

MOST_BYTES = 4_500_000
"""Figures that would make a page larger are left out, and named."""

MOST_ROWS = 1_000
"""The most rows of a table on a page."""

_HERE = Path(__file__).parent
_PAPER = {"light": "#ffffff", "dark": "#16181d"}
_INK = {"light": "#262626", "dark": "#e4e6e9"}
_CONTRAST = 3.0
"""The least contrast of a line to its paper (WCAG 2.2, 1.4.11)."""

_PACKAGES = ("scaling-study", "numpy", "pandas", "scipy", "matplotlib")
_ENVIRONMENT = {
    "device": "device",
    "processor": "processor",
    "threads": "threads",
    "precision": "precision",
    "kernels": "kernels",
    "python": "Python",
    "torch": "torch",
    "lightning": "Lightning",
    "study": "scaling-study",
}


def write_page(evidence: Evidence, answer: str, figures: Mapping[str, Figure], file: Path) -> None:
    """Write the page: the answer with its figures inline, then how to reproduce it.

    `answer` is its Markdown. `figures` holds the drawn figures, whose SVG files lie in the folder. Everything from it is
    escaped, and the content policy allows this page's own script alone, and no request.
    """
    folder = evidence.folder
    room = MOST_BYTES - len(_body(answer, lambda _: "").encode())
    drawn: dict[str, str] = {}
    for name, figure in figures.items():
        source = (folder.figures / f"{name}.svg").read_text()
        _, what = FIGURES[name]
        named = f'role="region" aria-label="{_text(what)}"'
        element = f'<span class="figure" tabindex="0" {named}>{inline_svg(figure, source, name, what)}</span>'
        room -= len(element.encode())
        drawn[f"figures/{name}.svg"] = element if room > 0 else f"Left out to keep this page small: figures/{name}.svg"
    page = _framed(evidence.sweep.question, f"<main>{_body(answer, drawn.get)}{_reproduction(evidence)}</main>")
    write_atomically(file, page.encode())


def _body(answer: str, drawn: Callable[[str], str | None]) -> str:
    body = html_of(answer, drawn, opened=("All figures",))
    return re.sub("<table>.*?</table>", _scrolling, body, flags=re.DOTALL)


def _scrolling(table: re.Match[str]) -> str:
    """Return a table that scrolls sideways, with its first MOST_ROWS rows."""
    plain = table[0].replace(' style="white-space: nowrap"', "").replace('style="min-width: 16em"', 'class="long"')
    head, *rows = plain.split("<tr>\n<td")
    shown = "<tr>\n<td".join([head, *rows[:MOST_ROWS]]).removesuffix("</tbody>\n</table>")
    more = f"<p>and {len(rows) - MOST_ROWS:,} more rows: see answer.md.</p>" if len(rows) > MOST_ROWS else ""
    return f'<div class="wide">{shown}</tbody>\n</table></div>{more}'


def _framed(title: str, body: str) -> str:
    script, styles = ((_HERE / name).read_text() for name in ("page.js", "page.css"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" '
        f'content="{policy}">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n<title>{_text(title)}</title>\n'
        f"<style>{_colours(body)}{styles}</style>\n</head>\n<body>\n{body}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _text(words: object) -> str:
    return html.escape(printable(str(words)))


def _colours(body: str) -> str:
    """Return the figures' colours as CSS variables, on white paper and, where dark is preferred, on dark paper."""
    used = sorted(set(re.findall(r"var\(--([0-9a-f]{6})\)", body)))
    light = f"--ink:{_INK['light']};--paper:{_PAPER['light']};" + "".join(f"--{colour}:#{colour};" for colour in used)
    dark = f"--ink:{_INK['dark']};--paper:{_PAPER['dark']};" + "".join(f"--{colour}:{_on_dark(colour)};" for colour in used)
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"


def _on_dark(colour: str) -> str:
    """Return a colour of white paper on dark paper: greys from ink to paper, and others light enough to be seen."""
    red, green, blue = to_rgb(f"#{colour}")
    if red == green == blue:
        return _between(_INK["dark"], _PAPER["dark"], red)
    for lighter in range(10):
        shown = _between(f"#{colour}", "#ffffff", lighter / 10)
        if (_luminance(shown) + 0.05) / (_luminance(_PAPER["dark"]) + 0.05) >= _CONTRAST:
            break
    return shown


def _between(first: str, second: str, share: float) -> str:
    red, green, blue = (one + share * (two - one) for one, two in zip(to_rgb(first), to_rgb(second), strict=True))
    return to_hex((red, green, blue))


def _luminance(colour: str) -> float:
    """Return the relative luminance of an sRGB colour (WCAG 2.2)."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _reproduction(evidence: Evidence) -> str:
    folder = evidence.folder
    name = file_name(folder.name) or "sweep"
    commands = (
        f"study launch {shlex.quote(f'{name}.yaml')}    # the sweep file below; trains what is missing",
        f"study report {shlex.quote(f'results/{name}')} --html    # this page, from the records",
    )
    versions = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    facts = {**_machines(evidence.ledger), "this page": f"Python {platform.python_version()}, {versions}"}
    listed = "".join(f"<dt>{_text(what)}</dt><dd>{_text(words)}</dd>" for what, words in facts.items())
    code = "\n".join(map(html.escape, commands))
    return (
        f'<h2>How to reproduce this</h2><pre tabindex="0">{code}</pre><p>The runs were trained with:</p><dl>{listed}</dl>'
        f'<details><summary>The sweep file</summary><pre tabindex="0">{html.escape(_sweep_file(folder))}</pre></details>'
    )


def _sweep_file(folder: SweepFolder) -> str:
    try:
        return visible((own_content(folder.sweep_file, folder.path) or b"").decode(errors="replace"))
    except OSError as error:
        return f"{folder.sweep_file.name} {error.strerror}"


def _machines(ledger: pd.DataFrame) -> dict[str, str]:
    """Return what the runs were trained with, the most frequent first."""
    known = [name for name in _ENVIRONMENT if f"environment.{name}" in ledger]
    described = {}
    for name in known:
        counts = ledger[f"environment.{name}"].dropna().astype(str).value_counts()
        several = [f"{value} ({plural(count, 'run')})" for value, count in counts.items()]
        described[_ENVIRONMENT[name]] = ", ".join(several) if len(counts) > 1 else "".join(counts.index)
    return {what: words for what, words in described.items() if words}
