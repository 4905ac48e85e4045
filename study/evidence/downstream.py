"""What downstream scores say of a sweep: each task's trend over the loss, its law and its forecast, and the average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.errors import InputError
from study.base.statistics import noise_of_mean, pooled_variance
from study.evidence.paired import holm
from study.evidence.score_points import noise_columns, score_points
from study.evidence.score_trends import SAME, Trend, p_value_of, trend
from study.laws.catalogue import LAWS
from study.laws.estimation import Fit, Settings, fit
from study.laws.forecasting import Forecast, forecast, forecast_to_dict, select_largest_runs
from study.laws.law import Law
from study.laws.observations import Observations
from study.laws.score_laws import ScoreBetween
from study.laws.two_steps import forecast_two_steps
from study.store.sweep_folder import SweepFolder

AVERAGE = "average"

SHAPES_HELD_OUT = 0.2
"""The share of shapes whose scores are held out and forecast: the largest, at least one."""

FREE_FROM = 12
"""From so many shapes on, a law also fits chance and ceiling; from fewer only steepness and place, between chance and 1."""

FLOOR_FROM = 5
"""From so many shapes on, a law also fits the floor of the loss."""

_SETTINGS = Settings(space="linear", bootstrap=200, starts=32)
_LOSS_SETTINGS = Settings(bootstrap=200, starts=32)
_VARIABLES = {"loss": "loss_nats", "parameters": "parameters", "tokens": "tokens"}


@dataclass(frozen=True)
class Beside:
    """How many encoders score above what needs no pre-training, and how many below it, beyond noise, of how many compared."""

    above: int
    below: int
    of: int

    @classmethod
    def of_sides(cls, sides: pd.Series[float]) -> Beside:
        """From 1 for an encoder above, −1 for one below, 0 for one within noise, and no number for one not compared."""
        return cls(int((sides > 0).sum()), int((sides < 0).sum()), int(sides.count()))


@dataclass(frozen=True)
class TaskScores:
    """One task, or the average over tasks, over the encoders of a sweep: its cells, with one run per pre-training seed.

    `points` are rows of study.evidence.score_points by falling loss. `chance` is the score of the majority class, None where it
    was not measured. `law` gives the score at a loss. `forecast` is of the largest shapes at their measured loss,
    `forecast_from_sizes` at the loss that a law of sizes predicts. A text in their place says why there is none.
    """

    task: str
    metric: str
    chance: float | None
    points: pd.DataFrame = field(repr=False)
    trend: Trend | None
    law: Fit | str
    forecast: Forecast | str
    forecast_from_sizes: Forecast | str

    @property
    def least_p_value(self) -> float:
        """The p of the trend if scores rose with every fall of the loss: no other order of these encoders has a lower one."""
        loss = self.points["loss_nats"].to_numpy(dtype=float)
        return p_value_of(loss, -loss, shapes_of(self.points))

    @property
    def is_forecast(self) -> NDArray[np.bool_]:
        """Of each encoder whether it is one of those that were forecast."""
        labels = [one.labels for one in (self.forecast, self.forecast_from_sizes) if isinstance(one, Forecast)]
        return np.isin(observed(self.points).labels, labels)

    @property
    def above_untrained(self) -> tuple[int, int]:
        """How many encoders score above the same architecture untrained and chance, beyond noise, of how many compared."""
        untrained = self._sides_of_untrained
        above = untrained > 0
        if self.chance is not None:
            above &= self._sides(self.chance) > 0
        return int(above.sum()), int(untrained.count())

    @property
    def beside_untrained(self) -> Beside:
        """The encoders beside the same architectures untrained."""
        return Beside.of_sides(self._sides_of_untrained)

    @property
    def beside_words(self) -> Beside:
        """The encoders beside a bag of words, whose unmeasured noise over examples is taken to equal theirs.

        If its score were taken as exact, an equal encoder would differ significantly in one draw of six where the two are right
        on different examples, and in one of ten at a correlation of 0.3.
        """
        halves = [replace(noise, over_seeds=0.0, freedom=math.inf).half for noise in self.points["noise"]]
        return Beside.of_sides(self._sides(self.points["bag_of_words"], pd.Series(halves, self.points.index)))

    @property
    def _sides_of_untrained(self) -> pd.Series[float]:
        return self._sides(self.points["random"], self.points["random_half"])

    def _sides(self, other: pd.Series[float] | float, half: pd.Series[float] | float = 0.0) -> pd.Series[float]:
        """For each encoder 1 where it scores above another score beyond noise, −1 below, else 0; NaN without the other.

        Noise is the root of the summed squares of half its 95% interval and `half`, that of the other.
        """
        over = self.points["score"] - other
        noise = np.maximum(np.hypot(self.points["half"], half), SAME)
        sides = (over > noise).astype(float) - (over < -noise).astype(float)
        return sides.where(over.notna())

    @property
    def best(self) -> pd.Series[Any]:
        """The encoder of the highest score."""
        return self.points.iloc[int(self.points["score"].argmax())]

    @property
    def without_scale(self) -> str | None:
        """Why scores of the task cannot be put between chance and 1, None where they can."""
        if self.chance is None:
            return "its chance was not measured"
        return None if self.chance < 1 else "the majority class is always right"

    @property
    def normalised(self) -> pd.DataFrame:
        """(score − chance)/(1 − chance) of each encoder, its `noise`, and the same of its `runs`, by cell.

        Every metric is 1 at its best, whatever encoders are scored.
        """
        assert self.chance is not None
        chance, width = self.chance, 1 - self.chance
        columns = {
            "score": (self.points["score"] - chance) / width,
            "noise": [noise.over(width) for noise in self.points["noise"]],
            "runs": self.points["runs"],
            "run_scores": [tuple((score - chance) / width for score in scores) for scores in self.points["run_scores"]],
        }
        return pd.DataFrame(columns).set_axis(self.points["cell"])

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold."""
        trend = None if self.trend is None else asdict(self.trend) | {"verdict": self.trend.verdict}
        law = {"status": f"none: {self.law}"} if isinstance(self.law, str) else self.law.to_dict()
        shown = self.points.drop(columns=["noise", "origins", "run_scores"])
        rows = shown.astype(object).where(shown.notna(), None).to_dict("records")
        above, compared = self.above_untrained
        return {
            "task": self.task,
            "metric": self.metric,
            "chance": self.chance,
            "trend": trend,
            "above_untrained": {"encoders": above, "of": compared},
            "beside_untrained": asdict(self.beside_untrained),
            "beside_bag_of_words": asdict(self.beside_words),
            "law": law,
            "forecast": forecast_to_dict(self.forecast),
            "forecast_from_sizes": forecast_to_dict(self.forecast_from_sizes),
            "scores": rows,
        }


@dataclass(frozen=True)
class DownstreamEvidence:
    """The tasks of a sweep by name, and their average where one can be taken; `left_out` says of other tasks why not."""

    tasks: tuple[TaskScores, ...]
    average: TaskScores | None
    left_out: dict[str, str]

    @property
    def all(self) -> tuple[TaskScores, ...]:
        """The tasks, and the average behind them."""
        return self.tasks if self.average is None else (*self.tasks, self.average)

    def to_dict(self) -> dict[str, Any]:
        """What `fits/downstream.json` holds."""
        average = None if self.average is None else self.average.to_dict()
        return {"tasks": [task.to_dict() for task in self.tasks], "average": average, "left_out_of_average": self.left_out}


def downstream(folder: SweepFolder, ledger: pd.DataFrame) -> DownstreamEvidence | None:
    """All that the scores of a sweep say, joined to its ledger; None where nothing was scored."""
    points = score_points(folder, ledger)
    if points.empty:
        return None
    tasks = tuple(_task(of_task.reset_index(drop=True)) for _, of_task in points.groupby("task", sort=True))
    average, left_out = _average(tasks)
    return DownstreamEvidence(_corrected(tasks), average, left_out)


def _corrected(tasks: tuple[TaskScores, ...]) -> tuple[TaskScores, ...]:
    """The tasks with the p of their trends adjusted for one another."""
    adjusted = holm([None if task.trend is None else task.trend.p_value for task in tasks])
    return tuple(
        task if task.trend is None else replace(task, trend=replace(task.trend, p_value_holm=p_value))
        for task, p_value in zip(tasks, adjusted, strict=True)
    )


def _task(points: pd.DataFrame) -> TaskScores:
    first = points.iloc[0]
    chance = None if pd.isna(first["majority"]) else float(first["majority"])
    law = LAWS["score-of-loss"] if points["shape"].nunique() >= FREE_FROM else between(chance or 0.0)
    observations = observed(points)
    over_loss = replace(observations, columns={"loss": observations.columns["loss"]})
    law_fit: Fit | str
    try:
        law_fit = fit(law, over_loss, _SETTINGS)
    except InputError as error_found:
        law_fit = str(error_found.problems[0])
    return TaskScores(
        task=first["task"],
        metric=first["metric"],
        chance=chance,
        points=points,
        trend=_trend(points),
        law=law_fit,
        forecast=forecast(law, over_loss, _SETTINGS, SHAPES_HELD_OUT),
        forecast_from_sizes=_forecast_from_sizes(points, observations, law),
    )


def _trend(points: pd.DataFrame) -> Trend | None:
    """The trend over the loss, untested where encoders began as one run, since they share its luck.

    Encoders that do not follow the loss, in three to six trunks of three or four branches whose luck is as wide as their own
    scatter, would seem to follow it in 15% to 24% of draws.
    """
    loss, score = (points[column].to_numpy(dtype=float) for column in ("loss_nats", "score"))
    found = trend(loss, score, list(points["noise"]), shapes_of(points))
    return found.untested if found is not None and points["origins"].explode().duplicated().any() else found


def _forecast_from_sizes(points: pd.DataFrame, observations: Observations, law: Law) -> Forecast | str:
    """The two-step forecast, or why there is none: encoders of several variants follow no one law of the sizes."""
    if len(points[["shape", "setting"]].drop_duplicates()) > points["shape"].nunique():
        return "none: encoders are of several variants, each of which has a law of the sizes of its own"
    of_loss = _law_of_loss(points[~select_largest_runs(observations, SHAPES_HELD_OUT)])
    return forecast_two_steps(observations, SHAPES_HELD_OUT, _LOSS_SETTINGS, (of_loss, law))


def _law_of_loss(points: pd.DataFrame) -> Law:
    """The law of the loss that these encoders suffice for: in tokens too where they vary, with a floor where shapes suffice."""
    if points["tokens"].nunique() > 1:
        return LAWS["chinchilla"]
    return LAWS["power-floor" if points["shape"].nunique() >= FLOOR_FROM else "power"]


def between(chance: float) -> Law:
    """The law of a score at a loss between a known chance and 1."""
    free = LAWS["score-of-loss"]
    formula = f"{chance:.4g} + {1 - chance:.4g}/(1 + exp(k·(L − L0)))"
    return ScoreBetween("score-of-loss", formula, free.conventions, free.source, "score", max(chance, 0.0))


def shapes_of(points: pd.DataFrame) -> NDArray[np.int64]:
    """The number of the shape of each encoder."""
    return pd.factorize(points["shape"])[0].astype(np.int64)


def observed(points: pd.DataFrame) -> Observations:
    """Scores at losses; cells of one shape go together, and shapes are ordered by the largest training budget."""
    shapes = shapes_of(points)
    return Observations(
        columns={name: points[column].to_numpy(dtype=float) for name, column in _VARIABLES.items()},
        response=points["score"].to_numpy(dtype=float),
        runs=shapes,
        clusters=shapes,
        cluster="shape",
        labels=tuple(f"{shape} ({', '.join(runs)})" for shape, runs in zip(points["name"], points["runs"], strict=True)),
        budget=points["train_flops"].to_numpy(dtype=float),
        roles={"loss": "loss_nats", "score": str(points["task"].iloc[0])},
    )


def _average(tasks: tuple[TaskScores, ...]) -> tuple[TaskScores | None, dict[str, str]]:
    """The mean over tasks of scores between chance (0) and perfect (1), of encoders that met all those tasks."""
    reasons = {task.task: why for task in tasks if (why := task.without_scale) is not None}
    used = [task for task in tasks if task.task not in reasons]
    if len(used) < 2:
        return None, reasons
    of_tasks = [task.normalised for task in used]
    scores = pd.concat([of_task["score"] for of_task in of_tasks], axis=1).dropna()
    if scores.empty:
        return None, reasons
    facts = used[0].points.set_index("cell").loc[scores.index]
    noises = noises_over_tasks(of_tasks).loc[scores.index]
    points = facts.reset_index().assign(
        task=AVERAGE,
        metric=f"mean of {len(used)} tasks, 0 chance, 1 perfect",
        score=scores.mean(axis=1).to_numpy(),
        **pd.DataFrame([noise_columns(noise) for noise in noises]),
        random=np.nan,
        random_half=np.nan,
        majority=0.0,
        bag_of_words=np.nan,
    )
    return _task(points.sort_values("loss_nats", ascending=False, ignore_index=True)), reasons


def noises_over_tasks(of_tasks: Sequence[pd.DataFrame]) -> pd.Series[Any]:
    """The noise of the mean over tasks (TaskScores.normalised) of the cells scored on all of them.

    A lucky run of pre-training is lucky on every task, so runs are averaged over tasks first and their deviation is pooled over
    cells. A run that lacks a task is left out; a cell counts as many runs as the task with the fewest. Where no cell has two
    runs of all tasks, seeds of fine-tuning scatter instead, independent between tasks, as examples always are.
    """
    parts = pd.concat([of_task["noise"] for of_task in of_tasks], axis=1).dropna()
    noises = pd.Series([noise_of_mean(of_cell) for of_cell in parts.to_numpy().tolist()], parts.index)
    each_run = [of_task.explode(["runs", "run_scores"]).set_index("runs", append=True)["run_scores"] for of_task in of_tasks]
    of_runs = pd.concat(each_run, axis=1).dropna().astype(float).mean(axis=1).rename("score").reset_index()
    variance, freedom = pooled_variance(of_runs.groupby("cell")["score"].agg(list))
    if not freedom:
        return noises
    fewest = pd.concat([of_task["runs"].map(len) for of_task in of_tasks], axis=1).min(axis=1)[noises.index]
    of_cells = zip(noises, fewest, strict=True)
    return pd.Series([replace(noise, over_seeds=variance / n, freedom=freedom) for noise, n in of_cells], noises.index)
