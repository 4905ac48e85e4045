"""Downstream and published scores against parameters, in any convention, task by task."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.evidence.evidence import Evidence
from study.evidence.score_points import published_scores
from study.plotting.score_panels import WIDTH, best_score, drawn, measured
from study.plotting.style import COUNTS, axis_name, halo, log_ticks, side_by_side

_PUBLISHED = "tab:red"


def frame(evidence: Evidence, count: str = "parameters") -> pd.DataFrame:
    """The scores (study.plotting.score_panels), and rows of kind `published`, of GLUE's secret test sets.

    `x` is the size by this `count` of COUNTS, shifted if others are near.
    """
    data = measured(evidence, count)
    if data.empty or evidence.downstream is None:
        return data
    published = [
        {"task": task.task, "kind": "published", "x": entry.sizes[count], "score": entry.score, "label": entry.model}
        for task in evidence.downstream.tasks
        for entry in published_scores(task.task, task.metric)
    ]
    data = data.assign(**{count: data["x"]}, x=side_by_side(data["x"], data["task"], WIDTH))
    return pd.concat([data, pd.DataFrame(published)], ignore_index=True).assign(count=count)


def draw(data: pd.DataFrame) -> Figure:
    """Sizes on a logarithmic axis; published models are named."""
    there = (data["kind"] == "published").any()
    reference = "published: BERT's miniatures on GLUE's test sets (Turc et al. 2019)"
    entries = [Line2D([], [], marker="*", color=_PUBLISHED, linewidth=1, label=reference)] if there else []
    count = data["count"].iloc[0]
    ours = data[data[count].notna()]
    axis = axis_name(count, ours["x"], ours[count])
    return drawn(data, axis, COUNTS[count], _finish, entries, best_score)


def _finish(panel: Axes, rows: pd.DataFrame) -> None:
    published = rows[rows["kind"] == "published"]
    panel.plot(published["x"], published["score"], marker="*", markersize=9, color=_PUBLISHED, linewidth=1, zorder=3)
    for rank, (_, row) in enumerate(published.iterrows()):
        panel.annotate(
            str(row["label"]).removeprefix("BERT-"),
            (row["x"], row["score"]),
            (6, -14) if rank % 2 else (-4, 5),
            textcoords="offset points",
            ha="right",
            fontsize="x-small",
            color=_PUBLISHED,
            path_effects=halo(2),
            zorder=6,
        )
    log_ticks(panel)
