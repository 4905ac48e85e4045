"""What the notebooks of analysis/ begin with and how they show text: marimo is imported inside, for those who have it."""

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
"""A fold of an answer, the only HTML that is let through."""

MOST_UNBROKEN = 40
"""Letters of a cell of a table that are kept on one line."""


def opened(results: Path, sweep: str, read: Callable[[SweepFolder], Evidence] = gather) -> Evidence:
    """The evidence of a notebook's sweep: from `--folder`, else $STUDY_RESULTS, else `folder_of`.

    Where it cannot be read, a script ends with 2 and the problems; a browser shows these instead of what needs it.
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
    """The folder that is given, else a sweep's under `results`, else that under its `reference`.

    Raises InputError for one that holds sweeps and is none, with their names.
    """
    places = (results / sweep, results / "reference" / sweep)
    folder = SweepFolder(given or next((place for place in places if is_there(place)), places[0]))
    if not is_there(folder.sweep_file) and folder.path.is_dir() and any(folder.path.glob("[!.]*/sweep.yaml")):
        raise InputError.at(
            str(folder.path), f"holds sweeps and is none; give one of them: {', '.join(sweeps_in(folder.path))}"
        )
    return folder


def gather_ended(folder: SweepFolder) -> Evidence:
    """The evidence of a sweep with ended runs; raises InputError without any."""
    evidence = gather(folder)
    if evidence.ledger.empty:
        raise InputError.at(str(folder.path), "no run has ended yet; `study status` says where they are")
    return evidence


def gather_scored(folder: SweepFolder) -> Evidence:
    """The evidence of a sweep whose runs were scored; raises InputError for another."""
    evidence = gather(folder)
    if evidence.downstream is None:
        raise InputError.at(str(folder.path), "has no downstream scores of runs that can be used; `study score` makes some")
    return evidence


def refusal(error: InputError, kind: Literal["warn", "danger"] = "warn") -> Html:
    """The problems of an error, one below the other."""
    import marimo as mo

    return mo.callout(prose("\n".join(map(str, error.problems))), kind=kind)


def scrolling_tables(text: str) -> Html:
    """Markdown in whose tables no short cell breaks, as of a shape or an interval: they scroll sideways where they are wide.

    The text may be a stranger's: HTML but for folds is shown as text, links lead to pages alone, and only those images are
    drawn that are figures within the text, as `data:image/svg+xml`, whose scripts no browser runs.
    """
    import marimo as mo

    def roomy(cell: re.Match[str]) -> str:
        style = "white-space: nowrap" if len(html.unescape(cell["text"])) <= MOST_UNBROKEN else "min-width: 16em"
        return f'<td style="{style}">{cell["text"]}</td>'

    content = re.sub("<td>(?P<text>.*?)</td>", roomy, _with_folds(text))
    return mo.Html(f'<span class="markdown prose dark:prose-invert contents">{content}</span>')


def _with_folds(text: str) -> str:
    """Markdown as HTML, in which the folds of an answer open at a click."""
    parser, done, parts = _markdown(), 0, []
    for fold in _FOLD.finditer(text):
        summary = f"<summary>{html.escape(fold['title'])}</summary>"
        parts += [parser.render(text[done : fold.start()]), f"<details>{summary}{parser.render(fold['text'])}</details>"]
        done = fold.end()
    return "".join([*parts, parser.render(text[done:])])


_FIGURE = "data:image/svg+xml;base64,"


def _markdown() -> MarkdownIt:
    """The parser of `scrolling_tables`; the one of `marimo.md` lets HTML and attributes through."""
    from markdown_it import MarkdownIt
    from markdown_it.common.normalize_url import validateLink

    def image(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
        drawn = str(tokens[index].attrs["src"]).startswith(_FIGURE)
        return str(renderer.image(tokens, index, options, env)) if drawn else html.escape(tokens[index].content)

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.validateLink = lambda url: url.startswith(_FIGURE) or validateLink(url)  # type: ignore[method-assign]
    parser.add_render_rule("image", image)
    return parser


def plain(text: str) -> Html:
    """Preformatted text, whose tables scroll sideways where they are wider than the page."""
    return _as_it_stands(text, "pre")


def prose(text: str) -> Html:
    """Preformatted text whose long lines wrap: for sentences and narrow tables."""
    return _as_it_stands(text, "pre-wrap")


def _as_it_stands(text: str, white_space: str) -> Html:
    import marimo as mo

    style = f"white-space: {white_space}; overflow-x: auto"
    return mo.Html(f'<pre class="text-xs" style="{style}">{html.escape(text)}</pre>')
