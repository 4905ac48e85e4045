"""Untrusted Markdown as HTML: of its own elements only folds are kept, and nothing in it runs or loads anything."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_FOLD = re.compile(r'<details markdown="1">\n<summary>(?P<title>.*?)</summary>\n\n(?P<text>.*?)\n\n</details>', re.DOTALL)
"""A fold of an answer, the only HTML allowed."""

MOST_UNBROKEN = 40
"""Letters of a table cell kept on one line."""

_EMBEDDED = "data:image/svg+xml;base64,"


def html_of(text: str, drawn: Callable[[str], str | None] = lambda _: None, opened: Container[str] = ()) -> str:
    """Markdown as HTML, with folds that open at a click and no line breaks in short cells, such as a shape or an interval.

    HTML except folds is shown as text, and links lead to pages alone. An image is the element that `drawn` gives for its
    source, an `<img>` if that is an embedded `data:image/svg+xml`, whose scripts no browser runs, and else its words. The folds
    of titles in `opened` are open.
    """
    parser, done, parts = _parser(drawn), 0, []
    for fold in _FOLD.finditer(text):
        shown = f"<summary>{html.escape(fold['title'])}</summary>{parser.render(fold['text'])}"
        state = " open" if fold["title"] in opened else ""
        parts += [parser.render(text[done : fold.start()]), f"<details{state}>{shown}</details>"]
        done = fold.end()
    return re.sub("<td>(?P<text>.*?)</td>", _roomy, "".join([*parts, parser.render(text[done:])]))


def _roomy(cell: re.Match[str]) -> str:
    style = "white-space: nowrap" if len(html.unescape(cell["text"])) <= MOST_UNBROKEN else "min-width: 16em"
    return f'<td style="{style}">{cell["text"]}</td>'


def _parser(drawn: Callable[[str], str | None]) -> MarkdownIt:
    """Return the parser; `marimo.md` would allow HTML and attributes."""
    from markdown_it import MarkdownIt
    from markdown_it.common.normalize_url import validateLink

    def image(renderer: Any, tokens: Sequence[Any], index: int, options: Any, env: Any) -> str:
        source = str(tokens[index].attrs["src"])
        if (element := drawn(source)) is not None:
            return element
        embedded = source.startswith(_EMBEDDED)
        return str(renderer.image(tokens, index, options, env)) if embedded else html.escape(tokens[index].content)

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.validateLink = lambda url: url.startswith(_EMBEDDED) or validateLink(url)  # type: ignore[method-assign]
    parser.add_render_rule("image", image)
    return parser
