"""Validation and training loss against tokens, with the unigram plateau."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from study.base.quantities import plural
from study.config.named_runs import NO_RUN
from study.evidence.evidence import Evidence
from study.plotting.lines import line_key, line_styles, lines, of_cell
from study.plotting.style import LOSS, legend_below, log_ticks, mark_plateau, panels, theme

_OF: dict[str, dict[str, Any]] = {
    "val": {},
    "train": {"marker": None, "linestyle": "-", "linewidth": 0.7, "alpha": 0.45, "zorder": 1},
}
"""The look of each kind of loss in its run's line."""


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row per logged loss of a usable run at its cell's chosen rate; the last log of a step counts.

    `kind` is val, or train without a teacher; with one, the objective is no MLM loss.
    """
    ledger = evidence.ledger
    taught = set(ledger.loc[ledger["recipe.teacher"] != NO_RUN["teacher"], "run_id"] if "recipe.teacher" in ledger else ())
    rows = [
        {
            "panel": panel,
            "run_id": run,
            **of_cell(cell),
            "kind": kind,
            "tokens": row["trainer/tokens"],
            "loss_nats": row[f"{kind}/loss"],
            "unigram_entropy_nats": cell.unigram_entropy_nats,
        }
        for panel, cells in evidence.panels().items()
        for cell in cells
        for run in cell.runs
        for row in evidence.folder.run(run).metrics()
        for kind in (("val",) if run in taught else ("val", "train"))
        if row.get(f"{kind}/loss") is not None and row.get("trainer/tokens")
    ]
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    return table.assign(line=lines(table)).drop_duplicates(["run_id", "kind", "tokens"], keep="last", ignore_index=True)


def draw(data: pd.DataFrame) -> Figure:
    """One panel per family, one line per run (study.plotting.lines).

    The range covers validation losses, and training losses from the plateau on.
    """
    validated = data["kind"] == "val"
    highest = data.loc[validated, ["loss_nats", "unigram_entropy_nats"]].max().max()
    curves = data[validated | (data["loss_nats"] <= highest)]
    with theme():
        names = data["panel"].unique()
        figure, axes = panels(names.tolist(), "training tokens", LOSS)
        styles = line_styles(data)
        for panel, name in zip(axes, names, strict=True):
            for (_, kind), run in curves[curves["panel"] == name].groupby(["run_id", "kind"], sort=False):
                panel.plot(run["tokens"], run["loss_nats"], **(styles[run["line"].iloc[0]] | _OF[kind]))
        log_ticks(axes[0])
        for panel in axes:
            mark_plateau(panel, data["unigram_entropy_nats"])
        thin = "\nthin: training loss, the mean since the row before" if not validated.all() else ""
        figure.suptitle(f"Loss curves at the chosen learning rates ({plural(data['run_id'].nunique(), 'run')}){thin}")
        legend_below(figure, line_key(styles), columns=3)
    return figure
