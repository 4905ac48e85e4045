"""Downstream scores joined to the ledger: one row an encoder and task, its score beside what needs no pre-training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import norm, t

from study.fitting.ledgers import unusable
from study.fitting.paired import CONFIDENCE
from study.folders import SweepFolder
from study.score_records import BaselineRecord, baseline

FROZEN = " (frozen)"
"""What the name of a task ends with where only a head was trained, on features that stay as they are."""

_OF_RUN = {
    "shape": "shape",
    "depth": "architecture.depth",
    "parameters": "parameters",
    "train_flops": "train_flops",
    "tokens": "tokens",
    "loss_nats": "loss_nats",
}
"""What is known of an encoder, and the column of the ledger that holds it."""

_UPPER = (1 + CONFIDENCE) / 2

_OF_SCORE = ["task", "task_fingerprint", "metric", "run_id", "protocol", "update", "seed", "test", "test_standard_error"]


def score_points(folder: SweepFolder, ledger: pd.DataFrame) -> pd.DataFrame:
    """Each usable run at the best knobs of its cell on each task, by task and falling loss; empty where nothing was scored.

    Columns: `task` (frozen features apart), `metric`, `run_id`, the facts of the run, `score`, the mean over seeds of the
    metric on the split reported on, its standard `error` and `half` its 95% interval (Student's t), `seeds`; `random` and
    `random_half`, the same of the architecture with weights that were never trained; and the baselines `majority` and
    `bag_of_words`, not a number where there is none.
    The standard error is that of the mean over seeds, by the deviation pooled over the encoders of a task, those with untrained
    weights apart; where no encoder has two seeds, that of one score over examples.
    """
    if not folder.scores_file.exists() or ledger.empty:
        return pd.DataFrame()
    scores = pd.read_parquet(folder.scores_file)
    if scores.empty:
        return pd.DataFrame()
    runs = ledger.set_index("run_id")[list(_OF_RUN.values())].set_axis(list(_OF_RUN), axis=1)
    scores = scores[_OF_SCORE].join(runs, on="run_id", how="inner")
    scores["series"] = scores["task"] + np.where(scores["update"] == "head", FROZEN, "")
    usable = set(ledger["run_id"][~np.isin(np.arange(len(ledger)), list(unusable(ledger)))])
    untrained = scores["protocol"] == "random_init"
    rows = []
    for _, of_task in scores.groupby("series", sort=True):
        is_untrained = untrained.loc[of_task.index]
        without, trained = of_task[is_untrained], of_task[~is_untrained & of_task["run_id"].isin(usable)]
        random = {str(shape): _mean(found, _pooled(without)) for shape, found in without.groupby("shape")}
        pooled, known = _pooled(trained), _baselines(folder, of_task)
        rows += [_row(found, pooled, random, known) for _, found in trained.groupby("run_id")]
    points = pd.DataFrame(rows)
    return points if points.empty else points.sort_values(["task", "loss_nats"], ascending=[True, False], ignore_index=True)


@dataclass(frozen=True)
class _Noise:
    """The standard deviation between seeds, pooled over encoders, and how many degrees of freedom it has."""

    deviation: float
    freedom: int


@dataclass(frozen=True)
class _Mean:
    """A mean over seeds, its standard error, and half its 95% interval."""

    score: float = np.nan
    error: float = np.nan
    half: float = np.nan


def _row(found: pd.DataFrame, pooled: _Noise | None, random: dict[str, _Mean], known: dict[str, float]) -> dict[str, object]:
    first = found.iloc[0]
    own, untrained = _mean(found, pooled), random.get(str(first["shape"]), _Mean())
    names = {"task": first["series"], "metric": first["metric"], "run_id": first["run_id"]}
    facts = {name: first[name] for name in _OF_RUN}
    measured = {"score": own.score, "error": own.error, "half": own.half, "seeds": len(found)}
    return names | facts | measured | {"random": untrained.score, "random_half": untrained.half} | known


def _mean(found: pd.DataFrame, pooled: _Noise | None) -> _Mean:
    if pooled is None:
        error = float(found["test_standard_error"].astype(float).mean())
        return _Mean(float(found["test"].mean()), error, float(norm.ppf(_UPPER)) * error)
    error = pooled.deviation / np.sqrt(len(found))
    return _Mean(float(found["test"].mean()), error, float(t.ppf(_UPPER, pooled.freedom)) * error)


def _pooled(of_task: pd.DataFrame) -> _Noise | None:
    """The noise between seeds; None where no encoder has two seeds."""
    groups = of_task.groupby("run_id")["test"]
    freedom = int((groups.size() - 1).sum())
    if freedom == 0:
        return None
    return _Noise(float(np.sqrt((of_task["test"] - groups.transform("mean")).pow(2).sum() / freedom)), freedom)


def _baselines(folder: SweepFolder, of_task: pd.DataFrame) -> dict[str, float]:
    """The headline metric of what needs no encoder."""
    first = of_task.iloc[0]
    record: BaselineRecord | None = baseline(folder, str(first["task"]), str(first["task_fingerprint"]))
    scores = {} if record is None else record.scores
    return {name: scores.get(name, {}).get(str(first["metric"]), np.nan) for name in ("majority", "bag_of_words")}
