"""Downstream and published scores against parameters, in any convention, task by task."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.evidence.evidence import Evidence
from study.evidence.ledgers import COUNTS
from study.evidence.score_points import PublishedScore, published_scores
from study.plotting.hover import explain
from study.plotting.score_panels import WIDTH, best_score, drawn, measured, panel_of
from study.plotting.style import axis_name, log_ticks, side_by_side

_COLOURS = {"BERT": "tab:red", "DistilBERT": "tab:purple", "ALBERT": "tab:olive", "ELECTRA": "tab:cyan"}
"""The colour of each published family."""


def frame(evidence: Evidence, count: str = "parameters") -> pd.DataFrame:
    """Return the scores (study.plotting.score_panels), and rows of kind `published`, with their family and split.

    `x` is the size by this `count` of COUNTS, shifted if others are near.
    """
    data = measured(evidence, count)
    if data.empty or evidence.downstream is None:
        return data
    published = [
        {"task": task.task, "panel": panel_of(task), "kind": "published", "x": entry.sizes[count], **_columns(entry)}
        for task in evidence.downstream.tasks
        for entry in published_scores(task.task, task.metric)
    ]
    data = data.assign(**{count: data["x"]}, x=side_by_side(data["x"], data["task"], WIDTH))
    return pd.concat([data, pd.DataFrame(published)], ignore_index=True).assign(count=count)


def _columns(entry: PublishedScore) -> dict[str, object]:
    return {name: getattr(entry, name) for name in ("score", "family", "split", "source")} | {"label": entry.model}


def draw(data: pd.DataFrame) -> Figure:
    """Sizes on a logarithmic axis; published scores are stars, filled on test sets and open on development sets."""
    entries = [
        Line2D([], [], label=f"published: {family}, {split}", **_star(family, split))
        for family, split in _families(data[data["kind"] == "published"])
    ]
    count = data["count"].iloc[0]
    ours = data[data[count].notna()]
    axis = axis_name(count, ours["x"], ours[count])
    return drawn(data, axis, COUNTS[count], _finish, entries, best_score)


def _families(published: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the families and splits that occur, in the order of their colours."""
    there = set(zip(published["family"], published["split"], strict=True)) if len(published) else set()
    return [(family, split) for family in _COLOURS for split in ("test", "dev") if (family, split) in there]


def _star(family: str, split: str) -> dict[str, Any]:
    colour = _COLOURS[family]
    return {"marker": "*", "markersize": 8, "color": colour, "mfc": colour if split == "test" else "white", "linewidth": 1}


def _finish(panel: Axes, rows: pd.DataFrame) -> None:
    published = rows[rows["kind"] == "published"]
    for family, split in _families(published):
        some = published[(published["family"] == family) & (published["split"] == split)]
        panel.plot(some["x"], some["score"], zorder=3, **_star(family, split))
    explain(panel, published, "x", "score")
    log_ticks(panel)
