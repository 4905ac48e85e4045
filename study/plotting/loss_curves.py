"""Validation and training loss against tokens, with the unigram plateau."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from study.base.quantities import plural
from study.config.named_runs import NO_RUN
from study.counting.architecture import SIZES
from study.evidence.cells import scales_of
from study.evidence.evidence import Evidence
from study.plotting.hover import explain
from study.plotting.lines import line_key, line_styles, lines, of_cell
from study.plotting.style import (
    incomparable,
    legend_below,
    log_ticks,
    loss_axis,
    mark_plateau,
    panels,
    theme,
    title_above,
)

_OF_A_LINE = [*SIZES, "setting"]
_OF: dict[str, dict[str, Any]] = {
    "val": {"markersize": 3.5},
    "train": {"marker": None, "linestyle": "-", "linewidth": 0.7, "alpha": 0.45, "zorder": 1},
}
"""The look of each kind of loss in its run's line."""

MOST_LINES = 6
"""The most lines of a panel; where one would have more, each panel has the shapes of one size."""

MOST_STEPS = 60
"""The most training losses of a line; more are averaged over steps of equal ratio in tokens."""


def frame(evidence: Evidence) -> pd.DataFrame:
    """One row per logged loss of a usable run at its cell's chosen rate; the last log of a step counts.

    `kind` is val, or train without a teacher; with one, the objective is no MLM loss. Losses per masked
    token compare for one tokeniser.
    """
    ledger = evidence.ledger
    taught = set(ledger.loc[ledger["recipe.teacher"] != NO_RUN["teacher"], "run_id"] if "recipe.teacher" in ledger else ())
    scales = scales_of(evidence.cells, per_token=True)
    rows = [
        {
            "panel": panel,
            "budget_tokens": cell.tokens,
            "run_id": run,
            **of_cell(cell),
            "kind": kind,
            "tokens": row["trainer/tokens"],
            "loss_nats": row[f"{kind}/loss"],
            "unit": cell.token_unit,
            "scale": scales[cell.name],
            "unigram_entropy_nats": cell.unigram_entropy_nats,
        }
        for panel, cells in evidence.panels(scales).items()
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
    """One panel per family, one line per cell (study.plotting.lines), the mean over seeds within the band of their range.

    Where a panel would have more than MOST_LINES lines, each has the shapes of one size instead, at their longest budget, and
    points where shorter ones end. The range covers validation losses, and training losses from the plateau on.
    """
    finding = incomparable(data) or _lowest(data[data["kind"] == "val"], data["panel"].nunique() > 1)
    whole, data = data, _small_multiples(data)
    are_many = bool(data["panel"].ne(whole["panel"]).any())
    validated = data["kind"] == "val"
    highest = data["scale"].map(data[validated].groupby("scale")[["loss_nats", "unigram_entropy_nats"]].max().max(axis=1))
    curves = data[validated | (data["loss_nats"] <= highest)]
    with theme():
        names = data["panel"].unique()
        columns, height = (3, 2.1) if are_many else (2, 2.6)
        figure, axes = panels(names.tolist(), "training tokens", loss_axis(data), columns, height, one_y=not incomparable(data))
        styles = line_styles(data)
        for panel, name in zip(axes, names, strict=True):
            for (line, kind, is_end), runs in curves[curves["panel"] == name].groupby(["line", "kind", "is_end"], sort=False):
                look = styles[str(line)] | _OF[str(kind)]
                if is_end:
                    _draw_ends(panel, over_seeds(runs), look)
                else:
                    _draw_seeds(panel, over_seeds(runs), look, str(kind))
        log_ticks(axes[0])
        plateau = mark_plateau(axes, data)
        title_above(figure, finding, _counts(whole, are_many) + plateau)
        legend_below(figure, line_key(styles), columns=3)
    return figure


def _small_multiples(data: pd.DataFrame) -> pd.DataFrame:
    """Return the rows to draw; of many lines with the panels and lines of their sizes, and `is_end` for ends without curves.

    Panels are of the size, or the two, that leave the fewest panels of at most MOST_LINES lines.
    """
    data = data.assign(is_end=False)
    cells = data.drop_duplicates(["scale", *_OF_A_LINE])
    varied = [name for name in _OF_A_LINE if cells[name].nunique() > 1]
    splits = [split for count in (1, 2) for split in combinations(varied, count)]
    lines_of = {split: cells.groupby(["scale", *split]).size() for split in splits}
    readable = [split for split, counts in lines_of.items() if 1 < counts.max() <= MOST_LINES]
    if data.groupby("panel")["line"].nunique().max() <= MOST_LINES or not readable:
        return data
    split = min(readable, key=lambda split: len(lines_of[split]))
    data = data.sort_values(["scale", *split], kind="stable")
    longest = data.groupby(["scale", *_OF_A_LINE])["budget_tokens"].transform("max")
    last = data.groupby(["run_id", "kind"])["tokens"].transform("max")
    data = data.assign(is_end=data["budget_tokens"] < longest)
    data = data[~data["is_end"] | ((data["kind"] == "val") & (data["tokens"] == last))]
    words = {name: data[name].astype(str) if name == "setting" else f"{name} " + data[name].astype(str) for name in split}
    several = {"scale": data["scale"]} if incomparable(data) else {}
    panel = pd.concat({**words, **several}, axis=1).apply(lambda parts: ", ".join(filter(None, parts)), axis=1)
    alike = data.assign(panel="", **dict.fromkeys(split, 0))
    return alike.assign(panel=panel, line=lines(alike, without=split))


def over_seeds(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds at each number of tokens, with the range (`lowest_nats`, `highest_nats`) of several."""
    means = runs.groupby("tokens")["loss_nats"].agg(["mean", "min", "max", "size"]).reset_index()
    several = means["size"] > 1
    return pd.DataFrame(
        {
            "line": runs["line"].iloc[0],
            "tokens": means["tokens"],
            "loss_nats": means["mean"],
            "lowest_nats": means["min"].where(several),
            "highest_nats": means["max"].where(several),
            "seeds": means["size"],
            "run_ids": ", ".join(run[:8] for run in runs["run_id"].unique()),
        }
    )


def _averaged(means: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds, over steps of equal ratio in tokens if they are many."""
    if len(means) <= MOST_STEPS:
        return means
    logarithms = np.log(means["tokens"])
    steps = ((logarithms - logarithms.min()) / np.ptp(logarithms) * MOST_STEPS).astype(int)
    return means.groupby(steps.clip(upper=MOST_STEPS - 1))[["tokens", "loss_nats"]].mean()


def _draw_seeds(panel: Axes, means: pd.DataFrame, style: dict[str, Any], kind: str) -> None:
    means = means if kind == "val" else _averaged(means)
    panel.plot(means["tokens"], means["loss_nats"], **style)
    if kind == "val":
        panel.fill_between(
            means["tokens"], means["lowest_nats"], means["highest_nats"], color=style["color"], alpha=0.2, linewidth=0
        )
        explain(panel, means, "tokens", "loss_nats")


def _draw_ends(panel: Axes, means: pd.DataFrame, style: dict[str, Any]) -> None:
    panel.plot(means["tokens"], means["loss_nats"], **style | {"linestyle": "none"})
    panel.vlines(means["tokens"], means["lowest_nats"], means["highest_nats"], color=style["color"], linewidth=1)
    explain(panel, means, "tokens", "loss_nats")


def _lowest(validated: pd.DataFrame, several_panels: bool) -> str:
    """Return the line whose mean loss ends lowest."""
    if validated.empty:
        return "Loss curves"
    ends = validated.sort_values("tokens").groupby(["panel", "line", "run_id"]).tail(1)
    means = ends.groupby(["panel", "line"])["loss_nats"].mean().reset_index()
    best = means.nsmallest(1, "loss_nats").iloc[0]
    where = ", ".join(filter(None, (str(best["line"]), str(best["panel"]) if several_panels else "")))
    return f"The validation loss ends lowest, at {best['loss_nats']:.3f} {validated['unit'].iloc[0]}, for {where}"


def _counts(data: pd.DataFrame, are_many: bool) -> str:
    runs = data["run_id"].nunique()
    several = runs > data.groupby("panel")["line"].nunique().sum()
    parts = [
        f"{plural(runs, 'run')} at the chosen learning rates",
        "lines: means over seeds, bands: their range" if several else "",
        "thin: training loss, the mean since the row before" if (data["kind"] == "train").any() else "",
        "each shape at its longest budget, and where shorter ones end" if are_many else "",
    ]
    return "; ".join(filter(None, parts))
