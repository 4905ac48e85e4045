"""What downstream scores say in plain words and as tables: which tasks follow the loss, and what was forecast."""

from __future__ import annotations

from collections.abc import Iterator

from study.findings import forecast_words
from study.fitting.downstream import Downstream, TaskScores
from study.fitting.evidence import Evidence
from study.fitting.score_trends import Trend, Verdict
from study.quantities import plural
from study.wording import table

_WORDS: dict[Verdict, str] = {
    "monotone": "follow the loss, monotone: no encoder of lower loss scores lower beyond noise",
    "rises": "rise as the loss falls, but not monotonically",
    "falls": "fall as the loss falls",
    "undecided": "show no decided relation to the loss",
}


def score_findings(evidence: Evidence) -> list[str]:
    """Which tasks are monotone in the loss, then a sentence a task and one for the average; none where nothing was scored."""
    found = evidence.downstream
    if found is None:
        return []
    return [*_verdicts(found), *(_sentence(task) for task in found.all), *_average_reasons(found)]


def _verdicts(found: Downstream) -> Iterator[str]:
    by_verdict: dict[Verdict, list[str]] = {}
    too_few = []
    for task in found.tasks:
        if task.trend is None:
            too_few.append(task.task)
        else:
            by_verdict.setdefault(task.trend.verdict, []).append(task.task)
    for verdict, words in _WORDS.items():
        if names := by_verdict.get(verdict):
            yield f"{', '.join(names)}: {words}."
    if too_few:
        yield f"{', '.join(too_few)}: fewer than three encoders, or all scores alike; nothing can be said about the loss."


def _sentence(task: TaskScores) -> str:
    row = task.points.iloc[int(task.points["score"].to_numpy(dtype=float).argmax())]
    best, half = task.best
    parts = [f"{task.task} ({task.metric}): best {best:.3f} ± {half:.3f} of {row['shape']}"]
    beside = {"commonest answer": row["majority"], "words without order": row["bag_of_words"], "untrained": row["random"]}
    parts += [f"{name} {value:.3f}" for name, value in beside.items() if value == value and task.task != "average"]
    beats, compared = task.beats_random
    if compared:
        parts.append(f"{beats} of {plural(compared, 'encoder')} beat their untrained weights")
    told = "" if task.trend is None else f"; {_trend(task.trend)}"
    return f"{', '.join(parts)}{told}; {_law(task)}."


def _trend(trend: Trend) -> str:
    words = (
        f"rank correlation with the falling loss {trend.correlation:+.2f} (95% interval {trend.low:+.2f} to {trend.high:+.2f}"
    )
    against = f", {plural(len(trend.reversals), 'pair')} against it beyond noise" if trend.reversals else ""
    return f"{words}, p = {trend.p_value:.2g}, n = {plural(trend.n, 'encoder')}){against}"


def _law(task: TaskScores) -> str:
    """The law and what was forecast by it; of several reasons why there is none, the first."""
    if isinstance(task.law, str):
        return f"no law: {task.law}"
    estimates = ", ".join(f"{name} {value:.3g}" for name, value in task.law.estimates.items())
    law = f"law {task.law.law.formula}: {task.law.status.replace('_', ' ')}, {estimates}"
    if isinstance(task.forecast, str):
        return f"{law}; {forecast_words(task.forecast)}"
    at_loss, at_size = forecast_words(task.forecast), forecast_words(task.forecast_from_sizes)
    return f"{law}; at the measured loss, {at_loss}; from the sizes alone, {at_size}"


def _average_reasons(found: Downstream) -> Iterator[str]:
    for task, reason in found.left_out.items():
        yield f"{task} is left out of the average: {reason}."


def score_table(evidence: Evidence) -> str:
    """Every encoder's score on every task with its interval, beside what needs no pre-training; empty where there is none."""
    found = evidence.downstream
    if found is None:
        return ""
    header = ["task", "metric", "shape", "parameters", "loss (nats)", "score", "± 95%", "seeds"]
    header += ["untrained", "commonest answer", "words without order"]
    rows = [
        [
            task.task,
            task.metric,
            row["shape"],
            f"{row['parameters']:,}",
            f"{row['loss_nats']:.4f}",
            f"{row['score']:.4f}",
            _number(row["half"]),
            row["seeds"],
            *(_number(row[name]) for name in ("random", "majority", "bag_of_words")),
        ]
        for task in found.tasks
        for _, row in task.points.iterrows()
    ]
    return table(header, rows)


def _number(value: float) -> str | None:
    return f"{value:.4f}" if value == value else None
