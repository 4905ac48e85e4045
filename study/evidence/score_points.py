"""Downstream scores joined to the ledger: one row per cell and task, with baselines that need no pre-training."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

from study.base.durable_files import is_there
from study.base.statistics import UNKNOWN, ScoreNoise, noise_of_seeds, pooled_variance
from study.base.text import at_budget, shape_and_variant
from study.config.named_runs import parse_start
from study.counting.named_models import find
from study.counting.parameters import parameters
from study.evidence.cells import DETECTED, NATS, PER_BYTE, budgets_in_words, in_words, variant_columns
from study.evidence.gains import START
from study.evidence.ledgers import OBJECTIVE, runs_of, usable
from study.store.named_files import read_parquet
from study.store.records import validation_of
from study.store.score_records import BaselineRecord, baseline, series
from study.store.sweep_folder import SweepFolder

_OF_CELL = ["shape", "setting", "name", "depth", "parameters", "train_flops", "tokens"]
"""Facts of a cell, the same for all its runs."""

_OF_LOSS = ["loss", "unit", "validation"]

_OF_SCORE = ["task", "task_fingerprint", "metric", "run_id", "encoder", "protocol", "update", "seed"]
_OF_SCORE += ["test", "test_standard_error", "knobs", "truncated_examples", "examples", "lost_share"]

_SPLITS = ["train_examples", "dev_examples", "test_examples"]


def score_points(folder: SweepFolder, ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the usable runs of each cell, at its best knobs, on each task, by task and falling loss; empty without scores.

    Columns: `task` (see study.store.score_records.series), `metric`, `cell`; `runs`, one per pre-training seed, and their
    `run_scores`; `knobs`, unusual untuned ones in words; `truncated_examples`, the most of any score, out of `examples`;
    `lost_share`, the largest, NaN if unknown; cell facts, where `name` is the shape, with variant and budget if these differ;
    `origins`, the root runs (InitFrom, trunk, or themselves); `loss`, their mean in `unit`: nats per masked token, or bits per
    byte of masked words in a sweep of several tokenisers, NaN if unknown; `validation`, under one of which losses compare;
    `score`, the mean over runs of means over `seeds`, its `noise`, standard `error` and `half` of the 95% interval; `random`
    and `random_half`, the same for untrained weights; baselines `majority` and `bag_of_words`, NaN if unknown.

    Noise (study.base.statistics) is over examples and between runs if any cell has two, else between seeds if any run has two;
    its deviation is pooled over a task's cells, untrained weights separately. Encoders share the examples, so it is
    conservative for differences between them.
    """
    if not is_there(folder.scores_file) or ledger.empty:
        return pd.DataFrame()
    scores = read_parquet(folder.scores_file, "`study report` writes it from the records")
    if scores.empty:
        return pd.DataFrame()
    scores["examples"] = scores[_SPLITS].astype(float).sum(axis=1)
    scores["truncated_examples"] = scores["truncated_examples"].astype(float).fillna(0)
    scores["lost_share"] = scores.get("lost_share", np.nan)  # older records lack it
    columns = variant_columns(folder, ledger)
    settings, built = in_words(ledger, columns), [column for column in columns if column.startswith("architecture.")]
    runs = ledger.rename(columns={"architecture.depth": "depth"}).assign(
        setting=settings,
        name=list(map(at_budget, _named(ledger, settings), budgets_in_words(ledger))),
        architecture=_named(ledger, in_words(ledger, built)),
        origin=_origins(ledger),
    )
    runs = runs[runs["run_id"].isin(scores["run_id"])]
    runs = runs.assign(**_losses(folder, runs)).set_index("run_id")[
        [*_OF_CELL, *_OF_LOSS, "origin", "architecture", "cell", "data_fingerprint"]
    ]
    scores = scores[_OF_SCORE].assign(series=series(scores)).join(runs, on="run_id", how="inner")
    used = set(usable(ledger, folder.trial_seeds())["run_id"])
    untrained = scores["protocol"] == "random_init"
    rows = []
    for _, of_task in scores.groupby("series", sort=True):
        is_untrained = untrained.loc[of_task.index]
        random = _means(of_task[is_untrained], "architecture")
        trained = of_task[~is_untrained & of_task["run_id"].isin(used)]
        means, baselines = _means(trained, "cell"), baseline(folder, *map(str, of_task[["task", "task_fingerprint"]].iloc[0]))
        rows += [_row(of_cell, means[str(cell)], random, baselines) for cell, of_cell in trained.groupby("cell")]
    points = pd.DataFrame(rows)
    return points if points.empty else points.sort_values(["task", "loss"], ascending=[True, False], ignore_index=True)


_Mean = tuple[float, ScoreNoise]


def _row(scores: pd.DataFrame, mean: _Mean, random: dict[str, _Mean], record: BaselineRecord | None) -> dict[str, object]:
    (score, noise), first, most = mean, scores.iloc[0], scores.sort_values("truncated_examples").iloc[-1]
    untrained, its_noise = random.get(str(first["architecture"]), (np.nan, UNKNOWN))
    each_run, of_runs = scores.drop_duplicates("run_id"), scores.groupby("run_id")["test"].mean()
    names = {
        "task": first["series"],
        "metric": first["metric"],
        "cell": first["cell"],
        "runs": tuple(each_run["run_id"]),
        "run_scores": tuple(of_runs[each_run["run_id"]]),
        "origins": tuple(each_run["origin"].unique()),
        "knobs": first["knobs"],
        "truncated_examples": most["truncated_examples"],
        "examples": most["examples"],
        "lost_share": scores["lost_share"].max(),
    }
    facts = {name: first[name] for name in (*_OF_CELL, *_OF_LOSS)} | {"loss": each_run["loss"].mean()}
    measured = {"score": score, **noise_columns(noise), "seeds": scores["seed"].nunique()}
    beside = {} if record is None else record.beside(str(first["metric"]), str(first["data_fingerprint"]))
    baselines = {name: beside.get(name, np.nan) for name in ("majority", "bag_of_words")}
    return names | facts | measured | {"random": untrained, "random_half": its_noise.half} | baselines


def _losses(folder: SweepFolder, runs: pd.DataFrame) -> dict[str, Any]:
    """Return each run's `loss`, its `unit` and its `validation`, as its cell has them (study.evidence.cells)."""
    if folder.sweep().compares_tokenizers:
        of_words = runs.reindex(columns=["bits_per_masked_byte", "masked_words"])
        return {"loss": of_words["bits_per_masked_byte"], "unit": PER_BYTE, "validation": of_words["masked_words"]}
    texts = zip(runs["run_id"].astype(str), runs["data_fingerprint"].astype(str), strict=True)
    validation = [validation_of(folder.run(run).config(), text) for run, text in texts]
    units = runs.reindex(columns=[OBJECTIVE])[OBJECTIVE].eq("rtd").map({True: DETECTED, False: NATS})
    return {"loss": runs["loss_nats"], "unit": units, "validation": validation}


def noise_columns(noise: ScoreNoise) -> dict[str, object]:
    """Return the columns of a score's noise."""
    return {"noise": noise, "error": noise.error, "half": noise.half}


def _named(ledger: pd.DataFrame, settings: list[str]) -> list[str]:
    return list(map(shape_and_variant, ledger["shape"], settings))


def _origins(ledger: pd.DataFrame) -> list[str]:
    """Root of each run: InitFrom, else trunk, else itself."""
    starts = map(parse_start, ledger[START].astype(str)) if START in ledger else [None] * len(ledger)
    return [run if start is None else start.folder.name for run, start in zip(runs_of(ledger), starts, strict=True)]


def _means(scores: pd.DataFrame, by: str) -> dict[str, _Mean]:
    """Mean and noise of each group, between encoders if any group has two, else seeds.

    A run is an encoder; untrained weights of one architecture and data are one.
    """
    of_encoders = scores.groupby([by, "encoder"], as_index=False).agg(test=("test", "mean"))
    units = of_encoders if len(of_encoders) > of_encoders[by].nunique() else scores
    variance, freedom = pooled_variance(units.groupby(by)["test"].agg(list))
    over_examples = scores.astype({"test_standard_error": float}).groupby(by)["test_standard_error"].mean()
    mean, n = of_encoders.groupby(by)["test"].mean(), units.groupby(by).size()
    table = pd.DataFrame({"mean": mean, "over_examples": over_examples, "n": n})
    return {
        str(name): (mean, noise_of_seeds(variance, freedom, n, over_examples))
        for name, mean, over_examples, n in table.itertuples(name=None)
    }


_COLUMNS = {
    "cola": ("CoLA", {"matthews": 0}),
    "sst2": ("SST-2", {"accuracy": 0}),
    "mrpc": ("MRPC", {"f1": 0, "accuracy": 1}),
    "stsb": ("STS-B", {"pearson": 0, "spearman": 1}),
    "qqp": ("QQP", {"f1": 0, "accuracy": 1}),
    "mnli": ("MNLI-m", {"accuracy": 0}),
    "qnli": ("QNLI(v2)", {"accuracy": 0}),
    "rte": ("RTE", {"accuracy": 0}),
    "wnli": ("WNLI", {"accuracy": 0}),
}
"""The column of each task in the table of miniatures, and the position of each metric among its slash-separated numbers."""


@dataclass(frozen=True)
class PublishedScore:
    """One published score of 0 to 1: a model, its sizes by each count, the scored split (test or dev), and the source."""

    model: str
    sizes: Mapping[str, int]
    score: float
    split: str
    source: str

    @property
    def family(self) -> str:
        """The model's name without its size, such as BERT."""
        return self.model.partition("-")[0]


def published_scores(task: str, metric: str) -> tuple[PublishedScore, ...]:
    """Return the published scores of a task by a metric, smallest model first.

    Those of BERT's miniatures are of GLUE's secret test sets (Turc et al. 2019).
    """
    column, positions = _COLUMNS.get(task, ("", {}))
    rows = [
        (row["model"], row[column].split("/")[positions[metric]], "test", "Turc et al. 2019")
        for row in _rows("bert_miniatures_glue.csv")
        if metric in positions
    ]
    rows += [
        (row["model"], row["score"], row["split"], row["source"])
        for row in _rows("published_scores.csv")
        if (row["task"], row["metric"]) == (task, metric)
    ]
    published = (
        PublishedScore(model, _sizes(model), round(float(score) / 100, 6), split, source)
        for model, score, split, source in rows
    )
    return tuple(sorted(published, key=lambda one: one.sizes["parameters"]))


def _rows(name: str) -> list[dict[str, str]]:
    with files("study.evidence").joinpath(name).open(encoding="utf-8") as table:
        return list(csv.DictReader(table))


def _sizes(model: str) -> dict[str, int]:
    named = find(model)
    assert named is not None, f"{model} is not in the catalogue"
    return parameters(named.architecture).totals()
