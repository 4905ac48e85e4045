"""Downstream and published scores against parameters or FLOPs, in any convention, task by task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from study.evidence.evidence import Evidence
from study.evidence.ledgers import COUNTS, LEDGER_FLOPS
from study.evidence.score_points import PublishedScore, published_scores
from study.plotting.hover import explain
from study.plotting.score_panels import WIDTH, best_score, drawn, measured, panel_of
from study.plotting.style import axis_name, log_ticks, side_by_side

_COLOURS = {"BERT": "tab:red", "DistilBERT": "tab:purple", "ALBERT": "tab:olive", "ELECTRA": "tab:cyan"}
"""The colour of each published family."""


@dataclass(frozen=True)
class ScoreAgainst:
    """The figure of one count of COUNTS."""

    count: str

    def frame(self, evidence: Evidence) -> pd.DataFrame:
        """Return the scores (study.plotting.score_panels); of what was not trained there is none against FLOPs.

        Rows of kind `published`, with their family and split, stand at the size of their model; no FLOPs of these are known.
        `x` is the count, shifted if others are near.
        """
        data = measured(evidence, self.count)
        data = data if data.empty else data[data["x"] > 0]
        if data.empty:
            return data
        data = data.assign(**{self.count: data["x"]}, x=side_by_side(data["x"], data["task"], WIDTH))
        return pd.concat([data, pd.DataFrame(self._published(evidence))], ignore_index=True)

    def _published(self, evidence: Evidence) -> list[dict[str, object]]:
        if evidence.downstream is None or self.count in LEDGER_FLOPS:
            return []
        return [
            {"task": task.task, "panel": panel_of(task), "kind": "published", "x": entry.sizes[self.count], **_columns(entry)}
            for task in evidence.downstream.tasks
            for entry in published_scores(task.task, task.metric)
        ]

    def draw(self, data: pd.DataFrame) -> Figure:
        """Draw counts on a logarithmic axis; published scores are stars, filled on test sets and open on development sets."""
        entries = [
            Line2D([], [], label=f"published: {family}, {split}", **_star(family, split))
            for family, split in _families(data[data["kind"] == "published"])
        ]
        ours = data[data[self.count].notna()]
        name = "FLOPs of pre-training" if self.count in LEDGER_FLOPS else self.count
        return drawn(data, axis_name(name, ours["x"], ours[self.count]), COUNTS[self.count], _finish, entries, best_score)


def _columns(entry: PublishedScore) -> dict[str, object]:
    return {name: getattr(entry, name) for name in ("score", "family", "split", "source")} | {"label": entry.model}


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
