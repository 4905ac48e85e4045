"""The start, text display and export of the analysis/ notebooks; marimo, an extra, is imported inside functions."""

from __future__ import annotations

import base64
import html
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import pandas as pd

from study.base.durable_files import is_there, write_atomically
from study.base.errors import InputError
from study.base.text import echo, printable
from study.evidence.evidence import Evidence, gather
from study.report.markdown_html import html_of
from study.store.sweep_folder import SweepFolder, sweeps_in

if TYPE_CHECKING:
    from marimo import Html

Read = TypeVar("Read")


def opened(results: Path, sweep: str, read: Callable[[SweepFolder], Read]) -> Read:
    """Return what `read` makes of a notebook's sweep: from `--folder`, else $STUDY_RESULTS, else `folder_of`.

    If it cannot be read, a script ends with status 2 and the problems; a browser shows them in place of the cells that need it.
    """
    import marimo as mo

    given = mo.cli_args().get("folder") or os.environ.get("STUDY_RESULTS")
    try:
        return read(folder_of(results, sweep, None if given is None else Path(str(given))))
    except InputError as error:
        if mo.app_meta().mode == "script":
            for problem in error.problems:
                echo(printable(f"error: {problem}"), err=True)
            sys.exit(2)
        mo.stop(True, refusal(error, "danger"))
        raise


def folder_of(results: Path, sweep: str, given: Path | None) -> SweepFolder:
    """Return the given folder, else a sweep's under `results`, else that under its `reference`.

    Raises InputError for a folder of sweeps, with their names.
    """
    folders = (results / sweep, results / "reference" / sweep)
    folder = SweepFolder(given or next((path for path in folders if is_there(path)), folders[0]))
    if not is_there(folder.sweep_file) and folder.path.is_dir() and any(folder.path.glob("[!.]*/sweep.yaml")):
        raise InputError.at(
            str(folder.path), f"holds sweeps but is not one; give one of them: {', '.join(sweeps_in(folder.path))}"
        )
    return folder


def ledger_in(folder: SweepFolder) -> Path:
    """Return a sweep's table of runs; raises InputError without one, and where it is not that of the records any more."""
    folder.sweep()
    if not is_there(file := folder.ledger_file):
        raise InputError.at(str(file), "does not exist; study report writes it")
    written, current = pd.read_parquet(file), folder.current_ledger()
    if current is not None and not _names_the_same_runs(written, current):
        raise InputError.at(str(file), "is not of the records as they are now; study report writes it again")
    return file


def _names_the_same_runs(written: pd.DataFrame, current: pd.DataFrame) -> bool:
    """Whether two ledgers have the same runs and leave out the same."""
    mine, other = ({*zip(one["run_id"], one["exclusion"].fillna(""), strict=True)} for one in (written, current))
    return mine == other


def gather_ended(folder: SweepFolder) -> Evidence:
    """Return the evidence of a sweep with ended runs; raises InputError without any."""
    evidence = gather(folder)
    if evidence.ledger.empty:
        raise InputError.at(str(folder.path), "no run has ended yet; see `study status`")
    return evidence


def gather_scored(folder: SweepFolder) -> Evidence:
    """Return the evidence of a sweep with scored runs; raises InputError without any."""
    evidence = gather(folder)
    if evidence.downstream is None:
        raise InputError.at(str(folder.path), "has no downstream scores of usable runs; run `study score`")
    return evidence


def refusal(error: InputError, kind: Literal["warn", "danger"] = "warn") -> Html:
    """Return an error's problems, one below the other."""
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


def execute(notebooks: Iterable[Path]) -> None:
    """Execute notebooks, and write each beside itself as `.ipynb` with its outputs, for a forge to show.

    Raises CalledProcessError if one fails.
    """
    for notebook in notebooks:
        target = notebook.with_suffix(".ipynb")
        export = ["export", "ipynb", str(notebook), "--output", str(target), "--include-outputs", "--force"]
        subprocess.run([sys.executable, "-m", "marimo", *export], check=True)
        content = json.loads(target.read_text())
        for output in (output for cell in content["cells"] for output in cell.get("outputs", ())):
            if "image/png" in output.get("data", {}):
                output["data"]["image/png"] = _in_few_colours(output["data"]["image/png"])
        write_atomically(target, json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")


def _in_few_colours(png: str) -> str:
    """Return a PNG in base64 with a palette of 64 colours, a third of its size."""
    from PIL import Image

    image, small = Image.open(io.BytesIO(base64.b64decode(png))), io.BytesIO()
    image.convert("RGB").quantize(64).save(small, "png", optimize=True)
    return base64.b64encode(small.getvalue()).decode()
