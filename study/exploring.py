"""The runs of many sweeps in one table, for whoever looks at them together: sizes, costs, losses and downstream scores."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from study.config import setting_words
from study.fitting.cells import SHAPE
from study.fitting.ledgers import unusable, validation_columns
from study.fitting.score_points import FROZEN
from study.folders import SweepFolder
from study.plotting.loss_against_parameters import PARAMETERS
from study.plotting.style import FLOPS, LOSS

SCORE = "downstream/"
"""What the column of a downstream score begins with."""

LOSSES = {
    "loss_nats": LOSS,
    "accuracy": "validation accuracy (share of masked tokens)",
}
"""What is measured on a validation set and compares only there, with its unit."""

QUANTITIES = {
    "parameters": PARAMETERS,
    "parameters_encoder": "parameters_encoder (embeddings and blocks, no pooler, no head)",
    "parameters_non_embedding": "parameters_non_embedding (the encoder less its tables)",
    "train_flops": FLOPS,
    "train_flops_dense_head": "training FLOPs (train_flops_dense_head: the head at every position)",
    "train_flops_6n": "training FLOPs (train_flops_6n: 6·parameters·tokens)",
    "train_flops_6n_non_embedding": "training FLOPs (train_flops_6n_non_embedding: 6·parameters_non_embedding·tokens)",
    "tokens": "training tokens",
    "architecture.depth": "depth (layers)",
    "architecture.width": "width (hidden size)",
    "architecture.heads": "heads",
    "architecture.ffn": "FFN size",
    "architecture.vocabulary": "vocabulary (pieces)",
    "recipe.learning_rate": "learning rate",
    "wall_seconds": "wall time (s)",
    "tokens_per_second": "speed (tokens/s)",
    "peak_memory_bytes": "peak memory (bytes)",
    **LOSSES,
}
"""The columns of a ledger that an axis may show, with their conventions and units."""

MOST_KINDS = 12
"""Runs are told apart by a column that has at most so many values."""

_CONFIGURED = ("architecture.", "recipe.", "data.", "masking.", "environment.")


def runs_in(folders: Mapping[str, SweepFolder]) -> pd.DataFrame:
    """One row a run that ended: its row of the ledger as the records are now, and what comparing it to others takes.

    `sweep` is the name that `folders` gives; `setting` what the sweep varies, in words; `left_out` why laws and comparisons
    do not use the run (see study.fitting.ledgers.unusable), missing where they do; `validation` names in words the validation
    set and masks, empty where all runs share them: losses compare only under one name. `downstream/<task>/<metric>` is the
    score on the split reported on, a mean over seeds of fine-tuning. A run that several sweeps share is there once.
    """
    tables = [table for name, folder in folders.items() if not (table := _runs_of(name, folder)).empty]
    if not tables:
        return pd.DataFrame(columns=["run_id", "sweep", "setting", "left_out", "validation"])
    runs = pd.concat(tables, ignore_index=True)
    used_first = runs.sort_values("left_out", na_position="first", kind="stable", key=pd.Series.notna)
    runs = used_first.drop_duplicates("run_id").sort_index(ignore_index=True)
    return runs.assign(validation=_in_words(runs, validation_columns(runs)))


def _runs_of(name: str, folder: SweepFolder) -> pd.DataFrame:
    table = folder.ledger()
    if table.empty:
        return table
    varied = [knob for knob in folder.varied() if knob in table]
    left_out = pd.Series(unusable(table), dtype=object).reindex(range(len(table)))
    table = table.assign(sweep=name, setting=_in_words(table, varied), left_out=left_out.to_numpy())
    return table.join(_scores_of(folder), on="run_id")


def _in_words(table: pd.DataFrame, columns: list[str]) -> list[str]:
    return [setting_words(dict(zip(columns, values, strict=True))) for values in table[columns].itertuples(index=False)]


def _scores_of(folder: SweepFolder) -> pd.DataFrame:
    """A column a task and metric by run, of trained weights."""
    if not folder.scores_file.exists():
        return pd.DataFrame()
    scores = pd.read_parquet(folder.scores_file)
    scores = scores[scores["protocol"] != "random_init"]
    frozen = scores["update"].map({"head": FROZEN}).fillna("")
    column = SCORE + scores["task"] + frozen + "/" + scores["metric"]
    return scores.assign(column=column).pivot_table(index="run_id", columns="column", values="test", aggfunc="mean")


def quantities(runs: pd.DataFrame) -> dict[str, str]:
    """The columns that an axis can show of these runs, with what they are called: numbers that any run has."""
    scores = {name: f"{name.removeprefix(SCORE)} (downstream score)" for name in _columns(runs, SCORE)}
    return {name: words for name, words in (QUANTITIES | scores).items() if name in runs and runs[name].notna().any()}


def kinds(runs: pd.DataFrame) -> list[str]:
    """The columns that tell these runs apart: sizes first, then what else differs and takes few values."""
    named = [*SHAPE, "sweep", "setting", "shape", "state", "seed", *_columns(runs, *_CONFIGURED)]
    return [name for name in dict.fromkeys(named) if name in runs and 1 < runs[name].nunique() <= MOST_KINDS]


def comparable(runs: pd.DataFrame, y: str, validation: str) -> pd.DataFrame:
    """The runs that may share an axis of `y`: of what is measured on a validation set, those of one."""
    return runs[runs["validation"] == validation] if y in LOSSES else runs


def _columns(runs: pd.DataFrame, *beginnings: str) -> list[str]:
    return sorted(name for name in map(str, runs) if name.startswith(beginnings))
