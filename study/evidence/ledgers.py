"""A sweep's ledger as a table for a law: which columns mean what, and which runs a law may not use."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.errors import InputError
from study.base.schema import shown
from study.counting.architecture import SHAPE
from study.counting.parameters import TOTALS
from study.evidence.families import EQUAL_SPAN
from study.evidence.learning_rates import RATE, CellSearch, searches

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

KEEP = "keep those of one with"
"""What to do with runs that may not be pooled, whichever command was to read them; a condition comes after it."""

LEDGER_PARAMETERS = TOTALS
"""The ledger's counts of parameters."""

LEDGER_FLOPS = ("train_flops", "train_flops_dense_head", "train_flops_6n", "train_flops_6n_non_embedding")
"""The ledger's counts of training FLOPs."""

NUMBERS = (RATE, "seed", "tokens", "loss_nats", "unigram_entropy_nats", *LEDGER_PARAMETERS, *LEDGER_FLOPS)
"""The columns of a ledger that are read as numbers, whatever is asked of it."""


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


def validation_columns(runs: pd.DataFrame) -> list[str]:
    """The columns in which runs differ that say what their losses were validated on: such losses are not comparable.

    None in a ledger of other people's runs, whose columns may mean anything.
    """
    if "data_fingerprint" not in runs:
        return []
    named = [name for begins in _VALIDATION for name in runs.columns if name.startswith(begins) and name not in _PATHS]
    return [name for name in named if runs[name].nunique(dropna=False) > 1]


def why_incomparable(runs: pd.DataFrame, remedy: str) -> str:
    """Why the losses of runs may not be pooled, and what to do, `remedy` with --where; empty where they may."""
    if not (apart := validation_columns(runs)):
        return ""
    differ = f"the losses of runs that differ in {', '.join(apart)} are not comparable"
    return f'{differ}; {remedy} --where "{apart[0]} == …"'


def reasons_told(exclusions: pd.Series[str]) -> str:
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


def settings_of(ledger: pd.DataFrame) -> list[str]:
    """The columns of architecture and recipe that tell laws apart, as far as a ledger without its sweep says.

    All but sizes, rate and budget, the warmup that follows it, and the knobs that are tuned: those that differ within a cell.
    """
    named = [name for name in ledger.columns if name.startswith(("architecture.", "recipe.")) and name not in _NO_SETTINGS]
    columns = [name for name in named if not name.startswith("recipe.budget.")]
    within = ledger.groupby("cell")[columns].nunique(dropna=False).max()
    return [name for name in columns if within[name] == 1]


def columns_apart(runs: pd.DataFrame, settings: Sequence[str]) -> list[str]:
    """The columns of `settings` in which runs differ, so that they have laws of their own."""
    return [column for column in settings if column in runs and runs[column].nunique(dropna=False) > 1]


def why_apart(runs: pd.DataFrame, settings: Sequence[str], remedy: str) -> str:
    """Why runs that differ in `settings` may not be pooled, and what to do, `remedy` with --where; empty where they may."""
    if not (apart := columns_apart(runs, settings)):
        return ""
    some = " and ".join(f"{column} == {runs[column].tolist()[0]!r}" for column in apart)
    return f'runs that differ in {", ".join(apart)} have laws of their own; {remedy} --where "{some}"'


def why_no_repeats(runs: pd.DataFrame, variables: Mapping[str, NDArray[np.float64]], where: str | None) -> str:
    """Why a law in so few variables may not pool runs, and what to do: some agree in all of them and are no repeats.

    Those are runs that differ in tokens or in size; empty where there are none. FLOPs and losses stand for both.
    """
    if not variables or {"flops", "loss"} & set(variables):
        return ""
    for column, words in {"tokens": "tokens", "parameters_non_embedding": "size"}.items():
        if column not in runs:
            continue
        agreeing = pd.to_numeric(runs[column], errors="coerce").groupby(list(variables.values()))
        if (agreeing.max() > agreeing.min() * EQUAL_SPAN).any():
            condition = " and ".join([*([where] if where else []), f"{column} == {runs[column].max()}"])
            known = f"a law in {' and '.join(variables)} alone takes runs that differ in {words} for repeats of each other"
            return f'{known}; {KEEP} --where "{condition}", or fit a law in both'
    return ""


def usable(ledger: pd.DataFrame, asked: Collection[int] = ()) -> pd.DataFrame:
    """The rows that a law does not leave out, of a ledger whose sweep has `asked` some seeds for its tuned values."""
    return ledger[~np.isin(np.arange(len(ledger)), list(unusable(ledger, searches(ledger, asked).values())))]
