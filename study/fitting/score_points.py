"""Downstream scores joined to the ledger: one row an encoder and task, its score beside what needs no pre-training."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from study.fitting.ledgers import usable
from study.folders import SweepFolder
from study.score_records import BaselineRecord, MeanNoise, baseline, mean_noise

FROZEN = " (frozen)"
"""What the name of a task ends with where only a head was trained, on features that stay as they are."""

_OF_RUN = {
    "cell": "cell",
    "shape": "shape",
    "depth": "architecture.depth",
    "parameters": "parameters",
    "train_flops": "train_flops",
    "tokens": "tokens",
    "loss_nats": "loss_nats",
}
"""What is known of an encoder, and the column of the ledger that holds it."""

_NONE = (np.nan, MeanNoise(np.nan, np.nan, np.nan))

_OF_SCORE = ["task", "task_fingerprint", "metric", "run_id", "protocol", "update", "seed", "test", "test_standard_error"]


def score_points(folder: SweepFolder, ledger: pd.DataFrame) -> pd.DataFrame:
    """Each usable run at the best knobs of its cell on each task, by task and falling loss; empty where nothing was scored.

    Columns: `task` (frozen features apart), `metric`, `run_id`, the facts of the run, `score`, the mean over seeds of the
    metric on the split reported on, its standard `error`, the degrees of `freedom` of that and `half` the 95% interval,
    `seeds`; `random` and `random_half`, the same of the architecture with weights that were never trained; and the baselines
    `majority` and `bag_of_words`, not a number where there is none.
    The noise (see study.score_records.mean_noise) is that over examples and, where any encoder has two seeds, between seeds, by
    the deviation pooled over the encoders of a task, those with untrained weights apart. All encoders meet the same examples,
    so that for a difference between two of them it is more than the true one, if anything.
    """
    if not folder.scores_file.exists() or ledger.empty:
        return pd.DataFrame()
    scores = pd.read_parquet(folder.scores_file)
    if scores.empty:
        return pd.DataFrame()
    runs = ledger.set_index("run_id")[list(_OF_RUN.values())].set_axis(list(_OF_RUN), axis=1)
    scores = scores[_OF_SCORE].join(runs, on="run_id", how="inner")
    scores["series"] = scores["task"] + np.where(scores["update"] == "head", FROZEN, "")
    used = set(usable(ledger)["run_id"])
    untrained = scores["protocol"] == "random_init"
    rows = []
    for _, of_task in scores.groupby("series", sort=True):
        is_untrained = untrained.loc[of_task.index]
        without, trained = of_task[is_untrained], of_task[~is_untrained & of_task["run_id"].isin(used)]
        random = {str(shape): _mean(found, _between(without)) for shape, found in without.groupby("shape")}
        between, known = _between(trained), _baselines(folder, of_task)
        rows += [_row(found, between, random, known) for _, found in trained.groupby("run_id")]
    points = pd.DataFrame(rows)
    return points if points.empty else points.sort_values(["task", "loss_nats"], ascending=[True, False], ignore_index=True)


@dataclass(frozen=True)
class _Between:
    """The standard deviation between seeds, pooled over encoders, and how many degrees of freedom it has, 0 without any."""

    deviation: float
    freedom: int


def _row(
    found: pd.DataFrame, between: _Between, random: dict[str, tuple[float, MeanNoise]], known: dict[str, float]
) -> dict[str, object]:
    first = found.iloc[0]
    (score, noise), (untrained, its_noise) = _mean(found, between), random.get(str(first["shape"]), _NONE)
    names = {"task": first["series"], "metric": first["metric"], "run_id": first["run_id"]}
    facts = {name: first[name] for name in _OF_RUN}
    measured = {"score": score, **asdict(noise), "seeds": len(found)}
    return names | facts | measured | {"random": untrained, "random_half": its_noise.half} | known


def _mean(found: pd.DataFrame, between: _Between) -> tuple[float, MeanNoise]:
    over_examples = float(found["test_standard_error"].astype(float).mean())
    return float(found["test"].mean()), mean_noise(between.deviation, between.freedom, len(found), over_examples)


def _between(of_task: pd.DataFrame) -> _Between:
    """The noise between seeds."""
    groups = of_task.groupby("run_id")["test"]
    freedom = int((groups.size() - 1).sum())
    squares = (of_task["test"] - groups.transform("mean")).pow(2).sum()
    return _Between(float(np.sqrt(squares / max(1, freedom))), freedom)


def _baselines(folder: SweepFolder, of_task: pd.DataFrame) -> dict[str, float]:
    """The headline metric of what needs no encoder."""
    first = of_task.iloc[0]
    record: BaselineRecord | None = baseline(folder, str(first["task"]), str(first["task_fingerprint"]))
    scores = {} if record is None else record.scores
    return {name: scores.get(name, {}).get(str(first["metric"]), np.nan) for name in ("majority", "bag_of_words")}
