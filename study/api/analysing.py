"""Ledgers, laws and reports as calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from study.evidence.ledgers import open_ledger, selected
from study.laws.estimation import DEFAULT_SETTINGS
from study.laws.law_fits import LawFit, fit_table
from study.laws.reading import TableQuery
from study.laws.tables import RunTable, tidy_table
from study.plotting.style import Format, StyleName
from study.report.answer import Answer
from study.report.answer import report as report_on
from study.store.sweep_folder import SweepFolder


def load_ledger(folder: Path | str) -> pd.DataFrame:
    """Return the ledger of a sweep, from its present records: one row a run, `exclusion` empty for runs that count.

    Configuration keys are dotted (`recipe.learning_rate`), results have their unit in the name (`loss_nats`). Raises InputError
    for a folder without a readable sweep.
    """
    sweep = SweepFolder(Path(folder))
    sweep.sweep()
    return sweep.ledger()


def fit(
    table: pd.DataFrame | Path | str,
    law: str,
    *,
    where: str | None = None,
    cluster: str | None = None,
    bootstrap: int = DEFAULT_SETTINGS.bootstrap,
    **columns: str,
) -> LawFit:
    """Fit a law to a table, a file or a sweep's folder, as `study fit` does.

    `columns` name the column, or expression of columns, of each variable: `parameters="N"`, `tokens="C/(6*N)"`, `loss="loss"`.
    `where` keeps rows, `cluster` is the column that names the run of a row, `bootstrap` the number of resamples. Raises
    InputError for an unknown law or unfit table.
    """
    if isinstance(table, pd.DataFrame):
        path = Path("the DataFrame")
        opened = selected(RunTable(path, tidy_table(table.copy(), path)))
    else:
        opened = open_ledger(Path(table))
    return fit_table(
        TableQuery(opened, columns, where=where, cluster=cluster), law, replace(DEFAULT_SETTINGS, bootstrap=bootstrap)
    )


def report(
    folder: Path | str,
    *,
    include_unbracketed: bool = False,
    formats: Sequence[Format] = (),
    style: StyleName = "page",
    page: Path | None = None,
) -> Answer:
    """Rebuild the ledger, fits, figures and answer.md of a sweep from its records, and return the answer.

    `formats` are those of figures beside SVG (pdf, png), `style` their width (page, paper), and `page` an HTML file to send.
    """
    return report_on(SweepFolder(Path(folder)), include_unbracketed, formats, style, page)
