"""The start and text display of the analysis/ notebooks; marimo, an extra, is imported inside functions."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from study.base.durable_files import is_there
from study.base.errors import InputError
from study.evidence.evidence import Evidence, gather
from study.report.markdown_html import html_of
from study.store.sweep_folder import SweepFolder, sweeps_in

if TYPE_CHECKING:
    from marimo import Html


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
    """Markdown that may be untrusted (study.report.markdown_html), whose wide tables scroll sideways."""
    import marimo as mo

    return mo.Html(f'<span class="markdown prose dark:prose-invert contents">{html_of(text)}</span>')


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
