"""A sweep's ledger as a table for laws: which columns mean what, which runs a law may not use, and which may not be pooled."""

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
from study.laws.table_files import tidy_table
from study.laws.tables import RunTable, Selection, number_runs
from study.store.named_files import read_parquet
from study.store.sweep_folder import SweepFolder

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
"""What a ledger calls the variables of laws; parameters are all unique tensors, FLOPs `train_flops`.

Unique tokens are counted as trained ones are, with the [CLS] that begins each sequence.
"""

_VALIDATION = ("data.", "masking.", "data_fingerprint")
"""What the ledger's columns begin with that say what a loss was validated on."""

_PATHS = ("data.corpus", "data.tokenizer.path")
"""Those that say where text and vocabulary lie; `data_fingerprint` says which they are."""

_NO_SETTINGS = (*SHAPE, RATE, "recipe.warmup_fraction", "recipe.warmup_tokens")
"""What differs between runs of one law beside budgets and what is tuned."""

LEDGER_PARAMETERS = TOTALS
"""The ledger's counts of parameters."""

LEDGER_FLOPS = ("train_flops", "train_flops_dense_head", "train_flops_6n", "train_flops_6n_non_embedding")
"""The ledger's counts of training FLOPs."""

NUMBERS = (RATE, "seed", "tokens", "loss_nats", "unigram_entropy_nats", *LEDGER_PARAMETERS, *LEDGER_FLOPS)
"""The columns of a ledger that are read as numbers, whatever is asked of it."""


def open_ledger(path: Path) -> RunTable:
    """The table of a results folder or of a file, selected for laws; see selected.

    Raises InputError where the folder has no ledger or none of its runs has ended, and as study.laws.table_files.read_table.
    """
    if not path.is_dir():
        return selected(RunTable.read(path))
    file = SweepFolder(path).ledger_file
    if not is_there(file):
        raise InputError.at(str(path), f"is a folder without a {file.name}; give a table, or a sweep that has its report")
    ledger = read_parquet(file, "`study report` writes it anew")
    if ledger.empty:
        raise InputError.at(str(file), "has no rows: no run of the sweep has ended")
    return selected(RunTable(path, tidy_table(ledger, file)))


def selected(table: RunTable) -> RunTable:
    """A table with what is known of it where it is a ledger, by the sweep beside it if there is one; any other as it is.

    Raises InputError as check_ledger does.
    """
    ledger = table.frame
    if not is_ledger(ledger):
        return table
    check_ledger(ledger, str(table.path))
    sweep = SweepFolder(table.path if table.path.is_dir() else table.path.parent)
    cells = list(searches(ledger, sweep.trial_seeds()).values())
    known = Selection(
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
        without_order=frozenset(np.flatnonzero(ledger["reads_order"].eq(False)).tolist() if "reads_order" in ledger else ()),
    )
    return replace(table, selection=known)


def is_ledger(table: pd.DataFrame) -> bool:
    """Whether a table is the ledger of a sweep."""
    return {"run_id", "cell", "loss_nats", RATE, "exclusion"} <= set(table.columns)


def check_ledger(ledger: pd.DataFrame, place: str) -> None:
    """Raise InputError where a ledger lacks the states of its runs, or has text in place of a number of NUMBERS."""
    remedy = "`study report` writes a sweep's ledger anew"
    if len(ledger) and "state" not in ledger:
        raise InputError.at(place, f"is a ledger without its column 'state'; {remedy}")
    for name in NUMBERS:
        column = ledger.get(name, pd.Series())
        if len(text := column[column.notna() & pd.to_numeric(column, errors="coerce").isna()]):
            told = f"{name} of row {text.index[0] + 1} is {shown(text.iloc[0])}, no number"
            raise InputError.at(place, f"{told}; take the row out, or {remedy}")


def runs_of(ledger: pd.DataFrame) -> pd.Series[Any]:
    """The run that each row's training began with: its trunk's, or its own; branches of one trunk are no independent runs."""
    runs = ledger["run_id"].astype(str)
    if "trunk" not in ledger:
        return runs
    branches = ledger["trunk"].notna()
    trunks = dict(zip(runs[branches], ledger.loc[branches, "trunk"].astype(str), strict=True))

    def first(run: str) -> str:
        way = {run}
        while (trunk := trunks.get(run, run)) not in way:  # a table's trunks may lead in a circle
            way.add(trunk)
            run = trunk
        return run

    return runs.map({run: first(run) for run in runs.unique()})


def shapes_of(ledger: pd.DataFrame) -> pd.Series[Any]:
    """What each row's architecture is, its cell where none is told: what runs of one shape miss a law by, seeds do not tell.

    A law in parameters, or in some sizes, leaves out what else a shape has of its own, and the best rate lies between those
    tried, so that the runs of a shape miss the law together. Of 15 shapes that scatter 0.5% about a law, seeds 0.2%, intervals
    of 95% cover the exponent in 0.67 of sweeps where runs are drawn, in 0.96 where shapes are.
    """
    told = [name for name in ledger if str(name).startswith("architecture.") and ledger[name].notna().all()]
    return ledger.groupby(told or ["cell"], sort=False).ngroup()


def unusable(ledger: pd.DataFrame, cells: Iterable[CellSearch], bracketed_only: bool = False) -> dict[int, str]:
    """The rows that a law leaves out: excluded runs, and those that are not at the best tuned knobs of their cell.

    `cells` are the searches of the ledger's cells. With `bracketed_only` also those of cells whose best rate has no worse one
    tried on both sides.
    """
    gone = {row: str(reason) for row, reason in enumerate(ledger["exclusion"]) if pd.notna(reason)}
    rates = ledger[RATE].to_numpy()
    for search in cells:
        loose = bracketed_only and not search.rates.bracketed
        for row, off in zip(search.rows.tolist(), search.off, strict=True):
            if loose:
                gone.setdefault(row, "its cell's best learning rate is not bracketed")
            elif knobs := off or ("learning rate" if rates[row] != search.rates.chosen else ""):
                gone.setdefault(row, f"not at the best {knobs} of its cell")
    return gone


def validation_names(ledger: pd.DataFrame) -> list[str]:
    """The columns that say what losses were validated on: such as differ in one are not comparable.

    None in a ledger of other people's runs, whose columns may mean anything.
    """
    if "data_fingerprint" not in ledger:
        return []
    return [name for begins in _VALIDATION for name in ledger.columns if name.startswith(begins) and name not in _PATHS]


def validation_columns(runs: pd.DataFrame) -> list[str]:
    """The columns in which runs differ that say what their losses were validated on."""
    return differing_columns(runs, validation_names(runs))


def summarise_exclusions(exclusions: pd.Series[str]) -> str:
    """How many runs are left out for which reason, without its particulars, the commonest first.

    Runs of one state, of which each may have a reason of its own, are told together, with the first of them.
    """
    parts = exclusions.str.partition(" (")[0].str.partition(": ")
    told = []
    for state, count in parts[0].value_counts().items():
        reasons = parts[2][(parts[0] == state) & (parts[2] != "")].unique()
        why = f"{': ' if len(reasons) == 1 else ', the first: '}{reasons[0]}" if len(reasons) else ""
        told.append(f"{count} {state}{why}")
    return ", ".join(told)


def variant_columns_of(ledger: pd.DataFrame) -> list[str]:
    """The columns of architecture and recipe that tell laws apart, as far as a ledger without its sweep says.

    All but sizes, rate and budget, the warmup that follows it, and the knobs that are tuned: those that differ within a cell.
    """
    named = [name for name in ledger.columns if name.startswith(("architecture.", "recipe.")) and name not in _NO_SETTINGS]
    columns = [name for name in named if not name.startswith("recipe.budget.")]
    within = ledger.groupby("cell")[columns].nunique(dropna=False).max()
    return [name for name in columns if within[name] == 1]


def usable(ledger: pd.DataFrame, asked: Collection[int] = ()) -> pd.DataFrame:
    """The rows that a law does not leave out, of a ledger whose sweep has `asked` some seeds for its tuned values."""
    return ledger[~np.isin(np.arange(len(ledger)), list(unusable(ledger, searches(ledger, asked).values())))]
