"""The start and text display of the analysis/ notebooks; marimo, an extra, is imported inside functions."""

from __future__ import annotations

import html
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from study.base.durable_files import is_there
from study.base.errors import InputError
from study.evidence.evidence import Evidence, gather
from study.store.sweep_folder import SweepFolder, sweeps_in

if TYPE_CHECKING:
    from marimo import Html
    from markdown_it import MarkdownIt


_FOLD = re.compile(r'<details markdown="1">\n<summary>(?P<title>.*?)</summary>\n\n(?P<text>.*?)\n\n</details>', re.DOTALL)
"""A fold of an answer, the only HTML allowed."""

MOST_UNBROKEN = 40
"""Letters of a table cell kept on one line."""


def opened(results: Path, sweep: str, read: Callable[[SweepFolder], Evidence] = gather) -> Evidence:
    """The evidence of a notebook's sweep: from `--folder`, else $STUDY_RESULTS, else `folder_of`.

    If it cannot be read, a script ends with status 2 and the problems; a browser shows them in place of the cells that need it.
    """
    import marimo as mo

    given = mo.cli_args().get("folder") or os.environ.get("STUDY_RESULTS")
    try:
        return read(folder_of(results, sweep, None if given is None else Path(str(given))))
    except InputError as error:
        if mo.app_meta().mode == "script":
            sys.stderr.writelines(f"error: {problem}\n" for problem in error.problems)
            sys.exit(2)
        mo.stop(True, refusal(error, "danger"))
        raise


def folder_of(results: Path, sweep: str, given: Path | None) -> SweepFolder:
    """The given folder, else a sweep's under `results`, else that under its `reference`.

    Raises InputError for a folder of sweeps, with their names.
    """
    folders = (results / sweep, results / "reference" / sweep)
    folder = SweepFolder(given or next((path for path in folders if is_there(path)), folders[0]))
    if not is_there(folder.sweep_file) and folder.path.is_dir() and any(folder.path.glob("[!.]*/sweep.yaml")):
        raise InputError.at(
            str(folder.path), f"holds sweeps but is not one; give one of them: {', '.join(sweeps_in(folder.path))}"
        )
    return folder


def gather_ended(folder: SweepFolder) -> Evidence:
    """The evidence of a sweep with ended runs; raises InputError without any."""
    evidence = gather(folder)
    if evidence.ledger.empty:
        raise InputError.at(str(folder.path), "no run has ended yet; see `study status`")
    return evidence


def gather_scored(folder: SweepFolder) -> Evidence:
    """The evidence of a sweep with scored runs; raises InputError without any."""
    evidence = gather(folder)
    if evidence.downstream is None:
        raise InputError.at(str(folder.path), "has no downstream scores of usable runs; run `study score`")
    return evidence


def refusal(error: InputError, kind: Literal["warn", "danger"] = "warn") -> Html:
    """An error's problems, one below the other."""
    import marimo as mo

    return mo.callout(prose("\n".join(map(str, error.problems))), kind=kind)


def scrolling_tables(text: str) -> Html:
    """Markdown whose wide tables scroll sideways (`answer_html`)."""
    import marimo as mo

    return mo.Html(f'<span class="markdown prose dark:prose-invert contents">{answer_html(text)}</span>')


def answer_html(text: str, figures: str = "") -> str:
    """Markdown as HTML, with no line breaks in short table cells, such as a shape or an interval.

    The text may be untrusted: HTML except folds is shown as text, links lead to pages alone, and images are drawn only from
    embedded `data:image/svg+xml`, whose scripts no browser runs, and as `figures/<name>.svg` from the address `figures`.
    """

    def roomy(cell: re.Match[str]) -> str:
        style = "white-space: nowrap" if len(html.unescape(cell["text"])) <= MOST_UNBROKEN else "min-width: 16em"
        return f'<td style="{style}">{cell["text"]}</td>'

    return re.sub("<td>(?P<text>.*?)</td>", roomy, _with_folds(text, figures))


def _with_folds(text: str, figures: str) -> str:
    """Markdown as HTML, with folds that open at a click."""
    parser, done, parts = _markdown(figures), 0, []
    for fold in _FOLD.finditer(text):
        summary = f"<summary>{html.escape(fold['title'])}</summary>"
        parts += [parser.render(text[done : fold.start()]), f"<details>{summary}{parser.render(fold['text'])}</details>"]
        done = fold.end()
    return "".join([*parts, parser.render(text[done:])])


_FIGURE = "data:image/svg+xml;base64,"


def _markdown(figures: str) -> MarkdownIt:
    """The parser of `answer_html`; `marimo.md` would allow HTML and attributes."""
    from markdown_it import MarkdownIt
    from markdown_it.common.normalize_url import validateLink

    def image(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
        token = tokens[index]
        if figures and re.fullmatch(r"figures/\w+\.svg", str(token.attrs["src"])):
            token.attrSet("src", f"{figures}/{str(token.attrs['src']).removeprefix('figures/')}")
            token.attrSet("loading", "lazy")
            return str(renderer.image(tokens, index, options, env))
        drawn = str(token.attrs["src"]).startswith(_FIGURE)
        return str(renderer.image(tokens, index, options, env)) if drawn else html.escape(token.content)

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.validateLink = lambda url: url.startswith(_FIGURE) or validateLink(url)  # type: ignore[method-assign]
    parser.add_render_rule("image", image)
    return parser


def plain(text: str) -> Html:
    """Preformatted text; wide tables scroll sideways."""
    return _as_it_stands(text, "pre")


def prose(text: str) -> Html:
    """Preformatted text with long lines wrapped: for sentences and narrow tables."""
    return _as_it_stands(text, "pre-wrap")


def _as_it_stands(text: str, white_space: str) -> Html:
    import marimo as mo

    style = f"white-space: {white_space}; overflow-x: auto"
    return mo.Html(f'<pre class="text-xs" style="{style}">{html.escape(text)}</pre>')
