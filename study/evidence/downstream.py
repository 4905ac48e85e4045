"""Downstream scores of a sweep: each task's trend over the loss, its law and forecast, and the average over tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from study.base.errors import InputError
from study.base.statistics import ScoreNoise, noise_of_mean, pooled_variance
from study.evidence.paired import holm
from study.evidence.score_points import noise_columns, score_points
from study.evidence.score_trends import SAME, Trend, p_value_of, rank_correlation, trend
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
"""Share of shapes, the largest and at least one, whose scores are held out and forecast."""

FREE_FROM = 12
"""With this many shapes a law also fits chance and ceiling; below, only steepness and midpoint, between chance and 1."""

FLOOR_FROM = 5
"""With this many shapes a law also fits the floor of the loss."""

_SETTINGS = Settings(space="linear", starts=32)
_LOSS_SETTINGS = Settings(starts=32)
_VARIABLES = ("loss", "parameters", "tokens")


@dataclass(frozen=True)
class Beside:
    """How many encoders score above and below a baseline without pre-training, beyond noise, of those compared."""

    above: int
    below: int
    of: int

    @classmethod
    def of_sides(cls, sides: pd.Series[float]) -> Beside:
        """Count sides: 1 above, −1 below, 0 within noise, NaN not compared."""
        return cls(int((sides > 0).sum()), int((sides < 0).sum()), int(sides.count()))


@dataclass(frozen=True)
class Untrained:
    """Spearman's correlations with the falling loss of the trained encoders: what their size alone makes of scores.

    `score`: of the scores of the same encoders untrained; `gain`: of what training adds to them.
    """

    score: float
    gain: float


@dataclass(frozen=True)
class TaskScores:
    """One task, or the average over tasks, over the cells of a sweep, with one run per pre-training seed.

    `points`: rows of study.evidence.score_points by falling loss; trend, law and forecasts are of those `compared`. `chance`:
    the majority class's score, None if unmeasured. `law` maps loss to score. `forecast`: the largest shapes at their measured
    loss, `forecast_from_sizes`: at the loss that a law of sizes predicts. Text says why there is none.
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
    def compared(self) -> pd.DataFrame:
        """The encoders whose losses compare."""
        return with_comparable_losses(self.points)

    @property
    def validations(self) -> int:
        """The number of kinds of losses, of which only those of one compare."""
        return self.points["validation"].nunique()

    @property
    def of_one_seed(self) -> bool:
        """Whether no encoder has scores of two seeds, of pre-training or fine-tuning, so that noise is over examples alone."""
        return all(noise.freedom == math.inf for noise in self.points["noise"])

    @property
    def least_p_value(self) -> float:
        """The trend's lowest p for these encoders: scores rise with every fall of the loss."""
        loss = self.compared["loss"].to_numpy(dtype=float)
        return p_value_of(loss, -loss, shapes_of(self.compared))

    @property
    def is_forecast(self) -> NDArray[np.bool_]:
        """Whether each encoder was forecast."""
        labels = [one.labels for one in (self.forecast, self.forecast_from_sizes) if isinstance(one, Forecast)]
        return np.isin(observed(self.points).labels, labels)

    @property
    def above_untrained(self) -> tuple[int, int]:
        """Encoders above chance and their untrained architecture, beyond noise, and the number compared."""
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
    def untrained(self) -> Untrained | None:
        """The same encoders untrained beside the trained ones' loss; None without a trend, all scores, or any difference."""
        loss, score, random = (self.compared[column].to_numpy(dtype=float) for column in ("loss", "score", "random"))
        correlations = Untrained(*(rank_correlation(loss, values) for values in (random, score - random)))
        return None if self.trend is None or np.isnan((correlations.score, correlations.gain)).any() else correlations

    @property
    def beside_words(self) -> Beside:
        """Encoders beside a bag of words, whose unmeasured noise over examples is assumed equal to the largest of theirs.

        An encoder that gives all examples one answer has none; where all do, none is compared. With its score taken as exact,
        an equal encoder differs significantly in one draw of six if the two are right on different examples, in one of ten at
        correlation 0.3.
        """
        over_examples = pd.Series([noise.over_examples for noise in self.points["noise"]]).max()
        of_words = ScoreNoise(0.0, math.inf, float(over_examples))
        return Beside.of_sides(self._sides(self.points["bag_of_words"], of_words.half or math.nan))

    @property
    def _sides_of_untrained(self) -> pd.Series[float]:
        return self._sides(self.points["random"], self.points["random_half"])

    def _sides(self, other: pd.Series[float] | float, half: pd.Series[float] | float = 0.0) -> pd.Series[float]:
        """Per encoder: 1 if above another score beyond noise, −1 if below, else 0; NaN without the other or its noise.

        Noise = √(half² + `half`²): half the 95% intervals of the encoder and of the other.
        """
        over = self.points["score"] - other
        noise = np.maximum(np.hypot(self.points["half"], half), SAME)
        sides = (over > noise).astype(float) - (over < -noise).astype(float)
        return sides.where(over.notna() & np.isfinite(noise))

    @property
    def best(self) -> pd.Series[Any]:
        """The highest-scoring encoder."""
        return self.points.iloc[int(self.points["score"].argmax())]

    @property
    def without_scale(self) -> str | None:
        """Why scores cannot be scaled between chance and 1, if so."""
        if self.chance is None:
            return "its chance level was not measured"
        return None if self.chance < 1 else "the majority class is always right"

    @property
    def normalised(self) -> pd.DataFrame:
        """(score − chance)/(1 − chance) of each cell's encoder, trained and untrained, its `noise`, and the same of its `runs`.

        Every metric's best value is 1, whichever encoders are scored.
        """
        assert self.chance is not None
        chance, width = self.chance, 1 - self.chance
        columns = {
            "score": (self.points["score"] - chance) / width,
            "random": (self.points["random"] - chance) / width,
            "noise": [noise.over(width) for noise in self.points["noise"]],
            "runs": self.points["runs"],
            "run_scores": [tuple((score - chance) / width for score in scores) for scores in self.points["run_scores"]],
        }
        return pd.DataFrame(columns).set_axis(self.points["cell"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        trend = None if self.trend is None else asdict(self.trend) | {"verdict": self.trend.verdict}
        law = {"status": f"none: {self.law}"} if isinstance(self.law, str) else self.law.to_dict()
        shown = self.points.drop(columns=["noise", "origins", "run_scores", "lost_share"])
        rows = shown.astype(object).where(shown.notna(), None).to_dict("records")
        above, compared = self.above_untrained
        return {
            "task": self.task,
            "metric": self.metric,
            "chance": self.chance,
            "trend": trend,
            "above_untrained": {"encoders": above, "of": compared},
            "beside_untrained": asdict(self.beside_untrained),
            "untrained": None if self.untrained is None else asdict(self.untrained),
            "beside_bag_of_words": asdict(self.beside_words),
            "law": law,
            "forecast": forecast_to_dict(self.forecast),
            "forecast_from_sizes": forecast_to_dict(self.forecast_from_sizes),
            "scores": rows,
        }


@dataclass(frozen=True)
class DownstreamEvidence:
    """Tasks by name and their average; `left_out` says why tasks are not in it."""

    tasks: tuple[TaskScores, ...]
    average: TaskScores | None
    left_out: dict[str, str]

    @property
    def all(self) -> tuple[TaskScores, ...]:
        """The tasks, then the average."""
        return self.tasks if self.average is None else (*self.tasks, self.average)

    @property
    def of_one_seed(self) -> bool:
        """Whether the noise of every task is over examples alone."""
        return all(task.of_one_seed for task in self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `fits/downstream.json`."""
        average = None if self.average is None else self.average.to_dict()
        return {"tasks": [task.to_dict() for task in self.tasks], "average": average, "left_out_of_average": self.left_out}


def downstream(folder: SweepFolder, ledger: pd.DataFrame) -> DownstreamEvidence | None:
    """Analyse a sweep's scores; None if there are none."""
    points = score_points(folder, ledger)
    if points.empty:
        return None
    tasks = tuple(_task(of_task.reset_index(drop=True)) for _, of_task in points.groupby("task", sort=True))
    average, left_out = _average(tasks)
    return DownstreamEvidence(_adjust_by_holm(tasks), average, left_out)


def _adjust_by_holm(tasks: tuple[TaskScores, ...]) -> tuple[TaskScores, ...]:
    adjusted = holm([None if task.trend is None else task.trend.p_value for task in tasks])
    return tuple(
        task if task.trend is None else replace(task, trend=replace(task.trend, p_value_holm=p_value))
        for task, p_value in zip(tasks, adjusted, strict=True)
    )


def _task(points: pd.DataFrame) -> TaskScores:
    first, beside = points.iloc[0], with_comparable_losses(points)
    law, over_loss = _law_of_score(beside), _over_loss(beside)
    return TaskScores(
        task=first["task"],
        metric=first["metric"],
        chance=_chance(points),
        points=points,
        trend=_trend(beside),
        law=score_law(points),
        forecast=forecast(law, over_loss, _SETTINGS, SHAPES_HELD_OUT),
        forecast_from_sizes=_forecast_from_sizes(beside, observed(beside), law),
    )


def with_comparable_losses(points: pd.DataFrame) -> pd.DataFrame:
    """Return the encoders of the validation that most share, among equals that of the highest loss."""
    groups = [of_one for _, of_one in points.dropna(subset="loss").groupby("validation", sort=False)]
    return max(groups, key=len, default=points).reset_index(drop=True)


def score_law(points: pd.DataFrame) -> Fit | str:
    """Return the law from loss to score of one task's encoders, or why there is none."""
    beside = with_comparable_losses(points)
    try:
        return fit(_law_of_score(beside), _over_loss(beside), _SETTINGS)
    except InputError as error:
        return str(error.problems[0])


def _law_of_score(points: pd.DataFrame) -> Law:
    return LAWS["score-of-loss"] if points["shape"].nunique() >= FREE_FROM else between(_chance(points) or 0.0)


def _chance(points: pd.DataFrame) -> float | None:
    majority = points["majority"].iloc[0]
    return None if pd.isna(majority) else float(majority)


def _over_loss(points: pd.DataFrame) -> Observations:
    observations = observed(points)
    return replace(observations, columns={"loss": observations.columns["loss"]})


def _trend(points: pd.DataFrame) -> Trend | None:
    """Return the trend over the loss, None if unknown, untested if encoders share an initial run, whose luck they share.

    Otherwise encoders that do not follow the loss would seem to in 15% to 24% of draws: three to six trunks of three or four
    branches, trunk luck as wide as their own scatter.
    """
    loss, score = (points[column].to_numpy(dtype=float) for column in ("loss", "score"))
    over_loss = None if np.isnan(loss).any() else trend(loss, score, list(points["noise"]), shapes_of(points))
    return over_loss.untested if over_loss is not None and points["origins"].explode().duplicated().any() else over_loss


def _forecast_from_sizes(points: pd.DataFrame, observations: Observations, law: Law) -> Forecast | str:
    """Return the two-step forecast, or why there is none."""
    if len(points[["shape", "setting"]].drop_duplicates()) > points["shape"].nunique():
        return "none: the encoders are of several variants, and each variant needs its own law of the sizes"
    of_loss = _law_of_loss(points[~select_largest_runs(observations, SHAPES_HELD_OUT)])
    return forecast_two_steps(observations, SHAPES_HELD_OUT, _LOSS_SETTINGS, (of_loss, law))


def _law_of_loss(points: pd.DataFrame) -> Law:
    """Return the richest law that the points determine."""
    if points["tokens"].nunique() > 1:
        return LAWS["chinchilla"]
    return LAWS["power-floor" if points["shape"].nunique() >= FLOOR_FROM else "power"]


def between(chance: float) -> Law:
    """Return the law of score over loss between a known chance and 1."""
    free = LAWS["score-of-loss"]
    formula = f"{chance:.4g} + {1 - chance:.4g}/(1 + exp(k·(L − L0)))"
    return ScoreBetween("score-of-loss", formula, free.conventions, free.source, "score", max(chance, 0.0))


def shapes_of(points: pd.DataFrame) -> NDArray[np.int64]:
    """Each encoder's shape as a number."""
    return pd.factorize(points["shape"])[0].astype(np.int64)


def observed(points: pd.DataFrame) -> Observations:
    """Scores at losses, clustered by shape."""
    shapes = shapes_of(points)
    return Observations(
        columns={name: points[name].to_numpy(dtype=float) for name in _VARIABLES},
        response=points["score"].to_numpy(dtype=float),
        runs=shapes,
        clusters=shapes,
        cluster="shape",
        labels=tuple(f"{shape} ({', '.join(runs)})" for shape, runs in zip(points["name"], points["runs"], strict=True)),
        budget=points["train_flops"].to_numpy(dtype=float),
        roles={"loss": f"loss ({points['unit'].iloc[0]})", "score": str(points["task"].iloc[0])},
    )


def _average(tasks: tuple[TaskScores, ...]) -> tuple[TaskScores | None, dict[str, str]]:
    """Return the mean of scores from chance (0) to perfect (1), of encoders with all of them."""
    reasons = {task.task: why for task in tasks if (why := task.without_scale) is not None}
    used = [task for task in tasks if task.task not in reasons]
    if len(used) < 2:
        return None, reasons
    of_tasks = [task.normalised for task in used]
    scores = pd.concat([of_task["score"] for of_task in of_tasks], axis=1).dropna()
    if scores.empty:
        return None, reasons
    facts = used[0].points.set_index("cell").loc[scores.index]
    random = pd.concat([of_task["random"] for of_task in of_tasks], axis=1).loc[scores.index]
    noises = noises_over_tasks(of_tasks).loc[scores.index]
    points = facts.reset_index().assign(
        task=AVERAGE,
        metric=f"mean of {len(used)} tasks, 0 chance, 1 perfect",
        score=scores.mean(axis=1).to_numpy(),
        **pd.DataFrame([noise_columns(noise) for noise in noises]),
        random=random.mean(axis=1, skipna=False).to_numpy(),
        random_half=np.nan,
        majority=0.0,
        bag_of_words=np.nan,
    )
    return _task(points.sort_values("loss", ascending=False, ignore_index=True)), reasons


def noises_over_tasks(of_tasks: Sequence[pd.DataFrame]) -> pd.Series[Any]:
    """Noise of the mean over tasks (TaskScores.normalised), for cells scored on all of them.

    A lucky pre-training run is lucky on every task: runs are averaged over tasks first, and their deviation is pooled over
    cells. Runs that lack a task are left out; a cell counts the runs of its scarcest task. If no cell has two such runs,
    fine-tuning seeds scatter instead, independent between tasks.
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
