"""Validation loss against tokens of the chosen runs over their training loss, with the plateau that training has to leave."""

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
"""How a loss of each kind looks in the line of its run."""


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row a logged loss of a usable run at its cell's chosen rate; a step logged twice counts as logged last.

    `kind` is val, or train where the run learns from text alone: with a teacher, what is minimised is no MLM loss. `line` names
    the cell's line (study.plotting.lines).
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
    """A panel a family, a line a run; see study.plotting.lines for their names and colours.

    The range is that of the validation losses and, where there are training losses, of these from the plateau on.
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
