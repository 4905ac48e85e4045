"""The shared parts of downstream-score figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.base.quantities import budget_words, plural
from study.evidence.cells import CellResult
from study.evidence.downstream import AVERAGE, TaskScores
from study.evidence.evidence import Evidence
from study.plotting.hover import explain
from study.plotting.lines import line_key, line_styles, lines, of_cell
from study.plotting.style import legend_below, panels, theme, title_above

_LINES: dict[str, tuple[Literal[":", "--"], str, str]] = {
    "majority": (":", "black", "majority class"),
    "bag_of_words": ("--", "tab:brown", "bag of words"),
}
_UNTRAINED = "tab:gray"
_BUDGET = "dimgray"
_POINT: dict[str, Any] = {"linestyle": "none", "markersize": 5}
_SMALLEST, _LARGEST = 3, 6
"""The point sizes of the smallest and the largest of several budgets."""
_FORECAST: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 10, "mfc": "none", "mec": "black", "mew": 0.7}

WIDTH = 2.1
"""Inches of a panel."""


def measured(evidence: Evidence, x: str) -> pd.DataFrame:
    """One row per encoder and task, the average last: the score against the loss of its scored runs or a ledger count.

    `half` is half the 95% interval of the score `over` seeds (of pre-training or fine-tuning) and examples, or over examples if
    no encoder has two seeds. `forecast` marks encoders forecast from the others, and `budget` names the training, in order of
    tokens.
    """
    if evidence.downstream is None:
        return pd.DataFrame()
    cells = pd.DataFrame(
        [
            {"cell": cell.name, "budget": budget_words(cell.budget), "tokens": cell.tokens, **of_cell(cell)}
            for cell in evidence.cells
        ]
    )
    cells = cells.assign(line=lines(cells, among=()))
    parts = [
        pd.DataFrame(
            {
                "task": task.task,
                "panel": panel_of(task),
                "cell": task.points["cell"],
                "metric": task.metric,
                "kind": "measured",
                "x": task.points[x] if x in task.points else task.points["cell"].map(evidence.counted(x)),
                "score": task.points["score"],
                "half": task.points["half"],
                "label": task.points["name"],
                "over": "examples" if task.of_one_seed else "seeds and examples",
                "forecast": task.is_forecast,
                "trend": "" if task.trend is None else task.trend.verdict,
                **{name: task.points[name] for name in ("unit", "random", "majority", "bag_of_words")},
            }
        )
        for task in evidence.downstream.all
    ]
    return pd.concat([cells.merge(part, on="cell") for part in parts], ignore_index=True)


def scored_cells(evidence: Evidence, task: TaskScores) -> dict[str, CellResult]:
    """Return the cells of a task's points by name, each restricted to its scored runs."""
    runs = dict(zip(task.points["cell"], task.points["runs"], strict=True))
    return {cell.name: cell.among(runs[cell.name]) for cell in evidence.cells if cell.name in runs}


def panel_of(task: TaskScores) -> str:
    """Return the name of a task's panel."""
    return f"{task.task} ({task.metric})"


def drawn(
    data: pd.DataFrame,
    x: str,
    convention: str,
    finish: Callable[[Axes, pd.DataFrame], None],
    entries: list[Line2D],
    finding: Callable[[pd.DataFrame], str],
) -> Figure:
    """One panel per `panel`, a task: points with intervals, a ring around held-out encoders, untrained weights, and baselines.

    Larger budgets have larger points. `convention` says in full what the axis `x` counts; `finish` completes each panel from
    all its rows, and `finding` gives the title.
    """
    points = data[data["kind"] == "measured"]
    styles, sizes = line_styles(points), _sizes(points)
    names = list(dict.fromkeys(points["panel"]))
    with theme():
        figure, axes = panels(names, x, "score (higher is better)", columns=3, height=1.9, one_y=False)
        for panel, name in zip(axes, names, strict=True):
            rows = points[points["panel"] == name]
            for baseline, (line, colour, _) in _LINES.items():
                if rows[baseline].notna().any():
                    panel.axhline(rows[baseline].iloc[0], linestyle=line, color=colour, linewidth=1.2, zorder=1)
            panel.scatter(rows["x"], rows["random"], marker="x", color=_UNTRAINED, s=26, zorder=2)
            for (line, budget), some in rows.groupby(["line", "budget"]):
                style = styles[str(line)] | _POINT | {"markersize": sizes[budget]}
                panel.errorbar(some["x"], some["score"], some["half"].fillna(0), **style, capsize=2, elinewidth=1, zorder=4)
            held = rows[rows["forecast"].astype(bool)]
            panel.plot(held["x"], held["score"], zorder=5, **_FORECAST)
            panel.margins(y=0.15)
            explain(panel, rows, "x", "score")
            finish(panel, data[data["panel"] == name])
        legend_below(figure, [*line_key(styles, **_POINT), *_key(points, sizes), *entries])
        title_above(figure, finding(points), f"score (higher is better) against {convention}{_bars(points)}")
    return figure


def best_score(points: pd.DataFrame) -> str:
    """Return the encoder of the highest score, averaged over tasks, or of the last task."""
    last = points[points["task"] == points["task"].iloc[-1]]
    best = last.loc[last["score"].idxmax()]
    return f"Highest {best['task']} score: {best['score']:.3f}, by {best['line']}"


def rising_scores(points: pd.DataFrame) -> str:
    """On how many tasks scores rise as the loss falls."""
    trends = points[points["task"] != AVERAGE].groupby("task", sort=False)["trend"].first()
    tested = trends[~trends.isin(["", "untested"])]
    if tested.empty:
        return best_score(points)
    rising = int(tested.isin(["monotone", "rises"]).sum())
    return f"Scores rise significantly as the loss falls on {rising} of {plural(len(tested), 'task')}"


def _sizes(points: pd.DataFrame) -> dict[str, float]:
    """Return the point size of each budget; the usual one for a single budget."""
    budgets = points.groupby("budget")["tokens"].min().sort_values(kind="stable").index
    several = np.linspace(_SMALLEST, _LARGEST, len(budgets)).tolist()
    return dict(zip(budgets, several if len(budgets) > 1 else [_POINT["markersize"]], strict=True))


def _bars(points: pd.DataFrame) -> str:
    """Return the scope of the intervals, for a title; the average's is that of its tasks."""
    over = points.loc[(points["task"] != AVERAGE) & points["half"].notna()].groupby("task")["over"].first()
    if over.empty:
        return ""
    if over.nunique() == 1:
        return f"; bars: 95% over {over.iloc[0]}"
    return "; bars: 95% over examples, and seeds where a task has several"


def _key(points: pd.DataFrame, sizes: dict[str, float]) -> list[Line2D]:
    entries = [
        Line2D([], [], marker="o", color=_BUDGET, linestyle="", markersize=size, label=budget)
        for budget, size in sizes.items()
        if len(sizes) > 1
    ]
    entries += [
        Line2D([], [], linestyle=line, color=colour, label=label)
        for name, (line, colour, label) in _LINES.items()
        if points[name].notna().any()
    ]
    if points["random"].notna().any():
        entries.append(Line2D([], [], marker="x", color=_UNTRAINED, linestyle="", label="untrained weights"))
    if points["forecast"].any():
        label = "largest, forecast from the others"
        entries.append(Line2D([], [], label=label, **_FORECAST))
    return entries
