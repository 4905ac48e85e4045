"""A sweep's ledger as a table for laws: its quantities and their roles, runs left out, and columns that laws cannot pool."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from study.base.durable_files import is_there
from study.base.errors import InputError, shown
from study.counting.architecture import SHAPE
from study.counting.parameters import TOTALS
from study.evidence.learning_rates import RATE, CellSearch, searches
from study.laws.reading import differing_columns
from study.laws.tables import RunTable, Selection, number_runs, tidy_table
from study.store.named_files import read_parquet
from study.store.sweep_folder import SweepFolder

LOSS = "validation loss (nats per masked token)"
LOSS_PER_BYTE = "validation loss (bits per byte of masked words)"
LOSS_OF_DETECTING = "validation loss (nats per token, of detecting replaced ones)"
LOSSES = "validation loss (nats)"
"""The axis of losses that do not compare, of masked tokens or of others."""

ORDER_GAIN = "order gain (nats per masked token that permuting the visible ones costs)"
COUNTS = {
    "parameters": "parameters (unique tensors of the MLM model, embeddings included)",
    "parameters_encoder": "parameters_encoder (embeddings and blocks, no pooler, no head)",
    "parameters_non_embedding": "parameters_non_embedding (the encoder less its tables)",
    "train_flops": "training FLOPs (train_flops: the head at masked positions)",
    "train_flops_dense_head": "training FLOPs (train_flops_dense_head: the head at every position)",
    "train_flops_6n": "training FLOPs (train_flops_6n: 6·parameters·tokens)",
    "train_flops_6n_non_embedding": "training FLOPs (train_flops_6n_non_embedding: 6·parameters_non_embedding·tokens)",
    "spent_flops": "all FLOPs spent (spent_flops: train_flops and those of donors and teachers)",
}
"""Axis names for each count of parameters and FLOPs, with the convention, by ledger column."""

LEDGER_COLUMNS = {
    "parameters": "parameters",
    "tokens": "tokens",
    "flops": "train_flops",
    "loss": "loss_nats",
    "depth": "architecture.depth",
    "width": "architecture.width",
    "heads": "architecture.heads",
    "ffn": "architecture.ffn",
    "unique_tokens": "train_tokens*data.sequence_length/(data.sequence_length - 1)",
}
"""Ledger columns of law variables; parameters count all unique tensors, FLOPs are `train_flops`.

Unique tokens count the [CLS] of each sequence, as trained tokens do.
"""

UNIQUE_TOKENS = "recipe.unique_tokens"
"""The column of how much of their text runs read, missing for all of it."""

_EXPRESSED = {UNIQUE_TOKENS: "unique_tokens"}
"""Knobs that a law's variable expresses, though it is read from other columns."""

VALIDATION = ("data.", "masking.", "data_fingerprint")
"""Prefixes of columns that identify what a loss was validated on."""

_PATHS = ("data.corpus", "data.tokenizer.path")
"""Locations of text and vocabulary; `data_fingerprint` identifies their content."""

_NOT_VARIANTS = (*SHAPE, RATE, "recipe.warmup_fraction", "recipe.warmup_tokens")
"""Columns that may differ between runs of one law, beside budgets and tuned knobs."""

OBJECTIVE = "recipe.objective"
"""The column of what runs learn."""

LEDGER_PARAMETERS = TOTALS
"""The ledger's counts of parameters."""

LEDGER_FLOPS = ("train_flops", "train_flops_dense_head", "train_flops_6n", "train_flops_6n_non_embedding")
"""The ledger's counts of training FLOPs."""

NUMBERS = (RATE, "seed", "tokens", "loss_nats", "unigram_entropy_nats", *LEDGER_PARAMETERS, *LEDGER_FLOPS)
"""Ledger columns that are always read as numbers."""

OWN_COLUMNS = frozenset({"run_id", "cell", "loss_nats", RATE, "exclusion"})
"""The columns by which a table is known as the ledger of a sweep."""


def open_ledger(path: Path) -> RunTable:
    """Read a results folder or a table file, selected for laws.

    A sweep's ledger is fresh. Raises InputError without a finished run, and as study.laws.tables.read_table does.
    """
    if not path.is_dir():
        return selected(RunTable.read(path))
    folder = SweepFolder(path)
    if (ledger := folder.current_ledger()) is None:
        if not is_there(file := folder.ledger_file):
            raise InputError.at(str(path), f"is a folder without runs or a {file.name}; give a table, or a sweep's folder")
        ledger = read_parquet(file, "`study report` writes it again")
    return table_of(path, ledger)


def table_of(path: Path, ledger: pd.DataFrame) -> RunTable:
    """Return the ledger of a results folder, selected for laws; raises InputError without a row."""
    if ledger.empty:
        raise InputError.at(str(path), "has no rows: no run of the sweep has ended")
    return selected(RunTable(path, tidy_table(ledger.copy(), path)))


def selected(table: RunTable) -> RunTable:
    """Return a ledger with its selection for laws, by the sweep beside it if any; other tables stay.

    Raises InputError as check_ledger does.
    """
    ledger = table.frame
    if not {*ledger} >= OWN_COLUMNS:
        return table
    check_ledger(ledger, str(table.path))
    sweep = SweepFolder(table.path if table.path.is_dir() else table.path.parent)
    cells = list(searches(ledger, sweep.trial_seeds()).values())
    selection = Selection(
        roles=LEDGER_COLUMNS,
        counts={"parameters": LEDGER_PARAMETERS, "flops": LEDGER_FLOPS},
        excluded=unusable(ledger, cells),
        unbracketed=unusable(ledger, cells, bracketed_only=True),
        runs=number_runs(runs_of(ledger)),
        clusters=number_runs(shapes_of(ledger)),
        cluster="shape",
        validation=validation_names(ledger),
        settings=sweep.varied() if is_there(sweep.sweep_file) else variant_columns_of(ledger),
        amounts={"tokens": "tokens", "parameters_non_embedding": "size"},
        expressed=_EXPRESSED,
        without_order=frozenset(np.flatnonzero(ledger["reads_order"].eq(False)).tolist() if "reads_order" in ledger else ()),
    )
    return replace(table, selection=selection)


def check_ledger(ledger: pd.DataFrame, source: str) -> None:
    """Raise InputError if a ledger lacks run states, or has text among NUMBERS."""
    remedy = "run `study report` to rewrite a sweep's ledger"
    if len(ledger) and "state" not in ledger:
        raise InputError.at(source, f"is a ledger without a 'state' column; {remedy}")
    for name in NUMBERS:
        column = ledger.get(name, pd.Series())
        if len(text := column[column.notna() & pd.to_numeric(column, errors="coerce").isna()]):
            problem = f"{name} of row {text.index[0] + 1} is {shown(text.iloc[0])}, not a number"
            raise InputError.at(source, f"{problem}; remove the row, or {remedy}")


def runs_of(ledger: pd.DataFrame) -> pd.Series[Any]:
    """Root run of each row: its trunk, or itself; branches of one trunk are dependent."""
    runs = ledger["run_id"].astype(str)
    if "trunk" not in ledger:
        return runs
    branches = ledger["trunk"].notna()
    trunks = dict(zip(runs[branches], ledger.loc[branches, "trunk"].astype(str), strict=True))

    def first(run: str) -> str:
        seen = {run}
        while (trunk := trunks.get(run, run)) not in seen:  # a table's trunks may form a cycle
            seen.add(trunk)
            run = trunk
        return run

    return runs.map({run: first(run) for run in runs.unique()})


def shapes_of(ledger: pd.DataFrame) -> pd.Series[Any]:
    """Each row's architecture as a number, or its cell's: runs of one shape share a law's error.

    With 15 shapes that scatter 0.5% about a law, and seeds 0.2%, 95% intervals cover the exponent in 0.67 of sweeps resampling
    runs, 0.96 resampling shapes.
    """
    columns = [name for name in ledger if str(name).startswith("architecture.") and ledger[name].notna().all()]
    return ledger.groupby(columns or ["cell"], sort=False).ngroup()


def unusable(ledger: pd.DataFrame, cells: Iterable[CellSearch], bracketed_only: bool = False) -> dict[int, str]:
    """Return the rows that a law leaves out: excluded runs, and runs not at their cell's best knobs.

    `cells` are the ledger's searches. `bracketed_only` also drops cells whose best rate is not bracketed.
    """
    left_out = {row: str(reason) for row, reason in enumerate(ledger["exclusion"]) if pd.notna(reason)}
    rates = ledger[RATE].to_numpy()
    for search in cells:
        unbracketed = bracketed_only and not search.rates.bracketed
        for row, off in zip(search.rows.tolist(), search.off, strict=True):
            if unbracketed:
                left_out.setdefault(row, "its cell's best learning rate is not bracketed")
            elif knobs := off or ("learning rate" if rates[row] != search.rates.chosen else ""):
                left_out.setdefault(row, f"not at the best {knobs} of its cell")
    return left_out


def validation_names(ledger: pd.DataFrame) -> list[str]:
    """Columns that identify what losses were validated on; losses compare only if all agree.

    Empty for a foreign ledger, whose columns may mean anything.
    """
    if "data_fingerprint" not in ledger:
        return []
    names = [name for prefix in VALIDATION for name in ledger.columns if name.startswith(prefix) and name not in _PATHS]
    detects = OBJECTIVE in ledger and ledger[OBJECTIVE].eq("rtd").any()  # its loss is of no masked words
    return [*names, OBJECTIVE] if detects else names


def validation_columns(runs: pd.DataFrame) -> list[str]:
    """Return the validation columns in which runs differ."""
    return differing_columns(runs, validation_names(runs))


def summarise_exclusions(exclusions: pd.Series[str]) -> str:
    """Count excluded runs by state, with their first reason."""
    parts = exclusions.str.partition(" (")[0].str.partition(": ")
    summaries = []
    for state, count in parts[0].value_counts().items():
        reasons = parts[2][(parts[0] == state) & (parts[2] != "")].unique()
        why = f"{': ' if len(reasons) == 1 else ', the first: '}{reasons[0]}" if len(reasons) else ""
        summaries.append(f"{count} {state}{why}")
    return ", ".join(summaries)


def variant_columns_of(ledger: pd.DataFrame) -> list[str]:
    """Columns of architecture and recipe that need separate laws, for a ledger without its sweep.

    Excludes sizes, rate, budget, warmup, and tuned knobs, which differ within a cell.
    """
    named = [name for name in ledger.columns if name.startswith(("architecture.", "recipe.")) and name not in _NOT_VARIANTS]
    columns = [name for name in named if not name.startswith("recipe.budget.")]
    within = ledger.groupby("cell")[columns].nunique(dropna=False).max()
    return [name for name in columns if within[name] == 1]


def usable(ledger: pd.DataFrame, choosing_seeds: Collection[int] = ()) -> pd.DataFrame:
    """Return the rows that a law uses."""
    return ledger[~np.isin(np.arange(len(ledger)), list(unusable(ledger, searches(ledger, choosing_seeds).values())))]
