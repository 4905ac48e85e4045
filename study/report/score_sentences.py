"""Downstream scores in words and tables: which tasks follow the loss, and the forecasts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from study.base.grouping import grouped
from study.base.quantities import error_text, plural, plus_minus
from study.base.statistics import CONFIDENCE
from study.base.text import joined, status_words, table, table_of
from study.config.run_config import MOST_UNKNOWN
from study.evidence.downstream import AVERAGE, DownstreamEvidence, TaskScores
from study.evidence.evidence import Evidence
from study.evidence.score_points import published_scores
from study.evidence.score_trends import Trend, Verdict
from study.laws.forecasting import Forecast

_WORDS: dict[Verdict, str] = {
    "monotone": "scores follow the loss, monotone: no encoder of lower loss scores lower {beyond}",
    "rises": "scores rise as the loss falls, but not monotonically",
    "falls": "scores fall as the loss falls",
    "undecided": "scores show no decided relation to the loss",
}


_HALF = "± 95%"

NEAR = 2.0
"""The largest ratio of parameters between an encoder and the published one beside it."""


def score_findings(evidence: Evidence) -> list[str]:
    """Which tasks follow the loss, comparisons with baselines, and the best average; empty without scores."""
    scores = evidence.downstream
    if scores is None:
        return []
    of_encoders = (*_compared(evidence, scores), *_verdicts(scores), *_beside_baselines(scores), *_average(scores))
    return [*of_encoders, *_unusual(scores), *_truncated(scores), *_lost(scores)]


def _compared(evidence: Evidence, scores: DownstreamEvidence) -> Iterator[str]:
    """Yield which encoders a task is related to the loss of, where not all losses compare."""
    related = [task for task in scores.all if task.trend is not None and task.validations > 1]

    def among(task: TaskScores) -> tuple[str, str]:
        return f"{len(task.compared)} of {len(task.points)} encoders", evidence.scales[str(task.compared["cell"].iloc[0])]

    for (encoders, scale), tasks in grouped(related, among).items():
        yield (
            f"{', '.join(task.task for task in tasks)}: losses of different text, masks or objectives do not compare, so "
            f"trend, law and forecast are of {encoders}, those of {scale}."
        )


def _verdicts(scores: DownstreamEvidence) -> Iterator[str]:
    verdicts = {task.task: None if task.trend is None else task.trend.verdict for task in scores.tasks}
    by_verdict = grouped(verdicts, verdicts.__getitem__)
    for verdict, words in _WORDS.items():
        if names := by_verdict.get(verdict):
            beyond = words.format(beyond=_beyond(task for task in scores.tasks if task.task in names))
            yield f"{', '.join(names)}: {beyond} (Holm, 5%){_hopeless(scores, names) if verdict == 'undecided' else ''}."
    if "untested" in by_verdict:
        correlations = ", ".join(
            f"{task.task} {task.trend.correlation:+.2f}"
            for task in scores.tasks
            if task.trend is not None and task.trend.verdict == "untested"
        )
        began = "encoders that began as one, with layers of one trained encoder or on one trunk, are not drawn apart"
        why = f"no interval or p, since {began}"
        yield f"Rank correlation with the falling loss: {correlations}; {why}."
    if too_few := by_verdict.get(None):
        of = " of losses that compare" if any(task.validations > 1 for task in scores.tasks if task.task in too_few) else ""
        yield f"{', '.join(too_few)}: fewer than three encoders{of}, or all scores alike; nothing can be said about the loss."


def _hopeless(scores: DownstreamEvidence, undecided: Sequence[str]) -> str:
    """Return the undecided tasks that so few encoders cannot decide in any order, given so many tasks."""
    tested = {task.task: task for task in scores.tasks if task.trend and task.trend.p_value is not None}
    few = {name: len(tested[name].compared) for name in undecided if tested[name].least_p_value * len(tested) >= 1 - CONFIDENCE}
    if not few:
        return ""
    which = "" if len(few) == len(undecided) else f" ({', '.join(few)})"
    most = plural(max(few.values()), "encoder")
    one = "it" if len(tested) == 1 else f"one of {len(tested)} tasks"
    return f"; {most} at most{which} cannot decide {one} in whatever order, more of them might"


def _beside_baselines(scores: DownstreamEvidence) -> Iterator[str]:
    """Where pre-training helps or hurts, and where a bag of words beats an encoder."""
    beyond = _beyond(scores.tasks)
    if compared := {task.task: task.above_untrained for task in scores.tasks if task.beside_untrained.of}:
        none = ", ".join(name for name, (encoders, _) in compared.items() if not encoders)
        rest = f"; none on {none}" if none and any(encoders for encoders, _ in compared.values()) else ""
        baselines = "the same encoders untrained and above the majority class"
        yield f"Encoders above {baselines}, {beyond}, each tested at 5%: {_where(compared)}{rest}."
        below = _where({task.task: (task.beside_untrained.below, task.beside_untrained.of) for task in scores.tasks})
        yield f"Encoders below the same encoders untrained, {beyond} likewise: {below}."
    if words := {task.task: task.beside_words for task in scores.tasks if task.beside_words.of}:
        above = _where({name: (beside.above, beside.of) for name, beside in words.items()})
        below = _where({name: (beside.below, beside.of) for name, beside in words.items()})
        yield f"Beside a bag of words, {beyond} likewise, encoders above: {above}; below: {below}."


def _beyond(tasks: Iterable[TaskScores]) -> str:
    """Return beyond which noise scores differ: that of examples alone where no task has two seeds."""
    return "beyond the noise of examples" if all(task.of_one_seed for task in tasks) else "beyond noise"


def _where(counts: Mapping[str, tuple[int, int]]) -> str:
    """Return the tasks with such encoders, and how many of how many."""
    return ", ".join(f"{task} {_of(count)}" for task, count in counts.items() if count[0]) or "none on any task"


def _of(count: tuple[int, int]) -> str | None:
    """`k of n`, None if none was compared."""
    return f"{count[0]} of {count[1]}" if count[1] else None


def _unusual(scores: DownstreamEvidence) -> Iterator[str]:
    knobs = {task.task: str(task.points["knobs"].iloc[0]) for task in scores.tasks}
    for words, tasks in grouped(knobs, knobs.__getitem__).items():
        if words and not all(words in task for task in tasks):
            yield f"Scored with {words}: {', '.join(tasks)}."


def _truncated(scores: DownstreamEvidence) -> Iterator[str]:
    most = {task.task: task.points.sort_values("truncated_examples").iloc[-1] for task in scores.tasks}
    if truncated := ", ".join(
        f"{task} {row['truncated_examples']:,.0f} of {row['examples']:,.0f}"
        for task, row in most.items()
        if row["truncated_examples"] > 0
    ):
        yield f"Examples longer than what an encoder reads, and cut, of all splits (the most of any encoder): {truncated}."


def _lost(scores: DownstreamEvidence) -> Iterator[str]:
    most = {task.task: task.points["lost_share"].max() for task in scores.tasks}
    if lost := ", ".join(f"{task} {share:.0%}" for task, share in most.items() if share > MOST_UNKNOWN):
        yield f"Characters that are [UNK] or dropped by the tokeniser, of the worst split (the most of any encoder): {lost}."


def _average(scores: DownstreamEvidence) -> Iterator[str]:
    if scores.average is not None:
        yield from _best_on_average(scores.average, max(len(task.points) for task in scores.tasks))
        yield from _trend_of_average(scores.average)
    for reason, tasks in grouped(scores.left_out, scores.left_out.__getitem__).items():
        yield f"Left out of the average ({reason}): {', '.join(tasks)}."


def _best_on_average(average: TaskScores, encoders: int) -> Iterator[str]:
    """Yield the highest average of several encoders, beside the second; nothing for one."""
    ranked = average.points.sort_values("score", ascending=False)
    if len(ranked) < 2:
        return
    best, second = ranked.iloc[0], ranked.iloc[1]
    leads = chance_of_lead(best, second) < 1 - CONFIDENCE
    beyond = f"{'' if leads else 'not '}{_beyond([average])} above {second['name']}"
    of = f", of the {len(ranked)} of {encoders} encoders that met all of them" if len(ranked) < encoders else ""
    highest = f"{best['name']} scores highest{of}, {plus_minus(best['score'], best['half'], 3)}"
    yield f"On average ({average.metric}) {highest}, {beyond}, {second['score']:.3f}."


def chance_of_lead(best: pd.Series, other: pd.Series) -> float:
    """Return the p of the difference between two rows of scores."""
    return float(best["noise"].of_difference(other["noise"]).chance_beyond(best["score"] - other["score"]))


def best_variant(scores: DownstreamEvidence) -> str:
    """Return the variant of the highest average over tasks, and those that it outdoes (Bonferroni); empty unless several are
    scored at one shape.
    """
    task = scores.average or next(iter(scores.tasks))
    ranked = task.points.sort_values("score", ascending=False).drop_duplicates("setting")
    if len(ranked) < 2 or task.points["shape"].nunique() > 1:
        return ""
    best, others = ranked.iloc[0], ranked.iloc[1:]
    pairs = math.comb(len(task.points), 2)  # any two could have been the best and the one that it outdoes
    above, beside = list[str](), list[str]()
    for _, row in others.iterrows():
        leads = chance_of_lead(best, row) < (1 - CONFIDENCE) / pairs
        (above if leads else beside).append(f"{row['setting']} ({row['score']:.3f})")
    tasks = plural(len(scores.tasks) - len(scores.left_out), "task")
    over = f"averaged over {tasks} (0 chance, 1 perfect)" if scores.average else f"on {task.task}"
    low, high = best["score"] - best["half"], best["score"] + best["half"]
    highest = f"{best['score']:.3f} (95% interval {low:.3f} to {high:.3f})"
    if not above:
        lowest = f"the lowest is that with {beside[-1]}"
        return f"{over}, the highest score is {highest} with {best['setting']}, not significantly above any other, and {lowest}"
    unsure = f", but not significantly above those with {joined(beside)}" if beside else ""
    return (
        f"{over}, scores are highest with {best['setting']}, {highest}, significantly above those with {joined(above)}{unsure}"
    )


def _trend_of_average(average: TaskScores) -> Iterator[str]:
    """Whether the average follows the loss, as one test separate from those of the tasks."""
    if (trend := average.trend) is None:
        return
    words = f"The average's rank correlation with the falling loss is {trend.correlation:+.2f}"
    shapes = average.compared["shape"].nunique()
    encoders = plural(trend.n, "encoder") + (f" of {plural(shapes, 'shape')}" if shapes < trend.n else "")
    if trend.p_value is None:
        yield f"{words} ({encoders}, not drawn apart)."
    else:
        interval = "" if trend.low is None else f"95% interval {_interval(trend)}, "
        yield f"{words} ({interval}p = {trend.p_value:.2g}, {encoders}): {trend.verdict}."
    if untrained := average.untrained:
        yield (
            f"Untrained, the same encoders' average has a rank correlation of {untrained.score:+.2f} with the trained ones' "
            f"falling loss, through their sizes; what training adds to it has {untrained.gain:+.2f}."
        )


def _interval(trend: Trend) -> str | None:
    return None if trend.low is None else f"{trend.low:+.2f} to {trend.high:+.2f}"


def trend_table(evidence: Evidence) -> str:
    """Each task's best score and baselines, and its rank correlation with the falling loss."""
    scores = evidence.downstream
    return "" if scores is None else table_of([_trend_row(task, _interval_head(scores)) for task in scores.all])


def _interval_head(scores: DownstreamEvidence) -> str:
    """Return the head of a column of halves of 95% intervals."""
    return f"{_HALF} (examples)" if scores.of_one_seed else _HALF


def _trend_row(task: TaskScores, interval: str) -> dict[str, object]:
    best, trend = task.best, task.trend
    baselines = {"untrained": "random", "majority class": "majority", "bag of words": "bag_of_words"}
    return {
        "task": task.task,
        "metric": task.metric,
        "best": f"{best['score']:.4f}",
        interval: _half(best["half"]),
        "of": best["name"],
        **{words: None if task.task == AVERAGE else _number(best[name]) for words, name in baselines.items()},
        "above both": _of(task.above_untrained),
        "rank correlation": trend and f"{trend.correlation:+.2f}",
        "95% interval": trend and _interval(trend),
        "p": trend and _chance(trend.p_value),
        "Holm p": trend and _chance(trend.p_value_holm),
        "encoders": trend and trend.n,
        "pairs against": trend and len(trend.reversals),
        "untrained's correlation": task.untrained and f"{task.untrained.score:+.2f}",
        "the gain's": task.untrained and f"{task.untrained.gain:+.2f}",
    }


def _chance(p_value: float | None) -> str | None:
    return None if p_value is None else f"{p_value:.2g}"


def law_table(evidence: Evidence) -> str:
    """Each task's law from loss to score, and its forecast of the largest encoders from the others."""
    scores = evidence.downstream
    return "" if scores is None else table_of([_law_row(task) for task in scores.all])


def _law_row(task: TaskScores) -> dict[str, object]:
    law = None if isinstance(task.law, str) else task.law
    known = law.estimates if law and law.usable and law.status != "weakly_identified" else {}
    return {
        "task": task.task,
        "law": law and law.law.formula,
        "status": f"none: {task.law}" if law is None else status_words(law.status),
        "constants": ", ".join(f"{name} {value:.3g}" for name, value in known.items()) or None,
        "forecast": law and (int(task.is_forecast.sum()) or None),
        "error at the measured loss": law and _forecast(task.forecast),
        "error from the sizes alone": law and _forecast(task.forecast_from_sizes),
    }


def _forecast(forecast: Forecast | str) -> str:
    """Return a forecast's error, its intervals' coverage, and its law's status."""
    if isinstance(forecast, str):
        return forecast
    if forecast.status == "failed":
        return "none: the law's fit to the others failed"
    return f"{forecast.mean_error}, {forecast.coverage} ({status_words(forecast.status)})"


def scores_frame(evidence: Evidence) -> pd.DataFrame:
    """Every encoder's score on every task with its interval, beside the baselines; empty if none."""
    if evidence.downstream is None:
        return pd.DataFrame()
    rows = [
        {
            "task": task.task,
            "metric": task.metric,
            "encoder": row["name"],
            "parameters": row["parameters"],
            f"loss ({row['unit']})": row["loss"],
            "score": row["score"],
            _HALF: row["half"],
            "runs": len(row["runs"]),
            "seeds": row["seeds"],
            "untrained": row["random"],
            "majority class": row["majority"],
            "bag of words": row["bag_of_words"],
        }
        for task in evidence.downstream.tasks
        for _, row in task.points.iterrows()
    ]
    return pd.DataFrame(rows)


def score_table(evidence: Evidence) -> str:
    """`scores_frame` as Markdown."""
    if evidence.downstream is None:
        return ""
    scores = scores_frame(evidence).rename(columns={_HALF: _interval_head(evidence.downstream)})
    rows = [{str(name): _written(str(name), value) for name, value in row.items()} for row in scores.to_dict("records")]
    return table_of(rows)


def _written(name: str, value: Any) -> object:
    if name == "parameters":
        return f"{value:,}"
    return _number(value) if isinstance(value, float) else value


def published_table(evidence: Evidence) -> str:
    """Return the published scores of the tasks, each beside an encoder of its size; empty if none."""
    scores = evidence.downstream
    rows = [] if scores is None else [row for task in scores.tasks for row in _published_rows(task)]
    if scores is None or not rows:
        return ""
    intro = (
        "Published scores, each of the split and from the source that its row names: `test` is GLUE's secret or CoNLL's test "
        "set, `dev` the development set, which most tasks here report. All models were pre-trained on far more text. Beside "
        f"each stands the encoder here of the nearest `parameters`, where any has up to {NEAR:g} times as many or as few."
    )
    header = ["task", "metric", "published", "split", "source", "parameters", "score", "here", "parameters", "score"]
    header.append(_interval_head(scores))
    return f"{intro}\n\n{table(header, rows)}"


def _published_rows(task: TaskScores) -> Iterator[list[object]]:
    for one in published_scores(task.task, task.metric):
        size = one.sizes["parameters"]
        away = np.abs(np.log(task.points["parameters"].to_numpy(dtype=float) / size))
        nearest = task.points.iloc[int(away.argmin())]
        here = [nearest["name"], f"{nearest['parameters']:,}", f"{nearest['score']:.4f}", _half(nearest["half"])]
        yield [
            task.task,
            task.metric,
            one.model,
            one.split,
            one.source,
            f"{size:,}",
            f"{one.score:.3f}",
            *(here if away.min() <= np.log(NEAR) else [None] * 4),
        ]


def _half(value: float) -> str | None:
    return error_text(value) if pd.notna(value) else None


def _number(value: float) -> str | None:
    return f"{value:.4f}" if pd.notna(value) else None
