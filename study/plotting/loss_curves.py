"""Validation loss against tokens of the chosen runs, with the plateau that training has to leave."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from study.fitting.evidence import Evidence
from study.plotting.lines import line_key, line_styles, lines, of_cell
from study.plotting.style import LOSS, legend_below, log_ticks, mark_plateau, panels, theme


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row a validation of a usable run at its cell's chosen rate; a step logged twice counts as logged last.

    `line` names the cell's line (study.plotting.lines).
    """
    rows = [
        {
            "panel": panel,
            "run_id": run,
            **of_cell(cell),
            "tokens": row["trainer/tokens"],
            "loss_nats": row["val/loss"],
            "unigram_entropy_nats": cell.unigram_entropy_nats,
        }
        for panel, cells in evidence.panels().items()
        for cell in cells
        for run in cell.runs
        for row in evidence.folder.run(run).metrics()
        if row.get("val/loss") is not None and row.get("trainer/tokens")
    ]
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    return table.assign(line=lines(table)).drop_duplicates(["run_id", "tokens"], keep="last", ignore_index=True)


def draw(data: pd.DataFrame) -> Figure:
    """A panel a family, a line a run; see study.plotting.lines for how they are told apart."""
    with theme():
        names = data["panel"].unique()
        figure, axes = panels(names.tolist(), "training tokens", LOSS)
        styles = line_styles(data)
        for panel, name in zip(axes, names, strict=True):
            for _, run in data[data["panel"] == name].groupby("run_id", sort=False):
                panel.plot(run["tokens"], run["loss_nats"], **styles[run["line"].iloc[0]])
        log_ticks(axes[0])
        for panel in axes:
            mark_plateau(panel, data["unigram_entropy_nats"])
        figure.suptitle(f"Loss curves at the chosen learning rates ({data['run_id'].nunique()} runs)")
        legend_below(figure, line_key(styles), columns=3)
    return figure
