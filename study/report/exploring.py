"""The runs of many sweeps in one table: sizes, costs, losses and downstream scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
from pandas.api.types import is_numeric_dtype

from study.base.errors import UNREADABLE
from study.counting.architecture import SHAPE
from study.evidence.cells import in_words
from study.evidence.learning_rates import searches
from study.evidence.ledgers import COUNTS, LOSS, ORDER_GAIN, unusable, validation_columns
from study.store.records import fill_left_out, ledger
from study.store.score_records import DOWNSTREAM, scores_in, series
from study.store.sweep_folder import SweepFolder

LOSSES = {
    "loss_nats": LOSS,
    "order_gain_nats": ORDER_GAIN,
    "accuracy": "validation accuracy (share of masked tokens)",
}
"""Quantities that compare only on one validation set, with units."""

QUANTITIES = {
    **COUNTS,
    "tokens": "training tokens",
    "architecture.depth": "depth (layers)",
    "architecture.width": "width (hidden size)",
    "architecture.heads": "heads",
    "architecture.ffn": "FFN size",
    "architecture.vocabulary": "vocabulary (pieces)",
    "recipe.learning_rate": "learning rate",
    "wall_seconds": "wall time (s; of a branch, that of its own part)",
    "tokens_per_second": "speed (tokens/s)",
    "peak_memory_bytes": "peak memory (bytes)",
    **LOSSES,
}
"""The ledger columns for axes, with conventions and units."""

MOST_KINDS = 10
"""The most values of a column of words that groups runs; a column of numbers always does, by a scale."""

_CONFIGURED = ("architecture.", "recipe.", "data.", "masking.", "environment.")


def runs_in(folders: Mapping[str, SweepFolder]) -> tuple[pd.DataFrame, dict[str, str]]:
    """One row per ended run and sweep, and why sweeps that cannot be read are missing.

    A row is the current ledger's, with `sweep`, the name in `folders`; `setting`, the variant in words; `left_out`, why laws do
    not use the run (study.evidence.ledgers.unusable), missing if they do; `validation`, the validation set and masks in words,
    empty if all runs share them, since losses compare only under one name; and `downstream/<series>/<metric>`, the mean score
    of trained weights over seeds of fine-tuning (study.store.score_records.series).
    """
    tables, scores, problems = [], [], {}
    for name, folder in folders.items():
        try:
            if (table := folder.written_ledger()) is None:
                records, unreadable = folder.read_records()
                if unreadable:
                    problems[name] = "; ".join(map(str, unreadable))
                table = ledger(records, tuned=folder.sweep().tuned, cells=folder.cells())
            tables.append(with_reasons(table, folder).assign(sweep=name))
            scores.append(_scores_of(name, folder))
        except UNREADABLE as error:
            problems[name] = str(error)
    if all(table.empty for table in tables):
        return pd.DataFrame(columns=["run_id", "sweep", "setting", "left_out", "validation"]), problems
    runs = fill_left_out(pd.concat([table for table in tables if not table.empty], ignore_index=True))
    runs = runs.assign(validation=in_words(runs, validation_columns(runs)))
    scored = [table for table in scores if not table.empty]
    return (_with_scores(runs, pd.concat(scored, ignore_index=True)) if scored else runs), problems


def with_reasons(ledger: pd.DataFrame, folder: SweepFolder) -> pd.DataFrame:
    """Return a sweep's ledger with `setting`, the variant in words, and `left_out`, why laws do not use the run."""
    if ledger.empty:
        return ledger
    varied = [knob for knob in folder.varied() if knob in ledger]
    gone = unusable(ledger, searches(ledger, folder.trial_seeds()).values())
    left_out = pd.Series(gone, dtype=object).reindex(range(len(ledger)))
    return ledger.assign(setting=in_words(ledger, varied), left_out=left_out.to_numpy())


def _scores_of(name: str, folder: SweepFolder) -> pd.DataFrame:
    scores = scores_in(folder)
    return scores if scores.empty else scores[scores["protocol"] != "random_init"].assign(sweep=name)


def _with_scores(runs: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    scores = scores.assign(column=DOWNSTREAM + series(scores) + "/" + scores["metric"])
    by_run = scores.pivot_table(index=["sweep", "run_id"], columns="column", values="test", aggfunc="mean")
    return runs.join(by_run, on=["sweep", "run_id"])


def quantities(runs: pd.DataFrame) -> dict[str, str]:
    """Return the numeric columns with values in these runs, and their axis names."""
    scores = {name: f"{name.removeprefix(DOWNSTREAM)} (downstream score)" for name in _columns(runs, DOWNSTREAM)}
    return {name: words for name, words in (QUANTITIES | scores).items() if name in runs and runs[name].notna().any()}


def kinds(runs: pd.DataFrame) -> list[str]:
    """Return the columns in which these runs differ: sizes first, then other numbers and words of few values."""
    named = [*SHAPE, "sweep", "setting", "shape", "state", "seed", *_columns(runs, *_CONFIGURED)]
    differing = [name for name in dict.fromkeys(named) if name in runs and runs[name].nunique() > 1]
    return [name for name in differing if is_numeric_dtype(runs[name]) or runs[name].nunique() <= MOST_KINDS]


def validations(runs: pd.DataFrame) -> list[str]:
    """Return the validation sets of these runs, the one with most usable runs first."""
    counts = runs["left_out"].isna().groupby(runs["validation"]).agg(["sum", "size"])
    return counts.sort_values(["sum", "size"], ascending=False, kind="stable").index.tolist()


def comparable(runs: pd.DataFrame, axes: Iterable[str], validation: str) -> pd.DataFrame:
    """Return the runs for these axes: of one validation set if an axis is measured on it."""
    return runs[runs["validation"] == validation] if LOSSES.keys() & set(axes) else runs


def _columns(runs: pd.DataFrame, *beginnings: str) -> list[str]:
    return sorted(name for name in map(str, runs) if name.startswith(beginnings))
